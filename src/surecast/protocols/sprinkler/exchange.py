"""What regions tell each other: the tail advertises and serves, the head pulls.

G8 at most one source a stream, and none for one's own unless part of it was lost.
G9 connected regions converge, also when publishing has stopped.
"""

from collections import Counter
from random import Random

import msgspec

from surecast.columns.batch import DATA, Batch
from surecast.columns.retention import Policy
from surecast.core.machine import HandlerMachine
from surecast.core.parts import Parts, parts_of
from surecast.core.replicated import (
    AppendAt,
    AskPublishers,
    Counted,
    Overtaken,
    PublishersAre,
    RolledBack,
    TakePublishers,
)
from surecast.core.types import (
    SECOND,
    AtEndOfPass,
    Close,
    Congested,
    Disk,
    LogId,
    Message,
    PassDown,
    Peer,
    PeerDown,
    PeerUp,
    SaveState,
    Send,
    Writable,
)
from surecast.errors import StorageError
from surecast.protocols.sprinkler.config import ProxyConfig
from surecast.protocols.sprinkler.cursors import Cursors
from surecast.protocols.sprinkler.desk import Desk
from surecast.protocols.sprinkler.directory import Directory
from surecast.protocols.sprinkler.forks import Forks
from surecast.protocols.sprinkler.forwarding import Forwarding
from surecast.protocols.sprinkler.hub import Hub
from surecast.protocols.sprinkler.messages import (
    Advance,
    Advertise,
    Attach,
    Compare,
    Compared,
    Doubt,
    Hide,
    Introduce,
    Locate,
    MeshLeave,
    MeshRequest,
    MeshView,
    PeerEvents,
    PubAck,
    PublishersKnown,
    PublishersWanted,
    RegionBehind,
    RegionStale,
    StreamInfo,
    Subscribe,
    Unsubscribe,
    UnwatchStreams,
    WatchStreams,
)
from surecast.protocols.sprinkler.names import owner_of, owners_digest
from surecast.protocols.sprinkler.sources import (
    PeerRegion,
    has_led,
    is_given_up,
    leads_enough,
    leads_literally,
    measure_rate,
)
from surecast.protocols.sprinkler.streams import Source, Stream

__all__ = ["Exchange"]


STREAMS_A_MESSAGE = 1000  # in one advertisement
PARTS_MAX = 100  # of one advertisement
COUNTS = "regions"  # the state in which counts of other regions' disks are kept
DISKS_MAX = 8  # remembered of a server, which has had them one after the other
COUNTS_NS = 1 * SECOND  # how often they are written


class Count(msgspec.Struct, array_like=True):
    """What a disk of another region was heard to have counted up to, in which life of it."""

    disk: bytes
    life: bytes = b""
    serial: int = 0


def _whole(parts: list[Advertise], last: Advertise) -> Advertise:
    """An advertisement that came in parts."""
    ends: dict[LogId, int] = {}
    infos: list[StreamInfo] = []
    for part in (*parts, last):
        ends |= part.ends
        infos += part.infos
    return msgspec.structs.replace(last, ends=ends, infos=tuple(infos)) if parts else last


