"""Replays recordings: gives machines the same inputs at the same times and compares the effects.

`surecast replay` uses this file; docs/recordings.md describes recordings. A recording
(`core.record`) covers one run of one node from start to end, here called a *life*. The replay
builds the node's machine again, with a disk of the same content as at the start of the life. It
gives the machine every recorded input at the recorded time, and compares the machine's effects with
the recorded ones. A recording refers by name to types and to the function that builds the machine;
the caller passes the tables in which these names are looked up.

No network and no clock are simulated: messages, timers and results of writes are inputs and part of
the recording. Storage effects change the simulated disk as soon as the machine returns them, and
compactions change it when they are answered, because the machine also saw this on the real disk. If
the real disk's content was different, the difference is part of the recording.

Several recordings are merged by time. The time of a recording begins at the wall clock of its first
input `Start`, so that lives of several processes are in order. The steps of one node always keep
their order. In the trace, time counts from the first step of all recordings.
"""

import mmap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from surecast.core.canon import digest, labels
from surecast.core.machine import NodeContext
from surecast.core.record import ANSWERS, ASKING, Closed, Ends, Holed, Kept, Saved, Step
from surecast.core.recording import Recording
from surecast.core.types import (
    Compacted,
    Loaded,
    Machine,
    Read,
    Received,
    Send,
    Start,
    StoreFailed,
    Token,
    Truncate,
)
from surecast.errors import PeerError, SurecastError
from surecast.sim.trace import Trace
from surecast.storage.memory import MemoryDisk
from surecast.storage.store import apply, load

__all__ = ["Build", "Difference", "Played", "Types", "play"]

Types = Mapping[str, type[msgspec.Struct]]  # by `core.canon.name_of`
Build = Callable[[NodeContext, dict[str, Any]], Machine]

PROGRESS_STEPS = 5_000


class Difference(msgspec.Struct):
    """The first step whose effects in the replay differ from the recorded ones."""

    node: str
    incarnation: int
    step: int  # number of the step in this life, from 1
    now_ns: int  # the argument of the machine's step
    inp: str
    recorded: list[str]  # types of the recorded effects; a recording has no more of them
    effects: list[str]  # the effects of the replay, with all fields
    why: str  # how they differ, for people

    def __str__(self) -> str:
        place = f"{self.node}, life {self.incarnation}, step {self.step} at {self.now_ns} ns"
        lines = [
            f"{place}: {self.why}",
            f"  input      {self.inp}",
            f"  recorded   {', '.join(self.recorded) or 'no effects'}",
        ]
        return "\n".join([*lines, *(f"  now        {text}" for text in self.effects or ["none"])])


class Played(msgspec.Struct):
    """The result of `play`."""

    lives: dict[str, int] = {}  # node → how many of its lives were played
    steps: int = 0
    effects: int = 0
    span_ns: int = 0  # from the first step of all recordings to the last one played
    unclosed: list[str] = []  # recordings without an end: the process was killed, or still runs
    difference: Difference | None = None


