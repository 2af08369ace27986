"""Part of the relay: a flow moves the bytes of one direction of a TCP connection.

It reads from one socket (the source), holds the data until its time of arrival, and writes it to
the other socket (the sink). The *lane*, one direction of a wire (`relay_wire.py`), determines the
time of arrival. The lane delays opening and closing of the connection in the same way as data:

- The handshake takes a round trip. Then the first data crosses the lane, and then the target sees a
  connection. (The kernel tells the caller immediately that it is connected; the relay cannot change
  that. But the caller receives nothing until the target has answered, and a reset if the target has
  refused.)
- The end of the stream arrives after the last byte, as a half-close of the sink.
- A reset arrives after the bytes that were sent before it, and discards the bytes that the sink has
  not accepted by then.
- While the lane is cut, the flow neither reads nor delivers, so sent data stays in the sender's
  kernel until its buffer is full. When the lane is mended, this data arrives after the lane's
  delay. Resets wait in the same way.

Both sockets are closed when both sides have sent the end of their stream, so no data is unread. If
a source breaks while the flow does not read from it (because the lane is cut or has no room), the
relay detects this only when it reads from the source again, or writes to it.
"""

import socket
from collections import deque
from time import monotonic_ns
from typing import TYPE_CHECKING

from surecast_lab.testing.relay_wire import Lane, Timer

if TYPE_CHECKING:
    from surecast_lab.testing.relay_tcp import Connection

__all__ = ["CONNECT", "FIN", "Flow", "FlowMark"]

CHUNKS_PER_SEND = 64


class FlowMark:
    """A mark in the queue of a flow, such as the end of the stream. It arrives like a chunk."""

    def __init__(self, name: str) -> None:
        self.name = name


CONNECT, FIN = FlowMark("connect"), FlowMark("fin")


