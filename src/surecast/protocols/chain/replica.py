"""One replica of a chain: it accepts, appends, stores, forwards, commits and acknowledges batches.

A batch takes the same path at every replica:

    appended (by the head with new positions)  →  stored on disk  →  forwarded to the successor
    →  acknowledged by the successor  →  committed

roles.py has the base class, which handles the replica's place in the chain. R1 to R10 are rules of
the pages in docs/protocols.

G10 with up to f crashes, or a crash of all replicas that keeps their disks, no acknowledged event
is lost, no position is assigned twice, no retry is appended again, and each publisher's order is
kept.

The tokens of storage effects, and what the effect writes:

    ("append", log, attempt)           batches of a log (`LogState.attempt`)
    ("repair", log)                    batches that fill holes
    ("committed", serial)              the committed ends of all logs, and the serial number
    ("chain", epoch, then, peer)       `Roles.saved`; `then`, `peer`: what to do next (`_save`)
    ("publishers", log, end, data)     the publishers' state `data` of a log below `end`
    ("compact", command, lineage, end, saves)
                                       what must be on disk before the compaction `command`: the
                                       publishers' state below `end` (`saves`: its number), or only
                                       the committed end of the log (`end` and `saves` are 0)
    ("compacted", log, lo, hi)         the compaction itself
    ("damage",)                        the state `DAMAGE`, as empty

The keys of timers: "beat" and "save" (regular); the rest repeat or delay a write: a log's id (its
appends), "damage", "save chain", ("compact", log), and the token of a write of "publishers".
"""

from typing import Any, ClassVar

import msgspec

from surecast.columns.batch import DATA
from surecast.core.fragments import parts_of
from surecast.core.replicated import (
    Abandon,
    AppendAt,
    Appended,
    AppendOwn,
    AskPublishers,
    Committed,
    CompactLog,
    Overtaken,
    PublishersAre,
    Recovered,
    Refound,
    Refused,
    Rewritten,
    RolledBack,
    StoreFull,
    Submit,
    Submitted,
    TakePublishers,
)
from surecast.core.types import (
    DAMAGE,
    Append,
    AtEndOfPass,
    Batch,
    ColdBelow,
    Compact,
    Compacted,
    Congested,
    Emit,
    EndOfPass,
    Loaded,
    LogId,
    Peer,
    PeerDown,
    PeerUp,
    Read,
    SaveState,
    SetTimer,
    Start,
    Stored,
    StoreFailed,
    TimerFired,
    Writable,
)
from surecast.errors import StorageError
from surecast.protocols.chain.dedup import DUPLICATE, EXPIRED, MISMATCH, OUT_OF_ORDER
from surecast.protocols.chain.logs import Follower, LogState, Pending
from surecast.protocols.chain.messages import (
    Ack,
    Beat,
    Configuration,
    Forward,
    Patch,
    Propose,
    Publishers,
    PublishersKept,
    Stale,
    Sync,
    SyncAck,
    TailToken,
    Wanted,
)
from surecast.protocols.chain.roles import Roles

__all__ = ["Replica"]

# Most Forward messages to one follower that catches up, in one step: new batches are not delayed.
FORWARDS_PER_PUMP = 8


