"""Part of the relay: UDP datagrams, with a socket to the target for each sender, as in NAT.

The target sees each sender of a link under a separate address, and sends its answers to this
address. A sender's socket is closed when no datagram has used it for a while, or when there are too
many newer senders. Datagrams keep their order unless jitter changes it.
"""

import asyncio
import socket
from collections.abc import Callable
from heapq import heappop, heappush
from time import monotonic_ns
from typing import Any

from surecast_lab.testing.relay_wire import Lane, RelayLimits, Timer

__all__ = ["UdpLink"]

DATAGRAMS_PER_PASS = 64  # read at once; then other sockets get their turn
DATAGRAM_COST = 256  # approximate overhead of a queued datagram in bytes
SOCKET_BYTES = 4 << 20  # buffer requested from the kernel, for bursts; it may grant less


class Source:
    """A sender, and the socket that represents it towards the target."""

    __slots__ = ("address", "heard_ns", "sock")

    def __init__(self, address: Any, sock: socket.socket) -> None:
        self.address = address
        self.sock = sock
        self.heard_ns = 0


class Flight:
    """The datagrams of a link in transit in one direction, by time of arrival."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        lane: Lane,
        name: str,
        hand_over: Callable[[Source, bytes | memoryview], object],
    ) -> None:
        self.lane = lane
        self.rng = lane.chance(f"{name}/udp")
        self.room = lane.limits.datagrams_bytes
        self._hand_over = hand_over
        self._heap: list[tuple[int, int, Source, bytes]] = []
        self._order = 0  # orders datagrams with the same time of arrival
        self._due = Timer(loop, self._arrive)

    def put(self, now_ns: int, source: Source, data: memoryview) -> None:
        lane = self.lane
        at_ns = lane.datagram_at_ns(now_ns, len(data), self.rng)
        if at_ns is None:
            return
        if len(data) > lane.limits.datagram_bytes_max or len(data) + DATAGRAM_COST > self.room:
            lane.stats.full += 1
        elif at_ns <= now_ns and not self._heap:
            self._send(source, data)
        else:
            self.room -= len(data) + DATAGRAM_COST
            self._order += 1
            heappush(self._heap, (at_ns, self._order, source, bytes(data)))
            self._due.set(self._heap[0][0])

    def _arrive(self) -> None:
        heap = self._heap
        now_ns = monotonic_ns()
        while heap and heap[0][0] <= now_ns:
            _, _, source, data = heappop(heap)
            self.room += len(data) + DATAGRAM_COST
            self._send(source, data)
        if heap:
            self._due.set(heap[0][0])

    def _send(self, source: Source, data: bytes | memoryview) -> None:
        try:
            self._hand_over(source, data)
        except BlockingIOError:
            self.lane.stats.full += 1
        except OSError:
            pass  # no listener, or the mapping was removed: the datagram is lost silently

    def close(self) -> None:
        self._due.cancel()
        self._heap.clear()


class UdpLink:
    """Receives datagrams for the target, and the target's answers."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        sock: socket.socket,
        target: tuple[str, int],
        forward: Lane,
        back: Lane,
        limits: RelayLimits,
    ) -> None:
        self.loop = loop
        self.target = target
        self.limits = limits
        self.sources: dict[Any, Source] = {}  # the least recently active one first
        self._sock = sock
        self._scratch = memoryview(bytearray(1 << 16))
        self._forward = Flight(loop, forward, name, _to_target)
        self._back = Flight(loop, back, name, self._to_source)
        self._expiry = Timer(loop, self._expire)
        loop.add_reader(sock, self._from_sources)

    def _from_sources(self) -> None:
        now_ns = monotonic_ns()
        for _ in range(DATAGRAMS_PER_PASS):
            try:
                nbytes, address = self._sock.recvfrom_into(self._scratch)
            except OSError:
                return
            source = self.sources.get(address) or self._open(address)
            if source is None:
                self._forward.lane.stats.full += 1
                continue
            self._note_use(now_ns, source)
            self._forward.put(now_ns, source, self._scratch[:nbytes])

    def _from_target(self, source: Source) -> None:
        now_ns = monotonic_ns()
        for _ in range(DATAGRAMS_PER_PASS):
            try:
                nbytes = source.sock.recv_into(self._scratch)
            except OSError:  # no more data, or the error that no process listens at the target
                return
            self._note_use(now_ns, source)
            self._back.put(now_ns, source, self._scratch[:nbytes])

    def _to_source(self, source: Source, data: bytes | memoryview) -> None:
        self._sock.sendto(data, source.address)

    # ------------------------------------------------------------ the mapping

    def _open(self, address: Any) -> Source | None:
        if len(self.sources) >= self.limits.sources_max:
            self._remove(next(iter(self.sources.values())))
        try:
            sock = socket.socket(self._sock.family, socket.SOCK_DGRAM)
        except OSError:  # no descriptors left
            return None
        sock.setblocking(False)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)
        sock.connect(self.target)
        source = self.sources[address] = Source(address, sock)
        self.loop.add_reader(sock, self._from_target, source)
        return source

    def _note_use(self, now_ns: int, source: Source) -> None:
        source.heard_ns = now_ns
        self.sources[source.address] = self.sources.pop(source.address)
        if len(self.sources) == 1:
            self._expiry.set(now_ns + self.limits.source_idle_ns)

    def _expire(self) -> None:
        now_ns = monotonic_ns()
        for source in list(self.sources.values()):
            until_ns = source.heard_ns + self.limits.source_idle_ns
            if until_ns > now_ns:
                self._expiry.set(until_ns)
                return
            self._remove(source)

    def _remove(self, source: Source) -> None:
        del self.sources[source.address]
        self.loop.remove_reader(source.sock)
        source.sock.close()

    def close(self) -> None:
        self._expiry.cancel()
        self._forward.close()
        self._back.close()
        self.loop.remove_reader(self._sock)
        self._sock.close()
        for source in list(self.sources.values()):
            self._remove(source)


def _to_target(source: Source, data: bytes | memoryview) -> None:
    source.sock.send(data)
