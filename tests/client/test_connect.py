"""Connecting: urls, errors with remedies, other regions, servers that move."""

import asyncio
import dataclasses
import inspect
from datetime import timedelta
from typing import Any

import pytest

import surecast
from surecast.client.connection import Client
from surecast.core.endpoint import Place
from surecast.endpoint.discovery import Region, parse_url
from surecast.endpoint.options import ClientOptions
from surecast.endpoint.readers import Readers
from surecast.endpoint.region_link import RegionLink
from surecast.errors import (
    Closed,
    ConfigError,
    ConnectError,
    NotSupported,
    OwnerUnreachable,
    StreamConfigMismatch,
    UsageError,
    WrongToken,
)
from tests.client.stage import HOST, Regions, play, until
from tests.ports import free_ports


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("surecast://h:1", [("h", 1)]),
        ("surecast://h", [("h", 7400)]),
        ("surecast://h:1,i:2/", [("h", 1), ("i", 2)]),
        ("surecast://[::1]:5,[::1]", [("::1", 5), ("::1", 7400)]),
    ],
)
def test_urls_are_parsed(url: str, addresses: list[tuple[str, int]]) -> None:
    assert parse_url(url) == addresses


@pytest.mark.parametrize(
    "url",
    ["", "nats://h:1", "surecast://", "surecast://h:x", "surecast://h:0", "surecast://:5",
     "surecast://h:70000", "surecast://a:1,,b:2", "surecast://" + ",".join(["h:1"] * 65)],
)  # fmt: skip
def test_invalid_urls_are_refused(url: str) -> None:
    with pytest.raises(UsageError):
        surecast.connect(url)


def test_a_connection_error_names_each_address_and_a_remedy() -> None:
    async def scenario() -> None:
        (free,) = free_ports(1)

        async def mute(reader: Any, writer: Any) -> None:
            await reader.read()
            writer.close()

        async def rude(reader: Any, writer: Any) -> None:
            await reader.readexactly(100)
            writer.close()

        async def web(_reader: Any, writer: Any) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(200))

        servers = [await asyncio.start_server(serve, HOST, 0) for serve in (mute, rude, web)]
        ports = [server.sockets[0].getsockname()[1] for server in servers]
        impatient = ClientOptions(connect_timeout=0.1)
        with pytest.raises(ConnectError, match=f"{HOST}:{ports[0]} did not answer within 0.1 s"):
            await surecast.connect(f"surecast://{HOST}:{ports[0]}", options=impatient)
        addresses = ",".join(f"{HOST}:{port}" for port in (free, *ports[1:]))
        with pytest.raises(ConnectError) as caught:
            await surecast.connect(f"surecast://{addresses}")
        message = str(caught.value)
        for words in (
            f"{HOST}:{free} refused the connection",
            f"{HOST}:{ports[1]} c",  # closed it, or cannot be reached: it sent a reset
            f"{HOST}:{ports[2]} is an HTTP port",
            "`surecast up`",
        ):
            assert words in message
        for server in servers:
            server.close()

    play(scenario)


def test_an_unknown_host_is_a_connection_error() -> None:
    async def scenario() -> None:
        with pytest.raises(ConnectError, match=r"no\.such\.host\.invalid:1 (cannot|did not)"):
            await surecast.connect("surecast://no.such.host.invalid:1")
        with pytest.raises(ConnectError, match="cannot be reached"):
            await surecast.connect(f"surecast://{'x' * 70}:1")  # not a valid host name

    play(scenario)


def test_one_address_that_answers_is_enough() -> None:
    async def scenario() -> None:
        async with Regions(east=2) as regions:
            (free,) = free_ports(1)
            port = regions.ports["east-2"]
            url = f"surecast://{HOST}:{free},{HOST}:{port}"
            async with surecast.connect(url) as client:
                assert client.region == "east"
                assert await (await client.stream("s")).publish(b"x") == 1

    play(scenario)


def test_only_the_right_token_is_accepted() -> None:
    async def scenario() -> None:
        async with Regions(token="secret", east=1) as regions:
            for token, words in (("", "none was given"), ("guess", "refused by 127.0.0.1:")):
                with pytest.raises(WrongToken, match=f"wrong token: {words}") as caught:
                    await surecast.connect(regions.url("east"), token=token)
                assert "guess" not in str(caught.value)
            async with surecast.connect(regions.url("east"), token="secret") as client:
                stream = await client.stream("s")
                await stream.publish(b"x")
                assert (await anext(stream.subscribe(start=1))).value == b"x"

    play(scenario)


