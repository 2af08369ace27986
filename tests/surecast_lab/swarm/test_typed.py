"""The swarm of streams with schemas: it passes, changes schemas under faults, and notices a missing
rule."""

import pytest
from tests import mutations

from surecast.columns import typed
from surecast.columns.schema import extends
from surecast_lab.swarm.sprinkler_typed import CHANGES_MAX, SprinklerTyped, draw_plan, run_seed
from surecast_lab.swarm.trial import run_seed as run_scenario

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", [8])
def test_schemas_are_changed_under_faults(seed: int) -> None:
    scenario = SprinklerTyped()
    result = run_scenario(scenario, seed)
    assert result.violations == []
    assert sum(result.faults.values()) > 0
    made = {stream: scenario._made(stream) for stream in scenario.plan.schemas}
    assert any(made.values())
    assert sum(map(len, made.values())) < len(scenario.plan.changes), "some are refused"


def test_the_plans_have_changes_that_do_not_fit_together() -> None:
    plans = [draw_plan(seed) for seed in range(20)]
    for plan in plans:
        for stream, first in plan.schemas.items():
            requested = [change for change in plan.changes if change.stream == stream]
            assert len(requested) <= CHANGES_MAX
            assert all(extends(change.schema, first) for change in requested)
    pairs = [
        (a.schema, b.schema)
        for plan in plans
        for a in plan.changes
        for b in plan.changes
        if a.stream == b.stream and a.at_ns < b.at_ns
    ]
    fits = [extends(b, a) for a, b in pairs]
    assert any(fits)
    assert not all(fits)


def test_the_swarm_notices_changes_that_do_not_fit() -> None:
    result = run_seed(8, types=(mutations.TakesAnyChange,))
    assert any(": S2 " in one for one in result.violations), result.violations


def test_the_swarm_notices_attributes_that_belong_to_other_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compaction and joins must keep each event's attributes."""

    def wrong(parts: list[typed.Attributes]) -> typed.Attributes:
        return join(parts[::-1])

    join = typed.join_attributes
    monkeypatch.setattr(typed, "join_attributes", wrong)
    assert any("G1 changed" in one or "G10" in one for one in run_seed(29).violations)
