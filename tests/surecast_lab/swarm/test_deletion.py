"""The swarm of deleted streams: it passes, deletes under faults, and notices a missing rule."""

import pytest
from tests import mutations

from surecast_lab.swarm.sprinkler_deletion import draw_plan, run_seed

pytestmark = pytest.mark.slow


# 0: an opened name is created once more by a request that had not been answered before its
# deletion. 28: a holder attaches again when positions in a deleted stream are removed.
@pytest.mark.parametrize("seed", [0, 3, 28])
def test_streams_are_deleted_under_faults(seed: int) -> None:
    assert draw_plan(seed).deletions
    result = run_seed(seed)
    assert result.violations == []
    assert sum(result.faults.values()) > 0


def test_the_seeds_use_names_again_and_change_subscriptions() -> None:
    plans = [draw_plan(seed) for seed in range(20)]
    renewals = [renewal for plan in plans for renewal in plan.renewals]
    assert {renewal.record[-2:] for renewal in renewals} == {"#2", "#3"}
    assert any(renewal.record in plan.deletions for plan in plans for renewal in plan.renewals)
    assert any(renewal.openers[0].split("/")[0] != renewal.owner for renewal in renewals)
    changes = [change for plan in plans if plan.abroad for change in plan.abroad.callers.changes]
    assert {(change.is_reset, change.force) for change in changes} == {
        (reset, force) for reset in (False, True) for force in (False, True)
    }


@pytest.mark.parametrize(
    ("mutant", "seed", "what"),
    [
        (mutations.LeavesHolderInPlace, 0, "moved the cursor after it was fenced"),
        (mutations.KeepsPositionsOfDeletedStreams, 3, "has positions in deleted streams"),
    ],
)
def test_the_swarm_notices_a_missing_rule_of_named_subscriptions(
    mutant: type, seed: int, what: str
) -> None:
    result = run_seed(seed, types=(mutant,))
    assert any(what in one for one in result.violations), result.violations


def test_the_swarm_notices_positions_behind_the_end() -> None:
    result = run_seed(0, types=(mutations.GivesPositionsBehindTheEnd,))
    assert any("G9" in one or "End event" in one for one in result.violations), result.violations
