"""One TCP connection: turns received bytes into frames and inputs, and writes buffers.

After each receive, the node's state machine is stepped with the message of every whole frame that
has arrived. Then the messages that the machine has sent are written, with one write per peer. A
message of an unknown type is dropped and counted. Any other error in the received bytes ends this
connection only.

The received bytes are not copied: a batch is a view into the memory that it was received in
(chunks.py).
"""

import asyncio
import logging
import struct
from collections import Counter
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, cast

from surecast.core.types import MS, SECOND, Peer, Received
from surecast.core.wire import HEADER_SIZE, Buffer, frame_size
from surecast.errors import PeerError, UnknownMessage
from surecast.runtime.chunks import Chunk
from surecast.runtime.hello import (
    BEAT,
    BYE,
    CODEC,
    HELLO_LIMITS,
    MARK_SIZE,
    Hello,
    Refused,
    encode,
)

if TYPE_CHECKING:
    from surecast.runtime.session import Session
    from surecast.runtime.sessions import Sessions

__all__ = [
    "ANSWERED",
    "ENDED",
    "GREETING",
    "OTHER",
    "PARKED",
    "READY",
    "TAGS_MAX",
    "Connection",
    "UnknownMessages",
]

log = logging.getLogger("surecast.runtime")

GREETING: Final = "greeting"  # waiting for the peer's Hello
PARKED: Final = "parked"  # the peer's Hello was received; the connection may be used later
ANSWERED: Final = "answered"  # our Hello was sent, too; the peer's next frame makes the session up
READY: Final = "ready"  # the session is up
ENDED: Final = "ended"  # further bytes are read and discarded

# The header's field with the size of the rest of the frame (`core.wire`), and its offset.
_BODY_LEN: Final = struct.Struct("<I")
_BODY_LEN_AT: Final = 8
_BURST_NS: Final = MS // 2  # if handling a receive took longer, other work is done before the next
_JOIN_BYTES_MAX: Final = 8 << 10  # buffers smaller than this on average are joined before a write

# Unknown messages are counted by tag. Because a peer can make up any number of tags, only this
# number of them is counted separately; all others are counted as OTHER.
TAGS_MAX: Final = 64
OTHER: Final = "other"
LOG_EVERY_NS: Final = 60 * SECOND  # the interval between log lines about unknown messages

_HTTP_METHODS: Final = (
    b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"PRI ",
)  # fmt: skip
_HTTP_BODY: Final = (
    b'{"error": "this is the data port of a Surecast server (surecast://), which does not speak '
    b'HTTP: use its HTTP port (node.http, often 7480)"}'
)
_HTTP_ANSWER: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_HTTP_BODY), _HTTP_BODY)
)


