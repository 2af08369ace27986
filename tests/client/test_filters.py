"""Subscriptions with a filter, over real sockets: exactly the events that the twin accepts."""

import asyncio
from fractions import Fraction
from random import Random
from typing import Any

import pytest

import surecast
from surecast import sync
from surecast.client.events import Event
from surecast.columns.batch import Batch
from surecast.columns.schema import parse_schema
from surecast.endpoint.ranges import RangeReader
from surecast.errors import FilterError, UsageError
from surecast.where.text import TEXT_MAX, parse, shown
from surecast.where.tree import Node
from tests.client.stage import Regions, play, until
from tests.where.drawn import node
from tests.where.twin import accepts

SCHEMA = "sym string, qty int64, px float32, hot bool"
SYMS = ["IBM", "AAPL", "ü", "", None]


def row(rng: Random) -> dict[str, Any]:
    return {
        "sym": rng.choice(SYMS),
        "qty": rng.choice([None, 0, 7, 100, 2**53 + 1, -1]),
        "px": rng.choice([None, 0.5, float("nan"), -0.0, 100.5]),
        "hot": rng.choice([None, True, False]),
        "key": rng.choice([None, b"", b"user:1", b"user:12"]),
    }


def passes(tree: Node, event: dict[str, Any], time_ns: int) -> bool:
    return accepts(tree, event | {"time": Fraction(time_ns, 10**9)})


async def take(sub: Any, count: int) -> list[Event]:
    return [await sub.next(timeout=30) for _ in range(count)]


async def publish(stream: Any, rows: list[dict[str, Any]]) -> None:
    """Publish rows in batches of different sizes."""
    at = 0
    for size in [1, 1, 3, 100, 2, 300, *[50] * 1000]:
        if at >= len(rows):
            return
        await stream.publish_many(rows[at : at + size])
        at += size


@pytest.mark.parametrize("mesh", [False, True])
def test_readers_get_exactly_the_events_that_pass_random_filters(mesh: bool) -> None:
    rng = Random(7)
    rows = [row(rng) for _ in range(600)]

    async def scenario() -> None:
        async with Regions(east=2, west=1, owners={"": "west"}) as regions:
            client = await regions.client("east", mesh=mesh)
            stream = await client.stream("trades", schema=SCHEMA)
            schema = parse_schema(SCHEMA)
            await publish(stream, rows[:400])
            trees = [node(rng, schema, 3) for _ in range(3 if mesh else 6)]
            live = [stream.subscribe(401, where=shown(tree), voids=True) for tree in trees[:3]]
            await publish(stream, rows[400:])
            times = [0, *[event.time_ns async for event in stream.subscribe(1, stop=601)]]
            for tree in trees:
                wanted = [seq for seq in range(1, 601) if passes(tree, rows[seq - 1], times[seq])]
                where = shown(tree)
                found = [event async for event in stream.subscribe(1, stop=601, where=where)]
                assert [event.seq for event in found] == wanted, where
                for event in found:
                    assert repr(event.attributes) == repr(expected(rows[event.seq - 1]))
                tables = stream.subscribe(1, stop=601, where=where).batches(voids=True)
                seqs, covered = [], 0
                async for table in tables:
                    kinds, at = table.column("kind").to_pylist(), table.column("seq").to_pylist()
                    seqs += [seq for seq, kind in zip(at, kinds, strict=True) if kind == "event"]
                    covered += sum(table.column("range").to_pylist())
                    reasons = set(table.column("reason").to_pylist())
                    assert reasons <= {None, "filtered"}
                assert (seqs, covered) == (wanted, 600)
            for sub, tree in zip(live, trees, strict=False):
                positions: list[int] = []
                got = []
                while not positions or positions[-1] < 600:
                    event = await sub.next(timeout=30)
                    positions += event.range
                    if event.kind == "event":
                        got.append(event.seq)
                    else:
                        assert event.reason == "filtered"
                assert positions == list(range(401, 601))
                assert got == [
                    seq for seq in range(401, 601) if passes(tree, rows[seq - 1], times[seq])
                ]
                assert sub.matched == len(got)
                assert sub.filtered == 200 - len(got)
            await client.close()

    play(scenario)


