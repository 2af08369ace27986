"""The swarm scenario `sprinkler-deletion`: streams are deleted while publishers write to them.

The regions, publishers, readers and faults are those of `sprinkler.py`. In addition, some streams
are deleted at a random moment by a publisher of any region, while other publishers continue. Some
of the names are used for new streams, up to twice, by publishers of any region, and also at the
moment of the deletion. Clients use named subscriptions, which operators reset and delete
(`query_clients.py`), and read ranges.

At the end the following must hold. Every publish before a deletion is acknowledged, and every later
one is refused as deleted. No position follows the End event, which marks the deletion. Every
replica of every region knows that the stream is deleted, and which stream now has its name. A new
stream begins at position 1, and no event of the former stream can be read from it. No named
subscription has a position in a deleted stream.
"""

from collections.abc import Iterable
from functools import partial
from random import Random
from typing import Any

import msgspec

from surecast.columns.batch import CONFIG
from surecast.columns.retention import End, encode_policy
from surecast.core.endpoint import Open, Opened
from surecast.core.streams import StreamInfo, StreamSpec
from surecast.core.types import MS, SECOND
from surecast.protocols.sprinkler.checks import Record, Tally
from surecast.protocols.streams.messages import (
    Advance,
    Attach,
    CursorDelete,
    CursorReset,
    ReadRange,
)
from surecast.sim.faults import Damage, Fault, RollBack
from surecast.sim.trace import Trace
from surecast.sim.world import World
from surecast_lab.swarm import trial
from surecast_lab.swarm.query_clients import (
    ONLY_HERE,
    QueryClientsPlan,
    draw_changes,
    draw_query_clients,
)
from surecast_lab.swarm.range_readers import draw_ranges
from surecast_lab.swarm.sprinkler import Plan, Sprinkler
from surecast_lab.swarm.sprinkler import draw_plan as draw_common
from surecast_lab.swarm.timeline import Timeline
from surecast_lab.swarm.trial import WARM_UP_NS, SeedResult
from surecast_lab.swarm.workload import draw_workload

__all__ = ["END", "SCENARIO", "Renewal", "SprinklerDeletion", "draw_plan", "run_seed"]

END = encode_policy(End())
# Interval at which a name is opened until it has a new stream. It is longer than the publisher's
# `retry_ns`, because a publisher repeats unanswered publishes only if it got no answer for so long.
OPEN_NS = 1500 * MS
NEEDED = (Attach, Advance, CursorReset, CursorDelete, ReadRange)


class Renewal(msgspec.Struct):
    """A stream that is created under the name of a deleted one."""

    record: str  # the name of its record: the stream's name with a number
    name: str
    former: str  # the record of the deleted stream
    at_ns: int
    owner: str
    openers: list[str]


class DeletionPlan(Plan):
    """`deletions`: record → time and publisher."""

    deletions: dict[str, tuple[int, str]] = msgspec.field(default_factory=dict)
    renewals: list[Renewal] = msgspec.field(default_factory=list)


def draw_plan(seed: int) -> DeletionPlan:
    common = draw_common(seed)
    assert common.abroad is not None
    plan = DeletionPlan(**{name: getattr(common, name) for name in Plan.__struct_fields__})
    rng = Random(f"{seed}/deletions")
    names, places = list(plan.streams), list(plan.regions)
    for name in rng.sample(names, rng.randint(1, len(names))):
        at_ns = WARM_UP_NS + rng.randrange(plan.duration_ns)
        plan.deletions[name] = at_ns, f"{rng.choice(places)}/pub0"
    rng = Random(f"{seed}/renewals")
    for name in [*plan.deletions]:
        _draw_renewals(rng, plan, name, common.abroad.owners)
    rng = Random(f"{seed}/named")
    callers = draw_query_clients(rng, places, names, WARM_UP_NS, plan.duration_ns)
    changes = draw_changes(rng, callers.holds, WARM_UP_NS, plan.duration_ns)
    records = [*names, *(renewal.record for renewal in plan.renewals)]
    ranges = draw_ranges(rng, places, records, WARM_UP_NS, plan.duration_ns)
    common.abroad.callers = QueryClientsPlan(callers.holds, [], [], ranges, changes)
    return plan


