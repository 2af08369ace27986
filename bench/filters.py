"""How long matching takes with 1,000 to 1,000,000 filters (E6), and the hop of a broker.

    python bench/filters.py [--filters 1000,10000] [--workload selective] [--tree] [--brute]
    python bench/filters.py --hop

Events have ten columns. There are two workloads:

selective  a filter is passed by about one event of 10,000. Six of ten test one of 10,000 symbols,
           three an account and a range or venues, one has only ranges. Symbols are equally likely.
zipf       nine of ten filters test a symbol, which are as unequal in events and filters as Zipf's
           law says (exponent 1.1), and one to three other columns. An event passes 2 % of filters.

For each number of filters, a process measures the time of an event alone and in a batch of 1,000,
for ids (`match`) and for 8 links (`links`), the time to build, and the memory. `--tree` does the
same with the matching tree, and `--brute` evaluates all filters one by one with numpy.

`--hop` measures a broker with 1,000 selective filters behind 8 links: the links of a batch of 1,000
typed events, and the batch that each link gets.

Times are processor time, and medians of rounds in which the variants take turns, because other
programs may be running. `--append` appends the results to bench/results.jsonl.
"""

import argparse
import gc
import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parent.parent))

from surecast.columns.batch import Batch
from surecast.columns.schema import parse_schema, schema_of
from surecast.columns.typed import Attributes
from surecast.core.wire import decode_batch, encode_batch
from surecast.where.binding import Bound, bind
from surecast.where.branches import MatchingTree
from surecast.where.columns import columns_of
from surecast.where.covering import widen
from surecast.where.evaluate import passes
from surecast.where.index import FilterIndex
from surecast.where.text import parse
from surecast_lab.bench.machine import circumstances

RESULTS = Path(__file__).resolve().parent / "results.jsonl"
SYMBOLS = 10_000
ACCOUNTS = 1000
VENUES = 20
LINKS = 8
ROUNDS = 7
SCHEMA = (
    "sym string, venue string, side bool, px float64, qty int64, level int8, day date, "
    "account string, flags int32, spread float64"
)
Index = FilterIndex | MatchingTree


def symbols(rng: Any, count: int, workload: str) -> Any:
    if workload == "selective":
        return rng.integers(0, SYMBOLS, count)
    weights = 1 / np.arange(1, SYMBOLS + 1) ** 1.1
    return rng.choice(SYMBOLS, count, p=weights / weights.sum())


def events(rng: Any, count: int, workload: str) -> dict[str, pa.Array]:
    return {
        "sym": pa.array([f"S{n}" for n in symbols(rng, count, workload)]),
        "venue": pa.array([f"V{n}" for n in rng.integers(0, VENUES, count)]),
        "side": pa.array(rng.random(count) < 0.5),
        "px": pa.array(rng.random(count) * 1000),
        "qty": pa.array(rng.integers(1, 10_000, count)),
        "level": pa.array(rng.integers(0, 10, count), pa.int8()),
        "day": pa.array(rng.integers(20_000, 20_365, count), pa.int32()).view(pa.date32()),
        "account": pa.array([f"A{n}" for n in rng.integers(0, ACCOUNTS, count)]),
        "flags": pa.array(rng.integers(0, 256, count), pa.int32()),
        "spread": pa.array(rng.random(count)),
    }  # fmt: skip


def zipf_filters(rng: Any, count: int) -> Iterator[str]:
    chosen = symbols(rng, count, "zipf")
    for number in range(count):
        tests = [f"sym == 'S{chosen[number]}'"] if rng.random() < 0.9 else []
        others = (
            lambda: f"px > {rng.random() * 1000:.3f}",
            lambda: f"qty between {rng.integers(1, 5000)} and {rng.integers(5000, 10_000)}",
            lambda: f"venue in ('V{rng.integers(0, VENUES)}', 'V{rng.integers(0, VENUES)}')",
            lambda: f"level <= {rng.integers(0, 10)}",
            lambda: f"account == 'A{rng.integers(0, ACCOUNTS)}'",
            lambda: f"spread < {rng.random():.3f}",
        )
        for other in rng.choice(len(others), rng.integers(1, 4), replace=False):
            tests.append(others[other]())
        yield " and ".join(tests)