class Exchange(HandlerMachine):
    """The half of a proxy that faces other regions and readers; `Proxy` adds the streams' life."""

    def __init__(
        self, config: ProxyConfig, disk: Disk, rng: Random, counters: Counter[str] | None = None
    ) -> None:
        super().__init__(counters)
        self.config = config
        self.disk = disk
        self.rng = rng
        self.directory = Directory()
        self.directory_committed = 1
        self.streams: dict[LogId, Stream] = {}
        self.ends: dict[LogId, int] = {}  # as the chain reports them, known stream or not
        self.committed: dict[LogId, int] = {}
        self.peers = {r: PeerRegion(r) for r in config.regions if r != config.region}
        self.epoch = 0
        self.members: tuple[Peer, ...] = ()
        self.is_head = self.is_tail = False
        self.draining = False  # about to stop: no more publishes
        self.unclean_since_ns: int | None = None
        self.full_until_ns = -1 << 62  # the disk has said that it is full
        self.lost_epoch, self.distrusted = 0, False
        self.recorded: dict[LogId, bool] = {}  # other regions' streams put into the directory
        # Stream being created → who waits, and for what.
        self.asked: dict[str, dict[Peer, Policy | None]] = {}
        self.advertised: dict[Peer, dict[LogId, int]] = {}  # per session: what it was told
        self.congested: dict[Peer, bool] = {}
        self.early: dict[LogId, dict[Peer, int]] = {}  # subscriptions to streams not known yet
        self.subscriptions = 0
        self.partial: dict[Peer, list[Advertise]] = {}  # advertisements that come in parts
        self.known: dict[Peer, Parts] = {}  # ... and publishers' states
        self.serving: dict[Peer, bool] = {}  # peers' heads that we serve as the tail
        self.unserved: dict[LogId, Stream] = {}  # streams with something new for their subscribers
        # Acknowledgements to be sent: (client, stream, publisher) → (pub_no, seq) each.
        self.unsaid: dict[tuple[Peer, LogId, bytes], list[tuple[int, int]]] = {}
        # What the disks of other regions' servers have counted up to, the newest disk last.
        self.counts: dict[Peer, list[Count]] = {}
        if counts := disk.state(COUNTS):
            self.counts = msgspec.msgpack.decode(counts, type=dict[str, list[Count]])
        self.counts_saved_ns, self.counts_changed = 0, False
        self.counted = Counted(b"", b"", 0, 0)  # our own
        self.hole_at = {log: holes[0][0] for log in disk.logs() if (holes := disk.holes(log))}
        self.entries_lost: list[tuple[LogId, int, int]] = []  # of the region's own logs
        self.started_ns, self.has_asked = 0, False
        # Streams of which another region has a namesake with another identity: (region, name).
        self.doubles: dict[tuple[str, str], bool] = {}
        self.made_here: dict[LogId, bool] = {}  # streams created by this head, in this life
        self.owners = owners_digest(config.owners)
        self.hub = Hub(self)
        self.desk = Desk(self)
        self.cursors = Cursors(self)
        self.forwarding = Forwarding(self)
        self.forks = Forks(self)

    def send(self, peer: Peer, message: Message) -> None:
        """For the parts of this machine."""
        self.out.append(Send(peer, message))

    @property
    def head(self) -> Peer:
        return self.members[0] if self.members else ""

    def _owns(self, stream: Stream) -> bool:
        return stream.info.owner == self.config.region

    # ------------------------------------------------------------ advertising (the tail)

    def _advertise_all(self) -> None:
        for region, nodes in self.config.regions.items():
            if region != self.config.region:
                for node in nodes:
                    self._advertise(node)

    def _advertise(self, node: Peer) -> None:
        known = self.advertised.get(node)
        full = known is None
        if known is None:
            known = self.advertised[node] = {}
        ends: dict[LogId, int] = {}
        infos: list[StreamInfo] = []
        for stream_id, stream in self.streams.items():
            before = known.get(stream_id)
            if before is None:
                infos.append(stream.info)
            if before != stream.committed:
                ends[stream_id] = known[stream_id] = stream.committed
            if len(ends) >= STREAMS_A_MESSAGE:
                self._say(node, ends, infos, full, more=True)
                ends, infos = {}, []
        self.serving[node] = True
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
        """Another region knows a later epoch of our region: we are not the tail any more (R7)."""
        if peer not in self.forwarding.region_of:
            return  # only servers of other regions may say so
        if message.region == self.config.region and message.epoch > self.epoch:
            self.counters["sprinkler.told-stale"] += 1
            self.is_tail = False
            self._stop_serving_peers()
            self.out.append(PassDown(Overtaken(message.epoch)))

    def _stop_serving_peers(self) -> None:
        """R7: a tail that hands over closes its channels, so that peers look for the new one."""
        for peer in self.serving:
            self.out.append(Close(peer))
        self.serving.clear()
        self.advertised.clear()

    # ------------------------------------------------------------ pulling (the head)

    def _on_advertise(self, node: Peer, message: Advertise) -> None:
        peer = self.peers.get(message.region)
        if peer is None or node not in self.config.regions[message.region]:
            return  # only a region's own servers speak for it
        if message.more:  # what it says counts as a whole: half of the streams are not all of them
            self.partial.setdefault(node, []).append(message)
            if len(self.partial[node]) > PARTS_MAX:
                del self.partial[node]
            return
        message = _whole(self.partial.pop(node, []), message)
        self._count(node, message)
        if message.epoch < peer.epoch:
            self._send(node, RegionStale(peer.name, peer.epoch))
            return
        moved = message.epoch > peer.epoch or node != peer.tail
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
        everything = message.full or self.config.switching == "literal"  # whose C / T shrinks
        changed = self.streams if everything else message.ends
        for stream_id in list(changed):
            if stream := self.streams.get(stream_id):
                self._consider(stream, peer)
        for stream in self.streams.values():
            if stream.source and stream.source.region == peer.name:
                stream.source.advertised_ns = self.now_ns

    def _look_for_double(self, region: str, info: StreamInfo) -> None:
        """Note whether another region has another stream of that name: neither will come here."""
        named = self.directory.by_name.get(info.name)
        if named is None or named.stream_id == info.stream_id:
            self.doubles.pop((region, info.name), None)
        elif info.replaces != named.stream_id and named.replaces != info.stream_id:
            self.counters["sprinkler.doubles"] += 1
            self.doubles[region, info.name] = True

    def _count(self, node: Peer, message: Advertise) -> None:
        """Keep what the node's disk counts; tell it if that is an older copy of itself."""
        if not message.life:
            return
        known = self.counts.setdefault(node, [])
        count = next((one for one in known if one.disk == message.disk), None)
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
        if node in self.forwarding.region_of:
            self.out.append(PassDown(RolledBack(message.disk, message.serial)))

    def _on_compare(self, node: Peer, message: Compare) -> None:
        if node in self.forwarding.region_of:
            self.forks.on_compare(node, message)

    def _on_compared(self, node: Peer, message: Compared) -> None:
        self.forks.on_compared(node, message)

    def _on_doubt(self, node: Peer, message: Doubt) -> None:
        if node in self.forwarding.region_of and self.is_head:
            for stream_id in message.streams:
                self.forks.doubt(stream_id)

    def _on_hide(self, peer: Peer, message: Hide) -> None:
        self.forks.on_hide(peer, message)

    def compared(self, region: str) -> None:
        """For `forks`: a region has answered; it may be pulled from now."""
        peer = self.peers[region]
        self.forks.look()
        for stream_id in list(peer.ends):
            stream = self.streams.get(stream_id)
            if stream is not None and stream.source is None:
                self._consider(stream, peer)

    def _record_streams(self, peer: PeerRegion) -> None:
        """Streams that other regions have and our directory lacks (once per headship)."""
        for stream_id, info in peer.infos.items():
            if stream_id not in self.directory.by_id and stream_id not in self.recorded:
                self.recorded[stream_id] = True
                self._record(info)

    def _follow_moved_tail(self, peer: PeerRegion) -> None:
        """R7: the source has a new epoch or a new tail; what it owed us must be asked for again."""
        for stream in self.streams.values():
            if stream.source and stream.source.region == peer.name:
                if self.forks.may_pull(stream, peer):
                    self._subscribe(stream, peer)
                else:
                    stream.source = None  # `compared` goes on

    def _consider(self, stream: Stream, peer: PeerRegion) -> None:
        """`peer` has advertised: should the stream come from there?"""
        end = peer.ends.get(stream.stream_id, 1)
        if self._owns(stream) and not self._recover_from(stream, end):
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

    def _switch(self, stream: Stream, peer: PeerRegion) -> None:
        if stream.source is not None:
            self.counters["sprinkler.switched"] += 1
            self._send(stream.source.node, Unsubscribe(stream.stream_id))
        self._subscribe(stream, peer)

    def _subscribe(self, stream: Stream, peer: PeerRegion) -> None:
        if not peer.tail:
            return
        end = peer.ends.get(stream.stream_id, 1)
        stream.source = Source(peer.name, peer.tail, end, self.now_ns, self.now_ns, self.now_ns)
        stream.leads.clear()
        stream.newest_ns = self._newest_ns(stream)
        message = Subscribe(
            self.config.region, self.epoch, stream.stream_id, stream.whole, self.forks.last(stream)
        )
        self._send(peer.tail, message)

    def _newest_ns(self, stream: Stream) -> int:
        """The time of the last event before what is pulled; 0 if it is not on disk yet."""
        # (Not of the last batch: of one that was compacted and cut, the time is that of the rest.)
        return self.forks.time_of(stream.stream_id, stream.whole - 1)

    def _look_after_sources(self) -> None:
        """Once a period: give up dead sources, choose new ones, finish recoveries."""
        self.forks.look()
        for peer in self.peers.values():
            self._record_streams(peer)
        for stream in self.streams.values():
            measure_rate(stream, self.config.advertise_ns)
            self._check_recovered(stream)
            if 0 < stream.unnamed <= stream.end or stream.recovering_since_ns is not None:
                self._ask_publishers(stream)
            if self.config.switching == "literal":
                continue
            if stream.source and self._is_given_up(stream):
                self.counters["sprinkler.source-given-up"] += 1
                self._send(stream.source.node, Unsubscribe(stream.stream_id))
                stream.source = None
            if stream.source is None:
                self._choose(stream)
            else:
                self._leave_for_leader(stream)
        self._check_all_recovered()

    def _leave_for_leader(self, stream: Stream) -> None:
        """Move to a region that has been ahead of the source for long, though silent since."""
        assert stream.source is not None
        for peer in self.peers.values():
            if peer.name == stream.source.region or not self.is_live(peer):
                continue
            end = peer.ends.get(stream.stream_id, 1)
            if has_led(stream, peer.name, end, self.now_ns, self.config):
                if self.forks.may_pull(stream, peer):
                    self._switch(stream, peer)
                    return

    def is_live(self, peer: PeerRegion) -> bool:
        return bool(peer.tail) and self.now_ns - peer.heard_ns <= self.config.dead_ns

    def _is_given_up(self, stream: Stream) -> bool:
        return is_given_up(stream, self.now_ns, self.config)

    def _choose(self, stream: Stream) -> None:
        """The region that is furthest ahead, the owner among equals."""
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
        if node not in self.forwarding.region_of:
            return  # only servers of other regions send events
        stream = self.streams.get(message.stream)
        source = stream.source if stream else None
        if stream is None or not self.is_head or (source is None and self._owns(stream)):
            self._send(node, Unsubscribe(message.stream))
            return
        if not message.batches:
            return
        if not self._fits(stream, message.batches):
            self.counters["sprinkler.gap"] += 1
            if (
                source
                and source.node == node
                and source.subscribed_ns <= self.now_ns - (self.config.advertise_ns)
            ):  # once a period: what is under way will not fit either
                self._subscribe(stream, self.peers[source.region])
            return
        if source and source.node == node:
            source.progress_ns = self.now_ns
            if self.config.switching != "literal":  # which goes by advertisements alone
                source.end = max(source.end, message.end)
        if message.batches[-1].hi > stream.whole:
            if message.batches[-1].hi > stream.end:
                stream.newest_ns = max(b.time_ns for b in message.batches)
            for batch in message.batches:
                if batch.rows != batch.count or (batch.kind == DATA and not batch.pub_no):
                    stream.unnamed = batch.hi
            self.out.append(PassDown(AppendAt(message.stream, message.batches)))

    def _ask_publishers(self, stream: Stream) -> None:
        """The region that is furthest, if its copy reaches beyond the compacted part, can tell."""
        if self.now_ns - stream.asked_ns < self.config.dead_ns:
            return
        stream.asked_ns = self.now_ns
        stream_id, since_ns = stream.stream_id, stream.recovering_since_ns
        able = [p for p in self.peers.values() if p.tail and stream_id in p.ends]
        best = max(able, key=lambda p: p.ends[stream_id], default=None)
        if best and best.ends[stream_id] >= stream.unnamed:
            # An owner that recovers must know of each peer how far it has appended.
            for peer in [best] if since_ns is None else able:
                self._send(peer.tail, PublishersWanted(stream_id, stream.end))
        elif not able and since_ns is not None and self._all_heard_since(since_ns):
            stream.unnamed = 0  # nobody has the stream: whoever published before has expired
            self.out.append(PassDown(TakePublishers(stream_id, 1, b"", self.wall_ns)))

    def _all_heard_since(self, since_ns: int) -> bool:
        return all(peer.heard_ns > since_ns for peer in self.peers.values())

    def _on_publishers_wanted(self, node: Peer, message: PublishersWanted) -> None:
        """Only the head knows whether its region's knowledge is complete.

        If it is not, only an owner that recovers has a use for the answer.
        """
        asker = message.asker or node
        stream = self.streams.get(message.stream)
        if stream is None:
            return
        if self.is_head:
            if stream.unnamed and self.forwarding.region_of.get(asker) != stream.info.owner:
                return
            self.out.append(PassDown(AskPublishers(message.stream, message.end, asker)))
        elif not message.asker and self.head:
            self._send(self.head, PublishersWanted(message.stream, message.end, asker))

    def _on_publishers_are(self, event: PublishersAre) -> None:
        complete = self.streams[event.log].unnamed == 0
        appended, region = self.streams[event.log].end, self.config.region
        for at, part in parts_of(event.data):
            answer = PublishersKnown(
                event.log, event.end, part, complete, region, appended, at, len(event.data)
            )
            self._send(event.token, answer)

    def _on_publishers_known(self, node: Peer, message: PublishersKnown) -> None:
        stream = self.streams.get(message.stream)
        if self.forwarding.region_of.get(node) != message.region:
            return  # only a region's own servers speak for it
        parts = self.known.setdefault(node, Parts())
        data = parts.take(message.at, message.data, message.total or len(message.data))
        if data is None or stream is None or not self.is_head:
            return
        stream.confirmed[message.region] = message.appended
        if not 0 < stream.unnamed <= message.end <= stream.end:
            return
        horizon_ns = 0
        if message.complete:
            stream.unsure.pop(message.region, None)
        else:
            stream.unsure[message.region] = None
            if not self._is_nobody_sure(stream):
                return  # another region may know
            horizon_ns = self.wall_ns  # told that it expired, no publisher is taken twice
        stream.unnamed = 0
        all_expire = horizon_ns > 0 and stream.outdated
        command = TakePublishers(message.stream, message.end, data, horizon_ns, all_expire)
        self.out.append(PassDown(command))

    def _is_nobody_sure(self, stream: Stream) -> bool:
        """Whether we recover our own stream, and no other region knows all of its publishers."""
        since_ns = stream.recovering_since_ns
        holders = [p.name for p in self.peers.values() if stream.stream_id in p.ends]
        return (
            since_ns is not None
            and self._all_heard_since(since_ns)
            and all(name in stream.unsure for name in holders)
        )

    def _fits(self, stream: Stream, batches: tuple[Batch, ...]) -> bool:
        """R9: voids are explicit, so a gap is damage; it is fetched again, never taken for void.

        Nor is a batch taken that is older than what it follows (R10): no replica could index it.
        """
        if any(b.stream_id != stream.stream_id for b in batches):
            return False
        # (Of a batch that begins below our end, the last row may be one that we have.)
        fresh = [b.time_ns for b in batches if b.rows and b.lo >= stream.end]
        times = [stream.newest_ns, *fresh]
        return batches[0].lo <= stream.end and times == sorted(times)

    # ------------------------------------------------------------ serving (any replica)

    def _on_subscribe(self, peer: Peer, message: Subscribe) -> None:
        region = self.peers.get(message.region)
        if region is not None:
            if message.epoch < region.epoch:
                self._send(peer, RegionStale(region.name, region.epoch))
                return
            if not self.is_tail:
                return  # its source has moved; our successor advertises to it
            if self.forks.contradicts(message.stream, message.last):
                self.counters["sprinkler.contradicted"] += 1
                self._send(peer, Doubt((message.stream,)))
                return
        if self.subscriptions >= self.config.subscriptions_max or message.start < 1:
            self.counters["sprinkler.subscription-refused"] += 1
            return
        stream = self.streams.get(message.stream)
        table = stream.subscribers if stream else self.early.setdefault(message.stream, {})
        self.subscriptions += peer not in table
        table[peer] = message.start
        if stream:
            self._serve_one(stream, peer, idle_answer=True)

    def _on_unsubscribe(self, peer: Peer, message: Unsubscribe) -> None:
        stream = self.streams.get(message.stream)
        table = stream.subscribers if stream else self.early.get(message.stream, {})
        self.subscriptions -= table.pop(peer, None) is not None
        if stream is None and not table:
            self.early.pop(message.stream, None)

    def _serve_soon(self, stream: Stream) -> None:
        """With all else that happens now: several commits make one message."""
        if not self.unserved and not self.unsaid:
            self.out.append(AtEndOfPass("serve"))
        self.unserved[stream.stream_id] = stream

    def _serve_now(self) -> None:
        acks, self.unsaid = self.unsaid, {}
        for (peer, stream_id, publisher), pairs in acks.items():
            (pub_no, seq), *more = pairs
            self._send(peer, PubAck(stream_id, publisher, pub_no, seq, tuple(more)))
        streams, self.unserved = self.unserved, {}
        for stream in streams.values():
            self._serve(stream)

    def _serve(self, stream: Stream) -> None:
        said: dict[int, PeerEvents] = {}
        for peer in stream.subscribers:
            self._serve_one(stream, peer, said)

    def readable(self, stream: Stream, at: int, end: int = 0) -> list[Batch]:
        """The next piece from `at` on (up to `end`), as a reader should see it.

        Nothing, if retention must see it first and finds that it cannot be indexed.
        """
        if at < stream.recent:
            self.feed(stream)
        try:
            return stream.serve(
                self.disk,
                at,
                min(end or stream.committed, stream.committed),
                self.config.serve_bytes_max,
                self.config.coalesce_rows_max,
            )
        except StorageError as problem:
            self._damaged(stream, problem, at)
            return []

    def _serve_one(
        self,
        stream: Stream,
        peer: Peer,
        said: dict[int, PeerEvents] | None = None,
        idle_answer: bool = False,
    ) -> None:
        """`said`: what others were sent from a position on; a driver encodes it once."""
        config, at = self.config, stream.subscribers[peer]
        budget = config.serves_per_step
        said = {} if said is None else said
        readable = True
        while at < stream.committed and peer not in self.congested and budget:
            budget -= 1
            message = said.get(at)
            if message is None:
                batches = tuple(self.readable(stream, at))
                if not batches:
                    readable = False  # it could not be indexed, and is shown only up to there
                    break
                message = said[at] = PeerEvents(stream.stream_id, batches, stream.committed)
            at = message.batches[-1].hi
            idle_answer = False
            self._send(peer, message)
        stream.subscribers[peer] = at
        if idle_answer:
            self._send(peer, PeerEvents(stream.stream_id, (), stream.committed))
        elif readable and at < stream.committed and peer not in self.congested:
            self._serve_soon(stream)

    def _on_mesh_request(self, peer: Peer, message: MeshRequest) -> None:
        self.hub.on_request(peer, message)

    def _on_mesh_view(self, peer: Peer, message: MeshView) -> None:
        self.hub.on_view(peer, message)

    def _on_mesh_leave(self, peer: Peer, message: MeshLeave) -> None:
        self.hub.on_leave(peer, message.stream)

    # ------------------------------------------------------------ what clients ask

    def _on_introduce(self, peer: Peer, _message: Introduce) -> None:
        self.desk.introduce(peer)

    def _on_watch_streams(self, peer: Peer, message: WatchStreams) -> None:
        self.desk.on_watch(peer, message)

    def _on_unwatch_streams(self, peer: Peer, message: UnwatchStreams) -> None:
        self.desk.on_unwatch(peer, message.token)

    def _on_locate(self, peer: Peer, message: Locate) -> None:
        self.desk.on_locate(peer, message)

    def _on_attach(self, peer: Peer, message: Attach) -> None:
        self.cursors.on_attach(peer, message)

    def _on_advance(self, peer: Peer, message: Advance) -> None:
        self.cursors.on_advance(peer, message)

    # ------------------------------------------------------------ sessions

    def _on_peer_up(self, inp: PeerUp) -> None:
        self.congested.pop(inp.peer, None)
        self.hub.peer_up(inp.peer)
        if self.is_tail and any(
            inp.peer in nodes
            for region, nodes in self.config.regions.items()
            if region != self.config.region
        ):
            self.advertised.pop(inp.peer, None)
            self._advertise(inp.peer)

    def _on_peer_down(self, inp: PeerDown) -> None:
        peer = inp.peer
        self.congested.pop(peer, None)
        self.hub.peer_down(peer)
        self.desk.peer_down(peer)
        self.cursors.peer_down(peer)
        self.forwarding.peer_down(peer)
        self.advertised.pop(peer, None)
        self.partial.pop(peer, None)
        self.known.pop(peer, None)
        self.serving.pop(peer, None)
        for name in [name for name, creators in self.asked.items() if peer in creators]:
            del self.asked[name][peer]
            if not self.asked[name] and self._is_elsewhere(name):
                del self.asked[name]
        for region in self.peers.values():
            if region.tail == peer:
                region.tail = ""
        for stream in self.streams.values():
            self.subscriptions -= stream.subscribers.pop(peer, None) is not None
            if stream.source and stream.source.node == peer:
                self._lost_source(stream)
        for stream_id in list(self.early):
            self.subscriptions -= self.early[stream_id].pop(peer, None) is not None
            if not self.early[stream_id]:
                del self.early[stream_id]

    def _is_elsewhere(self, name: str) -> bool:
        """Whether another region was asked for the stream: ours, once begun, will be made."""
        here = self.config.region
        return owner_of(self.config.owners, name, here) != here

    def _lost_source(self, stream: Stream) -> None:
        if self.config.switching == "literal":
            return
        stream.source = None
        if self.is_head:
            self._choose(stream)

    def _on_congested(self, inp: Congested) -> None:
        self.congested[inp.peer] = True

    def _on_writable(self, inp: Writable) -> None:
        self.congested.pop(inp.peer, None)
        for stream in self.streams.values():
            if inp.peer in stream.subscribers:
                self._serve_one(stream, inp.peer)

    # ------------------------------------------------------------ done by Proxy

    def _record(self, info: StreamInfo, made_epoch: int = 0) -> None:
        raise NotImplementedError

    def record(self, info: StreamInfo) -> None:
        raise NotImplementedError

    def limited(self, stream_id: LogId) -> None:
        raise NotImplementedError

    def feed(self, stream: Stream) -> None:
        raise NotImplementedError

    def visible_end(self, stream: Stream) -> int:
        raise NotImplementedError

    def _damaged(self, stream: Stream, problem: StorageError, end: int) -> None:
        raise NotImplementedError

    def _recover_from(self, stream: Stream, end: int) -> bool:
        raise NotImplementedError

    def _check_recovered(self, stream: Stream) -> None:
        raise NotImplementedError

    def _check_all_recovered(self) -> None:
        raise NotImplementedError
