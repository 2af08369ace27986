"""Checks of Sprinkler's guarantees, for tests and swarms (random fault tests).

The checks use only what publishers sent, what was acknowledged to them, and what readers got. A
`Record` has this history of one stream. The checks use none of the code that they check: retention
is computed again by plain loops over plain rows.

A position is *void* if a later event has *collected* its event (made it obsolete): a COLLECT event
(also called GC event), an event with the same key, or any later event under the retention policy.
Readers get void positions as ranges with a reason (`columns.batch`: SUPERSEDED, EXPIRED,
COLLECTED).

G1 a reader gets only published events, and void positions of events that were published
G2 positions are strictly rising, contiguous from the reader's start
G3 the order in which a publisher publishes is the order of positions
G4 a reader gets every event, or a void position for it and later an event that collects it
G5 no event collects a later one; no position is void without an event that collects it (R11)
G6 a region has exactly the events that no event collects, and all other positions are void
G7 the newest event is never void
G9 all readers reach the same end, after everything that was acknowledged
G10 no acknowledged event is lost, no position is assigned twice, no retry is published twice
S1 every event has columns of the stream's schema as it is at the event's position
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice, repeat

from surecast.columns import retention
from surecast.columns.batch import COLLECT, COLLECTED, CONFIG, DATA, EXPIRED, SUPERSEDED, Batch
from surecast.columns.retention import (
    BeforeSeq,
    BeforeTime,
    Collect,
    End,
    KeepFor,
    KeepLast,
    KeyIs,
    KeyPrefix,
    LatestPerKey,
    NewSchema,
    Policy,
    TagIs,
)
from surecast.columns.rules import schema_after
from surecast.columns.schema import read_schema
from surecast.columns.typed import Attributes, types_of

__all__ = ["Event", "Offered", "Reading", "Record", "Tally", "check", "surviving"]


@dataclass(frozen=True, slots=True)
class Offered:
    """One event as its publisher offered it."""

    publisher: str
    pub_no: int  # its number at this publisher
    kind: int  # as in `columns.batch`
    key: bytes | None
    value: bytes
    tag: bytes | None
    attributes: bytes = b""  # `Attributes.row_bytes`, if the stream has a schema


@dataclass(frozen=True, slots=True)
class Event:
    """One event as a reader got it."""

    seq: int
    time_ns: int
    kind: int
    key: bytes | None
    value: bytes
    tag: bytes | None
    attributes: bytes = b""  # as in Offered


@dataclass(slots=True)
class Reading:
    """What one reader got of one stream, in order."""

    reader: str
    position: int = 1  # the next one that the reader expects
    settled: int = 1  # for an audit: the end of the stream when the audit began
    events: list[Event] = field(default_factory=list)
    voids: list[tuple[int, int, int]] = field(default_factory=list)  # (lo, hi, reason)
    faults: list[str] = field(default_factory=list)  # violations of G2 seen so far
    left: bool = False  # the reader has stopped reading on purpose, before the end
    lost: list[tuple[int, int, str]] = field(default_factory=list)  # (lo, hi, why), as reported
    schema: str = ""  # of the stream, after all positions so far; "": not checked

    def take(self, batches: tuple[Batch, ...]) -> None:
        for batch in batches:
            if batch.lo != self.position:
                fault = "gap before" if batch.lo > self.position else "repeats"
                self.faults.append(
                    f"G2 {self.reader}: at {self.position}, {fault} [{batch.lo}, {batch.hi})"
                )
            at = batch.lo
            if self.schema:
                self._check_columns(batch)
            for row, held in zip(batch.to_rows(), _attributes(batch), strict=False):
                if row.seq > at:
                    self.voids.append((at, row.seq, batch.reason))
                self.events.append(
                    Event(row.seq, row.time_ns, batch.kind, row.key, row.value, row.tag, held)
                )
                at = row.seq + 1
            if batch.hi > at:
                self.voids.append((at, batch.hi, batch.reason))
            self.position = batch.hi

    def _check_columns(self, batch: Batch) -> None:
        """S1: the columns of events are among the first ones of the schema at their positions."""
        self.schema = schema_after(self.schema, batch)
        columns, known = batch.columns_id[1], read_schema(self.schema).types.code
        if not known.startswith(columns) or (batch.kind == DATA and batch.rows and not columns):
            self.faults.append(
                f"S1 {self.reader}: at {batch.lo}, columns that {self.schema!r} does not have"
            )

    def lose(self, lo: int, hi: int, why: str) -> None:
        """[lo, hi) was reported to the reader as lost."""
        if lo != self.position or hi <= lo:
            self.faults.append(f"G2 {self.reader}: at {self.position}, lost [{lo}, {hi})")
        self.lost.append((lo, hi, why))
        self.position = hi


def _attributes(batch: Batch) -> Iterable[bytes]:
    """The attributes of each row."""
    attributes = batch.attributes()
    if attributes is None:
        return repeat(b"")
    return _attribute_rows(attributes.types.code, bytes(attributes.section()), batch.rows)


@lru_cache(4096)  # several readers get the same batches
def _attribute_rows(code: bytes, section: bytes, rows: int) -> list[bytes]:
    attributes = Attributes(types_of(code), rows, section)
    return [attributes.row_bytes(row) for row in range(rows)]


@dataclass(slots=True)
class Record:
    """The history of one stream as seen from outside."""

    stream: str
    policy: Policy  # of retention, when the stream was created
    offered: dict[bytes, Offered] = field(default_factory=dict)  # by value: values are unique
    acked: dict[bytes, int] = field(default_factory=dict)  # value → acknowledged position
    readings: list[Reading] = field(default_factory=list)
    # At the end of a test, each region is read once more from position 1.
    audits: list[Reading] = field(default_factory=list)
    schema: str = ""  # when the stream was created; "": it has none


@dataclass(slots=True)
class Tally:
    """Counts and violations of all checked streams."""

    published: int = 0  # this and the next are numbers of events
    acked: int = 0
    delivered: int = 0  # this and the next are sums over all readers
    void: int = 0
    # The numbers of violations of three kinds (`lost`: also positions reported to readers as lost):
    lost: int = 0
    duplicated: int = 0
    misordered: int = 0
    violations: list[str] = field(default_factory=list)


def check(record: Record, tally: Tally) -> None:
    """Check one stream; counts and violations are added to `tally`."""
    tally.published += len(record.offered)
    tally.acked += len(record.acked)
    say = tally.violations.append
    everybody = [*record.readings, *record.audits]
    # The history as far as it is known: position → event, from all readers and acknowledgements.
    truth: dict[int, Event] = {}
    for reading in everybody:
        tally.misordered += len(reading.faults)
        tally.violations.extend(f"{record.stream}: {fault}" for fault in reading.faults[:5])
        _events_are_genuine(record, reading, truth, tally)
    _acks_hold(record, truth, tally)
    _publishers_order(record, truth, tally)
    end = max((reading.position for reading in everybody), default=1)
    for reading in everybody:
        tally.delivered += len(reading.events)
        tally.void += sum(hi - lo for lo, hi, _ in reading.voids)
        tally.lost += sum(hi - lo for lo, hi, _ in reading.lost)
        for lo, hi, why in reading.lost[:5]:
            say(f"{record.stream}: G4 {reading.reader} was told [{lo}, {hi}) is lost: {why}")
        if reading.position != end and not reading.left:
            say(f"{record.stream}: G9 {reading.reader} ended at {reading.position}, not {end}")
    _times_rise(record, truth, tally)
    collectors = _Collectors(record.policy, truth)
    for reading in everybody:
        _voids_are_explained(record, reading, truth, collectors, tally)
    _all_positions_are_known(record, truth, end, tally)
    for audit in record.audits:
        # The last void range ends where the stream ends. (The first item is for no void ranges.)
        if 1 < audit.position == max(hi for _, hi, _ in [(0, 1, 0), *audit.voids]):
            say(f"{record.stream}: G7 {audit.reader}: the newest position is void")
    if len(truth) == end - 1:  # the whole history is known
        for audit in record.audits:
            _is_exactly_what_is_left(record, audit, truth, tally)


def _all_positions_are_known(
    record: Record, truth: dict[int, Event], end: int, tally: Tally
) -> None:
    """G1, G10: if every publish was acknowledged, every position has a published event.

    Not checked for keep_for streams: their expiry events may be void before any reader gets them.
    """
    if len(record.acked) < len(record.offered) or isinstance(record.policy, KeepFor):
        return
    unknown = [seq for seq in range(1, end) if seq not in truth]
    if unknown:
        tally.duplicated += len(unknown)
        tally.violations.append(f"{record.stream}: G1 nobody published positions {unknown[:5]}")


def _is_exactly_what_is_left(
    record: Record, audit: Reading, truth: dict[int, Event], tally: Tally
) -> None:
    """G6: at the end, a region has exactly the events that no event collects."""
    name = f"{record.stream}: {{}} {audit.reader}"
    held = {event.seq for event in audit.events}
    # Events that collect others may be appended while the audit reads, for example by expiry. So
    # what the audit got is checked with the events that existed when it began, and what it lacks
    # with all events.
    before = {seq: event for seq, event in truth.items() if seq < audit.settled}
    extra = {s for s in held if s < audit.settled} - _Collectors(record.policy, before).live()
    missing = _Collectors(record.policy, truth).live() - held
    if extra or missing:
        tally.violations.append(
            f"{name.format('G6')} has events that are collected, at {sorted(extra)[:5]}, "
            f"and lacks events that are not, at {sorted(missing)[:5]}"
        )


def _events_are_genuine(
    record: Record, reading: Reading, truth: dict[int, Event], tally: Tally
) -> None:
    """G1, G10: all events are published ones, no position has two events, and no event has two
    positions."""
    seen: dict[bytes, int] = {}
    for event in reading.events:
        known = truth.setdefault(event.seq, event)
        if known != event:
            tally.violations.append(
                f"{record.stream}: G10 {reading.reader} got {event.value[:40]!r} at {event.seq}, "
                f"another reader {known.value[:40]!r}"
            )
        offered = record.offered.get(event.value)
        if offered is None:
            if not _is_expiry(record, event):
                tally.violations.append(f"{record.stream}: G1 nobody published {event}")
            continue
        sent = offered.kind, offered.key, offered.tag, offered.attributes
        if sent != (event.kind, event.key, event.tag, event.attributes):
            tally.violations.append(f"{record.stream}: G1 changed on the way: {event}")
        if event.value in seen:
            tally.duplicated += 1
            tally.violations.append(
                f"{record.stream}: G10 {reading.reader} got {event.value[:40]!r} twice, at "
                f"{seen[event.value]} and {event.seq}"
            )
        seen[event.value] = event.seq


def _is_expiry(record: Record, event: Event) -> bool:
    """Whether this is an expiry event of a keep_for stream. A head makes no other events itself;
    all others come from publishers."""
    if event.kind != COLLECT:
        return False
    rule = retention.decode_collect(event.value)
    policy = record.policy
    return (
        isinstance(policy, KeepFor)
        and isinstance(rule.predicate, BeforeTime)
        and rule.reason == EXPIRED
        and rule.predicate.time_ns <= event.time_ns - policy.ns
    )


def _acks_hold(record: Record, truth: dict[int, Event], tally: Tally) -> None:
    """G10: each acknowledged event is at its acknowledged position, or that position is void."""
    given: dict[int, bytes] = {}
    reached = max((r.position for r in (*record.readings, *record.audits)), default=1)
    at = {event.value: seq for seq, event in truth.items()}
    for value, seq in record.acked.items():
        if seq in given:
            tally.violations.append(f"{record.stream}: G10 position {seq} was given twice")
        given[seq] = value
        known = truth.get(seq)
        if seq >= reached or (known is not None and known.value != value):
            tally.lost += 1
            tally.violations.append(
                f"{record.stream}: G10 {value[:40]!r} was acknowledged at {seq} and is lost"
            )
        elif at.get(value, seq) != seq:
            tally.duplicated += 1
            tally.violations.append(
                f"{record.stream}: G10 {value[:40]!r} is at two positions, {seq} and {at[value]}"
            )
        elif known is None:  # void for all readers: use the event as the publisher offered it
            o = record.offered[value]
            truth[seq] = Event(seq, 0, o.kind, o.key, o.value, o.tag, o.attributes)
    # No reader got these events, so their times are not known. Use the time of the event before.
    latest_ns = 0
    for seq in sorted(truth):
        if truth[seq].time_ns == 0:
            truth[seq] = replace(truth[seq], time_ns=latest_ns)
        latest_ns = max(latest_ns, truth[seq].time_ns)


def _publishers_order(record: Record, truth: dict[int, Event], tally: Tally) -> None:
    """G3: a publisher's order is the order of positions."""
    last: dict[str, tuple[int, int]] = {}  # publisher → (pub_no, position) of its last event
    for seq in sorted(truth):
        offered = record.offered.get(truth[seq].value)
        if offered is None:
            continue
        before = last.get(offered.publisher)
        if before is not None and offered.pub_no <= before[0]:
            tally.misordered += 1
            tally.violations.append(
                f"{record.stream}: G3 the numbers {before[0]} and {offered.pub_no} of "
                f"{offered.publisher} are at the positions {before[1]} and {seq}"
            )
        last[offered.publisher] = (offered.pub_no, seq)


