"""Named subscriptions: a place in each stream that outlives clients and servers.

The cursors of a region are a log of its chain, as the directory is: replicated, and compacted by
the rule that the latest entry of a key stays. There are two kinds of entry: who holds a name, and
how far a name has come in a stream. The head writes both. It refuses what comes from anyone but
the holder, so that a client that was replaced (*fenced*) cannot move the cursor of its successor;
and a new head answers nobody before all that its predecessors wrote is committed, for the holder
may be among it.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

from surecast.columns.batch import Batch
from surecast.core.disk import read_through
from surecast.core.machine import HandlerMachine
from surecast.core.names import is_name
from surecast.core.replicated import AppendOwn, RoleChanged
from surecast.core.streams import CURSORS, LogMoved, Streams, TakenBack
from surecast.core.types import Disk, LogId, PassDown, Peer, PeerDown
from surecast.errors import PeerError
from surecast.protocols.streams.config import StreamsConfig
from surecast.protocols.streams.messages import Advance, Advanced, Attach, Attached

__all__ = ["Cursors"]

HOLDER_LEN = 16
WAITING_MAX = 10_000  # clients that wait for an answer
READ_BYTES = 256 << 10  # of the log, at a time


class CursorEntry(msgspec.Struct, array_like=True, frozen=True):
    """With a stream: how far `name` has come in it. Without: who holds `name` from here on."""

    name: str
    holder: bytes
    stream: bytes = b""
    seq: int = 0

    @property
    def key(self) -> bytes:
        return self.stream + b"/" + self.name.encode()


@dataclass(slots=True)
class Cursor:
    holder: bytes = b""
    positions: dict[LogId, int] = field(default_factory=dict)


@dataclass(slots=True)
class Written:
    """What the head wrote of one name, until all of it is committed."""

    cursor: Cursor = field(default_factory=Cursor)
    end: int = 1  # of the log, behind the last of it


@dataclass(slots=True)
class Waiting:
    """A client to be answered when the log is committed up to `end`."""

    peer: Peer
    question: Attach | Advance
    end: int


class Cursors(HandlerMachine):
    """A layer over the stream service, which keeps the log."""

    uses = ("streams",)
    handlers: ClassVar[dict[type, str]] = {Attach: "_on_attach", Advance: "_on_advance"}
    inputs: ClassVar[dict[type, str]] = {PeerDown: "_on_peer_down"}
    from_below: ClassVar[dict[type, str]] = {
        RoleChanged: "_on_role_changed",
        LogMoved: "_on_moved",
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
        self.is_head, self.is_clean = False, True
        self.head: Peer = ""
        self.table: dict[str, Cursor] = {}
        self.committed = 1  # of the log: what `table` is made of
        self.written: dict[str, Written] = {}  # by us as head and not committed yet
        self.barrier = 0  # a head answers nobody before this is committed
        self.waiting: dict[tuple[Peer, int], Waiting] = {}  # by who asks, and its token
        self.attached: dict[str, tuple[Peer, int]] = {}  # name → whom to tell when it is fenced

    # ------------------------------------------------------------ what the service says

    def _on_role_changed(self, event: RoleChanged) -> None:
        was_head, self.is_head, self.is_clean = self.is_head, event.head, event.clean
        self.head = event.members[0] if event.members else ""
        if was_head == self.is_head:
            return
        self.written.clear()
        self.barrier = self._end
        if not self.is_head:
            for waiting in self.waiting.values():
                self._answer(waiting.peer, waiting.question, "not-head")
            self.waiting.clear()
            for peer, token in self.attached.values():
                self._send(peer, Attached(token, {}, "not-head", self.head))
            self.attached.clear()

    def _on_taken_back(self, event: TakenBack) -> None:
        """All that was committed is given up."""
        if event.log == CURSORS:
            self.table, self.committed = {}, 1

    def _on_moved(self, event: LogMoved) -> None:
        start, end = self.committed, event.end
        self.committed = end
        for batch in read_through(self.disk, CURSORS, start, end, READ_BYTES):
            for row in batch.to_rows():
                self._apply(row.value)
        for name in [name for name, written in self.written.items() if written.end <= end]:
            del self.written[name]
        self._answer_waiting()

    def _apply(self, value: bytes) -> None:
        try:
            entry = msgspec.msgpack.decode(value, type=CursorEntry)
        except msgspec.DecodeError as error:
            raise PeerError(f"a cursor cannot be read: {error}") from None
        cursor = self.table.setdefault(entry.name, Cursor())
        if entry.stream:
            before = cursor.positions.get(entry.stream, 1)
            cursor.positions[entry.stream] = max(before, entry.seq)
            return
        if cursor.holder != entry.holder and (held := self.attached.pop(entry.name, None)):
            self._send(held[0], Attached(held[1], {}, "fenced"))
        cursor.holder = entry.holder

    # ------------------------------------------------------------ what clients ask (the head)

    def _on_attach(self, peer: Peer, message: Attach) -> None:
        if why := self._refusal(message):
            self._answer(peer, message, why)
        elif self._latest(message.name).holder != message.holder and not message.take:
            self._answer(peer, message, "fenced")
        elif not self._waits(peer, message):
            # Written also by who holds it already: a head that was replaced and does not know it
            # cannot commit this, and so cannot send its holder back to an old place.
            self._write(message.name, [CursorEntry(message.name, message.holder)])
            self._wait(peer, message)

    def _on_advance(self, peer: Peer, message: Advance) -> None:
        name, latest = message.name, self._latest(message.name)
        if why := self._refusal(message):
            self._answer(peer, message, why)
        elif latest.holder != message.holder:
            self._answer(peer, message, "fenced")
        elif any(seq > self.service.end_of(s) for s, seq in message.positions.items()):
            # It has read elsewhere what has not come here: our chain may have gone on without us.
            self._answer(peer, message, "recovering")
        elif not self._waits(peer, message):
            ahead = [
                CursorEntry(name, message.holder, stream, seq)
                for stream, seq in message.positions.items()
                if seq > latest.positions.get(stream, 1)
            ]
            if ahead:
                self._write(name, ahead)
            self._wait(peer, message)
            self._answer_waiting()

    def _refusal(self, message: Attach | Advance) -> str:
        if not self.is_head:
            return "not-head"
        if not self.is_clean or self.committed < self.barrier:
            return "recovering"
        if not is_name(message.name) or len(message.holder) != HOLDER_LEN:
            return "bad-name"
        if len(self.waiting) >= WAITING_MAX:
            return "busy"
        if message.name not in self.table and message.name not in self.written:
            coming = sum(name not in self.table for name in self.written)
            if len(self.table) + coming >= self.config.cursors_max:
                return "too-many"
        return ""

    def _latest(self, name: str) -> Cursor:
        """As it will be when all that was written is committed."""
        here = self.table.get(name, Cursor())
        written = self.written.get(name)
        if written is None:
            return here
        coming = written.cursor
        return Cursor(coming.holder or here.holder, {**here.positions, **coming.positions})

    def _write(self, name: str, entries: list[CursorEntry]) -> None:
        written = self.written.setdefault(name, Written())
        written.end = self._end + len(entries)
        for entry in entries:
            if entry.stream:
                written.cursor.positions[entry.stream] = entry.seq
            else:
                written.cursor.holder = entry.holder
        values = [msgspec.msgpack.encode(entry) for entry in entries]
        keys: list[bytes | None] = [entry.key for entry in entries]
        self.out.append(PassDown(AppendOwn(CURSORS, Batch.of(CURSORS, values, keys))))

    @property
    def _end(self) -> int:
        """Of the log here, committed or not; only the head, which we are, makes it longer."""
        return self.service.end_of(CURSORS)

    # ------------------------------------------------------------ answers

    def _waits(self, peer: Peer, question: Attach | Advance) -> bool:
        """Was this asked before, and will it be answered?"""
        waiting = self.waiting.get((peer, question.token))
        return waiting is not None and waiting.question == question

    def _wait(self, peer: Peer, question: Attach | Advance) -> None:
        """Answer when what the question depends on is committed."""
        written = self.written.get(question.name)
        end = written.end if written else self.committed
        self.waiting[peer, question.token] = Waiting(peer, question, end)

    def _answer_waiting(self) -> None:
        done = []
        for key, waiting in self.waiting.items():
            if waiting.end > self.committed:
                break  # they wait in the order of the log
            done.append(key)
        for key in done:
            waiting = self.waiting.pop(key)
            self._answer(waiting.peer, waiting.question, self._verdict(waiting.question))

    def _verdict(self, question: Attach | Advance) -> str:
        """Of what is committed: who advanced was the holder when that was written."""
        holds = self.table.get(question.name, Cursor()).holder == question.holder
        return "" if holds or isinstance(question, Advance) else "fenced"

    def _answer(self, peer: Peer, question: Attach | Advance, why: str) -> None:
        head = self.head if why == "not-head" else ""
        answer: Any
        if isinstance(question, Advance):
            answer = Advanced(question.token, why, head)
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
