"""A publishing client: it numbers, sends, retries, and reports what was acknowledged.

Batches leave in order and are retried identical and in order, so that the head can tell a retry
from news (R3). Refusals that will pass are waited out; a silent or departed replica is replaced
by the next one.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar

from surecast.columns.batch import Batch
from surecast.columns.retention import Policy
from surecast.core.machine import HandlerMachine
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
from surecast.protocols.sprinkler.config import PublisherConfig
from surecast.protocols.sprinkler.messages import (
    Acked,
    CreateStream,
    Failed,
    Offer,
    Open,
    Opened,
    PubAck,
    Publish,
    PubNack,
    StreamOpened,
)

__all__ = ["Publisher", "anonymous_publisher"]

FINAL = ("mismatch", "expired", "bad-event", "not-owner")  # waiting will not help


def anonymous_publisher(wall_ns: int, rng: Random) -> bytes:
    """A publisher's id: when it was born, and chance."""
    return wall_ns.to_bytes(8, "big") + rng.randbytes(8)


@dataclass(slots=True)
class Line:
    """What was offered for one stream and is not acknowledged, oldest first.

    Each line has an identity of its own, born with its first event and given up with a batch that
    can never be taken: a number is never used for two different batches.
    """

    publisher: bytes
    next_no: int = 1
    waiting: deque[Batch] = field(default_factory=deque)
    lost_since_ns: int | None = None  # the head expects less than it acknowledged
    under_way: int = 0  # how many of `waiting`, from the front, have been sent


def _first(line: Line) -> tuple[bytes, int]:
    return line.waiting[0].publisher, line.waiting[0].pub_no


