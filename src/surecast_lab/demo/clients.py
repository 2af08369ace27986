"""The publisher and the subscribers of the demo, each in its own process.

Like programs of users, they use only the client library. The publisher records its acknowledgements
in a log, and each subscriber its deliveries (swarm/audit_log.py). The audit uses only these logs.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from surecast.columns.batch import Batch
from surecast.parts.workload import Zipf
from surecast_lab.swarm.audit_log import (
    WIDTH,
    Int64s,
    Marks,
    OfferedEvents,
    ReadEvents,
    Words,
    numbers,
    save,
)
from surecast_lab.swarm.load import User

__all__ = ["STREAM", "Publishing", "Reading"]

STREAM = "cache.invalidate"
KEYS, SKEW = 100_000, 1.1
IN_FLIGHT_MAX = 32  # unacknowledged batches; a chain accepts more from one publisher


def keys_and_values(events: int, seed: int) -> tuple[bytes, bytes]:
    """The keys and the values of all events, as two concatenated byte strings.

    Keys, such as u0000042, are Zipf-distributed. Values are numbered: 00000001, 00000002, ... They
    are unique up to 99,999,999 events; the audit needs this.
    """
    ranks = Zipf(KEYS, SKEW).sample(np.random.default_rng(seed), events)
    names = b"".join(b"u%07d" % rank for rank in range(KEYS + 1))
    values = b"".join(b"%08d" % number for number in range(1, events + 1))
    return np.frombuffer(names, f"S{WIDTH}")[ranks].tobytes(), values


class Publishing(User):
    """The publisher. The demo's process calls `publish` in each step."""

    def __init__(self, url: str, path: Path, events: int, batch_rows: int, seed: int) -> None:
        super().__init__({"url": url, "stream": STREAM, "retain": "latest"})
        self.path, self.batch_rows = path, batch_rows
        keys, values = keys_and_values(events, seed)
        # Keys and values of all events, each 8-byte string as a number (`numbers`).
        self.key, self.value = numbers(keys), numbers(values)
        self.seq: Int64s = np.zeros(events, np.int64)  # position of each event; 0: not acknowledged
        self.offered_ns: Int64s = np.zeros(events, np.int64)  # when each event was sent
        self.offered = self.acked = 0  # the number of events sent, and acknowledged
        self.raw_bytes = 0  # size of the batches that were sent
        self.marks: list[tuple[int, int]] = []  # (time in ns, number of acknowledged events)
        self._buffers = (pa.py_buffer(keys), pa.py_buffer(values))
        self._room = asyncio.Semaphore(IN_FLIGHT_MAX)
        # Calls of `publish` that are not carried out yet: (events, seconds).
        self._orders: asyncio.Queue[tuple[int, float]] = asyncio.Queue()

    def publish(self, events: int, seconds: float) -> None:
        """Publish the next `events` events, evenly distributed over `seconds`; 0: as fast as
        possible. Returns at once."""
        self._orders.put_nowait((events, seconds))

    def status(self) -> dict[str, int]:
        return {"acked": self.acked, "raw_bytes": self.raw_bytes}

    def save(self) -> None:
        marks = _marks(self.marks)
        save(self.path, OfferedEvents(self.key, self.value, self.seq, marks, self.offered_ns))

    async def work(self) -> None:
        self.stream = await self.open_stream()
        async with asyncio.TaskGroup() as group:
            while True:
                events, seconds = await self._orders.get()
                first, end, began = self.offered, self.offered + events, time.monotonic()
                while self.offered < end:
                    due_s = seconds * (self.offered - first) / events
                    await asyncio.sleep(max(0.0, began + due_s - time.monotonic()))
                    await self._room.acquire()
                    lo, self.offered = self.offered, min(self.offered + self.batch_rows, end)
                    group.create_task(self._publish(lo, self.offered))

    async def _publish(self, lo: int, hi: int) -> None:
        table = self._table(lo, hi)
        self.raw_bytes += Batch.from_arrow(bytes(16), table).nbytes
        self.offered_ns[lo:hi] = time.monotonic_ns()
        seqs = await self.stream.publish_many(table)
        self.seq[lo:hi] = np.fromiter(seqs, np.int64, hi - lo)
        self.acked += hi - lo
        self.marks.append((time.monotonic_ns(), self.acked))
        self._room.release()

    def _table(self, lo: int, hi: int) -> pa.RecordBatch:
        """Events [lo, hi) as an Arrow table, made without a Python object for each event."""
        columns = [
            pa.Array.from_buffers(pa.binary(WIDTH), hi - lo, [None, data], offset=lo)
            for data in self._buffers
        ]
        return pa.RecordBatch.from_arrays([c.cast(pa.binary()) for c in columns], ["key", "value"])


