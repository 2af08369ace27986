"""A model in plain Python of a staging stream, its targets and the drivers that share them.

After each position that a driver reads, each chunk it publishes and each record it appends, another
driver may continue or this one may crash. An append of a crashed driver may also arrive later. Of
the meaning of records the model knows only which ones a `collect` makes void. Queries that share a
staging stream are `SinkState` objects with the same log.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from surecast.columns.rules import BeforeSeq, KeyIs, KeyPrefix, Predicate
from surecast.errors import SurecastError
from surecast.pipeline import staging
from surecast.pipeline.staging import ChunkRef, Intent, Ledger

Step = Generator[None, None, Any]  # yields where other drivers may run


@dataclass
class Entry:
    key: bytes
    value: Any
    control: bool = False
    collected: bool = False
    time_ns: int = 0


@dataclass
class Log:
    """A staging stream: positions from 1 on, with latest-per-key retention."""

    entries: list[Entry] = field(default_factory=list)
    now_ns: int = 0

    def append(self, key: bytes, value: Any) -> int:
        self._void(KeyIs(key))
        self.entries.append(Entry(key, value, time_ns=self.now_ns))
        return len(self.entries)

    def collect(self, which: Predicate) -> None:
        self._void(which)
        self.entries.append(Entry(b"", which, control=True))

    def _void(self, which: Predicate) -> None:
        for seq, entry in enumerate(self.entries, 1):
            match which:
                case BeforeSeq(end):
                    hit = seq < end
                case KeyIs(key):
                    hit = entry.key == key and not entry.control
                case KeyPrefix(prefix):
                    hit = entry.key.startswith(prefix) and not entry.control
                case _:
                    raise AssertionError(which)
            entry.collected |= hit

    def live(self) -> list[bytes]:
        return [e.key for e in self.entries if not e.collected and not e.control]


@dataclass
class Target:
    """A target stream, with what a head remembers of its only publisher."""

    memory: int  # batches
    rows: list[Any] = field(default_factory=list)
    next_no: int = 1
    recent: list[tuple[int, int]] = field(default_factory=list)

    def publish(self, pub_no: int, rows: list[Any]) -> None:
        if pub_no == self.next_no:
            self.rows += rows
            self.recent = [*self.recent, (pub_no, len(rows))][-self.memory :]
            self.next_no += len(rows)
            return
        assert pub_no < self.next_no, f"history lost: {pub_no}, {self.next_no} comes next"
        for number, count in self.recent:
            if number == pub_no:
                assert count == len(rows), "mismatch: another batch under this number"
                return
        assert self.next_no >= pub_no + len(rows), "mismatch: divided differently"


class Cut(Exception):
    """Raised by the client when the region cannot be reached any more."""


@dataclass
class PendingAppend:
    """An append in flight. It may be stored long after its driver has given up."""

    key: bytes
    value: Any
    seq: int = 0


@dataclass
class SinkState:
    """The state of one query's sink, which survives its drivers."""

    rng: Random
    query: str = "q"
    memory: int = 2
    log: Log = field(default_factory=Log)
    targets: dict[str, Target] = field(default_factory=dict)
    words: int = 0
    pending_appends: list[PendingAppend] = field(default_factory=list)

    def land(self, pending: PendingAppend) -> int:
        if not pending.seq:
            pending.seq = self.log.append(pending.key, pending.value)
        return pending.seq

    def beside(self, query: str) -> SinkState:
        """The state of another query with the same staging stream."""
        return SinkState(
            self.rng, query, self.memory, self.log, pending_appends=self.pending_appends
        )

    def unique(self) -> str:
        self.words += 1
        return f"u{self.words}"

    def target(self, name: str) -> Target:
        return self.targets.setdefault(name, Target(self.memory))

    # ------------------------------------------------------------ tasks

    def stage(self, batch: int, writer: str, pieces: dict[str, list[list[Any]]]) -> Step:
        """Stage these chunks for every target; returns the intent that lists them."""
        names, chunks = tuple(pieces), []
        for target, name in enumerate(names):
            for rows in pieces[name]:
                key = staging.chunk_key(self.query, batch, writer, 0, 0, self.words)
                if self.rng.random() < 0.3:  # an attempt that fails, or a speculative copy
                    self.log.append(key + b"x", ["never", batch])
                chunks.append(ChunkRef(self.log.append(key + self.unique().encode(), rows),
                                       len(rows), target))  # fmt: skip
                yield
        return Intent(writer, names, tuple(chunks))

    # ------------------------------------------------------------ drivers

    def perform(
        self, acts: Generator[staging.Act, Any, Any], cut: Callable[[], bool] = lambda: False
    ) -> Step:
        """Perform the acts in steps; returns their result."""
        ledger, chunks, answer = Ledger(self.query), {}, None
        while True:
            try:
                act = acts.send(answer)
            except StopIteration as end:
                return end.value
            match act:
                case staging.Append(key, value):
                    pending = PendingAppend(key, value)
                    self.pending_appends.append(pending)
                    yield
                    if cut():
                        raise Cut
                    answer = self.land(pending)
                case staging.Read(to):
                    # A hint may be old; our own records must be there.
                    to = to or self.rng.randint(ledger.end - 1, len(self.log.entries))
                    while ledger.end <= to:
                        self._read_one(ledger, chunks)
                        yield
                    answer = ledger
                case staging.Copy():
                    answer = yield from self._copy(act, chunks)
                case staging.Collect(which):
                    self.log.collect(which)
            if cut():
                raise Cut
            yield

    def _read_one(self, ledger: Ledger, chunks: dict[int, Any]) -> None:
        seq = ledger.end
        entry = self.log.entries[seq - 1]
        if entry.collected or entry.control:
            ledger.note_void(seq, collected=entry.collected)
            return
        record = ledger.note(seq, entry.key, entry.value, entry.time_ns)
        if record is not None and record.kind == staging.CHUNK:
            chunks[seq] = entry.value

    def _copy(self, act: staging.Copy, chunks: dict[int, Any]) -> Step:
        numbers = {}
        for seq, rows, index in act.intent.chunks:
            assert seq in chunks, f"a chunk of batch {act.batch} is gone"
            assert len(chunks[seq]) == rows
            name = act.intent.targets[index]
            number = numbers.get(name.encode(), act.numbers.get(name.encode(), 1))
            self.target(name).publish(number, chunks[seq])
            numbers[name.encode()] = number + rows
            yield
        return numbers


