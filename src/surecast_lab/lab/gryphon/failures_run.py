"""One simulated run of Gryphon's experiments E3 to E5: the paper's ten brokers, and one failure.

p1 ─┬─ b1, b2 ─┬─ s1        A subscriber is at each of s1 to s5, for all events of all streams.
    │          └─ s2        Each of the four streams has 25 events a second of 100 bytes.
    └─ b3, b4 ─┬─ s3
               ├─ s4        `link`: the link b1-s1 is cut. It stalls until both ends notice.
               └─ s5        `b1`, `p1`: this broker is down.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from surecast import registry
from surecast.columns.batch import Batch
from surecast.columns.retention import KeepAll
from surecast.core.endpoint import Follow, Place
from surecast.core.machine import NodeContext
from surecast.core.types import MS, SECOND
from surecast.protocols.gryphon.broker import DELIVERY, Broker
from surecast.protocols.gryphon.config import GryphonConfig, paper
from surecast.sim.faults import Crash, Cut, Pause
from surecast.sim.world import WALL_NS, World
from surecast_lab.lab.gryphon.failures_plan import DOWN_S, END_S, EVENT_NS, FAIL_S, STALL_NS
from surecast_lab.swarm.cluster import Cluster

__all__ = ["STREAMS", "Got", "Run", "simulate"]

STREAMS = 4
EVENT_BYTES = 100
OWNER = "p1/0"
SETTINGS = ("gap_ns", "repeat_ns", "forget_share", "expected_ns", "resume")  # what `paper` changes
CELLS = {
    "ib1": ("b1", "b2"),
    "ib2": ("b3", "b4"),
    **{name: (name,) for name in ("s1", "s2", "s3", "s4", "s5")},
}
ABOVE = {"s1": "ib1", "s2": "ib1", "s3": "ib2", "s4": "ib2", "s5": "ib2"}


@dataclass(frozen=True, slots=True)
class Got:
    """What the subscriber at a broker got of one stream."""

    seqs: list[int] = field(default_factory=list)
    sent_ns: list[int] = field(default_factory=list)  # when the owner accepted each event
    at_ns: list[int] = field(default_factory=list)  # when the subscriber got it


@dataclass(frozen=True, slots=True)
class Run:
    got: dict[tuple[str, str], Got]  # (broker with subscribers, stream)
    published: dict[str, int]  # stream → events
    paths: dict[str, str]  # stream → the broker of ib1 that it went through before the failure
    # Broker → what it has requested from above: number of requests, and of positions.
    requests: dict[str, tuple[int, int]]
    inputs: int


class _Counting(Broker):
    """A broker that records its requests by stream."""

    def request(self, line: Any, ranges: list[tuple[int, int]]) -> None:
        before = self.counters["gryphon.nacks-sent"]
        known = [(lo, hi) for _, lo, hi in line.curious]
        super().request(line, ranges)
        if self.counters["gryphon.nacks-sent"] > before:
            fresh = [(lo, hi) for _, lo, hi in line.curious if (lo, hi) not in known]
            name = line.info.name
            self.counters[f"{name} requests"] += 1
            self.counters[f"{name} positions"] += sum(hi - lo for lo, hi in fresh)


def _make(config: GryphonConfig, counters: Counter[str], ctx: NodeContext) -> Broker:
    return _Counting(config, ctx.rng, counters)


def simulate(seed: int, what: str, preset: str) -> Run:
    chosen = paper(GryphonConfig("p1")) if preset == "paper" else GryphonConfig("p1")
    settings = {name: getattr(chosen, name) for name in SETTINGS}
    cluster = Cluster(
        seed, {"p1": 1}, publishers=1, subscribers=0,
        server={**settings, "cells": CELLS, "above": ABOVE},
        judges={DELIVERY: _no_judge},
    )  # fmt: skip
    world, regions = cluster.world, cluster.regions
    tree: dict[str, Any] = {"regions": regions, "cells": CELLS, "above": ABOVE}
    for name in (name for cell in CELLS.values() for name in cell):
        config = GryphonConfig(name, **tree, **settings)
        counters = cluster.counters[name] = Counter()
        world.add(name, partial(_make, config, counters))
    run = Run({}, {}, {}, {}, 0)
    for number in range(STREAMS):
        name = f"t{number}"
        cluster.open(name, "p1", KeepAll(), delivery=DELIVERY)
        run.published[name] = 0
        for at_ns in range(SECOND + number * 10 * MS, END_S * SECOND, EVENT_NS):
            text = f"{name}.{run.published[name]}".encode()
            cluster.offer(at_ns, "p1/pub0", name, [text.ljust(EVENT_BYTES)])
            run.published[name] += 1
    for broker in ("s1", "s2", "s3", "s4", "s5"):
        _subscribe(cluster, run, broker)
    world.call(FAIL_S * SECOND, lambda _: _note_paths(cluster, run))
    _fail(world, what)
    world.run((END_S + 30) * SECOND, until=lambda w: w.now_ns > END_S * SECOND and _all(run))
    for broker in ("s1", "s2", "b1", "b2"):
        counted = cluster.counters[broker]
        through = [name for name, path in run.paths.items() if path == "b1"]
        totals = [
            sum(counted[f"{name} {of}"] for name in through) for of in ("requests", "positions")
        ]
        run.requests[broker] = (totals[0], totals[1])
    return replace(run, inputs=world.inputs)


def _fail(world: World, what: str) -> None:
    """A broker first stalls: it takes in messages, but does not pass them on. It crashes before
    anybody notices, and they are lost."""
    begin_ns, end_ns = FAIL_S * SECOND, (FAIL_S + DOWN_S) * SECOND
    if what == "link":
        cut = Cut("b1", "s1")
        world.call(begin_ns, cut.apply)
        world.call(end_ns, cut.heal)
        return
    name = {"b1": "b1", "p1": OWNER}[what]
    pause, crash = Pause(name), Crash(name, False)
    world.call(begin_ns, pause.apply)
    world.call(begin_ns + STALL_NS, pause.heal)
    world.call(begin_ns + STALL_NS, crash.apply)
    world.call(end_ns, crash.heal)


def _no_judge(_record: Any, _tally: Any) -> None:
    """The rows are judged, not the cluster's record."""


def _all(run: Run) -> bool:
    return all(len(got.seqs) == run.published[stream] for (_, stream), got in run.got.items())


def _subscribe(cluster: Cluster, run: Run, broker: str) -> None:
    world, name = cluster.world, f"subscriber of {broker}"
    for number in range(STREAMS):
        run.got[broker, f"t{number}"] = Got()

    def take(now_ns: int, _name: str, stream: bytes, batches: tuple[Batch, ...]) -> None:
        got = run.got[broker, cluster.names[stream]]
        for batch in batches:
            for seq, time_ns in zip(batch.seqs().tolist(), batch.times().tolist(), strict=True):
                got.seqs.append(seq)
                got.sent_ns.append(time_ns - WALL_NS)
                got.at_ns.append(now_ns)

    world.add(name, lambda ctx: registry.reader(DELIVERY, ctx, Place("", (broker,))))
    world.on_deliver(name, take)

    def follow(world: World) -> None:
        for stream in cluster.streams.values():
            world.at(world.now_ns, name, Follow(stream, 1))

    world.call(SECOND // 2, follow)


def _note_paths(cluster: Cluster, run: Run) -> None:
    s1 = cluster.world.machine("s1")
    for name, stream in cluster.streams.items():
        run.paths[name] = s1.lines[stream].source
