"""What can happen to a fleet: each kind of misfortune, how it begins and how it ends.

Which ones befall whom is drawn from a seed. The outlook is told of each, so that a round knows what
should still get on. All of them are survivable in any combination: disks are damaged only where
others have what they lose (`disk_faults.py`).
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

__all__ = ["KINDS", "Fate", "ProcessFault"]

PLACES = {"kill-head": 0, "kill-middle": 1, "kill-tail": -1}
KINDS = (
    *PLACES,
    "kill-region",  # all replicas at once; their disks are kept
    "kill-site",  # the same with its witness
    "kill-again",  # a replica, and some times more while it starts
    "stop-replica",
    "damage-replica",  # of several: a file of its data folder is damaged while it is down
    "damage-lone",  # the same of a region's only replica, when other regions have what it owns
    "roll-back-replica",  # it comes back on an older copy of its data folder
    "roll-back-lone",
    "kill-witness",
    "cut-link",  # between two regions, both ways or one
    "slow-link",  # it delays and loses much more than it should
    "cut-publisher",
    "reset-publisher",  # its connections break, again and again, and are made anew
    "kill-client",
    "kill-thin",
    "kill-named",  # its place is kept by the region
    "stop-reader",
)
SLOW = Shape(delay_ns=150 * MS, jitter_ns=100 * MS, loss=0.05)
RESETS = 5
PROGRESS = 100  # positions of every stream between a copy of a folder and the roll back to it
AGAIN, AGAIN_S = 4, 0.6  # how often, and how long it has at most before it is killed again


@dataclass(slots=True)
class ProcessFault:
    kind: str
    whom: str
    end: Callable[[], None]

    def __str__(self) -> str:
        return f"{self.kind} {self.whom}"


class Fate:
    """Draws misfortunes and lets them begin. At most one at a time befalls anybody."""

    def __init__(self, fleet: ProcessCluster, rng: Random) -> None:
        self.fleet, self.rng = fleet, rng
        self.outlook = LivenessModel(fleet.regions)
        self.struck: dict[str, bool] = {}  # readers killed or stopped
        self.slow: dict[str, bool] = {}  # links between regions
        self.disks = DiskFaults(fleet, rng)

    def begin(self, kind: str) -> ProcessFault | None:
        """None: there is nobody left whom it could befall now."""
        if kind in PLACES:
            return self._kill_replica(kind)
        method: Callable[[], ProcessFault | None] = getattr(self, f"_{kind.replace('-', '_')}")
        return method()

    def look(self) -> None:
        """Who is in which chain now."""
        for region in self.fleet.regions:
            if members := self.fleet.members(region):
                self.outlook.members[region] = members

    def _pick(self, choices: list[str]) -> str:
        """One draw, whatever the choices: a story goes on the same way if they are a few less."""
        number = self.rng.randrange(1 << 30)
        return choices[number % len(choices)] if choices else ""

    # ------------------------------------------------------------ servers

    def _kill_replica(self, kind: str) -> ProcessFault | None:
        least = 3 if kind == "kill-middle" else 2
        region = self._pick([r for r in self.fleet.regions if len(self.outlook.up(r)) >= least])
        if not region:
            return None
        up = self.outlook.up(region)
        members = [name for name in self.fleet.members(region) if name in up] or up
        name = members[min(PLACES[kind], len(members) - 1)]
        return self._kill(kind, name, {region: [name]})

    def _kill_region(self) -> ProcessFault | None:
        region = self._pick([r for r in self.fleet.regions if self.outlook.up(r)])
        if not region:
            return None
        return self._kill("kill-region", region, {region: self.outlook.up(region)})

    def _kill_site(self) -> ProcessFault | None:
        fleet, outlook = self.fleet, self.outlook
        region = self._pick([r for r in fleet.regions if outlook.up(r) and r not in outlook.blind])
        if not region:
            return None
        witness = witness_name(region) if fleet.wiring.has_witness(region) else ""
        if witness:
            fleet.kill(witness)
            outlook.witness_down(region)
        replicas = self._kill("kill-site", region, {region: outlook.up(region)})

        def end() -> None:
            replicas.end()
            if witness:
                fleet.restart(witness)
                outlook.witness_up(region)

        return ProcessFault("kill-site", region, end)

    def _kill(self, kind: str, whom: str, victims: dict[str, list[str]]) -> ProcessFault:
        pairs = [(region, name) for region, names in victims.items() for name in names]
        for region, name in pairs:
            self.fleet.kill(name)
            self.outlook.replica_down(region, name)

        def end() -> None:
            for region, name in pairs:
                self.fleet.restart(name)
                self.outlook.replica_up(region, name)

        return ProcessFault(kind, whom, end)

    def _kill_again(self) -> ProcessFault | None:
        region = self._pick([r for r in self.fleet.regions if self.outlook.up(r)])
        name = self._pick(self.outlook.up(region) if region else [])
        pauses = [self.rng.uniform(0.0, AGAIN_S) for _ in range(AGAIN)]
        if not name:
            return None
        once = self._kill("kill-again", name, {region: [name]})

        def end() -> None:
            for pause in pauses:
                self.fleet.crash_again(name, pause)
            once.end()

        return ProcessFault("kill-again", name, end)

    def _stop_replica(self) -> ProcessFault | None:
        region = self._pick([r for r in self.fleet.regions if self.outlook.up(r)])
        name = self._pick(self.outlook.up(region) if region else [])
        if not name:
            return None
        self.fleet.stop(name)
        self.outlook.replica_down(region, name)

        def end() -> None:
            self.fleet.cont(name)
            self.outlook.replica_up(region, name)

        return ProcessFault("stop-replica", name, end)

    def _damage_replica(self) -> ProcessFault | None:
        return self._hit_disk("damage-replica")

    def _roll_back_replica(self) -> ProcessFault | None:
        return self._hit_disk("roll-back-replica")

    def _hit_disk(self, kind: str) -> ProcessFault | None:
        """One of several replicas, all of which must be there: it begins and ends at once."""
        outlook, regions = self.outlook, self.fleet.regions
        region = self._pick(
            [
                r
                for r, names in regions.items()
                if len(names) > 1 and len(outlook.up(r)) == len(names) and r not in outlook.blind
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
        return self._hit_lone("damage-lone")

    def _roll_back_lone(self) -> ProcessFault | None:
        return self._hit_lone("roll-back-lone")

    def _hit_lone(self, kind: str) -> ProcessFault | None:
        """It needs every other region to recover, so nothing else may be wrong."""
        region = self._pick([r for r, names in self.fleet.regions.items() if len(names) == 1])
        if not region or not self._is_calm():
            return None
        (name,) = self.fleet.regions[region]
        if kind == "damage-lone":
            done = self.disks.damage_lone(region, name)
        else:
            done = self.disks.roll_back_lone(region, name, PROGRESS)
        return ProcessFault(kind, f"{name}: {done}", lambda: None)

    def _is_calm(self) -> bool:
        """Nothing is wrong that would keep events from anybody."""
        outlook = self.outlook
        wrong = outlook.down or outlook.blind or outlook.cut or outlook.mute
        return not (wrong or self.slow or self.struck)

    def _kill_witness(self) -> ProcessFault | None:
        fleet, outlook = self.fleet, self.outlook
        region = self._pick(
            [r for r in fleet.regions if fleet.wiring.has_witness(r) and r not in outlook.blind]
        )
        if not region:
            return None
        if len(outlook.up(region)) == len(fleet.regions[region]):
            # One that came back a moment ago may still be on its way into the chain.
            fleet.wait(lambda: sorted(fleet.members(region)) == sorted(fleet.regions[region]))
        self.look()
        fleet.kill(witness_name(region))
        outlook.witness_down(region)

        def end() -> None:
            fleet.restart(witness_name(region))
            outlook.witness_up(region)

        return ProcessFault("kill-witness", region, end)

    # ------------------------------------------------------------ links

    def _cut_link(self) -> ProcessFault | None:
        cut = self.outlook.cut
        wire = self._pick([wire for wire in self.fleet.wiring.wires() if wire not in cut])
        direction = self._pick(["both", "both", "forward", "back"])
        if not wire:
            return None
        self.fleet.relay.cut(wire, direction)
        cut[wire] = True

        def end() -> None:
            self.fleet.relay.mend(wire)
            del cut[wire]

        return ProcessFault("cut-link", f"{wire} {direction}", end)

    def _slow_link(self) -> ProcessFault | None:
        wires = [wire for wire in self.fleet.wiring.wires() if wire not in self.slow]
        wire = self._pick([wire for wire in wires if wire not in self.outlook.cut])
        if not wire:
            return None
        self.fleet.relay.degrade(wire, SLOW)
        self.slow[wire] = True

        def end() -> None:
            if wire not in self.outlook.cut:  # else what mends that mends this
                self.fleet.relay.mend(wire)
            del self.slow[wire]

        return ProcessFault("slow-link", wire, end)

    def _cut_publisher(self) -> ProcessFault | None:
        mute = self.outlook.mute
        region = self._pick([r for r in self.fleet.regions if r not in mute])
        direction = self._pick(["both", "forward", "back"])
        if not region:
            return None
        self.fleet.relay.cut(f"{region}/pub", direction)
        mute[region] = True

        def end() -> None:
            self.fleet.relay.mend(f"{region}/pub")
            del mute[region]

        return ProcessFault("cut-publisher", f"{region}/pub {direction}", end)

    def _reset_publisher(self) -> ProcessFault | None:
        region = self._pick(list(self.fleet.regions))

        def reset() -> None:
            for _ in range(RESETS):
                self._reset(region)

        reset()
        return ProcessFault("reset-publisher", f"{region}/pub", reset)

    def _reset(self, region: str) -> None:
        """Break the connections of a publisher, and wait until it has made new ones."""
        relay, wire = self.fleet.relay, f"{region}/pub"
        before = relay.stats()[wire].accepted
        relay.reset(wire)
        if region not in self.outlook.mute and self.outlook.works(region):
            self.fleet.wait(lambda: relay.stats()[wire].accepted > before)

    # ------------------------------------------------------------ readers

    def _kill_client(self) -> ProcessFault | None:
        return self._kill_reader("kill-client", self.fleet.clients)

    def _kill_thin(self) -> ProcessFault | None:
        return self._kill_reader("kill-thin", self.fleet.thin)

    def _kill_named(self) -> ProcessFault | None:
        return self._kill_reader("kill-named", list(self.fleet.named))

    def _kill_reader(self, kind: str, readers: list[str]) -> ProcessFault | None:
        name = self._pick([reader for reader in readers if reader not in self.struck])
        if not name:
            return None
        self.fleet.kill(name)
        self.struck[name] = True

        def end() -> None:
            self.fleet.restart(name)
            del self.struck[name]

        return ProcessFault(kind, name.partition("@")[0], end)

    def _stop_reader(self) -> ProcessFault | None:
        name = self._pick([reader for reader in self.fleet.readers if reader not in self.struck])
        if not name:
            return None
        self.fleet.stop(name)
        self.struck[name] = True

        def end() -> None:
            self.fleet.cont(name)
            del self.struck[name]

        return ProcessFault("stop-reader", name.partition("@")[0], end)
