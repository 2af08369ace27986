"""The faults of a process cluster: how each kind of fault begins, and how it ends.

`process_torture.py` injects them. Targets are drawn from a seed. Each fault is also noted in the
liveness model, which predicts which readers must still make progress. A cluster must survive any
combination of these faults; therefore a disk is damaged only if other nodes have the data that it
loses (`disk_faults.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from surecast.core.types import MS
from surecast.server.config import witness_name
from surecast_lab.swarm.disk_faults import DiskFaults
from surecast_lab.swarm.liveness_model import LivenessModel
from surecast_lab.swarm.process_cluster import ProcessCluster
from surecast_lab.testing.relay import Shape

__all__ = ["KINDS", "FaultInjector", "ProcessFault"]

PLACES = {"kill-head": 0, "kill-middle": 1, "kill-tail": -1}
KINDS = (
    *PLACES,
    "kill-region",  # all replicas at once; their disks are kept
    "kill-site",  # the same with the witness
    "kill-again",  # a replica is killed, and killed again several times while it starts
    "stop-replica",
    "damage-replica",  # one of several: a file of its data folder is damaged while it is down
    "damage-lone",  # the same for a region's only replica, if other regions have what it owns
    "roll-back-replica",  # it starts on an older copy of its data folder
    "roll-back-lone",
    "kill-witness",
    "cut-link",  # between two regions, in one or both directions
    "slow-link",  # with much more delay and loss
    "cut-publisher",
    "reset-publisher",  # its connections break repeatedly, and it reconnects
    "kill-client",
    "kill-thin",
    "kill-named",  # a program with named subscriptions (`cursor_app.py`)
    "stop-reader",
)
SLOW = Shape(delay_ns=150 * MS, jitter_ns=100 * MS, loss=0.05)
RESETS = 5
PROGRESS = 100  # every stream grows by so many positions between a copy and its restoration
AGAIN, AGAIN_S = 4, 0.6  # number of further kills, and the longest time before each


@dataclass(slots=True)
class ProcessFault:
    kind: str
    whom: str
    end: Callable[[], None]

    def __str__(self) -> str:
        return f"{self.kind} {self.whom}"


class FaultInjector:
    """Draws targets of faults and begins the faults. A node has at most one fault at a time."""

    def __init__(self, cluster: ProcessCluster, rng: Random) -> None:
        self.cluster, self.rng = cluster, rng
        self.liveness = LivenessModel(cluster.regions)
        self.readers_down: dict[str, bool] = {}  # readers killed or stopped
        self.slow: dict[str, bool] = {}  # links between regions
        self.disks = DiskFaults(cluster, rng)

    def begin(self, kind: str) -> ProcessFault | None:
        """Begin a fault of this kind; returns None if no eligible target is left for it."""
        if kind in PLACES:
            return self._kill_replica(kind)
        method: Callable[[], ProcessFault | None] = getattr(self, f"_{kind.replace('-', '_')}")
        return method()

    def look(self) -> None:
        """Update the members of each chain in the liveness model."""
        for region in self.cluster.regions:
            if members := self.cluster.members(region):
                self.liveness.members[region] = members

    def _pick(self, choices: list[str]) -> str:
        """Pick one of `choices`; returns "" if there are none. A number is drawn in either case, so
        that later draws stay the same."""
        number = self.rng.randrange(1 << 30)
        return choices[number % len(choices)] if choices else ""

    # ------------------------------------------------------------ servers

    def _kill_replica(self, kind: str) -> ProcessFault | None:
        least = 3 if kind == "kill-middle" else 2
        region = self._pick([r for r in self.cluster.regions if len(self.liveness.up(r)) >= least])
        if not region:
            return None
        up = self.liveness.up(region)
        members = [name for name in self.cluster.members(region) if name in up] or up
        name = members[min(PLACES[kind], len(members) - 1)]
        return self._kill(kind, name, {region: [name]})

    def _kill_region(self) -> ProcessFault | None:
        region = self._pick([r for r in self.cluster.regions if self.liveness.up(r)])
        if not region:
            return None
        return self._kill("kill-region", region, {region: self.liveness.up(region)})

    def _kill_site(self) -> ProcessFault | None:
        cluster, liveness = self.cluster, self.liveness
        region = self._pick(
            [r for r in cluster.regions if liveness.up(r) and r not in liveness.without_witness]
        )
        if not region:
            return None
        witness = witness_name(region) if cluster.wiring.has_separate_witness(region) else ""
        if witness:
            cluster.kill(witness)
            liveness.witness_down(region)
        replicas = self._kill("kill-site", region, {region: liveness.up(region)})

        def end() -> None:
            replicas.end()
            if witness:
                cluster.restart(witness)
                liveness.witness_up(region)

        return ProcessFault("kill-site", region, end)

    def _kill(self, kind: str, whom: str, victims: dict[str, list[str]]) -> ProcessFault:
        pairs = [(region, name) for region, names in victims.items() for name in names]
        for region, name in pairs:
            self.cluster.kill(name)
            self.liveness.replica_down(region, name)

        def end() -> None:
            for region, name in pairs:
                self.cluster.restart(name)
                self.liveness.replica_up(region, name)

        return ProcessFault(kind, whom, end)

    def _kill_again(self) -> ProcessFault | None:
        region = self._pick([r for r in self.cluster.regions if self.liveness.up(r)])
        name = self._pick(self.liveness.up(region) if region else [])
        pauses = [self.rng.uniform(0.0, AGAIN_S) for _ in range(AGAIN)]
        if not name:
            return None
        once = self._kill("kill-again", name, {region: [name]})

        def end() -> None:
            for pause in pauses:
                self.cluster.crash_again(name, pause)
            once.end()

        return ProcessFault("kill-again", name, end)

    def _stop_replica(self) -> ProcessFault | None:
        region = self._pick([r for r in self.cluster.regions if self.liveness.up(r)])
        name = self._pick(self.liveness.up(region) if region else [])
        if not name:
            return None
        self.cluster.stop(name)
        self.liveness.replica_down(region, name)

        def end() -> None:
            self.cluster.cont(name)
            self.liveness.replica_up(region, name)

        return ProcessFault("stop-replica", name, end)

    def _damage_replica(self) -> ProcessFault | None:
        return self._damage_one_of_several("damage-replica")

    def _roll_back_replica(self) -> ProcessFault | None:
        return self._damage_one_of_several("roll-back-replica")

    def _damage_one_of_several(self, kind: str) -> ProcessFault | None:
        """Damage or roll back one of several replicas, all of which must be up. The fault is over
        when this returns."""
        liveness, regions = self.liveness, self.cluster.regions
        region = self._pick(
            [
                r
                for r, names in regions.items()
                if len(names) > 1
                and len(liveness.up(r)) == len(names)
                and r not in liveness.without_witness
            ]
        )
        name = self._pick(list(regions[region]) if region else [])
        if not name or (kind == "roll-back-replica" and not self._is_calm()):
            return None
        if kind == "damage-replica":
            done = self.disks.damage_replica(region, name)
        else:
            done = self.disks.roll_back_replica(region, name, PROGRESS)
        return ProcessFault(kind, f"{name}: {done}", lambda: None)

    def _damage_lone(self) -> ProcessFault | None:
        return self._damage_the_only_one("damage-lone")

    def _roll_back_lone(self) -> ProcessFault | None:
        return self._damage_the_only_one("roll-back-lone")

    def _damage_the_only_one(self, kind: str) -> ProcessFault | None:
        """Damage or roll back the only replica of a region. It recovers the data from all other
        regions, so there must be no other fault."""
        region = self._pick([r for r, names in self.cluster.regions.items() if len(names) == 1])
        if not region or not self._is_calm():
            return None
        (name,) = self.cluster.regions[region]
        if kind == "damage-lone":
            done = self.disks.damage_lone(region, name)
        else:
            done = self.disks.roll_back_lone(region, name, PROGRESS)
        return ProcessFault(kind, f"{name}: {done}", lambda: None)

    def _is_calm(self) -> bool:
        """Whether no server, link or reader has a fault now."""
        liveness = self.liveness
        wrong = liveness.down or liveness.without_witness or liveness.cut or liveness.publisher_cut
        return not (wrong or self.slow or self.readers_down)

    def _kill_witness(self) -> ProcessFault | None:
        cluster, liveness = self.cluster, self.liveness
        region = self._pick(
            [
                r
                for r in cluster.regions
                if cluster.wiring.has_separate_witness(r) and r not in liveness.without_witness
            ]
        )
        if not region:
            return None
        if len(liveness.up(region)) == len(cluster.regions[region]):
            # A replica that was restarted a moment ago may still be joining the chain.
            cluster.wait(lambda: sorted(cluster.members(region)) == sorted(cluster.regions[region]))
        self.look()
        cluster.kill(witness_name(region))
        liveness.witness_down(region)

        def end() -> None:
            cluster.restart(witness_name(region))
            liveness.witness_up(region)

        return ProcessFault("kill-witness", region, end)

    # ------------------------------------------------------------ links

    def _cut_link(self) -> ProcessFault | None:
        cut = self.liveness.cut
        wire = self._pick([wire for wire in self.cluster.wiring.wires() if wire not in cut])
        direction = self._pick(["both", "both", "forward", "back"])
        if not wire:
            return None
        self.cluster.relay.cut(wire, direction)
        cut[wire] = True

        def end() -> None:
            self.cluster.relay.mend(wire)
            del cut[wire]

        return ProcessFault("cut-link", f"{wire} {direction}", end)

    def _slow_link(self) -> ProcessFault | None:
        wires = [wire for wire in self.cluster.wiring.wires() if wire not in self.slow]
        wire = self._pick([wire for wire in wires if wire not in self.liveness.cut])
        if not wire:
            return None
        self.cluster.relay.degrade(wire, SLOW)
        self.slow[wire] = True

        def end() -> None:
            if wire not in self.liveness.cut:  # otherwise the end of the cut restores the link
                self.cluster.relay.mend(wire)
            del self.slow[wire]

        return ProcessFault("slow-link", wire, end)

    def _cut_publisher(self) -> ProcessFault | None:
        publisher_cut = self.liveness.publisher_cut
        region = self._pick([r for r in self.cluster.regions if r not in publisher_cut])
        direction = self._pick(["both", "forward", "back"])
        if not region:
            return None
        self.cluster.relay.cut(f"{region}/pub", direction)
        publisher_cut[region] = True

        def end() -> None:
            self.cluster.relay.mend(f"{region}/pub")
            del publisher_cut[region]

        return ProcessFault("cut-publisher", f"{region}/pub {direction}", end)

    def _reset_publisher(self) -> ProcessFault | None:
        region = self._pick(list(self.cluster.regions))

        def reset() -> None:
            for _ in range(RESETS):
                self._reset(region)

        reset()
        return ProcessFault("reset-publisher", f"{region}/pub", reset)

    def _reset(self, region: str) -> None:
        """Break the connections of a publisher, and wait until it has reconnected."""
        relay, wire = self.cluster.relay, f"{region}/pub"
        before = relay.stats()[wire].accepted
        relay.reset(wire)
        if region not in self.liveness.publisher_cut and self.liveness.works(region):
            self.cluster.wait(lambda: relay.stats()[wire].accepted > before)

    # ------------------------------------------------------------ readers

    def _kill_client(self) -> ProcessFault | None:
        return self._kill_reader("kill-client", self.cluster.clients)

    def _kill_thin(self) -> ProcessFault | None:
        return self._kill_reader("kill-thin", self.cluster.thin)

    def _kill_named(self) -> ProcessFault | None:
        return self._kill_reader("kill-named", list(self.cluster.programs))

    def _kill_reader(self, kind: str, readers: list[str]) -> ProcessFault | None:
        name = self._pick([reader for reader in readers if reader not in self.readers_down])
        if not name:
            return None
        self.cluster.kill(name)
        self.readers_down[name] = True

        def end() -> None:
            self.cluster.restart(name)
            del self.readers_down[name]

        return ProcessFault(kind, name.partition("@")[0], end)

    def _stop_reader(self) -> ProcessFault | None:
        name = self._pick(
            [reader for reader in self.cluster.readers if reader not in self.readers_down]
        )
        if not name:
            return None
        self.cluster.stop(name)
        self.readers_down[name] = True

        def end() -> None:
            self.cluster.cont(name)
            del self.readers_down[name]

        return ProcessFault("stop-reader", name.partition("@")[0], end)
