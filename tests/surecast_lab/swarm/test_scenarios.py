"""Scenarios are found by the names of files in the folder."""

import sys
from pathlib import Path

import pytest

import surecast.protocols
import surecast_lab.swarm
from surecast.errors import UsageError
from surecast_lab.lab import torture
from surecast_lab.swarm import scenarios
from surecast_lab.swarm.sprinkler import Sprinkler
from surecast_lab.swarm.sprinkler_mesh import SprinklerMesh

MADE = """
from surecast_lab.swarm.sprinkler import Sprinkler

class SCENARIO(Sprinkler):
    pass
"""


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A second folder from which protocols and scenarios are imported."""
    for package in (surecast.protocols, surecast_lab.swarm):
        folder = tmp_path / package.__name__.rpartition(".")[2]
        folder.mkdir()
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    return tmp_path


def test_scenarios_are_found_and_loaded_by_name() -> None:
    assert {"sprinkler", "sprinkler-mesh"} <= set(scenarios.names())
    assert scenarios.names() == sorted(set(scenarios.names()))
    assert scenarios.load("sprinkler") is Sprinkler
    assert scenarios.load("sprinkler-mesh") is SprinklerMesh


@pytest.mark.parametrize("name", scenarios.names())
def test_each_scenario_draws_the_same_plan_from_the_same_seed(name: str) -> None:
    make = scenarios.load(name)
    plans = [make().draw(seed) for seed in range(10)]
    assert plans == [make().draw(seed) for seed in range(10)]
    assert all(plan.timed_faults for plan in plans)
    assert all(a != b for i, a in enumerate(plans) for b in plans[:i])


def test_a_new_file_named_after_a_protocol_is_a_new_swarm(folders: Path) -> None:
    before = scenarios.names()
    (folders / "swarm" / "gossip.py").write_text(MADE)
    (folders / "swarm" / "gossip_slow.py").write_text(MADE)
    assert scenarios.names() == before
    (folders / "protocols" / "gossip").mkdir()
    (folders / "protocols" / "gossip" / "__init__.py").touch()
    assert set(scenarios.names()) - set(before) == {"gossip", "gossip-slow"}
    assert torture.swarms() == scenarios.names()
    try:
        assert scenarios.load("gossip-slow").__module__ == "surecast_lab.swarm.gossip_slow"
    finally:
        del sys.modules["surecast_lab.swarm.gossip_slow"]


def test_an_unknown_swarm_is_refused_with_the_known_names() -> None:
    with pytest.raises(UsageError, match=r"no swarm 'cluster'; there are: .*sprinkler-mesh"):
        scenarios.load("cluster")
