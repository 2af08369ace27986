"""The state of one stream at a broker (`Line`), of a broker attached below it (`Below`), and of a
subscription (`Sub`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from surecast.columns.batch import Batch
from surecast.columns.intervals import IntervalSet
from surecast.core.streams import StreamInfo
from surecast.core.types import LogId, Peer
from surecast.protocols.gryphon.messages import Stamps, Table
from surecast.protocols.gryphon.pieces import LogPieces, Pieces

if TYPE_CHECKING:
    from surecast.protocols.gryphon.matching import Matcher

__all__ = [
    "EVERYTHING",
    "LIVE",
    "PAUSED",
    "READING",
    "WAITING",
    "Below",
    "Gap",
    "Line",
    "OwnTable",
    "Sub",
]

EVERYTHING: Final = ""  # the text of the filter that every event passes

# The states of a subscription. Waiting: until it is known where the stream ends. Reading: it reads
# what is missing at the owner, and then continues with what the broker gets. Paused: its session
# takes no more for now.
WAITING, READING, LIVE, PAUSED = "waiting", "reading", "live", "paused"


@dataclass(slots=True, eq=False)
class Sub:
    """A subscription of a client to one stream, at the broker that serves it."""

    peer: Peer
    number: int  # of the Join
    text: str  # its filter
    version: int  # of the broker's table in which this filter was added
    state: str = WAITING
    # All positions below are sent, or need not be sent. 0: from the end of the stream on. While the
    # subscription is live, this is the higher one of `next` and the line's horizon.
    next: int = 0
    told: int = 0  # the subscriber knows that it has everything below
    told_ns: int = 0
    # Reading ends here; the events from here on wait in `queue`.
    join: int = 0
    queue: list[tuple[int, tuple[Batch, ...]]] = field(default_factory=list)  # (end, batches)
    queue_bytes: int = 0
    fetching: int = 0  # the token of the read that is under way
    asked_ns: int = 0


@dataclass(slots=True)
class Below:
    """A broker that is attached to a stream here."""

    peer: Peer
    sent: int = 0  # everything below was sent, or is in the run
    # [run_lo, sent) are final positions that were not sent yet, with their stamps.
    run_lo: int = 0
    run_stamps: Stamps | None = None
    wants: IntervalSet = field(default_factory=IntervalSet)  # requested and unknown so far
    acked: int = 1
    told_ns: int = 0
    at: int = 0  # of its Attach
    begun: bool = False  # it was sent Attached
    # Broker with subscribers → its table: (incarnation, version, filters by id).
    tables: dict[str, tuple[int, int, dict[int, str]]] = field(default_factory=dict)
    stamps: Stamps = ()  # the versions of these tables

    def restamp(self) -> None:
        self.stamps = tuple(
            (name, incarnation, version) for name, (incarnation, version, _) in self.tables.items()
        )


@dataclass(slots=True)
class Gap:
    """A missing range, and when it is requested (again)."""

    lo: int
    hi: int
    size: int  # how many of its positions are missing
    due_ns: int
    asked_ns: int = 0  # 0: the time until the answer is not measured
    tries: int = 0
    asked: IntervalSet = field(default_factory=IntervalSet)  # what was requested last


class OwnTable:
    """The different filters of the subscriptions to a stream at this broker, for the brokers above.

    If there are too many, one filter that passes everything takes their place (rule B13: in one
    version), until there are no subscriptions any more.
    """

    def __init__(
        self, broker: str, incarnation: Callable[[], int], filters_max: int, bytes_max: int
    ) -> None:
        self.broker, self._incarnation = broker, incarnation
        self.filters_max, self.bytes_max = filters_max, bytes_max
        self.nbytes = 0  # of all different filters
        self.repeats = 0  # how often it was sent again since it has changed
        self.version = 0
        self.sent = 0  # the version that the broker above was sent
        self.sent_ns = 0
        self._since: dict[str, int] = {}  # filter → the version in which it was added
        self._uses: dict[str, int] = {}  # filter → number of subscriptions
        self._ids: dict[str, int] = {}
        self._last_id = 0
        self._wide = 0  # the version in which the filter that passes everything was added
        self._added: dict[int, str] = {}  # changes since `sent`
        self._removed: dict[int, None] = {}

    @property
    def is_wide(self) -> bool:
        """Whether one filter stands for all, because there are too many."""
        return self._wide > 0

    def add(self, text: str) -> int:
        """Add a subscription's filter. Returns the version from which on brokers above know it."""
        self._uses[text] = self._uses.get(text, 0) + 1
        if self._wide:
            return self._wide
        if text not in self._since:
            full = len(self._since) >= self.filters_max
            if full or self.nbytes + len(text.encode()) > self.bytes_max:
                return self._widen()
            self.version += 1
            self._put(text)
        return self._since[text]

    def remove(self, text: str) -> None:
        left = self._uses.get(text, 0) - 1
        if left > 0:
            self._uses[text] = left
            return
        self._uses.pop(text, None)
        if not self._uses:
            self._wide = 0
            for other in list(self._since):
                self._take(other)
        elif text in self._since and not self._wide:
            self._take(text)

    def _widen(self) -> int:
        for other in list(self._since):
            self._take(other)
        self.version += 1
        self._put(EVERYTHING)
        self._wide = self.version
        return self.version

    def _put(self, text: str) -> None:
        self._since[text] = self.version
        self.nbytes += len(text.encode())
        self.repeats = 0
        self._last_id += 1
        self._ids[text] = self._last_id
        self._added[self._last_id] = text

    def _take(self, text: str) -> None:
        self.version += 1
        del self._since[text]
        self.nbytes -= len(text.encode())
        self.repeats = 0
        number = self._ids.pop(text)
        if self._added.pop(number, None) is None:
            self._removed[number] = None

    def whole(self, now_ns: int) -> Table:
        self._note_sent(now_ns)
        filters = tuple((number, text) for text, number in self._ids.items())
        return Table(self.broker, self._incarnation(), 0, self.version, filters)

    def changes(self, now_ns: int) -> Table | None:
        """What has changed since it was last sent; None: nothing."""
        if self.sent == self.version:
            return None
        table = Table(
            self.broker, self._incarnation(), self.sent, self.version,
            tuple(self._added.items()), tuple(self._removed),
        )  # fmt: skip
        self._note_sent(now_ns)
        return table

    def _note_sent(self, now_ns: int) -> None:
        self.sent, self.sent_ns = self.version, now_ns
        self._added, self._removed = {}, {}


