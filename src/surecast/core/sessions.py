"""The states of a session with a peer, and every transition between them, as data.

Theory of operation. A session is one node's end of the connection to one peer; `core.types` says
what machines may rely on. Both drivers implement it, from different material: the runtime from TCP
connections, the simulator from entries of its agenda. They share this table. Each derives the state
from its own fields in one place (`runtime.session.Session.phase`, `sim.session.End.phase`).

A session begins PAUSED. If an attempt failed a moment ago it stays so until the pause is over. Then
the node is DIALLING; with a TCP connection it is GREETING: it has sent its Hello and waits for the
peer's. The peer's Hello makes the session UP. On the other side, the session is ANSWERING from the
peer's Hello until the peer's next frame: a peer that cannot hear this node is never UP here. In the
simulator the handshake is one event, so there is no GREETING, and the far end is ANSWERING from the
moment the near end begins.

Both sides may open at once. In the runtime each then has a connection of its own and one of the
peer. The connection opened by the node with the smaller name counts: its peer drops its own
attempt and takes that one (DIALLING or GREETING → ANSWERING). In the simulator the second node
joins the attempt of the first.

A session that was asked to close is CLOSING until both sides have said Bye. What is sent meanwhile
belongs to the next session. A session into which too much was sent is BREAKING for the rest of the
pass: the machine is told in a pass of its own. ENDED is final: what comes next is a new session.
"""

from enum import Enum
from typing import Final

from surecast.core.states import Row, StateTable

__all__ = [
    "ACCEPTED",
    "ATTEMPT",
    "CLOSE",
    "CLOSED",
    "CONNECTED",
    "FAILED",
    "FIRST_FRAME",
    "FULL",
    "HELLO",
    "LOST",
    "NOT_ON_SOCKETS",
    "OVERFLOW",
    "REFUSED",
    "REPLACED",
    "SESSION",
    "SILENT",
    "STOPPED",
    "SessionState",
]


class SessionState(Enum):
    PAUSED = "New, or waiting until the pause after a failed attempt is over."
    DIALLING = "This node's attempt to connect is under way."
    GREETING = "Connected; the peer's Hello is due."
    ANSWERING = "The peer's attempt was answered; its next frame is due."
    UP = "Both have said Hello: messages flow."
    CLOSING = "Up, and asked to close: the queues drain in both directions."
    BREAKING = "Too much was sent into it; it ends in a pass of its own."
    ENDED = "No more. The machine was told, if it knew of the session."


ATTEMPT: Final = "attempt"
CONNECTED: Final = "connected"
ACCEPTED: Final = "accepted"
HELLO: Final = "hello"
FIRST_FRAME: Final = "first frame"
CLOSE: Final = "close"
OVERFLOW: Final = "overflow"
FAILED: Final = "failed"
STOPPED: Final = "stopped"
# Why a session that was up has ended.
CLOSED: Final = "closed"  # in order: one of the two has said Bye
LOST: Final = "lost"  # the connection broke
SILENT: Final = "silent"
REFUSED: Final = "refused"  # one of the two has said why: a bad frame, for instance
FULL: Final = "full"  # the peer did not read what was sent to it
REPLACED: Final = "replaced"  # the peer opened another one

PAUSED: Final = SessionState.PAUSED
DIALLING: Final = SessionState.DIALLING
GREETING: Final = SessionState.GREETING
ANSWERING: Final = SessionState.ANSWERING
UP: Final = SessionState.UP
CLOSING: Final = SessionState.CLOSING
BREAKING: Final = SessionState.BREAKING
ENDED: Final = SessionState.ENDED

SESSION_TRANSITIONS: dict[tuple[SessionState, str], frozenset[SessionState]] = {
    (PAUSED, ATTEMPT): frozenset({DIALLING}),
    (PAUSED, ACCEPTED): frozenset({ANSWERING}),
    (PAUSED, FAILED): frozenset({ENDED}),
    (PAUSED, LOST): frozenset({ENDED}),
    (PAUSED, REPLACED): frozenset({ENDED}),
    (PAUSED, OVERFLOW): frozenset({BREAKING}),
    (PAUSED, STOPPED): frozenset({ENDED}),
    (DIALLING, CONNECTED): frozenset({GREETING}),
    (DIALLING, ACCEPTED): frozenset({ANSWERING}),
    (DIALLING, HELLO): frozenset({UP, CLOSING}),
    (DIALLING, FAILED): frozenset({ENDED}),
    (DIALLING, LOST): frozenset({ENDED}),
    (DIALLING, REPLACED): frozenset({ENDED}),
    (DIALLING, OVERFLOW): frozenset({BREAKING}),
    (DIALLING, STOPPED): frozenset({ENDED}),
    (GREETING, HELLO): frozenset({UP, CLOSING}),
    (GREETING, ACCEPTED): frozenset({ANSWERING}),
    (GREETING, FAILED): frozenset({ENDED}),
    (GREETING, LOST): frozenset({PAUSED}),
    (GREETING, OVERFLOW): frozenset({BREAKING}),
    (GREETING, STOPPED): frozenset({ENDED}),
    (ANSWERING, FIRST_FRAME): frozenset({UP, CLOSING}),
    (ANSWERING, FAILED): frozenset({ENDED}),
    (ANSWERING, LOST): frozenset({PAUSED, ENDED}),
    (ANSWERING, SILENT): frozenset({ENDED}),
    (ANSWERING, REPLACED): frozenset({ENDED}),
    (ANSWERING, OVERFLOW): frozenset({BREAKING}),
    (ANSWERING, STOPPED): frozenset({ENDED}),
    (UP, CLOSE): frozenset({CLOSING}),
    (UP, CLOSED): frozenset({ENDED}),
    (UP, LOST): frozenset({ENDED}),
    (UP, SILENT): frozenset({ENDED}),
    (UP, REFUSED): frozenset({ENDED}),
    (UP, REPLACED): frozenset({ENDED}),
    (UP, OVERFLOW): frozenset({BREAKING}),
    (UP, STOPPED): frozenset({ENDED}),
    (CLOSING, CLOSED): frozenset({ENDED}),
    (CLOSING, LOST): frozenset({ENDED}),
    (CLOSING, SILENT): frozenset({ENDED}),
    (CLOSING, REFUSED): frozenset({ENDED}),
    (CLOSING, REPLACED): frozenset({ENDED}),
    (CLOSING, OVERFLOW): frozenset({BREAKING}),
    (CLOSING, STOPPED): frozenset({ENDED}),
    (BREAKING, FULL): frozenset({ENDED}),
    (BREAKING, REPLACED): frozenset({ENDED}),
    (BREAKING, STOPPED): frozenset({ENDED}),
}

