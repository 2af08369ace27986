"""A swarm made by a test, for the verbs that run swarms by name."""

from types import ModuleType

import pytest

from surecast_lab.lab import torture
from surecast_lab.swarm import scenarios

__all__ = ["fake_swarm"]


def fake_swarm(monkeypatch: pytest.MonkeyPatch, name: str, module: ModuleType) -> None:
    """While `monkeypatch` lasts, seeds of the swarm `name` are run by the module's `run_seed`."""
    known, load = scenarios.names(), torture.load_swarm
    monkeypatch.setattr(scenarios, "names", lambda: [*known, name])
    monkeypatch.setattr(
        torture, "load_swarm", lambda swarm: module.run_seed if swarm == name else load(swarm)
    )
