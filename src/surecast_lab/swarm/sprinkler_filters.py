"""The swarm scenario `sprinkler-filters`: readers with filters that change during faults.

The regions, publishers, other readers and faults are those of `sprinkler.py`. In addition, some
readers of each plan have filters (`filter_readers.py`).
"""

from random import Random
from typing import Any

import msgspec

from surecast.protocols.sprinkler.checks import Tally
from surecast.protocols.streams.messages import FilterRefused
from surecast.sim.trace import Trace
from surecast.sim.world import World
from surecast_lab.swarm import trial
from surecast_lab.swarm.filter_readers import FilterPlan, FilterReaders, draw_filters
from surecast_lab.swarm.sprinkler import Plan, Sprinkler
from surecast_lab.swarm.sprinkler import draw_plan as draw_common
from surecast_lab.swarm.timeline import Timeline
from surecast_lab.swarm.trial import WARM_UP_NS, SeedResult

__all__ = ["SCENARIO", "SprinklerFilters", "draw_plan", "run_seed"]


class FiltersPlan(Plan):
    filters: FilterPlan = msgspec.field(default_factory=lambda: FilterPlan([], {}, []))


def draw_plan(seed: int) -> FiltersPlan:
    common = draw_common(seed)
    plan = FiltersPlan(**{name: getattr(common, name) for name in Plan.__struct_fields__})
    rng = Random(f"{seed}/filters")
    plan.filters = draw_filters(
        rng, list(plan.regions), list(plan.streams), WARM_UP_NS, plan.duration_ns
    )
    return plan


class SprinklerFilters(Sprinkler):
    state_tables = ()  # the transitions of servers and sessions are those of `sprinkler.py`

    def draw(self, seed: int) -> FiltersPlan:
        return draw_plan(seed)

    def build(self, seed: int, plan: Plan, trace: Trace | None) -> World:
        world = super().build(seed, plan, trace)
        assert isinstance(plan, FiltersPlan)
        self.filter_readers = FilterReaders(self.cluster, plan.filters)
        return world

    def handlers(self) -> dict[type[Any], list[str]]:
        found = super().handlers()
        readers = {kind: nodes for kind, nodes in found.items() if FilterRefused in kind.handlers}
        nodes = self.filter_readers.plan.nodes
        return found | {
            kind: [*others, *nodes]
            for kind, others in readers.items()
            if kind.__name__ == "Subscriber"
        }

    def is_expected(self, role: type[Any], message: type[Any]) -> bool:
        if message is FilterRefused:
            return role.__name__ == "Subscriber"
        return super().is_expected(role, message)

    def audit(self) -> list[str]:
        found = super().audit()
        if not found:
            self.filter_readers.finish()
        return found

    def judge(self) -> Tally:
        tally = super().judge()
        tally.violations += self.filter_readers.violations
        return tally

    def callers_did(self) -> dict[str, int]:
        return super().callers_did() | self.filter_readers.counts()


SCENARIO = SprinklerFilters


def run_seed(
    seed: int,
    *,
    plan: Plan | None = None,
    trace: Trace | None = None,
    timeline: Timeline | None = None,
    **options: Any,
) -> SeedResult:
    """Run one seed of `SprinklerFilters(**options)`."""
    scenario = SprinklerFilters(**options)
    return trial.run_seed(scenario, seed, plan=plan, trace=trace, timeline=timeline)
