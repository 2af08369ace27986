"""Faults as values, which are applied to a simulated world.

A test script lists such values; a swarm (a series of random fault tests) draws them from a seed.
Each fault has the methods `apply(world)` and `heal(world)`. Some faults have no duration, such as a
clock jump or a wiped disk. Then `heal` does nothing, or only restarts the node. `Timed` schedules a
fault in a world.
"""

from collections.abc import Sequence
from random import Random

import msgspec

from surecast.core.types import MS
from surecast.sim.links import ANY, Link
from surecast.sim.world import World

__all__ = [
    "ClockJump",
    "Crash",
    "Cut",
    "Damage",
    "Degrade",
    "DiskFailure",
    "Fault",
    "Isolate",
    "Pause",
    "Reset",
    "RollBack",
    "Timed",
    "Wipe",
    "draw",
]


class Fault(msgspec.Struct, frozen=True, tag=True):
    """The base class of faults."""

    def apply(self, world: World) -> None:
        raise NotImplementedError

    def heal(self, world: World) -> None:
        """Undo the fault; nothing by default."""


class Cut(Fault, frozen=True, tag=True):
    """Nothing passes between two nodes or sites. If not `two_way`, only the direction from `a` to
    `b` is cut."""

    a: str
    b: str
    two_way: bool = True

    def apply(self, world: World) -> None:
        world.cut(self.a, self.b, two_way=self.two_way)

    def heal(self, world: World) -> None:
        world.mend(self.a, self.b, two_way=self.two_way)


class Isolate(Fault, frozen=True, tag=True):
    """A node or site is cut off from all others."""

    name: str

    def apply(self, world: World) -> None:
        world.cut(self.name, ANY)

    def heal(self, world: World) -> None:
        world.mend(self.name, ANY)


class Degrade(Fault, frozen=True, tag=True):
    """A link becomes slow, narrow or lossy."""

    a: str
    b: str
    link: Link

    def apply(self, world: World) -> None:
        world.degrade(self.a, self.b, self.link)

    def heal(self, world: World) -> None:
        world.mend(self.a, self.b)


class Crash(Fault, frozen=True, tag=True):
    """A node crashes; healing restarts it with its disk."""

    name: str
    lose_unsynced: bool = True  # lose some of what its disk has not synced (`World.crash`)

    def apply(self, world: World) -> None:
        world.crash(self.name, lose_unsynced=self.lose_unsynced)

    def heal(self, world: World) -> None:
        world.restart(self.name)


class Wipe(Fault, frozen=True, tag=True):
    """A node crashes and loses its disk; healing restarts it with an empty disk."""

    name: str

    def apply(self, world: World) -> None:
        world.crash(self.name)
        world.wipe(self.name)

    def heal(self, world: World) -> None:
        world.restart(self.name)


class RollBack(Fault, frozen=True, tag=True):
    """A node crashes and its disk is replaced by an older copy (`World.copy_disk`). The same
    happens to the node `beside`, if one is given, because its data is in the same folder."""

    name: str
    beside: str = ""

    def apply(self, world: World) -> None:
        for name in filter(None, (self.name, self.beside)):
            world.crash(name)
            world.roll_back(name)

    def heal(self, world: World) -> None:
        for name in filter(None, (self.beside, self.name)):
            world.restart(name)


class Damage(Fault, frozen=True, tag=True):
    """A node crashes, and part of its disk is damaged (`World.damage`)."""

    name: str
    kind: str  # one of DAMAGES, explained at `World.damage`
    seed: int  # chooses the positions
    share: float = 1.0  # the part of each log, from its beginning, that may be damaged

    def apply(self, world: World) -> None:
        world.crash(self.name)
        world.damage(self.name, self.kind, Random(self.seed), self.share)

    def heal(self, world: World) -> None:
        world.restart(self.name)


class Pause(Fault, frozen=True, tag=True):
    """A node's process is stopped, as in a long garbage collection or a stopped virtual machine."""

    name: str

    def apply(self, world: World) -> None:
        world.pause(self.name)

    def heal(self, world: World) -> None:
        world.resume(self.name)


class Reset(Fault, frozen=True, tag=True):
    """All sessions of a node break at once; links and nodes continue to work."""

    name: str

    def apply(self, world: World) -> None:
        world.reset_sessions(self.name)


class ClockJump(Fault, frozen=True, tag=True):
    """A node's wall clock jumps by `delta_ns`; healing does not undo this."""

    name: str
    delta_ns: int

    def apply(self, world: World) -> None:
        world.jump_clock(self.name, self.delta_ns)


class DiskFailure(Fault, frozen=True, tag=True):
    """A node's writes (appends and saved states) fail for a while with the reason "full" or
    "io"."""

    name: str
    reason: str = "io"

    def apply(self, world: World) -> None:
        world.fail_disk(self.name, self.reason)

    def heal(self, world: World) -> None:
        world.heal_disk(self.name)


class Timed(msgspec.Struct, frozen=True):
    """A fault that is applied at `at_ns` and healed `for_ns` later."""

    at_ns: int
    for_ns: int
    fault: Fault

    def schedule(self, world: World) -> None:
        world.call(self.at_ns, self.fault.apply)
        world.call(self.at_ns + self.for_ns, self.fault.heal)


DAMAGES = ("record", "segment", "journal", "manifest")
# The kinds of faults that `draw` uses by default. It also knows "wipe", "roll back" and "damage",
# with which a node loses data that it has synced.
KINDS = ("cut", "one-way cut", "isolate", "degrade", "crash", "pause", "reset", "clock", "disk")


def draw(
    rng: Random,
    nodes: Sequence[str],
    pairs: Sequence[tuple[str, str]],
    kinds: Sequence[str] = KINDS,
) -> Fault:
    """One fault of one of `kinds`, on one of `nodes` or between one of `pairs` (sites or nodes)."""
    kind = rng.choice(kinds)
    name = rng.choice(nodes)
    a, b = rng.choice(pairs) if pairs else (name, ANY)
    if kind == "cut":
        return Cut(a, b)
    if kind == "one-way cut":
        return Cut(a, b, two_way=False) if rng.random() < 0.5 else Cut(b, a, two_way=False)
    if kind == "isolate":
        return Isolate(name)
    if kind == "degrade":
        link = Link(
            delay_ns=rng.randint(1, 200) * MS,
            jitter_ns=rng.randint(0, 50) * MS,
            bandwidth_bps=rng.choice((0, 1_000_000, 100_000_000)),
            loss=rng.choice((0.0, 0.05, 0.3)),
        )
        return Degrade(a, b, link)
    if kind == "crash":
        return Crash(name, lose_unsynced=rng.random() < 0.8)
    if kind == "wipe":
        return Wipe(name)
    if kind == "roll back":
        return RollBack(name)
    if kind == "damage":
        share = rng.choice((0.5, 1.0))
        return Damage(name, rng.choice(DAMAGES), rng.randrange(1 << 30), share)
    if kind == "pause":
        return Pause(name)
    if kind == "reset":
        return Reset(name)
    if kind == "clock":
        return ClockJump(name, rng.choice((-1, 1)) * rng.randint(1, 5_000) * MS)
    assert kind == "disk", kind
    return DiskFailure(name, rng.choice(("full", "io")))
