"""Real processes on loopback: killed, stopped and cut off, and nothing is lost.

`make torture` runs twenty such rounds; here is one, recorded, and the recording lived again.
"""

from pathlib import Path

import pytest

from surecast.sim.playback import play
from surecast.swarm.rounds import REGIONS, run_round

SEED = 1


@pytest.mark.slow
def test_g4_g10_g13_real_processes_killed_stopped_and_cut_off(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    result = run_round(SEED, tmp_path, record=True)
    assert result.violations == []
    assert result.lost == result.duplicated == result.misordered == 0
    assert sorted(fault.split()[0] for fault in result.faults) == ["cut", "kill", "stop"]
    assert result.acked == result.published > 0
    # Each of the clients and fresh readers has an event or a void for every position.
    readers = 3 * 8 + 3 * 2
    assert result.delivered + result.void == readers * result.published
    assert result.from_peers > 0

    recordings = sorted(tmp_path.glob("*.rec"))
    played = play(recordings)
    assert played.difference is None, str(played.difference)
    killed = next(fault.split()[1] for fault in result.faults if fault.startswith("kill"))
    assert played.lives[killed] == 2
    assert len(played.lives) == 3 * (2 + 1 + 1 + 8) + 3 * 2
    assert played.steps > 10_000
    assert all(f"{region}/config" in played.lives for region in REGIONS)
