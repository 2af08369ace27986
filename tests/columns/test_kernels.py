"""Every kernel against its twin in plain Python: null, empty, repeated and colliding keys."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surecast.columns import kernels, keytable, runs
from surecast.columns.column import Column, column_of
from surecast.columns.keytable import KeyTable
from tests.columns import twins

ALL_BITS = (1 << 64) - 1
# Few letters and all lengths around the 8-byte limit: repeats, shared prefixes, equal paddings.
KEYS = st.one_of(
    st.none(),
    st.lists(st.sampled_from([b"\0", b"a", b"b"]), max_size=20).map(b"".join),
    st.sampled_from([b"", b"\0", b"\0" * 8, b"\0" * 9, b"a" * 7, b"a" * 8, b"a" * 9, b"a" * 16]),
)
COLUMNS = st.lists(KEYS, min_size=1, max_size=60)
HASH_MASKS = st.sampled_from([0, 1, 7, ALL_BITS])  # 0: every key in one bucket, with one hash


@pytest.fixture(params=[1 << 16, 0], ids=["grow at once", "grow in steps"])
def growth(request, monkeypatch):
    monkeypatch.setattr(keytable, "_AT_ONCE", request.param)


def enter(table: KeyTable, twin: twins.KeyTableTwin, keys: list[bytes | None], lo: int) -> None:
    seqs = list(range(lo, lo + len(keys)))
    replaced = table.put(column_of(keys), np.array(seqs, np.int64))
    assert sorted(replaced.tolist()) == sorted(twin.put(keys, seqs))


@given(st.lists(COLUMNS, min_size=1, max_size=8), HASH_MASKS, st.integers(0, ALL_BITS))
def test_the_key_table_knows_the_newest_position_of_each_key(columns, hash_mask, seed) -> None:
    table, twin = KeyTable(seed=seed, hash_mask=hash_mask), twins.KeyTableTwin()
    lo = 1
    for keys in columns:
        enter(table, twin, keys, lo)
        lo += len(keys)
    for key in [*twin.newest, b"absent", b"absent and long"]:
        assert table.get(key) == twin.get(key)
    assert len(table) == len(twin.newest)


@pytest.mark.usefixtures("growth")
@pytest.mark.parametrize("hash_mask", [63, ALL_BITS], ids=["colliding", "spread"])
@pytest.mark.parametrize("width", [7, 8, 24])
def test_the_key_table_is_right_while_it_grows(width, hash_mask) -> None:
    """Short keys, keys of one word (they have their own kernel), and long ones among those."""
    rng = np.random.default_rng(3)
    names = 800 if hash_mask == 63 else 30_000
    table, twin = KeyTable(hash_mask=hash_mask), twins.KeyTableTwin()
    lo = 1
    while len(twin.newest) < names * 0.9:
        picked = rng.integers(0, names, int(rng.integers(1, 400))).tolist()
        widths = [8 if n % 3 and width > 8 else width for n in picked]
        keys: list[bytes | None] = [b"%0*d" % pair for pair in zip(widths, picked, strict=True)]
        if width != 8 or rng.random() < 0.2:
            keys.append(None)
        enter(table, twin, keys, lo)
        lo += len(keys)
        some = rng.choice(len(twin.newest), 5)
        known = list(twin.newest)
        assert all(table.get(known[n]) == twin.get(known[n]) for n in some)
    assert all(table.get(key) == seq for key, seq in twin.newest.items())


def test_more_rows_than_one_kernel_call_takes() -> None:
    keys = [b"%d" % (n * n % 7919) for n in range(30_000)]
    enter(KeyTable(), twins.KeyTableTwin(), keys, 1)


@pytest.mark.usefixtures("growth")
def test_keys_below_the_floor_do_not_make_the_table_grow() -> None:
    table = KeyTable()
    for lo in range(1, 400_000, 500):
        table.floor = max(1, lo - 2000)
        keys = [b"%d" % seq if seq % 2 else b"a long key: %d" % seq for seq in range(lo, lo + 500)]
        assert table.put(column_of(keys), np.arange(lo, lo + 500)).size == 0
    assert (
        table._now[0].size // 2 <= 1 << 14
    )  # slots: of 400,000 keys only 2,500 are above the floor
    assert table.get(b"399999") == 399_999
    assert table.get(b"1") == 0


def test_keys_with_the_same_hash_are_distinguished() -> None:
    table = KeyTable(hash_mask=0)
    keys: list[bytes | None] = [b"k" * 8 + bytes([n]) for n in range(200)]
    assert table.put(column_of(keys), np.arange(1, 201)).size == 0
    assert [table.get(key) for key in keys if key is not None] == list(range(1, 201))


# ---------------------------------------------------------------- predicates


def matched(kernel, column: Column, seqs: list[int], wanted: bytes) -> list[int]:
    valid = np.empty(0, np.bool_) if column.valid is None else column.valid
    out = np.empty(len(seqs), np.int64)
    sought = np.frombuffer(wanted, np.uint8)
    arrays = column.offsets, column.data, valid, np.array(seqs, np.int64)
    return out[: kernel(*arrays, sought, out)].tolist()


@given(COLUMNS, st.one_of(KEYS.filter(lambda key: key is not None), st.binary(max_size=3)))
def test_key_matches_equal_the_twins(keys, wanted) -> None:
    seqs = [7 * n + 1 for n in range(len(keys))]
    column = column_of(keys)
    for name in ("match_prefix", "match_equal"):
        expected = getattr(twins, name)(keys, seqs, wanted)
        assert matched(getattr(kernels, name), column, seqs, wanted) == expected


@given(COLUMNS, st.data())
def test_key_matches_in_a_part_of_a_column(keys, data) -> None:
    first = data.draw(st.integers(0, len(keys) - 1))
    last = data.draw(st.integers(first + 1, len(keys)))
    wanted = data.draw(st.sampled_from([key for key in keys if key is not None] or [b""]))
    seqs = list(range(1, last - first + 1))
    part = column_of(keys).part(first, last)
    for name in ("match_prefix", "match_equal"):
        expected = getattr(twins, name)(keys[first:last], seqs, wanted)
        assert matched(getattr(kernels, name), part, seqs, wanted) == expected


RISING = st.lists(st.integers(0, 50), max_size=40).map(sorted)


@given(RISING, st.integers(-1, 52), st.integers(0, 60))
def test_position_and_time_rules_equal_the_twins(rising, limit, n) -> None:
    array = np.array(rising, np.int64)
    assert kernels.before_time(array, limit) == twins.before_time(rising, limit)
    distinct = sorted(set(rising))
    seqs = np.array(distinct, np.int64)
    assert kernels.before_seq(seqs, limit) == twins.before_seq(distinct, limit)
    end = distinct[-1] + 1 if distinct else 1
    assert kernels.keep_last(seqs, end, n) == twins.keep_last(distinct, end, n)


@given(st.lists(st.integers(-2, 12), min_size=2, max_size=20), st.integers(0, 10), st.booleans())
def test_the_offsets_check_equals_the_twins(offsets, size, in_order) -> None:
    offsets = sorted(offsets) if in_order else offsets
    array = np.array(offsets, np.int32)
    assert kernels.offsets_ok(array, size) == twins.offsets_ok(offsets, size)


# ---------------------------------------------------------------- compilation

DISPATCHERS = [
    name for name in kernels.__all__ if hasattr(getattr(kernels, name), "nopython_signatures")
]


def variants(array: np.ndarray) -> list[np.ndarray]:
    """The same numbers writable, read-only, and as a slice of something larger."""
    frozen = array.copy()
    frozen.setflags(write=False)
    larger = np.concatenate((array, array))
    return [array, frozen, larger[: array.size], np.repeat(array, 2)[::2]]


def test_no_kind_of_array_triggers_compilation() -> None:
    assert "put_keys" in DISPATCHERS
    assert "put_words" in DISPATCHERS
    assert "match_prefix" in DISPATCHERS
    before = {name: getattr(kernels, name).nopython_signatures for name in DISPATCHERS}
    assert {len(signatures) for signatures in before.values()} == {1}
    column = column_of([b"a", None, b"b", b"longer than eight"])
    assert column.valid is not None
    seqs = np.arange(1, 5)
    table = KeyTable()
    for number in range(4):
        offsets = variants(column.offsets)[number]
        data = variants(column.data)[number]
        valid = variants(column.valid)[number]
        # Strided arrays are copied by the callers of the kernels.
        table.put(Column(offsets, data, valid), variants(seqs)[number] + 10 * number)
        if number < 3:
            matched(kernels.match_prefix, Column(offsets, data, valid), [1, 2, 3, 4], b"a")
            matched(kernels.match_equal, Column(offsets, data, valid), [1, 2, 3, 4], b"a")
            kernels.before_seq(variants(seqs)[number], 3)
            kernels.offsets_ok(offsets, data.size)
        words = column_of([b"8 bytes%d" % n for n in range(4)])
        offsets, data = variants(words.offsets)[number], variants(words.data)[number]
        table.put(Column(offsets, data), variants(seqs)[number] + 10 * number + 4)
    assert table.get(b"a") == 31
    assert table.get(b"8 bytes3") == 38
    assert {name: getattr(kernels, name).nopython_signatures for name in DISPATCHERS} == before


@pytest.mark.slow
def test_kernels_are_loaded_from_the_cache_on_disk() -> None:
    """A fresh process loads all kernels and compiles none."""
    script = (
        "from surecast.columns import kernels, sums\n"
        "for module in (kernels, sums):\n"
        "    for name in module.__all__:\n"
        "        kernel = getattr(module, name)\n"
        "        if hasattr(kernel, 'stats'):\n"
        "            assert not kernel.stats.cache_misses, (name, kernel.stats)\n"
    )
    subprocess.run([sys.executable, "-m", "surecast.columns.warm"], check=True, timeout=300)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


@pytest.mark.parametrize("module", ["batch", "intervals", "retention", "rules", "codec"])
def test_importing_loads_neither_numba_nor_pyarrow(module) -> None:
    script = (
        f"import sys, surecast.columns.{module}\n"
        "assert 'numba' not in sys.modules\n"
        "assert 'pyarrow' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@settings(max_examples=30)
@given(st.integers(1, 300), st.integers(0, 2**32))
def test_the_key_table_with_long_columns_of_uniform_keys(rows, seed) -> None:
    rng = np.random.default_rng(seed)
    table, twin = KeyTable(), twins.KeyTableTwin()
    for step in range(3):
        keys = [int(n).to_bytes(8, "little") for n in rng.integers(0, 50, rows)]
        enter(table, twin, keys, 1 + step * rows)


@given(
    st.lists(st.tuples(COLUMNS, st.booleans()), min_size=1, max_size=8),
    st.sampled_from([16, 8192]),
)
def test_many_columns_are_entered_at_once(columns, step) -> None:
    """Columns of any keys, and keys of 8 bytes as a column or as plain bytes."""
    table, twin = KeyTable(), twins.KeyTableTwin()
    given_columns, flat = [], []
    for keys, narrow in columns:
        if narrow:
            keys = [(key or b"").ljust(8, b"-")[:8] for key in keys]
        flat += keys
        bare = narrow and len(keys) % 2
        given_columns.append(b"".join(keys) if bare else column_of(keys))
    before, keytable._ROWS_STEP = keytable._ROWS_STEP, step
    try:
        table._replaced = np.empty(step, np.int64)
        replaced = table.put_many(given_columns, 5)
    finally:
        keytable._ROWS_STEP = before
    assert sorted(replaced.tolist()) == sorted(twin.put(flat, list(range(5, 5 + len(flat)))))


def test_positions_are_sorted_and_merged_into_runs() -> None:
    """sort_positions and merge_positions, against sorted() and a set."""
    rng = np.random.default_rng(4)
    for top in (2, 50, 5000, 1 << 23, 1 << 58):
        given = rng.integers(0, top, 300)
        expected = sorted(given.tolist())
        for words in (1, 3, 40, 200):  # the number of bitmap words
            made, counts = np.empty(300, np.int64), np.empty(runs.DIGITS, np.int64)
            size = kernels.sort_positions(given.copy(), made, counts, np.empty(words, np.uint64))
            ordered = made[:size]
            assert (np.diff(ordered) >= 0).all()
            assert set(ordered.tolist()) == set(expected)
        los = np.arange(0, 3000, 10)
        los, his = los, los + 4
        out_los, out_his = np.empty((2, 600), np.int64)
        count = kernels.merge_positions(los, his, ordered, out_los, out_his)
        made = list(zip(out_los[:count].tolist(), out_his[:count].tolist(), strict=True))
        twin = twins.runs_of(set(expected) | {lo + i for lo in los.tolist() for i in range(4)})
        assert made == twin
