"""Converts the logs of clients (`audit_log.py`) to the Parquet tables that Spark's audit job reads.

The demo uses it, so that its run is also judged by `surecast pipeline audit`.
"""

from pathlib import Path
from typing import Any

import numpy as np

from surecast_lab.swarm.audit_log import WIDTH, Int64s, OfferedEvents, ReadEvents, Words

__all__ = ["trace_offered", "trace_read"]


def trace_offered(folder: Path, stream: str, publisher: str, log: OfferedEvents) -> None:
    import pyarrow as pa

    from surecast.pipeline.jobs import trace

    count = log.seq.size
    columns = {
        "stream": _same(stream, count),
        "publisher": _same(publisher, count),
        "number": np.arange(1, count + 1),
        "key": _bytes(log.key),
        "value": _bytes(log.value),
        "seq": pa.array(log.seq, mask=log.seq == 0),
        "offered_ns": _times(log.offered_ns, count),
    }
    trace.save(folder, "published", publisher, columns)


def trace_read(folder: Path, stream: str, region: str, log: ReadEvents) -> None:
    """Write a reader's deliveries, with voids in order of delivery, and its row in `readers`."""
    import pyarrow as pa

    from surecast.pipeline.jobs import trace

    voids = np.empty((0, 2), np.int64) if log.voids is None else log.voids
    places = log.void_after
    if places is None:  # the log has no order of voids: put each one before the next event
        places = np.searchsorted(log.seq, voids[:, 0])
    count = log.seq.size
    # Sort keys: event i (from 0) has 2 * i + 1. A void after k events has 2 * k, and so precedes
    # event k.
    order = np.argsort(np.concatenate((np.arange(count) * 2 + 1, places * 2)), kind="stable")
    nothing = pa.nulls(len(voids), pa.binary())
    table = pa.table(
        {
            "kind": pa.chunked_array([_same("event", count), _same("void", len(voids))]),
            "seq": np.concatenate((log.seq, voids[:, 1] - 1)),
            "range": np.concatenate((np.ones(count, np.int64), voids[:, 1] - voids[:, 0])),
            "key": pa.chunked_array([_bytes(log.key), nothing]),
            "value": pa.chunked_array([_bytes(log.value), nothing]),
            "timestamp": pa.chunked_array(
                [pa.array(log.time_us), pa.nulls(len(voids), pa.int64())]
            ),
            "got_ns": pa.chunked_array(
                [_times(log.got_ns, count), pa.nulls(len(voids), pa.int64())]
            ),
        }
    )
    if len(voids):
        table = table.take(order)
    rows = table.num_rows
    columns: dict[str, Any] = {name: table.column(name) for name in table.column_names}
    columns["timestamp"] = columns["timestamp"].cast(pa.timestamp("us", "UTC"))
    columns |= {
        "stream": _same(stream, rows),
        "reader": _same(log.reader, rows),
        "number": np.arange(1, rows + 1),
    }
    trace.save(folder, "delivered", log.reader, columns)
    records_voids = log.voids is not None
    reader = {"stream": [stream], "region": [region], "reader": [log.reader], "first": [1]}
    trace.save(
        folder,
        "readers",
        log.reader,
        {**reader, "voids": [records_voids], "malformed": [log.malformed]},
    )


def _same(word: str, count: int) -> Any:
    """A column that repeats `word` `count` times."""
    import pyarrow as pa

    return pa.repeat(pa.scalar(word, pa.string()), count)


def _bytes(words: Words) -> Any:
    """Keys or values as byte strings of eight bytes."""
    import pyarrow as pa

    data = pa.py_buffer(words.astype(">u8").tobytes())
    return pa.Array.from_buffers(pa.binary(WIDTH), words.size, [None, data]).cast(pa.binary())


def _times(times: Int64s | None, count: int) -> Any:
    import pyarrow as pa

    return pa.nulls(count, pa.int64()) if times is None else pa.array(times)
