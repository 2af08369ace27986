"""Sources of pulled streams: stall of the literal rule, damping, failed sources, moved tails."""

from typing import Any

import pytest

from surecast.columns.retention import KeepAll, RetentionIndex
from surecast.core.replicated import Appended
from surecast.core.types import MS, SECOND, Close, PeerDown, Received, Send
from surecast.protocols.sprinkler.config import SprinklerConfig, paper
from surecast.protocols.sprinkler.messages import (
    PeerEvents,
    RegionStale,
    RegionSubscribe,
    RegionUnsubscribe,
)
from surecast.protocols.sprinkler.region_sync import RegionSync
from surecast.protocols.sprinkler.sources import (
    Copy,
    Source,
    is_given_up,
    leads_enough,
    leads_literally,
    measure_rate,
)
from surecast.protocols.streams.messages import Events, Subscribe
from surecast.protocols.streams.stream import Stream
from surecast.sim.links import Link
from surecast_lab.swarm.cluster import Cluster
from tests.helpers import cluster_of, publish, run, settle, wait
from tests.protocols.bench import INFO, REGIONS, STREAM, Bench, sent


def region_of(cluster: Cluster, node: str, stream: str = "s") -> str:
    """The region from which a node pulls a stream; "" if it pulls from none."""
    regions = cluster.world.machine(node).layers["sprinkler"]
    held = regions.streams.get(cluster.streams[stream])
    return held.source.region if held and held.source else ""


def counted(cluster: Cluster, what: str, node: str) -> int:
    return cluster.counters[node][f"sprinkler.{what}"]


# ---------------------------------------------------------------- scenarios


def source_dies_before_it_sends(switching: str) -> Cluster:
    """z subscribes to x, which advertised n; x crashes before the subscription arrives; y
    advertises n, too."""
    cluster = cluster_of(
        {"y": 1, "x": 1, "z": 1}, {"s": ("y", KeepAll())}, server={"switching": switching}
    )
    world = cluster.world
    run(cluster, 5 * SECOND)  # so that C / T is small
    world.cut("y", "z")
    publish(cluster, 5)
    wait(cluster, lambda: region_of(cluster, "z/0") == "x")
    world.crash("x/0")
    world.mend("y", "z")
    run(cluster, 60 * SECOND)  # without new events
    return cluster


def test_literal_rule_stalls_on_idle_stream() -> None:
    """The paper's rule waits for an advertisement above n, which never comes."""
    stalled = source_dies_before_it_sends("literal")
    assert region_of(stalled, "z/0") == "x"
    assert stalled.position("y/sub0", "s") == 6
    assert stalled.position("z/sub0", "s") == 1


def test_production_rule_converges_on_idle_stream() -> None:
    cluster = source_dies_before_it_sends("production")
    assert region_of(cluster, "z/0") == "y"
    assert cluster.position("z/sub0", "s") == 6


def test_literal_rule_moves_on_when_publishing_continues() -> None:
    """Only idle streams stall; otherwise the test above would prove too much."""
    cluster = source_dies_before_it_sends("literal")
    publish(cluster, 5)
    wait(cluster, lambda: cluster.position("z/sub0", "s") == 11, 5 * SECOND)


def switches_under_load(**server: Any) -> int:
    """How often z changes between two equal relays in 4 s of 300 events/s without faults."""
    cluster = cluster_of(
        {"y": 1, "v": 1, "w": 1, "z": 1},
        {"s": ("y", KeepAll())},
        server=server,
        delay_ns=lambda a, b: (200 if (a, b) == ("y", "z") else 20) * MS,
    )
    for a, b in (("y", "v"), ("y", "w"), ("v", "z"), ("w", "z")):
        cluster.world.set_link(a, b, Link(15 * MS, jitter_ns=10 * MS))
    run(cluster, 2 * SECOND)
    start_ns = cluster.world.now_ns
    for i in range(1500):
        at_ns = start_ns + i * SECOND // 300
        cluster.offer(at_ns, "y/pub0", "s", [f"{i}".encode()])
    run(cluster, SECOND)
    before = counted(cluster, "switched", "z/0")
    run(cluster, 4 * SECOND)
    assert cluster.position("z/sub0", "s") > 1400
    assert region_of(cluster, "z/0") in ("v", "w")
    return counted(cluster, "switched", "z/0") - before


@pytest.mark.slow
def test_a_region_does_not_alternate_between_equal_sources() -> None:
    assert switches_under_load() == 0


@pytest.mark.slow
def test_without_damping_a_region_alternates_between_sources() -> None:
    """The measure of the test above can show flapping."""
    assert switches_under_load(switching="literal", literal_damping=1e-9) > 5


