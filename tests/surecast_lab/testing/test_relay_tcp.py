"""TCP through the relay: bytes, cuts, closes, resets, and a reader that does not read."""

import asyncio
import socket
from random import Random
from typing import Any

import pytest
from tests.surecast_lab.testing.relay_ends import (
    HERE,
    Ends,
    Target,
    first_byte,
    joined,
    reset_by,
    round_trips,
    run,
    say,
    silent,
    until,
)

from surecast.core.types import MS
from surecast_lab.testing.relay import Relay, RelayLimits, Shape


@pytest.mark.parametrize("seed", range(8))
def test_bytes_come_through_unchanged_and_in_order(seed: int) -> None:
    rng = Random(seed)
    shape = Shape(
        delay_ns=rng.choice([0, 2 * MS]),
        jitter_ns=rng.choice([0, 5 * MS]),
        loss=rng.choice([0.0, 0.1]),
        bandwidth_bps=rng.choice([0, 200_000_000]),
    )
    chunks = [rng.randbytes(int(2 ** (rng.random() * 17))) for _ in range(100)]
    limits = RelayLimits(chunk_bytes=rng.choice([1000, 1 << 18]), buffer_bytes=1 << 16)

    async def send(end: Ends) -> None:
        for chunk in chunks:
            end[1].write(chunk)
            await end[1].drain()
            if rng.random() < 0.3:
                await asyncio.sleep(0)
        end[1].write_eof()

    async def test() -> None:
        with Relay(seed, limits) as relay:
            async with joined(relay, forward=shape, back=shape) as (near, far):
                _, _, *got = await asyncio.gather(
                    send(near), send(far), near[0].read(-1), far[0].read(-1)
                )
                assert got == [b"".join(chunks)] * 2
                stats = relay.stats()["x"]
                assert stats.forward.bytes == stats.back.bytes == len(got[0])
                await until(lambda: relay.stats()["x"].connections == 0)  # closed both ways
                assert relay.stats()["x"].forward.held_bytes == 0

    run(test)


# ---------------------------------------------------------------- TCP: cuts


@pytest.mark.parametrize("delay_ns", [0, 3 * MS])
def test_a_cut_holds_bytes_and_mending_releases_them(delay_ns: int) -> None:
    async def test() -> None:
        with Relay(1) as relay:
            async with joined(relay, forward=Shape(delay_ns=delay_ns)) as (near, far):
                await say(near, far, b"before")
                near[1].write(b"a")  # may be in flight or not yet read
                relay.cut("x")
                near[1].write(b"b" * 3_000_000)
                far[1].write(b"answer")
                await round_trips(relay, 20)
                assert silent(near)
                assert silent(far)
                relay.mend("x")
                assert await far[0].readexactly(3_000_001) == b"a" + b"b" * 3_000_000
                assert await near[0].readexactly(6) == b"answer"

    run(test)


@pytest.mark.parametrize("against", [False, True])
def test_a_cut_may_be_one_way(against: bool) -> None:
    async def test() -> None:
        with Relay(1) as relay:
            async with joined(relay, against=against) as (near, far):
                for direction in ("forward", "back"):
                    if (direction == "forward") == against:
                        mute, deaf = far, near
                    else:
                        mute, deaf = near, far
                    relay.cut("x", direction)
                    mute[1].write(b"not heard")
                    for _ in range(10):
                        await say(deaf, mute, b"heard")
                    assert silent(deaf)
                    relay.mend("x")
                    assert await deaf[0].readexactly(9) == b"not heard"

    run(test)


@pytest.mark.parametrize("seed", range(6))
def test_no_sequence_of_cuts_and_shapes_loses_a_byte(seed: int) -> None:
    rng = Random(seed)
    data = rng.randbytes(2_000_000)
    shapes = [Shape(), Shape(delay_ns=MS), Shape(0, MS, 0, 0.02), Shape(bandwidth_bps=4 * 10**8)]

    async def disturb(relay: Relay, transfer: asyncio.Future[Any]) -> None:
        while not transfer.done():
            match rng.randrange(3):
                case 0:
                    relay.cut("x", rng.choice(["forward", "back", "both"]))
                case 1:
                    relay.mend("x")
                case 2:
                    relay.degrade("x", rng.choice(shapes), rng.choice(["forward", "both"]))
            await asyncio.sleep(rng.random() * 0.005)

    async def test() -> None:
        limits = RelayLimits(chunk_bytes=10_000, buffer_bytes=50_000)
        with Relay(seed, limits) as relay:
            async with joined(relay) as (near, far):
                for writer in (near[1], far[1]):
                    writer.write(data)
                    writer.write_eof()
                transfer = asyncio.gather(near[0].read(-1), far[0].read(-1))
                await disturb(relay, transfer)
                assert await transfer == [data, data]
                assert relay.stats()["x"].forward.held_bytes == 0

    run(test)


