"""Decision 016: recent batches are sent as they were published, older ones without void events."""

import msgspec

from surecast.columns.batch import Batch
from surecast.columns.retention import LatestPerKey
from surecast.core.replicated import Appended, Committed, Truncated
from surecast.core.types import SECOND
from surecast.protocols.streams.service import PIECES_READ_MAX
from tests.helpers import cluster_of, wait
from tests.protocols.bench import INFO, STREAM, Bench


def test_a_reader_at_the_live_end_gets_whole_batches_and_a_late_one_live_events() -> None:
    cluster = cluster_of({"east": 1, "west": 1}, {"s": ("east", LatestPerKey())})
    readers = ("east/sub0", "west/sub0")  # batches are whole between regions, too
    cluster.offer(cluster.world.now_ns, "east/pub0", "s", [b"first"])  # west finds its source
    wait(cluster, lambda: all(cluster.position(r, "s") == 2 for r in readers))
    values = [f"v{i}".encode() for i in range(10)]
    cluster.offer(cluster.world.now_ns, "east/pub0", "s", values, [b"k"] * 10)
    wait(cluster, lambda: all(cluster.position(r, "s") == 12 for r in readers))
    stream = cluster.streams["s"]
    for reader in readers:
        reading = cluster.readings[reader, stream]
        assert [event.value for event in reading.events] == [b"first", *values]
        assert reading.voids == []
    cluster.world.run(cluster.world.now_ns + SECOND)
    cluster.add_subscriber("west/late")
    wait(cluster, lambda: cluster.position("west/late", "s") == 12)
    late = cluster.readings["west/late", stream]
    assert [event.value for event in late.events] == [b"first", values[-1]]
    assert [(lo, hi) for lo, hi, _ in late.voids] == [(2, 11)]
    assert cluster.judge().violations == []


def filled() -> Bench:
    bench = Bench("y/0")
    bench.role(1)
    bench.list_stream(msgspec.structs.replace(INFO, retention=LatestPerKey()))
    appended(bench, [b"a", b"b", b"c"])
    return bench


def appended(bench: Bench, values: list[bytes]) -> None:
    lo = bench.disk.end(STREAM)
    batch = Batch.of(STREAM, values, [b"k"] * len(values)).sequenced(lo, lo, 1)
    bench.disk.append(STREAM, (batch,))
    bench.chain_emits(Appended(STREAM, batch.hi))
    bench.chain_emits(Committed(STREAM, batch.hi))


def shown(bench: Bench, lo: int = 1) -> list[bytes | tuple[int, int]]:
    found: list[bytes | tuple[int, int]] = []
    for batch in bench.service.readable(STREAM, lo):
        found += [row.value for row in batch.to_rows()] if batch.rows else [(batch.lo, batch.hi)]
    return found


def test_batches_read_for_one_layer_are_reused_for_the_next() -> None:
    bench = filled()
    first = bench.service.readable(STREAM, 1)
    assert bench.service.readable(STREAM, 1) is first
    appended(bench, [b"d"])
    assert shown(bench) == [b"a", b"b", b"c", b"d"]


def test_events_that_are_no_longer_recent_are_read_again_without_void_ones() -> None:
    bench = filled()
    assert shown(bench) == [b"a", b"b", b"c"]
    bench.timer("streams", "settle")
    assert shown(bench) == [b"c"]


def test_truncated_batches_are_not_sent_from_an_earlier_read() -> None:
    bench = filled()
    assert shown(bench) == [b"a", b"b", b"c"]
    bench.disk.truncate(STREAM, 2)
    bench.chain_emits(Truncated(STREAM, 2))
    appended(bench, [b"x", b"y"])
    assert shown(bench, 2) == [b"x", b"y"]


def test_reads_kept_from_one_pass_to_the_next_are_bounded() -> None:
    bench = Bench("y/0")
    bench.role(1)
    bench.list_stream(INFO)
    appended(bench, [b"%d" % number for number in range(200)])
    for lo in range(1, 200):
        assert len(shown(bench, lo)) == 201 - lo
    assert PIECES_READ_MAX < 199
    assert len(bench.service.pieces_read) == PIECES_READ_MAX
    bench.end_of_pass("streams")
    assert bench.service.pieces_read == {}
