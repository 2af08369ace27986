"""The swarm scenario `sprinkler-cold`: most of what servers send must be read from the disk first.

Plans, faults and verdict are those of `sprinkler.py`, or, for every third seed, of
`sprinkler_mesh.py`. In addition, all nodes are told at short intervals that their logs are cold up
to a random position, so readers and other regions are served with pieces that the simulated disk
gives after a random time, in any order, while logs are truncated, compacted and deleted, and nodes
crash. The pieces are small, and so are the limits of reads under way and of pieces kept.
"""

from random import Random
from typing import Any

from surecast.core.types import MS
from surecast.sim.trace import Trace
from surecast.sim.world import World
from surecast_lab.swarm import sprinkler, sprinkler_mesh, trial
from surecast_lab.swarm.sprinkler import Plan, Sprinkler
from surecast_lab.swarm.trial import SeedResult

__all__ = ["SCENARIO", "SprinklerCold", "run_seed"]


class SprinklerCold(Sprinkler):
    state_tables = ()  # the transitions of servers and sessions are those of `sprinkler.py`

    def draw(self, seed: int) -> Plan:
        return sprinkler.draw_plan(seed) if seed % 3 else sprinkler_mesh.draw_plan(seed)

    def build(self, seed: int, plan: Plan, trace: Trace | None) -> World:
        rng = Random(f"{seed}/cold")
        self.server = {
            "serve_bytes_max": rng.choice((300, 2_000, 256 << 10)),
            "cold_reads_max": rng.choice((1, 2, 16)),
            "cold_bytes_max": rng.choice((1, 5_000, 16 << 20)),
            "serves_per_step": rng.choice((1, 3, 8)),
            **self.server,
        }
        world = super().build(seed, plan, trace)
        world.disks.read_jitter_ns = rng.choice((MS, 5 * MS, 50 * MS))
        world.disks.cool(rng.choice((20 * MS, 100 * MS)))
        return world


SCENARIO = SprinklerCold


def run_seed(
    seed: int, *, plan: Plan | None = None, trace: Trace | None = None, **options: Any
) -> SeedResult:
    """Run one seed of `SprinklerCold(**options)`."""
    return trial.run_seed(SprinklerCold(**options), seed, plan=plan, trace=trace)
