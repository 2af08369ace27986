"""A publishing client: it numbers, sends, retries, and reports what was acknowledged.

Batches are sent in order, and retries are identical and in the same order, so that the head (the
replica that accepts publishes) can distinguish a retry from a new batch (R3). After a temporary
refusal the publisher retries; if a replica is silent or its session ends, it uses the next replica.
If a replica answers for some streams and not for others, the publisher repeats the unanswered
requests only. This happens if a request was forwarded to another region whose head then crashed.

The batches of a *named* publisher come with its id and their numbers. The same batches may have
been offered before a restart, or by another client at the same time. The head recognises those that
it has accepted. A number is never used for another batch, not even after a failure.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar

from surecast.columns.batch import Batch
from surecast.core.endpoint import Acked, Failed, Offer, OfferBatch, Open, Opened
from surecast.core.machine import HandlerMachine
from surecast.core.streams import StreamSpec
from surecast.core.types import (
    Emit,
    LogId,
    Peer,
    PeerDown,
    SetTimer,
    Start,
    TimerFired,
)
from surecast.errors import UsageError
from surecast.protocols.streams.config import PublisherConfig
from surecast.protocols.streams.messages import (
    CreateStream,
    PubAck,
    Publish,
    PubNack,
    StreamOpened,
)

__all__ = ["Publisher", "anonymous_publisher"]

# Refusals of a batch (PubNack) that are final: a retry cannot succeed.
FINAL = (
    "mismatch",
    "expired",
    "bad-event",
    "bad-spec",
    "quarantined",
    "deleted",
    "too-many-deleted",
    "unknown-columns",
    "unchanged",
    "schema-differs",
    "no-schemas",
)
# The same for refusals to open a stream (StreamOpened).
NEVER_OPENED = (
    "too-many-streams",
    "bad-name",
    "bad-spec",
    "no-delivery",
    "no-schemas",
    "other-region",
    "owners-differ",
)
UNREACHABLE = "owner-unreachable"
DOUBLINGS_MAX = 4  # how often the wait before an unanswered request is repeated can double

QueueKey = LogId | tuple[LogId, bytes]  # a stream; or a stream and a named publisher


def anonymous_publisher(wall_ns: int, rng: Random) -> bytes:
    """A new publisher's id: the time of its creation, and random bytes."""
    return wall_ns.to_bytes(8, "big") + rng.randbytes(8)


@dataclass(slots=True)
class Retry:
    """When an unanswered request is repeated.

    The wait doubles with each repetition, so that repetitions do not add to an overload.
    """

    since_ns: int  # when the request was last sent, or a part of it was last answered
    repeated: int = 0  # how often it was repeated since a part of it was last answered

    def is_due(self, now_ns: int, retry_ns: int) -> bool:
        return now_ns - self.since_ns >= retry_ns << min(self.repeated, DOUBLINGS_MAX)

    def restart(self, now_ns: int) -> None:
        self.since_ns, self.repeated = now_ns, 0


@dataclass(slots=True)
class StreamRequest:
    """A request to open or create a stream that has not been answered."""

    spec: StreamSpec
    retry: Retry
    cut_off_since_ns: int | None = None  # since then the owner's region is unreachable


@dataclass(slots=True)
class StreamQueue:
    """The batches offered for one stream and not acknowledged, oldest first.

    Each queue has its own publisher id, made with its first event. After a batch that can never be
    accepted, the id is replaced, so that a number is never used for two different batches. The
    queue of a named publisher keeps its id.
    """

    publisher: bytes  # the publisher id of new batches
    retry: Retry  # of the batches under way
    next_no: int = 1  # the number of the next event offered
    waiting: deque[Batch] = field(default_factory=deque)
    tokens: deque[int] = field(default_factory=deque)  # of `waiting`, one each
    # Not None: since then the head expects acknowledged batches, so it may have lost them.
    lost_since_ns: int | None = None
    lost_seen_ns: int = 0  # when it last refused a batch for this reason
    cut_off_since_ns: int | None = None  # since then the owner's region is unreachable
    under_way: int = 0  # how many of `waiting`, from the front, have been sent
    named: bool = False


def _key(stream: LogId, queue: StreamQueue) -> QueueKey:
    return (stream, queue.publisher) if queue.named else stream


