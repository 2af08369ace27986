"""Mutants: a replica's layers and clients, each with one binding rule removed.

A test of rule Rn runs the same scenario twice, with the unchanged machines and with the mutant
defined here, and requires that only the second run breaks a guarantee. A mutant derives from the
class of the layer that has the rule (`stacks.replica_layers`), or from a client's machine. If the
rule is in a part of `RegionSync` (forks, forwarding, recovery), the mutant replaces that part.
"""

from dataclasses import replace
from typing import Any, ClassVar

import msgspec

from surecast.columns.batch import COLLECTED, Batch
from surecast.columns.intervals import IntervalSet
from surecast.columns.rules import is_end
from surecast.columns.schema import extends
from surecast.core.disk import read_through
from surecast.core.replicated import Abandon, AppendAt, Appended, RoleChanged, TakePublishers
from surecast.core.types import LogId, Peer, PeerDown, SetTimer, TimerFired
from surecast.parts.forwarding import Forwarding
from surecast.parts.peer_sampling import View
from surecast.parts.receive_window import Ask
from surecast.protocols.chain.dedup import DUPLICATE, NEW, Dedup, Verdict
from surecast.protocols.chain.logs import LogState, Pending
from surecast.protocols.chain.messages import Configuration, Forward, Publishers, Sync
from surecast.protocols.chain.replica import Replica
from surecast.protocols.sprinkler.forks import Forks
from surecast.protocols.sprinkler.mesh_membership import Feed
from surecast.protocols.sprinkler.mesh_peer import MeshPeer
from surecast.protocols.sprinkler.mesh_server import MeshServer
from surecast.protocols.sprinkler.messages import (
    Advertise,
    MeshEvents,
    MeshLean,
    PeerEvents,
    PublishersKnown,
)
from surecast.protocols.sprinkler.recovery import Recovery
from surecast.protocols.sprinkler.region_sync import RegionSync
from surecast.protocols.sprinkler.sources import Copy, PeerRegion
from surecast.protocols.streams.cursor_log import Cursor, CursorEntry
from surecast.protocols.streams.cursors import Cursors
from surecast.protocols.streams.directory import Directory
from surecast.protocols.streams.messages import (
    Advance,
    Attach,
    Locate,
    Located,
    PubAck,
    Publish,
    PubNack,
)
from surecast.protocols.streams.publisher import Publisher, StreamQueue
from surecast.protocols.streams.queries import Queries
from surecast.protocols.streams.service import StreamService
from surecast.protocols.streams.stream import Stream


class KeepsForks(Replica):
    """Without R1: a replica that was removed from the chain keeps uncommitted batches."""

    def _drop_fork(self) -> None:
        pass


class AcksDuplicatesEarly(Replica):
    """Without R2: a retry of a stored batch is acknowledged at once, committed or not."""

    def _is_final(self, state: LogState, hi: int) -> bool:
        return hi <= state.end


class _LastNumberOnly(Dedup):
    __slots__ = ()

    def check(self, batch: Batch, time_ns: int) -> Verdict:
        state = self.publishers.get(batch.publisher)
        seen = state is not None and batch.pub_no < state.next_no
        return Verdict(DUPLICATE, 1) if seen else Verdict(NEW)


class TakesAnyNumber(Replica):
    """Without R3: a batch that overtook an earlier one is accepted."""

    def _log(self, log: bytes) -> LogState:
        state = super()._log(log)
        if type(state.dedup) is Dedup:
            config = self.config
            state.dedup = _LastNumberOnly(config.inflight_max, config.publisher_ttl_ns)
        return state


class ForgetsPublishers(Replica):
    """Without R4: only batches that are still in the log are recognised as duplicates."""

    def _publishers_at(self, state: LogState, end: int) -> bytes:
        return b"\x92\x00\x90"


class ShowsUncommitted(StreamService):
    """Without R5: readers and retention see uncommitted batches."""

    def visible_end(self, stream: Stream) -> int:
        return self.disk.end(stream.stream_id)

    def _on_appended(self, event: Appended) -> None:
        super()._on_appended(event)
        if stream := self.streams.get(event.log):
            self._advance(stream)

    def _advance(self, stream: Stream) -> None:
        super()._advance(stream)
        self.feed(stream)  # at once, not in runs

    def _maybe_compact(self, stream: Stream) -> None:
        """Do nothing: compacting uncommitted positions would fail an assertion in the chain."""


