"""`surecast publish STREAM [VALUE…]`: publishes events given as arguments, lines or JSON lines."""

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from surecast.cli.interrupts import loads
from surecast.cli.options import (
    DEFAULT_URL,
    AsJson,
    Token,
    Url,
    parse_retention,
    run_async,
)
from surecast.cli.progress import Bar
from surecast.core.policies import RETENTIONS
from surecast.errors import PublishError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from surecast.client.connection import Client
    from surecast.client.stream import Stream
    from surecast.endpoint.attributes import RowWriter

READ_BYTES = 1 << 20  # bytes that are read from a file at a time
LINE_BYTES_MAX = 16 << 20
WAITS_S = 3.0  # after this time without an acknowledgement, a message says why
CLOSE_S = 1.0  # after Ctrl-C, time to wait for acknowledgements
PROGRESS_S = 2.0  # publishing that takes longer shows its progress
NEEDS_OBJECTS = (
    "the stream has a schema: give its fields as JSON objects, one a line, with --ndjson FILE "
    '(- for stdin), such as {"sym": "IBM", "px": 81.2}'
)
RUNS_SHOWN = 8  # ranges of positions that are printed; the others are only counted

# Key, value and tag of each event; or of a stream with a schema, a `TypedRow` for each.
Events = list[Any]


