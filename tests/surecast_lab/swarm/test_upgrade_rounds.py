"""Processes that lack a protocol are replaced one by one while publishing goes on.

`make torture` runs ten such rounds. This file runs a small one, and rounds with built-in faults.
"""

import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.surecast_lab.swarm.mutated_processes import (
    make_heads_that_ask_nobody,
    make_readers_that_fail,
)

from surecast.errors import UsageError
from surecast_lab.swarm import process
from surecast_lab.swarm.process_cluster import ProcessCluster
from surecast_lab.swarm.session_report import SessionReport
from surecast_lab.swarm.upgrade_rounds import SessionJudge, delivery_of, draw_regions, run_round

PROTOCOL = "nakcast"
SEED = 1
REGIONS = {"east": 3, "west": 1}


@pytest.mark.slow
def test_a_cluster_gets_a_protocol_node_by_node_and_nothing_breaks(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    result = run_round(PROTOCOL, SEED, tmp_path, regions=REGIONS)
    assert result.violations == []
    assert result.lost == result.duplicated == result.misordered == 0
    assert result.acked == result.published > 0
    assert result.broken == 0
    # Servers; a publisher, mesh client, thin reader and two programs a region; east's witness.
    assert len(set(result.replaced)) == len(result.replaced) == 4 + 5 * len(REGIONS) + 1
    assert result.restarted
    assert result.ended > len(result.replaced)
    assert result.refusals > len(REGIONS)
    assert result.read_early == len(REGIONS)
    assert result.left_out >= len(REGIONS)
    assert "session_timeouts" not in result.counters


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "found"),
    [
        (make_heads_that_ask_nobody, r"was created although \['"),
        (make_readers_that_fail, r"(?s)has ended, exit code 1.*which this version does not know"),
    ],
)
def test_a_round_finds_built_in_faults(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mutant: Callable[..., Any],
    found: str,
) -> None:
    monkeypatch.setattr(process, "make", mutant)
    result = run_round(PROTOCOL, SEED, tmp_path, regions={"east": 2})
    assert re.search(found, " ".join(result.violations))


# ------------------------------------------------------------ the parts of a round


@pytest.mark.slow
def test_a_process_without_a_protocol_has_it_after_its_upgrade(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path, 1, {"r": 1}, clients=0, without=(PROTOCOL,)) as cluster:
        assert PROTOCOL not in cluster.server("r-1").roles
        cluster.upgrade("r-1")
        assert PROTOCOL in cluster.server("r-1").roles


def reports(**ended: list[tuple[str, str, str]]) -> dict[str, SessionReport]:
    names = {"e1": "e-1", "e2": "e-2", "w1": "w-1", "prog": "e/p"}
    nodes = {"e/p": ["control-1", "c-1@host:1"]}
    return {
        name: SessionReport(nodes.get(name, [name]), ended.get(short, []), {})
        for short, name in names.items()
    }


def sessions() -> SessionJudge:
    return SessionJudge(lambda name: name[0])


def test_sessions_of_the_process_that_is_replaced_may_end() -> None:
    seen = sessions()
    seen.judge(reports(e1=[("e-1", "control-1", "lost"), ("e-1", "e-2", "closed")]), "e-1")
    seen.judge(reports(e1=[("e-1", "control-1", "lost")]), "e/p")  # by the node of a program
    assert (seen.ended, seen.closed, seen.broken) == (3, 0, [])


@pytest.mark.parametrize("why", ["lost", "silent", "refused", "full", "replaced", "closed"])
def test_sessions_of_others_may_not_end(why: str) -> None:
    seen = sessions()
    seen.judge(reports(e1=[("e-1", "control-1", why)], prog=[("control-1", "e-1", why)]), "w-1")
    assert len(seen.broken) == 2
    assert why in seen.broken[0]


def test_regions_and_mesh_members_may_close_sessions_in_order() -> None:
    seen = sessions()
    ended = [("e-1", "w-1", "closed")], [("c-1@host:1", "c-2@host:2", "closed")]
    seen.judge(reports(e1=ended[0], prog=ended[1]), "e-2")
    assert (seen.closed, seen.broken) == (2, [])
    seen.judge(reports(e1=[("e-1", "w-1", "lost")]), "e-2")
    assert len(seen.broken) == 1


def test_a_protocol_without_a_delivery_is_refused() -> None:
    with pytest.raises(UsageError, match="take one of"):
        delivery_of("chain")
    with pytest.raises(UsageError, match="take one of"):
        delivery_of("no-such")


def test_a_round_has_a_region_of_three() -> None:
    for seed in range(50):
        regions = draw_regions(Random(seed))
        assert 3 in regions.values()
        assert set(regions.values()) <= {2, 3}
        assert 2 <= len(regions) <= 3
