"""G1, G3-G10, asserted on what publishers and subscribers observed of clusters under faults.

A few fault runs (a seed: three regions, five streams, every kind of fault during publishing, then
healing) are made once and examined by all tests. Tests that need a certain sequence of events make
it themselves. To make one run alone: `FaultRun(seed)`; each test prints the seed it fails on. There
are also tests that the judge and these tests can fail: here for G8, in `test_checks.py` for the
others.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surecast.columns import retention
from surecast.columns.batch import (
    COLLECT,
    COLLECTED,
    CONFIG,
    DATA,
    EXPIRED,
    REASONS,
    Batch,
    coalesce,
)
from surecast.columns.retention import (
    BeforeSeq,
    BeforeTime,
    Collect,
    KeepAll,
    KeepFor,
    KeepLast,
    KeyIs,
    KeyPrefix,
    LatestPerKey,
    Policy,
    RetentionIndex,
    TagIs,
)
from surecast.core.types import MS, SECOND
from surecast.protocols.sprinkler.checks import Event, Reading, Record, surviving
from surecast.protocols.sprinkler.messages import Advertise
from surecast.protocols.sprinkler.region_sync import RegionSync
from surecast.sim.faults import Crash, DiskFailure, Pause, Reset, Timed
from surecast.sim.links import Link
from surecast.sim.world import WALL_NS, World
from surecast_lab.swarm.cluster import Cluster
from tests.helpers import cluster_of, publish, run, settle, wait

SEEDS = (1, 2, 3)
UNSTEADY_SEEDS = (0, 1, 2, 3, 4, 36, 67, 99, 107, 120)  # the last five have found faults
REGIONS = {"east": 3, "west": 2, "north": 1}
STREAMS: dict[str, tuple[str, Policy]] = {
    "plain": ("east", KeepAll()),  # without collect events
    "keyed": ("east", LatestPerKey()),
    "ruled": ("west", KeepAll()),  # collect events of every sort
    "short": ("north", KeepLast(20)),
    "aging": ("west", KeepFor(2 * SECOND)),
}
FAULTS = (
    "head",
    "middle",
    "tail",
    "region",
    "cut",
    "one-way cut",
    "inner cut",
    "isolate",
    "pause",
    "reset",
    "full disk",
    "bad disk",
    "clock",
)


class FaultRun:
    """A cluster that had all `FAULTS` under load, was healed, and was read again from the start."""

    def __init__(
        self, seed: int, mutant: type[RegionSync] | None = None, load_ns: int = 7 * SECOND
    ) -> None:
        self.seed, self.load_ns = seed, load_ns
        self.rng = Random(f"ordeal {seed}")
        self.cluster = cluster_of(
            REGIONS,
            STREAMS,
            seed,
            publishers=2,
            mutant=mutant,
            chain={"min_replicas": 1},
            server={"compact_ns": 300 * MS, "compact_share": 0.2},
        )
        self.in_flight: Counter[str] = Counter()  # faults during unacknowledged publishes
        self.sources: Counter[str] = Counter()  # samples, by outcome
        self.start_ns = self.cluster.world.now_ns
        self._load()
        kinds = list(FAULTS)
        self.rng.shuffle(kinds)
        for i, kind in enumerate(kinds):
            at_ns = self.start_ns + (i + 1) * (self.load_ns - SECOND) // len(kinds)
            self.cluster.world.call(at_ns, lambda world, kind=kind: self._strike(world, kind))
        self._sample(self.cluster.world)
        run(self.cluster, self.load_ns)
        self.cluster.world.heal_all()
        self.settled = self.cluster.world.run(
            self.cluster.world.now_ns + 60 * SECOND, until=lambda _: self.cluster.settled()
        )
        run(self.cluster, 3 * SECOND)
        self.audited = self.cluster.audit()

    def _load(self) -> None:
        used: set[bytes] = set()
        for name, (owner, policy) in STREAMS.items():
            for p in range(2):
                publisher, at_ns, n = f"{owner}/pub{p}", self.start_ns, 0
                while at_ns < self.start_ns + self.load_ns:
                    at_ns += int(self.rng.expovariate(1 / (40 * MS)))
                    if name == "ruled" and n > 20 and self.rng.random() < 0.1:
                        rule = self._rule(p, n, at_ns)
                        if rule not in used:
                            used.add(rule)
                            self.cluster.offer(at_ns, publisher, name, [rule], kind=COLLECT)
                        continue
                    count = self.rng.choice((1, 1, 3))
                    values = [f"{name}.{publisher}.{n + i}".encode() for i in range(count)]
                    n += count
                    keys = [self._key() for _ in values]
                    tags = None
                    if isinstance(policy, KeepAll) and name == "ruled":
                        tags = [self.rng.choice((None, b"red", b"blue")) for _ in values]
                    self.cluster.offer(at_ns, publisher, name, values, keys, tags)

    def _key(self) -> bytes | None:
        return self.rng.choice((None, b"", b"k1", b"k2", b"k21", b"q1", b"q2", b"q3"))

    def _rule(self, p: int, n: int, at_ns: int) -> bytes:
        """A random collect rule. Values must be unique, so each predicate has a unique number."""
        unique = 2 * n + p
        predicate: retention.Predicate = self.rng.choice(
            (
                BeforeSeq(max(1, 2 * unique - 60)),
                BeforeSeq(1_000_000 + unique),  # must not collect later events (G5)
                BeforeTime(WALL_NS + at_ns - SECOND + unique),
                KeyIs(b"q%d" % (unique % 4)),
                KeyPrefix(b"k" if unique % 2 else b"k2"),
                TagIs(b"red"),
            )
        )
        return retention.encode_collect(Collect(predicate))

    def _strike(self, world: World, kind: str) -> None:
        cluster, rng = self.cluster, self.rng
        for_ns = rng.randint(50, 1500) * MS
        region = rng.choice(("east", "west"))
        a, b = rng.sample(list(REGIONS), 2)
        members = [m.name for m in cluster.members("east" if kind == "middle" else region)]
        node = rng.choice(members or [f"{region}/0"])
        self.in_flight[kind] += cluster.unacknowledged() > 0
        heal = world.heal_all
        if kind in ("head", "middle", "tail"):
            place = {"head": 0, "middle": len(members) // 2, "tail": -1}[kind]
            node = members[place] if members else node
            world.crash(node)
            heal = lambda: world.restart(node)  # noqa: E731
        elif kind == "region":
            for name in cluster.regions[region]:
                world.crash(name)
                world.call(world.now_ns + for_ns, lambda w, name=name: w.restart(name))
            return
        elif kind in ("cut", "one-way cut", "inner cut"):
            if kind == "inner cut":
                a, b = cluster.regions[region][:2]
            two_way = kind != "one-way cut"
            world.cut(a, b, two_way=two_way)
            heal = lambda: world.mend(a, b, two_way=two_way)  # noqa: E731
        elif kind == "isolate":
            world.cut(node, "*")
            heal = lambda: world.mend(node, "*")  # noqa: E731
        elif kind == "pause":
            world.pause(node)
            heal = lambda: world.resume(node)  # noqa: E731
        elif kind == "reset":
            world.reset_sessions(node)
            return
        elif kind == "clock":
            world.jump_clock(node, rng.choice((-1, 1)) * rng.randint(100, 2000) * MS)
            return
        else:
            world.fail_disk(node, "full" if kind == "full disk" else "io")
            heal = lambda: world.heal_disk(node)  # noqa: E731
        world.call(world.now_ns + for_ns, lambda _: heal())

    def _sample(self, world: World) -> None:
        """Sample every replica's sources (G8) and the newest position of owners (G7)."""
        for region in REGIONS:
            stacks = [world.machine(n) for n in self.cluster.regions[region]]
            self._sample_region(region, [stack.layers for stack in stacks if stack])
        if world.now_ns < self.start_ns + self.load_ns + 5 * SECOND:
            world.call(world.now_ns + 7 * MS, self._sample)

    def _sample_region(self, region: str, replicas: list[dict[str, Any]]) -> None:
        epoch = max((layers["sprinkler"].epoch for layers in replicas), default=0)
        for name, stream_id in self.cluster.streams.items():
            owned = STREAMS[name][0] == region
            pulling = 0
            for layers in replicas:
                regions: RegionSync = layers["sprinkler"]
                stream = layers["streams"].streams.get(stream_id)
                copy = regions.streams.get(stream_id)
                if stream is None or copy is None:
                    continue
                if owned and stream.committed > 1 and stream.index.end == stream.committed:
                    newest = stream.index.void_at(stream.committed - 1, stream.committed)
                    self.sources["newest is void" if newest else "newest is live"] += 1
                if copy.source is None:
                    continue
                pulling += regions.epoch == epoch
                if not regions.is_head or copy.source.region == region:
                    self.sources["pulled by no head, or from itself"] += 1
                elif owned:
                    recovering = copy.recovering_since_ns is not None
                    self.sources["owner recovers" if recovering else "owner pulls"] += 1
                else:
                    self.sources["pulled"] += 1
            self.sources["two sources"] += pulling > 1

    # ------------------------------------------------------------ results

    def records(self) -> Iterator[Record]:
        for record in self.cluster.records.values():
            print(f"fault run {self.seed}, stream {record.stream}")
            yield record