def _times_rise(record: Record, truth: dict[int, Event], tally: Tally) -> None:
    """R10: times never decrease along a stream."""
    latest = 0
    for seq in sorted(truth):
        time_ns = truth[seq].time_ns
        if time_ns and time_ns < latest:
            tally.violations.append(
                f"{record.stream}: R10 the time at {seq} is earlier than before"
            )
            return
        latest = max(latest, time_ns)


def _voids_are_explained(
    record: Record,
    reading: Reading,
    truth: dict[int, Event],
    collectors: "_Collectors",
    tally: Tally,
) -> None:
    """G4, G5, R11: for each void position, the reader also got an event that collects it."""
    got = {event.seq for event in reading.events}
    if reading.left:  # the reader would have got the later events if it had continued
        got |= {seq for seq in truth if seq >= reading.position}
    for lo, hi, reason in reading.voids:
        for seq in range(lo, hi):
            event = truth.get(seq)
            if event is None:
                continue  # the event is not known: nobody got it, or an acknowledgement of it
            if not collectors.explain(event, reason, got):
                tally.lost += 1
                tally.violations.append(
                    f"{record.stream}: G4 {reading.reader} was told {seq} is void "
                    f"({reason}), but got nothing later that collects {event.value[:40]!r}"
                )
                return


