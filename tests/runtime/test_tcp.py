"""Bytes received over a connection: frames in any pieces, and bytes that are not frames."""

import asyncio
import socket
import struct
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from tests.runtime.stage import (
    LOG,
    Actor,
    Blob,
    Carry,
    Ping,
    Stage,
    blob,
    numbers,
    on_loops,
    play,
    until,
)

from surecast.columns.batch import Batch
from surecast.core.types import PeerDown, Received, Send, SetTimer, TimerFired
from surecast.core.wire import HEADER_SIZE, Codec, Limits
from surecast.runtime.chunks import CHUNK_BYTES, Chunk
from surecast.runtime.hello import BEAT, CODEC, VERSION, Hello, Refused, encode
from surecast.runtime.node import Node

FRAMES = Codec([Ping, Blob, Carry])


class Caller:
    """A peer that is only a socket, without a node."""

    def __init__(self, node: Node, name: str = "x") -> None:
        self.node = node
        self.name = name

    async def __aenter__(self) -> "Caller":
        assert self.node.address is not None
        self.reader, self.writer = await asyncio.open_connection(*self.node.address)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.writer.close()

    def hello(self, **changes: Any) -> bytes:
        fields = {"version": VERSION, "name": self.name, "to": self.node.name, "life": b"life"}
        return encode(Hello(**{**fields, "attempt": 1, **changes}))

    async def greet(self) -> Hello:
        self.writer.write(self.hello())
        answer = await self.frame()
        assert type(answer) is Hello
        self.writer.write(BEAT)
        return answer

    async def frame(self) -> Any:
        """The next control frame of the driver, except heartbeats."""
        while True:
            header = await self.reader.readexactly(HEADER_SIZE)
            body = await self.reader.readexactly(int.from_bytes(header[8:12], "little"))
            message, _ = CODEC.decode(header + body)
            if type(message).__name__ != "Beat":
                return message

    async def refusal(self, closed: bool = True) -> str:
        """The reason for the refusal; checks that nothing follows it."""
        refused = await self.frame()
        assert type(refused) is Refused, refused
        if closed:
            assert await self.reader.read() == b""
        return str(refused.why)


def ping(number: int) -> bytes:
    return b"".join(FRAMES.encode(Ping(number)))


# ---------------------------------------------------------------- frames in pieces


@on_loops
@pytest.mark.parametrize("piece", [1, 7, 128, 1000, 70_000])
def test_frames_arrive_complete_however_the_bytes_are_split(loop: str, piece: int) -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            b = await stage.add("b")
            async with Caller(b) as caller:
                await caller.greet()
                rng = Random(piece)
                count = 4 if piece < 100 else 40
                sizes = [rng.choice((0, 5, 300, 3000, 12 * piece)) for _ in range(count)]
                data = b"".join(
                    b"".join(FRAMES.encode(Blob(n, rng.randbytes(size))))
                    for n, size in enumerate(sizes)
                )
                for at in range(0, len(data), piece):
                    caller.writer.write(data[at : at + piece])
                    await caller.writer.drain()
                    if piece < 1000 and at % (piece * 50) == 0:
                        await asyncio.sleep(0)
                await until(lambda: len(b.machine.of(Received)) == count)
                assert numbers(b.machine) == list(range(count))
                got = [inp.message.data for _, inp in b.machine.of(Received)]
                assert [len(data) for data in got] == sizes

    play(loop, scenario)


@on_loops
def test_received_batches_are_not_overwritten_by_later_data(loop: str) -> None:
    """Each batch is a view into a receive buffer, which must not be overwritten by later data."""

    async def scenario() -> None:
        async with Stage() as stage:
            await stage.add("a")
            b = await stage.add("b")
            batches = [
                Batch.of(LOG, [f"{n}-{i}".encode() * 20 for i in range(200)]) for n in range(100)
            ]
            assert sum(batch.nbytes for batch in batches) > 4 * CHUNK_BYTES
            for batch in batches:
                stage.do("a", Send("b", Carry(batch)), Send("b", Ping(0)))
            await until(lambda: len(b.machine.of(Received)) == 200)
            got = [inp.message for _, inp in b.machine.of(Received)]
            carried = [message.batch for message in got if type(message) is Carry]
            assert [bytes(b.body) for b in carried] == [bytes(b.body) for b in batches]

    play(loop, scenario)


