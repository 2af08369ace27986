"""Worlds whose nodes are recorded as the asyncio driver would record them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from surecast.core.canon import name_of
from surecast.core.machine import Factory, NodeContext
from surecast.core.types import Emit, Input
from surecast.core.wire import Codec
from surecast.registry import message_types, recorded_types
from surecast.runtime.recorder import Recorder, recording_path
from surecast.sim import Trace, playback
from surecast.sim.node import Node
from surecast.sim.playback import Played

BUILD = "made-in-a-test"


class Do(Input):
    """Command: perform these effects."""

    effects: list[Any]


def replay(paths: Sequence[Path], build: playback.Build, trace: Trace | None = None) -> Played:
    """Play recordings of machines that a test defines; `build` makes the machines named BUILD."""
    types = {**recorded_types(), name_of(Do): Do}
    return playback.play(paths, types, {BUILD: build}, trace)


class Recorded:
    """Until `monkeypatch` is undone, each run of each simulated node is recorded in `directory`.

    `factories` has the factory of each node by name; a replay builds its machines with them, so a
    test can replace a machine.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self.directory = directory
        self.factories: dict[str, Factory] = {}
        self.recorders: list[Recorder] = []
        self.codec = Codec(message_types())
        start = Node.start

        def record(node: Node) -> None:
            start(node)
            self._record(node)

        monkeypatch.setattr(Node, "start", record)

    def build(self, ctx: NodeContext, args: dict[str, Any]) -> Any:
        return self.factories[args["factory"]](ctx)

    def _record(self, node: Node) -> None:
        assert node.machine is not None
        self.factories[node.name] = node.factory  # type: ignore[assignment]
        recorder = Recorder(
            recording_path(self.directory, node.name, node.incarnation),
            node=node.name,
            build=BUILD,
            args={"factory": node.name},
            seed=node.seed,
            incarnation=node.incarnation,
            codec=self.codec,
            disk=node.disk,
        )
        self.recorders.append(recorder)
        live = node.machine.step

        def step(now_ns: int, inp: Any) -> list[Any]:
            effects = live(now_ns, inp)
            recorder.step(now_ns, inp, effects)
            return effects

        node.step = step

    def paths(self) -> list[Path]:
        """All recordings, flushed."""
        for recorder in self.recorders:
            recorder.flush()
            assert not recorder.problem
        return sorted(self.directory.glob("*.rec"))

    def play(self, trace: Trace | None = None) -> Played:
        return replay(self.paths(), self.build, trace)


class Looker:
    """Performs the given effects, and at every step emits all that it reads from its disk."""

    def __init__(self, ctx: NodeContext) -> None:
        self.disk = ctx.disk

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        effects = inp.effects if type(inp) is Do else []
        logs = [(log, self._batches(log)) for log in self.disk.logs()]
        states = [self.disk.state(name) for name in ("a", "b")]
        return [*effects, Emit((logs, states, getattr(inp, "token", None)))]

    def _batches(self, log: bytes) -> list[tuple[int, int, int]]:
        found = self.disk.read(log, 1, 1 << 40, 1 << 40)
        return [(batch.lo, batch.hi, batch.body_crc) for batch in found]
