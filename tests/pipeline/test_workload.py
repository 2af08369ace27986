"""Workloads: the same events for any number of partitions, following the configured laws."""

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surecast.errors import UsageError
from surecast.parts.workload import Zeta, Zipf, keys_at_ranks
from surecast.pipeline.jobs import workload as module
from surecast.pipeline.jobs.fit import Fit, Unjudged, _beyond, chi_square, goodness_of_fit
from surecast.pipeline.jobs.insertions import Ranking, slots_of
from surecast.pipeline.jobs.workload import Workload, block_of, law_of, plan_of, workload
from surecast.pipeline.rows import DDL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAIN = DDL.replace(" not null", "")
KINDS = {
    "zipf": {"law": "zipf", "keys": 500},
    "zeta": {"law": "zeta", "skew": 1.3},
    "last": {"law": "population", "keys": 20, "newcomers": "last"},
    "entering": {"law": "population", "keys": 0, "new_share": 0.1},
}


def drawn(spec: Workload) -> tuple[np.ndarray, np.ndarray]:
    """The times and key ids of all events, computed without Spark."""
    plan = plan_of(spec)
    ranking = None if plan.slots is None else Ranking(plan.slots)
    blocks = [block_of(spec, plan, block, ranking) for block in range(spec.blocks)]
    times, ids = zip(*blocks, strict=True)
    return np.concatenate(times), np.concatenate(ids)


def test_a_batch_of_large_values_has_fewer_rows() -> None:
    """Offsets in Arrow's binary columns are 32 bits."""
    spec = Workload(events=600, value_bytes=1 << 16)
    blocks = pa.RecordBatch.from_pydict({"id": [0]})
    made = list(module._drawer(spec, plan_of(spec), None)([blocks]))
    assert [part.num_rows for part in made] == [256, 256, 88]
    assert [seq for part in made for seq in part["seq"].to_pylist()] == list(range(1, 601))
    assert made[-1]["value"][-1].as_py() == (600).to_bytes(1 << 16, "big")


# ---------------------------------------------------------------- inserted keys


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, list[bool], list[int]]:
    initial = draw(st.integers(0, 6))
    new, ranks, size = [], [], initial
    for _ in range(draw(st.integers(1, 40))):
        new.append(size == 0 or draw(st.booleans()))
        size += new[-1]
        ranks.append(draw(st.integers(1, size)))
    return initial, new, ranks


@given(histories(), st.integers(1, 9))
def test_keys_computed_in_blocks_equal_those_of_the_whole(
    history: tuple[int, list[bool], list[int]], block: int
) -> None:
    initial, new_list, ranks_list = history
    new, ranks = np.array(new_list), np.array(ranks_list, np.int64)
    expected = keys_at_ranks(new, ranks, initial)
    slots = slots_of(initial, ranks[new])
    before = initial + np.concatenate(([0], np.cumsum(new)))
    continued = Ranking(slots)
    for lo in range(0, new.size, block):
        part = slice(lo, lo + block)
        for ranking in (continued, Ranking(slots)):
            found = ranking.keys(int(before[lo]), new[part], ranks[part])
            assert found.tolist() == expected[part].tolist()


# ---------------------------------------------------------------- drawn events


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(module, "BLOCK", 1000)
    return 1000


def test_arrivals_are_poisson_across_blocks(small_blocks: int) -> None:
    times, _ = drawn(Workload(events=50_500, rate=1000.0, keys=5))
    waits = np.diff(times) / 1e6
    assert (waits >= 0).all()
    assert waits.mean() == pytest.approx(1e-3, rel=0.02)
    assert waits.std() == pytest.approx(1e-3, rel=0.03), "not exponential"
    firsts = waits[small_blocks - 1 :: small_blocks]  # between blocks
    assert firsts.mean() == pytest.approx(1e-3, rel=0.5)
    edges = -np.log(1 - np.arange(20) / 20) / 1000
    counts = np.bincount(np.searchsorted(edges, waits, side="right") - 1, minlength=20)
    assert chi_square(counts, np.full(20, 1 / 20)).plausible


def test_the_duration_of_blocks_varies(small_blocks: int) -> None:
    ends = [drawn(Workload(events=1000, rate=1000.0, seed=seed))[0][-1] for seed in range(200)]
    lasted_s = (np.array(ends) - Workload(events=1).start_us) / 1e6
    assert lasted_s.mean() == pytest.approx(1.0, rel=0.01)
    assert lasted_s.std() == pytest.approx(1000**0.5 / 1000, rel=0.2)


@pytest.mark.parametrize("newcomers", ["zeta", "last"])
@pytest.mark.parametrize("initial", [0, 30])
def test_new_keys_are_inserted_at_the_configured_rate(
    small_blocks: int, newcomers: Any, initial: int
) -> None:
    spec = Workload(
        events=20_000, law="population", keys=initial, new_share=0.1, newcomers=newcomers
    )
    _, ids = drawn(spec)
    firsts = np.unique(ids[ids >= initial], return_index=True)[0]
    assert firsts.size == pytest.approx(2000, rel=0.1)
    assert firsts.tolist() == list(range(initial, initial + firsts.size)), "ids have gaps"
    seen = -1
    for key in ids[ids >= initial].tolist():  # a new key is the next one
        assert key <= seen + 1 + (initial if seen < 0 else 0)
        seen = max(seen, key)
    again = drawn(Workload(**{**_fields(spec), "seed": 2}))[1]
    assert again.tolist() != ids.tolist()


def test_new_keys_become_popular_with_zeta_and_not_with_last(
    small_blocks: int,
) -> None:
    share = {}
    for newcomers in ("zeta", "last"):
        spec = Workload(
            events=40_000,
            law="population",
            keys=1000,
            new_share=0.05,
            newcomers=newcomers,
            skew=1.5,
        )
        _, ids = drawn(spec)
        share[newcomers] = float((ids >= 1000).mean())
    assert share["last"] < 0.08
    assert share["zeta"] > 0.3


