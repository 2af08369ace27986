"""Outbox: publishes to one stream, in batches that are sent in order.

Single events are collected in a *draft*, which is then *sealed*: made into a batch and sent. The
owner of the stream acknowledges each batch. A draft is sealed

* when the next event does not fit into it;
* if it has an event of `publish`: at once if no batch is unacknowledged, otherwise at the end of
  the current turn of the event loop, so that other tasks can add events to it in this turn;
* if it has only events of `publish_soon`: when the first one has waited for `ClientOptions.linger`.

While `outbox_batches_max` batches are sent and not acknowledged, only the first rule applies, so
batches grow under load.

The size of unacknowledged events is bounded (`outbox_bytes_max`). An event of `publish` for which
there is no room is queued until there is room. If its caller stops waiting before that, the event
is not published.

A *named* outbox publishes for a named publisher, which numbers its events itself (`Stream.named`).
The stream's owner recognises batches that were published before with the same numbers, and does not
publish them again. After a failure the outbox accepts nothing more, because the numbers of the
failed batch must never be used for other events.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from surecast.columns.batch import Batch
from surecast.columns.schema import extends
from surecast.core.endpoint import Acked, Failed
from surecast.core.types import SECOND, LogId
from surecast.core.wire import check_batch
from surecast.endpoint.attributes import Fields, RowWriter, TypedRow
from surecast.endpoint.control import Control
from surecast.endpoint.error_messages import encode_hint, publish_error
from surecast.endpoint.forking import call_on_fork, forked
from surecast.endpoint.options import ClientOptions
from surecast.errors import Closed, PublishError, QueueFull, UsageError

__all__ = ["EVENT_OVERHEAD", "NewEvent", "Outbox"]

EVENT_OVERHEAD: Final = 16  # bytes that are counted for an event in addition to its own size

# When the draft will be sealed, if not earlier because it is full.
_IDLE = 0  # no time is set
_LINGERS = 1  # after `linger`
_SOON = 2  # at the end of this turn of the event loop


class NewEvent(NamedTuple):
    """A checked event that is not published yet."""

    value: bytes
    key: bytes | None
    tag: bytes | None
    size: int  # with which it is counted
    fields: Fields | None  # its attributes, if the stream has a schema


class InFlight:
    """A sealed batch that is not acknowledged, and the futures that wait for it."""

    __slots__ = ("batch", "marks", "nbytes", "positions", "soon", "waiters")

    def __init__(self, batch: Batch, nbytes: int) -> None:
        self.batch = batch
        self.nbytes = nbytes  # counted against `outbox_bytes_max`
        # Events of `publish`: the row in the batch, and the future that gets its position.
        self.waiters: list[tuple[int, asyncio.Future[int]]] = []
        # Of `publish_batch`: the future that gets the batch's first position and its end.
        self.positions: asyncio.Future[tuple[int, int]] | None = None
        self.soon = 0  # the number of events of publish_soon; `flush` raises their errors
        self.marks: list[FlushPoint] = []  # calls of `flushed` that wait for this batch


class FlushPoint:
    """A call of `flushed`: waits until all batches before the call are acknowledged or failed."""

    __slots__ = ("future", "left")

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future = future
        self.left = 0  # the number of batches that it waits for

    def one_ended(self) -> None:
        self.left -= 1
        if self.left <= 0 and not self.future.done():
            self.future.set_result(None)


class Outbox:
    """Publishes to one stream (see the module). All `Stream` objects of a client for the same
    stream share one outbox.

    `named` is the id of a named publisher (see protocols/chain/dedup.py) and the number of its next
    event. None: the control node chooses the publisher and the numbers.
    """

    def __init__(
        self,
        name: str,
        stream: LogId,
        control: Control,
        options: ClientOptions,
        named: tuple[bytes, int] | None = None,
        writer: RowWriter | None = None,
    ) -> None:
        self.name = name
        self.stream = stream
        self.options = options
        self.writer = writer  # of the stream's schema; None: it has none
        self.nbytes = 0  # size of all unacknowledged events
        self.acknowledged_end = 1  # the position after the last acknowledged event
        # Copies of options, for the fast path of `publish_soon`. That path does not check the size
        # of the event: a draft within `_draft_room` cannot contain an event that is too large.
        # It does not take rows of a schema.
        self._rows_max = 0 if writer else options.batch_rows_max
        self._draft_room = min(options.batch_bytes_max, options.event_bytes_max)
        self._room = options.outbox_bytes_max
        self._event_most = options.event_most(writer.overhead if writer else 0)
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._linger_s = options.linger_ns / SECOND
        self._new_draft()
        self._due = _IDLE
        self._timer: asyncio.Handle | None = None  # calls `_seal_due` when the draft is due
        self._queue: deque[InFlight] = deque()  # sealed, and not given to the control node yet
        # All sealed batches that are neither acknowledged nor failed, in order.
        self._sealed: dict[InFlight, None] = {}
        self._under_way = 0  # how many of these the control node has; the others are in `_queue`
        # Events and batches that wait for room, and flush points behind them (with size 0): size,
        # future, and the function that adds them.
        self._blocked: deque[tuple[int, asyncio.Future[int], Callable[[], None]]] = deque()
        # Failed events of publish_soon since the last `take_error`: the first error, their number.
        self._error: PublishError | None = None
        self._errors = 0
        self._stopped = self._forked = False
        self._named = named
        # The owner refuses the columns of `writer`: the region has lost the change that added them.
        self.is_outdated = False
        self._failure = ""  # why a named outbox accepts nothing more; "": it accepts events
        call_on_fork(self)

    def _new_draft(self) -> None:
        self.values: list[bytes] = []
        # A list as long as `values`, once an event of the draft has a key; the same for tags.
        self._keys: list[bytes | None] | None = None
        self._tags: list[bytes | None] | None = None
        self._fields: list[Fields] = []  # of each event, if the stream has a schema
        self._draft_bytes = 0
        self._waiters: list[tuple[int, asyncio.Future[int]]] = []  # see `InFlight.waiters`

    @property
    def unacknowledged(self) -> int:
        """The number of unacknowledged batches. The draft and everything that waits for room count
        as one batch each."""
        return len(self._sealed) + bool(self.values) + len(self._blocked)

    @property
    def is_blocked(self) -> bool:
        """Whether calls wait for room. Later calls have to wait until these were added."""
        return bool(self._blocked)

    def waits_for_room(self, future: asyncio.Future[int]) -> bool:
        """Whether the event of a `publish` still waits for room. If its future is cancelled now,
        the event is not published."""
        return any(future is blocked for _, blocked, _ in self._blocked)

    # ------------------------------------------------------------ taking events

    def checked(self, value: Any, key: bytes | None, tag: bytes | None) -> NewEvent:
        """The event, with the size with which it is counted. Raises UsageError if it cannot be
        published. If the stream has a schema, `value` is a dict of its fields."""
        self._check()
        fields, nbytes = None, 0
        if self.writer is not None:
            _, fields, value, key, tag, nbytes = self._row(value, key, tag)
        for what, data in (("value", value), ("key", key), ("tag", tag)):
            if type(data) is not bytes and (data is not None or what == "value"):
                hint = encode_hint(what, data)
                raise UsageError(
                    f"a {what} is bytes, not {type(data).__name__}: {data!r:.60}{hint}"
                )
        size = len(value) + len(key or b"") + len(tag or b"") + nbytes
        if size > self._event_most:
            raise UsageError(
                f"an event of {size:,} bytes: at most {self._event_most:,} are allowed "
                "(ClientOptions.event_bytes_max). Publish it in parts"
            )
        return NewEvent(value, key, tag, size + EVENT_OVERHEAD, fields)

    def _row(self, value: Any, key: bytes | None, tag: bytes | None) -> TypedRow:
        assert self.writer is not None
        row = self.writer.row(value)
        for what, inner, outer in (("key", row.key, key), ("tag", row.tag, tag)):
            if inner is not None and outer is not None:
                raise UsageError(f"the event has two {what}s: {inner!r:.60} and {outer!r:.60}")
        return row._replace(
            key=row.key if key is None else key, tag=row.tag if tag is None else tag
        )

    def take_schema(self, writer: RowWriter) -> None:
        """Use the writer of a later schema from now on."""
        if self.writer is None or writer.schema == self.writer.schema:
            return
        if extends(writer.schema.text, self.writer.schema.text):
            self.seal()  # a batch has the columns of one schema
            self.writer = writer
            self._event_most = self.options.event_most(writer.overhead)

    def _on_fork(self) -> None:
        self._forked = True
        self._due = _IDLE  # disables the fast path of `publish_soon`

    def _check(self) -> None:
        """Raise an error if the outbox accepts nothing more."""
        if self._forked:
            raise forked()
        if self._stopped:
            raise Closed(f"the client is closed: nothing more can be published to {self.name!r}")
        if self._failure:
            raise self._publish_error(self._failure)

    def publish(self, value: Any, key: bytes | None, tag: bytes | None) -> asyncio.Future[int]:
        """Add an event, now or when there is room; the future gets its position."""
        event = self.checked(value, key, tag)
        future: asyncio.Future[int] = self._loop.create_future()
        take = partial(self._take, event, future)
        if self._blocked or self.nbytes + event.size > self.options.outbox_bytes_max:
            self._blocked.append((event.size, future, take))
        else:
            take()
        return future

    def _take(self, event: NewEvent, future: asyncio.Future[int]) -> None:
        """Add an event of `publish`; there is room for it."""
        self._append(event)
        self._waiters.append((len(self.values) - 1, future))
        self._seal_soon()

    def publish_soon(self, value: Any, key: bytes | None, tag: bytes | None) -> None:
        """Add an event, or raise QueueFull if there is no room.

        The first part is a fast path for the usual case: the draft has events already and is not
        full.
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
        event = self.checked(value, key, tag)
        if self._blocked or self.nbytes + event.size > self._room:
            raise self.full()
        self.accept(event)

    def accept(self, event: NewEvent) -> None:
        """Publish an event in the background. The caller has checked that there is room."""
        self._append(event)
        if self._due == _IDLE:
            self._due = _LINGERS
            self._timer = self._loop.call_later(self._linger_s, self._seal_due)

    def full(self) -> QueueFull:
        """The error for an event of `publish_soon` for which there is no room."""
        return QueueFull(
            f"{self.nbytes:,} bytes published to {self.name} are not acknowledged yet; the limit "
            f"is {self.options.outbox_bytes_max:,} (ClientOptions.outbox_bytes_max): "
            "`await client.flush()`, or publish with `await stream.publish(...)`, which waits"
        )

    def _append(self, event: NewEvent) -> None:
        """Add an event to the draft; if it does not fit, seal the draft first."""
        value, key, tag, size, fields = event
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
        if fields is not None:
            assert self.writer is not None
            # An event that waited for room may have been checked against an earlier schema.
            added = len(self.writer.schema.names) - len(fields)
            self._fields.append(fields + (None,) * added if added else fields)
        self.values.append(value)
        self._draft_bytes += size

    # ------------------------------------------------------------ sealing

    def _seal_soon(self) -> None:
        """Seal the draft at the end of this turn of the event loop, so that other tasks can add
        events to it. If no batch is in flight, seal it at once."""
        if not self._sealed:
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
        # Otherwise `_due` stays set, so `_pump` seals the draft after the next acknowledgement.

    def seal(self) -> None:
        """Make the draft into a batch and send it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due = _IDLE
        if not self.values:
            return
        attributes = self.writer.attributes(self._fields) if self.writer else None
        batch = Batch.of(self.stream, self.values, self._keys, self._tags, attributes)
        sent = InFlight(batch, self._draft_bytes)
        sent.waiters = self._waiters
        sent.soon = len(self.values) - len(self._waiters)
        self._new_draft()
        self._send(sent)

    def _has_room(self) -> bool:
        """Whether the control node may get another batch."""
        return self._under_way < self.options.outbox_batches_max

    def _send(self, sent: InFlight) -> None:
        if self._named is not None:
            publisher, number = self._named
            sent.batch = sent.batch.numbered(publisher, number)
            self._named = publisher, number + sent.batch.count
        self._sealed[sent] = None
        self._queue.append(sent)
        self._pump()

    def _pump(self) -> None:
        """Give sealed batches to the control node, up to the maximum in flight."""
        while self._has_room():
            if not self._queue:
                if self._due != _IDLE and self._timer is None:
                    self.seal()  # which calls `_pump` again
                return
            sent = self._queue.popleft()
            self._under_way += 1
            if self._failure:
                self._loop.call_soon(self._ended, sent, Failed(self.stream, 0, self._failure))
                continue
            self._control.offer(self.stream, sent.batch, partial(self._ended, sent))

    # ------------------------------------------------------------ whole batches

    def publish_batch(self, batch: Batch, size: int) -> tuple[InFlight, asyncio.Future[int]]:
        """Add a batch, now or when there is room. Even a batch larger than `outbox_bytes_max` is
        added when everything before it is acknowledged.

        The returned future is done when the batch is added; its result has no meaning. `positions`
        of the returned InFlight gets the batch's positions.
        """
        self._check()
        check_batch(batch)
        sent = InFlight(batch, size)
        sent.positions = self._loop.create_future()
        added: asyncio.Future[int] = self._loop.create_future()
        take = partial(self._take_batch, sent, added)
        if self._blocked or (self.nbytes and self.nbytes + size > self.options.outbox_bytes_max):
            self._blocked.append((size, added, take))
        else:
            take()
        return sent, added

    def _take_batch(self, sent: InFlight, added: asyncio.Future[int]) -> None:
        self.seal()  # events that were published before the batch come first
        self.nbytes += sent.nbytes
        added.set_result(0)
        self._send(sent)

    # ------------------------------------------------------------ results

    def _ended(self, sent: InFlight, result: Acked | Failed) -> None:
        """Called when a batch is acknowledged or has failed."""
        self._under_way -= 1
        self.nbytes -= sent.nbytes
        del self._sealed[sent]
        if isinstance(result, Acked):
            seq = result.seq  # 0: the positions are not known any more (see `Acked`)
            if seq:
                self.acknowledged_end = max(self.acknowledged_end, seq + result.count)
            for row, future in sent.waiters:
                if not future.done():
                    future.set_result(seq + row if seq else 0)
            if sent.positions is not None and not sent.positions.done():
                sent.positions.set_result((seq, seq + result.count if seq else 0))
        else:
            if self._named is not None:
                self._failure = self._failure or result.why
            self.is_outdated = self.is_outdated or result.why == "unknown-columns"
            self._failed(sent, result.why)
        for mark in sent.marks:
            mark.one_ended()
        self._unblock()
        self._pump()

    def _failed(self, sent: InFlight, why: str) -> None:
        futures = [future for _, future in sent.waiters]
        for future in (*futures, sent.positions):
            if future is not None and not future.done():
                future.set_exception(self._publish_error(why))
        if sent.soon:
            self._error = self._error or self._publish_error(why)
            self._errors += sent.soon

    def _publish_error(self, why: str) -> PublishError:
        return publish_error(self.name, why, named=self._named is not None)

    def _unblock(self) -> None:
        """Add events and batches that wait for room, as far as there is room now."""
        while self._blocked:
            size, future, take = self._blocked[0]
            if self.nbytes and self.nbytes + size > self.options.outbox_bytes_max:
                return
            self._blocked.popleft()
            if not future.done():  # otherwise its caller has stopped waiting
                take()

    # ------------------------------------------------------------ flush

    def flushed(self) -> asyncio.Future[None]:
        """A future that is done when all events published so far are acknowledged or have failed,
        including those that wait for room."""
        future: asyncio.Future[None] = self._loop.create_future()
        if self._blocked:
            queued: asyncio.Future[int] = self._loop.create_future()
            self._blocked.append((0, queued, partial(self._mark, future)))
        else:
            self._mark(future)
        return future

    def _mark(self, future: asyncio.Future[None]) -> None:
        """Have `future` set when all batches that are unacknowledged now have ended."""
        self.seal()
        mark = FlushPoint(future)
        mark.left = len(self._sealed)
        for sent in self._sealed:
            sent.marks.append(mark)
        if not mark.left:
            mark.one_ended()

    def take_error(self) -> PublishError | None:
        """The first error of `publish_soon` events since the last call of this method, or None."""
        error, count = self._error, self._errors
        self._error, self._errors = None, 0
        if error is not None:
            error.args = (f"{count:,} events of publish_soon: {error}",)
        return error

    def stop(self) -> None:
        """Called when the client closes: events that wait for room fail, and new ones are
        refused."""
        self._stopped = True
        self.seal()
        blocked, self._blocked = self._blocked, deque()
        for _, future, take in blocked:
            if isinstance(take, partial) and take.func == self._mark:
                take()  # a call of `flushed` does not fail; it waits for the batches that were sent
            elif not future.done():
                future.set_exception(self._publish_error("not-sent"))
                future.exception()  # prevents asyncio's warning if its caller was cancelled
