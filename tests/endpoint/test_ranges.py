"""Ranges of positions read over sockets: exact, within bounds, while servers fail."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from surecast.columns.batch import Batch
from surecast.core.compose import compose
from surecast.core.endpoint import Lost
from surecast.core.machine import HandlerMachine
from surecast.core.streams import Forfeit, StreamAdded
from surecast.core.types import PassDown
from surecast.endpoint.discovery import Region, parse_url
from surecast.endpoint.options import ClientOptions
from surecast.endpoint.ranges import Piece, RangeReader, ShortError, StallError
from surecast.errors import ConnectError, SurecastError
from tests.client.stage import Regions, play, until


def reader(regions: Regions, patience_s: float = 30.0, buffer: int = 1 << 20) -> RangeReader:
    options = ClientOptions(buffer_bytes_max=buffer)
    return RangeReader(parse_url(regions.url("east")), options=options, patience_s=patience_s)


async def publish(regions: Regions, count: int, size: int = 10) -> bytes:
    async with regions.client("east") as client:
        stream = await client.stream("s")
        await stream.publish_many([b"%0*d" % (size, n) for n in range(1, count + 1)])
        ((info, _),) = await client.ends("s")
    return info.stream_id


def seqs(pieces: list[Piece]) -> list[int]:
    return [int(seq) for piece in pieces if isinstance(piece, Batch) for seq in piece.seqs()]


def test_one_reader_reads_several_ranges() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions:
            stream = await publish(regions, 10_000)
            async with reader(regions) as ranges:
                for lo, hi in ((1, 10_001), (5, 6), (300, 9_000), (7, 7)):
                    found = [b async for some in ranges.read(stream, lo, hi) for b in some]
                    assert seqs(found) == list(range(lo, hi))

    play(scenario)


def test_a_reader_requests_no_more_while_its_buffer_is_full() -> None:
    """Buffered batches stay within the bound plus one answer of the server."""

    async def scenario() -> None:
        async with Regions(east=1) as regions:
            stream = await publish(regions, 60_000, size=300)
            async with reader(regions, buffer=1 << 20) as ranges:
                batches = ranges.read(stream, 1, 60_001)
                found = await anext(batches)
                quiet = 0
                while quiet < 20:  # until nothing more comes
                    before = ranges._nbytes
                    await asyncio.sleep(0.01)
                    quiet = quiet + 1 if ranges._nbytes == before else 0
                assert ranges._nbytes < 4 << 20
                found += [b async for some in batches for b in some]
                assert seqs(found) == list(range(1, 60_001))
                assert sum(b.nbytes for b in found if isinstance(b, Batch)) > 16 << 20

    play(scenario)


def test_reading_continues_at_another_server_after_a_crash() -> None:
    async def scenario() -> None:
        async with Regions(east=2) as regions:
            stream = await publish(regions, 60_000, size=300)
            async with reader(regions, buffer=1 << 18) as ranges:
                found: list[Piece] = []
                async for some in ranges.read(stream, 1, 60_001):
                    found += some
                    if len(regions.nodes) == 4:
                        names = regions.names["east"]
                        await regions.kill(names[ranges.node.machine.target])  # type: ignore[attr-defined]
                assert seqs(found) == list(range(1, 60_001))

    play(scenario)


def test_a_range_beyond_the_end_is_a_short_error() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions:
            stream = await publish(regions, 10)
            async with reader(regions, patience_s=0.3) as ranges:
                beyond = ranges.read(stream, 5, 20)
                assert seqs(await anext(beyond)) == list(range(5, 11))
                with pytest.raises(ShortError) as short:
                    await anext(beyond)
                assert short.value.end == 11
                with pytest.raises(ShortError) as short:
                    await anext(ranges.read(b"?" * 16, 1, 2))
                assert short.value.end == 0

    play(scenario)


def test_a_range_beyond_the_end_of_a_deleted_stream_is_a_short_error_at_once() -> None:
    async def scenario() -> None:
        async with Regions(east=2) as regions:
            stream = await publish(regions, 10)
            async with regions.client("east") as client:
                assert await (await client.stream("s")).delete() == 11
            async with reader(regions, patience_s=30) as ranges, asyncio.timeout(10):
                beyond = ranges.read(stream, 5, 20)
                assert (await anext(beyond))[-1].hi == 12
                with pytest.raises(ShortError) as short:
                    await anext(beyond)
                assert short.value.end == 12
                assert (await anext(ranges.read(stream, 11, 12)))[-1].hi == 12

    play(scenario)


def test_events_beyond_the_end_are_waited_for() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions:
            stream = await publish(regions, 10)
            async with reader(regions) as ranges:
                more = asyncio.create_task(anext(ranges.read(stream, 11, 13)))
                await until(lambda: ranges._short is not None, "a server reports the end")
                await publish(regions, 2)
                assert seqs(await more) == [11, 12]

    play(scenario)


async def _silent_after_progress() -> None:
    """A server reports that the stream ends at 11, sends 11 and 12 later, and then crashes."""
    async with Regions(east=1) as regions:
        stream = await publish(regions, 10)
        async with reader(regions) as ranges:
            batches = ranges.read(stream, 11, 20)
            more = asyncio.create_task(anext(batches))
            await until(lambda: ranges._short == 11, "a server reports the end")
            real = ranges.node._on_deliver
            assert real is not None

            def last(log: bytes, some: tuple[Batch, ...]) -> None:
                regions.nodes["east-1"].kill()
                real(log, some)

            ranges.node._on_deliver = last
            await publish(regions, 2)
            assert seqs(await more) == [11, 12]
            ranges._patience_s = 0.3
            with pytest.raises(SurecastError) as given_up:
                await anext(batches)
            assert isinstance(given_up.value, StallError), given_up.value


def test_a_reported_end_is_discarded_after_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reported end of 11 no longer holds after the reader received 11 and 12."""
    play(_silent_after_progress)

    def remembers(ranges: RangeReader, log: bytes, some: tuple[Batch, ...]) -> None:
        short = ranges._short
        take_in(ranges, log, some)
        ranges._short = short

    take_in = RangeReader._take_in
    monkeypatch.setattr(RangeReader, "_take_in", remembers)
    with pytest.raises(AssertionError, match="ends at 11"):
        play(_silent_after_progress)