class ForwardsBeforeStoring(Replica):
    """Without R6: a batch is forwarded and acknowledged before it is on disk."""

    def _append(self, log: bytes, batches: tuple[Batch, ...]) -> None:
        super()._append(log, batches)
        self.out.append(SetTimer(("early", log), self.now_ns))

    def _on_timer(self, inp: TimerFired) -> None:
        if inp.key[0] != "early":
            super()._on_timer(inp)
            return
        state = self.logs[inp.key[1]]
        for pending in state.pending:
            self._stored(inp.key[1], state, pending)

    def _stored(self, log: bytes, state: LogState, pending: Pending) -> None:
        if pending.hi > state.stored:
            super()._stored(log, state, pending)


class ServesAtOnce(Replica):
    """A new tail does not wait until the old one has stopped serving."""

    def _take_place(self) -> None:
        super()._take_place()
        self.was_learner = False


class IgnoresMovedTails(RegionSync):
    """Without R7: a new epoch or tail of the source region is ignored."""

    def _follow_moved_tail(self, peer: PeerRegion) -> None:
        pass

    def _stop_serving_peers(self) -> None:
        pass

    def _is_given_up(self, stream: Copy) -> bool:
        return False


class _WithRecovery(RegionSync):
    recovery_type: ClassVar[type[Recovery]] = Recovery

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.recovery = self.recovery_type(self, self.forks)


class _NoRecovery(Recovery):
    def begin(self, copy: Copy, since_ns: int, outdated: bool) -> None:
        pass


class NeverRecovers(_WithRecovery):
    """Without R8: an owner that lost part of its log does not recover it from other regions."""

    recovery_type = _NoRecovery


class TakesGapsForVoids(RegionSync):
    """Without R9: a gap in what arrives is taken for collected positions (as in the paper)."""

    def _on_peer_events(self, node: Peer, message: PeerEvents) -> None:
        stream = self.streams.get(message.stream)
        if stream and message.batches and message.batches[0].lo > stream.end:
            lo = message.batches[0].lo
            void = Batch.void(message.stream, stream.end, lo, COLLECTED)
            self.command(AppendAt(message.stream, (void, *message.batches)))
            return
        super()._on_peer_events(node, message)


class StampsRawTime(Replica):
    """Without the first half of R10: events carry the unadjusted clock of the current head."""

    def _stamp(self, state: LogState) -> int:
        return self.now_ns + self.wall_offset_ns


class TakesAnyRule(StreamService):
    """Without the second half of R10: rules are accepted that can undo a collection by another."""

    def _refusal_of_rule(self, stream: Stream, batch: Batch) -> str:
        return ""


class KnowsCommittedSchemas(StreamService):
    """A new head does not look for changes of the schema that are not committed."""

    def _knows_schema(self, stream: Stream) -> bool:
        self.feed(stream)
        stream.take_schema(stream.info.schema, self.epoch)
        return True


class TakesAnyChange(StreamService):
    """Changes of a schema are not compared with the current one."""

    def _refusal_of_change(self, stream: Stream, schema: str) -> str:
        return ""


class KeepsSchemas(StreamService):
    """A head keeps the newest schema that it has ever appended, also if the change is truncated."""

    def _knows_schema(self, stream: Stream) -> bool:
        before = stream.schema
        known = super()._knows_schema(stream)
        if extends(before, stream.schema):
            stream.take_schema(before, self.epoch)
        return known


class DropsWhenFull(StreamService):
    """Without R11: a server that holds too much drops events that no rule collected."""

    cap: ClassVar[int] = 50

    def feed(self, stream: Stream, budget_bytes: int = 1 << 62) -> None:
        super().feed(stream, budget_bytes)
        oldest = stream.index.end - self.cap
        if oldest > 1:
            stream.index._void_below(oldest, COLLECTED)


# ---------------------------------------------------------------- the mesh


class NeverAnnounces(MeshPeer):
    """No notification after a shuffle: a newly picked peer hears only of later events."""

    def _announce(self, feed: Feed) -> None:
        pass


class NeverLowersNext(MeshPeer):
    """Without R12: positions count as requested although the peer does not have them yet."""

    def _lower_next(self, feed: Feed, end: int) -> None:
        pass


class _ForgetsSenders(View):
    __slots__ = ()

    def _reinforced(self, sender: Peer) -> list[Peer]:
        return []


