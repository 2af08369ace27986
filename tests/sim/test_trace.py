"""The trace is complete, the same in every process, and readable as a table."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from actors import LOG, Actor, Do, Load, batch

from surecast.core.types import (
    MS,
    SECOND,
    Append,
    Batch,
    Deliver,
    Emit,
    Enclosed,
    Input,
    LogId,
    Message,
    SaveState,
    Send,
    SetTimer,
)
from surecast.sim import Link, Trace, World
from surecast.sim.trace import COLUMNS


class Piece(Message):
    stream: LogId
    batches: tuple[Batch, ...]


class Ask(Message):
    stream: LogId
    lo: int
    hi: int


class Cover(Message):
    stream: LogId
    inside: Enclosed
    rest: tuple[Enclosed, ...]


class News(Input):
    stream: LogId
    end: int


def small_run(trace: Trace, seed: int = 1, **more: Any) -> World:
    world = World(seed, Link(delay_ns=MS), trace=trace, **more)
    world.add("a", Actor)
    world.add("b", Actor)
    first = [Send("b", Piece(LOG, (batch(1, 4), batch(5, 2)))), Send("b", Ask(LOG, 7, 9))]
    world.at(0, "a", Do(first))
    world.at(10 * MS, "a", Do([SetTimer("t", 12 * MS), Append(LOG, (batch(1, 4),), ("x", 1))]))
    world.at(11 * MS, "b", Do([SaveState("epoch", b"1", "s"), Emit(News(LOG, 5))]))
    world.at(11 * MS, "b", Do([Deliver(LOG, (batch(1, 4),))]))
    world.call(20 * MS, lambda w: w.cut("a", "b"))
    world.run(until_ns=SECOND)
    return world


def test_every_input_effect_and_fault_has_a_row() -> None:
    trace = Trace()
    world = small_run(trace)
    rows = list(trace.rows())
    assert len(rows) == len(trace)
    assert sum(row[2] == "input" for row in rows) == world.inputs
    found = {(row[1], row[2], row[3]): row[4:] for row in rows}
    stream = LOG[:4].hex()
    assert found["a", "effect", "Send.Piece"] == ("b", stream, 1, 7, 64 + 16 + 200)
    assert found["b", "input", "Received.Piece"] == ("a", stream, 1, 7, 64 + 16 + 200)
    assert found["b", "input", "Received.Ask"] == ("a", stream, 7, 9, 64 + 16)
    assert found["a", "effect", "SetTimer"] == ("", "t", 12 * MS, 0, 0)
    assert found["a", "input", "TimerFired"] == ("", "t", 0, 0, 0)
    assert found["a", "effect", "Append"] == ("", stream, 1, 5, 0)
    assert found["b", "effect", "SaveState"] == ("", "epoch", 0, 0, 0)
    assert found["b", "effect", "Emit.News"] == ("", stream, 0, 5, 0)
    assert found["b", "effect", "Deliver"] == ("", stream, 1, 5, 0)
    assert found["a", "input", "PeerUp"] == ("b", "", 0, 0, 0)
    assert ("a", "fault", "cut a b two-way") in found
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)


def test_sizes_in_the_trace_are_those_of_the_network() -> None:
    trace = Trace()
    world = small_run(trace)
    sizes = world.network.sizes
    message = Piece(LOG, (batch(1, 4), batch(5, 2)))
    (row,) = [row for row in trace.rows() if row[3] == "Send.Piece"]
    assert row[8] == sizes.of(message)


def test_messages_with_enclosed_ones_can_be_traced() -> None:
    def run(*inside: Message) -> Trace:
        trace = Trace()
        world = World(1, Link(delay_ns=MS), trace=trace)
        world.add("a", Actor)
        world.add("b", Actor)
        first, *rest = map(Enclosed, inside)
        world.at(0, "a", Do([Send("b", Cover(LOG, first, tuple(rest)))]))
        world.run(until_ns=SECOND)
        (received,) = [row for row in trace.rows() if row[3] == "Received.Cover"]
        assert received[8] == world.network.sizes.of(Cover(LOG, first, tuple(rest)))
        assert received[5] == LOG[:4].hex()
        return trace

    piece, ask, load = Piece(LOG, (batch(1, 4),)), Ask(LOG, 7, 9), Load(1, 12345)
    traces = [run(ask), run(piece), run(load), run(piece, load, ask), run(Ask(LOG, 7, 8))]
    assert len({trace.digest() for trace in traces}) == len(traces)


def test_table_and_parquet_have_the_same_rows(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    trace = Trace()
    small_run(trace)
    table = trace.to_table()
    assert table.column_names == list(COLUMNS)
    assert [tuple(row.values()) for row in table.to_pylist()] == list(trace.rows())
    trace.write_parquet(tmp_path / "trace.parquet")
    assert pq.read_table(tmp_path / "trace.parquet").to_pylist() == table.to_pylist()
    assert Trace().to_table().num_rows == 0


def test_the_digest_distinguishes_runs() -> None:
    one, two, other, unkept = Trace(), Trace(), Trace(), Trace(keep=False)
    small_run(one)
    world = World(1, Link(delay_ns=MS), trace=other)
    world.add("a", Actor)
    world.run(until_ns=SECOND)
    small_run(two)
    small_run(unkept)
    assert one.digest() == two.digest() == unkept.digest()
    assert one.digest() != other.digest()
    assert len(unkept) == len(one)
    assert list(unkept.rows()) == []


def test_packing_a_trace_in_parts_gives_the_same_digest(monkeypatch: Any) -> None:
    whole = Trace()
    small_run(whole)
    for steps_max in (1, 2, 3, 20):
        monkeypatch.setattr("surecast.sim.trace.STEPS_MAX", steps_max)
        pieces = Trace()
        small_run(pieces)
        assert pieces.digest() == whole.digest()
        assert list(pieces.rows()) == list(whole.rows())


def test_anything_a_machine_may_emit_can_be_traced() -> None:
    trace = Trace()
    world = World(1, trace=trace)
    world.add("a", Actor)
    for event in (10**30, {"b", "a"}, object(), {"k": {1, 2}}, ("x", b"y"), None):
        world.at(0, "a", Do([Emit(event)]))
    world.run(until_ns=SECOND)
    labels = [row[3] for row in trace.rows() if row[2] == "effect"]
    kinds = ("int", "set", "object", "dict", "tuple", "NoneType")
    assert labels == [f"Emit.{kind}" for kind in kinds]


class Ends(Message):
    stream: LogId
    ends: dict[bytes, int]
    batch: Batch | None = None


def test_dicts_whose_keys_are_not_text_are_traced() -> None:
    def run(event: Any, **ends: int) -> Trace:
        trace = Trace()
        world = World(1, Link(delay_ns=MS), trace=trace)
        for name in ("a", "b"):
            world.add(name, Actor)
        message = Ends(LOG, {key.encode(): end for key, end in ends.items()}, batch(3, 4))
        world.at(0, "a", Do([Send("b", message), Emit(event)]))
        world.run(until_ns=SECOND)
        (received,) = [row for row in trace.rows() if row[3] == "Received.Ends"]
        assert received[4:] == ("a", LOG[:4].hex(), 3, 7, world.network.sizes.of(message))
        return trace

    names = [f"n{number}" for number in range(20)]
    first = run({1: set(names)}, x=1, y=2).digest()
    backwards = names[::-1]
    assert run({1: set(backwards)}, x=1, y=2).digest() == first
    others = [run({1: set(names)}, x=1, y=3), run({1: set(names[1:])}, x=1, y=2)]
    assert first not in [trace.digest() for trace in others]


# ---------------------------------------------------------------- determinism

CHAOS = """
import sys
sys.path.insert(0, sys.argv[1])
from random import Random
from actors import LOG, Actor, Do, Ping, batch
from surecast.core.types import MS, SECOND, Append, Emit, Send
from surecast.sim import Link, Trace, World
from surecast.sim.faults import Timed, draw

