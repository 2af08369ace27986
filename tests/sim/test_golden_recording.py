"""A recording made by an earlier version: this version reads, replays and writes the same bytes.

A recording has the inputs and effects of a node between one start and its end (`core.record`). It
begins with the name of the factory of the node's machine (`build`), the factory's arguments, and
what was on the disk. The bytes of the golden recording are in tests/fixtures/VERSION/recording;
tests/golden_files.py explains how to rewrite them.
"""

from random import Random
from typing import Any

from tests.golden_files import FIXTURES, golden

from surecast.columns.batch import COLLECTED, SUPERSEDED
from surecast.columns.compaction import encode_voids
from surecast.columns.intervals import IntervalSet
from surecast.core.canon import name_of
from surecast.core.endpoint import OfferBatch
from surecast.core.machine import NodeContext
from surecast.core.record import ANSWERS, ASKING, Closed, Ends, Holed, Kept, Saved, Step, Writer
from surecast.core.recording import Recording
from surecast.core.types import (
    Append,
    Batch,
    ClockSet,
    Compact,
    Compacted,
    Deliver,
    Emit,
    Enclosed,
    Message,
    PeerDown,
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
from surecast.core.wire import Codec
from surecast.protocols.nakcast.messages import Beacon, Data, Nak
from surecast.registry import recorded_types
from surecast.sim.playback import play
from surecast.storage.memory import MemoryDisk
from surecast.storage.store import apply

LOG, OTHER, PUBLISHER = bytes(range(16)), bytes(16), bytes(range(0xA0, 0xB0))
FACTORY = "golden-clerk"  # the name of the factory of EveryEffect in the recording
NAME = "recording/clerk.rec"


class Envelope(Message, tag="golden/Envelope"):
    inside: Enclosed


TYPES = {**recorded_types(), name_of(Envelope): Envelope}


def rows(lo: int, count: int = 2) -> Batch:
    values, keys = [b"value %d" % (lo + i) for i in range(count)], [b"key"] * count
    batch = Batch.of(LOG, values, keys, publisher=PUBLISHER, pub_no=lo)
    return batch.sequenced(lo, 1_700_000_000_000_000_000, 5)


class EveryEffect:
    """Returns each kind of effect; what it does depends on its random numbers and its disk.

    It ignores `step_ns`, which only gives the recording an argument of the factory.
    """

    def __init__(self, ctx: NodeContext, step_ns: int) -> None:
        self.disk, self.rng, self.step_ns = ctx.disk, ctx.rng, step_ns

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        end = self.disk.end(LOG)
        match inp:
            case Start():
                return [SetTimer(("tick", LOG, (1, None)), now_ns + self.rng.randrange(1000))]
            case Received(peer, Data(batch)):
                return [Append(LOG, (batch,), ("append", end)), Send(peer, Beacon(LOG, end))]
            case Received(peer, Envelope()):
                return [Send(peer, Envelope(Enclosed(Nak(LOG, ((1, end),)))), reliable=False)]
            case OfferBatch(_, batch, _):
                return [SaveState("counts", b"%d" % end, ["save"]), Deliver(LOG, (batch,))]
            case TimerFired():
                voids = encode_voids({COLLECTED: IntervalSet([(1, 2)])})
                return [Compact(LOG, 1, 3, voids, 50, ("compact",)), Truncate(LOG, end)]
            case Stored(token) | Compacted(token) | StoreFailed(token):
                return [Emit((token, end, self.disk.state("counts")))]
        return []


ON_DISK_AT_START = [
    Saved("counts", b"5"),
    Saved("gone", None),
    Ends(LOG, 1, 0),
    Kept(LOG, rows(1, 4)),
    Kept(LOG, Batch.void(LOG, 5, 8, SUPERSEDED)),
    Ends(OTHER, 1, 0),
    Holed(OTHER, 9),
]
INPUTS: list[Any] = [
    Start(1_700_000_000_000_000_000, 2),
    PeerUp("south/0"),
    Received("south/0", Data(rows(8))),
    Received("south/0", Envelope(Enclosed(Data(rows(10, 1))))),
    OfferBatch(LOG, rows(20), 7),
    Stored(1),
    TimerFired(("tick", LOG, (1, None))),
    Saved("counts", b"5"),  # the disk shows the old value again: saving the new one has failed
    StoreFailed(2, "full"),
    ClockSet(1_700_000_001_000_000_000),
    Compacted(3),
    PeerDown("south/0"),
]


class Replayer:
    """One incarnation of a node: executes the items of a recording and records them again."""

    def __init__(
        self, node: str, factory: str, args: dict[str, Any], seed: str, incarnation: int
    ) -> None:
        self.writer = Writer(Codec([Data, Beacon, Nak, Envelope]))
        self.writer.opening(node, factory, args, seed, incarnation)
        self.disk = MemoryDisk()
        self.machine = EveryEffect(
            NodeContext(node, Random(f"{seed}/{node}/{incarnation}"), self.disk, incarnation),
            **args,
        )
        self.tokens: list[Any] = []

    def apply_and_record(self, item: Any) -> None:
        """Execute one item: put a log or state on the disk, make a step, or close."""
        writer, disk = self.writer, self.disk
        match item:
            case Saved(name, data):
                writer.saved(name, data)
                disk.forget(name) if data is None else disk.save(name, data)
            case Ends(log, end, scope):
                writer.ends(log, end, scope)
                disk.claim(log, scope)
                disk.truncate(log, end)
            case Kept(log, batch):
                writer.kept(log, batch)
                disk.append(log, [batch])
            case Holed(log, hi):
                writer.holed(log, hi)
                disk.skip(log, hi, "as recorded")
            case Closed():
                writer.closed()
            case Step():
                self.step(item.now_ns, item.inp)

    def step(self, now_ns: int, inp: Any) -> None:
        """Make a step as the drivers do.

        A completion (Stored, Compacted, StoreFailed) in a recording has the number of the effect
        that it completes. It is replaced by that effect's token.
        """
        kind = type(inp)
        if kind in ANSWERS:
            token = self.tokens[inp.token - 1]
            inp = StoreFailed(token, inp.reason) if kind is StoreFailed else kind(token)
            if kind is Compacted:
                self.disk.show(token)
        effects = self.machine.step(now_ns, inp)
        self.writer.step(now_ns, inp, effects)
        for effect in effects:
            if type(effect) in ASKING:
                self.tokens.append(effect.token)
            if type(effect) in ASKING or type(effect) is Truncate:
                apply(self.disk, effect)


def made() -> bytes:
    replayer = Replayer("north/0", FACTORY, {"step_ns": 10}, "7", 2)
    for item in ON_DISK_AT_START:
        replayer.apply_and_record(item)
    for number, inp in enumerate(INPUTS):
        if isinstance(inp, Saved):
            replayer.apply_and_record(inp)
        else:
            replayer.step(number * 10, inp)
    replayer.apply_and_record(Closed(0))
    return replayer.writer.take()


def test_the_golden_recording_is_written_with_the_same_bytes() -> None:
    stored = golden(NAME, made())
    assert made() == stored
    recording = Recording(stored, TYPES)
    header = recording.header
    again = Replayer(header.node, header.build, header.args, header.seed, header.incarnation)
    for item in recording.items():
        again.apply_and_record(item)
    assert again.writer.take() == stored


def test_the_golden_recording_has_the_expected_contents() -> None:
    recording = Recording(golden(NAME, made()), TYPES)
    assert recording.header.messages == [
        "golden/Envelope",
        "nakcast/Beacon",
        "nakcast/Data",
        "nakcast/Nak",
    ]
    assert (recording.header.build, recording.header.args) == ("golden-clerk", {"step_ns": 10})
    items = list(recording.items())
    assert items[:3] == [Saved("counts", b"5"), Saved("gone", None), Ends(LOG, 1, 0)]
    assert items[-1] == Closed(11)
    steps = [item for item in items if isinstance(item, Step)]
    assert [step.now_ns for step in steps] == [*range(0, 70, 10), *range(80, 120, 10)]
    labels = [label for step in steps for label in step.labels]
    assert {"Send.nakcast/Beacon", "Send.golden/Envelope", "SaveState", "Emit.tuple"} <= set(labels)
    assert steps[3].inp.message.inside.message.batch.to_rows()[0].value == b"value 10"
    assert [steps[n].inp for n in (5, 7, 9)] == [Stored(1), StoreFailed(2, "full"), Compacted(3)]


def test_the_golden_recording_is_replayed() -> None:
    golden(NAME, made())
    played = play([FIXTURES / NAME], TYPES, {FACTORY: lambda ctx, args: EveryEffect(ctx, **args)})
    assert played.difference is None, played.difference
    assert (played.steps, played.lives) == (11, {"north/0": 1})
