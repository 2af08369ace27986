"""Sessions over TCP: simultaneous opening, silence, back-pressure, and random faults."""

import asyncio
import logging
import time
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from tests.runtime.stage import (
    Actor,
    Blob,
    Do,
    Ping,
    Stage,
    blob,
    numbers,
    on_loops,
    play,
    until,
)
from tests.runtime.test_tcp import Caller

from surecast.core.types import (
    MS,
    SECOND,
    Close,
    Congested,
    PeerDown,
    PeerUp,
    Received,
    Send,
    Writable,
)
from surecast.runtime.hello import BEAT
from surecast.runtime.session import Session
from surecast.runtime.sessions import Sessions


class Wire:
    """A proxy between two nodes that forwards bytes and can stop without closing connections."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.connections = 0
        self.tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Wire":
        self.server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        self.address: tuple[str, int] = self.server.sockets[0].getsockname()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        far_reader, far_writer = await asyncio.open_connection(*self.target)
        for a, b in ((reader, far_writer), (far_reader, writer)):
            self.tasks.append(asyncio.create_task(self._carry(a, b)))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                await self.flowing.wait()
                writer.write(data)
            await self.flowing.wait()
        except OSError:
            pass
        writer.close()


# ---------------------------------------------------------------- opening


@on_loops
def test_simultaneous_opening_ends_in_one_session_for_each_pair(loop: str) -> None:
    """All nodes connect to all others at once, repeatedly: one session a pair, nothing is lost."""
    names = [f"n{i}" for i in range(6)]

    async def scenario() -> None:
        async with Stage(connect_timeout_ns=20 * SECOND, session_timeout_ns=20 * SECOND) as stage:
            for name in names:
                await stage.add(name)
            for turn in range(5):
                for name in names:
                    sends = [Send(peer, Ping(turn)) for peer in names if peer != name]
                    stage.do(name, *sends)
                want = (turn + 1) * (len(names) - 1)
                await until(lambda w=want: all(len(numbers(stage.machine(n))) == w for n in names))
                for name in names:
                    assert stage.kinds(name).count("PeerUp") == want
                    assert stage.kinds(name).count("PeerDown") == want - len(names) + 1
                    # each pair is closed by the node with the lower name
                    stage.do(name, *(Close(peer) for peer in names if peer > name))
                await until(
                    lambda w=want: all(len(stage.machine(n).of(PeerDown)) == w for n in names)
                )

    play(loop, scenario)


async def _ends_before_its_first_flush() -> None:
    """A peer connects; we send into its session before it is up, and it ends in the same pass."""
    async with Stage() as stage:
        node = await stage.add("b")
        async with Caller(node) as caller:
            caller.writer.write(caller.hello())
            await caller.frame()  # our answer; the peer sends nothing more
            session = node.sessions.by_peer[caller.name]
            assert not session.used
            node.step(Do([Send(caller.name, Ping(1))]))
            node.sessions.down(session)
            node.settle()
            assert [inp.peer for _, inp in stage.machine("b").of(PeerDown)] == [caller.name]


class CountsFlushedOnly(Sessions):
    """A mutant: only flushed messages count as sent."""

    def down(self, session: Session, quiet: bool = False) -> None:
        session.dirty = False
        super().down(session, quiet)


@on_loops
def test_messages_sent_into_a_session_that_ends_at_once_cause_peer_down(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(loop, _ends_before_its_first_flush)
    monkeypatch.setattr("surecast.runtime.node.Sessions", CountsFlushedOnly)
    with pytest.raises(AssertionError):
        play(loop, _ends_before_its_first_flush)


@on_loops
def test_a_node_that_does_not_listen_is_reachable_through_its_own_session(loop: str) -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            await stage.add("server")
            await stage.add("client", listen=None)
            stage.do("server", Send("client", Ping(1)))
            await until(lambda: stage.machine("server").of(PeerDown))
            assert stage.nodes["server"].counters["no_address"] == 1
            stage.do("client", Send("server", Ping(2)))
            await until(lambda: numbers(stage.machine("server")) == [2])
            stage.do("server", Send("client", Ping(3)))
            await until(lambda: numbers(stage.machine("client")) == [3])

    play(loop, scenario)


@on_loops
def test_a_name_with_an_address_needs_no_entry_in_the_book(loop: str) -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            c1 = await stage.add("c1@127.0.0.1:0")
            assert c1.address is not None
            assert c1.name == f"c1@127.0.0.1:{c1.address[1]}"
            stage.book.remove(c1.name)
            await stage.add("b")
            stage.do("b", Send(c1.name, Ping(1)))
            await until(lambda: numbers(c1.machine) == [1])

    play(loop, scenario)


@on_loops
def test_connecting_to_a_silent_peer_times_out(loop: str) -> None:
    async def scenario() -> None:
        silent = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        async with Stage(connect_timeout_ns=100 * MS) as stage:
            a = await stage.add("a")
            stage.book.set("b", silent.sockets[0].getsockname())
            stage.do("a", Send("b", Ping(1)))
            await until(lambda: stage.machine("a").of(PeerDown))
            assert a.counters["connect_timeouts"] == 1
            await until(lambda: not a.sessions.connections)
        silent.close()

    play(loop, scenario)


class Stubborn(Actor):
    """Answers each PeerDown by sending again."""

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        out = super().step(now_ns, inp)
        return [Send("b", Ping(len(self.seen)))] if type(inp) is PeerDown else out


@on_loops
def test_sending_on_each_peer_down_does_not_retry_faster_than_reconnect_ns(loop: str) -> None:
    async def scenario() -> None:
        async with Stage(reconnect_ns=40 * MS) as stage:
            a = await stage.add("a", Stubborn)
            began_ns = time.monotonic_ns()
            stage.do("a", Send("b", Ping(0)))  # b's address is unknown
            await until(lambda: len(a.machine.of(PeerDown)) >= 5)
            downs = [now_ns for now_ns, _ in a.machine.of(PeerDown)]
            for earlier, later in pairwise(downs):
                assert later - earlier >= 39 * MS  # uvloop's clock counts whole milliseconds
            assert downs[0] >= began_ns
            await stage.add("b")
            await until(lambda: numbers(stage.machine("b")))

    play(loop, scenario)


@on_loops
def test_messages_of_one_step_to_an_unknown_peer_are_one_attempt(loop: str) -> None:
    async def scenario() -> None:
        async with Stage(reconnect_ns=1 * MS) as stage:
            a = await stage.add("a")
            stage.do("a", Send("b", Ping(1)), Send("b", Ping(2)), Send("b", Ping(3)))
            await until(lambda: a.machine.of(PeerDown))
            stage.do("a", Send("c", Ping(4)))
            await until(lambda: len(a.machine.of(PeerDown)) == 2)
            assert [inp.peer for _, inp in a.machine.of(PeerDown)] == ["b", "c"]

    play(loop, scenario)


# ---------------------------------------------------------------- ending


class Speaker(Actor):
    """On `Do` sends a Ping whose number is the count of ended sessions with b."""

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        super().step(now_ns, inp)
        return [Send("b", Ping(len(self.of(PeerDown))))] if type(inp) is Do else []


@on_loops
def test_a_lost_session_is_reported_before_waiting_commands(loop: str) -> None:
    """Otherwise their messages would open the next session before the machine knows of the loss."""

    async def scenario() -> None:
        async with Stage() as stage:
            a, b = await stage.add("a", Speaker), await stage.add("b")
            stage.do("a")
            await until(lambda: numbers(b.machine) == [0])
            for _ in range(20):
                stage.do("a")
            (connection,) = a.sessions.connections
            a.sessions.lost(connection, None)  # as if the loss had been detected in this pass
            connection.abort()
            await until(lambda: len(numbers(b.machine)) == 21)
            assert numbers(b.machine) == [0] + [1] * 20

    play(loop, scenario)


class ReopensAtOnce(Actor):
    """Answers PeerDown by sending again at once."""

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        out = super().step(now_ns, inp)
        return [Send("a", Ping(10**6))] if type(inp) is PeerDown else out


@on_loops
def test_a_peer_that_reopens_does_not_lose_data_of_its_closed_session(loop: str) -> None:
    """a closes; b, with much data in flight to a, closes too and opens the next session at once."""

    async def scenario() -> None:
        async with Stage(session_timeout_ns=60 * SECOND, handshake_timeout_ns=60 * SECOND) as stage:
            a, b = await stage.add("a"), await stage.add("b", ReopensAtOnce)
            stage.do("a", Send("b", Ping(0)))
            await until(lambda: numbers(b.machine) == [0])
            (connection,) = a.sessions.connections
            connection.transport.pause_reading()
            stage.do("b", *(Send("a", blob(n, 200_000)) for n in range(100)))
            stage.do("a", Close("b"))
            await until(lambda: b.machine.of(PeerDown))
            session = a.sessions.by_peer["b"]
            await until(lambda: session.parked is not None)  # b's next session waits
            connection.transport.resume_reading()
            await until(lambda: 10**6 in numbers(a.machine))
            assert numbers(a.machine) == [*range(100), 10**6]
            ups = [kind for kind in stage.kinds("a") if kind.startswith("Peer")]
            assert ups == ["PeerUp", "PeerDown", "PeerUp"]
            assert list(a.sessions.ended) == [("b", "closed")]

    play(loop, scenario)


@on_loops
def test_data_of_a_closed_session_that_is_not_read_is_given_up(loop: str) -> None:
    """a sent Bye and then reads nothing: b does not keep its remaining data forever."""

    async def scenario() -> None:
        async with Stage(session_timeout_ns=300 * MS) as stage:
            a, b = await stage.add("a"), await stage.add("b")
            stage.do("a", Send("b", Ping(0)))
            await until(lambda: numbers(b.machine) == [0])
            (connection,) = a.sessions.connections
            connection.transport.pause_reading()
            stage.do("b", *(Send("a", blob(n, 200_000)) for n in range(100)))
            stage.do("a", Close("b"))
            await until(lambda: b.machine.of(PeerDown))
            await until(lambda: not b.sessions.connections)
            assert b.counters["closes_given_up"] == 1

    play(loop, scenario)


@on_loops
def test_stop_sends_remaining_data_of_a_closed_session(loop: str) -> None:
    async def scenario() -> None:
        async with Stage(session_timeout_ns=60 * SECOND, drain_timeout_ns=60 * SECOND) as stage:
            a, b = await stage.add("a"), await stage.add("b")
            stage.do("a", Send("b", Ping(0)))
            await until(lambda: numbers(b.machine) == [0])
            (connection,) = a.sessions.connections
            connection.transport.pause_reading()
            stage.do("b", *(Send("a", blob(n, 200_000)) for n in range(100)))
            stage.do("a", Close("b"))
            await until(lambda: b.machine.of(PeerDown))
            stopping = asyncio.create_task(b.stop())
            await asyncio.sleep(0)
            connection.transport.resume_reading()
            await stopping
            await until(lambda: a.machine.of(PeerDown))
            assert numbers(a.machine) == list(range(100))

    play(loop, scenario)


@on_loops
def test_silence_breaks_a_session_at_both_ends(loop: str) -> None:
    """The proxy accepts and acknowledges everything and forwards nothing."""

    async def scenario() -> None:
        async with Stage(session_timeout_ns=300 * MS) as stage:
            await stage.add("a")
            b = await stage.add("b")
            assert b.address is not None
            async with Wire(b.address) as wire:
                stage.book.set("b", wire.address)
                stage.do("a", Send("b", Ping(1)))
                await until(lambda: numbers(stage.machine("b")) == [1])
                wire.flowing.clear()
                stage.do("a", Send("b", Ping(2)))
                await until(lambda: stage.machine("a").of(PeerDown))
                await until(lambda: stage.machine("b").of(PeerDown))
                assert list(stage.nodes["a"].sessions.ended) == [("b", "silent")]
                wire.flowing.set()
                stage.do("a", Send("b", Ping(3)))
                await until(lambda: 3 in numbers(stage.machine("b")))
                assert numbers(stage.machine("b")) == [1, 3]

    play(loop, scenario)


@on_loops
def test_heartbeats_keep_an_idle_session_up(loop: str) -> None:
    async def scenario() -> None:
        async with Stage(session_timeout_ns=200 * MS) as stage:
            a, b = await stage.add("a"), await stage.add("b")
            stage.do("a", Send("b", Ping(1)))
            await until(lambda: numbers(b.machine) == [1])
            before = a.counters["tcp_bytes_in"]
            await until(lambda: a.counters["tcp_bytes_in"] > before + 10 * len(BEAT))
            assert stage.kinds("a") == ["Start", "PeerUp"]

    play(loop, scenario)


@pytest.mark.slow
@on_loops
def test_time_while_this_process_was_stopped_does_not_count_as_silence(loop: str) -> None:
    async def scenario() -> None:
        async with Stage(session_timeout_ns=400 * MS) as stage:
            a, b = await stage.add("a"), await stage.add("b")
            stage.do("a", Send("b", Ping(1)))
            await until(lambda: numbers(b.machine) == [1])
            a.sessions._ticker.cancel()
            (connection,) = a.sessions.connections
            connection.heard = False
            time.sleep(1.0)  # both run in this thread: neither received anything
            a.sessions._tick()  # like a loop that checks timers before sockets
            stage.do("a", Send("b", Ping(2)))
            await until(lambda: numbers(b.machine) == [1, 2])
            assert stage.kinds("a") == ["Start", "PeerUp"]
            assert a.counters["session_timeouts"] == b.counters["session_timeouts"] == 0

    play(loop, scenario)


@on_loops
def test_a_new_session_replaces_the_old_one_of_a_restarted_peer(loop: str) -> None:
    async def scenario() -> None:
        async with Stage(session_timeout_ns=60 * SECOND) as stage:
            a, b = await stage.add("a"), await stage.add("b")
            assert b.address is not None
            async with Wire(b.address) as wire:
                stage.book.set("b", wire.address)
                stage.do("a", Send("b", Ping(1)))
                await until(lambda: numbers(b.machine) == [1])
                wire.flowing.clear()  # a does not notice the crash of b
                await stage.crash("b")
                stage.book.set("b", stage.addresses["b"])
                await stage.restart("b")
                stage.do("b", Send("a", Ping(2)))
                await until(lambda: numbers(a.machine) == [2])
                assert stage.kinds("a") == ["Start", "PeerUp", "PeerDown", "PeerUp", "Received"]
                assert a.counters["sessions_replaced"] == 1
                assert list(a.sessions.ended) == [("b", "replaced")]

    play(loop, scenario)


@on_loops
def test_stop_drains_what_was_sent(loop: str) -> None:
    async def scenario() -> None:
        async with Stage(drain_timeout_ns=60 * SECOND) as stage:
            a, b = await stage.add("a"), await stage.add("b")
            # More than the sockets hold, both ways: closing with unread bytes would lose some.
            stage.do("a", *(Send("b", blob(n, 200_000)) for n in range(100)))
            stage.do("b", *(Send("a", blob(n, 200_000)) for n in range(100)))
            await until(lambda: a.machine.of(PeerUp) and b.machine.of(Received))
            await a.stop()
            await until(lambda: b.machine.of(PeerDown))
            assert numbers(b.machine) == list(range(100))
            assert stage.kinds("b")[-1] == "PeerDown"

    play(loop, scenario)


@on_loops
def test_stop_while_connecting_and_receiving_leaves_no_task_or_connection(loop: str) -> None:
    async def scenario() -> None:
        silent = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        async with Stage(drain_timeout_ns=60 * SECOND) as stage:
            a, b = await stage.add("a"), await stage.add("b")
            stage.book.set("c", silent.sockets[0].getsockname())
            stage.book.set("d", ("127.0.0.1", 1))
            stage.do("b", *(Send("a", blob(n, 100_000)) for n in range(200)))
            await until(lambda: a.machine.of(Received))
            stage.do("a", *(Send(peer, Ping(1)) for peer in "bcd"))
            await a.stop()
            assert not a.sessions.connections
            assert len(asyncio.all_tasks()) == 1
            again = await stage.add("a")  # at the same port
            stage.do("b", Send("a", Ping(2)))
            await until(lambda: 2 in numbers(again.machine))
            assert 1 in numbers(b.machine)
        silent.close()

    play(loop, scenario)


# ---------------------------------------------------------------- back-pressure


@on_loops
def test_a_peer_that_stops_reading_congests_only_its_own_session(loop: str) -> None:
    async def scenario() -> None:
        async with Stage(high_water_bytes=1 << 20, session_timeout_ns=60 * SECOND) as stage:
            a, b, c = [await stage.add(name) for name in "abc"]
            stage.do("a", Send("b", Ping(0)), Send("c", Ping(0)))
            await until(lambda: numbers(b.machine) == numbers(c.machine) == [0])
            (transport,) = [conn.transport for conn in b.sessions.connections]
            transport.pause_reading()
            for number in range(1, 101):
                stage.do("a", Send("b", blob(number, 200_000)), Send("c", Ping(number)))
            await until(lambda: a.machine.of(Congested))
            await until(lambda: numbers(c.machine) == list(range(101)))
            assert [inp for _, inp in a.machine.of(Congested)] == [Congested("b")]
            assert not a.machine.of(Writable)
            transport.resume_reading()
            await until(lambda: numbers(b.machine) == list(range(101)))
            await until(lambda: a.machine.of(Writable))
            assert [inp for _, inp in a.machine.of(Writable)] == [Writable("b")]
            assert "PeerDown" not in stage.kinds("a")

    play(loop, scenario)


class PausesWhenCongested(Actor):
    """Sends only while its peer is not congested."""

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        effects = super().step(now_ns, inp)
        states = [kind for kind in self.kinds() if kind in ("Congested", "Writable")]
        return [] if states and states[-1] == "Congested" else effects


@on_loops
def test_congested_is_given_before_waiting_inputs(loop: str) -> None:
    """Many inputs in one pass, each answered with much data: this once broke sessions."""

    async def scenario() -> None:
        limits = {"high_water_bytes": 1 << 20, "queue_bytes_max": 8 << 20}
        async with Stage(session_timeout_ns=60 * SECOND, **limits) as stage:
            a, b = await stage.add("a", PausesWhenCongested), await stage.add("b")
            stage.do("a", Send("b", Ping(0)))
            await until(lambda: numbers(b.machine) == [0])
            (connection,) = b.sessions.connections
            connection.transport.pause_reading()
            for number in range(1, 101):
                stage.do("a", Send("b", blob(number, 500_000)))
            await until(lambda: a.machine.of(Congested))
            connection.transport.resume_reading()
            await until(lambda: a.machine.of(Writable))
            stage.do("a", Send("b", Ping(1000)))
            await until(lambda: numbers(b.machine)[-1:] == [1000])
            assert "PeerDown" not in stage.kinds("a")
            assert not a.counters["queue_overflows"]

    play(loop, scenario)


@on_loops
def test_a_queue_beyond_its_bound_breaks_the_session(loop: str) -> None:
    async def scenario() -> None:
        limits = {"high_water_bytes": 1 << 20, "queue_bytes_max": 8 << 20}
        async with Stage(session_timeout_ns=60 * SECOND, **limits) as stage:
            a, b = await stage.add("a"), await stage.add("b")
            stage.do("a", Send("b", Ping(0)))
            await until(lambda: numbers(b.machine) == [0])
            (connection,) = b.sessions.connections
            connection.transport.pause_reading()
            for number in range(1, 1001):
                stage.do("a", Send("b", blob(number, 200_000)))
                await asyncio.sleep(0)
                if a.counters["queue_overflows"]:
                    break
            assert a.counters["queue_overflows"] == 1
            await until(lambda: a.machine.of(PeerDown))
            assert stage.kinds("a")[1:4] == ["PeerUp", "Congested", "PeerDown"]
            assert list(a.sessions.ended) == [("b", "full")]

    play(loop, scenario)


@on_loops
def test_queues_beyond_the_common_bound_lose_the_longest(loop: str) -> None:
    async def scenario() -> None:
        limits = {
            "high_water_bytes": 1 << 20, "queue_bytes_max": 16 << 20, "queues_bytes_max": 16 << 20
        }  # fmt: skip
        async with Stage(session_timeout_ns=60 * SECOND, **limits) as stage:
            a = await stage.add("a")
            for name, pieces in (("b", 85), ("c", 75)):
                reader = await stage.add(name)
                stage.do("a", Send(name, Ping(0)))
                await until(lambda reader=reader: numbers(reader.machine) == [0])
                (connection,) = reader.sessions.connections
                connection.transport.pause_reading()
                for number in range(pieces):
                    stage.do("a", Send(name, blob(number, 200_000)))
            await asyncio.sleep(0)
            assert not a.counters["queue_overflows"]  # each is within its own bound
            a.sessions._tick()
            await until(lambda: a.machine.of(PeerDown))
            assert [inp.peer for *_, inp in a.machine.of(PeerDown)] == ["b"]

    play(loop, scenario)


class SendsTooMuch(Actor):
    """Answers PeerDown by sending more than a queue may hold."""

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        out = super().step(now_ns, inp)
        if type(inp) is PeerDown:
            return [Send("b", blob(number, 600_000)) for number in range(8)]
        return out


@on_loops
def test_a_machine_that_always_sends_too_much_does_not_block_the_loop(loop: str) -> None:
    async def scenario() -> None:
        limits = {"high_water_bytes": 1 << 20, "queue_bytes_max": 4 << 20}
        async with Stage(reconnect_ns=60 * SECOND, **limits) as stage:
            a = await stage.add("a", SendsTooMuch)
            await stage.add("c")
            stage.do("a", Send("b", Ping(0)))
            await until(lambda: a.counters["queue_overflows"] >= 3)
            stage.do("a", Send("c", Ping(1)))
            await until(lambda: numbers(stage.machine("c")) == [1])

    play(loop, scenario)


@on_loops
def test_messages_that_wait_for_a_session_are_bounded(loop: str) -> None:
    async def scenario() -> None:
        limits = {"high_water_bytes": 1 << 20, "queue_bytes_max": 4 << 20}
        silent = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        async with Stage(connect_timeout_ns=60 * SECOND, **limits) as stage:
            a = await stage.add("a")
            stage.book.set("b", silent.sockets[0].getsockname())
            for number in range(8):
                stage.do("a", Send("b", blob(number, 600_000)))
                await asyncio.sleep(0)
            await until(lambda: a.machine.of(PeerDown))
            assert stage.kinds("a") == ["Start", "Congested", "PeerDown"]
            assert a.counters["queue_overflows"] == 1
        silent.close()

    play(loop, scenario)


@on_loops
def test_messages_that_wait_for_the_end_of_a_session_are_bounded(loop: str) -> None:
    async def scenario() -> None:
        limits = {"high_water_bytes": 1 << 20, "queue_bytes_max": 4 << 20}
        async with Stage(session_timeout_ns=60 * SECOND, **limits) as stage:
            a, b = await stage.add("a"), await stage.add("b")
            stage.do("a", Send("b", Ping(0)))
            await until(lambda: numbers(b.machine) == [0])
            (connection,) = b.sessions.connections
            connection.transport.pause_reading()  # so that the Bye is not answered
            stage.do("a", Close("b"))
            for number in range(8):
                stage.do("a", Send("b", blob(number, 600_000)))
                await asyncio.sleep(0)
            await until(lambda: a.machine.of(PeerDown))
            assert stage.kinds("a") == ["Start", "PeerUp", "Congested", "PeerDown"]
            assert a.counters["queue_overflows"] == 1

    play(loop, scenario)


# ---------------------------------------------------------------- all at once


class Resender(Actor):
    """On each `Do` sends a number to all peers, restarted in each session; closes some sessions."""

    def __init__(self, ctx: Any, peers: list[str]) -> None:
        super().__init__(ctx)
        self.peers = [peer for peer in peers if peer != ctx.name]
        self.session = dict.fromkeys(self.peers, 0)
        self.count = dict.fromkeys(self.peers, 0)

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        self.seen.append((now_ns, inp))
        if type(inp) is PeerUp:
            self.session[inp.peer] += 1
            self.count[inp.peer] = 0
        if type(inp) is not Do:
            return []
        out: list[Any] = []
        for peer in self.peers:
            self.count[peer] += 1
            tag = (self.session[peer] << 32) + self.count[peer]
            out.append(Send(peer, Blob(tag, bytes(self.ctx.rng.choice((10, 3000, 100_000))))))
            if self.ctx.rng.random() < 0.01:
                out.append(Close(peer))
        return out


def check_run(seen: list[tuple[int, Any]]) -> int:
    """Check the guarantees of sessions in one run. Returns the number of messages received."""
    up: dict[str, bool] = {}
    last: dict[str, int | None] = {}
    congested: dict[str, bool] = {}
    count = 0
    for _, inp in seen:
        kind = type(inp)
        if kind is PeerUp:
            assert not up.get(inp.peer), "up twice"
            up[inp.peer] = True
            last[inp.peer] = None
        elif kind is PeerDown:
            up[inp.peer] = congested[inp.peer] = False
        elif kind is Congested:
            assert not congested.get(inp.peer)
            congested[inp.peer] = True
        elif kind is Writable:
            assert congested[inp.peer]
            congested[inp.peer] = False
        elif kind is Received:
            assert up.get(inp.peer), "a message outside a session"
            before, tag = last[inp.peer], inp.message.number
            if before is not None and tag >> 32 == before >> 32:
                assert tag == before + 1, "a gap, a duplicate or a step back in a session"
            last[inp.peer] = tag
            count += 1
    return count


@pytest.mark.slow
@on_loops
@pytest.mark.parametrize("seed", range(3))
def test_random_faults_do_not_break_the_guarantees_of_sessions(
    loop: str, seed: int, caplog: Any
) -> None:
    caplog.set_level(logging.CRITICAL)
    rng = Random(f"socket faults {seed}")
    names = ["a", "b", "c"]
    lives: list[Resender] = []

    def make(ctx: Any) -> Resender:
        lives.append(Resender(ctx, names))
        return lives[-1]

    async def scenario() -> None:
        limits = {"reconnect_ns": 2 * MS, "high_water_bytes": 300_000}
        async with Stage(session_timeout_ns=20 * SECOND, **limits) as stage:
            for name in names:
                await stage.add(name, make)
            for _ in range(400):
                for name in names:
                    stage.do(name)
                await asyncio.sleep(rng.choice((0, 0, 0.001, 0.003)))
                node = stage.nodes[rng.choice(names)]
                fault = rng.random()
                if fault < 0.03:
                    await stage.crash(node.name)
                    await stage.add(node.name, make)
                elif fault < 0.08 and node.sessions.connections:
                    rng.choice(list(node.sessions.connections)).transport.abort()
                elif fault < 0.10:
                    stage.do(node.name, *(Close(peer) for peer in names if peer != node.name))
            marks = [len(stage.machine(name).seen) for name in names]

            def all_received_from_all() -> bool:
                for name in names:
                    stage.do(name)
                late = [
                    {i.peer for _, i in stage.machine(n).seen[k:] if type(i) is Received}
                    for n, k in zip(names, marks, strict=True)
                ]
                return all(len(peers) == 2 for peers in late)

            await until(all_received_from_all)
            assert not any(node.failed.done() for node in stage.nodes.values())

    play(loop, scenario)
    assert sum(check_run(life.seen) for life in lives) > 300
