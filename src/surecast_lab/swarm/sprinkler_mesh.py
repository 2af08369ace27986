"""The swarm scenario `sprinkler-mesh`: the readers are mesh clients, which exchange events.

Servers and faults are those of `sprinkler.py`. There are 2-4 regions with 5-60 mesh clients in all.
Clients join and leave, follow streams from the earliest, the latest or a given position, unfollow
them, stall, crash, restart, and lose connections to each other and to servers. The mesh has the
default settings, the settings of the paper, or unusual ones: very small views (lists of known
peers), very small buffers, or sessions that are congested early. At the end all remaining clients
must have reached the same end of each stream, and their records must show no violation.
"""

from random import Random
from typing import Any

from surecast.core.types import MS, SECOND
from surecast.protocols.sprinkler.config import MeshConfig, paper_mesh
from surecast.sim.faults import Timed, draw
from surecast.sim.trace import Trace
from surecast_lab.swarm import trial
from surecast_lab.swarm.cluster_scenario import draw_cluster, draw_span
from surecast_lab.swarm.mesh_clients import EARLIEST, LATEST, Change, MeshPlan, Visit
from surecast_lab.swarm.sprinkler import Plan, Sprinkler
from surecast_lab.swarm.timeline import Timeline
from surecast_lab.swarm.trial import WARM_UP_NS, SeedResult

__all__ = ["SCENARIO", "SprinklerMesh", "draw_plan", "run_seed"]

CLIENTS_MAX = 60
PAPER_CLIENTS_MAX = 10  # fewer: clients of the paper's mesh send all the time, 8 times as much
KINDS = ("crash", "crash", "pause", "pause", "cut", "one-way cut", "isolate", "degrade", "reset")


class SprinklerMesh(Sprinkler):
    state_tables = ()  # the transitions of servers and sessions are those of `sprinkler.py`

    def draw(self, seed: int) -> Plan:
        return draw_plan(seed)


SCENARIO = SprinklerMesh


def run_seed(
    seed: int,
    *,
    plan: Plan | None = None,
    trace: Trace | None = None,
    timeline: Timeline | None = None,
    **options: Any,
) -> SeedResult:
    """Run one seed of `SprinklerMesh(**options)`."""
    return trial.run_seed(SprinklerMesh(**options), seed, plan=plan, trace=trace, timeline=timeline)


def draw_plan(seed: int) -> Plan:
    rng = Random(f"{seed}/mesh")
    plan = draw_cluster(rng, rng.randint(2, 4), Plan)
    config, client = _draw_settings(rng)
    most = CLIENTS_MAX if config.mutual else PAPER_CLIENTS_MAX
    count = min(most, rng.choice((rng.randint(5, 15), rng.randint(5, 30), rng.randint(20, 60))))
    places = [*plan.regions, *["east"] * rng.choice((0, 2, 6))]
    popular = [*plan.streams, *["s0"] * rng.choice((0, 4))]
    visits = [_draw_visit(rng, plan, f"{rng.choice(places)}/c{n}", popular) for n in range(count)]
    high_water_bytes = rng.choice((4 << 20, 4 << 20, 64 << 10, 8 << 10))
    changes = _draw_changes(rng, plan, visits)
    plan.mesh = MeshPlan(config, client, high_water_bytes, visits, changes)
    plan.faults += _draw_faults(rng, plan, visits)
    return plan


def _draw_settings(rng: Random) -> tuple[MeshConfig, dict[str, Any]]:
    """Draw the settings of the mesh and of each client in it."""
    flavour = rng.choice(("default", "default", "paper", "odd", "odd"))
    config = MeshConfig() if flavour == "default" else paper_mesh()
    if flavour == "odd":
        view_max = rng.choice((1, 2, 3, 5, 20))
        config = MeshConfig(
            view_max=view_max,
            fanout=rng.randint(1, min(view_max, 4)),
            shuffle_ns=rng.choice((200 * MS, SECOND, 5 * SECOND)),
            gossip_ns=rng.choice((200 * MS, SECOND, 3 * SECOND)),
            server_every=rng.choice((1, 3, 10, 30)),
            mutual=rng.random() < 0.7,
            notify_gap_ns=rng.choice((0, 1 * MS, 5 * MS, 100 * MS)),
            notify_bytes=rng.choice((1, 1_000, 64 << 10)),
        )
    if rng.random() < 0.4:
        return config, {}
    return config, {  # for comparison: a batch of one event has about 300 bytes
        "keep_bytes_max": rng.choice((0, 500, 4_000, 8 << 20)),
        "early_bytes_max": rng.choice((1, 500, 4_000, 8 << 20)),
        "reply_bytes_max": rng.choice((1, 1_000, 256 << 10)),
        "asks_max": rng.choice((1, 2, 64)),
        "sessions_max": rng.choice((1, 8, 64)),
        "deadline_rtts": rng.choice((1, 3)),
    }


def _draw_visit(rng: Random, plan: Plan, name: str, popular: list[str]) -> Visit:
    """Draw when a client joins and leaves, and what it reads; most join early and stay."""
    end_ns = WARM_UP_NS + plan.duration_ns
    comes_ns = rng.randint(200 * MS, 1_500 * MS)
    if rng.random() < 0.4:
        comes_ns = rng.randint(WARM_UP_NS, end_ns)
    leaves_ns = rng.randint(comes_ns + 500 * MS, end_ns + SECOND) if rng.random() < 0.3 else 0
    streams = rng.choices(popular, k=rng.randint(1, len(plan.streams)))
    follows = {stream: _draw_skip(rng, plan, comes_ns) for stream in streams}
    return Visit(name, comes_ns, leaves_ns, rng.random() < 0.5, follows)


def _draw_skip(rng: Random, plan: Plan, at_ns: int) -> float:
    """Draw where a client starts; if enough time is left, it may be a position in the future."""
    most = 1.2 if at_ns < WARM_UP_NS + plan.duration_ns // 2 else 1.0
    return rng.choice((EARLIEST, EARLIEST, LATEST, LATEST, most * rng.random()))


def _draw_changes(rng: Random, plan: Plan, visits: list[Visit]) -> list[Change]:
    """Draw changes: some clients unfollow a stream, and some of these follow it or another one
    later."""
    changes = []
    for visit in visits:
        if rng.random() < 0.25:
            at_ns = visit.comes_ns + rng.randint(300 * MS, plan.duration_ns)
            changes.append(Change(at_ns, visit.name, rng.choice(list(visit.follows))))
            if rng.random() < 0.7:
                at_ns += rng.randint(100 * MS, 2 * SECOND)
                stream = rng.choice(list(plan.streams))
                changes.append(Change(at_ns, visit.name, stream, _draw_skip(rng, plan, at_ns)))
    heal_ns = WARM_UP_NS + plan.duration_ns
    return [change for change in changes if change.at_ns < heal_ns]


def _draw_faults(rng: Random, plan: Plan, visits: list[Visit]) -> list[Timed]:
    """Draw faults of clients, and of the links between them and to servers."""
    names = [visit.name for visit in visits]
    faults = []
    for _ in range(rng.randint(2, 6 + len(names) // 4)):
        name = rng.choice(names)
        region = name.split("/")[0]
        servers = [f"{region}/{n}" for n in range(plan.regions[region])]
        mates = [other for other in names if other != name and other.startswith(f"{region}/")]
        pairs = [(name, other) for other in (rng.choice(servers), *mates[:3], region)]
        at_ns, for_ns = draw_span(rng, plan.duration_ns)
        faults.append(Timed(at_ns, for_ns, draw(rng, [name], pairs, KINDS)))
    return faults