@pytest.fixture(scope="module")
def fault_runs() -> list[FaultRun]:
    return [FaultRun(seed) for seed in SEEDS]


def everybody(record: Record) -> list[Reading]:
    return [*record.readings, *record.audits]


def truth_of(record: Record) -> dict[int, Event]:
    """The event of every position that a reader received or that was acknowledged."""
    truth = {event.seq: event for r in everybody(record) for event in r.events}
    for value, seq in record.acked.items():
        o = record.offered[value]
        truth.setdefault(seq, Event(seq, 0, o.kind, o.key, o.value, o.tag))
    return truth


def void_positions(reading: Reading) -> dict[int, int]:
    return {seq: reason for lo, hi, reason in reading.voids for seq in range(lo, hi)}


def collects(policy: Policy, event: Event, later: Event) -> bool:
    """Whether `later`, a live event after `event`, makes it obsolete. (No CONFIG events here.)"""
    assert later.seq > event.seq
    if later.kind == COLLECT:
        predicate = retention.decode_collect(later.value).predicate
        match predicate:
            case BeforeSeq(seq) if event.seq < seq:
                return True
            case BeforeTime(time_ns) if event.time_ns < time_ns:
                return True
            case KeyIs(key) if event.kind == DATA and event.key == key:
                return True
            case KeyPrefix(prefix) if event.key is not None and event.key.startswith(prefix):
                return True
            case TagIs(tag) if event.tag == tag:
                return True
    if isinstance(policy, KeepLast):
        return later.seq - event.seq >= policy.n
    if isinstance(policy, LatestPerKey) and later.kind == event.kind == DATA:
        return event.key is not None and event.key == later.key
    return False


