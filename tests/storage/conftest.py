"""Stores that are closed at the end of a test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.storage.stores import Driver

from surecast.storage.config import StorageConfig


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    drivers: list[Driver] = []

    def make(config: StorageConfig | None = None) -> Driver:
        drivers.append(Driver(tmp_path / "disk", config))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.close()