def rows_of(batch: int) -> list[tuple[int, int]]:
    """The rows of a batch, which are the same for every driver."""
    return [(batch, n) for n in range(3 + 2 * (batch % 3))]


def pieces_of(batch: int, rng: Random, targets: int) -> dict[str, list[list[Any]]]:
    """The rows as one run of the batch distributes them: in random order, to random targets."""
    rows = rows_of(batch)
    rng.shuffle(rows)
    pieces: dict[str, list[list[Any]]] = {}
    while rows:
        size = rng.randint(1, 3)
        name = f"t{rng.randrange(targets)}"
        pieces.setdefault(name, []).append(rows[:size])
        rows = rows[size:]
    return pieces


@dataclass
class Spark:
    """Drivers of one query, one after the other or (zombies) at once, and the commit log."""

    state: SinkState
    batches: int
    targets: int = 1
    committed: int = -1
    outcomes: list[tuple[int, bool]] = field(default_factory=list)

    def driver(
        self,
        name: str,
        trouble: Callable[[], bool] = lambda: False,
        cut: Callable[[], bool] = lambda: False,
        empty: Callable[[], bool] = lambda: False,
    ) -> Step:
        """Run batches from the first that is not in the commit log.

        `trouble`: a task fails. `cut`: the region is lost during a commit, and Spark calls `abort`.
        `empty`: a repeated batch has no partition, so that there is nothing to commit.
        """
        state, batch = self.state, self.committed + 1
        while batch < self.batches:
            if batch + 1 < self.batches and self._is_begun(batch) and empty():
                self.committed = max(self.committed, batch)
                batch += 1
                continue
            writer = f"{name}-{batch}"
            pieces = pieces_of(batch, state.rng, self.targets)
            intent = yield from state.stage(batch, writer, pieces)
            give_up = staging.abort(state.query, batch, writer, state.unique)
            if trouble():
                yield from state.perform(give_up)
                return
            acts = staging.commit(state.query, batch, intent, state.unique)
            try:
                outcome = yield from state.perform(acts, cut)
            except Cut:
                yield from state.perform(give_up)
                return
            self.outcomes.append((batch, outcome.replayed))
            self.committed = max(self.committed, batch)
            batch += 1
            yield

    def _is_begun(self, batch: int) -> bool:
        """Whether there is an unfinished intent."""
        given_up = []
        for key in self.state.log.live():
            query, number, kind, writer, *_ = [*key.decode().split("/"), ""]
            if query != self.state.query:
                continue
            if number == f"{batch:016x}" and kind == "abandoned":
                given_up.append(writer)
            elif number == f"{batch:016x}" and kind == "intent" and writer not in given_up:
                return True
        return False

    def judge(self) -> list[str]:
        """The problems found: every row must be in one stream once, batches in order in each."""
        found = [row for target in self.state.targets.values() for row in target.rows]
        wanted = [row for batch in range(self.batches) for row in rows_of(batch)]
        problems = []
        if sorted(found) != wanted:
            doubled = sorted({row for row in found if found.count(row) > 1})
            problems.append(f"lost {sorted(set(wanted) - set(found))}, twice {doubled}")
        for name, target in self.state.targets.items():
            batches = [batch for batch, _ in target.rows]
            if batches != sorted(batches):
                problems.append(f"{name}: batches in the wrong order: {batches}")
        return problems


@dataclass
class Replay:
    """Runs of one job in parts, which copy a growing archive to a stream in order."""

    state: SinkState
    size: int  # positions of a slice
    archive: int  # number of events, from 1 on

    def run(self, name: str) -> Step:
        """Continue after the parts that are done. Another run may do the same concurrently."""
        state, archive = self.state, self.archive
        resumed = yield from state.perform(staging.resume(state.query, state.unique))
        after = resumed.done
        while after < archive:
            last = min((max(after, 0) // self.size + 1) * self.size, archive)
            rows = list(range(max(after, 0) + 1, last + 1))
            cut = state.rng.randint(1, len(rows))
            pieces = [part for part in (rows[:cut], rows[cut:]) if part]
            staged = yield from state.stage(last, f"{name}-{last}", {"t0": pieces})
            intent = Intent(staged.writer, staged.targets, staged.chunks, after, digest=sum(rows))
            try:
                acts = staging.commit(state.query, last, intent, state.unique)
                outcome = yield from state.perform(acts)
                assert not outcome.others
            except SurecastError:
                give_up = staging.abort(state.query, last, intent.writer, state.unique)
                yield from state.perform(give_up)
                return
            after = last

    def judge(self) -> list[str]:
        found, wanted = self.state.target("t0").rows, list(range(1, self.archive + 1))
        return [] if found == wanted else [f"{found} instead of 1 to {self.archive}"]