# ---------------------------------------------------------------- the runs had faults


@pytest.mark.slow
def test_the_fault_runs_had_faults_during_publishes(fault_runs: list[FaultRun]) -> None:
    struck = sum((fault_run.in_flight for fault_run in fault_runs), Counter())
    assert sum(struck.values()) > len(FAULTS), struck
    assert len(struck) > len(FAULTS) * 2 // 3, struck
    for fault_run in fault_runs:
        assert fault_run.settled
        assert fault_run.audited
        for record in fault_run.records():
            assert len(record.acked) == len(record.offered) > 200


# ---------------------------------------------------------------- G1


@pytest.mark.slow
def test_g1_only_what_was_published_is_delivered(fault_runs: list[FaultRun]) -> None:
    for fault_run in fault_runs:
        for record in fault_run.records():
            truth = truth_of(record)
            for reading in everybody(record):
                assert reading.events
                for event in reading.events:
                    offered = record.offered.get(event.value)
                    if offered is None:
                        assert record.stream == "aging", event
                        assert event.kind == COLLECT, event
                        continue
                    got = (event.kind, event.key, event.tag)
                    assert got == (offered.kind, offered.key, offered.tag)
                for seq in void_positions(reading):
                    # A void stands for something that was published, or that the head expired.
                    assert seq in truth or record.stream == "aging"


# ---------------------------------------------------------------- G3


@pytest.mark.slow
def test_g3_a_publishers_order_is_the_order_of_positions(fault_runs: list[FaultRun]) -> None:
    for fault_run in fault_runs:
        for record in fault_run.records():
            seqs: dict[str, list[tuple[int, int]]] = {}
            for value, seq in record.acked.items():
                offered = record.offered[value]
                seqs.setdefault(offered.publisher, []).append((offered.pub_no, seq))
            assert len(seqs) == 2
            for acked in seqs.values():
                positions = [seq for _, seq in sorted(acked)]
                assert positions == sorted(set(positions))
            for reading in everybody(record):
                last: dict[str, int] = {}
                for event in reading.events:
                    if offered := record.offered.get(event.value):
                        assert offered.pub_no > last.get(offered.publisher, 0)
                        last[offered.publisher] = offered.pub_no


# ---------------------------------------------------------------- G4


@pytest.mark.slow
def test_g4_readers_get_every_event_or_a_void_and_later_its_collector(
    fault_runs: list[FaultRun],
) -> None:
    voids = 0
    for fault_run in fault_runs:
        for record in fault_run.records():
            truth = truth_of(record)
            for reading in everybody(record):
                got = {event.seq: event for event in reading.events}
                void = void_positions(reading)
                assert not got.keys() & void.keys()
                for value, seq in record.acked.items():
                    if seq in got:
                        assert got[seq].value == value
                        continue
                    assert void[seq] in REASONS
                    voids += 1
                    # Backwards, because most collectors are near the end.
                    later = (e for e in reversed(reading.events) if e.seq > seq)
                    assert any(collects(record.policy, truth[seq], e) for e in later), (seq, value)
    assert voids > 1000


# ---------------------------------------------------------------- G5


@pytest.mark.slow
def test_g5_without_collecting_events_there_is_no_void(fault_runs: list[FaultRun]) -> None:
    for fault_run in fault_runs:
        record = fault_run.cluster.records["plain"]
        print(f"fault run {fault_run.seed}")
        for reading in everybody(record):
            assert reading.voids == []
            assert [e.seq for e in reading.events] == list(range(1, len(record.offered) + 1))


@pytest.mark.slow
def test_g5_nothing_collects_what_comes_later(fault_runs: list[FaultRun]) -> None:
    """Rules for positions far beyond their own do not collect events that come after them."""
    reached = 0
    for fault_run in fault_runs:
        record = fault_run.cluster.records["ruled"]
        print(f"fault run {fault_run.seed}")
        truth = truth_of(record)
        for seq, event in truth.items():
            if event.kind != COLLECT:
                continue
            predicate = retention.decode_collect(event.value).predicate
            if not isinstance(predicate, BeforeSeq) or predicate.seq < 1_000_000:
                continue
            spared = [
                later
                for later in truth.values()
                if later.seq > seq
                and not any(
                    collects(KeepAll(), later, e) for e in truth.values() if e.seq > later.seq
                )
            ]
            reached += len(spared)
            for audit in record.audits:
                assert {e.seq for e in spared} <= {e.seq for e in audit.events}
    assert reached > 0


