"""Filters: boolean expressions over the typed columns of events.

    sym == "IBM" and qty > 100
    key startswith "user:" and not (region in ("eu", "us") or exists deleted)

A filter is sent and stored as text. The modules, in the order in which they are used:

tree.py      the expression as it was written
text.py      from text to the tree, and back
columns.py   the types of columns, and how literals are compared with them exactly
binding.py   from the tree and a schema to a *bound* filter: names and types are checked, `not` is
             applied to the tests, and each literal has the type of its column
evaluate.py  the rows of a batch that a bound filter accepts
batches.py   filters on the batches of streams: what a reader with a filter gets
normal.py    a bound filter as conjunctions of tests
index.py     which of many filters each row of a batch passes, or which links have one that it
             passes. segment.py: the arrays; rows.py: batches as numbers; kernels.py: compiled loops
branches.py  the same as a tree
covering.py  whether a filter accepts all that another one accepts; fewer filters that accept more
explain.py   a bound filter as text, and the result of each of its tests

Every evaluator gives the same answer, on these rules. A test of a column is false if the event has
no value in that column (null, or the column was added later) or if the value is NaN, and so is the
negation of the test; only `not exists` is true then. `exists` is true for NaN. Numbers are compared
exactly: `qty > 100.5` on whole numbers is `qty >= 101`, and no float equals a whole number that
floats cannot represent. A float32 is compared as the float64 of the same value. -0.0 equals 0.0.
Strings are compared by their UTF-8 bytes. A bool is not a number.
"""

from surecast.where.binding import bind
from surecast.where.text import parse, shown

__all__ = ["bind", "parse", "shown"]
