"""Part of the relay: wires, which have the delay, loss, bandwidth queue and counts of a line.

A *wire* has two *lanes*, one for each direction (forward and back). All links on a wire share its
lanes: there is one bandwidth queue in each direction, and the links are cut and mended together. A
lane computes when a chunk or datagram arrives; `relay_flow.py` and `relay_udp.py` deliver it at
that time. The properties have the same meaning as in the simulator: data first passes the bandwidth
queue, then it is delayed. On a TCP connection, loss causes retransmissions, that is, more delay.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from time import monotonic_ns
from typing import Protocol

import msgspec

from surecast.core.config import check
from surecast.core.types import MS, SECOND

__all__ = ["BACK", "FORWARD", "Lane", "LaneStats", "RelayLimits", "Shape", "Timer"]

FORWARD, BACK = "forward", "back"

PACKET_BYTES = 1448  # data of a TCP segment on Ethernet; losses are drawn per packet
RETRANSMIT_NS_MIN = 20 * MS
RETRANSMITS_MAX = 12  # losses of one packet in a row; then it arrives
LINE_NS = 10 * MS  # a lane with a bandwidth limit takes at most this time to send one chunk


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The properties of one direction of a wire. The default is a perfect link."""

    delay_ns: int = 0
    jitter_ns: int = 0  # a random time up to this is added to the delay
    bandwidth_bps: int = 0  # 0: unlimited
    loss: float = 0.0

    def __post_init__(self) -> None:
        for key in ("delay_ns", "jitter_ns", "bandwidth_bps"):
            check(self, key, getattr(self, key) >= 0, "must not be negative")
        check(self, "loss", 0 <= self.loss <= 1, "must lie between 0 and 1")


@dataclass(frozen=True, slots=True)
class RelayLimits:
    connections_max: int = 256  # per link; further ones are reset
    buffer_bytes: int = 4 << 20  # in transit per connection and direction, like a TCP window
    buffer_chunks: int = 4096  # the same in chunks, for senders of very small chunks
    chunk_bytes: int = 256 << 10  # read at once
    queue_ns: int = 200 * MS  # bandwidth queue: beyond it datagrams drop, beyond half TCP waits
    datagram_bytes_max: int = 65_507
    datagrams_bytes: int = 16 << 20  # in transit, per link and direction
    sources_max: int = 1024  # UDP senders of a link; the least recently active one is removed
    source_idle_ns: int = 60 * SECOND

    def __post_init__(self) -> None:
        for key in self.__slots__:
            check(self, key, getattr(self, key) > 0, "must be positive")


class LaneStats(msgspec.Struct):
    """Counts of a lane. Bytes, chunks and datagrams are counted when they enter the lane, also
    those that are dropped."""

    bytes: int = 0
    chunks: int = 0
    datagrams: int = 0
    lost: int = 0  # datagrams lost at random
    cut: int = 0  # datagrams dropped while the lane was cut
    full: int = 0  # datagrams dropped because the queue, a limit or a socket's buffer was full
    held_bytes: int = 0  # TCP data in the relay now

    @property
    def dropped(self) -> int:
        return self.lost + self.cut + self.full


class Timer:
    """Calls a function at or after a time; `set` replaces the time set before."""

    __slots__ = ("_at_ns", "_call", "_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self._loop = loop
        self._call = call
        self._at_ns = 0
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at_ns: int) -> None:
        if self._handle is not None:
            if self._at_ns == at_ns:
                return
            self._handle.cancel()
        self._at_ns = at_ns
        self._arm()

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self) -> None:
        wait_s = max(self._at_ns - monotonic_ns(), 0) / SECOND
        self._handle = self._loop.call_later(wait_s, self._fire)

    def _fire(self) -> None:
        if self._at_ns > monotonic_ns():  # the loop's clock is coarser than ours
            self._arm()
        else:
            self._handle = None
            self._call()


class LaneUser(Protocol):
    """The methods of TCP flows that a lane calls."""

    def stop(self) -> None: ...
    def go(self, now_ns: int) -> None: ...
    def turn(self, now_ns: int) -> None: ...


