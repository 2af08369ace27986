"""What two drivers say to each other on a connection, below the machines.

    connects                      accepts
    Hello  ─────────────────────▶           who I am, whom I want to reach
           ◀─────────────────────  Hello    (or Refused: why)
    Beat, then messages ────────▶           now the session is up here, too

Any end may send Refused in place of a frame: it says why and closes. A Beat fills a silence, so
that a peer that is gone is told from one that has nothing to say, even when something in between
keeps the TCP connection alive. Bye is the last frame of a graceful close, each way.

`life` names one run of a node, `attempt` counts the connections it tried. Together they tell a
session that the peer has begun since from one it gave up long ago, whose Hello is only late.

The tags start with a slash, which the tags of protocols ("chain/Forward") do not: the driver's
frames cannot be mistaken for a machine's.
"""

from hmac import compare_digest
from typing import Final

from surecast.core.types import Message
from surecast.core.wire import Codec, Limits

__all__ = ["BEAT", "BYE", "HELLO_LIMITS", "MARK_SIZE", "VERSION", "Hello", "Refused", "encode"]

VERSION: Final = 2  # of what is said here and of when; the frames have a version of their own

NAME_LEN_MAX: Final = 255


class Hello(Message, tag="/hello"):
    version: int
    name: str
    to: str  # whom the sender wants to reach, or has been reached by; "": whoever listens here
    life: bytes  # random: this run of the node
    attempt: int  # connections tried so far, this one included
    region: str = ""
    epoch: int = 0
    role: str = ""
    credential: str = ""
    speaks: tuple[str, ...] = ()  # the protocols whose messages it takes; empty: does not say

    def problem(self, ours: "Hello") -> str | None:
        """Why a node that would say `ours` cannot speak with whoever said this."""
        if self.version != ours.version:
            return f"protocol version {self.version}, this node speaks {ours.version}"
        if not compare_digest(self.credential.encode(), ours.credential.encode()):
            return "wrong token"
        if not 0 < len(self.name.encode()) <= NAME_LEN_MAX:
            return f"a name of {len(self.name.encode())} bytes: allowed is 1 to {NAME_LEN_MAX}"
        if self.to and self.to != ours.name:  # who knows only an address asks for anybody
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


# Nobody who has not said Hello may make us hold more than this.
HELLO_LIMITS: Final = Limits(frame_bytes_max=8192, control_bytes_max=2048, attachments_max=0)
CODEC: Final = Codec([Hello, Refused, Beat, Bye], HELLO_LIMITS)


def encode(message: Message) -> bytes:
    return b"".join(CODEC.encode(message))


# These two are compared as bytes, which costs the frames of machines one comparison of lengths.
BEAT: Final = encode(Beat())
BYE: Final = encode(Bye())
MARK_SIZE: Final = len(BEAT)
assert len(BYE) == MARK_SIZE