def expected(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name != "key"}


def test_the_server_sends_only_what_passes() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            await stream.publish_many([b"x" * 100] * 1000, keys=[b"%d" % n for n in range(1000)])
            counters = regions.layer("east-1").counters
            sub = stream.subscribe(1, stop="latest", where="key in ('5', '500')")
            assert [event.seq async for event in sub] == [6, 501]
            table = await stream.read(where="key == '7'")
            assert table.column("seq").to_pylist() == [8]
            assert (await stream.read(where="key == 'x'")).num_rows == 0
            assert counters["streams.matched"] == 3
            assert counters["streams.filtered"] == 998 + 999 + 1000
            assert regions.layer("east-1").serving.count == 0

    play(scenario)


def test_void_positions_have_the_reason_why_they_are_void() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s", retain=surecast.latest_per_key())
            await stream.publish_many([b"1"] * 4, keys=[b"a", b"b", b"c", b"d"])
            await stream.publish_many([b"2"] * 2, keys=[b"a", b"c"])
            await stream.collect(surecast.key_is(b"d"))
            await until(lambda: regions.layer("east-1").streams[stream.stream_id].index.end >= 8)
            wanted = [
                ("superseded", 1), ("filtered", 1), ("superseded", 1), ("collected", 1),
                ("", 1), ("filtered", 1), ("control", 1),
            ]  # fmt: skip

            async def read(**more: Any) -> list[Event]:
                return [event async for event in stream.subscribe(1, stop=8, **more)]

            await asyncio.sleep(0.3)  # events newer than settle_ns are sent as they were published
            found = await read(where="key == 'a'", voids=True)
            assert [(event.reason, event.count) for event in found] == wanted
            rows = []
            sub = stream.subscribe(1, stop=8, where="key == 'a'")
            async for table in sub.batches(voids=True):
                reasons = table.column("reason").to_pylist()
                rows += [(why or "", count) for why, count in zip(
                    reasons, table.column("range").to_pylist(), strict=True
                )]  # fmt: skip
            assert rows == wanted
            # Which event is the latest of its key is decided before the filter.
            assert [event.value for event in await read(where="key == 'a'")] == [b"2"]

    play(scenario)


def test_a_filter_that_is_not_valid_is_refused_with_column_and_position() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("trades", schema=SCHEMA)
            for where, why in (
                ("sim == 'IBM'", r"no column 'sim'.*did you mean 'sym'.*at character 1 of"),
                ("qty > 1 and sym > 5", r"sym is a string.*at character 13"),
                ("qty >", "the end of the filter"),
                ("", "the filter is empty"),
                ("x" * (TEXT_MAX + 1), "at most 16,384"),
                ("key == '\ud800'", "character"),
            ):
                for subscribe in (stream.subscribe, lambda **kw: client.subscribe("a.>", **kw)):
                    if subscribe == stream.subscribe or "sy" not in why:
                        with pytest.raises(FilterError, match=why):
                            subscribe(where=where)
            for wrong in (5, b"x", ["a"]):
                with pytest.raises(UsageError, match="where= is text"):
                    stream.subscribe(where=wrong)
            sub = stream.subscribe(where="qty > 1")
            with pytest.raises(FilterError, match="no column 'sim'"):
                await sub.change(where="sim == 'IBM'")
            assert sub.where == "qty > 1"
            await sub.close()
            with pytest.raises(UsageError, match="has ended"):
                await sub.change(where="qty > 2")

    play(scenario)