def selective_filters(rng: Any, count: int) -> Iterator[str]:
    for number in range(count):
        low, account = rng.integers(1, 9000), f"account == 'A{rng.integers(0, ACCOUNTS)}'"
        match number % 10:
            case 0 | 1 | 2 | 3 | 4 | 5:
                yield f"sym == 'S{rng.integers(0, SYMBOLS)}' and level <= {rng.integers(5, 10)}"
            case 6 | 7:
                yield f"{account} and qty between {low} and {low + 999}"
            case 8:
                first, second = rng.choice(VENUES, 2, replace=False)
                yield f"{account} and venue in ('V{first}', 'V{second}')"
            case _:
                px, spread = rng.random() * 990, rng.random() * 0.99
                yield (
                    f"px between {px:.3f} and {px + 10:.3f} and "
                    f"spread between {spread:.5f} and {spread + 0.01:.5f}"
                )


def filters(rng: Any, count: int, workload: str) -> dict[int, Bound]:
    columns = columns_of(parse_schema(SCHEMA))
    texts = (selective_filters if workload == "selective" else zipf_filters)(rng, count)
    return {number: bind(parse(text), columns) for number, text in enumerate(texts)}


def memory() -> int:
    with Path("/proc/self/statm").open() as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def built(kind: type[Index], made: dict[int, Bound], event: dict[str, pa.Array]) -> Index:
    index = kind()
    keys = list(made)
    for link in range(LINKS):
        index.add({key: made[key] for key in keys[link::LINKS]}, link)
    index.links(event, 1)  # builds what is built for the first event
    return index


def medians(variants: dict[str, tuple[Callable[[], object], int]], rounds: int) -> dict[str, float]:
    """Microseconds of each variant for one event. A variant has its number of events."""
    taken: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, (call, count) in variants.items():
            began = time.thread_time()
            call()
            taken[name].append((time.thread_time() - began) / count)
    return {name: float(np.median(times)) * 1e6 for name, times in taken.items()}


def measure(count: int, workload: str, brute: bool, tree: bool) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(1)
    many = events(rng, 1000, workload)
    one = [events(rng, 1, workload) for _ in range(50)]
    before = memory()
    made = filters(rng, count, workload)
    gc.collect()
    gc.freeze()
    bound_mib = (memory() - before) >> 20
    variants: dict[str, tuple[Callable[[], object], int]] = {}
    shared = {"filters": count, "workload": workload}
    for kind in (FilterIndex, MatchingTree) if tree else (FilterIndex,):
        name = "counting" if kind is FilterIndex else "tree"
        before, began = memory(), time.thread_time()
        index = built(kind, made, one[0])
        build_s = time.thread_time() - began
        row = {**shared, "index": name, "bound_mib": bound_mib}
        yield {"name": "filters.build", "value": round(build_s, 3), "unit": "s", "params": row}
        used = (memory() - before) >> 20
        yield {"name": "filters.memory", "value": used, "unit": "MiB", "params": row}
        for method in (index.match, index.links):
            way = f"{name} {method.__name__}"
            method(many, 1000)
            variants[f"{way} alone"] = (
                lambda method=method: [method(event, 1) for event in one], len(one),
            )  # fmt: skip
            variants[f"{way} batch"] = lambda method=method: method(many, 1000), 1000
    if brute:
        variants["brute match batch"] = (
            lambda: [passes(bound, many, 1000) for bound in made.values()], 1000,
        )  # fmt: skip
    rows, _ = FilterIndex.match(built(FilterIndex, made, one[0]), many, 1000)
    found = medians(variants, 3 if tree and count > 10_000 else ROUNDS)
    for name, time_us in found.items():
        index_name, method_name, way = name.split()
        row = {
            **shared, "index": index_name, "finds": method_name, "events": way,
            "passed": round(rows.size / 1000, 2),
            "selectivity": float(f"{rows.size / 1000 / count:.2g}"),
        }  # fmt: skip
        yield {"name": "filters.event", "value": round(time_us, 2), "unit": "us", "params": row}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    row = {**shared, "tree": tree}
    yield {"name": "filters.peak_memory", "value": peak, "unit": "MiB", "params": row}


