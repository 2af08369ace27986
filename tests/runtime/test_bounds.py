"""Bounds of a node on peers, calls, passes and recordings: at each limit and one step beyond."""

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from tests.edits import Check, Edit, Row, each_check, must_fail
from tests.runtime.stage import Stage, numbers, play
from tests.runtime.test_recorder import recorder
from tests.runtime.test_tcp import Caller, ping

from surecast.core.types import MS, SECOND, TimerFired
from surecast.runtime import opening, udp
from surecast.runtime import recorder as recording
from surecast.runtime.node import Node
from surecast.runtime.recorder import BYTES_MAX
from surecast.runtime.tcp import _JOIN_BYTES_MAX, Connection
from surecast.runtime.udp import _DATAGRAM_MAX, _RECEIVES_MAX, _SEGMENTS_MAX

# ---------------------------------------------------------------- connections


def refused_connections() -> None:
    """Peers beyond connections_max get the reason; beyond _REFUSALS_MAX more, they are cut off."""

    async def scenario() -> None:
        async with Stage(connections_max=1) as stage:
            b = await stage.add("b")
            async with Caller(b, "x") as x, Caller(b, "y") as y, Caller(b, "z") as z:
                await x.greet()
                assert await y.refusal() == "too many connections"
                assert await refusal_or_nothing(z) == ""
                assert b.counters["refused"] == 2
                x.writer.write(ping(1))
                await stage.until(lambda: numbers(b.machine) == [1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "_REFUSALS_MAX", 1)
        play("asyncio", scenario)


async def refusal_or_nothing(caller: Caller) -> str:
    """The reason for the refusal; "" if the connection was closed without one."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        return await caller.refusal()
    return ""


def peers_in_reconnect_pause() -> None:
    """Beyond _QUIET_MAX, peers whose pause is over are forgotten."""

    async def scenario() -> None:
        async with Stage(reconnect_ns=1 * MS) as stage:
            quiet = (await stage.add("a")).sessions.opening
            for peer in "bcd":
                quiet.pause(peer)
            await asyncio.sleep(0.01)
            quiet.pause("e")
            assert list(quiet._quiet_until) == ["b", "c", "d", "e"]
            await asyncio.sleep(0.01)
            quiet.pause("f")
            assert list(quiet._quiet_until) == ["f"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "_QUIET_MAX", 3)
        play("asyncio", scenario)


def size_of_joined_buffers() -> None:
    """Buffers are joined, unless they have _JOIN_BYTES_MAX bytes or more on average."""

    def written(*sizes: int) -> list[str]:
        calls: list[str] = []
        transport = SimpleNamespace(
            write=lambda data: calls.append(f"write {len(data)}"),
            writelines=lambda some: calls.append(f"writelines {len(some)}"),
        )
        connection: Any = SimpleNamespace(transport=transport)
        Connection.write(connection, [bytes(size) for size in sizes], sum(sizes))
        assert connection.wrote
        return calls

    assert written(_JOIN_BYTES_MAX + 1, _JOIN_BYTES_MAX - 1) == ["writelines 2"]
    total = 2 * _JOIN_BYTES_MAX - 1
    assert written(_JOIN_BYTES_MAX, _JOIN_BYTES_MAX - 1) == [f"write {total}"]


# ---------------------------------------------------------------- datagrams


def groups(*sizes: int) -> list[int]:
    datagrams = [bytes(size) for size in sizes]
    return [len(group) for group in udp._groups(datagrams, _DATAGRAM_MAX)]


def datagrams_in_one_call() -> None:
    assert groups(*[9] * _SEGMENTS_MAX) == [_SEGMENTS_MAX]
    assert groups(*[9] * (_SEGMENTS_MAX + 1)) == [_SEGMENTS_MAX, 1]


def bytes_in_one_call() -> None:
    third = _DATAGRAM_MAX // 3 + 1
    assert groups(third, third, _DATAGRAM_MAX - 2 * third) == [3]
    assert groups(third, third, _DATAGRAM_MAX - 2 * third + 1) == [2, 1]


def with_node(scenario: Callable[[Stage, Node], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Stage() as stage:
            await scenario(stage, await stage.add("b"))

    play("asyncio", main)


def datagram(node: Node, name: str, number: int) -> bytes:
    assert node.datagrams is not None
    return udp._preamble(name, node.datagrams._credential) + ping(number)


def datagrams_in_one_pass() -> None:
    """A flood is read _RECEIVES_MAX datagrams at a time; the rest waits in the socket."""

    async def scenario(_stage: Stage, node: Node) -> None:
        assert node.address is not None
        assert node.datagrams is not None
        with socket.socket(type=socket.SOCK_DGRAM) as sender:
            for number in range(_RECEIVES_MAX + 5):
                sender.sendto(datagram(node, "a", number), node.address)
        node.datagrams._readable()  # the event loop has not read from it yet
        assert numbers(node.machine) == list(range(_RECEIVES_MAX))
        node.datagrams._readable()
        assert numbers(node.machine) == list(range(_RECEIVES_MAX + 5))

    with_node(scenario)


def receive_from(node: Node, *names: str) -> Any:
    """Let a datagram of each of these peers arrive, each from another port."""
    assert node.datagrams is not None
    for number, name in enumerate(names):
        source = ("127.0.0.1", 40_000 + number)
        node.datagrams.receive(memoryview(datagram(node, name, number)), source)
    return node.datagrams


def preambles_remembered() -> None:
    async def scenario(_stage: Stage, node: Node) -> None:
        assert list(receive_from(node, "x", "y")._known.values()) == ["x", "y"]
        assert list(receive_from(node, "z")._known.values()) == ["z"]
        assert numbers(node.machine) == [0, 1, 0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(udp, "_PEERS_MAX", 2)
        with_node(scenario)


def senders_remembered() -> None:
    async def scenario(_stage: Stage, node: Node) -> None:
        assert list(receive_from(node, "x", "y")._sources) == ["x", "y"]
        assert list(receive_from(node, "z")._sources) == ["z"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(udp, "_PEERS_MAX", 2)
        with_node(scenario)


def addresses_remembered() -> None:
    async def scenario(stage: Stage, node: Node) -> None:
        assert node.datagrams is not None
        for number, name in enumerate("xyz"):
            stage.book.set(name, ("127.0.0.1", 40_000 + number))
            assert node.datagrams._find(name) == ("127.0.0.1", 40_000 + number)
            assert len(node.datagrams._addresses) == (1, 2, 1)[number]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(udp, "_PEERS_MAX", 2)
        with_node(scenario)


# ---------------------------------------------------------------- recordings


class Gate(deque[Any]):
    """A queue of pieces. Its event is set when the oldest piece is taken, to be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()

    def popleft(self) -> Any:
        self.open.set()
        return super().popleft()


def unwritten_pieces_of_a_recording() -> None:
    """A node waits for a slow disk once PIECES_MAX pieces of its recording are not written."""
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "PIECES_MAX", 3)
        patch.setattr(recording, "FLUSH_BYTES", 1)
        rec, gate = recorder(Path(name) / "a.rec"), Gate()
        rec._pieces = gate
        write = rec._write
        patch.setattr(rec, "_write", lambda data: gate.open.wait() and write(data))
        try:
            for number in range(3):
                rec.step(number, TimerFired(number), [])
            assert len(gate) == 3
            assert not gate.open.is_set()
            rec.step(3, TimerFired(3), [])
            assert gate.open.is_set()
            assert len(gate) <= 3
        finally:
            gate.open.set()
            rec.close()


