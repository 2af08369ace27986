"""Sessions deliver in order and once, or break with a PeerDown at both ends."""

from random import Random
from typing import Any

import pytest
from actors import Actor, Do, Load, Ping

from surecast.core.types import (
    MS,
    SECOND,
    US,
    Close,
    Congested,
    PeerDown,
    PeerUp,
    Received,
    Send,
    SetTimer,
    Start,
    TimerFired,
    Writable,
)
from surecast.errors import UsageError
from surecast.sim import Costs, Link, Trace, World
from surecast.sim.faults import Timed, draw


def pair(seed: int = 1, link: Link | None = None, **more: Any) -> World:
    world = World(seed, link or Link(delay_ns=10 * MS), **more)
    world.add("a", Actor)
    world.add("b", Actor)
    return world


def say(world: World, at_ns: int, src: str, dst: str, *numbers: int) -> None:
    world.at(at_ns, src, Do([Send(dst, Ping(number)) for number in numbers]))


def stream(world: World, src: str, dst: str, count: int, every_ns: int = MS) -> None:
    for number in range(count):
        say(world, number * every_ns, src, dst, number)


# ---------------------------------------------------------------- opening


def test_a_session_opens_in_a_round_trip_with_peerup_first_at_both_ends() -> None:
    world = pair()
    say(world, 0, "a", "b", 1, 2)
    world.run(until_ns=SECOND)
    a, b = world.machine("a"), world.machine("b")
    assert a.seen[1:] == [(20 * MS, PeerUp("b"))]
    assert b.seen[1:] == [
        (30 * MS, PeerUp("a")),
        (30 * MS, Received("a", Ping(1))),
        (30 * MS, Received("a", Ping(2))),
    ]


def test_both_may_open_at_once_and_share_one_session() -> None:
    world = pair()
    say(world, 0, "a", "b", 1)
    say(world, 5 * MS, "b", "a", 2)
    say(world, 15 * MS, "b", "a", 3)
    say(world, 25 * MS, "b", "a", 4)  # the handshake is complete at a, not at b
    world.run(until_ns=SECOND)
    a, b = world.machine("a"), world.machine("b")
    assert a.kinds() == ["Start", "PeerUp", "Received", "Received", "Received"]
    assert a.numbers() == [2, 3, 4]
    assert b.kinds() == ["Start", "PeerUp", "Received"]


def test_a_crashed_peer_refuses_after_a_round_trip() -> None:
    world = pair()
    world.crash("b")
    say(world, MS, "a", "b", 1)
    world.run(until_ns=SECOND)
    assert world.machine("a").seen[1:] == [(21 * MS, PeerDown("b"))]


def test_an_unreachable_peer_is_given_up_after_the_timeout() -> None:
    world = pair()
    world.cut("a", "b")
    say(world, 0, "a", "b", 1)
    world.run(until_ns=5 * SECOND)
    assert world.machine("a").seen[1:] == [(1 * SECOND, PeerDown("b"))]
    assert world.machine("b").kinds() == ["Start"]


def test_a_handshake_continues_after_a_mend() -> None:
    world = pair()
    world.cut("a", "b")
    say(world, 0, "a", "b", 1)
    world.call(500 * MS, lambda w: w.mend("a", "b"))
    world.run(until_ns=5 * SECOND)
    assert world.machine("a").seen[1:] == [(520 * MS, PeerUp("b"))]
    assert world.machine("b").numbers() == [1]


def test_sends_after_a_failed_attempt_wait_for_the_next_one() -> None:
    world = pair()
    world.crash("b")
    for at_ms in range(100):  # one send a millisecond, but few attempts
        say(world, at_ms * MS, "a", "b", at_ms)
    world.call(60 * MS, lambda w: w.restart("b"))
    world.run(until_ns=SECOND)
    a, b = world.machine("a"), world.machine("b")
    assert a.kinds() == ["Start", "PeerDown", "PeerUp"]
    up_ns = a.of(PeerUp)[0][0]
    assert 20 * MS + 50 * MS + 20 * MS <= up_ns <= 20 * MS + 75 * MS + 20 * MS
    assert b.numbers() == list(range(21, 100))  # the sends of the failed attempt are lost