def test_a_chunk_is_reused_only_without_views_into_it() -> None:
    chunk = Chunk()
    first = chunk.room(0)
    first[:4] = b"abcd"
    chunk.fill = 4
    kept = chunk.view[0:4].toreadonly()
    chunk.at = 4
    del first
    room = chunk.room(0)
    room[:4] = b"wxyz"
    assert bytes(kept) == b"abcd"
    assert chunk.fill == 4
    del room, kept
    assert len(chunk.room(0)) == CHUNK_BYTES
    assert chunk.fill == chunk.at == 0


def test_an_incomplete_frame_moves_to_a_chunk_with_room_for_all_of_it() -> None:
    chunk = Chunk()
    chunk.room(0)[:10] = b"0123456789"
    chunk.fill, chunk.at = 10, 6
    room = chunk.room(3 * CHUNK_BYTES)
    assert len(room) == 3 * CHUNK_BYTES - 4
    assert bytes(chunk.view[chunk.at : chunk.fill]) == b"6789"


# ---------------------------------------------------------------- bytes that are no frames


HOSTILE = {
    "garbage": (b"who is there?\r\n\r\n" + bytes(200), "not a frame"),
    "one wrong byte": (b"X", "not a frame"),
    "an unknown frame version": (ping(1)[:4] + b"\x09" + ping(1)[5:], "frame version 9"),
    "a frame that is not ours": (b"".join(Codec([Ping]).encode(Ping(1))), "control message"),
}


@on_loops
@pytest.mark.parametrize("name", HOSTILE)
def test_a_peer_that_sends_no_hello_is_refused_with_the_reason(loop: str, name: str) -> None:
    data, words = HOSTILE[name]

    async def scenario() -> None:
        async with Stage() as stage:
            b = await stage.add("b")
            async with Caller(b) as caller:
                caller.writer.write(data)
                assert words in await caller.refusal()
            assert b.counters["refused"] == 1
            assert stage.kinds("b") == ["Start"]

    play(loop, scenario)


def _flipped(frame: bytes, at: int) -> bytes:
    return frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]


BAD = {
    "header bit": (_flipped(ping(7), 40), "header CRC"),
    "body bit": (_flipped(ping(7), HEADER_SIZE + 1), "CRC"),
    "garbage": (bytes(500), "not a frame"),
    "a second hello": (b"".join(CODEC.encode(Hello(1, "x", "b", b"", 1))), "control message"),
}


@on_loops
@pytest.mark.parametrize("name", BAD)
def test_a_bad_frame_ends_its_session_and_no_other(loop: str, name: str) -> None:
    data, words = BAD[name]

    async def scenario() -> None:
        async with Stage() as stage:
            await stage.add("a")
            b = await stage.add("b")
            stage.do("a", Send("b", Ping(0)))
            async with Caller(b) as caller:
                await caller.greet()
                caller.writer.write(ping(1) + ping(2) + data + ping(3))
                assert words in await caller.refusal()
            await until(lambda: b.machine.of(PeerDown))
            stage.do("a", Send("b", Ping(4)))
            await until(lambda: 4 in numbers(b.machine))
            received = [i.message.number for _, i in b.machine.of(Received) if i.peer == "x"]
            assert received == [1, 2]
            assert b.machine.of(PeerDown)[0][1] == PeerDown("x")
            assert len(b.machine.of(PeerDown)) == 1

    play(loop, scenario)


