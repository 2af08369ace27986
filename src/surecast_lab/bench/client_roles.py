"""The clients of `bench latency` and `bench durable`, which use the client library.

Each runs in a worker process. The value of an event contains the time at which it was published.
All processes of a machine share one monotonic clock, so the reader can compute the latency.
"""

import asyncio
import struct
import time
from typing import Any

import surecast
from surecast.columns.rules import Policy

__all__ = ["STAMP", "Publisher", "SingleEventTasks", "Subscriber"]

STAMP = struct.Struct("<qq")  # monotonic ns, number: the value of an event
TURN_S = 0.001  # a publisher's sleep between events; with less, uvloop does not sleep at all


class Publisher:
    """Publishes single events at a constant rate, and measures the time until each answer.

    It does not wait for answers before it publishes the next event. A measured time begins with the
    call of `publish` and not when the event was due. The delay between the two, which the event
    loop of this program causes, is reported separately (`late`).
    """

    def __init__(self, url: str, stream: str, policy: Policy) -> None:
        self.url, self.name, self.policy = url, stream, policy
        self.ack_ns: list[int] = []
        self.late_ns: list[int] = []
        self.seqs: list[int] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._load: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.client = await surecast.connect(self.url)
        self.stream = await self.client.stream(self.name, retain=self.policy)

    async def stop(self) -> None:
        await self.client.close()

    def failures(self) -> list[asyncio.Future[None]]:
        return [self.failed]

    def begin(self, rate: float, count: int) -> None:
        self._load = asyncio.create_task(self._run(rate, count))
        self._load.add_done_callback(self._ended)

    def status(self) -> dict[str, Any]:
        done = self._load is not None and self._load.done() and not self._tasks
        return {"done": done, "acked": len(self.ack_ns)}

    def results(self) -> dict[str, Any]:
        return {"ack_ns": self.ack_ns, "late_ns": self.late_ns, "seqs": self.seqs}

    async def _run(self, rate: float, count: int) -> None:
        began = time.monotonic_ns()
        for number in range(count):
            due = began + int(number * 1e9 / rate)
            while (now := time.monotonic_ns()) < due:
                await asyncio.sleep(TURN_S)
            self.late_ns.append(now - due)
            task = asyncio.create_task(self._publish(number))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(self._ended)

    async def _publish(self, number: int) -> None:
        began = time.monotonic_ns()
        self.seqs.append(await self.stream.publish(STAMP.pack(began, number)))
        self.ack_ns.append(time.monotonic_ns() - began)

    def _ended(self, task: asyncio.Task[None]) -> None:
        problem = None if task.cancelled() else task.exception()
        if problem is not None and not self.failed.done():
            self.failed.set_exception(problem)


class Subscriber:
    """Reads events one by one and records the latency of each, and their order."""

    def __init__(self, url: str, stream: str) -> None:
        self.url, self.name = url, stream
        self.taken_ns: list[int] = []
        self.numbers: list[int] = []
        self.seqs: list[int] = []

    async def start(self) -> None:
        self.client = await surecast.connect(self.url)
        self.subscription = await self.client.subscribe(self.name, start="earliest").ready()
        self._reading = asyncio.create_task(self._read())

    async def stop(self) -> None:
        self._reading.cancel()
        await self.client.close()

    def failures(self) -> list[asyncio.Future[None]]:
        return [self._reading]  # this task ends only if it fails

    def status(self) -> dict[str, Any]:
        return {"received": len(self.numbers)}

    def results(self) -> dict[str, Any]:
        return {"taken_ns": self.taken_ns, "numbers": self.numbers, "seqs": self.seqs}

    async def _read(self) -> None:
        async for event in self.subscription:
            now = time.monotonic_ns()
            began, number = STAMP.unpack(event.value)
            self.taken_ns.append(now - began)
            self.numbers.append(number)
            self.seqs.append(event.seq)


class SingleEventTasks:
    """Many tasks; each publishes one event, waits for the answer, and publishes the next."""

    def __init__(self, url: str, stream: str, policy: Policy, tasks: int, value: bytes) -> None:
        self.url, self.name, self.policy = url, stream, policy
        self.tasks, self.value = tasks, value
        self.acked = 0
        self.last = 0  # the highest acknowledged position
        self.going = False
        self._all: asyncio.Future[Any] | None = None

    async def start(self) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.client = await surecast.connect(self.url)
        self.stream = await self.client.stream(self.name, retain=self.policy)

    async def stop(self) -> None:
        await self.client.close()

    def failures(self) -> list[asyncio.Future[None]]:
        return [self.failed]

    def begin(self) -> None:
        self.going = True
        self._all = asyncio.gather(*(self._publish() for _ in range(self.tasks)))
        self._all.add_done_callback(self._ended)

    def halt(self) -> None:
        self.going = False

    def status(self) -> dict[str, Any]:
        done = self._all is not None and self._all.done()
        return {"acked": self.acked, "last": self.last, "done": done, "at": time.monotonic()}

    async def _publish(self) -> None:
        while self.going:
            self.last = max(self.last, await self.stream.publish(self.value))
            self.acked += 1

    def _ended(self, tasks: asyncio.Future[Any]) -> None:
        problem = None if tasks.cancelled() else tasks.exception()
        if problem is not None and not self.failed.done():
            self.failed.set_exception(problem)
