"""Changes of a stream's schema: what clients publish and read before, during and after one."""

import asyncio
from typing import Any

import pyarrow as pa
import pytest

import surecast
import surecast.sync
from surecast.client import subscription_task
from surecast.client.arrow import record_batch_schema
from surecast.client.table import SMALL_MAX
from surecast.columns.schema import read_schema
from surecast.core.endpoint import Failed
from surecast.endpoint import endpoint
from surecast.endpoint.attributes import writer_of
from surecast.endpoint.endpoint import Endpoint
from surecast.errors import (
    NotSupported,
    PublishError,
    StreamConfigMismatch,
    StreamDeleted,
    UsageError,
)
from tests.client.stage import Regions, play, until

FIRST = "sym string not null, px float64"
MORE = FIRST + ", venue string"
MOST = MORE + ", qty int64"


async def attributes(stream: surecast.Stream, **more: Any) -> list[dict[str, Any]]:
    events = stream.subscribe(start="earliest", stop="latest", **more)
    return [event.attributes async for event in events]


def test_a_schema_is_changed_in_every_region_and_old_programs_go_on() -> None:
    async def scenario() -> None:
        async with (
            Regions(east=2, west=1) as regions,
            regions.client("east") as east,
            regions.client("east") as old,
            regions.client("west") as west,
        ):
            stream = await east.stream("trades", schema=FIRST)
            assert await stream.publish({"sym": "a", "px": 1.0}) == 1
            async with asyncio.timeout(20):
                while not await west.streams("trades"):
                    await asyncio.sleep(0.01)
            before, reading = await old.stream("trades"), await west.stream("trades")
            live = reading.subscribe(start="earliest")
            event = await anext(live)
            assert event.attributes == {"sym": "a", "px": 1.0}
            # The change is requested in a region that does not own the stream.
            assert await reading.change(schema=MORE) == 2
            assert reading.schema == (await west.stream("trades")).schema == arrow(MORE)
            (info,) = await west.streams("trades")
            assert info.schema == MORE
            assert await reading.publish({"sym": "b", "venue": "NY"}) == 3
            # A program that opened the stream earlier publishes by the schema that it knows ...
            assert before.schema == arrow(FIRST)
            assert await before.publish({"sym": "c", "px": 3.0}) == 4
            with pytest.raises(UsageError, match="the schema has no column 'venue'"):
                await before.publish({"sym": "d", "venue": "LA"})
            # ... and reads the new fields.
            expected = [
                {"sym": "a", "px": 1.0, "venue": None},
                {"sym": "b", "px": None, "venue": "NY"},
                {"sym": "c", "px": 3.0, "venue": None},
            ]
            late = before.subscribe(start=3)  # after the change: the region is asked for the names
            assert [(await anext(late)).attributes for _ in range(2)] == expected[1:]
            assert (await before.read(start=3)).column("attributes").to_pylist() == expected[1:]
            # An event published by an earlier version of the schema has null in the new field.
            async with asyncio.timeout(20):
                assert [(await anext(live)).attributes for _ in range(2)] == expected[1:]
            for client in (east, west):
                opened = await client.stream("trades", schema=FIRST)  # an earlier version fits
                assert await attributes(opened) == expected
                assert await attributes(await client.stream("trades", schema=MORE)) == expected
            assert await old.stream("trades", create=False)
            assert await before.publish({"sym": "d", "venue": "LA"}) == 5

    play(scenario)


def arrow(text: str) -> pa.Schema:
    return read_schema(text).arrow()