def _first(queue: StreamQueue) -> tuple[bytes, int]:
    """(publisher, pub_no) of the first waiting batch."""
    return queue.waiting[0].publisher, queue.waiting[0].pub_no


class Publisher(HandlerMachine):
    """Publishes to any number of streams, through one replica at a time."""

    handlers: ClassVar[dict[type, str]] = {
        PubAck: "_on_pub_ack",
        PubNack: "_on_pub_nack",
        StreamOpened: "_on_stream_opened",
    }
    inputs: ClassVar[dict[type, str]] = {
        Start: "_on_start",
        Offer: "_on_offer",
        OfferBatch: "_on_offer_batch",
        Open: "_on_open",
        TimerFired: "_on_timer",
        PeerDown: "_on_peer_down",
    }

    def __init__(
        self, config: PublisherConfig, rng: Random, counters: Counter[str] | None = None
    ) -> None:
        super().__init__(counters)
        self.config = config
        self.rng = rng
        self.opening: dict[str, StreamRequest] = {}  # by the stream's name
        self.queues: dict[QueueKey, StreamQueue] = {}
        self.target = 0  # the replica that is used, as an index of `config.replicas`
        self.progress_ns = 0  # when a stream was last opened or a batch acknowledged

    def _on_start(self, _inp: Start) -> None:
        self.out.append(SetTimer("retry", self.now_ns + self.config.retry_ns))

    def _on_open(self, inp: Open) -> None:
        self.opening[inp.name] = StreamRequest(inp.spec, Retry(self.now_ns))
        self._send(self._head, CreateStream(inp.name, inp.spec))

    def _on_peer_down(self, inp: PeerDown) -> None:
        if inp.peer == self._head:
            self._try_next()

    @property
    def _head(self) -> Peer:
        """The replica that is used. It should be the head; if it is not, it names the head."""
        return self.config.replicas[self.target]

    @property
    def unacknowledged(self) -> int:
        return sum(len(queue.waiting) for queue in self.queues.values()) + len(self.opening)

    def _new_id(self) -> bytes:
        return anonymous_publisher(self.wall_ns, self.rng)

    def _on_offer(self, inp: Offer) -> None:
        batch = Batch.of(inp.stream, inp.values, inp.keys, inp.tags, kind=inp.kind)
        self._take(inp.stream, batch, 0)

    def _on_offer_batch(self, inp: OfferBatch) -> None:
        self._take(inp.stream, inp.batch, inp.token)

    def _take(self, stream: LogId, batch: Batch, token: int) -> None:
        key: QueueKey = (stream, batch.publisher) if batch.pub_no else stream
        queue = self.queues.get(key)
        if queue is None:
            named = batch.pub_no > 0
            publisher = batch.publisher if named else self._new_id()
            queue = StreamQueue(publisher, Retry(self.now_ns), batch.pub_no or 1, named=named)
            self.queues[key] = queue
        assert not queue.named or batch.pub_no == queue.next_no, "a number was left out"
        if len(queue.waiting) >= self.config.queue_max:
            raise UsageError(
                f"{self.config.queue_max} batches are waiting for an acknowledgement "
                "(publisher.queue_max): publish more slowly"
            )
        if not queue.waiting:
            queue.retry.restart(self.now_ns)
        queue.waiting.append(batch.numbered(queue.publisher, queue.next_no))
        queue.tokens.append(token)
        queue.next_no += batch.count
        self._send_more(stream, queue)

    def _find(self, stream: LogId, publisher: bytes) -> StreamQueue | None:
        return self.queues.get((stream, publisher)) or self.queues.get(stream)

    def _send_more(self, stream: LogId, queue: StreamQueue) -> None:
        """Send waiting batches that were not sent yet, as many as may be under way."""
        while queue.under_way < min(len(queue.waiting), self.config.inflight_max):
            if queue.waiting[queue.under_way].publisher != queue.waiting[0].publisher:
                break  # batches with the previous publisher id must be acknowledged first
            self._send(self._head, Publish(stream, queue.waiting[queue.under_way]))
            queue.under_way += 1

    def _send_again(self) -> None:
        """Send everything unacknowledged again, identical and in its original order."""
        for name in self.opening:
            self._send_one_again(name)
        for key in self.queues:
            self._send_one_again(key)

    def _send_one_again(self, key: QueueKey | str) -> None:
        """Send the unacknowledged batches of a queue again, or the request to open a stream. `key`:
        the key of the queue, or the name of the stream."""
        if isinstance(key, str):
            if request := self.opening.get(key):
                request.retry.since_ns = self.now_ns
                self._send(self._head, CreateStream(key, request.spec))
        elif queue := self.queues.get(key):
            queue.under_way, queue.retry.since_ns = 0, self.now_ns
            self._send_more(key[0] if isinstance(key, tuple) else key, queue)

    def _on_stream_opened(self, peer: Peer, message: StreamOpened) -> None:
        name, why = message.name, message.why
        request = self.opening.get(name)
        if request is None:
            return
        if why != UNREACHABLE:
            request.cut_off_since_ns = None
        elif request.cut_off_since_ns is None:
            request.cut_off_since_ns = self.now_ns
        given_up = request.cut_off_since_ns is not None and self._is_cut_off(
            request.cut_off_since_ns
        )
        if message.info is not None or why in NEVER_OPENED or given_up:
            del self.opening[name]
            self.progress_ns = self.now_ns
            self.out.append(Emit(Opened(name, message.info, why)))
        else:
            self._refused(peer, why, message.head, name)

    def _is_cut_off(self, since_ns: int) -> bool:
        """Whether the owner's region has been unreachable for so long that requests to it fail."""
        return self.now_ns - since_ns >= self.config.owner_ns

    def _queue_of(self, message: PubNack) -> StreamQueue | None:
        """The queue in which the batch that the message names still waits, or None."""
        queue = self._find(message.stream, message.publisher)
        batch_id = (message.publisher, message.pub_no)
        waits = queue is not None and any(
            (b.publisher, b.pub_no) == batch_id for b in queue.waiting
        )
        return queue if waits else None

    def _on_pub_ack(self, _peer: Peer, message: PubAck) -> None:
        queue = self._find(message.stream, message.publisher)
        if queue is None:
            return
        for pub_no, seq in ((message.pub_no, message.seq), *message.more):
            self._acked(queue, message, pub_no, seq)
        self._send_more(message.stream, queue)

    def _acked(self, queue: StreamQueue, message: PubAck, pub_no: int, seq: int) -> None:
        if not any(b.publisher == message.publisher and b.pub_no == pub_no for b in queue.waiting):
            return  # acknowledged before
        self.progress_ns = self.now_ns
        if queue.waiting[0].pub_no != pub_no:
            return  # an earlier batch is not acknowledged: both will be, after they were retried
        self._ended(message.stream, queue, seq)

    def _ended(self, stream: LogId, queue: StreamQueue, seq: int) -> None:
        """The first waiting batch is acknowledged at position `seq` (0: at an unknown position)."""
        queue.lost_since_ns = queue.cut_off_since_ns = None
        queue.retry.restart(self.now_ns)
        batch, token = queue.waiting.popleft(), queue.tokens.popleft()
        queue.under_way = max(0, queue.under_way - 1)
        self.out.append(Emit(Acked(stream, batch.pub_no, batch.count, seq, token)))
        self._drop_if_idle(stream, queue)

    def _drop_if_idle(self, stream: LogId, queue: StreamQueue) -> None:
        """Drop the empty queue of a named publisher, which itself knows its next number."""
        if queue.named and not queue.waiting:
            self.queues.pop((stream, queue.publisher), None)

    def _on_pub_nack(self, peer: Peer, message: PubNack) -> None:
        queue = self._queue_of(message)
        if queue is None:
            return
        if message.why in FINAL:
            self._fail(message, queue)
        elif queue.named and message.why == "out-of-order" and message.expected > message.pub_no:
            self._taken_before(message, queue)
        elif self._is_history_lost(message, queue):
            self._fail(PubNack(message.stream, *_first(queue), "history-lost"), queue)
        elif message.why == UNREACHABLE:
            if queue.cut_off_since_ns is None:
                queue.cut_off_since_ns = self.now_ns
            if self._is_cut_off(queue.cut_off_since_ns):
                self._fail(PubNack(message.stream, *_first(queue), UNREACHABLE), queue)
            else:
                self._refused(peer, message.why, message.head, _key(message.stream, queue))
        else:
            queue.cut_off_since_ns = None
            self._refused(peer, message.why, message.head, _key(message.stream, queue))

    def _taken_before(self, message: PubNack, queue: StreamQueue) -> None:
        """Handle the refusal of a batch that was committed long ago: the head expects a later
        number, and this batch is no longer among those by which it recognises retries.

        For each publisher, a head keeps the numbers of twice as many batches as may be
        unacknowledged at once. So a batch that it no longer keeps was acknowledged, and so were all
        before it.
        """
        batch = next(b for b in queue.waiting if b.pub_no == message.pub_no)
        # If the head expects a number within this batch, it has accepted a batch that ends there: a
        # different batch with the same numbers.
        if message.expected < batch.pub_no + batch.count:
            self._fail(PubNack(message.stream, batch.publisher, batch.pub_no, "mismatch"), queue)
            return
        self.progress_ns = self.now_ns
        while queue.waiting and queue.waiting[0].pub_no <= message.pub_no:
            self._ended(message.stream, queue, 0)
        self._send_more(message.stream, queue)

    def _is_history_lost(self, message: PubNack, queue: StreamQueue) -> bool:
        """Whether the head has lost batches that were acknowledged: for a long time, it has refused
        the following ones because it expects these."""
        first = queue.waiting[0]
        if message.why != "out-of-order" or message.expected >= first.pub_no:
            return False
        # A former head may lack the last batches for a moment, and an old answer may arrive late.
        # So this must be the answer again and again, for `lost_ns`.
        if (
            queue.lost_since_ns is None
            or self.now_ns - queue.lost_seen_ns > self.config.lost_ns // 4
        ):
            queue.lost_since_ns = self.now_ns
        queue.lost_seen_ns = self.now_ns
        return self.now_ns - queue.lost_since_ns > self.config.lost_ns

    def _refused(self, peer: Peer, why: str, head: Peer, refused: QueueKey | str) -> None:
        """Handle a temporary refusal by `peer`: use `head`, if one is named, and retry soon.

        If `peer` is not the head, everything is sent again. Otherwise only what was refused (the
        batches of a queue, or the request to open a stream), because the rest may not be affected.
        """
        if peer != self._head:
            return
        if head in self.config.replicas and head != peer:
            self.target = self.config.replicas.index(head)
        elif why == "not-head":
            self.target = (self.target + 1) % len(self.config.replicas)
        # The keys of timers: "again" for everything, ("again", key) for one queue or stream.
        key = "again" if why == "not-head" else ("again", refused)
        self.out.append(SetTimer(key, self.now_ns + self.config.backoff_ns))

    def _fail(self, message: PubNack, queue: StreamQueue) -> None:
        """Report that the batch in `message` failed: it can never be accepted. All later batches of
        the queue fail, too, because they would be out of order."""
        failed: list[tuple[Batch, int]] = []
        # Take batches from the end of the queue, up to and including the one in `message`.
        while not failed or (failed[-1][0].publisher, failed[-1][0].pub_no) != (
            message.publisher,
            message.pub_no,
        ):
            failed.append((queue.waiting.pop(), queue.tokens.pop()))
        for batch, token in reversed(failed):
            self.out.append(Emit(Failed(message.stream, batch.pub_no, message.why, token)))
        if not queue.named:
            queue.publisher, queue.next_no = self._new_id(), 1
        queue.lost_since_ns = queue.cut_off_since_ns = None
        queue.under_way = min(queue.under_way, len(queue.waiting))
        self._drop_if_idle(message.stream, queue)

    def _on_timer(self, inp: TimerFired) -> None:
        if inp.key == "again":
            self._send_again()
            return
        if inp.key != "retry":
            self._send_one_again(inp.key[1])
            return
        self.out.append(SetTimer("retry", self.now_ns + self.config.retry_ns))
        retry_ns = self.config.retry_ns
        if self.unacknowledged and self.now_ns - self.progress_ns >= retry_ns:
            self._try_next()  # the replica is silent, or answers nothing that we wait for
            return
        waiting: dict[QueueKey | str, Retry] = {n: r.retry for n, r in self.opening.items()}
        waiting.update((key, queue.retry) for key, queue in self.queues.items() if queue.waiting)
        for key, retry in waiting.items():
            if retry.is_due(self.now_ns, retry_ns):
                retry.repeated += 1
                self._send_one_again(key)

    def _try_next(self) -> None:
        self.target = (self.target + 1) % len(self.config.replicas)
        if self.unacknowledged:
            self.out.append(SetTimer("again", self.now_ns + self.config.backoff_ns))
