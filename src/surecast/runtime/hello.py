"""The messages that two nodes exchange to open, keep and close a session.

    the node that connects        the node that accepts
    Hello  ─────────────────────▶           its own name, and the name of the node it wants
           ◀─────────────────────  Hello    or Refused, with the reason
    Beat, then messages ────────▶           the Beat makes the session up for the acceptor, too

Either node may send Refused in place of any frame. It contains the reason; then the sender closes
the connection. A node that has nothing else to send sends Beats, so that its peer can distinguish
an idle session from a lost one, even if a device in between keeps the TCP connection alive. In a
graceful close, Bye is the last frame in each direction.

`life` identifies one run of a node, and `attempt` counts the connections that this run has tried to
open. Together they distinguish a new session from an attempt that the peer gave up long ago, and
whose Hello arrives late.

The messages of state machines travel on the same connection. Their tags begin with the name of a
protocol ("chain/Forward"). The tags of the messages here begin with a slash, so the two kinds of
messages cannot be confused.
"""

from hmac import compare_digest
from typing import Final

from surecast.core.types import Message
from surecast.core.wire import Codec, Limits

__all__ = ["BEAT", "BYE", "HELLO_LIMITS", "MARK_SIZE", "VERSION", "Hello", "Refused", "encode"]

VERSION: Final = 2  # the version of these messages and their order; frames have a separate version

NAME_LEN_MAX: Final = 255  # bytes of a node's name


class Hello(Message, tag="/hello"):
    """The first message of each node on a connection: who it is, and what it supports."""

    version: int
    name: str  # the sender's name
    to: str  # the receiver's name; "": the sender knows only its address
    life: bytes  # random bytes that identify this run of the sender
    attempt: int  # how many connections this run has tried to open, including this one
    # These three fields are not used by the receiver; they describe the sender to people.
    region: str = ""
    epoch: int = 0
    role: str = ""
    credential: str = ""  # the token
    speaks: tuple[str, ...] = ()  # the protocols whose messages it accepts; empty: not stated

    def problem(self, ours: "Hello") -> str | None:
        """The reason why a node whose own Hello is `ours` refuses this one. None if it accepts."""
        if self.version != ours.version:
            return f"protocol version {self.version}, this node speaks {ours.version}"
        if not compare_digest(self.credential.encode(), ours.credential.encode()):
            return "wrong token"
        if not 0 < len(self.name.encode()) <= NAME_LEN_MAX:
            return f"a name of {len(self.name.encode())} bytes: allowed is 1 to {NAME_LEN_MAX}"
        if self.to and self.to != ours.name:
            return f"this is {ours.name}, not {self.to[:NAME_LEN_MAX]}"
        if self.name == ours.name:
            return f"the name {self.name} is this node's own"
        if ours.to and self.name != ours.to:
            return f"this should be {ours.to}, not {self.name}"
        return None


class Refused(Message, tag="/refused"):
    """The sender closes the connection for this reason."""

    why: str


class Beat(Message, tag="/beat"):
    """The sender is alive."""


class Bye(Message, tag="/bye."):  # the dot makes the tag as long as that of Beat
    """The last frame of the sender in a graceful close."""


# Bounds the memory that a connection can use before its Hello has been checked.
HELLO_LIMITS: Final = Limits(frame_bytes_max=8192, control_bytes_max=2048, attachments_max=0)
CODEC: Final = Codec([Hello, Refused, Beat, Bye], HELLO_LIMITS)


def encode(message: Message) -> bytes:
    return b"".join(CODEC.encode(message))


# The receiver recognises these two frames by their bytes, without decoding them. Both have the same
# size, so the receiver compares only frames of this size.
BEAT: Final = encode(Beat())
BYE: Final = encode(Bye())
MARK_SIZE: Final = len(BEAT)
assert len(BYE) == MARK_SIZE