def test_a_region_that_restarts_is_waited_for() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions:
            stream = await publish(regions, 10)
            await regions.kill("east-1")

            ranges, refused = reader(regions), []
            real = ranges._link.discover

            async def watched() -> Region:
                try:
                    return await real()
                except ConnectError as problem:
                    refused.append(problem)
                    raise

            async def read() -> list[Piece]:
                async with ranges:
                    return [b async for some in ranges.read(stream, 1, 11) for b in some]

            ranges._link.discover = watched  # type: ignore[method-assign]
            found = asyncio.create_task(read())
            await until(lambda: refused, "no server was asked")
            await regions.start("east-1")
            assert seqs(await found) == list(range(1, 11))

    play(scenario)


def test_an_absent_region_or_a_wrong_token_is_an_error() -> None:
    async def scenario() -> None:
        async with Regions(token="secret", east=1) as regions:
            with pytest.raises(ConnectError, match="token="):
                await reader(regions).__aenter__()
        with pytest.raises(ConnectError, match="no server listens there"):
            await reader(regions, patience_s=0.5).__aenter__()

    play(scenario, 20)


def test_a_silent_region_is_given_up_after_patience_s() -> None:
    async def scenario() -> None:
        async with Regions(east=1) as regions:
            stream = await publish(regions, 10)
            async with reader(regions, patience_s=0.5) as ranges:
                await regions.kill("east-1")
                with pytest.raises(StallError, match=r"0\.5 s"):
                    await anext(ranges.read(stream, 1, 5))

    play(scenario)


# ---------------------------------------------------------------- lost ranges


class GivesUp(HandlerMachine):
    """A layer above the stream service that declares these positions lost."""

    uses = ("streams",)
    from_below: ClassVar[dict[type, str]] = {StreamAdded: "_on_added"}

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        super().__init__()
        self.ranges = ranges

    def _on_added(self, event: StreamAdded) -> None:
        for lo, hi in self.ranges:
            self.out.append(PassDown(Forfeit(event.info.stream_id, lo, hi, "its disk is damaged")))


class Damaged(Regions):
    """A region whose servers have a `GivesUp` layer."""

    given_up: list[tuple[int, int]]

    def _machine(self, ctx: Any, name: str) -> Any:
        made = super()._machine(ctx, name)
        if name.endswith("/witness"):
            return made
        return compose({**made.layers, "losses": GivesUp(self.given_up)})

    async def damage(self, name: str, stream: bytes, *holes: tuple[int, int]) -> None:
        """Restart the server with a disk that cannot read these positions."""
        await self.kill(name)
        for lo, hi in holes:
            self.disks[name].damage(stream, lo, hi, "a flipped bit")
        await self.start(name)
        await until(lambda: self.layer(name).shown_end(stream) == holes[0][0], "it shows the rest")


@pytest.mark.parametrize("buffer", [1, 1 << 20])
def test_lost_ranges_are_returned_in_order(buffer: int) -> None:
    """Even if the reader requests little at a time."""

    async def scenario() -> None:
        regions = Damaged(east=1)
        regions.given_up = [(301, 400), (400, 450), (9_990, 10_001)]
        async with regions:
            stream = await publish(regions, 10_000)
            await regions.damage("east-1", stream, (301, 450), (9_990, 10_001))
            async with reader(regions, buffer=buffer) as ranges:
                found = [piece async for some in ranges.read(stream, 1, 10_001) for piece in some]
                assert seqs(found) == [*range(1, 301), *range(450, 9_990)]
                losses = [piece for piece in found if isinstance(piece, Lost)]
                assert losses == [
                    Lost(stream, 301, 450, "its disk is damaged"),
                    Lost(stream, 9_990, 10_001, "its disk is damaged"),
                ]
                at = 1
                for piece in found:
                    assert piece.lo == at
                    at = piece.hi
                assert at == 10_001
                inside = [piece async for some in ranges.read(stream, 310, 320) for piece in some]
                assert inside == [Lost(stream, 310, 320, "its disk is damaged")]

    play(scenario)


def test_a_hole_not_declared_lost_is_waited_for() -> None:
    async def scenario() -> None:
        regions = Damaged(east=1)
        regions.given_up = [(301, 400)]
        async with regions:
            stream = await publish(regions, 1_000)
            await regions.damage("east-1", stream, (301, 450))
            async with reader(regions, patience_s=0.3) as ranges:
                found: list[Piece] = []

                async def read() -> None:
                    async for some in ranges.read(stream, 1, 1_001):
                        found.extend(some)

                with pytest.raises(ShortError) as short:
                    await read()
                assert seqs(found) == list(range(1, 301))
                assert [(lost.lo, lost.hi) for lost in found if isinstance(lost, Lost)] == [
                    (301, 400)
                ]
                assert short.value.end == 400

    play(scenario)


def test_adjacent_losses_are_joined() -> None:
    """A server that declares many single positions lost does not fill the memory."""
    ranges = RangeReader([("127.0.0.1", 1)])
    for seq in range(1, 1_000):
        ranges._on_emit(Lost(b"s" * 16, seq, seq + 1, f"{seq}"))
    assert list(ranges._inbox) == [Lost(b"s" * 16, 1, 1_000, "1")]
