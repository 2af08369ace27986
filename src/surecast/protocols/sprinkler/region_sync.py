"""Sprinkler between regions, at one replica: exchanges the streams of all regions.

This is the server side of the delivery `broadcast`, a layer over the stream service. What it does
depends on the replica's place in the region's chain. The tail *advertises* the ends of the region's
copies of streams to the replicas of other regions, and sends them the events. The head *pulls* each
stream that another region owns from one region, the *source*, which need not be the owner.
sources.py, recovery.py, forks.py and parts/forwarding.py have parts of this machine.

G8 a stream has at most one source; the region that owns it has none, unless it has lost a part.
G9 connected regions get to the same end of each stream, also after publishing has stopped.
"""

from collections import Counter
from random import Random
from typing import Any, ClassVar

import msgspec

from surecast.columns.batch import DATA, Batch
from surecast.core.fragments import Parts, parts_of
from surecast.core.machine import HandlerMachine
from surecast.core.names import owner_of, owners_digest
from surecast.core.replicated import (
    AppendAt,
    AskPublishers,
    Counted,
    Overtaken,
    PublishersAre,
    RoleChanged,
    RolledBack,
    TakePublishers,
)
from surecast.core.streams import (
    DIRECTORY,
    Adopt,
    Attend,
    Await,
    Create,
    Handed,
    Limit,
    PieceLoaded,
    Refuse,
    Resume,
    Settle,
    StreamAdded,
    StreamDeleted,
    StreamInfo,
    Streams,
    StreamsMoved,
    Suspend,
    TakenBack,
    spec_bytes,
)
from surecast.core.types import (
    SECOND,
    TYPED_BODIES,
    Close,
    Congested,
    Disk,
    EndOfPass,
    LogId,
    Message,
    PassDown,
    Peer,
    PeerDown,
    PeerUp,
    SaveState,
    Send,
    SetTimer,
    Start,
    TimerFired,
    Writable,
)
from surecast.parts.forwarding import Forwarding
from surecast.parts.serving import Serving
from surecast.protocols.sprinkler.config import SprinklerConfig
from surecast.protocols.sprinkler.forks import Forks
from surecast.protocols.sprinkler.messages import (
    Advertise,
    Compare,
    Compared,
    Doubt,
    Hide,
    PeerEvents,
    PublishersKnown,
    PublishersWanted,
    RegionBehind,
    RegionStale,
    RegionSubscribe,
    RegionUnsubscribe,
)
from surecast.protocols.sprinkler.recovery import Recovery
from surecast.protocols.sprinkler.sources import (
    Copy,
    PeerRegion,
    Source,
    has_led,
    is_given_up,
    leads_enough,
    leads_literally,
    measure_rate,
)

__all__ = ["RegionSync"]


NAME = "broadcast"  # of the delivery
PROTOCOL = "sprinkler"
STREAMS_A_MESSAGE = 1000  # most streams in one part of an advertisement
INFOS_BYTES_MAX = 640 << 10  # of schemas and options, after which a part has no more streams
# Most parts of an advertisement before its last part. A longer advertisement is ignored. These are
# enough for all streams that a region may have and have had, with the longest schemas.
PARTS_MAX = 500
COUNTS = "regions"  # name of the state on disk: the serial numbers of other regions' disks
DISKS_MAX = 8  # how many disks of one server this state has; the oldest are dropped
COUNTS_NS = 1 * SECOND  # this state is written at most this often
FOLLOWERS_MAX = 1_000_000  # most subscriptions of other regions' servers, over all streams


class Count(msgspec.Struct, array_like=True):
    """The last serial number of another region's disk (`core.replicated.Counted`)."""

    disk: bytes  # its identity
    life: bytes = b""  # identifies the start of the server after which it sent this number
    serial: int = 0


def _whole(parts: list[Advertise], last: Advertise) -> Advertise:
    """Join the parts of an advertisement; `parts` are those before the last one."""
    ends: dict[LogId, int] = {}
    infos: list[StreamInfo] = []
    for part in (*parts, last):
        ends |= part.ends
        infos += part.infos
    return msgspec.structs.replace(last, ends=ends, infos=tuple(infos)) if parts else last