def test_a_send_to_an_unknown_node_is_a_usage_error() -> None:
    for target in ("c", "a"):
        world = pair()
        say(world, 0, "a", target, 1)
        with pytest.raises(UsageError, match="not another node") as caught:
            world.run(until_ns=SECOND)
        assert target in str(caught.value)


# ---------------------------------------------------------------- in order


@pytest.mark.parametrize("seed", range(10))
def test_in_order_and_once_under_loss_and_jitter(seed: int) -> None:
    link = Link(delay_ns=5 * MS, jitter_ns=20 * MS, loss=0.3, duplicate=0.5, reorder=0.5)
    world = pair(seed, link)
    stream(world, "a", "b", 300)
    stream(world, "b", "a", 200)
    world.run(until_ns=60 * SECOND)
    assert world.machine("b").numbers() == list(range(300))
    assert world.machine("a").numbers() == list(range(200))


def test_loss_delays_messages_of_a_session() -> None:
    def arrival(loss: float) -> int:
        world = pair(3, Link(delay_ns=5 * MS, loss=loss))
        stream(world, "a", "b", 200)
        world.run(until_ns=60 * SECOND)
        return sum(now_ns for now_ns, _ in world.machine("b").of(Received))

    assert arrival(0.2) > arrival(0.0) + 200 * 2 * MS


@pytest.mark.parametrize("seed", range(30))
def test_in_order_through_short_cuts(seed: int) -> None:
    """Cuts shorter than the session timeout, of one or both directions, only delay messages."""
    rng = Random(f"cuts {seed}")
    world = pair(seed, Link(delay_ns=5 * MS, jitter_ns=rng.choice((0, 3 * MS))))
    stream(world, "a", "b", 1000)
    stream(world, "b", "a", 1000)
    at_ns = 50 * MS
    while at_ns < SECOND:
        a, b = rng.choice((("a", "b"), ("b", "a")))
        two_way = rng.random() < 0.5
        for_ns = rng.randint(1, 30 * MS)
        world.call(at_ns, lambda w, a=a, b=b, t=two_way: w.cut(a, b, two_way=t))
        world.call(at_ns + for_ns, lambda w: w.mend("a", "b"))
        at_ns += for_ns + rng.randint(1, 20 * MS)
    world.run(until_ns=10 * SECOND)
    for name in ("a", "b"):
        assert world.machine(name).numbers() == list(range(1000))
        assert not world.machine(name).of(PeerDown)


class Chatter(Actor):
    """Answers each message with further ones, now and by timer, up to 300 to each peer."""

    def __init__(self, ctx: Any, peers: tuple[str, ...]) -> None:
        super().__init__(ctx)
        self.peers = [peer for peer in peers if peer != ctx.name]
        self.said = dict.fromkeys(self.peers, 0)

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        self.seen.append((now_ns, inp))
        rng = self.ctx.rng
        if type(inp) is Received and max(self.said.values()) < 300:
            out = [self._next(peer) for peer in self.peers if rng.random() < 0.6]
            if rng.random() < 0.3:
                out.append(SetTimer(rng.choice("xyz"), now_ns + rng.randint(0, 5 * MS)))
            return out
        if type(inp) in (Do, TimerFired):
            return [self._next(peer) for peer in self.peers]
        return []

    def _next(self, peer: str) -> Send:
        self.said[peer] += 1
        return Send(peer, Ping(self.said[peer]))


