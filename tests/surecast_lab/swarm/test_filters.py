"""The swarm of readers with filters: it passes, changes filters, and notices a missing rule."""

import pytest
from tests.edits import Edit

from surecast.where.batches import BatchFilter
from surecast_lab.swarm import trial
from surecast_lab.swarm.filter_readers import FILTERS, REFUSED
from surecast_lab.swarm.sprinkler_filters import SprinklerFilters, draw_plan

SEED = 3


def run(seed: int) -> tuple[list[str], dict[str, int]]:
    scenario = SprinklerFilters()
    result = trial.run_seed(scenario, seed)
    return result.violations, scenario.filter_readers.counts()


def test_readers_get_what_passes_their_filters_under_faults() -> None:
    violations, counts = run(SEED)
    assert violations == []
    assert counts["filters changed"] > 5
    assert counts["events dropped by filters"] > 1000


def test_the_seeds_change_filters_also_to_refused_ones_and_to_none() -> None:
    changes = [change for seed in range(20) for change in draw_plan(seed).filters.changes]
    assert {change.where for change in changes} == set(FILTERS)
    for where in FILTERS:
        if where and where not in REFUSED:
            BatchFilter(where, "")


@pytest.mark.slow
def test_the_swarm_notices_a_missing_rule_of_filters() -> None:
    """Negated tests are not negated."""
    with Edit("surecast.where.evaluate:Evaluation._test", "found = ~found", "pass").applied():
        assert run(SEED)[0]
