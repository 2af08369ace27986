"""The guarantees of nakcast, checked on what publishers and readers can see.

G1 in order, once: the events, void ranges and losses that a reader delivers cover the positions
from its start on, one after another, without gap or overlap.
G2 nothing missing: if a server is up and some messages arrive, each reader gets to the end of the
events that were acknowledged to publishers.
G3 only real losses: only positions more than `repair_max` below the end are reported as lost, and
none that retention has made void (obsolete).
G4 what was published: each event is the one that was acknowledged at its position, or one that a
publisher has sent and that was not acknowledged.

A check takes a `Record` and returns the violations it found. A record contains only what publishing
and reading applications observe.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

__all__ = [
    "CHECKS",
    "Given",
    "Reading",
    "Record",
    "g1_in_order_once",
    "g2_nothing_missing",
    "g3_a_loss_is_a_loss",
    "g4_what_was_published",
]


class Given(NamedTuple):
    """What a reader delivered for positions [lo, hi)."""

    kind: Literal["event", "void", "lost"]
    lo: int
    hi: int
    value: bytes = b""  # of an event


@dataclass(slots=True)
class Reading:
    """What one reader delivered, in order."""

    reader: str  # its name
    start: int = 1  # the position from which on it follows the stream
    given: list[Given] = field(default_factory=list)

    @property
    def position(self) -> int:
        """The next position that the reader expects."""
        return self.given[-1].hi if self.given else self.start


@dataclass(slots=True)
class Record:
    """The history of one stream."""

    name: str
    repair_max: int  # as in the servers' configuration
    keep_last: int = 0  # the number of positions that retention keeps; 0: all
    # The value of each event that publishers have sent, acknowledged or not. (The values of this
    # mapping are not used.) No two events have the same value.
    offered: Mapping[bytes, object] = field(default_factory=dict)
    acked: Mapping[bytes, int] = field(default_factory=dict)  # acknowledged event → its position
    readings: Sequence[Reading] = ()

    @property
    def end(self) -> int:
        """The first position that was neither acknowledged nor delivered."""
        acked = max(self.acked.values(), default=0) + 1
        return max([acked, *(reading.position for reading in self.readings)])


def g1_in_order_once(record: Record) -> list[str]:
    wrong = []
    for reading in record.readings:
        due = reading.start
        for given in reading.given:
            if given.lo != due or given.hi <= given.lo:
                wrong.append(f"G1 {_who(record, reading)} got {given}, but expected {due}")
                break
            due = given.hi
    return wrong


def g2_nothing_missing(record: Record) -> list[str]:
    end = max(record.acked.values(), default=0) + 1
    return [
        f"G2 {_who(record, reading)} stopped at {reading.position}, but acknowledged events end at "
        f"{end}"
        for reading in record.readings
        if reading.position < end
    ]


def g3_a_loss_is_a_loss(record: Record) -> list[str]:
    wrong = []
    floor = record.end - record.repair_max  # positions from here on can be requested
    for reading in record.readings:
        for given in reading.given:
            if given.kind != "lost":
                continue
            if given.hi > floor:
                wrong.append(f"G3 {_who(record, reading)}: {given} is above {floor}")
            # Then all positions below `floor` are void, because retention keeps fewer.
            if 0 < record.keep_last <= record.repair_max:
                wrong.append(f"G3 {_who(record, reading)}: {given} was void, not lost")
    return wrong


def g4_what_was_published(record: Record) -> list[str]:
    wrong = []
    values = {seq: value for value, seq in record.acked.items()}
    for reading in record.readings:
        for given in reading.given:
            if given.kind != "event":
                continue
            known = values.get(given.lo)
            if known is not None and known != given.value:
                wrong.append(
                    f"G4 {_who(record, reading)}: {given}, but {known!r} was acknowledged there"
                )
            elif given.value not in record.offered:
                wrong.append(f"G4 {_who(record, reading)}: {given} was never published")
    return wrong


CHECKS = (g1_in_order_once, g2_nothing_missing, g3_a_loss_is_a_loss, g4_what_was_published)


def _who(record: Record, reading: Reading) -> str:
    return f"{record.name} {reading.reader}"
