"""Counts and times the syncs of this process, from the outside of whatever does them."""

import os
import time
from typing import Any

__all__ = ["SyncProbe", "fdatasync_cost_ns"]


class SyncProbe:
    """Stands in front of `os.fdatasync` for the rest of the process's life."""

    def __init__(self) -> None:
        self.durations_ns: list[int] = []  # list.append is safe from any thread
        self._sync = os.fdatasync
        os.fdatasync = self._timed  # type: ignore[assignment]

    def _timed(self, file: Any) -> None:
        began = time.monotonic_ns()
        self._sync(file)
        self.durations_ns.append(time.monotonic_ns() - began)

    def take(self) -> list[int]:
        """How long each sync took since this was last asked."""
        taken, self.durations_ns = self.durations_ns, []
        return taken


def fdatasync_cost_ns(folder: str, times: int, nbytes: int = 16 << 10) -> list[int]:
    """What the disk below `folder` needs to take so many bytes appended to a file, each time."""
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
