"""A replica's place in the chain: configurations, joining, being removed, handing over the tail.

`Roles` is the base class of `Replica` (replica.py). Safety depends on four rules:

* A replica that is not in the configuration of a new epoch truncates its log at the committed end
  and becomes a *learner*: it is not a member, and the tail sends it what it lacks (R1).
* A tail that adds a learner as a member first *gates* its commits: it commits only what the learner
  has stored, too. Only then it proposes the learner to the configuration service. So the new member
  already has everything that was ever acknowledged to publishers.
* Before the proposal is sent, a note of it is on the tail's disk. A tail that crashes and finds the
  note does not commit alone before a new epoch has decided about the proposal.
* A member is identified by its name and its disk. A replica that returns with an empty disk is a
  different member.

A disk that is damaged, or is an older copy of itself, has lost something that it had confirmed. Its
replica takes a new identity, as if the disk were new, and becomes a learner: it keeps what it can
read, and the tail sends it the rest. A single replica *founds its chain again*: it proposes a
configuration in which it is the only member, with its new identity. The chain is not *clean* until
the layer above has asked the other regions for what was lost (R8). Positions that cannot be read
are *holes*. A replica with holes must not be head or tail of a chain that has other members.

To detect an older copy, every disk has a serial number, which rises with every start and whenever
`committed` is saved. The replica reports the number on disk to the service. If the service knows a
higher number, it answers with that number.
"""

from collections import Counter
from random import Random
from typing import Any, ClassVar

import msgspec

from surecast.core.disk import read_through
from surecast.core.machine import HandlerMachine
from surecast.core.replicated import Counted, Mended, Refused, RoleChanged, Truncated
from surecast.core.states import StateTable, input_name
from surecast.core.types import (
    DAMAGE,
    AtEndOfPass,
    Batch,
    Disk,
    Emit,
    LogId,
    Peer,
    Repair,
    SaveState,
    SetTimer,
    Stored,
    StoreFailed,
    TimerFired,
    Truncate,
)
from surecast.protocols.chain import invariants
from surecast.protocols.chain.config import ChainConfig
from surecast.protocols.chain.dedup import Dedup
from surecast.protocols.chain.logs import Follower, LogState
from surecast.protocols.chain.messages import (
    Ack,
    Beat,
    Configuration,
    Forward,
    Member,
    Patch,
    Propose,
    Stale,
    Sync,
    SyncAck,
    TailToken,
    Wanted,
    Watch,
)
from surecast.protocols.chain.states import LEARNER, REPLICA, LearnerState, ReplicaState

__all__ = ["Roles"]

HOLES_AT_ONCE = 16  # most holes of a log that are requested from a learner at the same time
# Values of `Roles.join`: how far the last member is with adding a learner. "": commits do not wait
# for the learner. GATING: they do. PROPOSED: they do, and it was proposed as a member.
GATING, PROPOSED = "gating", "proposed"


class Saved(msgspec.Struct, array_like=True):
    """The part of a replica's state that is stored on its disk."""

    disk: bytes  # the identity of the disk
    epoch: int = 0
    members: tuple[Member, ...] = ()
    joining: bool = False  # a learner may have been proposed in this epoch
    clean: bool = True  # false until the layer above has recovered lost logs (R8)
    lost_epoch: int = 0  # while not clean: the first epoch after the loss
    lineage: int = 0  # how often the chain was founded again by force (`Propose.force`)
    # Why this disk is not trusted: it has lost something that was not replaced yet. "": trusted.
    distrust: str = ""
    # The newest changes of the disk may be missing, so its logs may lack any position.
    gapped: bool = False
    # The disk got a new identity (`_renounce`), and its logs were not truncated or emptied since.
    renounced: bool = False


