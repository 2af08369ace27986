"""`surecast subscribe PATTERN`: a line per event, until Ctrl-C, --until or --count."""

import asyncio
import json
import select
import sys
from collections.abc import AsyncIterable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from surecast.cli.interrupts import loads
from surecast.cli.options import DEFAULT_URL, AsJson, Token, Url, run_async
from surecast.errors import Closed, UsageError

if TYPE_CHECKING:
    from surecast.client.events import Event
    from surecast.client.subscription import Subscription

FLUSH_S = 0.05  # a line is shown at the latest after this
HELD_LINES_MAX = 2000  # ... or when there are so many
LAST_ACK_S = 5.0  # for the last acknowledgement of a named subscription


@loads("surecast.client.connection")
def subscribe(
    pattern: Annotated[str, typer.Argument(help="A stream, or a pattern: 'orders.*', 'orders.>'.")],
    start: Annotated[
        str,
        typer.Option("--from", help="earliest, latest, a position, or a time: 2026-01-31T12:00Z."),
    ] = "latest",
    until: Annotated[
        str | None,
        typer.Option(
            help="End before this: latest (what there is now), a position, or a time. Streams that "
            "appear later are left out."
        ),
    ] = None,
    voids: Annotated[
        bool, typer.Option("--voids", help="Show ranges that hold no events, too.")
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(help="A name that keeps its place between runs, behind what was printed."),
    ] = None,
    count: Annotated[
        int, typer.Option(min=0, help="End after so many, if --until does not end it; 0: never.")
    ] = 0,
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
    "(lost)". With --name, what was written to stdout is acknowledged: the next run goes on behind
    it.

    With --until it ends, with exit code 0, when everything before that was printed: at once if
    there is nothing. A position or a time to come is waited for.
    """
    begin = parse_start(start)
    stop = None if until is None else parse_until(until)
    run_async(_subscribe(pattern, begin, voids, name, count, mesh, url, token, as_json, stop))


def parse_start(text: str) -> "Any":
    """ "earliest", "latest", 17, or a datetime with a zone (local time if it names none)."""
    return text if text == "earliest" else _parse_place(text, "earliest, latest", "--from")


def parse_until(text: str) -> "Any":
    """ "latest", 17, or a datetime, as `parse_start`."""
    return _parse_place(text, "latest", "--until")


def _parse_place(text: str, words: str, option: str) -> "Any":
    from surecast.client.subscription_task import check_start

    place: Any = text
    try:
        if text.isascii() and text.isdigit():
            place = int(text)
        elif text != "latest":
            place = datetime.fromisoformat(text).astimezone()
        check_start(place)
        return place
    except (ValueError, OverflowError, UsageError):
        raise typer.BadParameter(
            f"{text!r} is not {words}, a position from 1 on, or a time such as "
            "2026-01-31T12:00:00Z",
            param_hint=option,
        ) from None


async def _subscribe(
    pattern: str, start: Any, voids: bool, name: str | None, count: int, mesh: bool, url: str,
    token: str, as_json: bool, stop: Any = None,
) -> int:  # fmt: skip
    import surecast

    page = Page(as_object if as_json else as_line)
    async with surecast.connect(url, token=token, mesh=mesh) as client:
        # What has been printed is acknowledged, and no more: neither what waits for the next write
        # nor what a write that failed had in it.
        ack: Literal["auto", "manual"] = "auto" if name is None else "manual"
        subscription = client.subscribe(
            pattern, start=start, stop=stop, voids=voids, name=name, ack=ack
        )
        tasks = [asyncio.create_task(page.fill(subscription, count))]
        tasks.append(asyncio.create_task(page.keep_flushing()))
        if name is not None:
            tasks.append(asyncio.create_task(page.keep_acknowledging(subscription)))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            try:
                await page.flush()
            finally:
                if name is not None:
                    await page.acknowledge_last(subscription)
                await subscription.close()
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()  # what ended it, if it was no good
    return 0


class Page:
    """stdout, written by a thread: whoever reads it slowly must not stop the client's heartbeat."""

    def __init__(self, render: "Callable[[Event], str]") -> None:
        self.render = render
        self.lines: list[str] = []
        self.last: dict[str, Event] = {}  # of each stream, among the lines
        self.written: dict[str, Event] = {}  # the last of each stream; not acknowledged yet
        self.is_broken = False  # a write has failed: nothing more is written or acknowledged
        self._writing = asyncio.Lock()

    async def fill(self, events: "AsyncIterable[Event]", count: int) -> None:
        """Put down `count` events, or all there will ever be."""
        async for event in events:
            self.lines.append(self.render(event))
            self.last[event.stream] = event
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

    async def keep_acknowledging(self, subscription: "Subscription") -> None:
        """Beside the flushing: lines are shown while a region is slow to store a place."""
        while True:
            await asyncio.sleep(FLUSH_S)
            await self.acknowledge(subscription)

    async def acknowledge(self, subscription: "Subscription") -> None:
        """All that was written is dealt with."""
        written = dict(self.written)
        await asyncio.gather(*(subscription.ack(event) for event in written.values()))
        for stream, event in written.items():
            if self.written.get(stream) is event:
                del self.written[stream]

    async def acknowledge_last(self, subscription: "Subscription") -> None:
        try:
            async with asyncio.timeout(LAST_ACK_S):
                await self.acknowledge(subscription)
        except UsageError:
            return  # the subscription has failed, and the user is told why
        except TimeoutError:
            raise Closed(
                f"the region has not stored within {LAST_ACK_S:g} s that these events were "
                "printed: the next run will print some of them again"
            ) from None

    async def flush(self) -> None:
        async with self._writing:
            lines, self.lines = self.lines, []
            last, self.last = self.last, {}
            if not lines or self.is_broken:
                return
            loop = asyncio.get_running_loop()
            writing = loop.run_in_executor(None, _write, "".join(lines))
            cancelled: asyncio.CancelledError | None = None
            while not writing.done():  # what was taken is shown, and before what follows
                try:
                    await asyncio.wait((writing,))
                except asyncio.CancelledError as said:
                    cancelled = said
            self.is_broken = writing.exception() is not None
            writing.result()
            self.written |= last
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