_ONE_EVENT = "A simulated handshake is one event: nothing happens between connecting and Hello."
_JOINS = "In the simulator a node joins its peer's attempt, and keeps no connection of its own."
_NO_BOUND = "Simulated queues have no upper bound: a session is congested, but never broken."
_NO_BAD_FRAMES = "Simulated nodes send messages, not bytes: there are no bad frames to refuse."

# Rows that the simulator does not have.
NOT_SIMULATED: dict[Row, str] = {
    (PAUSED, ACCEPTED, ANSWERING): _JOINS,
    (PAUSED, FAILED, ENDED): "Every simulated node has an address.",
    (PAUSED, REPLACED, ENDED): "Possible, but too rare for 500 seeds: the peer joins, resets and "
    "opens again over a cut that ends, all within one pause of 75 ms.",
    (DIALLING, CONNECTED, GREETING): _ONE_EVENT,
    (DIALLING, ACCEPTED, ANSWERING): _JOINS,
    (GREETING, HELLO, UP): _ONE_EVENT,
    (GREETING, HELLO, CLOSING): _ONE_EVENT,
    (GREETING, ACCEPTED, ANSWERING): _ONE_EVENT,
    (GREETING, FAILED, ENDED): _ONE_EVENT,
    (GREETING, LOST, PAUSED): _ONE_EVENT,
    (GREETING, STOPPED, ENDED): _ONE_EVENT,
    (ANSWERING, LOST, PAUSED): "A simulated node that joined an attempt fails with it.",
    (UP, REFUSED, ENDED): _NO_BAD_FRAMES,
    (CLOSING, REFUSED, ENDED): _NO_BAD_FRAMES,
    **{
        (state, OVERFLOW, BREAKING): _NO_BOUND
        for state in SessionState
        if state not in (BREAKING, ENDED)
    },
    **{(BREAKING, why, ENDED): _NO_BOUND for why in (FULL, REPLACED, STOPPED)},
}

_ATTEMPTS_FAIL = "Over sockets an attempt that is reset is one that failed, or is taken up again."

# Rows that the runtime does not have.
NOT_ON_SOCKETS: dict[Row, str] = {
    (PAUSED, LOST, ENDED): "Over sockets nothing is connected before the attempt begins.",
    (DIALLING, HELLO, UP): "Over sockets the session is GREETING when the Hello arrives.",
    (DIALLING, HELLO, CLOSING): "Over sockets the session is GREETING when the Hello arrives.",
    (DIALLING, LOST, ENDED): _ATTEMPTS_FAIL,
    (ANSWERING, FAILED, ENDED): _ATTEMPTS_FAIL,
    (ANSWERING, LOST, ENDED): _ATTEMPTS_FAIL,
    (ANSWERING, SILENT, ENDED): "A peer that says nothing after its Hello is LOST: its connection "
    "is closed after `handshake_timeout_ns`.",
    (PAUSED, REPLACED, ENDED): "Over sockets the peer's connection is taken for this session.",
    (DIALLING, REPLACED, ENDED): "Over sockets the peer's connection is taken for this session.",
    (ANSWERING, REPLACED, ENDED): "Over sockets a newer connection of the peer takes the place of "
    "the older one in the same session.",
}

SESSION = StateTable(
    name="session",
    states=SessionState,
    initial=PAUSED,
    transitions=SESSION_TRANSITIONS,
    inputs={
        ATTEMPT: "The pause is over, or there was none: the attempt begins.",
        CONNECTED: "TCP has made our connection.",
        ACCEPTED: "A connection of the peer is taken for this session.",
        HELLO: "The peer has answered our Hello.",
        FIRST_FRAME: "The peer has sent something after our Hello.",
        CLOSE: "The machine asks to close (`Close`).",
        CLOSED: "The peer has said Bye.",
        LOST: "The connection broke, or the peer has reset it.",
        SILENT: "Nothing was heard for the session time-out.",
        REFUSED: "One of the two has said why it will not go on: a bad frame, for instance.",
        REPLACED: "The peer has opened another session.",
        OVERFLOW: "More waits to be sent than `queue_bytes_max`.",
        FULL: "The pass after the overflow.",
        FAILED: "The attempt came to nothing: refused, no answer, no address.",
        STOPPED: "This node stops or crashes.",
    },
    unmet=NOT_SIMULATED,
)
