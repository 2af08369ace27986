"""The simulated publisher of the experiments with a mesh (E2, E3, E4, economy), and its load.

The paper calls a publisher a *driver*. It does not run state machines, as a driver in the sense of
ARCHITECTURE.md does: it is itself a state machine.
"""

from collections import deque
from dataclasses import dataclass
from random import Random
from typing import Any

from surecast.columns.batch import Batch
from surecast.columns.retention import KeepLast
from surecast.core.endpoint import Opened
from surecast.core.streams import StreamSpec
from surecast.core.types import MS, SECOND, Emit, Received, Send, SetTimer, Start, TimerFired
from surecast.protocols.streams.messages import CreateStream, PubAck, Publish, PubNack, StreamOpened
from surecast.protocols.streams.publisher import anonymous_publisher

__all__ = ["BATCH_NS", "OUR_BYTES", "PAPER_BYTES", "RATE", "RETAINED", "Driver", "Load"]

RATE = 864_000  # events a second and region, the paper's load
BATCH_NS = 10 * MS
HEADER_BYTES = 128  # size of the frame of a batch without its events
OUR_BYTES = 18.15  # size of an event of ten bytes in a real frame
PAPER_BYTES = 10.0  # size of an event in the paper, which ignores all overhead
RETAINED = 100_000_000  # the paper's rule: only this number of the newest events is kept


@dataclass(frozen=True, slots=True)
class Load:
    """A constant rate: a batch every `BATCH_NS`, from `begin_ns` to `end_ns`."""

    end_ns: int
    begin_ns: int = 0  # 0: begin when the stream is open
    rate: int = RATE  # events per second
    event_bytes: float = OUR_BYTES

    @property
    def batch_events(self) -> int:
        return self.rate * BATCH_NS // SECOND

    @property
    def batch_bytes(self) -> int:
        return HEADER_BYTES + int(self.batch_events * self.event_bytes)


class Driver:
    """Opens a stream and publishes a batch every `BATCH_NS`, independent of the answers.

    It is a state machine like `protocols.streams.publisher`. But its batches contain no events,
    only their number and size, so that the simulator needs only a few hundred messages for a second
    with a million events.

    Its timers are "open" (create the stream), "publish" (the next batch) and "again" (after a
    refusal: resend all batches that are not acknowledged).
    """

    def __init__(self, stream: str, head: str, load: Load, rng: Random) -> None:
        self.stream = stream
        self.head = head
        self.load = load
        self.rng = rng
        self.publisher = self.stream_id = b""  # ids; empty until they are known
        self.next_no = 1  # the number of the next event
        self.waiting: deque[Batch] = deque()  # batches that are not acknowledged, oldest first
        self.refused = 0  # answers that refused a batch

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        if isinstance(inp, Received):
            return self._on_answer(now_ns, inp.message)
        if isinstance(inp, TimerFired):
            return self._on_timer(now_ns, inp.key)
        if isinstance(inp, Start):
            self.publisher = anonymous_publisher(inp.wall_ns, self.rng)
            # Chains need a moment to form. The random part keeps the drivers from all publishing at
            # the same time.
            return [SetTimer("open", now_ns + 200 * MS + self.rng.randrange(BATCH_NS))]
        return []

    def _on_timer(self, now_ns: int, key: str) -> list[Any]:
        if key == "open":
            return [Send(self.head, CreateStream(self.stream, StreamSpec(KeepLast(RETAINED))))]
        if key == "again":
            return [Send(self.head, Publish(self.stream_id, batch)) for batch in self.waiting]
        if now_ns >= self.load.end_ns:
            return []
        batch = Batch.synthetic(
            self.stream_id,
            self.load.batch_events,
            self.load.batch_bytes,
            publisher=self.publisher,
            pub_no=self.next_no,
        )
        self.next_no += batch.count
        self.waiting.append(batch)
        return [
            Send(self.head, Publish(self.stream_id, batch)),
            SetTimer("publish", now_ns + BATCH_NS),
        ]

    def _on_answer(self, now_ns: int, message: Any) -> list[Any]:
        if isinstance(message, StreamOpened):
            if message.info is None:
                return [SetTimer("open", now_ns + 50 * MS)]
            self.stream_id = message.info.stream_id
            begin_ns = (
                self.load.begin_ns + self.rng.randrange(BATCH_NS) if self.load.begin_ns else 0
            )
            opened = Emit(Opened(message.name, message.info))
            return [opened, SetTimer("publish", max(now_ns, begin_ns))]
        if isinstance(message, PubAck):
            # The number of the first event of the last batch that this message acknowledges.
            last = message.more[-1][0] if message.more else message.pub_no
            while self.waiting and self.waiting[0].pub_no <= last:
                self.waiting.popleft()  # heads acknowledge in order
        elif isinstance(message, PubNack):
            self.refused += 1
            return [SetTimer("again", now_ns + 50 * MS)]
        return []
