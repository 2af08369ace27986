"""The simulator's event loop: takes the next event, steps the node's machine, performs the effects.

The queue of events is the agenda (agenda.py), and its items are *entries*. Performing an effect
never steps a machine directly: the consequences of an effect go through the agenda, even if they
happen at the same time.
"""

from collections import Counter
from collections.abc import Callable
from heapq import heappop
from random import Random
from typing import Any, Self

from surecast.core.sessions import SESSION
from surecast.core.states import Moves
from surecast.core.types import (
    MS,
    Append,
    AtEndOfPass,
    CancelTimer,
    Close,
    Compact,
    Compacted,
    Deliver,
    Emit,
    EndOfPass,
    Read,
    Received,
    Repair,
    SaveState,
    Send,
    SetTimer,
    TimerFired,
    Truncate,
)
from surecast.errors import UsageError
from surecast.sim.agenda import (
    CALL,
    DATAGRAM,
    ENDING,
    INPUT,
    MESSAGE,
    SLOT_BITS,
    TIMER,
    Agenda,
    Entry,
)
from surecast.sim.costs import Costs
from surecast.sim.disks import Disks
from surecast.sim.links import ANY, Link
from surecast.sim.network import Network
from surecast.sim.node import Node
from surecast.sim.session import End
from surecast.sim.trace import Trace
from surecast.storage.memory import MemoryDisk

__all__ = ["Loop", "OnDeliver", "OnEmit"]

OnDeliver = Callable[[int, str, bytes, tuple[Any, ...]], None]  # now_ns, node, stream, batches
OnEmit = Callable[[int, str, Any], None]  # now_ns, node, event