def test_a_client_must_be_opened_and_can_be_closed_twice() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions:
            client = regions.client("east")
            with pytest.raises(UsageError, match="await"):
                await client.stream("s")
            with pytest.raises(UsageError, match="await"):
                client.subscribe("s")
            assert await client is client
            async with client:
                await client.stream("s")
            await client.close()
            with pytest.raises(Closed):
                await client
            with pytest.raises(Closed):
                await client.flush()

    play(scenario)


@pytest.mark.parametrize(
    ("problem", "ended"),
    [
        (ZeroDivisionError, "ended with ZeroDivisionError"),
        (asyncio.CancelledError, "was cancelled"),
    ],
)
def test_an_exception_that_ends_the_client_block_is_not_hidden(
    caplog: pytest.LogCaptureFixture, problem: type[BaseException], ended: str
) -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions:

            async def block() -> None:
                async with regions.client("east", close_timeout=0.001) as client:
                    stream = await client.stream("s")
                    await regions.kill("east-1")
                    stream.publish_soon(b"x")
                    raise problem

            with pytest.raises(problem):
                await block()

    play(scenario)
    (said,) = [text for text in caplog.messages if "not acknowledged" in text]
    why = f"the client was closed because its `with` block {ended}: closed with 1 batch not"
    assert said.startswith(why)


# ------------------------------------------------------------ streams


def test_a_retention_mismatch_names_both_policies() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            await client.stream("s", retain=surecast.keep_for(timedelta(hours=1)))
            with pytest.raises(StreamConfigMismatch) as caught:
                await client.stream("s", retain=surecast.latest_per_key())
            assert "has retain=keep-for:1h, but latest-per-key was requested" in str(caught.value)
            existing = await client.stream("s")
            assert existing.retain == surecast.keep_for(timedelta(hours=1))
            assert existing.owner == "east"

    play(scenario)


def test_retention_may_be_text() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            stream = await client.stream("s", retain="keep_for:1h")
            assert stream.retain == surecast.keep_for(timedelta(hours=1))
            again = await client.stream("s", retain=surecast.keep_for(timedelta(hours=1)))
            assert again.stream_id == stream.stream_id
            for wrong in ("for-ever", 5, timedelta(hours=1)):
                with pytest.raises(UsageError, match=r"^retain: .* is not a retention policy"):
                    await client.stream("t", retain=wrong)  # type: ignore[arg-type]

    play(scenario)


def test_one_stream_can_be_opened_many_times_at_once_with_different_retention() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            policies = [surecast.keep_last(5), None, surecast.keep_all(), surecast.keep_last(5)]
            opening = [asyncio.ensure_future(client.stream("s", retain=p)) for p in policies * 5]
            cancelled = opening[:4:3] + opening[8:10]
            await asyncio.sleep(0)
            for task in cancelled:
                task.cancel()
            ended = await asyncio.gather(*opening, return_exceptions=True)
            for n, result in enumerate(ended):
                if opening[n] in cancelled:
                    assert isinstance(result, asyncio.CancelledError)
                elif n % 4 == 2:
                    assert isinstance(result, StreamConfigMismatch)
                else:
                    assert isinstance(result, surecast.Stream)
            assert not client._endpoint.control.busy

    play(scenario)


@pytest.mark.parametrize("name", ["", "a b", "a..b", "a.*", ">", "x" * 300, None])
def test_invalid_stream_names_are_refused(name: Any) -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            with pytest.raises(UsageError, match=r"orders\.eu"):
                await client.stream(name)

    play(scenario)


@pytest.mark.slow
def test_an_unreachable_owner_is_reported_and_other_streams_work() -> None:
    async def scenario() -> None:
        regions = Regions(owners={"": "east", "w": "west"}, east=1, west=1)
        async with regions, regions.client("east", owner_timeout=2) as client:
            there = await client.stream("w.s")
            assert there.owner == "west"
            assert await there.publish(b"x") == 1
            assert (await anext(there.subscribe(start=1))).value == b"x"
            await regions.kill("west-1")
            failing = [
                asyncio.ensure_future(there.publish(b"y")),
                asyncio.ensure_future(client.stream("w.new")),
            ]
            here = await client.stream("s")
            assert await here.publish(b"not affected") == 1
            with pytest.raises(OwnerUnreachable) as caught:
                await failing[0]
            assert caught.value.maybe_taken
            with pytest.raises(OwnerUnreachable, match="surecast status"):
                await failing[1]
            await regions.start("west-1")
            seq = await there.publish(b"z")
            assert seq in (2, 3)  # y may have been taken

    play(scenario, 120)


# ------------------------------------------------------------ the region moves