class Publisher(HandlerMachine):
    handlers: ClassVar[dict[type, str]] = {
        PubAck: "_on_pub_ack",
        PubNack: "_on_pub_nack",
        StreamOpened: "_on_stream_opened",
    }
    inputs: ClassVar[dict[type, str]] = {
        Start: "_on_start",
        Offer: "_on_offer",
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
        self.opening: dict[str, Policy] = {}  # streams asked for and not answered
        self.lines: dict[LogId, Line] = {}
        self.target = 0
        self.progress_ns = 0

    def _on_start(self, _inp: Start) -> None:
        self.out.append(SetTimer("retry", self.now_ns + self.config.retry_ns))

    def _on_open(self, inp: Open) -> None:
        self.opening[inp.name] = inp.retention
        self._send(self._head, CreateStream(inp.name, inp.retention))

    def _on_peer_down(self, inp: PeerDown) -> None:
        if inp.peer == self._head:
            self._try_next()

    @property
    def _head(self) -> Peer:
        return self.config.replicas[self.target]

    @property
    def unacknowledged(self) -> int:
        return sum(len(line.waiting) for line in self.lines.values()) + len(self.opening)

    def _identity(self) -> bytes:
        return anonymous_publisher(self.wall_ns, self.rng)

    def _on_offer(self, inp: Offer) -> None:
        line = self.lines.get(inp.stream)
        if line is None:
            line = self.lines[inp.stream] = Line(self._identity())
        if len(line.waiting) >= self.config.queue_max:
            raise UsageError(
                f"{self.config.queue_max} batches are waiting for an acknowledgement "
                "(publisher.queue_max): publish more slowly"
            )
        batch = Batch.of(
            inp.stream,
            inp.values,
            inp.keys,
            inp.tags,
            publisher=line.publisher,
            pub_no=line.next_no,
            kind=inp.kind,
        )
        line.next_no += batch.count
        line.waiting.append(batch)
        self._send_more(inp.stream, line)

    def _send_more(self, stream: LogId, line: Line) -> None:
        while line.under_way < min(len(line.waiting), self.config.inflight_max):
            if line.waiting[line.under_way].publisher != line.waiting[0].publisher:
                break  # what was offered under the old identity must be in its place first
            self._send(self._head, Publish(stream, line.waiting[line.under_way]))
            line.under_way += 1

    def _send_again(self) -> None:
        """Everything unacknowledged, identical and in its first order."""
        for name, policy in self.opening.items():
            self._send(self._head, CreateStream(name, policy))
        for stream, line in self.lines.items():
            line.under_way = 0
            self._send_more(stream, line)

    def _on_stream_opened(self, peer: Peer, message: StreamOpened) -> None:
        if message.name not in self.opening:
            return
        if message.info is not None or message.why == "too-many-streams":
            del self.opening[message.name]
            self.progress_ns = self.now_ns
            self.out.append(Emit(Opened(message.name, message.info, message.why)))
        else:
            self._refused(peer, message.why, message.head)

    def _line_of(self, message: PubAck | PubNack) -> Line | None:
        """The line that still waits to hear about what the message names."""
        line = self.lines.get(message.stream)
        what = (message.publisher, message.pub_no)
        waits = line is not None and any((b.publisher, b.pub_no) == what for b in line.waiting)
        return line if waits else None

    def _on_pub_ack(self, _peer: Peer, message: PubAck) -> None:
        line = self._line_of(message)
        if line is None:
            return  # acknowledged before
        self.progress_ns = self.now_ns
        if line.waiting[0].pub_no != message.pub_no:
            return  # it overtook an earlier one, and will be said again when that is retried
        line.lost_since_ns = None
        batch = line.waiting.popleft()
        line.under_way -= 1
        self.out.append(Emit(Acked(message.stream, batch.pub_no, batch.count, message.seq)))
        self._send_more(message.stream, line)

    def _on_pub_nack(self, peer: Peer, message: PubNack) -> None:
        line = self._line_of(message)
        if line is None:
            return
        if message.why in FINAL:
            self._fail(message, line)
        elif self._is_history_lost(message, line):
            self._fail(PubNack(message.stream, *_first(line), "history-lost"), line)
        else:
            self._refused(peer, message.why, message.head)

    def _is_history_lost(self, message: PubNack, line: Line) -> bool:
        """For long now the head has expected what it acknowledged before: it lost that for good."""
        first = line.waiting[0]
        if message.why != "out-of-order" or message.expected >= first.pub_no:
            return False
        if line.lost_since_ns is None:  # an old head may be behind for a moment
            line.lost_since_ns = self.now_ns
        return self.now_ns - line.lost_since_ns > self.config.lost_ns

    def _refused(self, peer: Peer, why: str, head: Peer) -> None:
        """Not now, or not here: go where the head is said to be, and try again soon."""
        if peer != self._head:
            return
        if head in self.config.replicas and head != peer:
            self.target = self.config.replicas.index(head)
        elif why == "not-head":
            self.target = (self.target + 1) % len(self.config.replicas)
        self.out.append(SetTimer("again", self.now_ns + self.config.backoff_ns))

    def _fail(self, message: PubNack, line: Line) -> None:
        """This batch can never be taken. What follows would be out of order: it fails with it."""
        failed: list[Batch] = []
        while not failed or (failed[-1].publisher, failed[-1].pub_no) != (
            message.publisher,
            message.pub_no,
        ):
            failed.append(line.waiting.pop())
        for batch in reversed(failed):
            self.out.append(Emit(Failed(message.stream, batch.pub_no, message.why)))
        line.publisher, line.next_no, line.lost_since_ns = self._identity(), 1, None
        line.under_way = min(line.under_way, len(line.waiting))

    def _on_timer(self, inp: TimerFired) -> None:
        if inp.key == "again":
            self._send_again()
            return
        self.out.append(SetTimer("retry", self.now_ns + self.config.retry_ns))
        idle_ns = self.now_ns - self.progress_ns
        if self.unacknowledged and idle_ns >= self.config.retry_ns:
            self._try_next()

    def _try_next(self) -> None:
        self.target = (self.target + 1) % len(self.config.replicas)
        if self.unacknowledged:
            self.out.append(SetTimer("again", self.now_ns + self.config.backoff_ns))
