"""Changes of a stream's schema, which are events of the stream.

S1 every event has columns of the stream's schema as it is at the event's position, whichever head
   accepted it.
S2 of two changes that differ, one is made, in every region; the other one is refused.
S3 a change that is given up is undone.
S4 every region gets the change, also one that was cut off; publishers that do not know it go on.
S5 nodes of earlier versions are not sent events of streams with a schema.
"""

from typing import Any

import msgspec
import pytest

from surecast.columns.batch import CONFIG, Batch
from surecast.columns.retention import KeepAll, KeepLast, LatestPerKey
from surecast.columns.rules import NewSchema, encode_policy
from surecast.columns.typed import Attributes
from surecast.core.replicated import Appended, Committed, Submit, Truncated
from surecast.core.streams import StreamSpec
from surecast.core.types import MS, SECOND, TYPED_BODIES, PeerDown, PeerUp, Received
from surecast.endpoint.attributes import writer_of
from surecast.protocols.sprinkler.messages import (
    Advertise,
    MeshEvents,
    MeshRequest,
    MeshView,
    PeerEvents,
    RegionSubscribe,
)
from surecast.protocols.streams.messages import (
    CreateStream,
    Events,
    Publish,
    PubNack,
    RangeEvents,
    ReadRange,
    StreamOpened,
    Subscribe,
)
from surecast.protocols.streams.service import UNINDEXED_MAX
from surecast_lab.swarm.cluster import Cluster
from tests import mutations
from tests.helpers import each_scenario, heal_and_judge, run, wait
from tests.protocols.bench import INFO, STREAM, Bench, passed_down, sent

FIRST = "n int64 not null"
MORE = FIRST + ", s string"
OTHER = FIRST + ", b bool"
MOST = MORE + ", f float64"


def rows(schema: str, count: int = 1) -> Attributes:
    writer = writer_of(schema)
    assert writer is not None
    row = {"n": 7, "s": "seven", "f": 7.5, "b": True}
    fields = {name: row[name] for name in writer.schema.names}
    return writer.attributes([writer.row(fields).fields] * count)


def typed_cluster(
    regions: dict[str, int], policy: Any = None, mutant: type | None = None, **options: Any
) -> Cluster:
    """A cluster with a stream "s" of schema FIRST, owned by the first region."""
    if mutant is not None:
        options["types"] = (mutant,)
    cluster = Cluster(1, regions, **options)
    cluster.open("s", next(iter(regions)), policy or KeepAll(), schema=FIRST)
    wait(cluster, lambda: bool(cluster.streams))
    return cluster


def offer(cluster: Cluster, value: bytes, schema: str = FIRST, publisher: str = "") -> None:
    now_ns, owner = cluster.world.now_ns, cluster.owners["s"]
    key = [value[:1]]
    attributes = rows(schema)
    cluster.offer(now_ns, publisher or f"{owner}/pub0", "s", [value], key, attributes=attributes)
    run(cluster, 1)


def change(cluster: Cluster, schema: str, publisher: str = "") -> bytes:
    value = encode_policy(NewSchema(schema))
    publisher = publisher or f"{cluster.owners['s']}/pub0"
    cluster.offer(cluster.world.now_ns, publisher, "s", [value], kind=CONFIG)
    run(cluster, 1)
    return value


def service(cluster: Cluster, node: str) -> Any:
    return cluster.world.machine(node).layers["streams"]


def replicas(cluster: Cluster) -> list[str]:
    return [node for nodes in cluster.regions.values() for node in nodes]


def schemas(cluster: Cluster) -> set[str]:
    """The schema of the stream at every replica of every region."""
    infos = (service(cluster, node).named("s") for node in replicas(cluster))
    return {"" if info is None else info.schema for info in infos}


def known(cluster: Cluster, schema: str) -> None:
    wait(cluster, lambda: schemas(cluster) == {schema})


# ---------------------------------------------------------------- in simulation