class Replica(Roles):
    """A chain replica; the lowest layer of a region server."""

    provides = ("replicated",)
    handlers: ClassVar[dict[type, str]] = {
        Forward: "_on_forward",
        Ack: "_on_ack",
        Beat: "_on_beat",
        Sync: "_on_sync",
        SyncAck: "_on_sync_ack",
        Publishers: "_on_publishers",
        PublishersKept: "_on_publishers_kept",
        Wanted: "_on_wanted",
        Patch: "_on_patch",
        TailToken: "_on_tail_token",
        Stale: "_on_stale",
        Configuration: "_on_configuration",
    }
    inputs: ClassVar[dict[type, str]] = {
        Submit: "_on_submit",
        AppendAt: "_on_append_at",
        AppendOwn: "_on_append_own",
        CompactLog: "_on_compact_log",
        AskPublishers: "_on_ask_publishers",
        TakePublishers: "_on_take_publishers",
        Recovered: "_on_recovered",
        RolledBack: "_on_rolled_back",
        Overtaken: "_on_overtaken",
        Abandon: "_on_abandon",
        Refound: "_on_refound",
        Stored: "_on_stored",
        StoreFailed: "_on_store_failed",
        Compacted: "_on_compacted",
        ColdBelow: "_on_cold_below",
        Loaded: "_on_loaded",
        TimerFired: "_on_timer",
        EndOfPass: "_on_end_of_pass",
        PeerUp: "_on_peer_up",
        PeerDown: "_on_peer_down",
        Congested: "_on_congested",
        Writable: "_on_writable",
        Start: "_on_start",
    }

    def _on_start(self, _inp: Start) -> None:
        self._restore()
        for log, state in self.logs.items():
            self.out.append(Emit(Appended(log, state.end)))
            self.out.append(Emit(Committed(log, state.committed)))
        self.beat_ns = self.now_ns
        self.out.append(SetTimer("beat", self.now_ns + self.config.heartbeat_ns))
        self.out.append(SetTimer("save", self.now_ns + self.config.save_ns))

    def _on_end_of_pass(self, _inp: EndOfPass) -> None:
        self._pump()

    def _on_timer(self, inp: TimerFired) -> None:
        if inp.key == "beat":
            self._on_beat_timer()
        elif inp.key == "save":
            self.out.append(SetTimer("save", self.now_ns + self.config.save_ns))
            for state in self.logs.values():
                if state.dedup.is_crowded():
                    state.dedup.forget()
            if self.dirty:
                self._save_committed()
        else:
            self._on_retry_timer(inp.key)

    # ------------------------------------------------------------ appending

    def _on_submit(self, inp: Submit) -> None:
        """Append a publisher's batch exactly once; emit Submitted when it is committed (R2, R3,
        R6)."""
        refuse = ""
        if not self.is_head:
            refuse = "not-head"
        elif len(self.members) < self.config.writable_min:
            refuse = "too-few-replicas"
        elif self.pending_bytes > self.config.pending_bytes_max:
            refuse = "busy"
        if refuse:
            self.out.append(Emit(Refused(inp.token, refuse)))
            return
        state = self._log(inp.log)
        batch = inp.batch
        verdict = state.dedup.check(batch, self.wall_ns)
        if verdict.kind == DUPLICATE:
            hi = verdict.number + batch.count
            if self._is_final(state, hi):
                self.out.append(Emit(Submitted(inp.token, verdict.number)))
            else:
                state.waiting[inp.token] = (hi, verdict.number)
        elif verdict.kind in (OUT_OF_ORDER, MISMATCH, EXPIRED):
            why = {OUT_OF_ORDER: "out-of-order", MISMATCH: "mismatch", EXPIRED: "expired"}
            self.out.append(Emit(Refused(inp.token, why[verdict.kind], verdict.number)))
        elif inp.refuse:
            self.out.append(Emit(Refused(inp.token, inp.refuse)))
        else:
            batch = batch.sequenced(state.end, self._stamp(state), self.epoch)
            state.waiting[inp.token] = (batch.hi, batch.lo)
            self._append(inp.log, (batch,))

    def _is_final(self, state: LogState, hi: int) -> bool:
        """Whether a batch that ends at `hi` may be acknowledged. R2: only when it is committed,
        also if it is a retry. R6: only while the chain has as many members as an acknowledgement
        promises (it may have lost some since the batch was appended)."""
        return hi <= state.committed and len(self.members) >= self.config.writable_min

    def _stamp(self, state: LogState) -> int:
        """R10: the time of a new batch: the head's clock, but never less than the log's last
        time."""
        return max(state.time_ns, self.wall_ns)

    def _on_append_own(self, inp: AppendOwn) -> None:
        if self.is_head:
            state = self._log(inp.log)
            self._append(inp.log, (inp.batch.sequenced(state.end, self._stamp(state), self.epoch),))

    def _on_append_at(self, inp: AppendAt) -> None:
        if self.is_head and self.pending_bytes <= self.config.pending_bytes_max:
            self._append_missing(inp.log, inp.batches)

    def _append_missing(self, log: LogId, batches: tuple[Batch, ...]) -> bool:
        """Append the positions that are not here yet; False if there is a gap before them."""
        if log in self.holes:
            self._repair(log, batches)
        end = self._log(log).end
        fresh = []
        for batch in batches:
            if batch.hi <= end:
                continue
            if batch.lo > end:
                self.counters["chain.gap"] += 1
                return False
            fresh.append(batch if batch.lo == end else batch.slice(end, batch.hi))
            end = batch.hi
        if fresh:
            self._append(log, tuple(fresh))
        return True

    def _append(self, log: LogId, batches: tuple[Batch, ...]) -> None:
        """Append batches that begin at the log's end, and begin to write them to disk."""
        state = self._log(log)
        assert batches[0].lo == state.end, "positions are given without gaps"
        for batch in batches:
            state.dedup.note(batch)
        state.time_ns = max(state.time_ns, batches[-1].time_ns)
        nbytes = sum(batch.nbytes for batch in batches)
        pending = Pending(state.end, batches[-1].hi, nbytes, batches)
        state.end = pending.hi
        state.pending.append(pending)
        self.pending_bytes += nbytes
        self.out.append(Emit(Appended(log, state.end)))
        if not state.failed:  # else the next attempt writes these batches, too
            self.out.append(Append(log, batches, ("append", log, state.attempt)))

    # ------------------------------------------------------------ the disk

    def _on_stored(self, inp: Stored) -> None:
        what = inp.token[0]
        if what == "append":
            _, log, attempt = inp.token
            state = self.logs[log]
            if attempt == state.attempt:  # else the log was truncated or the write repeated
                self.store_failures = 0
                pending = state.pending.popleft()
                self.pending_bytes -= pending.nbytes
                self._stored(log, state, pending)
        elif what == "committed":
            self._on_counted(inp.token[1])
        elif what == "repair":
            self._on_repaired(inp.token[1])
        elif what == "chain":
            self._on_chain_saved(*inp.token[1:])
        elif what == "publishers":
            self._on_publishers_saved(inp.token[1])
        elif what == "compact":
            _, command, lineage, end, saves = inp.token
            if lineage == self.saved.lineage:
                state = self.logs[command.log]
                if saves == state.saves:  # else another state was written after this one
                    state.publishers_kept = end
                self._compact_now(command)
            else:  # the chain was founded again meanwhile
                self.out.append(Emit(Rewritten(command.log, command.lo, command.hi, False)))

    def _stored(self, log: LogId, state: LogState, pending: Pending) -> None:
        """`pending` is on disk. R6: only now it is forwarded to the successor and a learner."""
        state.stored = pending.hi
        for follower in (self.follower, self.learner):
            if follower is None:
                continue
            # If the follower was sent all that comes before, forward the batches from memory. Else
            # `_pump` reads them from the disk.
            if follower.sent.get(log, 1) == pending.lo and follower.peer not in self.congested:
                follower.sent[log] = pending.hi
                self._send(
                    follower.peer, Forward(self.epoch, log, pending.batches, state.committed)
                )
            if follower.sent.get(log, 1) < state.stored or log not in follower.publishers_sent:
                self._pump()
        if self.is_last:
            self._advance(log)
        elif self.active and not self.is_member and self.pred:  # as a learner
            self._ack_as_learner(log)
            self._commit(log, min(state.known, state.stored))

    def _on_store_failed(self, inp: StoreFailed) -> None:
        self.counters[f"chain.store-failed.{inp.reason}"] += 1
        if inp.reason == "full":
            self.out.append(Emit(StoreFull()))
        if inp.token[0] == "append":
            _, log, attempt = inp.token
            state = self.logs[log]
            if attempt == state.attempt:
                state.attempt += 1
                state.failed = True
                self.store_failures += 1
                self.out.append(SetTimer(log, self.now_ns + self.config.store_retry_ns))
                if self.store_failures > self.config.store_retries_max:
                    self._leave()
        elif inp.token[0] == "repair":
            self._on_repaired(inp.token[1])
            self.synced = False  # so that a Sync is sent, and the missing positions are sent again
        elif inp.token[0] == "damage":
            self.out.append(SetTimer("damage", self.now_ns + self.config.store_retry_ns))
        elif inp.token[0] in ("chain", "committed"):
            self.dirty = True
            if inp.token[0] == "chain":
                self.out.append(SetTimer("save chain", self.now_ns + self.config.store_retry_ns))
        elif inp.token[0] == "publishers":  # retried: the predecessor waits for PublishersKept
            self.out.append(SetTimer(inp.token, self.now_ns + self.config.store_retry_ns))
        elif inp.token[0] == "compact":
            command = inp.token[1]
            self.out.append(Emit(Rewritten(command.log, command.lo, command.hi, False)))
        elif inp.token[0] == "compacted":
            _, log, lo, hi = inp.token
            self.out.append(Emit(Rewritten(log, lo, hi, False)))

    def _on_retry_timer(self, key: Any) -> None:
        """Do the write that was repeated or delayed by this timer (the module docstring has the
        keys)."""
        if key == "damage":
            self.out.append(SaveState(DAMAGE, b"", ("damage",)))
            return
        if key == "save chain":
            if not self.saved.clean and not self.active:
                self._save("refound")
            else:
                self._save(self.join, self.learner.peer if self.learner else "")
            return
        if key[0] == "compact":
            state = self.logs[key[1]]
            command, state.compacting = state.compacting, None
            if command is not None and command.hi <= state.committed:
                self._keep_publishers(command, state)
            elif command is not None:  # its positions were truncated
                self.out.append(Emit(Rewritten(command.log, command.lo, command.hi, False)))
            return
        if key not in self.logs:  # the token of a write of the publishers' state
            _, log, end, data = key
            state = self.logs[log]
            if state.stored >= end:  # do not overwrite a newer state that was saved meanwhile
                end, data = state.stored, self._publishers_at(state, state.stored)
            self._save_publishers(log, end, data, ("publishers", log, end, data))
            return
        state = self.logs[key]
        if not state.failed:
            return  # the pending appends were truncated meanwhile
        state.failed = False
        for pending in state.pending:
            self.out.append(Append(key, pending.batches, ("append", key, state.attempt)))

    # ------------------------------------------------------------ down the chain

    def _on_forward(self, peer: Peer, message: Forward) -> None:
        if not self._current(peer, message.epoch) or peer != self.pred:
            return
        if not self._append_missing(message.log, message.batches):
            self._send_sync()
            return
        state = self._log(message.log)
        state.known = max(state.known, message.committed)
        self._commit(message.log, min(state.known, state.stored))

    def _pump(self) -> None:
        """Send the successor and a learner the batches that they lack, a few messages at a time."""
        more = False
        for follower in (self.follower, self.learner):
            if follower is not None and follower.peer not in self.congested:
                more = self._pump_follower(follower) or more
        if more:
            self.out.append(AtEndOfPass("pump"))

    def _forward(self, follower: Follower, log: LogId, batches: tuple[Batch, ...]) -> None:
        """Send batches of our disk to a follower."""
        committed = self.logs[log].committed
        self._send(follower.peer, Forward(self.epoch, log, batches, committed))
        follower.sent[log] = batches[-1].hi
        if any(b.rows != b.count or (b.kind == DATA and not b.pub_no) for b in batches):
            # Compacted: the follower cannot compute the publishers' state from these batches, so
            # the state must be sent again after them.
            follower.publishers_sent.pop(log, None)
            follower.publishers_kept.pop(log, None)

    # ------------------------------------------------------------ cold reads

    def _on_cold_below(self, inp: ColdBelow) -> None:
        for log, end in inp.ends:
            self.cold[log] = max(end, self.cold.get(log, 1))

    def _read_for(self, follower: Follower, log: LogId, lo: int, hi: int) -> None:
        """Read what a follower lacks without delaying this replica; one read at a time."""
        if follower.reading is None:
            self.cold_reads += 1
            follower.reading = ("pump", log, lo, self.cold_reads)
            nbytes_max = self.config.forward_bytes_max
            self.out.append(Read(log, lo, hi, nbytes_max, follower.reading))

    def _on_loaded(self, inp: Loaded) -> None:
        _, log, lo, _ = inp.token
        for follower in (self.follower, self.learner):
            if follower is None or follower.reading != inp.token:
                continue  # the follower is another one, or the log was truncated
            follower.reading = None
            if inp.problem:
                raise StorageError(inp.problem)
            self.counters["chain.cold-reads"] += 1
            assert inp.batches, f"log {log.hex()[:8]} does not hold position {lo}"
            if follower.sent.get(log, 1) == lo:
                self._forward(follower, log, inp.batches)
            self._pump()

    def _pump_follower(self, follower: Follower) -> bool:
        """Send one follower the next batches that it lacks, then the publishers' states and the
        TailToken. Returns whether more batches are left to send."""
        budget = FORWARDS_PER_PUMP
        for log, state in self.logs.items():
            # The end of what was sent, and of what can be sent.
            sent, whole = follower.sent.get(log, 1), self._whole(log)
            while sent < whole and budget:
                if sent < self.cold.get(log, 1):
                    self._read_for(follower, log, sent, whole)
                    return False  # the rest follows after Loaded
                budget -= 1
                batches = tuple(self.disk.read(log, sent, whole, self.config.forward_bytes_max))
                self._forward(follower, log, batches)
                sent = batches[-1].hi
            if sent < whole:
                return True
            if sent < state.stored:
                continue  # positions after `whole` are in a hole of our disk
            if log not in follower.publishers_sent:
                follower.publishers_sent[log] = sent
                snapshot = self._publishers_at(state, sent)
                for at, part in parts_of(snapshot):
                    message = Publishers(self.epoch, log, sent, part, at, len(snapshot))
                    self._send(follower.peer, message)
        if self.owes_token and follower is self.follower:
            self.owes_token = False
            self._send(follower.peer, TailToken(self.epoch))
        return False

    def _publishers_at(self, state: LogState, end: int) -> bytes:
        """R4: the publishers' state as bytes. A replica that joins, or has received compacted
        batches, needs this state to recognise retries."""
        return state.dedup.snapshot(end)

    def _on_publishers(self, peer: Peer, message: Publishers) -> None:
        if not self._current(peer, message.epoch) or peer != self.pred:
            return
        state = self._log(message.log)
        if state.end < message.end:
            return  # batches before this message are missing; a later Sync requests all again
        data = state.parts.take(message.at, message.data, message.total or len(message.data))
        if data is not None:
            state.dedup.replace(data, message.end)
            self._pass_publishers_on(message.log, message.end, data)

    def _pass_publishers_on(self, log: LogId, end: int, data: bytes) -> None:
        """Save a new publishers' state, and send it to the successor and a learner again."""
        self._save_publishers(log, end, data, ("publishers", log, end, data))
        for follower in (self.follower, self.learner):
            if follower and log in follower.publishers_sent:
                del follower.publishers_sent[log]
                follower.publishers_kept.pop(log, None)
        self._pump()

    def _on_ask_publishers(self, inp: AskPublishers) -> None:
        end = min(inp.end, self._log(inp.log).committed)
        data = self._publishers_at(self.logs[inp.log], end)
        self.out.append(Emit(PublishersAre(inp.token, inp.log, end, data)))

    def _on_take_publishers(self, inp: TakePublishers) -> None:
        state = self._log(inp.log)
        if self.is_head and inp.end <= state.end:
            if inp.data:
                state.dedup.merge(inp.data)
            state.dedup.horizon_ns = max(state.dedup.horizon_ns, inp.horizon_ns)
            if inp.known_too:
                state.dedup.expire(inp.horizon_ns)
            data = self._publishers_at(state, state.stored)
            self._pass_publishers_on(inp.log, state.stored, data)

    def _save_publishers(self, log: LogId, end: int, data: bytes, token: tuple[Any, ...]) -> None:
        """Write the publishers' state `data` of positions below `end`.

        The log's committed end is written with it: after a restart, the events that made the
        compacted positions void must still count as committed.
        """
        state = self.logs[log]
        state.saves += 1
        state.publishers_kept = min(state.publishers_kept, end)
        saved = msgspec.msgpack.encode((end, data, state.committed))
        self.out.append(SaveState(f"publishers/{log.hex()}", saved, token))

    def _on_publishers_saved(self, log: LogId) -> None:
        if self.active and self.pred:
            self._send(self.pred, PublishersKept(self.epoch, log))

    def _on_publishers_kept(self, peer: Peer, message: PublishersKept) -> None:
        if self._current(peer, message.epoch):
            for follower in (self.follower, self.learner):
                if follower and follower.peer == peer:
                    follower.publishers_kept[message.log] = True

    # ------------------------------------------------------------ back up the chain

    def _on_ack(self, peer: Peer, message: Ack) -> None:
        if not self._current(peer, message.epoch):
            return
        state = self._log(message.log)
        if peer == self.succ:
            self._commit(message.log, min(message.upto, state.stored))
        elif self.learner and peer == self.learner.peer:
            upto = min(message.upto, state.stored)
            self.learner.acked[message.log] = max(self.learner.acked.get(message.log, 1), upto)
            if self.join:
                self._advance(message.log)

    def _advance(self, log: LogId) -> None:
        """At the tail, commit what is stored; while a learner is gated, what both have stored."""
        if self.is_last:
            self._commit(log, self._gate(log))

    def _commit(self, log: LogId, upto: int) -> None:
        """Raise the log's committed end to `upto`, if it is lower."""
        state = self._log(log)
        if upto <= state.committed:
            return
        assert upto <= state.stored, "committed beyond our own disk"
        state.committed = upto
        self.dirty = True
        if self.is_member and self.pred:
            self._send(self.pred, Ack(self.epoch, log, upto))
        self.out.append(Emit(Committed(log, upto)))
        self._answer_waiting(state)

    def _answer_waiting(self, state: LogState) -> None:
        """Emit Submitted for all submissions of a log that are final now."""
        waiting = state.waiting
        while waiting:
            token = next(iter(waiting))
            hi, lo = waiting[token]
            if not self._is_final(state, hi):
                return  # the entries after this one are later batches, or retries, which may wait
            del waiting[token]
            self.out.append(Emit(Submitted(token, lo)))

    # ------------------------------------------------------------ compaction

    def _on_compact_log(self, inp: CompactLog) -> None:
        """R4, R5: only committed positions are compacted, and only after the publishers' state is
        on disk, because compacted batches no longer have their publishers and numbers."""
        state = self._log(inp.log)
        assert inp.hi <= state.committed, "only what is committed is compacted"
        if inp.hi <= state.publishers_kept:
            # First save `committed`: after a restart, the events that made the compacted positions
            # void must still count as committed.
            token = ("compact", inp, self.saved.lineage, 0, 0)
            data = msgspec.msgpack.encode(state.committed)
            self.out.append(SaveState(f"committed/{inp.log.hex()}", data, token))
            return
        wait_ns = (
            state.publishers_kept_ns
            + state.publishers_kept_bytes * self.config.snapshot_ns_per_byte
            - self.now_ns
        )
        if wait_ns > 0:  # a large state is written once for several compactions
            state.compacting = inp
            self.out.append(SetTimer(("compact", inp.log), self.now_ns + wait_ns))
            return
        self._keep_publishers(inp, state)

    def _keep_publishers(self, inp: CompactLog, state: LogState) -> None:
        """Write the publishers' state to disk; when it is stored, the compaction begins."""
        state.dedup.forget()
        # Only up to the stored end: if a pending append fails, the saved state must not contain it.
        snapshot = self._publishers_at(state, state.stored)
        state.publishers_kept_ns, state.publishers_kept_bytes = self.now_ns, len(snapshot)
        number = state.saves + 1  # that `_save_publishers` gives to this write
        token = ("compact", inp, self.saved.lineage, state.stored, number)
        self._save_publishers(inp.log, state.stored, snapshot, token)

    def _compact_now(self, inp: CompactLog) -> None:
        token = ("compacted", inp.log, inp.lo, inp.hi)
        self.out.append(Compact(inp.log, inp.lo, inp.hi, inp.voids, inp.rows_max, token))

    def _on_compacted(self, inp: Compacted) -> None:
        self.counters["chain.compacted"] += 1
        _, log, lo, hi = inp.token
        self.out.append(Emit(Rewritten(log, lo, hi, True)))

    # ------------------------------------------------------------ peers

    def _on_peer_up(self, inp: PeerUp) -> None:
        self.congested.pop(inp.peer, None)
        if inp.peer == self.pred and not self.synced:
            self._send_sync()
        if inp.peer == self.config.service and not self.active:
            self._watch()

    def _on_peer_down(self, inp: PeerDown) -> None:
        self.congested.pop(inp.peer, None)
        if inp.peer == self.pred:
            self.synced = False

    def _on_congested(self, inp: Congested) -> None:
        self.congested[inp.peer] = True

    def _on_writable(self, inp: Writable) -> None:
        self.congested.pop(inp.peer, None)
        self._pump()

    def _on_refound(self, _inp: Refound) -> None:
        """An operator decided to found the chain again with this replica as the only member. If it
        is a member already, continue with what is on its disk."""
        self.saved.distrust = ""
        if not self.is_member:
            self.saved.clean = False  # other regions may have more of our streams (R8)
            self._save("refound by force")
        elif not self.saved.clean:
            self._save()
            self._role_changed()

    def _on_rolled_back(self, inp: RolledBack) -> None:
        if inp.disk == self.saved.disk:
            alone = self.is_head and self.is_last and self.config.replicas > 1
            self._rolled_back(inp.serial, alone)

    def _on_overtaken(self, inp: Overtaken) -> None:
        """Propose the same members again, which raises the epoch, until it reaches `inp.epoch`.

        If our configuration is out of date, the service answers with the current one instead.
        """
        waited_ns = self.now_ns - self.proposed_ns
        if self.is_member and self.epoch < inp.epoch and waited_ns > self.config.heartbeat_ns:
            self._propose(self.members)

    def _on_abandon(self, inp: Abandon) -> None:
        if not self.is_head:
            return
        self.abandoning[inp.log] = inp.end
        if self.config.replicas == 1:
            self._abandon_now()
        else:  # found the chain again: the others discard their logs and fetch them from us
            self.counters["chain.founded-anew"] += 1
            self._send(
                self.config.service, Propose(self.config.chain, self.epoch, (self.me,), force=True)
            )

    def _on_recovered(self, _inp: Recovered) -> None:
        if not self.saved.clean:
            self.saved.clean, self.saved.lost_epoch = True, 0
            if not self.holes:
                self.saved.distrust = ""
            self._save()
            self._role_changed()