def test_a_silent_source_is_given_up_after_dead_ns() -> None:
    """x is paused: its session stays up, and only its advertisements are missing."""
    cluster = cluster_of({"y": 1, "x": 1, "z": 1}, {"s": ("y", KeepAll())})
    world = cluster.world
    world.cut("y", "z")
    publish(cluster, 5)
    settle(cluster)
    world.mend("y", "z")
    run(cluster, SECOND)
    assert region_of(cluster, "z/0") == "x"
    world.pause("x/0")
    paused_ns = world.now_ns
    publish(cluster, 1)
    wait(cluster, lambda: region_of(cluster, "z/0") == "y", 5 * SECOND)
    config = world.machine("z/0").layers["sprinkler"].config
    assert world.now_ns - paused_ns < config.dead_ns + 3 * config.advertise_ns
    wait(cluster, lambda: cluster.position("z/sub0", "s") == 7, SECOND)


def test_a_silent_source_of_an_idle_stream_is_given_up_too() -> None:
    cluster = cluster_of({"y": 1, "x": 1, "z": 1}, {"s": ("y", KeepAll())})
    publish(cluster, 5)
    settle(cluster)
    source = region_of(cluster, "z/0")
    given_up = counted(cluster, "source-given-up", "z/0")
    cluster.world.pause(f"{source}/0")
    run(cluster, 400 * MS)
    assert counted(cluster, "source-given-up", "z/0") == given_up  # A_dead is 500 ms
    run(cluster, 400 * MS)
    assert counted(cluster, "source-given-up", "z/0") == given_up + 1
    assert region_of(cluster, "z/0") == ""  # no region is ahead, so none is chosen


def test_a_region_without_a_source_uses_the_first_one_that_comes_back() -> None:
    cluster = cluster_of({"y": 1, "x": 1, "z": 1}, {"s": ("y", KeepAll())})
    publish(cluster, 5)
    settle(cluster)
    cluster.world.cut("z", "*")
    publish(cluster, 5)
    run(cluster, 10 * SECOND)
    assert region_of(cluster, "z/0") == ""
    assert cluster.position("x/sub0", "s") == 11
    cluster.world.mend("z", "*")
    settle(cluster)


class Overheard(RegionSync):
    """Logs the subscriptions that all replicas send, in one list."""

    log: list[tuple[int, str, str, RegionSubscribe]]

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        out = super().step(now_ns, inp)
        for effect in out:
            if type(effect) is Send and type(effect.message) is RegionSubscribe:
                self.log.append((now_ns, self.config.name, effect.peer, effect.message))
        return out


@pytest.mark.parametrize("dies", ["y/1", "y/0"], ids=["tail", "head"])
def test_a_higher_epoch_of_the_source_leads_to_a_new_subscription(dies: str) -> None:
    log: list[tuple[int, str, str, RegionSubscribe]] = []
    listening = type("Listening", (Overheard,), {"log": log})
    cluster = cluster_of(
        {"y": 2, "x": 1},
        {"s": ("y", KeepAll())},
        types=(listening,),
        chain={"min_replicas": 1},
    )
    publish(cluster, 5)
    settle(cluster)
    assert region_of(cluster, "x/0") == "y"
    log.clear()
    cluster.world.crash(dies)
    wait(cluster, lambda: len(cluster.members("y")) == 1)
    publish(cluster, 5)
    settle(cluster)
    left = "y/0" if dies == "y/1" else "y/1"
    to_left = [message for _, _, peer, message in log if peer == left]
    assert to_left
    assert {message.start for message in to_left} <= set(range(6, 12))  # from where it stood
    run(cluster, SECOND)
    peers = cluster.world.machine("x/0").layers["sprinkler"].peers
    assert (peers["y"].epoch, peers["y"].tail) == (2, left)


# ---------------------------------------------------------------- one replica, step by step


def test_an_advertisement_of_an_old_epoch_is_answered_stale() -> None:
    bench = Bench()
    bench.role(1)
    bench.add_stream()
    bench.advertised_by("y/1", 3, end=5)
    out = bench.advertised_by("y/0", 2, end=9)
    assert sent(out, RegionStale) == [("y/0", RegionStale("y", 3))]
    assert bench.sync.peers["y"].tail == "y/1"
    assert bench.sync.peers["y"].ends == {STREAM: 5}  # the old epoch's end is ignored
    assert bench.sync.streams[STREAM].source.node == "y/1"


def test_a_replica_that_is_not_head_also_answers_stale() -> None:
    bench = Bench("x/1")
    bench.role(1, head=False)
    bench.advertised_by("y/1", 3, end=5)
    assert sent(bench.advertised_by("y/0", 2, end=9), RegionStale) == [("y/0", RegionStale("y", 3))]