@pytest.mark.parametrize("policy", [KeepAll(), KeepLast(5), LatestPerKey()], ids=str)
def test_s4_every_region_gets_a_change_and_old_publishers_go_on(policy: Any) -> None:
    cluster = typed_cluster(
        {"east": 2, "west": 2, "north": 1}, policy, server={"compact_ns": SECOND}
    )
    known(cluster, FIRST)
    cluster.world.cut("east", "north")
    cluster.world.cut("west", "north")
    for n in range(30):
        offer(cluster, b"a%d" % n)
    change(cluster, MORE, "west/pub0")  # through a region that does not own the stream
    wait(cluster, lambda: not cluster.unacknowledged())
    for n in range(30):
        offer(cluster, b"b%d" % n, (FIRST, MORE)[n % 2])
        offer(cluster, b"c%d" % n, FIRST, "west/pub0")
    offer(cluster, b"d", FIRST, "north/pub0")  # its region does not know the change
    run(cluster, SECOND)
    assert service(cluster, "north/0").named("s").schema == FIRST
    cluster.world.heal_all()
    known(cluster, MORE)
    run(cluster, 5 * SECOND)  # logs are compacted: batches of both versions are joined, apart
    assert heal_and_judge(cluster) == []
    assert len(cluster.records["s"].acked) == 92


def test_s4_a_region_that_had_nothing_gets_the_events_of_all_versions() -> None:
    """The disk of a region is wiped; it gets compacted batches."""
    cluster = typed_cluster({"east": 1, "west": 2}, LatestPerKey(), server={"compact_ns": SECOND})
    for number, schema in enumerate((FIRST, MORE, MOST)):
        if number:
            change(cluster, schema)
        wait(cluster, lambda: not cluster.unacknowledged())
        for n in range(40):
            offer(cluster, b"%d.%d.%d" % (n, n, number), schema)
        wait(cluster, lambda: not cluster.unacknowledged())
        run(cluster, 3 * SECOND)
    cluster.world.crash("west/0")
    cluster.world.wipe("west/0")
    cluster.world.restart("west/0")
    known(cluster, MOST)
    assert heal_and_judge(cluster) == []


def appended_by_the_head_before(mutant: type | None) -> list[str]:
    """S1, S2: a head appends and forwards a change and crashes. The next head has the change in its
    log, not committed: it must accept events of the new schema, and refuse a change that does not
    extend it."""
    cluster = typed_cluster({"east": 3, "west": 1}, mutant=mutant, publishers=3)
    offer(cluster, b"a")
    wait(cluster, lambda: not cluster.unacknowledged())
    head, second, tail = (member.name for member in cluster.members("east"))
    cluster.world.cut(second, tail)
    change(cluster, MORE)
    stream = cluster.streams["s"]
    wait(cluster, lambda: service(cluster, second).end_of(stream) == 3)
    assert service(cluster, second).named("s").schema == FIRST  # it is not committed
    cluster.world.crash(head)
    cluster.world.crash("east/pub0")
    wait(cluster, lambda: service(cluster, second).is_head)
    other = change(cluster, OTHER, "east/pub1")
    offer(cluster, b"b", MORE, "east/pub2")
    run(cluster, 100 * MS)
    cluster.world.mend(second, tail)
    run(cluster, 3 * SECOND)
    found = [f"failed: {f.why}" for f in cluster.failed if f.why != "schema-differs"]
    found += ["two changes were made"] if other in cluster.records["s"].acked else []
    found += [] if b"b" in cluster.records["s"].acked else ["b is not published"]
    cluster.failed.clear()
    cluster.records["s"].offered.pop(other, None)
    return found + heal_and_judge(cluster)


def truncated_before_it_was_committed(mutant: type | None) -> list[str]:
    """S3: a head appends a change, and is removed from the chain before it could forward it. When
    it is head again, the change is undone."""
    cluster = typed_cluster({"east": 2, "west": 1}, mutant=mutant, publishers=3)
    offer(cluster, b"a")
    wait(cluster, lambda: not cluster.unacknowledged())
    head, second = (member.name for member in cluster.members("east"))
    cluster.world.cut(head, second)
    cluster.world.cut(head, "east/config")
    cluster.world.pause(second)  # the head is alone, and does not know that it will be replaced
    change(cluster, MORE)
    stream = cluster.streams["s"]
    wait(cluster, lambda: service(cluster, head).end_of(stream) == 3)
    offer(cluster, b"b", MORE, "east/pub1")
    wait(cluster, lambda: service(cluster, head).end_of(stream) == 4)
    cluster.world.crash("east/pub0")
    cluster.world.crash("east/pub1")
    cluster.world.resume(second)
    wait(cluster, lambda: service(cluster, second).is_head)
    cluster.world.mend(head, second)
    cluster.world.mend(head, "east/config")
    wait(cluster, lambda: len(cluster.members("east")) == 2)
    run(cluster, 2 * SECOND)
    wait(cluster, lambda: service(cluster, head).end_of(stream) == 2)
    cluster.world.crash(second)
    wait(cluster, lambda: service(cluster, head).is_head)
    cluster.world.restart(second)
    offer(cluster, b"c", MORE, "east/pub2")
    wait(cluster, lambda: bool(cluster.failed) or b"c" in cluster.records["s"].acked)
    return [] if [f.why for f in cluster.failed] == ["unknown-columns"] else ["it was accepted"]