def bytes_of_a_recording() -> None:
    with TemporaryDirectory() as name:
        rec = recorder(Path(name) / "a.rec")

        def step(number: int) -> int:
            before = rec.nbytes
            rec.step(number * SECOND, TimerFired("x"), [])
            rec.flush()
            return rec.nbytes - before

        step(1)
        rec.nbytes = BYTES_MAX - step(2)  # as if this much had been written
        step(3)
        assert (rec.nbytes, rec.problem) == (BYTES_MAX, "")
        step(4)
        assert f"the limit of {BYTES_MAX:,} bytes is reached" in rec.problem
        rec.close()


RUNTIME = "surecast.runtime."
CHECKS: list[Row] = [
    (
        refused_connections,
        Edit(
            RUNTIME + "opening:Opening.connected",
            "self.limits.connections_max + _REFUSALS_MAX",
            "1 << 60",
        ),
    ),
    (
        peers_in_reconnect_pause,
        Edit(RUNTIME + "opening:Opening.pause", "> _QUIET_MAX", "> 1 << 60"),
    ),
    (size_of_joined_buffers, Edit(RUNTIME + "tcp:Connection.write", "* _JOIN_BYTES_MAX", "* 1")),
    (datagrams_in_one_call, Edit(RUNTIME + "udp:_groups", "< _SEGMENTS_MAX", "< 1 << 60")),
    (bytes_in_one_call, Edit(RUNTIME + "udp:_groups", "<= _DATAGRAM_MAX", "< 1 << 60")),
    (
        datagrams_in_one_pass,
        Edit(RUNTIME + "udp:Datagrams._readable", "range(_RECEIVES_MAX)", "range(1000)"),
    ),
    (
        preambles_remembered,
        Edit(RUNTIME + "udp:Datagrams._read_preamble", ">= _PEERS_MAX", "> 1 << 60"),
    ),
    (senders_remembered, Edit(RUNTIME + "udp:Datagrams.receive", ">= _PEERS_MAX", "> 1 << 60")),
    (addresses_remembered, Edit(RUNTIME + "udp:Datagrams._find", ">= _PEERS_MAX", "> 1 << 60")),
    (
        unwritten_pieces_of_a_recording,
        Edit(RUNTIME + "recorder:Recorder._hand_over", " or len(pieces) >= PIECES_MAX", ""),
    ),
    (
        bytes_of_a_recording,
        Edit(RUNTIME + "recorder:Recorder._hand_over", "> self._bytes_max", "> 1 << 60"),
    ),
]


@each_check(CHECKS)
def test_bound_holds(check: Check, edit: Edit) -> None:
    check()


@each_check(CHECKS)
def test_a_missing_bound_is_noticed(check: Check, edit: Edit) -> None:
    must_fail(check, edit)