class Loop:
    """Runs nodes. The subclass `World` adds methods to build a simulation and to inject faults."""

    def __init__(
        self,
        seed: object,
        link: Link | None = None,
        *,
        trace: Trace | None = None,
        costs: Costs | None = None,
        reencode: Callable[[Any], Any] | None = None,
        record: bool = True,
        validate: bool = True,
    ) -> None:
        """`link`: between all nodes, unless another one is set. `record`: keep what nodes deliver
        and emit in `delivered` and `emitted`. `validate`: after every step, check the states of
        machines and sessions against their state tables and invariants (`core.states`); `met` then
        counts the transitions by label."""
        self.seed = seed
        self.now_ns = 0
        self.inputs = 0  # number of inputs given to machines so far
        self.dropped = 0  # inputs for nodes that were down
        self.trace = trace
        self.costs = costs
        # Applied to each arriving message. Encoding and decoding a message again reveals code that
        # relies on sharing objects with the sender.
        self.reencode = reencode
        self.agenda = Agenda()
        self.nodes: dict[str, Node] = {}
        self.network = Network(self, link or Link(), Random(f"{seed}/network"))
        self.disks = Disks(self, Random(f"{seed}/disks"), Random(f"{seed}/reads"))
        self.validate = validate
        self.met: Counter[str] = Counter()
        if validate:
            self.network.moves = Moves(SESSION, self.met)
        if trace is not None:
            trace.sizes = self.network.sizes
        self._copies: dict[str, MemoryDisk] = {}  # node → copy of its disk, for `roll_back`
        self._crash_rng = Random(f"{seed}/crashes")
        self._record = record
        # Node → (stream, batches) of each Deliver; node → (now_ns, event) of each Emit.
        self.delivered: dict[str, list[tuple[bytes, tuple[Any, ...]]]] = {}
        self.emitted: dict[str, list[tuple[int, Any]]] = {}
        self._on_deliver: dict[str, list[OnDeliver]] = {}  # by node, or ANY
        self._on_emit: dict[str, list[OnEmit]] = {}

    # ------------------------------------------------------------ running

    def run(
        self,
        until_ns: int,
        until: Callable[[Self], bool] | None = None,
        check_every_ns: int = 10 * MS,
    ) -> bool:
        """Run up to and including `until_ns`, or until `until(world)` is true at a check.

        Returns whether `until(world)` was true; without `until`, whether there are later events.
        """
        slice_ns = check_every_ns if until is not None else 100 * MS
        while True:
            if until is not None and until(self):
                return True
            next_ns = self.agenda.next_ns()
            if next_ns is None or next_ns > until_ns:
                break
            # Skip checks during idle time, in which `until` cannot become true.
            skipped = max(0, next_ns - self.now_ns - 1) // slice_ns * slice_ns
            self._run_to(min(until_ns, self.now_ns + skipped + slice_ns))
        self.now_ns = max(self.now_ns, until_ns)
        return next_ns is not None if until is None else until(self)

    def _run_to(self, limit_ns: int) -> None:
        """Process all entries due by `limit_ns`. Common cases are inlined, for speed; entries of a
        node or session that is `odd` (see node.py and session.py) go through `_offer`."""
        agenda, network, trace = self.agenda, self.network, self.trace
        today, soon = agenda.today, agenda.soon
        reencode = self.reencode
        record = trace.record if trace is not None else None
        send, high_water_bytes = network.send, network.high_water_bytes
        sizer_of, size_of = network.sizes.sizers.get, network.sizes.of
        random = network.rng.random
        wheel, next_order, put = agenda.wheel, agenda.next_order, agenda.put
        node: Any = None
        inp: Any = None
        inputs = 0
        try:
            while True:
                if soon and (not today or soon[0] < today[-1]):
                    entry = heappop(soon)
                elif today:
                    entry = today.pop()
                elif agenda.advance(limit_ns):
                    today = agenda.today
                    if trace is not None:
                        trace.pack_if_long()
                    continue
                else:
                    break
                now_ns, order, kind, a, b, c = entry
                if now_ns > limit_ns:
                    put(entry)
                    break
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
                elif kind == ENDING:
                    node = a
                    if node.endings.get(b) != order:
                        continue
                    if node.odd:
                        self._offer(node, entry)
                        continue
                    del node.endings[b]
                    inp = EndOfPass(b)
                elif kind == CALL:
                    node, inp = None, a  # for the note that an error gets
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
                sent = None  # the message of the previous Send
                for effect in effects:
                    cls = type(effect)
                    if cls is Send:
                        end = node.ends.get(effect.peer)
                        if end is None or end.held or not effect.reliable:
                            send(now_ns, node, effect)
                            continue
                        # The simplest case of `Network.send` and `Agenda.put`, inlined.
                        message = effect.message
                        if message is not sent:  # the same message may go to several peers
                            sent = message
                            received = Received(node.name, message)
                            sizer = sizer_of(type(message))
                            size = size_of(message) if sizer is None else sizer(message)
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
            if not getattr(problem, "__notes__", None):  # `_serve` may have added a note already
                self._note(problem, node, inp)
            raise
        finally:
            self.inputs += inputs
            if trace is not None:
                trace.pack_if_long()
        self.now_ns = limit_ns

    def give(self, node: Node, inp: Any) -> None:
        """Give a node an input now. Must not be called from inside an effect."""
        self._offer(node, (self.now_ns, 0, INPUT, node, node.incarnation, inp))

    def arrive(self, end: End, received: Received, size: int) -> None:
        """Give a node a message that its session had held back."""
        self._offer(end.peer, (self.now_ns, 0, MESSAGE, end, received, size))

    def _offer(self, node: Node, entry: Entry) -> None:
        """Step a node with an entry. While the node is paused or busy, queue the entry; if the node
        is down, drop it."""
        if node.machine is None:
            self.dropped += 1
        elif node.paused or node.busy:
            node.inbox.append(entry)
        else:
            self._serve(node, entry)

    def _serve(self, node: Node, entry: Entry) -> None:
        """Step a node with the input of an entry, unless the entry is outdated."""
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
        elif kind == ENDING:
            if node.endings.get(b) != order:
                return
            del node.endings[b]
            inp = EndOfPass(b)
        else:
            if kind == INPUT and b is not None and b != node.incarnation:
                return
            inp = c
        if type(inp) is Received and self.reencode is not None:
            inp = Received(inp.peer, self.reencode(inp.message))
        self.inputs += 1
        if type(inp) is Compacted:
            self.disks.show(now_ns, node, inp)
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
        """Add to an error where it happened, so that the run can be repeated."""
        name = node.name if node is not None else "no node"
        problem.add_note(f"{name} at {self.now_ns} ns, seed {self.seed}, given {inp!r}"[:2000])

    def _finish(self, now_ns: int, node: Node, incarnation: int, effects: list[Any]) -> None:
        """Called when the computing time of an input is over: perform its effects, and serve the
        next input."""
        if node.incarnation != incarnation or node.machine is None:
            return
        if node.paused:
            node.unfinished = effects
            return
        node.busy = False
        self._perform(now_ns, node, effects)
        self._work_off(now_ns, node)

    def _work_off(self, now_ns: int, node: Node) -> None:
        """Step a node with the entries of its inbox until it is busy."""
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

    def _at_end_of_pass(self, now_ns: int, node: Node, effect: AtEndOfPass) -> None:
        node.endings[effect.key] = self.agenda.push(now_ns, ENDING, node, effect.key)

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

    def _store(self, now_ns: int, node: Node, effect: Any) -> None:
        self.disks.perform(now_ns, node, effect)


class _Table(dict[type, Callable[[Loop, int, Node, Any], None]]):
    def __missing__(self, kind: type) -> Callable[[Loop, int, Node, Any], None]:
        raise UsageError(f"{kind.__name__} is not an effect that the simulator performs")


_PERFORM = _Table(
    {
        Send: Loop._send,
        Close: Loop._close,
        SetTimer: Loop._set_timer,
        AtEndOfPass: Loop._at_end_of_pass,
        CancelTimer: Loop._cancel_timer,
        Append: Loop._store,
        Repair: Loop._store,
        Truncate: Loop._store,
        Compact: Loop._store,
        Read: Loop._store,
        SaveState: Loop._store,
        Deliver: Loop._deliver,
        Emit: Loop._emit,
    }
)
