"""The messages that two drivers exchange on a connection, in addition to those of the machines.

    the node that connects        the node that accepts
    Hello  ─────────────────────▶           the sender's name, and that of the wanted node
           ◀─────────────────────  Hello    or Refused, with the reason
    Beat, then messages ────────▶           with the Beat, the session is up for the acceptor, too

Either end may send Refused in place of a frame. It contains the reason; then this end closes the
connection. An end that has nothing to send sends Beats, so that its peer can distinguish an idle
session from a lost one, even if a device in between keeps the TCP connection alive. In a graceful
close, Bye is the last frame in each direction.

`life` identifies one run of a node, and `attempt` counts the connections that this run has tried.
Together they distinguish a new session from an attempt that the peer gave up long ago, and whose
Hello arrives late.

The tags of these messages start with a slash, unlike the tags of protocols ("chain/Forward"), so
the driver's frames cannot be confused with those of a machine.
"""

from hmac import compare_digest
from typing import Final

from surecast.core.types import Message
from surecast.core.wire import Codec, Limits

__all__ = ["BEAT", "BYE", "HELLO_LIMITS", "MARK_SIZE", "VERSION", "Hello", "Refused", "encode"]

VERSION: Final = 2  # the version of these messages and their order; frames have a separate version

NAME_LEN_MAX: Final = 255


class Hello(Message, tag="/hello"):
    """The first message of each end: who it is, and what it supports."""

    version: int
    name: str
    to: str  # the receiver's name; "": the sender knows only its address
    life: bytes  # random bytes that identify this run of the node
    attempt: int  # the number of connections tried so far, this one included
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
    why: str


class Beat(Message, tag="/beat"):
    pass


class Bye(Message, tag="/bye."):  # the dot makes it as long as a Beat
    pass


# Bounds the memory that a connection can use before its Hello has been checked.
HELLO_LIMITS: Final = Limits(frame_bytes_max=8192, control_bytes_max=2048, attachments_max=0)
CODEC: Final = Codec([Hello, Refused, Beat, Bye], HELLO_LIMITS)


def encode(message: Message) -> bytes:
    return b"".join(CODEC.encode(message))


# Received frames are compared with these two as bytes, so they need not be decoded. A frame of
# another length costs only a comparison of the lengths.
BEAT: Final = encode(Beat())
BYE: Final = encode(Bye())
MARK_SIZE: Final = len(BEAT)
assert len(BYE) == MARK_SIZE