@each_scenario(
    [
        ("S1 S2 appended before", appended_by_the_head_before, mutations.KnowsCommittedSchemas),
        ("S3 truncated", truncated_before_it_was_committed, mutations.KeepsSchemas),
    ]
)
def test_s1_s2_s3_the_head_knows_the_newest_appended_schema(scenario: Any, mutant: type) -> None:
    assert scenario(None) == []
    assert scenario(mutant) != []


def test_s2_of_two_changes_in_two_regions_one_is_made() -> None:
    cluster = typed_cluster({"east": 2, "west": 2})
    values = [change(cluster, MORE, "east/pub0"), change(cluster, OTHER, "west/pub0")]
    wait(cluster, lambda: bool(cluster.failed) and not cluster.unacknowledged())
    assert [failed.why for failed in cluster.failed] == ["schema-differs"]
    (made,) = [value for value in values if value in cluster.records["s"].acked]
    winner = (MORE, OTHER)[values.index(made)]
    known(cluster, winner)
    change(cluster, winner + ", t date", "west/pub0")
    known(cluster, winner + ", t date")


def test_s2_a_change_survives_crashes_of_all_replicas() -> None:
    cluster = typed_cluster({"east": 3, "west": 1})
    change(cluster, MORE)
    wait(cluster, lambda: not cluster.unacknowledged())
    offer(cluster, b"a", MORE)
    for node in replicas(cluster):
        cluster.world.crash(node)
    run(cluster, SECOND)
    offer(cluster, b"b", MORE)
    cluster.world.heal_all()
    wait(cluster, lambda: not cluster.unacknowledged())
    known(cluster, MORE)
    assert heal_and_judge(cluster) == []


# ---------------------------------------------------------------- step by step


class Typed(Bench):
    """A head of one replica, with an open stream of schema FIRST."""

    def __init__(self) -> None:
        super().__init__()
        self.role(1)
        self.list_stream(msgspec.structs.replace(INFO, owner="x", schema=FIRST))
        self.at = 1

    def publish(self, batch: Batch) -> str:
        """The refusal of a batch; "" if it would be appended."""
        out = self.give(Received("c", Publish(STREAM, batch.numbered(bytes(range(16)), 1))))
        if submits := passed_down(out, Submit):
            return str(submits[0].refuse)
        ((_, nack),) = sent(out, PubNack)
        return str(nack.why)

    def data(self, schema: str) -> str:
        return self.publish(Batch.of(STREAM, [b""], attributes=rows(schema)))

    def change(self, schema: str) -> str:
        return self.publish(config(schema))

    def append(self, batch: Batch) -> None:
        """The chain appends a batch, also a change that would be refused."""
        if batch.kind == CONFIG:
            self.publish(batch)
        self.disk.append(STREAM, (batch.sequenced(self.at, self.at, 1),))
        self.at += batch.count
        self.chain_emits(Appended(STREAM, self.at))

    def commit(self) -> None:
        self.chain_emits(Committed(STREAM, self.at))

    def truncate(self, end: int) -> None:
        self.disk.truncate(STREAM, end)
        self.at = end
        self.chain_emits(Truncated(STREAM, end))

    @property
    def schema(self) -> str:
        found = self.service.named("s")
        assert found is not None
        return str(found.schema)


def config(schema: str) -> Batch:
    return Batch.of(STREAM, [encode_policy(NewSchema(schema))], kind=CONFIG)


def test_events_of_earlier_versions_are_accepted_and_of_later_ones_not() -> None:
    bench = Typed()
    assert (bench.data(FIRST), bench.data(MORE)) == ("", "unknown-columns")
    assert bench.change(MORE) == ""
    bench.append(config(MORE))
    assert bench.schema == FIRST, "readers see a change when it is committed"
    assert (bench.data(FIRST), bench.data(MORE), bench.data(MOST)) == ("", "", "unknown-columns")
    assert bench.data(OTHER) == "bad-event"
    bench.commit()
    assert bench.schema == MORE
    bench.append(config(MOST))
    bench.commit()
    assert [bench.data(schema) for schema in (FIRST, MORE, MOST)] == [""] * 3
    bench.role(2)  # the same in a new epoch
    assert [bench.data(schema) for schema in (FIRST, MORE, MOST)] == [""] * 3


