"""Small runs of a latest-per-key stream, as audit logs, and functions that corrupt them.

Three judges judge these runs: numpy's (tests/surecast_lab/swarm) and Spark's (tests/pipeline), made
for large runs, and the plain-Python one of `sprinkler.checks`, to compare with.
"""

from collections.abc import Callable
from random import Random

import numpy as np

from surecast.columns.batch import DATA, SUPERSEDED
from surecast.columns.retention import LatestPerKey
from surecast.protocols.sprinkler.checks import Event, Offered, Reading, Record, Tally, check
from surecast_lab.swarm.audit import judge
from surecast_lab.swarm.audit_log import WIDTH, OfferedEvents, ReadEvents

__all__ = ["EVENTS", "SPOILT", "Run", "lose"]

EVENTS, KEYS = 300, 20


class Run:
    """A small correct run: late readers get only events that are not void."""

    def __init__(self, seed: int) -> None:
        rng = Random(f"{seed}/audit")
        print(f"seed {seed}")
        keys = np.array([rng.randrange(KEYS) for _ in range(EVENTS)], np.uint64)
        values = np.arange(1, EVENTS + 1, dtype=np.uint64)
        self.offered = OfferedEvents(keys, values, np.arange(1, EVENTS + 1))
        self.end = EVENTS + 1
        self.readers = [self._reader(f"r{i}", rng) for i in range(3)]

    def _reader(self, name: str, rng: Random) -> ReadEvents:
        """A reader that joined after `seen` events: it got the newest of each key and all later."""
        seen = rng.randrange(EVENTS)
        newest = {int(key): at for at, key in enumerate(self.offered.key[:seen])}
        got = np.array([*sorted(newest.values()), *range(seen, EVENTS)], np.int64)
        times = got * 7 + 1000
        voids = _gaps(got + 1) if rng.random() < 0.5 else None
        return ReadEvents(
            name, got + 1, times, self.offered.key[got], self.offered.value[got], voids
        )

    def judged(self) -> Tally:
        return judge(self.offered, self.readers, self.end)

    def judged_by_twin(self) -> Tally:
        """The verdict of the judge of small runs on the same run."""
        record = Record("s", LatestPerKey())
        words = zip(self.offered.key, self.offered.value, self.offered.seq, strict=True)
        for number, (key, value, seq) in enumerate(words, 1):
            record.offered[_bytes(value)] = Offered(
                "p", number, DATA, _bytes(key), _bytes(value), None
            )
            if seq:
                record.acked[_bytes(value)] = int(seq)
        for reader in self.readers:
            record.readings.append(_reading(reader))
        tally = Tally()
        check(record, tally)
        return tally


def _bytes(word: np.uint64) -> bytes:
    return int(word).to_bytes(WIDTH, "big")


def _gaps(seqs: np.ndarray) -> np.ndarray:
    """The ranges between positions, from 1 on, as rows of lo, hi."""
    before = np.concatenate(([0], seqs[:-1]))
    wide = seqs - before > 1
    return np.stack((before[wide] + 1, seqs[wide]), axis=1)


def _reading(reader: ReadEvents) -> Reading:
    reading = Reading(reader.reader)
    rows = zip(reader.seq, reader.time_us, reader.key, reader.value, strict=True)
    for seq, time_us, key, value in rows:
        at = int(seq)
        if at < reading.position:
            reading.faults.append(f"G2 {reader.reader}: repeats {at}")
        event = Event(at, int(time_us) * 1000, DATA, _bytes(key), _bytes(value), None)
        reading.events.append(event)
        reading.position = at + 1
    for lo, hi in _gaps(np.unique(reader.seq)).tolist():
        reading.voids.append((lo, hi, SUPERSEDED))
    return reading


def drop(reader: ReadEvents, row: int) -> None:
    """Remove a row from the reader's log."""
    for name in ("seq", "time_us", "key", "value"):
        setattr(reader, name, np.delete(getattr(reader, name), row))
    reader.voids = None


def double(reader: ReadEvents, row: int) -> None:
    for name in ("seq", "time_us", "key", "value"):
        column = getattr(reader, name)
        setattr(reader, name, np.insert(column, row, column[row]))


def swap(reader: ReadEvents, row: int) -> None:
    """Swap two neighbouring rows, including their positions."""
    for name in ("seq", "time_us", "key", "value"):
        column = getattr(reader, name).copy()
        column[[row, row + 1]] = column[[row + 1, row]]
        setattr(reader, name, column)


# ---------------------------------------------------------------- falsifications


def newest_row(run: Run) -> int:
    """A row of the first reader that is the newest of its key and not the last row."""
    keys = run.readers[0].key
    return max(int(np.flatnonzero(keys == key)[-1]) for key in np.unique(keys) if key != keys[-1])


def lose(run: Run) -> None:
    drop(run.readers[0], newest_row(run))


def repeat(run: Run) -> None:
    double(run.readers[0], newest_row(run))


def disorder(run: Run) -> None:
    swap(run.readers[0], run.readers[0].seq.size - 5)


def forge(run: Run) -> None:
    run.readers[1].value = run.readers[1].value.copy()
    run.readers[1].value[-3] = 10**9


def change_key(run: Run) -> None:
    run.readers[1].key = run.readers[1].key.copy()
    run.readers[1].key[-3] += 1000


def stop_early(run: Run) -> None:
    drop(run.readers[2], run.readers[2].seq.size - 1)


def differ(run: Run) -> None:
    """Two readers got different events at one position."""
    reader = run.readers[1]
    reader.value, reader.key = reader.value.copy(), reader.key.copy()
    reader.value[-3], reader.key[-3] = reader.value[-4], reader.key[-4]


def acknowledge_beyond(run: Run) -> None:
    run.offered.seq = run.offered.seq.copy()
    run.offered.seq[-1] = run.end + 5


def acknowledge_twice(run: Run) -> None:
    run.offered.seq = run.offered.seq.copy()
    run.offered.seq[-1] = run.offered.seq[-2]


def publish_out_of_order(run: Run) -> None:
    """The publisher offered the last two events in the opposite order of their positions."""
    for name in ("key", "value", "seq"):
        column = getattr(run.offered, name).copy()
        column[[-1, -2]] = column[[-2, -1]]
        setattr(run.offered, name, column)


def time_backwards(run: Run) -> None:
    for reader in run.readers:
        reader.time_us = reader.time_us.copy()
        reader.time_us[-1] = 1


def time_differs(run: Run) -> None:
    run.readers[1].time_us = run.readers[1].time_us.copy()
    run.readers[1].time_us[-1] += 1


def unpublished_position(run: Run) -> None:
    """Position 1 is void for all readers, and no publisher offered an event for it."""
    for reader in run.readers:
        reader.voids = None
        if 1 in reader.seq:
            drop(reader, 0)
    for name in ("key", "value", "seq"):
        setattr(run.offered, name, getattr(run.offered, name)[1:])


SPOILT: dict[Callable[[Run], None], str] = {
    lose: "G4 r0: neither delivered nor outdated",
    repeat: "G10 r0: got events twice",
    disorder: "G2 r0: positions fall or repeat",
    forge: "G1 r1: nobody published",
    change_key: "G1 r1: another key",
    stop_early: "G9 r2 ended at",
    differ: "G10 r1: got another event",
    acknowledge_beyond: "G10 acknowledged and lost",
    acknowledge_twice: "G10 a position was given twice",
    publish_out_of_order: "G3 not in the publisher's order",
    time_backwards: "R10 r0: time runs backwards",
    time_differs: "G10 r1: an event has another time",
    unpublished_position: "G1 nobody published what stands at 1",
}
