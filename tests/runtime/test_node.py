"""A node: passes, timers, storage, clocks, recorders, and machines that fail."""

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.stage import LOG, Actor, Blob, Carry, Do, Ping, Stage, on_loops, play, until

from surecast.columns.batch import Batch
from surecast.core.types import (
    MS,
    SECOND,
    Append,
    CancelTimer,
    ClockSet,
    Compact,
    Compacted,
    Deliver,
    Emit,
    Message,
    PassDown,
    PeerUp,
    Received,
    SaveState,
    Send,
    SetTimer,
    Start,
    Stored,
    StoreFailed,
    TimerFired,
    Truncate,
)
from surecast.errors import ConfigError, UsageError
from surecast.runtime import AddressBook, Node
from surecast.runtime.timers import ClockWatch
from surecast.storage.memory import MemoryDisk
from surecast.storage.segments import SegmentStore
from surecast.storage.store import MemoryStore


def batch(lo: int, count: int = 1) -> Batch:
    return Batch.of(LOG, [b"value"] * count).sequenced(lo, 0, 0)


# ---------------------------------------------------------------- start, inputs, effects


@on_loops
def test_start_comes_first_and_commands_in_order(loop: str) -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            before_ns = time.time_ns()
            a = await stage.add("a")
            for number in range(5):
                a.give(Received("owner", Ping(number)))
            await until(lambda: len(a.machine.seen) == 6)
            (_, start), *rest = a.machine.seen
            assert type(start) is Start
            assert start.incarnation == 1
            assert before_ns <= start.wall_ns <= time.time_ns()
            assert [inp.message.number for _, inp in rest] == [0, 1, 2, 3, 4]
            times = [now_ns for now_ns, _ in a.machine.seen]
            assert times == sorted(times)
            assert times[-1] <= time.monotonic_ns()

    play(loop, scenario)


@on_loops
def test_the_factory_gets_name_incarnation_disk_and_seeded_randomness(loop: str) -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            disk = MemoryDisk()
            a = await stage.add("a", disk=disk, seed=7)
            ctx = a.machine.ctx
            assert (ctx.name, ctx.incarnation) == ("a", 1)
            assert ctx.disk is disk
            b = await stage.add("b", seed=7)
            assert ctx.rng.random() != b.machine.ctx.rng.random()

    play(loop, scenario)


@on_loops
def test_deliveries_and_events_reach_the_owner_which_may_give_commands(loop: str) -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            got: list[Any] = []
            node: Node

            def on_emit(event: Any) -> None:
                got.append(event)
                if event < 3:
                    node.give(Do([Emit(event + 1)]))  # from inside the step that emitted it

            node = await stage.add(
                "a", on_emit=on_emit, on_deliver=lambda stream, batches: got.append(stream)
            )
            stage.do("a", Emit(1), Deliver(LOG, (batch(1),)))
            await until(lambda: len(got) == 4)
            assert got == [1, LOG, 2, 3]

    play(loop, scenario)


class Notes:
    def __init__(self) -> None:
        self.steps: list[tuple[int, Any, list[Any]]] = []
        self.closed: list[bool] = []

    def step(self, now_ns: int, inp: Any, effects: list[Any]) -> None:
        self.steps.append((now_ns, inp, effects))

    def close(self, *, orderly: bool = True) -> None:
        self.closed.append(orderly)


@on_loops
def test_a_recorder_sees_every_step(loop: str) -> None:
    async def scenario() -> None:
        notes = Notes()
        async with Stage() as stage:
            a = await stage.add("a", recorder=notes)
            await stage.add("b")
            effects = [Send("b", Ping(1)), SetTimer("t", 0), SaveState("s", b"", "saved")]
            stage.do("a", *effects, Send("b", Ping(2), reliable=False))
            stage.do("b", Send("a", Ping(3)))
            await until(lambda: len(a.machine.seen) == 5)
            seen = [(now_ns, inp) for now_ns, inp, _ in notes.steps if type(inp) is not Do]
            assert seen == a.machine.seen
            (did,) = [effects for _, inp, effects in notes.steps if type(inp) is Do]
            assert did[:3] == effects
            assert {type(inp) for _, inp in seen} == {Start, PeerUp, Received, TimerFired, Stored}
            await a.stop()
        assert notes.closed == [True]

    play(loop, scenario)


# ---------------------------------------------------------------- failing


class Faulty(Actor):
    def step(self, now_ns: int, inp: Any) -> list[Any]:
        if type(inp) is Received and inp.message.number == 13:
            raise AssertionError("a bug of ours")
        return super().step(now_ns, inp)


