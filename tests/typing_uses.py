"""Correct uses of the API, which type checkers must accept. This file is never run.

`make check` runs mypy and pyright on it and on `typing_mistakes.py`.
"""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pyarrow as pa

import surecast
from surecast import sync


class Frame:
    """A table with the Arrow interface of polars, pandas and others."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return pa.table({"value": [b"a"]}).__arrow_c_stream__()


def options() -> surecast.ClientOptions:
    return surecast.ClientOptions(
        linger=0, ack_every=0.5, close_timeout=timedelta(seconds=3), buffer_bytes_max=64 << 20
    )


def rules(days: int) -> tuple[surecast.Policy, surecast.Predicate]:
    kept: surecast.Policy = surecast.keep_for(timedelta(days=days)) if days else surecast.keep_all()
    gone: surecast.Predicate = surecast.before_time(datetime.now(UTC))
    return kept, gone


async def publishing(stream: surecast.Stream, table: pa.Table) -> int:
    seq: int = await stream.publish(b"42", key=b"k", tag=b"t")
    seqs: surecast.Seqs = await stream.publish_many([b"a", b"b"], keys=[b"k", None])
    await stream.publish_many(value for value in (b"a", b"b"))
    await stream.publish_many((b"a", b"b"))
    await stream.publish_many({b"a": 1})
    await stream.publish_many(table)
    await stream.publish_many(table.to_batches()[0])
    await stream.publish_many(Frame())
    stream.publish_soon(b"x")
    at: int = await stream.collect(surecast.before_seq(seqs.first))
    named: surecast.Stream = stream.named("invoices", seqs[0])
    await named.publish(b"")
    return seq + at + seqs.last + len(seqs)


async def reading(stream: surecast.Stream, word: Literal["earliest", "latest"]) -> list[bytes]:
    values: list[bytes] = []
    for start in (word, 17, datetime.now(UTC)):
        async with stream.subscribe(start, name="billing", ack="manual") as sub:
            async for event in sub:
                values.append(event.value)
                if event.kind == "void":
                    print(event.range.stop, event.reason)
                await sub.ack(event)
    one: surecast.Event = await anext(stream.subscribe("latest"))
    async for batch in stream.subscribe(start=one.seq).batches():
        print(batch.num_rows)
    return values


async def batches(sub: surecast.Subscription) -> AsyncIterator[Any]:
    async for batch in sub.batches():
        yield batch


async def main() -> None:
    async with surecast.connect(
        "surecast://127.0.0.1:7400", token="t", options=options()
    ) as client:
        kept, _ = rules(7)
        stream = await client.stream("orders", retain=kept, delivery="broadcast")
        infos: list[surecast.StreamInfo] = await client.streams("orders.>")
        print(client.region, infos[0].name, stream.retain == kept)
        at: int = await client.locate(stream.stream_id, datetime.now(UTC) - timedelta(hours=1))
        try:
            await stream.publish(b"%d" % at)
        except surecast.PublishError as problem:
            print(problem.maybe_taken, problem.acknowledged)
        except surecast.SurecastError:
            raise
    opened: surecast.Client = await surecast.local("data", start="trust")
    await opened.close()


def without_await(client: sync.Client) -> None:
    stream: sync.Stream = client.stream("orders")
    stream.publish_many(Frame())
    with client.subscribe("orders.>", start="earliest", name="billing") as sub:
        for event in sub:
            print(event.time, event.attributes)
    for batch in stream.subscribe(1).batches():
        print(batch.num_rows)
    with sync.connect(options=options()) as another, sync.local() as own:
        print(another.region, own.http)