# ---------------------------------------------------------------- G6


@pytest.mark.slow
def test_g6_live_and_void_partition_what_a_region_holds(fault_runs: list[FaultRun]) -> None:
    for fault_run in fault_runs:
        for record in fault_run.records():
            truth = truth_of(record)
            for audit in record.audits:
                live, void = {e.seq for e in audit.events}, void_positions(audit)
                assert sorted([*live, *void]) == list(range(1, audit.position))
                if record.stream != "aging":  # it continues to expire while it is read
                    assert live == surviving(record.policy, list(truth.values()))
            if record.stream != "aging":
                first, *others = (what_is_held(a) for a in record.audits)
                assert all(other == first for other in others)


def what_is_held(audit: Reading) -> dict[int, object]:
    """Position → event, or the reason of its void. (Runs of voids may be split differently.)"""
    held: dict[int, object] = {event.seq: event for event in audit.events}
    held.update((seq, why) for lo, hi, why in audit.voids for seq in range(lo, hi))
    return held


KEYS = st.sampled_from([None, b"", b"a", b"ab", b"b"])
TAGS = st.sampled_from([None, b"t", b"u"])
POLICIES: list[Policy] = [
    KeepAll(),
    KeepLast(1),
    KeepLast(4),
    KeepLast(12),
    LatestPerKey(),
    KeepFor(5),
]
STREAM = bytes(range(16))
SPLITS = st.sets(st.integers(2, 40))


@st.composite
def histories(draw: st.DrawFn) -> tuple[Policy, list[Event]]:
    """A policy, and events of all kinds as a head would admit them."""
    first = policy = draw(st.sampled_from(POLICIES))
    events: list[Event] = []
    time_ns, reconfigured = 1, False
    for seq in range(1, draw(st.integers(1, 40)) + 1):
        time_ns += draw(st.sampled_from([0, 0, 0, 1, 7]))
        kind = draw(st.sampled_from([DATA] * 12 + [COLLECT] * 3 + [CONFIG]))
        key = tag = None
        value = b"%d" % seq
        if kind == DATA:
            key, tag = draw(KEYS), draw(TAGS)
        elif kind == COLLECT:
            rules = [
                st.builds(BeforeSeq, st.integers(1, 50)),
                st.builds(BeforeTime, st.integers(1, 90)),
                st.builds(KeyIs, KEYS.filter(lambda key: key is not None)),
                st.builds(KeyPrefix, st.sampled_from([b"", b"a", b"z"])),
            ]
            if isinstance(policy, KeepAll) and not reconfigured:
                rules.append(st.builds(TagIs, st.sampled_from([b"t", b"u"])))
            reason = draw(st.sampled_from([COLLECTED, EXPIRED]))
            value = retention.encode_collect(Collect(draw(st.one_of(rules)), reason))
        else:
            policy, reconfigured = draw(st.sampled_from(POLICIES)), True
            value = retention.encode_policy(policy)
        events.append(Event(seq, time_ns, kind, key, value, tag))
    return first, events


def batches_of(events: list[Event], splits: set[int]) -> list[Batch]:
    """The events in batches, split where kind or time changes and at `splits`."""
    groups = [[events[0]]]
    for before, event in pairwise(events):
        together = event.kind == before.kind == DATA and event.time_ns == before.time_ns
        if not together or event.seq in splits:
            groups.append([])
        groups[-1].append(event)
    batches = []
    for group in groups:
        first = group[0]
        columns = (
            ([e.key for e in group], [e.tag for e in group]) if first.kind == DATA else (None, None)
        )
        batch = Batch.of(STREAM, [e.value for e in group], *columns, kind=first.kind)
        batches.append(batch.sequenced(first.seq, first.time_ns, 1))
    return batches


class Copy:
    """A region's copy of a stream: its log and its retention index."""

    def __init__(self, policy: Policy, batches: list[Batch]) -> None:
        self.index = RetentionIndex(policy)
        self.log: list[Batch] = []
        self.feed(batches)

    def feed(self, batches: list[Batch]) -> None:
        for batch in batches:
            self.index.feed(batch, self._read)
            self.log.append(batch)

    def _read(self, lo: int, hi: int) -> Iterator[Batch]:
        return (b.slice(lo, hi) for b in self.log if b.lo < hi and lo < b.hi)

    def filtered(self) -> list[Batch]:
        return coalesce([part for b in self.log for part in self.index.apply(b)], 16)

    def voids(self) -> list[tuple[int, int, int]]:
        return self.index.void_at(1, self.index.end)

    def live(self) -> set[int]:
        return {s for lo, hi in self.index.live(1, self.index.end) for s in range(lo, hi)}


