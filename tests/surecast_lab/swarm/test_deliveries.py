"""Streams of two deliveries on the same chains: their readers, their judges, reports of losses."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest
from tests.helpers import wait

from surecast import registry
from surecast.columns.retention import KeepAll
from surecast.core.compose import Layer
from surecast.core.endpoint import Lost, Place
from surecast.core.machine import NodeContext
from surecast.core.streams import StreamSpec
from surecast.core.types import SECOND, Deliver, Emit
from surecast.protocols.sprinkler.checks import Record, Tally, check
from surecast.protocols.streams.config import SubscriberConfig
from surecast.protocols.streams.service import StreamService
from surecast.protocols.streams.subscriber import Subscriber
from surecast_lab.swarm.cluster import Cluster

LOST_AT = 2  # the position that readers of "copies" report as lost


class Forgetful(Subscriber):
    """Reports one position as lost instead of delivering it."""

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        return [kept for effect in super().step(now_ns, inp) for kept in _forgetting(effect)]


def _forgetting(effect: Any) -> Iterator[Any]:
    if not isinstance(effect, Deliver):
        yield effect
        return
    for batch in effect.batches:
        if batch.lo == LOST_AT:
            yield Emit(Lost(effect.stream, batch.lo, batch.hi, "forgotten"))
        else:
            yield Deliver(effect.stream, (batch,))


class Copies:
    """A second delivery that Sprinkler's servers serve."""

    name = "copies"
    ordered = True
    needs: ClassVar[frozenset[str]] = frozenset({"region"})
    verbs: ClassVar[frozenset[str]] = frozenset()
    keeps_copies = True
    acks = ("local",)

    def check(self, spec: StreamSpec) -> None:
        pass

    def publisher(self, _ctx: NodeContext, _place: Place) -> Layer | None:
        return None

    def reader(self, _ctx: NodeContext, place: Place) -> Layer | None:
        return Forgetful(SubscriberConfig(place.servers), {})


class KnowsCopies(StreamService):
    def __init__(self, *args: Any, deliveries: Mapping[str, str], **more: Any) -> None:
        super().__init__(*args, deliveries={**deliveries, "copies": "sprinkler"}, **more)


@pytest.fixture(autouse=True)
def _copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.PROTOCOLS, "copies", registry.Protocol(delivery=Copies))


def judge_copies(record: Record, tally: Tally) -> None:
    tally.published += len(record.offered)
    tally.acked += len(record.acked)
    tally.violations += [fault for reading in record.readings for fault in reading.faults]


def cluster_with_copies() -> Cluster:
    """A cluster with the stream "all", read in both regions, and "own", read only in east."""
    regions = {"east": 2, "west": 1}
    cluster = Cluster(1, regions, types=(KnowsCopies,), judges={"copies": judge_copies})
    for name in ("east/copy0", "west/copy0"):
        cluster.add_reader(name, "copies")
    cluster.open("all", "east", KeepAll())
    cluster.open("own", "east", KeepAll(), delivery="copies", read_in=("east",))
    wait(cluster, lambda: len(cluster.streams) == 2)
    for stream in ("all", "own"):
        for n in range(1, 4):
            at_ns = cluster.world.now_ns + n * SECOND
            cluster.offer(at_ns, "east/pub0", stream, [f"{stream}{n}".encode()])
    cluster.world.run(cluster.world.now_ns + 5 * SECOND)
    return cluster


def read_by(cluster: Cluster, stream: str) -> dict[str, list[bytes]]:
    readings = cluster.records[stream].readings
    return {reading.reader: [event.value for event in reading.events] for reading in readings}


