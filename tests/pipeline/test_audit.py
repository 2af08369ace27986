"""The Spark audit compared with numpy's judge, on sound runs and on runs altered in many ways.

Each run is a separate stream, so that one audit judges all of them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from surecast.columns.rules import KeepAll, KeepFor, KeepLast, LatestPerKey
from surecast.errors import UsageError
from surecast.pipeline.jobs.audit import Audit, StreamAudit, audit
from surecast.pipeline.jobs.judge import Judge, join_hint
from surecast.pipeline.jobs.trace import TABLES, load, save
from surecast_lab.swarm.audit_log import OfferedEvents, ReadEvents
from surecast_lab.swarm.traces import trace_offered, trace_read
from tests.surecast_lab.swarm.runs import EVENTS, SPOILT, Run, lose

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHUNK = 64  # rows; small, so that there are many chunk edges
SEEDS = (0, 1)  # of altered runs
COUNTS = ("published", "acked", "delivered", "void", "lost", "duplicated", "misordered")


def write(folder: Path, stream: str, run: Run) -> None:
    trace_offered(folder, stream, f"p-{stream}", run.offered)
    for reader in run.readers:
        trace = ReadEvents(
            f"{reader.reader}", reader.seq, reader.time_us, reader.key, reader.value,
            reader.voids, reader.malformed, reader.marks, reader.seq * 1000 + 2_000_000,
        )  # fmt: skip
        trace_read(folder / stream, stream, f"region-{reader.reader}", trace)
        for table in ("delivered", "readers"):  # files are named after readers
            made = folder / stream / table / f"{reader.reader}.parquet"
            target = folder / table / f"{stream}-{reader.reader}.parquet"
            target.parent.mkdir(exist_ok=True)
            made.rename(target)


def gather(folder: Path) -> None:
    """Join the files of each table, because Spark's time depends on the number of files."""
    for table in TABLES:
        files = sorted((folder / table).iterdir())
        pq.write_table(pa.concat_tables([pq.read_table(file) for file in files]), files[0])
        for file in files[1:]:
            file.unlink()


def add_attributes(folder: Path) -> int:
    """Give the events of two runs attributes. Those of the event at the returned position are
    changed on the way to a reader of "retyped"."""
    changed = 0
    for table in ("published", "delivered"):
        (file,) = (folder / table).iterdir()
        rows = pq.read_table(file)
        typed = [name in ("typed", "retyped") for name in rows["stream"].to_pylist()]
        attributes = pc.if_else(pa.array(typed), rows["value"], None).to_pylist()
        if table == "delivered":
            places = zip(
                *(rows[name].to_pylist() for name in ("stream", "reader", "kind")), strict=True
            )
            at = list(places).index(("retyped", "r1", "event"))
            attributes[at], changed = b"changed", rows["seq"][at].as_py()
        column = rows.schema.get_field_index("attributes")
        pq.write_table(
            rows.set_column(column, "attributes", pa.array(attributes, pa.binary())), file
        )
    return changed


def by_stream(found: Audit) -> dict[str, StreamAudit]:
    return {stream.stream: stream for stream in found.streams}


# ---------------------------------------------------------------- more ways to alter a run


def void_unreplaced(run: Run) -> None:
    """The newest event of a key is reported void to a reader."""
    reader = run.readers[0]
    keys = reader.key
    row = max(int(np.flatnonzero(keys == key)[-1]) for key in np.unique(keys) if key != keys[-1])
    seq = int(reader.seq[row])
    for name in ("seq", "time_us", "key", "value"):
        setattr(reader, name, np.delete(getattr(reader, name), row))
    present = np.zeros(run.end + 1, np.bool_)
    present[reader.seq] = True
    gaps = np.flatnonzero(~present[1 : run.end]) + 1
    reader.voids = np.stack((gaps, gaps + 1), axis=1)
    assert seq in gaps


def change_value(run: Run) -> None:
    """An event has the value of another one: that one occurs twice, and its own value never."""
    reader = run.readers[2]
    reader.value = reader.value.copy()
    reader.value[-4] = reader.value[-9]


def silence(run: Run) -> None:
    """A reader that requested voids gets none of them."""
    for reader in run.readers:
        reader.voids = np.empty((0, 2), np.int64)


