"""Retention reads the log in bounded runs; late readers get only what it has processed."""

from typing import Any

import pytest

from surecast.columns import retention
from surecast.columns.batch import COLLECT, Batch
from surecast.columns.retention import BeforeSeq, Collect, KeepLast, LatestPerKey, TagIs
from surecast.core.types import MS, SECOND, EndOfPass, Received, Send
from surecast.protocols.sprinkler.messages import MeshEvents, MeshRequest
from surecast.protocols.streams.messages import Events, Publish, RangeEvents, ReadRange, Subscribe
from surecast_lab.swarm.cluster import Cluster
from tests import mutations
from tests.helpers import cluster_of, heal_and_judge, publish, run, settle, wait

NEVER = 3600 * SECOND


def service(cluster: Cluster, node: str = "east/0") -> Any:
    return cluster.world.machine(node).layers["streams"]


def ask(cluster: Cluster, message: Any, node: str = "east/0") -> list[Any]:
    """The messages that a replica sends at once to a reader that sent `message`."""
    effects = cluster.world.machine(node).step(cluster.world.now_ns, Received("reader", message))
    return [e.message for e in effects if isinstance(e, Send) and e.peer == "reader"]


def unfed(mutant: type | None = None, **options: Any) -> tuple[Cluster, bytes]:
    """A stream of ten committed events of one key; retention has processed the first four."""
    cluster = cluster_of(
        {"east": 1}, {"s": ("east", LatestPerKey())}, mutant=mutant, publishers=2, **options
    )
    world, stream = cluster.world, cluster.streams["s"]
    for i in range(4):
        cluster.offer(world.now_ns, "east/pub0", "s", [b"%d" % i], [b"k"])
    settle(cluster)
    run(cluster, SECOND)
    machine = service(cluster)
    assert machine.streams[stream].index.end == 5
    for i in range(4, 10):
        cluster.offer(world.now_ns, "east/pub0", "s", [b"%d" % i], [b"k"])
    wait(cluster, lambda: machine.streams[stream].committed == 11)
    # The seed is fixed. If the timer fires in between after some change, choose another seed.
    assert machine.streams[stream].index.end == 5
    return cluster, stream


@pytest.mark.parametrize("start", [1, 3])
def test_a_reader_before_the_recent_part_gets_only_live_events(start: int) -> None:
    cluster, stream = unfed()
    assert service(cluster).streams[stream].recent > start
    (message,) = ask(cluster, Subscribe(stream, start))
    assert [row.value for b in message.batches for row in b.to_rows()] == [b"9"]
    assert (message.batches[0].lo, message.batches[-1].hi) == (start, 11)
    assert service(cluster).streams[stream].index.end == 11


def test_a_reader_of_the_recent_part_gets_whole_batches() -> None:
    cluster, stream = unfed()
    recent = service(cluster).streams[stream].recent
    messages = ask(cluster, Subscribe(stream, recent))
    batches = [b for m in messages for b in m.batches]
    assert sum(b.rows for b in batches) == 11 - recent
    assert service(cluster).streams[stream].index.end == 5


def test_without_feeding_a_late_reader_gets_void_events() -> None:
    cluster, stream = unfed(mutations.ServesUnfed)
    try:
        (message,) = ask(cluster, Subscribe(stream, 1))
    except AssertionError:
        return  # an assertion in the service may notice it
    assert len([row for b in message.batches for row in b.to_rows()]) > 1


@pytest.mark.parametrize("asks", [ReadRange, MeshRequest])
def test_a_range_before_the_recent_part_has_only_live_events(asks: type) -> None:
    cluster, stream = unfed()
    (message,) = ask(cluster, asks(stream, 1, 0))
    assert [row.value for b in message.batches for row in b.to_rows()] == [b"9"]


# ---------------------------------------------------------------- quarantine


def damaged(start: int = 1) -> tuple[Cluster, bytes]:
    """A committed batch is older than the one before it; retention has not processed it yet."""
    cluster, stream = unfed()
    machine = cluster.world.machine("east/0")
    old = cluster.world.disk("east/0").read(stream, 1, 2, 1)[0]
    bad = old.sequenced(11, 1, 1)
    cluster.world.disk("east/0").append(stream, (bad,))
    service(cluster).committed[stream] = 12
    service(cluster).streams[stream].committed = 12
    assert machine is not None
    return cluster, stream


@pytest.mark.parametrize("start", [1, 4])
def test_quarantine_found_while_a_reader_is_served_stops_there(start: int) -> None:
    cluster, stream = damaged()
    messages = ask(cluster, Subscribe(stream, start))
    assert "older" in service(cluster).streams[stream].quarantined
    assert max((m.batches[-1].hi for m in messages if m.batches), default=11) == 11
    assert service(cluster).streams[stream].committed == 11


def test_quarantine_does_not_crash_for_a_reader_at_the_damaged_position() -> None:
    cluster, stream = damaged()
    service(cluster).streams[stream].recent = 12  # as if the batch were not recent
    assert ask(cluster, Subscribe(stream, 11)) in (
        [],
        [Events(stream, (), 11)],
    )
    assert service(cluster).streams[stream].quarantined


