"""The recorder: writes down one life of a node, so that the simulator can live it again.

The driver calls `step` after each `machine.step` and *before* it performs the effects: what the
disk shows at that moment is what the machine saw. So the recorder, too, can see what became of the
storage effects of the steps before. Usually that is what they asked for, and nothing need be
written; when an append, a compaction or a state was refused or taken back, the recording says so
at the step that was the first to see it.

Records collect in memory and are written in pieces by a thread, at the latest with the first step
that comes a second after the last piece; the loop waits only if the disk falls `PIECES_MAX` of them
behind. A recording that can no longer be written (or has become too long, or meets something that
has no form in a recording) ends there, with the reason in `problem`; the node goes on.
"""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from surecast.core.canon import canonical
from surecast.core.disk import read_through
from surecast.core.record import Writer
from surecast.core.types import (
    SECOND,
    Append,
    Batch,
    Compact,
    Deliver,
    LogId,
    SaveState,
    Truncate,
)
from surecast.core.wire import Codec
from surecast.errors import UsageError
from surecast.storage.memory import MemoryDisk
from surecast.storage.store import apply

__all__ = ["Recorder", "recording_path"]

log = logging.getLogger("surecast.runtime")

FLUSH_BYTES = 256 << 10
FLUSH_NS = 1 * SECOND
PIECES_MAX = 64
READ_BYTES = 1 << 20  # of a log at a time
BYTES_MAX = 8 << 30  # of a recording


def recording_path(directory: Path, node: str, incarnation: int) -> Path:
    """Where the recording of one life of a node belongs: "east/0", life 2, is east.0.2.rec."""
    return directory / f"{node.replace('/', '.')}.{incarnation}.rec"


