"""The workload of a simulated swarm: what the publishers publish, and when.

It has events with and without keys, `collect` events, which declare earlier events obsolete, and
changes of a stream's retention rule.
"""

from collections.abc import Mapping
from random import Random

from surecast.columns import retention
from surecast.columns.batch import COLLECT, CONFIG
from surecast.columns.retention import (
    BeforeSeq,
    BeforeTime,
    Collect,
    KeepAll,
    KeepLast,
    KeyIs,
    KeyPrefix,
    LatestPerKey,
    Policy,
    TagIs,
)
from surecast.core.types import MS, SECOND
from surecast_lab.swarm.cluster import Cluster

__all__ = ["draw_workload"]


def draw_workload(
    cluster: Cluster,
    rng: Random,
    streams: Mapping[str, tuple[str, Policy]],
    publishers: int,
    keys: int,
    until_ns: int,
    abroad: Mapping[str, list[str]] | None = None,
    from_ns: int = 100 * MS,
    collects: bool = True,
) -> None:
    """Schedule publishes at random times until `until_ns`, by the publishers in each stream's
    owner region.

    `abroad`: publishers of other regions, each of which replaces a local one. `collects`: also
    publish rules that declare events obsolete, and changes of a stream's retention.
    """
    names = [f"k{i}".encode() for i in range(keys)]
    weights = [1 / (i + 1) for i in range(keys)]
    used: set[bytes] = set()
    for name, (owner, policy) in streams.items():
        others = (abroad or {}).get(name, [])
        local = [f"{owner}/pub{p}" for p in range(publishers - len(others))]
        for publisher in (*local, *others):
            at_ns, n = from_ns, 0
            while at_ns < until_ns:
                at_ns += int(rng.expovariate(1 / (120 * MS)))
                if rng.random() < 0.04 and collects:
                    rule = _draw_rule(rng, policy, n, names, at_ns)
                    if rule[1] not in used:
                        used.add(rule[1])
                        cluster.offer(at_ns, publisher, name, [rule[1]], kind=rule[0])
                    continue
                count = rng.choice((1, 1, 2, 5, 20))
                values = [f"{name}.{publisher}.{n + i}".encode() for i in range(count)]
                n += count
                picked: list[bytes | None] = list(rng.choices(names, weights, k=count))
                picked = [None if rng.random() < 0.1 else k for k in picked]
                picked = [b"" if k == b"k3" else k for k in picked]  # b"" is a key, None is not
                tags = None
                if isinstance(policy, KeepAll) and rng.random() < 0.5:
                    tags = [rng.choice((None, b"red", b"blue")) for _ in values]
                cluster.offer(at_ns, publisher, name, values, picked, tags)


def _draw_rule(
    rng: Random, policy: Policy, n: int, keys: list[bytes], at_ns: int
) -> tuple[int, bytes]:
    """Draw a `collect` event, or sometimes a change of the stream's retention rule."""
    if rng.random() < 0.15 and isinstance(policy, KeepLast):
        change = KeepLast(rng.randint(20, 200)) if rng.random() < 0.6 else LatestPerKey()
        return CONFIG, retention.encode_policy(change)
    predicates: list[retention.Predicate] = [
        BeforeSeq(rng.randint(1, max(2, 2 * n))),
        BeforeTime(1_750_000_000 * SECOND + at_ns - rng.randint(0, 3_000) * MS),
        KeyIs(rng.choice(keys)),
        KeyPrefix(rng.choice(keys)[: rng.randint(1, 2)]),
    ]
    if isinstance(policy, KeepAll):
        predicates += [TagIs(b"red")] * 2
    return COLLECT, retention.encode_collect(Collect(rng.choice(predicates)))
