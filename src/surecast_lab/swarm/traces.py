"""A run's ledgers as a trace: the Parquet tables that the Spark audit judges (jobs/trace.py)."""

from pathlib import Path
from typing import Any

import numpy as np

from surecast_lab.swarm.audit_log import WIDTH, Int64s, OfferedEvents, ReadEvents, Words

__all__ = ["trace_offered", "trace_read"]


def trace_offered(folder: Path, stream: str, publisher: str, ledger: OfferedEvents) -> None:
    import pyarrow as pa

    from surecast.pipeline.jobs import trace

    count = ledger.seq.size
    columns = {
        "stream": _same(stream, count),
        "publisher": _same(publisher, count),
        "number": np.arange(1, count + 1),
        "key": _bytes(ledger.key),
        "value": _bytes(ledger.value),
        "seq": pa.array(ledger.seq, mask=ledger.seq == 0),
        "offered_ns": _times(ledger.offered_ns, count),
    }
    trace.save(folder, "published", publisher, columns)


def trace_read(folder: Path, stream: str, region: str, ledger: ReadEvents) -> None:
    """What a reader got, voids among events where they came; and that there is such a reader."""
    import pyarrow as pa

    from surecast.pipeline.jobs import trace

    voids = np.empty((0, 2), np.int64) if ledger.voids is None else ledger.voids
    places = ledger.void_after
    if places is None:  # nobody wrote down when they came: before the first event behind them
        places = np.searchsorted(ledger.seq, voids[:, 0])
    count = ledger.seq.size
    order = np.argsort(np.concatenate((np.arange(count) * 2 + 1, places * 2)), kind="stable")
    nothing = pa.nulls(len(voids), pa.binary())
    table = pa.table(
        {
            "kind": pa.chunked_array([_same("event", count), _same("void", len(voids))]),
            "seq": np.concatenate((ledger.seq, voids[:, 1] - 1)),
            "range": np.concatenate((np.ones(count, np.int64), voids[:, 1] - voids[:, 0])),
            "key": pa.chunked_array([_bytes(ledger.key), nothing]),
            "value": pa.chunked_array([_bytes(ledger.value), nothing]),
            "timestamp": pa.chunked_array(
                [pa.array(ledger.time_us), pa.nulls(len(voids), pa.int64())]
            ),
            "got_ns": pa.chunked_array(
                [_times(ledger.got_ns, count), pa.nulls(len(voids), pa.int64())]
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
        "reader": _same(ledger.reader, rows),
        "number": np.arange(1, rows + 1),
    }
    trace.save(folder, "delivered", ledger.reader, columns)
    told = ledger.voids is not None
    reader = {"stream": [stream], "region": [region], "reader": [ledger.reader], "first": [1]}
    trace.save(
        folder,
        "readers",
        ledger.reader,
        {**reader, "voids": [told], "malformed": [ledger.malformed]},
    )


def _same(word: str, count: int) -> Any:
    """A column that says the same `count` times."""
    import pyarrow as pa

    return pa.repeat(pa.scalar(word, pa.string()), count)


def _bytes(words: Words) -> Any:
    """Keys or values as they were: eight bytes each."""
    import pyarrow as pa

    data = pa.py_buffer(words.astype(">u8").tobytes())
    return pa.Array.from_buffers(pa.binary(WIDTH), words.size, [None, data]).cast(pa.binary())


def _times(times: Int64s | None, count: int) -> Any:
    import pyarrow as pa

    return pa.nulls(count, pa.int64()) if times is None else pa.array(times)
