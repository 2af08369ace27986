"""One simulated node: a disk, and a state machine that is created at each start."""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from surecast.core.machine import Factory, NodeContext
from surecast.core.types import Machine, TimerKey, listed
from surecast.errors import UsageError
from surecast.storage.memory import MemoryDisk

if TYPE_CHECKING:
    from surecast.sim.agenda import Entry
    from surecast.sim.links import Path
    from surecast.sim.session import End

__all__ = ["Node"]


class _HotNode:
    """The fields that each step uses. As slots of a base class they are adjacent in memory."""

    __slots__ = ("endings", "ends", "name", "odd", "step", "timers")


class Node(_HotNode):
    """A name, a disk and, while it is not crashed, a machine."""

    __slots__ = (
        "busy",
        "disk",
        "factory",
        "inbox",
        "incarnation",
        "lacks",
        "machine",
        "paths",
        "paused",
        "quiet_until",
        "seed",
        "site",
        "speaks",
        "syncing",
        "unfinished",
        "unsynced",
        "wall_base_ns",
    )

    def __init__(self, name: str, site: str, seed: object, factory: Any, wall_ns: int) -> None:
        self.name = name
        self.site = site
        self.seed = seed
        self.factory: Factory | Machine = factory
        self.disk = MemoryDisk()
        self.machine: Machine | None = None
        self.step: Callable[[int, Any], list[Any]] = _crashed  # the machine's, or a wrapper of it
        self.incarnation = 0  # number of starts so far
        self.speaks: tuple[str, ...] = ()  # the protocols that peers learn with PeerUp
        self.lacks: frozenset[str] = frozenset()  # what it does not list, like an earlier version
        self.wall_base_ns = wall_ns  # wall clock = this + the world's clock
        self.paused = False
        self.busy = False  # computing, if there is a cost model (costs.py)
        # True if inputs need special handling, because the node is crashed or paused, or because
        # there is a cost model.
        self.odd = True
        self.paths: dict[str, Path] = {}  # by peer
        self.forget()

    def forget(self) -> None:
        """Reset everything that a crash loses: all state of the node but its disk."""
        self.timers: dict[TimerKey, int] = {}  # key → order of the valid entry of the agenda
        self.endings: dict[TimerKey, int] = {}  # the same for AtEndOfPass
        self.ends: dict[str, End] = {}  # peer → this node's end of the current session
        self.quiet_until: dict[str, int] = {}  # peer → when the next attempt to connect may begin
        self.inbox: deque[Entry] = deque()  # arrived, not given to the machine yet
        self.unfinished: list[Any] | None = None  # effects not performed when the pause began
        # Answers from the disk to be given after the current sync (None: no sync is running), and
        # after the next one. See disks.py.
        self.syncing: list[Any] | None = None
        self.unsynced: list[Any] = []

    def start(self) -> None:
        """Create a machine, with the next incarnation, on the same disk."""
        assert self.machine is None
        self.incarnation += 1
        self.machine = machine = self._make()
        self.step = machine.step
        supported = listed(getattr(machine, "messages", ()))
        self.speaks = tuple(name for name in supported if name not in self.lacks)

    def stop(self) -> None:
        self.machine = None
        self.step = _crashed
        self.paused = self.busy = False
        self.odd = True
        self.forget()

    def _make(self) -> Machine:
        factory = self.factory
        if not is_machine(factory):
            # A string seeds Random by its SHA-512: the same in every process.
            rng = Random(f"{self.seed}/{self.name}/{self.incarnation}")
            return factory(NodeContext(self.name, rng, self.disk, self.incarnation))  # type: ignore[operator]
        if self.incarnation > 1:
            raise UsageError(f"{self.name} was added as a machine: a restart needs a factory")
        return factory  # type: ignore[return-value]


def is_machine(value: Any) -> bool:
    return hasattr(value, "step") and not isinstance(value, type)


def _crashed(now_ns: int, inp: Any) -> list[Any]:
    raise AssertionError("an input for a crashed node")
