"""The directory: the existing streams, the chain of each, and which stream gets a name."""

import msgspec
import pytest

from surecast.columns.batch import Batch
from surecast.columns.retention import KeepAll, LatestPerKey
from surecast.core.replicated import Committed, Truncated
from surecast.core.streams import DIRECTORY, StreamInfo
from surecast.errors import PeerError
from surecast.protocols.streams.directory import Directory, info_batch
from surecast.storage.memory import MemoryDisk
from tests.helpers import cluster_of
from tests.protocols.bench import Bench


def info(number: int, name: str, replaces: bytes = b"") -> StreamInfo:
    return StreamInfo(bytes([number]) * 16, name, "east", KeepAll(), replaces)


def applied(*infos: StreamInfo) -> Directory:
    directory = Directory()
    for at, one in enumerate(infos, 1):
        directory.apply(info_batch(one, "east", at).sequenced(at, 1, 1))
    return directory


def test_every_stream_is_mapped_to_the_chain_that_keeps_it() -> None:
    cluster = cluster_of({"east": 2, "west": 1})
    for node, chain in (("east/0", "east"), ("east/1", "east"), ("west/0", "west")):
        cluster.world.run(cluster.world.now_ns + 1_000_000_000)
        directory = cluster.world.machine(node).layers["streams"].directory
        assert directory.chains == {cluster.streams["s"]: chain}


def restarted(entries: int) -> Bench:
    """A replica that starts with so many entries in its directory."""
    disk = MemoryDisk()
    for seq in range(1, entries + 1):
        one = info_batch(info(seq, f"s{seq}"), "y", seq).sequenced(seq, 1, 1)
        disk.append(DIRECTORY, (one,))
    return Bench(disk=disk)


def test_a_replica_knows_all_streams_when_the_directory_of_its_disk_is_committed() -> None:
    bench = restarted(3)
    assert not bench.service.has_read_directory
    bench.chain_emits(Committed(DIRECTORY, 3))
    assert not bench.service.has_read_directory
    assert bench.service.named("s3") is None
    bench.chain_emits(Committed(DIRECTORY, 4))
    assert bench.service.has_read_directory
    assert bench.service.named("s3") is not None


def test_a_directory_that_was_truncated_or_damaged_after_the_start_is_not_waited_for() -> None:
    bench = restarted(3)
    bench.chain_emits(Committed(DIRECTORY, 2))
    bench.disk.truncate(DIRECTORY, 2)
    bench.chain_emits(Truncated(DIRECTORY, 2))
    assert bench.service.has_read_directory
    bench = restarted(3)
    bench.service.hole_at[DIRECTORY] = 2
    assert bench.service.has_read_directory
    assert restarted(0).service.has_read_directory


def test_the_first_of_a_name_wins_and_repeats_change_nothing() -> None:
    first, second = info(1, "a"), info(2, "a")
    directory = applied(first, second, first)
    assert directory.by_name == {"a": first}
    assert list(directory.by_id) == [first.stream_id]


def test_a_stream_can_replace_only_the_one_that_has_the_name() -> None:
    first = info(1, "a")
    heir, stranger = info(2, "a", first.stream_id), info(3, "a", bytes(16))
    assert applied(first, stranger).by_name["a"] == first
    directory = applied(first, heir)
    assert directory.by_name["a"] == heir
    assert list(directory.by_id) == [first.stream_id, heir.stream_id]


@pytest.mark.parametrize(
    "value", [b"", b"\xc0", b"\x91\x01", msgspec.msgpack.encode(LatestPerKey())]
)
def test_a_malformed_directory_entry_raises_peer_error(value: bytes) -> None:
    with pytest.raises(PeerError, match="entry 7"):
        Directory().apply(Batch.of(DIRECTORY, [value]).sequenced(7, 1, 1))
