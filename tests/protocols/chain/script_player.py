"""Plays the chain's golden scripts: replicas and their configuration service, driven by hand.

Messages are delivered, disks write and time passes only by command:

    chain a b c [option=number]   create a service "w" and these replicas, none of them started
    found a b c [option=number]   the same, started and settled, without showing the steps
    start NAME...                 start nodes on their disks
    disk NAME...                  carry out the pending disk operations, and those that follow
    deliver [FROM TO]             deliver messages in flight, in order, and those that follow
    settle                        deliver and write until nothing is left to do
    wait MILLISECONDS             let time pass: timers fire, and all settles after each
    submit NAME NUMBER            a publisher's batch of one event with this number
    crash NAME                    stop a node: unwritten data is lost; its peers get PeerDown
    cut A B / mend A B            hold back messages between two nodes / deliver them again
    lose A B                      drop the messages in flight between two nodes
    copy NAME / roll-back NAME    keep a copy of a disk / put it back into a crashed node
    hide KIND...                  do not show messages, events and inputs of these kinds any more
    show                          show the state of every node and of its log

Each step is checked against the state tables (`core.states`): a script fails at a transition that
is not in a table.
"""

from collections import Counter
from random import Random
from typing import Any

import msgspec

from surecast.columns.batch import Batch
from surecast.core.replicated import Submit
from surecast.core.states import watched
from surecast.core.types import (
    MS,
    Append,
    AtEndOfPass,
    CancelTimer,
    Emit,
    EndOfPass,
    PeerDown,
    Received,
    Send,
    SetTimer,
    Start,
    TimerFired,
    Truncate,
)
from surecast.protocols.chain.config import ChainConfig
from surecast.protocols.chain.messages import Member
from surecast.protocols.chain.replica import Replica
from surecast.protocols.chain.service import ConfigService
from surecast.storage.memory import MemoryDisk
from surecast.storage.store import apply

__all__ = ["ChainPlayer"]

LOG = bytes(range(16))
PUBLISHER = bytes(8) + b"ann's id"  # named: it never expires
SERVICE = "w"
CHAIN = "east"
UNSHOWN = frozenset({"chain", "life", "log", "token", "disk"})  # fields that scripts leave out
STEPS_MAX = 10_000  # of one command


class _Node:
    def __init__(self, name: str) -> None:
        self.name = name
        self.disk = MemoryDisk()
        self.machine: Any = None
        self.step: Any = None
        self.lives = 0
        self.pending: list[Any] = []  # disk operations that are not done
        self.timers: dict[Any, int] = {}
        self.copy: MemoryDisk | None = None

    def crash(self) -> None:
        self.machine = self.step = None
        self.pending, self.timers = [], {}


