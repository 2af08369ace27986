"""A replica's layers and clients with one binding rule taken out: the tests of the tests.

A test of rule Rn runs the same story twice, with the machines as they are and with the mutant
named here, and demands that only the second breaks a guarantee. A mutant derives from the class of
the layer that has the rule (`stacks.replica_layers`), or from a client's machine. Where the rule is
in a part of `RegionSync` (forks, forwarding, recovery), the mutant replaces that part.
"""

from dataclasses import replace
from typing import Any, ClassVar

import msgspec

from surecast.columns.batch import COLLECTED, Batch
from surecast.columns.intervals import IntervalSet
from surecast.columns.rules import is_end
from surecast.core.disk import read_through
from surecast.core.replicated import Abandon, AppendAt, Appended, RoleChanged, TakePublishers
from surecast.core.types import LogId, Peer, PeerDown, SetTimer, TimerFired
from surecast.parts.peer_sampling import View
from surecast.parts.receive_window import Ask
from surecast.protocols.chain.dedup import DUPLICATE, NEW, Dedup, Verdict
from surecast.protocols.chain.logs import LogState, Pending
from surecast.protocols.chain.messages import Configuration, Forward, Publishers, Sync
from surecast.protocols.chain.replica import Replica
from surecast.protocols.sprinkler.forks import Forks
from surecast.protocols.sprinkler.forwarding import Forwarding
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
from surecast.protocols.streams.messages import (
    Advance,
    Attach,
    Locate,
    Located,
    PubAck,
    Publish,
    PubNack,
)
from surecast.protocols.streams.publisher import Line, Publisher
from surecast.protocols.streams.queries import Queries
from surecast.protocols.streams.service import StreamService
from surecast.protocols.streams.stream import Stream


class KeepsForks(Replica):
    """R1 taken out: a dropped replica keeps what was never committed."""

    def _drop_fork(self) -> None:
        pass


class AcksDuplicatesEarly(Replica):
    """R2 taken out: a retry that was seen before is acknowledged at once."""

    def _is_final(self, state: LogState, hi: int) -> bool:
        return hi <= state.end


class _LastNumberOnly(Dedup):
    __slots__ = ()

    def check(self, batch: Batch, time_ns: int) -> Verdict:
        state = self.publishers.get(batch.publisher)
        seen = state is not None and batch.pub_no < state.next_no
        return Verdict(DUPLICATE, 1) if seen else Verdict(NEW)


class TakesAnyNumber(Replica):
    """R3 taken out: a batch that overtook an earlier one is taken."""

    def _log(self, log: bytes) -> LogState:
        state = super()._log(log)
        if type(state.dedup) is Dedup:
            config = self.config
            state.dedup = _LastNumberOnly(config.inflight_max, config.publisher_ttl_ns)
        return state


class ForgetsPublishers(Replica):
    """R4 taken out: dedup is what the log still shows."""

    def _publishers_at(self, state: LogState, end: int) -> bytes:
        return b"\x92\x00\x90"


class ShowsUncommitted(StreamService):
    """R5 taken out: readers and retention see whatever this replica has."""

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
        """The chain below would notice, and stop."""


class ForwardsBeforeStoring(Replica):
    """R6 taken out: a batch goes on, and is acknowledged, before it is on disk."""

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
    """R7 taken out: a new epoch or tail of the source changes nothing."""

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
    """R8 taken out: an owner goes on from whatever its log has."""

    recovery_type = _NoRecovery


class TakesGapsForVoids(RegionSync):
    """R9 taken out: arrival is in order, so a gap must be what was collected (as in the paper)."""

    def _on_peer_events(self, node: Peer, message: PeerEvents) -> None:
        stream = self.streams.get(message.stream)
        if stream and message.batches and message.batches[0].lo > stream.end:
            lo = message.batches[0].lo
            void = Batch.void(message.stream, stream.end, lo, COLLECTED)
            self.command(AppendAt(message.stream, (void, *message.batches)))
            return
        super()._on_peer_events(node, message)


class StampsRawTime(Replica):
    """R10 taken out, first half: events carry the clock of whoever is head."""

    def _stamp(self, state: LogState) -> int:
        return self.now_ns + self.wall_offset_ns


class TakesAnyRule(StreamService):
    """R10 taken out, second half: rules are taken that can undo another's collection."""

    def _refusal_of_rule(self, stream: Stream, batch: Batch) -> str:
        return ""


