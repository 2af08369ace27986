"""The processor seconds that the tests of each folder may take, and the check that they keep to it.

Every run of pytest writes its measurements to out/test-times.json, summed over xdist's workers.
`make test` (`pytest --budget`) fails if a folder takes a third more than tests/budget.toml allows.
A slower machine is allowed more, by how much longer a fixed loop takes on it (`calibrate`).

    python -m tests.budget        # rewrites tests/budget.toml from the last run (make budget)
    python -m tests.budget quick  # rewrites tests/quick.toml from the last run of quick tests

tests/quick.toml has the seconds of the quick tests of single files. tests/changes.py uses it to
choose the tests of `make check`. Measure with `make check ALL=1`; files that the last run did not
run keep their seconds.
"""

import json
import math
import os
import sys
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest

__all__ = ["Budget", "Meter", "Quick", "calibrate", "complaints", "folder_of", "processor_seconds"]

ROOT = Path(__file__).resolve().parent.parent
BUDGET = ROOT / "tests" / "budget.toml"
QUICK = ROOT / "tests" / "quick.toml"
TIMES = ROOT / "out" / "test-times.json"
TOLERANCE = 4 / 3
HEADROOM = 1.15  # a new budget is the measured time multiplied by this ...
HEADROOM_S = 2  # ... plus these seconds
NEW_FOLDER_S = 40.0  # allowed for a folder that has no budget yet
SAMPLES = 5  # of processor time, before a total that fell is believed
SAMPLES_APART_S = 0.01
QUICK_S = 0.3  # files whose quick tests take less are not in tests/quick.toml ...
OTHER_S = 0.12  # ... and count as this much
LOOPS = 1_000_000
TICK = os.sysconf("SC_CLK_TCK")


@dataclass
class Budget:
    reference_s: float = 0.0  # result of `calibrate` on the machine that measured the seconds
    seconds: dict[str, float] = field(default_factory=dict)


def load(path: Path) -> Budget:
    table = tomllib.loads(path.read_text())
    return Budget(table["reference_s"], table["seconds"])


@dataclass
class Quick:
    """Processor seconds of the quick tests of each file that takes more than a few."""

    seconds: dict[str, float]

    @classmethod
    def load(cls, path: Path = QUICK) -> Self:
        return cls(tomllib.loads(path.read_text())["seconds"])

    def of(self, path: str) -> float:
        return self.seconds.get(path, OTHER_S)


# ---------------------------------------------------------------- measuring


def folder_of(path: str) -> str:
    """`tests/protocols/chain/test_dedup.py` → `protocols/chain`; files in tests/ itself: `.`."""
    folders = Path(path).parts[1:-1]
    return "/".join(folders[:2]) or "."


def processor_seconds() -> float:
    """Processor time that this process and all its descendants have used so far.

    `os.times` includes descendants that have ended. Running ones are read from /proc (Linux), from
    the parent that each process names. The lists of children in /proc/<pid>/task may be incomplete
    while processes end (proc(5)): the seconds of a missing child would count for a later test.
    """
    used = os.times()
    total = used.user + used.system + used.children_user + used.children_system
    children: defaultdict[int, list[int]] = defaultdict(list)
    seconds: dict[int, float] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError):  # it has just ended
                with open(f"/proc/{name}/stat", "rb") as stat:
                    fields = stat.read().rpartition(b") ")[2].split()
                children[int(fields[1])].append(int(name))
                # user, system, and those of its children that have ended
                seconds[int(name)] = sum(map(int, fields[11:15])) / TICK
    unseen = children[os.getpid()]
    while unseen:
        pid = unseen.pop()
        total += seconds[pid]
        unseen += children[pid]
    return total