def test_a_pattern_needs_the_columns_in_every_stream_and_the_error_names_the_stream() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            await client.stream("trades.eu", schema="sym string, qty int64")
            await client.stream("trades.us", schema="qty int64, sym string")
            plain = await client.stream("trades")
            for region in ("eu", "us"):
                stream = await client.stream(f"trades.{region}")
                await stream.publish_many([{"sym": "IBM", "qty": n} for n in range(5)])
            sub = client.subscribe("trades.*", start="earliest", where="qty == 3")
            assert {(event.stream, event.seq) for event in await take(sub, 2)} == {
                ("trades.eu", 4), ("trades.us", 4),
            }  # fmt: skip
            begins = await sub.change(where="sym == 'IBM' and qty > 5")
            assert begins == {"trades.eu": 6, "trades.us": 6}
            for region in ("eu", "us"):
                stream = await client.stream(f"trades.{region}")
                await stream.publish_many([{"sym": "IBM", "qty": n} for n in range(5, 7)])
            assert {event.stream for event in await take(sub, 2)} == {"trades.eu", "trades.us"}
            await client.stream("trades.asia", schema="symbol string")
            with pytest.raises(UsageError, match=r"stream 'trades\.asia': there is no column 's"):
                await sub.next(timeout=30)
            wide = client.subscribe(">", start="earliest", where="qty == 3")
            with pytest.raises(UsageError, match="stream 'trades': there is no column 'qty'"):
                await take(wide, 3)
            await plain.publish(b"1", key=b"k")
            keys = client.subscribe("trades", start="earliest", where="key == 'k'")
            assert (await keys.next(timeout=30)).value == b"1"

    play(scenario)


def test_changes_under_load_leave_no_event_out_and_deliver_none_twice() -> None:
    rng = Random(3)
    filters = ["qty == 0", "qty in (1, 2)", "qty > 2", "not qty == 3", None, "qty == 4"]

    def passes(where: str | None, qty: int) -> bool:
        return where is None or accepts(parse(where), {"qty": qty})

    async def scenario() -> None:
        async with Regions(east=2) as regions:
            client = await regions.client("east", buffer_bytes_max=4000)
            writer = await regions.client("east")
            stream = await client.stream("s", schema="qty int64")
            out = await writer.stream("s")
            qtys = [rng.randrange(5) for _ in range(3000)]

            async def write() -> None:
                at = 0
                while at < len(qtys):
                    count = rng.randint(1, 40)
                    await out.publish_many([{"qty": qty} for qty in qtys[at : at + count]])
                    at += count

            writing = asyncio.create_task(write())
            sub = stream.subscribe(1, where=filters[0], voids=True)
            rules: list[tuple[int, str | None]] = [(1, filters[0])]
            got: list[Event] = []
            at = 1
            while at <= len(qtys):
                if rng.random() < 0.15:
                    where = rng.choice(filters)
                    rules.append(((await sub.change(where=where))["s"], where))
                if len(got) == 100:
                    await regions.restart("east-2")
                got.append(await sub.next(timeout=30))
                at = got[-1].seq + 1
            await writing
            for event in got:
                rule = [where for begin, where in rules if begin <= event.range.start][-1]
                for seq in event.range:
                    assert passes(rule, qtys[seq - 1]) == (event.kind == "event")
            assert [seq for event in got for seq in event.range] == list(range(1, at))
            assert len(rules) > 20
            await client.close()
            await writer.close()

    play(scenario)


def test_a_named_subscription_moves_over_events_that_do_not_pass() -> None:
    """B11: a reader whose filter no event passes saves its position nevertheless. The place is a
    position only: with another filter the subscription continues there."""

    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s")

            for ack in ("auto", "manual"):
                name: Any = f"n-{ack}"
                end = (await client.ends("s"))[0][1] if ack == "manual" else 1
                sub = stream.subscribe(end, name=name, ack=ack, where="key == 'yes'")  # type: ignore[arg-type]
                await sub.ready()
                await stream.publish(b"", key=b"yes")
                event = await sub.next(timeout=30)
                if ack == "manual":
                    await sub.ack(event)
                waits = asyncio.ensure_future(sub.next())
                for _ in range(5):
                    await stream.publish_many([b""] * 100, keys=[b"no"] * 100)
                end = event.seq + 501

                async def at(name: str = name) -> int:
                    found = [i for i in await client.subscriptions() if i.name == name]
                    return found[0].positions[0].seq

                for _ in range(400):
                    if await at() >= end - 100:
                        break
                    await asyncio.sleep(0.05)
                assert await at() >= end - 100
                waits.cancel()
                await asyncio.wait([waits])
                await sub.close()
                again = stream.subscribe(1, name=name, where="key == 'no'")
                first = await again.next(timeout=30) if await at() < end else None
                assert first is None or first.seq >= end - 100
                await again.close()

    play(scenario)


