"""`surecast bench catchup`: bytes sent to a region after an outage, and how many retention saves.

Retention saves bytes because obsolete events are not sent. There are three regions. All connections
of one of them pass through a relay, which counts the bytes. This region is cut off, events are
published in another region, and the links are restored. The run does this twice with the same
events: for a stream that keeps the newest event of each key, and for a stream that keeps all
events.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from surecast.columns.rules import KeepAll, LatestPerKey, Policy
from surecast_lab.bench.deployment import REGIONS, Deployment
from surecast_lab.bench.pool import PoolSpec
from surecast_lab.bench.report import Progress, Report, Row
from surecast_lab.bench.roles import Driver, Reader
from surecast_lab.testing.workers import Workers

__all__ = ["BAR", "CatchupOptions", "measure"]

BAR = 0.85  # the goal: this share of the bytes is saved
OWNER, AWAY = "east", "west"
WAIT_S = 120.0
# The owner finds obsolete events up to `streams.settle_ns` after they are published, and later on a
# busy machine: an outage that ends sooner would send them.
SETTLE_S = 1.0
POLICIES: dict[str, Policy] = {f"{OWNER}.latest": LatestPerKey(), f"{OWNER}.all": KeepAll()}


@dataclass(frozen=True, slots=True)
class CatchupOptions:
    events: Sequence[int] = (150_000, 1_000_000)
    keys: int = 100_000
    skew: float = 1.1
    batch: int = 500
    window: int = 32
    durable: bool = False


@dataclass(slots=True)
class Absence:
    """The results of one outage."""

    shipped: int  # bytes sent to the region
    seconds: float  # from the repair of the links until the region is up to date
    rows: int  # events that a reader in the region gets


def measure(options: CatchupOptions, folder: Path, progress: Progress) -> Report:
    rows: list[Row] = []
    problems: list[str] = []
    steps = 2 * len(options.events)
    for turn, events in enumerate(options.events):
        found: dict[str, Absence] = {}
        pool = PoolSpec(turn, events, min(options.batch, events), options.keys, options.skew)
        published = events // pool.batch * pool.batch
        with TemporaryDirectory(prefix="catchup-", dir=folder) as data, Workers(folder) as workers:
            deployment = Deployment(
                workers, REGIONS, data=Path(data) if options.durable else None, relayed=AWAY
            )
            try:
                for number, stream in enumerate(POLICIES):
                    progress(2 * turn + number, steps, f"{events:,} events to {stream}")
                    found[stream] = _measure_outage(
                        workers, deployment, stream, pool, options.window
                    )
                    problems += _audit(workers, deployment, stream, pool, found[stream])
            finally:
                deployment.close()
        rows += _rows(options, published, *found.values())
    progress(steps, steps, "done")
    notes = [
        f"10-byte values, 8-byte keys ({options.keys:,} keys, Zipf {options.skew}), published in "
        f"batches of {options.batch} while {AWAY} was cut off. The bytes are those of TCP payload "
        f"that the relay passed on to {AWAY} until it had everything. The goal is to save "
        f"{BAR:.0%} of them.",
    ]
    return Report(bench="catchup", rows=rows, problems=problems, notes=notes)


def _measure_outage(
    workers: Workers, deployment: Deployment, stream: str, pool: PoolSpec, window: int
) -> Absence:
    driver = f"driver-{stream}"
    batches = pool.events // pool.batch
    end = batches * pool.batch + 1
    replicas = deployment.replicas[OWNER]
    workers.start(driver, Driver, driver, replicas, stream, POLICIES[stream], pool, window)
    workers.ready()
    workers.wait(
        lambda: bool(workers.ask(driver, "status")["opened"]), WAIT_S, "opening the stream"
    )
    workers.wait(lambda: stream in deployment.region_ends(AWAY), WAIT_S, f"{AWAY} learns of it")
    deployment.cut()
    workers.ask(driver, "publish", batches)
    here = [region for region in REGIONS if region != AWAY]
    workers.wait(
        lambda: all(deployment.region_ends(region).get(stream, 1) == end for region in here),
        WAIT_S, f"publishing while {AWAY} is cut off",
    )  # fmt: skip
    time.sleep(SETTLE_S)
    before, began = deployment.bytes_to_relayed(), time.monotonic()
    deployment.mend()
    workers.wait(
        lambda: deployment.region_ends(AWAY).get(stream, 1) == end, WAIT_S, f"{AWAY} catches up"
    )
    took = time.monotonic() - began
    return Absence(deployment.bytes_to_relayed() - before, took, 0)


def _audit(
    workers: Workers, deployment: Deployment, stream: str, pool: PoolSpec, absence: Absence
) -> list[str]:
    """The region must have the same events as the owner: read both, and compare each with the
    published events."""
    status = workers.ask(f"driver-{stream}", "status")
    readers = {region: f"audit-{region}-{stream}" for region in (OWNER, AWAY)}
    for region, reader in readers.items():
        workers.start(
            reader, Reader, reader, deployment.replicas[region],
            {stream: status["opened"]}, {stream: pool},
        )  # fmt: skip
    workers.ready()
    workers.ask_all(readers.values(), "follow")
    workers.wait(
        lambda: all(
            look["positions"][stream] == status["end"]
            for look in workers.ask_all(readers.values(), "status").values()
        ),
        WAIT_S, "reading everything back",
    )  # fmt: skip
    problems: list[str] = []
    for region, reader in readers.items():
        look = workers.ask(reader, "status")
        problems += look["problems"] + workers.ask(reader, "verdict", stream, status["acked"])
        if isinstance(POLICIES[stream], KeepAll) and look["rows"][stream] != status["acked"]:
            problems.append(
                f"{region} has {look['rows'][stream]} of {status['acked']} events of {stream}"
            )
        absence.rows = look["rows"][stream]
    workers.end(readers.values())
    return problems


def _rows(
    options: CatchupOptions, published: int, with_rule: Absence, without: Absence
) -> list[Row]:
    params = {"events": published, "keys": options.keys, "skew": options.skew}
    saved = 1 - with_rule.shipped / without.shipped
    return [
        Row("catchup_bytes_saved", round(saved, 4), "", {
            **params,
            "bytes": with_rule.shipped,
            "bytes_keep_all": without.shipped,
            "events_left": with_rule.rows,
            "events_saved": round(1 - with_rule.rows / published, 4),
            "bytes_an_event_left": round(with_rule.shipped / with_rule.rows, 1),
            "bar_met": saved >= BAR,
        }),
        Row("catchup_seconds", round(with_rule.seconds, 3), "s", {
            **params, "seconds_keep_all": round(without.seconds, 3)
        }),
    ]  # fmt: skip
