"""`surecast subscribe PATTERN`: a line per event, until Ctrl-C."""

import asyncio
import json
import select
import sys
from collections.abc import AsyncIterable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surecast.cli.options import DEFAULT_URL, AsJson, Token, Url, run_async

if TYPE_CHECKING:
    from surecast.client.events import Event

FLUSH_S = 0.05  # a line is shown at the latest after this
HELD_LINES_MAX = 2000  # ... or when there are so many


def subscribe(
    pattern: Annotated[str, typer.Argument(help="A stream, or a pattern: 'orders.*', 'orders.>'.")],
    start: Annotated[
        str,
        typer.Option("--from", help="earliest, latest, a position, or a time: 2026-01-31T12:00Z."),
    ] = "latest",
    voids: Annotated[
        bool, typer.Option("--voids", help="Show ranges that hold no events, too.")
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="A name that keeps its place between runs.")
    ] = None,
    count: Annotated[int, typer.Option(min=0, help="End after so many; 0: never.")] = 0,
    mesh: Annotated[
        bool, typer.Option("--mesh", help="Take part in the mesh of the region's clients.")
    ] = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Print events as they come: stream, position, key and value, with tabs between.

    Order holds within each stream. Line breaks and bytes that are no text are shown escaped; --json
    has them exactly. Events that a stream's delivery has lost are a line with their positions and
    "(lost)".
    """
    begin = parse_start(start)
    run_async(_subscribe(pattern, begin, voids, name, count, mesh, url, token, as_json))


def parse_start(text: str) -> "Any":
    """ "earliest", "latest", 17, or a datetime with a zone (local time if it names none)."""
    if text in ("earliest", "latest"):
        return text
    if text.isascii() and text.isdigit() and int(text) >= 1:
        return int(text)
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not earliest, latest, a position from 1 on, or a time such as "
            "2026-01-31T12:00:00Z",
            param_hint="--from",
        ) from None


async def _subscribe(
    pattern: str, start: Any, voids: bool, name: str | None, count: int, mesh: bool, url: str,
    token: str, as_json: bool,
) -> int:  # fmt: skip
    import surecast

    page = Page(as_object if as_json else as_line)
    async with surecast.connect(url, token=token, mesh=mesh) as client:
        subscription = client.subscribe(pattern, start=start, voids=voids, name=name)
        tasks = [asyncio.create_task(page.fill(subscription, count))]
        tasks.append(asyncio.create_task(page.keep_flushing()))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await subscription.close()
            await page.flush()
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()  # what ended it, if it was no good
    return 0


class Page:
    """stdout, written by a thread: whoever reads it slowly must not stop the client's heartbeat."""

    def __init__(self, render: "Callable[[Event], str]") -> None:
        self.render = render
        self.lines: list[str] = []
        self._writing = asyncio.Lock()

    async def fill(self, events: "AsyncIterable[Event]", count: int) -> None:
        """Put down `count` events, or all there will ever be."""
        async for event in events:
            self.lines.append(self.render(event))
            count -= 1
            if count == 0:
                return
            if len(self.lines) >= HELD_LINES_MAX:
                await self.flush()

    async def keep_flushing(self) -> None:
        """Show lines soon; BrokenPipeError when nobody reads any more, lines or not."""
        end = select.poll()
        end.register(sys.stdout.fileno(), 0)  # tells only of errors: a reader that went away
        while not any(what & select.POLLERR for _, what in end.poll(0)):
            await asyncio.sleep(FLUSH_S)
            await self.flush()
        raise BrokenPipeError

    async def flush(self) -> None:
        async with self._writing:
            lines, self.lines = self.lines, []
            if not lines:
                return
            loop = asyncio.get_running_loop()
            writing = loop.run_in_executor(None, _write, "".join(lines))
            cancelled: asyncio.CancelledError | None = None
            while not writing.done():  # what was taken is shown, and before what follows
                try:
                    await asyncio.wait((writing,))
                except asyncio.CancelledError as said:
                    cancelled = said
            writing.result()
            if cancelled is not None:
                raise cancelled


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def as_line(event: "Event") -> str:
    if event.kind != "event":
        where = event.range  # empty if the delivery has no positions
        positions = f"{where.start}-{where.stop - 1}" if where else "-"
        return f"{event.stream}\t{positions}\t({event.kind})\t{event.reason}\n"
    key = "" if event.key is None else _text(event.key)
    return f"{event.stream}\t{event.seq}\t{key}\t{_text(event.value)}\n"


def _text(data: bytes) -> str:
    text = data.decode(errors="backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def as_object(event: "Event") -> str:
    from surecast.server.ndjson import as_json

    shown: dict[str, Any] = {"stream": event.stream, "seq": event.seq, "kind": event.kind}
    if event.kind == "event":
        shown |= as_json("key", event.key) | as_json("value", event.value)
        shown["time"] = event.time.isoformat()
        if event.tag is not None:
            shown |= as_json("tag", event.tag)
    else:
        shown |= {"range": [event.range.start, event.range.stop], "reason": event.reason}
    return json.dumps(shown, ensure_ascii=False) + "\n"
