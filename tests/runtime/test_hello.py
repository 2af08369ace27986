"""The handshake: which peers are accepted, and which reason refused peers get."""

import re

import pytest
from tests.runtime.stage import Ping, Stage, numbers, on_loops, play, until
from tests.runtime.test_tcp import Caller

from surecast.core.types import PeerDown, Send
from surecast.errors import ConfigError
from surecast.runtime import AddressBook, RuntimeLimits
from surecast.runtime.addresses import bind, own_address, with_address
from surecast.runtime.hello import NAME_LEN_MAX, VERSION, Hello

OURS = Hello(VERSION, "b", "", b"", 0, credential="secret")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"version": 3}, "protocol version 3, this node speaks 2"),
        ({"credential": "guess"}, "wrong token"),
        ({"credential": ""}, "wrong token"),
        ({"to": "c"}, "this is b, not c"),
        ({"name": "b"}, "is this node's own"),
        ({"name": ""}, "a name of 0 bytes"),
        ({"name": "x" * (NAME_LEN_MAX + 1)}, "a name of 256 bytes"),
    ],
)
def test_an_invalid_hello_is_refused_with_the_reason(
    changes: dict[str, object], words: str | None
) -> None:
    fields = {"version": VERSION, "name": "a", "to": "b", "life": b"", "attempt": 1}
    problem = Hello(**{**fields, "credential": "secret", **changes}).problem(OURS)  # type: ignore[arg-type]
    assert problem is None if words is None else words in str(problem)


def test_the_answering_peer_must_have_the_called_name() -> None:
    ours = Hello(VERSION, "b", "a", b"", 0)
    assert Hello(VERSION, "a", "b", b"", 1).problem(ours) is None
    assert "should be a, not c" in str(Hello(VERSION, "c", "b", b"", 1).problem(ours))


@on_loops
def test_the_answer_contains_name_region_role_and_epoch(loop: str) -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            b = await stage.add("b", region="east", role="replica", epoch=lambda: 7)
            async with Caller(b) as caller:
                hello = await caller.greet()
                assert (hello.name, hello.to) == ("b", "x")
                assert (hello.region, hello.role, hello.epoch) == ("east", "replica", 7)
                assert hello.version == VERSION

    play(loop, scenario)


@on_loops
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 99}, "protocol version 99"),
        ({"credential": "no"}, "wrong token"),
        ({"to": "somebody"}, "this is b, not somebody"),
    ],
)
def test_a_refused_peer_gets_the_reason(loop: str, changes: dict[str, object], words: str) -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            b = await stage.add("b")
            async with Caller(b) as caller:
                caller.writer.write(caller.hello(**changes))
                assert words in await caller.refusal()
            assert b.counters["refused"] == 1

    play(loop, scenario)


@on_loops
def test_a_refused_node_logs_the_reason_and_reports_peer_down(
    loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            a = await stage.add("a", credential="ours")
            await stage.add("b", credential="theirs")
            stage.do("a", Send("b", Ping(1)))
            await until(lambda: a.machine.of(PeerDown))
            assert a.counters["refused_by_peer"] == 1
            assert "refused by b: 'wrong token'" in caplog.text
            assert re.search(r"refusing '\w+' at \('127.0.0.1', \d+\): 'wrong token'", caplog.text)
            await stage.add("c", credential="ours")
            stage.do("a", Send("c", Ping(2)))
            await until(lambda: numbers(stage.machine("c")) == [2])

    play(loop, scenario)


@on_loops
def test_an_address_of_another_node_is_refused(loop: str) -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            a, b = await stage.add("a"), await stage.add("b")
            assert b.address is not None
            stage.book.set("c", b.address)
            stage.do("a", Send("c", Ping(1)))
            await until(lambda: a.machine.of(PeerDown))
            assert a.counters["refused_by_peer"] == 1
            assert stage.kinds("b") == ["Start"]

    play(loop, scenario)


# ---------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("c3@127.0.0.1:41234", ("127.0.0.1", 41234)),
        ("east/c3@host.example:1", ("host.example", 1)),
        ("a@b@[::1]:7400", ("::1", 7400)),
        ("c3", None),
        ("c3@", None),
        ("c3@host", None),
        ("c3@:1", None),
        ("c3@host:", None),
        ("c3@host:x1", None),
        ("c3@host:99999", None),
        ("c3@host:²", None),
    ],
)
def test_a_name_may_carry_an_address(name: str, address: tuple[str, int] | None) -> None:
    assert own_address(name) == address
    if address is not None:
        assert own_address(with_address(name, address)) == address


def test_an_address_book_entry_overrides_the_address_in_a_name() -> None:
    book = AddressBook({"b": ("127.0.0.1", 1)})
    assert book.find("b") == ("127.0.0.1", 1)
    assert book.find("c") is None
    assert book.find("c@127.0.0.2:5") == ("127.0.0.2", 5)
    book.set("c@127.0.0.2:5", ("127.0.0.1", 6))
    assert book.find("c@127.0.0.2:5") == ("127.0.0.1", 6)
    book.remove("c@127.0.0.2:5")
    assert book.find("c@127.0.0.2:5") == ("127.0.0.2", 5)


@pytest.mark.parametrize("host", ["10.0.0.1", "169.254.169.254", "example.org", "[2001:db8::1]"])
def test_an_address_in_a_name_beyond_loopback_requires_insecure(host: str) -> None:
    name = f"c@{host}:5"
    book = AddressBook()
    assert book.find(name) is None
    assert book.find(name, insecure=True) == (host.strip("[]"), 5)
    book.set(name, ("10.0.0.9", 6))  # the address book is trusted
    assert book.find(name) == ("10.0.0.9", 6)

    async def scenario() -> None:
        async with Stage() as stage:
            a = await stage.add("a")
            stage.do("a", Send(name, Ping(1)), Send(name, Ping(2), reliable=False))
            await until(lambda: a.machine.of(PeerDown))
            assert a.counters["no_address"] == a.counters["udp_no_address"] == 1

    play("asyncio", scenario)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "example.org"])
def test_listening_beyond_loopback_requires_insecure(host: str) -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            with pytest.raises(ConfigError, match="insecure=True"):
                await stage.add("b", listen=(host, 0))

    play("asyncio", scenario)


def test_with_insecure_a_node_listens_beyond_loopback() -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            b = await stage.add("b", listen=("0.0.0.0", 0), insecure=True)
            assert b.address is not None
            assert b.address[0] == "0.0.0.0"

    play("asyncio", scenario)


def test_tcp_and_udp_share_a_port_and_a_port_in_use_is_reported() -> None:
    tcp, udp = bind(("127.0.0.1", 0), False)
    assert tcp is not None
    try:
        assert tcp.getsockname() == udp.getsockname()
        with pytest.raises(ConfigError, match="cannot listen on"):
            bind(tcp.getsockname(), False)
    finally:
        tcp.close()
        udp.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"session_timeout_ns": 0},
        {"reconnect_ns": 0},
        {"high_water_bytes": 10, "queue_bytes_max": 9},
        {"connections_max": 0},
        {"datagram_bytes_max": 70_000},
        {"clock_jump_ns": 0},
    ],
)
def test_invalid_limits_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        RuntimeLimits(**wrong)
