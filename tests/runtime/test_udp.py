"""Datagrams: the same ones arrive whether sent singly or segmented by the kernel."""

import errno
from random import Random
from typing import Any

import pytest
from tests.protocols.nakcast.stage import Commit, server
from tests.runtime.stage import (
    LOG,
    Blob,
    Ping,
    Stage,
    blob,
    numbers,
    on_loops,
    play,
    until,
)

from surecast.columns.batch import Batch
from surecast.core.endpoint import Follow
from surecast.core.types import MS, Command, Received, Send
from surecast.core.wire import Codec
from surecast.protocols.nakcast.config import ReaderConfig
from surecast.protocols.nakcast.messages import Beacon, Data, Gone, Join, Leave, Nak
from surecast.protocols.nakcast.reader import Reader
from surecast.runtime.node import Node
from surecast.runtime.udp import _groups


def refuse_offload(node: Node, code: int = errno.EINVAL) -> None:
    """Simulate a kernel without segmentation offload."""
    real = node.datagrams.sock

    class Old:
        def sendmsg(self, *args: Any) -> int:
            raise OSError(code, "not known here")

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    node.datagrams.sock = Old()  # type: ignore[assignment]


def unreliable(peer: str, message: Any) -> Send:
    return Send(peer, message, reliable=False)


@on_loops
@pytest.mark.parametrize("offload", [True, False], ids=["offload", "fallback"])
def test_datagrams_arrive_the_same_with_and_without_offload(loop: str, offload: bool) -> None:
    rng = Random(5)
    sizes = [rng.choice((10, 10, 10, 10, 500, 1200, 9000, 0)) for _ in range(300)]
    blobs = [Blob(number, rng.randbytes(size)) for number, size in enumerate(sizes)]

    async def scenario() -> None:
        async with Stage() as stage:
            a, b = await stage.add("a"), await stage.add("b")
            if not offload:
                refuse_offload(a)
            for at in range(0, len(blobs), 50):
                stage.do("a", *(unreliable("b", data) for data in blobs[at : at + 50]))
                await until(lambda at=at: len(b.machine.of(Received)) >= at + 50)
            assert [inp for _, inp in b.machine.of(Received)] == [Received("a", o) for o in blobs]
            assert a.counters["udp_out"] == b.counters["udp_in"] == 300
            assert (a.counters["udp_offloaded"] > 100) is offload
            assert (a.counters["udp_offload_refused"] > 0) is not offload
            assert "PeerUp" not in stage.kinds("a")

    play(loop, scenario)


def test_only_datagrams_that_the_kernel_can_segment_are_grouped() -> None:
    def sizes(*lengths: int, most: int = 65_507) -> list[list[int]]:
        groups = _groups([bytes(length) for length in lengths], most)
        return [[len(data) for data in group] for group in groups]

    assert sizes(9, 9, 9) == [[9, 9, 9]]
    assert sizes(9, 9, 5, 9, 9) == [[9, 9, 5], [9, 9]]
    assert sizes(5, 9, 9) == [[5], [9, 9]]
    assert sizes(*[9] * 130) == [[9] * 64, [9] * 64, [9] * 2]
    assert sizes(40_000, 40_000, 100) == [[40_000], [40_000, 100]]
    assert sizes(9, 9, 9, most=0) == [[9], [9], [9]]
    assert sizes(1500, 1500, 9, 9, most=1200) == [[1500], [1500], [9, 9]]


@on_loops
def test_large_datagrams_do_not_disable_the_offload_of_small_ones(loop: str) -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            a, b = await stage.add("a"), await stage.add("b")
            real = a.datagrams.sock
            refuse_offload(a)
            stage.do("a", *(unreliable("b", blob(n, 3000)) for n in range(5)))
            await until(lambda: len(b.machine.of(Received)) == 5)
            a.datagrams.sock = real
            stage.do("a", *(unreliable("b", blob(n, 900)) for n in range(5, 10)))
            await until(lambda: len(b.machine.of(Received)) == 10)
            assert numbers(b.machine) == list(range(10))
            assert a.counters["udp_offloaded"] == 5

    play(loop, scenario)


@on_loops
def test_a_datagram_that_is_too_large_is_dropped_and_counted(loop: str) -> None:
    async def scenario() -> None:
        async with Stage(datagram_bytes_max=2000) as stage:
            a, b = await stage.add("a"), await stage.add("b")
            stage.do("a", unreliable("b", blob(1, 3000)), unreliable("b", Ping(2)))
            await until(lambda: numbers(b.machine) == [2])
            assert a.counters["udp_too_large"] == 1
            assert not a.failed.done()

    play(loop, scenario)