def test_a_subscription_of_an_old_epoch_is_answered_stale() -> None:
    bench = Bench()
    bench.role(1)
    bench.add_stream()
    bench.advertised_by("y/1", 3, end=1)
    out = bench.give(Received("y/0", RegionSubscribe("y", 2, STREAM, 1)))
    assert sent(out, RegionStale) == [("y/0", RegionStale("y", 3))]
    assert sent(out, PeerEvents) == []
    out = bench.give(Received("y/0", RegionSubscribe("y", 3, STREAM, 1)))
    assert sent(out, RegionStale) == []
    assert sent(out, PeerEvents) == [("y/0", PeerEvents(STREAM, (), 1))]


def test_only_the_tail_serves_other_regions_but_every_replica_serves_clients() -> None:
    bench = Bench()
    bench.role(1, tail=False)
    bench.add_stream()
    assert bench.give(Received("y/0", RegionSubscribe("y", 1, STREAM, 1))) == []
    out = bench.give(Received("x/client", Subscribe(STREAM, 1)))
    assert [peer for peer, _ in sent(out, Events)] == ["x/client"]


def test_a_tail_that_receives_stale_stops_serving_other_regions() -> None:
    bench = Bench()
    bench.role(1)
    bench.add_stream()
    assert bench.sync.is_tail
    assert bench.give(Received("y/0", RegionStale("x", 1))) == []  # our current epoch
    assert bench.give(Received("y/0", RegionStale("z", 9))) == []  # of another region
    out = bench.give(Received("y/0", RegionStale("x", 2)))
    assert {e.peer for e in out if type(e) is Close} == {"y/0", "y/1", "z/0"}
    assert not bench.sync.is_tail


def test_a_tail_that_hands_over_closes_its_sessions_to_other_regions() -> None:
    bench = Bench()
    bench.role(1)
    out = bench.role(2, tail=False)
    assert {e.peer for e in out if type(e) is Close} == {"y/0", "y/1", "z/0"}


def test_a_moved_tail_is_subscribed_to_from_the_own_end() -> None:
    bench = Bench()
    bench.role(1)
    bench.add_stream(end=4)
    assert sent(bench.advertised_by("y/0", 1, end=9), RegionSubscribe) == [
        ("y/0", RegionSubscribe("x", 1, STREAM, 4)),
    ]
    again = bench.advertised_by("y/0", 1, end=9)
    assert sent(again, RegionSubscribe) == []  # nothing to do
    bench.chain_emits(Appended(STREAM, 7))
    for node, epoch in (("y/0", 2), ("y/1", 2)):  # a higher epoch, then another tail
        assert sent(bench.advertised_by(node, epoch, end=9), RegionSubscribe) == [
            (node, RegionSubscribe("x", 1, STREAM, 7)),
        ]


def test_a_source_that_goes_down_is_replaced_at_once() -> None:
    bench = Bench()
    bench.role(1)
    stream = bench.add_stream()
    bench.advertised_by("y/0", 1, end=9)
    bench.advertised_by("z/0", 1, end=9)
    assert stream.source.region == "y"
    out = bench.give(PeerDown("y/0"))
    assert sent(out, RegionSubscribe) == [("z/0", RegionSubscribe("x", 1, STREAM, 1))]


def test_a_region_that_is_not_ahead_is_not_chosen_as_source() -> None:
    bench = Bench()
    bench.role(1)
    stream = bench.add_stream(end=9)
    assert sent(bench.advertised_by("y/0", 1, end=9), RegionSubscribe) == []
    assert stream.source is None
    assert sent(bench.advertised_by("z/0", 1, end=10), RegionSubscribe) != []


def test_an_owner_does_not_pull_its_own_stream() -> None:
    bench = Bench("y/0")
    bench.role(1)
    stream = bench.add_stream(end=9)
    assert sent(bench.advertised_by("x/0", 1, end=9), RegionSubscribe) == []
    assert stream.source is None


def test_a_new_head_knows_only_its_own_log() -> None:
    bench = Bench()
    bench.role(1)
    stream = bench.add_stream(end=4)
    bench.advertised_by("y/0", 1, end=9)
    assert stream.source is not None
    bench.role(2, head=False)
    assert stream.source is None
    bench.chain_emits(Appended(STREAM, 6))
    assert sent(bench.role(3), RegionSubscribe) == [("y/0", RegionSubscribe("x", 3, STREAM, 6))]


def test_events_of_a_former_source_are_appended_if_they_fit() -> None:
    """Late events of a former source are the same events, so they can be used."""
    bench = Bench()
    bench.role(1)
    bench.add_stream(end=4)
    bench.advertised_by("y/0", 1, end=9)
    bench.advertised_by("z/0", 1, end=50)
    late = PeerEvents(STREAM, (), 9)
    assert sent(bench.give(Received("y/0", late)), RegionUnsubscribe) == []


