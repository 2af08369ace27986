"""Storage effects in a simulation: written at once, durable after a sync, answered in order.

A sync is what fsync does on a real disk: what was written before it survives a crash.

A node runs one sync at a time. Everything written during a sync belongs to the next one, as with
group commit on a real disk. The answers (`Stored`, `StoreFailed`, `Compacted`) are given to the
machine when their sync has ended, in the order of the effects. A compaction changes the log at the
moment when its answer `Compacted` is given.
"""

from random import Random
from typing import TYPE_CHECKING, Any

from surecast.core.types import US, Compacted
from surecast.sim.agenda import CALL
from surecast.sim.node import Node
from surecast.storage.store import apply, timely

if TYPE_CHECKING:
    from surecast.sim.loop import Loop

__all__ = ["Disks"]


class Disks:
    """The storage of all nodes of a world, and how long a sync takes."""

    def __init__(self, world: "Loop", rng: Random) -> None:
        self.world = world
        self.rng = rng
        self.sync_ns = 150 * US
        self.sync_jitter_ns = 50 * US

    def perform(self, now_ns: int, node: Node, effect: Any) -> None:
        """Write a storage effect. Its answer is given after the next sync."""
        self._answer(now_ns, node, apply(node.disk, effect))

    def show(self, now_ns: int, node: Node, given: Compacted) -> None:
        """Perform a compaction; called just before its answer is given to the machine."""
        if node.disk.show(given.token):
            self._answer(now_ns, node, None)  # only begins a sync, for what `show` has written

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