@on_loops
def test_datagrams_without_address_or_buffer_space_are_counted(loop: str) -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            a = await stage.add("a")
            await stage.add("b")
            refuse_offload(a, errno.EAGAIN)
            stage.do("a", unreliable("nobody", Ping(1)))
            stage.do("a", unreliable("b", Ping(2)), unreliable("b", Ping(3)))
            await until(lambda: a.counters["udp_send_full"] == 2)
            assert a.counters["udp_no_address"] == 1

    play(loop, scenario)


@on_loops
def test_a_host_name_is_resolved_without_blocking_the_loop(loop: str) -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            await stage.add("a")
            b = await stage.add("b")
            assert b.address is not None
            stage.book.set("b", ("localhost", b.address[1]))

            def received() -> bool:
                stage.do("a", unreliable("b", Ping(1)))
                return bool(numbers(b.machine))

            await until(received)

    play(loop, scenario)


@on_loops
def test_a_peer_without_an_address_is_answered_at_its_source_address(loop: str) -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            await stage.add("server")
            client = await stage.add("client", listen=None)
            stage.do("client", unreliable("server", Ping(1)))
            await until(lambda: numbers(stage.machine("server")) == [1])
            stage.do("server", unreliable("client", Ping(2)))
            await until(lambda: numbers(client.machine) == [2])

    play(loop, scenario)


@on_loops
def test_invalid_datagrams_are_dropped_and_counted(loop: str) -> None:
    rng = Random(3)

    async def scenario() -> None:
        async with Stage() as stage:
            a = await stage.add("a")
            b = await stage.add("b")
            c = await stage.add("c", credential="another cluster")
            good = a.datagrams._preamble + b"".join(Codec([Ping]).encode(Ping(1)))
            bad = [b"", b"x", good[:5], good[:20], good[:-1], bytes(2000), c.datagrams._preamble]
            for _ in range(200):
                at = rng.randrange(len(good))
                bad.append(good[:at] + bytes([good[at] ^ (1 << rng.randrange(8))]) + good[at + 1 :])
            for data in bad:
                b.datagrams.receive(memoryview(data), ("127.0.0.1", 1))
            assert b.counters["udp_refused"] == len(bad)
            stage.do("c", unreliable("b", Ping(7)))
            stage.do("a", unreliable("b", Ping(8)))
            await until(lambda: numbers(b.machine) == [8])
            await until(lambda: b.counters["udp_refused"] == len(bad) + 1)

    play(loop, scenario)


# ---------------------------------------------------------------- a protocol over datagrams


@on_loops
@pytest.mark.parametrize("offload", [True, False], ids=["offload", "fallback"])
def test_nakcast_delivers_everything_in_order_despite_loss(loop: str, offload: bool) -> None:
    published = [[b"%d" % number] * 3 for number in range(120)]
    delivered: dict[str, list[Batch]] = {"r1": [], "r2": []}
    messages = [Beacon, Data, Gone, Join, Leave, Nak]

    async def scenario() -> None:
        async with Stage() as stage:
            p = await stage.add("p", lambda ctx: server(beacon_ns=5 * MS), codec=Codec(messages))
            if not offload:
                refuse_offload(p)
            for name, got in delivered.items():
                node = await stage.add(
                    name,
                    lambda ctx: Reader(ReaderConfig(("p",), window=32, nak_ns=5 * MS)),
                    codec=Codec(messages),
                    on_deliver=lambda stream, batches, got=got: got.extend(batches),
                )
                lose(node, Random(name), 0.3)
                node.give(Follow(LOG, 1))
            lose(p, Random("p"), 0.3)
            for at in range(0, len(published), 10):
                for values in published[at : at + 10]:
                    p.give(Command("streams", Commit(values)))
            end = 1 + sum(map(len, published))
            await until(lambda: all(got and got[-1].hi == end for got in delivered.values()))
            assert p.counters["udp_in"] > 0, "nothing was lost, so nothing was requested"
            assert bool(p.counters["udp_offloaded"]) is offload

    play(loop, scenario)
    for got in delivered.values():
        rows = [row for batch in got for row in batch.to_rows()]
        assert [row.value for row in rows] == [value for some in published for value in some]
        assert [row.seq for row in rows] == list(range(1, 1 + len(rows)))


def lose(node: Node, rng: Random, share: float) -> None:
    """Drop a share of what arrives at a node."""
    receive = node.datagrams.receive

    def lossy(datagram: memoryview, source: Any) -> None:
        if rng.random() >= share:
            receive(datagram, source)

    node.datagrams.receive = lossy  # type: ignore[method-assign]
