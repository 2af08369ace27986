"""Varints: the loop and the bulk path agree on every number and every error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surecast.columns import varints
from surecast.errors import PeerError
from tests.columns.streams import THOROUGH

numbers = st.one_of(
    st.integers(0, varints.NUMBER_MAX),
    st.integers(0, 300),
    st.integers(0, 61).flatmap(lambda n: st.sampled_from([(1 << n) - 1, 1 << n])),
)


@pytest.fixture(params=[0, 10_000], ids=["bulk", "one by one"])
def few(request, monkeypatch):
    monkeypatch.setattr(varints, "_FEW", request.param)


@pytest.mark.usefixtures("few")
@given(st.lists(numbers, min_size=1, max_size=100))
def test_round_trip(given_numbers) -> None:
    packed = varints.pack(np.array(given_numbers, np.int64))
    assert varints.unpack(packed).tolist() == given_numbers
    assert varints.unpack(memoryview(bytearray(packed))).tolist() == given_numbers


@settings(max_examples=THOROUGH)
@given(
    st.lists(st.sampled_from([0, 1, 0x7F, 0x80, 0x81, 0xFF, 0x1F, 0x20]), min_size=1, max_size=30)
)
def test_both_paths_accept_the_same_bytes(data) -> None:
    verdicts = []
    for few in (0, 10_000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(varints, "_FEW", few)
            try:
                verdicts.append(varints.unpack(bytes(data)).tolist())
            except PeerError:
                verdicts.append(None)
    assert verdicts[0] == verdicts[1]
    if verdicts[0] is not None:
        assert varints.pack(np.array(verdicts[0], np.int64)) == bytes(data)


def test_empty_input_is_refused() -> None:
    with pytest.raises(PeerError):
        varints.unpack(b"")
