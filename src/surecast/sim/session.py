"""One end of a session: the state that a node has of its simulated connection to another node.

network.py changes this state. In the common case, the simulator's loop checks only two flags of an
end. `odd` is set if messages that this end has sent need special handling when they arrive: the
peer has not accepted the session, the path is or was cut, the end is closing or congested, or the
other end is down. `held` is set if sending needs special handling: the end is not up, it is
closing, or its path has loss or a bandwidth limit.
"""

from typing import Any

from surecast.core.sessions import SessionState
from surecast.sim.links import Path
from surecast.sim.node import Node

__all__ = ["ACCEPT", "DOWN", "FIN", "NOTHING", "OPENING", "UP", "End", "add"]

OPENING, UP, DOWN = "opening", "up", "down"


class SessionMark:
    """A control message of the simulated network, which travels through a session."""

    def __init__(self, name: str) -> None:
        self.name = name


ACCEPT = SessionMark("accept")
FIN = SessionMark("fin")


Held = list[tuple[Any, int]]  # messages and their sizes
NOTHING: Held = []  # one empty list, shared by all ends without held messages; never changed


def add(held: Held, item: tuple[Any, int]) -> Held:
    """Append to `held`; but if it is empty, it may be NOTHING, so return a new list instead."""
    if not held:
        return [item]
    held.append(item)
    return held


class _HotEnd:
    """The fields that each message uses. The slots of a base class come first in memory. So these
    fields fill two cache lines instead of four, which matters with a thousand nodes."""

    __slots__ = ("delay_ns", "held", "jitter_ns", "last_ns", "odd", "peer", "queued")


class End(_HotEnd):
    """One node's end of a session, and the messages that it sends."""

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
        self.path = path  # from `node` to `peer`
        self.opener = opener  # whether `node` began the session
        self.state = OPENING
        self.begun = False  # whether the opener's handshake is under way
        self.closing = False  # Close was called, or the peer's FIN has arrived
        self.odd = True
        self.last_ns = 0  # arrival time of the last message in flight
        self.queued = 0  # bytes sent, but not yet processed by the peer
        self.congested = False  # Congested was given to the machine, Writable not yet
        self.waiting = NOTHING  # messages to send when up
        self.after = NOTHING  # messages sent after Close
        self.stalled = NOTHING  # messages that were due while the path was cut
        # After the path is mended, stalled and new messages arrive at `flow_ns` at the earliest.
        self.flowing = False
        self.flow_ns = 0
        self.cut = False  # whether the path was cut at the last check
        self.missed = False  # the handshake failed because a path was cut
        self.watched = False  # a timeout is running, because one direction is cut
        self.watch = 0  # number of the valid timeout; incremented to cancel that timeout
        self.seen = self.phase  # the phase at the last check against the state table
        self.follow()

    @property
    def phase(self) -> SessionState:
        """The state of this end in the terms of the state table `core.sessions`."""
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
        assert not self.after or self.closing, "messages for the next session, but no Close"
        assert self.queued >= 0, "more was processed than was sent"
        if self.state is UP:
            assert not self.waiting, "up, but messages wait for that"
            assert self.held or not self.closing, "closing, but sends are not held"
        elif self.state is OPENING:
            assert self.held, "not up, but sends are not held"
            assert not self.opener or self.other.state is not UP, "accepted before it was opened"

    def follow(self) -> None:
        """Derive the fields that each send uses (see `_HotEnd`) from the path and the state."""
        self.delay_ns = self.path.delay_ns
        self.jitter_ns = self.path.jitter_ns
        self.held = self.state is not UP or self.closing or not self.path.plain
