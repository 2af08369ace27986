"""Generates workloads of billions of events with random keys and times, as a DataFrame.

    events = workload(spark, Workload(events=10**9, keys=100_000, skew=1.1))
    events.write.parquet("/data/zipf")
    goodness_of_fit(events.sample(0.01, seed=1), law_of(spec)).plausible      # fit.py

Keys are drawn from one of the distributions of `parts/workload.py` (here: *laws*), such as Zipf.
The rows have the columns of an archive (surecast.pipeline.rows), so `compact` and `replay` accept
them. A key has 8 bytes, big-endian: the key's id. Ids count from 0 in order of popularity; if keys
are added while the workload runs, in the order of creation. A value ends with the event's `seq`.

A workload is cut into blocks of a fixed size. All random numbers of a block come from a generator
that is seeded by (seed, block). So the events are the same for any number of executors and after
any retry. A block depends on earlier blocks in two ways: when it begins, and how many keys exist.
The driver draws these numbers first, for all blocks, so that their distributions are exact:

- The duration of n Poisson arrivals is Gamma(n) distributed. Within a block, the arrivals divide
  this duration in the same way as n exponential waiting times divide their sum.
- The number of new keys in n events is binomial. Within a block, all choices of the events that add
  keys are equally likely.

Memory does not grow with the number of events. It grows with the number of keys: 8 bytes per key in
every Python worker, and about 40 bytes if new keys are inserted by rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

import msgspec
import numpy as np
from numpy.random import Generator, SeedSequence, default_rng
from numpy.typing import NDArray

from surecast.errors import UsageError
from surecast.parts.workload import Newcomers, Zeta, Zipf, key_column
from surecast.pipeline.jobs.insertions import Ranking, slots_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["LAWS", "Law", "Workload", "ids_of", "law_of", "workload"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Law = Literal["zipf", "zeta", "population"]
LAWS: Final[tuple[Law, ...]] = get_args(Law)

BLOCK: Final = 1 << 18  # events that share a random generator; changing it changes every seed
BLOCKS_A_TASK: Final = 16  # 4 M events: some seconds of work, and a Parquet file of useful size
ROWS: Final = 1 << 15  # maximum rows of an Arrow batch
NBYTES: Final = 16 << 20  # maximum bytes of the values of an Arrow batch
EVENTS_MAX: Final = 10**12  # of a workload
_PLAN, _BLOCKS, _NEWCOMERS = range(3)  # what a random generator is used for


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a workload. With the law `population` (`parts.workload.population`), keys
    are added while the workload runs."""

    events: int
    law: Law = "zipf"
    skew: float = 1.1  # exponent of the law
    keys: int = 100_000  # zipf: number of keys; population: number at first; zeta: ignored
    new_share: float = 0.05  # population: the share of events that add a new key
    newcomers: Newcomers = "zeta"  # population: new keys enter at a rank drawn by Zeta, or last
    rate: float = 1_000_000.0  # events a second, Poisson
    start_us: int = 1_735_689_600_000_000  # microseconds since 1970: 2025-01-01
    value_bytes: int = 10
    stream: str = "workload"
    seed: int = 1

    def __post_init__(self) -> None:
        wrong = {
            f"events must lie between 1 and {EVENTS_MAX:,}": not 1 <= self.events <= EVENTS_MAX,
            f"law must be one of {', '.join(LAWS)}": self.law not in LAWS,
            "skew must not be negative": self.skew < 0,
            "skew must be above 1 for zeta, and for newcomers that enter by it": self.skew <= 1
            and (self.law == "zeta" or (self.law == "population" and self.newcomers == "zeta")),
            "keys must be at least 1 for zipf": self.law == "zipf" and self.keys < 1,
            "keys must not be negative": self.keys < 0,
            "new_share must lie between 0 and 1": not 0 <= self.new_share <= 1,
            "newcomers must be zeta or last": self.newcomers not in get_args(Newcomers),
            "rate must be positive": not self.rate > 0,
            "value_bytes must lie between 0 and 65536": not 0 <= self.value_bytes <= 1 << 16,
            "seed must not be negative": self.seed < 0,
        }
        for words, is_so in wrong.items():
            if is_so:
                raise UsageError(f"a workload's {words}: {self}")

    @property
    def blocks(self) -> int:
        return -(-self.events // BLOCK)


class Plan(NamedTuple):
    """The numbers by which a block depends on earlier blocks, for all blocks."""

    time_s: Floats  # when each block begins, in seconds after the start; at last, the end of all
    keys: Ints  # population: the number of keys before each block; at last, the number of all
    slots: Ints | None  # only if new keys enter at ranks drawn by Zeta: see insertions.py


def workload(spark: SparkSession, spec: Workload, partitions: int | None = None) -> DataFrame:
    """The events as rows of an archive, ordered within partitions and across them."""
    from pyspark.sql import functions as F

    plan = plan_of(spec)
    shared = None
    if plan.slots is not None:
        shared = spark.sparkContext.broadcast(plan.slots)
        plan = plan._replace(slots=None)
    tasks = partitions or max(1, -(-spec.blocks // BLOCKS_A_TASK))
    drawn = spark.range(0, spec.blocks, 1, min(tasks, spec.blocks)).mapInArrow(
        _drawer(spec, plan, shared), "seq bigint, key binary, value binary, timestamp timestamp"
    )
    return drawn.select(
        F.lit(spec.stream).alias("stream"),
        "seq",
        F.lit("event").alias("kind"),
        F.lit(1).cast("bigint").alias("range"),
        "key",
        "value",
        F.lit(None).cast("map<string,binary>").alias("attributes"),
        "timestamp",
    )


def law_of(spec: Workload) -> Zipf | Zeta:
    """The distribution of the ranks. Raises UsageError if it changes while the workload runs."""
    if spec.law == "population":
        raise UsageError("a population's law changes with every new key: there is no single law")
    return Zeta(spec.skew) if spec.law == "zeta" else _zipf(spec.keys, spec.skew)


# ---------------------------------------------------------------- for all blocks


def plan_of(spec: Workload) -> Plan:
    """Draw the numbers that blocks depend on; runs in the driver."""
    rng = _generator(spec, _PLAN)
    sizes = np.full(spec.blocks, BLOCK, np.int64)
    sizes[-1] = spec.events - BLOCK * (spec.blocks - 1)
    durations_s = rng.gamma(sizes.astype(np.float64), 1.0 / spec.rate)
    time_s = np.concatenate(([0.0], np.cumsum(durations_s)))
    if spec.law != "population":
        return Plan(time_s, np.zeros(0, np.int64), None)
    chosen = sizes.copy()
    if not spec.keys:
        chosen[0] -= 1  # the first event must add a key: there is none to update
    new_keys = rng.binomial(chosen, spec.new_share)
    if not spec.keys:
        new_keys[0] += 1
    keys = spec.keys + np.concatenate(([0], np.cumsum(new_keys)))
    if spec.newcomers == "last":
        return Plan(time_s, keys, None)
    after = np.arange(spec.keys + 1, keys[-1] + 1, dtype=np.int64)  # number of keys after each
    entry = Zeta(spec.skew).sample_clipped(_generator(spec, _NEWCOMERS), after)
    return Plan(time_s, keys, slots_of(spec.keys, entry))


def _generator(spec: Workload, *what_for: int) -> Generator:
    return default_rng(SeedSequence(spec.seed, spawn_key=what_for))


# ---------------------------------------------------------------- one block after the other


def _drawer(
    spec: Workload, plan: Plan, shared: Any
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns the function that draws events in an executor. It gets block numbers in ascending
    order."""

    def draw(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ranking = None if shared is None else Ranking(shared.value)
        rows = min(ROWS, NBYTES // max(1, spec.value_bytes))
        for batch in batches:
            for block in batch.column(0).to_pylist():
                first = block * BLOCK + 1
                times_us, ids = block_of(spec, plan, block, ranking)
                for lo in range(0, ids.size, rows):
                    part = slice(lo, lo + rows)
                    yield _rows(spec, first + lo, ids[part], times_us[part])

    return draw


def block_of(spec: Workload, plan: Plan, block: int, ranking: Ranking | None) -> tuple[Ints, Ints]:
    """Times and key ids of a block's events."""
    rng = _generator(spec, _BLOCKS, block)
    size = min(BLOCK, spec.events - block * BLOCK)
    waits = np.cumsum(rng.standard_exponential(size))
    begin_s, end_s = plan.time_s[block], plan.time_s[block + 1]
    times_us = ((begin_s + waits / waits[-1] * (end_s - begin_s)) * 1e6).astype(np.int64)
    if spec.law == "population":
        ids = _population(spec, plan, block, rng, size, ranking)
    elif spec.law == "zeta":
        ids = Zeta(spec.skew).sample(rng, size) - 1
    else:
        ids = _zipf(spec.keys, spec.skew).sample(rng, size) - 1
    return spec.start_us + times_us, ids


def _population(
    spec: Workload, plan: Plan, block: int, rng: Generator, size: int, ranking: Ranking | None
) -> Ints:
    """The key ids of a block's events, if keys are added while the workload runs."""
    before, after = int(plan.keys[block]), int(plan.keys[block + 1])
    new = np.zeros(size, np.bool_)
    if before:
        new[rng.choice(size, after - before, replace=False, shuffle=False)] = True
    else:
        new[0] = True
        new[1 + rng.choice(size - 1, after - 1, replace=False, shuffle=False)] = True
    existing = before + np.cumsum(new, dtype=np.int64)  # number of keys after each event
    ranks = existing.copy()  # of a new key: the last rank
    ranks[~new] = _zipf(int(plan.keys[-1]), spec.skew).sample_among(rng, existing[~new])
    if ranking is None:
        return ranks - 1  # new keys enter at the end, so ranks never change
    return ranking.keys(before, new, ranks)


@lru_cache(maxsize=2)
def _zipf(keys: int, skew: float) -> Zipf:
    """The Zipf table, cached so that all blocks of a worker share it."""
    return Zipf(keys, skew)


# ---------------------------------------------------------------- bytes


def _rows(spec: Workload, first: int, ids: Ints, times_us: Ints) -> pa.RecordBatch:
    """The rows of events with the positions from `first` on. A value is zeros, and ends with the
    position (big-endian, as far as it fits)."""
    import pyarrow as pa

    count = ids.size
    seqs = np.arange(first, first + count, dtype=np.int64)
    offsets, data = key_column(ids)
    key_buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    width = spec.value_bytes
    tail = min(width, 8)
    cells = np.zeros((count, width), np.uint8)
    if tail:
        cells[:, width - tail :] = seqs.astype(">i8").view(np.uint8).reshape(-1, 8)[:, 8 - tail :]
    value_offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    value_buffers = [None, pa.py_buffer(value_offsets), pa.py_buffer(cells.reshape(-1))]
    columns = [
        pa.array(seqs),
        pa.Array.from_buffers(pa.binary(), count, key_buffers),
        pa.Array.from_buffers(pa.binary(), count, value_buffers),
        pa.array(times_us).cast(pa.timestamp("us", "UTC")),
    ]
    return pa.RecordBatch.from_arrays(columns, ["seq", "key", "value", "timestamp"])


def ids_of(keys: Any) -> Ints:
    """The ids in an Arrow column of 8-byte keys."""
    import pyarrow as pa

    fixed = keys.cast(pa.binary(8))
    if fixed.null_count:
        raise UsageError("a key is null: these keys are not from a workload")
    found = np.frombuffer(fixed.buffers()[1], ">i8", len(fixed), 8 * fixed.offset)
    return found.astype(np.int64)