class _Collectors:
    """Which events make which events void (*collect* them), computed by plain loops. The results of
    the compiled code are compared with this."""

    def __init__(self, policy: Policy, truth: dict[int, Event]) -> None:
        # Events are referred to by their positions.
        self.truth = truth
        self.newest: dict[int, tuple[tuple[int, int], ...]] = {}  # cache of `explain`
        self.rules: list[tuple[int, Collect]] = []  # COLLECT events
        self.by_key: dict[bytes, list[int]] = {}  # keyed events under latest_per_key
        self.windows: list[tuple[int, list[int]]] = []  # (n, the events under keep_last(n))
        self.configs: list[int] = []  # CONFIG events; they change the policy or delete the stream
        self.ends: list[int] = []  # those that delete the stream (End events)
        # Those that change the policy to latest_per_key, each with the newest event of each key at
        # that time. They collect all other events with keys.
        self.switches: list[tuple[int, dict[bytes, int]]] = []
        newest: dict[bytes, int] = {}  # key → its newest event so far
        for seq in sorted(truth):
            event = truth[seq]
            if event.kind == CONFIG:  # a CONFIG event counts as an event under its own policy
                self.configs.append(seq)
                config = retention.decode_config(event.value)
                before = policy
                if isinstance(config, End):
                    self.ends.append(seq)
                elif not isinstance(config, NewSchema):
                    policy = config
                if isinstance(policy, LatestPerKey) and not isinstance(before, LatestPerKey):
                    self.switches.append((seq, dict(newest)))
            if event.kind == COLLECT:
                self.rules.append((seq, retention.decode_collect(event.value)))
            if isinstance(policy, KeepLast):
                if not self.windows or self.windows[-1][0] != policy.n:
                    self.windows.append((policy.n, []))
                self.windows[-1][1].append(seq)
            if event.kind == DATA and event.key is not None:
                newest[event.key] = seq
                if isinstance(policy, LatestPerKey):
                    self.by_key.setdefault(event.key, []).append(seq)

    def of(self, event: Event) -> Iterator[tuple[int, int]]:
        """(seq, reason) of every event that collects this one.

        A CONFIG event, which is never void, counts as a collector of all events that others had
        collected before it, because its policy may in turn collect these other events.
        """
        yield from self._directly(event)
        for at in self.configs:
            if at > event.seq:
                yield from ((at, reason) for seq, reason in self._directly(event) if seq < at)

    def _directly(self, event: Event) -> Iterator[tuple[int, int]]:
        """(seq, reason) of the events that collect this one directly, the newest of each kind of
        rule first."""
        if event.kind == CONFIG:
            return
        if event.key is not None and event.kind == DATA:
            for seq in reversed(self.by_key.get(event.key, ())):
                if seq <= event.seq:
                    break
                yield seq, SUPERSEDED
            for seq, newest in self.switches:
                if seq > event.seq and newest[event.key] > event.seq:
                    yield seq, SUPERSEDED
        for n, seqs in self.windows:
            for seq in reversed(seqs):
                if seq - n < event.seq:
                    break
                yield seq, EXPIRED
        for seq in self.ends:
            if seq > event.seq:
                yield seq, COLLECTED
        for seq, rule in self.rules:
            if seq > event.seq and _matches(rule, event):
                yield seq, rule.reason

    def explain(self, event: Event, reason: int, got: set[int]) -> bool:
        """Whether `reason` is correct, and an event in `got` (the positions that a reader got)
        collects this event."""
        newest = self.newest.get(event.seq)  # the first few results of `of`
        if newest is None:
            newest = self.newest[event.seq] = tuple(islice(self.of(event), 8))
        if any(r == reason for _, r in newest) and any(seq in got for seq, _ in newest):
            return True  # the usual case, which avoids a scan of the whole history of a popular key
        return any(r == reason for _, r in self.of(event)) and any(
            seq in got for seq, _ in self.of(event)
        )

    def live(self) -> set[int]:
        """The positions of all events that no event collects."""
        return {seq for seq, event in self.truth.items() if next(self.of(event), None) is None}


def _matches(rule: Collect, event: Event) -> bool:
    predicate = rule.predicate
    if isinstance(predicate, BeforeSeq):
        return event.seq < predicate.seq
    if isinstance(predicate, BeforeTime):
        return event.time_ns < predicate.time_ns
    if event.kind != DATA:
        return False
    if isinstance(predicate, KeyIs):
        return event.key == predicate.key
    if isinstance(predicate, KeyPrefix):
        return event.key is not None and event.key.startswith(predicate.prefix)
    assert isinstance(predicate, TagIs)
    return event.tag == predicate.tag


def surviving(policy: Policy, events: list[Event]) -> set[int]:
    """The positions of a complete history that are live (not void); `policy` is the retention
    policy at the beginning."""
    return _Collectors(policy, {event.seq: event for event in events}).live()
