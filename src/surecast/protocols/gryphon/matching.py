"""Matcher: which rows of a batch each of many receivers wants.

A receiver is a broker below, or a subscription. It has any number of filters, and wants the rows
that pass at least one of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from surecast.columns.arrow import array_of
from surecast.columns.batch import DATA, Batch
from surecast.columns.schema import Schema, read_schema
from surecast.errors import FilterError, UsageError
from surecast.where.binding import Bound, bind
from surecast.where.columns import KEY, TIME, columns_of
from surecast.where.index import FilterIndex
from surecast.where.text import parse, shown

__all__ = ["EVERYTHING", "Matcher", "checked", "cut"]

EVERYTHING: Final = ""  # the text of the filter that every event passes
_REMEMBERED = 8  # batches whose rows are remembered, because several receivers ask for them

Rows = np.ndarray[Any, np.dtype[np.int64]]


def checked(text: str, schema: str) -> str:
    """The filter in its canonical form; UsageError if it is not valid for the schema."""
    if text == EVERYTHING:
        return text
    node = parse(text)
    bind(node, _columns_of(schema))
    return shown(node)


def _columns_of(schema: str) -> Any:
    return columns_of(read_schema(schema).arrow() if schema else pa.schema([]))


class Matcher:
    def __init__(self, schema: str) -> None:
        self._schema: Schema | None = read_schema(schema) if schema else None
        self._columns = _columns_of(schema)
        self._index = FilterIndex()
        self._ids: dict[tuple[Hashable, Hashable], int] = {}  # (receiver, key) → id in the index
        self._receivers: dict[int, Hashable] = {}  # id in the index → receiver
        self._all: dict[Hashable, dict[Hashable, None]] = {}  # receiver → keys that pass everything
        self._last_id = 0
        self._recent: deque[tuple[Batch, dict[Hashable, Rows]]] = deque(maxlen=_REMEMBERED)

    def add(self, receiver: Hashable, key: Hashable, text: str) -> None:
        """Add a filter of a receiver; `key` identifies it. A filter that cannot be evaluated here,
        for example because its column is newer than the schema, passes everything (rule B16)."""
        self.remove(receiver, key)
        bound: Bound | None = None
        if text != EVERYTHING:
            try:
                bound = bind(parse(text), self._columns)
            except (FilterError, UsageError):
                bound = None
        self._recent.clear()
        if bound is None:
            self._all.setdefault(receiver, {})[key] = None
            return
        self._last_id += 1
        self._ids[receiver, key] = self._last_id
        self._receivers[self._last_id] = receiver
        self._index.add({self._last_id: bound})

    def remove(self, receiver: Hashable, key: Hashable) -> None:
        self._recent.clear()
        number = self._ids.pop((receiver, key), None)
        if number is not None:
            del self._receivers[number]
            self._index.remove([number])
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

    def rows(self, batch: Batch) -> dict[Hashable, Rows]:
        """For each receiver that wants some rows: their indices, in order. Receivers that want
        everything (`takes_all`) may be left out."""
        if not self._receivers or batch.kind != DATA:
            return {}
        for known, found in self._recent:
            if known is batch:
                return found
        rows, ids = self._index.match(self._read(batch), batch.rows)
        found = {}
        if len(self._receivers) == 1 and ids.size:
            found[self._receivers[int(ids[0])]] = rows.astype(np.int64)
        else:
            order = np.argsort(ids, kind="stable")
            ids, rows = ids[order], rows[order]
            for part in np.split(np.arange(ids.size), np.flatnonzero(np.diff(ids)) + 1):
                if part.size:
                    receiver = self._receivers[int(ids[part[0]])]
                    these = rows[part].astype(np.int64)
                    before = found.get(receiver)
                    found[receiver] = these if before is None else np.union1d(before, these)
        self._recent.append((batch, found))
        return found

    def _read(self, batch: Batch) -> dict[str, pa.Array]:
        """The columns of a batch that filters may test. A column that the batch lacks is missing in
        all of its rows."""
        times: Any = pa.py_buffer(batch.times())
        arrays: dict[str, pa.Array] = {
            KEY.name: array_of(batch.keys(), batch.rows),
            TIME.name: pa.Array.from_buffers(TIME.type, batch.rows, [None, times]),
        }
        attributes = batch.attributes()
        if attributes is not None and self._schema is not None:
            arrays.update(zip(self._schema.names, attributes.table().columns, strict=False))
        return arrays


def cut(batch: Batch, rows: Rows) -> Batch:
    """The batch with only these rows; the positions of the others are void (filtered)."""
    if rows.size == batch.rows:
        return batch
    kept = np.zeros(batch.rows, np.bool_)
    kept[rows] = True
    return batch.passing(kept)
