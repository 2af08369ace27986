"""Disk faults of simulated swarms: damaged disks, and disks replaced by older copies.

This module draws these faults from a seed and decides, when a fault is due, whether it is allowed.
A fault is skipped if it could destroy the last readable copy of some data, because the protocols
promise nothing in this case. So in a region of several replicas another member of the chain must
have all data; if the chain has only one member, a replica that was removed from it must have
everything that the fault can destroy. If a region has only one replica, another region must have
all streams that it owns.

During the run the module also checks every replica: if a disk has holes (positions that cannot be
read), its replica must not be head or tail of a chain that has other members.
"""

from functools import partial
from random import Random

import msgspec

from surecast.core.types import DAMAGE, MS, SECOND, LogId
from surecast.protocols.chain.messages import Member
from surecast.sim.faults import Crash, Damage, Fault, RollBack, Timed, draw
from surecast.sim.world import World
from surecast_lab.swarm.cluster import Cluster

__all__ = ["DamagePlan", "Damages", "draw_damage"]

WATCH_NS = 20 * MS


class DamagePlan(msgspec.Struct):
    """The faults that a seed draws."""

    faults: list[Timed]
    copies: list[tuple[int, str]]  # (time, node): when a disk is copied, for a later roll back


def draw_damage(
    rng: Random, regions: dict[str, int], warm_up_ns: int, duration_ns: int
) -> DamagePlan:
    plan = DamagePlan([], [])
    replicas = [f"{r}/{n}" for r, count in regions.items() for n in range(count)]
    for _ in range(rng.randint(1, 5)):
        at_ns = warm_up_ns + rng.randrange(duration_ns)
        for_ns = int(min(rng.expovariate(1 / SECOND), 5 * SECOND)) + 20 * MS
        fault = draw(rng, replicas, [], ["damage", "damage", "roll back"])
        assert isinstance(fault, Damage | RollBack)
        region, copied = fault.name.split("/")[0], [fault.name]
        if isinstance(fault, RollBack) and regions[region] == 1:
            # The witness of this region (the node `config`) has its state in the same folder.
            fault = RollBack(fault.name, f"{region}/config")
            copied.append(fault.beside)
        plan.faults.append(Timed(at_ns, for_ns, fault))
        copied_ns = max(at_ns - int(rng.expovariate(1 / (2 * SECOND))), warm_up_ns // 2)
        plan.copies += [(copied_ns, name) for name in copied]
    pairs = [region for region, count in regions.items() if count == 2]
    if pairs and rng.random() < 0.5:  # damage one of two replicas while the other is down
        region, at_ns = rng.choice(pairs), warm_up_ns + rng.randrange(duration_ns)
        last = rng.randrange(2)
        hit = Damage(f"{region}/{last}", "segment", rng.randrange(1 << 30), share=0.5)
        plan.faults.append(Timed(at_ns, 3 * SECOND, Crash(f"{region}/{1 - last}")))
        plan.faults.append(Timed(at_ns + 2 * SECOND, 100 * MS, hit))
    return plan


class Damages:
    """The damage of one seed: which faults are allowed, and violations found meanwhile."""

    def __init__(self, cluster: Cluster, plan: DamagePlan, named_in: list[str]) -> None:
        self.cluster = cluster
        self.violations: list[str] = []
        self.named_in = named_in  # regions that store positions of named subscriptions
        for at_ns, name in plan.copies:
            cluster.world.call(at_ns, partial(World.copy_disk, name=name))
        cluster.world.call(0, self._watch)

    def allows(self, fault: Fault) -> bool:
        if not isinstance(fault, Damage | RollBack):
            return True
        region = fault.name.split("/")[0]
        if len(self.cluster.regions[region]) > 1:
            return self._has_whole_member(region, fault.name) or self._is_only_member(region, fault)
        # If a region has one replica, the positions of its named subscriptions are only there.
        return region not in self.named_in and self._is_elsewhere(region, fault.name)

    def _has_whole_member(self, region: str, name: str) -> bool:
        others = [m for m in self.cluster.members(region) if m.name != name]
        return any(self._is_whole(m.name, m.disk) for m in others)

    def _is_whole(self, name: str, disk_id: bytes) -> bool:
        machine = self.cluster.world.machine(name)
        if machine is None:
            return False
        chain = machine.layers["chain"]
        if chain.store_failures or self.cluster.world.disk(name).failing:
            return False  # it may soon leave the chain, and then the chain needs an operator
        return bool(
            chain.is_member and chain.me.disk == disk_id and not chain.holes and chain.saved.clean
        )

    def _is_only_member(self, region: str, fault: Damage | RollBack) -> bool:
        """Whether the replica is the only member of its chain, and another replica, which is not a
        member any more, has every position that the damage can destroy."""
        if not isinstance(fault, Damage) or fault.kind not in ("record", "segment"):
            return False
        members = self.cluster.members(region)
        if [m.name for m in members] != [fault.name] or not self._is_whole(*_pair(members[0])):
            return False
        disk = self.cluster.world.disk(fault.name)
        # Damage destroys only positions in the first `share` of each log.
        return any(
            all(
                self._saved_end(other, log) > 1 + fault.share * (disk.end(log) - 1)
                for log in disk.logs()
            )
            for other in self.cluster.regions[region]
            if other != fault.name
        )

    def _saved_end(self, name: str, log: LogId) -> int:
        """The end of a log's committed positions as saved on the replica's disk; 1 if it is unknown
        or the disk is damaged."""
        disk = self.cluster.world.disk(name)
        saved = disk.state("chain/committed")
        if saved is None or disk.holes(log) or disk.state(DAMAGE):
            return 1
        return msgspec.msgpack.decode(saved, type=tuple[int, dict[bytes, int]])[1].get(log, 1)

    def _is_elsewhere(self, region: str, name: str) -> bool:
        """Whether all events of each stream that a lone replica owns are committed elsewhere, and
        the replica itself is running and has no lost logs to recover."""
        world = self.cluster.world
        disk = world.disk(name)
        for stream, stream_id in self.cluster.streams.items():
            if self.cluster.owners[stream] != region:
                continue
            others = [n for r, nodes in self.cluster.regions.items() if r != region for n in nodes]
            if not any(
                self._has_committed(other, stream_id, disk.end(stream_id)) for other in others
            ):
                return False
        machine = world.machine(name)
        return machine is not None and machine.layers["chain"].saved.clean

    def _has_committed(self, name: str, stream_id: LogId, end: int) -> bool:
        machine, disk = self.cluster.world.machine(name), self.cluster.world.disk(name)
        if machine is None or disk.holes(stream_id) or disk.state(DAMAGE):
            return False
        chain = machine.layers["chain"]
        state = chain.logs.get(stream_id)
        return bool(chain.is_member and state is not None and state.committed >= end)

    def _watch(self, world: World) -> None:
        for nodes in self.cluster.regions.values():
            for name in nodes:
                machine = world.machine(name)
                if machine is None or len(self.violations) > 5:
                    continue
                chain, server = machine.layers["chain"], machine.layers["streams"]
                if chain.holes and len(chain.members) > 1 and (server.is_head or server.is_tail):
                    self.violations.append(
                        f"{name} is head or tail at {world.now_ns} ns, but cannot read "
                        f"{sum(map(len, chain.holes.values()))} ranges of its logs"
                    )
        world.call(world.now_ns + WATCH_NS, self._watch)


def _pair(member: Member) -> tuple[str, bytes]:
    return member.name, member.disk
