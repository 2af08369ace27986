"""Measures JetStream, the log of NATS, for comparison: file storage, asynchronous publishes.

By default JetStream acknowledges messages that are written to a file but not synced; it syncs every
two minutes. Surecast syncs before it acknowledges.
"""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from surecast_lab.bench import nats
from surecast_lab.testing.workers import Workers

__all__ = ["WINDOW", "Pusher", "durable"]

INBOX = b"_INBOX.bench"
CREATE = {"name": "BENCH", "subjects": ["bench"], "storage": "file"}
ACK = b'"seq":'  # each acknowledgement contains this once
WINDOW = 4_000  # unacknowledged messages; NATS's own clients have the same limit
STEP = 500  # messages joined into one write


def durable(folder: Path, warm_s: float, seconds: float, nbytes: int) -> float | None:
    """Messages acknowledged per second; None if NATS is not installed."""
    if nats.installed() is None:
        return None
    with (
        nats.server(folder, "-js", "-sd", str(folder / "jetstream")) as port,
        Workers(folder) as workers,
    ):
        workers.start("jetstream", Pusher, port, nbytes)
        workers.ready()
        workers.ask("jetstream", "begin")
        time.sleep(warm_s)
        before = workers.ask("jetstream", "status")
        time.sleep(seconds)
        after = workers.ask("jetstream", "status")
        return float((after["acked"] - before["acked"]) / (after["at"] - before["at"]))


class Pusher:
    """Publishes to a stream on file with at most WINDOW messages unacknowledged."""

    def __init__(self, port: int, nbytes: int) -> None:
        self.port = port
        self.one = b"PUB bench %s %d\r\n%s\r\n" % (INBOX, nbytes, bytes(nbytes))
        self.sent = self.acked = 0
        self.going = False
        self._rest = b""
        self._created: asyncio.Future[bytes] | None = None

    async def start(self) -> None:
        self._created = asyncio.get_running_loop().create_future()
        self.wire = await nats.connect(self.port, b"SUB %s 1\r\n" % INBOX, self._take)
        body = json.dumps(CREATE).encode()
        self.wire.transport.write(
            b"PUB $JS.API.STREAM.CREATE.BENCH %s %d\r\n%s\r\n" % (INBOX, len(body), body)
        )
        answer = await asyncio.wait_for(self._created, nats.START_S)
        if b'"error"' in answer:
            raise AssertionError(f"JetStream did not create a stream: {answer.decode()}")

    async def stop(self) -> None:
        self.going = False
        self.wire.transport.close()

    def failures(self) -> list[asyncio.Future[None]]:
        return []

    def begin(self) -> None:
        self.going = True
        self._fill()

    def status(self) -> dict[str, Any]:
        return {"acked": self.acked, "at": time.monotonic()}

    def _fill(self) -> None:
        while self.going and self.sent - self.acked <= WINDOW - STEP:
            self.sent += STEP
            self.wire.transport.write(self.one * STEP)

    def _take(self, data: bytes) -> None:
        if self._created is not None and not self._created.done():
            self._rest += data
            if self._rest.endswith(b"}\r\n"):
                self._created.set_result(self._rest)
                self._rest = b""
            return
        if nats.PING in data:
            self.wire.transport.write(nats.PONG)
        data = self._rest + data
        self.acked += data.count(ACK)
        self._rest = data[-(len(ACK) - 1) :]
        self._fill()
