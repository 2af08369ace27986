"""The state of one log at a replica, and how far a follower's copy has come."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from surecast.core.fragments import Parts
from surecast.core.replicated import CompactLog
from surecast.core.types import Batch, LogId, Peer
from surecast.protocols.chain.dedup import Dedup

__all__ = ["Follower", "LogState", "Pending"]


@dataclass(slots=True)
class Pending:
    """Batches handed to the disk, not yet confirmed."""

    lo: int
    hi: int
    nbytes: int
    batches: tuple[Batch, ...]


@dataclass(slots=True)
class LogState:
    """Positions are half-open ends: `committed <= stored <= end`."""

    dedup: Dedup
    end: int = 1  # appended here
    stored: int = 1  # on disk here
    committed: int = 1  # on disk at every replica
    known: int = 1  # what the predecessor knows to be committed
    time_ns: int = 0  # of the newest event; never decreases (R10)
    pending: deque[Pending] = field(default_factory=deque)
    attempt: int = 0  # rises when appends are tried again, so late answers are told apart
    failed: bool = False  # the disk refused; the pending appends wait for the next attempt
    parts: Parts = field(default_factory=Parts)  # of the publishers' state a predecessor sends
    kept: int = 1  # the publishers' state on disk covers what is below
    saves: int = 0  # how often it was written: only the last one counts
    compacting: CompactLog | None = None  # waits for it to be written again
    kept_ns: int = -1 << 62  # when it was last written for a compaction ...
    kept_bytes: int = 0  # ... and how large it was
    # At the head: submissions not yet final, token → (hi, lo).
    waiting: dict[Any, tuple[int, int]] = field(default_factory=dict)


@dataclass(slots=True)
class Follower:
    """The successor, or a learner that the tail is bringing up to date."""

    peer: Peer
    sent: dict[LogId, int]
    acked: dict[LogId, int]
    told: dict[LogId, int] = field(default_factory=dict)  # publishers' state sent as of
    kept: dict[LogId, bool] = field(default_factory=dict)  # ... and confirmed
    committed: dict[LogId, int] = field(default_factory=dict)  # as a learner was last told
    heard_ns: int = 0
