"""Small simulated clusters, and steps that several tests share."""

from collections.abc import Callable
from typing import Any

import pytest

from surecast.columns.retention import KeepAll, Policy
from surecast.core.types import MS, SECOND
from surecast_lab.swarm.cluster import Cluster


def cluster_of(
    regions: dict[str, int],
    streams: dict[str, tuple[str, Policy]] | None = None,
    seed: object = 1,
    *,
    mutant: type | None = None,
    **options: Any,
) -> Cluster:
    """A cluster whose streams are open and whose readers follow them."""
    if mutant is not None:
        options["types"] = (mutant,)
    cluster = Cluster(seed, regions, **options)
    first = next(iter(regions))
    for name, (owner, policy) in (streams or {"s": (first, KeepAll())}).items():
        cluster.open(name, owner, policy)
    wait(cluster, lambda: len(cluster.streams) == len(cluster.records))
    return cluster


def wait(cluster: Cluster, condition: Callable[[], bool], within_ns: int = 60 * SECOND) -> None:
    """Run until a condition holds; fail if it does not hold within this much simulated time."""
    limit_ns = cluster.world.now_ns + within_ns
    assert cluster.world.run(limit_ns, until=lambda _: condition(), check_every_ns=MS), "waited"


def run(cluster: Cluster, for_ns: int) -> None:
    cluster.world.run(cluster.world.now_ns + for_ns)


def publish(cluster: Cluster, count: int, publisher: str = "", stream: str = "s") -> list[bytes]:
    """Offer `count` single events, a millisecond apart, and let that time pass."""
    publisher = publisher or f"{cluster.owners[stream]}/pub0"
    start = len(cluster.records[stream].offered)
    values = [f"{publisher}-{start + i}".encode() for i in range(count)]
    for i, value in enumerate(values):
        cluster.offer(cluster.world.now_ns + i * MS, publisher, stream, [value])
    run(cluster, count * MS)
    return values


def settle(cluster: Cluster) -> None:
    wait(cluster, cluster.settled, 90 * SECOND)


def heal_and_judge(cluster: Cluster) -> list[str]:
    """Heal all faults, wait until all is acknowledged and equal, and return the violations."""
    cluster.world.heal_all()
    problems = []
    limit_ns = cluster.world.now_ns + 60 * SECOND
    if not cluster.world.run(limit_ns, until=lambda _: cluster.settled()):
        problems.append("not settled")
    else:
        run(cluster, 5 * SECOND)
        if not cluster.audit():
            problems.append("audit not settled")
    return problems + cluster.judge().violations


def each_scenario(scenarios: list[tuple[str, Callable[[type | None], list[str]], type]]) -> Any:
    """Run a test once for each row (rule, scenario, mutant)."""
    return pytest.mark.parametrize(
        ("scenario", "mutant"), [s[1:] for s in scenarios], ids=[s[0] for s in scenarios]
    )