@pytest.mark.parametrize("seed", range(4))
def test_broken_connections_leave_nothing_behind(seed: int) -> None:
    rng = Random(seed)
    shape = Shape(delay_ns=rng.choice([0, MS]), bandwidth_bps=rng.choice([0, 10**8]))

    async def live(target: Target, address: tuple[str, int]) -> None:
        near = await asyncio.open_connection(*address)
        near[1].write(bytes(rng.randrange(1_000_000)))
        await asyncio.sleep(rng.random() * 0.01)
        reset_by(near)

    async def test() -> None:
        async with Target() as target:
            with Relay(seed, RelayLimits(buffer_bytes=50_000)) as relay:
                address = relay.add("x", target.address, forward=shape, back=shape)
                lives = [asyncio.create_task(live(target, address)) for _ in range(40)]
                for k in range(40):
                    if k % 4 == 1:
                        relay.cut("x", rng.choice(["forward", "back"]))
                    await asyncio.sleep(0.001)
                    relay.mend("x")
                    while not target.came.empty():
                        far = target.came.get_nowait()
                        far[1].write(bytes(rng.randrange(1_000_000)))
                        if rng.random() < 0.5:
                            reset_by(far)
                await asyncio.gather(*lives)
                await until(lambda: relay.stats()["x"].connections == 0)
                stats = relay.stats()["x"]
                assert stats.forward.held_bytes == stats.back.held_bytes == 0
                assert stats.accepted == 40

    run(test)


@pytest.mark.parametrize("direction", ["forward", "back", "both"])
def test_connecting_over_a_cut_proceeds_when_mended(direction: str) -> None:
    async def test() -> None:
        async with Target() as target:
            with Relay(1) as relay:
                address = relay.add("x", target.address)
                relay.cut("x", direction)
                near = await asyncio.open_connection(*address)
                near[1].write(b"hello")
                await until(lambda: relay.stats()["x"].accepted)
                await round_trips(relay, 10)
                assert target.came.empty()
                relay.mend("x")
                far = await target.came.get()
                assert await far[0].readexactly(5) == b"hello"

    run(test)


def test_a_reset_waits_for_the_mend() -> None:
    async def test() -> None:
        with Relay(1) as relay:
            async with joined(relay) as (near, far):
                await say(near, far, b"hello")
                relay.cut("x")
                reset_by(near)
                await round_trips(relay, 10)
                assert silent(far)
                relay.mend("x")
                with pytest.raises(ConnectionResetError):
                    await far[0].read(1)

    run(test)


def only_connection(relay: Relay) -> Any:
    link: Any = relay._links[0]
    (connection,) = link.connections
    return connection


@pytest.mark.parametrize("what", ["bytes", "reset"])
def test_bytes_and_resets_in_flight_are_held_during_a_cut(what: str) -> None:
    async def test() -> None:
        with Relay(1) as relay:
            async with joined(relay) as (near, far):
                await say(near, far, b"hello")
                connection = only_connection(relay)
                relay.degrade("x", Shape(delay_ns=300 * MS))
                if what == "bytes":
                    near[1].write(b"later")
                    await until(lambda: connection.forward.held)
                else:
                    reset_by(near)
                    await until(lambda: connection.near is None)
                relay.cut("x")
                await round_trips(relay, 1, delay_ns=70 * MS)  # with the handshake, 350 ms
                assert silent(far)
                relay.mend("x")
                if what == "bytes":
                    assert await far[0].readexactly(5) == b"later"
                else:
                    with pytest.raises(ConnectionResetError):
                        await far[0].read(1)

    run(test)


def test_a_connection_ends_when_both_sides_are_gone() -> None:
    async def test() -> None:
        with Relay(1) as relay:
            async with joined(relay) as (near, far):
                await say(near, far, b"hello")
                connection = only_connection(relay)
                relay.degrade("x", Shape(delay_ns=50 * MS), "forward")
                relay.cut("x", "back")
                reset_by(far)  # not noticed over the cut until something is sent to far
                near[1].write(b"anyone?")
                await until(lambda: relay.stats()["x"].forward.bytes == len(b"helloanyone?"))
                reset_by(near)
                await until(lambda: connection.far is None)
                await round_trips(relay, 1)
                relay.mend("x")
                await until(lambda: relay.stats()["x"].connections == 0)

    run(test)