def chat(seed: int, link: Link, *, spelled_out: bool = True) -> tuple[World, str]:
    names = ("a", "b", "c", "d")
    trace = Trace()
    world = World(seed, link, trace=trace)
    world.network.high_water_bytes = 1000
    for name in names:
        world.add(name, lambda ctx: Chatter(ctx, names))
        world.at(MS, name, Do([]))
        # An odd node is served by the general code instead of the inlined one.
        world.nodes[name].odd = not spelled_out
    world.run(until_ns=30 * SECOND)
    return world, trace.digest()


@pytest.mark.parametrize("seed", range(5))
def test_in_order_when_machines_answer_each_other(seed: int) -> None:
    world, _ = chat(seed, Link(delay_ns=MS, jitter_ns=5 * MS))
    for name in world.names():
        received = [inp for _, inp in world.machine(name).of(Received)]
        for peer in world.machine(name).peers:
            numbers = [inp.message.number for inp in received if inp.peer == peer]
            assert numbers == list(range(1, len(numbers) + 1))
            assert len(numbers) == world.machine(peer).said[name] > 100


@pytest.mark.parametrize(
    "link",
    [Link(delay_ns=MS, jitter_ns=5 * MS), Link(delay_ns=MS, loss=0.1, bandwidth_bps=1_000_000)],
    ids=["plain", "lossy"],
)
def test_the_inlined_code_of_the_loop_equals_the_general_code(link: Link) -> None:
    for seed in range(3):
        assert chat(seed, link)[1] == chat(seed, link, spelled_out=False)[1]


# ---------------------------------------------------------------- cuts


def test_a_cut_breaks_the_session_at_both_ends_and_loses_messages_in_flight() -> None:
    world = pair()
    say(world, 0, "a", "b", 1)
    world.call(100 * MS, lambda w: w.cut("a", "b"))
    say(world, 95 * MS, "a", "b", 2)  # in flight at the time of the cut
    say(world, 200 * MS, "b", "a", 3)
    world.call(4 * SECOND, lambda w: w.mend("a", "b"))
    world.run(until_ns=10 * SECOND)
    a, b = world.machine("a"), world.machine("b")
    assert a.kinds() == ["Start", "PeerUp", "PeerDown"]
    assert b.kinds() == ["Start", "PeerUp", "Received", "PeerDown"]
    for machine in (a, b):
        ((down_ns, _),) = machine.of(PeerDown)
        assert 2 * SECOND + 100 * MS <= down_ns <= 2.6 * SECOND
    assert a.of(PeerDown)[0][0] != b.of(PeerDown)[0][0]


def test_a_one_way_cut_lets_the_other_way_pass_until_the_session_breaks() -> None:
    world = pair()
    say(world, 0, "a", "b", 1)
    world.call(100 * MS, lambda w: w.cut("a", "b", two_way=False))
    for at_ms in range(200, 5000, 100):
        say(world, at_ms * MS, "a", "b", at_ms)
        say(world, at_ms * MS, "b", "a", at_ms)
    world.run(until_ns=5 * SECOND)
    a, b = world.machine("a"), world.machine("b")
    first_down = a.of(PeerDown)[0][0]
    assert first_down > 2 * SECOND
    got = [(now_ns, inp) for now_ns, inp in a.of(Received) if now_ns < first_down]
    assert len(got) >= 18
    assert b.numbers() == [1]
    assert b.of(PeerDown)


def test_sites_can_be_cut() -> None:
    world = World(1, Link(delay_ns=MS))
    names = ("east/0", "east/1", "west/0")
    for name in names:
        world.add(name, Actor)
    world.cut("east", "west")
    for name in names:
        for peer in names:
            if name != peer:
                say(world, 0, name, peer, 7)
    world.run(until_ns=500 * MS)
    assert world.machine("east/0").numbers() == [7]
    assert world.machine("east/1").numbers() == [7]
    assert world.machine("west/0").numbers() == []
    assert not world.reachable("east/0", "west/0")
    assert world.reachable("east/0", "east/1")
    world.heal_all()
    world.run(until_ns=900 * MS)
    assert world.machine("west/0").numbers() == [7, 7]


