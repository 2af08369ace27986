"""Publishing to one stream: events become batches, which are sent in order, within bounds.

Single events are collected in a *draft*. It is sealed into a batch when it is full, when its first
event has waited for `linger` (`publish_soon`), or at once (`publish`), together with events that
other tasks publish in the same turn of the loop. While the maximum of batches is in flight, the
draft is not sealed unless full, so batches grow under load.

The bytes of unacknowledged events are bounded. A `publish` without room is queued, and gets its
place in the stream when there is room; if its caller gives up before, nothing is published.

A *named* outbox publishes with a publisher id and numbers that its user keeps elsewhere. The
stream's owner recognises batches that were published before with the same numbers, and does not
publish them again. After a failure the outbox accepts nothing more, because a number must never be
used for another batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from surecast.columns.batch import Batch
from surecast.core.endpoint import Acked, Failed
from surecast.core.types import SECOND, LogId
from surecast.core.wire import check_batch
from surecast.endpoint.control import Control
from surecast.endpoint.error_messages import publish_error
from surecast.endpoint.forking import forked, watch
from surecast.endpoint.options import ClientOptions
from surecast.errors import Closed, PublishError, QueueFull, UsageError

__all__ = ["EVENT_OVERHEAD", "Outbox"]

EVENT_OVERHEAD: Final = 16  # bytes counted for an event in addition to its own

_IDLE, _LINGERS, _SOON = 0, 1, 2  # when the draft will be sealed


class InFlight:
    """A sealed batch that is not acknowledged, and the futures that wait for it."""

    __slots__ = ("batch", "marks", "nbytes", "soon", "waiters", "whole")

    def __init__(self, batch: Batch, nbytes: int) -> None:
        self.batch = batch
        self.nbytes = nbytes
        self.waiters: list[tuple[int, asyncio.Future[int]]] = []  # row → its position
        self.whole: asyncio.Future[tuple[int, int]] | None = None  # the batch's positions
        self.soon = 0  # events of publish_soon; `flush` reports their failure
        self.marks: list[FlushPoint] = []


class FlushPoint:
    """A point in the outbox; done when all batches before it are acknowledged or have failed."""

    __slots__ = ("future", "left")

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future = future
        self.left = 0

    def one_ended(self) -> None:
        self.left -= 1
        if self.left <= 0 and not self.future.done():
            self.future.set_result(None)


class Outbox:
    """Publishes to one stream (see the module). All `Stream` objects of a client for the same
    stream share one.

    `named`: a publisher's id (see protocols/chain/dedup.py) and its next number.
    """

    def __init__(
        self,
        name: str,
        stream: LogId,
        control: Control,
        options: ClientOptions,
        named: tuple[bytes, int] | None = None,
    ) -> None:
        self.name = name
        self.stream = stream
        self.options = options
        self.nbytes = 0  # of all unacknowledged events
        self.acknowledged_end = 1  # the first position after all acknowledged ones
        self._rows_max = options.batch_rows_max
        self._draft_room = min(options.batch_bytes_max, options.event_bytes_max)
        self._room = options.outbox_bytes_max
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._linger_s = options.linger_ns / SECOND
        self._new_draft()
        self._due = _IDLE
        self._timer: asyncio.Handle | None = None
        self._queue: deque[InFlight] = deque()  # sealed, waiting for others to be acknowledged
        self._in_flight: dict[InFlight, None] = {}  # all that have not ended, in order
        self._under_way = 0  # batches offered to the control node
        self._blocked: deque[tuple[int, asyncio.Future[int], Callable[[], None]]] = deque()
        self._error: PublishError | None = None
        self._errors = 0  # events of publish_soon that failed
        self._stopped = self._forked = False
        self._named = named
        self._failure = ""  # why a named outbox accepts no more
        watch(self)

    def _new_draft(self) -> None:
        self.values: list[bytes] = []
        self._keys: list[bytes | None] | None = None  # of all values, from the first key on
        self._tags: list[bytes | None] | None = None
        self._draft_bytes = 0
        self._waiters: list[tuple[int, asyncio.Future[int]]] = []

    @property
    def unacknowledged(self) -> int:
        """The number of unacknowledged batches, including the draft."""
        return len(self._in_flight) + bool(self.values) + len(self._blocked)

    @property
    def is_blocked(self) -> bool:
        """Whether calls wait for room: later ones have to wait behind them."""
        return bool(self._blocked)

    def waits_for_room(self, future: asyncio.Future[int]) -> bool:
        """Whether a `publish` still waits for room; cancelled now, its event is not published."""
        return any(future is other for _, other, _ in self._blocked)

    # ------------------------------------------------------------ taking events

    def size_of(self, value: bytes, key: bytes | None, tag: bytes | None) -> int:
        """The bytes that an event counts for. Raises UsageError if it cannot be published."""
        self._check()
        for what, data in (("value", value), ("key", key), ("tag", tag)):
            if type(data) is not bytes and (data is not None or what == "value"):
                raise UsageError(f"a {what} is bytes, not {type(data).__name__}: {data!r:.60}")
        size = len(value) + len(key or b"") + len(tag or b"")
        if size > self.options.event_bytes_max:
            raise UsageError(
                f"an event of {size:,} bytes: at most {self.options.event_bytes_max:,} are allowed "
                "(ClientOptions.event_bytes_max). Publish it in parts"
            )
        return size + EVENT_OVERHEAD

    def _on_fork(self) -> None:
        self._forked = True
        self._due = _IDLE  # disables the fast path of `publish_soon`

    def _check(self) -> None:
        if self._forked:
            raise forked()
        if self._stopped:
            raise Closed(f"the client is closed: nothing more can be published to {self.name!r}")
        if self._failure:
            raise publish_error(self.name, self._failure)

    def publish(self, value: bytes, key: bytes | None, tag: bytes | None) -> asyncio.Future[int]:
        """Add an event, now or when there is room; the future gets its position."""
        size = self.size_of(value, key, tag)
        future: asyncio.Future[int] = self._loop.create_future()
        take = partial(self._take, value, key, tag, size, future)
        if self._blocked or self.nbytes + size > self.options.outbox_bytes_max:
            self._blocked.append((size, future, take))
        else:
            take()
        return future

    def _take(
        self,
        value: bytes,
        key: bytes | None,
        tag: bytes | None,
        size: int,
        future: asyncio.Future[int],
    ) -> None:
        self._append(value, key, tag, size)
        self._waiters.append((len(self.values) - 1, future))
        self._seal_soon()

    def publish_soon(self, value: bytes, key: bytes | None, tag: bytes | None) -> None:
        """Add an event, or raise QueueFull if there is no room.

        Most events are added to a draft that has begun and is far from any bound; the first part
        below is a fast path for these.
        """
        keys = self._keys
        if (
            self._due != _IDLE
            and tag is None
            and self._tags is None
            and type(value) is bytes
            and (type(key) is bytes or (key is None and keys is None))
            and len(self.values) < self._rows_max
            and not self._blocked
        ):
            size = len(value) + EVENT_OVERHEAD
            if key is not None:
                size += len(key)
            draft_bytes = self._draft_bytes + size
            nbytes = self.nbytes + size
            if draft_bytes <= self._draft_room and nbytes <= self._room:
                if key is not None:
                    if keys is None:
                        keys = self._keys = [None] * len(self.values)
                    keys.append(key)
                self.values.append(value)
                self._draft_bytes = draft_bytes
                self.nbytes = nbytes
                return
        size = self.size_of(value, key, tag)
        if self._blocked or self.nbytes + size > self._room:
            raise self.full()
        self.accept(value, key, tag, size)

    def accept(self, value: bytes, key: bytes | None, tag: bytes | None, size: int) -> None:
        """`publish_soon` without a check for room, which the caller has done."""
        self._append(value, key, tag, size)
        if self._due == _IDLE:
            self._due = _LINGERS
            self._timer = self._loop.call_later(self._linger_s, self._seal_due)

    def full(self) -> QueueFull:
        return QueueFull(
            f"{self.nbytes:,} bytes published to {self.name} are not acknowledged yet; the limit "
            f"is {self.options.outbox_bytes_max:,} (ClientOptions.outbox_bytes_max): "
            "`await client.flush()`, or publish with `await stream.publish(...)`, which waits"
        )

    def _append(self, value: bytes, key: bytes | None, tag: bytes | None, size: int) -> None:
        """Add an event to the draft; if it does not fit, seal the draft first."""
        self.nbytes += size
        full = self._draft_bytes + size > self.options.batch_bytes_max
        if full or len(self.values) >= self.options.batch_rows_max:
            self.seal()
        if tag is not None or self._tags is not None:
            if self._tags is None:
                self._tags = [None] * len(self.values)
            self._tags.append(tag)
        if key is not None or self._keys is not None:
            if self._keys is None:
                self._keys = [None] * len(self.values)
            self._keys.append(key)
        self.values.append(value)
        self._draft_bytes += size

    # ------------------------------------------------------------ sealing

    def _seal_soon(self) -> None:
        """Seal the draft at the end of this turn of the loop, so that other tasks can add to it; at
        once if nothing is in flight."""
        if not self._in_flight:
            self.seal()
        elif self._due != _SOON:
            if self._timer is not None:
                self._timer.cancel()
            self._due = _SOON
            self._timer = self._loop.call_soon(self._seal_due)

    def _seal_due(self) -> None:
        self._timer = None
        if self._has_room():
            self.seal()
        # Else it stays due, and the next acknowledgement seals it.

    def seal(self) -> None:
        """Make the draft a batch and send it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due = _IDLE
        if not self.values:
            return
        batch = Batch.of(self.stream, self.values, self._keys, self._tags)
        sent = InFlight(batch, self._draft_bytes)
        sent.waiters = self._waiters
        sent.soon = len(self.values) - len(self._waiters)
        self._new_draft()
        self._send(sent)

    def _has_room(self) -> bool:
        return self._under_way < self.options.outbox_batches_max

    def _send(self, sent: InFlight) -> None:
        if self._named is not None:
            publisher, number = self._named
            sent.batch = sent.batch.numbered(publisher, number)
            self._named = publisher, number + sent.batch.count
        self._in_flight[sent] = None
        self._queue.append(sent)
        self._pump()

    def _pump(self) -> None:
        while self._has_room():
            if not self._queue:
                if self._due != _IDLE and self._timer is None:
                    self.seal()  # comes back here
                return
            sent = self._queue.popleft()
            self._under_way += 1
            if self._failure:
                self._loop.call_soon(self._ended, sent, Failed(self.stream, 0, self._failure))
                continue
            self._control.offer(self.stream, sent.batch, partial(self._ended, sent))

    # ------------------------------------------------------------ whole batches

    def publish_batch(self, batch: Batch, size: int) -> tuple[InFlight, asyncio.Future[int]]:
        """Add a batch, now or when there is room; the future is done when it is added.

        `whole` of the returned InFlight gets the batch's positions.
        """
        self._check()
        check_batch(batch)
        sent = InFlight(batch, size)
        sent.whole = self._loop.create_future()
        placed: asyncio.Future[int] = self._loop.create_future()
        take = partial(self._take_batch, sent, placed)
        if self._blocked or (self.nbytes and self.nbytes + size > self.options.outbox_bytes_max):
            self._blocked.append((size, placed, take))
        else:
            take()
        return sent, placed

    def _take_batch(self, sent: InFlight, placed: asyncio.Future[int]) -> None:
        self.seal()
        self.nbytes += sent.nbytes
        placed.set_result(0)
        self._send(sent)

    # ------------------------------------------------------------ results

    def _ended(self, sent: InFlight, result: Acked | Failed) -> None:
        self._under_way -= 1
        self.nbytes -= sent.nbytes
        del self._in_flight[sent]
        if isinstance(result, Acked):
            seq = result.seq
            if seq:
                self.acknowledged_end = max(self.acknowledged_end, seq + result.count)
            for row, future in sent.waiters:
                if not future.done():
                    future.set_result(seq + row)
            if sent.whole is not None and not sent.whole.done():
                sent.whole.set_result((seq, seq + result.count if seq else 0))
        else:
            if self._named is not None:
                self._failure = self._failure or result.why
            self._failed(sent, result.why)
        for mark in sent.marks:
            mark.one_ended()
        self._unblock()
        self._pump()

    def _failed(self, sent: InFlight, why: str) -> None:
        futures = [future for _, future in sent.waiters]
        for future in (*futures, sent.whole):
            if future is not None and not future.done():
                future.set_exception(publish_error(self.name, why))
        if sent.soon:
            self._error = self._error or publish_error(self.name, why)
            self._errors += sent.soon

    def _unblock(self) -> None:
        """Add waiting events and batches, as far as there is room."""
        while self._blocked:
            size, future, take = self._blocked[0]
            if self.nbytes and self.nbytes + size > self.options.outbox_bytes_max:
                return
            self._blocked.popleft()
            if not future.done():  # else its caller has given up
                take()

    # ------------------------------------------------------------ flush

    def flushed(self) -> asyncio.Future[None]:
        """A future that is done when everything published so far, including what waits for room,
        is acknowledged or has failed."""
        future: asyncio.Future[None] = self._loop.create_future()
        if self._blocked:
            queued: asyncio.Future[int] = self._loop.create_future()
            self._blocked.append((0, queued, partial(self._mark, future)))
        else:
            self._mark(future)
        return future

    def _mark(self, future: asyncio.Future[None]) -> None:
        self.seal()
        mark = FlushPoint(future)
        mark.left = len(self._in_flight)
        for sent in self._in_flight:
            sent.marks.append(mark)
        if not mark.left:
            mark.one_ended()

    def take_error(self) -> PublishError | None:
        """The first error of events of `publish_soon` since the last call, or None."""
        error, count = self._error, self._errors
        self._error, self._errors = None, 0
        if error is not None:
            error.args = (f"{count:,} events of publish_soon: {error}",)
        return error

    def stop(self) -> None:
        """Called when the client closes: refuse what waits for room, and everything later."""
        self._stopped = True
        self.seal()
        blocked, self._blocked = self._blocked, deque()
        for _, future, take in blocked:
            if isinstance(take, partial) and take.func == self._mark:
                take()
            elif not future.done():
                future.set_exception(publish_error(self.name, "not-sent"))
                future.exception()  # prevents asyncio's warning if its caller was cancelled