# ---------------------------------------------------------------- TCP: closes and resets


def test_after_a_half_close_the_answer_still_arrives() -> None:
    async def test() -> None:
        shape = Shape(delay_ns=MS)
        with Relay(1) as relay:
            async with joined(relay, forward=shape, back=shape) as (near, far):
                near[1].write(b"question" * 100_000)
                near[1].write_eof()
                question = await far[0].read(-1)
                far[1].write(question)
                far[1].close()
                assert await near[0].read(-1) == b"question" * 100_000

    run(test)


@pytest.mark.parametrize("delay_ns", [0, MS])
@pytest.mark.parametrize("who", ["near", "far"])
def test_a_reset_reaches_the_other_side(who: str, delay_ns: int) -> None:
    async def test() -> None:
        shape = Shape(delay_ns=delay_ns)
        with Relay(1) as relay:
            async with joined(relay, forward=shape, back=shape) as (near, far):
                await say(near, far, b"hello")
                breaker, other = (near, far) if who == "near" else (far, near)
                reset_by(breaker)
                with pytest.raises(ConnectionResetError):
                    await other[0].read(1)
                await until(lambda: relay.stats()["x"].connections == 0)

    run(test)


def test_a_wire_can_reset_all_its_connections() -> None:
    async def test() -> None:
        async with Target() as target:
            with Relay(1) as relay:
                a = relay.add("a", target.address, wire="w")
                b = relay.add("b", target.address, wire="w")
                other = relay.add("c", target.address)
                ends = [*await target.join(a), *await target.join(b)]
                near, far = await target.join(other)
                relay.cut("w")  # does not prevent the reset
                relay.reset("w")
                for end in ends:
                    with pytest.raises(ConnectionResetError):
                        await end[0].read(1)
                await say(near, far, b"still here")
                assert relay.stats()["w"].connections == 0

    run(test)


def test_a_target_that_refuses_and_a_full_link_reset_the_caller() -> None:
    async def test() -> None:
        async with Target() as target:
            with Relay(1, RelayLimits(connections_max=1)) as relay:
                full = relay.add("full", target.address)
                near, far = await target.join(full)
                with socket.socket() as nobody:
                    nobody.bind((HERE, 0))  # bound and not listening
                    refusing = relay.add("refusing", nobody.getsockname())
                    for address in (full, refusing):
                        with pytest.raises(ConnectionResetError):
                            await first_byte(address)
                assert relay.stats()["full"].refused == 1
                await until(lambda: relay.stats()["refusing"].connections == 0)
                await say(near, far, b"not disturbed")

    run(test)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [Shape(), Shape(delay_ns=MS), Shape(bandwidth_bps=8 * 10**9)])
def test_a_slow_reader_does_not_fill_the_relay(shape: Shape) -> None:
    data = Random(1).randbytes(48 << 20)  # more than the kernel's buffers on the path can hold

    async def test() -> None:
        loop = asyncio.get_running_loop()
        limits = RelayLimits(chunk_bytes=1 << 14, buffer_bytes=1 << 16)
        with socket.create_server((HERE, 0)) as server, socket.socket() as near:
            near.setblocking(False)
            server.setblocking(False)
            with Relay(1, limits) as relay:
                address = relay.add("x", server.getsockname(), forward=shape)
                await loop.sock_connect(near, address)
                far, _ = await loop.sock_accept(server)
                lane = relay.stats()["x"].forward
                sending = asyncio.create_task(loop.sock_sendall(near, data))
                seen, quiet = -1, 0
                while quiet < 100:  # until no byte has moved for 100 passes of the loop
                    await asyncio.sleep(0.001)
                    quiet = quiet + 1 if lane.bytes == seen else 0
                    seen = lane.bytes
                    assert lane.held_bytes <= (1 << 16) + (1 << 14)
                assert lane.held_bytes > 0
                assert not sending.done()  # the pressure reached the sender
                sending.add_done_callback(lambda _: near.shutdown(socket.SHUT_WR))
                got = bytearray()
                while chunk := await loop.sock_recv(far, 1 << 20):
                    got += chunk
                assert got == data
                far.close()

    run(test)