@loads("surecast.client.connection")
def publish(
    stream: Annotated[
        str, typer.Argument(help="Name of the stream, such as orders.eu; created if missing.")
    ],
    values: Annotated[list[str] | None, typer.Argument(help="The values of the events.")] = None,
    key: Annotated[str | None, typer.Option(help="The key of every value or line.")] = None,
    url: Url = DEFAULT_URL,
    lines: Annotated[
        Path | None, typer.Option(help="A file, or - for stdin: each line is an event.")
    ] = None,
    ndjson: Annotated[
        Path | None,
        typer.Option(
            help='A file, or -: each line is {"key": …, "value": …}, and has the fields of the '
            "stream's schema, if it has one."
        ),
    ] = None,
    retain: Annotated[
        str | None, typer.Option(help=f"What a new stream keeps: {RETENTIONS}.")
    ] = None,
    delivery: Annotated[
        str, typer.Option(help="Delivery of a new stream (docs/client.md). Default: broadcast.")
    ] = "",
    schema: Annotated[
        str | None,
        typer.Option(
            help="Typed fields of a new stream, such as 'sym string not null, px float64'."
        ),
    ] = None,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Publish events and print their positions when they are acknowledged.

    Without values, --lines or --ndjson each line of stdin is published when it is read.
    """
    sources = [bool(values), lines is not None, ndjson is not None]
    if sum(sources) > 1:
        raise typer.BadParameter("give only one of: values, --lines, --ndjson")
    if key is not None and ndjson is not None:
        raise typer.BadParameter("with --ndjson each line has its own key", param_hint="--key")
    if not any(sources):
        if sys.stdin.isatty():
            raise typer.BadParameter(
                "give values, --lines FILE or --ndjson FILE, or pipe lines in; `--lines -` reads "
                "the lines that you type, until Ctrl-D"
            )
        lines = Path("-")
    policy = parse_retention(retain)
    common = None if key is None else key.encode()
    if values:
        source: Source = Values([(common, value.encode(), None) for value in values])
    else:
        source = Lines(ndjson or lines or Path("-"), common, as_objects=ndjson is not None)
    arguments: dict[str, Any] = {"retain": policy, "delivery": delivery}
    if schema is not None:
        from surecast.columns.schema import read_schema

        arguments["schema"] = read_schema(schema).text
    run_async(_publish(url, token, stream, arguments, source, as_json))


async def _publish(
    url: str, token: str, name: str, arguments: "dict[str, Any]", source: "Source", as_json: bool
) -> int:
    import surecast

    done = Done()
    options = surecast.ClientOptions(close_timeout=CLOSE_S)
    try:
        async with surecast.connect(url, token=token, options=options) as client:
            waits = asyncio.create_task(_say_that_it_waits(name, done))
            try:
                await _all(client, name, arguments, source, done)
            finally:
                waits.cancel()
    except PublishError as problem:
        for run in problem.acknowledged:
            done.add(run)
        print(f"surecast: {problem}", file=sys.stderr)
        _tell(name, done, as_json, "only these are known to be published")
        return 1
    except (UsageError, asyncio.CancelledError):  # a line of the input is invalid, or Ctrl-C
        if done.count:
            _tell(name, done, as_json, "published before the error or interrupt")
        raise
    _tell(name, done, as_json, "")
    return 0


async def _say_that_it_waits(name: str, done: "Done") -> None:
    """If an acknowledgement takes long, print once why, and what the user can do."""
    while True:
        before = done.waits_for, done.count
        await asyncio.sleep(WAITS_S)
        if done.waits_for and before == (done.waits_for, done.count):
            print(
                f"surecast: {name}: waiting for an acknowledgement; it comes when every replica of "
                "the stream's region has the events. `surecast status` shows missing replicas. "
                "Press Ctrl-C to stop waiting",
                file=sys.stderr,
            )
            return


async def _writer(client: "Client", name: str, schema: str) -> "RowWriter | None":
    """The writer of the stream, or of the schema that it will be created with."""
    from surecast.endpoint.attributes import writer_of

    known = await client.streams(name)
    return writer_of(known[0].schema if known else schema)


async def _all(
    client: "Client", name: str, arguments: "dict[str, Any]", source: "Source", done: "Done"
) -> None:
    """Publish all events of `source`, and show progress if that takes long. `arguments` are those
    of `Client.stream`."""
    from surecast.server.ndjson import columns_of

    began = time.monotonic()
    bar: Bar | None = None
    stream: Stream | None = None
    try:
        async for some in source.events(await _writer(client, name, arguments.get("schema", ""))):
            done.waits_for += 1
            # The stream is opened only when there is an event to publish, because opening it
            # creates it if it does not exist.
            if stream is None:
                stream = await client.stream(name, **arguments)
            if stream.schema is None:
                keys, values, tags = columns_of(some)
                published = await stream.publish_many(values, keys=keys, tags=tags)
            else:
                published = await stream.publish_many(some)
            for run in published.runs:
                done.add(run)
            done.waits_for = 0
            if bar is None and time.monotonic() - began > PROGRESS_S:
                bar = Bar(f"publish {stream.name}", source.total).__enter__()
            if bar is not None:
                rate = done.count / (time.monotonic() - began)
                at = source.position if source.total else done.count
                bar.update(at, f"{done.count:,} events, {rate:,.0f}/s")
    finally:
        if bar is not None:
            bar.__exit__(None, None, None)


class Done:
    """The acknowledged positions, as half-open ranges; adjacent ranges are joined."""

    def __init__(self) -> None:
        self.count = 0
        self.waits_for = 0  # calls of publish_many that have not returned
        self.runs: list[tuple[int, int]] = []

    def add(self, run: tuple[int, int]) -> None:
        lo, hi = run
        self.count += hi - lo
        if self.runs and self.runs[-1][1] == lo:
            self.runs[-1] = (self.runs[-1][0], hi)
        else:
            self.runs.append((lo, hi))


def _tell(name: str, done: Done, as_json: bool, note: str) -> None:
    if as_json:
        print(json.dumps({"stream": name, "count": done.count, "seqs": done.runs}))
        return
    runs = [str(lo) if hi == lo + 1 else f"{lo}-{hi - 1}" for lo, hi in done.runs[:RUNS_SHOWN]]
    more = f" and {len(done.runs) - RUNS_SHOWN} more runs" if len(done.runs) > RUNS_SHOWN else ""
    events = "1 event" if done.count == 1 else f"{done.count:,} events"
    said = f"{name}: {', '.join(runs)}{more} ({events})" if runs else f"{name}: no events"
    print(said + (f", {note}" if note else ""))


# ---------------------------------------------------------------- sources of events


class Values:
    """Events from the command line arguments."""

    total = 0.0  # there is no file whose size could be compared with `position`

    def __init__(self, given: Events) -> None:
        self.given = given
        self.position = 0.0

    async def events(self, writer: "RowWriter | None") -> AsyncIterator[Events]:
        if writer is not None:
            raise UsageError(NEEDS_OBJECTS)
        yield self.given


class Lines:
    """Events from a file or stdin. Each complete line is published as soon as it is read."""

    def __init__(self, path: Path, key: bytes | None, *, as_objects: bool) -> None:
        self.path = path
        self.key = key
        self.as_objects = as_objects
        self.position = 0.0  # bytes that were read
        self.number = 0  # lines that were read
        self.file = self._open()
        # The size of the file; 0 for a pipe, whose size is not known.
        self.total = float(os.fstat(self.file.fileno()).st_size)

    def _open(self) -> BinaryIO:
        if str(self.path) == "-":
            return sys.stdin.buffer
        try:
            return self.path.open("rb")
        except OSError as problem:
            raise UsageError(f"cannot read {self.path}: {problem.strerror}") from None

    async def events(self, writer: "RowWriter | None") -> AsyncIterator[Events]:
        """The events. `writer` is that of the stream's schema, or None if it has no schema."""
        if writer is not None and not self.as_objects:
            raise UsageError(NEEDS_OBJECTS)
        parse = self._parser(writer)
        rest = b""  # the begin of a line whose end has not been read yet
        while data := await _read(self.file.fileno()):
            self.position += len(data)
            whole, newline, tail = data.rpartition(b"\n")
            if newline:
                yield self._parsed((rest + whole).split(b"\n"), parse)
                rest = tail
            else:
                rest += data
            if len(rest) > LINE_BYTES_MAX:
                raise UsageError(f"line {self.number + 1} is longer than {LINE_BYTES_MAX:,} bytes")
        if rest:
            yield self._parsed([rest], parse)

    def _parser(self, writer: "RowWriter | None") -> "Callable[[bytes], Any]":
        if not self.as_objects:
            return lambda line: (self.key, line, None)
        from surecast.server.ndjson import parse_line, parse_row

        return parse_line if writer is None else partial(parse_row, writer=writer)

    def _parsed(self, lines: list[bytes], parse: "Callable[[bytes], Any]") -> list[Any]:
        """The events in some lines; blank lines between JSON objects are skipped."""
        events = [self._event(line, parse) for line in lines]
        return [event for event in events if event is not None]

    def _event(self, line: bytes, parse: "Callable[[bytes], Any]") -> Any:
        self.number += 1
        if self.as_objects and not line.strip():
            return None
        if len(line) > LINE_BYTES_MAX:
            raise UsageError(f"line {self.number} is longer than {LINE_BYTES_MAX:,} bytes")
        try:
            return parse(line)
        except UsageError as problem:
            source = "stdin" if str(self.path) == "-" else self.path
            raise UsageError(f"{source}, line {self.number}: {problem}") from None


async def _read(file: int) -> bytes:
    """Up to READ_BYTES of a file or pipe; empty at its end.

    The read is done in a daemon thread. Threads of the event loop's executor are joined when the
    process ends, so that Ctrl-C would wait for the next line of stdin.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bytes] = loop.create_future()

    def finish(data: bytes, problem: OSError | None) -> None:
        if done.cancelled():
            return
        if problem is None:
            done.set_result(data)
        else:
            done.set_exception(problem)

    def read() -> None:
        data, problem = b"", None
        try:
            data = os.read(file, READ_BYTES)
        except OSError as error:
            problem = error
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(finish, data, problem)

    threading.Thread(target=read, name="publish-input", daemon=True).start()
    return await done


Source = Values | Lines
