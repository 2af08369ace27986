"""The world of a simulation: a clock, nodes, what joins them, and what goes wrong.

    world = World(seed=7, link=Link(delay_ns=5 * MS, loss=0.3), trace=Trace())
    world.add("p", lambda ctx: Publisher(config))
    world.at(10 * MS, "p", Publish(batch))
    world.call(1 * SECOND, lambda w: w.crash("p"))
    world.run(until_ns=5 * SECOND)

One agenda holds all that is to happen; the loop takes what is next, steps the node it is for and
performs the effects. Everything random comes from generators seeded by (seed, purpose), and
nothing iterates a set: a seed gives the same run in every process.

Within the loop a node is stepped only between entries, never from inside an effect; what an effect
causes, even at the same instant, goes through the agenda.
"""

from collections.abc import Callable
from heapq import heappop
from random import Random
from typing import Any

from surecast.core.types import (
    MS,
    SECOND,
    Append,
    CancelTimer,
    ClockSet,
    Close,
    Compact,
    Deliver,
    Emit,
    Machine,
    Received,
    SaveState,
    Send,
    SetTimer,
    Start,
    TimerFired,
    Truncate,
)
from surecast.errors import UsageError
from surecast.sim.agenda import SLOT_BITS, Agenda, Entry
from surecast.sim.costs import Costs
from surecast.sim.disks import Disks
from surecast.sim.links import ANY, Link
from surecast.sim.network import CALL, DATAGRAM, INPUT, MESSAGE, TIMER, End, Network
from surecast.sim.node import Factory, Node
from surecast.sim.topology import Topology
from surecast.sim.trace import Trace
from surecast.storage.memory import MemoryDisk

__all__ = ["World"]

WALL_NS = 1_750_000_000 * SECOND  # where wall clocks begin unless told otherwise

OnDeliver = Callable[[int, str, bytes, tuple[Any, ...]], None]
OnEmit = Callable[[int, str, Any], None]