def void_over_event(run: Run) -> None:
    run.readers[0].voids = np.array([[EVENTS - 5, EVENTS - 3]])


def turn_back_over_a_void(run: Run) -> None:
    """Time decreases from one event to the next, with a void, which has no time, between them."""
    reader = run.readers[0]
    row = int(np.flatnonzero(np.diff(reader.seq) > 1)[-1]) + 1
    reader.time_us = reader.time_us.copy()
    reader.time_us[row] = reader.time_us[row - 1] - 1


def malform(run: Run) -> None:
    run.readers[1].malformed = 3


def stop_at_once(run: Run) -> None:
    """A reader that received nothing."""
    for name in ("seq", "time_us", "key", "value"):
        setattr(run.readers[2], name, getattr(run.readers[2], name)[:0])
    run.readers[2].voids = None


MORE_SPOILT: dict[Callable[[Run], None], str] = {
    void_unreplaced: "G4 r0: neither delivered nor outdated",
    change_value: "G10 r2: got another event than stands at",
    silence: "skipped without a void",
    void_over_event: "G2 r0: void and an event at",
    turn_back_over_a_void: "R10 r0: time runs backwards",
    malform: "G1 r1: 3 events were changed on the way",
    stop_at_once: "G9 r2 ended at 1, not",
}
# Violations with other words than those of numpy's judge.
OTHER_WORDS = {
    "differ": "G10 r1: got another event than stands at",
    "acknowledge_beyond": "G10 acknowledged and lost",
    "acknowledge_twice": "G10 positions were given twice",
    "publish_out_of_order": "G3 not in the order in which p-",
    "time_differs": "G10 readers received different times for events at 300",
}
# Counts that numpy's judge does not have: an event that belongs beyond the end is within it, and a
# void comes late.
ALSO = {"acknowledge_beyond": ("duplicated",), "void_over_event": ("misordered",)}


# ---------------------------------------------------------------- one audit of many runs


class Judged:
    """Many runs, judged together."""

    def __init__(self, spark: "SparkSession", folder: Path) -> None:
        self.runs = {f"sound-{seed}": Run(seed) for seed in range(8)}
        self.expected = dict.fromkeys(self.runs, "")
        for run in self.runs.values():
            run.offered.offered_ns = np.arange(1, EVENTS + 1) * 1000
        for spoil, words in (SPOILT | MORE_SPOILT).items():
            for seed in SEEDS:
                name = f"{spoil.__name__}-{seed}"
                self.runs[name] = Run(seed)
                spoil(self.runs[name])
                self.expected[name] = OTHER_WORDS.get(spoil.__name__, words)
        self.runs |= unacknowledged()
        self.runs |= {"typed": Run(1), "retyped": Run(1)}
        for stream, run in self.runs.items():
            write(folder, stream, run)
        save(folder, "published", "other", {
            "stream": ["unread"], "publisher": ["p"], "number": [1], "key": [b"k"],
            "value": [b"v"], "seq": [1], "offered_ns": [1],
        })  # fmt: skip
        gather(folder)
        self.retyped = add_attributes(folder)
        self.found = audit(load(spark, str(folder)), LatestPerKey(), chunk_rows=CHUNK)
        self.streams = by_stream(self.found)


def unacknowledged() -> dict[str, Run]:
    """Runs whose publisher got no acknowledgement of its last four events."""
    runs = {"fine": Run(1), "lacking": Run(1), "torn": Run(1), "moved": Run(1)}
    for run in runs.values():
        run.offered.seq = run.offered.seq.copy()
        run.offered.seq[-4:] = 0
    lacking = runs["lacking"].readers[1]
    for name in ("seq", "time_us", "key", "value"):
        setattr(lacking, name, np.delete(getattr(lacking, name), -1))
    torn = runs["torn"].readers[1]
    torn.value, torn.key = torn.value.copy(), torn.key.copy()
    torn.value[[-1, -2]], torn.key[[-1, -2]] = torn.value[[-2, -1]], torn.key[[-2, -1]]
    for reader in runs["moved"].readers:  # all readers get an acknowledged event twice
        reader.value, reader.key = reader.value.copy(), reader.key.copy()
        reader.value[-1], reader.key[-1] = reader.value[-6], reader.key[-6]
    return runs


