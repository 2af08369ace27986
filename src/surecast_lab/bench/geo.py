"""`surecast bench geo`: events per second that are replicated to all of three regions.

Each region consists of real servers and has one closed-loop driver, which publishes to its own
stream. Values have 10 bytes, keys 8 bytes (Zipf-distributed), and the streams keep the newest event
of each key. All processes share this machine. NATS is measured for comparison if it is installed:
one publisher and one subscriber, without regions, retention and storage.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from surecast.columns.rules import LatestPerKey
from surecast_lab.bench import nats
from surecast_lab.bench.broadcast import Load, broadcast
from surecast_lab.bench.deployment import REGIONS
from surecast_lab.bench.pool import VALUE_BYTES
from surecast_lab.bench.report import Progress, Report, Row

__all__ = ["GeoOptions", "measure"]


@dataclass(frozen=True, slots=True)
class GeoOptions:
    """Every combination of replicas, batches and durable is measured."""

    replicas: Sequence[int] = (1, 2)
    batches: Sequence[int] = (500, 4000)
    durable: Sequence[bool] = (False, True)
    seconds: float = 8.0
    warm_s: float = 2.0
    window: int = 32
    pool_events: int = 1_000_000
    keys: int = 100_000
    skew: float = 1.1
    nats_events: int = 2_000_000  # for the comparison with NATS


def measure(options: GeoOptions, folder: Path, progress: Progress) -> Report:
    """Run the benchmark. `folder` is for logs and, in durable runs, for the servers' data."""
    cases = [
        (durable, replicas, batch)
        for durable in options.durable
        for replicas in options.replicas
        for batch in options.batches
    ]
    rows, problems = [], []
    for done, (durable, replicas, batch) in enumerate(cases):
        what = f"{replicas} replica{'s' * (replicas > 1)}, batches of {batch}, {_kind(durable)}"
        progress(done, len(cases), what)
        load = Load(
            REGIONS, LatestPerKey(), batch, replicas, window=options.window,
            pool_events=options.pool_events, keys=options.keys, skew=options.skew,
        )  # fmt: skip
        with TemporaryDirectory(prefix="geo-", dir=folder) as data:
            run = broadcast(
                folder, load, options.warm_s, options.seconds, Path(data) if durable else None
            )
        rows.append(Row("geo_events", round(run.rate), "1/s", {
            "regions": len(REGIONS),
            "replicas": replicas,
            "batch": batch,
            "kept": _kind(durable),
            "seconds": round(run.seconds, 2),
            "events": run.events,
            "events_a_core_second": round(run.rate / max(run.own_cores, 0.01)),
            "cores": run.cores,
        }))  # fmt: skip
        problems += [f"{what}: {problem}" for problem in run.problems]
    keys = f"Zipf {options.skew}" if options.skew else "uniform"
    notes = [
        f"10-byte values, 8-byte keys ({options.keys:,} keys, {keys}), latest_per_key. Each region "
        f"has one driver with {options.window} unacknowledged batches. An event counts when every "
        "replica of all three regions has committed it. All processes run on this machine.",
    ]
    progress(len(cases), len(cases), "NATS")
    beside = nats.fanout(folder, 1, options.nats_events, VALUE_BYTES)
    if beside is None:
        notes.append(nats.MISSING)
    else:
        for row in rows:
            row.params["over_nats"] = round(row.value / beside, 2)
        rows.append(Row("nats_one_to_one", round(beside), "1/s", {"events": options.nats_events}))
    return Report(bench="geo", rows=rows, problems=problems, notes=notes)


def _kind(durable: bool) -> str:
    return "fsync" if durable else "memory"