class Recorder:
    """One recording. `build` ("module:function", within surecast) makes the machine again of a
    node's context and `args`, which must have a form in MessagePack."""

    def __init__(
        self,
        path: Path,
        *,
        node: str,
        build: str,
        args: dict[str, Any],
        seed: object,
        incarnation: int,
        codec: Codec,
        disk: MemoryDisk,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        if not build.startswith("surecast."):
            raise UsageError(f"{build!r} is outside the package surecast: no replay would load it")
        self.path = path
        self.problem = ""
        self.nbytes = 0  # handed to the thread so far
        self._bytes_max = bytes_max
        self._writer = Writer(codec)
        self._mirror = _Mirror(disk, self._writer)
        self._flushed_ns = 0
        try:
            self._file = path.open("xb", buffering=0)
        except FileExistsError:
            raise UsageError(f"{path} exists: each life of a node has its own recording") from None
        self._thread = ThreadPoolExecutor(1, "recorder")
        self._pieces: deque[Future[None]] = deque()
        self._writer.opening(node, build, args, seed, incarnation)
        self._relieve(self._mirror.begin())
        self.flush()

    def step(self, now_ns: int, inp: Any, effects: Sequence[Any]) -> None:
        """`machine.step(now_ns, inp)` returned `effects`, which are not performed yet."""
        if self.problem:
            return
        writer, mirror = self._writer, self._mirror
        if mirror.busy:
            self._relieve(mirror.look())
        try:
            writer.step(now_ns, inp, effects)
        except UsageError as error:
            self._hand_over()
            self._give_up(str(error))
            return
        for effect in effects:
            if type(effect) in _STORAGE:
                mirror.perform(effect)
        if writer.waiting_bytes >= FLUSH_BYTES or now_ns - self._flushed_ns >= FLUSH_NS:
            self._flushed_ns = now_ns
            self._hand_over()

    def flush(self) -> None:
        """Return when everything is with the operating system (or `problem` says why not)."""
        self._hand_over()
        while self._pieces:
            self._pieces.popleft().result()

    def close(self, *, orderly: bool = True) -> None:
        """Say that the life ended in order, if so, and let the file go. May be called twice."""
        if self._file.closed:
            return
        if orderly and not self.problem:
            self._writer.closed()
        self.flush()
        self._thread.shutdown()
        self._file.close()

    def _relieve(self, writing: Iterator[None]) -> None:
        """A disk's content is not held in memory until all of it is encoded."""
        for _ in writing:
            if self._writer.waiting_bytes >= FLUSH_BYTES:
                self._hand_over()

    def _hand_over(self) -> None:
        data = self._writer.take()
        if not data or self.problem:
            return
        pieces = self._pieces
        while pieces and (pieces[0].done() or len(pieces) >= PIECES_MAX):
            pieces.popleft().result()
        pieces.append(self._thread.submit(self._write, data))
        self.nbytes += len(data)
        if self.nbytes > self._bytes_max:
            self._give_up(f"the limit of {self._bytes_max:,} bytes is reached")

    def _write(self, data: bytes) -> None:
        """In the thread."""
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._give_up(error.strerror or str(error))

    def _give_up(self, why: str) -> None:
        self.problem = f"{self.path}: {why}"
        log.warning("the recording ends: %s", self.problem)


# ---------------------------------------------------------------- what became of it

_STORAGE = frozenset((Append, Truncate, Compact, SaveState))


class _Mirror:
    """The disk as the effects alone would have made it, which is how a replay will see it.

    It holds the very batches of the real one, so it costs little more than lists. Both count the
    changes made to them: a write that was refused or taken back shows in the difference.
    """

    def __init__(self, disk: MemoryDisk, writer: Writer) -> None:
        self.disk = disk
        self.writer = writer
        self.own = MemoryDisk()
        self._ahead = 0  # how many more changes the real disk has seen: before this life
        self._logs: dict[LogId, None] = {}  # that may look different: changed, and not answered
        self._states: dict[str, None] = {}

    @property
    def busy(self) -> bool:
        return bool(self._logs or self._states)

    def begin(self) -> Iterator[None]:
        """Write down all there is; yields now and then, for the writer to be relieved."""
        for name in self.disk.states():
            self._copy_state(name)
        for log in self.disk.logs():
            self.writer.ends(log, 1)
            yield from self._copy_log(log, 1)
        self._ahead = self.disk.written - self.own.written

    def perform(self, effect: Any) -> None:
        apply(self.own, effect)
        self.own.sync()
        if type(effect) is SaveState:
            self._states[effect.name] = None
        else:
            self._logs[effect.log] = None

    def look(self) -> Iterator[None]:
        """Write down what the real disk shows and this one does not; yields as `begin` does."""
        if self.disk.written - self.own.written == self._ahead:
            if not self.writer.owed:  # nothing can be taken back any more
                self._logs.clear()
                self._states.clear()
            return
        for name in self._states:
            if self.disk.state(name) != self.own.state(name):
                self._copy_state(name)
        for log in self._logs:
            theirs, ours = _batches(self.disk, log), _batches(self.own, log)
            same = 0
            while same < min(len(theirs), len(ours)) and _same(theirs[same], ours[same]):
                same += 1
            end = theirs[same - 1].hi if same else 1
            if same < len(ours):
                self.own.truncate(log, end)
                self.writer.ends(log, end)
            yield from self._copy_log(log, end)
        self.own.sync()
        self._ahead = self.disk.written - self.own.written

    def _copy_state(self, name: str) -> None:
        data = self.disk.state(name)
        if data is None:
            self.own.forget(name)
        else:
            self.own.save(name, data)
        self.writer.saved(name, data)

    def _copy_log(self, log: LogId, lo: int) -> Iterator[None]:
        for batch in read_through(self.disk, log, lo, self.disk.end(log), READ_BYTES):
            self.own.append(log, [batch])
            self.writer.kept(log, batch)
            yield


def _batches(disk: MemoryDisk, log: LogId) -> list[Batch]:
    return disk.read(log, 1, disk.end(log), 1 << 62)


def _same(a: Batch, b: Batch) -> bool:
    return a is b or canonical([Deliver(b"", (a,))]) == canonical([Deliver(b"", (b,))])
