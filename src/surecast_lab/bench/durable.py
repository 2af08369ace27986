"""`surecast bench durable`: events per second that are on disk before they are acknowledged.

There is one region of one server with a data folder. First a closed-loop driver publishes batches,
then many tasks publish single events through the client library. For comparison, the benchmark
measures the time of one sync on this disk, and JetStream if it is installed.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from surecast.columns.rules import KeepAll
from surecast_lab.bench import jetstream, nats
from surecast_lab.bench.client_roles import SingleEventTasks
from surecast_lab.bench.deployment import Deployment
from surecast_lab.bench.machine import Cores
from surecast_lab.bench.pool import VALUE_BYTES, PoolSpec
from surecast_lab.bench.probe import fdatasync_cost_ns
from surecast_lab.bench.report import Progress, Report, Row, quantile
from surecast_lab.bench.roles import Driver
from surecast_lab.testing.workers import Workers

__all__ = ["DurableOptions", "measure"]

REGION = "east"
SERVER = f"{REGION}-1"
WAIT_S = 60.0
ENDLESS = 1 << 40


@dataclass(frozen=True, slots=True)
class DurableOptions:
    batches: Sequence[int] = (500, 4000)
    tasks: int = 1_000  # tasks that publish single events
    seconds: float = 5.0
    warm_s: float = 1.0
    window: int = 32
    pool_events: int = 200_000
    probes: int = 300  # syncs with which the disk is timed


@dataclass(slots=True)
class Pace:
    rate: float
    events: int
    syncs: list[int]  # the duration of each, in ns
    cores: dict[str, float]


def measure(options: DurableOptions, folder: Path, progress: Progress) -> Report:
    rows, problems = [], []
    steps = len(options.batches) + 3
    progress(0, steps, "timing the disk")
    rows.append(_disk(folder, options.probes))
    for done, batch in enumerate(options.batches, 1):
        progress(done, steps, f"batches of {batch} events")
        with TemporaryDirectory(prefix="durable-", dir=folder) as data, Workers(folder) as workers:
            deployment = Deployment(workers, (REGION,), data=Path(data))
            pace, found = _driven(workers, deployment, batch, options)
        rows.append(_row(pace, {"batch": batch, "window": options.window}))
        problems += found
    progress(steps - 2, steps, f"single events from {options.tasks:,} tasks")
    with TemporaryDirectory(prefix="durable-", dir=folder) as data, Workers(folder) as workers:
        deployment = Deployment(workers, (REGION,), data=Path(data))
        pace, found = _single_events(workers, deployment, options)
    rows.append(_row(pace, {"batch": 1, "tasks": options.tasks}))
    problems += found
    progress(steps - 1, steps, "JetStream")
    notes = ["One region, one replica, keep_all, 10-byte values; acknowledged after a sync."]
    with TemporaryDirectory(prefix="durable-", dir=folder) as place:
        beside = jetstream.durable(Path(place), options.warm_s, options.seconds, VALUE_BYTES)
    if beside is None:
        notes.append(nats.MISSING)
    else:
        notes.append("JetStream acknowledges after a write, and syncs its file every two minutes.")
        for row in rows[1:]:
            row.params["over_jetstream"] = round(row.value / beside, 2)
        rows.append(Row("jetstream_events", round(beside), "1/s", {"window": jetstream.WINDOW}))
    progress(steps, steps, "done")
    return Report(bench="durable", rows=rows, problems=problems, notes=notes)


def _disk(folder: Path, times: int) -> Row:
    took = sorted(fdatasync_cost_ns(str(folder), times))
    return Row("fdatasync", round(quantile(took, 0.5) / 1e3, 1), "us", {
        "p99": round(quantile(took, 0.99) / 1e3, 1), "bytes": 16 << 10, "times": times,
    })  # fmt: skip


def _driven(
    workers: Workers, deployment: Deployment, batch: int, options: DurableOptions
) -> tuple[Pace, list[str]]:
    stream, driver = f"{REGION}.durable", "driver"
    pool = PoolSpec(1, max(batch, options.pool_events), batch, keys=0)
    workers.start(
        driver, Driver, driver, deployment.replicas[REGION], stream, KeepAll(), pool,
        options.window,
    )  # fmt: skip
    workers.ready()
    workers.wait(
        lambda: bool(workers.ask(driver, "status")["opened"]), WAIT_S, "opening the stream"
    )
    workers.ask(driver, "publish", ENDLESS)
    pace = _pace(workers, lambda: workers.ask(driver, "status"), options)
    workers.ask(driver, "halt")
    workers.wait(lambda: workers.ask(driver, "status")["idle"], WAIT_S, "the last acknowledgements")
    return pace, _compare(deployment, stream, workers.ask(driver, "status")["acked"])


def _single_events(
    workers: Workers, deployment: Deployment, options: DurableOptions
) -> tuple[Pace, list[str]]:
    stream, name = f"{REGION}.single", "crowd"
    value = bytes(VALUE_BYTES)
    workers.start(
        name, SingleEventTasks, deployment.url(REGION), stream, KeepAll(), options.tasks, value
    )
    workers.ready()
    workers.ask(name, "begin")
    pace = _pace(workers, lambda: workers.ask(name, "status"), options)
    workers.ask(name, "halt")
    workers.wait(lambda: workers.ask(name, "status")["done"], WAIT_S, "the last acknowledgements")
    return pace, _compare(deployment, stream, workers.ask(name, "status")["acked"])


def _pace(
    workers: Workers, status: Callable[[], dict[str, float]], options: DurableOptions
) -> Pace:
    time.sleep(options.warm_s)
    workers.ask(SERVER, "sync_times")
    cores = Cores(workers.pids())
    before = status()
    time.sleep(options.seconds)
    after = status()
    syncs = workers.ask(SERVER, "sync_times")
    events = int(after["acked"] - before["acked"])
    return Pace(events / (after["at"] - before["at"]), events, syncs, cores.used())


def _compare(deployment: Deployment, stream: str, acked: int) -> list[str]:
    held = deployment.ends()[stream] - 1
    if held == acked:
        return []
    return [f"{SERVER} has {held} events of {stream}, acknowledged are {acked}"]


def _row(pace: Pace, params: dict[str, int]) -> Row:
    took = sorted(pace.syncs) or [0]
    return Row("durable_events", round(pace.rate), "1/s", {
        **params,
        "events_a_sync": round(pace.events / max(1, len(pace.syncs)), 1),
        "syncs": len(pace.syncs),
        "sync_us_p50": round(quantile(took, 0.5) / 1e3, 1),
        "sync_us_p99": round(quantile(took, 0.99) / 1e3, 1),
        "cores": pace.cores,
    })  # fmt: skip
