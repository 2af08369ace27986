"""The end of a session: what one node has of its connection to another.

`odd` and `held` keep the common case fast; the world's loop looks at nothing else. `end.odd` is set
whenever what an end has sent may not simply be handed over: not accepted yet, cut, mended a moment
ago, closing, congested, or the other end is gone. `end.held` is set when a send may not simply be
put under way: not up, closing, or over a path with loss or a bandwidth limit.
"""

from typing import Any

from surecast.core.sessions import SessionState
from surecast.sim.links import Path
from surecast.sim.node import Node

__all__ = ["ACCEPT", "DOWN", "FIN", "NOTHING", "OPENING", "UP", "End", "add"]

OPENING, UP, DOWN = "opening", "up", "down"


class Mark:
    """Travels through a session like a message, for the network's own use."""

    def __init__(self, name: str) -> None:
        self.name = name


ACCEPT = Mark("accept")
FIN = Mark("fin")


Held = list[tuple[Any, int]]  # messages and their sizes
NOTHING: Held = []  # shared by all ends that hold none, which is nearly all; never changed


def add(held: Held, item: tuple[Any, int]) -> Held:
    if not held:
        return [item]
    held.append(item)
    return held


class _HotEnd:
    """What each message touches. The slots of a base class come first in memory: two cache lines
    where a world of a thousand nodes would otherwise spend its time waiting for four."""

    __slots__ = ("delay_ns", "held", "jitter_ns", "last_ns", "odd", "peer", "queued")


class End(_HotEnd):
    """One node's end of a session, and the direction away from it."""

    __slots__ = (
        "after",
        "begun",
        "closing",
        "congested",
        "cut",
        "flow_ns",
        "flowing",
        "missed",
        "node",
        "opener",
        "other",
        "path",
        "seen",
        "stalled",
        "state",
        "waiting",
        "watch",
        "watched",
    )

    other: "End"

    def __init__(self, node: Node, peer: Node, path: Path, opener: bool) -> None:
        self.node = node
        self.peer = peer
        self.path = path
        self.opener = opener
        self.state = OPENING
        self.begun = False  # the opener's handshake is under way
        self.closing = False
        self.odd = True
        self.last_ns = 0  # when the last message put under way arrives
        self.queued = 0  # bytes sent and not taken yet
        self.congested = False
        self.waiting = NOTHING  # to be put under way when up
        self.after = NOTHING  # sent after Close
        self.stalled = NOTHING  # was due while the path was cut
        self.flowing = False  # mended: what is stalled, and what comes now, waits for `flow_ns`
        self.flow_ns = 0
        self.cut = False  # as last seen of the path
        self.missed = False  # the handshake came to a cut path
        self.watched = False  # one direction is cut: a timeout is running
        self.watch = 0  # names the timeout that counts; raised to call it off
        self.seen = self.phase  # when it was last checked against the state table
        self.follow()

    @property
    def phase(self) -> SessionState:
        """The state as `core.sessions` names it, derived here and nowhere else."""
        if self.state is UP:
            return SessionState.CLOSING if self.closing else SessionState.UP
        if self.state is DOWN:
            return SessionState.ENDED
        if not self.opener:
            return SessionState.ANSWERING
        return SessionState.DIALLING if self.begun else SessionState.PAUSED

    def validate(self) -> None:
        """Assert what must hold after every transition."""
        assert self.other.other is self, "the two ends do not belong to each other"
        assert self.opener != self.other.opener, "both ends, or none, have opened it"
        assert not self.after or self.closing, "something waits for the next session without Close"
        assert self.queued >= 0, "more was taken than was sent"
        if self.state is UP:
            assert not self.waiting, "up, and something waits for that"
            assert self.held or not self.closing, "closing, and sends are put under way"
        elif self.state is OPENING:
            assert self.held, "not up, and sends are put under way"
            assert not self.opener or self.other.state is not UP, "accepted before it was opened"

    def follow(self) -> None:
        """Bring in line with path and state what each send looks at."""
        self.delay_ns = self.path.delay_ns
        self.jitter_ns = self.path.jitter_ns
        self.held = self.state is not UP or self.closing or not self.path.plain
