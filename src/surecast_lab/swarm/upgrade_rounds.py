"""A test of rolling upgrades: real processes that lack a protocol are replaced one by one.

At first all processes of a cluster lack the protocol; each is replaced by one that has it, while
publishers continue. A seed determines the regions of two or three replicas, the mesh clients, thin
readers and programs that read by a pattern, and the order in which all processes are replaced,
witnesses and publishers included. After each step the test waits until the chains are complete
again and every reader has advanced. The following is tested:

- A chain whose head is upgraded while other members are not. A restarted replica joins the chain at
  its tail, so normally the head would be upgraded last. Therefore, when the first server of a
  region is upgraded, the servers before it in the chain are restarted without an upgrade, until it
  is the head.
- Creating a stream of the protocol's delivery is refused with `no-delivery` as long as a replica of
  the stream's region lacks the protocol, and works when all of them have it. (The tested delivery
  stays in one region, so other regions do not matter.)
- Programs that have the protocol read this stream. Programs that lack it leave the stream out, log
  a warning, and continue.
- Only sessions of the process that is being replaced end. Exceptions are sessions that the
  protocols close by design: between regions when the tail changes, and in a mesh.

At the end no event may be lost, duplicated or misordered.

    python -m surecast_lab.swarm.upgrade_rounds --protocol NAME --rounds 10
        [--seed 1] [--keep FOLDER]
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

import msgspec

from surecast import registry
from surecast.columns.retention import KeepAll
from surecast.core.types import MS
from surecast.errors import SurecastError, UsageError
from surecast.runtime.session import CLOSED
from surecast_lab.swarm.process_cluster import ProcessCluster
from surecast_lab.swarm.session_report import SessionReport
from surecast_lab.testing.relay import Shape

__all__ = ["SessionJudge", "UpgradeResult", "run_round"]

ROWS, EVERY_NS = 4, 20 * MS
STEPS = (20, 60, 150)  # positions that each stream advances from one replacement to the next
REFUSED = "no-delivery"
ENDED_SHOWN = 10


class UpgradeResult(msgspec.Struct):
    seed: int
    regions: dict[str, int]
    replaced: list[str]  # the processes, in the order of their replacement
    violations: list[str]
    restarted: list[str] = []  # servers that were restarted without an upgrade
    published: int = 0
    acked: int = 0
    delivered: int = 0
    lost: int = 0
    duplicated: int = 0
    misordered: int = 0
    refusals: int = 0  # attempts to create a stream too early
    read_early: int = 0  # new streams that were read while older clients of the region still ran
    left_out: int = 0  # warnings of older clients
    ended: int = 0  # sessions of processes while they were replaced
    closed: int = 0  # other sessions that a protocol closed by design
    broken: int = 0  # sessions that should not have ended
    counters: dict[str, int] = {}  # of the runtime, summed over all processes and their restarts
    seconds: float = 0.0


def delivery_of(protocol: str) -> str:
    """The name of the protocol's delivery."""
    row = registry.PROTOCOLS.get(protocol)
    if row is None or row.delivery is None:
        having = [name for name, one in registry.PROTOCOLS.items() if one.delivery is not None]
        raise UsageError(f"no protocol {protocol!r} with a delivery; take one of {having}")
    return row.delivery().name


def draw_regions(rng: Random) -> dict[str, int]:
    names = ["east", "west", "north"][: rng.choice((2, 2, 3))]
    counts = [3, *(rng.choice((2, 3)) for _ in names[1:])]
    rng.shuffle(counts)
    return dict(zip(names, counts, strict=True))


