"""A tour of the Python API, runnable: `python examples/tour.py [url]`.

Without a url it runs a region inside the program (`surecast.local()`); with a url it connects to
that region:

    surecast up &
    python examples/tour.py surecast://127.0.0.1:7400

Every run uses new streams, so it can be repeated.
"""

import asyncio
import secrets
import sys
from datetime import UTC, datetime, timedelta

import pyarrow as pa

import surecast


async def publish(client: surecast.Client, name: str) -> None:
    """Publish one event, many events at once, and events in the background."""
    stream = await client.stream(f"{name}.invalidate", retain=surecast.latest_per_key())
    seq = await stream.publish(b"", key=b"user:42")  # returns when every replica has stored it
    print(f"published one event at position {seq}")

    values = [b"%d" % n for n in range(10_000)]
    keys = [b"user:%d" % (n % 100) for n in range(10_000)]
    seqs = await stream.publish_many(values, keys=keys)
    print(f"published {len(seqs):,} events at positions {seqs.first:,} to {seqs.last:,}")

    table = pa.table({"value": [b"a", b"b"], "key": [b"user:1", None]})
    print(f"published an Arrow table at {await stream.publish_many(table)}")

    for n in range(1000):
        stream.publish_soon(b"x", key=b"user:%d" % n)  # batched in the background
    await client.flush()
    print("published 1,000 events in the background, all acknowledged")

    await stream.collect(surecast.before_seq(5_000))  # the publisher declares events obsolete
    print("declared everything below position 5,000 obsolete")


async def read(client: surecast.Client, name: str) -> None:
    """Read events, batches, tables, from a time, and by pattern."""
    stream = await client.stream(f"{name}.orders", retain=surecast.keep_for(timedelta(days=7)))
    before = datetime.now(UTC) - timedelta(minutes=1)
    seqs = await stream.publish_many([b"order %d" % n for n in range(1, 501)])

    async for event in stream.subscribe(start="earliest"):
        if event.seq == 3:
            print(f"{event.stream} {event.seq} {event.value!r}, accepted at {event.time:%H:%M:%S}")
            break

    rows = 0
    stop = seqs.last + 1  # a range is half-open: the first position that is not read
    async for batch in stream.subscribe(start=seqs.first, stop=stop).batches():
        rows += batch.num_rows  # pyarrow.RecordBatch
    print(f"read {rows} rows as Arrow batches")

    table = await stream.read(stop="latest", timeout=30)  # all events so far
    print(f"read {table.num_rows} rows as a table with columns {table.schema.names}")

    async for event in stream.subscribe(start=before):  # a time, by the owning region's clock
        print(f"the first event of the last minute: {event.value!r}")
        break

    async with client.subscribe(f"{name}.>", start="latest", voids=True) as everything:
        later = await client.stream(f"{name}.later")  # matches the pattern
        await later.publish(b"hello")
        async for event in everything:  # event.kind is "event" or "void" (with .range)
            print(f"by pattern: {event.kind} {event.stream} {event.seq} {event.value!r}")
            break


async def keep_place(client: surecast.Client, name: str) -> None:
    """Use a named subscription: the region saves its position, and the next client continues
    there."""
    stream = await client.stream(f"{name}.orders")
    async with stream.subscribe(start="earliest", name=f"billing-{name}", ack="manual") as sub:
        async for event in sub:
            if event.seq == 100:
                # Acknowledges all events up to this one; replicated when it returns.
                await sub.ack(event)
                break
    async with stream.subscribe(name=f"billing-{name}") as sub:  # for example after a restart
        async for event in sub:
            print(f"the subscription named billing continues at position {event.seq}")
            break


async def see_voids(client: surecast.Client, name: str) -> None:
    """Count events and void positions: obsolete events are not sent; their positions are void."""
    stream = await client.stream(f"{name}.invalidate")
    end = (await stream.publish_many([b"end"])).first
    async with asyncio.timeout(30):
        while True:  # recently published events are still sent, even if they are obsolete
            events = voids = 0
            async for event in stream.subscribe(start="earliest", stop=end + 1, voids=True):
                if event.kind == "void":
                    voids += len(event.range)
                else:
                    events += 1
            if events < 2_000:
                break
            await asyncio.sleep(0.1)
    assert events + voids == end
    print(f"of {end:,} positions {events:,} hold events, {voids:,} are void, none is lost")


async def tour(url: str | None) -> None:
    client = surecast.local() if url is None else surecast.connect(url)
    async with client:
        name = f"tour-{secrets.token_hex(4)}"
        print(f"connected to region {client.region!r}")
        await publish(client, name)
        await read(client, name)
        await keep_place(client, name)
        await see_voids(client, name)
        names = [info.name for info in await client.streams(f"{name}.*")]
        print(f"streams of this tour: {', '.join(names)}")


if __name__ == "__main__":
    asyncio.run(tour(sys.argv[1] if len(sys.argv) > 1 else None))