def test_a_node_can_be_cut_off_from_everyone() -> None:
    world = World(1, Link(delay_ns=MS))
    for name in ("a", "b", "c"):
        world.add(name, Actor)
    world.cut("b", "*")
    say(world, 0, "a", "b", 1)
    say(world, 0, "a", "c", 1)
    say(world, 0, "b", "c", 2)
    world.run(until_ns=900 * MS)
    assert world.machine("c").numbers() == [1]
    assert world.machine("b").numbers() == []


# ---------------------------------------------------------------- crashes


def test_a_crash_is_reported_to_connected_peers_at_once() -> None:
    world = pair()
    say(world, 0, "a", "b", 1)
    world.call(100 * MS, lambda w: w.crash("b"))
    world.run(until_ns=SECOND)
    ((down_ns, _),) = world.machine("a").of(PeerDown)
    assert 100 * MS + 200 * US <= down_ns <= 110 * MS + 200 * US
    assert world.machine("b") is None


def test_a_crash_behind_a_cut_is_noticed_by_timeout() -> None:
    world = pair()
    say(world, 0, "a", "b", 1)
    world.call(90 * MS, lambda w: w.cut("a", "b"))
    world.call(100 * MS, lambda w: w.crash("b"))
    world.run(until_ns=5 * SECOND)
    ((down_ns, _),) = world.machine("a").of(PeerDown)
    assert down_ns >= 2 * SECOND + 90 * MS


def test_a_crash_behind_a_cut_is_noticed_when_mended() -> None:
    world = pair()
    say(world, 0, "a", "b", 1)
    world.call(90 * MS, lambda w: w.cut("a", "b"))
    world.call(100 * MS, lambda w: w.crash("b"))
    world.call(200 * MS, lambda w: w.mend("a", "b"))
    world.run(until_ns=5 * SECOND)
    ((down_ns, _),) = world.machine("a").of(PeerDown)
    assert 200 * MS < down_ns < 211 * MS


def test_a_node_that_answered_an_attempt_gets_peerdown_when_the_other_crashed_behind_a_cut() -> (
    None
):
    world = pair()
    say(world, 0, "a", "b", 1)
    say(world, 5 * MS, "b", "a", 2)
    world.call(6 * MS, lambda w: (w.cut("a", "b"), w.crash("a")))
    world.run(until_ns=5 * SECOND)
    assert world.machine("b").seen[1:] == [(6 * MS + 1 * SECOND, PeerDown("a"))]


def test_a_new_session_ends_an_old_one_that_is_still_open_at_the_peer() -> None:
    world = pair()
    say(world, 0, "a", "b", 1)
    world.network.reset_ns = 10 * SECOND  # a is not told of b's crash
    world.call(100 * MS, lambda w: w.crash("b"))
    world.call(101 * MS, lambda w: w.restart("b"))
    say(world, 102 * MS, "b", "a", 2)
    say(world, 103 * MS, "a", "b", 3)  # still into the old session
    world.run(until_ns=SECOND)
    assert world.machine("a").kinds() == ["Start", "PeerUp", "PeerDown", "PeerUp", "Received"]
    assert world.machine("b").kinds() == ["Start", "PeerUp"]


class Resender(Actor):
    """Sends numbers to all peers, counted from 1 in each session; closes some sessions."""

    def __init__(self, ctx: Any, peers: tuple[str, ...]) -> None:
        super().__init__(ctx)
        self.peers = [peer for peer in peers if peer != ctx.name]
        self.session = dict.fromkeys(self.peers, 0)
        self.count = dict.fromkeys(self.peers, 0)

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        self.seen.append((now_ns, inp))
        if type(inp) is PeerUp:
            self.session[inp.peer] += 1
            self.count[inp.peer] = 0
        if type(inp) is not Do:
            return []
        out: list[Any] = []
        for peer in self.peers:
            self.count[peer] += 1
            tag = (self.ctx.incarnation, self.session[peer], self.count[peer])
            out.append(Send(peer, Load(tag, 100)))  # type: ignore[arg-type]
            if self.ctx.rng.random() < 0.005:
                out.append(Close(peer))
        return out