class ForgetsSenders(MeshPeer):
    """No reinforcement: a peer that sends its view may be removed from ours like any other."""

    view_type = _ForgetsSenders


class _TakesBackTheDead(View):
    __slots__ = ()

    def drop(self, peer: Peer) -> None:
        super().drop(peer)
        self.gone.clear()


class TakesBackTheDead(MeshPeer):
    """A peer that was found to be down is added again from the view of another peer."""

    view_type = _TakesBackTheDead


class LeavesHoles(MeshPeer):
    """Positions that a peer no longer has are not requested from a server."""

    def _fill(self, feed: Feed) -> None:
        pass


class WaitsForever(MeshPeer):
    """Requests have no deadline."""

    def _look_at_deadlines(self) -> None:
        pass


class WaitsForTheDead(MeshPeer):
    """Requests to a peer stay open when its session ends."""

    def _on_peer_down(self, inp: PeerDown) -> None:
        self.forget(inp.peer)


class NeverPolls(MeshPeer):
    """Without R12: a client that receives nothing does not ask whether there is anything new."""

    def _mind_silence(self, feed: Feed) -> None:
        pass


class IgnoresLeaners(MeshPeer):
    """Only peers that this client picked are notified; peers that picked this client are not."""

    def _on_lean(self, peer: Peer, message: MeshLean) -> None:
        pass


class HoldsWithoutLimit(MeshPeer):
    """Without G11: early batches are held and delivered ones kept without limit."""

    def _take(self, feed: Feed, peer: Peer, message: MeshEvents) -> None:
        given = self.config
        self.config = replace(given, early_bytes_max=1 << 60, keep_bytes_max=1 << 60)
        super()._take(feed, peer, message)
        self.config = given


class AsksPeersAgain(MeshPeer):
    """Without G11: batches that were dropped for lack of space are requested from peers again."""

    def _heard(self, feed: Feed, peer: Peer, end: int) -> None:
        feed.asked = 0
        super()._heard(feed, peer, end)


class LearnsOnlyInTime(MeshPeer):
    """The response time of peers is measured only on answers that met the deadline."""

    def _measure(self, peer: Peer, ask: Ask | None) -> None:
        if ask is not None:
            super()._measure(peer, ask)


class StaysUnknown(MeshPeer):
    """A client that moves to another server is unknown there until its next gossip."""

    def _introduce(self) -> None:
        pass


class ClaimsTheFuture(MeshPeer):
    """The requested start counts as a position that exists already."""

    def _follow(self, stream: bytes, start: int) -> None:
        super()._follow(stream, start)
        self.feeds[stream].sure = True


class LonelyServers(MeshServer):
    """Servers do not introduce the clients they know to each other."""

    def _introduce(self) -> None:
        pass


# ---------------------------------------------------------------- other regions' streams


class TablesMayDiffer(RegionSync):
    """Streams are created although regions have different tables of owners."""

    def _refusal_to_create(self) -> str:
        self.owners = b""
        for peer in self.peers.values():
            peer.owners = b""
        return super()._refusal_to_create()


class _WithForwarding(RegionSync):
    forwarding_type: ClassVar[type[Forwarding]] = Forwarding

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.forwarding = self.forwarding_type(self)


class _Renaming(Forwarding):
    """Forwards batches under an identity of this server instead of the client's."""

    def _alias(self, publisher: bytes) -> bytes:
        return bytes(a ^ b for a, b in zip(publisher, self.regions.config.name.encode() * 16))  # noqa: B905

    def on_publish(self, client: Peer, message: Publish) -> None:
        batch = message.batch
        renamed = batch.numbered(bytes(8) + self._alias(batch.publisher)[8:], batch.pub_no)
        self.real = {**getattr(self, "real", {}), renamed.publisher: batch.publisher}
        super().on_publish(client, Publish(message.stream, renamed))

    def on_ack(self, peer: Peer, message: PubAck) -> None:
        if client := self._client_of(peer, message):
            real = self.real[message.publisher]
            self.regions.send(client, msgspec.structs.replace(message, publisher=real))


class ForwardsUnderItsOwnName(_WithForwarding):
    """A retry that another replica forwards is not recognised as a retry."""

    forwarding_type = _Renaming


class _Gullible(Forwarding):
    def _client_of(self, peer: Peer, message: PubAck | PubNack) -> Peer:
        return self.clients.get((message.stream, message.publisher), "")


class TakesAnybodysAck(_WithForwarding):
    """An acknowledgement is accepted from any peer, not only from the owner."""

    forwarding_type = _Gullible


