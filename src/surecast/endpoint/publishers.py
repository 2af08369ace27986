"""Publishing to one stream: events become batches, batches leave in order, bounds are kept.

Single events gather in a *draft*. It is sealed into a batch when it is full, when its first event
has waited long enough (`publish_soon`), or at once (`publish`): then with whatever other tasks have
published in the same turn of the loop. While many batches are under way a draft keeps gathering:
under load batches grow by themselves.

What is not acknowledged is bounded by bytes. A `publish` that finds no room is put in line and
takes its place in the stream when its turn comes; if its caller gives up before, it never happened.

A *named* outbox publishes under an identity, and from a number on, that its user keeps elsewhere:
what was published before under the same numbers is recognised by the stream's owner and not
published again. After a failure it takes nothing more: no number may ever get another batch.
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

EVENT_OVERHEAD: Final = 16  # bytes an event counts for, beside its own

_IDLE, _LINGERS, _SOON = 0, 1, 2  # when the draft will be sealed


class InFlight:
    """A batch on its way, and who waits for it."""

    __slots__ = ("batch", "marks", "nbytes", "soon", "waiters", "whole")

    def __init__(self, batch: Batch, nbytes: int) -> None:
        self.batch = batch
        self.nbytes = nbytes
        self.waiters: list[tuple[int, asyncio.Future[int]]] = []  # row → its position
        self.whole: asyncio.Future[tuple[int, int]] | None = None  # the batch's positions
        self.soon = 0  # events nobody waits for: if they fail, `flush` says so
        self.marks: list[FlushPoint] = []


class FlushPoint:
    """A point in the outbox; done when all batches in flight before it have ended, well or not."""

    __slots__ = ("future", "left")

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future = future
        self.left = 0

    def one_ended(self) -> None:
        self.left -= 1
        if self.left <= 0 and not self.future.done():
            self.future.set_result(None)


class Outbox:
    """See the module. One for each stream a client publishes to, whoever holds its handles.

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
        self.nbytes = 0  # of all that is not acknowledged
        self.acknowledged_end = 1  # the first position behind all that are acknowledged
        self._rows_max = options.batch_rows_max
        self._draft_room = min(options.batch_bytes_max, options.event_bytes_max)
        self._room = options.outbox_bytes_max
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._linger_s = options.linger_ns / SECOND
        self._new_draft()
        self._due = _IDLE
        self._timer: asyncio.Handle | None = None
        self._queue: deque[InFlight] = deque()  # sealed, but enough are under way
        self._in_flight: dict[InFlight, None] = {}  # all that have not ended, in order
        self._under_way = 0
        self._blocked: deque[tuple[int, asyncio.Future[int], Callable[[], None]]] = deque()
        self._error: PublishError | None = None
        self._errors = 0  # events of publish_soon that failed
        self._stopped = self._forked = False
        self._named = named
        self._failure = ""  # why a named outbox takes no more
        watch(self)

    def _new_draft(self) -> None:
        self.values: list[bytes] = []
        self._keys: list[bytes | None] | None = None  # of all values, from the first key on
        self._tags: list[bytes | None] | None = None
        self._draft_bytes = 0
        self._waiters: list[tuple[int, asyncio.Future[int]]] = []

    @property
    def unacknowledged(self) -> int:
        """Batches not acknowledged, counting the draft."""
        return len(self._in_flight) + bool(self.values) + len(self._blocked)

    @property
    def is_blocked(self) -> bool:
        """Whether calls wait for room: whatever is published now comes after them."""
        return bool(self._blocked)

    def waits_for_room(self, future: asyncio.Future[int]) -> bool:
        """Whether the event of a `publish` is not taken yet: if it is given up now, it never is."""
        return any(future is other for _, other, _ in self._blocked)

    # ------------------------------------------------------------ taking events

    def size_of(self, value: bytes, key: bytes | None, tag: bytes | None) -> int:
        """What an event counts for; refuses what cannot be published."""
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
        self._due = _IDLE  # no event takes the short way of `publish_soon`

    def _check(self) -> None:
        if self._forked:
            raise forked()
        if self._stopped:
            raise Closed(f"the client is closed: nothing more can be published to {self.name!r}")
        if self._failure:
            raise publish_error(self.name, self._failure)

    def publish(self, value: bytes, key: bytes | None, tag: bytes | None) -> asyncio.Future[int]:
        """Take an event, now or when there is room; the future gets its position."""
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
        """Take an event if there is room.

        Most events join a draft that has begun and is far from any bound: they take the short way.
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
        """`publish_soon`, room or not: whoever calls has seen to the bound."""
        self._append(value, key, tag, size)
        if self._due == _IDLE:
            self._due = _LINGERS
            self._timer = self._loop.call_later(self._linger_s, self._seal_due)

    def full(self) -> QueueFull:
        return QueueFull(
            f"{self.nbytes:,} bytes published to {self.name} are not acknowledged yet, and "
            f"{self.options.outbox_bytes_max:,} may be (ClientOptions.outbox_bytes_max): "
            "`await client.flush()`, or publish with `await stream.publish(...)`, which waits"
        )

    def _append(self, value: bytes, key: bytes | None, tag: bytes | None, size: int) -> None:
        """Add an event to the draft, which is sealed before if both do not fit in one batch."""
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
        """Somebody waits: as soon as what others publish in this turn of the loop is in, too."""
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
        """Make the draft a batch and send it on its way."""
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
        """Take a batch, now or when there is room; the future is done when it is taken.

        `whole` of what is returned gets the batch's positions.
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

    # ------------------------------------------------------------ how it ends

    def _ended(self, sent: InFlight, how: Acked | Failed) -> None:
        self._under_way -= 1
        self.nbytes -= sent.nbytes
        del self._in_flight[sent]
        if isinstance(how, Acked):
            if how.seq:
                self.acknowledged_end = max(self.acknowledged_end, how.seq + how.count)
            for row, future in sent.waiters:
                if not future.done():
                    future.set_result(how.seq + row)
            if sent.whole is not None and not sent.whole.done():
                sent.whole.set_result((how.seq, how.seq + how.count if how.seq else 0))
        else:
            if self._named is not None:
                self._failure = self._failure or how.why
            self._failed(sent, how.why)
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
        """Let those in line take their places, as far as there is room."""
        while self._blocked:
            size, future, take = self._blocked[0]
            if self.nbytes and self.nbytes + size > self.options.outbox_bytes_max:
                return
            self._blocked.popleft()
            if not future.done():  # else its caller has given up
                take()

    # ------------------------------------------------------------ flush

    def flushed(self) -> asyncio.Future[None]:
        """Done when all that was taken or stands in line by now has ended."""
        future: asyncio.Future[None] = self._loop.create_future()
        if self._blocked:
            in_line: asyncio.Future[int] = self._loop.create_future()
            self._blocked.append((0, in_line, partial(self._mark, future)))
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
        """What went wrong with events of `publish_soon` since this was last asked."""
        error, count = self._error, self._errors
        self._error, self._errors = None, 0
        if error is not None:
            error.args = (f"{count:,} events of publish_soon: {error}",)
        return error

    def stop(self) -> None:
        """The client closes: what stands in line is not taken, and nothing else will be."""
        self._stopped = True
        self.seal()
        blocked, self._blocked = self._blocked, deque()
        for _, future, take in blocked:
            if isinstance(take, partial) and take.func == self._mark:
                take()
            elif not future.done():
                future.set_exception(publish_error(self.name, "not-sent"))
                future.exception()  # its caller may have left without a word