class Reading(User):
    """Reads the stream from its beginning, and records its deliveries.

    With `voids` it reads event by event, including void ranges; otherwise batch by batch.
    """

    def __init__(self, url: str, path: Path, mesh: bool, voids: bool) -> None:
        super().__init__({"url": url, "mesh": mesh})
        self.path = path
        self.position = 1  # the next position to be read
        self.malformed = 0  # events whose key or value does not have 8 bytes
        self.marks: list[tuple[int, int]] = []  # (time in ns, position) at each call of `status`
        # With batches: a tuple of five columns for each batch: seq, time in µs, key, value, time of
        # delivery in ns. Event by event: a tuple of these five values for each event.
        self.parts: list[tuple[Any, ...]] = []
        self.events: list[tuple[Any, ...]] = []
        # Void ranges: (lo, hi, number of events delivered before).
        self.voids: list[tuple[int, int, int]] | None = [] if voids else None

    def status(self) -> dict[str, int]:
        self.marks.append((time.monotonic_ns(), self.position))
        return {"position": self.position}

    def save(self) -> None:
        rows = [list(column) for column in zip(*self.events, strict=True)] or [[] for _ in range(5)]
        single = [
            numbers(b"".join(column)) if i in (2, 3) else np.array(column, np.int64)  # key, value
            for i, column in enumerate(rows)
        ]
        columns = zip(single, *self.parts, strict=True)  # either `events` or `parts` is empty
        seq, time_us, key, value, got_ns = (np.concatenate(column) for column in columns)
        voids = None if self.voids is None else np.array(self.voids, np.int64).reshape(-1, 3)
        log = ReadEvents(
            self.path.stem, seq, time_us, key, value,
            None if voids is None else voids[:, :2], self.malformed, _marks(self.marks),
            got_ns, None if voids is None else voids[:, 2],
        )  # fmt: skip
        save(self.path, log)

    async def work(self) -> None:
        await (self._read_batches() if self.voids is None else self._read_events())

    async def _read_batches(self) -> None:
        async for batch in self.client.subscribe(STREAM, start="earliest").batches():
            seqs = batch.column("seq").to_numpy()
            time_us = batch.column("timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            try:
                key, value = (_words(batch.column(name)) for name in ("key", "value"))
            except pa.ArrowInvalid:
                self.malformed += batch.num_rows
            else:
                got_ns = np.full(seqs.size, time.monotonic_ns())
                self.parts.append((seqs, time_us.to_numpy(), key, value, got_ns))
            self.position = int(seqs[-1]) + 1

    async def _read_events(self) -> None:
        assert self.voids is not None
        async for event in self.client.subscribe(STREAM, start="earliest", voids=True):
            if event.kind == "void":
                self.voids.append((event.range.start, event.range.stop, len(self.events)))
            elif event.key is None or (len(event.key), len(event.value)) != (WIDTH, WIDTH):
                self.malformed += 1
            else:
                at_ns = time.monotonic_ns()
                row = (event.seq, event.time_ns // 1000, event.key, event.value, at_ns)
                self.events.append(row)
            self.position = event.seq + 1


def _words(column: Any) -> Words:
    """A column of 8-byte strings as numbers; ArrowInvalid if a string has another length."""
    fixed = column.cast(pa.binary(WIDTH))
    if fixed.null_count:
        raise pa.ArrowInvalid("an event without a key")
    data = memoryview(fixed.buffers()[1])
    return numbers(data[fixed.offset * WIDTH : (fixed.offset + len(fixed)) * WIDTH])


def _marks(rows: list[tuple[int, int]]) -> Marks:
    at_ns, position = np.array(rows, np.int64).reshape(-1, 2).T
    return Marks(at_ns, position)
