"""A swarm that a test defines, for the commands that run swarms by name."""

from types import ModuleType

import pytest

from surecast_lab.lab import torture
from surecast_lab.swarm import scenarios

__all__ = ["fake_swarm"]


def fake_swarm(monkeypatch: pytest.MonkeyPatch, name: str, module: ModuleType) -> None:
    """Until `monkeypatch` is undone, the module's `run_seed` runs the seeds of the swarm `name`."""
    known, load = scenarios.names(), torture.load_swarm
    monkeypatch.setattr(scenarios, "names", lambda: [*known, name])
    monkeypatch.setattr(
        torture, "load_swarm", lambda swarm: module.run_seed if swarm == name else load(swarm)
    )
