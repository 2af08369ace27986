"""What clients of a large run write down, as columns: a million events are a few arrays.

The publisher's ledger has a row for every event it offered, in that order, with the position it was
told. A reader's has a row for every event it was given. Keys and values of such a run are eight
bytes each, so a column of them is a column of numbers and comparing numbers compares the bytes.

A ledger also has *marks*: when (in nanoseconds of the machine's monotonic clock, the same for all
processes) it stood where. Figures and pauses come from them, the verdict does not. By that clock it
says when each event was offered, or came.
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
Words = npt.NDArray[np.uint64]  # eight bytes each

WIDTH = 8  # bytes of every key and value


def numbers(data: bytes | memoryview) -> Words:
    """Keys or values that lie side by side, as a column."""
    if len(data) % WIDTH:
        raise UsageError(f"{len(data)} bytes are no keys or values of {WIDTH} bytes each")
    return np.frombuffer(data, ">u8").astype(np.uint64)


def _no_numbers() -> Int64s:
    return np.empty(0, np.int64)


@dataclass(slots=True)
class Marks:
    """When it stood where: of a publisher, how many events were acknowledged."""

    at_ns: Int64s = field(default_factory=_no_numbers)
    position: Int64s = field(default_factory=_no_numbers)


@dataclass(slots=True)
class OfferedEvents:
    """One publisher's ledger of one stream."""

    key: Words
    value: Words  # no two alike
    seq: Int64s  # where it was told the event stands; 0: it was not told
    marks: Marks = field(default_factory=Marks)
    offered_ns: Int64s | None = None  # when


@dataclass(slots=True)
class ReadEvents:
    """One reader's ledger of one stream.

    A reader that asks for voids writes them down; for one that does not (`voids` is None), every
    position that it was not given an event for is void, or lost: that is the judge's to say.
    """

    reader: str
    seq: Int64s
    time_us: Int64s  # since 1970: what batches and events both tell
    key: Words
    value: Words
    voids: npt.NDArray[np.int64] | None = None  # rows of lo, hi
    malformed: int = 0  # events whose key or value had not eight bytes
    marks: Marks = field(default_factory=Marks)
    got_ns: Int64s | None = None  # when each event came
    void_after: Int64s | None = None  # how many events had come before each void

    @property
    def end(self) -> int:
        """Where it goes on."""
        last = int(self.seq[-1]) + 1 if self.seq.size else 1
        if self.voids is not None and len(self.voids):
            last = max(last, int(self.voids[-1, 1]))
        return last


# ---------------------------------------------------------------- files


def save(path: Path, ledger: OfferedEvents | ReadEvents) -> None:
    """Write a ledger; there is none, or all of it."""
    columns: dict[str, Any] = {"key": ledger.key, "value": ledger.value, "seq": ledger.seq}
    columns |= {"at_ns": ledger.marks.at_ns, "position": ledger.marks.position}
    if isinstance(ledger, ReadEvents):
        columns |= {"time_us": ledger.time_us, "malformed": np.array(ledger.malformed)}
        columns |= {"reader": np.array(ledger.reader), "got_ns": ledger.got_ns}
        columns |= {"voids": ledger.voids, "void_after": ledger.void_after}
    else:
        columns["offered_ns"] = ledger.offered_ns
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
