"""Tasks in processes: each has one result, also if the pool breaks."""

from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import pytest

from surecast_lab.lab.pool import run_here


class Breaking(ThreadPoolExecutor):
    """A pool that accepts three tasks and is broken at the fourth."""

    def __init__(self, jobs: int, **_: Any) -> None:
        super().__init__(jobs)
        self.taken = 0

    def submit(self, *words: Any, **more: Any) -> Any:
        self.taken += 1
        if self.taken > 3:
            raise BrokenProcessPool
        return super().submit(*words, **more)


def double(n: int) -> int:
    return 2 * n


def test_every_task_has_a_result_although_the_pool_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("surecast_lab.lab.pool.ProcessPoolExecutor", Breaking)
    done = sorted(run_here(double, range(6), jobs=2))
    assert [number for number, _, _ in done] == list(range(6))
    assert "a worker process died" in done[3][2], "the one that was being handed over"
