"""Reads the events of one Spark task, as Arrow record batches.

`read` runs in an executor. If the segment files of a server are accessible on this machine, it
reads them (files.py). Otherwise, and for positions that are not in these files, it reads from the
region's servers over one connection. An event loop in a separate thread receives and checks
batches, while this thread joins them for Spark; a bounded buffer connects the two threads.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from surecast.client.sync import Loop
from surecast.columns.schema import read_schema
from surecast.core.endpoint import Lost as LostRange
from surecast.endpoint.discovery import parse_url
from surecast.endpoint.options import ClientOptions
from surecast.endpoint.ranges import Piece, RangeReader, ShortError, StallError
from surecast.errors import ConnectError, SurecastError
from surecast.pipeline import files
from surecast.pipeline.loss import (
    LostEnd,
    end_error,
    lost_end_by_servers,
    range_error,
    shown_range,
    views_of,
)
from surecast.pipeline.offsets import Place
from surecast.pipeline.options import COLUMNS
from surecast.pipeline.plan import Range
from surecast.pipeline.region import Server, refused
from surecast.pipeline.rows import record_batches

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Task", "pieces_of", "read"]

log = logging.getLogger("surecast.pipeline")

PATIENCE_S: Final = 60.0  # maximum wait for a batch: a region may be catching up, or starting
BUFFER_BYTES: Final = 16 << 20  # received and not yet passed to Spark


@dataclass(frozen=True, slots=True)
class Task:
    """Everything that a task needs. Spark sends it to an executor, which gets nothing else."""

    ranges: tuple[Range, ...]
    url: str
    token: str = field(repr=False)
    servers: tuple[Server, ...]  # those with an HTTP port
    files: bool  # whether to read the servers' segment files, if they are accessible
    voids: bool  # whether to return a row for each void range
    fail_on_loss: bool
    columns: tuple[str, ...] = COLUMNS
    patience_s: float = PATIENCE_S
    schema: str = ""  # of the streams, as text; "": they have none, or the task does not need it
    where: str = ""  # the filter; "": all events


def read(task: Task) -> Iterator[pa.RecordBatch]:
    """The rows of a task, stream by stream, each in order of position."""
    schema = read_schema(task.schema) if task.schema else None
    where = None
    if task.where:
        from surecast.pipeline.where import bound_filter

        where = bound_filter(task.where, schema)
    with ExitStack() as stack:
        connection = TaskConnection(task, stack)
        for wanted in task.ranges:
            pieces = pieces_of(wanted, task, connection)
            yield from record_batches(
                pieces, wanted.stream, task.voids, task.columns, schema=schema, where=where
            )


def pieces_of(wanted: Range, task: Task, connection: TaskConnection) -> Iterator[Piece]:
    """Yield the batches and lost ranges of one range, in order, each position once."""
    at = wanted.lo
    try:
        for piece in _read(wanted, task, connection):
            if isinstance(piece, LostRange):
                if task.fail_on_loss:
                    raise range_error(wanted.stream, piece)
                log.warning(
                    "lost: %s; continuing, as failOnDataLoss=false requests",
                    shown_range(wanted.stream, piece),
                )
            yield piece
            at = piece.hi
    except ShortError as problem:
        shortfall = f"stream {wanted.stream!r}, positions {wanted.lo} to {wanted.hi - 1}: {problem}"
        views = views_of([server.http for server in task.servers], task.token)
        if views is not None:
            place = Place(wanted.stream_id, wanted.hi)
            loss = lost_end_by_servers(wanted.stream, place, views, task.token)
        else:  # end 0: the region does not have the stream
            loss = None if problem.end else LostEnd(shortfall)
        if loss is None:
            raise SurecastError(
                f"{shortfall}. They may still arrive: the region is behind, or starting. Try again "
                "later, or with the url of another region"
            ) from None
        if task.fail_on_loss:
            raise end_error([loss]) from None
        log.warning("%s; continuing, as failOnDataLoss=false requests", loss.words)
        if not loss.reassigned:
            yield LostRange(wanted.stream_id, at, wanted.hi, loss.words)


def _read(wanted: Range, task: Task, connection: TaskConnection) -> Iterator[Piece]:
    local = files.visible(task.servers) if task.files else []
    if local:
        return files.read(wanted, local[0], task.token, connection.fetcher(wanted))
    return connection.fetch(wanted, wanted.lo, wanted.hi)


class TaskConnection:
    """The connection of one task, opened when it is first needed."""

    def __init__(self, task: Task, stack: ExitStack) -> None:
        self._task = task
        self._stack = stack
        self._loop: Loop | None = None
        self._reader: RangeReader | None = None

    def fetcher(self, wanted: Range) -> files.Elsewhere:
        """`fetch` for this range, for positions that files.py cannot read."""
        return lambda lo, hi: self.fetch(wanted, lo, hi)

    def fetch(self, wanted: Range, lo: int, hi: int) -> Iterator[Piece]:
        """Read [lo, hi) of the range's stream from the region's servers. They leave out events that
        do not pass the filter."""
        loop, reader = self._open()
        pieces = reader.read(wanted.stream_id, lo, hi, self._task.where)
        while True:
            try:
                pieces_read = loop.call(_next(pieces))
            except StallError as problem:
                raise SurecastError(
                    f"option url: {problem} (stream {wanted.stream!r}, positions {lo} to {hi - 1})"
                ) from None
            if pieces_read is None:
                return
            yield from pieces_read

    def _open(self) -> tuple[Loop, RangeReader]:
        if self._loop is None or self._reader is None:
            task = self._task
            loop = Loop()
            self._stack.callback(loop.stop)
            reader = RangeReader(
                parse_url(task.url),
                token=task.token,
                options=ClientOptions(buffer_bytes_max=BUFFER_BYTES),
                patience_s=task.patience_s,
            )
            try:
                loop.call(reader.__aenter__())
            except ConnectError as problem:
                raise refused(task.url, problem) from None
            self._stack.callback(lambda: loop.call(reader.__aexit__(None, None, None)))
            self._loop, self._reader = loop, reader
        return self._loop, self._reader


async def _next(pieces: AsyncIterator[list[Piece]]) -> list[Piece] | None:
    return await anext(pieces, None)
