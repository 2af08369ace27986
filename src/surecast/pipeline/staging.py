"""How rows that wait in a staging stream become events of their streams, once: the decisions.

Tasks of a Spark job put their rows, as encoded batches called *chunks*, into a staging stream: the
`_spark.orders` of a target `orders`. Nobody sees them there. When all tasks have ended well the
driver commits the job, or one micro-batch of it. Drivers die at any moment, are replaced by others
that repeat the batch with rows in another order, and may still be at work then (zombies). So a
commit is decided by the staging stream itself, whose order is the same for everybody:

1. The driver appends an *intent*: the list of its chunks. The first intent for a batch stands, and
   all drivers publish exactly what it lists, whoever wrote it. A list that is too long for one
   record is written in *pages* before, and the intent names them.
2. They publish it under one publisher identity, with numbers that go on from the batch before: what
   was published already is recognised by the head of the target stream and not published again.
3. When everything is acknowledged a *done* record says how far the numbers have come, and of a job
   that somebody may run again what its rows added up to. A batch that is done is never touched
   again.
4. Chunks and records of a batch that is done are garbage and are collected, by position as far as
   nobody needs anything in front of them: that reaches earlier collects, too, which have no key.
   The *done* of a query that rests would be in the way for ever. It is a fact that never changes,
   so whoever finds it there appends it again, as it is, under its own key.
5. What a query has staged without an intent is lost property when nothing more was heard of it for
   a week: its driver was killed, and its checkpoint thrown away. Any other driver collects it. A
   job that nobody can repeat has a day, and its intent is lost as well.

A driver that gives its batch up appends *abandoned*, behind which an intent of its own is void, and
then collects its chunks, unless its intent stood already.

A job may be done in *parts* whose ends nobody knows beforehand: a replay of an archive that grows.
Each is a batch with the number it comes to, and its intent says behind which it stands. Of those
that go on from the same place the first stands and the others are void, whatever they came to.

**Reading is not a snapshot.** While a driver reads the stream from its beginning, others may finish
batches and collect, in front of it, the very records that would have told it so. What it can rely
on: whatever was not collected when it appended a record of its own, and lies where it had read
before, it has seen. What lies between is read afterwards, and if a position there was collected the
driver appends a mark and looks again. Only then does it decide.

`commit`, `resume` and `abort` are generators: they yield what is to be done and are sent what came
of it, or thrown why nothing did. No IO happens here; `staging_io` performs it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from surecast.columns.batch import DATA, HEADER_SIZE, NO_PUBLISHER, NONE, Batch
from surecast.columns.rules import BeforeSeq, KeyIs, KeyPrefix, Predicate
from surecast.core.types import SECOND
from surecast.errors import PeerError, SurecastError

__all__ = [
    "Act",
    "Append",
    "ChunkRef",
    "Collect",
    "Copy",
    "Done",
    "Intent",
    "Ledger",
    "Outcome",
    "Read",
    "abort",
    "chunk_batch",
    "chunk_key",
    "chunk_value",
    "commit",
    "resume",
    "staging_name",
]

LOOKS_MAX: Final = 1000  # at a stream in which others collect all the time
MOVE_AFTER: Final = 256  # positions behind a `done` that is in the way, and two more for each such
PAGE_BYTES: Final = 4 << 20  # of an intent in one record; an event has at most 8 MB
ONCE: Final = "once-"  # begins the name of a query that nobody comes back to
SILENT_NS: Final = 7 * 24 * 3600 * SECOND  # after which what was staged is lost property ...
ONCE_SILENT_NS: Final = 24 * 3600 * SECOND  # ... and of such a query
_LAST: Final = (1 << 63) - 1  # no batch has a higher number

CHUNK, PAGE, INTENT, ABANDONED, MARK = "chunk", "page", "intent", "abandoned", "mark"
DONE = "done"

Numbers = dict[bytes, int]  # id of a target stream → the number that comes next there


# ---------------------------------------------------------------- what lies in a staging stream


def staging_name(target: str | None) -> str:
    """Where rows for `target` wait; None: for streams that the rows themselves name."""
    return "_spark" if target is None else f"_spark.{target}"


class ChunkRef(NamedTuple):
    """A chunk, where it lies, and whose it will be."""

    seq: int
    rows: int
    target: int  # index into Intent.targets


class Intent(msgspec.Struct, frozen=True, array_like=True):
    """What a batch publishes: these chunks, in this order."""

    writer: str
    targets: tuple[str, ...]
    chunks: tuple[ChunkRef, ...]
    after: int | None = None  # of a part: behind which batch (-1: none)
    pages: tuple[int, ...] = ()  # where the intent itself is, if this only stands for it
    digest: int | None = None  # the rows' sum (columns/sums.py); None: nobody will ask

    @property
    def rows(self) -> int:
        return sum(chunk.rows for chunk in self.chunks)


class Done(msgspec.Struct, frozen=True, array_like=True):
    """All of a batch is published; how far the numbers of every target have come with it."""

    numbers: Numbers
    after: int | None = None  # of the batch, as its intent had it
    digest: int | None = None


class Place(NamedTuple):
    """What a key says of its record."""

    query: str
    batch: int
    kind: str  # one of those above
    writer: str


def chunk_key(query: str, batch: int, writer: str, partition: int, attempt: int, n: int) -> bytes:
    return f"{_prefix(query, batch)}{CHUNK}/{writer}/{partition}/{attempt}/{n}".encode()


def _prefix(query: str, batch: int) -> str:
    return f"{query}/{batch:016x}/"


def _done_key(query: str, batch: int) -> bytes:
    return f"{query}/{DONE}/{batch:016x}".encode()


def _place(key: bytes) -> Place:
    """PeerError if no driver or task of ours can have written it."""
    try:
        query, first, second, *rest = key.decode().split("/")
        if first == DONE:
            return Place(query, int(second, 16), first, "")
        return Place(query, int(first, 16), second, rest[0])
    except (ValueError, IndexError):
        raise PeerError(f"a record in the staging stream has the strange key {key!r}") from None


# A chunk's value: what the header of a batch says of its body, then the body as it is.
_CHUNK: Final = struct.Struct("<BBxxIQ")  # version, schema id, rows, form
_VERSION: Final = 1


def chunk_value(batch: Batch) -> bytes:
    assert batch.body is not None
    return b"".join(
        (_CHUNK.pack(_VERSION, batch.schema_id, batch.rows, batch.form), bytes(batch.body))
    )


def chunk_batch(value: bytes, stream_id: bytes) -> Batch:
    """The batch for a target stream; its body's bytes are those of the chunk."""
    if len(value) <= _CHUNK.size or value[0] != _VERSION:
        raise PeerError("a staged chunk was written by another version, or by something else")
    _, schema_id, rows, form = _CHUNK.unpack_from(value)
    body = value[_CHUNK.size :]
    batch = Batch(
        DATA, stream_id, schema_id, NO_PUBLISHER, 0, 0, rows, rows, 0, 0, NONE,
        body, zlib.crc32(body), HEADER_SIZE + len(body), form,
    )  # fmt: skip
    batch.validate()
    return batch


