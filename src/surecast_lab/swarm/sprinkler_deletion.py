"""Sprinkler's swarm with streams that are deleted while they are published to, under all faults.

The same regions, publishers, readers and faults as in `sprinkler.py`, without query clients. Some
streams are deleted at a random moment by a publisher of any region, while other publishers go on.
At the end every publish before the deletion must be acknowledged and every later one refused as
deleted, no position may follow the End event, and every replica of every region must know that the
stream is deleted.
"""

from random import Random
from typing import Any

import msgspec

from surecast.columns.batch import CONFIG
from surecast.columns.retention import End, encode_policy
from surecast.protocols.sprinkler.checks import Tally
from surecast.sim.trace import Trace
from surecast.sim.world import World
from surecast_lab.swarm import trial
from surecast_lab.swarm.query_clients import ONLY_HERE, QueryClientsPlan
from surecast_lab.swarm.sprinkler import Plan, Sprinkler
from surecast_lab.swarm.sprinkler import draw_plan as draw_common
from surecast_lab.swarm.timeline import Timeline
from surecast_lab.swarm.trial import WARM_UP_NS, SeedResult

__all__ = ["END", "SCENARIO", "SprinklerDeletion", "draw_plan", "run_seed"]

END = encode_policy(End())


class DeletionPlan(Plan):
    """`deletions`: stream → time and publisher."""

    deletions: dict[str, tuple[int, str]] = msgspec.field(default_factory=dict)


def draw_plan(seed: int) -> DeletionPlan:
    common = draw_common(seed)
    assert common.abroad is not None
    common.abroad.callers = QueryClientsPlan([], [], [])
    plan = DeletionPlan(**{name: getattr(common, name) for name in Plan.__struct_fields__})
    rng = Random(f"{seed}/deletions")
    names = list(plan.streams)
    for name in rng.sample(names, rng.randint(1, len(names))):
        at_ns = WARM_UP_NS + rng.randrange(plan.duration_ns)
        plan.deletions[name] = at_ns, f"{rng.choice(list(plan.regions))}/pub0"
    return plan


class SprinklerDeletion(Sprinkler):
    state_tables = ()  # the transitions of servers and sessions are those of `sprinkler.py`

    def draw(self, seed: int) -> DeletionPlan:
        return draw_plan(seed)

    def build(self, seed: int, plan: Plan, trace: Trace | None) -> World:
        world = super().build(seed, plan, trace)
        assert isinstance(plan, DeletionPlan)
        self.deleted = list(plan.deletions)
        for name, (at_ns, publisher) in plan.deletions.items():
            self.cluster.offer(at_ns, publisher, name, [END], kind=CONFIG)
        return world

    def is_expected(self, role: type[Any], message: type[Any]) -> bool:
        return message not in ONLY_HERE and super().is_expected(role, message)

    def judge(self) -> Tally:
        cluster = self.cluster
        known = {cluster.streams[name] for name in self.deleted}
        refused = [f for f in cluster.failed if f.why == "deleted" and f.stream in known]
        cluster.failed = [failed for failed in cluster.failed if failed not in refused]
        for name in self.deleted:
            for value in cluster.refused.get(name, ()):
                del cluster.records[name].offered[value]  # no reader may have received it
        tally = super().judge()
        for name in self.deleted:
            tally.violations += self._problems(name)
        return tally

    def _problems(self, name: str) -> list[str]:
        acked, found = self.cluster.records[name].acked, []
        if END not in acked:
            return [f"{name}: the deletion was not acknowledged"]
        behind = [seq for seq in acked.values() if seq > acked[END]]
        if behind:
            found.append(f"{name}: D1 positions {behind[:5]} stand behind the End event")
        for nodes in self.cluster.regions.values():
            for node in nodes:
                machine = self.cluster.world.machine(node)
                service = None if machine is None else machine.layers["streams"]
                if service is None or not service.is_deleted(self.cluster.streams[name]):
                    found.append(f"{name}: D3 {node} does not know that it is deleted")
                elif service.named(name) is not None:
                    found.append(f"{name}: D3 the name is not free at {node}")
        return found


SCENARIO = SprinklerDeletion


def run_seed(
    seed: int,
    *,
    plan: Plan | None = None,
    trace: Trace | None = None,
    timeline: Timeline | None = None,
    **options: Any,
) -> SeedResult:
    """Run one seed of `SprinklerDeletion(**options)`."""
    return trial.run_seed(
        SprinklerDeletion(**options), seed, plan=plan, trace=trace, timeline=timeline
    )