def test_s3_a_truncated_change_is_undone() -> None:
    bench = Typed()
    bench.append(Batch.of(STREAM, [b""], attributes=rows(FIRST)))
    bench.commit()
    bench.append(config(MORE))
    assert bench.data(MORE) == ""
    bench.truncate(2)  # before it was committed
    assert (bench.data(FIRST), bench.data(MORE)) == ("", "unknown-columns")
    bench.append(config(MORE))
    bench.commit()
    assert bench.schema == MORE
    bench.truncate(2)  # after it was committed: history was given up
    assert bench.schema == FIRST
    assert bench.data(FIRST) == "recovering"
    bench.service.streams[STREAM].suspended = ""
    assert (bench.data(FIRST), bench.data(MORE)) == ("", "unknown-columns")
    bench.append(config(OTHER))
    bench.commit()
    assert (bench.schema, bench.data(OTHER)) == (OTHER, "")


def test_changes_are_refused_for_a_reason_and_repeated_ones_have_no_effect() -> None:
    bench = Typed()
    for schema, why in (
        (FIRST, "unchanged"),
        (OTHER + ", c int8 not null", "schema-differs"),
        ("n int64", "schema-differs"),
        ("n int65", "bad-event"),
        (FIRST + ",x int8", "bad-event"),  # not the canonical text
        (FIRST + "".join(f", a_rather_long_name_{n} int64" for n in range(190)), "bad-spec"),
    ):
        assert bench.change(schema) == why, schema
    bench.append(config(MORE))
    # It may still be undone: whoever requests it, or another one, waits.
    assert [bench.change(schema) for schema in (MORE, OTHER, MOST)] == ["busy", "busy", ""]
    bench.commit()
    assert [bench.change(schema) for schema in (MORE, OTHER, MOST)] == [
        "unchanged",
        "schema-differs",
        "",
    ]


def test_a_change_that_does_not_extend_the_schema_has_no_effect() -> None:
    """No head accepts one; all replicas and readers treat one alike."""
    bench = Typed()
    for schema in (OTHER, "m int8", "n int65", MORE, OTHER.replace("bool", "int8")):
        bench.append(config(schema))
    bench.commit()
    bench.append(Batch.of(STREAM, [b""], attributes=rows(OTHER)))
    assert bench.schema == OTHER
    assert (bench.data(OTHER), bench.data(MORE)) == ("", "bad-event")


def test_a_schema_is_no_change_of_retention() -> None:
    bench = Typed()
    for n in range(3):
        bench.append(Batch.of(STREAM, [b"%d" % n], attributes=rows(FIRST)))
    bench.append(config(MORE))
    bench.commit()
    stream = bench.service.streams[STREAM]
    bench.service.feed(stream)
    assert not stream.reconfigured
    assert stream.index.policy == stream.created.retention
    assert list(stream.index.live(1, 5)) == [(1, 5)]


def test_a_head_waits_until_most_of_the_log_is_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert UNINDEXED_MAX >= 1 << 20, "in-flight events of a usual chain"
    monkeypatch.setattr("surecast.protocols.streams.service.UNINDEXED_MAX", 2)
    bench = Typed()
    for _ in range(3):
        bench.append(Batch.of(STREAM, [b""], attributes=rows(FIRST)))
    assert bench.data(FIRST) == "busy"
    bench.commit()
    bench.service.feed(bench.service.streams[STREAM])
    assert bench.data(FIRST) == ""


def test_answers_have_the_current_schema() -> None:
    bench = Typed()
    bench.append(config(MORE))
    bench.commit()

    def opened(schema: str) -> tuple[str, str]:
        spec = StreamSpec(schema=schema)
        out = bench.give(Received("c", CreateStream("s", spec)))
        ((_, message),) = sent(out, StreamOpened)
        assert message.info is not None
        return message.why, message.info.schema

    assert opened("") == opened(FIRST) == opened(MORE) == ("", MORE)
    for schema in (MOST, OTHER, "n int64", "s string"):
        assert opened(schema) == ("config-mismatch", MORE)
    assert bench.service.directory.by_name["s"].schema == FIRST  # what other regions are told


# ---------------------------------------------------------------- earlier versions


OLD = ("chain", "sprinkler", "streams")  # what nodes of earlier versions list
NEW = (*OLD, TYPED_BODIES)


