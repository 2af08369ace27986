"""The world: time, timers, restarts, clocks, pauses, costs."""

from typing import Any

import pytest
from actors import LOG, Actor, Do, Load, Ping, batch

from surecast.core.types import (
    MS,
    SECOND,
    US,
    Append,
    CancelTimer,
    ClockSet,
    Deliver,
    Emit,
    PassDown,
    Received,
    Send,
    SetTimer,
    Start,
    TimerFired,
)
from surecast.errors import UsageError
from surecast.sim import Costs, Link, World


def solo(**more: Any) -> World:
    world = World(1, Link(delay_ns=MS), **more)
    world.add("a", Actor)
    return world


# ---------------------------------------------------------------- time and timers


def test_start_is_the_first_input_and_has_wall_time_and_incarnation() -> None:
    world = World(1)
    world.add("a", Actor, wall_ns=1000)
    world.at(0, "a", Ping(1))
    world.run(until_ns=5 * MS)
    assert world.machine("a").seen == [(0, Start(1000, 1)), (0, Ping(1))]
    world.crash("a")
    world.run(until_ns=8 * MS)
    world.restart("a")
    world.run(until_ns=9 * MS)
    assert world.machine("a").seen == [(8 * MS, Start(1000 + 8 * MS, 2))]


def test_timers_fire_once_at_their_time_and_can_be_moved_and_cancelled() -> None:
    world = solo()
    timers = [SetTimer(key, 10 * MS) for key in ("stays", "moved", "gone", ("tuple", 1))]
    world.at(0, "a", Do(timers))
    world.at(MS, "a", Do([SetTimer("moved", 20 * MS), CancelTimer("gone"), CancelTimer("?")]))
    world.at(30 * MS, "a", Do([SetTimer("late", 5 * MS)]))  # in the past: fires at once
    world.run(until_ns=SECOND)
    assert world.machine("a").of(TimerFired) == [
        (10 * MS, TimerFired("stays")),
        (10 * MS, TimerFired(("tuple", 1))),
        (20 * MS, TimerFired("moved")),
        (30 * MS, TimerFired("late")),
    ]


def test_a_timer_can_be_set_again_when_it_fires() -> None:
    class Clock(Actor):
        def step(self, now_ns: int, inp: Any) -> list[Any]:
            self.seen.append((now_ns, inp))
            return [SetTimer("tick", now_ns + MS)]

    world = World(1)
    world.add("a", Clock)
    world.run(until_ns=100 * MS)
    assert [now_ns for now_ns, _ in world.machine("a").of(TimerFired)] == [
        n * MS for n in range(1, 101)
    ]


def test_inputs_at_one_instant_are_handled_in_the_order_of_scheduling() -> None:
    world = solo()
    for number in range(50):
        world.at(7 * MS, "a", Ping(number))
        world.at(7 * MS - number, "a", Ping(100 + number))
    world.run(until_ns=7 * MS)
    numbers = [inp.number for _, inp in world.machine("a").of(Ping)]
    early, rest = numbers[:49], numbers[49:]
    assert early == [100 + number for number in range(49, 0, -1)]
    assert rest == [0, 100, *range(1, 50)]


def test_run_stops_at_its_limit_and_continues_from_there() -> None:
    world = solo()
    for at_ms in (1, 2, 3):
        world.at(at_ms * MS, "a", Ping(at_ms))
    assert world.run(until_ns=2 * MS)
    assert (world.now_ns, len(world.machine("a").of(Ping))) == (2 * MS, 2)
    world.at(0, "a", Ping(9))  # a time in the past means now
    assert not world.run(until_ns=SECOND)
    assert [now_ns for now_ns, _ in world.machine("a").of(Ping)] == [MS, 2 * MS, 2 * MS, 3 * MS]
    assert world.now_ns == SECOND


