"""The states of a session with a peer, and every transition between them, as data.

A session is one node's end of the connection to one peer. `core.types` defines what machines may
expect of a session. Both drivers implement sessions: the runtime with TCP connections, the
simulator with scheduled events. They share this table. Each driver derives the state from its own
fields in one place (`runtime.session.Session.phase`, `sim.session.End.phase`).

A session begins PAUSED. If the attempt to open the previous session failed, the new one waits in
PAUSED for some time. Then the node is DIALLING. Once it has a TCP connection it is GREETING: it has
sent its Hello (the first frame in each direction) and waits for the peer's Hello, which makes the
session UP. The node that was dialled is ANSWERING from the dialler's Hello until the dialler's next
frame, which shows that the dialler has received the answer. So a session is never UP with a peer
that receives nothing. In the simulator the handshake is one event, so there is no GREETING, and the
node that is dialled is ANSWERING as soon as the other node begins.

Both nodes may open a session at the same time. In the runtime there are then two connections, one
opened by each node. The connection that was opened by the node with the smaller name is used: the
other node drops its own attempt and takes this connection (DIALLING or GREETING → ANSWERING). In
the simulator the second node joins the attempt of the first.

A session that the machine closes is CLOSING until both sides have sent Bye. Messages that are sent
meanwhile belong to the next session. A session whose queue overflows is BREAKING for the rest of
the pass (the inputs that the driver is processing now): the machine gets PeerDown in the next pass.
ENDED is final: a later session with the peer is a new one.
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
    UP = "Both have sent Hello: messages flow."
    CLOSING = "Up, and closed by the machine: the queues drain in both directions."
    BREAKING = "Its queue overflowed; the session ends in the next pass."
    ENDED = "Over. If the machine had received PeerUp, it has received PeerDown."


ATTEMPT: Final = "attempt"
CONNECTED: Final = "connected"
ACCEPTED: Final = "accepted"
HELLO: Final = "hello"
FIRST_FRAME: Final = "first frame"
CLOSE: Final = "close"
OVERFLOW: Final = "overflow"
FAILED: Final = "failed"
STOPPED: Final = "stopped"
# Why a session has ended, besides FAILED and STOPPED.
CLOSED: Final = "closed"  # in the regular way, by Bye
LOST: Final = "lost"  # the connection broke
SILENT: Final = "silent"  # nothing was received for too long
REFUSED: Final = "refused"  # one of the nodes ended it and sent why, for instance a bad frame
FULL: Final = "full"  # the peer did not read what was sent to it
REPLACED: Final = "replaced"  # the peer opened another session

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
_JOINS = "In the simulator a node joins its peer's attempt and makes no connection of its own."
_NO_BOUND = "Simulated queues have no upper bound: a session is congested, but never broken."
_NO_BAD_FRAMES = "Simulated nodes send messages, not bytes: there are no bad frames to refuse."

# Rows that do not occur in simulations, with the reason.
NOT_SIMULATED: dict[Row, str] = {
    (PAUSED, ACCEPTED, ANSWERING): _JOINS,
    (PAUSED, FAILED, ENDED): "Every simulated node has an address.",
    (PAUSED, REPLACED, ENDED): "Possible, but too rare for 500 seeds: within one pause of 75 ms, a "
    "broken link must be repaired, and the peer must join the attempt, reset it and open another "
    "session.",
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
    (
        UP,
        REPLACED,
        ENDED,
    ): "Possible, but too rare for 500 seeds: the peer must end its session and "
    "open another one before this node has heard of the end.",
    (CLOSING, REFUSED, ENDED): _NO_BAD_FRAMES,
    **{
        (state, OVERFLOW, BREAKING): _NO_BOUND
        for state in SessionState
        if state not in (BREAKING, ENDED)
    },
    **{(BREAKING, why, ENDED): _NO_BOUND for why in (FULL, REPLACED, STOPPED)},
}

_ATTEMPTS_FAIL = "Over sockets an attempt that is reset counts as failed, or is repeated."

# Rows that do not occur in the runtime, with the reason.
NOT_ON_SOCKETS: dict[Row, str] = {
    (PAUSED, LOST, ENDED): "Over sockets nothing is connected before the attempt begins.",
    (DIALLING, HELLO, UP): "Over sockets the session is GREETING when the Hello arrives.",
    (DIALLING, HELLO, CLOSING): "Over sockets the session is GREETING when the Hello arrives.",
    (DIALLING, LOST, ENDED): _ATTEMPTS_FAIL,
    (ANSWERING, FAILED, ENDED): _ATTEMPTS_FAIL,
    (ANSWERING, LOST, ENDED): _ATTEMPTS_FAIL,
    (ANSWERING, SILENT, ENDED): "A peer that sends nothing after its Hello is LOST: its connection "
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
        CONNECTED: "This node's TCP connection is established.",
        ACCEPTED: "A connection of the peer is taken for this session.",
        HELLO: "The peer has answered our Hello.",
        FIRST_FRAME: "The peer has sent something after our Hello.",
        CLOSE: "The machine closes the session (`Close`).",
        CLOSED: "The session ended in order: the peer has sent Bye, and so has this node if it was "
        "CLOSING.",
        LOST: "The connection broke, or the peer has reset it.",
        SILENT: "Nothing was received for the session time-out.",
        REFUSED: "One of the two nodes refuses to continue, and has sent the reason, for instance "
        "a bad frame.",
        REPLACED: "The peer has opened another session.",
        OVERFLOW: "The queue has more than `queue_bytes_max` bytes to send.",
        FULL: "The pass after the overflow has begun: the session ends, because the peer did not "
        "read.",
        FAILED: "The attempt failed: refused, no answer, no address.",
        STOPPED: "This node stops or crashes.",
    },
    unmet=NOT_SIMULATED,
)
