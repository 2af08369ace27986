"""How long the filter index takes to match events with 1,000 to 1,000,000 filters (E6).

    python bench/filters.py [--filters 1000,10000] [--brute]

Events have ten columns. A filter is a conjunction of two to four tests: nine of ten have an
equality test of a symbol, one of 10,000 (Zipf, exponent 1.1), the others test ranges and lists of
other columns. Each row of the output has the time of an event alone and in a batch of 1,000, the
time to build the index, its memory, and the number of filters that an event passes on average.
Results are appended to bench/results.jsonl.
"""

import argparse
import gc
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parent.parent))

from surecast.columns.schema import parse_schema
from surecast.where.binding import Bound, bind
from surecast.where.columns import columns_of
from surecast.where.evaluate import passes
from surecast.where.index import FilterIndex
from surecast.where.text import parse

SYMBOLS = 10_000
VENUES = 20
SCHEMA = (
    "sym string, venue string, side bool, px float64, qty int64, level int8, day date, "
    "account string, flags int32, spread float64"
)


def zipf(rng: Any, count: int) -> Any:
    weights = 1 / np.arange(1, SYMBOLS + 1) ** 1.1
    return rng.choice(SYMBOLS, count, p=weights / weights.sum())


def events(rng: Any, count: int) -> dict[str, pa.Array]:
    return {
        "sym": pa.array([f"S{n}" for n in zipf(rng, count)]),
        "venue": pa.array([f"V{n}" for n in rng.integers(0, VENUES, count)]),
        "side": pa.array(rng.random(count) < 0.5),
        "px": pa.array(rng.random(count) * 1000),
        "qty": pa.array(rng.integers(1, 10_000, count)),
        "level": pa.array(rng.integers(0, 10, count), pa.int8()),
        "day": pa.array(rng.integers(20_000, 20_365, count), pa.int32()).view(pa.date32()),
        "account": pa.array([f"A{n}" for n in rng.integers(0, 1000, count)]),
        "flags": pa.array(rng.integers(0, 256, count), pa.int32()),
        "spread": pa.array(rng.random(count)),
    }  # fmt: skip


def filters(rng: Any, count: int) -> dict[int, Bound]:
    columns = columns_of(parse_schema(SCHEMA))
    symbols = zipf(rng, count)
    found = {}
    for number in range(count):
        tests = [f"sym == 'S{symbols[number]}'"] if rng.random() < 0.9 else []
        others = (
            lambda: f"px > {rng.random() * 1000:.3f}",
            lambda: f"qty between {rng.integers(1, 5000)} and {rng.integers(5000, 10_000)}",
            lambda: f"venue in ('V{rng.integers(0, VENUES)}', 'V{rng.integers(0, VENUES)}')",
            lambda: f"level <= {rng.integers(0, 10)}",
            lambda: f"account == 'A{rng.integers(0, 1000)}'",
            lambda: f"spread < {rng.random():.3f}",
        )
        for other in rng.choice(len(others), rng.integers(1, 4), replace=False):
            tests.append(others[other]())
        found[number] = bind(parse(" and ".join(tests)), columns)
    return found


def memory() -> int:
    with Path("/proc/self/statm").open() as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def best(call: Any, times: int) -> float:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return sorted(taken)[len(taken) // 2]


def measure(count: int, brute: bool) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    gc.collect()
    before = memory()
    made = filters(rng, count)
    bound_bytes = memory() - before
    began = time.perf_counter()
    index = FilterIndex()
    index.add(made)
    build_s = time.perf_counter() - began
    index_bytes = memory() - before - bound_bytes
    many, one = events(rng, 1000), [events(rng, 1) for _ in range(50)]
    rows, _ = index.match(many, 1000)
    for event in one:
        index.match(event, 1)
    alone_s = best(lambda: [index.match(event, 1) for event in one], 7) / len(one)
    batch_s = best(lambda: index.match(many, 1000), 7) / 1000
    row = {
        "filters": count,
        "alone_us": round(alone_s * 1e6, 1),
        "in_batches_us": round(batch_s * 1e6, 2),
        "passed": round(rows.size / 1000, 2),
        "build_s": round(build_s, 2),
        "bound_mib": bound_bytes >> 20,
        "index_mib": index_bytes >> 20,
    }
    if brute:
        brute_s = best(lambda: [passes(bound, many, 1000) for bound in made.values()], 1) / 1000
        row["brute_in_batches_us"] = round(brute_s * 1e6, 2)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--filters", default="1000,10000,100000,1000000")
    parser.add_argument("--brute", action="store_true", help="also test all filters one by one")
    options = parser.parse_args()
    for count in map(int, options.filters.split(",")):
        print(measure(count, options.brute and count <= 100_000), flush=True)


if __name__ == "__main__":
    main()