def test_a_change_only_adds_nullable_fields_at_the_end() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s", schema=FIRST)
            for schema, words in (
                ("sym string not null", "the field 'px' is missing"),
                ("px float64, sym string not null", "the field 'px' has another place|'sym' has"),
                ("sym string not null, venue string, px float64", "'px' has another place"),
                ("sym string not null, px float32", "'px' is float64, and cannot become float32"),
                ("sym string not null, px float64 not null", "'px' may be null, and cannot become"),
                ("sym string, px float64", "'sym' is not null, and cannot become nullable"),
                (FIRST + ", n int64 not null", "the new field 'n' is not null"),
                ("sym string not null, price float64", "the field 'px' is missing"),
            ):
                with pytest.raises(StreamConfigMismatch, match=words) as caught:
                    await stream.change(schema=schema)
                assert repr(FIRST) in str(caught.value), "the error shows the current schema"
            with pytest.raises(UsageError, match="'int65' where a type"):
                await stream.change(schema="n int65")
            with pytest.raises(UsageError, match="the whole new schema"):
                await stream.change(schema="")
            wide = FIRST + "".join(f", a_rather_long_name_{n} int64" for n in range(190))
            with pytest.raises(UsageError, match="would be too long"):
                await stream.change(schema=wide)
            assert await stream.publish({"sym": "x"}) == 1, "nothing was changed"
            plain = await client.stream("plain")
            with pytest.raises(StreamConfigMismatch, match="created without a schema"):
                await plain.change(schema=FIRST)
            # The same change again is no change.
            assert await stream.change(schema=read_schema(MORE).arrow()) == 2
            assert await stream.change(schema=MORE) is None
            with pytest.raises(StreamConfigMismatch, match="'venue' is missing"):
                await stream.change(schema=FIRST)
            with pytest.raises(
                StreamConfigMismatch, match=r"await stream\.change\(schema=\.\.\.\)"
            ):
                await client.stream("s", schema=MOST)
            with pytest.raises(StreamConfigMismatch, match="the field 'px' is missing"):
                await client.stream("s", schema="sym string not null")
            assert await stream.change(schema=MOST) == 3

    play(scenario)


def test_of_two_changes_at_the_same_time_one_wins_and_the_other_gets_its_schema() -> None:
    async def scenario() -> None:
        async with (
            Regions(east=2, west=1) as regions,
            regions.client("east") as east,
            regions.client("west") as west,
        ):
            stream = await east.stream("s", schema=FIRST)
            async with asyncio.timeout(20):
                while not await west.streams("s"):
                    await asyncio.sleep(0.01)
            there = await west.stream("s")
            wanted = (FIRST + ", a int64", FIRST + ", b int64")
            results = await asyncio.gather(
                stream.change(schema=wanted[0]),
                there.change(schema=wanted[1]),
                return_exceptions=True,
            )
            (winner,) = [at for at, result in enumerate(results) if result == 1]
            problem = results[1 - winner]
            assert isinstance(problem, StreamConfigMismatch)
            assert repr(wanted[winner]) in str(problem)
            # A change that extends the first is accepted, whenever it comes.
            both = wanted[winner] + ", c int8"
            results = await asyncio.gather(stream.change(schema=both), there.change(schema=both))
            assert sorted(results, key=str) in ([2, None], [2, 2])
            (info,) = await west.streams("s")
            assert info.schema == both

    play(scenario)


def test_a_refused_change_does_not_fail_events_that_are_published_meanwhile() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s", schema=FIRST)
            wide = FIRST + "".join(f", a_rather_long_name_{n} int64" for n in range(190))
            change = asyncio.ensure_future(stream.change(schema=wide))
            published = []
            while not change.done():
                published.append(asyncio.ensure_future(stream.publish({"sym": "x"})))
                await asyncio.sleep(0)
            with pytest.raises(UsageError, match="too long"):
                await change
            await asyncio.gather(*published)
            assert len(await attributes(stream)) == len(published)

    play(scenario)