# ---------------------------------------------------------------- named subscriptions


class AnswersBeforeTheBarrier(Cursors):
    """A new head answers before the entries of earlier heads are committed."""

    def _on_role_changed(self, event: RoleChanged) -> None:
        super()._on_role_changed(event)
        self.barrier = 0


class MovesForAnybody(Cursors):
    """A holder that was replaced can still move the cursor."""

    def _on_advance(self, peer: Peer, message: Advance) -> None:
        holder = self._latest(message.name).holder
        super()._on_advance(peer, msgspec.structs.replace(message, holder=holder))


class AnswersHoldersFromMemory(Cursors):
    """The holder of a name is confirmed from memory, without a commit by the chain."""

    def _on_attach(self, peer: Peer, message: Attach) -> None:
        holds = self.table.get(message.name, Cursor()).holder == message.holder
        if self.is_head and holds and message.name not in self.written:
            self._answer(peer, message, "")
        else:
            super()._on_attach(peer, message)


class AnswersUncommitted(Cursors):
    """An advance is confirmed when it is written, before it is committed."""

    def _wait(self, peer: Peer, question: Attach | Advance) -> None:
        if isinstance(question, Advance):
            self._answer(peer, question, "")
        else:
            super()._wait(peer, question)


class FencesLate(Cursors):
    """A holder keeps its rights until its successor is committed, although that is written."""

    def _latest(self, name: str) -> Cursor:
        return self.table.get(name, Cursor())


class LeavesHolderInPlace(Cursors):
    """A reset moves the cursor but does not expel the holder."""

    def _write(self, name: str, entries: list[CursorEntry]) -> None:
        left = [entry for entry in entries if entry.stream or not entry.change]
        if left:
            super()._write(name, left)


class TakesExpelledHolders(Cursors):
    """A holder that a reset expelled may attach to the name again."""

    def _latest(self, name: str) -> Cursor:
        return replace(super()._latest(name), expelled=b"", former=())


class RepeatsChanges(Cursors):
    """A reset that is repeated because its answer was lost is carried out again."""

    def _latest(self, name: str) -> Cursor:
        return replace(super()._latest(name), change=b"")


class _RefusesFormer(Directory):
    def _is_former(self, stream: LogId) -> bool:
        return False


class RefusesFormerStreams(StreamService):
    """Without part of D4: a stream whose successor is in the directory is never adopted."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.directory = _RefusesFormer()


class SendsNoEndEvent(StreamService):
    """Without D5: a reader that begins after the End event of a deleted stream waits for ever."""

    def end_event(self, stream: LogId) -> list[Batch]:
        return []


class KeepsPositionsOfDeletedStreams(Cursors):
    """The positions in a stream stay when it is deleted."""

    def _remove_if_due(self) -> bool:
        return False


class SavesPositionsInDeletedStreams(Cursors):
    """A holder can save a position in a stream that was deleted before."""

    def _may_save(self, stream: LogId) -> bool:
        return True


class LooksForNoPositions(Cursors):
    """A new head removes only positions in streams that are deleted from then on."""

    def _remove_if_due(self) -> bool:
        if self.to_remove is None:
            self.to_remove = []
        return super()._remove_if_due()


class DeletesOnlyTheName(Cursors):
    """A deletion writes one entry and leaves the entries of the positions in the log."""

    def _write(self, name: str, entries: list[CursorEntry]) -> None:
        super()._write(name, [entry for entry in entries if entry.seq or not entry.stream])


# ---------------------------------------------------------------- times and retention


class NamesVoidPlaces(Queries):
    """The first position of a time is looked up in this replica's log, which may be compacted."""

    def _on_locate(self, peer: Peer, message: Locate) -> None:
        stream = self.service.streams[message.stream]
        self.service.feed(stream)

        def lend(lo: int, hi: int) -> Any:
            return read_through(self.service.disk, message.stream, lo, hi, 1 << 20)

        seq = stream.index.first_at(message.time_ns, lend)
        self._send(peer, Located(message.token, seq))


class ServesUnfed(StreamService):
    """Late readers are served before retention has read the whole log."""

    def readable(self, stream: LogId, lo: int, hi: int = 0) -> list[Batch]:
        fed, self.feed = self.feed, lambda *_: None  # type: ignore[assignment,method-assign]
        try:
            return super().readable(stream, lo, hi)
        finally:
            self.feed = fed  # type: ignore[method-assign]


