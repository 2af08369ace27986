"""FilterIndex: finds which of many filters, or which links, each row of a batch passes.

A filter is divided into *conjunctions* (normal.py). Each conjunction is put into a *cluster* by one
of its equality tests: the one whose value the fewest conjunctions test. A row is then compared only
with the conjunctions of the clusters that its own values select, and with those that have no
equality test. Their other tests are evaluated by a compiled loop (kernels.py). A filter whose
normal form would be too large is evaluated as a whole by evaluate.py.

    index = FilterIndex()
    index.add({7: bind(parse("sym == 'IBM' and qty > 100"), columns)}, link=2)
    rows, ids = index.match(batch, len(batch))  # row rows[i] passes the filter ids[i]
    masks = index.links(batch, len(batch))  # row r passes a filter of link 2: masks[0, r] & 4

A *link* is what a broker sends events to: it needs to know whether any filter of a link passes an
event, not which ones. So `links` stops testing a row for a link after the first filter that passes.

Filters are gathered until the next match, and then become a *segment* (segment.py), which is never
changed; segments of similar size are joined. A removed filter stays in its segment until half of
the index is removed filters. MatchingTree (branches.py) has the same methods.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from surecast.errors import UsageError
from surecast.where.binding import Bound
from surecast.where.evaluate import Columns
from surecast.where.rows import Codes, Int32s, Int64s, rows_of
from surecast.where.segment import Segment

__all__ = ["LINKS_MAX", "FilterIndex", "Masks", "check_link"]

LINKS_MAX = 1024  # links have the numbers 0 to LINKS_MAX - 1
_GROWTH: Final = 4  # a segment is joined with the next larger one below this ratio of sizes
_SPARE: Final = 64  # removed filters that an index may have in any case

# One row for each 64 links, one column for each row of a batch.
Masks = np.ndarray[Any, np.dtype[np.uint64]]


def check_link(link: int) -> None:
    if not 0 <= link < LINKS_MAX:
        raise UsageError(f"links have the numbers 0 to {LINKS_MAX - 1}, not {link}")


class FilterIndex:
    """See the module. Ids are whole numbers, not negative, that the caller chooses."""

    def __init__(self) -> None:
        self._filters: dict[int, Bound] = {}  # by id
        self._codes = Codes()
        self._recent: dict[int, Bound] = {}  # by number
        self._segments: list[Segment] = []  # the largest first
        # Each filter gets a number when it is added. An id that is added again gets another one.
        self._numbers: dict[int, int] = {}  # id → number
        self._ids = np.empty(0, np.int64)  # of each number; -1: removed
        self._link_of = np.empty(0, np.int32)  # of each number
        self._links: Counter[int] = Counter()  # filters of each link
        self._used = 0  # numbers given so far

    def __len__(self) -> int:
        return len(self._filters)

    def add(self, filters: Mapping[int, Bound], link: int = 0) -> None:
        """Add filters of a link; one replaces an earlier one with its id."""
        check_link(link)
        self.remove([key for key in filters if key in self._filters])
        if self._used + len(filters) > self._ids.size:
            size = 2 * (self._used + len(filters))
            self._ids = np.resize(self._ids, size)
            self._link_of = np.resize(self._link_of, size)
        for key, bound in filters.items():
            self._filters[key] = bound
            self._numbers[key] = self._used
            self._ids[self._used] = key
            self._link_of[self._used] = link
            self._recent[self._used] = bound
            self._used += 1
        if filters:
            self._links[link] += len(filters)

    def remove(self, ids: Iterable[int]) -> None:
        """Remove filters; unknown ids are ignored."""
        for key in ids:
            if self._filters.pop(key, None) is None:
                continue
            number = self._numbers.pop(key)
            self._ids[number] = -1
            self._recent.pop(number, None)
            link = int(self._link_of[number])
            self._links[link] -= 1
            if not self._links[link]:
                del self._links[link]
        if self._used > 2 * len(self._filters) + _SPARE:
            self._build_again()

    def _build_again(self) -> None:
        """Give new numbers to all filters, so that no array has places of removed ones."""
        kept = sorted(self._numbers.items(), key=lambda item: item[1])
        numbers = np.array([number for _, number in kept], np.int64)
        self._ids, self._link_of = self._ids[numbers], self._link_of[numbers]
        self._numbers = {key: number for number, (key, _) in enumerate(kept)}
        self._recent = {number: self._filters[key] for key, number in self._numbers.items()}
        self._codes, self._segments, self._used = Codes(), [], len(kept)

    def _seal(self) -> None:
        """Make a segment of the recent filters, joined with segments that are not much larger."""
        numbers, self._recent = self._recent, {}
        while self._segments and self._segments[-1].size < _GROWTH * len(numbers):
            joined = self._segments.pop()
            numbers = {**self._alive(joined), **numbers}
        if numbers:
            self._segments.append(Segment(self._codes, numbers, self._link_of))

    def _alive(self, segment: Segment) -> dict[int, Bound]:
        ids = self._ids[segment.numbers].tolist()
        pairs = zip(segment.numbers, ids, strict=True)
        return {number: self._filters[key] for number, key in pairs if key >= 0}

    def match(self, columns: Columns, rows: int) -> tuple[Int32s, Int64s]:
        """The pairs (row, id) that pass, each once, sorted by row."""
        found: list[tuple[Int32s, Int64s]] = []
        if self._recent:
            self._seal()
        if rows and self._segments:
            batch = rows_of(self._codes, columns, rows)
            for segment in self._segments:
                found += segment.match(batch, self._ids)
        if not found:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        all_rows = np.concatenate([these for these, _ in found])
        ids = np.concatenate([keys for _, keys in found])
        if (all_rows[1:] < all_rows[:-1]).any():
            order = np.argsort(all_rows, kind="stable")
            all_rows, ids = all_rows[order], ids[order]
        return all_rows, ids

    def links(self, columns: Columns, rows: int) -> Masks:
        """The links of which each row passes at least one filter: bit `link % 64` of
        `masks[link // 64, row]`."""
        words = max(self._links, default=0) // 64 + 1
        masks = np.zeros(words * rows, np.uint64)
        counts = np.zeros(rows, np.int32)
        if self._recent:
            self._seal()
        if rows and self._segments:
            batch = rows_of(self._codes, columns, rows)
            for segment in self._segments:
                segment.link(batch, self._ids, self._link_of, len(self._links), masks, counts)
        return masks.reshape(words, rows)
