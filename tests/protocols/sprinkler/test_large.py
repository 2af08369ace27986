"""State that grows with the number of streams and publishers is sent in parts."""

from collections import deque
from random import Random

import pytest

from surecast.columns.batch import Batch
from surecast.columns.retention import KeepAll, RetentionIndex
from surecast.core.streams import StreamInfo
from surecast.core.types import Received, Send
from surecast.core.wire import Codec
from surecast.protocols.chain.dedup import Dedup, PublisherState
from surecast.protocols.sprinkler.messages import Advertise
from surecast.protocols.sprinkler.sources import Copy
from surecast.protocols.streams.messages import Publish, PubNack
from surecast.protocols.streams.stream import Stream
from surecast.registry import message_types
from tests.helpers import cluster_of, heal_and_judge, publish, settle, wait


def test_a_region_with_many_streams_advertises_in_parts_that_count_as_one() -> None:
    cluster = cluster_of({"east": 1, "west": 1})
    settle(cluster)
    world = cluster.world
    east, west = (world.machine(f"{r}/0").layers["sprinkler"] for r in ("east", "west"))
    infos = [
        StreamInfo(Random(n).randbytes(16), f"{n}.".ljust(250, "x"), "east", KeepAll())
        for n in range(5000)
    ]
    for info in infos:
        east.streams[info.stream_id] = Copy(info, Stream(info, RetentionIndex(KeepAll())))
    east.advertised.clear()
    east.out = []
    east._advertise("west/0")
    sent = [effect.message for effect in east.out if isinstance(effect, Send)]
    assert all(isinstance(message, Advertise) for message in sent)
    codec = Codec(message_types())
    for message in sent:
        codec.encode(message)  # none is too large
    heard_ns = west.peers["east"].heard_ns
    for message in sent[:-1]:
        west.step(west.now_ns + 1, Received("east/0", message))
    assert west.peers["east"].heard_ns == heard_ns  # it does not count before its last part
    west.step(west.now_ns + 1, Received("east/0", sent[-1]))
    assert west.peers["east"].heard_ns > heard_ns
    assert all(info.stream_id in west.peers["east"].ends for info in infos)


@pytest.mark.slow
def test_many_publishers_reach_a_new_replica_in_parts() -> None:
    cluster = cluster_of({"east": 2, "west": 1}, chain={"min_replicas": 1})
    publish(cluster, 3)
    settle(cluster)
    world, stream = cluster.world, cluster.streams["s"]
    world.crash("east/1")
    wait(cluster, lambda: [m.name for m in cluster.members("east")] == ["east/0"])
    dedup = world.machine("east/0").layers["chain"].logs[stream].dedup
    for n in range(40_000):  # as if 40,000 publishers had published one event each
        publisher = (1000 + n).to_bytes(8, "big") + bytes(8)
        dedup.publishers[publisher] = PublisherState(2, deque([(1, 1, 1)]), 1000)
    assert len(dedup.snapshot(4)) > 1 << 20
    world.wipe("east/1")
    world.restart("east/1")
    wait(cluster, lambda: len(cluster.members("east")) == 2)
    known = world.machine("east/1").layers["chain"].logs[stream].dedup
    assert len(known.publishers) > 40_000
    assert heal_and_judge(cluster) == []


def test_dedup_forgets_the_publishers_that_were_silent_longest_when_there_are_too_many() -> None:
    dedup = Dedup(64, ttl_ns=1 << 60, publishers_max=100)
    for n in range(1, 151):
        publisher = n.to_bytes(8, "big") + bytes(8)
        batch = Batch.of(bytes(16), [b"v"], publisher=publisher, pub_no=1)
        dedup.note(batch.sequenced(n, 1000 + n, 1))
    dedup.forget()
    assert 80 <= len(dedup.publishers) <= 100
    assert (150).to_bytes(8, "big") + bytes(8) in dedup.publishers
    forgotten = (1).to_bytes(8, "big") + bytes(8)
    again = Batch.of(bytes(16), [b"v"], publisher=forgotten, pub_no=1)
    assert dedup.check(again, 2000).kind == 4  # EXPIRED, not NEW


@pytest.mark.parametrize("alien", [True, False])
def test_a_batch_of_another_stream_is_refused(alien: bool) -> None:
    cluster = cluster_of({"east": 1, "west": 1})
    settle(cluster)
    head, stream = cluster.world.machine("east/0"), cluster.streams["s"]
    batch_stream = b"y" * 16 if alien else stream
    batch = Batch.of(batch_stream, [b"v"], publisher=b"\1" * 16, pub_no=1)
    now_ns = cluster.world.now_ns
    effects = head.step(now_ns, Received("client", Publish(stream, batch)))
    nacks = [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, PubNack)]
    assert [nack.why for nack in nacks] == (["bad-event"] if alien else [])