def check_life(seen: list[tuple[int, Any]]) -> int:
    """Check the guarantees for sessions in one run; returns the number of messages received."""
    up: dict[str, bool] = {}
    congested: dict[str, bool] = {}
    last: dict[str, Any] = {}
    count = 0
    for now_ns, inp in seen:
        kind = type(inp)
        if kind is Start:
            assert not last
            assert now_ns == seen[0][0]
        elif kind is PeerUp:
            assert not up.get(inp.peer), "up twice"
            up[inp.peer] = True
            last[inp.peer] = None
        elif kind is PeerDown:
            up[inp.peer] = False
            congested[inp.peer] = False
        elif kind is Congested:
            assert not congested.get(inp.peer)
            congested[inp.peer] = True
        elif kind is Writable:
            assert congested[inp.peer]
            congested[inp.peer] = False
        elif kind is Received:
            assert up.get(inp.peer), "a message outside a session"
            before, tag = last[inp.peer], inp.message.number
            if before is not None and tag[:2] == before[:2]:
                assert tag[2] == before[2] + 1, "a gap, a duplicate or a step back in a session"
            last[inp.peer] = tag
            count += 1
    return count


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_no_fault_breaks_the_rules_of_sessions(seed: int) -> None:
    """Many faults together; each run of each node gets sessions as `core.types` promises them."""
    rng = Random(f"faults {seed}")
    names = ("x/a", "x/b", "y/c")
    link = Link(delay_ns=5 * MS, jitter_ns=rng.choice((0, 4 * MS)), loss=rng.choice((0.0, 0.05)))
    costs = Costs(per_input_ns=rng.choice((10 * US, 2 * MS))) if seed % 3 == 0 else None
    world = World(seed, link, costs=costs)
    world.network.high_water_bytes = 5_000
    lives: list[Resender] = []

    def make(ctx: Any) -> Resender:
        lives.append(Resender(ctx, names))
        return lives[-1]

    for name in names:
        world.add(name, make)
        for at_ms in range(0, 10_000, 7):
            world.at(at_ms * MS, name, Do([]))
    pairs = [("x", "y"), ("x/a", "x/b"), ("x/b", "y/c")]
    kinds = ("cut", "one-way cut", "isolate", "degrade", "crash", "crash", "pause")
    for _ in range(20):
        at_ns, for_ns = rng.randint(0, 9 * SECOND), rng.choice((30 * MS, 300 * MS, 3 * SECOND))
        Timed(at_ns, for_ns, draw(rng, names, pairs, kinds)).schedule(world)
    world.call(12 * SECOND, lambda w: w.heal_all())
    for name in names:
        for at_ms in range(16_000, 17_000, 7):
            world.at(at_ms * MS, name, Do([]))
    world.run(until_ns=20 * SECOND)
    assert sum(check_life(life.seen) for life in lives) > 1000
    for name in names:  # healed: each node receives from all others
        late = [
            inp.peer for now_ns, inp in world.machine(name).of(Received) if now_ns > 16 * SECOND
        ]
        assert sorted(set(late)) == [peer for peer in names if peer != name]


# ---------------------------------------------------------------- closing


def test_close_drains_both_directions_and_is_reported_at_both_ends() -> None:
    world = pair(link=Link(delay_ns=10 * MS, bandwidth_bps=8_000_000))  # 1000 bytes a ms
    world.at(0, "a", Do([Send("b", Ping(0))]))
    loads = [Send("b", Load(number, 5000)) for number in range(10)]
    world.at(100 * MS, "a", Do([*loads, Close("b")]))
    world.at(100 * MS, "b", Do([Send("a", Load(number, 5000)) for number in range(20)]))
    world.run(until_ns=SECOND)
    a, b = world.machine("a"), world.machine("b")
    assert b.numbers() == [0, *range(10)]
    assert a.numbers() == list(range(20))
    assert a.kinds()[-1] == b.kinds()[-1] == "PeerDown"
    assert b.of(PeerDown)[0][0] < a.of(PeerDown)[0][0]


