"""How rows in a staging stream become events of their target streams, exactly once: the decisions.

Tasks of a Spark job append their rows, as encoded batches called *chunks*, to a staging stream:
`_spark.orders` for a target `orders`. Subscribers of the target do not see them. When all tasks
have succeeded, the driver commits the job, or one micro-batch of it: it publishes the rows to the
target.

A driver may crash at any moment. Another driver then repeats the batch, perhaps with rows in
another order, while the first driver may still be running (a zombie). The drivers must agree on the
rows to publish. The order of the staging stream decides, because it is the same for every driver:

1. The driver appends an *intent*: the list of its chunks. The first intent for a batch is valid.
   All drivers publish exactly the chunks that it lists, whichever driver wrote it. If the list is
   too long for one record, the driver first writes it in *pages*, and the intent lists the pages.
2. All drivers publish with the same publisher id, and with numbers that continue from the previous
   batch. So the head of the target stream recognises an event that was published before, and does
   not publish it again.
3. When the targets' regions have acknowledged all rows, the driver appends a *done* record. It
   stores the next number for each target and, for a job that may be run again, a checksum of the
   rows. A batch that is done never changes again.
4. Chunks and records of a batch that is done are garbage. Drivers *collect* garbage: they declare
   it obsolete, and the region removes it. All positions below the first record that is still needed
   are collected at once. (Collecting by position is necessary: the collect events themselves have
   no key, so they can only be removed in this way.) But the *done* record of a query is always
   needed. If the query is idle, this record would block collecting by position for ever. So a
   driver that finds such a record appends it again, unchanged and with the same key, and the old
   record becomes garbage.
5. Chunks of a query without an intent are *orphaned* if the query has appended nothing for a week:
   probably its driver was killed, and its checkpoint was deleted. Any other driver collects these
   chunks. For a job that cannot be repeated, the limit is a day, and its intent is orphaned as
   well.

A driver that gives up its batch appends an *abandoned* record, which makes later intents of this
driver for the batch invalid. It then collects its chunks, unless its intent was already valid.

A job may consist of *parts* whose ends are not known in advance, such as the replay of an archive
that grows. Each part is a batch. Its number is the position that it reaches, and its intent names
the batch that it follows. If several intents follow the same batch, only the first is valid,
whatever positions they reach.

**Reading is not a snapshot.** A driver reads the staging stream from its beginning. Meanwhile,
other drivers may finish batches and collect records, including *done* records, before it has read
them. So the driver reads until the end, appends a record of its own, and reads up to this record.
If no position between the old end and its own record was collected, the driver has read every
record that still existed when it appended its own, and can decide. Otherwise it appends another
record (a *mark*) and reads up to that.

`commit`, `resume` and `abort` are generators. They yield acts, such as `Append`. For each act they
receive the answer, or the error that prevented it. No IO happens here; `staging_io` performs the
acts.
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

LOOKS_MAX: Final = 1000  # attempts to read a stream in which other drivers collect all the time
# `done` records that block collecting by position are appended again only if the garbage after the
# first of them has more positions than this number plus 2 for each such record.
MOVE_AFTER: Final = 256
PAGE_BYTES: Final = 4 << 20  # maximum size of an intent or page; an event has at most 8 MB
ONCE: Final = "once-"  # prefix of the name of a query that will never be repeated
SILENT_NS: Final = 7 * 24 * 3600 * SECOND  # without records for this time, chunks are orphaned
ONCE_SILENT_NS: Final = 24 * 3600 * SECOND  # the same for a query that will never be repeated
_LAST: Final = (1 << 63) - 1  # no batch has a higher number

# The kinds of records; the module's docstring explains them.
CHUNK, PAGE, INTENT, ABANDONED, MARK = "chunk", "page", "intent", "abandoned", "mark"
DONE = "done"

Numbers = dict[bytes, int]  # id of a target stream → the publisher's next number there


# ---------------------------------------------------------------- records of a staging stream


def staging_name(target: str | None) -> str:
    """The staging stream of `target`; None if each row names its own target."""
    return "_spark" if target is None else f"_spark.{target}"


class ChunkRef(NamedTuple):
    """A chunk: its position in the staging stream, its number of rows, and its target."""

    seq: int
    rows: int
    target: int  # index into Intent.targets


class Intent(msgspec.Struct, frozen=True, array_like=True):
    """The chunks that a batch publishes, in this order."""

    writer: str  # as in the keys of the chunks
    targets: tuple[str, ...]  # names of target streams
    chunks: tuple[ChunkRef, ...]  # empty if the list is in pages
    after: int | None = None  # for a part: the batch that it follows (-1: none)
    pages: tuple[int, ...] = ()  # positions of the pages that contain the list, if it is long
    digest: int | None = None  # checksum of the rows (columns/sums.py); None: not needed
    # The schemas with which the chunks of each target were made; empty if no target has one.
    schemas: tuple[str, ...] = ()

    def schema(self, target: int) -> str:
        """The schema of a target, given by its index; "" if it has none."""
        return self.schemas[target] if self.schemas else ""

    @property
    def rows(self) -> int:
        return sum(chunk.rows for chunk in self.chunks)


class Done(msgspec.Struct, frozen=True, array_like=True):
    """A batch is completely published; `numbers` has the publisher's next number by target."""

    numbers: Numbers
    after: int | None = None  # as in the intent of the batch
    digest: int | None = None


