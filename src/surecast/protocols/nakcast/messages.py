"""What nakcast says on the wire. Ranges are half-open.

Data, Beacon, Nak and Gone are datagrams. A batch too large for one is cut; a single event too large
for one goes by the session.
Join and Leave go by the session, so that a server knows when a reader has gone.
"""

from surecast.core.types import Batch, LogId, Message, tagged

__all__ = ["Beacon", "Data", "Gone", "Join", "Leave", "Nak"]


class NakcastMessage(Message, tag=tagged("nakcast")):
    """The base of the messages below: each is tagged "nakcast/" and its class name."""


class Join(NakcastMessage):
    """Send me the stream from now on. Answered by Beacon."""

    stream: LogId


class Leave(NakcastMessage):
    stream: LogId


class Data(NakcastMessage):
    """A committed batch, or a void range, at its place; sent once to all, and again on a NAK."""

    batch: Batch


class Beacon(NakcastMessage):
    """How far the stream goes: `end` is the first position that is not committed yet.

    `answers`: this is the end of the answer to the NAK of that number; 0: of none.
    """

    stream: LogId
    end: int
    answers: int = 0


class Nak(NakcastMessage):
    """The reader misses these ranges [lo, hi), lowest first. It numbers what it asks from 1 on."""

    stream: LogId
    holes: tuple[tuple[int, int], ...]
    number: int = 0


class Gone(NakcastMessage):
    """Of [lo, hi), which is too old to be sent again, `voids` hold no events; the rest is lost."""

    stream: LogId
    lo: int
    hi: int
    voids: tuple[Batch, ...]