def test_s5_a_client_of_an_earlier_version_is_sent_no_typed_events() -> None:
    bench = Typed()
    bench.append(Batch.of(STREAM, [b""], attributes=rows(FIRST)))
    bench.commit()
    asked = (Subscribe(STREAM, 1), ReadRange(STREAM, 1, 2), MeshRequest(STREAM, 1, 2))
    for speaks, answers in ((OLD, 0), (NEW, 3), ((), 3)):  # (): it has sent no list
        bench.give(PeerUp("c", speaks))
        out = [effect for message in asked for effect in bench.give(Received("c", message))]
        kinds = (Events, RangeEvents, MeshEvents)
        assert sum(len(sent(out, kind)) for kind in kinds) == answers, speaks
        assert bool(
            sent(bench.give(Received("c", MeshView(STREAM, (), 1, True))), MeshView)
        ) == bool(answers)
        bench.give(PeerDown("c"))
    assert bench.service.counters["streams.reader-too-old"] == 2
    assert bench.mesh.counters["sprinkler.reader-too-old"] == 2
    # A stream may be subscribed before it is known, and gets its schema then.
    bench = Bench()
    bench.role(1)
    for peer, speaks in (("old", OLD), ("new", NEW)):
        bench.give(PeerUp(peer, speaks))
        bench.give(Received(peer, Subscribe(STREAM, 1)))
    bench.list_stream(msgspec.structs.replace(INFO, owner="x", schema=FIRST))
    assert list(bench.service.serving.followers[STREAM]) == ["new"]


def test_s5_a_region_of_an_earlier_version_does_not_learn_of_typed_streams() -> None:
    bench = Typed()
    bench.append(Batch.of(STREAM, [b""], attributes=rows(FIRST)))
    bench.commit()
    subscribe = RegionSubscribe("y", 1, STREAM, 1, ())
    for speaks, streams in ((OLD, []), (NEW, ["s"])):
        out = bench.give(PeerUp("y/0", speaks))
        ((_, advertised),) = sent(out, Advertise)
        assert [info.name for info in advertised.infos] == streams
        assert list(advertised.ends) == [STREAM] * len(streams)
        out = bench.give(Received("y/0", subscribe))
        assert len(sent(out, PeerEvents)) == len(streams)
        spec = StreamSpec(schema=FIRST)
        out = bench.give(Received("c", CreateStream("t", spec)))
        assert [message.why for _, message in sent(out, StreamOpened)] == ["no-schemas"][
            : 1 - len(streams)
        ]
        bench.give(PeerDown("y/0"))
    assert bench.sync.counters["sprinkler.region-too-old"] == 1


def test_s5_schemas_are_used_when_every_server_was_upgraded() -> None:
    cluster = Cluster(1, {"east": 2, "west": 1})
    world = cluster.world

    def reinstall(node: str, lacks: frozenset[str]) -> None:
        world.nodes[node].lacks = lacks
        world.crash(node, lose_unsynced=False)
        world.restart(node)

    for node in ("east/1", "west/0"):
        reinstall(node, frozenset({TYPED_BODIES}))
    run(cluster, 2 * SECOND)
    cluster.open("opaque", "east", KeepAll())
    typed = StreamSpec(schema=FIRST)
    cluster.expect_refusal(world.now_ns, "east/pub0", "a", "no-schemas", typed)
    wait(cluster, lambda: not cluster.refusals)
    reinstall("west/0", frozenset())
    run(cluster, 2 * SECOND)
    cluster.expect_refusal(world.now_ns, "east/pub0", "b", "no-schemas", typed)
    wait(cluster, lambda: not cluster.refusals)
    reinstall("east/1", frozenset())
    run(cluster, 2 * SECOND)
    cluster.open("s", "east", KeepAll(), world.now_ns, schema=FIRST)
    wait(cluster, lambda: "s" in cluster.streams)
    reinstall("west/0", frozenset({TYPED_BODIES}))  # an earlier version is installed again
    run(cluster, 2 * SECOND)
    offer(cluster, b"a")
    run(cluster, 5 * SECOND)
    assert service(cluster, "west/0").end_of(cluster.streams["s"]) == 1
    asked = sum(cluster.counters[f"east/{n}"]["sprinkler.region-too-old"] for n in range(2))
    assert asked < 10, "it does not ask again and again"
    reinstall("west/0", frozenset())
    assert heal_and_judge(cluster) == []
