"""Records one run of a node, from its start to its end, so that the simulator can replay it.

The node calls `Recorder.step` after each step of its state machine, *before* it performs the
effects. At that moment the disk still has the content that the machine could read in this step.
Usually this content follows from the effects of earlier steps, so it is not recorded. The exception
is a write that failed or was undone, of which the disk keeps a note (`MemoryDisk.take_notes`). Then
the recorder writes the actual content of the disk into the recording, before the first step that
could read it.

Records are collected in memory and written to the file in pieces, by a thread. A piece is handed to
the thread when it has `FLUSH_BYTES`, or with the first step that is `FLUSH_NS` after the previous
piece. The event loop waits for the thread only if `PIECES_MAX` pieces are not written yet. If a
recording cannot be written, gets too long, or would contain a value that it cannot represent, it
ends there with the reason in `problem`. The node continues without a recording.
"""

import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from surecast.core.disk import read_through
from surecast.core.record import Writer
from surecast.core.types import SECOND, LogId
from surecast.core.wire import Codec
from surecast.errors import UsageError
from surecast.storage.memory import MemoryDisk
from surecast.storage.modes import opener

__all__ = ["Recorder", "recording_path"]

log = logging.getLogger("surecast.runtime")

# For these three see the module.
FLUSH_BYTES = 256 << 10
FLUSH_NS = 1 * SECOND
PIECES_MAX = 64
READ_BYTES = 1 << 20  # bytes that are read from a log at a time
BYTES_MAX = 8 << 30  # the maximum size of a recording


def recording_path(directory: Path, node: str, incarnation: int) -> Path:
    """The file for the recording of one run of a node: east.0.2.rec for run 2 of "east/0"."""
    return directory / f"{node.replace('/', '.')}.{incarnation}.rec"


class Recorder:
    """One recording. `build` is the name of the function with which a replay builds the machine
    (`server.nodes.BUILDS`), from the node's context and `args`. MessagePack must be able to encode
    `args`."""

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
        self.path = path
        self.problem = ""  # why the recording has ended early; "": it has not
        self.nbytes = 0  # bytes handed to the thread so far
        self._bytes_max = bytes_max
        self._disk = disk
        self._writer = Writer(codec)
        self._flushed_ns = 0  # the time of the last step that handed over a piece
        try:
            self._file = open(path, "xb", buffering=0, opener=opener)  # noqa: SIM115
        except FileExistsError:
            raise UsageError(f"{path} exists: each run of a node has its own recording") from None
        self._thread = ThreadPoolExecutor(1, "recorder")
        self._pieces: deque[Future[None]] = deque()  # the latest pieces; done when written
        self._writer.opening(node, build, args, seed, incarnation)
        self._begin()
        self.flush()

    def step(self, now_ns: int, inp: Any, effects: Sequence[Any]) -> None:
        """Record that `machine.step(now_ns, inp)` returned `effects`, which are not performed
        yet."""
        if self.problem:
            return
        writer = self._writer
        if self._disk.odd:
            self._record_differences()
        try:
            writer.step(now_ns, inp, effects)
        except UsageError as error:
            self._hand_over()
            self._give_up(str(error))
            return
        if writer.waiting_bytes >= FLUSH_BYTES or now_ns - self._flushed_ns >= FLUSH_NS:
            self._flushed_ns = now_ns
            self._hand_over()

    def flush(self) -> None:
        """Wait until all records are passed to the operating system, or `problem` is set."""
        self._hand_over()
        while self._pieces:
            self._pieces.popleft().result()

    def close(self, *, orderly: bool = True) -> None:
        """Close the file. If `orderly`, first record that the node was stopped and did not crash.
        May be called twice."""
        if self._file.closed:
            return
        self._disk.watcher = None
        if orderly and not self.problem:
            self._writer.closed()
        self.flush()
        self._thread.shutdown()
        self._file.close()

    def _begin(self) -> None:
        """Record all states and logs that the disk has at the start."""
        disk = self._disk
        disk.take_notes()
        disk.watcher = self._record_differences
        for name in disk.states():
            self._writer.saved(name, disk.state(name))
        for log in disk.logs():
            self._writer.ends(log, 1, disk.scope_of(log))
            self._copy(log, 1)

    def _record_differences(self) -> None:
        """Record the content of the disk where it differs from the effects (see the module)."""
        logs, states = self._disk.take_notes()
        if self.problem:
            return
        for name in states:
            self._writer.saved(name, self._disk.state(name))
        for log, lo in logs.items():
            lo = min(lo, self._disk.end(log))
            self._writer.ends(log, lo, self._disk.scope_of(log))
            self._copy(log, lo)

    def _copy(self, log: LogId, lo: int) -> None:
        """Record a log from `lo` on. It is read in pieces, because it may not fit into memory."""
        # First the batches before each hole [at, hi) and the hole, then the batches after the last
        # hole, for which `at` is the end of the log and `hi` is 0.
        for at, hi in [*self._disk.holes(log), (self._disk.end(log), 0)]:
            for batch in read_through(self._disk, log, lo, at, READ_BYTES):
                self._writer.kept(log, batch)
                if self._writer.waiting_bytes >= FLUSH_BYTES:
                    self._hand_over()
            if hi > lo:
                self._writer.holed(log, hi)
            lo = max(lo, hi)

    def _hand_over(self) -> None:
        """Give the collected records to the thread."""
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
        """Runs in the writer's thread."""
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._give_up(error.strerror or str(error))

    def _give_up(self, why: str) -> None:
        self.problem = f"{self.path}: {why}"
        log.warning("the recording ends: %s", self.problem)
