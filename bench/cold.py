"""Measures how much a reader of old segments delays live events: `python bench/cold.py`.

    python bench/cold.py [--gigabytes 2] [--seconds 8] [--rounds 3] [--source DIR] [--append]

One server process has a stream of some gigabytes on its disk. A publisher publishes single events
to another stream of this server at 2,000 a second, and a subscriber reads them. Measured is the
time from publish to delivery, in turn without and with a *scan*: two programs read the whole old
stream, one as a subscriber from its beginning, one with range reads (the way of Spark). Before each
scan, the segment files are dropped from the system's page cache. If a scan ends early, it begins
again. `--source` names the folder `src` of another checkout, to measure that one instead.
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


def scan(how: str, url: str, count: int, folder: Path) -> None:
    """Read the old stream again and again; print the bytes and seconds of each part."""
    from surecast import sync

    with sync.connect(url) as client:
        while True:
            drop_cache(folder)
            began, seen = time.monotonic(), 0
            if how == "follow":
                subscription = client.subscribe("east.old", start="earliest")
                for batch in subscription.batches():
                    seen += batch.num_rows
                    _say(batch.num_rows)
                    if seen >= count:
                        break
                subscription.close()
            else:
                step = 250_000
                stream = client.stream("east.old")
                for lo in range(1, count + 1, step):
                    _say(stream.read(start=lo, stop=min(lo + step, count + 1)).num_rows)
            print(json.dumps({"scan": how, "s": time.monotonic() - began}), flush=True)


_said = [0, time.monotonic()]


def _say(rows: int) -> None:
    """Report the speed from time to time."""
    _said[0] += rows
    if time.monotonic() - _said[1] > 1:
        print(json.dumps({"rows": _said[0]}), flush=True)
        _said[:] = [0, time.monotonic()]


@contextmanager
def scanning(hows: list[str], url: str, count: int, folder: Path, out: Path) -> Iterator[None]:
    with out.open("a") as file:
        words = [sys.executable, str(HERE)]
        programs = [
            subprocess.Popen([*words, "--scan", how, url, str(count), str(folder)], stdout=file)
            for how in hows
        ]
        try:
            time.sleep(3)  # they have started
            yield
            assert all(program.poll() is None for program in programs), "a scan has ended"
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
    out = folder / "scans.jsonl"
    with Workers(folder) as workers:
        url = Deployment(workers, ("east",), data=folder / "data").url("east")
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
            hows = options.scans.split(",") if kind == "with" else []
            with scanning(hows, url, count, folder, out):
                workers.ask(f"publisher-{number}", "begin", RATE, events)
                workers.wait(
                    lambda n=number: workers.ask(f"publisher-{n}", "status")["done"], 300, "load"
                )
                workers.wait(
                    lambda n=number, e=events: workers.ask(f"subscriber-{n}", "status")["received"]
                    >= e,
                    60, "deliveries",
                )  # fmt: skip
            results = workers.ask(f"subscriber-{number}", "results")
            if problems := missing("subscriber", events, results["numbers"], results["seqs"]):
                raise SystemExit("\n".join(problems))
            taken = sorted(results["taken_ns"])
            row = {key: quantile(taken, share) / 1e3 for key, share in QUANTILES.items()}
            found[kind].append(row)
            print(kind, {key: round(value) for key, value in row.items()}, flush=True)
            workers.end([f"publisher-{number}", f"subscriber-{number}"])
    said = [json.loads(line) for line in out.read_text().splitlines()]
    speed = sum(one.get("rows", 0) for one in said) * VALUE / options.rounds / options.seconds
    means = {
        kind: {key: statistics.median(row[key] for row in rows) for key in QUANTILES}
        for kind, rows in found.items()
    }
    ratio = means["with"]["p99"] / means["without"]["p99"]
    params = {
        "scans": options.scans, "gigabytes": options.gigabytes, "rate": RATE,
        "seconds": options.seconds, "rounds": options.rounds,
        "scan_mb_s": round(speed / 1e6, 1),
        "us": {kind: {k: round(v) for k, v in row.items()} for kind, row in means.items()},
        "source": options.source or "this",
    }  # fmt: skip
    return [{"name": "cold.p99_ratio", "value": round(ratio, 3), "unit": "x", "params": params}]


QUANTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scans", default="follow,range", help="which scans run beside it")
    parser.add_argument("--source", help="the folder src of the checkout to measure")
    parser.add_argument("--append", action="store_true", help="to bench/results.jsonl")
    parser.add_argument("--folder", help="where the data goes")
    parser.add_argument("--scan", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.scan:
        how, url, count, folder = options.scan
        scan(how, url, int(count), Path(folder))
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
