"""Messages between replicas, and between replicas and the configuration service."""

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

    `serial` is the serial number on the sender's disk, which rises with every start and while logs
    grow; `start` is the number with which the sender started. The service keeps `serial`. If the
    replica later starts with a number at or below it, its disk is an older copy of itself.
    """

    chain: str
    member: Member
    life: bytes = b""  # random, drawn at each start; empty: the sender has no serial number
    start: int = 0
    serial: int = 0
    # The newest configuration that the sender knows. A service that has lost it takes it from here.
    epoch: int = 0
    members: tuple[Member, ...] = ()
    lineage: int = 0


class Propose(ChainMessage):
    """Replace configuration `epoch` by `members`; ignored if the epoch is not the current one."""

    chain: str
    epoch: int
    members: tuple[Member, ...]
    # Found the chain again: these members need not be members of the last epoch. Used when an
    # operator has decided that those will not return, and to make the others discard their logs.
    force: bool = False


class Configuration(ChainMessage):
    """The members of `chain`, head first. Epoch 0: the chain does not exist yet."""

    chain: str
    epoch: int
    members: tuple[Member, ...]
    # Rises when the chain is founded again by force. Logs of older lineages are discarded.
    lineage: int = 0
    behind: int = 0  # if not 0: the receiver's disk is an older copy, it has had this serial number


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
    ends: dict[bytes, int]  # of what is on disk, by log
    committed: dict[bytes, int]


class SyncAck(ChainMessage):
    """The predecessor has received the Sync, and sends what is missing."""

    epoch: int


class Publishers(ChainMessage):
    """The publishers' state (`dedup.py`) of `log` at position `end`.

    `data` is the part from offset `at` on, of `total` bytes. Parts are sent in order.
    """

    epoch: int
    log: LogId
    end: int
    data: bytes
    at: int = 0
    total: int = 0


class PublishersKept(ChainMessage):
    """The sender has the state that it received with `Publishers` on disk."""

    epoch: int
    log: LogId


class Wanted(ChainMessage):
    """The sender is the only member of its chain and cannot read [lo, hi) of `log`. It requests
    this range from a learner."""

    epoch: int
    log: LogId
    lo: int
    hi: int


class Patch(ChainMessage):
    """The answer to Wanted: the first part of the range, committed positions only."""

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
    """The receiver used an old epoch. This is the newer configuration that the sender knows."""

    epoch: int
    members: tuple[Member, ...]
    lineage: int = 0
