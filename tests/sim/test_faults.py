"""Faults as values: each has its effect, and healing undoes it."""

from random import Random
from typing import Any

import msgspec
import pytest
from actors import LOG, Actor, Do, Ping, batch

from surecast.core.types import MS, SECOND, Append, ClockSet, Send
from surecast.sim import Link, World, faults
from surecast.sim.faults import (
    ClockJump,
    Crash,
    Cut,
    Degrade,
    DiskFailure,
    Fault,
    Isolate,
    Pause,
    Reset,
    Timed,
    Wipe,
)


def three() -> World:
    world = World(1, Link(delay_ns=MS))
    for name in ("x/a", "x/b", "y/c"):
        world.add(name, Actor)
    world.run(until_ns=0)
    return world


def heard(world: World) -> list[str]:
    """The pairs "ab" of which b receives a datagram of a now."""
    before = {name: len(world.machine(name).seen) for name in world.names() if world.machine(name)}
    for src in before:
        for dst in world.names():
            if src != dst:
                world.at(world.now_ns, src, Do([Send(dst, Ping(0), reliable=False)]))
    world.run(until_ns=world.now_ns + 10 * MS)
    return sorted(
        f"{inp.peer[-1]}{name[-1]}"
        for name, count in before.items()
        for _, inp in world.machine(name).seen[count:]
        if type(inp).__name__ == "Received"
    )


ALL = ["ab", "ac", "ba", "bc", "ca", "cb"]


@pytest.mark.parametrize(
    ("fault", "left"),
    [
        (Cut("x/a", "x/b"), ["ac", "bc", "ca", "cb"]),
        (Cut("x", "y"), ["ab", "ba"]),
        (Cut("x", "y", two_way=False), ["ab", "ba", "ca", "cb"]),
        (Cut("x/a", "y"), ["ab", "ba", "bc", "cb"]),
        (Isolate("x/b"), ["ac", "ca"]),
        (Isolate("y"), ["ab", "ba"]),
        (Degrade("x", "y", Link(delay_ns=SECOND)), ["ab", "ba"]),
        (Crash("x/b"), ["ac", "ca"]),
        (Wipe("x/b"), ["ac", "ca"]),
        (Pause("x/b"), ["ac", "ca"]),
    ],
    ids=repr,
)
def test_faults_of_links_and_nodes_stop_the_datagrams_of_their_pairs(
    fault: Fault, left: list[str]
) -> None:
    world = three()
    assert heard(world) == ALL
    fault.apply(world)
    assert heard(world) == left
    fault.heal(world)
    world.run(until_ns=world.now_ns + 3 * SECOND)
    assert heard(world) == ALL


def test_disk_failure_and_wipe_affect_the_disk() -> None:
    world = three()
    append = Do([Append(LOG, (batch(1),), "t")])
    DiskFailure("x/a", "full").apply(world)
    world.at(0, "x/a", append)
    world.run(until_ns=MS)
    assert world.machine("x/a").kinds() == ["Start", "StoreFailed"]
    DiskFailure("x/a").heal(world)
    world.at(0, "x/a", append)
    world.run(until_ns=2 * MS)
    assert world.machine("x/a").kinds()[2:] == ["Stored"]
    assert world.disk("x/a").end(LOG) == 2
    Wipe("x/a").apply(world)
    assert world.disk("x/a").end(LOG) == 1


def test_a_clock_jump_lasts() -> None:
    world = three()
    before = world.wall_ns("x/a")
    jump = ClockJump("x/a", 5 * SECOND)
    jump.apply(world)
    jump.heal(world)
    world.run(until_ns=MS)
    assert world.machine("x/a").of(ClockSet) == [(0, ClockSet(before + 5 * SECOND))]


def test_timed_faults_last_for_their_duration() -> None:
    world = three()
    Timed(10 * MS, 20 * MS, Isolate("x/b")).schedule(world)
    alive = []
    for at_ms in (5, 15, 25, 35):
        world.call(at_ms * MS, lambda w: alive.append(w.reachable("x/a", "x/b")))
    world.run(until_ns=SECOND)
    assert alive == [True, False, False, True]


def test_every_kind_of_fault_can_be_drawn_and_serialised() -> None:
    rng = Random("draw")
    kinds = (*faults.KINDS, "wipe", "damage", "roll back")
    drawn = [faults.draw(rng, ("a", "b"), [("x", "y")], (kind,)) for kind in kinds * 5]
    assert {type(fault) for fault in drawn} == set(Fault.__subclasses__())
    every: Any = Cut | Isolate | Degrade | Crash | Wipe | Pause | Reset | ClockJump | DiskFailure
    every |= faults.Damage | faults.RollBack
    for fault in drawn:
        assert msgspec.json.decode(msgspec.json.encode(fault), type=every) == fault
    assert isinstance(faults.draw(rng, ("a",), [], ("cut",)), Cut)