@on_loops
@pytest.mark.parametrize("greeted", [True, False])
def test_the_reason_arrives_while_much_data_is_in_flight(loop: str, greeted: bool) -> None:
    """Closing with unread bytes would be a reset, which discards what the peer has not read."""

    async def scenario() -> None:
        async with Stage() as stage:
            b = await stage.add("b")
            async with Caller(b) as caller:
                if greeted:
                    await caller.greet()
                for _ in range(50):
                    caller.writer.write(bytes(100_000))
                    await asyncio.sleep(0)
                await caller.writer.drain()
                assert "not a frame" in await caller.refusal(closed=False)
                caller.writer.write_eof()
                assert await caller.reader.read() == b""

    play(loop, scenario)


@on_loops
def test_an_oversized_frame_is_refused_by_its_header(loop: str) -> None:
    big = b"".join(Codec([Blob], Limits(64 << 20, 20 << 20)).encode(Blob(1, bytes(17 << 20))))

    async def scenario() -> None:
        async with Stage() as stage:
            b = await stage.add("b")
            async with Caller(b) as caller:
                await caller.greet()
                caller.writer.write(big[:HEADER_SIZE])  # nothing of the body
                assert "limits.frame_bytes_max" in await caller.refusal()
            await until(lambda: b.machine.of(PeerDown))

    play(loop, scenario)


@on_loops
def test_a_large_hello_is_refused(loop: str) -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            b = await stage.add("b")
            async with Caller(b) as caller:
                caller.writer.write(b"".join(FRAMES.encode(blob(1, 100_000)))[:HEADER_SIZE])
                assert "frame claims" in await caller.refusal()

    play(loop, scenario)


@on_loops
def test_a_peer_with_a_slow_hello_is_cut_off(loop: str) -> None:
    async def scenario() -> None:
        async with Stage(handshake_timeout_ns=150_000_000) as stage:
            b = await stage.add("b")
            async with Caller(b) as caller:
                hello = caller.hello()
                ended = asyncio.create_task(caller.reader.read())
                for at in range(len(hello)):  # bytes keep arriving one at a time
                    if ended.done():
                        break
                    caller.writer.write(hello[at : at + 1])
                    await asyncio.sleep(0.02)
                assert ended.done(), "the connection was not cut off"
                with suppress(ConnectionError):
                    assert await ended == b""
            assert b.counters["handshake_timeouts"] == 1
            assert not b.sessions.connections

    play(loop, scenario)


@on_loops
def test_a_peer_that_sends_only_hello_is_never_reported_up(loop: str) -> None:
    """Like a peer that cannot receive our answer: the machine gets no PeerUp."""

    async def scenario() -> None:
        async with Stage(handshake_timeout_ns=150_000_000) as stage:
            b = await stage.add("b")
            async with Caller(b) as caller:
                caller.writer.write(caller.hello())
                assert type(await caller.frame()) is Hello
                await until(lambda: b.counters["handshake_timeouts"] == 1)
                await until(lambda: not b.sessions.by_peer)
            assert stage.kinds("b") == ["Start"]

    play(loop, scenario)


@on_loops
def test_connections_are_bounded(loop: str) -> None:
    async def scenario() -> None:
        async with Stage(connections_max=2) as stage:
            b = await stage.add("b")
            async with Caller(b, "x") as x, Caller(b, "y") as y, Caller(b, "z") as z:
                await x.greet()
                await y.greet()
                assert await z.refusal() == "too many connections"
                x.writer.write(ping(1))
                await until(lambda: numbers(b.machine) == [1])

    play(loop, scenario)