def filter_is_one(policy: Policy, events: list[Event], splits: list[set[int]], half: int) -> None:
    """Assert that a copy holds what the rules leave, however its history was delivered to it."""
    whole = Copy(policy, batches_of(events, splits[0]))
    assert whole.live() == surviving(policy, events)
    assert Copy(policy, batches_of(events, splits[1])).voids() == whole.voids()
    # Idempotent: filtering twice equals filtering once.
    again = Copy(policy, whole.filtered())
    assert again.voids() == whole.voids()
    assert [(b.lo, b.hi, b.rows) for b in Copy(policy, again.filtered()).filtered()] == [
        (b.lo, b.hi, b.rows) for b in again.filtered()
    ]
    # Halfway: a copy that joined by catching up, and one that compacted its log.
    parts = batches_of(events, splits[0] | {half})
    first, rest = [b for b in parts if b.hi <= half], [b for b in parts if b.hi > half]
    if first:
        early = Copy(policy, first)
        joined = Copy(policy, early.filtered())
        early.log = early.filtered()
        for copy in (joined, early):
            copy.feed(rest)
            assert copy.voids() == whole.voids()


@pytest.mark.slow
@settings(max_examples=60)
@given(histories(), st.lists(SPLITS, min_size=2, max_size=2), st.integers(2, 40))
def test_g6_filter_is_idempotent_and_does_not_depend_on_the_order_of_insertion(
    history: tuple[Policy, list[Event]], splits: list[set[int]], half: int
) -> None:
    filter_is_one(*history, splits, half)


def test_g6_a_change_to_latest_per_key_collects_older_rows_of_a_key() -> None:
    """The CONFIG event is the collector of these rows, for the judge and for the index."""
    config = retention.encode_policy(LatestPerKey())
    events = [
        Event(1, 1, DATA, b"k", b"1", None),
        Event(2, 1, DATA, b"k", b"2", None),
        Event(3, 1, CONFIG, None, config, None),
    ]
    filter_is_one(KeepAll(), events, [set(), {2}], 2)


# ---------------------------------------------------------------- G7


@pytest.mark.slow
def test_g7_the_newest_event_is_never_void_at_its_owner(fault_runs: list[FaultRun]) -> None:
    for fault_run in fault_runs:
        print(f"fault run {fault_run.seed}")
        assert fault_run.sources["newest is live"] > 1000
        assert fault_run.sources["newest is void"] == 0
        for record in fault_run.records():
            for audit in record.audits:
                assert audit.events[-1].seq == audit.position - 1


def test_g7_the_newest_event_is_live_at_a_replica_that_restarted_from_its_disk() -> None:
    """Its log was compacted up to the committed end; then it crashed. The committed end that it
    saved must include the collectors of the positions that compaction removed."""
    cluster = cluster_of(
        {"east": 1},
        {"s": ("east", LatestPerKey())},
        chain={"save_ns": 500 * MS},
        server={"compact_ns": 20 * MS, "compact_share": 0.1},
    )
    world, start_ns = cluster.world, cluster.world.now_ns
    for i in range(400):
        cluster.offer(start_ns + i * 2 * MS, "east/pub0", "s", [b"%d" % i], [b"k"])
    run(cluster, 700 * MS)
    world.crash("east/0")
    world.crash("east/config")  # so that it has only its own disk
    world.restart("east/0")
    cluster.add_subscriber("east/late")
    run(cluster, SECOND)
    reading = cluster.readings["east/late", cluster.streams["s"]]
    assert reading.position > 1
    assert reading.events
    assert reading.events[-1].seq == reading.position - 1


# ---------------------------------------------------------------- G8


@pytest.mark.slow
def test_g8_a_region_pulls_each_stream_from_one_source_and_none_of_its_own(
    fault_runs: list[FaultRun],
) -> None:
    for fault_run in fault_runs:
        print(f"fault run {fault_run.seed}: {fault_run.sources}")
        assert fault_run.sources["pulled"] > 1000
        for wrong in ("two sources", "owner pulls", "pulled by no head, or from itself"):
            assert fault_run.sources[wrong] == 0, wrong


class PullsItsOwn(RegionSync):
    """G8 broken: a region subscribes to its own streams elsewhere."""

    def _on_advertise(self, node: str, message: Advertise) -> None:
        super()._on_advertise(node, message)
        for stream in self.streams.values():
            if self.is_head and stream.source is None:
                self._subscribe(stream, self.peers[message.region])


class EveryReplicaPulls(RegionSync):
    """G8 broken: every replica pulls, not only the head."""

    def _on_advertise(self, node: str, message: Advertise) -> None:
        super()._on_advertise(node, message)
        for stream in self.streams.values():
            if not self.owns(stream) and stream.source is None:
                self._subscribe(stream, self.peers[message.region])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "wrong"),
    [(PullsItsOwn, "owner pulls"), (EveryReplicaPulls, "pulled by no head, or from itself")],
)
def test_g8_the_samples_show_a_region_that_breaks_g8(mutant: type[RegionSync], wrong: str) -> None:
    broken = FaultRun(1, mutant, load_ns=2 * SECOND)
    assert broken.sources[wrong] > 0


# ---------------------------------------------------------------- G9


def ends(cluster: Cluster, stream: str = "s") -> dict[str, int]:
    return {reader: cluster.position(reader, stream) for reader in cluster.subscribers}


