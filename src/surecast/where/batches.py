"""Filters on batches of a stream: which rows pass, and the batch that a reader with a filter gets.

The reader gets all positions of the batch, and only the rows that pass. The positions of the others
are void with the reason `FILTERED`. Batches that are not data (COLLECT and CONFIG events, void
ranges) pass unchanged.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from surecast.columns.arrow import array_of
from surecast.columns.batch import DATA, Batch
from surecast.columns.schema import read_schema
from surecast.where.binding import Bound, BoundTest, bind
from surecast.where.columns import KEY, TIME, columns_of
from surecast.where.evaluate import Rows, passes
from surecast.where.text import parse

__all__ = ["BatchFilter", "batch_filter"]

_KEPT: Final = 64  # filters that `batch_filter` keeps after they were bound
# The cost of a test of no rows, and of a literal, compared with a byte that is tested.
_TEST_COST: Final = 2000
_LITERAL_COST: Final = 50


class BatchFilter:
    """A filter bound to the schema of a stream (its text; "" if the stream has none). Raises
    FilterError if it is not valid, or names a column that the stream does not have."""

    __slots__ = ("_columns", "_fixed_cost", "_has_key", "_has_time", "_tests", "bound", "where")

    def __init__(self, where: str, schema: str) -> None:
        node = parse(where)
        known = read_schema(schema) if schema else None
        self.where = where
        self.bound = bind(node, columns_of(pa.schema([]) if known is None else known.arrow()))
        tests = _tests_in(self.bound)
        names = frozenset(test.column.name for test in tests)
        self._tests = len(tests)
        self._fixed_cost = _TEST_COST * len(tests) + _LITERAL_COST * sum(
            len(test.values) for test in tests
        )
        self._has_key, self._has_time = KEY.name in names, TIME.name in names
        # Name and index of each column of the schema that the filter tests.
        self._columns = [
            (name, index)
            for index, name in enumerate(known.names if known else ())
            if name in names
        ]

    def __repr__(self) -> str:
        return f"BatchFilter({self.where!r})"

    def rows(self, batch: Batch) -> Rows:
        """For each row of a batch, whether it passes. A column that was added to the schema after
        the batch was published has no values. Raises UsageError if the columns of the batch do not
        have the types of the schema."""
        if batch.kind != DATA:
            return np.ones(batch.rows, np.bool_)
        rows = batch.rows
        columns: dict[str, pa.Array] = {}
        if self._has_key:
            columns[KEY.name] = array_of(batch.keys(), rows)
        if self._has_time:
            times: Any = pa.py_buffer(batch.times())
            columns[TIME.name] = pa.Array.from_buffers(TIME.type, rows, [None, times])
        attributes = batch.attributes() if self._columns else None
        if attributes is not None:
            table = attributes.table()
            width = table.num_columns
            for name, index in self._columns:
                if index < width:
                    columns[name] = table.column(index)
        return passes(self.bound, columns, rows)

    def cost(self, batch: Batch) -> int:
        """What it costs to apply the filter, in bytes of a batch to which one test is applied."""
        return batch.nbytes * self._tests + self._fixed_cost

    def apply(self, batch: Batch) -> Batch:
        """The batch as a reader with this filter gets it."""
        if batch.kind != DATA:
            return batch
        return batch.passing(self.rows(batch))


@lru_cache(_KEPT)
def batch_filter(where: str, schema: str) -> BatchFilter:
    """The same filter as before, if the arguments are the same."""
    return BatchFilter(where, schema)


def _tests_in(bound: Bound) -> list[BoundTest]:
    if isinstance(bound, BoundTest):
        return [bound]
    return [test for part in bound.parts for test in _tests_in(part)]