def test_a_send_after_close_opens_a_new_session() -> None:
    world = pair()
    world.at(0, "a", Do([Send("b", Ping(1)), Close("b"), Send("b", Ping(2))]))
    world.run(until_ns=SECOND)
    kinds = ["Start", "PeerUp", "Received", "PeerDown", "PeerUp", "Received"]
    assert world.machine("b").kinds() == kinds
    assert world.machine("b").numbers() == [1, 2]
    assert world.machine("a").kinds() == ["Start", "PeerUp", "PeerDown", "PeerUp"]


def test_both_may_close_at_once() -> None:
    world = pair()
    say(world, 0, "a", "b", 1)
    for name, peer in (("a", "b"), ("b", "a")):
        world.at(100 * MS, name, Do([Close(peer)]))
    world.run(until_ns=SECOND)
    assert world.machine("a").kinds() == ["Start", "PeerUp", "PeerDown"]
    assert world.machine("b").kinds() == ["Start", "PeerUp", "Received", "PeerDown"]


# ---------------------------------------------------------------- back-pressure


def test_congestion_begins_at_the_mark_and_ends_below_half_of_it() -> None:
    world = pair(link=Link(delay_ns=MS, bandwidth_bps=8_000_000))  # 1000 bytes a ms
    world.network.high_water_bytes = 10_000
    say(world, 0, "a", "b", 0)
    at_ns = 100 * MS
    world.at(at_ns, "a", Do([Send("b", Load(number, 1000)) for number in range(10)]))
    world.run(until_ns=SECOND)
    assert not world.machine("a").of(Congested)
    at_ns = SECOND
    world.at(at_ns, "a", Do([Send("b", Load(number, 1000)) for number in range(20)]))
    world.run(until_ns=2 * SECOND)
    a = world.machine("a")
    assert a.of(Congested) == [(at_ns, Congested("b"))]
    # 20,000 bytes queued; below 5000 when the sixteenth has arrived
    assert a.of(Writable) == [(at_ns + 17 * MS, Writable("b"))]


def test_a_paused_reader_congests_its_sender() -> None:
    world = pair()
    world.network.high_water_bytes = 10_000
    say(world, 0, "a", "b", 0)
    world.call(100 * MS, lambda w: w.pause("b"))
    for at_ms in range(200, 220):
        world.at(at_ms * MS, "a", Do([Send("b", Load(at_ms, 1000))]))
    world.call(500 * MS, lambda w: w.resume("b"))
    world.run(until_ns=SECOND)
    a = world.machine("a")
    assert [now_ns for now_ns, _ in a.of(Congested)] == [210 * MS]
    assert [now_ns for now_ns, _ in a.of(Writable)] == [500 * MS]
    assert world.machine("b").numbers() == [0, *range(200, 220)]


def test_a_reset_is_reported_at_both_ends_and_loses_messages_in_flight() -> None:
    world = pair()
    say(world, 0, "a", "b", 1)
    say(world, SECOND, "a", "b", 2)
    world.call(SECOND + MS, lambda w: w.reset_sessions("b"))
    say(world, 2 * SECOND, "a", "b", 3)
    world.run(until_ns=3 * SECOND)
    a, b = world.machine("a"), world.machine("b")
    assert [inp for _, inp in a.seen[1:]] == [PeerUp("b"), PeerDown("b"), PeerUp("b")]
    assert [inp for _, inp in b.seen[1:]] == [
        PeerUp("a"),
        Received("a", Ping(1)),
        PeerDown("a"),
        PeerUp("a"),
        Received("a", Ping(3)),
    ]