@pytest.mark.slow
def test_g9_all_regions_reach_the_owners_end(fault_runs: list[FaultRun]) -> None:
    """Publishing had stopped before the faults were healed."""
    for fault_run in fault_runs:
        for record in fault_run.records():
            positions = {reading.position for reading in everybody(record)}
            assert len(positions) == 1
            assert positions.pop() > max(record.acked.values())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_g9_regions_converge_after_publishing_has_stopped(seed: int) -> None:
    """Links and servers fail during the last events; no later event triggers a retry."""
    rng = Random(seed)
    cluster = cluster_of({"y": 2, "x": 2, "z": 1}, {"s": ("y", KeepAll())}, seed)
    world = cluster.world
    publish(cluster, 20)
    wait(cluster, lambda: not cluster.unacknowledged())
    run(cluster, rng.randint(0, 40) * MS)
    world.cut(*rng.sample(["x", "y", "z"], 2), two_way=rng.random() < 0.5)
    node = rng.choice(["x/0", "x/1", "y/0", "y/1"])
    world.crash(node)
    run(cluster, rng.randint(0, 4_000) * MS)
    world.restart(node)
    run(cluster, 10 * SECOND)  # the cut stays: the three are still connected by two links
    assert set(ends(cluster).values()) == {21}, seed