class World:
    """A deterministic simulation. The parts with knobs are `network` and `disks`."""

    def __init__(
        self,
        seed: object,
        link: Link | None = None,
        *,
        trace: Trace | None = None,
        costs: Costs | None = None,
        reencode: Callable[[Any], Any] | None = None,
        record: bool = True,
    ) -> None:
        self.seed = seed
        self.now_ns = 0
        self.inputs = 0  # stepped so far
        self.dropped = 0  # inputs for nodes that were down
        self.trace = trace
        self.costs = costs
        self.reencode = reencode  # message → message, applied as it arrives; exposes aliasing
        self.agenda = Agenda()
        self.nodes: dict[str, Node] = {}
        self.network = Network(self, link or Link(), Random(f"{seed}/network"))
        self.disks = Disks(self, Random(f"{seed}/disks"))
        if trace is not None:
            trace.sizes = self.network.sizes
        self._crash_rng = Random(f"{seed}/crashes")
        self._record = record
        self.delivered: dict[str, list[tuple[bytes, tuple[Any, ...]]]] = {}
        self.emitted: dict[str, list[tuple[int, Any]]] = {}
        self._on_deliver: dict[str, list[OnDeliver]] = {}
        self._on_emit: dict[str, list[OnEmit]] = {}

    # ------------------------------------------------------------ building

    def add(
        self, name: str, factory: Factory | Machine, *, wall_ns: int = WALL_NS, site: str = ""
    ) -> None:
        """Add and start a node. A name such as "east/0" puts it in the site "east".

        `factory(ctx)` makes the machine at each start. A machine may be given in its place; then
        the node cannot be restarted.
        """
        if name in self.nodes or not name or name == "*":
            raise UsageError(f"cannot add a node {name!r}: the name is taken or no name")
        if not site and "/" in name:
            site = name.split("/", 1)[0]
        node = Node(len(self.nodes), name, site, self.seed, factory, wall_ns)
        self.nodes[name] = node
        self.delivered[name] = []
        self.emitted[name] = []
        self._start(node)

    def at(self, at_ns: int, name: str, inp: Any) -> None:
        """Give a node an input at a time, whichever life it lives then; lost if it lives none."""
        self.agenda.push(max(at_ns, self.now_ns), INPUT, self._node(name), None, inp)

    def call(self, at_ns: int, fn: Callable[["World"], Any]) -> None:
        """Run `fn(world)` at a time."""
        self.agenda.push(max(at_ns, self.now_ns), CALL, self._call, (fn,))

    def on_deliver(self, name: str, fn: OnDeliver) -> None:
        """Call `fn(now_ns, name, stream, batches)` on each Deliver of a node ("*": of any)."""
        self._on_deliver.setdefault(name, []).append(fn)

    def on_emit(self, name: str, fn: OnEmit) -> None:
        """Call `fn(now_ns, name, event)` on each Emit of a node ("*": of any)."""
        self._on_emit.setdefault(name, []).append(fn)

    def machine(self, name: str) -> Any:
        """The live machine, or None while the node is crashed."""
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

    # ------------------------------------------------------------ running

    def run(
        self,
        until_ns: int,
        until: Callable[["World"], bool] | None = None,
        check_every_ns: int = 10 * MS,
    ) -> bool:
        """Run up to and including `until_ns`, or until a check finds `until(world)` true.

        Returns whether it was; without a predicate, whether anything is left to happen.
        """
        slice_ns = check_every_ns if until is not None else 100 * MS
        while self.now_ns < until_ns:
            if until is not None and until(self):
                return True
            next_ns = self.agenda.next_ns()
            if next_ns is None:
                break
            # Idle time is skipped: nothing can change a predicate in it.
            skipped = max(0, next_ns - self.now_ns - 1) // slice_ns * slice_ns
            self._run_to(min(until_ns, self.now_ns + skipped + slice_ns))
        self.now_ns = max(self.now_ns, until_ns)
        if until is not None:
            return until(self)
        return self.agenda.next_ns() is not None

    def _run_to(self, limit_ns: int) -> None:
        """Do all that is due by `limit_ns`. The hot loop: what is common is spelled out here."""
        agenda, network, trace = self.agenda, self.network, self.trace
        today, soon = agenda.today, agenda.soon
        reencode = self.reencode
        record = trace.record if trace is not None else None
        send, high_water_bytes = network.send, network.high_water_bytes
        fixed, size_of = network.sizes.fixed, network.sizes.of
        random = network.rng.random
        wheel, next_order, put = agenda.wheel, agenda.next_order, agenda.put
        node: Any = None
        inp: Any = None
        inputs = 0
        try:
            while True:
                if soon and (not today or soon[0] < today[-1]):
                    if soon[0][0] > limit_ns:
                        break
                    entry = heappop(soon)
                elif today:
                    if today[-1][0] > limit_ns:
                        break
                    entry = today.pop()
                elif agenda.advance(limit_ns):
                    today = agenda.today
                    if trace is not None:
                        trace.pack_if_long()
                    continue
                else:
                    break
                now_ns, order, kind, a, b, c = entry
                self.now_ns = now_ns
                if kind == MESSAGE:
                    node = a.peer
                    if a.odd:
                        if network.arrive_oddly(now_ns, a, b, c):
                            self._offer(node, entry)
                        continue
                    if node.odd:
                        self._offer(node, entry)
                        continue
                    a.queued -= c
                    inp = b if reencode is None else Received(b.peer, reencode(b.message))
                elif kind == TIMER:
                    node = a
                    if node.timers.get(b) != order:
                        continue
                    if node.odd:
                        self._offer(node, entry)
                        continue
                    del node.timers[b]
                    inp = TimerFired(b)
                elif kind == CALL:
                    a(now_ns, *b)
                    continue
                else:
                    node = a if kind == INPUT else b
                    if kind == DATAGRAM and a.cut:
                        continue
                    self._offer(node, entry)
                    continue
                inputs += 1
                effects = node.step(now_ns, inp)
                if record is not None:
                    record((now_ns, node.name, inp, effects))
                said = None
                for effect in effects:
                    cls = type(effect)
                    if cls is Send:
                        end = node.ends.get(effect.peer)
                        if end is None or end.held or not effect.reliable:
                            send(now_ns, node, effect)
                            continue
                        # From here on `Network.send` and `Agenda.put`, for the simplest case.
                        message = effect.message
                        if message is not said:  # else it goes to several peers
                            said = message
                            received = Received(node.name, message)
                            size = fixed.get(type(message)) or size_of(message)
                        end.queued = queued = end.queued + size
                        if queued > high_water_bytes:
                            network.swell(now_ns, end)
                        at_ns = now_ns + end.delay_ns + int(random() * end.jitter_ns)
                        if at_ns < end.last_ns:
                            at_ns = end.last_ns
                        else:
                            end.last_ns = at_ns
                        entry = (at_ns, next_order(), MESSAGE, end, received, size)
                        later = wheel.get(at_ns >> SLOT_BITS)
                        if later is not None:
                            later.append(entry)
                        else:
                            put(entry)
                    elif cls is SetTimer:
                        at_ns = effect.at_ns
                        if at_ns < now_ns:
                            at_ns = now_ns
                        key = effect.key
                        node.timers[key] = order = next_order()
                        put((at_ns, order, TIMER, node, key, None))
                    else:
                        _PERFORM[cls](self, now_ns, node, effect)
        except Exception as problem:
            if not getattr(problem, "__notes__", None):  # `_serve` says it better
                self._note(problem, node, inp)
            raise
        finally:
            self.inputs += inputs
            if trace is not None:
                trace.pack_if_long()
        self.now_ns = limit_ns

    def give(self, node: Node, inp: Any) -> None:
        """Let a node have an input now; not to be called from inside an effect."""
        self._offer(node, (self.now_ns, 0, INPUT, node, node.incarnation, inp))

    def arrive(self, end: End, received: Received, size: int) -> None:
        """A message that a session had held back."""
        self._offer(end.peer, (self.now_ns, 0, MESSAGE, end, received, size))

    def _offer(self, node: Node, entry: Entry) -> None:
        if node.machine is None:
            self.dropped += 1
        elif node.paused or node.busy:
            node.inbox.append(entry)
        else:
            self._serve(node, entry)

    def _serve(self, node: Node, entry: Entry) -> None:
        """Step a node with what an entry holds, unless that is out of date by now."""
        now_ns = self.now_ns
        _, order, kind, a, b, c = entry
        nbytes = 0
        if kind == MESSAGE:
            nbytes = c
            self.network.taken(now_ns, a, c)
            inp = b
        elif kind == TIMER:
            if node.timers.get(b) != order:
                return
            del node.timers[b]
            inp = TimerFired(b)
        else:
            if kind == INPUT and b is not None and b != node.incarnation:
                return
            inp = c
        if type(inp) is Received and self.reencode is not None:
            inp = Received(inp.peer, self.reencode(inp.message))
        self.inputs += 1
        try:
            effects = node.step(now_ns, inp)
            if self.trace is not None:
                self.trace.record((now_ns, node.name, inp, effects))
            if self.costs is None:
                self._perform(now_ns, node, effects)
                return
        except Exception as problem:
            self._note(problem, node, inp)
            raise
        nbytes += sum(self.network.sizes.of(e.message) for e in effects if type(e) is Send)
        node.busy = True
        done_ns = now_ns + self.costs.of(nbytes, effects)
        self.agenda.push(done_ns, CALL, self._finish, (node, node.incarnation, effects))

    def _note(self, problem: Exception, node: Node | None, inp: Any) -> None:
        name = node.name if node is not None else "no node"
        problem.add_note(f"{name} at {self.now_ns} ns, seed {self.seed}, given {inp!r}"[:2000])

    def _finish(self, now_ns: int, node: Node, incarnation: int, effects: list[Any]) -> None:
        """The time an input cost is over: its effects happen, and the next one is served."""
        if node.incarnation != incarnation or node.machine is None:
            return
        if node.paused:
            node.unfinished = effects
            return
        node.busy = False
        self._perform(now_ns, node, effects)
        self._work_off(now_ns, node)

    def _work_off(self, now_ns: int, node: Node) -> None:
        inbox = node.inbox
        while inbox and not node.busy:
            self._serve(node, inbox.popleft())

    def _perform(self, now_ns: int, node: Node, effects: list[Any]) -> None:
        for effect in effects:
            _PERFORM[type(effect)](self, now_ns, node, effect)

    # ------------------------------------------------------------ effects

    def _send(self, now_ns: int, node: Node, effect: Send) -> None:
        self.network.send(now_ns, node, effect)

    def _close(self, now_ns: int, node: Node, effect: Close) -> None:
        self.network.close(now_ns, node, effect.peer)

    def _set_timer(self, now_ns: int, node: Node, effect: SetTimer) -> None:
        at_ns = max(effect.at_ns, now_ns)
        node.timers[effect.key] = self.agenda.push(at_ns, TIMER, node, effect.key)

    def _cancel_timer(self, now_ns: int, node: Node, effect: CancelTimer) -> None:
        node.timers.pop(effect.key, None)

    def _deliver(self, now_ns: int, node: Node, effect: Deliver) -> None:
        name = node.name
        if self._record:
            self.delivered[name].append((effect.stream, effect.batches))
        if self._on_deliver:
            for key in (name, ANY):
                for fn in self._on_deliver.get(key, ()):
                    fn(now_ns, name, effect.stream, effect.batches)

    def _emit(self, now_ns: int, node: Node, effect: Emit) -> None:
        name = node.name
        if self._record:
            self.emitted[name].append((now_ns, effect.event))
        if self._on_emit:
            for key in (name, ANY):
                for fn in self._on_emit.get(key, ()):
                    fn(now_ns, name, effect.event)

    def _append(self, now_ns: int, node: Node, effect: Append) -> None:
        self.disks.append(now_ns, node, effect)

    def _save(self, now_ns: int, node: Node, effect: SaveState) -> None:
        self.disks.save(now_ns, node, effect)

    def _truncate(self, now_ns: int, node: Node, effect: Truncate) -> None:
        self.disks.truncate(now_ns, node, effect)

    def _compact(self, now_ns: int, node: Node, effect: Compact) -> None:
        self.disks.compact(now_ns, node, effect)

    # ------------------------------------------------------------ links

    def set_link(self, a: str, b: str, link: Link, *, two_way: bool = True) -> None:
        """Join nodes or sites by `link`; the base that mending goes back to."""
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
        """Let nothing pass from `a` to `b` (and back): nodes, sites or "*" for everyone."""
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
        """Whether what `a` sends can get to `b` now."""
        src, dst = self._node(a), self._node(b)
        return dst.machine is not None and not self.network.path(src, dst).cut

    # ------------------------------------------------------------ nodes' faults

    def crash(self, name: str, *, lose_unsynced: bool = True) -> None:
        """End a node's life. Of what was not synced, a random prefix survives."""
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

    def pause(self, name: str) -> None:
        """Stop a node's process; inputs pile up, timers are late, sessions stay."""
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
        """Step a node's wall clock; the time machines run by is not moved."""
        node = self._node(name)
        self._fault(name, f"clock {delta_ns:+}")
        node.wall_base_ns += delta_ns
        if node.machine is not None:
            inp = ClockSet(self.wall_ns(name))
            self.agenda.push(self.now_ns, INPUT, node, node.incarnation, inp)

    def fail_disk(self, name: str, reason: str) -> None:
        """`disk(name).fail(reason)`, on the record."""
        self._fault(name, f"disk {reason}")
        self.disk(name).fail(reason)

    def heal_disk(self, name: str) -> None:
        self._fault(name, "disk heals")
        self.disk(name).heal()

    def wipe(self, name: str) -> None:
        """Put an empty disk into a crashed node."""
        node = self._node(name)
        if node.machine is not None:
            raise UsageError(f"{name} is running: crash it before its disk is wiped")
        self._fault(name, "wipe")
        node.disk.wipe()

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
        node.odd = self.costs is not None
        start = Start(self.wall_ns(node.name), node.incarnation)
        self.agenda.push(self.now_ns, INPUT, node, node.incarnation, start)

    def _catch_up(self, now_ns: int, node: Node, incarnation: int) -> None:
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


class _Table(dict[type, Callable[[World, int, Node, Any], None]]):
    def __missing__(self, kind: type) -> Callable[[World, int, Node, Any], None]:
        raise UsageError(f"{kind.__name__} is no effect the simulator performs")


_PERFORM = _Table(
    {
        Send: World._send,
        Close: World._close,
        SetTimer: World._set_timer,
        CancelTimer: World._cancel_timer,
        Append: World._append,
        Truncate: World._truncate,
        Compact: World._compact,
        SaveState: World._save,
        Deliver: World._deliver,
        Emit: World._emit,
    }
)


def _spell(a: str, b: str, two_way: bool) -> str:
    return f"{a} {b} {'two-way' if two_way else 'one-way'}"
