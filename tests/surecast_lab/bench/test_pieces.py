"""Parts of the benchmarks: pools, quantiles, reports, and readers that check what they receive."""

import json
import os
from pathlib import Path

import pytest

from surecast.columns.batch import COLLECTED, Batch
from surecast.errors import UsageError
from surecast_lab.bench.latency import missing
from surecast_lab.bench.machine import Cores, circumstances
from surecast_lab.bench.nats import PING, PONG, SUBJECT, Sink
from surecast_lab.bench.pool import KEY_BYTES, VALUE_BYTES, Pool, PoolSpec
from surecast_lab.bench.probe import SyncProbe, fdatasync_cost_ns
from surecast_lab.bench.report import Report, Row, quantile, show
from surecast_lab.bench.roles import PROBLEMS_MAX, Reader

SPEC = PoolSpec(seed=7, events=1_050, batch=100, keys=50)
STREAM_ID = bytes(range(16))


# ---------------------------------------------------------------- pools


def test_a_pool_has_whole_batches_and_knows_each_event():
    pool = Pool(SPEC)
    assert pool.size == 1_000
    assert len(pool.batches) == 10
    for place, batch in enumerate(pool.batches):
        numbers = range(100 * place, 100 * place + 100)
        assert batch.values().to_list() == [pool.value(n) for n in numbers]
        assert batch.keys().to_list() == [pool.key(n) for n in numbers]
    assert pool.value(1_003) == pool.value(3), "published round after round"
    assert {len(pool.value(n)) for n in range(1_000)} == {VALUE_BYTES}
    assert {len(pool.key(n) or b"") for n in range(1_000)} == {KEY_BYTES}


def test_pools_of_the_same_spec_are_equal():
    assert Pool(SPEC).batches[3].body == Pool(SPEC).batches[3].body
    other = PoolSpec(seed=8, events=1_050, batch=100, keys=50)
    assert Pool(SPEC).batches[3].body != Pool(other).batches[3].body


@pytest.mark.parametrize("published", [1, 730, 1_000, 1_001, 5_432])
def test_the_live_events_of_a_pool_are_the_newest_of_each_key(published):
    pool = Pool(SPEC)
    newest = {}
    for number in range(published):
        newest[pool.key(number)] = number
    assert pool.live(published) == newest


def test_live_events_include_the_previous_round_of_the_pool():
    pool = Pool(PoolSpec(1, 10, 5, keys=100_000, skew=0))
    assert sorted(pool.live(10).values()) == list(range(10)), "ten events, ten keys"
    assert sorted(pool.live(13).values()) == list(range(3, 13))


def test_a_pool_without_keys():
    pool = Pool(PoolSpec(1, 10, 5, keys=0))
    assert pool.key(3) is None
    assert pool.batches[0].keys().to_list() == [None] * 5
    with pytest.raises(UsageError, match="without keys"):
        pool.live(5)
    with pytest.raises(UsageError, match="no batch of 11"):
        PoolSpec(1, 10, 11)


# ---------------------------------------------------------------- readers


def reader() -> Reader:
    return Reader("r", {"s": ("127.0.0.1", 1)}, {"s": STREAM_ID.hex()}, {"s": SPEC})


def published(first: int, last: int) -> list[Batch]:
    """Batches `first` to `last` (exclusive) of the pool, at their positions in the stream."""
    pool = Pool(SPEC)
    return [pool.batches[n % 10].sequenced(100 * n + 1, 1, 1) for n in range(first, last)]


def test_a_reader_that_got_everything_reports_no_problem():
    one = reader()
    one._take(STREAM_ID, tuple(published(0, 12)))
    assert one.status()["positions"] == {"s": 1_201}
    assert one.status()["rows"] == {"s": 1_200}
    assert one.status()["problems"] == []
    assert one.verdict("s", 1_200) == []


def test_void_positions_are_no_loss_but_a_live_event_must_be_there():
    one = reader()
    one._take(STREAM_ID, (Batch.void(STREAM_ID, 1, 201, COLLECTED), *published(2, 12)))
    assert one.status()["problems"] == []
    assert one.rows == {"s": 1_000}
    assert one.verdict("s", 1_200) == [], "a whole round of the pool has every key"
    two = reader()
    two._take(STREAM_ID, (*published(0, 11), Batch.void(STREAM_ID, 1_101, 1_201, COLLECTED)))
    assert two.status()["problems"] == []
    assert "are not up to date" in two.verdict("s", 1_200)[0]


@pytest.mark.parametrize("order", [(0, 1, 1, 2), (0, 2), (1, 0)], ids=["twice", "gap", "order"])
def test_a_reader_reports_lost_repeated_and_misordered_events(order):
    one = reader()
    one._take(STREAM_ID, tuple(published(n, n + 1)[0] for n in order))
    assert any("expected" in problem for problem in one.problems)


