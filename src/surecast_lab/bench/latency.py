"""`surecast bench latency`: time of a single event from publish to delivery, in two regions.

Each region has one server. A publisher in the first region publishes single events at a constant
rate through the client library, and a subscriber in each region reads them one by one. Quantiles
are exact, because the time of every event is recorded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from surecast.columns.rules import KeepAll
from surecast_lab.bench import nats
from surecast_lab.bench.client_roles import Publisher, Subscriber
from surecast_lab.bench.deployment import Deployment
from surecast_lab.bench.machine import Cores
from surecast_lab.bench.report import Progress, Report, Row, quantile
from surecast_lab.testing.workers import Workers

__all__ = ["LatencyOptions", "measure", "missing"]

HERE, THERE = "east", "west"
STREAM = f"{HERE}.latency"
PATIENCE_S = 60.0  # in addition to the duration of the load
QUANTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999}


@dataclass(frozen=True, slots=True)
class LatencyOptions:
    rate: float = 2_000.0  # events a second
    seconds: float = 10.0
    durable: bool = False

    @property
    def count(self) -> int:
        return max(1, int(self.rate * self.seconds))


def measure(options: LatencyOptions, folder: Path, progress: Progress) -> Report:
    progress(0, 2, f"{options.rate:g} events/s for {options.seconds:g} s")
    rows, problems = _surecast(options, folder)
    notes = [
        "Single 16-byte events through the client library; times begin with the call of publish. "
        f"They are stored {'on disk, synced,' if options.durable else 'in memory'} before an "
        "acknowledgement.",
    ]
    progress(1, 2, "NATS")
    beside = nats.latency(folder, options.rate, options.count)
    if beside is None:
        notes.append(nats.MISSING)
    else:
        rows.append(_row("nats_to_delivery", beside, options, {}))
        ours = next(row for row in rows if row.name == "publish_to_delivery")
        ratio = ours.value / max(rows[-1].value, 1e-9)
        rows.append(Row("latency_p50_over_nats", round(ratio, 2), "x", {}))
    progress(2, 2, "done")
    return Report(bench="latency", rows=rows, problems=problems, notes=notes)


def _surecast(options: LatencyOptions, folder: Path) -> tuple[list[Row], list[str]]:
    with TemporaryDirectory(prefix="latency-", dir=folder) as data, Workers(folder) as workers:
        place = Path(data) if options.durable else None
        deployment = Deployment(workers, (HERE, THERE), data=place)
        workers.start("publisher", Publisher, deployment.url(HERE), STREAM, KeepAll())
        workers.ready()
        readers = {region: f"subscriber-{region}" for region in (HERE, THERE)}
        for region, reader in readers.items():
            workers.start(reader, Subscriber, deployment.url(region), STREAM)
        workers.ready()
        cores = Cores(workers.pids())
        workers.ask("publisher", "begin", options.rate, options.count)
        within_s = options.seconds + PATIENCE_S
        workers.wait(lambda: workers.ask("publisher", "status")["done"], within_s, "publishing")
        used = cores.used()
        workers.wait(
            lambda: all(
                look["received"] >= options.count
                for look in workers.ask_all(readers.values(), "status").values()
            ),
            PATIENCE_S, "the last deliveries",
        )  # fmt: skip
        published = workers.ask("publisher", "results")
        found = {region: workers.ask(reader, "results") for region, reader in readers.items()}
    late = sorted(published["late_ns"])
    params = {"late_us_p99": round(quantile(late, 0.99) / 1e3, 1), "cores": used}
    rows = [
        _row("publish_to_ack", published["ack_ns"], options, params),
        _row("publish_to_delivery", found[HERE]["taken_ns"], options, {"region": "own"}),
        _row("publish_to_delivery_far", found[THERE]["taken_ns"], options, {"region": "another"}),
    ]
    problems = []
    for region, results in found.items():
        problems += missing(region, options.count, results["numbers"], results["seqs"])
    return rows, problems


def missing(who: str, count: int, numbers: Sequence[int], seqs: Sequence[int]) -> list[str]:
    """Errors in the received events: every number below `count` must have been delivered once and
    in order, with consecutive positions."""
    problems = []
    if len(numbers) != len(set(numbers)):
        problems.append(f"{who}: {len(numbers) - len(set(numbers))} events were delivered twice")
    if lost := count - len(set(numbers)):
        problems.append(f"{who}: {lost} of {count} events were not delivered")
    if list(numbers) != sorted(numbers):
        problems.append(f"{who}: events were not delivered in the order of publishing")
    if list(seqs) != list(range(1, len(seqs) + 1)):
        problems.append(f"{who}: positions are not 1, 2, 3 …")
    return problems


def _row(
    name: str, samples_ns: Sequence[int], options: LatencyOptions, params: dict[str, Any]
) -> Row:
    ordered = sorted(samples_ns)
    found = {key: round(quantile(ordered, share) / 1e3, 1) for key, share in QUANTILES.items()}
    return Row(name, found["p50"], "us", {
        "rate": options.rate, "samples": len(ordered), **found,
        "max": round(ordered[-1] / 1e3, 1), **params,
    })  # fmt: skip