def test_a_reader_takes_the_schema_from_the_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if only events of the earlier version follow. It does not ask the region."""

    async def scenario() -> None:
        async with (
            Regions(east=1) as regions,
            regions.client("east") as client,
            regions.client("east") as other,
        ):
            stream, before = await client.stream("s", schema=FIRST), await other.stream("s")
            reader = before.subscribe(start="earliest")
            await reader.ready()
            await stream.change(schema=MORE)
            await before.publish({"sym": "a"})
            monkeypatch.delattr(Endpoint, "current")
            assert (await anext(reader)).attributes == {"sym": "a", "px": None, "venue": None}
            await stream.publish({"sym": "b", "venue": "NY"})
            assert (await anext(reader)).attributes == {"sym": "b", "px": None, "venue": "NY"}

    play(scenario)


def test_a_change_returns_when_the_client_s_region_knows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s", schema=FIRST)
            (info,) = await client.streams("s")
            asked = 0
            current = Endpoint.current

            async def late(self: Endpoint, stream: bytes, name: str) -> surecast.StreamInfo | None:
                nonlocal asked
                asked += 1
                return info if asked < 4 else await current(self, stream, name)

            monkeypatch.setattr(Endpoint, "current", late)
            assert await stream.change(schema=MORE) == 1
            assert asked == 4

    play(scenario)


def test_rows_that_were_checked_before_a_change_are_published_after_it() -> None:
    async def scenario() -> None:
        options = surecast.ClientOptions(
            event_bytes_max=2000, batch_bytes_max=2000, outbox_bytes_max=4000
        )
        async with surecast.local(options=options) as client:
            stream = await client.stream("s", schema=FIRST)
            waiting = [asyncio.ensure_future(stream.publish({"sym": "x" * 900})) for _ in range(30)]
            await asyncio.sleep(0)
            await stream.change(schema=MORE)
            await asyncio.gather(*waiting, stream.publish({"sym": "y", "venue": "NY"}))
            found = await attributes(stream)
            assert [row["venue"] for row in found] == [None] * 30 + ["NY"]

    play(scenario)


def test_tables_and_batches_have_the_fields_that_are_known_at_their_positions() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s", schema=FIRST)
            first = stream.subscribe(start="earliest").batches()
            table = pa.table({"sym": ["a", "b"], "px": [1.0, None]})
            await stream.publish_many(table)
            batch = await anext(first)
            assert batch.schema == record_batch_schema(False, read_schema(FIRST))
            await stream.change(schema=MORE)
            await stream.publish_many(table.append_column("venue", [["NY", None]]))
            batch = await anext(first)
            batch.validate(full=True)
            assert batch.schema == record_batch_schema(False, read_schema(MORE))
            assert batch.column("attributes").field("venue").to_pylist() == ["NY", None]
            # `read` and later subscriptions: every batch has the current schema.
            for voids in (False, True):
                whole = await stream.read(voids=voids)
                whole.validate(full=True)
                assert whole.schema == record_batch_schema(voids, read_schema(MORE))
                rows = [row["attributes"] for row in whole.to_pylist()]
                rows = [row for row in rows if row is not None]
                assert [row["venue"] for row in rows] == [None, None, "NY", None]
            assert whole.column("kind").to_pylist()[2] == "void"  # the position of the change
            assert whole.column("reason").to_pylist()[2] == "control"

    play(scenario)


def test_a_table_read_across_a_change_has_the_last_schema() -> None:
    """The subscription of `read` begins before the change: earlier batches are extended."""

    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s", schema=FIRST)
            for n in range(3):
                await stream.publish({"sym": f"{n}"})
            for voids in (False, True):
                end = 5 if not voids else 8
                await stream.publish_many([{"sym": "large"}] * SMALL_MAX)
                await stream.publish({"sym": "small"})
                reading = asyncio.ensure_future(
                    stream.read(stop=10 * SMALL_MAX if voids else 5 * SMALL_MAX, voids=voids)
                )
                await asyncio.sleep(0.05)  # it has read what there is
                await stream.change(schema=MOST if voids else MORE)
                while not reading.done():
                    await stream.publish_many(
                        [{"sym": f"{n}", "venue": f"{end}"} for n in range(99)]
                    )
                whole = await reading
                whole.validate(full=True)
                wanted = record_batch_schema(voids, read_schema(MOST if voids else MORE))
                assert whole.schema == wanted
                attributes = whole.column("attributes").combine_chunks()
                assert attributes.field("sym").to_pylist()[:3] == ["0", "1", "2"]
                assert attributes.field("venue").to_pylist()[:3] == [None] * 3
                assert attributes.field("venue").to_pylist()[-1] == f"{end}"

    play(scenario)


def test_streams_of_every_delivery_can_be_changed() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("n", schema=FIRST, delivery="nakcast")
            reader = stream.subscribe(start="earliest")
            await stream.publish({"sym": "a"})
            assert (await anext(reader)).attributes == {"sym": "a", "px": None}
            assert await stream.change(schema=MORE) == 2
            await stream.publish({"sym": "b", "venue": "NY"})
            assert (await anext(reader)).attributes == {"sym": "b", "px": None, "venue": "NY"}
            late = stream.subscribe(start=3)
            assert (await anext(late)).attributes == {"sym": "b", "px": None, "venue": "NY"}

    play(scenario)


def test_a_mesh_reader_reads_across_a_change() -> None:
    async def scenario() -> None:
        async with (
            Regions(east=1) as regions,
            regions.client("east") as client,
            regions.client("east", mesh=True) as mesh,
        ):
            stream = await client.stream("s", schema=FIRST)
            await stream.publish({"sym": "a"})
            opened = await mesh.stream("s")
            reader = opened.subscribe(start="earliest")
            async with asyncio.timeout(20):
                assert (await anext(reader)).attributes == {"sym": "a", "px": None}
                await stream.change(schema=MORE)
                await stream.publish({"sym": "b", "venue": "NY"})
                found = (await anext(reader)).attributes
                assert found == {"sym": "b", "px": None, "venue": "NY"}
                late = opened.subscribe(start=3)
                assert (await anext(late)).attributes == found

    play(scenario)


def test_a_schema_is_changed_without_await() -> None:
    with surecast.sync.local() as client:
        stream = client.stream("s", schema=FIRST)
        stream.publish_soon({"sym": "a"})
        client.flush()
        assert stream.change(schema=MORE) == 2
        assert stream.schema == arrow(MORE)
        stream.publish_soon({"sym": "b", "venue": "NY"})
        client.flush()
        found = [event.attributes for event in stream.subscribe(start="earliest", stop="latest")]
        assert [row["venue"] for row in found] == [None, "NY"]


def test_a_region_with_a_server_of_an_earlier_version_refuses_schemas() -> None:
    async def scenario() -> None:
        async with Regions(east=2) as regions, regions.client("east") as client:
            stream = await client.stream("s", schema=FIRST)
            await stream.publish({"sym": "a"})
            await regions.kill("east-2")
            await regions.start("east-2", lacks=("typed",))
            await until(lambda: "typed" not in regions.layer("east-1").speaks["east-2"])
            with pytest.raises(NotSupported, match="earlier version"):
                await stream.change(schema=MORE)
            with pytest.raises(NotSupported, match="earlier version"):
                await client.stream("t", schema=FIRST)
            await client.stream("plain")
            await regions.kill("east-2")
            await regions.start("east-2")
            await until(lambda: "typed" in regions.layer("east-1").speaks["east-2"])
            assert await stream.change(schema=MORE) is not None

    play(scenario)


def test_columns_whose_names_no_server_knows_are_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The stream was deleted while its last events were on their way."""
    asked: list[str] = []

    async def nothing(_endpoint: Endpoint, _stream: bytes, name: str) -> None:
        asked.append(name)

    async def scenario() -> None:
        async with (
            Regions(east=1) as regions,
            regions.client("east") as client,
            regions.client("east") as other,
        ):
            stream, before = await client.stream("s", schema=FIRST), await other.stream("s")
            await stream.change(schema=MORE)
            await stream.publish({"sym": "a", "venue": "NY"})
            monkeypatch.setattr(Endpoint, "current", nothing)
            monkeypatch.setattr(subscription_task, "ASK_AGAIN_S", 0.001)
            event = await anext(before.subscribe(start=2))
            assert event.attributes == {"sym": "a", "px": None}
            assert len(event.fields) == 2
            assert asked == ["s"] * subscription_task.UNLISTED_MAX
            assert "the schema of 's' is not known any more" in caplog.text

    play(scenario)


