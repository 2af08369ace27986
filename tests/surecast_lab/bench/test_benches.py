"""The benchmarks in small, with real processes: counts are exact, and rows have the right form."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.programs import needs
from tests.surecast_lab.measuring import measured
from typer.testing import CliRunner

from surecast.cli.bench import bench
from surecast_lab.bench import broadcast as broadcast_module
from surecast_lab.bench import jetstream, nats
from surecast_lab.bench.catchup import CatchupOptions
from surecast_lab.bench.catchup import measure as catchup
from surecast_lab.bench.durable import DurableOptions
from surecast_lab.bench.durable import measure as durable
from surecast_lab.bench.fanout import FanoutOptions
from surecast_lab.bench.fanout import measure as fanout
from surecast_lab.bench.geo import GeoOptions
from surecast_lab.bench.geo import measure as geo
from surecast_lab.bench.latency import LatencyOptions
from surecast_lab.bench.latency import measure as latency
from surecast_lab.bench.pool import Pool, PoolSpec
from surecast_lab.bench.report import Report, Row


def quiet(*_: object) -> None:
    pass


def no_nats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats, "installed", lambda: None)


# ---------------------------------------------------------------- geo


@pytest.mark.slow
@pytest.mark.parametrize(("replicas", "on_disk"), [(1, False), (2, True)])
def test_geo_counts_what_all_regions_hold(
    tmp_path: Path, monkeypatch, replicas: int, on_disk: bool
) -> None:
    no_nats(monkeypatch)
    options = GeoOptions(
        (replicas,), (50,), (on_disk,), warm_s=0.1, window=4, pool_events=2_000, keys=300,
    )  # fmt: skip

    def run(seconds: float) -> Report:
        return geo(replace(options, seconds=seconds), tmp_path, quiet)

    report = measured(run, lambda report: report.rows[0].value > 0, seconds=0.3)
    assert report.problems == []
    (row,) = report.rows
    assert row.value > 0
    assert row.params["events"] > 0
    assert row.params["events"] % 50 == 0
    assert row.params["kept"] == ("fsync" if on_disk else "memory")
    servers = {f"{r}-{n + 1}" for r in ("east", "north", "west") for n in range(replicas)}
    assert servers | {"driver-east.load.d0", "others"} <= row.params["cores"].keys()
    assert not [path for path in tmp_path.iterdir() if path.is_dir()], "data is removed"


class Stub:
    """Replaces a deployment and its workers: servers report the ends that the test chooses."""

    servers = ("east-1", "west-1")

    def __init__(self, ends: dict[str, int]) -> None:
        self.held = ends

    def ends(self) -> dict[str, int]:
        return {"east.load.d0": min(self.held.values())}

    def wait(self, condition: object, *_: object) -> None:
        assert callable(condition)
        assert condition()

    def ask(self, _name: str, _verb: str) -> dict[str, object]:
        return {"acked": 100, "idle": True}

    def ask_all(self, names: tuple[str, ...], verb: str) -> dict[str, object]:
        if verb == "status":
            return {name: self.ask(name, verb) for name in names}
        return {name: {"ends": {"east.load.d0": self.held[name]}} for name in names}


@pytest.mark.parametrize(("held", "wrong"), [(101, 0), (151, 1)])
def test_a_region_that_holds_more_than_was_acknowledged_is_a_problem(held: int, wrong: int) -> None:
    from surecast.columns.rules import KeepAll

    stub = Stub({"east-1": 101, "west-1": held})
    load = broadcast_module.Load(("east",), KeepAll(), 50)
    run = broadcast_module.Run(0.0, {}, 0, 0.0, {})
    problems = broadcast_module._settle(stub, stub, load, run)  # type: ignore[arg-type]
    assert len(problems) == wrong
    assert run.events == 100


# ---------------------------------------------------------------- other benchmarks


@pytest.mark.slow
def test_fanout_delivers_every_event_to_every_reader_once(tmp_path: Path, monkeypatch) -> None:
    no_nats(monkeypatch)
    report = fanout(FanoutOptions(3, events=2_000, batch=50, window=4), tmp_path, quiet)
    assert report.problems == []
    assert [row.params["readers"] for row in report.rows] == ["thin", "mesh"]
    assert all(row.value > 0 and row.params["events"] == 2_000 for row in report.rows)
    assert nats.MISSING in report.notes, "the report must say that NATS is missing"


@pytest.mark.slow
def test_nats_and_jetstream_are_measured(tmp_path: Path) -> None:
    needs("nats-server")
    rate = nats.fanout(tmp_path, 2, 5_000, 10)
    assert rate is not None
    assert rate > 0
    taken = nats.latency(tmp_path, 500, 100)
    assert taken is not None
    assert len(taken) == 100
    acked = measured(lambda seconds: jetstream.durable(tmp_path, 0.1, seconds, 10), bool, 0.2)
    assert acked is not None
    assert acked > 0


@pytest.mark.slow
def test_latency_has_a_sample_for_every_event(tmp_path: Path, monkeypatch) -> None:
    no_nats(monkeypatch)
    report = latency(LatencyOptions(rate=200, seconds=1), tmp_path, quiet)
    assert report.problems == []
    names = ["publish_to_ack", "publish_to_delivery", "publish_to_delivery_far"]
    assert [row.name for row in report.rows] == names
    for row in report.rows:
        assert row.params["samples"] == 200
        assert row.params["p50"] <= row.params["p99"] <= row.params["p999"] <= row.params["max"]


@pytest.mark.slow
def test_durable_syncs_before_it_acknowledges(tmp_path: Path, monkeypatch) -> None:
    no_nats(monkeypatch)
    options = DurableOptions((50,), tasks=20, warm_s=0.1, pool_events=500, probes=5)

    def run(seconds: float) -> Report:
        return durable(replace(options, seconds=seconds), tmp_path, quiet)

    report = measured(run, lambda report: all(row.value > 0 for row in report.rows), seconds=0.4)
    assert report.problems == []
    disk, batches, single = report.rows
    assert disk.params["times"] == 5
    assert batches.params["batch"] == 50
    assert single.params["tasks"] == 20
    for row in (batches, single):
        assert row.value > 0
        assert row.params["syncs"] > 0
        assert row.params["events_a_sync"] > 0


@pytest.mark.slow
def test_catchup_ships_less_where_retention_leaves_less(tmp_path: Path) -> None:
    options = CatchupOptions((5_000,), keys=200, skew=1.1, batch=100)
    report = catchup(options, tmp_path, quiet)
    assert report.problems == []
    saved, seconds = report.rows
    left = len(Pool(PoolSpec(0, 5_000, 100, 200, 1.1)).live(5_000))
    assert saved.params["events_left"] == left
    assert saved.params["events_saved"] == round(1 - left / 5_000, 4)
    assert saved.params["bytes_keep_all"] > 18 * 5_000, "keys and values at least"
    assert 0 < saved.params["bytes"] < saved.params["bytes_keep_all"]
    assert 0 < saved.value < 1
    assert seconds.params["seconds_keep_all"] > 0


# ---------------------------------------------------------------- the command


@pytest.mark.slow
def test_the_command_prints_one_object_and_leaves_nothing_behind(tmp_path: Path) -> None:
    words = ["catchup", "--events", "1000", "--keys", "100", "--dir", str(tmp_path), "--json"]
    result = CliRunner().invoke(bench, words)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["bench"] == "catchup"
    assert found["exact"] is True
    assert found["rows"][0]["params"]["events"] == 1000
    assert list(tmp_path.iterdir()) == []


def test_a_lost_event_is_exit_code_1_and_the_logs_are_kept(tmp_path: Path, monkeypatch) -> None:
    from surecast_lab.bench import fanout as module

    def measure(options: object, folder: Path, progress: object) -> Report:
        (folder / "server.log").touch()
        return Report(bench="fanout", rows=[Row("x", 1, "")], problems=["an event is lost"])

    monkeypatch.setattr(module, "measure", measure)
    result = CliRunner().invoke(bench, ["fanout", "--dir", str(tmp_path)])
    assert result.exit_code == 1
    assert "PROBLEM: an event is lost" in result.stdout
    assert len(list(tmp_path.glob("fanout-*/server.log"))) == 1