def _draw_renewals(rng: Random, plan: DeletionPlan, name: str, owners: dict[str, str]) -> None:
    places, former = list(plan.regions), name
    for number in range(2, 2 + rng.choice((0, 1, 1, 2))):
        at_ns, publisher = plan.deletions[former]
        at_ns += rng.randrange(-300 * MS, 3 * SECOND)
        if owners:
            owner = owners[name]
            openers = [f"{place}/pub0" for place in rng.sample(places, rng.randint(1, 3))]
        else:  # the region that creates the stream owns it: only one region may create it
            owner = publisher.split("/")[0]
            openers = [f"{owner}/pub0"]
        record = f"{name}#{number}"
        plan.renewals.append(Renewal(record, name, former, at_ns, owner, openers))
        former = record
        if rng.random() < 0.5:
            deleted_ns = at_ns + rng.randrange(100 * MS, 4 * SECOND)
            plan.deletions[record] = deleted_ns, f"{rng.choice(places)}/pub0"
            if not owners:
                plan.deletions[record] = deleted_ns, openers[0]
        else:
            return


class SprinklerDeletion(Sprinkler):
    state_tables = ()  # the transitions of servers and sessions are those of `sprinkler.py`

    def draw(self, seed: int) -> DeletionPlan:
        return draw_plan(seed)

    def build(self, seed: int, plan: Plan, trace: Trace | None) -> World:
        world = super().build(seed, plan, trace)
        assert isinstance(plan, DeletionPlan)
        self.deleted = list(plan.deletions)
        self.renewals = {renewal.record: renewal for renewal in plan.renewals}
        # Name → (publisher, the stream that it got when it opened the name).
        self.opened: dict[str, list[tuple[str, StreamInfo]]] = {}
        rng = Random(f"{seed}/new streams")
        for renewal in plan.renewals:
            _, policy = plan.streams[renewal.name]
            self.cluster.records[renewal.record] = Record(renewal.record, policy)
            self.cluster.owners[renewal.record] = renewal.owner
            world.call(renewal.at_ns, partial(self._renew, renewal))
            others = [one for one in renewal.openers if not one.startswith(renewal.owner)]
            draw_workload(
                self.cluster,
                rng,
                {renewal.record: (renewal.owner, policy)},
                plan.publishers,
                plan.keys,
                renewal.at_ns + 3 * SECOND,
                {renewal.record: others[:1]},
                renewal.at_ns,
            )
        for name, (at_ns, publisher) in plan.deletions.items():
            self.cluster.offer(at_ns, publisher, name, [END], kind=CONFIG)
            world.call(at_ns, partial(self._note_deletion, name))
        for publisher in self.cluster.publishers:
            world.on_emit(publisher, self._on_opened)
        return world

    def _note_deletion(self, name: str, world: World) -> None:
        stream = self.cluster.streams.get(name)
        if stream is None:
            world.call(world.now_ns + 20 * MS, partial(self._note_deletion, name))
        elif self.callers is not None:
            self.callers.ended_ns[stream] = world.now_ns

    def _renew(self, renewal: Renewal, world: World) -> None:
        """Open the name repeatedly until it has a new stream: at first the former stream may not be
        deleted yet."""
        cluster = self.cluster
        if renewal.record in cluster.streams:
            return
        if renewal.former in cluster.streams:
            cluster.renewed[renewal.name] = renewal.record
            spec = StreamSpec(cluster.records[renewal.record].policy)
            for opener in renewal.openers:
                world.at(world.now_ns, opener, Open(renewal.name, spec))
        world.call(world.now_ns + OPEN_NS, partial(self._renew, renewal))

    def _on_opened(self, _now_ns: int, publisher: str, event: Any) -> None:
        if isinstance(event, Opened) and event.info is not None:
            self.opened.setdefault(event.name, []).append((publisher, event.info))

    def is_expected(self, role: type[Any], message: type[Any]) -> bool:
        if message in NEEDED:
            return True
        return message not in ONLY_HERE and super().is_expected(role, message)

    def allows(self, fault: Fault) -> bool:
        """False for faults that may lose the only copy of a newly written directory entry."""
        if isinstance(fault, Damage | RollBack):
            region, cluster = fault.name.split("/")[0], self.cluster
            for renewal in self.renewals.values():
                coming = cluster.world.now_ns >= renewal.at_ns
                if region == renewal.owner and coming and renewal.record not in cluster.streams:
                    return False
        return super().allows(fault)

    # ------------------------------------------------------------ judging

    def judge(self) -> Tally:
        cluster = self.cluster
        known = {cluster.streams.get(name) for name in self.deleted}
        refused = [f for f in cluster.failed if f.why == "deleted" and f.stream in known]
        cluster.failed = [failed for failed in cluster.failed if failed not in refused]
        for name in self.deleted:
            for value in cluster.refused.get(name, ()):
                del cluster.records[name].offered[value]  # no reader may have received it
        tally = super().judge()
        for name in self.deleted:
            tally.violations += self._problems(name)
        for name in self.renewals:
            acked = cluster.records[name].acked
            if acked and min(acked.values()) != 1:
                tally.violations.append(
                    f"{name}: D4 its first position is {min(acked.values())}, not 1"
                )
        tally.violations += [*self._identities(), *self._leftover_positions()]
        return tally

    def _nodes(self) -> Iterable[tuple[str, dict[str, Any]]]:
        """The replicas that run, and their layers."""
        for nodes in self.cluster.regions.values():
            for node in nodes:
                machine = self.cluster.world.machine(node)
                yield node, {} if machine is None else machine.layers

    def _newest(self, name: str) -> str:
        """The record of the last stream that was created under the name."""
        return next((r.record for r in [*self.renewals.values()][::-1] if r.name == name), name)

    def _problems(self, name: str) -> list[str]:
        acked, found = self.cluster.records[name].acked, []
        if END not in acked:
            return [f"{name}: the deletion was not acknowledged"]
        behind = [seq for seq in acked.values() if seq > acked[END]]
        if behind:
            found.append(f"{name}: D1 positions {behind[:5]} follow the End event")
        for node, layers in self._nodes():
            service = layers.get("streams")
            if service is None or not service.is_deleted(self.cluster.streams[name]):
                found.append(f"{name}: D3 {node} does not know that it is deleted")
        return found

    def _identities(self) -> list[str]:
        """D4: for each name all replicas have the same stream, and publishers got only streams that
        have a record.

        Exception: after the last deletion, a request to open the name that was still unanswered may
        create another stream. All replicas must have this stream in place of the deleted one.
        """
        found, streams = [], self.cluster.streams
        for name in {name.partition("#")[0]: None for name in self.deleted}:
            newest = self._newest(name)
            is_free, last = newest in self.deleted, streams.get(newest, b"")
            named = {
                node: layers["streams"].named(name) if layers else None
                for node, layers in self._nodes()
            }
            if len(set(named.values())) > 1:
                found.append(f"{name}: D4 replicas have different streams: {named}")
            records = [stream for one, stream in streams.items() if one.partition("#")[0] == name]
            for who, info in [*named.items(), *self.opened.get(name, ())]:
                if info is not None and info.stream_id not in records:
                    if not is_free or info.replaces != last:
                        found.append(f"{name}: D4 {who} has another stream: {info}")
            if not is_free and any(
                info is None or info.stream_id != last for info in named.values()
            ):
                found.append(f"{name}: D4 not all replicas have the newest stream: {named}")
        return found

    def _leftover_positions(self) -> list[str]:
        found, deleted = [], {self.cluster.streams.get(name): name for name in self.deleted}
        for node, layers in self._nodes():
            for name, cursor in layers["cursors"].table.items() if layers else ():
                left = [deleted[stream] for stream in cursor.positions if stream in deleted]
                if left:
                    found.append(f"{node}: {name} has positions in deleted streams {left}")
        return found


SCENARIO = SprinklerDeletion


def run_seed(
    seed: int,
    *,
    plan: Plan | None = None,
    trace: Trace | None = None,
    timeline: Timeline | None = None,
    **options: Any,
) -> SeedResult:
    """Run one seed of `SprinklerDeletion(**options)`."""
    return trial.run_seed(
        SprinklerDeletion(**options), seed, plan=plan, trace=trace, timeline=timeline
    )
