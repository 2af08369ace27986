"""Our end of the session with one peer: what waits, and the connection it is made of."""

import asyncio
from typing import TYPE_CHECKING, Final

from surecast.core.types import Peer
from surecast.core.wire import Buffer

if TYPE_CHECKING:
    from surecast.runtime.tcp import Connection

__all__ = ["BREAKING", "DOWN", "OPENING", "UP", "Session"]

OPENING: Final = "opening"
UP: Final = "up"
BREAKING: Final = "breaking"  # too much was sent into it; its end comes in a pass of its own
DOWN: Final = "down"


class Session:
    __slots__ = (
        "after",
        "after_bytes",
        "attempt",
        "closing",
        "congested",
        "connection",
        "dial",
        "dirty",
        "out",
        "parked",
        "peer",
        "queued",
        "state",
        "timer",
        "used",
    )

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.state = OPENING
        self.connection: Connection | None = None
        self.parked: Connection | None = None  # theirs, in case ours fails
        self.dial: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None  # begins the attempt, then ends it
        self.attempt = 0
        self.out: list[Buffer] = []  # to be written at the next flush, or when up
        self.queued = 0  # bytes in `out`
        self.after: list[Buffer] = []  # sent after Close: for the next session
        self.after_bytes = 0
        self.dirty = False  # listed for the next flush
        self.used = False  # the machine has sent something into it, or knows that it is up
        self.closing = False
        self.congested = False
