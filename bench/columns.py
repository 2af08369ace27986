"""Benchmarks of surecast/columns: compiled retention kernels, IntervalSet, and the batch codec.

    python bench/columns.py

Each figure is the best of a few rounds, because other load on the machine can only slow a round
down. Most of the time is needed for the tables of 10 M keys. These are filled only once, and the
result includes their growth.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from surecast.columns import codec, forms, kernels
from surecast.columns.batch import COLLECTED, HEADER_SIZE, SUPERSEDED, Batch, coalesce
from surecast.columns.column import Column, Columns, column_of
from surecast.columns.intervals import IntervalSet
from surecast.columns.keytable import KeyTable
from surecast.columns.retention import LatestPerKey, RetentionIndex

Row = dict[str, Any]

STREAM = bytes(16)
STEP = 4096  # rows per call


def _row(name: str, value: float, unit: str, **params: Any) -> Row:
    return {
        "name": f"columns.{name}",
        "value": float(f"{value:.4g}"),
        "unit": unit,
        "params": params,
    }


def _best(call: Callable[[], Any], budget_s: float = 0.3, rounds: int = 5) -> float:
    """Seconds per call, the best of `rounds` rounds that share the budget."""
    call()
    start = time.perf_counter()
    call()
    once = time.perf_counter() - start
    repeat = max(1, int(budget_s / rounds / max(once, 1e-7)))
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeat):
            call()
        best = min(best, (time.perf_counter() - start) / repeat)
    return best


# ---------------------------------------------------------------- keys


def _keys(ids: np.ndarray, width: int) -> Column:
    """Keys of equal width: a common prefix, then the id in hexadecimal digits."""
    if width == 8:
        data = ids.astype("<u8").view(np.uint8)
    else:
        cells = np.full((ids.size, width), ord("k"), np.uint8)
        cells[:, width - 8 :] = ids.astype("<u8").view(np.uint8).reshape(-1, 8)
        data = cells.reshape(-1)
    return Column(np.arange(0, ids.size * width + 1, width, dtype=np.int32), data)


def _zipf(count: int, names: int, skew: float = 1.1) -> np.ndarray:
    weights = np.cumsum(np.arange(1, names + 1) ** -skew)
    draws = np.random.default_rng(1).random(count) * weights[-1]
    return np.random.default_rng(2).permutation(names)[np.searchsorted(weights, draws)]


def _put_all(table: KeyTable, keys: Column, lo: int) -> tuple[float, float]:
    """Seconds for all rows, and for the slowest call."""
    rows = keys.offsets.size - 1
    seqs = np.arange(lo, lo + rows)
    slowest = 0.0
    begin = time.perf_counter()
    for first in range(0, rows, STEP):
        start = time.perf_counter()
        table.put(keys.part(first, min(rows, first + STEP)), seqs[first : first + STEP])
        slowest = max(slowest, time.perf_counter() - start)
    return time.perf_counter() - begin, slowest


def _latest_per_key(ids: np.ndarray, width: int, rounds: int, **params: Any) -> list[Row]:
    keys = _keys(ids, width)
    table = KeyTable()
    fill, slowest = _put_all(table, keys, 1)
    steady = min(_put_all(table, keys, 1 + r * ids.size)[0] for r in range(1, rounds + 1))
    params |= {"key_bytes": width, "rows_per_call": STEP}
    return [
        _row("latest_per_key", ids.size / steady / 1e6, "M keys/s", **params),
        _row("latest_per_key.fill", ids.size / fill / 1e6, "M keys/s", **params),
        _row("latest_per_key.fill_pause_max", slowest * 1e3, "ms", **params),
    ]


def bench_latest_per_key_100k() -> list[Row]:
    """100k Zipf keys: of 8 bytes (stored in the table) and of 24 bytes (stored in a separate
    area)."""
    ids = _zipf(2_000_000, 100_000)
    return [
        row
        for width in (8, 24)
        for row in _latest_per_key(ids, width, 5, keys=100_000, draw="zipf 1.1")
    ]


def bench_latest_per_key_10m() -> list[Row]:
    """10 M uniform keys of 8 bytes: every key is a cache miss."""
    ids = np.random.default_rng(1).integers(0, 10_000_000, 16_000_000)
    return _latest_per_key(ids, 8, 2, keys=10_000_000, draw="uniform")


def bench_latest_per_key_10m_long() -> list[Row]:
    """10 M uniform keys of 24 bytes: two cache misses per key."""
    ids = np.random.default_rng(1).integers(0, 10_000_000, 10_000_000)
    return _latest_per_key(ids, 24, 2, keys=10_000_000, draw="uniform")


def bench_index_feed() -> list[Row]:
    """Time per event in the whole retention index, with its sets of void positions: LatestPerKey
    over 100k Zipf keys."""
    made = []
    for rows in (100, 500, 4000):
        ids = _zipf(400_000, 100_000)
        batches = []
        for first in range(0, ids.size - rows + 1, rows):
            names = ids[first : first + rows].astype("<u8").tobytes()
            keys = [names[at : at + 8] for at in range(0, len(names), 8)]
            batch = Batch.of(STREAM, [b"0123456789"] * rows, keys)
            batches.append(batch.sequenced(first + 1, first, 1))
            batches[-1].validate()
        for label, at_once in (("feed", 1), ("feed_many", max(1, (1 << 14) // rows))):
            best = float("inf")
            for _ in range(3):
                index = RetentionIndex(LatestPerKey())
                start = time.perf_counter()
                for at in range(0, len(batches), at_once):
                    index.feed_many(batches[at : at + at_once], lambda lo, hi: ())
                index.voids[SUPERSEDED].total()  # includes the cost of pending merges
                best = min(best, time.perf_counter() - start)
            rate = len(batches) * rows / best / 1e6
            made.append(
                _row(f"index.{label}", rate, "M events/s", policy="latest_per_key", rows=rows)
            )
    return made


# ---------------------------------------------------------------- predicates


def bench_predicates() -> list[Row]:
    """Scans over one batch of 4000 rows, a tenth of which match."""
    rows = 4000
    names = [b"user:%06d" % n if n % 10 else b"item:%06d" % n for n in range(rows)]
    column = column_of(names)
    valid, seqs, out = np.empty(0, np.bool_), np.arange(1, rows + 1), np.empty(rows, np.int64)
    arrays = column.offsets, column.data, valid, seqs
    prefix = np.frombuffer(b"item:", np.uint8)
    name = np.frombuffer(b"item:000010", np.uint8)
    made = [
        _row(label, rows / _best(call) / 1e6, "M rows/s", rows=rows)
        for label, call in {
            "key_prefix": lambda: kernels.match_prefix(*arrays, prefix, out),
            "key_equal": lambda: kernels.match_equal(*arrays, name, out),
            "tag_equal": lambda: kernels.match_equal(*arrays, name, out),
            "offsets_ok": lambda: kernels.offsets_ok(column.offsets, column.data.size),
        }.items()
    ]
    made += [
        _row(label, _best(call) * 1e6, "us/call", rows=rows)
        for label, call in {
            "before_seq": lambda: kernels.before_seq(seqs, 2000),
            "before_time": lambda: kernels.before_time(seqs, 2000),
            "keep_last": lambda: kernels.keep_last(seqs, rows + 1, 2000),
        }.items()
    ]
    return made


# ---------------------------------------------------------------- intervals


def _scattered(runs: int) -> IntervalSet:
    los = np.arange(runs) * 10 + 5
    return IntervalSet.from_arrays(los, los + 3)


def bench_intervals() -> list[Row]:
    """One operation on a set of 10, 10^3 and 10^5 runs."""
    made = []
    for runs in (10, 1_000, 100_000):
        base = _scattered(runs)
        shifted = IntervalSet.from_arrays(*(edges + 2 for edges in base.to_arrays()))
        end = runs * 10
        middle = end // 20 * 10
        wire = base.to_bytes()
        working = base.copy()

        def add_and_discard(working: IntervalSet = working, middle: int = middle) -> None:
            working.add(middle, middle + 2)
            working.discard(middle, middle + 2)

        for label, call in {
            "add_discard": add_and_discard,
            "contains": lambda base=base, middle=middle: middle in base,
            "clip_100": lambda base=base, middle=middle: base.clip(middle, middle + 100),
            "gaps_all": lambda base=base, end=end: base.gaps(0, end),
            "union": lambda base=base, other=shifted: base.union(other),
            "intersection": lambda base=base, other=shifted: base.intersection(other),
            "difference": lambda base=base, other=shifted: base.difference(other),
            "to_bytes": lambda base=base: base.to_bytes(),
            "from_bytes": lambda wire=wire, runs=runs: IntervalSet.from_bytes(wire, runs),
        }.items():
            made.append(_row(f"intervals.{label}", _best(call, 0.1) * 1e6, "us", runs=runs))
        made.append(_row("intervals.wire_bytes", len(wire) / runs, "bytes/run", runs=runs))
        made += _add_many(runs)
    return made


def _add_many(runs: int) -> list[Row]:
    """Add many scattered positions at once: time per position, with the merging of runs."""
    made = []
    rng = np.random.default_rng(4)
    for size in (100, 4000):
        count = max(100, 4 * runs // size)  # enough to merge a few times
        chunks = [rng.integers(0, runs * 10, size) for _ in range(count)]
        best = float("inf")
        for _ in range(3):
            working = _scattered(runs)
            start = time.perf_counter()
            for chunk in chunks:
                working.add_many(chunk)
            working.total()
            best = min(best, time.perf_counter() - start)
        per_position = best / (size * len(chunks)) * 1e9
        made.append(_row("intervals.add_many", per_position, "ns/position", runs=runs, call=size))
    return made


# ---------------------------------------------------------------- batches


def bench_batches() -> list[Row]:
    """Bodies of 1, 100 and 4000 events with 8-byte keys and values of 10 bytes, or of 9 to 11."""
    made = []
    for rows in (1, 100, 4000):
        keys = [b"key%05d" % n for n in range(rows)]
        for lengths in ("fixed", "mixed"):
            values = [
                b"01234567890"[: 10 if lengths == "fixed" else 9 + n % 3] for n in range(rows)
            ]
            batch = Batch.of(STREAM, values, keys).sequenced(1, 1, 1)
            for label, call in _batch_calls(batch, values, keys).items():
                figure = _best(call) * 1e6
                made.append(_row(f"batch.{label}", figure, "us", rows=rows, values=lengths))
            size = (batch.nbytes - HEADER_SIZE) / rows
            made.append(_row("batch.bytes", size, "bytes/event", rows=rows, values=lengths))
    return made


def _batch_calls(
    batch: Batch, values: list[bytes], keys: list[bytes]
) -> dict[str, Callable[[], Any]]:
    rows, body, form = batch.rows, batch.body, batch.form
    assert body is not None
    columns = Columns(batch.keys(), batch.values())
    record_batch = batch.record_batch()
    calls: dict[str, Callable[[], Any]] = {
        "encode": lambda: forms.encode(columns, 1),
        "decode": lambda: (
            forms.decode(body, 0, form, rows, 1) if form else codec.decode(body, 0, rows)
        ),
        "of_lists": lambda: Batch.of(STREAM, values, keys),
        "sequenced": lambda: batch.sequenced(1, 1, 1),
        "encode_pyarrow": record_batch.serialize,
    }
    if rows > 1:
        third = IntervalSet((seq, seq + 1) for seq in range(1, rows, 3))
        parts = [batch.slice(1, rows // 2), batch.slice(rows // 2, rows + 1)]
        sparse = [part.without(third, COLLECTED) for part in parts]
        calls |= {
            "without_third": lambda: batch.without(third, COLLECTED),
            "slice_half": lambda: batch.slice(1, rows // 2),
            "coalesce_two": lambda: coalesce(sparse, rows),
        }
    return calls


def main() -> None:
    for name, bench in list(globals().items()):
        if name.startswith("bench_"):
            start = time.perf_counter()
            rows = bench()
            print(f"\n{name}  ({time.perf_counter() - start:.1f} s)")
            for row in rows:
                params = ", ".join(f"{key}={value}" for key, value in row["params"].items())
                print(f"  {row['name']:<38}{row['value']:>12,.4g} {row['unit']:<12} {params}")


if __name__ == "__main__":
    main()