class Flow:
    """One direction of a connection."""

    def __init__(self, connection: "Connection", lane: Lane, name: str) -> None:
        link = connection.link
        self.connection = connection
        self.lane = lane
        self.rng = lane.chance(name)
        self.limits = link.limits
        self.scratch = link.scratch
        self.loop = link.loop
        self.source: socket.socket | None = None  # None: not connected yet, or ended
        self.sink: socket.socket | None = None
        self.queue: deque[tuple[int, bytes | memoryview | FlowMark]] = (
            deque()
        )  # (time of arrival, chunk or mark)
        self.held = 0  # bytes in the queue
        self.hold_ns = 0  # nothing arrives before this time; set when the lane is mended
        self.reading = False
        self.waiting = False  # whether it waits for room in the lane's bandwidth queue
        self.blocked = False  # the sink accepts nothing now
        self.finished = False  # end of stream was delivered
        self.reset_ns = 0  # when the reset arrives; 0: no reset
        self.due = Timer(self.loop, self.deliver)
        self.reset_due = Timer(self.loop, self._reset)
        lane.flows[self] = None

    # ------------------------------------------------------------ called by the lane

    def stop(self) -> None:
        """Called when the lane is cut."""
        self.lane.forget(self)
        self.waiting = False
        self._update_reading()

    def go(self, now_ns: int) -> None:
        """Called when the lane is mended: held data is sent, and delayed by the lane."""
        self.hold_ns = now_ns + self.lane.latency_ns(0, self.rng)
        if self.reset_ns:
            self.reset_due.set(max(self.reset_ns, self.hold_ns))
        self.connection.mended()
        self.deliver()

    def turn(self, now_ns: int) -> None:
        """Called when there is room in the bandwidth queue, and it is this flow's turn."""
        self.waiting = False
        self._update_reading()
        if self.reading:
            self._read(now_ns)

    # ------------------------------------------------------------ reading

    def begin(self, source: socket.socket) -> None:
        self.source = source
        self._update_reading()

    def _update_reading(self) -> None:
        """Read from the source if, and only if, there is room for more data."""
        if self.lane.plain:
            room = not self.held  # the kernel's buffers suffice
        else:
            limits = self.limits
            room = self.held < limits.buffer_bytes and len(self.queue) < limits.buffer_chunks
        want = room and self.source is not None and not self.lane.cut and not self.waiting
        if want == self.reading:
            return
        assert self.source is not None
        self.reading = want
        if want:
            self.loop.add_reader(self.source, self._readable)
        else:
            self.loop.remove_reader(self.source)

    def _readable(self) -> None:
        now_ns = monotonic_ns()
        if self.lane.has_room(now_ns):
            self._read(now_ns)
        else:
            self.waiting = True
            self._update_reading()
            self.lane.wait(self)

    def _read(self, now_ns: int) -> None:
        assert self.source is not None
        lane, scratch = self.lane, self.scratch
        try:
            nbytes = self.source.recv_into(scratch, lane.read_bytes)
        except BlockingIOError:
            return
        except OSError:
            self.connection.broken(self)
            return
        if not nbytes:
            self.end_reading()
            self.put(now_ns, FIN, 0)
            return
        lane.stats.chunks += 1
        lane.stats.bytes += nbytes
        sent = 0
        if lane.plain and not self.queue and not self.blocked:
            sent = self._send([scratch[:nbytes]])
            if sent < 0 or sent == nbytes:
                return
        self.put(now_ns, bytes(scratch[sent:nbytes]), nbytes - sent)

    def end_reading(self) -> None:
        """Stop reading from the source permanently."""
        self.lane.forget(self)
        self.waiting = False
        if self.reading:
            assert self.source is not None
            self.reading = False
            self.loop.remove_reader(self.source)
        self.source = None

    # ------------------------------------------------------------ delivering

    def put(self, now_ns: int, what: bytes | FlowMark, nbytes: int) -> None:
        """Queue a chunk or mark after all earlier ones; the order never changes."""
        self.queue.append((self.lane.chunk_at_ns(now_ns, nbytes, self.rng), what))
        self._add_held(nbytes)
        self.deliver()

    def deliver(self) -> None:
        """Deliver the data that is due, as much as the sink accepts."""
        queue = self.queue
        while queue and not self.blocked and not self.lane.cut:
            at_ns = max(queue[0][0], self.hold_ns)
            now_ns = monotonic_ns()
            if at_ns > now_ns:
                self.due.set(at_ns)
                break
            what = queue[0][1]
            if isinstance(what, FlowMark):
                queue.popleft()
                self.connection.passed(self, what)
            else:
                self._send_due(now_ns)
        self._update_reading()

    def _send_due(self, now_ns: int) -> None:
        chunks: list[bytes | memoryview] = []
        for at_ns, what in self.queue:
            if at_ns > now_ns or isinstance(what, FlowMark) or len(chunks) == CHUNKS_PER_SEND:
                break
            chunks.append(what)
        sent = self._send(chunks)
        if sent < 0:
            return
        self._add_held(-sent)
        while sent:
            at_ns, chunk = self.queue.popleft()
            assert not isinstance(chunk, FlowMark)
            if len(chunk) > sent:
                self.queue.appendleft((at_ns, memoryview(chunk)[sent:]))
            sent -= min(sent, len(chunk))

    def _send(self, chunks: list[bytes | memoryview] | list[memoryview]) -> int:
        """The number of bytes that the sink accepted; -1 if it is closed, which ends this flow."""
        assert self.sink is not None
        try:
            sent = self.sink.sendmsg(chunks)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.connection.broken(self.connection.opposite(self))
            return -1
        if sent < sum(map(len, chunks)):
            self.blocked = True
            self.loop.add_writer(self.sink, self._writable)
        return sent

    def _writable(self) -> None:
        assert self.sink is not None
        self.loop.remove_writer(self.sink)
        self.blocked = False
        self.deliver()

    def _add_held(self, nbytes: int) -> None:
        self.held += nbytes
        self.lane.stats.held_bytes += nbytes

    # ------------------------------------------------------------ ending

    def break_off(self, now_ns: int) -> None:
        """The source is closed: a reset follows its data."""
        self.end_reading()
        own_ns = now_ns + self.lane.latency_ns(0, self.rng)
        self.reset_ns = max([own_ns, *(at_ns for at_ns, _ in self.queue)])
        self.reset_due.set(max(self.reset_ns, self.hold_ns))

    def _reset(self) -> None:
        if self.lane.cut:
            return  # the lane is cut; go() sets the timer again
        self.deliver()
        self.connection.reset()

    def abandon(self) -> None:
        """Discard all data, because the sink is closed."""
        self.end_reading()
        self.queue.clear()
        self._add_held(-self.held)
        self.due.cancel()
        self.reset_due.cancel()
        if self.blocked and self.sink is not None:
            self.loop.remove_writer(self.sink)
        self.sink = None
        self.blocked = True  # prevents further writes
        self.lane.flows.pop(self, None)