class ChainPlayer:
    def __init__(self) -> None:
        self.now_ns = 0
        self.nodes: dict[str, _Node] = {}
        self.options: dict[str, int] = {}
        self.in_flight: list[tuple[str, str, Any]] = []  # (sender, receiver, message)
        self.cut: list[set[str]] = []
        self.hidden: set[str] = set()
        self.disks: dict[str, list[bytes]] = {}  # node → its disk's identities, in order
        self.transitions: Counter[str] = Counter()  # by label
        self.lines: list[str] = []

    def play(self, words: list[str]) -> list[str]:
        self.lines = []
        command, *rest = words
        getattr(self, f"do_{command.replace('-', '_')}")(*rest)
        return self.lines

    # ------------------------------------------------------------ commands

    def do_chain(self, *words: str) -> None:
        names = [word for word in words if "=" not in word]
        self.options = {
            key: int(value) for key, value in (word.split("=") for word in words if "=" in word)
        }
        for name in (SERVICE, *names):
            self.nodes[name] = _Node(name)

    def do_found(self, *words: str) -> None:
        self.do_chain(*words)
        self.do_start(*self.nodes)
        self.do_settle()
        self.do_wait("300")
        self.lines = []
        self.do_show()

    def do_start(self, *names: str) -> None:
        for name in names:
            node = self.nodes[name]
            assert node.machine is None, f"{name} runs"
            node.lives += 1
            rng = Random(f"{name}/{node.lives}")
            replicas = tuple(one for one in self.nodes if one != SERVICE)
            if name == SERVICE:
                node.machine = ConfigService({CHAIN: replicas}, node.disk)
            else:
                options: dict[str, Any] = {"replicas": len(replicas), **self.options}
                node.machine = Replica(ChainConfig(CHAIN, name, SERVICE, **options), node.disk, rng)
            node.step = watched(node.machine, self.transitions)
            self.give(node, Start(0, node.lives), "Start")

    def do_disk(self, *names: str) -> None:
        for name in names:
            self.write(self.nodes[name])

    def do_deliver(self, *pair: str) -> None:
        for _ in range(STEPS_MAX):
            if not self.deliver_next(pair):
                return
        raise AssertionError("messages without end")

    def do_settle(self) -> None:
        for _ in range(STEPS_MAX):
            moved = self.deliver_next(())
            for node in self.nodes.values():
                moved = self.write(node) or moved
            if not moved:
                return
        raise AssertionError("it does not settle")

    def do_wait(self, milliseconds: str) -> None:
        end_ns = self.now_ns + int(milliseconds) * MS
        while True:
            due = [
                (at_ns, name, key)
                for name, node in self.nodes.items()
                for key, at_ns in node.timers.items()
                if at_ns <= end_ns
            ]
            if not due:
                break
            at_ns, name, key = min(due, key=lambda one: (one[0], one[1], str(one[2])))
            self.now_ns = max(self.now_ns, at_ns)
            del self.nodes[name].timers[key]
            word = key if isinstance(key, str) else key[0]
            self.give(self.nodes[name], TimerFired(key), f"timer {word}")
            self.do_settle()
        self.now_ns = end_ns

    def do_submit(self, name: str, number: str) -> None:
        batch = Batch.of(LOG, [f"event {number}".encode()]).numbered(PUBLISHER, int(number))
        self.give(self.nodes[name], Submit(LOG, batch, number), f"Submit {number}")

    def do_crash(self, name: str) -> None:
        self.nodes[name].crash()
        self.in_flight = [sent for sent in self.in_flight if name not in sent[:2]]
        self.say(f"{name} crashes")
        for node in self.nodes.values():
            if node.machine is not None:
                self.give(node, PeerDown(name), f"PeerDown {name}")

    def do_cut(self, a: str, b: str) -> None:
        self.cut.append({a, b})

    def do_mend(self, a: str, b: str) -> None:
        self.cut.remove({a, b})

    def do_lose(self, a: str, b: str) -> None:
        self.in_flight = [sent for sent in self.in_flight if set(sent[:2]) != {a, b}]

    def do_copy(self, name: str) -> None:
        self.nodes[name].copy = self.nodes[name].disk.copy()

    def do_roll_back(self, name: str) -> None:
        node = self.nodes[name]
        assert node.machine is None, f"{name} runs"
        assert node.copy is not None, f"no copy of the disk of {name}"
        node.disk.restore(node.copy)

    def do_hide(self, *kinds: str) -> None:
        self.hidden |= set(kinds)

    def do_show(self) -> None:
        for node in self.nodes.values():
            if node.machine is None:
                self.say(f"{node.name}  down")
            elif isinstance(node.machine, Replica):
                replica = node.machine
                members = self.spell(replica.members)
                log = replica.logs.get(LOG)
                ends = ""
                if log is not None:
                    ends = f"; end {log.end}, stored {log.stored}, committed {log.committed}"
                place = f"{self.states(node)}: epoch {replica.epoch} {members}"
                self.say(f"{node.name}  {place}{ends}")
            else:
                table = node.machine.tables[CHAIN]
                members = self.spell(table.members)
                self.say(f"{node.name}  {self.states(node)}: epoch {table.epoch} {members}")

    # ------------------------------------------------------------ steps

    def give(self, node: _Node, inp: Any, shown: str) -> None:
        """Make one step and show it; `shown` is the text for the input."""
        before = node.machine.states()
        effects = node.step(self.now_ns, inp)
        after = node.machine.states()
        lines = [line for effect in effects if (line := self.perform(node, effect))]
        words = shown.split("(")[0].split()
        if (words[0] == "timer" or self.hidden & set(words)) and not lines and before == after:
            return
        changed = "" if before == after else f"{self.spell_states(before)} → "
        self.say(f"{node.name}  {shown}  [{changed}{self.states(node)}]")
        self.lines += [f"       {line}" for line in lines]
        for effect in effects:
            if type(effect) is AtEndOfPass:
                self.give(node, EndOfPass(effect.key), "end of pass")

    def perform(self, node: _Node, effect: Any) -> str:
        """Carry out or queue an effect; returns the line that shows it, or "" if it is hidden."""
        kind = type(effect)
        if kind is SetTimer:
            node.timers[effect.key] = effect.at_ns
        elif kind is CancelTimer:
            node.timers.pop(effect.key, None)
        elif kind is Send:
            self.in_flight.append((node.name, effect.peer, effect.message))
            if type(effect.message).__name__ not in self.hidden:
                return f"→ {effect.peer}  {self.spell(effect.message)}"
        elif kind is Emit:
            if type(effect.event).__name__ not in self.hidden:
                return f"↑ {self.spell(effect.event)}"
        elif kind is not AtEndOfPass:
            node.pending.append(effect)
            if kind is Append:
                return f"disk: append {self.spell(effect.batches)}"
            if kind is Truncate:
                return f"disk: truncate at {effect.end}"
            name = getattr(effect, "name", "").partition("/")[0]
            what = " ".join(part for part in (kind.__name__, name) if part)
            if what.split()[-1] not in self.hidden:
                return f"disk: {what}"
        return ""

    def write(self, node: _Node) -> bool:
        """Carry out a node's pending disk operations. Returns whether there were any."""
        done = bool(node.pending)
        while node.pending:
            effect = node.pending.pop(0)
            answer = apply(node.disk, effect)
            node.disk.sync()
            if answer is not None:
                token = effect.token
                what = token[0] if isinstance(node.machine, Replica) else effect.name
                self.give(node, answer, f"{type(answer).__name__} {what}")
        return done

    def deliver_next(self, pair: tuple[str, ...]) -> bool:
        """Deliver the first message in flight (of this pair). Returns whether there was one."""
        for place, (src, dst, message) in enumerate(self.in_flight):
            held = any({src, dst} == cut for cut in self.cut)
            if held or (pair and (src, dst) != pair):
                continue
            del self.in_flight[place]
            node = self.nodes[dst]
            if node.machine is not None:
                self.give(node, Received(src, message), f"{self.spell(message)} from {src}")
            return True
        return False

    # ------------------------------------------------------------ text

    def say(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def states(self, node: _Node) -> str:
        return self.spell_states(node.machine.states())

    def spell_states(self, states: dict[str, Any]) -> str:
        """The name of the replica's state, and of the learner's state unless it is NONE."""
        first, *others = states.values()
        return " + ".join([first.name, *(one.name for one in others if one.name != "NONE")])

    def spell(self, value: Any) -> str:
        if isinstance(value, Member):
            known = self.disks.setdefault(value.name, [])
            if value.disk not in known:
                known.append(value.disk)
            number = known.index(value.disk) + 1
            return value.name if number == 1 else f"{value.name}#{number}"
        if isinstance(value, Batch):
            return f"[{value.lo}, {value.hi})"
        if isinstance(value, dict):
            return "{" + ", ".join(f"s: {one}" for one in value.values()) + "}"
        if isinstance(value, tuple):
            return f"({', '.join(map(self.spell, value))})"
        if isinstance(value, bytes):
            return f"{len(value)} bytes"
        if isinstance(value, msgspec.Struct):
            fields = [
                f"{field.name}={self.spell(found)}"
                for field in msgspec.structs.fields(value)
                if field.name not in UNSHOWN
                and (found := getattr(value, field.name)) != field.default
            ]
            return f"{type(value).__name__}({', '.join(fields)})"
        return str(value)
