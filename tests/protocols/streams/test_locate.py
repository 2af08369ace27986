"""Start by time: the same position in every region (PRODUCT §8.4), also in compacted logs."""

from collections.abc import Callable

import pytest

from surecast.columns.retention import KeepLast, LatestPerKey, Policy
from surecast.core.endpoint import WhereIs
from surecast.core.types import MS, SECOND
from surecast_lab.swarm.cluster import Cluster
from tests import mutations
from tests.helpers import cluster_of, each_scenario, publish, run, settle
from tests.protocols.streams.askers import Asker

Scenario = Callable[[type | None], list[str]]
WALL_NS = 1_750_000_000 * SECOND


def times(cluster: Cluster, reader: str = "east/sub0") -> dict[int, int]:
    """Position → time of the events that a reader received."""
    events = cluster.readings[reader, cluster.streams["s"]].events
    return {event.seq: event.time_ns for event in events}


def spread(policy: Policy | None = None, mutant: type | None = None) -> Cluster:
    """A stream of 20 batches of three events, 100 ms apart."""
    options = {"server": {"compact_ns": 100 * MS, "compact_share": 0.1}}
    streams = {"s": ("east", policy)} if policy else None
    cluster = cluster_of({"east": 2, "west": 1}, streams, mutant=mutant, **options)
    for n in range(20):
        values = [f"{n}.{i}".encode() for i in range(3)]
        keys: list[bytes | None] = [b"k%d" % (n % 7), b"hot", None if n % 3 else b"x"]
        cluster.offer(cluster.world.now_ns, "east/pub0", "s", values, keys)
        run(cluster, 100 * MS)
    settle(cluster)
    return cluster


def test_locate_finds_the_first_event_at_or_after_a_time() -> None:
    cluster = spread()
    stream, at = cluster.streams["s"], times(cluster)
    for region in ("east", "west"):
        asker = Asker(cluster, f"{region}/ask")
        assert asker.locate(stream, 0) == 1
        assert asker.locate(stream, at[1]) == 1
        assert asker.locate(stream, at[60] + 1) == 61
        assert asker.locate(stream, -1) == 61  # the end of the stream
        for n in range(1, 20):
            first = 3 * n + 1
            assert asker.locate(stream, at[first]) == first  # the batch itself
            assert asker.locate(stream, at[first] - 1) == first
            assert asker.locate(stream, at[first] + 1) == first + 3


def test_locate_in_an_empty_stream_gives_the_first_position() -> None:
    cluster = cluster_of({"east": 1, "west": 1})
    run(cluster, SECOND)
    for region in ("east", "west"):
        asker = Asker(cluster, f"{region}/ask")
        assert [asker.locate(cluster.streams["s"], t) for t in (-1, 0, WALL_NS * 2)] == [1, 1, 1]


def after_compaction(mutant: type | None) -> list[str]:
    """In a compacted log the answer is the first remaining event at or after the time."""
    cluster = spread(LatestPerKey(), mutant)
    stream, at = cluster.streams["s"], times(cluster)
    run(cluster, SECOND)
    assert cluster.counters["east/0"]["chain.compacted"]
    cluster.add_subscriber("east/late")
    run(cluster, SECOND)
    live = sorted(times(cluster, "east/late"))
    assert len(live) < 40
    problems = []
    east = Asker(cluster, "east/ask")
    for seq, time_ns in at.items():
        for t in (time_ns, time_ns + 1):
            expected = next((s for s in live if at[s] >= t), 61)
            if (got := east.locate(stream, t)) != expected:
                problems.append(f"{seq}: {got}, not {expected}")
    return problems


def differently_compacted(mutant: type | None) -> list[str]:
    """West was down and got only live events; east holds batches as they were published."""
    cluster = cluster_of(
        {"east": 1, "west": 1},
        {"s": ("east", KeepLast(4))},
        mutant=mutant,
        server={"compact_ns": 3600 * SECOND},
    )
    publish(cluster, 1)
    settle(cluster)
    cluster.world.crash("west/0")
    for _ in range(10):
        publish(cluster, 1)
        run(cluster, 200 * MS)
    cluster.world.restart("west/0")
    settle(cluster)
    run(cluster, SECOND)
    stream, at = cluster.streams["s"], times(cluster)
    east, west = Asker(cluster, "east/ask"), Asker(cluster, "west/ask")
    found = {s: (east.locate(stream, t), west.locate(stream, t)) for s, t in at.items()}
    return [f"{seq}: {one} and {two}" for seq, (one, two) in found.items() if one != two]


SCENARIOS: list[tuple[str, Scenario, type]] = [
    ("compacted", after_compaction, mutations.NamesVoidPlaces),
    ("survivors", differently_compacted, mutations.NamesVoidPlaces),
]


@each_scenario(SCENARIOS)
def test_locate_rule_holds(scenario: Scenario, mutant: type) -> None:
    assert scenario(None) == []


@each_scenario(SCENARIOS)
def test_locate_scenario_fails_without_the_rule(scenario: Scenario, mutant: type) -> None:
    assert scenario(mutant) != []


def test_locate_survives_a_restart() -> None:
    cluster = spread(LatestPerKey())
    stream, at = cluster.streams["s"], times(cluster)
    run(cluster, SECOND)
    before = Asker(cluster, "west/ask")
    answers = {t: before.locate(stream, t) for t in at.values()}
    cluster.world.crash("west/0")
    cluster.world.restart("west/0")
    after = Asker(cluster, "west/ask2")
    assert {t: after.locate(stream, t) for t in at.values()} == answers


def test_locate_of_an_unknown_stream_fails_after_several_attempts() -> None:
    cluster = cluster_of({"east": 2})
    asker = Asker(cluster, "east/ask")
    answer = asker.answer(asker.ask(WhereIs(bytes(16), 0)))
    assert answer.why == "unknown-stream"
    assert cluster.counters["east/0"]["streams/Locate"] > 10  # retried, because it might appear


@pytest.mark.parametrize("pattern", [">", "late.>", "late.*", "*"])
def test_a_watch_reports_existing_and_new_streams(pattern: str) -> None:
    cluster = cluster_of({"east": 2, "west": 2})
    west = Asker(cluster, "west/ask")
    token = west.watch(pattern)
    run(cluster, SECOND)
    for name in ("late.a", "late.b.c", "later", "late"):
        cluster.open(name, "east", KeepLast(3), cluster.world.now_ns)
    run(cluster, SECOND)
    expected = {
        ">": ["late", "late.a", "late.b.c", "later", "s"],
        "late.>": ["late.a", "late.b.c"],
        "late.*": ["late.a"],
        "*": ["late", "later", "s"],
    }[pattern]
    assert sorted(west.names(token)) == expected  # each exactly once
    cluster.world.crash("west/0")
    cluster.open("late.x", "east", KeepLast(3), cluster.world.now_ns)
    run(cluster, 3 * SECOND)
    expected = sorted({*expected, *({"late.x"} if pattern != "*" else ())})
    assert sorted(set(west.names(token))) == expected


def test_a_watch_with_an_invalid_pattern_is_refused() -> None:
    cluster = cluster_of({"east": 1})
    asker = Asker(cluster, "east/ask")
    assert asker.answer(asker.watch("a.>.b")).why == "bad-name"
    queries = cluster.world.machine("east/0").layers["queries"]
    assert not any(queries.watches.values())
