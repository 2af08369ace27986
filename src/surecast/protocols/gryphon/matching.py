"""Matcher: which events of a batch each of many receivers wants.

A receiver is a broker below, or a subscription. It has any number of filters, and wants the events
that pass at least one of them. For a broker below it is enough to know whether an event passes one
of its filters (a *link* of the index, where/index.py); the filter of each subscription is found
exactly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any

import numpy as np
import pyarrow as pa

from surecast.columns.arrow import array_of
from surecast.columns.batch import DATA, Batch
from surecast.columns.schema import read_schema
from surecast.errors import FilterError, UsageError
from surecast.protocols.gryphon.line import EVERYTHING
from surecast.where.binding import Bound, bind
from surecast.where.columns import KEY, TIME, columns_of
from surecast.where.index import FilterIndex
from surecast.where.text import parse, shown

__all__ = ["Matcher", "canonical", "refusal"]

_REMEMBERED = 8  # batches whose parts are remembered, because several receivers ask for them
_MASKS_BYTES_MAX = 16 << 20  # of the subscriptions that are cut at once

Bools = np.ndarray[Any, np.dtype[np.bool_]]


def canonical(text: str) -> str:
    """The filter as it is compared with others. Raises FilterError if it is not well formed."""
    return text if text == EVERYTHING else shown(parse(text))


def refusal(text: str, schema: str) -> str:
    """Why a filter is not valid for a schema; "" if it is."""
    try:
        if text != EVERYTHING:
            bind(parse(text), _columns_of(schema))
    except UsageError as problem:
        return str(problem)
    return ""


def _columns_of(schema: str) -> Any:
    return columns_of(read_schema(schema).arrow() if schema else pa.schema([]))


class Matcher:
    def __init__(self, schema: str) -> None:
        self._filters: dict[tuple[Hashable, Hashable], tuple[str, bool]] = {}  # text, exact
        self._last_id = 0
        self.set_schema(schema)

    def set_schema(self, schema: str) -> None:
        """The schema of the stream, also a later one: filters may name new columns."""
        self._names = read_schema(schema).names if schema else ()
        self._columns = _columns_of(schema)
        self._links, self._exact = FilterIndex(), FilterIndex()
        self._ids: dict[tuple[Hashable, Hashable], int] = {}  # (receiver, key) → id in an index
        self._receivers: dict[int, Hashable] = {}  # id in the index of exact filters → receiver
        self._link_of: dict[Hashable, int] = {}  # receiver → its number in the index of links
        self._uses: dict[Hashable, int] = {}  # receiver → its filters in the index of links
        self._all: dict[Hashable, dict[Hashable, None]] = {}  # receiver → keys that pass everything
        self._recent: deque[tuple[Batch, dict[Hashable, Batch]]] = deque(maxlen=_REMEMBERED)
        filters, self._filters = self._filters, {}
        for (receiver, key), (text, exact) in filters.items():
            self.add(receiver, key, text, exact=exact)

    def add(self, receiver: Hashable, key: Hashable, text: str, *, exact: bool = False) -> None:
        """Add a filter of a receiver; `key` identifies it. A filter that cannot be evaluated here,
        for example because its column is newer than the schema, passes everything (rule B16)."""
        self.remove(receiver, key)
        self._filters[receiver, key] = text, exact
        bound: Bound | None = None
        if text != EVERYTHING:
            try:
                bound = bind(parse(text), self._columns)
            except (FilterError, UsageError):
                bound = None
        if bound is None:
            self._all.setdefault(receiver, {})[key] = None
            return
        self._last_id += 1
        self._ids[receiver, key] = self._last_id
        if exact:
            self._receivers[self._last_id] = receiver
            self._exact.add({self._last_id: bound})
        else:
            link = self._link_of.setdefault(receiver, self._free_link())
            self._uses[receiver] = self._uses.get(receiver, 0) + 1
            self._links.add({self._last_id: bound}, link)

    def _free_link(self) -> int:
        used = set(self._link_of.values())
        return next(number for number in range(len(used) + 1) if number not in used)

    def remove(self, receiver: Hashable, key: Hashable) -> None:
        self._recent.clear()
        _, exact = self._filters.pop((receiver, key), ("", False))
        number = self._ids.pop((receiver, key), None)
        if number is not None and exact:
            del self._receivers[number]
            self._exact.remove([number])
        elif number is not None:
            self._links.remove([number])
            self._uses[receiver] -= 1
            if not self._uses[receiver]:
                del self._uses[receiver], self._link_of[receiver]
        keys = self._all.get(receiver)
        if keys is not None and key in keys:
            del keys[key]
            if not keys:
                del self._all[receiver]

    def takes_all(self, receiver: Hashable, batch: Batch) -> bool:
        """Whether the receiver wants all rows. Events of the stream itself, such as its end, go to
        everybody."""
        return batch.kind != DATA or receiver in self._all

    def all_takers(self) -> list[Hashable]:
        """The receivers that have a filter that passes everything."""
        return list(self._all)

    def parts(self, batch: Batch) -> dict[Hashable, Batch]:
        """For each receiver that wants some events: these events, the other positions are void.
        Receivers that want everything (`takes_all`) may be left out."""
        if not self._ids or batch.kind != DATA:
            return {}
        for known, found in self._recent:
            if known is batch:
                return found
        columns = self._read(batch)
        found = self._cut(batch, self._of_links(columns, batch.rows))
        per_turn = max(1, _MASKS_BYTES_MAX // batch.rows)
        wanted = self._of_exact(columns, batch.rows)
        for at in range(0, len(wanted), per_turn):
            found.update(self._cut(batch, wanted[at : at + per_turn]))
        self._recent.append((batch, found))
        return found

    def _cut(self, batch: Batch, wanted: list[tuple[Hashable, Any]]) -> dict[Hashable, Batch]:
        masks = []
        for _, rows in wanted:
            if rows.dtype != np.bool_:
                mask = np.zeros(batch.rows, np.bool_)
                mask[rows] = True
                rows = mask
            masks.append(rows)
        parts = batch.passing_each(masks)
        return {receiver: part for (receiver, _), part in zip(wanted, parts, strict=True)}

    def _of_links(self, columns: dict[str, pa.Array], rows: int) -> list[tuple[Hashable, Bools]]:
        """The receivers that are links, and the rows that each wants."""
        if not self._link_of:
            return []
        masks = self._links.links(columns, rows)
        found = []
        for receiver, link in self._link_of.items():
            wanted = (masks[link // 64] >> np.uint64(link % 64)) & np.uint64(1)
            if wanted.any():
                found.append((receiver, wanted.astype(np.bool_)))
        return found

    def _of_exact(self, columns: dict[str, pa.Array], rows: int) -> list[tuple[Hashable, Any]]:
        """The other receivers, and the indices of the rows that each wants."""
        if not self._receivers:
            return []
        these, ids = self._exact.match(columns, rows)
        order = np.argsort(ids, kind="stable")
        ids, these = ids[order], these[order]
        ends = np.flatnonzero(np.diff(ids, append=-1)) + 1 if ids.size else np.empty(0, np.int64)
        found: dict[Hashable, Any] = {}
        start = 0
        for end in ends.tolist():
            receiver = self._receivers[int(ids[start])]
            before = found.get(receiver)
            part = these[start:end]
            found[receiver] = part if before is None else np.union1d(before, part)
            start = end
        return list(found.items())

    def _read(self, batch: Batch) -> dict[str, pa.Array]:
        """The columns of a batch that filters may test. A column that the batch lacks is missing in
        all of its rows."""
        times: Any = pa.py_buffer(batch.times())
        arrays: dict[str, pa.Array] = {
            KEY.name: array_of(batch.keys(), batch.rows),
            TIME.name: pa.Array.from_buffers(TIME.type, batch.rows, [None, times]),
        }
        attributes = batch.attributes()
        if attributes is not None:
            arrays.update(zip(self._names, attributes.table().columns, strict=False))
        return arrays