def test_run_handles_inputs_due_at_its_limit() -> None:
    world = solo()
    world.run(until_ns=0)
    assert world.machine("a").kinds() == ["Start"]
    world.run(until_ns=MS)
    world.at(MS, "a", Ping(1))
    assert not world.run(until_ns=MS)
    assert world.machine("a").kinds() == ["Start", "Ping"]


def test_run_until_checks_the_predicate_at_intervals() -> None:
    world = solo()
    for at_ms in range(100):
        world.at(at_ms * MS, "a", Ping(at_ms))
    checks = []

    def enough(w: World) -> bool:
        checks.append(w.now_ns)
        return len(w.machine("a").of(Ping)) >= 25

    assert world.run(until_ns=SECOND, until=enough)
    assert checks == [0, 10 * MS, 20 * MS, 30 * MS]
    assert world.run(until_ns=90 * MS, until=lambda w: False) is False
    assert world.now_ns == 90 * MS


def test_idle_time_is_skipped() -> None:
    world = solo()
    world.at(3600 * SECOND, "a", Ping(1))
    checks = []
    world.run(until_ns=7200 * SECOND, until=lambda w: bool(checks.append(w.now_ns)))
    assert len(world.machine("a").of(Ping)) == 1
    assert len(checks) < 10


def test_calls_see_the_world_at_their_time() -> None:
    world = solo()
    seen: list[int] = []
    world.call(5 * MS, lambda w: seen.append(w.now_ns))
    world.call(5 * MS, lambda w: w.call(0, lambda v: seen.append(v.now_ns + 1)))
    world.run(until_ns=SECOND)
    assert seen == [5 * MS, 5 * MS + 1]


# ---------------------------------------------------------------- outputs


def test_deliveries_and_events_are_recorded_and_passed_to_callbacks() -> None:
    calls: list[Any] = []
    one, two = batch(1), batch(2)
    effects = [Deliver(LOG, (one, two)), Emit("news")]
    world = solo()
    world.on_deliver("a", lambda *args: calls.append(args))
    world.on_deliver("*", lambda *args: calls.append(args))
    world.on_emit("*", lambda *args: calls.append(args))
    world.on_emit("b", lambda *args: calls.append(args))
    world.at(MS, "a", Do(effects))
    world.run(until_ns=SECOND)
    assert world.delivered["a"] == [(LOG, (one, two))]
    assert world.emitted["a"] == [(MS, "news")]
    assert calls == [(MS, "a", LOG, (one, two))] * 2 + [(MS, "a", "news")]
    quiet = solo(record=False)
    quiet.at(MS, "a", Do(effects))
    quiet.run(until_ns=SECOND)
    assert quiet.delivered["a"] == quiet.emitted["a"] == []


def test_a_failing_machine_stops_the_world_and_says_where() -> None:
    class Failing(Actor):
        def step(self, now_ns: int, inp: Any) -> list[Any]:
            assert not (type(inp) is Received and inp.message.number == 3), "three!"
            return super().step(now_ns, inp)

    world = World(77, Link(delay_ns=MS))
    world.add("a", Actor)
    world.add("b", Failing)
    world.at(50 * MS, "a", Do([Send("b", Ping(number)) for number in range(5)]))
    with pytest.raises(AssertionError, match="three!") as caught:
        world.run(until_ns=SECOND)
    (note,) = caught.value.__notes__
    assert "seed 77" in note
    assert "b" in note
    assert "Ping(number=3)" in note


def test_an_effect_without_a_performer_is_an_error() -> None:
    world = solo()
    world.at(0, "a", Do([PassDown("?")]))
    with pytest.raises(UsageError, match="PassDown"):
        world.run(until_ns=SECOND)


def test_names_are_taken_once() -> None:
    world = solo()
    for name in ("a", "", "*"):
        with pytest.raises(UsageError):
            world.add(name, Actor)
    for wrong in (world.machine, world.disk, world.crash, world.pause):
        with pytest.raises(UsageError, match="no node"):
            wrong("nobody")


# ---------------------------------------------------------------- restarts