# ---------------------------------------------------------------- what a driver knows of it


class Fact(NamedTuple):
    """The last batch of a query that is done, and where it says so."""

    batch: int
    seq: int
    value: bytes


@dataclass(slots=True)
class Ledger:
    """What the staging stream says of one query as far as it was read, and what all still need."""

    query: str
    end: int = 1  # the first position not read yet
    hidden: int = 0  # the last position that was found collected
    done: int = -1  # the last batch that is done ...
    last: Done = field(default_factory=lambda: Done({}))  # ... and what is said of it
    intents: dict[int, Intent] = field(default_factory=dict)  # the one that stands, by batch
    parts: dict[int, tuple[int, Intent]] = field(default_factory=dict)  # by what they go on from
    pages: dict[int, bytes] = field(default_factory=dict)  # by position
    abandoned: dict[tuple[int, str], None] = field(default_factory=dict)
    records: dict[int, Place | None] = field(default_factory=dict)  # of all queries, by position
    facts: dict[str, Fact] = field(default_factory=dict)  # by query
    news: dict[str, int] = field(default_factory=dict)  # when something else was last heard of it
    promised: dict[str, int] = field(default_factory=dict)  # its last batch that has an intent
    time_ns: int = 0  # of the last record: the clock of the stream's owner

    def note_void(self, last: int, *, collected: bool) -> None:
        """No records up to position `last`. Not collected: entries of the stream's own."""
        self.end = last + 1
        if collected:
            self.hidden = last

    def note(self, seq: int, key: bytes, value: bytes, time_ns: int = 0) -> Place | None:
        """A record; what it is, if it is this query's."""
        self.end = seq + 1
        self.time_ns = time_ns
        ours = key.startswith(self.query.encode() + b"/")
        try:
            place = self.records[seq] = _place(key)
        except PeerError:
            if ours:
                raise
            self.records[seq] = None
            return None
        if place.kind == DONE:
            self._note_done(place, seq, value)
            return place if ours else None
        self.news[place.query] = time_ns
        if place.kind == INTENT:
            self.promised[place.query] = max(place.batch, self.promised.get(place.query, -1))
        if not ours:
            return None
        if place.kind == PAGE:
            self.pages[seq] = value
        self._note_work(place, value)
        return place

    def _note_done(self, place: Place, seq: int, value: bytes) -> None:
        known = self.facts.get(place.query)
        if known is None or place.batch >= known.batch:
            self.facts[place.query] = Fact(place.batch, seq, value)
        if place.query == self.query and place.batch > self.done:
            self.done, self.last = place.batch, _decode(value, Done)

    def _note_work(self, place: Place, value: bytes) -> None:
        batch, kind = place.batch, place.kind
        if kind == ABANDONED:
            self.abandoned[batch, place.writer] = None
        elif kind == INTENT and (batch, place.writer) not in self.abandoned:
            self._stand(batch, _decode(value, Intent))

    def _stand(self, batch: int, intent: Intent) -> None:
        """Who comes first stands."""
        if intent.after is None:
            self.intents.setdefault(batch, intent)
        elif intent.after < batch:
            self.parts.setdefault(intent.after, (batch, intent))

    def finish(self, batch: int, intent: Intent, numbers: Numbers) -> bytes:
        """All of `batch` is published; the record that says so."""
        numbers = {**self.last.numbers, **numbers}
        self.done, self.last = batch, Done(numbers, intent.after, intent.digest)
        value = msgspec.msgpack.encode(self.last)
        self.facts[self.query] = Fact(batch, self.end, value)  # there, or further on
        return value

    @property
    def rows(self) -> int:
        """That the query has published in all."""
        return sum(number - 1 for number in self.last.numbers.values())

    def has_others(self, batch: int, intent: Intent) -> bool:
        """Whether it is known that other rows were published in place of those of an intent. Of a
        part that others have come behind nothing is known."""
        digests = self.last.digest, intent.digest
        same_place = (self.done, self.last.after) == (batch, intent.after)
        return same_place and None not in digests and digests[0] != digests[1]

    def pending(self, batch: int) -> dict[int, Intent]:
        """Batches up to `batch` that have an intent and are not done, in order."""
        found = {b: self.intents[b] for b in sorted(self.intents) if self.done < b <= batch}
        last, intent = self.parts.get(max(found, default=self.done), (batch + 1, None))
        while intent is not None and last <= batch:
            found[last] = intent
            last, intent = self.parts.get(last, (batch + 1, None))
        return found

    def whole(self, batch: int, intent: Intent) -> Intent:
        """What an intent says that may be in pages."""
        if not intent.pages:
            return intent
        if gone := [seq for seq in intent.pages if seq not in self.pages]:
            raise SurecastError(
                f"{len(gone)} of {len(intent.pages)} pages that list what batch {batch} of query "
                f"{self.query} publishes are gone, the first at {gone[0]}: somebody has collected "
                "them. Write its rows again with a new checkpoint (or another queryId)"
            )
        found: Intent = _decode(b"".join(self.pages[seq] for seq in intent.pages), Intent)
        return found

    def is_bound(self, batch: int, writer: str) -> bool:
        """Whether what a driver has staged may be about to be published."""
        intents = [self.intents.get(batch)]
        intents += [intent for number, intent in self.parts.values() if number == batch]
        return self.done < batch and any(i is not None and i.writer == writer for i in intents)

    def is_orphan(self, query: str) -> bool:
        """Whether what another query has staged is lost property."""
        silent_ns = self.time_ns - self.news.get(query, self.time_ns)
        if query == self.query or silent_ns <= ONCE_SILENT_NS:
            return False
        if query.startswith(ONCE):
            return True
        done = self.facts[query].batch if query in self.facts else -1
        return silent_ns > SILENT_NS and self.promised.get(query, -1) <= done

    def is_needed(self, seq: int, place: Place | None) -> bool:
        """Whether anybody may still ask for a record. What nobody of us wrote is left alone."""
        if place is None:
            return True
        if place.kind != DONE and self.is_orphan(place.query):
            return False
        if place.query not in self.facts:
            return True
        if place.query.startswith(ONCE):
            return False
        fact = self.facts[place.query]
        return seq == fact.seq if place.kind == DONE else place.batch > fact.batch

    def low(self) -> tuple[int, list[int]]:
        """Below which position nothing is needed but facts, and where these are."""
        facts: list[int] = []
        for seq, place in self.records.items():
            if self.is_needed(seq, place):
                if place is None or place.kind != DONE:
                    return seq, facts
                facts.append(seq)
        return self.end, facts

    def garbage(self, low: int) -> Iterator[Predicate]:
        """What nobody needs, from `low` on: of this query all of the batches that are done but for
        the last `done`, of others the chunks that are lost property."""
        found: dict[Predicate, None] = {}
        for seq, place in self.records.items():
            if seq < low or place is None or self.is_needed(seq, place):
                continue
            prefix = _prefix(place.query, place.batch)
            if place.query != self.query:
                # Whoever comes back after all stages as another writer.
                if place.kind == CHUNK and self.is_orphan(place.query):
                    found[KeyPrefix(f"{prefix}{CHUNK}/{place.writer}/".encode())] = None
            elif place.kind != DONE:
                found[KeyPrefix(prefix.encode())] = None
            elif place.batch < self.done:
                found[KeyIs(_done_key(self.query, place.batch))] = None
        yield from found


