"""Measures the Spark job `compact`, and compares its result with a server's on the same events.

    python bench/spark_compact.py [--events 50000000] [--append]

By default there are 50 M events with 100,000 keys of skew 1.1. Run this script by hand, because it
needs minutes and gigabytes. It creates the events (job `workload`), compacts them with Spark, and
feeds them batch by batch to the retention index that a server uses (`columns/retention`). Then it
compares every position: which events are live, and the bounds of void ranges. Both results are also
compared with the last event of each key, found by numpy. Prints JSON lines: time, memory, bytes
before and after.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from spark_memory import Memory
from surecast.columns.batch import Batch
from surecast.columns.intervals import IntervalSet
from surecast.columns.retention import LatestPerKey, RetentionIndex
from surecast.pipeline.jobs.compact import compact
from surecast.pipeline.jobs.workload import Workload, ids_of, workload
from surecast.pipeline.rows import DDL
from surecast.pipeline.session import spark_session
from surecast_lab.bench.machine import circumstances

RESULTS = Path(__file__).resolve().parent / "results.jsonl"
STREAM = bytes(16)
ROWS = 4096  # rows in each batch that is fed to the retention index


def in_order(folder: Path) -> Iterator[pa.RecordBatch]:
    """The rows of an archive in the order of their positions: files, then batches."""
    files = sorted(folder.glob("*.parquet"), key=lambda f: ds.dataset(f).head(1)["seq"][0].as_py())
    for file in files:
        yield from ds.dataset(file).to_batches(
            columns=["seq", "key", "value"], batch_size=ROWS * 50
        )


def by_kernel(archive: Path) -> tuple[IntervalSet, np.ndarray, float]:
    """The void positions according to a server's retention index, the key id of each event, and the
    CPU time of the index."""

    def read(lo: int, hi: int) -> list[Batch]:
        raise AssertionError("latest-per-key must not read the log again")

    index, spent_s, ids = RetentionIndex(LatestPerKey()), 0.0, []
    for rows in in_order(archive):
        ids.append(ids_of(rows.column("key")))
        at = rows.column("seq")[0].as_py()
        assert at == index.end, (at, index.end)
        whole = rows.select(["key", "value"])
        batches = []
        for lo in range(0, rows.num_rows, ROWS):
            batch = Batch.from_arrow(STREAM, whole.slice(lo, ROWS))
            batches.append(batch.sequenced(at + lo, time_ns=1, epoch=1))
        began = time.monotonic()
        index.feed_many(batches, read)
        spent_s += time.monotonic() - began
    (voids,) = (voids for voids in index.voids.values() if voids)
    return voids, np.concatenate(ids), spent_s


def positions(folder: Path, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """(seq, range) of the rows of a kind, in order."""
    table = ds.dataset(folder).to_table(
        columns=["seq", "range"], filter=ds.field("kind") == kind
    ).sort_by("seq")  # fmt: skip
    return table["seq"].to_numpy(), table["range"].to_numpy()


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.parquet"))


def compare(archive: Path, kept: Path) -> tuple[int, float]:
    """Compare the results of Spark, the server's index and numpy; returns the number of live
    events, and the CPU seconds of the index."""
    voids, ids, kernel_s = by_kernel(archive)
    live, _ = positions(kept, "event")
    last, count = positions(kept, "void")
    expected = np.array(list(voids), np.int64).reshape(-1, 2)
    found = np.stack((last - count + 1, last + 1), axis=1)
    assert np.array_equal(found, expected), "Spark's void ranges differ from the server's"
    newest = ids.size - np.unique(ids[::-1], return_index=True)[1]  # seq of the last of each key
    assert np.array_equal(live, np.sort(newest)), "live events are not the last of each key"
    assert live.size + int(count.sum()) == ids.size
    return live.size, kernel_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=50_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--skew", type=float, default=1.1)
    parser.add_argument("--append", action="store_true", help="to bench/results.jsonl")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="surecast-compact-"))
    archive, kept = folder / "archive", folder / "kept"
    spec = Workload(events=args.events, keys=args.keys, skew=args.skew)
    spark = spark_session("local[2]")
    try:
        workload(spark, spec).write.parquet(str(archive))
        began = time.monotonic()
        with Memory() as memory:
            rows = spark.read.schema(DDL).parquet(str(archive))
            with compact(rows, LatestPerKey()) as left:
                left.orderBy("stream", "seq").write.parquet(str(kept))
            seconds = time.monotonic() - began
        spark.stop()
        live, kernel_s = compare(archive, kept)
        before, after = size(archive), size(kept)
        params: dict[str, Any] = {
            "events": args.events, "keys": args.keys, "skew": args.skew, "cores": 2, "live": live,
            "saved_events": round(1 - live / args.events, 5), "bytes_before": before,
            "bytes_after": after, "saved_bytes": round(1 - after / before, 5),
            "seconds": round(seconds, 1), "kernel_s": round(kernel_s, 1), "equal": True,
            **memory.figures(),
        }  # fmt: skip
        row = {"name": "spark.compact", "value": round(args.events / seconds), "unit": "events/s"}
        line = json.dumps({**row, "params": params, **circumstances()})
        print(line, flush=True)
        if args.append:
            with RESULTS.open("a") as results:
                results.write(line + "\n")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
