"""The messages of nakcast. A range [lo, hi) contains `lo`, but not `hi`.

Data, Beacon, Nak and Gone are datagrams. A batch that is too large for a datagram is split; a
single event that is too large is sent over the session (the FIFO connection between two nodes).
Join and Leave are sent over the session, so that a server notices when a reader goes away.
"""

from surecast.core.types import Batch, LogId, Message, tagged

__all__ = ["Beacon", "Data", "Gone", "Join", "Leave", "Nak"]


class NakcastMessage(Message, tag=tagged("nakcast")):
    """The base of the messages below: each is tagged "nakcast/" and its class name."""


class Join(NakcastMessage):
    """Send the stream to the reader from now on. Answered by Beacon."""

    stream: LogId


class Leave(NakcastMessage):
    """Stop sending the stream to the reader."""

    stream: LogId


class Data(NakcastMessage):
    """A committed batch of events, or a range of void positions (their events are obsolete). Sent
    once to all readers, and again to a reader that requests it with a Nak."""

    batch: Batch


class Beacon(NakcastMessage):
    """The end of the stream: `end` is the first position that is not committed yet."""

    stream: LogId
    end: int
    # If not 0: this is the last message of the answer to the reader's Nak with this number.
    answers: int = 0


class Nak(NakcastMessage):
    """The reader misses the ranges `holes`."""

    stream: LogId
    holes: tuple[tuple[int, int], ...]  # (lo, hi) of each range, lowest first
    number: int = 0  # counts this reader's Naks for the stream, from 1 on


class Gone(NakcastMessage):
    """[lo, hi) is too old to be sent again. The positions in `voids` are void, so the reader misses
    nothing there; it has lost the other positions."""

    stream: LogId
    lo: int
    hi: int
    voids: tuple[Batch, ...]  # void ranges, lowest first