class Meter:
    """Processor seconds by folder of tests, and those of quick tests by file."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self.quick: Counter[str] = Counter()
        self._last = processor_seconds()

    def note(self, path: str, slow: bool = False) -> None:
        """Add the time used since the last call to the folder of this file."""
        now = self._sample()
        used_s = max(0.0, now - self._last)
        self.spent[folder_of(path)] += used_s
        if not slow:
            self.quick[path] += used_s
        self._last = now

    def _sample(self) -> float:
        """Processor seconds so far, measured again if they fell.

        A child that ends during a sample may be missing in it: its seconds would count for the
        next test. Totals that stay lower are believed: a descendant has got another parent.
        """
        highest = processor_seconds()
        for _ in range(SAMPLES - 1):
            if highest >= self._last:
                break
            time.sleep(SAMPLES_APART_S)
            highest = max(highest, processor_seconds())
        return highest


def calibrate() -> float:
    """Processor seconds of a fixed loop, the best of three."""
    best = math.inf
    for _ in range(3):
        began = time.process_time()
        number = 0
        for i in range(LOOPS):
            number = (number * 31 + i) % 1_000_003
        best = min(best, time.process_time() - began)
    return best


# ---------------------------------------------------------------- judging


def complaints(spent: Mapping[str, float], budget: Budget, calibration_s: float) -> list[str]:
    """A line for every folder that exceeded its budget on this machine by a third."""
    slower = max(1.0, calibration_s / budget.reference_s)
    found = []
    for folder, used_s in sorted(spent.items()):
        allowed_s = budget.seconds.get(folder, NEW_FOLDER_S) * slower
        if used_s > allowed_s * TOLERANCE:
            found.append(
                f"tests/{folder} took {used_s:.0f} s of processor time, a third more than its "
                f"budget of {allowed_s:.0f} s (tests/budget.toml, for this machine)"
            )
    return found


def save(
    spent: Mapping[str, float], quick: Mapping[str, float], calibration_s: float, path: Path
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "calibration_s": calibration_s,
        "total_s": round(sum(spent.values()), 1),
        "seconds": {folder: round(used_s, 1) for folder, used_s in sorted(spent.items())},
        "quick": {file: round(used_s, 2) for file, used_s in sorted(quick.items())},
    }
    path.write_text(json.dumps(report, indent=1) + "\n")


def new_budget(times: Mapping[str, object]) -> str:
    """The text of a budget with room above these times."""
    calibration_s, seconds = times["calibration_s"], times["seconds"]
    if not calibration_s:
        raise SystemExit("this run has no calibration: measure with `make test`")
    assert isinstance(seconds, dict)
    lines = [
        "# Processor seconds that the tests of each folder may take, child processes included.",
        "# `make test` fails when a folder takes a third more. `make budget` rewrites this file",
        "# from the last `make test`: say in the commit why a folder needs more than before.",
        "",
        "# What the calibration loop (tests/budget.py) took on the machine that measured.",
        f"reference_s = {calibration_s:.4f}",
        "",
        "[seconds]",
        *(f'"{folder}" = {math.ceil(s * HEADROOM) + HEADROOM_S}' for folder, s in seconds.items()),
    ]
    return "\n".join(lines) + "\n"


def new_quick(measured: Mapping[str, float], before: Mapping[str, float]) -> str:
    """The text of tests/quick.toml; files not measured now have the seconds they had before."""
    seconds = {file: s for file, s in {**before, **measured}.items() if s >= QUICK_S}
    lines = [
        "# Processor seconds of the quick tests of single files, those from 0.3 s on, by which",
        "# `make check` chooses tests. `python -m tests.budget quick` rewrites this file from the",
        "# last `make check ALL=1`.",
        "",
        "[seconds]",
        *(f'"{file}" = {s:.1f}' for file, s in sorted(seconds.items())),
    ]
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- in a run of pytest


class Measured:
    """The plugin of one process: a worker of xdist, its controller, or a run without xdist."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.is_worker = hasattr(config, "workerinput")
        self.judges = config.getoption("budget") and not self.is_worker
        self.calibration_s = calibrate() if self.judges else 0.0
        self.meter: Meter | None = None
        self.spent: Counter[str] = Counter()
        self.quick: Counter[str] = Counter()
        self.over: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.meter = self.meter or Meter()  # time used before the first test does not count
        result = yield
        slow = any(item.iter_markers("slow")) or any(item.iter_markers("nightly"))
        self.meter.note(item.nodeid.partition("::")[0], slow)
        return result

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        output = getattr(node, "workeroutput", {})
        self.spent.update(output.get("spent", {}))
        self.quick.update(output.get("quick", {}))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.meter is not None:
            self.spent.update(self.meter.spent)
            self.quick.update(self.meter.quick)
        if self.is_worker:
            output = self.config.workeroutput  # type: ignore[attr-defined]
            output.update(spent=dict(self.spent), quick=dict(self.quick))
            return
        if self.spent:
            save(self.spent, self.quick, self.calibration_s, TIMES)
        if self.judges:
            self.over = complaints(self.spent, load(BUDGET), self.calibration_s)
        if self.over and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.judges:
            total_s = sum(self.spent.values())
            terminalreporter.write_line(f"{total_s:.0f} s of processor time ({TIMES})")
        for line in self.over:
            terminalreporter.write_line(line, red=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--budget", action="store_true", help="fail if a folder takes more than tests/budget.toml"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Measured(config), "budget")


# ---------------------------------------------------------------- from the shell


def main() -> None:
    if not TIMES.exists():
        sys.exit(f"there is no {TIMES.relative_to(ROOT)}: run `make test` first")
    times = json.loads(TIMES.read_text())
    if sys.argv[1:] == ["quick"]:
        there = {file: s for file, s in Quick.load().seconds.items() if (ROOT / file).exists()}
        QUICK.write_text(new_quick(times["quick"], there))
    else:
        BUDGET.write_text(new_budget(times))


if __name__ == "__main__":
    main()
