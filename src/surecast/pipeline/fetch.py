"""What one task does: the batches of its ranges, and what is lost of them, as record batches.

From segments, if a server's are visible here; otherwise, and for what they do not have, from the
region's servers over one connection. An event loop in a thread of its own receives and checks while
this thread joins and Spark takes; between the two is a bounded buffer.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from surecast.client.sync import Loop
from surecast.core.endpoint import Lost
from surecast.endpoint.discovery import parse_url
from surecast.endpoint.options import ClientOptions
from surecast.endpoint.ranges import Piece, RangeReader, ShortError, StallError
from surecast.errors import ConnectError, SurecastError
from surecast.pipeline import files
from surecast.pipeline.loss import Loss, lost, remedy, remedy_of_range, shown_range, views_of
from surecast.pipeline.offsets import Place
from surecast.pipeline.options import COLUMNS
from surecast.pipeline.plan import Range
from surecast.pipeline.region import Server, refused
from surecast.pipeline.rows import record_batches

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Task", "pieces_of", "read"]

log = logging.getLogger("surecast.pipeline")

PATIENCE_S: Final = 60.0  # without a single batch; a region may be catching up, or starting
BUFFER_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Task:
    """All that a task must know: executors are told nothing else."""

    ranges: tuple[Range, ...]
    url: str
    token: str = field(repr=False)
    servers: tuple[Server, ...]  # that have an HTTP port
    files: bool  # read their segments, where they are visible
    voids: bool
    fail_on_loss: bool
    columns: tuple[str, ...] = COLUMNS
    patience_s: float = PATIENCE_S


def read(task: Task) -> Iterator[pa.RecordBatch]:
    """The rows of a task, stream by stream, in the order of each stream."""
    with ExitStack() as stack:
        line = Line(task, stack)
        for one in task.ranges:
            pieces = pieces_of(one, task, line)
            yield from record_batches(pieces, one.stream, task.voids, task.columns)


def pieces_of(one: Range, task: Task, line: Line) -> Iterator[Piece]:
    """The batches of one range, and what is lost of it, in order, each position once."""
    at = one.lo
    try:
        for piece in _read(one, task, line):
            if isinstance(piece, Lost):
                if task.fail_on_loss:
                    raise remedy_of_range(one.stream, piece)
                log.warning(
                    "lost: %s; failOnDataLoss=false: going on", shown_range(one.stream, piece)
                )
            yield piece
            at = piece.hi
    except ShortError as problem:
        said = f"stream {one.stream!r}, positions {one.lo} to {one.hi - 1}: {problem}"
        views = views_of([server.http for server in task.servers], task.token)
        if views is not None:
            loss = lost(one.stream, Place(one.stream_id, one.hi), views, task.token)
        else:
            loss = None if problem.end else Loss(said)
        if loss is None:
            raise SurecastError(
                f"{said}. It may come: the region is behind, or starting. Try again later, or with "
                "the url of another region"
            ) from None
        if task.fail_on_loss:
            raise remedy([loss]) from None
        log.warning("%s; failOnDataLoss=false: going on without it", loss.words)
        if not loss.again:  # other events will never stand there
            yield Lost(one.stream_id, at, one.hi, loss.words)


def _read(one: Range, task: Task, line: Line) -> Iterator[Piece]:
    seen = files.visible(task.servers) if task.files else []
    if seen:
        return files.read(one, seen[0], task.token, line.fetcher(one))
    return line.fetch(one, one.lo, one.hi)


class Line:
    """The connection of one task, made when it is first needed."""

    def __init__(self, task: Task, stack: ExitStack) -> None:
        self._task = task
        self._stack = stack
        self._loop: Loop | None = None
        self._reader: RangeReader | None = None

    def fetcher(self, one: Range) -> files.Elsewhere:
        return lambda lo, hi: self.fetch(one, lo, hi)

    def fetch(self, one: Range, lo: int, hi: int) -> Iterator[Piece]:
        """[lo, hi) of the range's stream, from the region's servers."""
        loop, reader = self._open()
        pieces = reader.read(one.stream_id, lo, hi)
        while True:
            try:
                some = loop.call(_next(pieces))
            except StallError as problem:
                raise SurecastError(
                    f"option url: {problem} (stream {one.stream!r}, positions {lo} to {hi - 1})"
                ) from None
            if some is None:
                return
            yield from some

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
