"""Who stands where: configurations, joining, being dropped, handing over the tail.

Safety rests on four habits. A replica dropped by an epoch truncates what was never committed and
comes back as a learner (R1). A tail that takes in a learner first *gates* its commits on the
learner's copy, and only then proposes it, so the new member already has all that was ever
acknowledged. The gate is on disk before the proposal leaves, so that a tail that crashes in
between settles the matter with a fresh epoch before it commits alone. And a member is a name
*and* a disk: a replica that comes back empty is nobody's successor.
"""

from collections import Counter
from random import Random

import msgspec

from surecast.core.disk import read_through
from surecast.core.machine import HandlerMachine
from surecast.core.replicated import Refused, RoleChanged, Truncated
from surecast.core.types import Disk, Emit, LogId, Peer, SaveState, SetTimer, Truncate
from surecast.protocols.chain.config import ChainConfig
from surecast.protocols.chain.dedup import Dedup
from surecast.protocols.chain.logs import Follower, LogState
from surecast.protocols.chain.messages import (
    Ack,
    Beat,
    Configuration,
    Forward,
    Member,
    Propose,
    Stale,
    Sync,
    SyncAck,
    TailToken,
    Watch,
)

__all__ = ["Roles"]

GATING, PROPOSED = "gating", "proposed"


class Saved(msgspec.Struct, array_like=True):
    """What a replica must remember of its place in the chain."""

    disk: bytes
    epoch: int = 0
    members: tuple[Member, ...] = ()
    joining: bool = False  # a learner may have been proposed in this epoch
    clean: bool = True  # false until the layer above has rebuilt lost logs (R8)
    lost_epoch: int = 0  # while not clean: the first epoch after the loss
    lineage: int = 0  # how often the chain was founded anew by force


