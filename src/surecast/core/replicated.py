"""The interface of a layer that keeps replicated logs: commands down, events up.

`protocols.chain` implements it. The layer above (the stream service) uses only these types, so the
two protocols never import each other.
"""

from typing import Any

import msgspec

from surecast.core.types import Batch, Input, LogId

__all__ = [
    "Abandon",
    "AppendAt",
    "AppendOwn",
    "Appended",
    "AskPublishers",
    "Committed",
    "CompactLog",
    "Counted",
    "Mended",
    "Overtaken",
    "PublishersAre",
    "Recovered",
    "Refound",
    "Refused",
    "Rewritten",
    "RoleChanged",
    "RolledBack",
    "StoreFull",
    "Submit",
    "Submitted",
    "TakePublishers",
    "Truncated",
]


# ------------------------------------------------------------ commands from the layer above


class Submit(Input):
    """Append a publisher's batch exactly once; only the head accepts.

    `refuse`, if not empty, is the layer above's reason to refuse a new batch. A retry of a batch
    that was accepted before is still answered with its position.
    """

    log: LogId
    batch: Batch
    token: Any
    refuse: str = ""


class AppendAt(Input):
    """Append batches that already have positions (assigned by another region)."""

    log: LogId
    batches: tuple[Batch, ...]


class AppendOwn(Input):
    """Append a batch that this head has made itself."""

    log: LogId
    batch: Batch


class CompactLog(Input):
    """Rewrite [lo, hi) of the log, which is committed, without void positions; then Rewritten."""

    log: LogId
    lo: int
    hi: int
    voids: tuple[bytes, ...]  # as in `core.types.Compact`
    rows_max: int


class AskPublishers(Input):
    """Which batches of which publishers are in `log` below `end`? Answered by PublishersAre."""

    log: LogId
    end: int
    token: Any


class TakePublishers(Input):
    """Which batches of which publishers are in `log` below `end`, according to another region."""

    log: LogId
    end: int
    data: bytes
    # Publishers created before this time and absent from `data` are treated as expired.
    horizon_ns: int = 0
    known_too: bool = False  # so are those in `data`: they may have had more accepted since


class Refound(Input):
    """The operator decides that no member of the chain will return: continue from this replica.

    What only the others had is lost. Choose the replica with the longest log. A single replica
    whose disk has lost its newest changes continues with what it has.
    """


class Recovered(Input):
    """The layer above has recovered from other regions what an unclean chain had lost (R8)."""


class RolledBack(Input):
    """Other nodes have seen a higher serial number, `serial`, of this disk: it is an older copy."""

    disk: bytes
    serial: int


class Overtaken(Input):
    """Other nodes know a later epoch of this chain: the configuration service has lost it, and so
    has this replica."""

    epoch: int


class Abandon(Input):
    """Truncate `log` at `end`, even below the committed position; then Truncated.

    Only the head may ask for it, when another history of the same positions is kept instead.
    """

    log: LogId
    end: int


# ------------------------------------------------------------ events for the layer above


class Submitted(msgspec.Struct, gc=False):
    token: Any
    seq: int  # position of the batch's first event


class Refused(msgspec.Struct, gc=False):
    """why: not-head, too-few-replicas, busy, out-of-order, mismatch, expired, or Submit's
    `refuse`."""

    token: Any
    why: str
    expected: int = 0  # with out-of-order: the pub_no that must come next


class Appended(msgspec.Struct, gc=False):
    log: LogId
    end: int


class Committed(msgspec.Struct, gc=False):
    log: LogId
    end: int


class PublishersAre(msgspec.Struct, gc=False):
    token: Any
    log: LogId
    end: int
    data: bytes


class Rewritten(msgspec.Struct, gc=False):
    """[lo, hi) was compacted, or (`done` false) could not be compacted and is unchanged."""

    log: LogId
    lo: int
    hi: int
    done: bool


class Counted(msgspec.Struct, gc=False):
    """The serial number saved on this disk. It rises with every start and while logs grow."""

    disk: bytes  # the identity of the disk; a new, empty disk gets another one
    life: bytes  # random, of this start
    start: int  # the serial number at this start
    serial: int


class Mended(msgspec.Struct, gc=False):
    """Some or all holes of a log were filled."""

    log: LogId


class StoreFull(msgspec.Struct, gc=False):
    """The disk is full: a write failed. Layers above should free what they can."""


class Truncated(msgspec.Struct, gc=False):
    log: LogId
    end: int


class RoleChanged(msgspec.Struct, gc=False):
    epoch: int
    members: tuple[str, ...]
    head: bool
    tail: bool  # serving as the tail: a new tail waits for the old one's token
    clean: bool  # false: this chain lost its logs and must rebuild them from its peers (R8)
    lost_epoch: int = 0  # if not clean: the first epoch after the loss
    distrusted: bool = False  # if not clean: part of the logs is here, their ends may be missing
