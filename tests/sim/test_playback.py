"""A replay of recordings has the same effects, or it reports the first difference."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from recorded import BUILD, Do, Looker, Recorded, replay

from surecast.columns.batch import COLLECTED
from surecast.columns.compaction import encode_voids
from surecast.columns.intervals import IntervalSet
from surecast.columns.retention import LatestPerKey
from surecast.core.machine import NodeContext
from surecast.core.record import Writer
from surecast.core.types import (
    MS,
    SECOND,
    US,
    Append,
    Batch,
    Compact,
    PeerUp,
    Received,
    SaveState,
    SetTimer,
    Start,
    Stored,
    Truncate,
)
from surecast.core.wire import Codec
from surecast.errors import PeerError
from surecast.protocols.chain.messages import Beat
from surecast.protocols.chain.replica import Replica
from surecast.runtime.recorder import Recorder
from surecast.sim import Trace, World
from surecast.sim.playback import Played
from surecast.storage.memory import MemoryDisk
from surecast_lab.swarm.cluster import Cluster
from surecast_lab.swarm.sprinkler import run_seed

LOG = bytes(range(16))


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Recorded:
    return Recorded(monkeypatch, tmp_path)


# ---------------------------------------------------------------- whole clusters


def scenario(trace: Trace | None = None) -> Cluster:
    """Two regions; crashes, a failing disk, a wiped one, a cut, compactions; all is settled."""
    cluster = Cluster(3, {"east": 2, "west": 2}, trace=trace, server={"compact_ns": 200 * MS})
    world = cluster.world
    cluster.open("s", "east", LatestPerKey())
    for i in range(120):
        values = [b"%d.%d" % (i, j) for j in range(3)]
        keys: list[bytes | None] = [b"k%d" % (i % 5), None, b"k%d" % (i % 7)]
        cluster.offer(1 * SECOND + i * 20 * MS, "east/pub0", "s", values, keys)
    world.call(1500 * MS, lambda w: w.fail_disk("east/1", "full"))
    world.call(1600 * MS, lambda w: w.heal_disk("east/1"))
    world.call(1800 * MS, lambda w: w.crash("east/0"))
    world.call(2200 * MS, lambda w: w.restart("east/0"))
    world.call(2300 * MS, lambda w: w.fail_disk("west/0", "io"))
    world.call(2700 * MS, lambda w: w.heal_disk("west/0"))
    world.call(2500 * MS, lambda w: w.cut("east", "west"))
    world.call(2600 * MS, lambda w: w.crash("west/1"))
    world.call(2900 * MS, lambda w: w.wipe("west/1"))
    world.call(3000 * MS, lambda w: w.heal_all())
    world.run(4 * SECOND)
    assert world.run(60 * SECOND, until=lambda _: cluster.settled())
    assert sum(c["chain.compacted"] for c in cluster.counters.values()) > 3
    return cluster


def test_a_recorded_cluster_with_faults_replays_equally(recorded: Recorded) -> None:
    cluster = scenario()
    played = recorded.play()
    assert played.difference is None, played.difference
    assert played.steps == cluster.world.inputs
    assert played.lives["east/0"] == played.lives["west/1"] == 2
    assert played.lives["west/pub0"] == 1
    assert 4 * SECOND <= played.span_ns <= cluster.world.now_ns


def test_the_trace_of_a_replay_equals_the_trace_of_the_run(recorded: Recorded) -> None:
    """Compared by node: the order of nodes at the same instant is not recorded."""
    live, again = Trace(), Trace()
    scenario(live)
    recorded.play(again)

    def by_node(trace: Trace) -> dict[str, list[Any]]:
        rows: dict[str, list[Any]] = {}
        for row in trace.rows():
            if row[2] != "fault":
                rows.setdefault(row[1], []).append(row)
        return rows

    assert by_node(again) == by_node(live)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [
        19,  # a disk that fails at a bad moment
        pytest.param(3, marks=pytest.mark.nightly),
        pytest.param(13, marks=pytest.mark.nightly),
    ],
)
def test_a_recorded_swarm_seed_replays_equally(recorded: Recorded, seed: int) -> None:
    result = run_seed(seed)
    played = recorded.play()
    assert played.difference is None, played.difference
    assert played.steps == result.inputs


class Hasty(Replica):
    """Mutant: sets its beat timer a nanosecond too early."""

    def _on_beat_timer(self) -> None:
        super()._on_beat_timer()
        for effect in self.out:
            if type(effect) is SetTimer and effect.key == "beat":
                effect.at_ns -= 1


def test_a_changed_machine_is_reported_with_the_first_difference(recorded: Recorded) -> None:
    cluster = Cluster(3, {"east": 2})
    cluster.world.run(1 * SECOND)
    assert recorded.play().difference is None
    cluster.types = (Hasty,)  # the recorded factories use it
    difference = recorded.play().difference
    assert difference is not None
    assert difference.node.startswith("east/")
    assert "'beat'" in difference.inp
    assert "SetTimer" in difference.recorded
    assert "content is not the same" in difference.why
    assert f"step {difference.step} at {difference.now_ns} ns" in str(difference)
    assert any("SetTimer" in effect for effect in difference.effects)


# ---------------------------------------------------------------- what machines read from disks


def batch(lo: int, value: bytes = b"v") -> Batch:
    return Batch.of(LOG, [value, value + b"w"]).sequenced(lo, 5, 1)


def compaction(lo: int, hi: int, token: str) -> Compact:
    voids = encode_voids({COLLECTED: IntervalSet([(lo, hi)])})
    return Compact(LOG, lo, hi, voids, 50, token)


def tell_of_failing_disks() -> World:
    world = World(1)
    world.add("n", Looker)

    def do(at_us: int, *effects: Any) -> None:
        world.at(at_us * US, "n", Do(list(effects)))

    def look(at_us: int) -> None:
        do(at_us, SetTimer("look", (at_us + 1) * US))  # also before the answers arrive

    do(1000, Append(LOG, (batch(1), batch(3)), "t1"), SaveState("a", b"1", ("t", 2)))
    world.call(2 * MS, lambda w: w.fail_disk("n", "full"))
    do(2100, Append(LOG, (batch(5),), "t3"), SaveState("b", b"1", "t4"), SaveState("a", b"2", "t"))
    look(2110)
    do(2120, Append(LOG, (batch(7),), "t5"))  # after a failed append
    world.call(3 * MS, lambda w: w.heal_disk("n"))
    do(3100, Append(LOG, (batch(5), batch(7)), "t6"), Truncate(LOG, 8))
    look(3110)
    world.call(4 * MS, lambda w: w.fail_disk("n", "io"))
    do(4100, compaction(1, 5, "t7"))
    look(4110)
    world.call(5 * MS, lambda w: w.heal_disk("n"))
    do(5100, compaction(1, 4, "t8"))  # ends inside a batch
    look(5110)
    do(5400, compaction(5, 8, "t8a"), Truncate(LOG, 7), Append(LOG, (batch(7),), "t8b"))
    look(5410)
    do(5600, Truncate(LOG, 8))
    do(6000, Append(LOG, (batch(8), batch(10), batch(12)), "t9"), SaveState("b", b"3", "t10"))
    world.call(6001 * US, lambda w: w.crash("n"))
    world.call(7 * MS, lambda w: w.restart("n"))
    do(8000, Truncate(LOG, 2))
    look(8100)
    world.run(9 * MS)
    return world


def test_failed_writes_are_replayed_as_they_were(recorded: Recorded) -> None:
    tell_of_failing_disks()
    played = recorded.play()
    assert played.difference is None, played.difference
    assert played.lives == {"n": 2}
    assert played.steps > 25


def test_unrecorded_failed_writes_are_a_difference(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recorder, "_record_differences", lambda self: self._disk.take_notes())
    tell_of_failing_disks()
    assert recorded.play().difference is not None


def test_compactions_that_are_visible_at_once_are_a_difference(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_of_failing_disks()
    monkeypatch.setattr(
        MemoryDisk,
        "ask",
        lambda self, effect: (self._asked.append(effect), self.show(effect.token)),
    )
    assert recorded.play().difference is not None


# ---------------------------------------------------------------- differences and damage


class Talker:
    """Sets a timer for each message; a test can change `late_ns`."""

    def __init__(self, ctx: NodeContext, late_ns: int) -> None:
        self.rng, self.late_ns = ctx.rng, late_ns

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        if isinstance(inp, Received):
            return [SetTimer(inp.message.epoch, now_ns + self.late_ns + self.rng.randrange(9))]
        return [SetTimer("first", now_ns)] if self.late_ns else []


def record_talker(path: Path, seed: int = 5, **options: Any) -> None:
    """Record one run of a Talker: its Start and 20 messages."""
    codec = Codec([Beat])
    made: dict[str, Any] = {"node": "a", "build": BUILD, "args": {"late_ns": 100}, **options}
    writer = Recorder(path, seed=seed, incarnation=1, codec=codec, disk=MemoryDisk(), **made)
    machine = Talker(NodeContext("a", Random(f"{seed}/a/1"), MemoryDisk(), 1), 100)
    inputs = [Start(1_000_000, 1), *(Received("b", Beat(n)) for n in range(20))]
    for now_ns, inp in enumerate(inputs):
        writer.step(now_ns, inp, machine.step(now_ns, inp))
    writer.close()


def play(*paths: Path, **changes: int) -> Played:
    """Play recordings of Talkers, with changes to the recorded arguments."""
    return replay(paths, lambda ctx, args: Talker(ctx, **{**args, **changes}))


def test_seed_and_arguments_are_part_of_the_recording(tmp_path: Path) -> None:
    record_talker(tmp_path / "a.rec")
    played = play(tmp_path / "a.rec")
    assert (played.difference, played.steps, played.effects) == (None, 21, 21)
    assert played.unclosed == []


def test_the_first_difference_stops_the_replay(tmp_path: Path) -> None:
    record_talker(tmp_path / "a.rec")
    played = play(tmp_path / "a.rec", late_ns=101)
    assert played.difference is not None
    assert (played.difference.step, played.steps) == (2, 2)
    assert "Beat(epoch=0)" in played.difference.inp
    played = play(tmp_path / "a.rec", late_ns=0)
    assert played.difference is not None
    assert played.difference.why == "there were 1 effects, there are now 0"


def test_a_machine_that_fails_is_a_difference(tmp_path: Path) -> None:
    class Broken(Talker):
        def step(self, now_ns: int, inp: Any) -> list[Any]:
            assert now_ns < 7, "broken"
            return super().step(now_ns, inp)

    record_talker(tmp_path / "a.rec")
    difference = replay([tmp_path / "a.rec"], lambda ctx, args: Broken(ctx, **args)).difference
    assert difference is not None
    assert difference.step == 8
    assert "broken" in difference.why


def test_a_torn_recording_is_played_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    record_talker(path)
    whole = path.read_bytes()
    for cut in (1, 30, 100, 500):
        path.write_bytes(whole[:-cut])
        played = play(path)
        assert played.difference is None
        assert played.unclosed == [str(path)]
        assert played.steps < 21 or cut < 40


def test_a_recording_without_a_step_is_accepted(tmp_path: Path) -> None:
    record_talker(tmp_path / "a.rec")
    writer = Writer(Codec([Beat]))
    writer.opening("b", BUILD, {}, 1, 1)
    (tmp_path / "b.rec").write_bytes(writer.take())
    alone = play(tmp_path / "a.rec")
    both = play(tmp_path / "a.rec", tmp_path / "b.rec")
    assert (both.steps, both.span_ns) == (alone.steps, alone.span_ns) == (21, 20)
    assert both.unclosed == [str(tmp_path / "b.rec")]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"build": "os:system"}, f"no machine 'os:system' can be built here; there are: {BUILD}"),
        ({"args": {"wrong": 1}}, "cannot build a"),
    ],
)
def test_a_recording_whose_machine_cannot_be_built_is_refused(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    record_talker(tmp_path / "a.rec", **options)
    with pytest.raises(PeerError, match=words):
        play(tmp_path / "a.rec")


def test_a_recording_without_a_start_is_refused(tmp_path: Path) -> None:
    writer = Writer(Codec([Beat]))
    writer.opening("a", BUILD, {"late_ns": 0}, 1, 1)
    writer.step(0, PeerUp("b"), [])
    path = tmp_path / "a.rec"
    path.write_bytes(writer.take())
    with pytest.raises(PeerError, match="Start"):
        play(path)


def test_an_answer_without_a_request_is_refused(tmp_path: Path) -> None:
    writer = Writer(Codec([Beat]))
    writer.opening("a", BUILD, {"late_ns": 0}, 1, 1)
    asked = SaveState("s", b"", "t")
    writer.step(0, Start(0, 1), [])
    writer.owed[id(asked.token)] = [(1, asked.token)]  # a forged recording
    writer.step(1, Stored(asked.token), [])
    path = tmp_path / "a.rec"
    path.write_bytes(writer.take())
    with pytest.raises(PeerError, match="not performed"):
        play(path)
