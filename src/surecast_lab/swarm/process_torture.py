"""A fault test with real processes, in rounds: a cluster, faults drawn from a seed, and a verdict.

The cluster has three regions, of three, two and one replicas; streams with every kind of retention;
publishers in the owner's region and in another one; mesh clients, subscribers that get all events
from a server (*thin*), and programs with named subscriptions. Journals are so small that their
content is moved to segments, and compacted, many times. Replicas, whole regions, witnesses, readers
and links fail and recover (`process_faults.py`), up to three at a time. The next fault begins, or
one ends, when all readers that must make progress (`liveness_model.py`) have received a certain
number of events. Because the round waits for events and not for fixed times, a slow machine runs
the same round as a fast one. It is a violation if a round gets stuck, or if a process ends without
being killed.

    python -m surecast_lab.swarm.process_torture --rounds 20 [--seed 1] [--keep FOLDER]
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from surecast.columns.retention import KeepAll, KeepFor, KeepLast, LatestPerKey, Policy
from surecast.core.disk import read_through
from surecast.core.types import MS, SECOND
from surecast.errors import SurecastError
from surecast.storage.segments import SegmentStore
from surecast_lab.swarm.process_cluster import ProcessCluster
from surecast_lab.swarm.process_faults import KINDS, FaultInjector, ProcessFault
from surecast_lab.testing.relay import Shape

__all__ = ["REGIONS", "RoundResult", "run_round"]

REGIONS = {"east": 3, "north": 1, "west": 2}
ROWS, EVERY_NS, KEYS = 8, 40 * MS, 40
STEPS = (50, 150, 400)  # positions that streams advance before the next fault begins or ends
AT_ONCE = 3  # most faults at a time
READ_BYTES = 1 << 20
SETTINGS: dict[str, dict[str, Any]] = {
    "storage": {
        "journal_bytes_max": 64 << 10,
        "segment_bytes_max": 64 << 10,
        "inline_bytes_max": 4 << 10,
        "run_bytes_min": 16 << 10,
        "maps_max": 4,
    },
    "streams": {
        "compact_ns": 100 * MS,
        "expire_ns": 200 * MS,
        "piece_rows_max": 256,
        "coalesce_rows_max": 64,
    },
}


class RoundResult(msgspec.Struct):
    seed: int
    faults: list[str]  # in order, for example "kill-head east-1"
    violations: list[str]
    published: int = 0
    acked: int = 0
    delivered: int = 0
    void: int = 0
    lost: int = 0
    duplicated: int = 0
    misordered: int = 0
    forwarded: int = 0  # events published in a region that does not own their stream
    in_flight: int = 0  # batches in flight when a fault began
    from_peers: int = 0  # positions that mesh clients got from each other
    from_servers: int = 0
    moves: int = 0  # journals that replicas moved to segments since their last start
    rewritten: int = 0  # compactions by replicas since their last start
    seconds: float = 0.0


def run_round(
    seed: int,
    folder: Path,
    *,
    kinds: tuple[str, ...] = KINDS,
    clients: int = 3,
    record: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> RoundResult:
    """Run a round with one fault of each of `kinds`, and with `clients` mesh clients and a thin
    subscriber in each region."""
    began = time.monotonic()
    rng = Random(f"{seed}/round")
    wan = Shape(delay_ns=rng.randrange(2, 30) * MS, jitter_ns=2 * MS, loss=rng.choice((0.0, 0.01)))
    result = RoundResult(seed, [], [])
    try:
        with ProcessCluster(
            folder, seed, REGIONS, clients, thin=1, wan=wan, settings=SETTINGS, record=record
        ) as cluster:
            _run(cluster, rng, kinds, result, say)
        _reread(cluster)
    except SurecastError as error:
        result.violations.append(str(error))
    result.seconds = time.monotonic() - began
    return result


def _run(
    cluster: ProcessCluster,
    rng: Random,
    kinds: tuple[str, ...],
    result: RoundResult,
    say: Callable[[str], None],
) -> None:
    _publish(cluster, rng)
    _FaultSequence(cluster, rng, result, say).run(list(kinds))
    cluster.quiet()
    say("publishing has ended; waiting for all readers")
    cluster.rest()
    say("reading every replica with new readers")
    cluster.audit()
    _judge(cluster, result)


def _publish(cluster: ProcessCluster, rng: Random) -> None:
    """Create a stream with each retention rule; each region owns at least one. Publish to every
    stream in two regions, and start the programs with named subscriptions."""
    policies: dict[str, Policy] = {
        "latest": LatestPerKey(),
        "all": KeepAll(),
        "last": KeepLast(300),
        "for": KeepFor(2 * SECOND),
    }
    owners = [*REGIONS, rng.choice(list(REGIONS))]
    rng.shuffle(owners)
    for (name, policy), owner in zip(policies.items(), owners, strict=True):
        stream = f"{owner}.{name}"
        other = rng.choice([region for region in REGIONS if region != owner])
        cluster.open(stream, rng.choice((owner, other)), policy)
        for region in (owner, other):
            cluster.publish(stream, ROWS, EVERY_NS, KEYS, region)
    # Streams with keep_for contain entries written by the head, which programs do not receive.
    shown = [s for s, policy in cluster.policies.items() if not isinstance(policy, KeepFor)]
    for region in ("east", "west"):
        cluster.add_named(f"{region}/named", shown)


class _FaultSequence:
    """Injects the faults of one round."""

    def __init__(
        self, cluster: ProcessCluster, rng: Random, result: RoundResult, say: Callable[[str], None]
    ) -> None:
        self.cluster, self.rng, self.result, self.say = cluster, rng, result, say
        self.injector = FaultInjector(cluster, rng)

    def run(self, kinds: list[str]) -> None:
        """Inject every kind of fault once, in random order, several at a time; then end all. A kind
        that has no eligible target even without other faults is left out."""
        self.rng.shuffle(kinds)
        lasting: list[ProcessFault] = []
        self.progress()
        while kinds or lasting:
            full, chance = len(lasting) == AT_ONCE, self.rng.random()
            if lasting and (full or not kinds or chance < 0.4):
                over = lasting.pop(self.rng.randrange(len(lasting)))
                self.say(f"over: {over}")
                over.end()
            else:
                kind = kinds.pop()
                if not self._begin(kind, lasting) and lasting:
                    kinds.insert(0, kind)  # it has no eligible target now: try it later
                    continue
            self.progress()

    def _begin(self, kind: str, lasting: list[ProcessFault]) -> bool:
        in_flight = self.cluster.in_flight()
        fault = self.injector.begin(kind)
        if fault is None:
            return False
        self.result.in_flight += in_flight
        lasting.append(fault)
        self.result.faults.append(str(fault))
        self.say(str(fault))
        return True

    def progress(self) -> None:
        """Wait until all readers that must make progress have advanced by a number of positions."""
        cluster, step = self.cluster, self.rng.choice(STEPS)
        goals = {
            (reader, stream): position + step
            for reader, at in cluster.positions().items()
            for stream, position in at.items()
        }

        def waiting() -> list[tuple[str, str]]:
            now, reached = cluster.positions(), self._reached()
            return [
                (reader, stream)
                for (reader, stream), goal in goals.items()
                if now[reader][stream] < goal
                and cluster.wiring.region_of(reader) in reached[cluster.owner(stream)]
            ]

        try:
            cluster.wait(lambda: not waiting())
        except SurecastError as error:
            stuck = ", ".join(f"{reader} of {stream}" for reader, stream in waiting()[:5])
            raise SurecastError(f"no progress of {stuck}: {error}") from error

    def _reached(self) -> dict[str, list[str]]:
        """Owner → regions that new events of its streams must reach now."""
        self.injector.look()
        return {
            region: self.injector.liveness.reached_from(region) for region in self.cluster.regions
        }


def _judge(cluster: ProcessCluster, result: RoundResult) -> None:
    tally = cluster.judge()
    for name in ("published", "acked", "delivered", "void", "lost", "duplicated", "misordered"):
        setattr(result, name, getattr(tally, name))
    result.violations = tally.violations[:20]
    own = {stream_id: cluster.owner(name) for name, stream_id in cluster.streams.items()}
    for name, worker in cluster.workers.items():
        results = worker.ask("results")
        counters = results["counters"]
        result.from_peers += counters.get("mesh.positions-from-peers", 0)
        result.from_servers += counters.get("mesh.positions-from-server", 0)
        result.moves += counters.get("store.moves", 0)
        result.rewritten += counters.get("streams.rewritten", 0)
        for stream_id, _, values, _ in results.get("offered", ()):
            result.forwarded += len(values) * (own[stream_id] != cluster.wiring.region_of(name))


def _reread(cluster: ProcessCluster) -> None:
    """Open every data folder again and read every record in it."""
    for names in cluster.regions.values():
        for name in names:
            store = SegmentStore(cluster.data(name) / "log")
            try:
                for log in store.disk.logs():
                    for _ in read_through(store.disk, log, 1, store.disk.end(log), READ_BYTES):
                        pass
            finally:
                store.close()


# ---------------------------------------------------------------- from the shell


def main() -> None:
    parser = argparse.ArgumentParser(description="Run rounds of a fault test with real processes.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="seed of the first round")
    parser.add_argument("--keep", type=Path, help="keep logs, data and recordings in this folder")
    options = parser.parse_args()
    results = []
    for seed in range(options.seed, options.seed + options.rounds):
        with tempfile.TemporaryDirectory(prefix="surecast-round-") as scratch:
            folder = options.keep / str(seed) if options.keep else Path(scratch)
            result = run_round(seed, folder, record=options.keep is not None, say=_say)
        results.append(result)
        _show(result)
        if result.violations and not options.keep:
            print(f"  repeat it, with logs and recordings: --rounds 1 --seed {seed} --keep FOLDER")
    _sum_up(results)
    sys.exit(1 if any(result.violations for result in results) else 0)


def _show(result: RoundResult) -> None:
    print(
        f"round {result.seed}: {'VIOLATED' if result.violations else 'ok'}, "
        f"{len(result.faults)} faults, {result.in_flight} batches in flight; "
        f"{result.acked:,} acknowledged ({result.forwarded:,} through another region), "
        f"{result.delivered:,} delivered, {result.void:,} void, {result.lost} lost, "
        f"{result.duplicated} duplicated, {result.misordered} misordered; "
        f"{result.moves} moves, {result.rewritten} compactions; {result.seconds:.0f} s",
        flush=True,
    )
    for violation in result.violations:
        print(f"  {violation}")


def _sum_up(results: list[RoundResult]) -> None:
    kinds = Counter(fault.split()[0] for result in results for fault in result.faults)
    counts = ", ".join(f"{kind} {kinds[kind]}" for kind in KINDS)
    bad = sum(bool(result.violations) for result in results)
    totals = {
        name: sum(getattr(result, name) for result in results)
        for name in ("acked", "delivered", "void", "in_flight", "lost", "duplicated", "misordered")
    }
    print(f"{len(results)} rounds, {bad} with violations; {sum(kinds.values())} faults: {counts}")
    print(", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in totals.items()))


def _say(what: str) -> None:
    if sys.stderr.isatty():
        print(f"  {what}", file=sys.stderr)


if __name__ == "__main__":
    main()