def test_the_sync_client_reads_with_a_filter_and_changes_it() -> None:
    with sync.local() as client:
        stream = client.stream("s", schema="qty int64")
        stream.publish_many([{"qty": n} for n in range(100)])
        sub = stream.subscribe(1, stop="latest", where="qty > 10 and qty < 15")
        assert next(sub).attributes == {"qty": 11}
        assert (sub.where, sub.matched) == ("qty > 10 and qty < 15", 1)
        assert sub.change(where="qty in (12, 97)") == {"s": 13}
        assert [event.attributes["qty"] for event in sub] == [12, 97]
        assert sub.filtered >= 80


def test_a_client_filters_by_itself_where_the_server_does_not() -> None:
    """A server that refuses the filter, or does not know filters, sends all events."""

    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s", schema="qty int64")
            await stream.publish_many([{"qty": n} for n in range(100)])
            regions.layer("east-1").filtered.chars_max = 0  # refuses every filter
            sub = stream.subscribe(1, stop="latest", where="qty in (5, 50)", voids=True)
            found = [(event.kind, event.seq, event.count) async for event in sub]
            assert found == [
                ("void", 5, 5), ("event", 6, 1), ("void", 50, 44), ("event", 51, 1),
                ("void", 100, 49),
            ]  # fmt: skip
            assert regions.layer("east-1").counters["streams.filter-refused"] == 1

    play(scenario)


def test_two_subscriptions_of_one_client_have_their_own_filters() -> None:
    """A reader that a subscription has left is used by the next one, with another filter."""

    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            await stream.publish_many([b""] * 50, keys=[b"%d" % (n % 5) for n in range(50)])
            for number in range(30):
                where = f"key == '{number % 5}'" if number % 3 else None
                sub = stream.subscribe(1 + number % 7, where=where)
                event = await sub.next(timeout=30)
                assert where is None or event.key == b"%d" % (number % 5)
                assert where is not None or event.seq == 1 + number % 7
                await sub.close()

    play(scenario)


def test_ranges_are_read_with_a_filter_that_servers_apply() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s")
            for _ in range(10):
                await stream.publish_many([b"x" * 50] * 200, keys=[b"%d" % n for n in range(200)])
            address = ("127.0.0.1", regions.ports["east-1"])
            async with RangeReader([address]) as reader:
                for where, rows in (
                    ("key == '7'", 10),
                    ("key == 'x'", 0),
                    ("", 2000),
                    ("??", 2000),
                ):
                    found = 0
                    async for pieces in reader.read(stream.stream_id, 1, 2001, where):
                        found += sum(piece.rows for piece in pieces if isinstance(piece, Batch))
                    assert (found, pieces[-1].hi) == (rows, 2001), where

    play(scenario)


def test_a_filter_may_name_columns_that_were_added_to_the_schema() -> None:
    """Events that were published before have no value in them."""

    async def scenario() -> None:
        async with Regions(east=2) as regions, regions.client("east") as client:
            stream = await client.stream("s", schema="qty int64")
            await stream.publish_many([{"qty": n} for n in range(10)])
            sub = stream.subscribe(1, where="qty in (3, 11)")
            assert (await sub.next(timeout=30)).seq == 4
            await stream.change(schema="qty int64, venue string")
            await stream.publish_many([{"qty": 11, "venue": v} for v in ("x", "y", None)])
            assert (await sub.next(timeout=30)).seq == 12
            begins = await sub.change(where="venue == 'y' or not exists venue and qty == 11")
            assert begins == {"s": 13}
            assert [event.seq for event in await take(sub, 2)] == [13, 14]
            found = stream.subscribe(1, stop=15, where="exists venue")
            assert [event.seq async for event in found] == [12, 13]
            found = stream.subscribe(1, stop=15, where="not exists venue")
            assert [event.seq async for event in found] == [*range(1, 11), 14]

    play(scenario)
