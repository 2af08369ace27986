"""Ranges cut into tasks, and filters that make them narrower."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

from surecast.columns.intervals import IntervalSet
from surecast.pipeline.options import parse
from surecast.pipeline.plan import EVENTS_MIN, Range, after, cut
from surecast.pipeline.region import Region
from tests.pipeline.regions import Served

ID = bytes(16)


def test_a_large_stream_is_divided_into_tasks_of_equal_size() -> None:
    tasks = cut([(Range("a", ID, 1, 20_000_001), None)])
    ranges = [one for task in tasks for one in task]
    assert ranges[0].lo == 1
    assert ranges[-1].hi == 20_000_001
    assert all(before.hi == after.lo for before, after in pairwise(ranges))
    assert {one.hi - one.lo for one in ranges} == {1_000_000}


def test_small_streams_share_a_task() -> None:
    tasks = cut([(Range(f"s{n}", ID, 1, 101), None) for n in range(3_000)])
    assert len(tasks) == 3
    assert [one.stream for task in tasks for one in task] == [f"s{n}" for n in range(3_000)]


@pytest.mark.parametrize("wanted", [2, 7, 64])
def test_the_requested_number_of_tasks_is_planned(wanted: int) -> None:
    tasks = cut([(Range("a", ID, 1, 1000), None), (Range("b", ID, 500, 600), None)], wanted)
    assert wanted <= len(tasks) <= wanted + 3
    total = sum(one.hi - one.lo for task in tasks for one in task)
    assert total == 999 + 100


def test_never_fewer_tasks_than_requested() -> None:
    for events in range(1, 40):
        for wanted in range(2, 12):
            tasks = cut([(Range("a", ID, 1, 1 + events), None)], wanted)
            assert min(wanted, events) <= len(tasks), (events, wanted)
            seqs = [seq for task in tasks for one in task for seq in range(one.lo, one.hi)]
            assert seqs == list(range(1, events + 1))


def test_fewer_events_than_requested_tasks() -> None:
    assert len(cut([(Range("a", ID, 1, 4), None)], 10)) == 3


def test_void_positions_do_not_count_in_the_size_of_tasks() -> None:
    voids = IntervalSet([(1, 9_000_001)])
    tasks = cut([(Range("a", ID, 1, 10_000_001), voids)])
    sizes = [one.hi - max(one.lo, 9_000_001) for (one,) in tasks]
    assert len(tasks) == 10
    assert set(sizes) == {EVENTS_MIN}
    assert tasks[0][0].lo == 1
    assert len(cut([(Range("a", ID, 1, 9_000_001), voids)])) == 1


@pytest.mark.parametrize("seed", range(20))
def test_the_position_after_a_number_of_events(seed: int) -> None:
    rng = random.Random(seed)
    voids = IntervalSet()
    for _ in range(rng.randrange(8)):
        lo = rng.randrange(1, 60)
        voids.add(lo, lo + rng.randrange(1, 10))
    lo, hi = 5, 50
    live = [seq for seq in range(lo, hi) if seq not in voids]
    for events in range(len(live) + 3):
        at = after(lo, hi, events, voids)
        assert lo <= at <= hi
        assert sum(seq < at for seq in live) == min(events, len(live)), f"seed {seed}"


def test_filters_are_converted_to_ranges() -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql import datasource as ds

    from surecast.pipeline.filters import Narrow

    kept = [
        ds.EqualTo(("kind",), "event"),
        ds.Not(ds.EqualTo(("stream",), "a")),
        ds.GreaterThan(("key",), b"x"),
        ds.EqualTo(("stream", "x"), "a"),
        ds.IsNull(("stream",)),
        ds.In(("seq",), [1, 2]),
        ds.StringEndsWith(("stream",), "x"),
        # It also narrows the range, but recent voids may have later times.
        ds.LessThanOrEqual(("timestamp",), datetime(2026, 1, 2, 0, 0, 0, 5, tzinfo=UTC)),
    ]
    taken = [
        ds.IsNotNull(("stream",)),
        ds.IsNotNull(("seq",)),
        ds.In(("stream",), ["a.x", "a.y", "b"]),
        ds.StringStartsWith(("stream",), "a."),
        ds.GreaterThan(("seq",), 5),
        ds.GreaterThanOrEqual(("seq",), 7),
        ds.LessThanOrEqual(("seq",), 20),
        ds.LessThan(("seq",), 30),
        ds.GreaterThanOrEqual(("timestamp",), datetime(2026, 1, 1, tzinfo=UTC)),
    ]
    narrow = Narrow(ranges=False)
    assert narrow.take([*taken, *kept]) == kept
    assert [name for name in ("a.x", "a.y", "a.z", "b") if narrow.wants(name)] == ["a.x", "a.y"]
    assert (narrow.lo, narrow.hi) == (7, 21)
    day_us = 86_400 * 10**6
    first = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 10**6
    assert (narrow.time_lo_us, narrow.time_hi_us) == (first, first + day_us + 6)
    left = [*taken[-5:], *kept[-1:], ds.IsNotNull(("timestamp",))]
    assert Narrow(ranges=True).take(left) == left, (
        "the filters are kept because void ranges have no exact time or position"
    )
    for one, span in (
        (ds.GreaterThan(("seq",), 5), (6, None)),
        (ds.GreaterThanOrEqual(("seq",), 5), (5, None)),
        (ds.LessThan(("seq",), 5), (1, 5)),
        (ds.LessThanOrEqual(("seq",), 5), (1, 6)),
    ):
        narrow = Narrow(ranges=False)
        assert narrow.take([one]) == []
        assert (narrow.lo, narrow.hi) == (span[0], span[1] or narrow.hi)
    narrow = Narrow(ranges=False)
    narrow.take([ds.EqualTo(("seq",), 9), ds.EqualTo(("stream",), "a")])
    assert (narrow.lo, narrow.hi, narrow.names) == (9, 10, {"a"})


def test_events_published_while_a_time_is_looked_up_are_not_read(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from surecast.pipeline.source import BatchReader

    year_ms = 365 * 86_400_000
    ahead = int(datetime.now(UTC).timestamp() * 1000) + year_ms
    with Served(tmp_path / "data") as region, Region(region.url, "") as connection:
        region.publish("orders", [b"1", b"2"])
        known = connection.expect(("orders",))["orders"]
        region.publish("orders", [b"3", b"4"])
        for option, span in (("startingTimestamp", (3, 3)), ("endingTimestamp", (1, 3))):
            given = {"subscribe": "orders", option: str(ahead)}
            found = BatchReader(parse(given, streaming=False))._range(connection, known)
            assert (found.lo, found.hi) == span


@pytest.mark.parametrize("year", [1, 1969, 2262, 2263, 9999])
def test_filters_with_times_that_no_event_can_have(tmp_path: Path, year: int) -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql import datasource as ds

    from surecast.pipeline.source import BatchReader

    when = datetime(year, 12, 31, tzinfo=UTC)
    with Served(tmp_path / "data") as region, Region(region.url, "") as connection:
        region.publish("orders", [b"1", b"2"])
        known = connection.expect(("orders",))["orders"]
        spans = []
        for one in (ds.GreaterThanOrEqual(("timestamp",), when), ds.LessThan(("timestamp",), when)):
            reader = BatchReader(
                parse({"subscribe": "orders", "pushFilters": "true"}, streaming=False)
            )
            assert reader.pushFilters([one]) == ([one] if isinstance(one, ds.LessThan) else [])
            found = reader._range(connection, known)
            spans.append(max(0, found.hi - found.lo))
        assert spans == ([2, 0] if year < 1970 else [0, 2])