class DropsWhenFull(StreamService):
    """R11 taken out: a full server makes room without being told to."""

    cap: ClassVar[int] = 50

    def feed(self, stream: Stream, budget_bytes: int = 1 << 62) -> None:
        super().feed(stream, budget_bytes)
        oldest = stream.index.end - self.cap
        if oldest > 1:
            stream.index._void_below(oldest, COLLECTED)


# ---------------------------------------------------------------- the mesh


class NeverAnnounces(MeshPeer):
    """No re-notify after a shuffle: who was picked learns of what comes, not of what there is."""

    def _announce(self, feed: Feed) -> None:
        pass


class NeverLowersNext(MeshPeer):
    """R12 taken out: a peer that has less than it was asked for has been asked all the same."""

    def _lower_next(self, feed: Feed, end: int) -> None:
        pass


class _ForgetsSenders(View):
    __slots__ = ()

    def _reinforced(self, sender: Peer) -> list[Peer]:
        return []


class ForgetsSenders(MeshPeer):
    """No reinforcement: who sends its view may be struck off like anybody."""

    view_type = _ForgetsSenders


class _TakesBackTheDead(View):
    __slots__ = ()

    def drop(self, peer: Peer) -> None:
        super().drop(peer)
        self.gone.clear()


class TakesBackTheDead(MeshPeer):
    """Who was found to be gone is taken back from whoever has not found out yet."""

    view_type = _TakesBackTheDead


class LeavesHoles(MeshPeer):
    """What a peer does not have any more is not asked of a server."""

    def _fill(self, feed: Feed) -> None:
        pass


class WaitsForever(MeshPeer):
    """No deadline: who was asked is waited for."""

    def _look_at_deadlines(self) -> None:
        pass


class WaitsForTheDead(MeshPeer):
    """A peer's end does not end the requests to it."""

    def _on_peer_down(self, inp: PeerDown) -> None:
        self.forget(inp.peer)


class NeverPolls(MeshPeer):
    """R12 taken out: silence is taken for rest."""

    def _mind_silence(self, feed: Feed) -> None:
        pass


class IgnoresLeaners(MeshPeer):
    """Only who was picked is told; who picked us is not."""

    def _on_lean(self, peer: Peer, message: MeshLean) -> None:
        pass


class HoldsWithoutLimit(MeshPeer):
    """G11 taken out: whatever comes early is held, whatever was delivered is kept."""

    def _take(self, feed: Feed, peer: Peer, message: MeshEvents) -> None:
        given = self.config
        self.config = replace(given, early_bytes_max=1 << 60, keep_bytes_max=1 << 60)
        super()._take(feed, peer, message)
        self.config = given


class AsksPeersAgain(MeshPeer):
    """G11 taken out: what was dropped for want of room is asked of peers once more."""

    def _heard(self, feed: Feed, peer: Peer, end: int) -> None:
        feed.asked = 0
        super()._heard(feed, peer, end)


class LearnsOnlyInTime(MeshPeer):
    """How long peers take is learned from those that were quick enough."""

    def _measure(self, peer: Peer, ask: Ask | None) -> None:
        if ask is not None:
            super()._measure(peer, ask)


class StaysUnknown(MeshPeer):
    """A client that turns to another server waits for its next gossip to be known there."""

    def _introduce(self) -> None:
        pass


class ClaimsTheFuture(MeshPeer):
    """A start is taken for a position that has been reached."""

    def _follow(self, stream: bytes, start: int) -> None:
        super()._follow(stream, start)
        self.feeds[stream].sure = True


class LonelyServers(MeshServer):
    """Servers do not tell each other whom they know."""

    def _introduce(self) -> None:
        pass


# ---------------------------------------------------------------- other regions' streams


class TablesMayDiffer(RegionSync):
    """Streams are created though regions disagree on who owns them."""

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
    """Publishes as itself: with an identity of its own, not the client's."""

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
    """A retry that comes through another replica is not known to be one."""

    forwarding_type = _Renaming


class _Gullible(Forwarding):
    def _client_of(self, peer: Peer, message: PubAck | PubNack) -> Peer:
        return self.clients.get((message.stream, message.publisher), "")


class TakesAnybodysAck(_WithForwarding):
    """Whoever claims to speak for the owner is believed."""

    forwarding_type = _Gullible


# ---------------------------------------------------------------- named subscriptions


class AnswersBeforeTheBarrier(Cursors):
    """A new head speaks before what its predecessors wrote is committed."""

    def _on_role_changed(self, event: RoleChanged) -> None:
        super()._on_role_changed(event)
        self.barrier = 0


