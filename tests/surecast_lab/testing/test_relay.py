"""The relay as a whole: its use, the delays of a wire, and the relay as a process of its own.

Times are only checked against lower bounds, which follow from the wire.
"""

import asyncio
import socket
from collections.abc import Callable
from random import Random
from time import monotonic_ns

import pytest
from tests.surecast_lab.testing.relay_ends import (
    HERE,
    Target,
    joined,
    run,
    say,
    silent,
)

from surecast.core.types import MS
from surecast.errors import ConfigError, SurecastError, UsageError
from surecast_lab.testing.relay import LinkSpec, Relay, RelayLimits, RelayProcess, RelaySpec, Shape
from surecast_lab.testing.relay_wire import Lane


def test_a_round_trip_takes_at_least_both_delays() -> None:
    async def test() -> None:
        there, back = Shape(delay_ns=15 * MS, jitter_ns=2 * MS), Shape(delay_ns=10 * MS)
        with Relay(1) as relay:
            start_ns = monotonic_ns()
            async with joined(relay, forward=there, back=back) as (near, far):
                assert monotonic_ns() - start_ns >= 40 * MS  # handshake, then first bytes
                start_ns = monotonic_ns()
                await say(near, far, b"ping")
                await say(far, near, b"pong")
                assert monotonic_ns() - start_ns >= 25 * MS

    run(test)


def test_links_on_one_wire_share_its_bandwidth() -> None:
    async def test() -> None:
        line = Shape(bandwidth_bps=8_000_000)  # a megabyte a second
        data = Random(1).randbytes(100_000)
        async with Target() as target:
            with Relay(1) as relay:
                a = relay.add("a", target.address, wire="line", forward=line)
                b = relay.add("b", target.address, wire="line")
                pairs = [await target.join(a), await target.join(b)]
                start_ns = monotonic_ns()
                await asyncio.gather(*(say(near, far, data) for near, far in pairs))
                assert monotonic_ns() - start_ns >= 200 * MS
                near, far = pairs[0]
                start_ns = monotonic_ns()
                await say(far, near, data * 50)  # the other direction is free
                assert relay.stats()["line"].back.bytes == 5_000_000

    run(test)


def test_loss_delays_a_tcp_connection_and_loses_no_bytes() -> None:
    async def test() -> None:
        with Relay(1) as relay:
            async with joined(relay) as (near, far):
                relay.degrade("x", Shape(loss=1.0), "forward")
                start_ns = monotonic_ns()
                await say(near, far, b"at last")
                assert monotonic_ns() - start_ns >= 12 * 20 * MS  # all retransmissions

    run(test)


def test_the_seed_determines_the_delays_of_chunks() -> None:
    def times(seed: int) -> list[int]:
        loop = asyncio.new_event_loop()
        lane = Lane(loop, f"{seed}/w/forward", Shape(MS, MS, 0, 0.2), RelayLimits())
        rng = lane.chance("x/tcp0")
        found = [lane.chunk_at_ns(0, nbytes, rng) for nbytes in range(1, 200_000, 2000)]
        loop.close()
        return found

    assert times(1) == times(1) != times(2)
    assert any(t > 20 * MS for t in times(1))
    assert any(t < 2 * MS for t in times(1))


def test_wrong_use_is_refused() -> None:
    async def test() -> None:
        with Relay(1) as relay:
            relay.add("x", (HERE, 9), wire="w", forward=Shape(delay_ns=MS))
            wrong: list[Callable[[], object]] = [
                lambda: relay.add("x", (HERE, 9)),
                lambda: relay.add("y", (HERE, 9), wire="w", forward=Shape()),
                lambda: relay.cut("x"),
                lambda: relay.cut("w", "sideways"),
            ]
            for call in wrong:
                with pytest.raises(UsageError):
                    call()
        for key, value in {"delay_ns": -1, "loss": 1.5, "bandwidth_bps": -8}.items():
            with pytest.raises(ConfigError, match=key):
                Shape(**{key: value})  # type: ignore[arg-type]

    run(test)


def test_tcp_and_udp_have_one_port() -> None:
    async def test() -> None:
        with Relay(1) as relay:
            address = relay.add("x", (HERE, 9))
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                with socket.socket(type=kind) as sock, pytest.raises(OSError):
                    sock.bind(address)

    run(test)


def test_a_relay_process_executes_all_commands() -> None:
    async def test() -> None:
        async with Target() as target:
            link = LinkSpec("a", target.address, wire="w", forward=Shape(delay_ns=MS))
            with RelayProcess(RelaySpec(seed=3, links=(link,))) as relay:
                near, far = await target.join(relay.addresses["a"])
                await say(near, far, b"hello")
                relay.cut("w", "forward")
                near[1].write(b"later")
                for _ in range(10):
                    await say(far, near, b"meanwhile")
                assert silent(far)
                relay.mend("w")
                assert await far[0].readexactly(5) == b"later"
                address = relay.add(LinkSpec("b", target.address, wire="w"))
                assert relay.addresses["b"] == address
                other = await target.join(address)
                relay.degrade("w", Shape(delay_ns=20 * MS), "forward")
                start_ns = monotonic_ns()
                await say(*other, b"slow")
                assert monotonic_ns() - start_ns >= 20 * MS
                assert relay.stats()["w"].forward.bytes == len(b"hellolaterslow")
                assert relay.stats()["w"].connections == 2
                with pytest.raises(UsageError, match="no wire 'v'"):
                    relay.cut("v")
                with pytest.raises(UsageError, match="loss"):
                    relay._ask({"degrade": "w", "shape": {"loss": 7}})
                with pytest.raises(UsageError, match="does not know"):
                    relay._ask({"explode": "w"})
                relay.reset("w")
                with pytest.raises(ConnectionResetError):
                    await near[0].read(1)
            assert relay._process.returncode == 0  # it ended in order

    run(test)


def test_a_relay_process_that_cannot_start_raises(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server((HERE, 0)) as taken:
        link = LinkSpec("a", (HERE, 9), listen=taken.getsockname())
        with pytest.raises(SurecastError, match="has ended"):
            RelayProcess(RelaySpec(seed=1, links=(link,)))
    assert "in use" in capfd.readouterr().err


def test_a_killed_relay_process_raises_and_can_be_closed() -> None:
    with RelayProcess(RelaySpec(seed=1)) as relay:
        assert relay.alive
        relay._process.kill()
        relay._process.wait()
        assert not relay.alive
        for _ in range(2):
            with pytest.raises(SurecastError, match="has ended"):
                relay.cut("w")