class Roles(HandlerMachine):
    """The base class of `Replica`: the replica's place in the chain, without the replication."""

    state_tables: ClassVar[tuple[StateTable, ...]] = (REPLICA, LEARNER)

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
        # The identity of our disk, and the serial number of this start, are stored on it.
        self.founded = False
        self.active = False  # true once a configuration was adopted since this start
        self.cold: dict[LogId, int] = {}  # log → end of the positions that left the memory
        self.cold_reads = 0  # so far
        self.follower: Follower | None = None  # the successor, once its Sync has arrived
        # At the last member: the learner that it is bringing up to date, and its last Sync.
        self.learner: Follower | None = None
        self.learner_member: Member | None = None
        self.learner_sync: Sync | None = None
        self.join = ""  # "", GATING or PROPOSED (see above)
        self.join_since_ns = 0  # when commits began to wait for the learner
        self.was_learner = False  # in the previous configuration, this replica was no member
        self.has_token = True  # false: a new tail that waits for the TailToken of the old tail
        self.owes_token = False  # this replica must send a TailToken to its successor
        self.synced = False  # the predecessor (for a learner: the tail) answered our Sync
        self.congested: dict[Peer, bool] = {}  # peers whose queues are full; all values are true
        self.heard_ns: dict[Peer, int] = {}  # when a peer last sent a message of our epoch
        # When the beat timer last fired, and when Watch, Propose and Sync were last sent.
        self.beat_ns = self.watched_ns = self.proposed_ns = self.sync_sent_ns = 0
        self.store_failures = 0  # appends that failed since the last one that was stored
        self.kept_epoch = 0  # the epoch that is stored on our disk
        self.life = b""  # random, drawn at each start
        # The disk's serial number: the latest one; that of this start; the one that is on disk.
        self.serial = self.serial_start = self.serial_kept = 0
        self.vouched = False  # since this start the service has accepted our serial number
        self.dirty = False  # `committed` has moved since it was last saved
        self.holes: dict[LogId, list[tuple[int, int]]] = {}  # ranges of logs that cannot be read
        self.repairing: dict[LogId, int] = {}  # log → number of repairs in progress
        # Replicas that reported more positions than we have → when they did.
        self.ahead_ns: dict[Peer, int] = {}
        self.abandoning: dict[LogId, int] = {}  # logs to be truncated (Abandon) → their new end
        self.validated = invariants.Seen()  # the values at the last call of `validate`
        self._take_place()

    # ------------------------------------------------------------ our place

    def _take_place(self) -> None:
        """Compute our place in the chain from `saved` and `active`, and keep it in fields, because
        it is needed for each batch."""
        saved = self.saved
        self.me = Member(self.config.name, saved.disk)
        self.is_member = self.active and self.me in saved.members
        self.is_head = self.is_member and saved.members[0] == self.me
        # The last member. It is the tail, but a new tail does not serve readers yet (`has_token`).
        self.is_last = self.is_member and saved.members[-1] == self.me

    @property
    def state(self) -> ReplicaState:
        """The replica's place, derived here and nowhere else."""
        if not self.active:
            return ReplicaState.WAITING if self.founded else ReplicaState.STARTING
        if not self.is_member:
            return ReplicaState.LEARNER if self.synced and self.pred else ReplicaState.OUTSIDE
        if self.is_head:
            if not self.is_last:
                return ReplicaState.HEAD
            return ReplicaState.SOLE if self.saved.clean else ReplicaState.RECOVERING
        if not self.is_last:
            return ReplicaState.MIDDLE
        return ReplicaState.TAIL if self.has_token else ReplicaState.NEW_TAIL

    @property
    def learner_state(self) -> LearnerState:
        """What this replica, as the last member, does with a learner."""
        if self.learner is None:
            return LearnerState.NONE
        if self.join == PROPOSED:
            return LearnerState.PROPOSED
        return LearnerState.GATED if self.join else LearnerState.CATCHING_UP

    def states(self) -> dict[str, Any]:
        return {"replica": self.state, "learner": self.learner_state}

    def input_name(self, inp: Any) -> str:
        """The name of an input in states.py. A completion is named with its storage effect
        ("Stored append"), a timer with its key ("TimerFired beat")."""
        kind = type(inp)
        if kind is Stored or kind is StoreFailed:
            return f"{kind.__name__} {inp.token[0]}"
        if kind is TimerFired and isinstance(inp.key, str):
            return f"{kind.__name__} {inp.key}"
        return input_name(inp)

    def validate(self) -> None:
        """Assert the invariants that hold after every step."""
        invariants.check(self)

    @property
    def epoch(self) -> int:
        return self.saved.epoch

    @property
    def members(self) -> tuple[Member, ...]:
        return self.saved.members

    @property
    def pred(self) -> Peer | None:
        """The replica that sends us data; for a learner, the tail."""
        if not self.active or not self.members or self.is_head:
            return None
        if not self.is_member:
            return next((m.name for m in reversed(self.members) if m.name != self.me.name), None)
        return self.members[self.members.index(self.me) - 1].name

    @property
    def succ(self) -> Peer | None:
        """The next member, to which we forward batches; None for the last member."""
        if not self.is_member or self.is_last:
            return None
        return self.members[self.members.index(self.me) + 1].name

    # ------------------------------------------------------------ starting

    def _restore(self) -> None:
        """Restore the state of this replica from its disk."""
        committed_ends: dict[bytes, int] = {}
        if data := self.disk.state("committed"):  # as written by `_save_committed`
            self.serial, committed_ends = msgspec.msgpack.decode(
                data, type=tuple[int, dict[bytes, int]]
            )
        for log in self.disk.logs():
            state = self._log(log)
            state.end = state.stored = self.disk.end(log)
            state.committed = min(committed_ends.get(log, 1), state.end)
            if holes := self.disk.holes(log):
                self.holes[log] = holes
            self._restore_publishers(log, state)
        self.life = self.rng.randbytes(8)
        self.serial_start = self.serial + 1
        data, damage = self.disk.state("chain"), self.disk.state(DAMAGE)
        if data is None:  # a new disk, or one that has lost this state
            self.saved = Saved(self.rng.randbytes(8))
            if damage or self.logs:
                self.saved.distrust = (damage or b"its identity is gone").decode(errors="replace")
                self.saved.gapped = True
            self._save()
        else:
            self.saved = msgspec.msgpack.decode(data, type=Saved)
            self.kept_epoch = self.epoch
            if damage:
                self.saved.gapped = True
                self._renounce(damage.decode(errors="replace"))
        if damage:
            self.out.append(SaveState(DAMAGE, b"", ("damage",)))
        self._take_place()
        self._save_committed()  # when it is stored, `_on_counted` sends Watch

    def _renounce(self, why: str) -> None:
        """Give the disk a new identity, because it has lost something that it had confirmed."""
        self.counters["chain.renounced"] += 1
        self.saved.disk = self.rng.randbytes(8)
        self.saved.joining = False
        self.saved.distrust = why
        self.founded = self.active = False
        self.saved.renounced = True
        self.follower = self.learner = None
        self.join = ""
        self._take_place()
        self._save()

    def _save_committed(self) -> None:
        """Save `committed` with the next serial number, which is reported once it is on disk."""
        self.dirty = False
        self.serial += 1
        ends = {log: state.committed for log, state in self.logs.items()}
        data = msgspec.msgpack.encode((self.serial, ends))
        self.out.append(SaveState("committed", data, ("committed", self.serial)))

    def _on_counted(self, serial: int) -> None:
        """This serial number is on disk: report it."""
        self.serial_kept = max(self.serial_kept, serial)
        counted = Counted(self.saved.disk, self.life, self.serial_start, self.serial_kept)
        self.out.append(Emit(counted))
        if not self.founded and self.serial_kept >= self.serial_start:
            self.founded = True
            self._watch()
        elif self.active and self.now_ns - self.watched_ns >= self.config.count_ns:
            self._watch()

    def _rolled_back(self, serial: int, alone: bool = False) -> None:
        """The service or another region has seen this disk with serial number `serial`: the disk is
        an older copy. `alone`: this is the last member of a chain of several replicas. It cannot
        leave the chain, and recovers what it lost (R8)."""
        if serial < self.serial_start:
            return  # already handled
        self.counters["chain.rolled-back"] += 1
        self.serial = max(self.serial, serial)
        self.serial_start = self.serial + 1
        why = f"the data folder is an older copy: it had counted to {serial} before"
        if alone:
            self.saved.distrust, self.saved.clean, self.saved.lost_epoch = why, False, self.epoch
            self._save()
        else:
            self._renounce(why)
        self._role_changed()
        for state in self.logs.values():
            self._refuse_waiting(state)
        self._save_committed()

    def _restore_publishers(self, log: LogId, state: LogState) -> None:
        """R4: restore the publishers' state from the saved snapshot and from later batches."""
        at = 1
        if data := self.disk.state(f"committed/{log.hex()}"):
            committed = msgspec.msgpack.decode(data, type=int)
            state.committed = min(max(state.committed, committed), state.end)
        if data := self.disk.state(f"publishers/{log.hex()}"):
            at, snapshot, committed = msgspec.msgpack.decode(data, type=tuple[int, bytes, int])
            state.committed = min(max(state.committed, committed), state.end)
            at = min(at, state.end)  # the snapshot may be stored although later batches are not
            state.dedup.merge(snapshot)
            state.dedup.truncate(state.end)
        # The snapshot covers the positions below `at`. Position at - 1 is read only for its time.
        for lo, hi in self._readable(log, max(at - 1, 1)):
            for batch in read_through(self.disk, log, lo, hi, self.config.forward_bytes_max):
                if batch.hi > at:
                    state.dedup.note(batch)
                state.time_ns = max(state.time_ns, batch.time_ns)

    def _readable(self, log: LogId, lo: int) -> list[tuple[int, int]]:
        """The parts of a log, from `lo` on, that can be read."""
        readable = []
        # The log's end takes the place of a last hole.
        for hole_lo, hole_hi in [*self.holes.get(log, ()), (self.logs[log].end, 0)]:
            if lo < hole_lo:
                readable.append((lo, hole_lo))
            lo = max(lo, hole_hi)
        return readable

    def _log(self, log: LogId) -> LogState:
        state = self.logs.get(log)
        if state is None:
            state = self.logs[log] = LogState(self._dedup())
        return state

    def _dedup(self) -> Dedup:
        config = self.config
        return Dedup(config.inflight_max, config.publisher_ttl_ns, config.publishers_max)

    def _save(self, then: str = "", peer: Peer = "") -> None:
        """Write `saved` to disk. `then` says what to do once it is stored (`_on_chain_saved`).

        "": nothing more. "refound": propose this replica as the only member, with its new disk.
        "refound by force": the same, although it is not in the current configuration. GATING:
        propose the learner `peer`.
        """
        data = msgspec.msgpack.encode(self.saved)
        self.out.append(SaveState("chain", data, ("chain", self.epoch, then, peer)))

    def _watch(self) -> None:
        """Report to the configuration service, and request the configuration."""
        if not self.founded:
            return
        self.watched_ns = self.now_ns
        self._send(
            self.config.service,
            Watch(
                self.config.chain, self.me, self.life, self.serial_start, self.serial_kept,
                self.epoch, self.members, self.saved.lineage,
            ),
        )  # fmt: skip

    # ------------------------------------------------------------ configurations

    def _on_configuration(self, peer: Peer, message: Configuration) -> None:
        if peer != self.config.service or message.chain != self.config.chain:
            return
        if not self.founded:
            return
        if message.behind:
            self._rolled_back(message.behind)
            return
        self.vouched = True
        self._adopt(message.epoch, message.members, message.lineage)

    def _on_stale(self, peer: Peer, message: Stale) -> None:
        """Adopt a member's configuration, once the service has accepted our serial number."""
        if self.vouched and any(m.name == peer for m in self.members):
            self._adopt(message.epoch, message.members, message.lineage)
        elif self.now_ns - self.watched_ns > self.config.heartbeat_ns:
            self._watch()

    def _adopt(self, epoch: int, members: tuple[Member, ...], lineage: int) -> None:
        """Use this configuration, if it is newer than ours or if none was used since the start."""
        if epoch == 0 or epoch < self.epoch or (epoch == self.epoch and self.active):
            return
        if epoch == self.epoch and self.saved.joining:
            # This replica crashed after it had proposed a learner. It stays inactive, and commits
            # nothing, until a new epoch has decided about that proposal.
            self._propose(members)
            return
        if self.me not in members and self.config.replicas == 1:
            # The region has only this replica, and its disk is lost: found the chain again (R8).
            # With more replicas, another disk may have what ours lost; then an operator decides.
            self.saved.epoch, self.saved.members, self.saved.clean = epoch, members, False
            self._save("refound")  # `_on_chain_saved` proposes
            return
        if self.me in members and len(members) > 1 and self.holes:
            self._leave_with_holes(epoch, members)
            return
        moved_on, refounded = epoch > self.epoch, lineage != self.saved.lineage
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
            # A learner that becomes the tail waits for the old tail's TailToken.
            self.has_token = not (self.was_learner and self.is_last and self.pred)
            self.was_learner = False
            if self.saved.gapped:
                self.saved.clean = False  # other regions may have what the disk has lost (R8)
            elif self.saved.clean and not self.holes:
                self.saved.distrust = ""
            self.saved.renounced = self.saved.gapped = False
            if not self.saved.clean and not self.saved.lost_epoch:
                self.saved.lost_epoch = epoch
        else:
            self.saved.clean, self.saved.lost_epoch = True, 0  # the tail sends us what we lack
            others = any(m.name != self.config.name for m in members)
            if lineage != self.saved.lineage or (self.saved.gapped and others):
                self._discard()
                self.saved.renounced = self.saved.gapped = False
            elif moved_on or (self.saved.renounced and others):
                self._drop_fork()
                self.saved.renounced = False
            self._disown_lost_disk()
            self.was_learner, self.has_token = True, False
        for state in self.logs.values():
            if not self.is_head:
                self._refuse_waiting(state)
        self.saved.lineage = lineage
        self._save()
        self._role_changed()
        for state in self.logs.values():
            self._answer_waiting(state)  # with more members they may be final now (R6)
        if self.is_last:
            for log in self.logs:
                self._advance(log)
        # Only now, in a new lineage: in the old one, an absent replica could return with the
        # positions that are abandoned.
        if refounded:
            self._abandon_now()
        self.abandoning.clear()  # the layer above repeats Abandon
        if self.pred:
            self._send_sync()

    def _leave_with_holes(self, epoch: int, members: tuple[Member, ...]) -> None:
        """Propose to remove this replica. It stays inactive until it is removed or is the only
        member.

        It keeps its identity: if all members have holes, the last one must be able to stay.
        """
        self.saved.distrust = f"{len(self.holes)} logs have positions that cannot be read"
        if self.now_ns - self.proposed_ns > self.config.heartbeat_ns:
            self.proposed_ns = self.now_ns
            rest = tuple(m for m in members if m != self.me)
            self._send(self.config.service, Propose(self.config.chain, epoch, rest))

    def _disown_lost_disk(self) -> None:
        """If the configuration lists our name with another disk, propose to remove that member. Its
        disk is lost, so it will never return."""
        rest = tuple(m for m in self.members if m.name != self.config.name)
        if not self.is_member and rest and len(rest) < len(self.members):
            self._propose(rest)

    def _role_changed(self) -> None:
        """Tell the layer above this replica's place."""
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
                    bool(self.saved.distrust),
                )
            )
        )

    def _drop_fork(self) -> None:
        """R1: truncate all logs at their committed ends. The chain has continued without this
        replica, and may have other batches at the positions after these ends."""
        for log, state in self.logs.items():
            if state.end > state.committed:
                self._truncate(log, state)

    def _truncate(self, log: LogId, state: LogState) -> None:
        """Truncate the log at its committed end."""
        self.counters["chain.truncated"] += 1
        state.end = state.stored = state.committed
        self.pending_bytes -= sum(pending.nbytes for pending in state.pending)
        state.pending.clear()
        state.attempt += 1
        state.failed = False
        state.dedup.truncate(state.committed)
        state.publishers_kept = min(state.publishers_kept, state.committed)
        if log in self.holes:
            left = [(lo, min(hi, state.end)) for lo, hi in self.holes[log] if lo < state.end]
            self._set_holes(log, left)
        if self.cold.get(log, 1) > state.end:
            self.cold[log] = state.end
        for follower in (self.follower, self.learner):
            if follower and follower.reading and follower.reading[1] == log:
                follower.reading = None  # the batches may be of another history
                self.out.append(AtEndOfPass("pump"))
        self.out.append(Truncate(log, state.committed))
        self.out.append(Emit(Truncated(log, state.committed)))

    def _discard(self) -> None:
        """Empty all logs: they belong to an older lineage, or may lack any of their positions."""
        for state in self.logs.values():
            self.counters["chain.discarded"] += 1
            state.committed = state.known = state.publishers_kept = 1
            state.time_ns = 0
            state.dedup = self._dedup()
            state.end = max(state.end, 2)  # above `committed`, so that `_drop_fork` truncates it
        self._drop_fork()

    # ------------------------------------------------------------ holes, and abandoned positions

    def _set_holes(self, log: LogId, holes: list[tuple[int, int]]) -> None:
        """Replace the list of a log's holes. If no log has holes now, and this is a member of a
        clean chain, the disk is trusted again."""
        if holes:
            self.holes[log] = holes
        else:
            self.holes.pop(log, None)
            if not self.holes and self.saved.distrust and self.is_member and self.saved.clean:
                self.saved.distrust = ""
                self._save()

    def _whole(self, log: LogId) -> int:
        """The end of what is on disk and can be read without a gap."""
        stored, holes = self.logs[log].stored, self.holes.get(log)
        return min(stored, holes[0][0]) if holes else stored

    def _repair(self, log: LogId, batches: tuple[Batch, ...]) -> None:
        """Fill holes of the log with those parts of `batches` that lie in a hole."""
        patches = [
            batch if lo <= batch.lo and batch.hi <= hi else batch.slice(lo, hi)
            for lo, hi in self.disk.holes(log)
            for batch in batches
            if batch.lo < hi and lo < batch.hi
        ]
        if patches:
            for batch in patches:
                self.logs[log].dedup.note(batch)
            self.counters["chain.repaired"] += 1
            self.repairing[log] = self.repairing.get(log, 0) + 1  # until `_on_repaired`
            self.out.append(Repair(log, tuple(patches), ("repair", log)))

    def _want_patches(self, peer: Peer, message: Sync) -> None:
        """At the only member: request ranges that are in holes from a learner that may have
        them."""
        for log, holes in self.holes.items():
            # The learner can send what it has on its disk and knows to be committed.
            has = min(message.ends.get(log, 1), message.committed.get(log, 1))
            for lo, hi in holes[:HOLES_AT_ONCE]:
                if lo < has:
                    self._send(peer, Wanted(self.epoch, log, lo, min(hi, has)))

    def _on_wanted(self, peer: Peer, message: Wanted) -> None:
        if not self._current(peer, message.epoch) or peer != self.pred or self.is_member:
            return
        if message.log in self.logs and 0 < message.lo < message.hi:
            hi = min(message.hi, self._whole(message.log), self.logs[message.log].committed)
            nbytes_max = self.config.forward_bytes_max
            batches = self.disk.read(message.log, message.lo, hi, nbytes_max)
            if batches:
                self._send(peer, Patch(self.epoch, message.log, tuple(batches)))

    def _on_patch(self, peer: Peer, message: Patch) -> None:
        if not self._current(peer, message.epoch) or not self.is_last:
            return
        if self.learner and peer == self.learner.peer and message.log in self.holes:
            self._repair(message.log, message.batches)

    def _on_repaired(self, log: LogId) -> None:
        """A repair was stored or has failed: read the remaining holes from the disk."""
        self.repairing[log] -= 1
        if not self.repairing[log]:
            del self.repairing[log]
            self._set_holes(log, self.disk.holes(log))
            if self.holes and self.learner and self.learner_sync:
                self._want_patches(self.learner.peer, self.learner_sync)
            self.out.append(Emit(Mended(log)))
            self._ack_as_learner(log)
            if self.pred and not self.is_member and log not in self.holes:
                self._send_sync()  # a tail with holes may request what can be read now
            self._pump()

    def _abandon_now(self) -> None:
        """Truncate the positions that the layer above has abandoned, if this is the only member."""
        if not self.abandoning or not (self.is_head and self.is_last):
            return
        for log, end in self.abandoning.items():
            state = self.logs[log]
            if end < state.end:
                state.committed = min(state.committed, end)
                state.known = min(state.known, end)
                state.time_ns = 0
                # The time of the last event that is left.
                for batch in self.disk.read(log, max(1, end - 1), end, 1):
                    state.time_ns = batch.time_ns
                self._refuse_waiting(state)
                self._truncate(log, state)
        self.abandoning.clear()
        self._save_committed()

    def ahead(self) -> list[Peer]:
        """Replicas that recently reported more positions than we have."""
        since_ns = self.now_ns - 10 * self.config.sync_ns
        return [peer for peer, at_ns in self.ahead_ns.items() if at_ns >= since_ns]

    def _refuse_waiting(self, state: LogState) -> None:
        """Refuse all submissions of a log that are not answered yet; their publishers retry."""
        for token in state.waiting:
            self.out.append(Emit(Refused(token, "not-head")))
        state.waiting.clear()

    def _propose(self, members: tuple[Member, ...]) -> None:
        self.proposed_ns = self.now_ns
        self._send(self.config.service, Propose(self.config.chain, self.epoch, members))

    def _send_stale(self, peer: Peer) -> None:
        self._send(peer, Stale(self.epoch, self.members, self.saved.lineage))

    def _current(self, peer: Peer, epoch: int) -> bool:
        """Whether a message of this epoch is to be handled: only if it is our own epoch. If the
        sender's epoch is older, send it our configuration; if ours is older, query the service."""
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

    # ------------------------------------------------------------ the beat timer

    def _on_beat_timer(self) -> None:
        config, now_ns = self.config, self.now_ns
        self.out.append(SetTimer("beat", now_ns + config.heartbeat_ns))
        if now_ns - self.beat_ns > 3 * config.heartbeat_ns:
            # This replica was paused: do not suspect the neighbours for the time of the pause.
            for peer in self.heard_ns:
                self.heard_ns[peer] = now_ns
        self.beat_ns = now_ns
        if not self.founded:  # the first write failed, or is still in progress
            self._save()
            self._save_committed()
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
            # A tail that has dropped us as a learner is silent, even if the session is still up.
            if now_ns - self.heard_ns.setdefault(self.pred, now_ns) > config.suspect_ns:
                self.synced = False
        if self.pred and not self.synced and now_ns - self.sync_sent_ns > config.sync_ns:
            self._send_sync()
        self._tend_learner()

    def _on_beat(self, peer: Peer, message: Beat) -> None:
        self._current(peer, message.epoch)

    def _leave(self) -> None:
        """Propose to remove this replica: its disk does not work, or its log lacks positions."""
        rest = tuple(m for m in self.members if m != self.me)
        since_ns = self.now_ns - self.config.suspect_ns
        # Not if all others seem to be down: their logs may be shorter than ours.
        alive = any(self.heard_ns.get(m.name, since_ns - 1) >= since_ns for m in rest)
        if self.is_member and alive:
            self.counters["chain.left"] += 1
            self._propose(rest)

    # ------------------------------------------------------------ catching up with a predecessor

    def _send_sync(self) -> None:
        """Report the ends of our logs to the predecessor (or tail), which sends what we lack."""
        assert self.pred is not None
        self.synced = False
        self.sync_sent_ns = self.now_ns
        ends = {log: self._whole(log) for log in self.logs}
        committed = {log: min(s.committed, ends[log]) for log, s in self.logs.items()}
        self._send(self.pred, Sync(self.epoch, self.me, ends, committed))

    def _on_sync(self, peer: Peer, message: Sync) -> None:
        if message.member.name != peer or not self._current(peer, message.epoch):
            return
        ahead = [log for log, end in message.ends.items() if end > self._log(log).stored]
        if ahead:  # we forward only what we have stored, so our disk has lost something
            self.counters["chain.successor-ahead"] += 1
            self.ahead_ns[peer] = self.now_ns
            if peer == self.succ:
                self._leave()
            return
        if peer == self.succ and message.member not in self.members:
            self._propose(tuple(m for m in self.members if m.name != peer))  # it lost its disk
            return
        if peer == self.succ:
            self.follower = Follower(peer, dict(message.ends), {})
            # Send the TailToken again: the session may have ended before it arrived.
            self.owes_token = self.members[-1].name == peer
            for log, upto in message.committed.items():
                self._commit(log, min(upto, self._log(log).stored))
        elif self.is_last and message.member not in self.members:
            busy = self.learner and self.learner.peer != peer
            if busy and self.learner and self.now_ns - self.learner.heard_ns < self.config.sync_ns:
                return  # one learner at a time
            if self.join and self.learner_member != message.member:
                if self.join == PROPOSED:
                    return
                self._ungate()  # commits have waited for another learner
            self.learner = Follower(peer, dict(message.ends), {})  # it will send Acks
            self.learner_member = message.member
            self.learner_sync = message
            self._want_patches(peer, message)
        else:
            self._send_stale(peer)
            return
        self._send(peer, SyncAck(self.epoch))
        self._pump()

    def _on_sync_ack(self, peer: Peer, message: SyncAck) -> None:
        if self._current(peer, message.epoch) and peer == self.pred:
            self.synced = True
            self._ack_as_learner(*self.logs)

    # ------------------------------------------------------------ adding a learner

    def _gate(self, log: LogId) -> int:
        """The end up to which the tail may commit. While a learner is being added, the tail may
        commit only what the learner has stored, too."""
        stored = self.logs[log].stored
        if not self.join or self.learner is None:
            return stored
        return min(stored, self.learner.acked.get(log, 1))

    def _tend_learner(self) -> None:
        """At the last member: take the next step with a learner (catching up, gating, proposed)."""
        learner, config = self.learner, self.config
        if learner is None or not self.is_last:
            return
        for log, state in self.logs.items():  # an empty Forward tells the learner what is committed
            if learner.committed.get(log, 1) < state.committed <= learner.acked.get(log, 1):
                learner.committed[log] = state.committed
                self._send(learner.peer, Forward(self.epoch, log, (), state.committed))
        gone = self.now_ns - self.heard_ns.get(learner.peer, self.now_ns) > config.suspect_ns
        learner.heard_ns = self.heard_ns.get(learner.peer, self.now_ns)
        if self.join == PROPOSED:
            if self.now_ns - self.proposed_ns > config.suspect_ns:
                # No decision yet: propose again, without the learner if it seems to be down.
                extra = () if gone or not self.learner_member else (self.learner_member,)
                self._propose((*self.members, *extra))
            return
        late = bool(self.join) and self.now_ns - self.join_since_ns > 4 * config.suspect_ns
        if gone or late:
            self._ungate()
            self.learner = None  # it will send another Sync
            return
        if not self.saved.clean or self.holes:
            return  # our logs are incomplete, and the learner would not know that (R8)
        if not all(learner.publishers_kept.get(log, False) for log in self.logs):
            return  # the learner cannot recognise retries yet (R4)
        logs = self.logs.items()
        if not self.join:
            lag = sum(state.stored - learner.acked.get(log, 1) for log, state in logs)
            if lag <= config.join_lag_max:
                self.join, self.join_since_ns = GATING, self.now_ns
        caught_up = all(learner.acked.get(log, 1) >= state.committed for log, state in logs)
        if self.join == GATING and caught_up and not self.saved.joining:
            self.saved.joining = True
            self._save(GATING, learner.peer)  # `_on_chain_saved` proposes

    def _on_chain_saved(self, epoch: int, then: str, peer: Peer) -> None:
        """`saved` is on disk: send the messages that had to wait for it."""
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
        """Report the ends of our logs to the tail. Only once our epoch is on disk: with an older
        epoch, a restart would truncate the logs (R1)."""
        if self.active and not self.is_member and self.pred and self.kept_epoch == self.epoch:
            for log in logs:
                self._send(self.pred, Ack(self.epoch, log, self._whole(log)))

    def _ungate(self) -> None:
        """Stop waiting for a learner before commits. It was not proposed yet."""
        self.join = ""
        self.saved.joining = False
        for log in self.logs:
            self._advance(log)

    def _on_tail_token(self, peer: Peer, message: TailToken) -> None:
        if self._current(peer, message.epoch) and peer == self.pred and not self.has_token:
            self.has_token = True
            self._role_changed()

    # ------------------------------------------------------------ implemented by Replica

    def _advance(self, log: LogId) -> None:
        raise NotImplementedError

    def _commit(self, log: LogId, upto: int) -> None:
        raise NotImplementedError

    def _answer_waiting(self, state: LogState) -> None:
        raise NotImplementedError

    def _pump(self) -> None:
        raise NotImplementedError