class FeedsAtOnce(StreamService):
    """Retention reads a long log in one pass, and all other work waits."""

    def feed(self, stream: Stream, budget_bytes: int = 1 << 62) -> None:
        super().feed(stream)


# ---------------------------------------------------------------- rules of one replica


class WaitsForLearnersForever(Replica):
    """The gate has no time limit: commits stop until the learner has everything."""

    def _tend_learner(self) -> None:
        self.join_since_ns = self.now_ns
        super()._tend_learner()


class TakesLearnersUnclean(Replica):
    """Without R8 at the tail: a learner joins a chain that has not rebuilt its lost logs."""

    def _tend_learner(self) -> None:
        clean, self.saved.clean = self.saved.clean, True
        super()._tend_learner()
        self.saved.clean = clean


class TrustsForkedSnapshots(Replica):
    """Without R4: a saved publishers' state stays valid for positions that were truncated since."""

    def _drop_fork(self) -> None:
        kept = {log: state.publishers_kept for log, state in self.logs.items()}
        super()._drop_fork()
        for log, state in self.logs.items():
            state.publishers_kept = kept[log]


class _NeverTruncates(Dedup):
    __slots__ = ()

    def truncate(self, end: int) -> None:
        pass


class RemembersLostBatches(Replica):
    """After a restart, batches that the log lost are duplicates if the saved state names them."""

    def _dedup(self) -> Dedup:
        config = self.config
        return _NeverTruncates(config.inflight_max, config.publisher_ttl_ns)


class OverlooksSuccessorAhead(Replica):
    """A successor that holds more than this replica is treated as if it held as much."""

    def _on_sync(self, peer: Peer, message: Sync) -> None:
        ends = {log: min(end, self._log(log).stored) for log, end in message.ends.items()}
        super()._on_sync(peer, msgspec.structs.replace(message, ends=ends))


# ---------------------------------------------------------------- senders of messages in a chain


class TakesAnybodysForward(Replica):
    """Forwarded batches are stored from any peer, not only from the predecessor."""

    def _on_forward(self, peer: Peer, message: Forward) -> None:
        super()._on_forward(self.pred or peer, message)


class TakesAnybodysPublishers(Replica):
    """The publishers' state is accepted from any peer, not only from the predecessor."""

    def _on_publishers(self, peer: Peer, message: Publishers) -> None:
        super()._on_publishers(self.pred or peer, message)


class TakesAnyChainsConfiguration(Replica):
    """The configuration of another chain is adopted."""

    def _on_configuration(self, peer: Peer, message: Configuration) -> None:
        mine = msgspec.structs.replace(message, chain=self.config.chain)
        super()._on_configuration(peer, mine)


# ---------------------------------------------------------------- senders of messages to a server


class TakesAnybodysAdvertisement(RegionSync):
    """Any peer may advertise for a region."""

    def _on_advertise(self, node: Peer, message: Advertise) -> None:
        given = self.config
        nodes = (*given.regions.get(message.region, ()), node)
        self.config = replace(given, regions={**given.regions, message.region: nodes})
        super()._on_advertise(node, message)
        self.config = given


class TakesAnybodysPublishersKnown(RegionSync):
    """The publishers' state of another region is accepted from any peer."""

    def _on_publishers_known(self, node: Peer, message: PublishersKnown) -> None:
        given = self.region_of
        self.region_of = {**given, node: message.region}
        super()._on_publishers_known(node, message)
        self.region_of = given


class TakesPlacedBatches(StreamService):
    """A publisher may send batches that name a position."""

    def _refusal_of_event(self, stream: Stream, batch: Batch) -> str:
        return "" if batch.lo else super()._refusal_of_event(stream, batch)


class AppendsOtherStreams(RegionSync):
    """Pulled batches are appended whatever stream they belong to."""

    def _fits(self, stream: Copy, batches: tuple[Batch, ...]) -> bool:
        info = msgspec.structs.replace(stream.info, stream_id=batches[0].stream_id)
        return super()._fits(replace(stream, info=info), batches)


class AppendsOlderBatches(RegionSync):
    """Without R10 at the head that pulls: batches older than the ones before them are appended."""

    def _fits(self, stream: Copy, batches: tuple[Batch, ...]) -> bool:
        return super()._fits(replace(stream, newest_ns=0), batches[:1])


