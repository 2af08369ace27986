"""Measures how many inputs (messages, timers) per second the simulator processes.

The workload is a simplified mesh of a thousand nodes, in which nodes pass events to each other. A
source publishes ranges of positions. A node that gets new positions notifies four peers. A peer
that is behind sends a request to the first node that notified it, and gets a batch. Every node
knows twenty peers, and once a second draws the four that it notifies. Links have delay and jitter,
and everything is traced.

    python bench/simulator.py
"""

import gc
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from random import Random
from statistics import median
from typing import Any

from surecast.core.types import (
    MS,
    SECOND,
    Batch,
    LogId,
    Message,
    Received,
    Send,
    SetTimer,
    Start,
    TimerFired,
)
from surecast.sim import Link, Trace, World

Row = dict[str, Any]

STREAM = bytes(range(16))
NODES = 1000
VIEW = 20
FANOUT = 4
SHUFFLE_NS = 1 * SECOND
RUN = 100  # positions that the source publishes at a time
EVERY_NS = 5 * MS
RETRY_NS = 200 * MS
LINK = Link(delay_ns=1 * MS, jitter_ns=1 * MS)


class Notify(Message):
    stream: LogId
    end: int


class Request(Message):
    stream: LogId
    lo: int
    hi: int


class Events(Message):
    batch: Batch


class Client:
    """A node of the mesh; the first node is the source, which also publishes."""

    __slots__ = ("active", "armed", "asked_ns", "end", "heard", "rng", "source", "teller", "view")

    def __init__(self, ctx: Any, view: list[str]) -> None:
        self.rng = ctx.rng
        self.view = view
        self.active: list[str] = []
        self.end = 1  # this node has all positions below
        self.heard = 1  # the highest end in a notification
        self.teller = ""  # the first peer that sent this notification
        self.asked_ns = 0  # when the pending request was sent; 0: none
        self.armed = False  # whether the retry timer runs
        self.source = ctx.name == "n0"

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        kind = type(inp)
        if kind is Received:
            message = inp.message
            kind = type(message)
            if kind is Notify:
                if message.end > self.heard:
                    self.heard, self.teller = message.end, inp.peer
                    if not self.asked_ns:
                        return self._ask(now_ns)
                return []
            if kind is Events:
                return self._on_events(now_ns, message.batch)
            return self._on_request(inp.peer, message)
        if kind is Start or (kind is TimerFired and inp.key == "shuffle"):
            self.active = self.rng.sample(self.view, FANOUT)
            out: list[Any] = [SetTimer("shuffle", now_ns + SHUFFLE_NS)]
            if kind is Start and self.source:
                out.append(SetTimer("publish", now_ns + EVERY_NS))
            return out
        if kind is TimerFired and inp.key == "retry":
            self.armed = False
            if self.asked_ns and self.asked_ns + RETRY_NS <= now_ns:
                return self._ask(now_ns)
            if self.asked_ns:
                self.armed = True
                return [SetTimer("retry", self.asked_ns + RETRY_NS)]
        elif kind is TimerFired:
            self.end = self.heard = self.end + RUN
            return [*self._notify(), SetTimer("publish", now_ns + EVERY_NS)]
        return []

    def _ask(self, now_ns: int) -> list[Any]:
        self.asked_ns = now_ns
        request = Request(STREAM, self.end, self.heard)
        if self.armed:
            return [Send(self.teller, request)]
        self.armed = True
        return [Send(self.teller, request), SetTimer("retry", now_ns + RETRY_NS)]

    def _on_request(self, peer: str, message: Request) -> list[Any]:
        lo, hi = message.lo, min(message.hi, self.end)
        if lo >= hi:
            return []
        batch = Batch.synthetic(STREAM, hi - lo, 30 * (hi - lo)).sequenced(lo, 0, 0)
        return [Send(peer, Events(batch))]

    def _on_events(self, now_ns: int, batch: Batch) -> list[Any]:
        if batch.lo != self.end:
            return []
        self.end = batch.hi
        self.asked_ns = 0
        out = self._notify()
        if self.heard > self.end:
            out += self._ask(now_ns)
        return out

    def _notify(self) -> list[Any]:
        notify = Notify(STREAM, self.end)
        return [Send(peer, notify) for peer in self.active]


def make(seed: int, trace: Trace | None) -> World:
    world = World(seed, LINK, trace=trace, record=False)
    rng = Random(f"views {seed}")
    names = [f"n{i}" for i in range(NODES)]
    for name in names:
        others = rng.sample([other for other in names if other != name], VIEW)
        world.add(name, lambda ctx, others=others: Client(ctx, others))
    return world


def measure(seed: int, traced: bool = True, rounds: int = 12, inputs: int = 100_000) -> list[float]:
    """Inputs a second in each round of `inputs` inputs, after the first sessions are up."""
    trace = Trace() if traced else None
    world = make(seed, trace)
    world.run(until_ns=SECOND // 2)
    gc.collect()
    rates = []
    for _ in range(rounds):
        before, began = world.inputs, time.perf_counter()
        enough = before + inputs
        world.run(until_ns=3600 * SECOND, until=lambda w, enough=enough: w.inputs >= enough)
        rates.append((world.inputs - before) / (time.perf_counter() - began))
    return rates


def bench_one_world() -> list[Row]:
    """One simulation on one core, with and without the trace: the best round, because other load
    can only slow a round down."""
    rows = []
    for traced in (True, False):
        rates = measure(1, traced)
        rows.append(row("sim_inputs" if traced else "sim_inputs_untraced", max(rates), rates))
    return rows


def bench_two_worlds() -> list[Row]:
    """Two simulations at the same time, in two processes: the throughput if many seeds are run on
    two cores."""
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(measure, (1, 2), (True, True), (1, 1), (1000, 1000)))  # do all imports
        one, two = pool.map(measure, (1, 2))
    # Rounds of the same number ran at about the same time.
    both = [a + b for a, b in zip(one, two, strict=True)]
    return [row("sim_inputs_two_processes", max(both), both)]


def row(name: str, value: float, rates: list[float]) -> Row:
    params = {"nodes": NODES, "fanout": FANOUT, "view": VIEW, "median": round(median(rates))}
    return {"name": name, "value": round(value), "unit": "inputs/s", "params": params}


def profile() -> None:
    """Print the time spent by function; `python bench/simulator.py profile`."""
    import cProfile
    import pstats

    world = make(1, Trace())
    world.run(until_ns=SECOND // 2)
    with cProfile.Profile() as collected:
        world.run(until_ns=SECOND)
    pstats.Stats(collected).sort_stats("tottime").print_stats(20)


if __name__ == "__main__":
    if "profile" in sys.argv:
        profile()
    else:
        for one in [*bench_one_world(), *bench_two_worlds()]:
            print(f"{one['name']:28} {one['value']:>10,} {one['unit']}  {one['params']}")