@dataclass(slots=True)
class Line:
    """One stream at a broker."""

    info: StreamInfo
    known: Pieces | LogPieces
    matcher: Matcher
    table: OwnTable
    top: int = 1  # the end of what is known to exist
    final: int = 1  # all brokers have acknowledged the positions below
    source: Peer = ""  # the broker above that sends the stream; at its owner: none
    asked_ns: int = 0  # when Attach was sent to it
    attached: bool = False  # it has answered, or this is a replica of the owner
    below: dict[Peer, Below] = field(default_factory=dict)
    # Ranges that were requested from above, and until when they are not requested again.
    curious: list[tuple[int, int, int]] = field(default_factory=list)  # (until_ns, lo, hi)
    acked: int = 1  # the end of the last Ack
    used_ns: int = 0  # when there was last a subscription or a broker below
    # Of a broker with subscribers: everything below the horizon was passed to them (the doubt
    # horizon of the paper). 0: not known yet.
    horizon: int = 0
    gaps: list[Gap] = field(default_factory=list)
    subs: dict[Peer, Sub] = field(default_factory=dict)
    seen: int = 0  # the version of `table` that was last applied above
    # At the owner: (time, end), to know which positions should have been acknowledged by now.
    ends: list[tuple[int, int]] = field(default_factory=list)
    expect_ns: int = 0  # when brokers below are next told what is expected
    wait_ns: int = 0  # the time until then

    @property
    def stream(self) -> LogId:
        return self.info.stream_id