class MovesForAnybody(Cursors):
    """Who was replaced can still move the cursor."""

    def _on_advance(self, peer: Peer, message: Advance) -> None:
        holder = self._latest(message.name).holder
        super()._on_advance(peer, msgspec.structs.replace(message, holder=holder))


class AnswersHoldersFromMemory(Cursors):
    """Who holds a name is told so without asking the chain."""

    def _on_attach(self, peer: Peer, message: Attach) -> None:
        holds = self.table.get(message.name, Cursor()).holder == message.holder
        if self.is_head and holds and message.name not in self.written:
            self._answer(peer, message, "")
        else:
            super()._on_attach(peer, message)


class AnswersUncommitted(Cursors):
    """A holder is told that it has advanced as soon as that is written."""

    def _wait(self, peer: Peer, question: Attach | Advance) -> None:
        if isinstance(question, Advance):
            self._answer(peer, question, "")
        else:
            super()._wait(peer, question)


class FencesLate(Cursors):
    """A holder counts until its successor is committed, whatever was written since."""

    def _latest(self, name: str) -> Cursor:
        return self.table.get(name, Cursor())


class LeavesHolderInPlace(Cursors):
    """A reset moves the cursor and leaves the name to its holder."""

    def _write(self, name: str, entries: list[CursorEntry]) -> None:
        super()._write(name, [entry for entry in entries if entry.stream or not entry.change])


class TakesExpelledHolders(Cursors):
    """A holder that was expelled by a reset may take the name again."""

    def _latest(self, name: str) -> Cursor:
        return replace(super()._latest(name), expelled=b"", former=())


class RepeatsChanges(Cursors):
    """A reset that is asked for again, because its answer was lost, is carried out again."""

    def _latest(self, name: str) -> Cursor:
        return replace(super()._latest(name), change=b"")


class DeletesOnlyTheName(Cursors):
    """A deletion writes one entry, and leaves those of the positions in the log."""

    def _write(self, name: str, entries: list[CursorEntry]) -> None:
        super()._write(name, [entry for entry in entries if entry.seq or not entry.stream])


# ---------------------------------------------------------------- times and retention


class NamesVoidPlaces(Queries):
    """Where a time begins is what the log at hand says: compacted or not."""

    def _on_locate(self, peer: Peer, message: Locate) -> None:
        stream = self.service.streams[message.stream]
        self.service.feed(stream)

        def lend(lo: int, hi: int) -> Any:
            return read_through(self.service.disk, message.stream, lo, hi, 1 << 20)

        seq = stream.index.first_at(message.time_ns, lend)
        self._send(peer, Located(message.token, seq))


class ServesUnfed(StreamService):
    """Late readers are served by what retention happens to know."""

    def readable(self, stream: LogId, lo: int, hi: int = 0) -> list[Batch]:
        fed, self.feed = self.feed, lambda *_: None  # type: ignore[assignment,method-assign]
        try:
            return super().readable(stream, lo, hi)
        finally:
            self.feed = fed  # type: ignore[method-assign]


class FeedsAtOnce(StreamService):
    """A long log is taken in at once, and everybody waits."""

    def feed(self, stream: Stream, budget_bytes: int = 1 << 62) -> None:
        super().feed(stream)


# ---------------------------------------------------------------- rules of one replica


class WaitsForLearnersForever(Replica):
    """No time limit for the gate: commits stop until the learner has everything."""

    def _tend_learner(self) -> None:
        self.join_since_ns = self.now_ns
        super()._tend_learner()


class TakesLearnersUnclean(Replica):
    """R8 taken out, at the tail: a learner joins a chain that has not rebuilt its lost logs."""

    def _tend_learner(self) -> None:
        clean, self.saved.clean = self.saved.clean, True
        super()._tend_learner()
        self.saved.clean = clean


class TrustsForkedSnapshots(Replica):
    """R4 taken out: a saved publishers' state counts for positions that were truncated since."""

    def _drop_fork(self) -> None:
        kept = {log: state.kept for log, state in self.logs.items()}
        super()._drop_fork()
        for log, state in self.logs.items():
            state.kept = kept[log]


class _NeverTruncates(Dedup):
    __slots__ = ()

    def truncate(self, end: int) -> None:
        pass


class RemembersLostBatches(Replica):
    """A restart recognises batches that the saved publishers' state names and the log lost."""

    def _dedup(self) -> Dedup:
        config = self.config
        return _NeverTruncates(config.inflight_max, config.publisher_ttl_ns)


class OverlooksSuccessorAhead(Replica):
    """A successor that holds more than we do is taken for one that holds as much."""

    def _on_sync(self, peer: Peer, message: Sync) -> None:
        ends = {log: min(end, self._log(log).stored) for log, end in message.ends.items()}
        super()._on_sync(peer, msgspec.structs.replace(message, ends=ends))


