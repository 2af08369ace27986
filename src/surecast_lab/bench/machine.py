"""Describes the machine, commit and date of a benchmark, and the CPU use of its processes.

The benchmarks, the lab and the ledger of `surecast sim` store this description with their results.
"""

import os
import platform
import subprocess
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = ["Cores", "circumstances", "commit", "machine"]

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_IDLE = (3, 4)  # columns of /proc/stat: idle, and waiting for the disk
_GUESTS = 8  # columns from here on (guests) are already contained in earlier columns


def circumstances() -> dict[str, Any]:
    """The circumstances of all figures of a run: date, commit, machine."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
    }


def commit() -> str:
    """The measured commit, with "+" if the source differs from it; "" outside a repository."""
    words = ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(words, cwd=here, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def machine() -> dict[str, Any]:
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


class Cores:
    """How many cores each process has used since the object was created, and how many all other
    processes of the machine used together.

    The latter shows whether a slow result was caused by a busy machine.
    """

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._from = self._sample()

    def used(self) -> dict[str, float]:
        """Cores by name; "others": all other processes."""
        (at, busy, mine), (then, was_busy, was_mine) = self._sample(), self._from
        seconds = max(at - then, 1e-9)
        found = {name: (mine[name] - was_mine[name]) / seconds for name in self._pids}
        others = (busy - was_busy) / seconds - sum(found.values())
        return {
            **{name: round(cores, 2) for name, cores in found.items()},
            "others": round(max(0.0, others), 2),
        }

    def _sample(self) -> tuple[float, float, dict[str, float]]:
        columns = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        ticks = [int(n) for n in columns[:_GUESTS]]
        busy = sum(ticks) - sum(ticks[place] for place in _IDLE)
        mine = {name: _cpu_seconds(pid) for name, pid in self._pids.items()}
        return time.monotonic(), busy / _TICKS_A_SECOND, mine


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process with all its threads; 0 if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    fields = stat.rpartition(")")[2].split()  # a program's name may contain anything
    return (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND
