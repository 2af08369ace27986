"""Measures the CPU time that the client library needs to read an event, or to publish one.

There is no server: batches are already in memory when they are read, and published batches are
acknowledged immediately. (`surecast bench` measures with network and servers.) `bench/run.py` runs
this module.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from surecast.client.subscription import Subscription
from surecast.client.subscription_buffer import SubscriptionBuffer
from surecast.columns.batch import Batch
from surecast.columns.retention import KeepAll
from surecast.core.endpoint import Acked
from surecast.core.streams import StreamInfo
from surecast.endpoint.options import ClientOptions
from surecast.endpoint.publishers import Outbox

STREAM = b"s" * 16
EVENTS = 400_000
REPEATS = 3


class Source:
    """Replaces the reader behind a subscription; it has all its batches in memory."""

    def __init__(self, rows: int) -> None:
        options = ClientOptions(buffer_bytes_max=1 << 40)
        self.buffer = SubscriptionBuffer(options, False, False, False)
        keys: list[bytes | None] = [b"key%05d" % n for n in range(rows)]
        self.batches = []
        for lo in range(1, EVENTS + 1, rows):
            batch = Batch.of(STREAM, [b"0123456789"] * rows, keys).sequenced(lo, 5, 1)
            batch.validate()  # as the decoder does with a received batch
            self.batches.append(batch)
        reader: Any = self
        self.buffer.add(StreamInfo(STREAM, "s", "east", KeepAll()), reader, 1)

    def refill(self) -> None:
        self.buffer.streams[STREAM].next = 1
        self.buffer.take_in(STREAM, tuple(self.batches))

    def ignore(self, *_: Any) -> None:
        """Replaces the methods of a reader that need not do anything here."""

    claim = follow = unfollow = release = forget = ignore


async def _loop(sub: Subscription) -> None:
    count = 0
    async for _ in sub:
        count += 1
        if count == EVENTS:
            return


async def _one_by_one(sub: Subscription) -> None:
    for _ in range(EVENTS):
        await anext(sub)


async def _batches(sub: Subscription) -> None:
    rows = 0
    async for batch in sub.batches():
        rows += batch.num_rows
        if rows == EVENTS:
            return


def bench_reading() -> list[dict[str, Any]]:
    ways: dict[str, Callable[[Subscription], Awaitable[None]]] = {
        "async for": _loop,
        "anext": _one_by_one,
        "batches": _batches,
    }

    async def measure(rows: int) -> dict[str, float]:
        source = Source(rows)
        sub = Subscription(source)  # type: ignore[arg-type]
        best = dict.fromkeys(ways, 0.0)
        for _ in range(REPEATS):
            for name, way in ways.items():
                source.refill()
                begin = time.process_time()
                await way(sub)
                best[name] = max(best[name], EVENTS / (time.process_time() - begin))
        return best

    return [
        {
            "name": f"client read, {way}",
            "value": round(rate / 1e6, 2),
            "unit": "M events/s",
            "params": {"rows": rows, "key": 8, "value": 10},
        }
        for rows in (100, 500, 4000)
        for way, rate in asyncio.run(measure(rows)).items()
    ]


class Control:
    """Replaces the control node, which publishes: it acknowledges every batch immediately."""

    def offer(self, stream: bytes, batch: Batch, done: Callable[[Acked], None]) -> None:
        asyncio.get_running_loop().call_soon(done, Acked(stream, 1, batch.count, 1))


def bench_publish_soon() -> list[dict[str, Any]]:
    async def measure(key: bytes | None) -> float:
        outbox = Outbox("s", STREAM, Control(), ClientOptions())  # type: ignore[arg-type]
        begin = time.process_time()
        for _ in range(EVENTS // 1000):
            for _ in range(1000):
                outbox.publish_soon(b"0123456789", key, None)
            await asyncio.sleep(0)
        await outbox.flushed()
        return EVENTS / (time.process_time() - begin)

    return [
        {
            "name": "client publish_soon, batched and encoded",
            "value": round(max(asyncio.run(measure(key)) for _ in range(REPEATS)) / 1e6, 2),
            "unit": "M events/s",
            "params": {"key": len(key or b""), "value": 10},
        }
        for key in (None, b"k1234567")
    ]