@on_loops
def test_a_machine_that_raises_stops_its_node_and_is_logged(
    loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            a, b = await stage.add("a"), await stage.add("b", Faulty)
            stage.do("a", Send("b", Ping(1)), Send("b", Ping(13)), Send("b", Ping(14)))
            with pytest.raises(AssertionError, match="a bug of ours"):
                await b.failed
            assert "a bug of ours" in caplog.text
            assert stage.kinds("b") == ["Start", "PeerUp", "Received"]
            await until(lambda: stage.kinds("a")[-1] == "PeerDown")
            assert not a.failed.done()
            b.give(Do([]))  # has no effect
            await b.stop()

    play(loop, scenario)


@on_loops
def test_start_raises_the_error_of_a_machine_that_cannot_start(loop: str) -> None:
    class FailsAtStart(Actor):
        def step(self, now_ns: int, inp: Any) -> list[Any]:
            raise AssertionError("not even once")

    def fails(ctx: Any) -> Any:
        raise AssertionError("no machine")

    async def scenario() -> None:
        async with Stage() as stage:
            for factory, words in ((FailsAtStart, "not even once"), (fails, "no machine")):
                with pytest.raises(AssertionError, match=words):
                    await stage.add("a", factory)
            await stage.add("a")

    play(loop, scenario)


class Stray(Message):
    pass


@on_loops
@pytest.mark.parametrize(
    ("effect", "words"),
    [
        (Send("a", Ping(1)), "sends to itself"),
        (Send("b", Stray()), "not a message type"),
        (PassDown(1), "not an effect that the runtime performs"),
    ],
    ids=["to itself", "stray message", "stray effect"],
)
def test_an_invalid_effect_stops_the_node(loop: str, effect: Any, words: str) -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            a = await stage.add("a")
            stage.do("a", effect)
            with pytest.raises(UsageError, match=words):
                await a.failed

    play(loop, scenario)


@on_loops
def test_the_input_at_which_a_machine_failed_is_recorded(loop: str, caplog: Any) -> None:
    caplog.set_level(logging.CRITICAL + 1)

    async def scenario() -> None:
        notes = Notes()
        async with Stage() as stage:
            a = await stage.add("a", Faulty, recorder=notes)
            await stage.add("b")
            stage.do("b", Send("a", Ping(12)), Send("a", Ping(13)), Send("a", Ping(14)))
            with pytest.raises(AssertionError, match="a bug of ours"):
                await a.failed
            assert notes.steps[-1][1:] == (Received("b", Ping(13)), [])
            assert notes.closed == [False]
            await a.stop()
            assert notes.closed == [False]

    play(loop, scenario)


@on_loops
def test_a_machine_may_fail_in_the_last_pass_of_a_stop(loop: str, caplog: Any) -> None:
    caplog.set_level(logging.CRITICAL + 1)

    async def scenario() -> None:
        async with Stage() as stage:
            a = await stage.add("a", Faulty)
            a.give(Received("b", Ping(13)))
            await a.stop()
            with pytest.raises(AssertionError, match="a bug of ours"):
                await a.failed

    play(loop, scenario)


@on_loops
def test_an_owner_may_end_its_node_in_the_middle_of_a_step(loop: str) -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            nodes: list[Node] = []
            a = await stage.add("a", on_emit=lambda _: nodes[0].kill())
            nodes.append(a)
            await stage.add("b")
            stage.do("a", Emit(1), Send("b", Ping(1)), SetTimer("t", 0), SaveState("s", b"", 1))
            await until(lambda: not a.running)
            assert not a.sessions.by_peer
            assert not a.timers._timers
            assert a.store.disk.states() == []

    play(loop, scenario)


class Broken(MemoryStore):
    def collect(self) -> list[Any]:
        raise AssertionError("a bug of the store")


@on_loops
def test_a_store_that_raises_stops_its_node_too(loop: str, caplog: Any) -> None:
    caplog.set_level(logging.CRITICAL + 1)

    async def scenario() -> None:
        async with Stage() as stage:
            a = await stage.add("a", disk=Broken())
            stage.do("a", SaveState("s", b"", "saved"))
            with pytest.raises(AssertionError, match="a bug of the store"):
                await a.failed

    play(loop, scenario)


@pytest.mark.parametrize("name", ["", "x" * 250])
def test_empty_and_long_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        Node(name, Actor, book=AddressBook(), codec=None)  # type: ignore[arg-type]


# ---------------------------------------------------------------- timers and clocks


@on_loops
def test_timers_fire_once_in_order_and_never_early(loop: str) -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            a = await stage.add("a")
            now_ns = time.monotonic_ns()
            due = {
                name: now_ns + at * MS // 2 for name, at in zip("cab", (399, 523, 641), strict=True)
            }
            stage.do("a", SetTimer("past", now_ns - SECOND))
            await until(lambda: a.machine.of(TimerFired))
            stage.do("a", *(SetTimer(name, at_ns) for name, at_ns in due.items()))
            await until(lambda: len(a.machine.of(TimerFired)) == 4)
            fired = a.machine.of(TimerFired)
            assert [inp.key for _, inp in fired] == ["past", "c", "a", "b"]
            for at_ns, inp in fired[1:]:
                assert at_ns >= due[inp.key]

    play(loop, scenario)


@on_loops
def test_a_timer_may_be_moved_earlier_or_later_and_cancelled(loop: str) -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            a = await stage.add("a")
            now_ns = time.monotonic_ns()
            stage.do(
                "a",
                SetTimer("sooner", now_ns + 600 * SECOND),
                SetTimer("sooner", now_ns + 20 * MS),
                SetTimer("later", now_ns + 1 * MS),
                SetTimer("later", now_ns + 50 * MS),
                SetTimer("never", now_ns + 2 * MS),
                CancelTimer("never"),
                CancelTimer("unknown"),
            )
            await until(lambda: len(a.machine.of(TimerFired)) == 2)
            (_, first), (late_ns, second) = a.machine.of(TimerFired)
            assert (first.key, second.key) == ("sooner", "later")
            assert late_ns >= now_ns + 50 * MS

    play(loop, scenario)


def test_the_clock_watch_reports_only_jumps_beyond_its_limit() -> None:
    wall_ns = 10**18
    began_ns = time.monotonic_ns()
    watch = ClockWatch(1000 * SECOND, lambda: wall_ns + time.monotonic_ns() - began_ns)
    assert watch.start() >= wall_ns
    assert watch.look() is None
    wall_ns += 999 * SECOND
    assert watch.look() is None
    wall_ns += 2 * SECOND
    jump = watch.look()
    assert type(jump) is ClockSet
    assert jump.wall_ns >= wall_ns
    assert watch.look() is None
    wall_ns -= 1001 * SECOND
    assert type(watch.look()) is ClockSet


@pytest.mark.slow
@on_loops
def test_a_machine_gets_clock_set_after_a_jump(loop: str) -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            a = await stage.add("a")
            a._clock._offset_ns -= 3600 * SECOND
            await until(lambda: a.machine.of(ClockSet))
            assert a.counters["clock_sets"] == 1

    play(loop, scenario)


# ---------------------------------------------------------------- storage


STORE = [
    Append(LOG, (batch(1, 10),), "first"),
    SaveState("s", b"state", "saved"),
    Truncate(LOG, 6),
    Append(LOG, (batch(6, 3),), "second"),
    Append(LOG, (batch(99),), "gap"),
    Compact(LOG, 1, 4, (b"\x00",) * 3, 50, "compacted"),
]
ANSWERS = [
    Stored("first"),
    Stored("saved"),
    Stored("second"),
    StoreFailed("gap", "io"),
    Compacted("compacted"),
]


@on_loops
@pytest.mark.parametrize("kind", ["memory", "journal"])
def test_storage_effects_are_visible_at_once_and_answered_in_order(
    loop: str, kind: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            disk = SegmentStore(tmp_path) if kind == "journal" else MemoryDisk()
            a = await stage.add("a", disk=disk)
            for effect in STORE:
                stage.do("a", effect)
            await until(lambda: a.machine.ctx.disk.end(LOG) == 9)
            await until(lambda: len(a.machine.seen) == 6)
            inputs = [inp for _, inp in a.machine.seen[1:]]
            # Compactions run concurrently: their answer may come before or between the others.
            assert [inp for inp in inputs if not isinstance(inp, Compacted)] == ANSWERS[:-1]
            assert ANSWERS[-1] in inputs
            assert a.machine.ctx.disk.state("s") == b"state"

    play(loop, scenario)


@on_loops
def test_a_restarted_node_continues_on_its_journal(loop: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            a = await stage.add("a", disk=SegmentStore(tmp_path))
            stage.do("a", *STORE)
            await until(lambda: len(a.machine.seen) == 6)
            await stage.crash("a")
            a = await stage.add("a", disk=SegmentStore(tmp_path))
            assert a.machine.seen[0][1].incarnation == 2
            assert a.machine.ctx.disk.end(LOG) == 9
            assert a.machine.ctx.disk.state("s") == b"state"

    play(loop, scenario)


class Echo(Actor):
    """Stores received batches and answers when they are stored, like a chain."""

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        if type(inp) is Received:
            carried = inp.message.batch.sequenced(self.ctx.disk.end(LOG), now_ns, 1)
            return [Append(LOG, (carried,), (inp.peer, carried.hi))]
        if type(inp) is Stored:
            peer, hi = inp.token
            return [Send(peer, Blob(hi, b""))]
        return super().step(now_ns, inp)


@on_loops
def test_received_batches_are_stored_unchanged(loop: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            a = await stage.add("a")
            await stage.add("b", Echo, disk=SegmentStore(tmp_path))
            sent = [Batch.of(LOG, [f"{n}".encode()] * 50) for n in range(100)]
            for batch_ in sent:
                stage.do("a", Send("b", Carry(batch_)))
                await asyncio.sleep(0)
            await until(lambda: len(a.machine.of(Received)) == 100)
            assert [i.message.number for _, i in a.machine.of(Received)] == list(
                range(51, 5002, 50)
            )
            await stage.crash("b")
            again = SegmentStore(tmp_path)
            kept = again.disk.read(LOG, 1, 5001, 1 << 30)
            again.close()
            assert [bytes(b.body) for b in kept] == [bytes(b.body) for b in sent]

    play(loop, scenario)
