"""Named subscriptions: a position in each stream, kept by the region across restarts of clients.

A named subscription is also called a *cursor*. Its *holder* is the client that reads under its name
and saves its positions. If another client takes the name, the previous holder is *fenced*: it may
no longer save positions. The cursors of a region are entries in a log of its chain, like the
directory. The log is replicated, and compacted so that the latest entry of each key stays
(`cursor_log.py`). The head of the chain writes all entries. It refuses requests of clients other
than the holder, so that a fenced client cannot move the cursor of its successor. A new head answers
no request before everything that its predecessors wrote is committed, because this may contain a
new holder.

A reset or a deletion (by an operator) is one batch of entries. It removes the holder and changes
the positions in one step, so the former holder cannot save a position after it.

When a stream is deleted, the head removes the positions in it, also by entries in the log. A new
head looks for such positions once, because its predecessor may not have removed all of them.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

from surecast.columns.batch import COLLECT
from surecast.core.disk import read_through
from surecast.core.machine import HandlerMachine
from surecast.core.names import is_name
from surecast.core.replicated import AppendOwn, RoleChanged
from surecast.core.streams import (
    CURSORS,
    CursorPosition,
    CursorState,
    LogMoved,
    StreamDeleted,
    Streams,
    TakenBack,
)
from surecast.core.types import Disk, LogId, PassDown, Peer, PeerDown
from surecast.protocols.streams.config import StreamsConfig
from surecast.protocols.streams.cursor_log import (
    Cursor,
    CursorEntry,
    CursorTable,
    collect_batch,
    collected_below,
    decode_entry,
    entries_batch,
)
from surecast.protocols.streams.messages import (
    Advance,
    Advanced,
    Attach,
    Attached,
    CursorChanged,
    CursorDelete,
    CursorReset,
    CursorsAre,
    Detach,
    ListCursors,
)

__all__ = ["Cursors"]

HOLDER_LEN = 16
WAITING_MAX = 10_000  # most requests that wait for an answer
READ_BYTES = 256 << 10  # bytes of the log that are read at a time
COPIED_AT_ONCE = 1_000  # about how many entries are copied before waiting for their commit
REMOVED_AT_ONCE = 1_000  # the same for positions in deleted streams that are removed

Question = Attach | Advance | CursorReset | CursorDelete


@dataclass(slots=True)
class Written:
    """Entries of one name that the head has appended to the log and that are not all committed."""

    cursor: Cursor  # as it will be when the entries are committed
    end: int = 1  # the position after the last of the entries


@dataclass(slots=True)
class Waiting:
    """A client to be answered when the log is committed up to `end`."""

    peer: Peer
    question: Question  # its request
    end: int


@dataclass(slots=True)
class Copying:
    """All valid entries are being copied to the end of the log, a part at a time."""

    start: int  # the position of the first copy
    names: list[str]  # still to be copied, in reverse order
    end: int  # the position after the last part that was copied
    collected: bool = False  # everything is copied, and the COLLECT event is appended


class Cursors(HandlerMachine):
    """Named subscriptions: a layer over the stream service, which keeps their log."""

    uses = ("streams",)
    handlers: ClassVar[dict[type, str]] = {
        Attach: "_on_attach",
        Advance: "_on_advance",
        Detach: "_on_detach",
        ListCursors: "_on_list",
        CursorReset: "_on_reset",
        CursorDelete: "_on_delete",
    }
    inputs: ClassVar[dict[type, str]] = {PeerDown: "_on_peer_down"}
    from_below: ClassVar[dict[type, str]] = {
        RoleChanged: "_on_role_changed",
        LogMoved: "_on_moved",
        StreamDeleted: "_on_stream_deleted",
        TakenBack: "_on_taken_back",
    }

    def __init__(
        self,
        config: StreamsConfig,
        service: Streams,
        disk: Disk,
        counters: Counter[str] | None = None,
    ) -> None:
        super().__init__(counters)
        self.config = config
        self.service = service
        self.disk = disk
        self.is_head, self.is_clean = False, True  # as in RoleChanged
        self.head: Peer = ""
        self.stored = CursorTable(config.cursors_deleted_max)
        self.committed = 1  # of the log: `stored` contains all entries below it
        self.written: dict[str, Written] = {}  # by this replica as the head, not committed yet
        self.barrier = 0  # a head answers no request before the log is committed up to here
        self.waiting: dict[tuple[Peer, int], Waiting] = {}  # by client and token
        self.attached: dict[str, tuple[Peer, int]] = {}  # name → (holder's node, token of Attach)
        self.copying: Copying | None = None
        # (name, deleted stream) of positions that the head must remove. None: a new head has not
        # looked for them yet.
        self.to_remove: list[tuple[str, LogId]] | None = None
        self.removed_end = 1  # the position after the entries that removed the last part

    @property
    def table(self) -> dict[str, Cursor]:
        """The named subscriptions, as committed."""
        return self.stored.names

    # ------------------------------------------------------------ events of the service

    def _on_role_changed(self, event: RoleChanged) -> None:
        was_head, self.is_head, self.is_clean = self.is_head, event.head, event.clean
        self.head = event.members[0] if event.members else ""
        if was_head == self.is_head:
            self._remove_if_due()  # the chain may have become clean, which is a condition for it
            return
        self.written.clear()
        self.copying = self.to_remove = None
        self.removed_end = 1
        self.barrier = self._end
        self._remove_if_due()
        if not self.is_head:
            for waiting in self.waiting.values():
                self._answer(waiting.peer, waiting.question, "not-head")
            self.waiting.clear()
            for peer, token in self.attached.values():
                self._send(peer, Attached(token, {}, "not-head", self.head))
            self.attached.clear()

    def _on_taken_back(self, event: TakenBack) -> None:
        """Committed entries were given up: start with an empty table."""
        if event.log == CURSORS:
            self.stored, self.committed = CursorTable(self.config.cursors_deleted_max), 1
            self.to_remove, self.removed_end = None, 1

    def _on_moved(self, event: LogMoved) -> None:
        start, end = self.committed, event.end
        self.committed = end
        for batch in read_through(self.disk, CURSORS, start, end, READ_BYTES):
            for row in batch.to_rows():
                if batch.kind == COLLECT:
                    self._collect(collected_below(row.value), row.seq)
                else:
                    self._apply(row.value, row.time_ns)
        for name in [name for name, written in self.written.items() if written.end <= end]:
            del self.written[name]
        self._answer_waiting()
        # Only one of these two in a step: after the first has appended entries, the end of the log,
        # which the second needs, is not known here until the next step.
        if not self._remove_if_due():
            self._copy_if_due()

    def _apply(self, value: bytes, time_ns: int) -> None:
        """Apply a committed entry, and tell a client that is no longer the holder."""
        entry = decode_entry(value)
        before = self.stored.get(entry.name).holder
        self.stored.take(entry, time_ns)
        if entry.stream or entry.holder == before:
            return
        if held := self.attached.pop(entry.name, None):
            why = "fenced" if entry.holder else entry.what
            self._send(held[0], Attached(held[1], {}, why))

    # ------------------------------------------------------------ requests of holders (at the head)

    def _on_attach(self, peer: Peer, message: Attach) -> None:
        latest = self._latest(message.name)
        lost = latest.refusal(message.holder)  # why this client is not the holder now
        if why := self._refusal(message):
            self._answer(peer, message, why)
        elif lost and (not message.take or latest.is_barred(message.holder)):  # may not take it
            self._answer(peer, message, lost)
        elif not self._waits(peer, message):
            # An entry is written even if the client is the holder already. A former head that does
            # not know that it was replaced cannot commit this entry, and the answer waits for the
            # commit. So a former head never sends the client old positions.
            self._write(message.name, [latest.held_by(message.name, message.holder)])
            self._wait(peer, message)

    def _on_advance(self, peer: Peer, message: Advance) -> None:
        name, latest = message.name, self._latest(message.name)
        if why := self._refusal(message):
            self._answer(peer, message, why)
        elif lost := latest.refusal(message.holder):
            self._answer(peer, message, lost)
        elif any(self._is_ahead(s, seq) for s, seq in message.positions.items()):
            # The client has read positions that this replica does not have: the chain may have
            # continued without this replica, which is then no longer the head.
            self._answer(peer, message, "recovering")
        elif not self._waits(peer, message):
            ahead = [
                CursorEntry(name, message.holder, stream, seq)
                for stream, seq in message.positions.items()
                if seq > latest.positions.get(stream, 0) and self._may_save(stream)
            ]
            if ahead:
                self._write(name, ahead)
            self._wait(peer, message)
            self._answer_waiting()

    def _is_ahead(self, stream: LogId, seq: int) -> bool:
        """Whether the position is beyond the end of the stream's log here. All positions of an
        unknown stream are; no position of a deleted stream is."""
        if self.service.is_deleted(stream):
            return False
        # The end of an unknown stream is 1, so position 1 needs a test of its own.
        return seq > self.service.end_of(stream) or (
            seq == 1 and not self.service.is_listed(stream)
        )

    def _on_detach(self, peer: Peer, message: Detach) -> None:
        attach = peer, message.token
        self.waiting.pop(attach, None)
        if self.attached.get(message.name) == attach:
            del self.attached[message.name]

    # ------------------------------------------------------------ requests of operators (head)

    def _on_reset(self, peer: Peer, message: CursorReset) -> None:
        latest = self._latest(message.name)
        if self._may_change(peer, message, self._refusal_of_positions(message.positions)):
            positions = {s: seq for s, seq in message.positions.items() if self._may_save(s)}
            entries = latest.reset(message.name, message.change, positions)
            self._write(message.name, entries)
            self._wait(peer, message)

    def _on_delete(self, peer: Peer, message: CursorDelete) -> None:
        latest = self._latest(message.name)
        if self._may_change(peer, message):
            self._write(message.name, latest.deleted(message.name, message.change))
            self._wait(peer, message)

    def _may_change(self, peer: Peer, message: CursorReset | CursorDelete, wrong: str = "") -> bool:
        """Whether to carry out the request now. If not, this method answers the client, now or when
        the log is committed. `wrong`: a further reason to refuse the request.

        A request that is repeated, perhaps to another head, must not be carried out twice, because
        the name may have another holder by now. To recognise it, the entry of the name contains the
        identity of the last request that was carried out (`change`).
        """
        latest = self._latest(message.name)
        is_known = message.name in self.table or message.name in self.written
        why = self._refusal(message)
        if not why and latest.change == message.change:  # it was carried out before
            if not self._waits(peer, message):
                self._wait(peer, message)
                self._answer_waiting()
            return False
        if not why and (not is_known or latest.is_deleted):
            why = "unknown-subscription"
        if not why and not message.force and self._is_attached(message.name):
            why = "in-use"
        if why := why or wrong:
            self._answer(peer, message, why)
        return not why

    def _refusal_of_positions(self, positions: dict[LogId, int]) -> str:
        if len(positions) > self.config.cursors_reset_max:
            return "too-many-positions"
        if any(seq < 1 for seq in positions.values()):
            return "bad-position"
        if not all(map(self.service.is_listed, positions)):
            return "unknown-stream"
        # Positions that are not committed may be truncated, and may later have other events.
        beyond = any(seq > self.service.committed_end(s) for s, seq in positions.items())
        return "recovering" if beyond else ""

    def _is_attached(self, name: str) -> bool:
        """Whether a client reads under the name, or waits for the answer to its Attach."""
        questions = (waiting.question for waiting in self.waiting.values())
        return name in self.attached or any(
            isinstance(question, Attach) and question.name == name for question in questions
        )

    def _on_list(self, peer: Peer, message: ListCursors) -> None:
        if why := self._refusal_of_role():
            head = self.head if why == "not-head" else ""
            self._send(peer, CursorsAre(message.token, (), ("", b""), True, why, head))
            return
        rows_max = self.config.cursors_page_max
        found, after, complete = self.page(message.name, message.after, rows_max)
        self._send(peer, CursorsAre(message.token, tuple(found), after, complete))

    def page(
        self, name: str = "", after: tuple[str, bytes] = ("", b""), rows_max: int = 1_000
    ) -> tuple[list[CursorState], tuple[str, bytes], bool]:
        """The page of named subscriptions that follows `after`. If `name` is set, only this one.

        Returns the subscriptions, in order of name and stream, with at most `rows_max` names and
        positions; the `after` for the next page; and whether this is the last page. A subscription
        with many streams may continue on the next page.
        """
        shown: list[CursorState] = []
        rows = 0
        for known in sorted(n for n in self.table if n >= after[0] and name in ("", n)):
            cursor = self.table[known]
            streams = self._streams_of(cursor)
            if known == after[0]:
                streams = [stream for stream in streams if stream > after[1]]
                if not streams:
                    continue
            room = rows_max - rows - 1  # for positions; the name itself needs one row
            if room < min(1, len(streams)):
                return shown, after, False
            part = streams[:room]
            shown.append(self._state(known, cursor, part))
            rows += 1 + len(part)
            after = known, part[-1] if part else b""
            if len(part) < len(streams):
                return shown, after, False
        return shown, after, True

    def _streams_of(self, cursor: Cursor) -> list[LogId]:
        return sorted(filter(self._is_current, cursor.positions))

    def positions_shown(self, cursor: Cursor) -> int:
        """The number of positions of this cursor that are listed (on all pages together)."""
        return sum(map(self._is_current, cursor.positions))

    def _is_current(self, stream: LogId) -> bool:
        """Whether the stream exists, and its name has not been given to a newer stream."""
        known = self.service.streams.get(stream)
        named = self.service.named(known.info.name) if known is not None else None
        return named is not None and named.stream_id == stream

    def _state(self, name: str, cursor: Cursor, streams: list[LogId]) -> CursorState:
        """What is listed of a cursor, with its positions in these streams."""
        positions = tuple(
            CursorPosition(
                self.service.streams[stream].info.name,
                stream,
                cursor.positions[stream],
                self.service.committed_end(stream),
                cursor.moved_ns.get(stream, 0),
            )
            for stream in streams
        )
        attached = name in self.attached if self.is_head else None
        return CursorState(name, attached, CURSORS in cursor.positions, positions)

    # ------------------------------------------------------------ refusals

    def _refusal_of_role(self) -> str:
        """Why this replica answers no requests about cursors now; "" if it does."""
        if not self.is_head:
            return "not-head"
        return "recovering" if not self.is_clean or self.committed < self.barrier else ""

    def _refusal(self, message: Question) -> str:
        if why := self._refusal_of_role():
            return why
        reads = isinstance(message, Attach | Advance)
        identity = message.holder if isinstance(message, Attach | Advance) else message.change
        if not is_name(message.name) or len(identity) != HOLDER_LEN:
            return "bad-name"
        if len(self.waiting) >= WAITING_MAX:
            return "busy"
        if reads and message.name not in self.table and message.name not in self.written:
            coming = sum(name not in self.table for name in self.written)  # new names
            if len(self.table) + coming >= self.config.cursors_max:
                return "too-many"
        return ""

    # ------------------------------------------------------------ the log

    def _latest(self, name: str) -> Cursor:
        """The cursor of a name, including entries that are written but not committed yet."""
        written = self.written.get(name)
        return written.cursor if written is not None else self.stored.get(name)

    def _write(self, name: str, entries: list[CursorEntry]) -> None:
        self._write_all({name: entries})

    def _write_all(self, entries_by_name: dict[str, list[CursorEntry]]) -> None:
        """Append one batch with entries of these names."""
        together = [entry for entries in entries_by_name.values() for entry in entries]
        for name, entries in entries_by_name.items():
            written = self.written.get(name)
            if written is None:
                written = self.written[name] = Written(self._latest(name).copy())
            for entry in entries:
                written.cursor.take(entry, 0)  # the time is not used before the entry is committed
            written.end = self._end + len(together)
        self.out.append(PassDown(AppendOwn(CURSORS, entries_batch(together))))

    @property
    def _end(self) -> int:
        """The end of the log here, committed or not. Only the head appends to it."""
        return self.service.end_of(CURSORS)

    # ------------------------------------------------------------ positions in deleted streams

    def _on_stream_deleted(self, event: StreamDeleted) -> None:
        if self.to_remove is not None:
            self.to_remove += self._positions_in(event.info.stream_id)
        self._remove_if_due()

    def _may_save(self, stream: LogId) -> bool:
        return not self.service.is_deleted(stream)

    def _positions_in(self, stream: LogId) -> list[tuple[str, LogId]]:
        names = dict.fromkeys((*self.table, *self.written))
        return [(name, stream) for name in names if stream in self._latest(name).positions]

    def _remove_if_due(self) -> bool:
        """Remove the next part of the positions in deleted streams. Returns whether entries were
        written."""
        if self._refusal_of_role() or self.committed < self.removed_end:
            return False
        if self.to_remove is None:  # a new head: its table is complete now
            self.to_remove = [
                (name, stream)
                for name, cursor in self.table.items()
                for stream in cursor.positions
                if self.service.is_deleted(stream)
            ]
        part = self.to_remove[:REMOVED_AT_ONCE]
        del self.to_remove[:REMOVED_AT_ONCE]
        entries: dict[str, list[CursorEntry]] = {}
        for name, stream in part:
            # The name may have been deleted meanwhile, or the stream's End event truncated.
            if stream in self._latest(name).positions and self.service.is_deleted(stream):
                entries.setdefault(name, []).append(CursorEntry(name, b"", stream))
        if entries:
            self.removed_end = self._end + sum(map(len, entries.values()))
            self._write_all(entries)
            self.counters["streams.cursors-removed"] += len(part)
        return bool(entries)

    # ------------------------------------------------------------ rewriting the log

    def _collect(self, start: int, end: int) -> None:
        """Build the table again from the entries in [start, end), because those below `start` are
        no longer valid."""
        stored = CursorTable(self.config.cursors_deleted_max)
        for batch in read_through(self.disk, CURSORS, start, end, READ_BYTES):
            for row in batch.to_rows():
                if batch.kind != COLLECT:
                    stored.take(decode_entry(row.value), row.time_ns)
        stored.take_former(self.stored)
        self.stored = stored

    def _copy_if_due(self) -> None:
        """If many entries only record deletions, copy all valid entries to the end of the log, a
        part at a time, and then collect everything below."""
        if self._refusal_of_role():
            return
        copying, stored = self.copying, self.stored
        if copying is not None and self.committed < copying.end:
            return  # the last part is not committed yet
        if copying is None or copying.collected:
            self.copying = None
            if stored.dead < self.config.cursors_dead_max:
                return
            if stored.dead < stored.live_entries() // 2:
                return  # the copy would be much larger than what it saves
            names = [*stored.deleted, *stored.names]
            copying = self.copying = Copying(self._end, names[::-1], self._end)
        self._copy_part(copying)

    def _copy_part(self, copying: Copying) -> None:
        entries: list[CursorEntry] = []
        while copying.names and len(entries) < COPIED_AT_ONCE:
            name = copying.names.pop()
            cursor = self._latest(name)
            if cursor != Cursor():  # the name may have been removed by now
                entries += cursor.copies(name)
        copying.end = self._end + len(entries)
        if entries:
            self.out.append(PassDown(AppendOwn(CURSORS, entries_batch(entries))))
        if not copying.names:
            copying.collected = True
            copying.end += 1  # the COLLECT event
            self.counters["streams.cursors-copied"] += 1
            self.out.append(PassDown(AppendOwn(CURSORS, collect_batch(copying.start))))

    # ------------------------------------------------------------ answers

    def _waits(self, peer: Peer, question: Question) -> bool:
        """Whether this question was asked before and waits for its answer."""
        waiting = self.waiting.get((peer, question.token))
        return waiting is not None and waiting.question == question

    def _wait(self, peer: Peer, question: Question) -> None:
        """Answer the question when all entries of its name are committed."""
        written = self.written.get(question.name)
        end = written.end if written else self.committed
        self.waiting[peer, question.token] = Waiting(peer, question, end)

    def _answer_waiting(self) -> None:
        done = []
        for key, waiting in self.waiting.items():
            if waiting.end > self.committed:
                break  # questions wait in the order of `end`
            done.append(key)
        for key in done:
            waiting = self.waiting.pop(key)
            self._answer(waiting.peer, waiting.question, self._verdict(waiting.question))

    def _verdict(self, question: Question) -> str:
        """The `why` of the answer after the commit. An Attach is refused if another client has
        taken the name since. (An Advance is not refused any more: its positions were written while
        its client was the holder.)"""
        if isinstance(question, Attach):
            return self.stored.get(question.name).refusal(question.holder)
        return ""

    def _answer(self, peer: Peer, question: Question, why: str) -> None:
        head = self.head if why == "not-head" else ""
        answer: Any
        if isinstance(question, Advance):
            answer = Advanced(question.token, why, head)
        elif not isinstance(question, Attach):
            answer = CursorChanged(question.token, why, head)
        elif why:
            answer = Attached(question.token, {}, why, head)
        else:
            self.attached[question.name] = (peer, question.token)
            answer = Attached(question.token, dict(self.table[question.name].positions))
        self._send(peer, answer)

    def _on_peer_down(self, inp: PeerDown) -> None:
        peer = inp.peer
        for key in [key for key in self.waiting if key[0] == peer]:
            del self.waiting[key]
        for name in [name for name, held in self.attached.items() if held[0] == peer]:
            del self.attached[name]
