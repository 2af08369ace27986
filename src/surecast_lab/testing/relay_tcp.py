"""Part of the relay: TCP connections.

A relayed connection has two sockets: `near`, which the relay accepted from the caller, and `far`,
which the relay opened to the target. `relay_flow.py` moves the bytes and handles opening and
closing.
"""

import asyncio
import errno
import socket
import struct
from time import monotonic_ns

from surecast.core.types import MS
from surecast_lab.testing.relay_flow import CONNECT, Flow, FlowMark
from surecast_lab.testing.relay_wire import Lane, RelayLimits, Timer

__all__ = ["Address", "Connection", "TcpLink"]

Address = tuple[str, int]

RESET = struct.pack("ii", 1, 0)  # SO_LINGER with time 0: close() sends a reset
ACCEPT_AGAIN_NS = 100 * MS  # after an accept failed for lack of descriptors


class Connection:
    """Two sockets and the two flows between them."""

    def __init__(self, link: "TcpLink", near: socket.socket, number: int) -> None:
        self.link = link
        self.near: socket.socket | None = near
        self.far: socket.socket | None = None
        self.connecting = False
        self.missed = False  # the lane was cut during the handshake: repeat it when mended
        self.forward = Flow(self, link.forward, f"{link.name}/tcp{number}")
        self.back = Flow(self, link.back, f"{link.name}/tcp{number}")
        self.back.sink = near
        self._handshake_timer = Timer(link.loop, self._finish_handshake)
        self._start_handshake()

    def opposite(self, flow: Flow) -> Flow:
        return self.back if flow is self.forward else self.forward

    # ------------------------------------------------------------ opening

    def _start_handshake(self) -> None:
        trip_ns = sum(flow.lane.latency_ns(0, flow.rng) for flow in (self.forward, self.back))
        self._handshake_timer.set(monotonic_ns() + trip_ns)

    def _finish_handshake(self) -> None:
        if self.forward.lane.cut or self.back.lane.cut:
            self.missed = True
        elif self.near is not None:
            self.forward.put(monotonic_ns(), CONNECT, 0)
            self.forward.begin(self.near)

    def mended(self) -> None:
        if self.missed and not self.forward.lane.cut and not self.back.lane.cut:
            self.missed = False
            self._start_handshake()

    def passed(self, flow: Flow, mark: FlowMark) -> None:
        """A mark has reached the end of a flow."""
        if mark is CONNECT:
            self._connect()
            return
        assert flow.sink is not None
        try:
            flow.sink.shutdown(socket.SHUT_WR)
        except OSError:
            self.broken(self.opposite(flow))
            return
        flow.finished = True
        if self.opposite(flow).finished:
            self._end(reset=False)

    def _connect(self) -> None:
        link = self.link
        self.forward.blocked = True  # until connected
        try:
            self.far = far = socket.socket(link.family, socket.SOCK_STREAM)
        except OSError:  # no descriptors left
            self.broken(self.back)
            return
        _prepare(far)
        error = far.connect_ex(link.target)
        if error in (0, errno.EINPROGRESS):
            self.connecting = True
            link.loop.add_writer(far, self._connected)
        else:
            self.broken(self.back)

    def _connected(self) -> None:
        far, near = self.far, self.near
        assert far is not None
        self.connecting = False
        self.link.loop.remove_writer(far)
        if far.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.broken(self.back)
            return
        self.forward.sink = far
        self.forward.blocked = False
        if near is not None:
            self.back.begin(far)
        self.forward.deliver()

    # ------------------------------------------------------------ ending

    def broken(self, flow: Flow) -> None:
        """The socket that `flow` reads from is closed: the other side gets a reset after the lane's
        delay."""
        other = self.opposite(flow)
        flow.break_off(monotonic_ns())
        other.abandon()
        if flow is self.forward:
            self._close(self.near, reset=True)
            self.near = None
        else:
            self._close(self.far, reset=True)
            self.far = None
        if self.near is None and self.far is None:
            self._end(reset=True)  # both sides are closed

    def reset(self) -> None:
        """Reset both sides now, like a firewall that has lost the connection's state."""
        self._end(reset=True)

    def _end(self, reset: bool) -> None:
        self._handshake_timer.cancel()
        self.forward.abandon()
        self.back.abandon()
        self._close(self.near, reset)
        self._close(self.far, reset)
        self.near = self.far = None
        self.link.connections.pop(self, None)

    def _close(self, sock: socket.socket | None, reset: bool) -> None:
        if sock is None:
            return
        if sock is self.far and self.connecting:
            self.connecting = False
            self.link.loop.remove_writer(sock)
        if reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        sock.close()


class TcpLink:
    """Listens, and connects each accepted connection to the target."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        listener: socket.socket,
        target: Address,
        forward: Lane,
        back: Lane,
        limits: RelayLimits,
    ) -> None:
        self.loop = loop
        self.name = name
        self.target = target
        self.family = listener.family
        self.forward = forward
        self.back = back
        self.limits = limits
        self.scratch = memoryview(bytearray(limits.chunk_bytes))
        self.connections: dict[Connection, None] = {}
        self.accepted = 0
        self.refused = 0
        self._listener = listener
        self._again = Timer(loop, self._listen)
        self._listen()

    def _listen(self) -> None:
        self.loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            near, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            self.loop.remove_reader(self._listener)
            self._again.set(monotonic_ns() + ACCEPT_AGAIN_NS)
            return
        if len(self.connections) >= self.limits.connections_max:
            self.refused += 1
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            near.close()
            return
        _prepare(near)
        self.connections[Connection(self, near, self.accepted)] = None
        self.accepted += 1

    def reset(self) -> None:
        for connection in list(self.connections):
            connection.reset()

    def close(self) -> None:
        self._again.cancel()
        self.loop.remove_reader(self._listener)
        self._listener.close()
        self.reset()


def _prepare(sock: socket.socket) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
