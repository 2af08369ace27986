"""Runs all benchmarks of `surecast bench` (real servers on this machine) for bench/results.jsonl.

    python bench/run.py --only cluster

The data of benchmarks that sync to disk is in out/bench while they run, because folders for
temporary files are often not on a real disk.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from surecast_lab.bench import catchup, durable, fanout, geo, latency
from surecast_lab.bench.report import Report

Row = dict[str, Any]

PLACE = Path(__file__).resolve().parent.parent / "out" / "bench"


def _say(done: int, total: int, what: str) -> None:
    print(f"  {done}/{total} {what}", file=sys.stderr, flush=True)


def _rows(module: Any, options: Any) -> Iterator[Row]:
    PLACE.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=PLACE) as folder:
        report: Report = module.measure(options, Path(folder), _say)
    if not report.exact:
        raise SystemExit(f"{report.bench} has errors: {'; '.join(report.problems)}")
    for note in report.notes:
        print(f"  {note}", file=sys.stderr)
    for row in report.rows:
        params = {**row.params, "load_average": report.load_average}
        yield {**msgspec.structs.asdict(row), "params": params}


def bench_geo() -> Iterator[Row]:
    yield from _rows(geo, geo.GeoOptions())


def bench_fanout() -> Iterator[Row]:
    yield from _rows(fanout, fanout.FanoutOptions())


def bench_latency() -> Iterator[Row]:
    yield from _rows(latency, latency.LatencyOptions())


def bench_durable() -> Iterator[Row]:
    yield from _rows(durable, durable.DurableOptions())


def bench_catchup() -> Iterator[Row]:
    yield from _rows(catchup, catchup.CatchupOptions())


if __name__ == "__main__":
    for bench in (bench_geo, bench_fanout, bench_latency, bench_durable, bench_catchup):
        for row in bench():
            print(row, flush=True)
