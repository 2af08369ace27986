"""Bounds of columns, forms, numbers and positions: at each limit and one step beyond."""

import numpy as np
import pytest

from surecast.columns import codec, column, forms, rules, varints
from surecast.columns.batch import Batch
from surecast.columns.column import Columns, column_of
from surecast.columns.forms import _WIDTH_MAX, VARIABLE, form_of
from surecast.columns.intervals import POSITION_MAX, IntervalSet
from surecast.columns.retention import (
    BeforeSeq,
    BeforeTime,
    Collect,
    KeepFor,
    KeepLast,
    LatestPerKey,
)
from surecast.columns.rules import _NUMBER_MAX, encode_collect, encode_policy
from surecast.columns.varints import NUMBER_MAX, SIZE_MAX
from surecast.errors import PeerError, UsageError
from tests.columns.streams import STREAM
from tests.columns.test_retention import Replica, collect, data
from tests.edits import Check, Edit, Row, each_check, must_fail


def bytes_of_a_column() -> None:
    """Offsets have 32 bits. Columns are built from strings, or joined from others of any widths."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column, "DATA_MAX", 12)
        assert column_of([b"123456", b"123456"]).offsets[-1] == 12
        with pytest.raises(UsageError, match="at most 12 bytes, not 13"):
            column_of([b"123456", b"1234567"])
        four, eight, nine = (column_of([b"x" * size]) for size in (4, 8, 9))
        assert column.concat([four, eight]).offsets[-1] == 12
        with pytest.raises(UsageError, match="at most 12 bytes"):
            column.concat([four, nine])
        uniform = Batch.of(STREAM, [b"1234", b"1234"]).values()
        assert uniform.width == 4
        assert column.concat([uniform, uniform._replace(offsets=uniform.offsets[:2])]).width == 4
        with pytest.raises(UsageError, match="at most 12 bytes"):
            column.concat([uniform, uniform])


def width_of_a_fixed_column() -> None:
    """Keys and values of up to _WIDTH_MAX bytes are laid out without offsets."""
    for size, width in ((_WIDTH_MAX, _WIDTH_MAX), (_WIDTH_MAX + 1, VARIABLE)):
        for count in (1, 2):  # a single row is encoded without arrays
            batch = Batch.of(STREAM, [b"v" * size] * count, [b"k" * size] * count)
            batch.validate()
            assert (form_of(batch.form).key, form_of(batch.form).value) == (width, width)
            assert [row.value for row in batch.to_rows()] == [b"v" * size] * count
        for key, value in ((b"k" * size, b"v"), (b"k", b"v" * size)):
            assert (forms.encode_row(key, value) is None) is (width == VARIABLE)


def numbers_in_rules() -> None:
    policies = KeepLast(_NUMBER_MAX), KeepFor(_NUMBER_MAX)
    collects = Collect(BeforeSeq(_NUMBER_MAX)), Collect(BeforeTime(_NUMBER_MAX))
    assert tuple(rules.decode_config(encode_policy(policy)) for policy in policies) == policies
    assert tuple(rules.decode_collect(encode_collect(rule)) for rule in collects) == collects
    for policy in (KeepLast(_NUMBER_MAX + 1), KeepFor(_NUMBER_MAX + 1)):
        with pytest.raises(PeerError, match="out of range"):
            rules.decode_config(encode_policy(policy))
    for predicate in (BeforeSeq(_NUMBER_MAX + 1), BeforeTime(_NUMBER_MAX + 1)):
        with pytest.raises(PeerError, match="out of range"):
            rules.decode_collect(encode_collect(Collect(predicate)))


def encoded(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


@pytest.mark.parametrize("before", [0, 100], ids=["few", "many"])  # read by a loop, or by numpy
def test_numbers_have_a_largest_value_and_length(before: int) -> None:
    ones = [1] * before
    packed = varints.pack(np.array([*ones, NUMBER_MAX], np.int64))
    assert len(packed) == before + SIZE_MAX
    assert varints.unpack(packed).tolist() == [*ones, NUMBER_MAX]
    with pytest.raises(PeerError, match="too large"):
        varints.unpack(bytes(ones) + encoded(NUMBER_MAX + 1))
    longest = b"\xff" * (SIZE_MAX - 1) + b"\x7f"
    with pytest.raises(PeerError, match="too large"):
        varints.unpack(bytes(ones) + longest)
    with pytest.raises(PeerError, match="too long"):
        varints.unpack(bytes(ones) + b"\xff" + longest)


def highest_position() -> None:
    """Floats would round 2**61 + 1 down to the bound."""
    for lo in (0, POSITION_MAX - 1):
        data = varints.pack(np.array([1, lo, POSITION_MAX - lo], np.int64))
        assert IntervalSet.from_bytes(data, runs_max=1) == IntervalSet([(lo, POSITION_MAX)])
        data = varints.pack(np.array([1, lo + 1, POSITION_MAX - lo], np.int64))
        with pytest.raises(PeerError, match="out of range"):
            IntervalSet.from_bytes(data, runs_max=1)


def keys_below_what_was_collected() -> None:
    """Keys of events that a collect made void are removed from the table."""
    replica, lo = Replica(LatestPerKey()), 1
    for _ in range(20):
        replica.feed(data(lo, [b"%08d" % seq for seq in range(lo, lo + 500)]))
        replica.feed(collect(lo + 500, BeforeSeq(lo + 500)))
        lo += 501
    table = replica.index._keys
    assert table is not None
    assert len(table) <= 2_500  # of 10,000; void keys are removed when the table is full


def sizes_that_a_body_claims() -> None:
    """The fast path does not read a body whose columns claim more bytes than a column holds."""
    body = codec.encode(Columns(column_of([None, b"key"]), column_of([b"12", b"1234"])))
    with pytest.MonkeyPatch.context() as patch:
        for most, is_read in ((6, True), (5, False)):
            patch.setattr(codec, "DATA_MAX", most)
            assert (codec._decode_dense(body, 2) is not None) is is_read


CHECKS: list[Row] = [
    (
        bytes_of_a_column,
        Edit("surecast.columns.column:concat", "if total > DATA_MAX", "if False"),
    ),
    (
        width_of_a_fixed_column,
        Edit("surecast.columns.forms:encode_row", "if width > _WIDTH_MAX or", "if"),
    ),
    (numbers_in_rules, Edit("surecast.columns.rules:_fits", "<= _NUMBER_MAX", "< 1 << 63")),
    (
        highest_position,
        Edit(
            "surecast.columns.intervals:IntervalSet.from_bytes", "edges[-1] > POSITION_MAX", "False"
        ),
    ),
    (
        keys_below_what_was_collected,
        Edit(
            "surecast.columns.retention:RetentionIndex._collect",
            "self._keys.floor = self._floor()",
            "pass",
        ),
    ),
    (
        sizes_that_a_body_claims,
        Edit("surecast.columns.codec:_decode_dense", "0 <= value_size <= DATA_MAX", "True"),
    ),
]


@each_check(CHECKS)
def test_bound_holds(check: Check, edit: Edit) -> None:
    check()


@each_check(CHECKS)
def test_a_missing_bound_is_noticed(check: Check, edit: Edit) -> None:
    must_fail(check, edit)