def test_each_start_has_its_own_random_and_the_same_one_in_every_run() -> None:
    def draws() -> list[float]:
        found: list[float] = []

        def make(ctx: Any) -> Actor:
            found.append(ctx.rng.random())
            assert ctx.incarnation == world.nodes[ctx.name].incarnation
            return Actor(ctx)

        world = World("seed")
        world.add("a", make)
        world.add("b", make)
        world.crash("a")
        world.restart("a")
        return found

    once = draws()
    assert once == draws()
    assert len(set(once)) == 3


def test_inputs_from_before_a_crash_do_not_reach_the_restarted_node() -> None:
    world = solo()
    world.jump_clock("a", SECOND)
    world.crash("a")
    world.restart("a")
    world.run(until_ns=SECOND)
    ((_, start),) = world.machine("a").seen
    assert start.incarnation == 2


def test_a_crash_drops_timers_inputs_and_memory() -> None:
    world = solo()
    world.at(0, "a", Do([SetTimer("t", 10 * MS)]))
    world.call(5 * MS, lambda w: w.crash("a"))
    world.at(6 * MS, "a", Ping(1))
    world.call(7 * MS, lambda w: w.restart("a"))
    world.at(8 * MS, "a", Ping(2))
    world.run(until_ns=SECOND)
    machine = world.machine("a")
    assert machine.kinds() == ["Start", "Ping"]
    assert machine.seen[1] == (8 * MS, Ping(2))
    assert world.dropped == 1


def test_a_node_without_a_factory_cannot_be_restarted() -> None:
    world = World(1)
    machine = Actor()
    world.add("a", machine)
    assert world.machine("a") is machine
    world.crash("a")
    assert world.machine("a") is None
    with pytest.raises(UsageError, match="a restart needs a factory"):
        world.restart("a")


def test_the_disk_survives_a_crash_and_only_a_crashed_node_can_be_wiped() -> None:
    world = solo()
    world.at(0, "a", Do([Append(LOG, (batch(1),), "t")]))
    world.run(until_ns=10 * MS)
    with pytest.raises(UsageError, match="crash it"):
        world.wipe("a")
    world.crash("a")
    world.restart("a")
    assert world.machine("a").ctx.disk.end(LOG) == 2
    world.crash("a")
    world.wipe("a")
    world.restart("a")
    assert world.machine("a").ctx.disk.end(LOG) == 1


# ---------------------------------------------------------------- pauses and clocks


def test_a_paused_node_gets_everything_late_and_in_order() -> None:
    world = solo()
    world.add("b", Actor)
    world.at(0, "b", Do([Send("a", Ping(0))]))
    world.at(0, "a", Do([SetTimer("early", 15 * MS), SetTimer("cancelled", 16 * MS)]))
    world.call(10 * MS, lambda w: w.pause("a"))
    world.at(11 * MS, "a", Do([CancelTimer("cancelled")]))
    world.at(12 * MS, "b", Do([Send("a", Ping(1))]))
    world.at(20 * MS, "b", Do([Send("a", Ping(2))]))
    world.call(3 * SECOND, lambda w: w.resume("a"))
    world.run(until_ns=5 * SECOND)
    late = [(now_ns, inp) for now_ns, inp in world.machine("a").seen if now_ns > 10 * MS]
    assert late == [
        (3 * SECOND, Received("b", Ping(1))),
        (3 * SECOND, TimerFired("early")),
        (3 * SECOND, Received("b", Ping(2))),
    ]
    assert "PeerDown" not in world.machine("b").kinds()


def test_a_node_that_crashes_while_paused_loses_its_waiting_inputs() -> None:
    world = solo()
    world.call(MS, lambda w: w.pause("a"))
    world.at(2 * MS, "a", Ping(1))
    world.call(3 * MS, lambda w: (w.crash("a"), w.restart("a")))
    world.call(4 * MS, lambda w: w.resume("a"))
    world.run(until_ns=SECOND)
    assert world.machine("a").kinds() == ["Start"]