@pytest.mark.slow
def test_servers_restarted_at_other_addresses_are_found_through_the_url() -> None:
    async def scenario() -> None:
        async with Regions(east=2) as regions:
            client = await regions.client("east", rediscover_every=0.05)
            stream = await client.stream("s")
            sub = stream.subscribe(start=1)
            await stream.publish(b"1")
            assert (await anext(sub)).seq == 1
            await regions.kill("east-1")
            await regions.move("east-2")
            # As if the host name resolved to the new addresses.
            client._endpoint.link.addresses = parse_url(regions.url("east"))
            waiting = asyncio.ensure_future(stream.publish(b"2"))
            await regions.move("east-1")
            client._endpoint.link.addresses = parse_url(regions.url("east"))
            assert await waiting == 2
            assert (await anext(sub)).seq == 2
            await client.close()

    play(scenario, 120)


def test_a_bug_in_a_machine_fails_all_waiting_calls() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions:
            client = await regions.client("east", close_timeout=0.1)
            stream = await client.stream("s")
            sub = stream.subscribe()
            reading = asyncio.ensure_future(anext(sub))
            await regions.kill("east-1")
            waiting = asyncio.ensure_future(stream.publish(b"x"))
            opening = asyncio.ensure_future(client.stream("t"))
            await asyncio.sleep(0.01)
            client._endpoint.control.node.give(object())  # type: ignore[arg-type]
            client._endpoint.control.node.fail(RuntimeError("a bug"))
            for task in (waiting, opening, reading):
                with pytest.raises(surecast.SurecastError):
                    await task
            with pytest.raises(Closed, match="report"):
                await client.stream("u")
            await client.close()

    play(scenario)


def test_a_mesh_beyond_this_machine_requires_insecure() -> None:
    link = RegionLink([], "", ClientOptions(), lambda _problem: None)
    link.region = Region("east", {"a": (HOST, 1)}, {}, own_host="10.1.2.3")
    with pytest.raises(NotSupported, match="insecure"):
        Readers(link, Place("east", ("a",), mesh=True), ClientOptions())
    Readers(link, Place("east", ("a",), mesh=True), ClientOptions(insecure=True))


@pytest.mark.parametrize(
    "wrong",
    [{"batch_rows_max": 0}, {"event_bytes_max": 1 << 30}, {"outbox_bytes_max": 1000},
     {"linger": -1}, {"linger": True}, {"linger": "1ms"}, {"ack_every": timedelta(-1)},
     {"close_timeout": 0}, {"close_timeout": 1e-10}, {"close_timeout": float("nan")},
     {"owner_timeout": float("inf")}, {"connect_timeout": 1e300}, {"connect_timeout": 10**400},
     {"rediscover_every": timedelta.max}, {"batch_bytes_max": 15 << 20}, {"readers_max": 0},
     {"readers_max": 1.5}, {"streams_max": True}],
)  # fmt: skip
def test_options_out_of_bounds_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ClientOptions(**wrong)


def test_durations_are_seconds_or_timedeltas() -> None:
    options = ClientOptions(linger=0, ack_every=timedelta(milliseconds=20), close_timeout=2.5)
    assert (options.linger_ns, options.ack_every_ns) == (0, 20_000_000)
    assert (
        options.close_timeout_ns
        == ClientOptions(close_timeout=timedelta(seconds=2.5)).close_timeout_ns
    )
    assert options.close_timeout_ns == 2_500_000_000
    names = {field.name for field in dataclasses.fields(ClientOptions)}
    assert not [name for name in names if name.endswith("_ns")]


def test_no_parameter_of_the_public_api_is_in_nanoseconds() -> None:
    found = []
    for module in (surecast, surecast.sync):
        for name in module.__all__:
            thing = getattr(module, name)
            inside = vars(thing).items() if inspect.isclass(thing) else ()
            public = [value for key, value in inside if key == "__init__" or key[0] != "_"]
            for member in filter(inspect.isroutine, [thing, *public]):
                names = inspect.signature(member).parameters
                found += [
                    f"{name}: {parameter}"
                    for parameter in names
                    if parameter.endswith(("_ns", "_ms", "_us"))
                ]
    assert found == []


def test_local_keeps_its_streams_in_the_given_folder(tmp_path: Any) -> None:
    async def scenario() -> None:
        for seq in (1, 2):
            client: Client = surecast.local(tmp_path / "data")
            async with client:
                stream = await client.stream("s")
                assert await stream.publish(b"%d" % seq) == seq
                sub = stream.subscribe(start=1)
                assert [(await anext(sub)).seq for _ in range(seq)] == list(range(1, seq + 1))
        await until(lambda: True)

    play(scenario)
