"""A flow: one direction of a TCP connection through the relay.

It reads from its source, holds what it read until the lane says it arrives, and writes it to its
sink. Ends are events like bytes and take the lane's time:

- the handshake takes a round trip, then the first words cross, then the target sees a connection.
  (The kernel tells whoever connects at once that it is connected; nothing can be done about that
  from user space. It hears nothing until the target has answered, and gets a reset if it refused.)
- end of stream follows the last byte, and becomes a half-close at the other side;
- a reset follows the bytes sent before it and destroys those the sink would not take;
- a cut lane reads nothing and hands over nothing, so what is sent stays in the sender's kernel
  until that is full. When mended, all of it comes after the lane's delay. Resets wait likewise.

Both sockets are closed when both have sent their end of stream, and so without unread data. A
source that is not being read (cut, or no room) can break without the relay noticing; it does when
it reads again, or writes to it.
"""

import socket
from collections import deque
from time import monotonic_ns
from typing import TYPE_CHECKING

from surecast_lab.testing.relay_wire import Lane, Timer

if TYPE_CHECKING:
    from surecast_lab.testing.relay_tcp import Connection

__all__ = ["CONNECT", "FIN", "Flow", "Mark"]

CHUNKS_PER_SEND = 64


class Mark:
    """Travels through a flow like a chunk of no bytes."""

    def __init__(self, name: str) -> None:
        self.name = name


CONNECT, FIN = Mark("connect"), Mark("fin")


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
        self.source: socket.socket | None = None  # None: nothing to read, not yet or not any more
        self.sink: socket.socket | None = None
        self.queue: deque[tuple[int, bytes | memoryview | Mark]] = deque()  # with times of arrival
        self.held = 0  # bytes in the queue
        self.hold_ns = 0  # nothing arrives before; set by mending
        self.reading = False
        self.waiting = False  # for room in the lane's bandwidth queue
        self.blocked = False  # the sink takes nothing now
        self.finished = False  # end of stream was handed over
        self.reset_ns = 0  # when the reset arrives; 0: there is none
        self.due = Timer(self.loop, self.deliver)
        self.reset_due = Timer(self.loop, self._reset)
        lane.flows[self] = None

    # ------------------------------------------------------------ what the lane tells

    def stop(self) -> None:
        """The lane was cut."""
        self.lane.forget(self)
        self.waiting = False
        self._look()

    def go(self, now_ns: int) -> None:
        """The lane is mended: what was held back is sent again, and takes its time."""
        self.hold_ns = now_ns + self.lane.latency_ns(0, self.rng)
        if self.reset_ns:
            self.reset_due.set(max(self.reset_ns, self.hold_ns))
        self.connection.mended()
        self.deliver()

    def turn(self, now_ns: int) -> None:
        """There is room in the bandwidth queue, and it is this flow's turn."""
        self.waiting = False
        self._look()
        if self.reading:
            self._read(now_ns)

    # ------------------------------------------------------------ reading

    def begin(self, source: socket.socket) -> None:
        self.source = source
        self._look()

    def _look(self) -> None:
        """Listen to the source if, and only if, there is room for what it says."""
        if self.lane.plain:
            room = not self.held  # the kernel's buffers are there to hold it
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
            self._look()
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
            self.hush()
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

    def hush(self) -> None:
        """No more is read from the source."""
        self.lane.forget(self)
        self.waiting = False
        if self.reading:
            assert self.source is not None
            self.reading = False
            self.loop.remove_reader(self.source)
        self.source = None

    # ------------------------------------------------------------ handing over

    def put(self, now_ns: int, what: bytes | Mark, nbytes: int) -> None:
        """On the way, behind all that was put before: nothing is overtaken, whatever its time."""
        self.queue.append((self.lane.chunk_at_ns(now_ns, nbytes, self.rng), what))
        self._hold(nbytes)
        self.deliver()

    def deliver(self) -> None:
        """Hand over what is due, as far as the sink takes it."""
        queue = self.queue
        while queue and not self.blocked and not self.lane.cut:
            at_ns = max(queue[0][0], self.hold_ns)
            now_ns = monotonic_ns()
            if at_ns > now_ns:
                self.due.set(at_ns)
                break
            what = queue[0][1]
            if isinstance(what, Mark):
                queue.popleft()
                self.connection.passed(self, what)
            else:
                self._send_due(now_ns)
        self._look()

    def _send_due(self, now_ns: int) -> None:
        chunks: list[bytes | memoryview] = []
        for at_ns, what in self.queue:
            if at_ns > now_ns or isinstance(what, Mark) or len(chunks) == CHUNKS_PER_SEND:
                break
            chunks.append(what)
        sent = self._send(chunks)
        if sent < 0:
            return
        self._hold(-sent)
        while sent:
            at_ns, chunk = self.queue.popleft()
            assert not isinstance(chunk, Mark)
            if len(chunk) > sent:
                self.queue.appendleft((at_ns, memoryview(chunk)[sent:]))
            sent -= min(sent, len(chunk))

    def _send(self, chunks: list[bytes | memoryview] | list[memoryview]) -> int:
        """How many bytes the sink took; -1: it is gone, and this flow with it."""
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

    def _hold(self, nbytes: int) -> None:
        self.held += nbytes
        self.lane.stats.held_bytes += nbytes

    # ------------------------------------------------------------ ending

    def break_off(self, now_ns: int) -> None:
        """The source is gone: a reset follows what it sent."""
        self.hush()
        own_ns = now_ns + self.lane.latency_ns(0, self.rng)
        self.reset_ns = max([own_ns, *(at_ns for at_ns, _ in self.queue)])
        self.reset_due.set(max(self.reset_ns, self.hold_ns))

    def _reset(self) -> None:
        if self.lane.cut:
            return  # go() sets the timer again
        self.deliver()
        self.connection.reset()

    def abandon(self) -> None:
        """Nobody is left to take what this flow holds."""
        self.hush()
        self.queue.clear()
        self._hold(-self.held)
        self.due.cancel()
        self.reset_due.cancel()
        if self.blocked and self.sink is not None:
            self.loop.remove_writer(self.sink)
        self.sink = None
        self.blocked = True  # so that nothing is ever sent again
        self.lane.flows.pop(self, None)
