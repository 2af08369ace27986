"""Plays the golden scripts on sessions: real nodes on an event loop with simulated time and wires.

The nodes, sessions and connections are those of the runtime. Only the layers below are replaced:
the loop's clock advances when nothing is left to do (`VirtualLoop`), and connections carry bytes
from one protocol to the other after a delay (`Wire`). The commands:

    node NAME...             start nodes
    delay MILLISECONDS       the delay of bytes and connections from now on
    send FROM TO NUMBER      a machine sends a message
    close FROM TO            a machine closes its session
    run MILLISECONDS         let time pass
    cut A B / mend A B       bytes between two nodes are lost / arrive again
    blob FROM TO BYTES       a machine sends a large message
    stall FROM TO            TCP accepts nothing more in this direction
    garble FROM TO           bytes that are not a frame, in the connection of a session that is up
    kill NAME                end a node like a killed process
    hide KIND...             leave out frames of these kinds from now on
    show                     the sessions of every node

Shown are frames as they are sent, the inputs of machines, and the transitions of sessions.
"""

import asyncio
import selectors
import struct
import time
from collections import Counter, deque
from random import Random
from typing import Any

import pytest
from tests.runtime.stage import CODEC_TYPES, Blob
from tests.sim.actors import Actor, Do, Ping

from surecast.core.types import MS, SECOND, Close, PeerDown, PeerUp, Received, Send
from surecast.core.wire import HEADER_SIZE, Codec
from surecast.errors import PeerError
from surecast.runtime import AddressBook, Node, RuntimeLimits, tcp
from surecast.runtime.hello import CODEC as DRIVER_CODEC
from surecast.runtime.hello import Hello
from surecast.runtime.session import Session
from surecast.runtime.timers import ClockWatch

__all__ = ["SessionPlayer"]

BODY_LEN = struct.Struct("<I")
BODY_LEN_AT = 8


class _NoSelector(selectors.SelectSelector):
    """Waits for no file: a timeout passes at once, in virtual time."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "nothing is left to happen"
        self.loop.now_ns += max(0, round(timeout * SECOND))
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.now_ns = 0
        selector = _NoSelector()
        selector.loop = self
        super().__init__(selector)
        self._clock_resolution = 1e-7
        self.wires: Wires | None = None

    def time(self) -> float:
        return self.now_ns / SECOND

    async def create_connection(self, factory: Any, host: Any, port: Any, **_: Any) -> Any:  # type: ignore[override]
        assert self.wires is not None
        return await self.wires.connect(factory, port)


class Wire(asyncio.Transport):
    """One end of a connection in memory."""

    def __init__(self, wires: "Wires", protocol: Any, src: str, dst: str) -> None:
        super().__init__()
        self.wires, self.protocol, self.src, self.dst = wires, protocol, src, dst
        self.other: Wire
        self.ended = False
        self.high_bytes = 1 << 30
        self.held: list[bytes] = []  # what a stalled connection does not accept
        self.due: deque[Any] = deque()  # for the other end: bytes, b"" (no more), or an error

    def _put(self, item: Any) -> None:
        self.due.append(item)
        self.wires.loop.call_later(self.wires.delay_ns / SECOND, self._arrive)

    def _arrive(self) -> None:
        item, other = self.due.popleft(), self.other
        if other.ended or self.wires.is_cut(self.src, self.dst):
            return
        if isinstance(item, Exception):
            other._lose(item)
        elif not item:
            if not other.protocol.eof_received():
                other.close()
        else:
            while item and not other.ended:
                room = other.protocol.get_buffer(len(item))
                count = min(len(room), len(item))
                room[:count] = item[:count]
                item = item[count:]
                other.protocol.buffer_updated(count)

    def _lose(self, problem: Exception | None) -> None:
        if not self.ended:
            self.ended = True
            self.wires.loop.call_soon(self.protocol.connection_lost, problem)

    def write(self, data: Any) -> None:
        if self.ended:
            return
        if (self.src, self.dst) in self.wires.stalled:
            self.held.append(bytes(data))
            if self.get_write_buffer_size() > self.high_bytes:
                self.protocol.pause_writing()
            return
        self.wires.show_frames(self.src, self.dst, bytes(data))
        self._put(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        self._put(b"")

    def close(self) -> None:
        if not self.ended:
            self._put(b"")
            self._lose(None)

    def abort(self) -> None:
        if not self.ended:
            self._put(ConnectionResetError("reset by the peer"))
            self._lose(None)

    def is_closing(self) -> bool:
        return self.ended

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.held))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high_bytes = high or self.high_bytes

    def pause_reading(self) -> None:
        raise AssertionError("no script sends so much")

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.dst if name == "peername" else default


class Wires:
    """All connections, and the lines that describe what happens on them."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        loop.wires = self
        self.delay_ns = 5 * MS
        self.cut: list[set[str]] = []
        self.stalled: list[tuple[str, str]] = []
        self.hidden: set[str] = set()
        self.ports: dict[int, Node] = {}
        self.lines: list[str] = []
        self.codec = Codec(CODEC_TYPES)

    def show(self, line: str) -> None:
        self.lines.append(f"  {self.loop.now_ns / MS:7.1f}  {line}")

    def is_cut(self, a: str, b: str) -> bool:
        return {a, b} in self.cut

    async def connect(self, factory: Any, port: int) -> tuple[Wire, Any]:
        protocol = factory()
        src, target = protocol.sessions.node.name, self.ports[port]
        await asyncio.sleep(2 * self.delay_ns / SECOND)  # SYN and its answer
        if self.is_cut(src, target.name) or not target.running:
            raise ConnectionRefusedError("nothing listens there")
        accepted = tcp.Connection(target.sessions, None)
        near = Wire(self, protocol, src, target.name)
        far = Wire(self, accepted, target.name, src)
        near.other, far.other = far, near
        self.show(f"{src} → {target.name}  connected")
        accepted.connection_made(far)
        protocol.connection_made(near)
        return near, protocol

    def show_frames(self, src: str, dst: str, data: bytes) -> None:
        while data:
            size = HEADER_SIZE + BODY_LEN.unpack_from(data, BODY_LEN_AT)[0]
            frame, data = memoryview(data[:size]), data[size:]
            try:
                message = DRIVER_CODEC.decode(frame)[0]
            except PeerError:
                message = self.codec.decode(frame)[0]
            if type(message).__name__ not in self.hidden:
                self.show(f"{src} → {dst}  {_describe(message)}")


