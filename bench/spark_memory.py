"""Samples the memory of this process's Spark session: of its JVM and of its Python workers.

The scripts `spark_*.py` of this folder use it.
"""

import os
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from types import TracebackType

EVERY_S = 1.0
MB = 1 << 20


class Memory:
    """Use it as `with Memory() as memory: …`, then call `figures`."""

    def __init__(self) -> None:
        self.samples: list[tuple[int, int]] = []  # bytes of the JVM, of Python workers
        self._over = Event()
        self._thread = Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def figures(self) -> dict[str, int]:
        """Peaks in MB, and the workers' peaks in the first and second half of the time."""
        half = max(1, len(self.samples) // 2)
        python = [python for _, python in self.samples] or [0]
        return {
            "jvm_mb": max((jvm for jvm, _ in self.samples), default=0) // MB,
            "python_mb": max(python) // MB,
            "python_mb_first_half": max(python[:half]) // MB,
            "python_mb_second_half": max(python[half:] or [0]) // MB,
        }

    def _sample(self) -> None:
        while not self._over.wait(EVERY_S):
            jvm = python = 0
            for pid in descendants(os.getpid()):
                with suppress(OSError):
                    if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
                        jvm += _kb(pid, "status", "VmRSS") * 1024
                    else:  # Pss, because forked processes share pages: each counts its part
                        python += _kb(pid, "smaps_rollup", "Pss") * 1024
            self.samples.append((jvm, python))


def _kb(pid: int, file: str, name: str) -> int:
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0


def descendants(root: int) -> list[int]:
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            stat = (path / "stat").read_text().rpartition(")")[2].split()
            parents[int(path.name)] = int(stat[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]
