"""Decision 016: what has just come is passed on as it was published; later it is survivors."""

from surecast.columns.retention import LatestPerKey
from surecast.core.types import SECOND
from tests.helpers import cluster_of, wait


def test_a_reader_at_the_live_end_gets_batches_whole_and_a_late_one_survivors() -> None:
    cluster = cluster_of({"east": 1, "west": 1}, {"s": ("east", LatestPerKey())})
    readers = ("east/sub0", "west/sub0")  # both regions: it crosses the WAN whole
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