class Roles(HandlerMachine):
    """The half of a replica that knows its place; `Replica` adds what it does there."""

    def __init__(
        self, config: ChainConfig, disk: Disk, rng: Random, counters: Counter[str] | None = None
    ) -> None:
        super().__init__(counters)
        self.config = config
        self.disk = disk
        self.rng = rng
        self.logs: dict[LogId, LogState] = {}
        self.pending_bytes = 0  # appended and not on disk yet, of all logs
        self.saved = Saved(b"")
        self.founded = False  # our disk's identity is on disk
        self.active = False  # a configuration was adopted in this life
        self.follower: Follower | None = None  # the successor, once it has said what it holds
        self.learner: Follower | None = None
        self.learner_member: Member | None = None
        self.join = ""  # "" | GATING | PROPOSED
        self.join_since_ns = 0
        self.was_learner = False
        self.has_token = True  # false: a new tail that waits for the old one
        self.owes_token = False
        self.synced = False  # the predecessor answered our Sync
        self.congested: dict[Peer, bool] = {}
        self.heard_ns: dict[Peer, int] = {}
        self.beat_ns = self.watched_ns = self.proposed_ns = self.sync_sent_ns = 0
        self.store_failures = 0
        self.kept_epoch = 0  # the epoch that is on disk as ours
        self._take_place()

    # ------------------------------------------------------------ where we stand

    def _take_place(self) -> None:
        """Note where we stand; asked for with every batch, so it is kept, not worked out."""
        saved = self.saved
        self.me = Member(self.config.name, saved.disk)
        self.is_member = self.active and self.me in saved.members
        self.is_head = self.is_member and saved.members[0] == self.me
        self.is_last = self.is_member and saved.members[-1] == self.me

    @property
    def epoch(self) -> int:
        return self.saved.epoch

    @property
    def members(self) -> tuple[Member, ...]:
        return self.saved.members

    @property
    def pred(self) -> Peer | None:
        """Where our data comes from; for a learner, the tail."""
        if not self.active or not self.members or self.is_head:
            return None
        if not self.is_member:
            return next((m.name for m in reversed(self.members) if m.name != self.me.name), None)
        return self.members[self.members.index(self.me) - 1].name

    @property
    def succ(self) -> Peer | None:
        if not self.is_member or self.is_last:
            return None
        return self.members[self.members.index(self.me) + 1].name

    # ------------------------------------------------------------ starting

    def _restore(self) -> None:
        data = self.disk.state("chain")
        if data is None:
            self.saved = Saved(self.rng.randbytes(8))
            self._take_place()
            self._save()  # `_on_chain_saved` registers us
        else:
            self.saved = msgspec.msgpack.decode(data, type=Saved)
            self.founded = True
            self.kept_epoch = self.epoch
            self._take_place()
            self._watch()
        committed = self.disk.state("committed")
        floor = msgspec.msgpack.decode(committed, type=dict[bytes, int]) if committed else {}
        for log in self.disk.logs():
            state = self._log(log)
            state.end = state.stored = self.disk.end(log)
            state.committed = min(floor.get(log, 1), state.end)
            self._restore_publishers(log, state)

    def _restore_publishers(self, log: LogId, state: LogState) -> None:
        """R4: the saved snapshot, then the batches that came after it."""
        at = 1
        if data := self.disk.state(f"committed/{log.hex()}"):
            alone = msgspec.msgpack.decode(data, type=int)
            state.committed = min(max(state.committed, alone), state.end)
        if data := self.disk.state(f"publishers/{log.hex()}"):
            at, snapshot, committed = msgspec.msgpack.decode(data, type=tuple[int, bytes, int])
            state.committed = min(max(state.committed, committed), state.end)
            at = min(at, state.end)  # a predecessor's word may have come before its batches
            state.dedup.merge(snapshot)
            state.dedup.truncate(state.end)
        if at > 1:  # the newest time may lie below the snapshot
            state.time_ns = self.disk.read(log, at - 1, state.end, 1)[0].time_ns
        for batch in read_through(self.disk, log, at, state.end, self.config.forward_bytes_max):
            state.dedup.note(batch)
            state.time_ns = max(state.time_ns, batch.time_ns)

    def _log(self, log: LogId) -> LogState:
        state = self.logs.get(log)
        if state is None:
            state = self.logs[log] = LogState(self._dedup())
        return state

    def _dedup(self) -> Dedup:
        config = self.config
        return Dedup(config.inflight_max, config.publisher_ttl_ns, config.publishers_max)

    def _save(self, then: str = "", peer: Peer = "") -> None:
        data = msgspec.msgpack.encode(self.saved)
        self.out.append(SaveState("chain", data, ("chain", self.epoch, then, peer)))

    def _watch(self) -> None:
        if not self.founded:
            return
        self.watched_ns = self.now_ns
        self._send(self.config.service, Watch(self.config.chain, self.me))

    # ------------------------------------------------------------ configurations

    def _on_configuration(self, peer: Peer, message: Configuration) -> None:
        if peer == self.config.service and message.chain == self.config.chain:
            self._adopt(message.epoch, message.members, message.lineage)

    def _on_stale(self, _peer: Peer, message: Stale) -> None:
        self._adopt(message.epoch, message.members, message.lineage)

    def _adopt(self, epoch: int, members: tuple[Member, ...], lineage: int) -> None:
        if epoch == 0 or epoch < self.epoch or (epoch == self.epoch and self.active):
            return
        if epoch == self.epoch and self.saved.joining:
            # We crashed with a learner proposed: no commits until that proposal cannot win.
            self._propose(members)
            return
        if self.me not in members and self.config.replicas == 1:
            # We are the whole chain and our disk is gone: nobody else can act for us (R8). With
            # more replicas another disk may hold what ours lost; then an operator must decide.
            self.saved.epoch, self.saved.clean = epoch, False
            self._save("refound")  # `_on_chain_saved` proposes
            return
        moved_on = epoch > self.epoch
        self.saved.epoch, self.saved.members, self.saved.joining = epoch, members, False
        self.active = True
        self._take_place()
        self.follower = self.learner = None
        self.join = ""
        self.synced = False
        self.beat_ns = self.now_ns
        self.heard_ns = {}
        self.owes_token = self.succ == members[-1].name
        if self.is_member:
            if not self.saved.clean and not self.saved.lost_epoch:
                self.saved.lost_epoch = epoch
            self.has_token = not (self.was_learner and self.is_last and self.pred)
            self.was_learner = False
        else:
            self.saved.clean, self.saved.lost_epoch = True, 0  # what we learn here is whole
            if lineage != self.saved.lineage:
                self._discard()
            elif moved_on:
                self._drop_fork()
            self._disown_lost_disk()
            self.was_learner, self.has_token = True, False
        for state in self.logs.values():
            if not self.is_head:
                self._refuse_waiting(state)
        self.saved.lineage = lineage
        self._save()
        self._role_changed()
        for state in self.logs.values():
            self._answer_waiting(state)  # a second replica may make them final (R6)
        if self.is_last:
            for log in self.logs:
                self._advance(log)
        if self.pred:
            self._send_sync()

    def _disown_lost_disk(self) -> None:
        """Our name is in the chain, with a disk that is gone: that member will never come back."""
        rest = tuple(m for m in self.members if m.name != self.config.name)
        if not self.is_member and rest and len(rest) < len(self.members):
            self._propose(rest)

    def _role_changed(self) -> None:
        names = tuple(m.name for m in self.members)
        tail = self.is_last and self.has_token
        self.out.append(
            Emit(
                RoleChanged(
                    self.epoch,
                    names,
                    self.is_head,
                    tail,
                    self.saved.clean,
                    self.saved.lost_epoch,
                )
            )
        )

    def _drop_fork(self) -> None:
        """R1: the chain went on without us; what it never committed may have been replaced."""
        for log, state in self.logs.items():
            if state.end > state.committed:
                self.counters["chain.truncated"] += 1
                state.end = state.stored = state.committed
                self.pending_bytes -= sum(pending.nbytes for pending in state.pending)
                state.pending.clear()
                state.attempt += 1
                state.failed = False
                state.dedup.truncate(state.committed)
                state.kept = min(state.kept, state.committed)
                self.out.append(Truncate(log, state.committed))
                self.out.append(Emit(Truncated(log, state.committed)))

    def _discard(self) -> None:
        """An operator founded the chain anew: our logs belong to a past that was given up."""
        for state in self.logs.values():
            self.counters["chain.discarded"] += 1
            state.committed = state.known = state.kept = 1
            state.time_ns = 0
            state.dedup = self._dedup()
            state.end = max(state.end, 2)  # so that it is truncated, whatever it holds
        self._drop_fork()

    def _refuse_waiting(self, state: LogState) -> None:
        for token in state.waiting:
            self.out.append(Emit(Refused(token, "not-head")))
        state.waiting.clear()

    def _propose(self, members: tuple[Member, ...]) -> None:
        self.proposed_ns = self.now_ns
        self._send(self.config.service, Propose(self.config.chain, self.epoch, members))

    def _send_stale(self, peer: Peer) -> None:
        self._send(peer, Stale(self.epoch, self.members, self.saved.lineage))

    def _current(self, peer: Peer, epoch: int) -> bool:
        """Is a message of this epoch for us now? Tell whoever is behind; ask if we are."""
        if epoch < self.epoch:
            self.counters["chain.stale"] += 1
            self._send_stale(peer)
            return False
        if epoch > self.epoch or not self.active:
            if self.now_ns - self.watched_ns > self.config.heartbeat_ns:
                self._watch()
            return False
        self.heard_ns[peer] = self.now_ns
        return True

    # ------------------------------------------------------------ the regular round

    def _on_beat_timer(self) -> None:
        config, now_ns = self.config, self.now_ns
        self.out.append(SetTimer("beat", now_ns + config.heartbeat_ns))
        if now_ns - self.beat_ns > 3 * config.heartbeat_ns:
            # We slept, not they: a paused replica must not accuse its neighbours on waking.
            for peer in self.heard_ns:
                self.heard_ns[peer] = now_ns
        self.beat_ns = now_ns
        if not self.founded:
            self._save()  # the first one failed, or is still under way
        waiting_long = now_ns - self.watched_ns > config.heartbeat_ns and not self.active
        if waiting_long or now_ns - self.watched_ns > config.watch_ns:
            self._watch()
        if not self.active:
            return
        neighbours = [p for p in (self.pred, self.succ) if p]
        for peer in neighbours:
            self._send(peer, Beat(self.epoch))
        if self.learner:
            self._send(self.learner.peer, Beat(self.epoch))
        if self.is_member and now_ns - self.proposed_ns > config.suspect_ns:
            for peer in neighbours:
                if now_ns - self.heard_ns.setdefault(peer, now_ns) > config.suspect_ns:
                    self.counters["chain.suspected"] += 1
                    self._propose(tuple(m for m in self.members if m.name != peer))
                    break
        if not self.is_member and now_ns - self.proposed_ns > config.suspect_ns:
            self._disown_lost_disk()
        if self.pred and not self.is_member:
            # A tail that gave us up as a learner is silent; the session may have outlived that.
            if now_ns - self.heard_ns.setdefault(self.pred, now_ns) > config.suspect_ns:
                self.synced = False
        if self.pred and not self.synced and now_ns - self.sync_sent_ns > config.sync_ns:
            self._send_sync()
        self._tend_learner()

    def _on_beat(self, peer: Peer, message: Beat) -> None:
        self._current(peer, message.epoch)

    def _leave(self) -> None:
        """Ask to be removed: our disk does not work, or our log is not what it should be."""
        rest = tuple(m for m in self.members if m != self.me)
        if self.is_member and rest:
            self.counters["chain.left"] += 1
            self._propose(rest)

    # ------------------------------------------------------------ catching up with a predecessor

    def _send_sync(self) -> None:
        assert self.pred is not None
        self.synced = False
        self.sync_sent_ns = self.now_ns
        ends = {log: state.stored for log, state in self.logs.items()}
        committed = {log: state.committed for log, state in self.logs.items()}
        self._send(self.pred, Sync(self.epoch, self.me, ends, committed))

    def _on_sync(self, peer: Peer, message: Sync) -> None:
        if message.member.name != peer or not self._current(peer, message.epoch):
            return
        ahead = [x for x, end in message.ends.items() if end > self._log(x).stored]
        if ahead:  # store-then-forward makes this impossible unless our disk lost something
            self.counters["chain.successor-ahead"] += 1
            if peer == self.succ:
                self._leave()
            return
        if peer == self.succ and message.member not in self.members:
            self._propose(tuple(m for m in self.members if m.name != peer))  # it lost its disk
            return
        if peer == self.succ:
            self.follower = Follower(peer, dict(message.ends), {})
            self.owes_token = self.members[-1].name == peer  # it may have been lost on its way
            for log, upto in message.committed.items():
                self._commit(log, min(upto, self._log(log).stored))
        elif self.is_last and message.member not in self.members:
            busy = self.learner and self.learner.peer != peer
            if busy and self.learner and self.now_ns - self.learner.heard_ns < self.config.sync_ns:
                return  # one learner at a time
            if self.join and self.learner_member != message.member:
                if self.join == PROPOSED:
                    return
                self._ungate()  # the gate was another learner's
            self.learner = Follower(peer, dict(message.ends), {})  # its Acks follow
            self.learner_member = message.member
        else:
            self._send_stale(peer)
            return
        self._send(peer, SyncAck(self.epoch))
        self._pump()

    def _on_sync_ack(self, peer: Peer, message: SyncAck) -> None:
        if self._current(peer, message.epoch) and peer == self.pred:
            self.synced = True
            self._ack_as_learner(*self.logs)

    # ------------------------------------------------------------ taking in a learner

    def _gate(self, log: LogId) -> int:
        """How far the tail may commit: while a learner is being taken in, only what it has."""
        stored = self.logs[log].stored
        if not self.join or self.learner is None:
            return stored
        return min(stored, self.learner.acked.get(log, 1))

    def _tend_learner(self) -> None:
        """Move a learner along: behind → gating → proposed → member (by the next epoch)."""
        learner, config = self.learner, self.config
        if learner is None or not self.is_last:
            return
        for log, state in self.logs.items():  # no Ack tells a learner what is committed
            if learner.committed.get(log, 1) < state.committed <= learner.acked.get(log, 1):
                learner.committed[log] = state.committed
                self._send(learner.peer, Forward(self.epoch, log, (), state.committed))
        gone = self.now_ns - self.heard_ns.get(learner.peer, self.now_ns) > config.suspect_ns
        learner.heard_ns = self.heard_ns.get(learner.peer, self.now_ns)
        if self.join == PROPOSED:
            if self.now_ns - self.proposed_ns > config.suspect_ns:
                # Settle it: with the learner if it lives, by a fresh epoch without it if not.
                extra = () if gone or not self.learner_member else (self.learner_member,)
                self._propose((*self.members, *extra))
            return
        late = bool(self.join) and self.now_ns - self.join_since_ns > 4 * config.suspect_ns
        if gone or late:
            self._ungate()
            self.learner = None  # it will ask again
            return
        if not self.saved.clean:
            return  # it would take what we have for the whole (R8)
        if not all(learner.kept.get(log, False) for log in self.logs):
            return  # it cannot recognise retries yet (R4)
        logs = self.logs.items()
        if not self.join:
            lag = sum(s.stored - learner.acked.get(x, 1) for x, s in logs)
            if lag <= config.join_lag_max:
                self.join, self.join_since_ns = GATING, self.now_ns
        level = all(learner.acked.get(x, 1) >= s.committed for x, s in logs)
        if self.join == GATING and level and not self.saved.joining:
            self.saved.joining = True
            self._save(GATING, learner.peer)  # `_on_chain_saved` proposes

    def _on_chain_saved(self, epoch: int, then: str, peer: Peer) -> None:
        """What had to be on disk first."""
        if not self.founded:
            self.founded = True
            self._watch()
        if epoch != self.epoch:
            return
        self.kept_epoch = epoch
        self._ack_as_learner(*self.logs)
        if then == "refound" and not self.active:
            self._propose((self.me,))
        if then == "refound by force" and not self.is_member:
            self._send(
                self.config.service, Propose(self.config.chain, self.epoch, (self.me,), force=True)
            )
        same = self.learner is not None and self.learner.peer == peer
        if then == GATING and self.join == GATING and self.saved.joining and same:
            assert self.learner_member is not None
            self.join = PROPOSED
            self._propose((*self.members, self.learner_member))

    def _ack_as_learner(self, *logs: LogId) -> None:
        """Tell the tail what we have, once a restart in this epoch would not take it back (R1)."""
        if self.active and not self.is_member and self.pred and self.kept_epoch == self.epoch:
            for log in logs:
                self._send(self.pred, Ack(self.epoch, log, self.logs[log].stored))

    def _ungate(self) -> None:
        """Give up on a learner that was not proposed yet."""
        self.join = ""
        self.saved.joining = False
        for log in self.logs:
            self._advance(log)

    def _on_tail_token(self, peer: Peer, message: TailToken) -> None:
        if self._current(peer, message.epoch) and peer == self.pred and not self.has_token:
            self.has_token = True
            self._role_changed()

    # ------------------------------------------------------------ done by Replica

    def _advance(self, log: LogId) -> None:
        raise NotImplementedError

    def _commit(self, log: LogId, upto: int) -> None:
        raise NotImplementedError

    def _answer_waiting(self, state: LogState) -> None:
        raise NotImplementedError

    def _pump(self) -> None:
        raise NotImplementedError