def hop() -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(1)
    made = filters(rng, 1000, "selective")
    columns = events(rng, 1000, "selective")
    index = built(FilterIndex, made, events(rng, 1, "selective"))
    types = schema_of(parse_schema(SCHEMA)).types
    table = pa.RecordBatch.from_arrays(list(columns.values()), schema=types.arrow_schema())
    batch = Batch.of(bytes(16), [b""] * 1000, attributes=Attributes(types, 1000, table=table))
    frame = b"".join(encode_batch(batch.sequenced(1, 1, 1)))
    names = list(columns)
    sent = []

    def cut(received: Batch) -> None:
        attributes = received.attributes()
        assert attributes is not None
        found = index.links(dict(zip(names, attributes.table().columns, strict=True)), 1000)
        wanted = [(found[0] >> np.uint64(link)) & np.uint64(1) != 0 for link in range(LINKS)]
        sent[:] = received.passing_each(wanted)

    decoded = decode_batch(frame)[0]
    variants: dict[str, tuple[Callable[[], object], int]] = {
        "links": (lambda: index.links(columns, 1000), 1000),
        "links and cut": (lambda: cut(decoded), 1000),
        "decode, links and cut": (lambda: cut(decode_batch(frame)[0]), 1000),
    }
    for name, time_us in medians(variants, 301).items():
        row = {
            "filters": 1000, "links": LINKS, "does": name,
            "sent": round(sum(part.rows for part in sent) / 1000, 3),
        }  # fmt: skip
        rate = round(1 / time_us, 2)
        yield {"name": "filters.hop", "value": rate, "unit": "M events/s", "params": row}
    for wanted in (500, 100, 20):
        began = time.thread_time()
        fewer = widen(made.values(), wanted)
        took_ms = (time.thread_time() - began) * 1e3
        wide = FilterIndex()
        wide.add(dict(enumerate(fewer)))
        exact = np.count_nonzero(index.links(columns, 1000))
        row = {
            "filters": 1000, "wanted": wanted, "ms": round(took_ms, 1),
            "passed": round(float(np.count_nonzero(wide.links(columns, 1000))) / 1000, 3),
            "passed_before": round(float(exact) / 1000, 3),
        }  # fmt: skip
        yield {"name": "filters.widen", "value": len(fewer), "unit": "filters", "params": row}


def run(options: argparse.Namespace, count: int, workload: str) -> None:
    is_small = count <= 100_000
    if count:
        found = measure(count, workload, options.brute and is_small, options.tree and is_small)
    else:
        found = hop()
    shared = circumstances() if options.append else {}
    for row in found:
        print(f"{row['name']} {row['value']} {row['unit']} {row['params']}", flush=True)
        if options.append:
            with RESULTS.open("a") as results:
                results.write(json.dumps({**row, **shared}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--filters", default="1000,10000,100000,1000000")
    parser.add_argument("--workload", default="selective,zipf")
    parser.add_argument("--tree", action="store_true", help="up to 100,000 filters")
    parser.add_argument("--brute", action="store_true", help="up to 100,000 filters")
    parser.add_argument("--hop", action="store_true", help="only the hop of a broker")
    parser.add_argument("--append", action="store_true", help="to bench/results.jsonl")
    options = parser.parse_args()
    counts = [0] if options.hop else list(map(int, options.filters.split(",")))
    for workload in ["selective"] if options.hop else options.workload.split(","):
        for count in counts:  # in its own process, because of the memory
            process = multiprocessing.Process(target=run, args=(options, count, workload))
            process.start()
            process.join()
            if process.exitcode:
                sys.exit(process.exitcode)


if __name__ == "__main__":
    main()
