"""The interface of a layer that keeps replicated logs: commands down, events up.

`protocols.chain` implements it; whatever sits above (the stream service) speaks only this
vocabulary, so that the two never import each other.
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

    `refuse` says why the layer above would not take it. That counts only if the batch is new: a
    retry of what was taken before is answered as before, whatever has changed since.
    """

    log: LogId
    batch: Batch
    token: Any
    refuse: str = ""


class AppendAt(Input):
    """Append batches that have their positions already (another region gave them)."""

    log: LogId
    batches: tuple[Batch, ...]


class AppendOwn(Input):
    """Append a batch of the head's own making."""

    log: LogId
    batch: Batch


class CompactLog(Input):
    """Leave the void positions out of [lo, hi) of the log, all of it committed; then Rewritten."""

    log: LogId
    lo: int
    hi: int
    voids: tuple[bytes, ...]  # as of `core.types.Compact`
    rows_max: int


class AskPublishers(Input):
    """What have publishers had accepted in `log` below `end`? Answered by PublishersAre."""

    log: LogId
    end: int
    token: Any


class TakePublishers(Input):
    """What publishers had accepted in `log` below `end`, as another region's copy knows it."""

    log: LogId
    end: int
    data: bytes
    horizon_ns: int = 0  # publishers that were born by then and are unknown count as forgotten
    known_too: bool = False  # known ones do so, too: they may have had more accepted since


class Refound(Input):
    """The operator's word that no member of the chain will come back: go on from this replica.

    What only the others had is lost. Choose the replica with the longest log. A lone replica whose
    disk has lost its newest changes goes on with what it has.
    """


class Recovered(Input):
    """The layer above has rebuilt what an unclean replica had lost (R8)."""


class RolledBack(Input):
    """Others have seen this disk count up to `serial`: what it holds is an older copy."""

    disk: bytes
    serial: int


class Overtaken(Input):
    """Others know a later epoch of this chain: its service has forgotten it, with us."""

    epoch: int


class Abandon(Input):
    """Take back the positions of `log` from `end` on, committed or not; then Truncated.

    Only the head may ask for it, when another history of the same positions is to be kept.
    """

    log: LogId
    end: int


# ------------------------------------------------------------ events for the layer above


class Submitted(msgspec.Struct, gc=False):
    token: Any
    seq: int  # position of the batch's first event


class Refused(msgspec.Struct, gc=False):
    """why: not-head, too-few-replicas, busy, out-of-order, mismatch, expired, or `refuse`."""

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
    """[lo, hi) was compacted, or (`done` false) could not be and is as it was."""

    log: LogId
    lo: int
    hi: int
    done: bool


class Counted(msgspec.Struct, gc=False):
    """What this disk has counted up to, on disk. It rises with every start and while logs grow."""

    disk: bytes  # its identity: an empty disk has another one
    life: bytes  # random, of this start
    start: int  # the count when this life began
    serial: int


class Mended(msgspec.Struct, gc=False):
    """Some or all holes of a log were filled."""

    log: LogId


class StoreFull(msgspec.Struct, gc=False):
    """Something could not be written for want of room: whatever can be let go should be."""


class Truncated(msgspec.Struct, gc=False):
    log: LogId
    end: int


class RoleChanged(msgspec.Struct, gc=False):
    epoch: int
    members: tuple[str, ...]
    head: bool
    tail: bool  # serving as the tail: a new tail waits for the old one's token
    clean: bool  # false: this chain lost its logs and must rebuild them from its peers (R8)
    lost_epoch: int = 0  # ... in which case this is the first epoch after the loss
    distrusted: bool = False  # ... and part of them is still here, of which the end may be missing
