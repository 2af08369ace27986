"""Deleting a stream: its End event is the last position of its log, in every region.

D1 no head assigns a position after the End event, also if an earlier head appended that event.
D2 a retry of an event before the End event is acknowledged, not refused.
D3 every region gets the End event, also one that was cut off; then the name is free there.
D4 the name can be used again, under a new id, any number of times.
D5 a reader that begins after the End event is sent it all the same.
"""

from typing import Any

import pytest

from surecast.columns.batch import COLLECTED, CONFIG
from surecast.columns.retention import (
    End,
    KeepAll,
    KeepFor,
    KeepLast,
    LatestPerKey,
    encode_policy,
)
from surecast.core.endpoint import Ended, Offer, Open, ReadRange
from surecast.core.streams import DIRECTORY, StreamDeleted, StreamInfo, StreamSpec
from surecast.core.types import MS, SECOND
from surecast.protocols.sprinkler.checks import Record
from surecast.protocols.sprinkler.config import ClientConfig
from surecast.protocols.sprinkler.mesh_peer import MeshPeer
from surecast.protocols.streams.config import SubscriberConfig
from surecast.protocols.streams.cursors import Cursors
from surecast.protocols.streams.directory import Directory, info_batch
from surecast.protocols.streams.fetcher import Fetcher
from surecast.protocols.streams.subscriber import Subscriber
from surecast_lab.swarm.cluster import Cluster
from tests import mutations
from tests.helpers import cluster_of, each_scenario, heal_and_judge, publish, run, wait

END = encode_policy(End())


def delete(cluster: Cluster, publisher: str, stream: str = "s") -> None:
    cluster.offer(cluster.world.now_ns, publisher, stream, [END], kind=CONFIG)
    run(cluster, MS)


def delete_by_id(cluster: Cluster, publisher: str, stream: bytes) -> None:
    """Like `delete`, for a stream that the cluster's records do not have."""
    cluster.names.setdefault(stream, "s")
    cluster.records.setdefault("s", Record("s", KeepAll()))
    cluster.owners.setdefault("s", "east")
    cluster.offered.setdefault((publisher, "s"), []).append([])
    cluster.world.at(cluster.world.now_ns, publisher, Offer(stream, [END], None, None, CONFIG))


def streams_at(cluster: Cluster, node: str) -> Any:
    return cluster.world.machine(node).layers["streams"]


def index_at(cluster: Cluster, node: str, stream: str = "s") -> Any:
    return streams_at(cluster, node).streams[cluster.streams[stream]].index


def replicas(cluster: Cluster) -> list[str]:
    return [node for nodes in cluster.regions.values() for node in nodes]


def is_deleted_everywhere(cluster: Cluster, stream: str = "s") -> bool:
    id = cluster.streams[stream]
    return all(streams_at(cluster, node).is_deleted(id) for node in replicas(cluster))


@pytest.mark.parametrize(
    "policy", [KeepAll(), KeepLast(5), LatestPerKey(), KeepFor(SECOND)], ids=str
)
def test_all_events_are_void_and_the_name_is_free_in_every_region(policy: Any) -> None:
    cluster = cluster_of({"east": 2, "west": 2, "north": 1}, {"s": ("east", policy)})
    publish(cluster, 20)
    publish(cluster, 5, "west/pub0")
    wait(cluster, lambda: not cluster.unacknowledged())
    delete(cluster, "north/pub0")
    wait(cluster, lambda: is_deleted_everywhere(cluster))
    assert heal_and_judge(cluster) == []
    (end,) = {index_at(cluster, node).ended for node in replicas(cluster)}
    assert end == cluster.records["s"].acked[END]
    for node in replicas(cluster):
        index = index_at(cluster, node)
        assert list(index.live(1, index.end)) == [(end, end + 1)]
        assert streams_at(cluster, node).named("s") is None
        assert index.end == end + 1  # expiry appends nothing after the End event


def test_publishes_and_rules_after_the_end_event_are_refused() -> None:
    cluster = cluster_of({"east": 2, "west": 1})
    publish(cluster, 3)
    delete(cluster, "east/pub0")
    wait(cluster, lambda: not cluster.unacknowledged())
    publish(cluster, 1, "west/pub0")
    delete_again = encode_policy(KeepLast(3))
    cluster.offer(cluster.world.now_ns, "east/pub0", "s", [delete_again], kind=CONFIG)
    wait(cluster, lambda: len(cluster.failed) == 2)
    assert {failed.why for failed in cluster.failed} == {"deleted"}


