"""A region's proxy on one replica: the upper layer over `chain`.

The head takes publishes and pulls other regions' streams; the tail advertises and serves peers;
every replica serves clients what is committed. Roles change only by what the chain says.

G1 only what was published is delivered, or voids of what was collected.
G3 a publisher's order is the order of positions. G4 each event, or a void and its collector.
G5 nothing collects what comes later. G6 live and void partition what is held.
G7 the newest event is never void. G8 at most one source a stream, none for one's own.
G9 connected regions converge, also when publishing has stopped.
"""

from typing import ClassVar

from surecast.columns import retention
from surecast.columns.batch import COLLECT, COLLECTED, CONFIG, DATA, EXPIRED, Batch
from surecast.columns.retention import (
    BeforeTime,
    Collect,
    KeepAll,
    KeepFor,
    RetentionIndex,
    TagIs,
)
from surecast.core.disk import read_through
from surecast.core.replicated import (
    AppendAt,
    Appended,
    AppendOwn,
    Committed,
    CompactLog,
    Counted,
    Mended,
    PublishersAre,
    Recovered,
    Refused,
    Rewritten,
    RoleChanged,
    StoreFull,
    Submit,
    Submitted,
    Truncated,
)
from surecast.core.types import (
    SECOND,
    AtEndOfPass,
    Congested,
    EndOfPass,
    LogId,
    PassDown,
    Peer,
    PeerDown,
    PeerUp,
    SetTimer,
    Start,
    TimerFired,
    Writable,
)
from surecast.errors import PeerError, StorageError, UsageError
from surecast.protocols.sprinkler.cursors import CURSORS
from surecast.protocols.sprinkler.directory import DIRECTORY, Directory, info_batch
from surecast.protocols.sprinkler.exchange import Exchange
from surecast.protocols.sprinkler.hub import TIMERS
from surecast.protocols.sprinkler.messages import (
    Advance,
    Advertise,
    Attach,
    Compare,
    Compared,
    CreateStream,
    Doubt,
    Drain,
    ForceNewStream,
    Hide,
    Introduce,
    Locate,
    MeshLeave,
    MeshRequest,
    MeshView,
    PeerEvents,
    PubAck,
    Publish,
    PublishersKnown,
    PublishersWanted,
    PubNack,
    RegionBehind,
    RegionStale,
    StreamInfo,
    StreamOpened,
    Subscribe,
    Unsubscribe,
    UnwatchStreams,
    WatchStreams,
)
from surecast.protocols.sprinkler.names import is_name, owner_of
from surecast.protocols.sprinkler.pieces import Pieces
from surecast.protocols.sprinkler.streams import Stream

__all__ = ["Proxy"]


ASK_AT_MOST = 10  # times `ask_ns` that a region which answers is waited for: it has many streams
FULL_NS = 10 * SECOND  # a disk counts as full for so long after it said so


def _mismatch(info: StreamInfo, wanted: retention.Policy | None) -> str:
    return "" if wanted is None or wanted == info.retention else "config-mismatch"


