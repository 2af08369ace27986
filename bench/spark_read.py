"""Measures how fast Spark reads a stream, compared with the same query on Parquet files.

    python bench/spark_read.py [--events 20000000] [--rows 4096] [--append]

Run this script by hand, because it needs minutes and gigabytes. One server process has the events
(8-byte keys, 10-byte values). Spark counts them and computes a checksum in three ways: it reads the
segment files of the server, the server's port, or Parquet files with the same rows. The three ways
alternate, and the best time of each counts. Only the ratios can be compared between machines. `cpu`
is the processor time of all processes together (JVM, Python workers, server). On a machine that is
not idle it is more reliable than the wall time. Prints JSON lines, one per figure.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from surecast import ClientOptions, sync
from surecast.pipeline import fetch
from surecast.pipeline.options import parse
from surecast.pipeline.session import spark_session
from surecast.pipeline.source import BatchReader
from surecast.server.cluster import Cluster
from surecast_lab.bench.machine import circumstances
from surecast_lab.testing.deployment import free_layout

KEY, VALUE = 8, 10
AT_ONCE = 200_000
RESULTS = Path(__file__).resolve().parent / "results.jsonl"


def tables(events: int) -> Iterator[pa.Table]:
    rng = np.random.default_rng(1)
    for at in range(0, events, AT_ONCE):
        rows = min(AT_ONCE, events - at)
        columns = {}
        for name, width in (("key", KEY), ("value", VALUE)):
            data = rng.integers(0, 256, rows * width, np.uint8)
            kind = pa.binary(width)
            columns[name] = pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(data)])
        yield pa.table(columns)


def publish(url: str, events: int, rows: int) -> float:
    began = time.monotonic()
    with sync.connect(url, options=ClientOptions(batch_rows_max=rows)) as client:
        stream = client.stream("orders")
        for table in tables(events):
            stream.publish_many(table)
    return time.monotonic() - began


def checksum(table: DataFrame) -> tuple[int, ...]:
    """The number of rows, and a hash over every byte of every row."""
    row = table.agg(F.count("*"), F.bit_xor(F.xxhash64("seq", "key", "value"))).first()
    assert row is not None
    return tuple(row)


def alone(options: dict[str, str]) -> float:
    """Seconds that one process without Spark takes to produce all record batches."""
    reader = BatchReader(parse(options, streaming=False))
    tasks = [one.value for one in reader.partitions()]
    began = time.monotonic()
    for task in tasks:
        for _ in fetch.read(task):
            pass
    return time.monotonic() - began


class Clock:
    """Wall time, and processor time by kind of process, since its creation."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._before = self._now()
        self._began = time.monotonic()

    def read(self) -> dict[str, float]:
        after = self._now()
        used = {"jvm": 0.0, "workers": 0.0, "server": 0.0}
        for pid, (who, seconds) in after.items():
            used[who] += seconds - self._before.get(pid, (who, 0.0))[1]
        return {"wall": time.monotonic() - self._began, "cpu": sum(used.values()), **used}

    def _now(self) -> dict[int, tuple[str, float]]:
        found = {self._server: ("server", _processor_s(self._server))}
        for pid in _descendants(os.getpid()):
            if pid != self._server:
                java = Path(f"/proc/{pid}/comm").read_text().strip() == "java"
                found[pid] = ("jvm" if java else "workers", _processor_s(pid))
        return found


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _processor_s(pid: int) -> float:
    with suppress(OSError):
        return (int(_stat(pid)[11]) + int(_stat(pid)[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _descendants(root: int) -> list[int]:
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(path.name)] = int(_stat(int(path.name))[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def measure(
    spark: SparkSession, url: str, server: int, parquet: str, events: int, rounds: int
) -> Iterator[tuple[str, float, str, dict[str, Any]]]:
    options = {"url": url, "subscribe": "orders"}
    ways: dict[str, Callable[[], DataFrame]] = {
        "parquet": lambda: spark.read.parquet(parquet),
        "segments": lambda: spark.read.format("surecast").options(**options).load(),
        "servers": lambda: (
            spark.read.format("surecast").options(**options, segments="never").load()
        ),
        "segments, three columns": lambda: (
            spark.read.format("surecast").options(**options, columns="seq,key,value").load()
        ),
    }
    best: dict[str, dict[str, float]] = {}
    answers: dict[str, tuple[int, ...]] = {}
    for _ in range(rounds):
        for way, table in ways.items():
            clock = Clock(server)
            answers[way] = checksum(table())
            took = clock.read()
            print(f"  {way}: {took}", file=sys.stderr, flush=True)
            kept = best.setdefault(way, took)
            best[way] = {name: min(kept[name], value) for name, value in took.items()}
    assert len(set(answers.values())) == 1, answers
    assert answers["parquet"][0] == events
    for way, took in best.items():
        yield "spark.read", events / took["wall"] / 1e6, "M events/s", {"way": way}
        for who in ("jvm", "workers", "server"):
            if took[who]:
                yield f"spark.read.{who}", took[who] * 1e9 / events, "ns/event", {"way": way}
        if way != "parquet":
            for what in ("wall", "cpu"):
                ratio = best["parquet"][what] / took[what]
                yield "spark.read.to_parquet", ratio, "x", {"way": way, "by": what}
    for way in ("segments", "servers"):
        segments = {"segments": "auto" if way == "segments" else "never"}
        rate = events / alone({**options, **segments}) / 1e6
        yield "spark.read.alone", rate, "M events/s", {"way": way}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=20_000_000)
    parser.add_argument("--rows", type=int, default=4096, help="events in each published batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--append", action="store_true", help=f"to {RESULTS.name}, too")
    given = parser.parse_args()
    shared = circumstances()
    folder = Path(tempfile.mkdtemp(prefix="surecast-spark-read-"))
    try:
        with Cluster(free_layout(folder, regions=1, replicas=1)) as cluster:
            cluster.wait_ready(60)
            url = next(iter(cluster.nodes.values())).url
            seconds = publish(url, given.events, given.rows)
            print(f"  published in {seconds:.1f} s", file=sys.stderr, flush=True)
            spark = spark_session("local[2]", app="bench")
            parquet = str(folder / "parquet")
            reader = spark.read.format("surecast").options(url=url, subscribe="orders")
            reader.load().write.parquet(parquet)
            server = next(iter(cluster.running.values())).pid
            for name, value, unit, about in measure(
                spark, url, server, parquet, given.events, given.rounds
            ):
                params = {"events": given.events, "rows": given.rows, **about}
                row = {"name": name, "value": round(value, 3), "unit": unit, "params": params}
                line = json.dumps({**row, **shared})
                print(line, flush=True)
                if given.append:
                    with RESULTS.open("a") as results:
                        results.write(line + "\n")
            spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
