"""The stream service reports void ranges to the layers above without reading the log."""

import msgspec
import pytest

from surecast.columns.batch import COLLECT, COLLECTED, SUPERSEDED, Batch
from surecast.columns.retention import Collect, KeyIs, LatestPerKey, encode_collect
from surecast.core.endpoint import Open, Opened
from surecast.core.replicated import Appended, Committed
from surecast.core.streams import StreamSpec
from surecast.core.types import Emit, Received, Start
from surecast.endpoint.error_messages import open_error
from surecast.errors import NotSupported
from surecast.protocols.streams.config import PublisherConfig
from surecast.protocols.streams.messages import StreamOpened
from surecast.protocols.streams.publisher import Publisher
from tests.protocols.bench import INFO, STREAM, Bench


def filled(keys: str, committed: int = 0) -> Bench:
    """A latest-per-key stream with one event for each letter of `keys`, which is its key."""
    bench = Bench("y/0")
    bench.role(1)
    bench.list_stream(msgspec.structs.replace(INFO, retention=LatestPerKey()))
    values = [b"%d" % number for number in range(len(keys))]
    batch = Batch.of(STREAM, values, [key.encode() for key in keys]).sequenced(1, 1, 1)
    bench.disk.append(STREAM, (batch,))
    bench.chain_emits(Appended(STREAM, batch.hi))
    bench.chain_emits(Committed(STREAM, committed or batch.hi))
    return bench


def voids(
    bench: Bench, lo: int, hi: int, count_max: int = 9, reason: int = SUPERSEDED
) -> tuple[list[tuple[int, int]], int]:
    found, end = bench.service.voids(STREAM, lo, hi, count_max)
    assert all(void.reason == reason and not void.rows for void in found)
    return [(void.lo, void.hi) for void in found], end


def test_void_ranges_are_exact() -> None:
    bench = filled("aaxbbybb")  # 2, 3, 6 and 8 are live
    assert voids(bench, 1, 9) == ([(1, 2), (4, 6), (7, 8)], 9)
    assert voids(bench, 5, 8) == ([(5, 6), (7, 8)], 8)
    assert voids(bench, 2, 4) == ([], 4)
    assert voids(bench, 8, 8) == ([], 8)


def test_void_ranges_beyond_count_max_are_left_for_another_call() -> None:
    bench = filled("aaxbbybb")
    assert voids(bench, 1, 9, 2) == ([(1, 2), (4, 6)], 7)
    assert voids(bench, 7, 9, 2) == ([(7, 8)], 9)
    assert voids(bench, 1, 9, 0) == ([], 1)


def test_void_ranges_end_at_the_committed_end() -> None:
    bench = filled("aaxbbybb", committed=5)
    assert voids(bench, 1, 9) == ([(1, 2)], 5)
    assert voids(bench, 6, 9) == ([], 6)


def test_a_stream_of_another_region_is_refused_for_good() -> None:
    publisher = Publisher(PublisherConfig(("x/0",)), Bench().service.rng)
    publisher.step(0, Start(0, 1))
    publisher.step(0, Open("west.a"))
    effects = publisher.step(1, Received("x/0", StreamOpened("west.a", None, "other-region")))
    assert [e.event for e in effects if type(e) is Emit] == [Opened("west.a", None, "other-region")]
    with pytest.raises(NotSupported, match="connect to that region"):
        raise open_error(Opened("west.a", None, "other-region"), StreamSpec())


def test_the_streams_own_entries_are_void_to_readers() -> None:
    bench = filled("abc")
    rule = encode_collect(Collect(KeyIs(b"zzz")))
    batch = Batch.of(STREAM, [rule], kind=COLLECT).sequenced(4, 2, 1)
    bench.disk.append(STREAM, (batch,))
    bench.chain_emits(Appended(STREAM, 5))
    bench.chain_emits(Committed(STREAM, 5))
    assert voids(bench, 1, 5, reason=COLLECTED) == ([(4, 5)], 5)
