"""The interface of a layer that keeps replicated logs: the commands it takes, the events it emits.

`protocols.chain` implements it: the replicas of a region form a chain from a *head*, which appends,
to a *tail*. Positions that all replicas have stored are *committed*. The number of a configuration
(the members and their order) is the *epoch*. The layer above (the stream service) uses only these
types, so the two protocols never import each other. R1 to R10 are rules of the pages in
docs/protocols.
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

    Answered by Submitted or Refused, which repeat `token`. If the layer above sets `refuse`, a new
    batch is refused for that reason. A retry of a batch that was accepted before is answered with
    its position nevertheless.
    """

    log: LogId
    batch: Batch
    token: Any
    refuse: str = ""  # "": do not refuse


class AppendAt(Input):
    """Append batches that already have positions (assigned by another region)."""

    log: LogId
    batches: tuple[Batch, ...]


class AppendOwn(Input):
    """Append a batch that the head of this chain has made itself."""

    log: LogId
    batch: Batch


class CompactLog(Input):
    """Rewrite [lo, hi) of the log, which must be committed, without void positions. Answered by
    Rewritten."""

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
    """Merge what another region knows: which batches of which publishers are in `log` below
    `end`."""

    log: LogId
    end: int
    data: bytes  # as in PublishersAre; empty: the other region knows nothing
    # Treat publishers that were created before this time and are not in `data` as expired.
    horizon_ns: int = 0
    # Treat publishers in `data` as expired, too: `data` may lack some of their accepted batches.
    known_too: bool = False


class Refound(Input):
    """The operator decides that no member of the chain will return: found the chain again, with
    this replica as the only member.

    Data that only the other members had is lost, so the operator should choose the replica with the
    longest log. If this replica is the only member and its disk has lost its newest changes, it
    continues with what it has.
    """


class Recovered(Input):
    """The layer above has recovered from other regions what this chain had lost (R8); the chain is
    clean again."""


class RolledBack(Input):
    """The disk is an older copy of itself: other nodes have already seen it with `serial`, a higher
    serial number (see Counted) than it has now."""

    disk: bytes
    serial: int


class Overtaken(Input):
    """Other nodes know `epoch` of this chain, which is later than the epoch of this replica. If the
    configuration service does not know it either, both have lost it."""

    epoch: int


class Abandon(Input):
    """Truncate `log` at `end`, even below the committed position. Answered by Truncated.

    Only the head's layer above may give this command, when another history of the same positions
    (from another region) is kept instead.
    """

    log: LogId
    end: int


# ------------------------------------------------------------ events for the layer above


class Submitted(msgspec.Struct, gc=False):
    """The batch of a Submit is committed."""

    token: Any  # of the Submit
    seq: int  # position of the batch's first event


class Refused(msgspec.Struct, gc=False):
    """A Submit was refused. `why` is one of these, or the `refuse` of the Submit:

    not-head: this replica is not the head, or is no longer the head.
    too-few-replicas: the chain has fewer members than an acknowledgement promises.
    busy: too many bytes wait for the disk.
    out-of-order: an earlier batch of the publisher is missing.
    mismatch: another batch of the publisher has the same number.
    expired: the publisher was idle for so long that its earlier batches are no longer known.
    """

    token: Any  # of the Submit
    why: str
    expected: int = 0  # with out-of-order: the pub_no that must come next


class Appended(msgspec.Struct, gc=False):
    """`end` is the first position of the log that is not appended here yet."""

    log: LogId
    end: int


class Committed(msgspec.Struct, gc=False):
    """`end` is the first position of the log that is not committed."""

    log: LogId
    end: int


class PublishersAre(msgspec.Struct, gc=False):
    """The answer to AskPublishers."""

    token: Any  # of the AskPublishers
    log: LogId
    end: int  # at most the requested end: only committed positions count
    data: bytes  # for TakePublishers; this layer defines the format


class Rewritten(msgspec.Struct, gc=False):
    """[lo, hi) was compacted, or (`done` false) could not be compacted and is unchanged."""

    log: LogId
    lo: int
    hi: int
    done: bool


class Counted(msgspec.Struct, gc=False):
    """The serial number that is saved on this disk. It rises with every start and while logs grow.
    Other nodes remember it. If the disk later starts with a number that is not higher than theirs,
    it is an older copy of itself."""

    disk: bytes  # the identity of the disk; a new, empty disk gets another one
    life: bytes  # random bytes that identify this run of the process
    start: int  # the serial number at this start
    serial: int


class Mended(msgspec.Struct, gc=False):
    """Some or all holes of a log (positions that cannot be read) were filled."""

    log: LogId


class StoreFull(msgspec.Struct, gc=False):
    """The disk is full: a write failed. Layers above should free what they can."""


class Truncated(msgspec.Struct, gc=False):
    """The log was truncated here: it ends at `end`."""

    log: LogId
    end: int


class RoleChanged(msgspec.Struct, gc=False):
    """This replica has a new configuration of the chain, or another part in it."""

    epoch: int
    members: tuple[str, ...]  # names of the replicas, from head to tail
    head: bool  # this replica is the head
    tail: bool  # it serves as the tail (a new tail does so once the old tail has handed over)
    clean: bool  # false: the chain has lost events and must recover them from other regions (R8)
    lost_epoch: int = 0  # if not clean: the first epoch after the loss
    # If not clean: this disk has lost something, but still has a part of the logs, maybe without
    # their ends.
    distrusted: bool = False