class KeyFields(NamedTuple):
    """The fields of a record's key: `query/batch/kind/writer/…`, or `query/done/batch`."""

    query: str  # the id of a streaming query, or the name of a batch job
    batch: int  # as 16 hexadecimal digits in the key
    kind: str  # CHUNK, PAGE, INTENT, ABANDONED, MARK or DONE
    writer: str  # a unique id of the driver's attempt; "" for DONE


def chunk_key(query: str, batch: int, writer: str, partition: int, attempt: int, n: int) -> bytes:
    return f"{_prefix(query, batch)}{CHUNK}/{writer}/{partition}/{attempt}/{n}".encode()


def _prefix(query: str, batch: int) -> str:
    return f"{query}/{batch:016x}/"


def _done_key(query: str, batch: int) -> bytes:
    return f"{query}/{DONE}/{batch:016x}".encode()


def _key_fields(key: bytes) -> KeyFields:
    """Decode a key. Raises PeerError if it has not the form of any key that drivers and tasks
    write."""
    try:
        query, first, second, *rest = key.decode().split("/")
        if first == DONE:
            return KeyFields(query, int(second, 16), first, "")
        return KeyFields(query, int(first, 16), second, rest[0])
    except (ValueError, IndexError):
        raise PeerError(f"a record in the staging stream has the strange key {key!r}") from None


# A chunk's value: the fields of the batch header that describe the body, then the unchanged body.
_CHUNK: Final = struct.Struct("<BBxxIQ")  # version, schema id, rows, form
_VERSION: Final = 1


def chunk_value(batch: Batch) -> bytes:
    assert batch.body is not None
    return b"".join(
        (_CHUNK.pack(_VERSION, batch.schema_id, batch.rows, batch.form), bytes(batch.body))
    )


def chunk_batch(value: bytes, stream_id: bytes) -> Batch:
    """The batch to publish to a target stream; its body is the body of the chunk, unchanged."""
    if len(value) <= _CHUNK.size or value[0] != _VERSION:
        raise PeerError("a staged chunk was written by another version or another program")
    _, schema_id, rows, form = _CHUNK.unpack_from(value)
    body = value[_CHUNK.size :]
    batch = Batch(
        DATA, stream_id, schema_id, NO_PUBLISHER, 0, 0, rows, rows, 0, 0, NONE,
        body, zlib.crc32(body), HEADER_SIZE + len(body), form,
    )  # fmt: skip
    batch.validate()
    return batch


# ---------------------------------------------------------------- a driver's knowledge


class Fact(NamedTuple):
    """The last batch of a query that is done, and the position and value of its `done` record."""

    batch: int
    seq: int
    value: bytes