@on_loops
@pytest.mark.parametrize("seed", range(4))
def test_no_received_bytes_make_the_node_fail(loop: str, seed: int) -> None:
    """Mutated conversations: truncated, flipped bits, duplicated pieces. The node still works."""
    rng = Random(f"hostile {seed}")

    async def scenario() -> None:
        async with Stage(handshake_timeout_ns=200_000_000) as stage:
            await stage.add("a")
            b = await stage.add("b")
            for turn in range(60):
                async with Caller(b, f"x{turn}") as caller:
                    talk = bytearray(caller.hello() + BEAT + ping(1) * 5)
                    talk += b"".join(FRAMES.encode(blob(1, rng.randint(0, 5000))))
                    for _ in range(rng.randint(0, 4)):
                        at = rng.randrange(len(talk))
                        match rng.randrange(4):
                            case 0:
                                talk[at] ^= 1 << rng.randrange(8)
                            case 1:
                                del talk[at:]
                            case 2:
                                talk[at:at] = rng.randbytes(rng.randint(1, 300))
                            case 3:
                                talk[at:at] = talk[: rng.randrange(len(talk))]
                        if not talk:
                            break
                    caller.writer.write(bytes(talk))
                    await asyncio.sleep(0.001)
            stage.do("a", Send("b", Ping(99)))
            await until(lambda: 99 in numbers(b.machine))
            await until(lambda: len(b.sessions.connections) == 1)
            assert not b.failed.done()

    play(loop, scenario)


@on_loops
def test_an_abandoned_connection_does_not_lose_our_messages(loop: str) -> None:
    """A late Hello may belong to a connection that the peer has given up: we do not wait for it."""

    async def scenario() -> None:
        async with Stage() as stage:
            b, x = await stage.add("b"), await stage.add("x")
            async with Caller(b, "x") as caller:
                caller.writer.write(caller.hello())
                await caller.frame()
                stage.do("b", Send("x", Ping(1)))  # waits for this connection
                await until(lambda: b.sessions.by_peer["x"].used)
            await until(lambda: numbers(x.machine) == [1])
            assert not b.machine.of(PeerDown)

    play(loop, scenario)


@on_loops
@pytest.mark.parametrize("linger", [(0, 0), (1, 0)], ids=["closes", "resets"])
def test_a_peer_that_sends_garbage_and_closes_does_no_harm(
    loop: str, linger: tuple[int, int]
) -> None:
    """The connection ends before or while the bytes are refused."""

    async def scenario() -> None:
        async with Stage() as stage:
            b = await stage.add("b")
            assert b.address is not None
            for garbage in (b"GET / HTTP/1.0\r\n\r\n", Caller(b).hello(version=99)):
                sock = socket.create_connection(b.address)
                sock.sendall(garbage)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", *linger))
                sock.close()
            await until(lambda: b.counters["refused"] == 2)
            await until(lambda: not b.sessions.connections)
            assert not b.failed.done()
            assert b.running

    play(loop, scenario)


# ---------------------------------------------------------------- floods


class Hurried(Actor):
    """Repeatedly sets a timer that is due at once; counts the messages that come before it."""

    count = waited_max = 0
    set_at: int | None = None

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        if type(inp) is Received:
            self.count += 1
            if self.set_at is None:
                self.set_at = self.count
                return [SetTimer("now", now_ns)]
        elif type(inp) is TimerFired:
            assert self.set_at is not None
            self.waited_max = max(self.waited_max, self.count - self.set_at)
            self.set_at = None
        return []


def flood(address: tuple[str, int], hello: bytes, frames: int) -> None:
    """Send a Hello and then frames as fast as possible; runs in a thread."""
    with socket.create_connection(address) as sock:
        sock.sendall(hello)
        sock.recv(1 << 16)
        sock.sendall(BEAT)
        for _ in range(frames // 1000):
            sock.sendall(ping(0) * 1000)
        with suppress(OSError):
            while sock.recv(1 << 16):  # closing with unread beats would lose sent data
                pass


@pytest.mark.slow
@on_loops
def test_a_flood_delays_timers_by_a_few_receives_only(loop: str) -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            b = await stage.add("b", Hurried)
            assert b.address is not None
            hello = Caller(b).hello()
            thread = asyncio.get_running_loop().run_in_executor(
                None, flood, b.address, hello, 200_000
            )
            await until(lambda: b.machine.count == 200_000)
            b.kill()
            await asyncio.wait([thread])
            assert 0 < b.machine.waited_max < 4 * CHUNK_BYTES // len(ping(0))

    play(loop, scenario)