seed = sys.argv[2]
rng = Random("chaos " + seed)
names = ("x/a", "x/b", "y/c", "y/d")
trace = Trace()
world = World(seed, Link(delay_ns=2 * MS, jitter_ns=MS, loss=0.05, duplicate=0.1), trace=trace)
for name in names:
    world.add(name, Actor)
    for at_ms in range(0, 3000, 5):
        peers = [peer for peer in names if peer != name]
        sends = [Send(peer, Ping(at_ms), rng.random() < 0.5) for peer in peers]
        log = name.encode().ljust(16)
        lo = at_ms // 5 + 1
        world.at(at_ms * MS, name, Do([*sends, Append(log, (batch(lo),), at_ms)]))
        world.at(at_ms * MS, name, Do([Emit({"a", "b", name})]))
kinds = ("cut", "one-way cut", "isolate", "degrade", "crash", "pause", "clock", "disk", "wipe")
for _ in range(40):
    fault = draw(rng, names, [("x", "y"), ("x/a", "y/c")], kinds)
    Timed(rng.randint(0, 3 * SECOND), rng.randint(1, 2500) * MS, fault).schedule(world)
world.run(until_ns=4 * SECOND)
world.heal_all()
world.run(until_ns=6 * SECOND)
print(trace.digest(), len(trace))
"""


def chaos(seed: int, hash_seed: str) -> str:
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", CHAOS, str(here), str(seed)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_seed_gives_the_same_trace_in_every_process() -> None:
    runs = [chaos(5, "1"), chaos(5, "2")]
    assert runs[0] == runs[1]
    digest, rows = runs[0].split()
    assert int(rows) > 10_000
    assert chaos(6, "1").split()[0] != digest


# ---------------------------------------------------------------- aliasing


class Hoard(Message):
    numbers: list[int]


class Meddler(Actor):
    """Changes the message that it received, a mistake that `reencode` exposes."""

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        if type(getattr(inp, "message", None)) is Hoard:
            inp.message.numbers.append(99)
        return super().step(now_ns, inp)


def test_reencoding_keeps_nodes_from_sharing_objects() -> None:
    import msgspec

    def copy(message: Any) -> Any:
        return msgspec.convert(msgspec.to_builtins(message), type(message))

    for reencode, want in ((None, [1, 99, 99]), (copy, [1])):
        world = World(1, Link(delay_ns=MS), reencode=reencode)
        for name in ("a", "b"):
            world.add(name, Meddler)
        kept = Hoard([1])
        world.at(0, "a", Do([Send("b", kept), Send("b", kept, reliable=False)]))
        world.run(until_ns=SECOND)
        assert kept.numbers == want
        assert len(world.machine("b").of(type(world.machine("b").seen[-1][1]))) == 2
