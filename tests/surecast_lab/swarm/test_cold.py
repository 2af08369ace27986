"""The swarm of cold logs: fixed seeds pass, and read much from the disk."""

import pytest

from surecast_lab.swarm.sprinkler_cold import run_seed

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", [0, 19])  # 0 has mesh clients
def test_readers_of_cold_logs_miss_nothing_under_faults(seed: int) -> None:
    result = run_seed(seed)
    assert result.violations == []
    assert sum(result.faults.values()) > 0
    assert result.counters["streams.cold-reads"] > 50
