"""Large states in parts."""

from random import Random

import pytest

from surecast.core.fragments import PART_BYTES, Parts, parts_of


@pytest.mark.parametrize("size", [0, 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES + 7])
def test_a_state_is_cut_and_reassembled(size: int) -> None:
    data = Random(size).randbytes(size)
    parts = Parts()
    got = [parts.take(at, part, size) for at, part in parts_of(data)]
    assert got[-1] == data
    assert got[:-1] == [None] * (len(got) - 1)
    assert all(len(part) <= PART_BYTES for _, part in parts_of(data))


def test_a_state_with_a_lost_part_is_dropped_and_the_next_one_is_complete() -> None:
    data = bytes(2 * PART_BYTES + 5)
    first, _second, third = parts_of(data)
    parts = Parts()
    assert parts.take(*first, len(data)) is None
    assert parts.take(*third, len(data)) is None
    assert [parts.take(*part, len(data)) for part in parts_of(data)][-1] == data
