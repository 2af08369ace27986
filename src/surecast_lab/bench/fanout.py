"""`surecast bench fanout`: events per second that one region delivers to many readers of a stream.

There are one publisher, one server and n reader processes. Each reader must get every event once
and in order. The time is measured from the first publish until the last reader has the last event.
There are two runs: in the first one the readers get everything from the server (*thin* readers), in
the second one they form a mesh and pass events to each other. NATS is measured for comparison if it
is installed.
"""

from dataclasses import dataclass
from pathlib import Path

from surecast.columns.rules import KeepAll
from surecast_lab.bench import nats
from surecast_lab.bench.deployment import Deployment
from surecast_lab.bench.machine import Cores
from surecast_lab.bench.pool import VALUE_BYTES, PoolSpec
from surecast_lab.bench.report import Progress, Report, Row
from surecast_lab.bench.roles import Driver, Reader
from surecast_lab.testing.workers import Workers

__all__ = ["FanoutOptions", "measure"]

REGION = "east"
STREAM = f"{REGION}.fanout"
WAIT_S = 180.0


@dataclass(frozen=True, slots=True)
class FanoutOptions:
    subscribers: int = 16
    events: int = 2_000_000
    batch: int = 500
    window: int = 32
    nats_events: int = 500_000  # fewer, because it is slower; its rate does not depend on this


def measure(options: FanoutOptions, folder: Path, progress: Progress) -> Report:
    rows: list[Row] = []
    problems: list[str] = []
    for done, mesh in enumerate((False, True)):
        progress(done, 3, "mesh" if mesh else "thin readers")
        row, found = _surecast(options, folder, mesh)
        rows.append(row)
        problems += found
    progress(2, 3, "NATS")
    notes = [f"10-byte values without keys, batches of {options.batch}, in memory, one server."]
    beside = nats.fanout(folder, options.subscribers, options.nats_events, VALUE_BYTES)
    if beside is None:
        notes.append(nats.MISSING)
    else:
        for row in rows:
            row.params["over_nats"] = round(row.value / beside, 2)
        rows.append(Row("nats_fanout_delivered", round(beside), "1/s", {
            "subscribers": options.subscribers, "events": options.nats_events,
        }))  # fmt: skip
    progress(3, 3, "done")
    return Report(bench="fanout", rows=rows, problems=problems, notes=notes)


def _surecast(options: FanoutOptions, folder: Path, mesh: bool) -> tuple[Row, list[str]]:
    batches = -(-options.events // options.batch)
    events = batches * options.batch
    pool = PoolSpec(1, min(events, 100 * options.batch), options.batch, keys=0)
    with Workers(folder) as workers:
        deployment = Deployment(workers, (REGION,))
        replicas = deployment.replicas[REGION]
        workers.start("driver", Driver, "driver", replicas, STREAM, KeepAll(), pool, options.window)
        workers.ready()
        workers.wait(
            lambda: bool(workers.ask("driver", "status")["opened"]), WAIT_S, "opening a stream"
        )
        stream_id = workers.ask("driver", "status")["opened"]
        readers = [f"reader-{number}" for number in range(options.subscribers)]
        for reader in readers:
            workers.start(reader, Reader, reader, replicas, {STREAM: stream_id}, None, mesh)
        workers.ready()
        workers.ask_all(readers, "follow")
        cores = Cores(workers.pids())
        workers.ask("driver", "publish", batches)
        workers.wait(
            lambda: all(
                look["positions"][STREAM] > events
                for look in workers.ask_all(readers, "status").values()
            ),
            WAIT_S, "delivering everything",
        )  # fmt: skip
        used = cores.used()
        looks = workers.ask_all(readers, "status")
        began = workers.ask("driver", "status")["began_at"]
    seconds = max(look["at"] for look in looks.values()) - began
    problems = [problem for look in looks.values() for problem in look["problems"]]
    for reader, look in looks.items():
        if look["rows"][STREAM] != events:
            problems.append(f"{reader} got {look['rows'][STREAM]} of {events} events")
    share = sum(used[reader] for reader in readers)
    return Row("fanout_delivered", round(options.subscribers * events / seconds), "1/s", {
        "subscribers": options.subscribers,
        "readers": "mesh" if mesh else "thin",
        "events": events,
        "batch": options.batch,
        "seconds": round(seconds, 3),
        "cores": {
            "server": used[f"{REGION}-1"], "driver": used["driver"],
            "readers": round(share, 2), "others": used["others"],
        },
    }), problems  # fmt: skip