@pytest.mark.parametrize(("lo", "hi"), [(1, 0), (1, 12), (11, 12)])
@pytest.mark.parametrize(("asks", "gets"), [(ReadRange, RangeEvents), (MeshRequest, MeshEvents)])
def test_quarantine_found_while_a_range_is_served_stops_there(
    lo: int, hi: int, asks: type, gets: type
) -> None:
    cluster, stream = damaged()
    service(cluster).streams[stream].recent = 12
    messages = ask(cluster, asks(stream, lo, hi))
    assert service(cluster).streams[stream].quarantined
    assert isinstance(messages[-1], gets)
    assert messages[-1].last
    assert messages[-1].end == 11
    assert all(b.hi <= 11 for m in messages for b in m.batches)


# ---------------------------------------------------------------- bounded steps


def long_log(mutant: type | None = None) -> tuple[Cluster, bytes]:
    """A log of 3000 events at a replica whose retention reads few events at a time."""
    cluster = cluster_of(
        {"east": 1, "west": 1},
        {"s": ("east", KeepLast(50))},
        mutant=mutant,
        server={"feed_rows": 100, "feed_bytes": 4000, "serve_bytes_max": 2000, "compact_ns": NEVER},
    )
    for i in range(150):
        values = [b"%d.%d" % (i, j) for j in range(20)]
        cluster.offer(cluster.world.now_ns + i * MS, "east/pub0", "s", values)
    run(cluster, SECOND)
    settle(cluster)
    run(cluster, 300 * MS)  # the committed end is saved
    return cluster, cluster.streams["s"]


def steps_of_a_restart(cluster: Cluster, stream: bytes) -> list[int]:
    """Restart the replica; the number of positions that retention processed at each step."""
    world = cluster.world
    world.crash("east/0")
    taken: list[int] = []
    world.restart("east/0")
    machine = world.machine("east/0")
    real = machine.step

    def step(now_ns: int, inp: Any) -> list[Any]:
        before = machine.layers["streams"].streams.get(stream)
        at = before.index.end if before else 1
        out: list[Any] = real(now_ns, inp)
        if found := machine.layers["streams"].streams.get(stream):
            taken.append(found.index.end - at)
            assert found.committed - found.index.end < 100 + 50
        return out

    world.nodes["east/0"].step = step
    run(cluster, 2 * SECOND)
    return taken


def test_retention_reads_a_long_log_in_bounded_steps() -> None:
    cluster, stream = long_log()
    taken = steps_of_a_restart(cluster, stream)
    assert sum(taken) > 2500
    assert max(taken) < 500
    assert heal_and_judge(cluster) == []


def test_reading_a_long_log_in_one_step_is_noticed() -> None:
    cluster, stream = long_log(mutations.FeedsAtOnce)
    assert max(steps_of_a_restart(cluster, stream)) > 1000


def test_the_visible_end_never_goes_back_when_a_run_exceeds_the_budget() -> None:
    """Events that exceed the budget must not make the visible end of the stream go back."""
    cluster, stream = unfed(server={"feed_rows": 8, "feed_bytes": 1, "serve_bytes_max": 1})
    machine, found = service(cluster), service(cluster).streams[stream]
    assert (found.index.end, found.committed) == (5, 11)
    disk = cluster.world.disk("east/0")
    last = disk.read(stream, 10, 11, 1)[0]
    for seq in range(11, 40):
        disk.append(stream, (last.sequenced(seq, last.time_ns, 1),))
    machine.committed[stream] = 40
    ends = []
    machine.step(cluster.world.now_ns, EndOfPass("serve"))  # a fresh `out`
    for _ in range(60):
        machine._advance(found)
        ends.append(found.committed)
    assert ends == sorted(ends)
    assert ends[0] >= 11
    assert ends[-1] == 40


def test_a_rule_is_refused_as_busy_until_all_earlier_events_are_processed() -> None:
    """While retention reads a long log, rules are refused as busy: the policy is not known yet."""
    cluster, stream = unfed(server={"feed_rows": 1 << 14})
    machine, found = service(cluster), service(cluster).streams[stream]
    rule = retention.encode_collect(Collect(BeforeSeq(3)))
    batch = Batch.of(stream, [rule], kind=COLLECT).numbered(bytes(8) + b"12345678", 1)
    machine.committed[stream] = 100  # more is committed than visible
    assert machine._refusal(Publish(stream, batch)) == "busy"
    data = Batch.of(stream, [b"x"]).numbered(bytes(8) + b"12345678", 1)
    assert machine._refusal(Publish(stream, data)) == ""
    machine.committed[stream] = found.committed
    assert machine._refusal(Publish(stream, batch)) == ""
    tag = retention.encode_collect(Collect(TagIs(b"red")))
    bad = Batch.of(stream, [tag], kind=COLLECT).numbered(bytes(8) + b"12345678", 1)
    assert machine._refusal_of_event(found, bad) == "bad-event"


def test_publishing_goes_on_while_a_late_reader_is_served() -> None:
    cluster, _ = unfed()
    publish(cluster, 30, "east/pub1")
    cluster.add_subscriber("east/late")
    publish(cluster, 30, "east/pub1")
    assert heal_and_judge(cluster) == []
