"""What replicas and the configuration service send each other."""

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
    """A replica together with the disk it keeps its logs on: a wiped node is another member."""

    name: str
    disk: bytes


# ------------------------------------------------------------ with the configuration service


class Watch(ChainMessage):
    """Tell me the configuration of `chain`, now and whenever it changes.

    `serial` is what the sender's disk has counted up to, `start` what it was when this life began.
    The service keeps it: a later life that starts at or below it runs on an older copy of the disk.
    """

    chain: str
    member: Member
    life: bytes = b""  # random; empty: the sender does not count
    start: int = 0
    serial: int = 0
    # The newest configuration that the sender knows: a service that has lost it learns it again.
    epoch: int = 0
    members: tuple[Member, ...] = ()
    lineage: int = 0


class Propose(ChainMessage):
    """Replace configuration `epoch` by `members`; lost if the epoch has moved on."""

    chain: str
    epoch: int
    members: tuple[Member, ...]
    force: bool = False  # by an operator, who knows that the last members are gone


class Configuration(ChainMessage):
    """The members of `chain`, head first. Epoch 0: not founded yet."""

    chain: str
    epoch: int
    members: tuple[Member, ...]
    lineage: int = 0  # rises when the chain is founded anew: older logs do not count
    behind: int = 0  # the receiver's disk had once counted up to here: what it holds now is older


# ------------------------------------------------------------ between replicas


class Forward(ChainMessage):
    """Positions the sender has stored. `committed` is what it knows to be everywhere."""

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
    """A successor or learner says what it holds; the predecessor sends what is missing."""

    epoch: int
    member: Member
    ends: dict[bytes, int]  # on disk
    committed: dict[bytes, int]


class SyncAck(ChainMessage):
    epoch: int


class Publishers(ChainMessage):
    """What publishers had accepted in `log` below `end`: the dedup state at that position.

    `data` is a part, from `at` on, of `total` bytes; parts come in order.
    """

    epoch: int
    log: LogId
    end: int
    data: bytes
    at: int = 0
    total: int = 0


class PublishersKept(ChainMessage):
    """The receiver of `Publishers` has it on disk."""

    epoch: int
    log: LogId


class Wanted(ChainMessage):
    """The sender, the only member of its chain, cannot read [lo, hi) of `log`: send it."""

    epoch: int
    log: LogId
    lo: int
    hi: int


class Patch(ChainMessage):
    """The answer to Wanted: a part of it, from its beginning on, all of it committed."""

    epoch: int
    log: LogId
    batches: tuple[Batch, ...]


class TailToken(ChainMessage):
    """The old tail has stopped serving; the receiver is the tail now."""

    epoch: int


class Beat(ChainMessage):
    epoch: int


class Stale(ChainMessage):
    """Your epoch is over; this is the configuration I know."""

    epoch: int
    members: tuple[Member, ...]
    lineage: int = 0