class Lane:
    """One direction of a wire: its shape, its bandwidth queue, and whether it is cut."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, label: str, shape: Shape, limits: RelayLimits
    ) -> None:
        self.label = label  # "seed/wire/direction": seeds all random numbers of this lane
        self.limits = limits
        self.built = shape  # the shape that mend() restores
        self.cut = False
        self.free_ns = 0  # when the bandwidth queue will be empty
        self.stats = LaneStats()
        self.flows: dict[LaneUser, None] = {}
        self._waiting: dict[LaneUser, None] = {}  # flows that wait for room, in order
        self._wake_up = Timer(loop, self._wake)
        self.set_shape(shape)

    def set_cut(self, cut: bool) -> None:
        if cut == self.cut:
            return
        self.cut = cut
        now_ns = monotonic_ns()
        for flow in list(self.flows):
            if cut:
                flow.stop()
            else:
                flow.go(now_ns)

    def set_shape(self, shape: Shape) -> None:
        """Change the shape; data in transit keeps its time of arrival."""
        self.shape = shape
        bps = shape.bandwidth_bps
        if not bps:
            self.free_ns = 0
        self.plain = shape == Shape()
        line_bytes = bps * LINE_NS // (8 * SECOND)
        most = self.limits.chunk_bytes
        self.read_bytes = min(max(line_bytes, PACKET_BYTES), most) if bps else most

    def chance(self, name: str) -> Random:
        """Random numbers for one user of this lane, independent of other users."""
        return Random(f"{self.label}/{name}")

    # ------------------------------------------------------------ times of arrival

    def chunk_at_ns(self, now_ns: int, nbytes: int, rng: Random) -> int:
        """When a chunk put on the lane now arrives."""
        return self._sent_ns(now_ns, nbytes) + self.latency_ns(nbytes, rng)

    def latency_ns(self, nbytes: int, rng: Random) -> int:
        """The time from sending to arrival: delay, jitter and retransmissions."""
        shape = self.shape
        extra_ns = int(rng.random() * shape.jitter_ns) if shape.jitter_ns else 0
        if shape.loss:
            tries = max(self._tries(rng) for _ in range(max(1, -(-nbytes // PACKET_BYTES))))
            extra_ns += tries * max(4 * shape.delay_ns, RETRANSMIT_NS_MIN)  # twice the round trip
        return shape.delay_ns + extra_ns

    def datagram_at_ns(self, now_ns: int, nbytes: int, rng: Random) -> int | None:
        """When a datagram arrives; None if it is dropped.

        All its random numbers are drawn in any case, so jitter and loss of the k-th datagram do not
        depend on when a cut began or how full the queue was.
        """
        shape, stats = self.shape, self.stats
        stats.datagrams += 1
        stats.bytes += nbytes
        jitter_ns = int(rng.random() * shape.jitter_ns) if shape.jitter_ns else 0
        lost = shape.loss > 0 and rng.random() < shape.loss
        if self.cut:
            stats.cut += 1
            return None
        if self.backlog_ns(now_ns) > self.limits.queue_ns:
            stats.full += 1
            return None
        sent_ns = self._sent_ns(now_ns, nbytes)
        if lost:
            stats.lost += 1
            return None
        return sent_ns + shape.delay_ns + jitter_ns

    def _sent_ns(self, now_ns: int, nbytes: int) -> int:
        """When the last bit leaves the bandwidth queue, after all earlier data of the lane."""
        bps = self.shape.bandwidth_bps
        if not bps:
            return now_ns
        self.free_ns = max(now_ns, self.free_ns) + nbytes * 8 * SECOND // bps
        return self.free_ns

    def _tries(self, rng: Random) -> int:
        """How many times one packet is lost before it arrives."""
        for tries in range(RETRANSMITS_MAX):
            if rng.random() >= self.shape.loss:
                return tries
        return RETRANSMITS_MAX

    # ------------------------------------------------------------ room in the bandwidth queue

    def backlog_ns(self, now_ns: int) -> int:
        return max(self.free_ns - now_ns, 0)

    def has_room(self, now_ns: int) -> bool:
        """Whether a TCP flow may read now. Flows that are already waiting come first."""
        if not self.shape.bandwidth_bps:
            return True
        return not self._waiting and self.backlog_ns(now_ns) <= self.limits.queue_ns // 2

    def wait(self, flow: LaneUser) -> None:
        """Call `flow.turn()` when there is room, after all flows that are already waiting."""
        self._waiting[flow] = None
        self._wake_up.set(self.free_ns - self.limits.queue_ns // 2)

    def forget(self, flow: LaneUser) -> None:
        self._waiting.pop(flow, None)

    def _wake(self) -> None:
        now_ns = monotonic_ns()
        while self._waiting and self.backlog_ns(now_ns) <= self.limits.queue_ns // 2:
            flow = next(iter(self._waiting))
            del self._waiting[flow]
            flow.turn(now_ns)
        if self._waiting:
            self._wake_up.set(self.free_ns - self.limits.queue_ns // 2)

    def close(self) -> None:
        self._wake_up.cancel()
