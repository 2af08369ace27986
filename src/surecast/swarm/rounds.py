"""Rounds with real processes: a fleet, its misfortunes drawn from a seed, and the verdict.

A round publishes in every region while a replica is killed and started again, a link between
regions is cut (both ways or one) and mended, and a client is stopped for ten seconds. Each fault
comes when the readers have got so many more events, and ends when those it should not concern have
got so many more: by conditions, so that a slow machine runs the same round as a fast one. A round
that gets stuck, or in which a process ends by itself, counts as violated.

    python -m surecast.swarm.rounds --rounds 20 [--seed 1] [--keep FOLDER]
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from surecast.columns.retention import KeepAll, KeepLast, LatestPerKey, Policy
from surecast.core.types import MS
from surecast.errors import SurecastError
from surecast.runtime.relay import Shape
from surecast.swarm.fleet import Fleet

__all__ = ["RoundResult", "run_round"]

REGIONS = ("east", "north", "west")
STOPPED_S = 10.0
ROWS, EVERY_NS, KEYS = 8, 20 * MS, 40
STEP = 200  # positions of a stream between one event of the story and the next


class RoundResult(msgspec.Struct):
    seed: int
    faults: list[str]
    violations: list[str]
    published: int = 0
    acked: int = 0
    delivered: int = 0
    void: int = 0
    lost: int = 0
    duplicated: int = 0
    misordered: int = 0
    from_peers: int = 0  # positions that mesh clients got from each other ...
    from_servers: int = 0
    seconds: float = 0.0


def run_round(
    seed: int,
    folder: Path,
    *,
    clients: int = 8,
    record: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> RoundResult:
    """3 regions × chain of 2, `clients` mesh clients each."""
    began = time.monotonic()
    rng = Random(f"{seed}/round")
    wan = Shape(delay_ns=rng.randrange(2, 30) * MS, jitter_ns=2 * MS, loss=rng.choice((0.0, 0.01)))
    regions = dict.fromkeys(REGIONS, 2)
    result = RoundResult(seed, [], [])
    try:
        with Fleet(folder, seed, regions, clients, wan=wan, record=record) as fleet:
            _run(fleet, rng, result, say)
    except SurecastError as error:
        result.violations.append(str(error))
    result.seconds = time.monotonic() - began
    return result


def _run(fleet: Fleet, rng: Random, result: RoundResult, say: Callable[[str], None]) -> None:
    policies: list[Policy] = [LatestPerKey(), KeepAll(), KeepLast(300)]
    rng.shuffle(policies)
    for region, policy in zip(REGIONS, policies, strict=True):
        fleet.open(f"from-{region}", region, policy)
        fleet.publish(f"from-{region}", ROWS, EVERY_NS, KEYS)
    story = _Story(fleet, rng, result, say)
    story.progress(REGIONS)
    faults = [story.kill_replica, story.cut_link, story.stop_client]
    rng.shuffle(faults)
    for fault in faults:
        fault()
    fleet.quiet()
    say("publishing has ended; waiting for everybody")
    fleet.wait(fleet.settled)
    say("reading every replica afresh")
    fleet.audit()
    _judge(fleet, result)


class _Story:
    def __init__(
        self, fleet: Fleet, rng: Random, result: RoundResult, say: Callable[[str], None]
    ) -> None:
        self.fleet, self.rng, self.result, self.say = fleet, rng, result, say

    def progress(self, regions: tuple[str, ...], readers: list[str] | None = None) -> None:
        """Wait until all that can answer have so much more of these regions' streams."""
        goals = {}
        for region in regions:
            stream = f"from-{region}"
            goals[stream] = self.fleet.least(stream, readers) + STEP
        self.fleet.wait(lambda: all(self.fleet.least(s, readers) >= g for s, g in goals.items()))

    def _begin(self, what: str) -> None:
        self.result.faults.append(what)
        self.say(what)

    def kill_replica(self) -> None:
        region = self.rng.choice(REGIONS)
        replica = self.rng.choice(self.fleet.regions[region])
        self._begin(f"kill {replica}")
        self.fleet.kill(replica)
        # Its region takes no publishes with one replica (R6), but its clients read on.
        self.progress(tuple(r for r in REGIONS if r != region))
        self.fleet.restart(replica)
        self.progress(REGIONS)

    def cut_link(self) -> None:
        a, b = sorted(self.rng.sample(REGIONS, 2))
        direction = self.rng.choice(("both", "both", "forward", "back"))
        self._begin(f"cut {a}-{b} {direction}")
        self.fleet.relay.cut(f"{a}-{b}", direction)
        self.progress(REGIONS)  # by way of the third
        self.fleet.relay.mend(f"{a}-{b}")
        self.progress(REGIONS)

    def stop_client(self) -> None:
        client = self.rng.choice(self.fleet.clients)
        self._begin(f"stop {client.partition('@')[0]}")
        self.fleet.stop(client)
        until = time.monotonic() + STOPPED_S  # the fault itself lasts so long
        while time.monotonic() < until:
            self.progress(REGIONS)
        self.fleet.cont(client)
        self.progress(REGIONS)


def _judge(fleet: Fleet, result: RoundResult) -> None:
    tally = fleet.judge()
    for name in ("published", "acked", "delivered", "void", "lost", "duplicated", "misordered"):
        setattr(result, name, getattr(tally, name))
    result.violations = tally.violations[:20]
    for name in fleet.clients:
        counters: dict[str, Any] = fleet.workers[name].ask("results")["counters"]
        result.from_peers += counters.get("mesh.positions-from-peers", 0)
        result.from_servers += counters.get("mesh.positions-from-server", 0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Rounds with real processes, killed and cut off.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--keep", type=Path, help="leave logs, journals and recordings here")
    options = parser.parse_args()
    bad = 0
    for seed in range(options.seed, options.seed + options.rounds):
        with tempfile.TemporaryDirectory(prefix="surecast-round-") as scratch:
            folder = Path(scratch)
            if options.keep:
                folder = options.keep / str(seed)
                folder.mkdir(parents=True)
            result = run_round(seed, folder, record=options.keep is not None, say=_say)
        verdict = "VIOLATED" if result.violations else "ok"
        bad += bool(result.violations)
        print(
            f"round {seed}: {verdict}, {'; '.join(result.faults)}; "
            f"{result.acked:,} acknowledged, {result.delivered:,} delivered, {result.lost} lost, "
            f"{result.duplicated} duplicated, {result.misordered} misordered, "
            f"{result.seconds:.0f} s",
            flush=True,
        )
        for violation in result.violations:
            print(f"  {violation}")
        if result.violations and not options.keep:
            print(f"  again, with logs and recordings: --rounds 1 --seed {seed} --keep FOLDER")
    print(f"{options.rounds} rounds, {bad} with violations")
    sys.exit(1 if bad else 0)


def _say(what: str) -> None:
    if sys.stderr.isatty():
        print(f"  {what}", file=sys.stderr)


if __name__ == "__main__":
    main()