class Proxy(Exchange):
    """Knows streams, regions and clients; leaves positions, disks and copies to the chain."""

    uses = ("replicated",)
    handlers: ClassVar[dict[type, str]] = {
        Advertise: "_on_advertise",
        Subscribe: "_on_subscribe",
        Unsubscribe: "_on_unsubscribe",
        PeerEvents: "_on_peer_events",
        PublishersWanted: "_on_publishers_wanted",
        PublishersKnown: "_on_publishers_known",
        RegionBehind: "_on_region_behind",
        Compare: "_on_compare",
        Compared: "_on_compared",
        Doubt: "_on_doubt",
        Hide: "_on_hide",
        RegionStale: "_on_region_stale",
        CreateStream: "_on_create_stream",
        StreamOpened: "_on_stream_opened",
        Publish: "_on_publish",
        PubAck: "_on_pub_ack",
        PubNack: "_on_pub_nack",
        Introduce: "_on_introduce",
        WatchStreams: "_on_watch_streams",
        UnwatchStreams: "_on_unwatch_streams",
        Locate: "_on_locate",
        Attach: "_on_attach",
        Advance: "_on_advance",
        MeshView: "_on_mesh_view",
        MeshRequest: "_on_mesh_request",
        MeshLeave: "_on_mesh_leave",
    }
    inputs: ClassVar[dict[type, str]] = {
        Start: "_on_start",
        TimerFired: "_on_timer",
        EndOfPass: "_on_end_of_pass",
        PeerUp: "_on_peer_up",
        PeerDown: "_on_peer_down",
        Congested: "_on_congested",
        Writable: "_on_writable",
        Drain: "_on_drain",
        ForceNewStream: "_on_force_new_stream",
    }
    from_below: ClassVar[dict[type, str]] = {
        Appended: "_on_appended",
        Committed: "_on_committed",
        Truncated: "_on_truncated",
        Rewritten: "_on_rewritten",
        Counted: "_on_counted",
        Mended: "_on_mended",
        StoreFull: "_on_store_full",
        RoleChanged: "_on_role_changed",
        PublishersAre: "_on_publishers_are",
        Submitted: "_on_submitted",
        Refused: "_on_refused",
    }

    # ------------------------------------------------------------ time

    def _on_start(self, _inp: Start) -> None:
        config = self.config
        self.started_ns = self.now_ns
        for key, period_ns in (
            ("advertise", config.advertise_ns),
            ("compact", config.compact_ns),
            ("expire", config.expire_ns),
        ):
            # Spread over the period, so that replicas do not all work at once.
            self.out.append(SetTimer(key, self.now_ns + self.rng.randrange(1, period_ns + 1)))

    def _on_end_of_pass(self, inp: EndOfPass) -> None:
        if inp.key == "serve":
            self._serve_now()
        else:
            for stream in self.streams.values():
                if stream.committed < self.visible_end(stream):
                    self._advance(stream)

    def _on_timer(self, inp: TimerFired) -> None:
        config = self.config
        if inp.key == "advertise":
            self.out.append(SetTimer("advertise", self.now_ns + config.advertise_ns))
            for stream in self.streams.values():
                self.feed(stream)
                stream.recent = stream.committed
            if self.is_tail:
                self._advertise_all()
            if self.is_head:
                self._look_after_sources()
            self._save_counts()
            if self.forks.hidden:
                self.forks.expire()
        elif inp.key == "compact":
            self.out.append(SetTimer("compact", self.now_ns + config.compact_ns))
            for stream in (*self.streams.values(), self.cursors.log):
                stream.pieces.tidy = True
                self._maybe_compact(stream)
        elif inp.key == "expire":
            self.out.append(SetTimer("expire", self.now_ns + config.expire_ns))
            if self.is_head:
                for stream in self.streams.values():
                    self._expire(stream)
        elif inp.key in TIMERS:
            self.hub.on_timer(inp.key)

    # ------------------------------------------------------------ what the chain says

    def _on_role_changed(self, event: RoleChanged) -> None:
        was_head, was_tail = self.is_head, self.is_tail
        self.epoch, self.members = event.epoch, event.members
        self.is_head, self.is_tail = event.head, event.tail
        self.lost_epoch, self.distrusted = event.lost_epoch, event.distrusted
        if event.clean:
            self.unclean_since_ns = None
        elif self.unclean_since_ns is None:
            self.unclean_since_ns = self.now_ns
        if was_head != self.is_head:
            self.forks.reset()
        if self.is_head and self.is_tail and len(self.config.regions[self.config.region]) == 1:
            self._fill_own_logs()
        if self.is_head and not was_head:
            self.recorded.clear()
            for stream in self.streams.values():
                stream.source = None  # a new head knows only its own log
                if not self._owns(stream):
                    stream.unnamed = max(stream.unnamed, 1)  # the old one may not have asked
        if not self.is_head:
            for stream in self.streams.values():
                stream.source = stream.recovering_since_ns = None
            for name in self.asked:
                self._answer_creators(name, None, "not-head")
            self.asked.clear()
        if was_tail and not self.is_tail:
            self._stop_serving_peers()
        elif self.is_tail:
            self.advertised.clear()  # the epoch is news to everybody
            self._advertise_all()
        if self.is_head:
            for stream in self.streams.values():
                self._recover_if_lost(stream)
            self._look_after_sources()
        if was_head != self.is_head:
            self.cursors.role_changed()

    def _on_appended(self, event: Appended) -> None:
        self.ends[event.log] = event.end
        if stream := self.streams.get(event.log):
            stream.end = event.end
        if self.forks.searches:
            self.forks.grew(event.log)

    def _on_truncated(self, event: Truncated) -> None:
        if event.log in self.hole_at and event.end <= self.hole_at[event.log]:
            del self.hole_at[event.log]
            if stream := self.streams.get(event.log):
                stream.hole = 0
        self._on_appended(Appended(event.log, event.end))
        if self.committed.get(event.log, 1) <= event.end:
            return
        # The whole past was given up (the chain was founded anew): begin again.
        self.committed[event.log] = event.end
        if event.log == DIRECTORY:
            self.directory_committed = event.end
            self.directory = Directory()
            self.streams.clear()
            self.unserved.clear()
            self.recorded.clear()
            self.advertised.clear()
            self.subscriptions = sum(len(table) for table in self.early.values())
        elif event.log == CURSORS:
            self.cursors.reset()
        elif stream := self.streams.get(event.log):
            stream.hole = self.hole_at.get(event.log, 0)
            stream.index = RetentionIndex(stream.info.retention)
            stream.pieces = self._pieces()
            stream.committed = stream.recent = event.end
            stream.source = None
            self.subscriptions -= len(stream.subscribers)
            stream.subscribers.clear()
            self.forks.truncated(stream, event.end)
            if self.is_head and self._owns(stream):
                self._begin_recovery(stream, self.now_ns, outdated=True)

    def _on_counted(self, event: Counted) -> None:
        self.counted = event

    def _on_mended(self, event: Mended) -> None:
        self._look_for_holes(event.log)
        self._on_committed(Committed(event.log, self.committed.get(event.log, 1)))

    def _look_for_holes(self, log: LogId) -> None:
        holes = self.disk.holes(log)
        if holes:
            self.hole_at[log] = holes[0][0]
        else:
            self.hole_at.pop(log, None)
        if stream := self.streams.get(log):
            stream.hole = self.hole_at.get(log, 0)

    def _fill_own_logs(self) -> None:
        """No other node has what the region's own logs have lost. Streams that are missing in the
        directory come back from other regions; cursors begin anew."""
        for log in (DIRECTORY, CURSORS):
            for lo, hi in self.disk.holes(log):
                self.counters["sprinkler.entries-lost"] += hi - lo
                self.entries_lost.append((log, lo, hi))
                void = Batch.void(log, lo, hi, COLLECTED)
                self.out.append(PassDown(AppendAt(log, (void,))))

    def _on_committed(self, event: Committed) -> None:
        self.committed[event.log] = event.end
        end = min(event.end, self.hole_at.get(event.log, event.end))
        if event.log == DIRECTORY:
            self._read_directory(end)
        elif event.log == CURSORS:
            self.cursors.committed(end)
        elif stream := self.streams.get(event.log):
            self._advance(stream)
        if self.forks.searches:
            self.forks.grew(event.log)

    def visible_end(self, stream: Stream) -> int:
        """R5: readers and retention see what is committed, and nothing else; nor what lies beyond
        a position that cannot be read, or that another region has another event at."""
        end = self.committed.get(stream.stream_id, 1)
        if stream.hole:
            end = min(end, stream.hole)
        if self.forks.is_limiting and (limit := self.forks.limit(stream.stream_id)) is not None:
            end = min(end, limit)
        return end

    def limited(self, stream_id: LogId) -> None:
        if stream := self.streams.get(stream_id):
            self._advance(stream)

    def record(self, info: StreamInfo) -> None:
        self._record(info, self.epoch)

    def _advance(self, stream: Stream) -> None:
        """More of the stream is committed, or retention has seen more of what was."""
        config, shown = self.config, stream.committed
        end = self.visible_end(stream)
        if not stream.quarantined:
            stream.committed = end
            if end - stream.index.end >= config.feed_rows:
                self.feed(stream, config.feed_bytes)
            if end - stream.index.end >= config.feed_rows:
                # A long log, at the start: readers wait for retention, others do not wait for us.
                # (Not for what they were shown before: large events can outrun the budget.)
                stream.committed = max(stream.index.end, shown)
                self.out.append(AtEndOfPass("feed"))
        if stream.subscribers:
            self._serve_soon(stream)
        self.hub.advanced(stream.stream_id, stream.committed)

    def feed(self, stream: Stream, budget_bytes: int = 1 << 62) -> None:
        """Bring retention up to what is committed: before anything depends on what is void."""
        if stream.quarantined or stream.index.end >= stream.committed:
            return
        try:
            stream.feed(self.disk, self.config.serve_bytes_max, budget_bytes)
        except (PeerError, ValueError) as problem:
            self._quarantine(stream, str(problem), stream.index.end)
        except StorageError as problem:
            self._damaged(stream, problem, stream.index.end)

    def _damaged(self, stream: Stream, problem: StorageError, end: int) -> None:
        """Our disk is at fault: if others have the stream whole, we are better out of their way."""
        if len(self.members) > 1:
            raise problem
        self._quarantine(stream, str(problem), end)

    def _quarantine(self, stream: Stream, why: str, end: int) -> None:
        """One stream cannot be read from `end` on; the others, and this server, go on. An alarm."""
        self.counters["sprinkler.quarantined"] += 1
        stream.quarantined = why
        stream.committed = end

    def _pieces(self) -> Pieces:
        return Pieces(self.config.piece_rows_max, self.config.piece_bytes_max)

    # ------------------------------------------------------------ the directory

    def _read_directory(self, end: int) -> None:
        start, self.directory_committed = self.directory_committed, max(end, 1)
        for batch in read_through(self.disk, DIRECTORY, start, end, self.config.serve_bytes_max):
            for info in self.directory.apply(batch):
                self._open(info)

    def _open(self, info: StreamInfo) -> None:
        stream = Stream(info, RetentionIndex(info.retention), self._pieces())
        self.streams[info.stream_id] = stream
        stream.end = self.ends.get(info.stream_id, 1)
        stream.hole = self.hole_at.get(info.stream_id, 0)
        stream.subscribers = self.early.pop(info.stream_id, {})
        self._recover_if_lost(stream)
        self._answer_creators(info.name, info, "")
        self.asked.pop(info.name, None)
        self._advance(stream)
        self.desk.opened(info)

    def _on_create_stream(self, peer: Peer, message: CreateStream) -> None:
        name, wanted = message.name, message.retention
        if not self.is_head:
            self._send(peer, StreamOpened(name, None, "not-head", self.head))
        elif info := self.directory.by_name.get(name):
            self._send(peer, StreamOpened(name, info, _mismatch(info, wanted)))
        elif self._is_unclean() or (self.counted.start > 1 and self.is_asking()):
            # (A disk that has just been put in has forgotten nothing.)
            self._send(peer, StreamOpened(name, None, "recovering"))
        elif why := self._refusal_of_name(name):
            self._send(peer, StreamOpened(name, None, why))
        else:
            self._create(peer, message)

    def _refusal_of_name(self, name: str) -> str:
        if not is_name(name):
            return "bad-name"
        coming = 0 if name in self.asked else len(self.asked)
        if len(self.streams) + coming >= self.config.streams_max:
            return "too-many-streams"
        if any(self.is_live(p) and p.owners != self.owners for p in self.peers.values()):
            self.counters["sprinkler.owners-differ"] += 1
            return "owners-differ"
        return ""

    def _create(self, peer: Peer, message: CreateStream) -> None:
        """Make the stream, or have its owner make it; whoever waits is told when it is here."""
        name = message.name
        elsewhere = self._known_elsewhere(name)
        here = self.config.region
        owner = elsewhere.owner if elsewhere else owner_of(self.config.owners, name, here)
        if owner != here:
            if why := self.forwarding.create(owner, message):
                self._send(peer, StreamOpened(name, None, why))
            else:  # asked each time: the owner's answer may have been lost
                self.asked.setdefault(name, {})[peer] = message.retention
            return
        first = name not in self.asked and not self._is_coming(name)
        self.asked.setdefault(name, {})[peer] = message.retention
        if first:
            policy = KeepAll() if message.retention is None else message.retention
            self._record(self._new_info(name, policy, b""), self.epoch)

    def _on_stream_opened(self, peer: Peer, message: StreamOpened) -> None:
        """The owner's answer. The stream itself comes with its advertisements."""
        if self.is_head and self.forwarding.on_opened(peer, message):
            self._answer_creators(message.name, None, message.why)
            self.asked.pop(message.name, None)

    def _known_elsewhere(self, name: str) -> StreamInfo | None:
        """Another region has a stream of that name; ours would never be exchanged."""
        infos = (info for peer in self.peers.values() for info in peer.infos.values())
        return next((i for i in infos if i.name == name and i.owner != self.config.region), None)

    def _is_coming(self, name: str) -> bool:
        """We had made it, and forgotten it: another region's word for it is being recorded."""
        infos = (info for peer in self.peers.values() for info in peer.infos.values())
        return any(i.name == name and i.stream_id in self.recorded for i in infos)

    def _new_info(self, name: str, policy: retention.Policy, replaces: bytes) -> StreamInfo:
        return StreamInfo(self.rng.randbytes(16), name, self.config.region, policy, replaces)

    def _record(self, info: StreamInfo, made_epoch: int = 0) -> None:
        if made_epoch:
            self.made_here[info.stream_id] = True
        entry = info_batch(info, self.config.chain, made_epoch)
        self.out.append(PassDown(AppendOwn(DIRECTORY, entry)))

    def _answer_creators(self, name: str, info: StreamInfo | None, why: str) -> None:
        for peer, policy in self.asked.get(name, {}).items():
            answer = why if info is None else _mismatch(info, policy)
            self._send(peer, StreamOpened(name, info, answer, self.head))

    def _on_drain(self, _inp: Drain) -> None:
        self.draining = True

    def _on_force_new_stream(self, inp: ForceNewStream) -> None:
        info = self.directory.by_name.get(inp.name)
        if self.is_head and info is not None and info.owner == self.config.region:
            self._record(self._new_info(info.name, info.retention, info.stream_id), self.epoch)

    # ------------------------------------------------------------ publishing

    def _on_pub_ack(self, peer: Peer, message: PubAck) -> None:
        self.forwarding.on_ack(peer, message)

    def _on_pub_nack(self, peer: Peer, message: PubNack) -> None:
        self.forwarding.on_nack(peer, message)

    def _on_publish(self, peer: Peer, message: Publish) -> None:
        batch, stream = message.batch, self.streams.get(message.stream)
        if stream is not None and not self._owns(stream):
            self.forwarding.publish(peer, stream.info.owner, message)
            return
        why = self._refusal(message)
        if why:
            head = self.head if why == "not-head" else ""
            nack = PubNack(message.stream, batch.publisher, batch.pub_no, why, 0, head)
            self._send(peer, nack)
            return
        token = (peer, message.stream, batch.publisher, batch.pub_no)
        bad = self._refusal_of_event(self.streams[message.stream], batch)
        self.out.append(PassDown(Submit(message.stream, batch, token, bad)))

    def _refusal(self, message: Publish) -> str:
        """Why we cannot take publishes of this stream now, or ever."""
        if not self.is_head:
            return "not-head"
        if self.draining:
            return "busy"
        stream = self.streams.get(message.stream)
        if stream is None:
            return "recovering" if self._is_unclean() else "unknown-stream"
        if stream.quarantined:
            return "quarantined"
        if self._is_behind(stream) or self._must_wait(stream):
            return "recovering"
        if message.batch.kind == DATA:
            return ""
        self.feed(stream)  # a rule is judged by all that came before it
        return "busy" if stream.index.end < self.visible_end(stream) else ""

    def _refusal_of_event(self, stream: Stream, batch: Batch) -> str:
        if batch.stream_id != stream.stream_id:
            return "bad-event"  # readers would take it for another stream's
        if batch.kind == DATA:
            # Its rows' places and times are ours to give.
            fine = batch.rows == batch.count > 0 and batch.pub_no > 0 and not batch.explicit
            return "" if fine and batch.lo == 0 else "bad-event"
        return self._refusal_of_rule(stream, batch)

    def _refusal_of_rule(self, stream: Stream, batch: Batch) -> str:
        """R10: a rule that could undo another's collection is refused, not hoped to be harmless."""
        if batch.kind not in (COLLECT, CONFIG) or batch.count != 1 or batch.pub_no <= 0:
            return "bad-event"
        row = batch.to_rows()[0]
        try:
            retention.check_event(batch, stream.index.policy)
            if batch.kind == COLLECT:
                tagged = isinstance(retention.decode_collect(row.value).predicate, TagIs)
                if tagged and stream.reconfigured:
                    return "bad-event"  # an earlier policy's collectors may carry tags
        except (PeerError, UsageError):
            return "bad-event"
        return "" if row.key is None and row.tag is None else "bad-event"

    def _on_submitted(self, event: Submitted) -> None:
        peer, stream, publisher, pub_no = event.token
        if not self.unserved and not self.unsaid:
            self.out.append(AtEndOfPass("serve"))
        self.unsaid.setdefault((peer, stream, publisher), []).append((pub_no, event.seq))

    def _on_refused(self, event: Refused) -> None:
        peer, stream, publisher, pub_no = event.token
        head = self.head if event.why == "not-head" else ""
        self._send(peer, PubNack(stream, publisher, pub_no, event.why, event.expected, head))

    # ------------------------------------------------------------ an owner behind its peers (R8)

    def _recover_from(self, stream: Stream, end: int) -> bool:
        """May we pull our own stream? Only when a peer proves that we have lost part of it."""
        if end > stream.end and stream.recovering_since_ns is None:
            self.counters["sprinkler.owner-behind"] += 1
            self._begin_recovery(stream, self.now_ns, outdated=True)
        return stream.recovering_since_ns is not None

    def _recover_if_lost(self, stream: Stream) -> None:
        """Our chain lost its disks: what it owned before has to be fetched from its peers."""
        made_since = self.directory.made.get(stream.stream_id, 0) >= max(self.lost_epoch, 1)
        if self.unclean_since_ns is not None and self._owns(stream) and not made_since:
            self._begin_recovery(stream, self.unclean_since_ns, outdated=True)
        elif stream.hole and self.is_head and self._owns(stream) and not self._is_behind(stream):
            self._begin_recovery(stream, self.now_ns, outdated=False)

    def _begin_recovery(self, stream: Stream, since_ns: int, outdated: bool) -> None:
        stream.recovering_since_ns, stream.outdated = since_ns, outdated
        stream.confirmed.clear()
        stream.unsure.clear()
        stream.unnamed = max(stream.unnamed, 1)  # the publishers' state is part of what was lost

    def _must_wait(self, stream: Stream) -> bool:
        """Whether the stream may have another history elsewhere, or part of it cannot be read."""
        if stream.hole or stream.stream_id in self.forks.searches:
            return True
        return stream.stream_id not in self.made_here and self.is_asking()

    def is_asking(self) -> bool:
        """Just started: the other regions may know that our disk is an older copy of itself."""
        if self.has_asked:
            return False
        self.has_asked = not self.is_anybody_silent()
        return not self.has_asked

    def is_anybody_silent(self) -> bool:
        """Whether a region is still to be heard from, or compared with."""
        waited_ns = self.now_ns - self.started_ns
        if self.config.start == "trust" or waited_ns >= ASK_AT_MOST * self.config.ask_ns:
            return False
        silent = waited_ns < self.config.ask_ns  # wait for them, too
        return any(
            not (peer.heard_ns >= 0 and self.forks.has_met(peer))
            for peer in self.peers.values()
            if silent or self.is_live(peer)
        )

    def _is_unclean(self) -> bool:
        return self.unclean_since_ns is not None

    def _is_behind(self, stream: Stream) -> bool:
        return stream.recovering_since_ns is not None

    def _needs_operator(self) -> bool:
        """Part of the history is missing, and there is no other region that could have it."""
        return self.distrusted and not self.peers and self.config.start == "ask"

    def _check_recovered(self, stream: Stream) -> None:
        """Resume above the maximum, once every peer has been heard and retries can be told."""
        since_ns = stream.recovering_since_ns
        if since_ns is None or not self._all_heard_since(since_ns) or stream.unnamed:
            return
        if stream.hole or not all(self.forks.has_met(p) for p in self.peers.values()):
            return
        if self._needs_operator():
            return
        holders = [p for p in self.peers.values() if stream.stream_id in p.ends]
        # Not only what they have committed: what a peer has appended it will commit some day.
        if all(
            p.ends[stream.stream_id] <= stream.end
            and stream.confirmed.get(p.name, stream.end + 1) <= stream.end
            for p in holders
        ):
            stream.recovering_since_ns = stream.source = None

    def _check_all_recovered(self) -> None:
        """A chain that lost its disk is whole again when every peer's word has been followed."""
        if self.unclean_since_ns is None or not self._all_heard_since(self.unclean_since_ns):
            return
        if self._needs_operator():
            return
        taken = self.directory.by_name
        missing = any(
            stream_id not in self.streams
            and not (stream_id in peer.infos and peer.infos[stream_id].name in taken)
            for peer in self.peers.values()
            for stream_id in peer.ends
        )
        if not missing and not any(self._is_behind(stream) for stream in self.streams.values()):
            self.out.append(PassDown(Recovered()))

    # ------------------------------------------------------------ retention

    def _expire(self, stream: Stream) -> None:
        """R10: keep_for is a collect event of the owner's head; no replica uses its own clock."""
        self.feed(stream)
        policy = stream.index.policy
        if not isinstance(policy, KeepFor) or not self._owns(stream):
            return
        if self._is_behind(stream) or stream.quarantined or stream.committed < stream.expiring:
            return
        if self._must_wait(stream):
            return
        cutoff_ns = self.wall_ns - policy.ns
        if self._holds_older(stream, cutoff_ns):
            rule = retention.encode_collect(Collect(BeforeTime(cutoff_ns), EXPIRED))
            batch = Batch.of(stream.stream_id, [rule], kind=COLLECT)
            stream.expiring = stream.end + 1  # at least
            self.out.append(PassDown(AppendOwn(stream.stream_id, batch)))

    def _holds_older(self, stream: Stream, cutoff_ns: int) -> bool:
        """Is a live event older than that? (Rules do not count: expiring them would never end.)"""
        for lo, hi in stream.index.live(1, stream.index.end):
            for batch in read_through(self.disk, stream.stream_id, lo, hi, 1):
                if int(batch.times()[0]) >= cutoff_ns:
                    return False
                if batch.kind == DATA:
                    return True
        return False

    def _maybe_compact(self, stream: Stream) -> None:
        """Rewrite a part of the log when enough of what it still holds has become void."""
        self.feed(stream)
        if stream.quarantined:
            return
        collected, expired = stream.index.voids[COLLECTED], stream.index.voids[EXPIRED]
        # On a full disk anything that is void is worth it.
        share = 0.0 if self.now_ns < self.full_until_ns else self.config.compact_share
        if worth := stream.pieces.begin([collected, expired], share):
            lo, hi = worth
            first, second = collected.clip(lo, hi), expired.clip(lo, hi)
            stream.rewriting_rows = hi - lo - first.total() - second.total()
            command = CompactLog(
                stream.stream_id, lo, hi, first.to_bytes(), second.to_bytes(),
                self.config.coalesce_rows_max,
            )  # fmt: skip
            self.out.append(PassDown(command))

    def _on_store_full(self, _event: StoreFull) -> None:
        first = self.now_ns >= self.full_until_ns
        self.full_until_ns = self.now_ns + FULL_NS
        if first:
            for stream in (*self.streams.values(), self.cursors.log):
                stream.pieces.looked = -1

    def _on_rewritten(self, event: Rewritten) -> None:
        stream = self.cursors.log if event.log == CURSORS else self.streams.get(event.log)
        if stream is None or stream.pieces.under_way != (event.lo, event.hi):
            return  # that past was given up
        if event.done:
            self.counters["sprinkler.rewritten"] += 1
            stream.pieces.done(event.lo, event.hi, stream.rewriting_rows)
            self._maybe_compact(stream)  # while there is something worth it
        else:
            stream.pieces.failed()