def test_readers_follow_the_streams_of_their_delivery_in_the_regions_that_have_them() -> None:
    cluster = cluster_with_copies()
    whole = [b"all1", b"all2", b"all3"]
    assert read_by(cluster, "all") == {"east/sub0": whole, "west/sub0": whole}
    assert read_by(cluster, "own") == {"east/copy0": [b"own1", b"own3"]}
    assert cluster.readers_of("own") == ["east/copy0"]
    assert cluster.thin_readers() == ["east/sub0", "west/sub0"]
    assert cluster.readers_by("copies") == ["east/copy0", "west/copy0"]


def test_losses_are_recorded_and_a_delivery_has_its_own_judge() -> None:
    cluster = cluster_with_copies()
    (reading,) = cluster.records["own"].readings
    assert reading.lost == [(2, 3, "forgotten")]
    assert reading.position == 4
    assert cluster.settled()
    tally = cluster.judge()
    assert tally.violations == []
    assert (tally.published, tally.acked) == (6, 6)


def test_broadcast_may_lose_nothing() -> None:
    cluster = cluster_with_copies()
    tally = Tally()
    check(cluster.records["own"], tally)
    assert "own: G4 east/copy0 was told [2, 3) is lost: forgotten" in tally.violations
    assert tally.lost == 1


def test_a_loss_that_does_not_follow_the_position_is_a_fault_of_the_reader() -> None:
    cluster = cluster_with_copies()
    (reading,) = cluster.records["own"].readings
    reading.lose(6, 7, "early")
    assert reading.faults == ["G2 east/copy0: at 4, lost [6, 7)"]


def test_a_restarted_reader_continues_at_its_position_and_with_its_counters() -> None:
    cluster = cluster_with_copies()
    world = cluster.world
    before = cluster.counters["east/copy0"].total()
    assert before > 0
    world.crash("east/copy0")
    cluster.offer(world.now_ns, "east/pub0", "own", [b"own4"])
    world.run(world.now_ns + SECOND)
    world.restart("east/copy0")
    wait(cluster, cluster.settled)
    assert read_by(cluster, "own") == {"east/copy0": [b"own1", b"own3", b"own4"]}
    assert cluster.judge().violations == []
    assert cluster.counters["east/copy0"].total() > before


def test_a_stream_without_a_judge_is_not_opened() -> None:
    cluster = Cluster(1, {"east": 1})
    with pytest.raises(AssertionError, match="no judge for streams of 'copies'"):
        cluster.open("own", "east", KeepAll(), delivery="copies")


def test_a_test_can_require_that_a_create_is_refused() -> None:
    cluster = Cluster(1, {"east": 1})  # its servers lack the delivery "copies"
    spec = StreamSpec(KeepAll(), "copies")
    cluster.expect_refusal(SECOND, "east/pub0", "own", "no-delivery", spec)
    cluster.expect_refusal(SECOND, "east/pub0", "all", "no-delivery", StreamSpec(KeepAll()))
    cluster.world.run(5 * SECOND)
    assert cluster.judge().violations == ["all: opened", "all: was not refused with 'no-delivery'"]


def test_an_audit_reads_streams_of_the_default_delivery_alone() -> None:
    cluster = cluster_with_copies()
    assert cluster.audit()
    assert len(cluster.records["all"].audits) == 3
    assert cluster.records["own"].audits == []
    assert cluster.judge().violations == []


def test_a_server_without_a_protocol_does_not_list_it_before_its_upgrade() -> None:
    cluster = Cluster(1, {"east": 2}, without={"east/1": {"sprinkler"}})
    nodes = cluster.world.nodes
    assert "sprinkler" in nodes["east/0"].speaks
    assert "sprinkler" not in nodes["east/1"].speaks
    cluster.expect_refusal(SECOND, "east/pub0", "s", "no-delivery", StreamSpec(KeepAll()))
    cluster.world.run(5 * SECOND)
    assert cluster.judge().violations == []
    cluster.reinstall("east/1")
    assert "sprinkler" in nodes["east/1"].speaks
    cluster.open("t", "east", KeepAll(), cluster.world.now_ns)
    wait(cluster, lambda: "t" in cluster.streams)
