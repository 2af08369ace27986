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
    """The batches of one append, at positions [lo, hi), that the disk has not confirmed yet."""

    lo: int
    hi: int
    nbytes: int
    batches: tuple[Batch, ...]


@dataclass(slots=True)
class LogState:
    """One log at this replica. `committed` <= `stored` <= `end`; each is the first position beyond
    the range it describes."""

    dedup: Dedup  # the *publishers' state*: which batches were accepted from each publisher
    end: int = 1  # appended here
    stored: int = 1  # on disk here
    committed: int = 1  # on disk at every member of the chain, as far as this replica knows
    known: int = 1  # the committed end that the predecessor (for a learner: the tail) reported
    time_ns: int = 0  # of the newest event; never decreases (docs/protocols/streams.md, R10)
    pending: deque[Pending] = field(default_factory=deque)
    attempt: int = 0  # rises with each retry of appends, to ignore completions of earlier attempts
    failed: bool = False  # a write failed; the pending appends wait for the next attempt
    # The parts received so far of the publishers' state (message Publishers).
    parts: Parts = field(default_factory=Parts)
    publishers_kept: int = 1  # the publishers' state on disk covers the positions below this one
    # Rises with each write of the publishers' state, to ignore completions of earlier writes.
    saves: int = 0
    # A compaction that waits until the publishers' state may be written again
    # (`ChainConfig.snapshot_ns_per_byte`); None: none waits.
    compacting: CompactLog | None = None
    # When the publishers' state was last written for a compaction; at first, long ago.
    publishers_kept_ns: int = -1 << 62
    publishers_kept_bytes: int = 0  # the size of that state
    # At the head: submissions that are not answered yet, by token: (end, first position) of the
    # batch. Answered once the committed end reaches the batch's end.
    waiting: dict[Any, tuple[int, int]] = field(default_factory=dict)


@dataclass(slots=True)
class Follower:
    """A replica that this one sends its logs to: the successor or, at the tail, a learner."""

    peer: Peer
    sent: dict[LogId, int]  # the end of what was sent
    acked: dict[LogId, int]  # the end of what it has confirmed as stored
    # The log's end for which the publishers' state was sent; absent: it must be sent (again).
    publishers_sent: dict[LogId, int] = field(default_factory=dict)
    # Whether the follower has confirmed that it has stored the publishers' state.
    publishers_kept: dict[LogId, bool] = field(default_factory=dict)
    committed: dict[LogId, int] = field(default_factory=dict)  # as last sent to a learner
    # The token of the Read whose batches are sent next; None: there is none.
    reading: tuple[str, LogId, int, int] | None = None
    heard_ns: int = 0  # when a learner was last heard; used only for learners