# ---------------------------------------------------------------- who may say what, in a chain


class TakesAnybodysForward(Replica):
    """Batches are stored also if a non-predecessor forwards them."""

    def _on_forward(self, peer: Peer, message: Forward) -> None:
        super()._on_forward(self.pred or peer, message)


class TakesAnybodysPublishers(Replica):
    """The publishers' state is replaced by one from any peer."""

    def _on_publishers(self, peer: Peer, message: Publishers) -> None:
        super()._on_publishers(self.pred or peer, message)


class TakesAnyChainsConfiguration(Replica):
    """The configuration of another chain is adopted."""

    def _on_configuration(self, peer: Peer, message: Configuration) -> None:
        mine = msgspec.structs.replace(message, chain=self.config.chain)
        super()._on_configuration(peer, mine)


# ---------------------------------------------------------------- who may say what, to a server


class TakesAnybodysAdvertisement(RegionSync):
    """Any peer may advertise for a region."""

    def _on_advertise(self, node: Peer, message: Advertise) -> None:
        given = self.config
        nodes = (*given.regions.get(message.region, ()), node)
        self.config = replace(given, regions={**given.regions, message.region: nodes})
        super()._on_advertise(node, message)
        self.config = given


class TakesAnybodysPublishersKnown(RegionSync):
    """Any peer may say what publishers had accepted elsewhere."""

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
    """R10 taken out, at the head that pulls: batches older than what they follow are appended."""

    def _fits(self, stream: Copy, batches: tuple[Batch, ...]) -> bool:
        return super()._fits(replace(stream, newest_ns=0), batches[:1])


class OvertakesOldIdentity(Publisher):
    """Batches of a new identity are sent while some of the old one wait."""

    def _send_more(self, stream: bytes, line: Line) -> None:
        super()._send_more(stream, line)
        for batch in list(line.waiting)[line.under_way :]:
            self._send(self._head, Publish(stream, batch))
            line.under_way += 1


# ---------------------------------------------------------------- damage and roll back


class ServesWithHoles(Replica):
    """A replica that cannot read part of its logs goes on as the member it was."""

    def _adopt(self, epoch: int, members: Any, lineage: int) -> None:
        holes, self.holes = self.holes, {}
        super()._adopt(epoch, members, lineage)
        self.holes = holes


class IgnoresOlderCopies(Replica):
    """What others have seen its disk count up to makes no difference."""

    def _rolled_back(self, serial: int, alone: bool = False) -> None:
        if self.active:
            return
        self.founded = self.vouched = True
        self._adopt(self.epoch, self.members, self.saved.lineage)


class IgnoresLostChanges(Replica):
    """A journal that was cut short is taken for what there was."""

    def _renounce(self, why: str) -> None:
        if not self.saved.gapped:
            super()._renounce(why)


class CutsAtHoles(Replica):
    """What stands behind a position that cannot be read is given up with it."""

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
    """The events that are taken back are not kept anywhere."""

    forks_type = _KeepsNoCopy


class KeepsOutdatedPublishers(Replica):
    """What an older copy of the disk says of publishers counts, though they had more accepted."""

    def _on_take_publishers(self, inp: TakePublishers) -> None:
        super()._on_take_publishers(msgspec.structs.replace(inp, known_too=False))


class _BelievesTheFirst(Recovery):
    def is_nobody_sure(self, copy: Copy) -> bool:
        return True


class TakesUnsureAnswers(_WithRecovery):
    """The first region that answers is believed, though another one knows all publishers."""

    recovery_type = _BelievesTheFirst


class ForfeitsReadable(StreamService):
    """Whatever a layer above gives up is said to be lost, though it can be read."""

    def _in_holes(self, stream: LogId, positions: IntervalSet) -> IntervalSet:
        return positions


class GivesPositionsBehindTheEnd(StreamService):
    """D1 taken out: a deleted stream is published to."""

    def _refusal_behind_end(self, stream: Stream) -> str:
        return ""


class KnowsOnlyItsOwnEnd(StreamService):
    """D1 taken out in part: a head does not look whether the one before gave the End event."""

    def _on_publish(self, peer: Peer, message: Publish) -> None:
        super()._on_publish(peer, message)
        stream = self.streams.get(message.stream)
        if stream is not None and is_end(message.batch):
            stream.ending = True

    def _refusal_behind_end(self, stream: Stream) -> str:
        return "deleted" if stream.ending else ""
