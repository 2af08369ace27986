"""The region whose data folders are stored with a release: two replicas and a witness.

`write` is what happened in it; `PLAN` says what must be found in it for ever. The servers are the
real ones, in this event loop.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import surecast
from surecast.client.connection import Client
from surecast.server.config import build
from surecast.server.region import RegionServer
from surecast.server.status import not_ready
from tests.ports import free_ports

__all__ = [
    "LOCAL", "NODES", "PLAN", "Stream", "found_in", "key_of", "recorded", "region", "tag_of",
    "value_of", "write", "write_local",
]  # fmt: skip

NODES = ("east-1", "east-2", "witness")
# Small files, and compactions that do not wait for much to be void.
SETTINGS = {
    "storage": {"journal_bytes_max": 8192, "inline_bytes_max": 512, "run_bytes_min": 4096},
    "streams": {"compact_ns": "50ms", "compact_share": 0.1},
}
YEARS_S = 3_000_000_000  # nothing expires before this test does


class Stream(NamedTuple):
    """What a stream holds: events 1 to `events`, less those void, then perhaps rules."""

    retain: str
    events: int
    keys: int = 0  # event n has the key "k" + n mod keys; 0: no keys
    void: dict[str, tuple[tuple[int, int], ...]] = {}  # noqa: RUF012 - ranges by reason
    delivery: str = "broadcast"
    tags: bool = False  # every third event has the tag "third"
    named: int = 0  # events behind these, by the named publisher


PLAN = {
    # 10 collected by a publisher; the declaration itself has position 31.
    "orders.eu": Stream("keep-all", 30, 5, {"collected": ((1, 11),), "control": ((31, 32),)}),
    "prices": Stream("latest-per-key", 40, 4, {"superseded": ((1, 37),)}),
    "ticks": Stream("keep-last:5", 20, 0, {"expired": ((1, 16),)}),
    "tagged": Stream("keep-all", 9, 0, tags=True),
    "kept": Stream(f"keep-for:{YEARS_S}s", 6, 2),
    "metrics": Stream("keep-all", 7, 0, delivery="nakcast"),
    "reborn": Stream("keep-all", 4, named=1),  # the second of that name
}
GONE = "gone"  # was deleted
NAMED_AT = 16  # the named subscription "worker" has dealt with all of orders.eu below
PUBLISHER = "invoices"  # a named publisher: its event 1 is the last one of "reborn"


def key_of(stream: Stream, seq: int) -> bytes | None:
    return b"k%d" % (seq % stream.keys) if stream.keys else None


def tag_of(stream: Stream, seq: int) -> bytes | None:
    return b"third" if stream.tags and seq % 3 == 0 else None


def value_of(name: str, seq: int) -> bytes:
    return f"{name} {seq}".encode() + b"." * (seq % 7)


@asynccontextmanager
async def region(folder: Path) -> AsyncIterator[tuple[str, list[RegionServer]]]:
    """The servers of the region on the data in `folder`; its url, and the replicas."""
    ports = free_ports(3)
    places = dict(zip(NODES, (f"127.0.0.1:{port}" for port in ports), strict=True))
    replicas = {name: places[name] for name in NODES[:2]}
    servers = []
    async with AsyncExitStack() as stack:
        for name, place in places.items():
            own = {"role": "witness"} if name == "witness" else {"name": name}
            node = {"region": "east", "listen": place, "http": "", "data_dir": str(folder / name)}
            regions = {"east": {"replicas": replicas, "witness": places["witness"]}}
            config = build({"node": {**own, **node}, "regions": regions, **SETTINGS})
            server = RegionServer(config)
            await server.start()
            stack.push_async_callback(server.drain)
            servers.append(server)
        while any(map(not_ready, servers)):
            await asyncio.sleep(0.01)
        yield "surecast://" + ",".join(replicas.values()), servers[:2]


async def write(client: Client, servers: list[RegionServer]) -> None:
    """All that `PLAN` says, then wait until the disks have it as ranges."""
    for name in (GONE, "reborn"):
        doomed = await client.stream(name)
        await doomed.publish_many([b"doomed"] * 3)
        await doomed.delete()
    for name, plan in PLAN.items():
        stream = await client.stream(name, retain=plan.retain, delivery=plan.delivery)
        seqs = range(1, plan.events + 1)
        for some in (seqs[: plan.events // 2], seqs[plan.events // 2 :]):
            await stream.publish_many(
                [value_of(name, seq) for seq in some],
                keys=[key_of(plan, seq) for seq in some],
                tags=[tag_of(plan, seq) for seq in some] if plan.tags else None,
            )
    orders = await client.stream("orders.eu")
    assert await orders.collect(surecast.before_seq(11)) == 31
    await _subscribe(client)
    await _compacted(servers)
    line = (await client.stream("reborn")).named(PUBLISHER, 1)
    assert await line.publish(value_of("reborn", 5)) == 5


# ---------------------------------------------------------------- a region of one

LOCAL = {
    "settings": Stream("latest-per-key", 12, 3, {"superseded": ((1, 10),)}),
    "log": Stream("keep-last:4", 10, 0, {"expired": ((1, 7),)}),
}


@asynccontextmanager
async def recorded(data: Path, folder: Path) -> AsyncIterator[Client]:
    """The region of `surecast.local(data)`; what its nodes are told is recorded in `folder`."""
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    node = {"name": "local-1", "region": "local", "listen": listen, "http": ""}
    node |= {"data_dir": str(data), "record": str(folder)}
    server = RegionServer(
        build({"node": node, "regions": {"local": {"replicas": {"local-1": listen}}}})
    )
    await server.start()
    try:
        async with surecast.connect(f"surecast://{listen}") as client:
            yield client
    finally:
        await server.drain()


async def write_local(client: Client) -> None:
    for name, plan in LOCAL.items():
        stream = await client.stream(name, retain=plan.retain)
        seqs = range(1, plan.events + 1)
        keys = [key_of(plan, seq) for seq in seqs]
        await stream.publish_many([value_of(name, seq) for seq in seqs], keys=keys)
    sub = (await client.stream("log")).subscribe(start="earliest", name="reader", ack="manual")
    async for event in sub:
        if event.seq == 8:
            await sub.ack(event)
            break
    await sub.close()


# ---------------------------------------------------------------- inside


async def _subscribe(client: Client) -> None:
    for name in ("worker", "former"):
        sub = client.subscribe("orders.>", start="earliest", name=name, ack="manual")
        async for event in sub:
            if event.seq == NAMED_AT - 1:
                await sub.ack(event)
                break
        await sub.close()
    await client.delete_subscription("former")


async def _compacted(servers: list[RegionServer]) -> None:
    """Both disks have void ranges of each reason, and segments."""
    for server in servers:
        assert server.replica is not None
        store = server.replica.store
        while True:
            found = set()
            for info in server.streams.directory.by_id.values():  # type: ignore[attr-defined]
                end = store.disk.end(info.stream_id)
                for batch in store.disk.read(info.stream_id, 1, end, 1 << 30):
                    found.add(batch.reason)
            if found >= {0, 1, 2, 3}:
                break
            await asyncio.sleep(0.05)


async def found_in(client: Client, name: str) -> dict[str, Any]:
    """What a reader is given of a stream: events by position, and the reason of all others."""
    stream = await client.stream(name, create=False)
    events: dict[int, tuple[bytes | None, bytes, bytes | None]] = {}
    void: dict[int, str] = {}
    async for event in stream.subscribe(start="earliest", stop="latest", voids=True):
        if event.kind == "event":
            events[event.seq] = (event.key, event.value, event.tag)
        else:
            assert event.kind == "void", event
            void.update(dict.fromkeys(event.range, event.reason))
    return {"events": events, "void": void, "delivery": stream.delivery}
