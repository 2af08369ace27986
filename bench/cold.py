"""Measures how much a reader of old segments delays live events.

    python bench/cold.py [--gigabytes 2] [--seconds 8] [--rounds 3] [--mb-s 100] [--scans follow]
                         [--source DIR] [--append]

One server process has a stream of some gigabytes on its disk. A publisher publishes single events
to another stream of this server at 2,000 a second, and a subscriber reads them. Measured is the
time from publish to delivery, in turn without and with a *scan*: a program reads a part of the old
stream, as a subscriber (`follow`), with range reads (`range`, the way of Spark), or both. Each scan
reads another part, which was not read before, and whose segment files are first dropped from the
system's page cache. (Pages that a process has mapped would stay there.) `--mb-s` limits the speed
of a scan, because one that takes a whole core measures the scheduler. `--source` names the folder
`src` of another checkout, to measure that one instead.

Also counted are the *major faults* of the server's event loop: how often this thread had to wait
for the disk. Unlike the times, this does not depend on what else the machine does.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).resolve()
RESULTS = HERE.parent / "results.jsonl"
VALUE, ROWS = 200, 500  # bytes of an old value, events of an old batch
AT_ONCE = 100_000
STEP = 20_000  # events of a range read
RATE = 2_000.0


def fill(url: str, nbytes: int) -> int:
    """Publish the old stream; returns how many events it has."""
    import numpy as np
    import pyarrow as pa

    from surecast import ClientOptions, sync

    rng, count = np.random.default_rng(1), 0
    with sync.connect(url, options=ClientOptions(batch_rows_max=ROWS)) as client:
        stream = client.stream("east.old")
        while count * VALUE < nbytes:
            data = pa.py_buffer(rng.integers(0, 256, AT_ONCE * VALUE, np.uint8))
            values = pa.Array.from_buffers(pa.binary(VALUE), AT_ONCE, [None, data])
            stream.publish_many(pa.table({"value": values}))
            count += AT_ONCE
    return count


def drop_cache(folder: Path) -> None:
    for path in folder.rglob("segment-*"):
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def scan(how: str, url: str, lo: int, hi: int, mb_s: float, folder: Path) -> None:
    """Read [lo, hi) of the old stream; print how much was read. Then wait to be ended."""
    from surecast import sync

    drop_cache(folder)
    began, seen = time.monotonic(), 0
    with sync.connect(url) as client:
        if how == "follow":
            parts = iter(client.subscribe("east.old", start=lo, stop=hi).batches())
        else:
            stream = client.stream("east.old")
            starts = range(lo, hi, STEP)
            parts = (stream.read(start=at, stop=min(at + STEP, hi)) for at in starts)
        for part in parts:
            seen += part.num_rows
            print(json.dumps({"rows": part.num_rows}), flush=True)
            if mb_s:
                time.sleep(max(0.0, began + seen * VALUE / mb_s / 1e6 - time.monotonic()))
        time.sleep(600)


def loop_faults(pid: int) -> int:
    """Major faults of the first thread of a process, in which its event loop runs."""
    stat = Path(f"/proc/{pid}/task/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[9])


@contextmanager
def scanning(scans: list[tuple[Any, ...]], out: Path) -> Iterator[None]:
    with out.open("a") as file:
        programs = [
            subprocess.Popen([sys.executable, str(HERE), "--scan", *map(str, one)], stdout=file)
            for one in scans
        ]
        try:
            time.sleep(1.5 if scans else 0)  # they have started
            yield
            assert all(program.poll() is None for program in programs), "a scan has failed"
        finally:
            for program in programs:
                program.kill()
                program.wait()


def measure(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    from surecast.columns.rules import KeepAll
    from surecast_lab.bench.client_roles import Publisher, Subscriber
    from surecast_lab.bench.deployment import Deployment
    from surecast_lab.bench.latency import missing
    from surecast_lab.bench.report import quantile
    from surecast_lab.testing.workers import Workers

    found: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
    faults, lo = 0, 1
    out = folder / "scans.jsonl"
    with Workers(folder) as workers:
        deployment = Deployment(workers, ("east",), data=folder / "data")
        url = deployment.url("east")
        server = workers.pids()[deployment.servers[0]]
        count = fill(url, int(options.gigabytes * 1e9))
        time.sleep(2)  # the last move to segments
        for number in range(2 * options.rounds):
            kind = ("without", "with")[number % 2]
            stream = f"east.live{number}"
            workers.start(f"publisher-{number}", Publisher, url, stream, KeepAll())
            workers.ready()
            workers.start(f"subscriber-{number}", Subscriber, url, stream)
            workers.ready()
            events = int(RATE * options.seconds)
            scans = []
            for how in options.scans.split(",") if kind == "with" else []:
                size = count // options.rounds // len(options.scans.split(","))
                scans.append((how, url, lo, lo + size, options.mb_s, folder))
                lo += size
            before = loop_faults(server)
            with scanning(scans, out):
                workers.ask(f"publisher-{number}", "begin", RATE, events)
                workers.wait(
                    lambda n=number: workers.ask(f"publisher-{n}", "status")["done"], 300, "load"
                )
                workers.wait(
                    lambda n=number, e=events: workers.ask(f"subscriber-{n}", "status")["received"]
                    >= e,
                    60, "deliveries",
                )  # fmt: skip
            faults += loop_faults(server) - before if kind == "with" else 0
            results = workers.ask(f"subscriber-{number}", "results")
            if problems := missing("subscriber", events, results["numbers"], results["seqs"]):
                raise SystemExit("\n".join(problems))
            taken = sorted(results["taken_ns"])
            row = {key: quantile(taken, share) / 1e3 for key, share in QUANTILES.items()}
            found[kind].append(row)
            print(kind, {key: round(value) for key, value in row.items()}, flush=True)
            workers.end([f"publisher-{number}", f"subscriber-{number}"])
    said = [json.loads(line) for line in out.read_text().splitlines()]
    scanned = sum(one["rows"] for one in said) * VALUE / 1e9
    means = {
        kind: {key: statistics.median(row[key] for row in rows) for key in QUANTILES}
        for kind, rows in found.items()
    }
    ratio = means["with"]["p99"] / means["without"]["p99"]
    params = {
        "scans": options.scans, "mb_s": options.mb_s, "gigabytes": options.gigabytes, "rate": RATE,
        "seconds": options.seconds, "rounds": options.rounds,
        "scanned_gb": round(scanned, 3),
        "us": {kind: {k: round(v) for k, v in row.items()} for kind, row in means.items()},
        "source": options.source or "this", "load_average": round(os.getloadavg()[0], 1),
    }  # fmt: skip
    return [
        {"name": "cold.p99_ratio", "value": round(ratio, 3), "unit": "x", "params": params},
        {
            "name": "cold.loop_faults", "value": round(faults / max(scanned, 1e-9), 1),
            "unit": "per GB", "params": params,
        },
    ]  # fmt: skip


QUANTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scans", default="follow", help="which scans run beside it")
    parser.add_argument("--source", help="the folder src of the checkout to measure")
    parser.add_argument("--append", action="store_true", help="to bench/results.jsonl")
    parser.add_argument("--folder", help="where the data goes")
    parser.add_argument("--mb-s", type=float, default=100.0, help="of each scan; 0: no limit")
    parser.add_argument("--scan", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.scan:
        how, url, lo, hi, mb_s, data = options.scan
        scan(how, url, int(lo), int(hi), float(mb_s), Path(data))
        return
    if options.source:  # also for the processes that this one starts
        os.environ["PYTHONPATH"] = options.source
        sys.path.insert(0, options.source)
    from surecast_lab.bench.machine import circumstances

    with TemporaryDirectory(prefix="cold-", dir=options.folder) as folder:
        rows = measure(options, Path(folder))
    for row in rows:
        line = json.dumps({**row, **circumstances()})
        print(line)
        if options.append:
            with RESULTS.open("a") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