def test_events_for_a_replica_that_is_not_head_are_unsubscribed() -> None:
    bench = Bench()
    bench.role(1, head=False)
    bench.add_stream()
    out = bench.give(Received("y/0", PeerEvents(STREAM, (), 9)))
    assert sent(out, RegionUnsubscribe) == [("y/0", RegionUnsubscribe(STREAM))]


# ---------------------------------------------------------------- the rules in numbers

CONFIG = SprinklerConfig("x", "x/0", REGIONS)  # A = 100 ms, A_dead = 500 ms


def pulled(end: int, source_end: int, *, rate: float = 0.0) -> Copy:
    """A stream that ends here at `end`; its source advertised `source_end` at time 0."""
    stream = Copy(INFO, Stream(INFO, RetentionIndex(KeepAll()), end=end), rate=rate)
    stream.source = Source("y", "y/0", source_end, 0, 0)
    return stream


def test_the_literal_rule_by_numbers() -> None:
    literal = paper("x", "x/0", REGIONS)
    assert literal.literal_damping == 1.0  # C, event seconds
    source = Source("y", "y/0", 101, 0, 0)  # 100 events
    for end, now_ns, leads in (
        (103, 500 * MS, False),  # 102 > 100 + 1 / 0.5? No
        (104, 500 * MS, True),
        (102, SECOND, False),
        (102, 1001 * MS, True),
        (101, 3600 * SECOND, False),  # waiting alone never suffices: the stall
        (10**9, 0, False),  # no time has passed
    ):
        assert leads_literally(source, end, now_ns, literal) is leads, (end, now_ns)


def test_the_literal_rule_without_a_source_counts_from_time_zero() -> None:
    literal = paper("x", "x/0", REGIONS)
    assert not leads_literally(None, 2, 900 * MS, literal)
    assert leads_literally(None, 3, 900 * MS, literal)
    assert not leads_literally(None, 1, 3600 * SECOND, literal)  # an empty stream


@pytest.mark.parametrize(
    ("rate", "lead", "after_ms", "moves"),
    [
        # C = r A (A + 10 ms), here 0.011 r; it moves when lead × elapsed > C.
        (1000, 100, 100, False),  # an equal source that advertised a period later
        (1000, 109, 100, False),
        (1000, 111, 100, True),
        (1000, 1, 600, False),  # a small lead must last (see the next test)
        (1000, 30, 400, True),
        # Below one event a period the rate counts as that: C is 0.11.
        (0, 1, 100, False),
        (0, 1, 120, True),
        (0, 2, 60, True),
        (0, 2, 50, False),
    ],
)
def test_the_production_rule_by_numbers(rate: int, lead: int, after_ms: int, moves: bool) -> None:
    stream = pulled(end=500, source_end=500, rate=rate)
    assert leads_enough(stream, "z", 500 + lead, after_ms * MS, CONFIG) is moves


def test_a_small_lead_that_lasts_is_enough() -> None:
    stream = pulled(end=500, source_end=500, rate=50)
    stream.source.advertised_ns = 500 * MS  # the source advertises too, so C / T does not decide
    for now_ms in range(0, 501, 100):
        assert not leads_enough(stream, "z", 501, now_ms * MS, CONFIG)
    assert leads_enough(stream, "z", 501, 501 * MS, CONFIG)


def test_a_region_does_not_move_without_a_lead_over_its_source_and_itself() -> None:
    assert not leads_enough(pulled(500, 500), "z", 500, 3600 * SECOND, CONFIG)
    assert not leads_enough(pulled(500, 400), "z", 450, 3600 * SECOND, CONFIG)
    assert not leads_enough(pulled(400, 500), "z", 450, 3600 * SECOND, CONFIG)


def test_a_source_is_given_up_when_silent_or_stuck() -> None:
    idle = pulled(500, 500)
    assert not is_given_up(idle, 500 * MS, CONFIG)
    assert is_given_up(idle, 501 * MS, CONFIG)  # silent
    idle.source.advertised_ns = 501 * MS
    assert not is_given_up(idle, 1000 * MS, CONFIG)  # it advertises, and we have all its events
    idle.source.end = 501
    assert is_given_up(idle, 1000 * MS, CONFIG)  # ahead of us, but nothing arrives
    idle.source.progress_ns = 900 * MS
    assert not is_given_up(idle, 1000 * MS, CONFIG)


def test_the_rate_is_smoothed_over_periods() -> None:
    stream = pulled(1, 1)
    for end in (101, 201, 301):
        stream.state.end = end
        measure_rate(stream, 100 * MS)  # 1000 events a second
    assert stream.rate == pytest.approx(1000 * (1 - 0.7**3))
    for _ in range(30):
        measure_rate(stream, 100 * MS)
    assert stream.rate < 1
