"""Mistakes that type checkers must find. This file is never run.

Each line with a mistake says which error mypy (`type: ignore`) and pyright (`pyright: ignore`)
report there. `make check` runs both. A mistake that is not found is an error, because the comment
is then unused, and so is an error on a line without a comment.
"""

from datetime import timedelta

import surecast
from surecast import sync

surecast.conect()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
surecast.sync.conect()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
surecast.connect(7400)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
surecast.connect(toke="")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
surecast.local(start="force")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
surecast.keep_last("7")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
surecast.keep_for("60")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
surecast.before_seq(b"7")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
surecast.before_time("2026")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
surecast.key_is("user:42")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
surecast.ClientOptions(linger="1ms")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
surecast.ClientOptions(linger_ns=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def publishing(client: surecast.Client) -> None:
    stream = client.stream("orders")
    print(stream.name)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    await client.stream(b"orders")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    keep = surecast.before_seq(3)
    await client.stream("a", retain=keep)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    orders = await stream
    await orders.publish("42")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await orders.publish(b"", key="k")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    orders.publish_soon(42)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await orders.publish_many(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await orders.publish_many(b"abc")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await orders.publish_many(["a"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await orders.publish_many([b"a"], keys=[1])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    await orders.collect(surecast.keep_all())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def reading(client: surecast.Client, stream: surecast.Stream) -> None:
    stream.subscribe(start="oldest")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    stream.subscribe(start=1.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    stream.subscribe(ack="by hand")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    client.subscribe("a", start="17")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    client.subscribe(start="latest")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    for _ in stream.subscribe():  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass
    async for event in stream.subscribe():
        print(event.val)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
        event.seq = 5  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
        if event.kind == "voids":  # type: ignore[comparison-overlap]
            return
    await client.locate(stream.stream_id, 17)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def without_await(client: sync.Client) -> None:
    stream = client.stream("orders", retain=timedelta(1))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    stream.subscribe(start="oldest")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    stream.publish_many(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
