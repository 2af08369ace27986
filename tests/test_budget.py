"""The processor-time budget of the tests: measuring, judging, and the message."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests import budget
from tests.budget import (
    Budget,
    Meter,
    Quick,
    complaints,
    folder_of,
    new_budget,
    new_quick,
    processor_seconds,
)

BURN = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("tests/test_repo.py", "."),
        ("tests/core/test_wire.py", "core"),
        ("tests/protocols/chain/test_dedup.py", "protocols/chain"),
        ("tests/surecast_lab/lab/sprinkler/test_link.py", "surecast_lab/lab"),
    ],
)
def test_files_belong_to_folders(path: str, folder: str) -> None:
    assert folder_of(path) == folder


def test_a_folder_over_its_budget_by_a_third_is_reported() -> None:
    allowed = Budget(reference_s=0.1, seconds={"core": 30.0, "sim": 30.0})
    assert complaints({"core": 39.9, "sim": 1.0}, allowed, 0.1) == []
    (line,) = complaints({"core": 40.1, "sim": 1.0}, allowed, 0.1)
    assert line.startswith("tests/core took 40 s")
    assert "budget of 30 s" in line


def test_a_slow_machine_is_allowed_more_and_a_fast_one_not_less() -> None:
    allowed = Budget(reference_s=0.1, seconds={"core": 30.0})
    assert complaints({"core": 79.0}, allowed, 0.2) == []
    (line,) = complaints({"core": 81.0}, allowed, 0.2)
    assert "budget of 60 s" in line
    assert complaints({"core": 39.0}, allowed, 0.05) == []


def test_a_folder_without_a_budget_has_that_of_a_new_protocol() -> None:
    allowed = Budget(reference_s=0.1)
    assert complaints({"protocols/new": 53.0}, allowed, 0.1) == []
    assert complaints({"protocols/new": 54.0}, allowed, 0.1)


def test_child_processes_count_while_they_run_and_when_they_have_ended() -> None:
    before = processor_seconds()
    with subprocess.Popen(
        [sys.executable, "-c", f"{BURN}print('burnt', flush=True)\ninput()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        running = processor_seconds() - before
        child.communicate(b"\n")
    ended = processor_seconds() - before
    assert 0.25 < running < 5
    assert running - 0.05 <= ended < 5


def test_processor_time_counts_for_the_folder_of_the_test() -> None:
    meter = Meter()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    meter.note("tests/core/test_wire.py")
    meter.note("tests/sim/test_world.py")
    assert meter.spent["core"] > 0.25
    assert meter.spent["sim"] < 0.25


def test_a_child_that_is_missing_for_a_moment_is_not_billed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    samples = iter([60.0, 14.0, 14.5, 61.0, 62.0])
    monkeypatch.setattr(budget, "processor_seconds", lambda: next(samples))
    meter = Meter()
    meter.note("tests/core/test_wire.py")
    meter.note("tests/sim/test_world.py")
    assert meter.spent == {"core": 1.0, "sim": 1.0}


def test_a_total_that_stays_lower_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = iter([60.0, *[14.0] * budget.SAMPLES, 16.0])
    monkeypatch.setattr(budget, "processor_seconds", lambda: next(samples))
    meter = Meter()
    meter.note("tests/core/test_wire.py")
    meter.note("tests/sim/test_world.py")
    assert meter.spent == {"core": 0.0, "sim": 2.0}


def test_a_new_budget_has_room_above_what_was_measured(tmp_path: Path) -> None:
    times = tmp_path / "out" / "times.json"
    budget.save({"core": 10.0, ".": 0.4}, {}, 0.123, times)
    path = tmp_path / "budget.toml"
    path.write_text(new_budget(json.loads(times.read_text())))
    made = budget.load(path)
    assert made.reference_s == 0.123
    assert made.seconds == {".": 3, "core": 14}
    with pytest.raises(SystemExit, match="no calibration"):
        new_budget({"calibration_s": 0.0, "seconds": {}})


def test_the_budget_names_only_existing_folders() -> None:
    found = tomllib.loads(budget.BUDGET.read_text())
    files = [path.relative_to(budget.ROOT) for path in budget.ROOT.glob("tests/**/test_*.py")]
    assert set(found["seconds"]) <= {folder_of(str(path)) for path in files}
    assert found["reference_s"] > 0


# ---------------------------------------------------------------- quick tests of single files


def test_the_time_of_a_file_is_that_of_its_quick_tests() -> None:
    meter = Meter()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    meter.note("tests/core/test_wire.py", slow=True)
    assert "tests/core/test_wire.py" not in meter.quick
    subprocess.run([sys.executable, "-c", BURN], check=True)
    meter.note("tests/core/test_wire.py")
    assert 0.25 < meter.quick["tests/core/test_wire.py"] < meter.spent["core"]


def test_a_new_table_keeps_the_times_of_files_that_did_not_run(tmp_path: Path) -> None:
    path = tmp_path / "quick.toml"
    measured = {"tests/a.py": 1.0, "tests/small.py": 0.1, "tests/faster.py": 0.2}
    path.write_text(
        new_quick(measured, {"tests/a.py": 9.0, "tests/b.py": 2.0, "tests/faster.py": 3.0})
    )
    made = Quick.load(path)
    assert made.seconds == {"tests/a.py": 1.0, "tests/b.py": 2.0}
    assert made.of("tests/faster.py") == made.of("tests/new.py") < 0.3


def test_the_table_of_quick_tests_names_only_existing_files() -> None:
    assert [file for file in Quick.load().seconds if not (budget.ROOT / file).exists()] == []


# ---------------------------------------------------------------- in a run of pytest


@pytest.mark.slow
def test_a_run_over_its_budget_fails_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "from pathlib import Path\nfrom tests import budget\n"
        f"budget.TIMES = Path({str(tmp_path / 'times.json')!r})\n"
        f"budget.BUDGET = Path({str(tmp_path / 'budget.toml')!r})\n"
        "from tests.budget import pytest_addoption, pytest_configure\n"
    )
    folder = tmp_path / "tests" / "hot"
    folder.mkdir(parents=True)
    burn = BURN.replace("\n", "\n    ")
    for name in ("one", "two"):
        (folder / f"test_{name}.py").write_text(f"def test_{name}():\n    {burn}\n")

    def run(allowed_s: float, workers: int) -> subprocess.CompletedProcess[str]:
        (tmp_path / "budget.toml").write_text(
            f"reference_s = 10.0\n[seconds]\n'hot' = {allowed_s}\n"
        )
        options = (
            f"-p xdist.plugin -n {workers} -p no:cacheprovider -c /dev/null --budget --rootdir"
        )
        return subprocess.run(
            [sys.executable, "-m", "pytest", *options.split(), str(tmp_path), str(tmp_path)],
            capture_output=True, text=True, cwd=tmp_path, check=False,
            env={
                **os.environ,
                "PYTHONPATH": f"{budget.ROOT}",
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            },
        )  # fmt: skip

    over = run(0.1, workers=2)
    assert over.returncode == 1, over.stdout + over.stderr
    assert "2 passed" in over.stdout
    assert "tests/hot took" in over.stdout
    times = json.loads((tmp_path / "times.json").read_text())
    assert 0.5 < times["seconds"]["hot"] < 20
    assert sorted(times["quick"]) == ["tests/hot/test_one.py", "tests/hot/test_two.py"]
    within = run(100.0, workers=0)
    assert within.returncode == 0, within.stdout