class OvertakesOldIdentity(Publisher):
    """Batches of a new identity are sent while batches of the old one wait for their ack."""

    def _send_more(self, stream: bytes, queue: StreamQueue) -> None:
        super()._send_more(stream, queue)
        for batch in list(queue.waiting)[queue.under_way :]:
            self._send(self._head, Publish(stream, batch))
            queue.under_way += 1


class RepeatsOnlyInSilence(Publisher):
    """A publish is repeated only if no stream of the publisher makes progress."""

    def _on_timer(self, inp: TimerFired) -> None:
        for queue in self.queues.values():
            queue.retry.restart(self.now_ns)
        super()._on_timer(inp)


# ---------------------------------------------------------------- damage and roll back


class ServesWithHoles(Replica):
    """A replica that cannot read part of its logs stays a full member."""

    def _adopt(self, epoch: int, members: Any, lineage: int) -> None:
        holes, self.holes = self.holes, {}
        super()._adopt(epoch, members, lineage)
        self.holes = holes


class IgnoresOlderCopies(Replica):
    """A replica ignores reports that its disk is an older copy."""

    def _rolled_back(self, serial: int, alone: bool = False) -> None:
        if self.active:
            return
        self.founded = self.vouched = True
        self._adopt(self.epoch, self.members, self.saved.lineage)


class IgnoresLostChanges(Replica):
    """A journal that was cut short is treated as complete."""

    def _renounce(self, why: str) -> None:
        if not self.saved.gapped:
            super()._renounce(why)


class CutsAtHoles(Replica):
    """The log is cut at the first position that cannot be read."""

    def _restore(self) -> None:
        disk = self.disk._disk  # type: ignore[attr-defined]
        for log in disk.logs():
            if holes := disk.holes(log):
                disk.truncate(log, holes[0][0])
        super()._restore()


class _NeverAsks(Recovery):
    def is_asking(self) -> bool:
        return False


class NumbersAtOnce(_WithRecovery):
    """An owner that has just started does not ask the other regions."""

    recovery_type = _NeverAsks

    def _on_region_behind(self, node: Peer, message: Any) -> None:
        pass


class _WithForks(RegionSync):
    forks_type: ClassVar[type[Forks]] = Forks

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.forks = self.recovery.forks = self.forks_type(self)


class _Careless(Forks):
    __slots__ = ()

    def may_pull(self, stream: Copy, peer: PeerRegion) -> bool:
        return True

    def _judge(self, region: str, stream_id: bytes, marks: Any) -> None:
        pass


class MixesHistories(_WithForks):
    """Regions exchange events without comparing what they have."""

    forks_type = _Careless


class _KeepsNoCopy(Forks):
    __slots__ = ()

    def _begin_copy(self, stream: Copy, search: Any) -> None:
        self.regions.command(Abandon(stream.stream_id, search.start))
        del self.searches[stream.stream_id]
        self.regions.limited(stream.stream_id)


class DropsHistories(_WithForks):
    """Events of an abandoned history are not copied to another stream."""

    forks_type = _KeepsNoCopy


class KeepsOutdatedPublishers(Replica):
    """The publishers' state of an older disk copy is kept although other regions know more."""

    def _on_take_publishers(self, inp: TakePublishers) -> None:
        super()._on_take_publishers(msgspec.structs.replace(inp, known_too=False))


class _BelievesTheFirst(Recovery):
    def is_nobody_sure(self, copy: Copy) -> bool:
        return True


class TakesUnsureAnswers(_WithRecovery):
    """The first region's answer is used although another region knows all publishers."""

    recovery_type = _BelievesTheFirst


class ForfeitsReadable(StreamService):
    """All positions that a layer above gives up are reported lost, also readable ones."""

    def _in_holes(self, stream: LogId, positions: IntervalSet) -> IntervalSet:
        return positions


class GivesPositionsBehindTheEnd(StreamService):
    """Without D1: a deleted stream accepts events."""

    def _refusal_behind_end(self, stream: Stream) -> str:
        return ""


class KnowsOnlyItsOwnEnd(StreamService):
    """Without part of D1: a head does not check whether an earlier head appended the End event."""

    def _on_publish(self, peer: Peer, message: Publish) -> None:
        super()._on_publish(peer, message)
        stream = self.streams.get(message.stream)
        if stream is not None and is_end(message.batch):
            stream.ending = True

    def _refusal_behind_end(self, stream: Stream) -> str:
        return "deleted" if stream.ending else ""