def test_a_reader_reports_a_wrong_event():
    one = reader()
    one._take(STREAM_ID, (Pool(SPEC).batches[1].sequenced(1, 1, 1),))
    assert "wrong event at position 1" in one.problems[0]
    assert len(one.problems) == PROBLEMS_MAX, "listed one by one up to a bound"


@pytest.mark.parametrize("which", ["key", "value"])
def test_a_reader_compares_keys_and_values(which):
    pool = Pool(SPEC)
    keys, values = [pool.key(0), pool.key(1)], [pool.value(0), pool.value(1)]
    if which == "key":
        keys[1] = b"somebody"
    else:
        values[1] = b"other text"
    one = reader()
    one._take(STREAM_ID, (Batch.of(STREAM_ID, values, keys).sequenced(1, 1, 1),))
    assert one.problems == ["r: s: wrong event at position 2"]


# ---------------------------------------------------------------- figures


@pytest.mark.parametrize(
    ("share", "expected"), [(0.5, 50), (0.99, 99), (0.999, 100), (1, 100), (0, 1), (0.07, 7)]
)
def test_quantiles_are_samples(share, expected):
    assert quantile(range(1, 101), share) == expected


def test_quantiles_of_one_and_of_none():
    assert quantile([7], 0.999) == 7
    with pytest.raises(ValueError, match="no samples"):
        quantile([], 0.5)


def test_a_report_is_one_object_and_a_few_lines():
    rows = [Row("events", 1_234_567.0, "1/s", {"batch": 4000, "cores": {"east": 0.5}})]
    report = Report(bench="toy", rows=rows, problems=[], notes=["a note"])
    found = json.loads(report.to_json())
    assert found["rows"][0]["params"]["batch"] == 4000
    assert found["exact"] is True
    assert {"cpu", "cores", "python"} <= found["about"]["machine"].keys()
    assert "1,234,567 1/s" in show(rows[0])
    assert "note: a note" in report.lines()[-1]
    report.problems.append("an event is lost")
    assert json.loads(report.to_json())["exact"] is False
    assert "PROBLEM: an event is lost" in report.lines()[-1]


def test_circumstances_name_commit_and_machine():
    found = circumstances()
    assert found["machine"]["cores"] == os.cpu_count()
    assert isinstance(found["commit"], str)


def test_used_cores_are_shown_by_process():
    cores = Cores({"me": os.getpid(), "gone": 2**22 + 1})
    used = cores.used()
    assert used.keys() == {"me", "gone", "others"}
    assert used["gone"] == 0
    assert used["others"] >= 0


@pytest.mark.parametrize(
    ("numbers", "seqs", "words"),
    [
        ([0, 1, 2], [1, 2, 3], []),
        ([0, 1, 1], [1, 2, 3], ["delivered twice", "not delivered"]),
        ([0, 2], [1, 2], ["1 of 3 events were not delivered"]),
        ([0, 2, 1], [1, 2, 3], ["in the order of publishing"]),
        ([0, 1, 2], [1, 2, 4], ["positions"]),
    ],
)
def test_single_events_are_checked_for_loss_repetition_and_order(numbers, seqs, words):
    problems = missing("r", 3, numbers, seqs)
    assert len(problems) == len(words)
    for problem, expected in zip(problems, words, strict=True):
        assert expected in problem


# ---------------------------------------------------------------- syncs


def test_syncs_are_counted_and_timed(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fdatasync", os.fdatasync)  # put back afterwards
    probe = SyncProbe()
    with (tmp_path / "f").open("wb") as file:
        os.fdatasync(file)
        os.fdatasync(file.fileno())
    assert len(probe.take()) == 2
    assert probe.take() == []


def test_measuring_the_disk_leaves_no_files(tmp_path: Path):
    assert len(fdatasync_cost_ns(str(tmp_path), 3, 100)) == 3
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- NATS


class Wire:
    """A connection that keeps what is written to it."""

    def __init__(self) -> None:
        self.transport = self
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


@pytest.mark.parametrize("stamped", [True, False])
@pytest.mark.parametrize("piece", [1, 5, 37, 1000])
def test_a_sink_counts_messages_however_they_are_cut_and_answers_pings(stamped, piece):
    sink = Sink(1, 16, stamped)
    sink.wire = wire = Wire()  # type: ignore[assignment]
    message = b"MSG %s 1 16\r\n" % SUBJECT + bytes(16) + b"\r\n"
    data = message * 3 + PING * 8 + message * 2 + PING  # the pings are longer than a message
    for first in range(0, len(data), piece):
        sink._take(data[first : first + piece])
    assert sink.status()["received"] == 5
    assert len(sink.results()) == (5 if stamped else 0)
    assert wire.written
    assert set(wire.written) == {PONG}