def right_behind_the_end(mutant: type | None) -> list[str]:
    """D1: the End event and another publisher's events arrive at the head at the same time."""
    cluster = cluster_of({"east": 2, "west": 1}, mutant=mutant, publishers=2)
    publish(cluster, 3)
    now_ns = cluster.world.now_ns
    cluster.offer(now_ns, "east/pub0", "s", [END], kind=CONFIG)
    for number in range(20):
        cluster.offer(now_ns + number * MS // 20, "east/pub1", "s", [b"late %d" % number])
    run(cluster, 2 * SECOND)
    return behind_the_end(cluster)


def behind_the_end(cluster: Cluster) -> list[str]:
    acked = cluster.records["s"].acked
    end = acked.get(END, 1 << 60)
    found = [f"{value!r} at {seq} behind {end}" for value, seq in acked.items() if seq > end]
    return found + [f"failed: {failed.why}" for failed in cluster.failed if failed.why != "deleted"]


def end_given_by_the_head_before(mutant: type | None) -> list[str]:
    """D1: a head appends and forwards the End event and crashes. The next head has the End event in
    its log and must not assign the next position."""
    cluster = cluster_of({"east": 3, "west": 1}, mutant=mutant, publishers=2)
    publish(cluster, 3)
    wait(cluster, lambda: not cluster.unacknowledged())
    head, second, tail = (member.name for member in cluster.members("east"))
    cluster.world.cut(second, tail)
    delete(cluster, "east/pub0")
    stream = cluster.streams["s"]
    wait(cluster, lambda: streams_at(cluster, second).end_of(stream) == 5)
    assert index_at(cluster, second).ended == 0  # it is not committed
    cluster.world.crash(head)
    cluster.world.crash("east/pub0")
    cluster.world.mend(second, tail)
    cluster.offer(cluster.world.now_ns, "east/pub1", "s", [b"late"])
    wait(cluster, lambda: bool(cluster.failed) or b"late" in cluster.records["s"].acked)
    if seq := cluster.records["s"].acked.get(b"late"):
        return [f"late has position {seq}"]
    return [] if cluster.failed[0].why == "deleted" else [cluster.failed[0].why]


def readers_behind_the_end(mutant: type | None) -> list[str]:
    """D5: readers that begin after the End event are sent it: it was there before they came, or
    came later."""
    cluster = cluster_of({"east": 2}, mutant=mutant)
    publish(cluster, 3)
    wait(cluster, lambda: not cluster.unacknowledged())
    stream, replicas = cluster.streams["s"], cluster.regions["east"]
    ended: dict[str, int] = {}

    def on_emit(_now_ns: int, name: str, event: Any) -> None:
        if isinstance(event, Ended):
            ended[name] = event.end

    def add(when: str) -> None:
        for start in (5, 100):
            thin, mesh = f"east/thin.{when}.{start}", f"east/mesh.{when}.{start}"
            config = ClientConfig(mesh, replicas)
            cluster.world.add(
                thin, lambda _, start=start: Subscriber(SubscriberConfig(replicas), {stream: start})
            )
            cluster.world.add(
                mesh,
                lambda ctx, config=config, start=start: MeshPeer(config, {stream: start}, ctx.rng),
            )
            for name in (thin, mesh):
                cluster.world.on_emit(name, on_emit)

    add("before")
    run(cluster, SECOND)
    delete(cluster, "east/pub0")
    wait(cluster, lambda: is_deleted_everywhere(cluster))
    add("after")
    fetcher = "east/fetcher"
    cluster.world.add(fetcher, lambda _: Fetcher(SubscriberConfig(replicas)))
    cluster.world.on_emit(fetcher, on_emit)
    cluster.world.at(cluster.world.now_ns, fetcher, ReadRange(stream, 3, 20))
    run(cluster, 20 * SECOND)
    return [] if len(ended) == 9 and set(ended.values()) == {5} else [f"ended: {ended}"]


def a_region_that_lost_the_entry_of_a_deleted_stream(mutant: type | None) -> list[str]:
    """D4: the directory of a lone replica lost its first entry, of a stream whose name was used
    again. Another region sends the stream, after its successor."""
    cluster = cluster_of({"east": 2, "west": 1}, mutant=mutant)
    publish(cluster, 3)
    wait(cluster, lambda: cluster.settled())
    delete(cluster, "east/pub0")
    wait(cluster, lambda: is_deleted_everywhere(cluster))
    info = recreate(cluster, "east/pub0")
    wait(cluster, lambda: streams_at(cluster, "west/0").named("s") == info)
    run(cluster, SECOND)
    cluster.world.crash("west/0")
    cluster.world.disk("west/0").damage(DIRECTORY, 1, 2, "a flipped bit")
    cluster.world.disk("west/0").sync()
    cluster.world.restart("west/0")
    run(cluster, 10 * SECOND)
    service = streams_at(cluster, "west/0")
    assert service.named("s") == info
    assert not cluster.world.machine("west/0").layers["sprinkler"].doubles
    is_there = service.is_deleted(cluster.streams["s"])
    return [] if is_there else ["west does not have the deleted stream"]


SCENARIOS = [
    (
        "entry-lost",
        a_region_that_lost_the_entry_of_a_deleted_stream,
        mutations.RefusesFormerStreams,
    ),
    ("behind", readers_behind_the_end, mutations.SendsNoEndEvent),
    ("right-behind", right_behind_the_end, mutations.GivesPositionsBehindTheEnd),
    ("head-before", end_given_by_the_head_before, mutations.KnowsOnlyItsOwnEnd),
]


@each_scenario(SCENARIOS)
def test_rule_holds(scenario: Any, mutant: type) -> None:
    assert scenario(None) == []


@each_scenario(SCENARIOS)
def test_scenario_fails_without_the_rule(scenario: Any, mutant: type) -> None:
    assert scenario(mutant) != []


def test_a_retry_of_an_event_before_the_end_is_acknowledged() -> None:
    """D2: the acknowledgement is lost, the stream is deleted, and the publisher retries."""
    cluster = cluster_of({"east": 2, "west": 1}, publishers=2)
    publish(cluster, 2)
    publish(cluster, 1, "east/pub1")
    wait(cluster, lambda: not cluster.unacknowledged())
    cluster.offer(cluster.world.now_ns, "east/pub1", "s", [b"early"])
    run(cluster, MS // 2)  # the event was sent; its acknowledgement will not arrive
    cluster.world.cut("east/pub1", "*")
    assert cluster.unacknowledged() == 1
    stream = cluster.streams["s"]
    wait(cluster, lambda: streams_at(cluster, "east/0").shown_end(stream) == 5)
    delete(cluster, "east/pub0")
    wait(cluster, lambda: END in cluster.records["s"].acked)
    assert heal_and_judge(cluster) == []
    assert cluster.records["s"].acked[b"early"] == 4


def recreate(cluster: Cluster, opener: str, name: str = "s") -> Any:
    """Open the name; returns the info that the opener receives."""
    found: list[Any] = []

    def on_emit(_now_ns: int, _name: str, event: Any) -> None:
        if getattr(event, "name", "") == name and getattr(event, "info", None) is not None:
            found.append(event.info)

    cluster.world.on_emit(opener, on_emit)
    cluster.world.at(cluster.world.now_ns, opener, Open(name, StreamSpec(KeepAll())))
    wait(cluster, lambda: bool(found))
    return found[0]


def test_a_name_is_used_again_while_a_region_is_cut_off() -> None:
    """D3, D4: a stream is deleted and created again twice while one region is cut off."""
    cluster = cluster_of({"east": 2, "west": 1, "north": 1})
    publish(cluster, 5)
    wait(cluster, lambda: cluster.settled())
    ids = [cluster.streams["s"]]
    for node in cluster.regions["east"] + cluster.regions["west"]:
        cluster.world.cut(node, "north/0")
    for _ in range(2):
        delete_by_id(cluster, "east/pub0", ids[-1])
        wait(cluster, lambda: streams_at(cluster, "east/0").is_deleted(ids[-1]))
        info = recreate(cluster, "east/pub0")
        assert info.stream_id not in ids
        assert info.replaces == ids[-1]
        ids.append(info.stream_id)
    assert streams_at(cluster, "north/0").named("s").stream_id == ids[0]
    cluster.world.heal_all()

    def caught_up() -> bool:
        for node in replicas(cluster):
            service = streams_at(cluster, node)
            named = service.named("s")
            if named is None or named.stream_id != ids[-1]:
                return False
            if not all(service.is_deleted(one) for one in ids[:-1]):
                return False
        return True

    wait(cluster, caught_up)


def test_another_region_may_create_a_stream_of_a_deleted_name() -> None:
    """D4: west knew the stream of east, and owns the new one of that name."""
    cluster = cluster_of({"east": 1, "west": 1})
    publish(cluster, 3)
    wait(cluster, lambda: cluster.settled())
    delete(cluster, "east/pub0")
    wait(cluster, lambda: is_deleted_everywhere(cluster))
    info = recreate(cluster, "west/pub0")
    assert (info.owner, info.replaces) == ("west", cluster.streams["s"])
    wait(cluster, lambda: streams_at(cluster, "east/0").named("s") == info)


def test_a_recovered_end_event_counts_although_its_log_was_read_before() -> None:
    """D1: an owner whose disk lost the End event recovers it from another region."""
    cluster = cluster_of({"east": 1, "west": 1}, server={"ask_ns": 60 * SECOND})
    publish(cluster, 3)
    wait(cluster, lambda: cluster.settled())
    cluster.world.copy_disk("east/0")
    delete(cluster, "east/pub0")
    wait(cluster, lambda: is_deleted_everywhere(cluster))
    run(cluster, SECOND)
    cluster.world.crash("east/0")
    cluster.world.roll_back("east/0")
    cluster.world.restart("east/0")
    stream = cluster.streams["s"]
    wait(cluster, lambda: stream in streams_at(cluster, "east/0").streams)
    service = streams_at(cluster, "east/0")
    service._refusal_behind_end(service.streams[stream])  # as opening the name does
    cluster.offer(cluster.world.now_ns, "east/pub0", "s", [b"late"])
    wait(cluster, lambda: bool(cluster.failed) or b"late" in cluster.records["s"].acked)
    assert b"late" not in cluster.records["s"].acked
    assert cluster.failed[0].why == "deleted"


def test_directory_entries_have_the_same_effect_after_a_restart() -> None:
    """D4: a stream that got its name because another was deleted is still there after a restart."""
    policy, ids = KeepAll(), [bytes([n]) * 16 for n in (1, 2)]
    infos = [StreamInfo(id, "s", region, policy) for id, region in zip(ids, "ab", strict=True)]
    live = Directory()
    log = [info_batch(infos[0], "c", 0).sequenced(1, 1, 1)]
    live.apply(log[0])
    assert live.apply(info_batch(infos[1], "c", 0).sequenced(2, 1, 1)) == []  # the first one wins
    live.delete(infos[0])
    log.append(info_batch(infos[1], "c", 0, live.follows("s")).sequenced(2, 1, 1))
    assert live.apply(log[1]) == [infos[1]]
    replayed = Directory()
    assert [info for batch in log for info in replayed.apply(batch)] == infos
    replayed.delete(infos[0])
    assert replayed.by_name == live.by_name == {"s": infos[1]}


def test_former_streams_may_be_entered_after_their_successors() -> None:
    ids = [bytes([n]) * 16 for n in (1, 2, 3)]
    chain = [b"", *ids]
    first, second, third = (
        StreamInfo(id, "s", "a", KeepAll(), before) for id, before in zip(ids, chain, strict=False)
    )
    directory = Directory()
    order = [third, first, second, first]  # the first is refused until the second is known
    added = [
        directory.apply(info_batch(info, "c", 0).sequenced(n, 1, 1))
        for n, info in enumerate(order, start=1)
    ]
    assert added == [[third], [], [second], [first]]
    assert directory.by_name == {"s": third}
    for info in (first, second):
        directory.delete(info)
    assert directory.by_name == {"s": third}
    assert directory.follows("s") == b""


def test_a_truncated_end_event_frees_no_name() -> None:
    info = StreamInfo(bytes(16), "s", "east", KeepAll())
    directory = Directory()
    directory.apply(info_batch(info, "c", 0).sequenced(1, 1, 1))
    directory.delete(info)
    assert directory.by_name == {}
    directory.undelete(info)
    assert directory.by_name == {"s": info}
    assert not directory.deleted


def test_the_second_of_two_streams_of_one_name_appears_when_the_first_is_deleted() -> None:
    """D4: the streams were created in two regions that were cut off from each other."""
    cluster = Cluster(1, {"east": 1, "west": 1})
    run(cluster, SECOND)
    cluster.world.cut("east", "west")
    infos = [recreate(cluster, f"{region}/pub0") for region in ("east", "west")]
    assert infos[0].stream_id != infos[1].stream_id
    cluster.world.heal_all()
    run(cluster, 3 * SECOND)
    assert streams_at(cluster, "east/0").named("s") == infos[0]  # each region keeps its own
    delete_by_id(cluster, "west/pub0", infos[1].stream_id)
    wait(cluster, lambda: streams_at(cluster, "west/0").named("s") == infos[0])
    assert recreate(cluster, "west/pub0") == infos[0]


@pytest.mark.parametrize("count", [5, 200])
def test_a_deletion_survives_restarts_and_is_reclaimed(count: int) -> None:
    cluster = cluster_of({"east": 2, "west": 1}, server={"compact_ns": 100 * MS})
    publish(cluster, count)
    delete(cluster, "east/pub0")
    wait(cluster, lambda: is_deleted_everywhere(cluster))
    run(cluster, 5 * SECOND)
    stream = cluster.streams["s"]
    for node in replicas(cluster):
        held = cluster.world.disk(node).read(stream, 1, 1 << 40, 1 << 30)
        assert sum(batch.rows for batch in held) == 1  # the End event alone
    for node in replicas(cluster):
        cluster.world.crash(node)
    run(cluster, SECOND)
    cluster.world.heal_all()
    wait(cluster, lambda: all(cluster.world.machine(node) for node in replicas(cluster)))
    wait(cluster, lambda: is_deleted_everywhere(cluster))
    publish(cluster, 1, "west/pub0")
    wait(cluster, lambda: bool(cluster.failed))
    assert cluster.failed[0].why == "deleted"
    assert recreate(cluster, "west/pub0").replaces == stream


def test_the_number_of_deleted_streams_is_bounded() -> None:
    streams = {f"s{number}": ("east", KeepAll()) for number in range(3)}
    cluster = cluster_of({"east": 1}, streams, server={"deleted_max": 2})
    for name in streams:
        delete(cluster, "east/pub0", name)
        run(cluster, SECOND)
    service = streams_at(cluster, "east/0")
    assert [service.named(name) is None for name in streams] == [True, True, False]
    assert [failed.why for failed in cluster.failed] == ["too-many-deleted"]


def test_deleted_streams_make_room_for_new_ones() -> None:
    streams = {"s0": ("east", KeepAll()), "s1": ("east", KeepAll())}
    cluster = cluster_of({"east": 1}, streams, server={"streams_max": 2})
    delete(cluster, "east/pub0", "s0")
    wait(cluster, lambda: streams_at(cluster, "east/0").is_deleted(cluster.streams["s0"]))
    assert recreate(cluster, "east/pub0", "s2").name == "s2"


def test_void_reason_of_a_deleted_streams_events_is_collected() -> None:
    cluster = cluster_of({"east": 1})
    publish(cluster, 3)
    delete(cluster, "east/pub0")
    wait(cluster, lambda: is_deleted_everywhere(cluster))
    index = index_at(cluster, "east/0")
    assert index.void_at(1, index.end) == [(1, 4, COLLECTED)]


def test_a_deletion_that_another_layer_s_call_discovers_is_announced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A layer above reads the stream and so has retention index the End event, outside of a step of
    the service."""
    announced: list[str] = []

    def on_deleted(layer: Cursors, _event: StreamDeleted) -> None:
        announced.append(layer.config.name)

    monkeypatch.setattr(Cursors, "_on_stream_deleted", on_deleted)
    cluster = cluster_of({"east": 2})
    publish(cluster, 3)
    wait(cluster, lambda: not cluster.unacknowledged())
    run(cluster, SECOND)
    tail = cluster.members("east")[-1].name
    service, stream = streams_at(cluster, tail), cluster.streams["s"]
    delete(cluster, "east/pub0")
    wait(cluster, lambda: service.shown_end(stream) == 5)
    assert tail not in announced
    service.voids(stream, 1, 5, 10)
    assert service.is_deleted(stream)
    run(cluster, SECOND)
    assert sorted(announced) == ["east/0", "east/1"]