class Connection(asyncio.BufferedProtocol):
    """A connection that we opened for `session`, or accepted (`session` is None at first)."""

    __slots__ = (
        "_chunk",
        "_deadline",
        "_frame_bytes",
        "dialled",
        "heard",
        "heard_ns",
        "hello",
        "paused",
        "session",
        "sessions",
        "state",
        "transport",
        "wrote",
    )

    transport: asyncio.Transport

    def __init__(self, sessions: "Sessions", session: "Session | None") -> None:
        self.sessions = sessions
        self.session = session
        self.dialled = session is not None  # whether this node has opened the connection
        self.state = GREETING
        self.hello: Hello | None = None  # the peer's
        self.heard = False  # whether bytes were received since the last `Sessions._tick`
        self.heard_ns = 0  # the time of the last tick with `heard`
        self.wrote = False  # whether bytes were written since the last tick
        self.paused = False  # whether the transport's write buffer is above its high-water mark
        self._chunk = Chunk()
        self._frame_bytes = 0  # the size of the frame that is being received, once it is known
        self._deadline: asyncio.TimerHandle | None = None  # aborts a connection that is too slow

    # ------------------------------------------------------------ the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        limits = self.sessions.limits
        self.transport.set_write_buffer_limits(
            limits.high_water_bytes, limits.high_water_bytes // 2
        )
        self.expect(limits.handshake_timeout_ns)
        self.sessions.opening.connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._chunk.room(self._frame_bytes)

    def buffer_updated(self, nbytes: int) -> None:
        sessions = self.sessions
        self.heard = True
        chunk = self._chunk
        chunk.fill += nbytes
        sessions.counters["tcp_bytes_in"] += nbytes
        more = chunk.fill == len(chunk.view)  # the chunk is full, so more bytes may be waiting
        began_ns = monotonic_ns()
        try:
            if self.state is not READY:
                self._early()
            if self.state is READY:
                self._read()
        except Exception as problem:
            sessions.fail(problem)
            return
        sessions.settle()
        if more and monotonic_ns() - began_ns > _BURST_NS and not self.transport.is_closing():
            # uvloop would read up to 32 times before it does other work. A peer that sends very
            # much must not delay timers, the disk and other peers.
            self.transport.pause_reading()
            sessions.loop.call_soon(self._resume)

    def _resume(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def eof_received(self) -> bool:
        return False  # the transport closes, and connection_lost follows

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self.state = ENDED
        self.sessions.lost(self, exc)

    def pause_writing(self) -> None:
        self.paused = True
        self.sessions.congested(self)

    def resume_writing(self) -> None:
        self.paused = False
        self.sessions.drained(self)

    # ------------------------------------------------------------ receiving

    def _early(self) -> None:
        """Handle bytes that arrive while the session is not up."""
        chunk = self._chunk
        if self.state is ENDED:
            chunk.at = chunk.fill  # discards the bytes
        elif self.state is ANSWERED:
            self.sessions.up(self)  # then `_read` reads the frame
        elif self.state is PARKED:
            self.refuse("frames before the Hello was answered")
        else:
            self._greet(chunk)

    def _greet(self, chunk: "Chunk") -> None:
        """Read the peer's first frame, which must be a Hello or Refused."""
        try:
            rest = chunk.view[chunk.at : chunk.fill]
            size = frame_size(rest, HELLO_LIMITS)
            if size is None or size > len(rest):
                return
            hello, _ = CODEC.decode(rest[:size])
        except PeerError as problem:
            opening = bytes(rest[:8])
            if self.dialled and opening.startswith(b"HTTP/"):
                self.refuse("its answer is HTTP: the address is not that of a data port")
            elif not self.dialled and opening.startswith(_HTTP_METHODS):
                self.refuse("an HTTP request at the data port", _HTTP_ANSWER)
            else:
                self.refuse(str(problem))
            return
        chunk.at += size
        if type(hello) is Refused:
            self.sessions.refused(self, hello.why)
        elif type(hello) is not Hello:
            self.refuse("the first frame must be a Hello")
        else:
            self.hello = hello
            self.sessions.opening.greeted(self, hello)

    def _read(self) -> None:
        """Step the machine with the message of every whole frame. This loop is optimised for
        speed."""
        sessions = self.sessions
        decode, step, settle = sessions.codec.decode, sessions.step, sessions.run_pending
        pending = sessions.pending
        assert self.session is not None
        peer = self.session.peer
        chunk = self._chunk
        view, at, fill = chunk.view, chunk.at, chunk.fill
        frames = 0
        if pending:  # for example the PeerUp of this session
            settle()
        while fill - at >= HEADER_SIZE:
            size = HEADER_SIZE + _BODY_LEN.unpack_from(view, at + _BODY_LEN_AT)[0]
            if size > fill - at:
                break
            frame = view[at : at + size]
            at += size
            if size == MARK_SIZE:
                if frame == BEAT:
                    continue
                if frame == BYE:
                    sessions.bye(self)
                    break
            try:
                message = decode(frame)[0]
            except UnknownMessage as unknown:
                sessions.unknown.drop(peer, unknown)
                continue
            except PeerError as problem:
                self._bad_frame(frame, problem)
                break
            frames += 1
            step(Received(peer, message))
            if pending:
                settle()
            if self.state is not READY:
                break
        sessions.counters["tcp_frames_in"] += frames
        if self.state is READY:
            chunk.at = at
            self._read_header(view[at:fill])
        else:
            chunk.at = fill  # the connection has ended: discard the rest

    def _read_header(self, rest: memoryview) -> None:
        """Note the size of the unfinished frame that begins with `rest`, from its header. Refuse
        the frame if its header is invalid. An incomplete header is read later."""
        self._frame_bytes = 0
        if rest:
            try:
                self._frame_bytes = frame_size(rest, self.sessions.codec.limits) or 0
            except PeerError as problem:
                self._bad_frame(rest, problem)

    def _bad_frame(self, frame: memoryview, problem: PeerError) -> None:
        """Handle a frame that is not a message of the node's codec: either the peer's Refused, or
        invalid, in which case the peer is refused."""
        try:
            refused, _ = CODEC.decode(frame)
        except PeerError:
            refused = None
        if type(refused) is Refused:
            self.sessions.refused(self, refused.why)
        else:
            self.refuse(str(problem))

    # ------------------------------------------------------------ sending and ending

    def write(self, buffers: list[Buffer], nbytes: int) -> None:
        """Write all `buffers` at once; they must not change afterwards."""
        self.wrote = True
        if nbytes < len(buffers) * _JOIN_BYTES_MAX:
            self.transport.write(b"".join(buffers))
        else:
            self.transport.writelines(buffers)

    def say(self, data: bytes) -> None:
        """Write a frame of the handshake, a Beat or a Bye (`runtime.hello`)."""
        self.wrote = True
        self.transport.write(data)

    def expect(self, timeout_ns: int) -> None:
        """Abort the connection unless its state changes within `timeout_ns`."""
        self._stop_waiting()
        loop = self.sessions.loop
        self._deadline = loop.call_later(timeout_ns / SECOND, self._too_slow)

    def ready(self) -> None:
        """Called when the session is up."""
        self._stop_waiting()
        self.state = READY

    def refuse(self, why: str, answer: bytes = b"") -> None:
        """Send the reason (as Refused, or as `answer` if that is given), then close. Incoming bytes
        are read until the connection is closed: closing a socket with unread bytes sends a reset,
        and the peer could lose the reason."""
        self.sessions.refusing(self, why)
        self.say(answer or encode(Refused(why[:1000])))
        self.finish()

    def finish(self) -> None:
        """Close when all bytes are written and the peer has closed, too, or after a time-out."""
        self.state = ENDED
        self.expect(self.sessions.limits.handshake_timeout_ns)
        if not self.transport.is_closing():
            try:
                self.transport.write_eof()
            except OSError:  # the peer has reset the connection
                self.abort()

    def close(self) -> None:
        """Close when all bytes are written. Only for a connection on which the peer sends nothing
        more."""
        self.state = ENDED
        self.transport.close()
        self._linger(1 << 62)  # more than can be left, so the first call does not abort

    def _linger(self, before: int) -> None:
        """Called in intervals after `close`. Abort if the peer has read nothing since the last
        call; `before` is the number of bytes that were not written then."""
        self._stop_waiting()
        left = self.transport.get_write_buffer_size()
        if left >= before:
            self.sessions.counters["closes_given_up"] += 1
            self.abort()
        elif left:
            timeout = self.sessions.limits.session_timeout_ns / SECOND
            self._deadline = self.sessions.loop.call_later(timeout, self._linger, left)

    def abort(self) -> None:
        self._stop_waiting()
        self.state = ENDED
        self.transport.abort()

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        """Called when the time of `expect` is over."""
        if self.state is not ENDED:
            self.sessions.counters["handshake_timeouts"] += 1
        self.abort()


def describe(exc: Any) -> str:
    """The reason why a connection ended, for the log."""
    return f"{type(exc).__name__}: {exc}" if exc is not None else "closed by the peer"


class UnknownMessages:
    """The messages of unknown types that one node has received; `counters` are the node's.

    In a cluster with nodes of different versions, some nodes may not know all protocols. A frame
    with a message of an unknown protocol is intact, so the session continues after it. Such
    messages are counted by tag, and logged at most once in LOG_EVERY_NS.
    """

    def __init__(self, node: Peer, counters: Counter[str]) -> None:
        self.node = node
        self.counters = counters
        self.by_tag: Counter[str] = Counter()
        self._logged_ns = -LOG_EVERY_NS  # the time of the last log line
        self._unlogged = 0  # messages since then

    def drop(self, peer: Peer, unknown: UnknownMessage) -> None:
        """Count a message, and log it if no line was logged in the last LOG_EVERY_NS."""
        full = len(self.by_tag) >= TAGS_MAX
        self.by_tag[OTHER if full and unknown.tag not in self.by_tag else unknown.tag] += 1
        self.counters["unknown_messages"] += 1
        self._unlogged += 1
        now_ns = monotonic_ns()
        if now_ns - self._logged_ns >= LOG_EVERY_NS:
            more = f" ({self._unlogged:,} since the last such line)" if self._unlogged > 1 else ""
            log.warning("%s: dropped %s from %s%s", self.node, unknown, peer, more)
            self._logged_ns, self._unlogged = now_ns, 0