@dataclass(slots=True)
class Ledger:
    """What a driver knows from the staging stream: the records of its own query, and which records
    other queries still need."""

    query: str
    end: int = 1  # the first position not read yet
    hidden: int = 0  # the last position that was collected before it could be read
    done: int = -1  # the last batch of the query that is done
    last: Done = field(default_factory=lambda: Done({}))  # the `done` record of this batch
    intents: dict[int, Intent] = field(default_factory=dict)  # batch → its valid intent
    # Batch → number and valid intent of the part that follows it.
    parts: dict[int, tuple[int, Intent]] = field(default_factory=dict)
    pages: dict[int, bytes] = field(default_factory=dict)  # by position
    abandoned: dict[tuple[int, str], None] = field(default_factory=dict)  # batch, writer
    # Of all queries, by position; None: a record whose key has an unknown form.
    records: dict[int, KeyFields | None] = field(default_factory=dict)
    facts: dict[str, Fact] = field(default_factory=dict)  # by query
    news: dict[str, int] = field(default_factory=dict)  # query → time of its last not-done record
    promised: dict[str, int] = field(default_factory=dict)  # query → last batch with an intent
    time_ns: int = 0  # time of the last record, by the clock of the region that owns the stream

    def note_void(self, last: int, *, collected: bool) -> None:
        """Note a range up to position `last` that has no readable records. They were collected; or
        the positions are control entries of the stream (not `collected`), which are no records."""
        self.end = last + 1
        if collected:
            self.hidden = last

    def note(self, seq: int, key: bytes, value: bytes, time_ns: int = 0) -> KeyFields | None:
        """Note a record. Returns the fields of its key if it belongs to this query, otherwise
        None."""
        self.end = seq + 1
        self.time_ns = time_ns
        ours = key.startswith(self.query.encode() + b"/")
        try:
            fields = self.records[seq] = _key_fields(key)
        except PeerError:
            if ours:
                raise
            self.records[seq] = None
            return None
        if fields.kind == DONE:
            self._note_done(fields, seq, value)
            return fields if ours else None
        self.news[fields.query] = time_ns
        if fields.kind == INTENT:
            self.promised[fields.query] = max(fields.batch, self.promised.get(fields.query, -1))
        if not ours:
            return None
        if fields.kind == PAGE:
            self.pages[seq] = value
        self._note_work(fields, value)
        return fields

    def _note_done(self, fields: KeyFields, seq: int, value: bytes) -> None:
        known = self.facts.get(fields.query)
        if known is None or fields.batch >= known.batch:
            self.facts[fields.query] = Fact(fields.batch, seq, value)
        if fields.query == self.query and fields.batch > self.done:
            self.done, self.last = fields.batch, _decode(value, Done)

    def _note_work(self, fields: KeyFields, value: bytes) -> None:
        batch, kind = fields.batch, fields.kind
        if kind == ABANDONED:
            self.abandoned[batch, fields.writer] = None
        elif kind == INTENT and (batch, fields.writer) not in self.abandoned:
            self._stand(batch, _decode(value, Intent))

    def _stand(self, batch: int, intent: Intent) -> None:
        """Accept an intent if it is the first one for its batch, or the first part that follows
        its batch `after`."""
        if intent.after is None:
            self.intents.setdefault(batch, intent)
        elif intent.after < batch:
            self.parts.setdefault(intent.after, (batch, intent))

    def finish(self, batch: int, intent: Intent, numbers: Numbers) -> bytes:
        """Note that `batch` is completely published. Returns the value of its `done` record."""
        numbers = {**self.last.numbers, **numbers}
        self.done, self.last = batch, Done(numbers, intent.after, intent.digest)
        value = msgspec.msgpack.encode(self.last)
        self.facts[self.query] = Fact(batch, self.end, value)  # its position is `end` or higher
        return value

    @property
    def rows(self) -> int:
        """The number of rows that the query has published in all its batches."""
        return sum(number - 1 for number in self.last.numbers.values())  # numbers begin at 1

    def has_others(self, batch: int, intent: Intent) -> bool:
        """Whether it is known that the batch was published with other rows than the intent has.

        This is known only for the last batch that is done, because only its checksum is kept.
        """
        digests = self.last.digest, intent.digest
        is_last = (self.done, self.last.after) == (batch, intent.after)
        return is_last and None not in digests and digests[0] != digests[1]

    def pending(self, batch: int) -> dict[int, Intent]:
        """The batches up to `batch` that have a valid intent and are not done, in order."""
        found = {b: self.intents[b] for b in sorted(self.intents) if self.done < b <= batch}
        # Then the parts, each of which follows the one before; none: a number above `batch`.
        last, intent = self.parts.get(max(found, default=self.done), (batch + 1, None))
        while intent is not None and last <= batch:
            found[last] = intent
            last, intent = self.parts.get(last, (batch + 1, None))
        return found

    def whole(self, batch: int, intent: Intent) -> Intent:
        """The complete intent, read from its pages if it has any."""
        if not intent.pages:
            return intent
        if gone := [seq for seq in intent.pages if seq not in self.pages]:
            raise SurecastError(
                f"{len(gone)} of {len(intent.pages)} pages that list what batch {batch} of query "
                f"{self.query} publishes are gone, the first at {gone[0]}: they were collected. "
                "Write its rows again with a new checkpoint (or another queryId)"
            )
        found: Intent = _decode(b"".join(self.pages[seq] for seq in intent.pages), Intent)
        return found

    def is_bound(self, batch: int, writer: str) -> bool:
        """Whether the chunks of a driver may still be published, because its intent is valid and
        the batch is not done."""
        intents = [self.intents.get(batch)]
        intents += [intent for number, intent in self.parts.values() if number == batch]
        return self.done < batch and any(i is not None and i.writer == writer for i in intents)

    def is_orphan(self, query: str) -> bool:
        """Whether the chunks of another query are orphaned: it has written nothing for long. A
        query that can be repeated must also have no intent that is not done."""
        silent_ns = self.time_ns - self.news.get(query, self.time_ns)
        if query == self.query or silent_ns <= ONCE_SILENT_NS:
            return False
        if query.startswith(ONCE):
            return True
        done = self.facts[query].batch if query in self.facts else -1
        return silent_ns > SILENT_NS and self.promised.get(query, -1) <= done

    def is_needed(self, seq: int, fields: KeyFields | None) -> bool:
        """Whether a driver may still need a record. Records with unknown keys are kept."""
        if fields is None:
            return True
        if fields.kind != DONE and self.is_orphan(fields.query):
            return False
        if fields.query not in self.facts:  # no batch of the query is done
            return True
        if fields.query.startswith(ONCE):  # its only batch is done
            return False
        fact = self.facts[fields.query]
        return seq == fact.seq if fields.kind == DONE else fields.batch > fact.batch

    def low(self) -> tuple[int, list[int]]:
        """A position below which no records are needed except some `done` records (which block
        collecting by position), and the positions of these `done` records."""
        facts: list[int] = []
        for seq, fields in self.records.items():
            if self.is_needed(seq, fields):
                if fields is None or fields.kind != DONE:
                    return seq, facts
                facts.append(seq)
        return self.end, facts

    def garbage(self, low: int) -> Iterator[Predicate]:
        """The predicates that collect the garbage from `low` on. For this query, garbage is
        everything of finished batches except the last `done` record; for other queries, orphaned
        chunks."""
        found: dict[Predicate, None] = {}
        for seq, fields in self.records.items():
            if seq < low or fields is None or self.is_needed(seq, fields):
                continue
            prefix = _prefix(fields.query, fields.batch)
            if fields.query != self.query:
                # This is safe even if the query is resumed: its driver then has a new writer id.
                if fields.kind == CHUNK and self.is_orphan(fields.query):
                    found[KeyPrefix(f"{prefix}{CHUNK}/{fields.writer}/".encode())] = None
            elif fields.kind != DONE:
                found[KeyPrefix(prefix.encode())] = None
            elif fields.batch < self.done:
                found[KeyIs(_done_key(self.query, fields.batch))] = None
        yield from found


