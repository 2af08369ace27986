"""Our end of the session with one peer: what waits, and the connection it is made of."""

import asyncio
from collections.abc import Container
from typing import TYPE_CHECKING, Final

from surecast.core.types import Peer
from surecast.core.wire import Buffer

if TYPE_CHECKING:
    from surecast.runtime.tcp import Connection

__all__ = [
    "BREAKING",
    "CLOSED",
    "DOWN",
    "FULL",
    "LOST",
    "OPENING",
    "REFUSED",
    "REPLACED",
    "SILENT",
    "UP",
    "Session",
]

OPENING: Final = "opening"
UP: Final = "up"
BREAKING: Final = "breaking"  # too much was sent into it; its end comes in a pass of its own
DOWN: Final = "down"

# Why a session that was up has ended.
CLOSED: Final = "closed"  # in order: one of the two has said Bye
LOST: Final = "lost"  # the connection broke
SILENT: Final = "silent"
REFUSED: Final = "refused"  # one of the two has said why: a bad frame, for instance
FULL: Final = "full"  # the peer did not read what was sent to it
REPLACED: Final = "replaced"  # the peer opened another one


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
        "early",
        "out",
        "parked",
        "peer",
        "queued",
        "speaks",
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
        self.speaks: Container[str] | None = None  # protocols; None: the peer has not said yet
        self.early: list[tuple[str, int, int]] = []  # until then: protocol, buffers, bytes
        self.dirty = False  # listed for the next flush
        self.used = False  # the machine has sent something into it, or knows that it is up
        self.closing = False
        self.congested = False

    def listen_to(self, speaks: tuple[str, ...]) -> int:
        """The peer has listed its protocols: forget what waits of others; how many messages."""
        allowed: Container[str] = frozenset((*speaks, "")) if speaks else EVERYTHING
        self.speaks = allowed
        early, self.early = self.early, []
        dropped = [one for one in early if one[0] not in allowed]
        if not dropped:
            return 0
        kept: list[Buffer] = []
        at = 0
        for protocol, buffers, _ in early:
            if protocol in allowed:
                kept += self.out[at : at + buffers]
            at += buffers
        self.out = kept + self.out[at:]
        self.queued -= sum(nbytes for _, _, nbytes in dropped)
        return len(dropped)


class _Everything:
    """What a peer speaks that has not said."""

    def __contains__(self, protocol: object) -> bool:
        return True


EVERYTHING: Final = _Everything()
