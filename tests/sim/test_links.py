"""Links: delay, bandwidth queues, loss, duplicates; the link that applies to a pair of nodes."""

from typing import Any

import pytest
from actors import Actor, Do, Load, Ping

from surecast.core.types import MS, SECOND, US, Received, Send
from surecast.errors import UsageError
from surecast.sim import Link, World, topology
from surecast.sim.links import Wiring


def build(link: Link, *names: str) -> World:
    world = World(1, link)
    for name in names:
        world.add(name, Actor)
    return world


def arrivals(world: World, name: str) -> list[tuple[int, str]]:
    return [(now_ns, inp.peer) for now_ns, inp in world.machine(name).of(Received)]


def datagrams(peer: str, *loads: tuple[int, int]) -> Do:
    return Do([Send(peer, Load(number, nbytes), reliable=False) for number, nbytes in loads])


# ---------------------------------------------------------------- bandwidth


def test_a_message_takes_its_bits_over_the_bandwidth_and_then_the_delay() -> None:
    world = build(Link(delay_ns=10 * MS, bandwidth_bps=1_000_000), "a", "b")
    world.at(0, "a", datagrams("b", (1, 1250), (2, 2500)))  # 10,000 and 20,000 bits
    world.at(100 * MS, "a", datagrams("b", (3, 125)))
    world.run(until_ns=SECOND)
    assert [now_ns for now_ns, _ in arrivals(world, "b")] == [20 * MS, 40 * MS, 111 * MS]


def test_sessions_and_datagrams_share_the_pipe() -> None:
    world = build(Link(delay_ns=MS, bandwidth_bps=8_000_000), "a", "b")  # 1000 bytes a ms
    world.at(0, "a", Do([Send("b", Ping(0))]))
    world.at(50 * MS, "a", Do([Send("b", Load(1, 10_000)), *datagrams("b", (2, 1000)).effects]))
    world.run(until_ns=SECOND)
    assert world.machine("b").numbers() == [0, 1, 2]
    assert [now_ns for now_ns, _ in arrivals(world, "b")][1:] == [61 * MS, 62 * MS]


def test_within_a_site_each_node_has_an_uplink_of_its_own() -> None:
    world = build(Link(delay_ns=MS, bandwidth_bps=8_000_000), "x/a", "x/b", "x/c")
    world.at(0, "x/a", datagrams("x/c", (1, 10_000)))
    world.at(0, "x/b", datagrams("x/c", (2, 10_000)))
    world.at(0, "x/a", datagrams("x/b", (3, 10_000)))  # behind the first: the same uplink
    world.run(until_ns=SECOND)
    assert arrivals(world, "x/c") == [(11 * MS, "x/a"), (11 * MS, "x/b")]
    assert arrivals(world, "x/b") == [(21 * MS, "x/a")]


def test_between_sites_all_nodes_share_one_pipe_per_direction() -> None:
    world = build(Link(delay_ns=MS, bandwidth_bps=8_000_000), "x/a", "x/b", "y/c", "y/d")
    world.at(0, "x/a", datagrams("y/c", (1, 10_000)))
    world.at(0, "x/b", datagrams("y/d", (2, 10_000)))
    world.at(0, "y/c", datagrams("x/a", (3, 10_000)))
    world.run(until_ns=SECOND)
    assert arrivals(world, "y/c") == [(11 * MS, "x/a")]
    assert arrivals(world, "y/d") == [(21 * MS, "x/b")]
    assert arrivals(world, "x/a") == [(11 * MS, "y/c")]


def test_a_link_of_one_pair_has_its_own_pipe() -> None:
    world = build(Link(delay_ns=MS, bandwidth_bps=8_000_000), "x/a", "y/b", "y/c")
    world.set_link("x/a", "y/c", Link(delay_ns=2 * MS, bandwidth_bps=80_000_000))
    world.at(0, "x/a", datagrams("y/b", (1, 10_000)))
    world.at(0, "x/a", datagrams("y/c", (2, 10_000)))
    world.run(until_ns=SECOND)
    assert arrivals(world, "y/b") == [(11 * MS, "x/a")]
    assert arrivals(world, "y/c") == [(3 * MS, "x/a")]


# ---------------------------------------------------------------- datagrams


def count(link: Link, sent: int = 4000, **more: Any) -> list[int]:
    world = build(link, "a", "b")
    for number in range(sent):
        world.at(number * 10 * US, "a", Do([Send("b", Ping(number), reliable=False)]))
    for at_ns, fault in more.get("calls", ()):
        world.call(at_ns, fault)
    world.run(until_ns=10 * SECOND)
    assert world.machine("b").kinds()[1:] == ["Received"] * len(world.machine("b").numbers())
    return world.machine("b").numbers()


def test_a_plain_link_does_not_lose_repeat_or_reorder() -> None:
    assert count(Link(delay_ns=MS)) == list(range(4000))


def test_datagrams_are_lost_and_repeated_at_the_rates_of_the_link() -> None:
    got = count(Link(delay_ns=MS, loss=0.3))
    assert 0.65 < len(got) / 4000 < 0.75
    assert got == sorted(set(got))
    got = count(Link(delay_ns=MS, duplicate=0.2))
    assert sorted(set(got)) == list(range(4000))
    assert 1.15 < len(got) / 4000 < 1.25


