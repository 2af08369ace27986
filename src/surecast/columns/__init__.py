"""Events stored in columns. The wire, the log, the compiled loops and Spark all use this layout.

A batch contains consecutive positions of one stream (`seq` in the code is a position). Its body is
an Arrow record-batch message, which is not rewritten between publisher and subscriber. A position
is *void* if its event is obsolete: the event is no longer stored, but the position and the reason
are. Code in other packages handles whole batches and ranges of positions. Only the *kernels* here
(loops compiled by numba) process single events.

    batch.py      Batch: header fields and body, derived batches, numpy views
    column.py     Column: variable-length byte strings, in Arrow's layout
    codec.py      encodes and decodes the usual Arrow bodies without pyarrow
    typed.py      attributes: typed columns in addition, checked and cut without the schema
    schema.py     a stream's schema as text: names and types of the attributes
    forms.py      smaller bodies: fixed-size columns, distances for seqs, run-end encoded times
    arrow.py      decodes all other Arrow bodies with pyarrow
    intervals.py  IntervalSet: sets of positions as half-open runs
    varints.py    encoding of an IntervalSet's numbers
    kernels.py    kernels that loop over columns
    runs.py       kernels that loop over sets of positions
    sums.py       checksums of rows, independent of the order of the rows
    words.py      functions for kernels: load eight bytes at once, hash, prefetch
    compiled.py   the compiler options of kernels
    keytable.py   KeyTable: the newest position of every key
    rules.py      retention policies and predicates, and their encoding
    retention.py  RetentionIndex: which positions are void, and why
    compaction.py rewrites batches without their void rows, at the same positions
    warm.py       `python -m surecast.columns.warm` compiles the kernels into numba's disk cache

All other packages import this one. To keep that cheap, importing it (or `batch`, `intervals`,
`retention`) loads neither numba nor pyarrow; the first call that needs them loads them.
"""
