"""Ranges of positions over sockets: exactly those, within bounds, through losses of servers."""

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


def test_one_reader_reads_one_range_after_the_other() -> None:
    async def story() -> None:
        async with Regions(east=1) as regions:
            stream = await publish(regions, 10_000)
            async with reader(regions) as line:
                for lo, hi in ((1, 10_001), (5, 6), (300, 9_000), (7, 7)):
                    found = [b async for some in line.read(stream, lo, hi) for b in some]
                    assert seqs(found) == list(range(lo, hi))

    play(story)


def test_a_reader_that_is_not_read_from_asks_for_no_more() -> None:
    """What is here and not taken stays within the bound, and one answer of the server's."""

    async def story() -> None:
        async with Regions(east=1) as regions:
            stream = await publish(regions, 60_000, size=300)
            async with reader(regions, buffer=1 << 20) as line:
                batches = line.read(stream, 1, 60_001)
                found = await anext(batches)
                quiet = 0
                while quiet < 20:  # until nothing more comes
                    before = line._nbytes
                    await asyncio.sleep(0.01)
                    quiet = quiet + 1 if line._nbytes == before else 0
                assert line._nbytes < 4 << 20
                found += [b async for some in batches for b in some]
                assert seqs(found) == list(range(1, 60_001))
                assert sum(b.nbytes for b in found if isinstance(b, Batch)) > 16 << 20

    play(story)


def test_a_server_that_is_killed_is_replaced() -> None:
    async def story() -> None:
        async with Regions(east=2) as regions:
            stream = await publish(regions, 60_000, size=300)
            async with reader(regions, buffer=1 << 18) as line:
                found: list[Piece] = []
                async for some in line.read(stream, 1, 60_001):
                    found += some
                    if len(regions.nodes) == 4:
                        names = regions.names["east"]
                        await regions.kill(names[line.node.machine.target])  # type: ignore[attr-defined]
                assert seqs(found) == list(range(1, 60_001))

    play(story)


def test_what_is_not_there_is_said() -> None:
    async def story() -> None:
        async with Regions(east=1) as regions:
            stream = await publish(regions, 10)
            async with reader(regions, patience_s=0.3) as line:
                beyond = line.read(stream, 5, 20)
                assert seqs(await anext(beyond)) == list(range(5, 11))
                with pytest.raises(ShortError) as short:
                    await anext(beyond)
                assert short.value.end == 11
                with pytest.raises(ShortError) as short:
                    await anext(line.read(b"?" * 16, 1, 2))
                assert short.value.end == 0

    play(story)


def test_a_range_that_grows_is_waited_for() -> None:
    async def story() -> None:
        async with Regions(east=1) as regions:
            stream = await publish(regions, 10)
            async with reader(regions) as line:
                more = asyncio.create_task(anext(line.read(stream, 11, 13)))
                await until(lambda: line._short is not None, "a server says that it ends")
                await publish(regions, 2)
                assert seqs(await more) == [11, 12]

    play(story)


async def _silent_after_progress() -> None:
    """A server says that the stream ends at 11, sends 11 and 12 later, and is heard no more."""
    async with Regions(east=1) as regions:
        stream = await publish(regions, 10)
        async with reader(regions) as line:
            batches = line.read(stream, 11, 20)
            more = asyncio.create_task(anext(batches))
            await until(lambda: line._short == 11, "a server says that it ends")
            real = line.node._on_deliver
            assert real is not None

            def last(log: bytes, some: tuple[Batch, ...]) -> None:
                regions.nodes["east-1"].kill()
                real(log, some)

            line.node._on_deliver = last
            await publish(regions, 2)
            assert seqs(await more) == [11, 12]
            line._patience_s = 0.3
            with pytest.raises(SurecastError) as given_up:
                await anext(batches)
            assert isinstance(given_up.value, StallError), given_up.value


