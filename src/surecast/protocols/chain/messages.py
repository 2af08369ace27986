"""Messages between replicas, and between replicas and the configuration service.

Every message between replicas has the `epoch` (number of the configuration) that its sender uses. A
receiver with another epoch does not handle it (`Roles._current`). Names of fields are the same in
all messages: `log` is a log's id, `upto`, `end` and `committed` are the first position beyond what
they describe.
"""

import msgspec

from surecast.core.types import Batch, LogId, Message, tagged

__all__ = [
    "Ack",
    "Beat",
    "Configuration",
    "Forward",
    "Member",
    "Patch",
    "Propose",
    "Publishers",
    "PublishersKept",
    "Stale",
    "Sync",
    "SyncAck",
    "TailToken",
    "Wanted",
    "Watch",
]


class ChainMessage(Message, tag=tagged("chain")):
    """The base of the messages below: each is tagged "chain/" and its class name."""


class Member(msgspec.Struct, gc=False, array_like=True, frozen=True):
    """A replica, identified by its name and its disk. A replica whose disk was wiped is a different
    member."""

    name: str
    disk: bytes


# ------------------------------------------------------------ with the configuration service


class Watch(ChainMessage):
    """Request the configuration of `chain`, now and whenever it changes.

    The service uses the serial number to detect a disk that is an older copy of itself. A replica
    saves this number on its disk and increases it at every start and while logs grow. The service
    keeps the last `serial` of each disk. If the disk is started again (another `life`) with a
    `start` at or below the kept number, its newest changes are missing.
    """

    chain: str
    member: Member
    # Random bytes that identify this run of the sender's process, drawn at each start. Empty: the
    # sender has no serial number.
    life: bytes = b""
    start: int = 0  # the serial number with which this run began
    serial: int = 0  # the serial number that is on the disk now
    # The newest configuration that the sender knows. A service that has lost it takes it from here.
    epoch: int = 0
    members: tuple[Member, ...] = ()
    lineage: int = 0  # see `Configuration`


class Propose(ChainMessage):
    """Make `members` the next configuration. If `epoch` is not the number of the current one, the
    service changes nothing and answers with the current configuration."""

    chain: str
    epoch: int
    members: tuple[Member, ...]
    # Accept `members` even if none of them is in the current configuration, and start a new lineage
    # (see `Configuration`). Used when an operator has decided that the current members will not
    # return, and to make all other replicas discard their logs.
    force: bool = False


class Configuration(ChainMessage):
    """The members of `chain`, head first. Epoch 0: the chain does not exist yet."""

    chain: str
    epoch: int
    members: tuple[Member, ...]
    # How many proposals with `force` were accepted. A replica whose logs are of an older lineage
    # discards them.
    lineage: int = 0
    # Not 0: the receiver's disk is an older copy of itself, because the service has already seen it
    # with this serial number.
    behind: int = 0


# ------------------------------------------------------------ between replicas


class Forward(ChainMessage):
    """Batches that the sender has stored. `committed` is the end of what the sender knows to be
    committed."""

    epoch: int
    log: LogId
    batches: tuple[Batch, ...]
    committed: int


class Ack(ChainMessage):
    """Every replica from the sender to the tail has `log` below `upto` on disk."""

    epoch: int
    log: LogId
    upto: int


class Sync(ChainMessage):
    """A successor reports the ends of its logs; the predecessor sends what is missing. A *learner*,
    a replica that is not a member yet, sends this to the tail."""

    epoch: int
    member: Member
    ends: dict[bytes, int]  # log → end of what is on its disk and can be read without a gap
    committed: dict[bytes, int]  # log → its committed end


class SyncAck(ChainMessage):
    """The answer to Sync: the predecessor (for a learner: the tail) sends what is missing."""

    epoch: int


class Publishers(ChainMessage):
    """A part of the publishers' state (`dedup.py`) of `log` below `end`.

    The state is sent as bytes (`Dedup.snapshot`), in one or several parts, in order. `data` is the
    part that begins at offset `at`; `total` is the size of the whole state (0: `data` is all of
    it).
    """

    epoch: int
    log: LogId
    end: int
    data: bytes
    at: int = 0
    total: int = 0


class PublishersKept(ChainMessage):
    """The publishers' state that the sender received with Publishers is on its disk."""

    epoch: int
    log: LogId


class Wanted(ChainMessage):
    """A request for [lo, hi) of `log`, from the only member of a chain to a learner. The member
    cannot read these positions on its own disk (a hole). Answered by Patch, or not at all."""

    epoch: int
    log: LogId
    lo: int
    hi: int


class Patch(ChainMessage):
    """The answer to Wanted: batches from the start of the range on, committed positions only. They
    may cover only the first part of the range."""

    epoch: int
    log: LogId
    batches: tuple[Batch, ...]


class TailToken(ChainMessage):
    """The old tail has stopped serving; the receiver is the tail now."""

    epoch: int


class Beat(ChainMessage):
    """A heartbeat between neighbours in the chain."""

    epoch: int


class Stale(ChainMessage):
    """The answer to a message with an old epoch: the newer configuration, which the sender uses."""

    epoch: int
    members: tuple[Member, ...]
    lineage: int = 0
