"""Storage effects in a simulation: written at once, durable after a sync, answered in order.

A sync is what fsync does on a real disk: what was written before it survives a crash.

A node runs one sync at a time. Everything written during a sync belongs to the next one, as with
group commit on a real disk. The answers (`Stored`, `StoreFailed`, `Compacted`) are given to the
machine when their sync has ended, in the order of the effects. A compaction changes the log at the
moment when its answer `Compacted` is given.

By default all logs stay in memory, and no position is cold. After `cool`, each node is told from
its start on, at random times, that its logs are cold up to a random position. A `Read` gets the
batches that the log has at that time. It is answered after a random time, so several of them are
answered in any order.
"""

from random import Random
from typing import TYPE_CHECKING, Any

from surecast.core.types import MS, US, ColdBelow, Compacted, Read
from surecast.sim.agenda import CALL
from surecast.sim.node import Node
from surecast.storage.store import apply, load, timely

if TYPE_CHECKING:
    from surecast.sim.loop import Loop

__all__ = ["Disks"]


class Disks:
    """The storage of all nodes of a world, and how long syncs and reads take."""

    def __init__(self, world: "Loop", rng: Random, read_rng: Random) -> None:
        """`read_rng` draws what concerns cold reads, so that other draws do not depend on them."""
        self.world = world
        self.rng = rng
        self.read_rng = read_rng
        self.sync_ns = 150 * US
        self.sync_jitter_ns = 50 * US
        self.read_ns = 100 * US
        self.read_jitter_ns = 5 * MS
        self.cold_ns = 0  # mean time between two `ColdBelow` of a node; 0: no position is cold

    def perform(self, now_ns: int, node: Node, effect: Any) -> None:
        """Perform a storage effect. The answer to a write is given after the next sync."""
        if type(effect) is Read:
            after_ns = self.read_ns + int(self.read_rng.random() * self.read_jitter_ns)
            loaded = (node, node.incarnation, load(node.disk, effect))
            self.world.agenda.push(now_ns + after_ns, CALL, self._loaded, loaded)
            return
        self._answer(now_ns, node, apply(node.disk, effect))

    def show(self, now_ns: int, node: Node, given: Compacted) -> None:
        """Perform a compaction; called just before its answer is given to the machine."""
        if node.disk.show(given.token):
            self._answer(now_ns, node, None)  # only begins a sync, for what `show` has written

    def cool(self, mean_ns: int) -> None:
        """Tell all nodes about every `mean_ns` that parts of their logs are cold."""
        self.cold_ns = mean_ns
        for node in self.world.nodes.values():
            self.started(self.world.now_ns, node)

    def started(self, now_ns: int, node: Node) -> None:
        """A node has started: all of its logs that are on disk are cold."""
        if self.cold_ns:
            ends = tuple([(log, node.disk.end(log)) for log in node.disk.logs()])
            life = (node, node.incarnation)
            self.world.agenda.push(now_ns, CALL, self._cool, (*life, ends))

    def _cool(self, now_ns: int, node: Node, incarnation: int, ends: Any = None) -> None:
        """Tell a node that its logs are cold up to `ends`, or up to random positions."""
        if node.incarnation != incarnation or node.machine is None:
            return
        rng, disk = self.read_rng, node.disk
        if ends is None:
            ends = tuple([(log, rng.randint(1, disk.end(log))) for log in disk.logs()])
        after_ns = 1 + int(rng.random() * 2 * self.cold_ns)
        self.world.agenda.push(now_ns + after_ns, CALL, self._cool, (node, incarnation))
        self.world.give(node, ColdBelow(ends))

    def _loaded(self, now_ns: int, node: Node, incarnation: int, loaded: Any) -> None:
        if node.incarnation == incarnation:  # else the node crashed during the read
            self.world.give(node, loaded)

    def _answer(self, now_ns: int, node: Node, answer: Any) -> None:
        """Something was written: give `answer` (if not None) after the next sync."""
        node.unsynced.append(answer)
        if node.syncing is None:
            self._begin(now_ns, node)

    def _begin(self, now_ns: int, node: Node) -> None:
        node.syncing, node.unsynced = node.unsynced, []
        at_ns = now_ns + self.sync_ns + int(self.rng.random() * self.sync_jitter_ns)
        life = (node, node.incarnation, node.disk.written)
        self.world.agenda.push(at_ns, CALL, self._synced, life)

    def _synced(self, now_ns: int, node: Node, incarnation: int, mark: int) -> None:
        """A sync has ended. `mark`: what was on the disk when it began (`MemoryDisk.written`)."""
        if node.incarnation != incarnation or node.syncing is None:
            return  # the node crashed during the sync
        node.disk.sync(mark)
        answers, node.syncing = node.syncing, None
        if node.unsynced:
            self._begin(now_ns, node)
        for answer in answers:
            if answer is not None:
                self.world.give(node, timely(node.disk, answer))