def test_an_end_that_was_said_before_there_was_progress_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody has said that the stream ends at 11 since: the reader has 11 and 12."""
    play(_silent_after_progress)

    def remembers(line: RangeReader, log: bytes, some: tuple[Batch, ...]) -> None:
        short = line._short
        take_in(line, log, some)
        line._short = short

    take_in = RangeReader._take_in
    monkeypatch.setattr(RangeReader, "_take_in", remembers)
    with pytest.raises(AssertionError, match="ends at 11"):
        play(_silent_after_progress)


def test_a_region_that_starts_again_is_waited_for() -> None:
    async def story() -> None:
        async with Regions(east=1) as regions:
            stream = await publish(regions, 10)
            await regions.kill("east-1")

            line, refused = reader(regions), []
            real = line._link.discover

            async def watched() -> Region:
                try:
                    return await real()
                except ConnectError as problem:
                    refused.append(problem)
                    raise

            async def read() -> list[Piece]:
                async with line:
                    return [b async for some in line.read(stream, 1, 11) for b in some]

            line._link.discover = watched  # type: ignore[method-assign]
            found = asyncio.create_task(read())
            await until(lambda: refused, "nobody was asked")
            await regions.start("east-1")
            assert seqs(await found) == list(range(1, 11))

    play(story)


def test_who_never_comes_back_or_wants_another_token_is_given_up() -> None:
    async def story() -> None:
        async with Regions(token="secret", east=1) as regions:
            with pytest.raises(ConnectError, match="token="):
                await reader(regions).__aenter__()
        with pytest.raises(ConnectError, match="no server listens there"):
            await reader(regions, patience_s=0.5).__aenter__()

    play(story, 20)


def test_silence_is_not_waited_for_without_end() -> None:
    async def story() -> None:
        async with Regions(east=1) as regions:
            stream = await publish(regions, 10)
            async with reader(regions, patience_s=0.5) as line:
                await regions.kill("east-1")
                with pytest.raises(StallError, match=r"0\.5 s"):
                    await anext(line.read(stream, 1, 5))

    play(story)


# ---------------------------------------------------------------- what is lost


class GivesUp(HandlerMachine):
    """A layer above the stream service that knows which positions nobody has any more."""

    uses = ("streams",)
    from_below: ClassVar[dict[type, str]] = {StreamAdded: "_on_added"}

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        super().__init__()
        self.ranges = ranges

    def _on_added(self, event: StreamAdded) -> None:
        for lo, hi in self.ranges:
            self.out.append(PassDown(Forfeit(event.info.stream_id, lo, hi, "its disk is damaged")))


class Damaged(Regions):
    """Servers with such a layer."""

    given_up: list[tuple[int, int]]

    def _machine(self, ctx: Any, name: str) -> Any:
        made = super()._machine(ctx, name)
        if name.endswith("/witness"):
            return made
        return compose({**made.layers, "losses": GivesUp(self.given_up)})

    async def damage(self, name: str, stream: bytes, *holes: tuple[int, int]) -> None:
        """The server comes back on a disk that cannot read these positions any more."""
        await self.kill(name)
        for lo, hi in holes:
            self.disks[name].damage(stream, lo, hi, "a flipped bit")
        await self.start(name)
        await until(lambda: self.layer(name).shown_end(stream) == holes[0][0], "it shows the rest")


@pytest.mark.parametrize("buffer", [1, 1 << 20])
def test_what_is_lost_comes_in_its_place(buffer: int) -> None:
    """Also where the reader asks for little at a time."""

    async def story() -> None:
        regions = Damaged(east=1)
        regions.given_up = [(301, 400), (400, 450), (9_990, 10_001)]
        async with regions:
            stream = await publish(regions, 10_000)
            await regions.damage("east-1", stream, (301, 450), (9_990, 10_001))
            async with reader(regions, buffer=buffer) as line:
                found = [one async for some in line.read(stream, 1, 10_001) for one in some]
                assert seqs(found) == [*range(1, 301), *range(450, 9_990)]
                losses = [one for one in found if isinstance(one, Lost)]
                assert losses == [
                    Lost(stream, 301, 450, "its disk is damaged"),
                    Lost(stream, 9_990, 10_001, "its disk is damaged"),
                ]
                at = 1
                for one in found:
                    assert one.lo == at
                    at = one.hi
                assert at == 10_001
                inside = [one async for some in line.read(stream, 310, 320) for one in some]
                assert inside == [Lost(stream, 310, 320, "its disk is damaged")]

    play(story)


def test_a_hole_that_nobody_gave_up_is_waited_for() -> None:
    async def story() -> None:
        regions = Damaged(east=1)
        regions.given_up = [(301, 400)]
        async with regions:
            stream = await publish(regions, 1_000)
            await regions.damage("east-1", stream, (301, 450))
            async with reader(regions, patience_s=0.3) as line:
                found: list[Piece] = []

                async def read() -> None:
                    async for some in line.read(stream, 1, 1_001):
                        found.extend(some)

                with pytest.raises(ShortError) as short:
                    await read()
                assert seqs(found) == list(range(1, 301))
                assert [(one.lo, one.hi) for one in found if isinstance(one, Lost)] == [(301, 400)]
                assert short.value.end == 400

    play(story)


def test_neighbouring_losses_are_one_piece() -> None:
    """A server that declares position after position lost does not fill the memory."""
    line = RangeReader([("127.0.0.1", 1)])
    for seq in range(1, 1_000):
        line._on_emit(Lost(b"s" * 16, seq, seq + 1, f"{seq}"))
    assert list(line._inbox) == [Lost(b"s" * 16, 1, 1_000, "1")]