class Unsteady:
    """Regions whose links change but always connect them all, with few events and small faults."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(f"unsteady {seed}")
        self.places = list("abcd")[: rng.choice((3, 4))]
        regions = {place: rng.choice((1, 1, 2, 3)) for place in self.places}
        delays = {frozenset(p): rng.choice((5, 20, 60)) for p in combinations(self.places, 2)}
        self.cluster = Cluster(
            seed,
            regions,
            delay_ns=lambda a, b: delays[frozenset((a, b))] * MS,
            chain={"min_replicas": 1},
        )
        self.cut: set[tuple[str, str]] = set()
        for name in ("s", "t"):
            policy: Policy = rng.choice((KeepAll(), LatestPerKey(), KeepLast(5)))
            at_ns = rng.choice((0, rng.randrange(3 * SECOND)))
            self.cluster.open(name, rng.choice(self.places), policy, at_ns)
        for phase in range(rng.randint(3, 7)):
            self._rewire()
            self._strike()
            self._publish(phase)
            run(self.cluster, rng.choice((1, 2, 4)) * SECOND)
        run(self.cluster, 6 * SECOND)
        for node in list(self.cluster.world.nodes):  # servers come back, links do not
            self.cluster.world.resume(node)
            self.cluster.world.restart(node)
            self.cluster.world.heal_disk(node)
        if rng.random() < 0.5:
            self._rewire()

    def _rewire(self) -> None:
        """Choose a random tree of links, and some more; cut the others."""
        rng, world = self.rng, self.cluster.world
        order = rng.sample(self.places, len(self.places))
        joined = {tuple(sorted((order[i], rng.choice(order[:i])))) for i in range(1, len(order))}
        pairs = list(combinations(self.places, 2))
        cut = {pair for pair in pairs if pair not in joined and rng.random() < 0.75}
        for pair in pairs:
            if pair in cut - self.cut:
                world.cut(*pair)
            elif pair in self.cut - cut:
                world.mend(*pair)
        self.cut = cut

    def _strike(self) -> None:
        rng, world = self.rng, self.cluster.world
        nodes = [node for nodes in self.cluster.regions.values() for node in nodes]
        nodes += [f"{place}/config" for place in self.places if rng.random() < 0.3]
        for _ in range(rng.randint(0, 3)):
            name = rng.choice(nodes)
            fault = rng.choice((Crash(name), Pause(name), DiskFailure(name), Reset(name)))
            for_ns = rng.choice((20, 300, 900, 2500)) * MS
            Timed(world.now_ns + rng.randrange(2 * SECOND), for_ns, fault).schedule(world)

    def _publish(self, phase: int) -> None:
        rng, cluster = self.rng, self.cluster
        for name in ("s", "t"):
            for i in range(rng.choice((0, 1, 1, 2, 10))):
                at_ns = cluster.world.now_ns + rng.randrange(3 * SECOND)
                value, key = f"{phase}.{i}".encode(), b"%d" % rng.randrange(3)
                cluster.offer(at_ns, f"{cluster.owners[name]}/pub0", name, [value], [key])


@pytest.mark.slow
@pytest.mark.parametrize("seed", UNSTEADY_SEEDS)
def test_g9_regions_converge_while_changing_links_connect_them(seed: int) -> None:
    cluster = Unsteady(seed).cluster
    wait(cluster, cluster.settled, 40 * SECOND)
    assert cluster.judge().violations == []


@pytest.mark.slow
def test_g9_regions_connected_in_a_line_converge() -> None:
    """a and c exchange events only through b."""
    streams: dict[str, tuple[str, Policy]] = {
        "s": ("a", KeepAll()),
        "t": ("c", LatestPerKey()),
    }
    cluster = Cluster(5, {"a": 2, "b": 2, "c": 2})
    cluster.world.cut("a", "c")
    for name, (owner, policy) in streams.items():
        cluster.open(name, owner, policy)
    wait(cluster, lambda: len(cluster.streams) == 2)
    for node in ("b/0", "b/1"):  # the relay's head, then its tail
        for i in range(60):
            at_ns = cluster.world.now_ns + i * 5 * MS
            cluster.offer(at_ns, "a/pub0", "s", [f"{node} {i}".encode()])
            cluster.offer(at_ns, "c/pub0", "t", [f"{node} {i}".encode()], [b"%d" % (i % 7)])
        run(cluster, 150 * MS)
        cluster.world.crash(node)
        run(cluster, 2 * SECOND)
        cluster.world.restart(node)
        settle(cluster)
        run(cluster, 2 * SECOND)
    assert set(ends(cluster, "s").values()) == {121}
    assert set(ends(cluster, "t").values()) == {121}
    assert not cluster.world.reachable("a/0", "c/0")
    assert cluster.judge().violations == []


def test_g9_an_event_that_reached_one_peer_reaches_all_without_the_owner() -> None:
    cluster = cluster_of({"y": 1, "x": 1, "z": 1}, {"s": ("y", KeepAll())})
    world = cluster.world
    publish(cluster, 5)
    settle(cluster)
    world.cut("y", "z")
    publish(cluster, 1)
    wait(cluster, lambda: cluster.position("x/sub0", "s") == 7)
    assert cluster.position("z/sub0", "s") == 6
    world.cut("y", "x")
    wait(cluster, lambda: cluster.position("z/sub0", "s") == 7, 3 * SECOND)


def test_g9_a_lead_of_one_event_on_an_idle_stream_is_pulled() -> None:
    """z pulls from x, which is cut off from the owner; the owner advertises its one event once."""
    cluster = cluster_of({"y": 1, "x": 1, "z": 1}, {"s": ("y", KeepAll())})
    world = cluster.world
    world.cut("y", "z")
    publish(cluster, 5)
    settle(cluster)
    world.mend("y", "z")
    run(cluster, 3 * SECOND)
    world.cut("x", "y")
    run(cluster, 3 * SECOND)
    publish(cluster, 1)
    wait(cluster, lambda: set(ends(cluster).values()) == {7}, 10 * SECOND)


def test_g9_a_stream_is_learned_although_the_head_that_knew_it_crashes() -> None:
    """x's head learns of a new stream and crashes before it tells its chain; the next head must
    learn of the stream as well."""
    cluster = cluster_of({"y": 1, "x": 3}, {"old": ("y", KeepAll())})
    world = cluster.world
    run(cluster, SECOND)
    world.cut("x/0", "x/1")
    cluster.open("s", "y", KeepAll(), world.now_ns)
    wait(cluster, lambda: "s" in cluster.streams)
    run(cluster, 150 * MS)
    world.crash("x/0")
    publish(cluster, 3)
    wait(cluster, lambda: len(cluster.members("x")) == 2)
    world.heal_all()
    wait(cluster, lambda: set(ends(cluster).values()) == {4}, 30 * SECOND)


# ---------------------------------------------------------------- G10


@pytest.mark.slow
def test_g10_acknowledged_events_are_at_their_acknowledged_positions(
    fault_runs: list[FaultRun],
) -> None:
    for fault_run in fault_runs:
        for record in fault_run.records():
            assert len(set(record.acked.values())) == len(record.acked)  # no position twice
            for reading in everybody(record):
                values = [event.value for event in reading.events]
                assert len(set(values)) == len(values)  # nothing published twice
                for event in reading.events:
                    assert record.acked.get(event.value, event.seq) == event.seq
    # There were retries to get wrong: more batches came to the heads than were offered.
    counters = [c for fault_run in fault_runs for c in fault_run.cluster.counters.values()]
    handled = sum(c["streams/Publish"] for c in counters)
    assert handled > 1.05 * sum(c["streams/PubAck"] for c in counters)


def offer_steadily(cluster: Cluster, count: int, gap_ns: int) -> None:
    for i in range(count):
        at_ns = cluster.world.now_ns + i * gap_ns
        for p in range(2):
            cluster.offer(at_ns, f"east/pub{p}", "s", [f"{p}.{i}".encode()])


def assert_acked_is_kept(cluster: Cluster, reader: str) -> None:
    """A reader finds each acknowledged event once, at the acknowledged position."""
    record = cluster.records["s"]
    wait(cluster, lambda: cluster.position(reader, "s") > max(record.acked.values()))
    events = cluster.readings[reader, cluster.streams["s"]].events
    at = {event.value: event.seq for event in events}
    assert len(at) == len(events)
    for value, seq in record.acked.items():
        assert at[value] == seq
    for p in range(2):
        mine = [event.value for event in events if event.value.startswith(b"%d." % p)]
        assert mine == [f"{p}.{i}".encode() for i in range(len(mine))]


ORDERS = {"head first": (0, 0), "tail first": (-1, -1), "middle first": (1, 0)}


def lose_two_of_three(order: str, offers: int) -> None:
    """Two of three replicas crash one after the other under load and never come back."""
    cluster = cluster_of({"east": 3, "west": 1}, publishers=2, chain={"min_replicas": 1})
    world, record = cluster.world, cluster.records["s"]
    offer_steadily(cluster, offers, 10 * MS)
    for place in ORDERS[order]:
        before = len(record.acked)
        run(cluster, SECOND)
        node = cluster.members("east")[place].name
        wait(cluster, lambda: cluster.unacknowledged() > 0, SECOND)  # there is load
        assert len(record.acked) > before, "nothing was acknowledged since the last crash"
        world.crash(node)
        world.wipe(node)
        wait(cluster, lambda node=node: all(m.name != node for m in cluster.members("east")))
    wait(cluster, lambda: len(record.acked) == 2 * offers)
    assert len(cluster.members("east")) == 1
    cluster.add_subscriber("east/late")
    assert_acked_is_kept(cluster, "east/late")
    assert_acked_is_kept(cluster, "west/sub0")


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_g10_acknowledged_events_survive_the_permanent_loss_of_two_of_three_replicas(
    order: str,
) -> None:
    lose_two_of_three(order, 400)


@pytest.mark.slow
@pytest.mark.parametrize("offers", [100, 200])
def test_g10_the_test_of_lost_replicas_fails_without_load(offers: int) -> None:
    """All is acknowledged before the first crash, or before the second: the scenario must fail."""
    with pytest.raises(AssertionError, match="waited"):
        lose_two_of_three("head first", offers)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_g10_all_replicas_crash_and_keep_their_disks(seed: int) -> None:
    """They crash five times at random moments and lose unsynced data; no retry is stored twice."""
    rng = Random(seed)
    cluster = cluster_of({"east": 3, "west": 1}, seed=seed, publishers=2)
    cluster.world.disks.sync_ns = 2 * MS  # so that much is under way at a crash
    offer_steadily(cluster, 300, 10 * MS)
    for _ in range(5):
        run(cluster, rng.randint(200, 500) * MS)
        for node in cluster.regions["east"]:
            cluster.world.crash(node)
        run(cluster, rng.randint(5, 300) * MS)
        for node in rng.sample(cluster.regions["east"], 3):
            cluster.world.restart(node)
    settle(cluster)
    assert len(cluster.records["s"].acked) == 600
    cluster.add_subscriber("east/late")
    assert_acked_is_kept(cluster, "east/late")
    assert_acked_is_kept(cluster, "west/sub0")
    assert cluster.judge().violations == []


def rule_whose_ack_is_lost(cluster: Cluster) -> None:
    """pub0's rule is committed, but its ack is lost; pub1 changes the retention so that such a rule
    would be refused; then pub0 retries."""
    world = cluster.world
    publish(cluster, 3, "east/pub1")
    settle(cluster)
    rule = retention.encode_collect(Collect(TagIs(b"red")))
    world.cut("east/0", "east/pub0", two_way=False)
    cluster.offer(world.now_ns, "east/pub0", "s", [rule], kind=COLLECT)
    run(cluster, 100 * MS)
    change = retention.encode_policy(KeepLast(100))
    cluster.offer(world.now_ns, "east/pub1", "s", [change], kind=CONFIG)
    run(cluster, 5 * SECOND)
    world.mend("east/0", "east/pub0", two_way=False)
    run(cluster, 5 * SECOND)
    assert len(truth_of(cluster.records["s"])) == 5


def test_g10_a_number_is_not_used_again_after_a_refusal() -> None:
    """The publisher's next event must not be treated as a retry of the rule."""
    cluster = cluster_of({"east": 1, "west": 1}, publishers=2)
    rule_whose_ack_is_lost(cluster)
    cluster.offer(cluster.world.now_ns, "east/pub0", "s", [b"x"])
    wait(cluster, lambda: b"x" in cluster.records["s"].acked)
    run(cluster, SECOND)
    reading = cluster.readings["west/sub0", cluster.streams["s"]]
    assert {e.value: e.seq for e in reading.events}.get(b"x") == cluster.records["s"].acked[b"x"]


