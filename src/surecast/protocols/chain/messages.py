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
    """A replica, identified by its name and its disk: after its disk is wiped it is another
    member."""

    name: str
    disk: bytes


# ------------------------------------------------------------ with the configuration service


class Watch(ChainMessage):
    """Request the configuration of `chain`, now and whenever it changes.

    `serial` is the serial number on the sender's disk, `start` what it was when the sender started.
    The service keeps `serial`: if the replica later starts with a number at or below it, its disk
    is an older copy.
    """

    chain: str
    member: Member
    life: bytes = b""  # random, of this start; empty: the sender has no serial number
    start: int = 0
    serial: int = 0
    # The newest configuration that the sender knows: a service that has lost it takes it from here.
    epoch: int = 0
    members: tuple[Member, ...] = ()
    lineage: int = 0


class Propose(ChainMessage):
    """Replace configuration `epoch` by `members`; ignored if the epoch is not the current one."""

    chain: str
    epoch: int
    members: tuple[Member, ...]
    force: bool = False  # by an operator's decision: the last members will not return


class Configuration(ChainMessage):
    """The members of `chain`, head first. Epoch 0: the chain does not exist yet."""

    chain: str
    epoch: int
    members: tuple[Member, ...]
    lineage: int = 0  # rises when the chain is founded again: logs of older lineages are discarded
    behind: int = 0  # if not 0: the receiver's disk once had this serial number, now it is older


# ------------------------------------------------------------ between replicas


class Forward(ChainMessage):
    """Positions that the sender has stored. `committed` is the end of what it knows as
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
    """A successor or learner reports what it holds; the predecessor sends what is missing."""

    epoch: int
    member: Member
    ends: dict[bytes, int]  # on disk
    committed: dict[bytes, int]


class SyncAck(ChainMessage):
    epoch: int


class Publishers(ChainMessage):
    """The publishers' state (`dedup.py`) of `log` at position `end`.

    `data` is a part, from offset `at` on, of `total` bytes; parts come in order.
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
    """The sender, the only member of its chain, cannot read [lo, hi) of `log` and requests it."""

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
    epoch: int


class Stale(ChainMessage):
    """The receiver's epoch is over; this is the configuration that the sender knows."""

    epoch: int
    members: tuple[Member, ...]
    lineage: int = 0
