"""RangeReader: reads a range of positions of a stream as batches. The tasks of Spark use it.

    async with RangeReader(parse_url(url)) as reader:
        async for pieces in reader.read(stream_id, 1, 1_000_000): ...

A piece is a batch, or `Lost`: positions that no server has any more. The pieces cover the range
without gaps.

A subscription follows streams until it is closed. A task of a Spark job, in contrast, needs a fixed
range, and an error instead of an endless wait. The task needs no control node, because the program
that planned the job gives it the stream's id.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Final

from surecast.columns.batch import Batch
from surecast.core.endpoint import Ended, Go, Hold, Lost, Place, ReadRange, Short
from surecast.core.types import SECOND, LogId
from surecast.endpoint.discovery import Region
from surecast.endpoint.options import ClientOptions
from surecast.endpoint.region_link import RegionLink
from surecast.errors import Closed, ConnectError, SurecastError, WrongToken
from surecast.registry import range_reader
from surecast.runtime.addresses import Address
from surecast.runtime.node import Node

__all__ = ["Piece", "RangeReader", "ShortError", "StallError"]

Piece = Batch | Lost

ROWS: Final = 20_000  # after this number of rows `read` yields, even if more have been received
RETRY_S: Final = 0.25  # pause after a failed attempt to find the region's servers


class ShortError(SurecastError):
    """The region does not have the requested positions. `end` is the end of the stream in this
    region, or 0 if the region does not know the stream."""

    def __init__(self, message: str, end: int) -> None:
        super().__init__(message)
        self.end = end


class StallError(SurecastError):
    """Nothing was received for too long."""


class RangeReader:
    """Reads ranges (see the module), one `read` at a time. Must be used in the event loop's
    thread."""

    node: Node

    def __init__(
        self,
        addresses: list[Address],
        *,
        token: str = "",
        options: ClientOptions | None = None,
        patience_s: float = 60.0,  # `read` and `__aenter__` fail if nothing is received so long
    ) -> None:
        self._options = options or ClientOptions()
        self._link = RegionLink(addresses, token, self._options, self._fail)
        self._patience_s = patience_s
        self._inbox: deque[Piece] = deque()
        self._nbytes = 0  # size of the batches in the inbox
        self._held = False  # whether the node was told to request nothing more (Hold)
        # If a server has reported that the range goes beyond the stream's end (Short), and no piece
        # was received since: that end, or 0 if the server does not know the stream.
        self._short: int | None = None
        self._has_ended = False  # the stream was deleted; no further position will be received
        self._problem: BaseException | None = None  # the exception of the node's state machine
        self._waiter: asyncio.Future[None] | None = None  # set while `read` waits for a piece

    async def __aenter__(self) -> RangeReader:
        region = await self._discover()
        place = Place(region.name, tuple(region.replicas))
        self.node = self._link.node(
            f"f-{secrets.token_hex(8)}",
            "reader",
            lambda ctx: range_reader(ctx, place),
            on_deliver=self._take_in,
            on_emit=self._on_emit,
        )
        await self.node.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.node.stop()

    async def _discover(self) -> Region:
        """Find the region's servers. Failed attempts are repeated for `patience_s`, because the
        region may just be restarting."""
        ends_s = time.monotonic() + self._patience_s
        while True:
            try:
                return await self._link.discover()
            except ConnectError as problem:
                if isinstance(problem, WrongToken) or time.monotonic() >= ends_s:
                    raise
            await asyncio.sleep(RETRY_S)

    async def read(
        self, stream: LogId, lo: int, hi: int, where: str = ""
    ) -> AsyncIterator[list[Piece]]:
        """The pieces of [lo, hi), in lists of one or more. Pieces that extend beyond the range are
        cut.

        With a filter (`where`), servers may send void ranges in place of events that do not pass.
        They may also send such events: the caller applies the filter again.

        Raises ShortError if the servers do not have the range, and StallError if no server answers.
        Both are raised only after `patience_s` without progress, because a region that was cut off
        may be catching up. If the stream was deleted and ends before the range does, ShortError is
        raised at once.
        """
        self._inbox.clear()
        self._nbytes, self._held, self._short, self._has_ended = 0, False, None, False
        if lo < hi:
            self.node.give(ReadRange(stream, lo, hi, where))
        while lo < hi:
            pieces = await self._next_pieces()
            lo = pieces[-1].hi
            yield pieces

    async def _next_pieces(self) -> list[Piece]:
        waited_s = 0.0
        while not self._inbox:
            if self._problem is not None:
                raise Closed(f"the reader stopped after an internal error: {self._problem!r}")
            if waited_s >= self._patience_s or self._has_ended:
                raise self._no_progress()
            waited_s += await self._wait()
        taken: list[Piece] = []
        rows = 0
        while self._inbox and rows < ROWS:  # the inbox is not empty, so this takes a piece or more
            piece = self._inbox.popleft()
            taken.append(piece)
            if isinstance(piece, Batch):
                rows += piece.rows
                self._nbytes -= piece.nbytes
        if self._held and self._nbytes <= self._options.buffer_bytes_max // 2:
            self._held = False
            self.node.give(Go())
        return taken

    async def _wait(self) -> float:
        """Wait until something is received, but at most for `rediscover_every`. If no server is
        connected then, look for servers. Returns the seconds waited."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._waiter = loop.create_future()
        step_s = min(self._options.rediscover_every_ns / SECOND, self._patience_s)
        try:
            async with asyncio.timeout(step_s):
                await self._waiter
        except TimeoutError:
            if not self._link.is_connected():
                with suppress(ConnectError):
                    await self._link.discover()
        finally:
            self._waiter = None
        return loop.time() - began

    def _no_progress(self) -> SurecastError:
        """The error for a range that cannot be read to its end."""
        if self._short is not None:
            what = f"ends at {self._short}" if self._short else "is not known"
            return ShortError(
                f"the stream {what} in region {self._link.region.name!r}", self._short
            )
        return StallError(
            f"no server of region {self._link.region.name!r} has sent anything for "
            f"{self._patience_s:g} s"
        )

    # ------------------------------------------------------------ received from the node

    def _take_in(self, _stream: LogId, batches: tuple[Batch, ...]) -> None:
        self._short = None
        self._inbox += batches
        self._nbytes += sum(batch.nbytes for batch in batches)
        if not self._held and self._nbytes >= self._options.buffer_bytes_max:
            self._held = True
            self.node.give(Hold())
        self._wake()

    def _on_emit(self, event: Any) -> None:
        if isinstance(event, Short):
            self._short = event.end
        elif isinstance(event, Ended):
            self._short, self._has_ended = event.end, True
            self._wake()
        elif isinstance(event, Lost):
            self._take_loss(event)

    def _take_loss(self, loss: Lost) -> None:
        """Add a lost range. It is joined with an adjacent one before it, so that many small ranges
        do not fill the inbox."""
        self._short = None
        before = self._inbox[-1] if self._inbox else None
        if isinstance(before, Lost) and before.hi == loss.lo:
            self._inbox[-1] = Lost(loss.stream, before.lo, loss.hi, before.why)
        else:
            self._inbox.append(loss)
        self._wake()

    def _fail(self, problem: BaseException) -> None:
        self._problem = problem
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
