"""Events in columns: what is on the wire, in the log, in the kernels and in Spark is one layout.

A batch is a run of positions of one stream; its body is an Arrow record-batch message that nobody
rewrites between publisher and subscriber. Code elsewhere handles batches and ranges; only the
kernels here look at single events.

    batch.py      Batch: header fields and body, derived batches, numpy views
    column.py     Column: byte strings side by side
    codec.py      the body's Arrow message by template, without pyarrow
    forms.py      narrower bodies: fixed-size columns, distances for seqs, runs for times
    arrow.py      the same through pyarrow, for everything else
    intervals.py  IntervalSet: sets of positions as half-open runs
    varints.py    its numbers on the wire
    kernels.py    numba loops over columns
    runs.py       numba loops over sets of positions
    sums.py       what rows add up to, in whatever order
    words.py      eight bytes at once, in numba loops
    compiled.py   how kernels are compiled
    keytable.py   KeyTable: the newest position of every key
    rules.py      retention policies and predicates, as they travel
    retention.py  RetentionIndex: which positions are void, and why
    compaction.py the same positions without what is void, in fewer batches
    warm.py       `python -m surecast.columns.warm` compiles the kernels into numba's disk cache

This package is imported by everything, so importing it (or `batch`, `intervals`, `retention`)
loads neither numba nor pyarrow; they come with the first call that needs them.
"""
