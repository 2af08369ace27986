"""What nakcast says on the wire, and the command it takes. Ranges are half-open."""

from surecast.core.types import Batch, Input, LogId, Message, tagged

__all__ = ["Beacon", "Data", "Nak", "Publish"]


class NakcastMessage(Message, tag=tagged("nakcast")):
    """The base of the messages below: each is tagged "nakcast/" and its class name."""


class Data(NakcastMessage):
    """A batch at its place in the stream; sent once to everyone, and again to whoever asks."""

    batch: Batch


class Beacon(NakcastMessage):
    """How far the stream goes: `end` is the first position not published yet."""

    stream: LogId
    end: int


class Nak(NakcastMessage):
    """A reader misses these ranges [lo, hi), lowest first."""

    stream: LogId
    holes: tuple[tuple[int, int], ...]


class Publish(Input):
    """Command to the publisher: add a batch, not sequenced yet, to the stream."""

    batch: Batch
