"""Measures the Spark job `workload` with a billion events, and checks the distribution of keys.

    python bench/spark_workload.py [--events 1000000000] [--to FOLDER] [--append]

Run this script by hand, because it needs many minutes. It measures time and memory, and checks with
a sample that the keys follow the requested distribution. With --to it writes Parquet files (about
15 bytes per event); otherwise rows are created, passed to the JVM, and counted. Prints JSON lines.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from spark_memory import Memory
from surecast.pipeline.jobs.fit import goodness_of_fit
from surecast.pipeline.jobs.workload import Workload, law_of, workload
from surecast.pipeline.session import spark_session
from surecast_lab.bench.machine import circumstances

RESULTS = Path(__file__).resolve().parent / "results.jsonl"
SAMPLE = 10_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--law", default="zipf")
    parser.add_argument("--newcomers", default="zeta")
    parser.add_argument("--to", default="")
    parser.add_argument("--append", action="store_true", help="to bench/results.jsonl")
    args = parser.parse_args()
    words: dict[str, Any] = {"law": args.law, "newcomers": args.newcomers}
    spec = Workload(events=args.events, keys=args.keys, **words)
    spark = spark_session("local[2]")
    began = time.monotonic()
    with Memory() as memory:
        rows = workload(spark, spec)
        if args.to:
            rows.write.parquet(args.to)
            rows = spark.read.parquet(args.to)
        count = rows.count() if not args.to else args.events
        seconds = time.monotonic() - began
    assert count == args.events
    params: dict[str, Any] = {"events": count, "law": spec.law, "keys": spec.keys}
    params |= {"skew": spec.skew, "parquet": bool(args.to), "cores": 2, **memory.figures()}
    if spec.law != "population":
        fit = goodness_of_fit(rows.sample(min(1.0, SAMPLE / count), seed=1), law_of(spec))
        params |= {"sample": fit.sample, "chi_square": round(fit.chi_square, 1), "bins": fit.bins}
        params |= {"p": round(fit.p, 4)}
        assert fit.plausible, fit
    row = {"name": "spark.workload", "value": round(count / seconds), "unit": "events/s"}
    line = json.dumps({**row, "params": {**params, "seconds": round(seconds)}, **circumstances()})
    print(line, flush=True)
    if args.append:
        with RESULTS.open("a") as results:
            results.write(line + "\n")
    spark.stop()


if __name__ == "__main__":
    sys.exit(main())
