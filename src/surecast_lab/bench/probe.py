"""Counts and times the `os.fdatasync` calls of a server process, for `bench durable`."""

import os
import time
from typing import Any

__all__ = ["SyncProbe", "fdatasync_cost_ns"]


class SyncProbe:
    """Replaces `os.fdatasync` by a timed one until the process ends."""

    def __init__(self) -> None:
        self.durations_ns: list[int] = []  # list.append is safe from any thread
        self._sync = os.fdatasync
        os.fdatasync = self._timed  # type: ignore[assignment]

    def _timed(self, file: Any) -> None:
        began = time.monotonic_ns()
        self._sync(file)
        self.durations_ns.append(time.monotonic_ns() - began)

    def take(self) -> list[int]:
        """The duration of each sync since the last call."""
        taken, self.durations_ns = self.durations_ns, []
        return taken


def fdatasync_cost_ns(folder: str, times: int, nbytes: int = 16 << 10) -> list[int]:
    """The times that the disk of `folder` takes to sync `nbytes` appended to a file."""
    path = os.path.join(folder, "fdatasync-probe")
    found = []
    data = os.urandom(nbytes)
    with open(path, "wb", buffering=0) as file:
        for _ in range(times):
            file.write(data)
            began = time.monotonic_ns()
            os.fdatasync(file)
            found.append(time.monotonic_ns() - began)
    os.unlink(path)
    return found
