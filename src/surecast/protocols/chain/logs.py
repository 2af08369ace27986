"""The state that a replica keeps for each of its logs, and for each replica that it sends to."""

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
    """Batches passed to the disk and not confirmed yet."""

    lo: int
    hi: int
    nbytes: int
    batches: tuple[Batch, ...]


@dataclass(slots=True)
class LogState:
    """One log at this replica. `committed` <= `stored` <= `end`; each is the first position beyond
    the range it describes."""

    dedup: Dedup
    end: int = 1  # appended here
    stored: int = 1  # on disk here
    committed: int = 1  # on disk at every replica
    known: int = 1  # the committed end that the predecessor has reported
    time_ns: int = 0  # of the newest event; never decreases (R10)
    pending: deque[Pending] = field(default_factory=deque)
    attempt: int = 0  # rises with each retry of appends, to ignore completions of earlier attempts
    failed: bool = False  # a write failed; the pending appends wait for the next attempt
    parts: Parts = field(default_factory=Parts)  # received parts of a publishers' state
    kept: int = 1  # the publishers' state on disk covers the positions below this one
    saves: int = 0  # how often the publishers' state was written: only the last write counts
    compacting: CompactLog | None = None  # waits until the publishers' state may be written again
    kept_ns: int = -1 << 62  # when the publishers' state was last written for a compaction
    kept_bytes: int = 0  # the size of that state
    # At the head: submissions that are not answered yet, token → (hi, lo) of the batch.
    waiting: dict[Any, tuple[int, int]] = field(default_factory=dict)


@dataclass(slots=True)
class Follower:
    """The successor, or a learner that the tail is bringing up to date."""

    peer: Peer
    sent: dict[LogId, int]  # the end of what was sent
    acked: dict[LogId, int]  # the end of what it has confirmed as stored
    # The position for which the publishers' state was sent, and whether it was confirmed.
    publishers_sent: dict[LogId, int] = field(default_factory=dict)
    publishers_kept: dict[LogId, bool] = field(default_factory=dict)
    committed: dict[LogId, int] = field(default_factory=dict)  # as last sent to a learner
    heard_ns: int = 0