@pytest.fixture(scope="module")
def judged(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Judged:
    return Judged(spark, tmp_path_factory.mktemp("trace"))


def test_sound_runs_have_no_violations_and_the_same_counts_as_numpys_judge(judged: Judged) -> None:
    sound = [name for name in judged.runs if name.startswith("sound")]
    assert sound
    for stream in sound:
        found, tally = judged.streams[stream], judged.runs[stream].judged()
        assert found.violations == tally.violations == []
        assert [getattr(found, name) for name in COUNTS] == [
            getattr(tally, name) for name in COUNTS
        ]
    readers = [reader for reader in judged.found.readers if reader.stream in sound]
    assert {(r.region, r.end) for r in readers} == {(f"region-r{i}", EVENTS + 1) for i in range(3)}
    for reader in readers:
        assert (reader.lost, reader.duplicated, reader.misordered) == (0, 0, 0)
        assert reader.delivered + reader.void == EVENTS
        assert reader.latency is not None
        assert reader.latency.p50_ms == pytest.approx(2.0, rel=0.005)
        assert reader.latency.max_ms == 2.0


@pytest.mark.parametrize("spoil", SPOILT | MORE_SPOILT, ids=lambda spoil: spoil.__name__)
def test_an_altered_run_has_violations_for_both_judges(
    judged: Judged, spoil: Callable[[Run], None]
) -> None:
    for seed in SEEDS:
        stream = f"{spoil.__name__}-{seed}"
        found, tally = judged.streams[stream], judged.runs[stream].judged()
        words = judged.expected[stream]
        both = f"{stream}: {found.violations}\nnumpy: {tally.violations}"
        assert tally.violations, "numpy's judge found nothing: the alteration has no effect"
        assert any(words in violation for violation in found.violations), both
        assert f"{stream}: {found.violations[0]}" in judged.found.violations
        for name in ("published", "acked", "delivered"):
            assert getattr(found, name) == getattr(tally, name), both
        more = ALSO.get(spoil.__name__, ())
        for name in ("lost", "duplicated", "misordered"):
            assert bool(getattr(found, name)) == (bool(getattr(tally, name)) or name in more), both


def test_unacknowledged_events_are_judged_by_what_readers_received(judged: Judged) -> None:
    fine, lacking, torn, moved = (
        judged.streams[name] for name in ("fine", "lacking", "torn", "moved")
    )
    assert fine.violations == []
    assert (fine.published, fine.acked) == (EVENTS, EVENTS - 4)
    assert lacking.lost
    assert "G4 r1: neither delivered nor outdated 300" in lacking.violations
    assert "G10 readers got different events at 299, 300" in torn.violations
    assert moved.duplicated
    assert "G10 events stand at two positions, also at 300" in moved.violations


def test_a_stream_without_readers_is_a_violation(judged: Judged) -> None:
    unread = judged.streams["unread"]
    assert (unread.published, unread.delivered) == (1, 0)
    assert unread.violations[0] == "published, and no reader recorded anything"


def test_totals_are_the_sums_over_streams(judged: Judged) -> None:
    found = judged.found
    assert not found.sound
    for name in COUNTS:
        assert getattr(found, name) == sum(getattr(stream, name) for stream in found.streams)
    assert found.delivered == sum(reader.delivered for reader in found.readers)


# ---------------------------------------------------------------- latencies


def test_latencies_equal_those_of_the_trace(spark: "SparkSession", tmp_path: Path) -> None:
    count = 1000
    keys = np.arange(count, dtype=np.uint64)
    values = np.arange(1, count + 1, dtype=np.uint64)
    seqs = np.arange(1, count + 1)
    offered_ns = np.full(count, 5_000_000_000)
    offered = OfferedEvents(keys, values, seqs, offered_ns=offered_ns)
    trace_offered(tmp_path, "s", "p", offered)
    late_ns = np.random.default_rng(1).permutation(count) * 1_000_000  # 0 to 999 ms
    for reader, extra in (("a", 0), ("b", 1_000_000_000)):
        got_ns = offered_ns + late_ns + extra
        trace_read(
            tmp_path, "s", "here", ReadEvents(reader, seqs, seqs, keys, values, got_ns=got_ns)
        )
    found = audit(load(spark, str(tmp_path)), KeepAll())
    assert found.sound, found.violations
    first = next(r.latency for r in found.readers if r.reader == "a")
    assert first is not None
    steps = pytest.approx([499, 899, 989], rel=0.005)
    assert [first.p50_ms, first.p90_ms, first.p99_ms] == steps
    assert first.max_ms == 999
    both = found.regions["here"]
    steps = pytest.approx([999, 1799, 1979], rel=0.005)
    assert [both.p50_ms, both.p90_ms, both.p99_ms] == steps
    assert both.max_ms == 1999


# ---------------------------------------------------------------- other rules


def test_each_rule_explains_its_own_voids(spark: "SparkSession", tmp_path: Path) -> None:
    run = Run(3)
    for reader in run.readers:
        rows = slice(-50 if reader is run.readers[0] else 0, None)  # the first got the last 50
        reader.seq, reader.key = run.offered.seq[rows], run.offered.key[rows]
        reader.value, reader.time_us = run.offered.value[rows], reader.seq * 7
        reader.voids = None
    write(tmp_path, "s", run)
    found = audit(load(spark, str(tmp_path)), KeepLast(50), chunk_rows=CHUNK)
    assert found.violations == []
    assert (found.void, found.delivered) == (250, 650)
    again = audit(load(spark, str(tmp_path)), KeepLast(52), chunk_rows=CHUNK)
    assert again.lost == 2
    assert again.violations == ["G4 r0: neither delivered nor outdated 249, 250"]
    with pytest.raises(UsageError, match="expired"):
        audit(load(spark, str(tmp_path)), KeepFor(5))


def write_trace_of_reader(folder: Path, *ranges: tuple[str, int, int]) -> None:
    """A trace of 20 events of three keys, and of a reader that got `ranges` of them, in order."""
    seqs = list(range(1, 21))
    keys, values = [b"k%d" % (seq % 3) for seq in seqs], [b"v%d" % seq for seq in seqs]
    save(folder, "published", "p", {
        "stream": ["s"] * 20, "publisher": ["p"] * 20, "number": seqs, "key": keys,
        "value": values, "seq": seqs, "offered_ns": [None] * 20,
    })  # fmt: skip
    rows = [(kind, hi - 1, hi - lo) for kind, lo, hi in ranges]
    events = [kind == "event" for kind, _, _ in rows]
    last = [seq for _, seq, _ in rows]
    save(folder, "delivered", "r", {
        "stream": ["s"] * len(rows), "reader": ["r"] * len(rows),
        "number": list(range(1, len(rows) + 1)), "kind": [kind for kind, _, _ in rows],
        "seq": last, "range": [count for _, _, count in rows],
        "key": [keys[n - 1] if e else None for n, e in zip(last, events, strict=True)],
        "value": [values[n - 1] if e else None for n, e in zip(last, events, strict=True)],
        "timestamp": [None] * len(rows), "got_ns": [None] * len(rows),
    })  # fmt: skip
    save(folder, "readers", "r", {
        "stream": ["s"], "region": ["here"], "reader": ["r"], "first": [1], "voids": [True],
        "malformed": [0],
    })  # fmt: skip


@pytest.mark.parametrize(
    ("ranges", "void", "lost", "at"),
    [
        # All lost positions are outdated: they still count as lost, not as void.
        ([("void", 1, 10), ("lost", 10, 15), ("void", 15, 18)], 12, 5, 10),
        # The newest event of a key is lost: it is counted once.
        ([("void", 1, 16), ("lost", 16, 19)], 15, 3, 16),
        # And one position is not reported at all.
        ([("void", 1, 10), ("lost", 10, 15), ("void", 16, 18)], 12, 6, 10),
    ],
    ids=["outdated", "newest", "silent"],
)
def test_positions_reported_lost_to_a_reader_count_as_lost(
    spark: "SparkSession",
    tmp_path: Path,
    ranges: list[tuple[str, int, int]],
    void: int,
    lost: int,
    at: int,
) -> None:
    events = [("event", seq, seq + 1) for seq in range(ranges[-1][2], 21)]
    write_trace_of_reader(tmp_path, *ranges, *events)
    found = audit(load(spark, str(tmp_path)), LatestPerKey(), chunk_rows=CHUNK)
    assert not found.sound
    positions = sum(hi - lo for kind, lo, hi in ranges if kind == "lost")
    words = f"G4 r: {positions} positions were reported lost, from {at}"
    assert found.violations[0] == words
    assert (found.delivered, found.void, found.lost) == (len(events), void, lost), found.violations


def test_a_reader_needs_only_positions_from_its_start_on(
    spark: "SparkSession", tmp_path: Path
) -> None:
    for stream, first in (("stated", 200), ("misstated", 202)):
        run = Run(1)
        for reader in run.readers:
            reader.voids = None
            reader.seq, reader.key = run.offered.seq, run.offered.key
            reader.value, reader.time_us = run.offered.value, reader.seq * 7
        late = run.readers[1]
        late.seq, late.key, late.value = late.seq[199:], late.key[199:], late.value[199:]
        late.time_us = late.time_us[199:]
        write(tmp_path, stream, run)
        words = {"stream": [stream], "region": ["x"], "voids": [False], "malformed": [0]}
        save(tmp_path, "readers", f"{stream}-r1", {**words, "reader": ["r1"], "first": [first]})
    found = by_stream(audit(load(spark, str(tmp_path)), KeepAll(), chunk_rows=CHUNK))
    assert found["stated"].violations == []
    assert found["stated"].delivered == 300 + 101 + 300
    (violation,) = found["misstated"].violations
    assert violation.startswith("G1 r1: 2 positions that are invalid or were not requested")


# ---------------------------------------------------------------- limits and invalid traces


@pytest.mark.parametrize(
    ("events", "size", "hint"),
    [
        (1_000_000, 50 << 20, "broadcast"),
        (5_000_000, 250 << 20, "shuffle_hash"),
        (400_000, 800 << 20, "shuffle_hash"),
        (1_000_000, 2 << 30, "merge"),
    ],
)
def test_the_kind_of_join_depends_on_the_size_of_the_data(
    events: int, size: int, hint: str
) -> None:
    assert join_hint(events, size, tasks=4) == hint


def test_the_verdict_is_the_same_if_events_do_not_fit_into_memory(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(4)
    lose(run)
    write(tmp_path, "s", run)
    trace = load(spark, str(tmp_path))
    size = trace.published.selectExpr("sum(length(key) + length(value))").first()
    assert size == (Judge(trace, LatestPerKey(), CHUNK).bytes,)
    monkeypatch.setattr("surecast.pipeline.jobs.judge.HELD_BYTES_MAX", 0)
    found, tally = audit(trace, LatestPerKey(), chunk_rows=CHUNK), run.judged()
    assert [getattr(found, name) for name in COUNTS] == [getattr(tally, name) for name in COUNTS]
    assert (found.lost, found.violations) == (1, tally.violations)


def test_an_invalid_trace_is_refused_with_the_reason(spark: "SparkSession", tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a trace: .*published cannot be read"):
        load(spark, str(tmp_path / "nothing"))
    run = Run(1)
    write(tmp_path, "s", run)
    delivered = tmp_path / "delivered" / "s-r1.parquet"
    whole = pq.read_table(delivered)
    for rows in (whole.slice(1), pa.concat_tables([whole.slice(0, 5), whole.slice(4)])):
        pq.write_table(rows, delivered)
        with pytest.raises(UsageError, match="the trace of r1, s, is not complete"):
            audit(load(spark, str(tmp_path)), LatestPerKey(), chunk_rows=CHUNK)
    pq.write_table(whole, delivered)
    (tmp_path / "readers" / "s-r1.parquet").unlink()
    with pytest.raises(UsageError, match="not in readers/: r1 of s"):
        audit(load(spark, str(tmp_path)), LatestPerKey())


def test_attributes_that_were_changed_are_a_violation(judged: Judged) -> None:
    assert judged.streams["typed"].violations == []
    place = f"{judged.retyped:,}"
    words = f"G1 r1: another key, or other attributes, than published at {place}"
    assert judged.streams["retyped"].violations == [words]
