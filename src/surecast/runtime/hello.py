"""The messages that two drivers exchange on a connection, below the machines.

    connects                      accepts
    Hello  ─────────────────────▶           my name, the name of the node I want to reach
           ◀─────────────────────  Hello    (or Refused, with the reason)
    Beat, then messages ────────▶           now the session is up on this side, too

Either end may send Refused in place of a frame; it states the reason, then the end closes. An end
that has nothing to send sends Beats. This distinguishes an idle peer from a lost one, even if a
device in between keeps the TCP connection alive. Bye is the last frame of a graceful close, in each
direction.

`life` identifies one run of a node, `attempt` counts the connections it tried. Together they
distinguish a new session of a peer from one that it gave up long ago and whose Hello arrives late.

The tags start with a slash, unlike the tags of protocols ("chain/Forward"), so the driver's frames
cannot be confused with a machine's.
"""

from hmac import compare_digest
from typing import Final

from surecast.core.types import Message
from surecast.core.wire import Codec, Limits

__all__ = ["BEAT", "BYE", "HELLO_LIMITS", "MARK_SIZE", "VERSION", "Hello", "Refused", "encode"]

VERSION: Final = 2  # of these messages and their order; the frames have a version of their own

NAME_LEN_MAX: Final = 255


class Hello(Message, tag="/hello"):
    version: int
    name: str
    to: str  # the receiver's name; "": the sender knows only the address
    life: bytes  # random: this run of the node
    attempt: int  # connections tried so far, this one included
    region: str = ""
    epoch: int = 0
    role: str = ""
    credential: str = ""
    speaks: tuple[str, ...] = ()  # the protocols whose messages it accepts; empty: not stated

    def problem(self, ours: "Hello") -> str | None:
        """Why a node whose own Hello is `ours` refuses this one; None: it accepts."""
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


# Bounds what a connection can make us hold before its Hello.
HELLO_LIMITS: Final = Limits(frame_bytes_max=8192, control_bytes_max=2048, attachments_max=0)
CODEC: Final = Codec([Hello, Refused, Beat, Bye], HELLO_LIMITS)


def encode(message: Message) -> bytes:
    return b"".join(CODEC.encode(message))


# These two are compared as bytes: other frames then cost only a comparison of lengths.
BEAT: Final = encode(Beat())
BYE: Final = encode(Bye())
MARK_SIZE: Final = len(BEAT)
assert len(BYE) == MARK_SIZE
