"""The logs that clients of a large run (such as the demo) record, as columns in numpy arrays.

The publisher's log has a row for every event it *offered* (passed to the client library), in order,
with the position if it was acknowledged. A reader's log has a row for every event delivered to it.
In such a run all keys and all values have eight bytes. So each is stored as one 64-bit number, and
comparing the numbers compares the bytes.

A log also has *marks*: pairs of a time and the client's progress at that time. The progress of a
reader is the next position it will read; that of a publisher is the number of its acknowledged
events. Figures, and the longest pauses, are computed from the marks; the verdict (`audit.py`) does
not use them. The times `at_ns`, `offered_ns` and `got_ns` are nanoseconds of the machine's
monotonic clock, which is the same for all its processes.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from surecast.errors import UsageError

__all__ = [
    "WIDTH",
    "Marks",
    "OfferedEvents",
    "ReadEvents",
    "load_offered",
    "load_read",
    "numbers",
    "save",
]

Int64s = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]  # keys or values of eight bytes each

WIDTH = 8  # bytes of every key and value


def numbers(data: bytes | memoryview) -> Words:
    """Concatenated keys or values as a column of numbers."""
    if len(data) % WIDTH:
        raise UsageError(f"{len(data)} bytes are not keys or values of {WIDTH} bytes each")
    return np.frombuffer(data, ">u8").astype(np.uint64)


def _no_numbers() -> Int64s:
    return np.empty(0, np.int64)


@dataclass(slots=True)
class Marks:
    """Times, and the client's progress at each: for a reader, `position` is the next position it
    will read; for a publisher, it is the number of events acknowledged by then."""

    at_ns: Int64s = field(default_factory=_no_numbers)
    position: Int64s = field(default_factory=_no_numbers)


@dataclass(slots=True)
class OfferedEvents:
    """One publisher's log of one stream."""

    key: Words
    value: Words  # unique
    seq: Int64s  # the acknowledged position; 0: not acknowledged
    marks: Marks = field(default_factory=Marks)
    offered_ns: Int64s | None = None  # when each event was offered


@dataclass(slots=True)
class ReadEvents:
    """One reader's log of one stream.

    A reader that requests voids (ranges of positions with obsolete events) records them. If a
    reader does not request them, `voids` is None, and a position without an event may be void or
    lost; `audit.py` decides which.
    """

    reader: str
    seq: Int64s
    time_us: Int64s  # each event's time in the stream: microseconds since 1970
    key: Words
    value: Words
    voids: npt.NDArray[np.int64] | None = None  # rows of (lo, hi): void positions, half-open
    malformed: int = 0  # events whose key or value did not have eight bytes
    marks: Marks = field(default_factory=Marks)
    got_ns: Int64s | None = None  # when each event was delivered
    void_after: Int64s | None = None  # how many events were delivered before each void

    @property
    def end(self) -> int:
        """The position after the last one that was delivered."""
        last = int(self.seq[-1]) + 1 if self.seq.size else 1
        if self.voids is not None and len(self.voids):
            last = max(last, int(self.voids[-1, 1]))
        return last


# ---------------------------------------------------------------- files


def save(path: Path, log: OfferedEvents | ReadEvents) -> None:
    """Write a log; the file appears complete or not at all."""
    columns: dict[str, Any] = {"key": log.key, "value": log.value, "seq": log.seq}
    columns |= {"at_ns": log.marks.at_ns, "position": log.marks.position}
    if isinstance(log, ReadEvents):
        columns |= {"time_us": log.time_us, "malformed": np.array(log.malformed)}
        columns |= {"reader": np.array(log.reader), "got_ns": log.got_ns}
        columns |= {"voids": log.voids, "void_after": log.void_after}
    else:
        columns["offered_ns"] = log.offered_ns
    columns = {name: column for name, column in columns.items() if column is not None}
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        np.savez(file, **columns)
    part.replace(path)


def load_offered(path: Path) -> OfferedEvents:
    with np.load(path) as found:
        marks = Marks(found["at_ns"], found["position"])
        columns = (found["key"], found["value"], found["seq"])
        return OfferedEvents(*columns, marks, found.get("offered_ns"))


def load_read(path: Path) -> ReadEvents:
    with np.load(path) as found:
        return ReadEvents(
            str(found["reader"]),
            found["seq"],
            found["time_us"],
            found["key"],
            found["value"],
            found.get("voids"),
            int(found["malformed"]),
            Marks(found["at_ns"], found["position"]),
            found.get("got_ns"),
            found.get("void_after"),
        )
