"""Real processes on loopback are killed and cut off from each other, and nothing is lost.

`make torture` runs twenty such rounds with every kind of fault. This test runs one, records it, and
replays the recording. Processes that are stopped for a while are tested in `test_stall.py`.
"""

from pathlib import Path

import pytest

from surecast.registry import recorded_types
from surecast.server import nodes
from surecast.sim.playback import play
from surecast_lab.swarm import process
from surecast_lab.swarm.process_faults import KINDS
from surecast_lab.swarm.process_torture import REGIONS, run_round

SEED = 1
KINDS_HERE = (
    "kill-head",
    "kill-tail",
    "kill-region",
    "cut-link",
)
CLIENTS = 2


@pytest.mark.slow
def test_g4_g10_g13_real_processes_killed_and_cut_off(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    result = run_round(SEED, tmp_path, kinds=KINDS_HERE, clients=CLIENTS, record=True)
    assert result.violations == []
    assert result.lost == result.duplicated == result.misordered == 0
    assert sorted(fault.split()[0] for fault in result.faults) == sorted(KINDS_HERE)
    assert result.acked == result.published > 0
    assert result.in_flight > 0
    assert 0 < result.forwarded < result.published
    # Each of the clients and fresh readers has an event or a void for every position; the keep_for
    # stream also has the head's expiry events.
    servers = sum(REGIONS.values())
    readers = len(REGIONS) * (CLIENTS + 1) + servers
    assert result.delivered + result.void > readers * result.published
    assert result.void > 0
    assert result.from_peers > 0
    # Retention has compacted logs on disk.
    assert result.moves > servers
    assert result.rewritten > servers

    builds = {**nodes.BUILDS, **process.BUILDS}
    played = play(sorted(tmp_path.glob("*.rec")), recorded_types(), builds)
    assert played.difference is None, str(played.difference)
    killed = next(f.split()[1] for f in result.faults if f.startswith("kill-tail"))
    assert played.lives[killed] >= 2
    witnesses, publishers = len(REGIONS), len(REGIONS)
    assert len(played.lives) == servers + witnesses + publishers + readers
    assert played.steps > 10_000


def test_every_kind_has_a_method() -> None:
    from surecast_lab.swarm.process_faults import PLACES, FaultInjector

    assert set(KINDS_HERE) < set(KINDS)
    for kind in KINDS:
        assert kind in PLACES or hasattr(FaultInjector, f"_{kind.replace('-', '_')}")
