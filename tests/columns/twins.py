"""Twins: reference implementations in plain Python, as simple as possible.

The tests compare the compiled kernels, IntervalSet, Batch and RetentionIndex with these. Nothing
here may import the code it is compared with, except policies and predicates, which are values.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from surecast.columns import rules
from surecast.columns.batch import COLLECT, CONFIG, DATA, EXPIRED, SUPERSEDED

# ---------------------------------------------------------------- kernels


class KeyTableTwin:
    """The newest position of every key, in a dict."""

    def __init__(self) -> None:
        self.newest: dict[bytes, int] = {}

    def put(self, keys: list[bytes | None], seqs: list[int]) -> list[int]:
        replaced = []
        for key, seq in zip(keys, seqs, strict=True):
            if key is not None:
                if key in self.newest:
                    replaced.append(self.newest[key])
                self.newest[key] = seq
        return replaced

    def get(self, key: bytes) -> int:
        return self.newest.get(key, 0)


def before_seq(seqs: list[int], seq: int) -> int:
    return sum(1 for position in seqs if position < seq)


def before_time(times: list[int], time_ns: int) -> int:
    return sum(1 for time in times if time < time_ns)


def keep_last(seqs: list[int], end: int, n: int) -> int:
    newest = range(max(0, end - n), end)
    return sum(1 for position in seqs if position not in newest)


def match_prefix(column: list[bytes | None], seqs: list[int], prefix: bytes) -> list[int]:
    pairs = zip(column, seqs, strict=True)
    return [seq for item, seq in pairs if item is not None and item.startswith(prefix)]


def match_equal(column: list[bytes | None], seqs: list[int], wanted: bytes) -> list[int]:
    return [seq for item, seq in zip(column, seqs, strict=True) if item == wanted]


def offsets_ok(offsets: list[int], data_size: int) -> bool:
    inside = all(0 <= offset <= data_size for offset in offsets)
    return inside and offsets == sorted(offsets)


def sum_rows(
    seed: int,
    rows: list[tuple[bytes | None, ...]],
    attributes: list[tuple[bytes | None, ...]] | None = None,
) -> int:
    """The sum of the hashes of all rows, each starting from `seed`. `attributes`: of each row."""
    hashes = []
    for number, row in enumerate(rows):
        digest = _hash_row(seed, row)
        for column, item in enumerate(attributes[number] if attributes else ()):
            if item is not None:
                digest = _hash_row(digest ^ ((column + 1) * _PHI % _WORDS), (item,))
        hashes.append(digest)
    return sum(hashes) % _WORDS


_WORDS = 1 << 64
_PHI, _MUL = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93


def _hash_row(digest: int, row: tuple[bytes | None, ...]) -> int:
    for item in row:
        digest = _mix(digest ^ (0 if item is None else len(item) + 1))
        for at in range(0, len(item or b""), 8):
            word = int.from_bytes((item or b"")[at : at + 8], "little")
            digest = (digest ^ word) * _PHI % _WORDS
            digest ^= digest >> 32
        digest = _mix(digest)
    return digest


def _mix(word: int) -> int:
    word = (word ^ word >> 32) * _PHI % _WORDS
    word = (word ^ word >> 29) * _MUL % _WORDS
    return word ^ word >> 32


def runs_of(positions: set[int]) -> list[tuple[int, int]]:
    """The runs of a set of positions, in order."""
    begins = [at for at in sorted(positions) if at - 1 not in positions]
    ends = [at + 1 for at in sorted(positions) if at + 1 not in positions]
    return list(zip(begins, ends, strict=True))


# ---------------------------------------------------------------- retention


@dataclass
class Event:
    """One position of a stream, with the fields that its publisher gave."""

    seq: int
    time_ns: int
    kind: int = DATA
    key: bytes | None = None
    tag: bytes | None = None
    value: bytes = b""
    rule: rules.Policy | rules.Collect | None = None  # of a CONFIG or COLLECT event


@dataclass
class RetentionTwin:
    """Applies every rule event by event, looking at all earlier events each time."""

    policy: rules.Policy
    events: list[Event] = field(default_factory=list)
    voids: dict[int, int] = field(default_factory=dict)  # position -> reason
    reasons: dict[int, set[int]] = field(default_factory=dict)  # position -> all valid reasons

    def feed(self, event: Event) -> None:
        if event.kind == CONFIG:
            assert not isinstance(event.rule, rules.Collect | None)
            self.policy = event.rule
            if isinstance(self.policy, rules.LatestPerKey):
                self._keep_latest()
        if event.kind == COLLECT:
            assert isinstance(event.rule, rules.Collect)
            self._collect(event.rule)
        if isinstance(self.policy, rules.LatestPerKey) and event.key is not None:
            for old in self.events:
                if old.key == event.key:
                    self._void(old, SUPERSEDED)
        self.events.append(event)
        if isinstance(self.policy, rules.KeepLast):
            self._void_upto(event.seq - self.policy.n, EXPIRED)

    def _collect(self, rule: rules.Collect) -> None:
        matched = [old for old in self.events if self._matches(rule.predicate, old)]
        if isinstance(rule.predicate, rules.BeforeSeq):
            self._void_upto(max([old.seq for old in matched], default=0), rule.reason)
        else:
            for old in matched:
                self._void(old, rule.reason)

    def _keep_latest(self) -> None:
        live: set[bytes] = set()
        seen: set[bytes] = set()
        for old in reversed(self.events):
            if old.key is None:
                continue
            if old.key in seen:
                self._hit(old, SUPERSEDED)
            seen.add(old.key)
            if old.seq not in self.voids:
                if old.key in live:
                    self._void(old, SUPERSEDED)
                live.add(old.key)

    def _matches(self, predicate: rules.Predicate, event: Event) -> bool:
        match predicate:
            case rules.BeforeSeq(seq):
                return event.seq < seq
            case rules.BeforeTime(time_ns):
                return event.time_ns < time_ns
            case rules.KeyIs(key):
                return event.key == key
            case rules.KeyPrefix(prefix):
                return event.key is not None and event.key.startswith(prefix)
            case rules.TagIs(tag):
                return isinstance(self.policy, rules.KeepAll) and event.tag == tag

    def _void(self, event: Event, reason: int) -> None:
        """Void by key, tag or time: a position that is void already keeps its reason."""
        if event.kind != CONFIG:
            self.voids.setdefault(event.seq, reason)
            self._hit(event, reason)

    def _void_upto(self, seq: int, reason: int) -> None:
        """Void by position: all positions up to `seq` get this reason."""
        for old in self.events:
            if old.seq <= seq and old.kind != CONFIG:
                self.voids[old.seq] = reason
                self._hit(old, reason)

    def _hit(self, event: Event, reason: int) -> None:
        self.reasons.setdefault(event.seq, set()).add(reason)