def _describe(message: Any) -> str:
    if isinstance(message, Hello):
        return f"Hello (to {message.to}, attempt {message.attempt})"
    number = f" {message.number}" if isinstance(message, Ping | Blob) else ""
    return f"{type(message).__name__}{number}"


class _ShownActor(Actor):
    """A machine whose inputs are shown in the output."""

    def __init__(self, ctx: Any, wires: Wires) -> None:
        super().__init__(ctx)
        self.wires = wires

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        name = self.ctx.name
        if isinstance(inp, PeerUp | PeerDown):
            self.wires.show(f"{name}  {type(inp).__name__} {inp.peer}")
        elif isinstance(inp, Received):
            self.wires.show(f"{name}  Received {_describe(inp.message)} from {inp.peer}")
        elif isinstance(inp, Do):
            for effect in inp.effects:
                what = (
                    f"Send {_describe(effect.message)} to" if isinstance(effect, Send) else "Close"
                )
                self.wires.show(f"{name}  {what} {effect.peer}")
        return super().step(now_ns, inp)


class SessionPlayer:
    def __init__(self, patch: pytest.MonkeyPatch, **limits: int) -> None:
        self.limits = RuntimeLimits(**limits)
        self.met: Counter[str] = Counter()  # transitions, by label
        self.loop = VirtualLoop()
        self.wires = Wires(self.loop)
        self.book = AddressBook()
        self.nodes: dict[str, Node] = {}
        patch.setattr(time, "monotonic_ns", lambda: self.loop.now_ns)
        patch.setattr(tcp, "monotonic_ns", lambda: self.loop.now_ns)

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill()
        self.loop.run_until_complete(asyncio.sleep(1))
        self.loop.close()

    def play(self, words: list[str]) -> list[str]:
        self.wires.lines = []
        command, *rest = words
        getattr(self, f"do_{command}")(*rest)
        for node in self.nodes.values():
            if node.failed.done():
                node.failed.result()
        return self.wires.lines

    def do_node(self, *names: str) -> None:
        for name in names:
            self.loop.run_until_complete(self._start(name))

    async def _start(self, name: str) -> None:
        node = Node(
            name,
            lambda ctx: _ShownActor(ctx, self.wires),
            book=self.book,
            codec=self.wires.codec,
            listen=None,
            limits=self.limits,
            validate=True,
        )
        node.met = self.met
        node._clock = ClockWatch(node.limits.clock_jump_ns, lambda: self.loop.now_ns)
        await node.start()
        node.sessions.opening._rng = Random(0)
        port = 7400 + len(self.wires.ports)
        self.nodes[name] = self.wires.ports[port] = node
        self.book.set(name, ("127.0.0.1", port))
        moved = node.sessions.moved

        def moved_shown(session: Session, why: str) -> None:
            before = session.seen
            moved(session, why)
            if session.seen is not before:
                change = f"{before.name} → {session.seen.name}"
                self.wires.show(f"{name}  session with {session.peer}: {change} ({why})")

        node.sessions.moved = moved_shown  # type: ignore[method-assign]
        park = node.sessions.opening._park

        def parked(session: Session, connection: tcp.Connection) -> None:
            self.wires.show(f"{name}  parks the connection that {session.peer} has opened")
            park(session, connection)

        node.sessions.opening._park = parked  # type: ignore[method-assign]

    def do_delay(self, milliseconds: str) -> None:
        self.wires.delay_ns = int(milliseconds) * MS

    def do_send(self, src: str, dst: str, number: str) -> None:
        self.nodes[src].give(Do([Send(dst, Ping(int(number)))]))

    def do_close(self, src: str, dst: str) -> None:
        self.nodes[src].give(Do([Close(dst)]))

    def do_blob(self, src: str, dst: str, nbytes: str) -> None:
        self.nodes[src].give(Do([Send(dst, Blob(0, bytes(int(nbytes))))]))

    def do_stall(self, src: str, dst: str) -> None:
        self.wires.stalled.append((src, dst))

    def do_garble(self, src: str, dst: str) -> None:
        connection = self.nodes[src].sessions.by_peer[dst].connection
        assert connection is not None
        assert isinstance(connection.transport, Wire)
        connection.transport._put(b"\xff" * HEADER_SIZE)

    def do_kill(self, name: str) -> None:
        self.nodes.pop(name).kill()

    def do_run(self, milliseconds: str) -> None:
        self.loop.run_until_complete(asyncio.sleep(int(milliseconds) * MS / SECOND))

    def do_cut(self, a: str, b: str) -> None:
        self.wires.cut.append({a, b})

    def do_mend(self, a: str, b: str) -> None:
        self.wires.cut.remove({a, b})

    def do_hide(self, *kinds: str) -> None:
        self.wires.hidden |= set(kinds)

    def do_show(self) -> None:
        for name, node in self.nodes.items():
            sessions = node.sessions.by_peer.values()
            found = [f"{session.peer}: {session.phase.name}" for session in sessions]
            self.wires.show(f"{name}  sessions {', '.join(found) or 'none'}")
