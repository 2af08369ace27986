"""`surecast subscribe PATTERN`: prints a line per event, until Ctrl-C, --until or --count.

The client receives events in the event loop, and a thread writes the lines to stdout. So a slow
reader of stdout, such as a pager, does not delay the client's heartbeats.
"""

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

FLUSH_S = 0.05  # interval between writes to stdout
HELD_LINES_MAX = 2000  # if this number of lines waits to be written, they are written at once
LAST_ACK_S = 5.0  # at the end, time for the region to save the position of a named subscription


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
            help="End before this: latest (the current end), a position, or a time. Streams that "
            "are created later are left out."
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(help="Print only events that pass this filter: 'sym == \"IBM\"'."),
    ] = None,
    voids: Annotated[bool, typer.Option("--voids", help="Also print void ranges.")] = False,
    name: Annotated[
        str | None,
        typer.Option(help="Save the position under this name; the next run continues there."),
    ] = None,
    count: Annotated[int, typer.Option(min=0, help="End after this many events; 0: no limit.")] = 0,
    mesh: Annotated[
        bool,
        typer.Option(
            "--mesh", help="Receive events from other clients, and pass events on to them."
        ),
    ] = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Print events as they arrive: stream, position, key and value, separated by tabs. The
    attributes of a stream with a schema follow as JSON.

    Events are in order within each stream. Line breaks and bytes that are not text are escaped;
    --json contains them exactly. For events that a stream's delivery has lost, a line shows their
    positions and "(lost)". With --name, events are acknowledged when they are written to stdout:
    the next run continues after them.

    With --where (see docs/filters.md) only events that pass the filter are printed; `surecast where
    check` checks a filter.

    With --until it ends, with exit code 0, when everything before that is printed; at once if
    there is nothing to print. It waits for a position or a time in the future.
    """
    begin = parse_start(start)
    stop = None if until is None else parse_until(until)
    run_async(
        _subscribe(pattern, begin, voids, name, count, mesh, url, token, as_json, stop, where)
    )


def parse_start(text: str) -> "Any":
    """The value of --from: "earliest", "latest", a position such as 17, or a datetime. A time
    without a zone is in the zone of this machine."""
    return text if text == "earliest" else _parse_place(text, "earliest, latest", "--from")


def parse_until(text: str) -> "Any":
    """The value of --until: "latest", a position such as 17, or a datetime."""
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
    token: str, as_json: bool, stop: Any = None, where: str | None = None,
) -> int:  # fmt: skip
    import surecast

    page = Page(as_object if as_json else as_line)
    async with surecast.connect(url, token=token, mesh=mesh) as client:
        # Only events that have been written to stdout are acknowledged (`Page`). With "auto" the
        # client would also acknowledge events that wait to be written.
        ack: Literal["auto", "manual"] = "auto" if name is None else "manual"
        subscription = client.subscribe(
            pattern, start=start, stop=stop, voids=voids, name=name, ack=ack, where=where
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
                if where is not None:
                    counts = f"{subscription.matched:,} events have passed the filter"
                    print(f"{counts}, {subscription.filtered:,} have not", file=sys.stderr)
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()  # raises the error that ended it, if any
    return 0


class Page:
    """Writes lines to stdout in a thread (see the module), and acknowledges written events."""

    def __init__(self, render: "Callable[[Event], str]") -> None:
        self.render = render
        self.lines: list[str] = []
        self.last: dict[str, Event] = {}  # the last event of each stream in `lines`
        # The last event of each stream that was written, if it is not acknowledged yet.
        self.written: dict[str, Event] = {}
        self.is_broken = False  # a write has failed: nothing more is written or acknowledged
        self._writing = asyncio.Lock()

    async def fill(self, events: "AsyncIterable[Event]", count: int) -> None:
        """Add lines for `count` events; if `count` is 0, until the iterator ends."""
        async for event in events:
            self.lines.append(self.render(event))
            self.last[event.stream] = event
            count -= 1
            if count == 0:
                return
            if len(self.lines) >= HELD_LINES_MAX:
                await self.flush()

    async def keep_flushing(self) -> None:
        """Write lines every FLUSH_S; raise BrokenPipeError when the reader has closed stdout."""
        poll = select.poll()
        # With no events to wait for, poll reports only errors: the reader has closed the pipe.
        poll.register(sys.stdout.fileno(), 0)
        while not any(event & select.POLLERR for _, event in poll.poll(0)):
            await asyncio.sleep(FLUSH_S)
            await self.flush()
        raise BrokenPipeError

    async def keep_acknowledging(self, subscription: "Subscription") -> None:
        """Acknowledge written events every FLUSH_S. This runs in its own task, so that lines are
        printed even while the region is slow to save positions."""
        while True:
            await asyncio.sleep(FLUSH_S)
            await self.acknowledge(subscription)

    async def acknowledge(self, subscription: "Subscription") -> None:
        """Acknowledge all events that were written."""
        written = dict(self.written)
        await asyncio.gather(*(subscription.ack(event) for event in written.values()))
        for stream, event in written.items():
            if self.written.get(stream) is event:
                del self.written[stream]

    async def acknowledge_last(self, subscription: "Subscription") -> None:
        """At the end: acknowledge, but wait only for a limited time."""
        try:
            async with asyncio.timeout(LAST_ACK_S):
                await self.acknowledge(subscription)
        except UsageError:
            return  # the subscription has failed, and its error is reported
        except TimeoutError:
            raise Closed(
                f"the region has not saved the position within {LAST_ACK_S:g} s: the next run will "
                "print some of these events again"
            ) from None

    async def flush(self) -> None:
        """Write all lines, and wait until they are written."""
        async with self._writing:
            lines, self.lines = self.lines, []
            last, self.last = self.last, {}
            if not lines or self.is_broken:
                return
            loop = asyncio.get_running_loop()
            writing = loop.run_in_executor(None, _write, "".join(lines))
            cancelled: asyncio.CancelledError | None = None
            # Even if this task is cancelled it waits for the thread, because the next write must
            # come after this one.
            while not writing.done():
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
    more = ""
    if event.schema is not None:
        text = json.dumps(_attributes(event), ensure_ascii=False)
        # Characters that could control the terminal are written as in JSON.
        more = "\t" + "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
    return f"{event.stream}\t{event.seq}\t{key}\t{_text(event.value)}{more}\n"


def _attributes(event: "Event") -> dict[str, Any]:
    from surecast.endpoint.attributes_json import to_json

    assert event.schema is not None
    return to_json(event.schema, event.fields)


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
        if event.schema is not None:
            shown["attributes"] = _attributes(event)
        shown["time"] = event.time.isoformat()
        if event.tag is not None:
            shown |= as_json("tag", event.tag)
    else:
        shown |= {"range": [event.range.start, event.range.stop], "reason": event.reason}
    return json.dumps(shown, ensure_ascii=False) + "\n"
