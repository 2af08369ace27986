"""Reads ranges of positions as batches, over one connection: for programs that split streams.

    async with RangeReader(parse_url(url)) as reader:
        async for pieces in reader.read(stream_id, 1, 1_000_000): ...

A piece is a batch, or `Lost`: positions that no server has any more. Pieces follow each other
without a gap.

A subscription follows streams until it is closed. A task of a batch job, in contrast, needs a fixed
range in whole batches, and an error instead of an endless wait. There is no control node: the task
gets the stream's id from the program that planned the job.
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

ROWS: Final = 20_000  # rows after which `read` yields, even if more are there
AGAIN_S: Final = 0.25  # pause after a failed first contact


class ShortError(SurecastError):
    """The region does not have the positions: `end` is the stream's end there, or 0 if the stream
    is unknown."""

    def __init__(self, message: str, end: int) -> None:
        super().__init__(message)
        self.end = end


class StallError(SurecastError):
    """Nothing was received for too long."""


class RangeReader:
    """Reads ranges (see the module). Use it in its event loop's thread, one `read` at a time."""

    node: Node

    def __init__(
        self,
        addresses: list[Address],
        *,
        token: str = "",
        options: ClientOptions | None = None,
        patience_s: float = 60.0,  # without any progress, the first contact included
    ) -> None:
        self._options = options or ClientOptions()
        self._link = RegionLink(addresses, token, self._options, self._fail)
        self._patience_s = patience_s
        self._inbox: deque[Piece] = deque()
        self._nbytes = 0
        self._held = False
        self._short: int | None = None  # `end` of the last Short without progress since
        self._has_ended = False  # the stream was deleted, and ends there: no position will come
        self._problem: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None

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
        """Find the region's servers; retry, because the region may just be restarting."""
        ends_s = time.monotonic() + self._patience_s
        while True:
            try:
                return await self._link.discover()
            except ConnectError as problem:
                if isinstance(problem, WrongToken) or time.monotonic() >= ends_s:
                    raise
            await asyncio.sleep(AGAIN_S)

    async def read(self, stream: LogId, lo: int, hi: int) -> AsyncIterator[list[Piece]]:
        """The pieces of [lo, hi), cut at its ends, some at a time.

        Raises ShortError if the servers do not have it, StallError if none of them answers, both
        only after `patience_s`: a region that was cut off may be catching up. For a deleted stream
        that ends before the range, ShortError is raised at once.
        """
        self._inbox.clear()
        self._nbytes, self._held, self._short, self._has_ended = 0, False, None, False
        if lo < hi:
            self.node.give(ReadRange(stream, lo, hi))
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
                raise self._given_up()
            waited_s += await self._wait()
        taken: list[Piece] = []
        rows = 0
        while self._inbox and rows < ROWS:
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
        """Wait until something is received; returns the seconds waited. Returns after
        `rediscover_every` at the latest, after looking for servers if none is connected."""
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

    def _given_up(self) -> SurecastError:
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
        """Add a lost range; adjacent ones are joined, so that they do not fill the inbox."""
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