class RegionSync(HandlerMachine):
    """The layer between regions. The stream service below handles streams and clients."""

    uses = ("streams",)
    handlers: ClassVar[dict[type, str]] = {
        Advertise: "_on_advertise",
        RegionSubscribe: "_on_region_subscribe",
        RegionUnsubscribe: "_on_region_unsubscribe",
        PeerEvents: "_on_peer_events",
        PublishersWanted: "_on_publishers_wanted",
        PublishersKnown: "_on_publishers_known",
        RegionBehind: "_on_region_behind",
        Compare: "_on_compare",
        Compared: "_on_compared",
        Doubt: "_on_doubt",
        Hide: "_on_hide",
        RegionStale: "_on_region_stale",
    }
    inputs: ClassVar[dict[type, str]] = {
        Start: "_on_start",
        TimerFired: "_on_timer",
        EndOfPass: "_on_end_of_pass",
        PeerUp: "_on_peer_up",
        PeerDown: "_on_peer_down",
        Congested: "_on_congested",
        Writable: "_on_writable",
    }
    from_below: ClassVar[dict[type, str]] = {
        StreamAdded: "_on_added",
        StreamDeleted: "_on_deleted",
        StreamsMoved: "_on_moved",
        PieceLoaded: "_on_piece_loaded",
        TakenBack: "_on_taken_back",
        Counted: "_on_counted",
        RoleChanged: "_on_role_changed",
        PublishersAre: "_on_publishers_are",
        Handed: "_on_handed",
    }

    def __init__(
        self,
        config: SprinklerConfig,
        service: Streams,
        disk: Disk,
        rng: Random,
        counters: Counter[str] | None = None,
    ) -> None:
        super().__init__(counters)
        self.config = config
        self.service = service
        self.disk = disk
        self.rng = rng
        self.streams: dict[LogId, Copy] = {}
        self.peers = {r: PeerRegion(r) for r in config.regions if r != config.region}  # by name
        self.region_of = {node: r for r in self.peers for node in config.regions[r]}
        self.epoch = 0  # of the chain's configuration
        self.members: tuple[Peer, ...] = ()  # of the chain, the head first
        self.is_head = self.is_tail = False
        # Other regions' streams for which this head has sent Adopt, so that it sends it only once.
        self.recorded: dict[LogId, bool] = {}
        self.advertised: dict[Peer, dict[LogId, int]] = {}  # server → the ends last sent to it
        self.partial: dict[Peer, list[Advertise]] = {}  # received parts of advertisements
        self.known: dict[Peer, Parts] = {}  # received parts of publishers' states
        self.served: dict[Peer, bool] = {}  # servers of other regions that the tail has served
        self.serving = Serving(service, PeerEvents, config.serves_per_step)
        # Serial numbers of the disks of other regions' servers, the newest disk last.
        self.counts: dict[Peer, list[Count]] = {}
        if counts := disk.state(COUNTS):
            self.counts = msgspec.msgpack.decode(counts, type=dict[str, list[Count]])
        self.counts_saved_ns, self.counts_changed = 0, False
        self.counted = Counted(b"", b"", 0, 0)  # the serial number of our own disk
        # Keys are (region, name): the region has a different stream of this name than this region.
        self.doubles: dict[tuple[str, str], bool] = {}
        # Protocols that other regions' servers listed in their last session.
        self.speaks: dict[Peer, tuple[str, ...]] = {}
        self.owners = owners_digest(config.owners)
        self.was_asking = True  # the result of `recovery.is_asking()` that was last acted on
        self.attends = False  # the service sends StreamsMoved to this layer
        self.older_own = 0  # how many streams this region owns that existed before this start
        self.forwarding = Forwarding(self)
        self.forks = Forks(self)
        self.recovery = Recovery(self, self.forks)

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        out = super().step(now_ns, inp)
        attends = bool(
            self.serving.followers or self.forks.searches or self._awaits_first_position()
        )
        if attends != self.attends:
            self.attends = attends
            out.append(PassDown(Attend("sprinkler", attends)))
        return out

    def _awaits_first_position(self) -> bool:
        """Whether this head must notice when the first position since the start is assigned, in a
        stream that existed before: from then on it no longer waits for other regions."""
        awaits = self.is_head and self.older_own > 0 and bool(self.peers)
        return awaits and not self.recovery.has_asked

    # ------------------------------------------------------------ used by Forwarding (its Regions)

    def owner_of(self, stream: LogId) -> str:
        copy = self.streams.get(stream)
        return copy.info.owner if copy is not None else ""

    def head_of(self, region: str) -> Peer:
        peer = self.peers.get(region)
        return peer.head if peer is not None and self.is_live(peer) else ""

    def region_of_server(self, peer: Peer) -> str:
        return self.region_of.get(peer, "")

    def moved(self, server: Peer, head: Peer) -> None:
        for region in self.peers.values():
            if region.head == server and head in self.config.regions[region.name]:
                region.head = head

    # ------------------------------------------------------------ used by the other parts (Regions)

    def send(self, peer: Peer, message: Message) -> None:
        self.out.append(Send(peer, message))

    def command(self, command: Any) -> None:
        self.out.append(PassDown(command))

    @property
    def head(self) -> Peer:
        return self.members[0] if self.members else ""

    def owns(self, copy: Copy) -> bool:
        return copy.info.owner == self.config.region

    def is_live(self, peer: PeerRegion) -> bool:
        return bool(peer.tail) and self.now_ns - peer.heard_ns <= self.config.dead_ns

    def compared(self, region: str) -> None:
        """Choose sources again after a region has answered a Compare."""
        peer = self.peers[region]
        self.forks.look()
        for stream_id in list(peer.ends):
            copy = self.streams.get(stream_id)
            if copy is not None and copy.source is None:
                self._consider(copy, peer)

    def limited(self, stream: LogId) -> None:
        """Tell the stream service how much of a stream may be shown, and whether positions may be
        assigned in it."""
        if copy := self.streams.get(stream):
            self.command(Limit(stream, self.forks.limit(stream)))
            self._review(copy)

    def _review(self, copy: Copy) -> None:
        """Suspend or resume the assignment of positions in a stream that this region owns."""
        if not self.is_head or not self.owns(copy):
            return
        suspended = self.recovery.must_wait(copy)
        if suspended != copy.suspended:
            copy.suspended = suspended
            stream = copy.stream_id
            self.command(Suspend(stream, "recovering") if suspended else Resume(stream))

    def _review_all(self) -> None:
        for copy in self.streams.values():
            self._review(copy)

    def _look_whether_asked(self) -> None:
        """Allow new positions once all regions were asked after the start. If a region becomes
        reachable before the first position is assigned, it is asked, too: positions wait again."""
        if self.is_head and self.was_asking != self.recovery.is_asking():
            self.was_asking = not self.was_asking
            self._review_all()

    def _note_first_position(self, copy: Copy) -> None:
        """Stop waiting for other regions when the first position since the start is assigned."""
        waited = self.is_head and self.owns(copy) and not copy.made_now
        if waited and not copy.suspended and copy.end > copy.begun:
            self.recovery.has_asked = True

    # ------------------------------------------------------------ time

    def _on_start(self, _inp: Start) -> None:
        self.recovery.started_ns = self.now_ns
        # At a random time of the period, so that replicas do not all work at the same time.
        after_ns = self.rng.randrange(1, self.config.advertise_ns + 1)
        self.out.append(SetTimer("advertise", self.now_ns + after_ns))

    def _on_timer(self, _inp: TimerFired) -> None:
        self.out.append(SetTimer("advertise", self.now_ns + self.config.advertise_ns))
        if self.is_tail:
            self._advertise_all()
        if self.is_head:
            self._look_after_sources()
        self._save_counts()
        if self.forks.hidden:
            self.forks.expire()
        self._look_whether_asked()

    def _on_end_of_pass(self, _inp: EndOfPass) -> None:
        self.serving.serve(self.out)

    # ------------------------------------------------------------ events of the service

    def _on_role_changed(self, event: RoleChanged) -> None:
        was_head, was_tail = self.is_head, self.is_tail
        self.epoch, self.members = event.epoch, event.members
        self.is_head, self.is_tail = event.head, event.tail
        self.recovery.role_changed(event)
        if was_head != self.is_head:
            self.forks.reset()
        if self.is_head and not was_head:
            self.recorded.clear()
            for copy in self.streams.values():
                copy.source = None  # a new head does not know the sources of the old one
                if not self.owns(copy):
                    # The old head may not have requested the publishers' state.
                    copy.unnamed = max(copy.unnamed, 1)
        if not self.is_head:
            for copy in self.streams.values():
                copy.source = copy.recovering_since_ns = None
        if was_tail and not self.is_tail:
            self._stop_serving_peers()
        elif self.is_tail:
            self.advertised.clear()  # so that everything is sent, with the new epoch
            self._advertise_all()
        if self.is_head:
            for copy in self.streams.values():
                self.recovery.look_for_loss(copy)
            self._look_after_sources()
            for copy in self.streams.values():
                copy.begun = copy.end
            self._review_all()

    def _on_counted(self, event: Counted) -> None:
        self.counted = event

    def _on_added(self, event: StreamAdded) -> None:
        info = event.info
        if info.delivery != NAME:
            return
        # The directory now accepts the stream that this one replaces, which it may have refused
        # before: let it be adopted again.
        self.recorded.pop(info.replaces, None)
        state = self.service.streams[info.stream_id]
        copy = Copy(info, state, event.made_epoch, event.made_now, begun=state.end)
        self.streams[info.stream_id] = copy
        self.older_own += self.owns(copy) and not copy.made_now
        self.recovery.look_for_loss(copy)
        self._review(copy)
        if self.forks.searches:
            self.forks.grew(info.stream_id)

    def _on_deleted(self, event: StreamDeleted) -> None:
        """Adopt other regions' streams that have the name of the deleted stream. Before, the name
        was in use here."""
        name = event.info.name
        for peer in self.peers.values():
            self.doubles.pop((peer.name, name), None)
            for info in peer.infos.values():
                if info.name == name and not self.service.is_listed(info.stream_id):
                    self.recorded.pop(info.stream_id, None)
            if self.is_head:
                self._record_streams(peer)

    def _on_moved(self, event: StreamsMoved) -> None:
        for stream in event.streams:
            copy = self.streams.get(stream)
            if copy is None:
                continue
            if not self.recovery.has_asked:
                self._note_first_position(copy)
            self.serving.moved(stream)
            if self.forks.searches:
                self.forks.grew(stream)
        if self.serving.news:
            self.serving.serve(self.out)

    def _on_piece_loaded(self, event: PieceLoaded) -> None:
        self.serving.loaded(event.stream, event.lo, self.out)

    def _on_taken_back(self, event: TakenBack) -> None:
        """Committed positions were given up: start again from the truncated log."""
        if event.log == DIRECTORY:
            for stream_id in self.streams:
                self.serving.remove_stream(stream_id)
            self.streams.clear()
            self.older_own = 0
            self.recorded.clear()
            self.advertised.clear()
        elif copy := self.streams.get(event.log):
            copy.source = None
            self.serving.remove_stream(event.log)
            self.forks.truncated(copy, event.end)
            if self.is_head and self.owns(copy):
                self.recovery.begin(copy, self.now_ns, outdated=True)

    def _on_handed(self, event: Handed) -> None:
        peer, message = event.peer, event.message
        match event.what:
            case "publish":
                self.forwarding.on_publish(peer, message)
            case "ack":
                self.forwarding.on_ack(peer, message)
            case "nack":
                self.forwarding.on_nack(peer, message)
            case "create":
                self._create(peer, message)
            case "opened":
                if self.forwarding.take_refusal(peer, message):
                    self.command(Settle(message.name, message.why))
                elif message.info is not None and message.info.delivery != NAME:
                    # The delivery of that stream works only within the owner's region.
                    self.command(Settle(message.name, "other-region"))

    # ------------------------------------------------------------ where a stream is created

    def _create(self, peer: Peer, message: Any) -> None:
        """Create the stream here, or forward the request to the region that owns the name."""
        name, here = message.name, self.config.region
        if why := self._refusal_to_create() or self._refusal_of_schema(message.spec.schema):
            self.command(Refuse(peer, message, why))
            return
        elsewhere = self._known_elsewhere(name)
        owner = elsewhere.owner if elsewhere else owner_of(self.config.owners, name, here)
        if owner != here:
            # A server of another region sends this only if it considers this region the owner.
            # Refuse, so that the request is not forwarded back and forth.
            if peer in self.region_of:
                self.command(Refuse(peer, message, "recovering"))
            elif why := self.forwarding.create(owner, message):
                self.command(Refuse(peer, message, why))
            else:  # each repeated request is forwarded: the owner's answer may have been lost
                self.command(Await(peer, message))
        elif self._is_coming(name):
            self.command(Await(peer, message))
        else:
            self.command(Create(peer, message))

    def _refusal_to_create(self) -> str:
        """Why no stream can be created now (as in `StreamOpened.why`); empty if it can."""
        # The disk may be an older copy of itself, but not at its first start.
        if self.counted.start > 1 and self.recovery.is_asking():
            return "recovering"
        if any(self.is_live(p) and p.owners != self.owners for p in self.peers.values()):
            self.counters["sprinkler.owners-differ"] += 1
            return "owners-differ"
        if any(PROTOCOL not in listed for listed in self.speaks.values()):
            return "no-delivery"
        return ""

    def _refusal_of_schema(self, schema: str) -> str:
        """Why no stream with this schema can be created now; empty if it can, or has none."""
        old = schema and any(TYPED_BODIES not in listed for listed in self.speaks.values())
        return "no-schemas" if old else ""

    def _known_elsewhere(self, name: str) -> StreamInfo | None:
        """Another region's stream of that name, if there is one. A second stream of the same name
        would never be exchanged between the regions."""
        for peer in self.peers.values():
            for info in peer.infos.values():
                foreign = info.name == name and info.owner != self.config.region
                if foreign and not self.service.is_deleted(info.stream_id):
                    return info
        return None

    def _is_coming(self, name: str) -> bool:
        """Whether a stream of that name is being adopted from another region. (This region created
        the stream and has lost it.)"""
        infos = (info for peer in self.peers.values() for info in peer.infos.values())
        coming = (i for i in infos if i.name == name and i.stream_id in self.recorded)
        return any(not self.service.is_listed(info.stream_id) for info in coming)

    # ------------------------------------------------------------ advertising (the tail)

    def _advertise_all(self) -> None:
        for region, nodes in self.config.regions.items():
            if region != self.config.region:
                for node in nodes:
                    self._advertise(node)

    def _advertise(self, node: Peer) -> None:
        """Send a server of another region the ends that have changed since the last advertisement
        to it; in a new session, all ends."""
        known = self.advertised.get(node)
        full = known is None
        if known is None:
            known = self.advertised[node] = {}
        ends: dict[LogId, int] = {}
        infos: list[StreamInfo] = []
        nbytes = 0
        for stream_id, stream in self.streams.items():
            if not self.service.may_read(node, stream_id):
                continue  # its region gets the stream when it has a version that reads schemas
            before = known.get(stream_id)
            if before is None:
                infos.append(stream.info)
                nbytes += spec_bytes(stream.info)
            if before != stream.committed:
                ends[stream_id] = known[stream_id] = stream.committed
            if len(ends) >= STREAMS_A_MESSAGE or nbytes > INFOS_BYTES_MAX:
                self._say(node, ends, infos, full, more=True)
                ends, infos, nbytes = {}, [], 0
        self.served[node] = True
        self._say(node, ends, infos, full)

    def _say(
        self,
        node: Peer,
        ends: dict[LogId, int],
        infos: list[StreamInfo],
        full: bool,
        more: bool = False,
    ) -> None:
        region, epoch, counted = self.config.region, self.epoch, self.counted
        message = Advertise(
            region, epoch, ends, tuple(infos), full, self.head, self.owners, more,
            counted.disk, counted.life, counted.start, counted.serial,
        )  # fmt: skip
        self._send(node, message)

    def _on_region_stale(self, peer: Peer, message: RegionStale) -> None:
        """R7: this replica is no longer the tail, because another region knows a later epoch of
        this region's chain."""
        if peer not in self.region_of:
            return  # accepted only from servers of other regions
        if message.region == self.config.region and message.epoch > self.epoch:
            self.counters["sprinkler.told-stale"] += 1
            self.is_tail = False
            self._stop_serving_peers()
            self.command(Overtaken(message.epoch))

    def _stop_serving_peers(self) -> None:
        """R7: close the sessions with other regions, so that they look for the new tail."""
        for peer in self.served:
            self.out.append(Close(peer))
        self.served.clear()
        self.advertised.clear()

    # ------------------------------------------------------------ pulling (the head)

    def _on_advertise(self, node: Peer, message: Advertise) -> None:
        peer = self.peers.get(message.region)
        if peer is None or node not in self.config.regions[message.region]:
            return  # accepted only from servers of that region
        parts = self.partial.setdefault(node, [])
        if message.more:  # an advertisement is applied only when all its parts are here
            if len(parts) <= PARTS_MAX:  # one part too many is kept: it shows the excess below
                parts.append(message)
            return
        del self.partial[node]
        if len(parts) > PARTS_MAX:
            self.counters["sprinkler.advertisement-too-long"] += 1
            return
        message = _whole(parts, message)
        self._count(node, message)
        if message.epoch < peer.epoch:
            self._send(node, RegionStale(peer.name, peer.epoch))
            return
        moved = message.epoch > peer.epoch or node != peer.tail  # the region has another tail
        peer.epoch, peer.tail, peer.heard_ns = message.epoch, node, self.now_ns
        peer.head, peer.owners, peer.life = message.head, message.owners, message.life
        peer.infos.update((info.stream_id, info) for info in message.infos)
        for info in message.infos:
            self._look_for_double(peer.name, info)
        if message.full:
            peer.ends = dict(message.ends)
        else:
            peer.ends.update(message.ends)
        if not self.is_head:
            return
        for stream_id, end in message.ends.items():
            self.forks.ends_at(peer, stream_id, end)
        if moved or message.full:
            self.forks.look()
        self._record_streams(peer)
        if moved:
            self._follow_moved_tail(peer)
        # The literal rule (sources.py) depends on time, so it is applied to all streams.
        everything = message.full or self.config.switching == "literal"
        changed = self.streams if everything else message.ends
        for stream_id in list(changed):
            if stream := self.streams.get(stream_id):
                self._consider(stream, peer)
        for stream in self.streams.values():
            if stream.source and stream.source.region == peer.name:
                stream.source.advertised_ns = self.now_ns
        self._look_whether_asked()

    def _look_for_double(self, region: str, info: StreamInfo) -> None:
        """Note if another region has a different stream of the same name. Neither of the two is
        exchanged."""
        named = self.service.named(info.name)
        if named is None or self.service.is_listed(info.stream_id):
            self.doubles.pop((region, info.name), None)
        elif info.replaces != named.stream_id and named.replaces != info.stream_id:
            self.counters["sprinkler.doubles"] += 1
            self.doubles[region, info.name] = True

    def _count(self, node: Peer, message: Advertise) -> None:
        """Keep the serial number of the node's disk. If it is lower than a number that was received
        before, send RegionBehind: the disk is an older copy of itself."""
        if not message.life:
            return
        known = self.counts.setdefault(node, [])
        count = next((count for count in known if count.disk == message.disk), None)
        # In another life, the disk must have begun with a higher number than we had received.
        if count is not None and count.life != message.life and message.start <= count.serial:
            self.counters["sprinkler.region-behind"] += 1
            self._send(node, RegionBehind(message.disk, count.serial))
            return
        if count is None:
            known.append(count := Count(message.disk))
            del known[:-DISKS_MAX]
        if (count.life, count.serial) != (message.life, message.serial):
            count.life, count.serial = message.life, max(count.serial, message.serial)
            self.counts_changed = True

    def _save_counts(self) -> None:
        if self.counts_changed and self.now_ns - self.counts_saved_ns >= COUNTS_NS:
            self.counts_changed, self.counts_saved_ns = False, self.now_ns
            data = msgspec.msgpack.encode(self.counts)
            self.out.append(SaveState(COUNTS, data, (COUNTS,)))

    def _on_region_behind(self, node: Peer, message: RegionBehind) -> None:
        if node in self.region_of:
            self.command(RolledBack(message.disk, message.serial))

    def _on_compare(self, node: Peer, message: Compare) -> None:
        if node in self.region_of:
            self.forks.on_compare(node, message)

    def _on_compared(self, node: Peer, message: Compared) -> None:
        self.forks.on_compared(node, message)
        self._look_whether_asked()

    def _on_doubt(self, node: Peer, message: Doubt) -> None:
        if node in self.region_of and self.is_head:
            for stream_id in message.streams:
                self.forks.doubt(stream_id)

    def _on_hide(self, peer: Peer, message: Hide) -> None:
        self.forks.on_hide(peer, message)

    def _record_streams(self, peer: PeerRegion) -> None:
        """Adopt streams that another region has and our directory lacks: add them to it. Each is
        adopted only once while this replica is the head."""
        for stream_id, info in peer.infos.items():
            if not self.service.is_listed(stream_id) and stream_id not in self.recorded:
                self.recorded[stream_id] = True
                self.command(Adopt(info))

    def _follow_moved_tail(self, peer: PeerRegion) -> None:
        """R7: subscribe again to all streams whose source region has a new epoch or a new tail."""
        for stream in self.streams.values():
            if stream.source and stream.source.region == peer.name:
                if self.forks.may_pull(stream, peer):
                    self._subscribe(stream, peer)
                else:
                    stream.source = None  # after the comparison, `compared` chooses a source

    def _consider(self, stream: Copy, peer: PeerRegion) -> None:
        """Decide whether to pull the stream from `peer`, after an advertisement."""
        end = peer.ends.get(stream.stream_id, 1)
        if self.owns(stream) and not self.recovery.may_pull_own(stream, end):
            return
        if not self.forks.may_pull(stream, peer):
            return
        source = stream.source
        if self.config.switching == "literal":
            if leads_literally(source, end, self.now_ns, self.config):
                if source is None or source.region != peer.name:
                    self._switch(stream, peer)
                assert stream.source is not None
                stream.source.end, stream.source.advertised_ns = end, self.now_ns
            return
        if source is None:
            if end > stream.whole:
                self._subscribe(stream, peer)
        elif source.region == peer.name:
            source.end = max(source.end, end)
        elif leads_enough(stream, peer.name, end, self.now_ns, self.config):
            self._switch(stream, peer)

    def _switch(self, stream: Copy, peer: PeerRegion) -> None:
        """Pull the stream from `peer` instead of its current source."""
        if stream.source is not None:
            self.counters["sprinkler.switched"] += 1
            self._send(stream.source.node, RegionUnsubscribe(stream.stream_id))
        self._subscribe(stream, peer)

    def _subscribe(self, stream: Copy, peer: PeerRegion) -> None:
        """Begin to pull the stream from `peer`, from the first missing position on."""
        if not peer.tail:
            return
        end = peer.ends.get(stream.stream_id, 1)
        stream.source = Source(peer.name, peer.tail, end, self.now_ns, self.now_ns, self.now_ns)
        stream.leads.clear()
        stream.newest_ns = self._newest_ns(stream)
        message = RegionSubscribe(
            self.config.region, self.epoch, stream.stream_id, stream.whole, self.forks.last(stream)
        )
        self._send(peer.tail, message)

    def _newest_ns(self, stream: Copy) -> int:
        """The time of the last event before the first missing position; 0 if that event is not on
        disk yet."""
        # `time_ns` of the last batch would be wrong: after a slice of a compacted batch it may be
        # that of a later event.
        return self.forks.time_of(stream.stream_id, stream.whole - 1)

    def _look_after_sources(self) -> None:
        """Give up failed sources, choose new ones, and end recoveries. Called once per period."""
        self.forks.look()
        for peer in self.peers.values():
            self._record_streams(peer)
        for stream in self.streams.values():
            measure_rate(stream, self.config.advertise_ns)
            self.recovery.check(stream)
            if 0 < stream.unnamed <= stream.end or stream.recovering_since_ns is not None:
                self._ask_publishers(stream)
            if self.config.switching == "literal":
                continue
            if stream.source and self._is_given_up(stream):
                self.counters["sprinkler.source-given-up"] += 1
                self._send(stream.source.node, RegionUnsubscribe(stream.stream_id))
                stream.source = None
            if stream.source is None:
                self._choose(stream)
            else:
                self._leave_for_leader(stream)
        self.recovery.check_all()

    def _leave_for_leader(self, stream: Copy) -> None:
        """Switch to a region that has been ahead of the source for `dead_ns`. Called once per
        period, because an idle stream is not advertised again."""
        assert stream.source is not None
        for peer in self.peers.values():
            if peer.name == stream.source.region or not self.is_live(peer):
                continue
            end = peer.ends.get(stream.stream_id, 1)
            if has_led(stream, peer.name, end, self.now_ns, self.config):
                if self.forks.may_pull(stream, peer):
                    self._switch(stream, peer)
                    return

    def _is_given_up(self, stream: Copy) -> bool:
        return is_given_up(stream, self.now_ns, self.config)

    def _choose(self, stream: Copy) -> None:
        """Choose the region that is furthest ahead as the source; among equals, the owner."""
        best: PeerRegion | None = None
        for peer in self.peers.values():
            if not self.is_live(peer):
                continue
            end = peer.ends.get(stream.stream_id, 1)
            if end <= stream.whole or not self.forks.may_pull(stream, peer):
                continue
            if best and end < best.ends[stream.stream_id]:
                continue
            if best and end == best.ends[stream.stream_id] and peer.name != stream.info.owner:
                continue
            best = peer
        if best is not None:
            self._consider(stream, best)

    def _on_peer_events(self, node: Peer, message: PeerEvents) -> None:
        if node not in self.region_of:
            return  # accepted only from servers of other regions
        stream = self.streams.get(message.stream)
        source = stream.source if stream else None
        if stream is None or not self.is_head or (source is None and self.owns(stream)):
            self._send(node, RegionUnsubscribe(message.stream))
            return
        if not message.batches:
            return
        if not self._fits(stream, message.batches):
            self.counters["sprinkler.gap"] += 1
            if (
                source
                and source.node == node
                and source.subscribed_ns <= self.now_ns - (self.config.advertise_ns)
            ):  # at most once per period, because messages that are on their way do not fit either
                self._subscribe(stream, self.peers[source.region])
            return
        if source and source.node == node:
            source.progress_ns = self.now_ns
            if self.config.switching != "literal":  # the literal rule uses advertisements only
                source.end = max(source.end, message.end)
        if message.batches[-1].hi > stream.whole:
            if message.batches[-1].hi > stream.end:
                stream.newest_ns = max(b.time_ns for b in message.batches)
            for batch in message.batches:
                # Compacted batches lack some of their events, or have events of several publishers.
                if batch.rows != batch.count or (batch.kind == DATA and not batch.pub_no):
                    stream.unnamed = batch.hi
            self.command(AppendAt(message.stream, message.batches))

    def _ask_publishers(self, stream: Copy) -> None:
        """Request the publishers' state from the regions whose copies contain all compacted batches
        that were pulled; only from the owner, if it is one of these regions."""
        if self.now_ns - stream.asked_ns < self.config.dead_ns:
            return
        stream.asked_ns = self.now_ns
        stream_id, since_ns = stream.stream_id, stream.recovering_since_ns
        holders = [p for p in self.peers.values() if p.tail and stream_id in p.ends]
        able = [p for p in holders if p.ends[stream_id] >= stream.unnamed]  # they can know enough
        if able and since_ns is not None:
            able = holders  # a recovering owner must know how far each region has appended
        elif owner := [p for p in able if p.name == stream.info.owner]:
            able = owner
        for peer in able:
            self._send(peer.tail, PublishersWanted(stream_id, stream.end))
        if not holders and since_ns is not None and self.recovery.all_heard_since(since_ns):
            # No region has the stream. Publishers created up to now are treated as expired.
            stream.unnamed = 0
            self.command(TakePublishers(stream_id, 1, b"", self.wall_ns))

    def _on_publishers_wanted(self, node: Peer, message: PublishersWanted) -> None:
        """Answer with the publishers' state, or forward the request to the head, which has it.

        If our state is not complete, only the owner of the stream gets an answer.
        """
        is_ours = node in self.config.regions[self.config.region]
        asker = message.asker if is_ours else node
        stream = self.streams.get(message.stream)
        if stream is None or asker not in self.region_of:
            return  # accepted only from servers of other regions
        if self.is_head:
            if stream.unnamed and self.region_of.get(asker) != stream.info.owner:
                return
            self.command(AskPublishers(message.stream, message.end, asker))
        elif not message.asker and self.head:
            self._send(self.head, PublishersWanted(message.stream, message.end, asker))

    def _on_publishers_are(self, event: PublishersAre) -> None:
        copy = self.streams[event.log]
        complete, appended, region = copy.unnamed == 0, copy.end, self.config.region
        for at, part in parts_of(event.data):
            answer = PublishersKnown(
                event.log, event.end, part, complete, region, appended, at, len(event.data)
            )
            self._send(event.token, answer)

    def _on_publishers_known(self, node: Peer, message: PublishersKnown) -> None:
        """Take over another region's publishers' state, if it is complete, or if no region has a
        complete one."""
        stream = self.streams.get(message.stream)
        if self.region_of.get(node) != message.region:
            return  # accepted only from servers of that region
        parts = self.known.setdefault(node, Parts())
        data = parts.take(message.at, message.data, message.total or len(message.data))
        if data is None or stream is None or not self.is_head:
            return
        stream.confirmed[message.region] = message.appended
        # The state must cover all events whose publishers are unknown, and no events that are not
        # here yet.
        if not 0 < stream.unnamed <= message.end <= stream.end:
            return
        horizon_ns = 0
        if message.complete:
            stream.unsure.pop(message.region, None)
        else:
            stream.unsure[message.region] = None
            if not self.recovery.is_nobody_sure(stream):
                return  # another region may know all publishers
            # Treat unknown publishers as expired, so that no batch is accepted twice.
            horizon_ns = self.wall_ns
        stream.unnamed = 0
        all_expire = horizon_ns > 0 and stream.outdated
        command = TakePublishers(message.stream, message.end, data, horizon_ns, all_expire)
        self.command(command)

    def _fits(self, stream: Copy, batches: tuple[Batch, ...]) -> bool:
        """Whether batches continue our copy of the stream.

        R9: void positions are sent explicitly, so a gap means damage: the positions are requested
        again and never treated as void. R10: a batch must not be older than the events before it,
        because retention can index only events whose times do not decrease.
        """
        if any(b.stream_id != stream.stream_id for b in batches):
            return False
        # The times of batches that begin below our end are not checked, because `newest_ns` may be
        # the time of an event in them.
        fresh = [b.time_ns for b in batches if b.rows and b.lo >= stream.end]
        times = [stream.newest_ns, *fresh]
        return batches[0].lo <= stream.end and times == sorted(times)

    # ------------------------------------------------------------ serving other regions

    def _on_region_subscribe(self, peer: Peer, message: RegionSubscribe) -> None:
        region = self.peers.get(message.region)
        if region is None or self.region_of.get(peer) != message.region:
            return  # accepted only from servers of that region
        if message.epoch < region.epoch:
            self._send(peer, RegionStale(region.name, region.epoch))
            return
        if not self.is_tail:
            return  # the peer will learn of the new tail from its advertisement
        if self.forks.contradicts(message.stream, message.last):
            self.counters["sprinkler.contradicted"] += 1
            self._send(peer, Doubt((message.stream,)))
            return
        serving = self.serving
        if message.start < 1 or not serving.has_room(message.stream, peer, FOLLOWERS_MAX):
            self.counters["sprinkler.subscription-refused"] += 1
            return
        if not self.service.may_read(peer, message.stream):
            self.counters["sprinkler.region-too-old"] += 1
            return
        serving.follow(message.stream, peer, message.start, self.out)

    def _on_region_unsubscribe(self, peer: Peer, message: RegionUnsubscribe) -> None:
        self.serving.remove(message.stream, peer)

    # ------------------------------------------------------------ sessions

    def _on_peer_up(self, inp: PeerUp) -> None:
        self.serving.congested.pop(inp.peer, None)
        if inp.peer in self.region_of:
            if inp.speaks:
                self.speaks[inp.peer] = inp.speaks
            else:  # the server sent no list
                self.speaks.pop(inp.peer, None)
        if self.is_tail and inp.peer in self.region_of:
            self.advertised.pop(inp.peer, None)
            self._advertise(inp.peer)

    def _on_peer_down(self, inp: PeerDown) -> None:
        peer = inp.peer
        self.forwarding.peer_down(peer)
        self.advertised.pop(peer, None)
        self.partial.pop(peer, None)
        self.known.pop(peer, None)
        self.served.pop(peer, None)
        self.serving.remove_peer(peer)
        for region in self.peers.values():
            if region.tail == peer:
                region.tail = ""
        for copy in self.streams.values():
            if copy.source and copy.source.node == peer:
                self._source_down(copy)

    def _source_down(self, stream: Copy) -> None:
        """Choose another source. The literal rule keeps the source until another region leads."""
        if self.config.switching == "literal":
            return
        stream.source = None
        if self.is_head:
            self._choose(stream)

    def _on_congested(self, inp: Congested) -> None:
        self.serving.congested[inp.peer] = None

    def _on_writable(self, inp: Writable) -> None:
        self.serving.writable(inp.peer, self.out)
