"""The world of a simulation: a clock, nodes, links and faults.

    world = World(seed=7, link=Link(delay_ns=5 * MS, loss=0.3), trace=Trace())
    world.add("p", lambda ctx: Publisher(config))
    world.at(10 * MS, "p", Publish(batch))
    world.call(1 * SECOND, lambda w: w.crash("p"))
    world.run(until_ns=5 * SECOND)

This file has the methods to build a simulation and to inject faults; `loop.py` runs it. A seed
gives the same run in every process: each random generator is seeded by the seed and its purpose,
and no code iterates over a set.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from surecast.core.machine import Factory
from surecast.core.states import watched
from surecast.core.types import DAMAGE, SECOND, ClockSet, Machine, Start
from surecast.errors import UsageError
from surecast.sim.agenda import CALL, INPUT
from surecast.sim.links import Link
from surecast.sim.loop import Loop, OnDeliver, OnEmit
from surecast.sim.node import Node
from surecast.sim.topology import Topology
from surecast.storage.memory import MemoryDisk

__all__ = ["World"]

WALL_NS = 1_750_000_000 * SECOND  # what wall clocks show at the start, by default (June 2025)


class World(Loop):
    """A deterministic simulation. Timeouts and delays are attributes of `network` and `disks`."""

    # ------------------------------------------------------------ building

    def add(
        self, name: str, factory: Factory | Machine, *, wall_ns: int = WALL_NS, site: str = ""
    ) -> None:
        """Add and start a node. A name such as "east/0" puts it in the site "east".

        `factory(ctx)` creates the machine at each start. The caller may pass a machine in its
        place; then the node cannot be restarted.
        """
        if name in self.nodes or not name or name == "*":
            raise UsageError(f"cannot add a node {name!r}: the name is in use or not valid")
        if not site and "/" in name:
            site = name.split("/", 1)[0]
        node = Node(name, site, self.seed, factory, wall_ns)
        self.nodes[name] = node
        self.delivered[name] = []
        self.emitted[name] = []
        self._start(node)

    def at(self, at_ns: int, name: str, inp: Any) -> None:
        """Give a node an input at a given time. The input is lost if the node is down at that time.
        If the node was restarted before that time, it gets the input."""
        self.agenda.push(max(at_ns, self.now_ns), INPUT, self._node(name), None, inp)

    def call(self, at_ns: int, fn: Callable[["World"], Any]) -> None:
        """Run `fn(world)` at a given time."""
        self.agenda.push(max(at_ns, self.now_ns), CALL, self._call, (fn,))

    def on_deliver(self, name: str, fn: OnDeliver) -> None:
        """Call `fn(now_ns, name, stream, batches)` on each Deliver of a node ("*": of any)."""
        self._on_deliver.setdefault(name, []).append(fn)

    def on_emit(self, name: str, fn: OnEmit) -> None:
        """Call `fn(now_ns, name, event)` on each Emit of a node ("*": of any)."""
        self._on_emit.setdefault(name, []).append(fn)

    def machine(self, name: str) -> Any:
        """The running machine of a node, or None while the node is crashed."""
        return self._node(name).machine

    def disk(self, name: str) -> MemoryDisk:
        return self._node(name).disk

    def wall_ns(self, name: str) -> int:
        return self._node(name).wall_base_ns + self.now_ns

    def names(self, site: str | None = None) -> list[str]:
        return [n.name for n in self.nodes.values() if site is None or n.site == site]

    def _call(self, now_ns: int, fn: Callable[["World"], Any]) -> None:
        fn(self)

    def _node(self, name: str) -> Node:
        node = self.nodes.get(name)
        if node is None:
            raise UsageError(f"there is no node {name!r}")
        return node

    # ------------------------------------------------------------ links

    def set_link(self, a: str, b: str, link: Link, *, two_way: bool = True) -> None:
        """Connect two nodes or sites by `link`. It applies again when `mend` ends a `degrade`."""
        for x, y in _directions(a, b, two_way):
            self.network.wiring.set_link(x, y, link)
        self.network.rewire(self.now_ns)

    def set_site_links(self, topology: Topology) -> None:
        for (a, b), link in topology.links.items():
            self.network.wiring.set_link(a, b, link)
        self.network.rewire(self.now_ns)

    def degrade(self, a: str, b: str, link: Link, *, two_way: bool = True) -> None:
        """Make a link behave like `link` until it is mended."""
        self._fault(a, f"degrade {_spell(a, b, two_way)}")
        for x, y in _directions(a, b, two_way):
            self.network.wiring.degrade(x, y, link)
        self.network.rewire(self.now_ns)

    def cut(self, a: str, b: str, *, two_way: bool = True) -> None:
        """Cut the links from `a` to `b` (and back); each is a node, a site, or "*" for all."""
        self._fault(a, f"cut {_spell(a, b, two_way)}")
        for x, y in _directions(a, b, two_way):
            self.network.wiring.cut(x, y)
        self.network.rewire(self.now_ns)

    def mend(self, a: str, b: str, *, two_way: bool = True) -> None:
        """Undo `cut` and `degrade` between the same two names."""
        self._fault(a, f"mend {_spell(a, b, two_way)}")
        for x, y in _directions(a, b, two_way):
            self.network.wiring.mend(x, y)
        self.network.rewire(self.now_ns)

    def reachable(self, a: str, b: str) -> bool:
        """Whether `b` is running and no link from `a` to `b` is cut."""
        src, dst = self._node(a), self._node(b)
        return dst.machine is not None and not self.network.path(src, dst).cut

    # ------------------------------------------------------------ nodes' faults

    def crash(self, name: str, *, lose_unsynced: bool = True) -> None:
        """Crash a node. Of the changes that its disk has not synced yet, a random prefix survives;
        all of them, if not `lose_unsynced`."""
        node = self._node(name)
        if node.machine is None:
            return
        self._fault(name, "crash")
        self.network.crash(self.now_ns, node)
        node.stop()
        node.disk.crash(self._crash_rng, lose_unsynced)

    def restart(self, name: str) -> None:
        node = self._node(name)
        if node.machine is None:
            self._fault(name, "restart")
            self._start(node)

    def reset_sessions(self, name: str) -> None:
        """Break a node's sessions; messages in flight in them are lost. New ones may be opened."""
        self._fault(name, "reset")
        self.network.reset_all(self.now_ns, self._node(name))

    def pause(self, name: str) -> None:
        """Stop a node's process: its inputs wait, its timers are late, its sessions continue."""
        node = self._node(name)
        if node.machine is not None and not node.paused:
            self._fault(name, "pause")
            node.paused = node.odd = True

    def resume(self, name: str) -> None:
        node = self._node(name)
        if node.paused:
            self._fault(name, "resume")
            node.paused = False
            node.odd = self.costs is not None
            self.agenda.push(self.now_ns, CALL, self._catch_up, (node, node.incarnation))

    def jump_clock(self, name: str, delta_ns: int) -> None:
        """Change a node's wall clock by `delta_ns`. `now_ns`, which machines use for timers, stays
        the same."""
        node = self._node(name)
        self._fault(name, f"clock {delta_ns:+}")
        node.wall_base_ns += delta_ns
        if node.machine is not None:
            inp = ClockSet(self.wall_ns(name))
            self.agenda.push(self.now_ns, INPUT, node, node.incarnation, inp)

    def fail_disk(self, name: str, reason: str) -> None:
        """Let all writes of a node fail with `reason` ("full" or "io"), until `heal_disk`."""
        self._fault(name, f"disk {reason}")
        self.disk(name).fail(reason)

    def heal_disk(self, name: str) -> None:
        self._fault(name, "disk heals")
        self.disk(name).heal()

    def wipe(self, name: str) -> None:
        """Put an empty disk into a crashed node."""
        node = self._crashed(name)
        self._fault(name, "wipe")
        node.disk.wipe()

    def copy_disk(self, name: str) -> None:
        """Keep a copy of a node's disk, for `roll_back`."""
        self._copies[name] = self._node(name).disk.copy()

    def roll_back(self, name: str) -> bool:
        """Replace the content of a crashed node's disk by the last copy; False if there is none."""
        node = self._crashed(name)
        copy = self._copies.get(name)
        if copy is None:
            return False
        self._fault(name, "roll back")
        node.disk.restore(copy)
        return True

    def damage(self, name: str, kind: str, rng: Random, share: float = 1.0) -> bool:
        """Damage the disk of a crashed node; False if there is nothing to damage.

        `kind` is the part of a real disk that is damaged:
        "record": one position of one log cannot be read.
        "segment": up to 50 consecutive positions cannot be read, in each of several logs.
        "journal": changes since the last `copy_disk` are lost, and the state DAMAGE says so.
        "manifest": all states are lost, and the state DAMAGE says so.

        `share`: only positions in this part of a log, from its beginning, become unreadable.
        """
        disk = self._crashed(name).disk
        # A disk can be damaged even while its writes fail (`fail_disk`).
        failing, disk.failing = disk.failing, ""
        try:
            return self._damage(name, kind, rng, share)
        finally:
            disk.failing = failing

    def _damage(self, name: str, kind: str, rng: Random, share: float) -> bool:
        disk = self.disk(name)
        if kind == "journal":
            if not self.roll_back(name):
                return False
            disk.save(DAMAGE, b"the journal was cut short")
        elif kind == "manifest":
            for state in disk.states():
                disk.forget(state)
            disk.save(DAMAGE, b"the manifest is damaged")
        else:
            logs = [log for log in disk.logs() if disk.end(log) > 1]
            count = 1 if kind == "record" else rng.randint(1, len(logs)) if logs else 0
            for log in rng.sample(logs, min(count, len(logs))):
                limit = 1 + max(1, int(share * (disk.end(log) - 1)))
                at = rng.randrange(1, limit)
                width = 1 if kind == "record" else rng.randint(1, 50)
                disk.damage(log, at, min(at + width, limit), f"{kind} damaged")
        disk.sync()
        self._fault(name, f"damage {kind}")
        return True

    def _crashed(self, name: str) -> Node:
        node = self._node(name)
        if node.machine is not None:
            raise UsageError(f"{name} is running: crash it before its disk is changed")
        return node

    def heal_all(self) -> None:
        """Mend all links, heal the disks, resume what is paused and restart what is down."""
        self._fault("", "heal all")
        self.network.wiring.mend_all()
        self.network.rewire(self.now_ns)
        for node in self.nodes.values():
            node.disk.heal()
            self.resume(node.name)
            self.restart(node.name)

    def _start(self, node: Node) -> None:
        node.start()
        if self.validate and node.machine is not None:
            step = watched(node.machine, self.met)
            # If they differ, `node.step` is a wrapper that must stay, for example of a recorder.
            if node.step == node.machine.step:
                node.step = step
        node.odd = self.costs is not None
        start = Start(self.wall_ns(node.name), node.incarnation)
        self.agenda.push(self.now_ns, INPUT, node, node.incarnation, start)
        self.disks.started(self.now_ns, node)

    def _catch_up(self, now_ns: int, node: Node, incarnation: int) -> None:
        """After a pause: perform the unfinished effects and handle the inputs that waited."""
        if node.incarnation != incarnation or node.machine is None or node.paused:
            return
        if node.unfinished is not None:
            effects, node.unfinished = node.unfinished, None
            self._finish(now_ns, node, incarnation, effects)
        else:
            self._work_off(now_ns, node)

    def _fault(self, name: str, what: str) -> None:
        if self.trace is not None:
            self.trace.fault(self.now_ns, name, what)


def _directions(a: str, b: str, two_way: bool) -> list[tuple[str, str]]:
    return [(a, b), (b, a)] if two_way else [(a, b)]


def _spell(a: str, b: str, two_way: bool) -> str:
    """How the trace shows the link of a fault."""
    return f"{a} {b} {'two-way' if two_way else 'one-way'}"
