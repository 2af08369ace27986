"""Datagrams through the relay: loss, order, and answers to the right sender."""

import asyncio
import socket
import struct
from time import monotonic_ns
from typing import Any

from tests.surecast_lab.testing.relay_ends import (
    HERE,
    run,
    until,
)

from surecast.core.types import MS, SECOND
from surecast_lab.testing.relay import Relay, RelayLimits, Shape


class Datagrams(asyncio.DatagramProtocol):
    """A UDP socket that records the datagrams it receives, and echoes them if `echo` is set."""

    def __init__(self, echo: bool = False) -> None:
        self.echo = echo
        self.got: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20
        )
        self.address: tuple[str, int] = transport.get_extra_info("sockname")

    def datagram_received(self, data: bytes, address: Any) -> None:
        self.got.append(data)
        if self.echo:
            self.transport.sendto(data, address)


async def udp(to: tuple[str, int] | None = None, echo: bool = False) -> Datagrams:
    loop = asyncio.get_running_loop()
    local = None if to else (HERE, 0)
    return (await loop.create_datagram_endpoint(lambda: Datagrams(echo), local, to))[1]


def arrivals(
    seed: int, shape: Shape, count: int = 200, cut_until: int = 0, **limits: int
) -> tuple[list[int], Any]:
    """Send `count` datagrams; the numbers of those that arrive, in order, and the lane's counts."""
    found: list[int] = []
    counts = []

    async def test() -> None:
        target = await udp()
        with Relay(seed, RelayLimits(**limits)) as relay:
            sender = await udp(relay.add("x", target.address, forward=shape))
            lane = relay.stats()["x"].forward
            if cut_until:
                relay.cut("x")
            for k in range(count):
                if k == cut_until:
                    await until(lambda: lane.datagrams == cut_until)
                    relay.mend("x")
                sender.transport.sendto(struct.pack("<I", k).ljust(100, b"."))
            await until(lambda: lane.datagrams == count)
            await until(lambda: len(target.got) == count - lane.dropped)
            found.extend(struct.unpack_from("<I", data)[0] for data in target.got)
            counts.append(lane)
            sender.transport.close()
            target.transport.close()

    run(test)
    return found, counts[0]


def test_the_seed_determines_which_datagrams_are_lost() -> None:
    lossy = Shape(delay_ns=MS, loss=0.3)
    first, lane = arrivals(1, lossy)
    assert first == sorted(first)  # no jitter, no overtaking
    assert 20 < lane.lost == 200 - len(first) < 110
    assert arrivals(1, lossy)[0] == first
    assert arrivals(2, lossy)[0] != first


def test_a_cut_drops_datagrams_and_does_not_change_the_loss_of_the_others() -> None:
    lossy = Shape(loss=0.3)
    whole, _ = arrivals(1, lossy)
    rest, lane = arrivals(1, lossy, cut_until=50)
    assert rest == [k for k in whole if k >= 50]
    assert lane.cut == 50


def test_a_wire_is_degraded_until_it_is_mended() -> None:
    async def test() -> None:
        target = await udp()
        with Relay(1) as relay:
            sender = await udp(relay.add("x", target.address))
            lane = relay.stats()["x"].forward
            relay.degrade("x", Shape(loss=1.0))
            sender.transport.sendto(b"lost")
            await until(lambda: lane.lost)
            relay.mend("x")
            sender.transport.sendto(b"found")
            await until(lambda: target.got)
            assert target.got == [b"found"]
            sender.transport.close()
            target.transport.close()

    run(test)


def test_jitter_reorders_datagrams() -> None:
    found, _ = arrivals(1, Shape(jitter_ns=50 * MS))
    assert found != sorted(found) == list(range(200))


def test_datagrams_drop_when_a_queue_is_full() -> None:
    slow = Shape(bandwidth_bps=80_000)  # a datagram takes ten milliseconds
    found, lane = arrivals(1, slow, queue_ns=20 * MS)
    assert found == sorted(found)
    assert found[:2] == [0, 1]
    assert lane.full == 200 - len(found) > 0
    # All must be sent within the delay, also on a busy machine.
    _, lane = arrivals(1, Shape(delay_ns=300 * MS), datagrams_bytes=10_000)
    assert lane.full > 0


def test_udp_answers_find_their_sender_and_take_their_time() -> None:
    async def test() -> None:
        target = await udp(echo=True)
        shape = Shape(delay_ns=10 * MS)
        limits = RelayLimits(sources_max=2, source_idle_ns=SECOND // 2)
        with Relay(1, limits) as relay:
            address = relay.add("x", target.address, forward=shape, back=shape)
            start_ns = monotonic_ns()
            senders = [await udp(address) for _ in range(2)]
            for k, sender in enumerate(senders):
                sender.transport.sendto(b"%d" % k)
            for k, sender in enumerate(senders):
                await until(lambda sender=sender: sender.got)
                assert sender.got == [b"%d" % k]
            assert monotonic_ns() - start_ns >= 20 * MS
            link: Any = relay._links[1]
            third = await udp(address)
            third.transport.sendto(b"2")
            await until(lambda: third.got)
            assert len(link.sources) <= 2
            await until(lambda: not link.sources)  # forgotten after some silence
            third.transport.sendto(b"again")
            await until(lambda: third.got == [b"2", b"again"])
            for end in (target, third, *senders):
                end.transport.close()

    run(test)
