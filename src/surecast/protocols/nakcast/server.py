"""The server side, at one replica: sends committed batches to the readers that have joined it, its
*followers*, and answers their NAKs.

This is a layer over the stream service, which keeps the log. Every replica, not only the tail, can
have followers. So a reader may change to another replica at any position.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from surecast.columns.batch import Batch
from surecast.core.machine import HandlerMachine
from surecast.core.names import owner_of
from surecast.core.replicated import RoleChanged
from surecast.core.streams import (
    DIRECTORY,
    Attend,
    Create,
    Handed,
    Refuse,
    Resume,
    StreamAdded,
    Streams,
    StreamsMoved,
    Suspend,
    TakenBack,
)
from surecast.core.types import (
    AtEndOfPass,
    Congested,
    EndOfPass,
    LogId,
    PassDown,
    Peer,
    PeerDown,
    PeerUp,
    Send,
    SetTimer,
    TimerFired,
    Writable,
)
from surecast.protocols.nakcast.config import NakcastConfig
from surecast.protocols.nakcast.messages import Beacon, Data, Gone, Join, Leave, Nak

__all__ = ["DELIVERY", "LAYER", "NakcastServer"]

DELIVERY = "nakcast"  # the value of `StreamInfo.delivery`
LAYER = "nakcast"  # the name of this layer in a replica, which is also the name of the role
VOID_BYTES = 160  # an upper bound for the bytes of one void range in a message


@dataclass(slots=True)
class Group:
    """The readers of one stream at this replica (its *followers*)."""

    sent: int  # the next position to send; initially the end when the first follower joined
    interval_ns: int  # between beacons; it is doubled after each beacon while the stream is idle
    due_ns: int  # when the next beacon is due
    event_bytes: float = 100.0  # estimated size of an event, from what was last sent again
    followers: dict[Peer, None] = field(default_factory=dict)


@dataclass(slots=True)
class Room:
    """How much may still be sent in answer to one NAK."""

    answers: int  # messages, each with a batch or a void range
    nbytes: int  # of their batches

    @property
    def is_left(self) -> bool:
        return self.answers > 0 and self.nbytes > 0


class NakcastServer(HandlerMachine):
    uses = ("streams",)
    handlers: ClassVar[dict[type, str]] = {
        Join: "_on_join",
        Leave: "_on_leave",
        Nak: "_on_nak",
    }
    inputs: ClassVar[dict[type, str]] = {
        TimerFired: "_on_timer",
        EndOfPass: "_on_end_of_pass",
        PeerUp: "_on_peer_up",
        PeerDown: "_on_peer_down",
        Congested: "_on_congested",
        Writable: "_on_writable",
    }
    from_below: ClassVar[dict[type, str]] = {
        StreamAdded: "_on_added",
        StreamsMoved: "_on_moved",
        TakenBack: "_on_taken_back",
        RoleChanged: "_on_role_changed",
        Handed: "_on_handed",
    }

    def __init__(
        self, config: NakcastConfig, service: Streams, counters: Counter[str] | None = None
    ) -> None:
        super().__init__(counters)
        self.config = config
        self.service = service
        self.streams: dict[LogId, None] = {}  # of this delivery
        self.groups: dict[LogId, Group] = {}  # only streams that have followers here
        self.followers = 0  # of all groups
        # Streams with more events to send than one call may send (`reads_max`).
        self.unsent: dict[LogId, None] = {}
        self.congested: dict[Peer, None] = {}  # readers whose session takes no more for now
        # As in RoleChanged; not clean: the chain has lost events and must recover them first.
        self.is_head, self.is_clean = False, True
        # For alarms: the number of lost positions of each stream, and of refused joins (one reader
        # may be refused many times). Both are cleared `alarm_ns` after the last loss or refusal.
        self.losing: dict[LogId, int] = {}
        self.refused = 0
        self.has_timer = False  # the timer "beacon" is set

    # ------------------------------------------------------------ events of the service

    def _on_added(self, event: StreamAdded) -> None:
        if event.info.delivery == DELIVERY:
            self.streams[event.info.stream_id] = None
            self._review(event.info.stream_id)

    def _on_role_changed(self, event: RoleChanged) -> None:
        self.is_head, self.is_clean = event.head, event.clean
        for stream in self.streams:
            self._review(stream)

    def _review(self, stream: LogId) -> None:
        """Suspend or resume the assignment of positions: a chain that has lost its logs assigns no
        positions before they are recovered."""
        if self.is_head:
            command = Resume(stream) if self.is_clean else Suspend(stream, "recovering")
            self.out.append(PassDown(command))

    def _on_moved(self, event: StreamsMoved) -> None:
        for stream in event.streams:
            if group := self.groups.get(stream):
                self._send_news(stream, group)

    def _on_taken_back(self, event: TakenBack) -> None:
        if event.log == DIRECTORY:
            self.streams.clear()
            self.losing.clear()
            for stream in list(self.groups):
                self._forget(stream)
        elif group := self.groups.get(event.log):
            group.sent = min(group.sent, event.end)

    def _on_handed(self, event: Handed) -> None:
        """Create streams only in the region that owns their names; refuse all other requests."""
        if event.what == "create":
            config, message = self.config, event.message
            here = owner_of(config.owners, message.name, config.region) == config.region
            command: Any = Refuse(event.peer, message, "other-region")
            self.out.append(PassDown(Create(event.peer, message) if here else command))
        elif event.what == "publish":  # to a stream that another region owns
            self.out.append(PassDown(Refuse(event.peer, event.message, "owner-unreachable")))

    # ------------------------------------------------------------ readers

    def _on_join(self, peer: Peer, message: Join) -> None:
        stream, config = message.stream, self.config
        end = self.service.shown_end(stream)
        if stream not in self.streams or not end:  # 0: the stream service does not know it
            self.counters["nakcast.unknown-stream"] += 1
            return  # without an answer, the reader joins again, here or at another replica
        if not self.service.may_read(peer, stream):
            self.counters["nakcast.reader-too-old"] += 1
            return
        group = self.groups.get(stream)
        if group is None or peer not in group.followers:
            if self.followers >= config.followers_max:
                self.counters["nakcast.join-refused"] += 1
                self.refused += 1
                self._keep_alarms()
                return
            if group is None:
                if not self.groups:
                    self.out.append(PassDown(Attend(LAYER, True)))
                group = Group(end, config.beacon_ns, self.now_ns + config.beacon_ns)
                self.groups[stream] = group
            group.followers[peer] = None
            self.followers += 1
        self.out.append(Send(peer, Beacon(stream, end), reliable=False))
        self._send_end(stream, [peer])
        if not self.has_timer:
            self.has_timer = True
            self.out.append(SetTimer("beacon", self.now_ns + config.beacon_ns))

    def _on_leave(self, peer: Peer, message: Leave) -> None:
        self._remove(peer, message.stream)

    def _remove(self, peer: Peer, stream: LogId) -> None:
        group = self.groups.get(stream)
        if group is not None and peer in group.followers:
            del group.followers[peer]
            self.followers -= 1
            if not group.followers:
                self._forget(stream)

    def _forget(self, stream: LogId) -> None:
        self.followers -= len(self.groups.pop(stream).followers)
        self.unsent.pop(stream, None)
        if not self.groups:
            self.out.append(PassDown(Attend(LAYER, False)))

    def _on_peer_up(self, inp: PeerUp) -> None:
        self.congested.pop(inp.peer, None)

    def _on_peer_down(self, inp: PeerDown) -> None:
        self.congested.pop(inp.peer, None)
        for stream in list(self.groups):
            self._remove(inp.peer, stream)

    def _on_congested(self, inp: Congested) -> None:
        self.congested[inp.peer] = None

    def _on_writable(self, inp: Writable) -> None:
        self.congested.pop(inp.peer, None)

    # ------------------------------------------------------------ sending

    def _on_end_of_pass(self, _inp: EndOfPass) -> None:
        unsent, self.unsent = self.unsent, {}
        for stream in unsent:
            self._send_news(stream, self.groups[stream])

    def _send_news(self, stream: LogId, group: Group) -> None:
        """Send newly committed events, once, to all followers. After `reads_max` reads of the log,
        the rest is sent at the end of the pass."""
        config, service = self.config, self.service
        for _ in range(config.reads_max):
            batches = service.readable(stream, group.sent) if self._has_more(stream, group) else []
            if not batches:
                break
            for batch in batches:
                for piece in self._pieces(batch):
                    message = Data(piece)  # one object for all followers: encoded once
                    for peer in group.followers:
                        self._send_piece(peer, message)
            group.sent = batches[-1].hi
        else:
            if self._has_more(stream, group):
                if not self.unsent:
                    self.out.append(AtEndOfPass("send"))
                self.unsent[stream] = None
        group.interval_ns = config.beacon_ns
        group.due_ns = min(group.due_ns, self.now_ns + config.beacon_ns)

    def _has_more(self, stream: LogId, group: Group) -> bool:
        return group.sent < self.service.shown_end(stream)

    def _pieces(self, batch: Batch) -> Iterator[Batch]:
        """Split a batch so that the parts fit into a datagram. A single event cannot be split, and
        a void range (no rows) is small however many positions it has."""
        if batch.nbytes <= self.config.datagram_bytes_max or batch.count == 1 or not batch.rows:
            yield batch
        else:
            middle = batch.lo + batch.count // 2
            yield from self._pieces(batch.slice(batch.lo, middle))
            yield from self._pieces(batch.slice(middle, batch.hi))

    def _send_piece(self, peer: Peer, message: Data) -> None:
        """Send a datagram, or use the session if the event is too large for a datagram. In the
        second case send nothing if the session is congested: the reader will request the event with
        a NAK."""
        fits = message.batch.nbytes <= self.config.datagram_bytes_max
        if fits or peer not in self.congested:
            self.out.append(Send(peer, message, reliable=not fits))

    def _keep_alarms(self) -> None:
        """Keep the counters of alarms until `alarm_ns` from now: set the timer that clears them."""
        self.out.append(SetTimer("calm", self.now_ns + self.config.alarm_ns))

    def _on_timer(self, inp: TimerFired) -> None:
        if inp.key == "calm":
            self.losing, self.refused = {}, 0
            return
        config = self.config
        for stream, group in self.groups.items():
            if self.now_ns < group.due_ns:
                continue
            beacon = Beacon(stream, self.service.shown_end(stream))
            self.out += [Send(peer, beacon, reliable=False) for peer in group.followers]
            self._send_end(stream, group.followers)
            group.due_ns = self.now_ns + group.interval_ns
            group.interval_ns = min(2 * group.interval_ns, config.idle_beacon_ns)
        self.has_timer = bool(self.groups)
        if self.has_timer:
            self.out.append(SetTimer("beacon", self.now_ns + config.beacon_ns))

    def _send_end(self, stream: LogId, peers: Iterable[Peer]) -> None:
        """If the stream is deleted, send its last event (the End event). A reader that begins at
        the position after this event misses nothing, so it would never request the event."""
        for batch in self.service.end_event(stream):
            self.out += [Send(peer, Data(batch), reliable=False) for peer in peers]

    # ------------------------------------------------------------ answering

    def _on_nak(self, peer: Peer, message: Nak) -> None:
        """Answer a NAK. The reader is not trusted: its ranges may have any numbers, and the work
        for one NAK is bounded."""
        stream, config = message.stream, self.config
        group = self.groups.get(stream)
        if group is None or peer not in group.followers:
            return
        end = self.service.shown_end(stream)
        floor = max(1, end - config.repair_max)  # positions below are not sent again
        room = Room(config.answers_max, config.answer_bytes_max)
        has_sent_gone = False
        for first, last in message.holes[: config.answers_max]:
            lo, hi = max(first, 1), min(last, end)
            if lo < min(hi, floor):
                # Only one Gone in an answer. The reader sends another NAK for other old ranges.
                if not has_sent_gone:
                    self._tell_gone(peer, stream, lo, min(hi, floor))
                has_sent_gone, lo = True, floor
            self._send_again(peer, stream, group, lo, hi, room)
        self.out.append(Send(peer, Beacon(stream, end, message.number), reliable=False))

    def _send_again(
        self, peer: Peer, stream: LogId, group: Group, lo: int, hi: int, room: Room
    ) -> None:
        """Send [lo, hi) from the log, as far as `room` allows. How many positions are read at once
        is estimated from the size of recent events, so that little is read that cannot be sent."""
        while lo < hi and room.is_left:
            upto = min(hi, lo + max(1, int(room.nbytes / group.event_bytes)))
            batches = self.service.readable(stream, lo, upto)
            if not batches:
                return
            for batch in batches:
                if batch.rows:
                    group.event_bytes = batch.nbytes / batch.rows
                for piece in self._pieces(batch):
                    if not room.is_left:
                        return
                    self._send_piece(peer, Data(piece))
                    room.answers, room.nbytes = room.answers - 1, room.nbytes - piece.nbytes
                    self.counters["nakcast.sent-again"] += 1
            lo = batches[-1].hi

    def _tell_gone(self, peer: Peer, stream: LogId, lo: int, hi: int) -> None:
        """Send Gone for [lo, hi), with its void ranges. If they do not all fit into one message,
        the message covers only a first part of [lo, hi), and the reader sends a NAK for the rest.
        """
        fit = self.config.datagram_bytes_max // VOID_BYTES
        voids, hi = self.service.voids(stream, lo, hi, min(fit, self.config.answers_max))
        if lo < hi:
            lost = hi - lo - sum(void.count for void in voids)
            self.counters["nakcast.positions-lost"] += lost
            # No alarm if `lo` is 1: this is a reader that begins at position 1, not a slow one.
            if lost and lo > 1:
                self.losing[stream] = self.losing.get(stream, 0) + lost
                self._keep_alarms()
            self.out.append(Send(peer, Gone(stream, lo, hi, tuple(voids)), reliable=False))
