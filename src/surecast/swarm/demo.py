"""The demo: three simulated regions, a cut link, a crashed head, and everything arrives."""

from collections.abc import Callable
from itertools import pairwise
from random import Random

import msgspec

from surecast.columns.retention import KeepAll, LatestPerKey
from surecast.core.types import MS, SECOND
from surecast.protocols.sprinkler.checks import Tally
from surecast.swarm.cluster import Cluster

__all__ = ["FAULTS", "Demo", "run_demo"]

BEGIN_NS, END_NS, SAMPLE_NS = 1 * SECOND, 21 * SECOND, 50 * MS
FAULTS = (  # (when, until, what)
    (6 * SECOND, 10 * SECOND, "link east – west cut"),
    (13 * SECOND, 17 * SECOND, "head of east crashed"),
)
STREAM, ORDERS = "cache.invalidate", "orders.west"


class Demo(msgspec.Struct):
    """What a run of the demo leaves behind."""

    tally: Tally
    settled: bool
    regions: list[str]
    simulated_ns: int
    inputs: int
    stored: dict[str, tuple[int, int]]  # by region: positions of STREAM, and how many are live
    switched: int  # how often a region changed where it pulls a stream from
    times_s: list[float]
    positions: dict[str, list[int]]  # by region, of STREAM, sampled
    longest_wait_s: float  # between two acknowledgements while the head was down


def run_demo(seed: int, progress: Callable[[int, int, str], None]) -> Demo:
    """Run it; the same seed gives the same run."""
    delays = {("east", "west"): 35, ("east", "north"): 15, ("north", "west"): 40}
    cluster = Cluster(
        seed,
        {"east": 2, "west": 2, "north": 2},
        delay_ns=lambda a, b: delays[min(a, b), max(a, b)] * MS,
    )
    cluster.open(STREAM, "east", LatestPerKey())
    cluster.open(ORDERS, "west", KeepAll())
    _publish(seed, cluster)
    world = cluster.world
    (cut, mend, _), (crash, restart, _) = FAULTS
    world.call(cut, lambda w: w.cut("east", "west"))
    world.call(mend, lambda w: w.mend("east", "west"))
    world.call(crash, lambda w: w.crash("east/0"))
    world.call(restart, lambda w: w.restart("east/0"))
    times: list[float] = []
    positions: dict[str, list[int]] = {region: [] for region in cluster.regions}
    acked_s: list[tuple[float, int]] = []
    now_ns = 0
    while now_ns < END_NS + 2 * SECOND:
        now_ns += SAMPLE_NS
        world.run(now_ns)
        times.append(now_ns / SECOND)
        acked_s.append((now_ns / SECOND, len(cluster.records[STREAM].acked)))
        for region in cluster.regions:
            known = STREAM in cluster.streams
            positions[region].append(cluster.position(f"{region}/sub0", STREAM) if known else 1)
        progress(now_ns // MS, (END_NS + 2 * SECOND) // MS, "simulated ms")
    settled = world.run(now_ns + 60 * SECOND, until=lambda _: cluster.settled())
    settled = settled and cluster.audit()
    progress(now_ns // MS, now_ns // MS, "judging from the clients' records")
    audits = {a.reader.split("/")[0]: a for a in cluster.records[STREAM].audits}
    return Demo(
        tally=cluster.judge(),
        settled=settled,
        regions=list(cluster.regions),
        simulated_ns=world.now_ns,
        inputs=world.inputs,
        stored={r: (a.position - 1, len(a.events)) for r, a in audits.items()},
        switched=sum(c["sprinkler.switched"] for c in cluster.counters.values()),
        times_s=times,
        positions=positions,
        longest_wait_s=_longest_wait(acked_s, crash / SECOND, restart / SECOND),
    )


def _publish(seed: int, cluster: Cluster) -> None:
    rng = Random(f"{seed}/demo")
    weights = [1 / (i + 1) ** 1.1 for i in range(500)]
    number = 0
    for at_ns in range(BEGIN_NS, END_NS, 20 * MS):
        keys = rng.choices(range(500), weights, k=20)
        values = [b"%d" % (number + i) for i in range(20)]
        cluster.offer(at_ns, "east/pub0", STREAM, values, [b"user:%d" % k for k in keys])
        cluster.offer(at_ns, "west/pub0", ORDERS, [b"order %d" % (number + i) for i in range(5)])
        number += 20


def _longest_wait(acked: list[tuple[float, int]], begin_s: float, end_s: float) -> float:
    longest = waiting = 0.0
    for (_, before), (at_s, after) in pairwise(acked):
        if begin_s <= at_s <= end_s:
            waiting = 0.0 if after > before else waiting + SAMPLE_NS / SECOND
            longest = max(longest, waiting)
    return longest
