"""Events in columns: the wire, the log, the kernels and Spark use one layout.

A batch is a run of positions of one stream; its body is an Arrow record-batch message that is not
rewritten between publisher and subscriber. Code elsewhere handles batches and ranges; only the
kernels here process single events.

    batch.py      Batch: header fields and body, derived batches, numpy views
    column.py     Column: variable-length byte strings, as Arrow lays them out
    codec.py      the body's Arrow message by template, without pyarrow
    forms.py      narrower bodies: fixed-size columns, distances for seqs, runs for times
    arrow.py      bodies through pyarrow, for everything that does not match a template
    intervals.py  IntervalSet: sets of positions as half-open runs
    varints.py    encoding of an IntervalSet's numbers
    kernels.py    numba loops over columns
    runs.py       numba loops over sets of positions
    sums.py       checksums of rows that do not depend on their order
    words.py      reading eight bytes at once, in numba loops
    compiled.py   how kernels are compiled
    keytable.py   KeyTable: the newest position of every key
    rules.py      retention policies and predicates, and their encoding
    retention.py  RetentionIndex: which positions are void, and why
    compaction.py the same positions without void rows, in fewer batches
    warm.py       `python -m surecast.columns.warm` compiles the kernels into numba's disk cache

All other packages import this one, so importing it (or `batch`, `intervals`, `retention`) loads
neither numba nor pyarrow; the first call that needs them does.
"""
