"""The connections of the HTTP port: timeouts, and bounds on their number.

A connection *waits for its client* while it is idle, while a request is incomplete and while the
client does not read an answer. Each of these states has a timeout, and the number of waiting
connections has a bound. A new connection is always accepted. If that exceeds the bound, the server
takes the client address with the most waiting connections and closes the one that has waited
longest. So slow clients cannot exclude others, and /healthz and /readyz can always be reached.

Connections whose request is complete have a separate bound, which http.py checks.
"""

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ClassVar

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from surecast.core.wire import MAGIC
from surecast.server.config import HttpConfig
from surecast.server.limited_log import LimitedLog, printable

__all__ = ["CLOSED", "HttpConnection", "HttpConnections"]

# This key is set in the ASGI scope of a request if the server has closed its connection. The reason
# is logged then, so http.py does not log the request again.
CLOSED = "surecast.closed"


class HttpConnections:
    """All open connections of one port."""

    def __init__(self, limits: HttpConfig, log: LimitedLog) -> None:
        self.limits = limits
        self.log = log
        self.server_log = _ServerLog(log)
        # In the order in which they last began to wait: the longest waiting connection is first.
        self.open: dict[HttpConnection, None] = {}

    def protocol(self) -> type[asyncio.Protocol]:
        """The class of this port's connections, for uvicorn."""

        class Connection(HttpConnection):
            all = self

        return Connection

    def began_to_wait(self, connection: "HttpConnection") -> None:
        """Note that a connection begins to wait; close another one if there are too many."""
        self.open.pop(connection, None)
        self.open[connection] = None
        waiting = [other for other in self.open if other.waits_for_client]
        of_peer = [other for other in waiting if other.peer == connection.peer]
        if len(of_peer) > self.limits.connections_per_peer_max:
            self._close(of_peer[0], "http.connections_per_peer_max")
        elif len(waiting) > self.limits.connections_max:
            peer, _ = Counter(other.peer for other in waiting).most_common(1)[0]
            oldest = next(other for other in waiting if other.peer == peer)
            self._close(oldest, "http.connections_max")

    def ended(self, connection: "HttpConnection") -> None:
        self.open.pop(connection, None)

    def abort(self) -> None:
        """Abort all open connections; called when the port stops."""
        for connection in list(self.open):
            connection.transport.abort()

    def _close(self, connection: "HttpConnection", bound: str) -> None:
        del self.open[connection]
        text = f"closed to make room for others ({bound})"
        self.log.tell(bound, f"connection from {connection.peer} {text}")
        connection.give_up(503, text)
        if connection.transport.get_write_buffer_size():
            connection.transport.abort()  # the client does not read: closing would wait for it