def _encode(record: Intent) -> bytes:
    return msgspec.msgpack.encode(record)


def _decode(value: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.msgpack.decode(value, type=kind)
    except msgspec.MsgspecError as problem:
        raise PeerError(f"a record in the staging stream cannot be read: {problem}") from None


# ---------------------------------------------------------------- acts


@dataclass(frozen=True, slots=True)
class Append:
    """Publish a record to the staging stream. Answer: its position."""

    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Read:
    """Continue reading the staging stream up to position `to`; 0: up to the end that the region
    reports. Answer: the ledger."""

    to: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Publish the chunks of an intent to their targets.

    The publisher's numbers begin with `numbers`, or with 1 for a target that is not in `numbers`.
    Answer: the next number for each target.
    """

    batch: int
    intent: Intent
    numbers: Numbers


@dataclass(frozen=True, slots=True)
class Collect:
    """Declare records of the staging stream obsolete."""

    which: Predicate


Act = Append | Read | Copy | Collect


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a commit."""

    replayed: bool  # whether the batch was done before this call
    finished: tuple[int, ...]  # the batches that were published by this call
    done: int  # the last batch that is done
    rows: int  # all rows that the query has published
    others: bool = False  # whether other rows than the requested ones were published


def commit(
    query: str, batch: int, intent: Intent, unique: Callable[[], str], *, once: bool = False
) -> Generator[Act, Any, Outcome]:
    """Publish a batch, unless it was done before. Batches that earlier drivers have not finished
    are finished first.

    `unique` returns a new, unique string at each call. `once`: the query will never be repeated, so
    no record of it is kept.
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
            f"another run of {query} has published a part after {intent.after} meanwhile, or this "
            "part was abandoned by its own driver. Run it again: it continues after the last part "
            "that is done"
        )
    if once:
        ledger.finish(batch, intent, (yield Copy(batch, intent, {})))
        # All rows are published, so an error in tidying up is ignored: it would cause a retry.
        with suppress(SurecastError):
            yield from _leave(ledger, batch)
    else:
        yield from _finish(ledger, pending)
        yield from _sweep(ledger)
    others = ledger.has_others(batch, intent)
    return Outcome(replayed, tuple(pending), ledger.done, ledger.rows, others)


def resume(query: str, unique: Callable[[], str]) -> Generator[Act, Any, Outcome]:
    """Finish the batches of earlier drivers. The outcome says how far a job in parts has come."""
    ledger = yield from _look(query, 0, MARK, "resume", b"", unique)
    pending = ledger.pending(_LAST)
    yield from _finish(ledger, pending)
    yield from _sweep(ledger)
    return Outcome(not pending, tuple(pending), ledger.done, ledger.rows)


def _write(
    query: str, batch: int, intent: Intent, unique: Callable[[], str]
) -> Generator[Act, Any, bytes]:
    """Returns the value of an intent's record. If the intent is long, its pages are written
    first."""
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
    """Append a record and read until all earlier records are known for certain (see "Reading is not
    a snapshot" in the module's docstring)."""
    ledger: Ledger = yield Read(0)
    for _ in range(LOOKS_MAX):
        looked = ledger.end  # all positions below this one are read
        key = f"{_prefix(query, batch)}{kind}/{writer}/{unique()}"
        ledger = yield Read((yield Append(key.encode(), value)))
        if ledger.hidden < looked:
            return ledger
        kind, value = MARK, b""  # the record itself is appended only once
    raise SurecastError(
        f"the staging stream of query {query} changes faster than it can be read. Give the "
        "queries that write to this stream longer triggers"
    )


def _finish(ledger: Ledger, pending: dict[int, Intent]) -> Generator[Act, Any, None]:
    """Publish the pending batches in order, and append a `done` record after each."""
    for number, listed in pending.items():
        intent = ledger.whole(number, listed)
        numbers = yield Copy(number, intent, ledger.last.numbers)
        yield Append(_done_key(ledger.query, number), ledger.finish(number, intent, numbers))


def _leave(ledger: Ledger, batch: int) -> Generator[Act, Any, None]:
    """Collect all records of a query that will not be repeated, including chunks that a task has
    staged after the driver read the stream."""
    yield Append(_done_key(ledger.query, batch), ledger.facts[ledger.query].value)
    yield from _sweep(ledger)
    yield Collect(KeyPrefix(f"{ledger.query}/".encode()))


def _sweep(ledger: Ledger) -> Generator[Act, Any, None]:
    """Collect garbage. Records that were appended after the stream was read are not affected,
    because their positions are higher than all known positions."""
    low, facts = ledger.low()
    if facts and low - facts[0] <= MOVE_AFTER + 2 * len(facts):
        low, facts = facts[0], []  # too little garbage to append these `done` records again
    for seq in facts:
        fields = ledger.records[seq]
        assert fields is not None
        yield Append(_done_key(fields.query, fields.batch), ledger.facts[fields.query].value)
    yield Collect(BeforeSeq(low))
    for which in ledger.garbage(low):
        yield Collect(which)


def abort(
    query: str, batch: int, writer: str, unique: Callable[[], str], *, once: bool = False
) -> Generator[Act, Any, None]:
    """Give up a batch and collect its chunks, unless they may still be published because the
    driver's intent is already valid."""
    prefix = _prefix(query, batch)
    if once:
        yield Collect(KeyPrefix(f"{query}/".encode()))
        return
    seq = yield Append(f"{prefix}{ABANDONED}/{writer}/{unique()}".encode(), b"")
    ledger: Ledger = yield Read(seq)
    if ledger.is_bound(batch, writer):
        return  # some rows may be published already: the next driver will finish the batch
    yield Collect(KeyPrefix(f"{prefix}{CHUNK}/{writer}/".encode()))
    if ledger.done >= batch:
        yield from _sweep(ledger)