def test_a_program_whose_columns_the_region_has_lost_opens_the_stream_again() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s", schema=FIRST)
            writer = writer_of(MORE)
            assert writer is not None
            stream._outbox.take_schema(writer)  # as if a change had been made and lost
            with pytest.raises(PublishError, match=r"has lost the change .* Open the stream again"):
                await stream.publish({"sym": "a", "venue": "NY"})
            again = await client.stream("s")
            assert again.schema == arrow(FIRST)
            assert await again.publish({"sym": "a"}) == 1

    play(scenario)


def test_named_publishers_use_the_current_schema() -> None:
    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s", schema=FIRST)
            line = stream.named("line", 1)
            await line.publish({"sym": "a"})
            assert await line.change(schema=MORE) == 2
            await line.publish({"sym": "b", "venue": "NY"})
            assert stream.schema == line.schema == arrow(MORE)
            await stream.named("other", 1).publish({"sym": "c", "venue": "LA"})
            found = await attributes(stream)
            assert [row["venue"] for row in found] == [None, "NY", "LA"]

    play(scenario)


@pytest.mark.parametrize(
    ("why", "kind", "words"),
    [
        ("schema-differs", StreamConfigMismatch, "by another client at the same time"),
        ("no-schemas", NotSupported, "upgrade them, then change the schema of 's'"),
        ("bad-event", NotSupported, "cannot change schemas: upgrade"),
        ("bad-spec", UsageError, "too long"),
        ("quarantined", PublishError, "damaged"),
        ("deleted", StreamDeleted, "'s' was deleted"),
    ],
)
def test_every_refusal_of_a_change_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, why: str, kind: type[Exception], words: str
) -> None:
    async def refused(_endpoint: Endpoint, info: surecast.StreamInfo, _schema: str) -> Failed:
        return Failed(info.stream_id, 1, why)

    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await client.stream("s", schema=FIRST)
            monkeypatch.setattr(Endpoint, "_publish_change", refused)
            monkeypatch.setattr(endpoint, "KNOWN_S", 0.1)
            with pytest.raises(kind, match=words):
                await stream.change(schema=MORE)
            assert stream.schema == arrow(FIRST)

    play(scenario)