def _fields(spec: Workload) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in spec.__struct_fields__}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"events": 0}, "events must"),
        ({"law": "pareto"}, "law must be one of zipf, zeta, population"),
        ({"skew": -1.0}, "skew must not"),
        ({"law": "zeta", "skew": 1.0}, "skew must be above 1"),
        ({"law": "population", "skew": 0.9}, "skew must be above 1"),
        ({"keys": 0}, "keys must be at least 1"),
        ({"new_share": 1.5}, "new_share must"),
        ({"rate": 0.0}, "rate must"),
        ({"seed": -1}, "seed must"),
        ({"value_bytes": -1}, "value_bytes must"),
        ({"newcomers": "first"}, "newcomers must"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_workloads_are_refused_with_the_reason(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Workload(**{"events": 1, **wrong})


# ---------------------------------------------------------------- goodness of fit


@pytest.mark.parametrize(
    ("x", "degrees", "p"),
    [
        (3.841459, 1, 0.05),
        (18.307038, 10, 0.05),
        (2.558212, 10, 0.99),
        (124.342113, 100, 0.05),
        (29.588298, 10, 0.001),
        (0.0, 5, 1.0),
    ],
)
def test_the_tail_of_chi_square_equals_published_tables(x: float, degrees: int, p: float) -> None:
    assert _beyond(x, degrees) == pytest.approx(p, rel=1e-4)


def test_p_is_uniform_if_the_law_is_right() -> None:
    shares = Zipf(40, 1.0).probabilities()
    rng = np.random.default_rng(5)
    found = [chi_square(rng.multinomial(5000, shares), shares).p for _ in range(400)]
    assert 0.45 < np.mean(found) < 0.55
    assert 0.05 < np.mean(np.array(found) < 0.1) < 0.15


def test_a_sample_that_is_too_small_is_an_error() -> None:
    with pytest.raises(Unjudged, match="larger sample"):
        chi_square(np.array([1, 2]), np.array([0.5, 0.5]))
    with pytest.raises(Unjudged, match="one key"):
        chi_square(np.array([5000]), np.array([1.0]))


def test_a_fit_is_plausible_or_not() -> None:
    assert Fit(10, 5, 1.0, 0.5).plausible
    assert not Fit(10, 5, 100.0, 1e-9).plausible


# ---------------------------------------------------------------- in Spark


@pytest.mark.parametrize(
    "kind", ["zipf", "entering"]
)  # blocks drawn independently, and in sequence
def test_the_events_do_not_depend_on_the_number_of_partitions(
    spark: "SparkSession", kind: str
) -> None:
    spec = Workload(events=module.BLOCK * 3 + 1234, value_bytes=12, **KINDS[kind])
    one, four = (workload(spark, spec, partitions) for partitions in (1, 4))
    assert ", ".join(f"{name} {kind}" for name, kind in one.dtypes) == PLAIN
    sums = [
        rows.selectExpr(
            "count(*) n", "bit_xor(xxhash64(seq, key, value, timestamp)) h", "min(seq)", "max(seq)"
        ).first()
        for rows in (one, four)
    ]
    assert sums[0] == sums[1]
    assert sums[0] is not None
    assert (sums[0]["n"], sums[0][2], sums[0][3]) == (spec.events, 1, spec.events)
    times, ids = drawn(spec)
    seqs = (1, 2, module.BLOCK, module.BLOCK + 1, spec.events)
    some = four.where(f"seq IN {seqs}").selectExpr("*", "unix_micros(timestamp) us").orderBy("seq")
    for seq, row in zip(seqs, some.collect(), strict=True):
        assert row["seq"] == seq
        assert (row["stream"], row["kind"], row["range"]) == ("workload", "event", 1)
        assert row["attributes"] is None
        assert int.from_bytes(row["key"], "big") == ids[seq - 1]
        assert bytes(row["value"]) == bytes(4) + seq.to_bytes(8, "big")
        assert row["us"] == times[seq - 1]


def test_a_right_law_fits_and_a_wrong_one_does_not(spark: "SparkSession") -> None:
    spec = Workload(events=400_000, keys=2000, skew=1.1)
    rows = workload(spark, spec).cache()
    assert goodness_of_fit(rows, law_of(spec)).plausible
    assert goodness_of_fit(rows.sample(0.3, seed=3), law_of(spec)).plausible
    for wrong in (Zipf(2000, 1.12), Zipf(2001, 1.1), Zipf(2000, 1.0)):
        fit = goodness_of_fit(rows, wrong)
        assert fit.plausible == (wrong.n == 2001), fit  # one more rare key makes no difference
    with pytest.raises(UsageError, match="cannot have"):
        goodness_of_fit(rows, Zipf(100, 1.1))
    endless = Workload(events=400_000, law="zeta", skew=1.1)
    rows = workload(spark, endless)
    assert goodness_of_fit(rows, law_of(endless)).plausible
    assert not goodness_of_fit(rows, Zeta(1.12)).plausible
    with pytest.raises(UsageError, match="population"):
        law_of(Workload(events=1, law="population"))


def test_rows_are_in_order_within_each_file(spark: "SparkSession", tmp_path: Any) -> None:
    spec = Workload(events=module.BLOCK * 2, keys=10)
    workload(spark, spec, 2).write.parquet(str(tmp_path / "out"))
    import pyarrow.parquet as pq

    for file in sorted((tmp_path / "out").glob("*.parquet")):
        seqs = pq.read_table(file, columns=["seq"]).column("seq").to_pylist()
        assert all(a + 1 == b for a, b in pairwise(seqs))