class HttpConnection(H11Protocol):
    """One connection: that of uvicorn, with timeouts.

    Three attributes are uvicorn's: `cycle` is the current request and its answer (None before the
    first request), `conn` is h11's state machine, and `conn.trailing_data[0]` has received bytes
    that h11 has not processed, for example incomplete headers.
    """

    all: ClassVar[HttpConnections]  # the connections of the same port, including this one

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.limits = self.all.limits
        self.logger = self.all.server_log
        self.timeout_keep_alive = self.limits.idle_timeout_ns / 1e9  # type: ignore[assignment]
        self.peer = ""
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}

    @property
    def waits_for_client(self) -> bool:
        """Whether the client, and not the server, has to act next (see the module)."""
        cycle = self.cycle
        # `working`: a request was received completely, and its answer is not complete yet.
        working = cycle is not None and not cycle.response_complete and not cycle.more_body
        return not working or self.flow.write_paused

    # ------------------------------------------------------------ called by uvicorn

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.peer = self.client[0] if self.client else ""
        self._set_timers()
        self.all.began_to_wait(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.all.ended(self)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        # At the begin of a request, the first bytes show whether this is a Surecast connection.
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            if data.startswith(MAGIC):
                self._answer_frame()
                return
        try:
            super().data_received(data)
        except Exception as problem:
            text = f"request from {self.peer}: {type(problem).__name__}: {problem}"
            self.all.log.tell(f"bug: {type(problem).__name__}", text, problem)
            self.transport.abort()
            return
        self._set_timers()

    def eof_received(self) -> None:
        if self._is_partial():
            self._refuse(400, "aborted", "the connection ended before the request was complete")

    def pause_writing(self) -> None:
        """Called by asyncio when the write buffer is full: the client reads too slowly."""
        super().pause_writing()
        self._start(self._on_response_timeout, self.limits.response_timeout_ns)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._stop(self._on_response_timeout)
        # The client gets the whole time for the part of the answer that is still in the buffer.
        if self.transport.get_write_buffer_size():
            self._start(self._on_response_timeout, self.limits.response_timeout_ns)
        if self.transport.is_closing():
            return
        self._set_timers()
        if self in self.all.open:
            self.all.began_to_wait(self)

    def shutdown(self) -> None:
        if self.waits_for_client:
            self.give_up(503, "this process is stopping; use another replica")
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid request; uvicorn calls this while it handles h11's exception."""
        problem = sys.exception()
        status = problem.error_status_hint if isinstance(problem, h11.RemoteProtocolError) else 400
        self._refuse(status, "not HTTP", f"this is not a valid HTTP request: {problem or msg}")

    def _should_upgrade(self) -> bool:
        """Whether to switch to another protocol, such as WebSocket: never."""
        return False

    # ------------------------------------------------------------ timers

    def _set_timers(self) -> None:
        """Start or stop two timers: one for incomplete headers, and one for a body that is still
        arriving after its request was answered."""
        if self.transport.is_closing():
            return
        receiving = self.conn.their_state
        # Between two requests uvicorn has its own timer, for `http.idle_timeout_ns`.
        idle = self.timeout_keep_alive_task is not None and not self.conn.trailing_data[0]
        if receiving is h11.IDLE and not idle:
            self._start(self._on_header_timeout, self.limits.header_timeout_ns)
        else:
            self._stop(self._on_header_timeout)
        if receiving is h11.SEND_BODY and self.cycle.response_complete:
            self._start(self._on_body_timeout, self.limits.body_timeout_ns)
        else:
            self._stop(self._on_body_timeout)

    def _start(self, act: Callable[[], None], after_ns: int) -> None:
        """Start the timer that calls `act`, unless it is running."""
        if act not in self._timers:
            self._timers[act] = self.loop.call_later(after_ns / 1e9, act)

    def _stop(self, act: Callable[[], None]) -> None:
        if (timer := self._timers.pop(act, None)) is not None:
            timer.cancel()

    def _on_header_timeout(self) -> None:
        self._stop(self._on_header_timeout)
        if not self._is_partial():  # a new connection on which nothing was received
            self.transport.close()
            return
        limit_s = self.limits.header_timeout_ns / 1e9
        text = f"the headers took longer than {limit_s:g} s (http.header_timeout_ns)"
        self._refuse(408, "slow headers", text)

    def _on_body_timeout(self) -> None:
        self.transport.close()

    def _on_response_timeout(self) -> None:
        self._stop(self._on_response_timeout)
        if self.transport.get_write_buffer_size():
            limit_s = self.limits.response_timeout_ns / 1e9
            text = f"{self.peer} did not read its answer for {limit_s:g} s: disconnected"
            self.all.log.tell("slow reader", text)
            self.transport.abort()

    # ------------------------------------------------------------ answers of the connection

    def _answer_frame(self) -> None:
        """Answer a Surecast client or server that has connected to this port by mistake.

        The sender recognises an HTTP port by the first line of the answer. Without this check, its
        first frame would look like an incomplete request, and the server would wait for the rest.
        """
        text = "this is an HTTP port: Surecast clients connect to the data port (node.listen)"
        self.all.log.tell("frames at the HTTP port", f"connection from {self.peer}: {text}")
        self.transport.write(_answer(400, text))
        self.transport.close()

    def _is_partial(self) -> bool:
        """Whether a request was received in part and its answer has not been begun."""
        if self.conn.their_state is h11.IDLE:
            return bool(self.conn.trailing_data[0])
        cycle = self.cycle
        return cycle is not None and cycle.more_body and not cycle.response_started

    def _refuse(self, status: int, kind: str, text: str) -> None:
        self.all.log.tell(kind, f"request from {self.peer}: {text}")
        self.give_up(status, text)

    def give_up(self, status: int, text: str) -> None:
        """Close the connection; before that, answer a request that was received in part."""
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.scope[CLOSED] = True  # type: ignore[literal-required]
            cycle.disconnected = True  # the handler's answer is dropped
            cycle.message_event.set()
        # The error answer would corrupt an answer that was begun and is not complete. It is only
        # sent if a part of a request was received that has no answer yet.
        answered = cycle is not None and cycle.response_started
        answerable = not answered or (cycle.response_complete and not cycle.more_body)
        received = self._is_partial() or self.conn.their_state is h11.ERROR
        if received and answerable and not self.transport.get_write_buffer_size():
            self.transport.write(_answer(status, text))
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self._start(self._on_response_timeout, self.limits.response_timeout_ns)


class _ServerLog(logging.Logger):
    """Receives uvicorn's log of connections. Its warnings are dropped, because HttpConnection logs
    the same problems itself."""

    def __init__(self, log: LimitedLog) -> None:
        super().__init__("surecast.server.uvicorn", logging.ERROR)
        self.log_limited = log

    def handle(self, record: logging.LogRecord) -> None:
        problem = record.exc_info[1] if record.exc_info else None
        if isinstance(problem, asyncio.CancelledError):
            self.log_limited.tell("cancelled", "a request was cancelled: this process is stopping")
        else:
            self.log_limited.tell(f"server: {record.msg}", record.getMessage().strip(), problem)


def _answer(status: int, text: str) -> bytes:
    body = msgspec.json.encode({"error": printable(text)})
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