def run_round(
    protocol: str,
    seed: int,
    folder: Path,
    *,
    regions: dict[str, int] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> UpgradeResult:
    began = time.monotonic()
    delivery = delivery_of(protocol)
    rng = Random(f"{seed}/upgrade")
    regions = regions or draw_regions(rng)
    result = UpgradeResult(seed, regions, [], [])
    wan = Shape(delay_ns=rng.randrange(2, 30) * MS, jitter_ns=2 * MS)
    try:
        with ProcessCluster(
            folder, seed, regions, 1, thin=1, wan=wan, without=(protocol,)
        ) as cluster:
            _Round(cluster, rng, delivery, result, say).run()
    except SurecastError as error:
        result.violations.append(str(error))
    result.seconds = time.monotonic() - began
    return result


class SessionJudge:
    """Counts the ended sessions in the reports of processes, and finds those that should not have
    ended."""

    def __init__(self, region_of: Callable[[str], str]) -> None:
        self.region_of = region_of
        self.process_of: dict[str, str] = {}  # node → process, with nodes that have ended
        self.ended = self.closed = 0
        self.broken: list[str] = []

    def learn(self, process: str, nodes: Iterable[str]) -> None:
        self.process_of.update(dict.fromkeys(nodes, process))

    def judge(self, reports: dict[str, SessionReport], replaced: str) -> None:
        """Judge the reports since the last call; `replaced`: the process replaced meanwhile."""
        for process, report in reports.items():
            self.learn(process, report.nodes)
        for process, report in reports.items():
            for node, peer, why in report.ended:
                other = self.process_of.get(peer, peer)
                if replaced in (process, other):
                    self.ended += 1
                elif why == CLOSED and (_meshed(node, peer) or self._apart(process, other)):
                    self.closed += 1
                else:
                    meanwhile = f"while {replaced or 'none'} was replaced"
                    self.broken.append(f"{node} and {peer} ({other}), {meanwhile}: {why}")

    def _apart(self, one: str, other: str) -> bool:
        """Whether both are servers, of different regions."""
        servers = "/" not in one and "/" not in other
        return servers and self.region_of(one) != self.region_of(other)


def _meshed(node: str, peer: str) -> bool:
    return "@" in node and "@" in peer  # names of mesh clients contain their address


class _Round:
    """The cluster and the steps of one round."""

    def __init__(
        self,
        cluster: ProcessCluster,
        rng: Random,
        delivery: str,
        result: UpgradeResult,
        say: Callable[[str], None],
    ) -> None:
        self.cluster, self.rng, self.delivery = cluster, rng, delivery
        self.result, self.say = result, say
        self.sessions = SessionJudge(cluster.wiring.region_of)
        self.programs: dict[str, list[str]] = {}  # region → programs that read by a pattern
        self.mixed: list[str] = []  # regions tested with an upgraded head and older members
        self.created: dict[str, str] = {}  # region → its stream of the new delivery
        self.counters: Counter[str] = Counter()  # runtime counters of processes that have ended

    def run(self) -> None:
        cluster = self.cluster
        self._begin()
        self._try_all()
        self.result.violations += [
            f"{region}: created before any server has the delivery" for region in self.created
        ]
        for name in self._order():
            self._replace(name)
        missing = [region for region in cluster.regions if region not in self.created]
        assert not missing, missing
        self._progress()
        cluster.quiet()
        self.say("publishing has ended; waiting for all readers")
        cluster.rest()
        cluster.audit()
        self._judge()

    def _begin(self) -> None:
        cluster = self.cluster
        for region in cluster.regions:
            stream = f"{region}.events"
            cluster.open(stream, region, KeepAll())
            for publisher in cluster.regions:  # each region publishes to all streams
                cluster.publish(stream, ROWS, EVERY_NS, region=publisher)
        for region in cluster.regions:
            self.programs[region] = [f"{region}/p{n}" for n in range(2)]
            for n, name in enumerate(self.programs[region]):
                cluster.add_pattern_reader(name, ">", mesh=n == 1)
        self._progress()
        self._judge_sessions("")

    def _order(self) -> list[str]:
        """The order of replacement. In each region one program is upgraded before the last server,
        and another one after it; one of the two is in the mesh."""
        cluster, rng = self.cluster, self.rng
        when = {name: 0.1 + 0.7 * rng.random() for name in cluster.workers}
        for programs in self.programs.values():
            early, late = rng.sample(programs, len(programs))
            when[early], when[late] = 0.05 * rng.random(), 0.9 + 0.1 * rng.random()
        return sorted(when, key=lambda name: when[name])

    # ------------------------------------------------------------ a step

    def _replace(self, name: str) -> None:
        cluster = self.cluster
        self.say(f"replacing {name}")
        region = cluster.wiring.region_of(name)
        self._save_counters(name)
        cluster.upgrade(name)
        self.result.replaced.append(name)
        if name in cluster.programs and region in self.created:
            cluster.programs[name].append(self.created[region])
        if name in cluster.regions[region]:
            self._try(region)  # without waiting, so that the chain may still be changing
        self._settle(name)
        if name in cluster.regions[region] and region not in self.mixed:
            self.mixed.append(region)
            self._make_head(name, region)

    def _make_head(self, name: str, region: str) -> None:
        """Restart the servers before `name` in the chain without upgrading them, so that it becomes
        the head."""
        while (head := self.cluster.members(region)[0]) != name:
            self.say(f"restarting {head}")
            self._save_counters(head)
            self.cluster.restart_in_order(head)
            self.result.restarted.append(head)
            self._settle(head)

    def _settle(self, replaced: str) -> None:
        self._wait_until_whole()
        self._try_all()
        self._progress()
        self._judge_sessions(replaced)

    def _wait_until_whole(self) -> None:
        cluster = self.cluster

        def whole() -> bool:
            return all(
                sorted(cluster.members(region)) == sorted(names)
                and all(cluster.server(name).ready for name in names)
                for region, names in cluster.regions.items()
            )

        cluster.wait(whole)

    def _try_all(self) -> None:
        for region in self.cluster.regions:
            self._try(region)
            if region not in self.created and not self._lacking(region):
                raise SurecastError(
                    f"{region}: no server lacks the delivery, but the answer was {REFUSED}"
                )

    def _lacking(self, region: str) -> list[str]:
        return [name for name in self.cluster.regions[region] if self.cluster.lacks_protocols(name)]

    def _try(self, region: str) -> None:
        """Try to create the region's stream of the new delivery. It must be refused while a running
        server of the region lacks the protocol."""
        if region in self.created:
            return
        cluster, stream, lacking = self.cluster, f"{region}.new", self._lacking(region)
        why = cluster.try_open(stream, region, KeepAll(), self.delivery)
        if why:
            self.result.refusals += 1
            if why != REFUSED:
                raise SurecastError(f"{stream} was refused for another reason: {why}")
            return
        if lacking:
            raise SurecastError(f"{stream} was created although {lacking} lack its delivery")
        self.say(f"{stream} is created")
        self.created[region] = stream
        self._read_new(region, stream)

    def _read_new(self, region: str, stream: str) -> None:
        """Wait until programs that have the protocol read the stream, and the others have logged
        that they leave it out."""
        cluster = self.cluster
        older = [n for n in self.programs[region] if cluster.lacks_protocols(n)]
        newer = [n for n in self.programs[region] if n not in older]
        for name in newer:
            cluster.programs[name].append(stream)
        cluster.publish(stream, ROWS, EVERY_NS)
        cluster.wait(lambda: cluster.least(stream, newer) > STEPS[0])
        cluster.wait(lambda: all(self._leaves_out(name, stream) for name in older))
        self.result.left_out += len(older)
        self.result.read_early += bool(older and newer)

    def _leaves_out(self, name: str, stream: str) -> bool:
        warnings = self.cluster.workers[name].ask("status")["warnings"]
        return any(repr(stream) in line and "left out" in line for line in warnings)

    def _progress(self) -> None:
        """Wait until all readers have advanced in all streams that they read."""
        cluster, step = self.cluster, self.rng.choice(STEPS)
        goals = {
            (reader, stream): position + step
            for reader, at in cluster.positions().items()
            for stream, position in at.items()
        }

        def waiting() -> list[tuple[str, str]]:
            now = cluster.positions()
            return [
                (reader, stream)
                for (reader, stream), goal in goals.items()
                if now.get(reader, {}).get(stream, 0) < goal
            ]

        try:
            cluster.wait(lambda: not waiting())
        except SurecastError as error:
            raise SurecastError(f"no progress of {waiting()[:5]}: {error}") from error

    # ------------------------------------------------------------ the verdict

    def _judge_sessions(self, replaced: str) -> dict[str, SessionReport]:
        """`replaced`: the process that was replaced since the last call."""
        reports = {n: worker.ask("sessions") for n, worker in self.cluster.workers.items()}
        self.sessions.judge(reports, replaced)
        return reports

    def _save_counters(self, name: str) -> None:
        self.counters.update(self._judge_sessions("")[name].counters)

    def _judge(self) -> None:
        result, tally = self.result, self.cluster.judge()
        for name in ("published", "acked", "delivered", "lost", "duplicated", "misordered"):
            setattr(result, name, getattr(tally, name))
        for report in self._judge_sessions("").values():
            self.counters.update(report.counters)
        result.counters = {name: count for name, count in self.counters.items() if count}
        result.ended, result.closed = self.sessions.ended, self.sessions.closed
        result.broken = len(self.sessions.broken)
        result.violations += tally.violations[:20]
        result.violations += [f"session: {one}" for one in self.sessions.broken[:ENDED_SHOWN]]


# ---------------------------------------------------------------- from the shell


def main() -> None:
    parser = argparse.ArgumentParser(description="Upgrade real processes one by one.")
    parser.add_argument(
        "--protocol", required=True, help="the protocol that all processes lack at first"
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1, help="seed of the first round")
    parser.add_argument("--keep", type=Path, help="keep logs and data in this folder")
    options = parser.parse_args()
    results = []
    for seed in range(options.seed, options.seed + options.rounds):
        with tempfile.TemporaryDirectory(prefix="surecast-upgrade-") as scratch:
            folder = options.keep / str(seed) if options.keep else Path(scratch)
            result = run_round(options.protocol, seed, folder, say=_say)
        results.append(result)
        _show(result)
    bad = sum(bool(result.violations) for result in results)
    acked = sum(result.acked for result in results)
    replaced = sum(len(result.replaced) for result in results)
    broken = sum(result.broken for result in results)
    print(
        f"{len(results)} rounds, {bad} with violations; {replaced} processes replaced, "
        f"{acked:,} events acknowledged, {broken} sessions broken that should not have ended"
    )
    sys.exit(1 if bad else 0)


def _show(result: UpgradeResult) -> None:
    regions = ", ".join(f"{name} {count}" for name, count in result.regions.items())
    counters = ", ".join(f"{name} {count}" for name, count in sorted(result.counters.items()))
    print(
        f"round {result.seed} ({regions}): {'VIOLATED' if result.violations else 'ok'}, "
        f"{len(result.replaced)} replaced, {len(result.restarted)} restarted without an upgrade; "
        f"{result.acked:,} acknowledged of "
        f"{result.published:,}, {result.delivered:,} delivered, {result.lost} lost, "
        f"{result.duplicated} duplicated, {result.misordered} misordered; "
        f"{result.refusals} times {REFUSED}, {result.read_early} streams read early, "
        f"left out {result.left_out} times; sessions: {result.ended} ended with their process, "
        f"{result.closed} closed, {result.broken} broken ({counters}); {result.seconds:.0f} s",
        flush=True,
    )
    for violation in result.violations:
        print(f"  {violation}")


def _say(what: str) -> None:
    if sys.stderr.isatty():
        print(f"  {what}", file=sys.stderr)


if __name__ == "__main__":
    main()