def test_a_clock_jump_is_reported_and_lasts() -> None:
    world = World(1)
    world.add("a", Actor, wall_ns=1000 * SECOND)
    world.call(2 * SECOND, lambda w: w.jump_clock("a", -10 * SECOND))
    world.call(3 * SECOND, lambda w: w.crash("a"))
    world.call(4 * SECOND, lambda w: w.jump_clock("a", 1 * SECOND))
    world.run(until_ns=2500 * MS)
    assert world.machine("a").of(ClockSet) == [(2 * SECOND, ClockSet(992 * SECOND))]
    world.run(until_ns=5 * SECOND)
    world.restart("a")
    world.run(until_ns=6 * SECOND)
    assert world.machine("a").seen == [(5 * SECOND, Start(996 * SECOND, 2))]


def test_heal_all_heals_everything() -> None:
    world = World(1, Link(delay_ns=MS))
    for name in ("a", "b", "c", "d"):
        world.add(name, Actor)
    world.cut("a", "*")
    world.degrade("b", "c", Link(delay_ns=SECOND))
    world.pause("b")
    world.crash("c")
    world.fail_disk("d", "io")
    world.heal_all()
    world.at(0, "b", Do([Send("c", Ping(1)), Send("a", Ping(2))]))
    world.at(0, "d", Do([Append(LOG, (batch(1),), "t")]))
    world.run(until_ns=10 * MS)
    assert world.machine("c").numbers() == [1]
    assert world.machine("a").numbers() == [2]
    assert world.machine("d").kinds() == ["Start", "Stored"]
    assert world.machine("c").ctx.incarnation == 2


# ---------------------------------------------------------------- costs


def test_inputs_queue_for_the_processor_and_effects_wait_for_it() -> None:
    costs = Costs(per_input_ns=100 * US, per_byte_ns=1.0, per_effect_ns=10 * US)
    world = World(1, Link(delay_ns=MS), costs=costs)
    world.add("a", Actor)
    world.add("b", Actor)
    world.run(until_ns=10 * MS)  # starts are served
    send = Do([Send("b", Load(1, 1000), reliable=False)])
    world.at(10 * MS, "a", send)
    world.at(10 * MS, "a", send)
    world.run(until_ns=SECOND)
    # 100 + 10 + 1 µs each; the second waits for the first; b takes 101 µs for each
    sent_ns = [10 * MS + 111 * US, 10 * MS + 222 * US]
    assert world.machine("b").of(Received) == [
        (at_ns + MS, Received("a", Load(1, 1000))) for at_ns in sent_ns
    ]


def test_a_slow_node_congests_its_senders_and_survives_pauses() -> None:
    world = World(1, Link(delay_ns=MS), costs=Costs(per_input_ns=MS))
    world.add("a", Actor)
    world.add("b", Actor)
    world.network.high_water_bytes = 5_000
    world.at(0, "a", Do([Send("b", Load(number, 1000)) for number in range(20)]))
    world.call(15 * MS, lambda w: w.pause("b"))
    world.call(215 * MS, lambda w: w.resume("b"))
    world.run(until_ns=SECOND)
    b = world.machine("b")
    assert b.numbers() == list(range(20))
    times = [now_ns for now_ns, _ in b.of(Received)]
    assert times == sorted(set(times))
    assert not [now_ns for now_ns in times if 15 * MS < now_ns < 215 * MS]
    assert world.machine("a").kinds().count("Congested") == 1
    assert world.machine("a").kinds().count("Writable") == 1


def test_a_crash_in_mid_computation_loses_the_effects() -> None:
    world = World(1, Link(delay_ns=MS), costs=Costs(per_input_ns=10 * MS))
    world.add("a", Actor)
    world.run(until_ns=20 * MS)
    world.at(20 * MS, "a", Do([Emit("never")]))
    world.call(25 * MS, lambda w: (w.crash("a"), w.restart("a")))
    world.run(until_ns=SECOND)
    assert world.emitted["a"] == []
    assert world.machine("a").kinds() == ["Start"]