def test_g10_a_retry_is_not_refused_because_the_rules_changed_since() -> None:
    """After a refusal a publisher would offer the rule again under a new number: stored twice."""
    cluster = cluster_of({"east": 1, "west": 1}, publishers=2)
    rule_whose_ack_is_lost(cluster)
    assert cluster.failed == []
    assert len(cluster.records["s"].acked) == 5


def test_g10_two_refusals_of_one_batch_do_not_fail_the_next() -> None:
    """On a slow link, a batch is sent twice before the first refusal arrives."""
    cluster = cluster_of({"east": 1, "west": 1}, {"s": ("east", KeepLast(50))}, publishers=2)
    world = cluster.world
    publish(cluster, 3, "east/pub1")
    settle(cluster)
    world.degrade("east/pub0", "east/0", Link(400 * MS))
    run(cluster, SECOND)
    rule = retention.encode_collect(Collect(TagIs(b"red")))  # not on such a stream
    cluster.offer(world.now_ns, "east/pub0", "s", [rule], kind=COLLECT)
    wait(cluster, lambda: bool(cluster.failed), 10 * SECOND)
    for value in (b"x", b"y"):
        cluster.offer(world.now_ns, "east/pub0", "s", [value])
        run(cluster, 3 * SECOND)
    assert len(cluster.failed) == 1
    reading = cluster.readings["west/sub0", cluster.streams["s"]]
    at = {event.value: event.seq for event in reading.events}
    for value in (b"x", b"y"):
        assert at[value] == cluster.records["s"].acked[value]