def test_datagrams_overtake_each_other_by_jitter_and_by_reordering() -> None:
    for link in (Link(delay_ns=MS, jitter_ns=MS), Link(delay_ns=MS, reorder=0.1, reorder_ns=MS)):
        got = count(link)
        assert got != sorted(got)
        assert sorted(got) == list(range(4000))


def test_cuts_and_crashes_drop_datagrams_silently() -> None:
    link = Link(delay_ns=MS)
    calls = [
        (10 * MS, lambda w: w.cut("a", "b", two_way=False)),
        (20 * MS - 1, lambda w: w.mend("a", "b")),
    ]
    got = count(link, calls=calls)
    # Datagrams that are in flight at the time of the cut are lost, too.
    assert got == [*range(900), *range(2000, 4000)]
    world = build(link, "a", "b")
    world.call(MS, lambda w: w.crash("b"))
    world.at(2 * MS, "a", Do([Send("b", Ping(1), reliable=False)]))
    world.run(until_ns=SECOND)
    assert world.machine("a").kinds() == ["Start"]
    assert world.dropped == 1


# ---------------------------------------------------------------- which link


def test_the_most_specific_link_applies() -> None:
    wiring = Wiring(Link(delay_ns=1))
    for a, b, delay_ns in (("x", "y", 2), ("x/a", "y", 3), ("x", "y/b", 4), ("x/a", "y/b", 5)):
        wiring.set_link(a, b, Link(delay_ns=delay_ns))

    def delay(src: str, dst: str) -> int:
        return wiring.path(src, src[0], dst, dst[0]).delay_ns

    assert delay("y/b", "x/a") == 1
    assert delay("x/z", "y/z") == 2
    assert delay("x/a", "y/z") == 3
    assert delay("x/z", "y/b") == 4
    assert delay("x/a", "y/b") == 5


def test_degraded_links_are_restored_by_mending() -> None:
    world = build(Link(delay_ns=MS), "x/a", "y/b")
    world.set_link("x", "y", Link(delay_ns=2 * MS))
    for at_ms in (0, 100, 200, 300):
        world.at(at_ms * MS, "x/a", Do([Send("y/b", Ping(at_ms), reliable=False)]))
    world.call(50 * MS, lambda w: w.degrade("x", "y", Link(delay_ns=30 * MS)))
    world.call(150 * MS, lambda w: w.mend("x", "y"))
    world.call(250 * MS, lambda w: (w.degrade("x/a", "y/b", Link(delay_ns=40 * MS)), w.heal_all()))
    world.run(until_ns=SECOND)
    assert [now_ns // MS for now_ns, _ in arrivals(world, "y/b")] == [2, 130, 202, 302]


def test_a_link_change_affects_open_sessions() -> None:
    world = build(Link(delay_ns=MS), "a", "b")
    for at_ms in (0, 100, 200):
        world.at(at_ms * MS, "a", Do([Send("b", Ping(at_ms))]))
    world.call(50 * MS, lambda w: w.set_link("a", "b", Link(delay_ns=30 * MS)))
    slow = Link(delay_ns=MS, bandwidth_bps=64 * 8 * 10)  # one ping takes 100 ms
    world.call(150 * MS, lambda w: w.set_link("a", "b", slow))
    world.run(until_ns=SECOND)
    assert [now_ns // MS for now_ns, _ in arrivals(world, "b")] == [3, 130, 301]


# ---------------------------------------------------------------- topologies


def delays(made: topology.Topology) -> dict[str, int]:
    return {f"{a}{b}": link.delay_ns // MS for (a, b), link in made.links.items()}


def test_mesh_takes_delays_by_pair() -> None:
    made = topology.mesh("ab", Link(delay_ns=9 * MS), Link(delay_ns=0), {("b", "a"): 7 * MS})
    assert delays(made) == {"aa": 0, "bb": 0, "ab": 7, "ba": 7}
    with pytest.raises(UsageError, match="not both of these are sites"):
        topology.mesh("ab", delays_ns={("a", "c"): 1})
    with pytest.raises(UsageError, match="different names"):
        topology.mesh("aa")


def test_line_and_star_count_hops() -> None:
    link = Link(delay_ns=10 * MS, loss=0.1)
    made = topology.line("abc", link)
    assert delays(made) == {
        **{"aa": 0, "bb": 0, "cc": 0},
        **{"ab": 10, "ba": 10, "bc": 10, "cb": 10, "ac": 20, "ca": 20},
    }
    assert made.links["a", "c"].loss == pytest.approx(0.19)
    star = delays(topology.star("cxy", link))
    assert (star["cx"], star["xc"], star["xy"]) == (10, 10, 20)


def test_a_world_takes_a_topology() -> None:
    made = topology.mesh(("east", "west"), Link(delay_ns=40 * MS), Link(delay_ns=MS))
    world = World(1)
    world.set_site_links(made)
    names = made.nodes(2)
    assert names == ["east/0", "east/1", "west/0", "west/1"]
    for name in names:
        world.add(name, Actor)
    for peer in names[1:]:
        world.at(0, "east/0", Do([Send(peer, Ping(0), reliable=False)]))
    world.run(until_ns=SECOND)
    assert [world.machine(name).of(Received)[0][0] // MS for name in names[1:]] == [1, 40, 40]
    assert world.names("west") == ["west/0", "west/1"]
