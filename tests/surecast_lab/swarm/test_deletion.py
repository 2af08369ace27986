"""The swarm of deleted streams: it passes, deletes under faults, and notices a missing rule."""

import pytest
from tests import mutations

from surecast_lab.swarm.sprinkler_deletion import draw_plan, run_seed

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", [0, 3])
def test_streams_are_deleted_under_faults(seed: int) -> None:
    assert draw_plan(seed).deletions
    result = run_seed(seed)
    assert result.violations == []
    assert sum(result.faults.values()) > 0


def test_the_swarm_notices_positions_behind_the_end() -> None:
    result = run_seed(0, types=(mutations.GivesPositionsBehindTheEnd,))
    assert any("G9" in one or "End event" in one for one in result.violations), result.violations