def play(
    paths: Sequence[Path],
    types: Types,
    builds: Mapping[str, Build],
    trace: Trace | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Played:
    """Play recordings until the end or the first difference. Raises PeerError if one is damaged.

    Recordings may use only the names in `types` (see `registry.recorded_types`), which are types of
    inputs and messages, and in `builds`, which are functions that build machines from the recorded
    arguments. `on_progress` is called from time to time with the number of bytes played.
    """
    lives = [Life(path, types, builds) for path in paths]
    played = Played(lives=dict(Counter(life.node for life in lives)))
    # A life has no step, and so no machine, if its process was killed right after the start.
    origin_ns = min((life.origin_ns for life in lives if life.machine is not None), default=0)
    for at_ns, _, life, step in merge(*(life.timed(i) for i, life in enumerate(lives))):
        inp, effects, difference = life.step(step)
        if trace is not None:
            _record(trace, at_ns - origin_ns, life.node, inp, effects)
        played.steps += 1
        played.effects += len(effects)
        played.span_ns = max(played.span_ns, at_ns - origin_ns)
        if difference is not None:
            played.difference = difference
            break
        if on_progress is not None and played.steps % PROGRESS_STEPS == 0:
            on_progress(sum(life.recording.position for life in lives))
    else:
        played.unclosed = [str(life.path) for life in lives if not life.closed]
    return played


def _record(trace: Trace, at_ns: int, node: str, inp: Any, effects: list[Any]) -> None:
    for carrier in (inp, *effects):
        if type(carrier) in (Received, Send):
            trace.sizes.of(carrier.message)  # registers the message's type with the trace
    trace.record((at_ns, node, inp, effects))
    trace.pack_if_long()


class Life:
    """One recording, and the machine that is stepped with the recorded inputs."""

    def __init__(self, path: Path, types: Types, builds: Mapping[str, Build]) -> None:
        self.path = path
        self.closed = False  # the end of the recording was reached, and the node was stopped there
        try:
            self.recording = Recording(_content(path), types)
            header = self.recording.header
            self.node, self.incarnation = header.node, header.incarnation
            self.disk = MemoryDisk()
            self._items = self.recording.items()
            # Storage effects are numbered in the order in which the machine returns them; a
            # recorded answer has the number. Truncate gets no answer, so it gets no number.
            self._asked = 0  # the last number
            self._tokens: dict[int, Token] = {}  # number → token, for effects not answered yet
            # Number of a Read → its answer, made when the machine returned it.
            self._loaded: dict[int, Loaded] = {}
            self._first = self._next_step()
            self.machine = self._build(builds) if self._first is not None else None
        except SurecastError as error:
            raise PeerError(f"{path}: {error}") from error
        self.origin_ns = self._offset_ns = 0
        if self._first is not None:
            if not isinstance(self._first.inp, Start):
                raise PeerError(f"{path}: the first input must be Start")
            self.origin_ns = self._first.inp.wall_ns
            # Added to the `now_ns` of a step, this gives the wall clock's time.
            self._offset_ns = self.origin_ns - self._first.now_ns

    def _build(self, builds: Mapping[str, Build]) -> Machine:
        header = self.recording.header
        build = builds.get(header.build)
        if build is None:
            known = ", ".join(builds)
            raise PeerError(f"no machine {header.build!r} can be built here; there are: {known}")
        # The same seed as in the simulator (`sim.node`) and in the asyncio driver.
        rng = Random(f"{header.seed}/{header.node}/{header.incarnation}")
        context = NodeContext(header.node, rng, self.disk, header.incarnation)
        try:
            return build(context, header.args)
        except Exception as error:  # of any type, because the recorded arguments may be anything
            raise PeerError(f"{header.build} cannot build {header.node}: {error!r}") from error

    def timed(self, order: int) -> Iterator[tuple[int, int, "Life", Step]]:
        """Yield (time, `order`, this life, step) for each recorded step. `order` is a different
        number for each life, so steps of several lives can be sorted even if they have equal times.

        The caller must perform a step before it asks for the next one: fetching the next step also
        applies the recorded differences of the disk.
        """
        step, at_ns = self._first, self.origin_ns
        while step is not None:
            at_ns = max(at_ns, step.now_ns + self._offset_ns)
            yield at_ns, order, self, step
            try:
                step = self._next_step()
            except SurecastError as error:
                raise PeerError(f"{self.path}: {error}") from error

    def _next_step(self) -> Step | None:
        for item in self._items:
            if isinstance(item, Step):
                return item
            if isinstance(item, Closed):
                self.closed = True
            else:
                self._adjust(item)
        return None

    def _adjust(self, item: Kept | Ends | Holed | Saved) -> None:
        """Apply a recorded difference: content of the real disk that the effects do not explain."""
        disk = self.disk
        if isinstance(item, Kept):
            disk.append(item.log, [item.batch])
        elif isinstance(item, Holed):
            disk.skip(item.log, item.hi, "as recorded")
        elif isinstance(item, Saved):
            if item.data is None:  # the state's first save had failed
                disk.forget(item.name)
            else:
                disk.save(item.name, item.data)
        elif item.end > disk.end(item.log):
            raise PeerError(f"log {item.log.hex()[:8]} grew to {item.end} without an effect")
        else:
            disk.claim(item.log, item.scope)
            disk.truncate(item.log, item.end)

    def step(self, step: Step) -> tuple[Any, list[Any], Difference | None]:
        """Perform one step. Returns its input, the machine's effects, and the Difference if they
        are not the recorded ones."""
        assert self.machine is not None
        effects: list[Any] = []
        inp = self._input(step)
        try:
            effects = self.machine.step(step.now_ns, inp)
            ours = digest(effects) if effects else b""
        except Exception as error:
            why = f"the machine fails: {error!r}"
        else:
            if ours == step.digest:
                self._perform(effects)
                return inp, effects, None
            why = _compare(step.labels, labels(effects))
        difference = Difference(
            self.node, self.incarnation, step.number, step.now_ns, _short(inp), step.labels,
            [_short(effect) for effect in effects], why,
        )  # fmt: skip
        return inp, effects, difference

    def _input(self, step: Step) -> Any:
        """The recorded input. An answer from the disk gets the token of the replay's effect."""
        inp = step.inp
        kind = type(inp)
        if kind not in ANSWERS:
            return inp
        token = self._tokens.pop(inp.token, self)  # `self` is no token: it stands for "unknown"
        if token is self:
            raise PeerError(
                f"{self.path}: step {step.number} answers a storage effect that was not performed"
            )
        if kind is Loaded:
            loaded = self._loaded.pop(inp.token)
            return Loaded(token, () if inp.problem else loaded.batches, inp.problem)
        if kind is StoreFailed:
            self.disk.drop(token)
            return StoreFailed(token, inp.reason)
        if kind is Compacted:
            self.disk.show(token)
            self.disk.sync()
        return kind(token)

    def _perform(self, effects: list[Any]) -> None:
        disk = self.disk
        for effect in effects:
            kind = type(effect)
            if kind in ASKING:
                self._asked += 1
                self._tokens[self._asked] = effect.token
            if kind is Read:
                self._loaded[self._asked] = load(disk, effect)
            elif kind in ASKING or kind is Truncate:
                apply(disk, effect)  # may fail like on the real disk, after an earlier failed write
                disk.sync()


def _compare(recorded: list[str], ours: list[str]) -> str:
    for number, (old, new) in enumerate(zip(recorded, ours, strict=False), 1):
        if old != new:
            return f"effect {number} was {old} and is now {new}"
    if len(recorded) != len(ours):
        return f"there were {len(recorded)} effects, there are now {len(ours)}"
    return "the effects are of the same types, but their content is not the same"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 500 else f"{text[:500]}..."


def _content(path: Path) -> Any:
    with path.open("rb") as file:
        if not path.stat().st_size:
            return b""
        # Batches are views into the map: parts that are not used are not read from the disk.
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
