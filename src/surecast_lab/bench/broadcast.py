"""One benchmark run: how many events per second are replicated to all regions of a deployment.

`geo.py` and others use it. Closed-loop drivers publish in the regions: each has a fixed number of
unacknowledged batches. An event counts when every replica of every region has committed its
position. Then the drivers stop, the run waits for all batches in flight, and every region must have
exactly the acknowledged events.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from surecast.columns.rules import Policy
from surecast_lab.bench.deployment import Deployment
from surecast_lab.bench.machine import Cores
from surecast_lab.bench.pool import PoolSpec
from surecast_lab.bench.roles import Driver, Reader
from surecast_lab.testing.workers import Workers

__all__ = ["Load", "Run", "broadcast"]

OPEN_S = 30.0  # time for chains to form and streams to be created
SETTLE_S = 120.0  # time for batches in flight, or for a reader to read everything
ENDLESS = 1 << 40  # batches: practically no limit, because a run ends after a time


@dataclass(frozen=True, slots=True)
class Load:
    """What is published, in which regions, and how."""

    regions: tuple[str, ...]
    policy: Policy
    batch: int  # events in a batch
    replicas: int = 1
    drivers: int = 1  # for each region; each has its own stream
    window: int = 32  # most unacknowledged batches of a driver
    pool_events: int = 1_000_000
    keys: int = 100_000
    skew: float = 1.1

    def streams(self) -> dict[str, str]:
        """Stream → the region that owns it."""
        return {
            f"{region}.load.d{number}": region
            for region in self.regions
            for number in range(self.drivers)
        }

    def pool(self, stream: str) -> PoolSpec:
        seed = list(self.streams()).index(stream)
        events = max(self.batch, self.pool_events)
        return PoolSpec(seed, events, self.batch, self.keys, self.skew)


@dataclass(slots=True)
class Run:
    rate: float  # events per second that reached all regions
    rates: dict[str, float]  # by stream
    events: int  # published and acknowledged in all, including the warm-up
    seconds: float
    cores: dict[str, float]  # by process, and "others"
    problems: list[str] = field(default_factory=list)

    @property
    def own_cores(self) -> float:
        """Cores used by servers and drivers together; fewer than the machine has if it is busy."""
        return sum(used for name, used in self.cores.items() if name != "others")


def broadcast(
    folder: Path,
    load: Load,
    warm_s: float,
    seconds: float,
    data: Path | None = None,
    audit: bool = True,
) -> Run:
    """Start all processes, measure once, end all processes. `audit`: afterwards read all events in
    every region."""
    with Workers(folder) as workers:
        deployment = Deployment(workers, load.regions, load.replicas, data)
        streams = load.streams()
        for stream, region in streams.items():
            workers.start(
                _driver(stream), Driver, _driver(stream), deployment.replicas[region], stream,
                load.policy, load.pool(stream), load.window,
            )  # fmt: skip
        workers.ready()
        drivers = [_driver(stream) for stream in streams]
        workers.wait(
            lambda: all(status["opened"] for status in workers.ask_all(drivers, "status").values()),
            OPEN_S, "opening the streams",
        )  # fmt: skip
        workers.ask_all(drivers, "publish", ENDLESS)
        time.sleep(warm_s)
        run = _measure(workers, deployment, list(streams), seconds)
        workers.ask_all(drivers, "halt")
        run.problems += _settle(workers, deployment, load, run)
        if audit and not run.problems:
            run.problems += _audit(workers, deployment, load)
        return run


def _driver(stream: str) -> str:
    return f"driver-{stream}"


def _measure(
    workers: Workers, deployment: Deployment, streams: Sequence[str], seconds: float
) -> Run:
    cores = Cores(workers.pids())
    began = time.monotonic()
    before = deployment.ends()
    time.sleep(seconds)
    after = deployment.ends()
    took = time.monotonic() - began
    used = cores.used()
    rates = {s: (after.get(s, 1) - before.get(s, 1)) / took for s in streams}
    return Run(sum(rates.values()), rates, 0, took, used)


def _settle(workers: Workers, deployment: Deployment, load: Load, run: Run) -> list[str]:
    """Wait until nothing is in flight; then every server must have exactly the acknowledged
    events."""
    drivers = [_driver(stream) for stream in load.streams()]
    workers.wait(
        lambda: all(status["idle"] for status in workers.ask_all(drivers, "status").values()),
        SETTLE_S, "waiting for the last acknowledgements",
    )  # fmt: skip
    acked = {s: workers.ask(_driver(s), "status")["acked"] for s in load.streams()}
    run.events = sum(acked.values())

    def all_there() -> bool:
        ends = deployment.ends()
        return all(ends.get(stream, 1) > count for stream, count in acked.items())

    workers.wait(all_there, SETTLE_S, "waiting until all regions have everything")
    problems = []
    for name, look in workers.ask_all(deployment.servers, "look").items():
        for stream, count in acked.items():
            held = look["ends"][stream] - 1
            if held != count:
                problems.append(f"{name} has {held} events of {stream}, acknowledged are {count}")
    return problems


def _audit(workers: Workers, deployment: Deployment, load: Load) -> list[str]:
    """A reader in every region reads all events and compares them with the published ones."""
    streams = load.streams()
    statuses = {s: workers.ask(_driver(s), "status") for s in streams}
    ids = {s: status["opened"] for s, status in statuses.items()}
    pools = {s: load.pool(s) for s in streams}
    readers = [f"audit-{region}" for region in load.regions]
    for region, reader in zip(load.regions, readers, strict=True):
        workers.start(reader, Reader, reader, deployment.replicas[region], ids, pools)
    workers.ready()
    workers.ask_all(readers, "follow")

    def all_read() -> bool:
        found = workers.ask_all(readers, "status").values()
        return all(
            look["positions"][s] >= statuses[s]["end"] for look in found for s in streams
        )  # fmt: skip

    workers.wait(all_read, SETTLE_S, "reading everything back")
    problems = []
    for reader in readers:
        problems += workers.ask(reader, "status")["problems"]
        if load.keys:
            for stream, status in statuses.items():
                problems += workers.ask(reader, "verdict", stream, status["acked"])
    return problems