def _encode(record: Intent) -> bytes:
    return msgspec.msgpack.encode(record)


def _decode(value: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.msgpack.decode(value, type=kind)
    except msgspec.MsgspecError as problem:
        raise PeerError(f"a record in the staging stream cannot be read: {problem}") from None


# ---------------------------------------------------------------- what is to be done


@dataclass(frozen=True, slots=True)
class Append:
    """Publish this record in the staging stream. Answer: its position."""

    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Read:
    """Read on up to `to`; 0: up to what is known to be there. Answer: the ledger."""

    to: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Publish what an intent lists, with numbers from `numbers` on (1 where there is none).

    Answer: the numbers that come next, by target stream.
    """

    batch: int
    intent: Intent
    numbers: Numbers


@dataclass(frozen=True, slots=True)
class Collect:
    """Declare records obsolete."""

    which: Predicate


Act = Append | Read | Copy | Collect


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a commit came to."""

    replayed: bool  # the batch was done before
    finished: tuple[int, ...]  # batches that were published, the one asked for included
    done: int  # the last batch that is done
    rows: int  # that the query has published in all
    others: bool = False  # and not those that were asked for


def commit(
    query: str, batch: int, intent: Intent, unique: Callable[[], str], *, once: bool = False
) -> Generator[Act, Any, Outcome]:
    """Publish a batch, unless that was done before; finish what an earlier driver began.

    `unique` gives a word that nobody else uses. `once`: nobody will ever come back to this query,
    so nothing has to be remembered of it.
    """
    value = yield from _write(query, batch, intent, unique)
    ledger = yield from _look(query, batch, INTENT, intent.writer, value, unique)
    replayed = ledger.done >= batch
    pending = ledger.pending(batch)
    if not replayed and batch not in pending:
        if intent.after is None:
            raise SurecastError(
                f"batch {batch} of query {query} was abandoned by its own driver. Start it again"
            )
        raise SurecastError(
            f"another run of {query} has gone on from {intent.after} meanwhile, or this one was "
            "abandoned by its own driver. Run it again: it goes on behind what is done by then"
        )
    if once:
        ledger.finish(batch, intent, (yield Copy(batch, intent, {})))
        with suppress(SurecastError):  # all is published, and must not be published again
            yield from _leave(ledger, batch)
    else:
        yield from _finish(ledger, pending)
        yield from _sweep(ledger)
    others = ledger.has_others(batch, intent)
    return Outcome(replayed, tuple(pending), ledger.done, ledger.rows, others)


def resume(query: str, unique: Callable[[], str]) -> Generator[Act, Any, Outcome]:
    """Finish what earlier drivers began: then it is known how far a job in parts has come."""
    ledger = yield from _look(query, 0, MARK, "resume", b"", unique)
    pending = ledger.pending(_LAST)
    yield from _finish(ledger, pending)
    yield from _sweep(ledger)
    return Outcome(not pending, tuple(pending), ledger.done, ledger.rows)


def _write(
    query: str, batch: int, intent: Intent, unique: Callable[[], str]
) -> Generator[Act, Any, bytes]:
    """The record for an intent, whose pages are written if it needs such."""
    value = _encode(intent)
    if len(value) <= PAGE_BYTES:
        return value
    pages: list[int] = []
    for at in range(0, len(value), PAGE_BYTES):
        key = f"{_prefix(query, batch)}{PAGE}/{intent.writer}/{unique()}"
        pages.append((yield Append(key.encode(), value[at : at + PAGE_BYTES])))
    return _encode(Intent(intent.writer, (), (), intent.after, tuple(pages)))


def _look(
    query: str, batch: int, kind: str, writer: str, value: bytes, unique: Callable[[], str]
) -> Generator[Act, Any, Ledger]:
    """Append a record and read until it is certain what stands in front of it."""
    ledger: Ledger = yield Read(0)
    for _ in range(LOOKS_MAX):
        looked = ledger.end
        key = f"{_prefix(query, batch)}{kind}/{writer}/{unique()}"
        ledger = yield Read((yield Append(key.encode(), value)))
        if ledger.hidden < looked:
            return ledger
        kind, value = MARK, b""
    raise SurecastError(
        f"the staging stream of query {query} changes faster than it can be read. Give the "
        "queries that write to this stream longer triggers"
    )


def _finish(ledger: Ledger, pending: dict[int, Intent]) -> Generator[Act, Any, None]:
    """Publish batches, one after the other."""
    for number, listed in pending.items():
        intent = ledger.whole(number, listed)
        numbers = yield Copy(number, intent, ledger.last.numbers)
        yield Append(_done_key(ledger.query, number), ledger.finish(number, intent, numbers))


def _leave(ledger: Ledger, batch: int) -> Generator[Act, Any, None]:
    """Nobody comes back: leave nothing behind, nor what tasks were still about to stage."""
    yield Append(_done_key(ledger.query, batch), ledger.facts[ledger.query].value)
    yield from _sweep(ledger)
    yield Collect(KeyPrefix(f"{ledger.query}/".encode()))


def _sweep(ledger: Ledger) -> Generator[Act, Any, None]:
    """Collect what nobody needs. What has come since it was read lies behind all that is known."""
    low, facts = ledger.low()
    if facts and low - facts[0] <= MOVE_AFTER + 2 * len(facts):
        low, facts = facts[0], []
    for seq in facts:
        place = ledger.records[seq]
        assert place is not None
        yield Append(_done_key(place.query, place.batch), ledger.facts[place.query].value)
    yield Collect(BeforeSeq(low))
    for which in ledger.garbage(low):
        yield Collect(which)


def abort(
    query: str, batch: int, writer: str, unique: Callable[[], str], *, once: bool = False
) -> Generator[Act, Any, None]:
    """Give a batch up and collect its chunks, unless they are bound to be published."""
    prefix = _prefix(query, batch)
    if once:
        yield Collect(KeyPrefix(f"{query}/".encode()))
        return
    seq = yield Append(f"{prefix}{ABANDONED}/{writer}/{unique()}".encode(), b"")
    ledger: Ledger = yield Read(seq)
    if ledger.is_bound(batch, writer):
        return  # half of it may be published: who comes next will finish it
    yield Collect(KeyPrefix(f"{prefix}{CHUNK}/{writer}/".encode()))
    if ledger.done >= batch:
        yield from _sweep(ledger)
