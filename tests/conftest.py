"""Settings for all tests."""

import gc
import os
import re
import signal
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import budget
from tests.java import set_java_options
from tests.selection import TESTS, is_of_part

# Examples are the same in every run, so a failure on one machine is a failure on all. To search
# for new ones: HYPOTHESIS_PROFILE=explore. `make check` runs fewer: HYPOTHESIS_PROFILE=quick.
# No deadlines: a busy machine must not fail a test.
_common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}
settings.register_profile("default", derandomize=True, **_common)
settings.register_profile("quick", derandomize=True, max_examples=30, **_common)
settings.register_profile("explore", max_examples=2_000, **_common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

set_java_options()

# A shell starts background jobs (`make test &`) with SIGINT ignored, and child processes inherit
# that. Tests that interrupt a child process would wait for nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# ---------------------------------------------------------------- which tests run


def pytest_addoption(parser: pytest.Parser) -> None:
    budget.pytest_addoption(parser)
    parser.addoption(
        "--part", default="", metavar="NAME",
        help="run only files that have this name in their path: a protocol, package or verb",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    budget.pytest_configure(config)
    part = config.getoption("part")
    if part and not any(is_of_part(path, part) for path in TESTS.rglob("test_*.py")):
        raise pytest.UsageError(f"no file of tests has {part!r} in its path")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """True leaves the file out; None leaves the decision to pytest."""
    part = config.getoption("part")
    other = part and collection_path.is_file() and not is_of_part(collection_path, part)
    return True if other else None


def pytest_collection_finish() -> None:
    """Exclude the half million objects that exist by now and stay from garbage collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


# ---------------------------------------------------------------- which worker runs what
#
# pytest-xdist's own `xdist_group` (3.8) does not work with pytest 9.2, which lets no plugin change
# a test's id. So groups are read from the files: tests that take `spark` share one JVM in one
# worker, and a file with a fixture of its own (scope="module") stays in one worker for it, as do
# files that say the same `GROUP = "name"`.

_TAKES_SPARK = re.compile(r"^def test_\w+\([^)]*\bspark\b", re.MULTILINE)
_GROUP = re.compile(r'^GROUP = "(\w+)"', re.MULTILINE)


@lru_cache(None)
def _group_of_file(path: str) -> str | None:
    text = (TESTS.parent / path).read_text()
    if found := _GROUP.search(text):
        return found.group(1)
    if _TAKES_SPARK.search(text):
        return "spark"
    return path if 'scope="module"' in text else None


def group_of(nodeid: str) -> str:
    """The group of a test: tests of one group run in one worker, one after the other."""
    return _group_of_file(nodeid.partition("::")[0]) or nodeid


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Nightly tests are left out unless `-m` names them. Long tests start first, so that no worker
    runs one alone at the end."""
    if "nightly" not in config.option.markexpr:
        nightly = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
    groups = [group_of(item.nodeid) for item in items]
    slow = {
        group for group, item in zip(groups, items, strict=True) if item.get_closest_marker("slow")
    }
    rank = {group: (group != "spark", group not in slow) for group in groups}
    items.sort(key=lambda item: rank[group_of(item.nodeid)])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Grouped(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False  # groups in the order of their first tests
    return Grouped(config, log)
