"""The swarm scenario `sprinkler-typed`: streams with schemas, which are changed under way.

The regions, publishers, readers and faults are those of `sprinkler.py`. In addition, most streams
have a schema, and their events have attributes. Clients of all regions request changes of the
schemas, several of which do not fit together. Each publisher uses a version of the schema that was
acknowledged when it publishes, often an earlier one than the last.

At the end the following must hold. Every event is delivered with the attributes that it was
published with, and has only columns of the schema at its position. The changes that were
acknowledged extend one another in the order of their positions; all others are refused because they
do not fit. Every replica of every region has the last schema.
"""

from random import Random
from typing import Any

import msgspec

from surecast.columns.batch import CONFIG
from surecast.columns.rules import NewSchema, encode_policy
from surecast.columns.schema import extends
from surecast.columns.typed import Attributes
from surecast.endpoint.attributes import writer_of
from surecast.protocols.sprinkler.checks import Tally
from surecast.sim.trace import Trace
from surecast.sim.world import World
from surecast_lab.swarm import trial
from surecast_lab.swarm.cluster import Cluster
from surecast_lab.swarm.sprinkler import Plan, Sprinkler
from surecast_lab.swarm.sprinkler import draw_plan as draw_common
from surecast_lab.swarm.timeline import Timeline
from surecast_lab.swarm.trial import WARM_UP_NS, SeedResult

__all__ = ["SCENARIO", "Change", "SprinklerTyped", "TypedPlan", "draw_plan", "run_seed"]

SHARE = 0.8  # of the streams have a schema
CHANGES_MAX = 8  # requested changes of one stream
# Types of columns, and the values of one, of which None is another.
VALUES: dict[str, tuple[Any, ...]] = {
    "bool": (False, True),
    "int8": (-1, 7),
    "int64": (0, 1 << 53),
    "float32": (0.5, float("inf")),
    "float64": (0.1, -0.0, float("nan")),
    "string": ("", "x", "größer"),
    "binary": (b"", b"\x00\xff"),
    "decimal(10, 2)": (1, -3),
    "list(int32)": ([], [1, None]),
}


class Change(msgspec.Struct):
    """A requested change of a schema."""

    stream: str
    at_ns: int
    region: str  # of the client that requests it
    schema: str  # the whole new schema


class TypedPlan(Plan):
    """`schemas`: stream → its schema when it is created."""

    schemas: dict[str, str] = msgspec.field(default_factory=dict)
    changes: list[Change] = msgspec.field(default_factory=list)


def draw_plan(seed: int) -> TypedPlan:
    common = draw_common(seed)
    assert common.abroad is not None
    plan = TypedPlan(**{name: getattr(common, name) for name in Plan.__struct_fields__})
    rng = Random(f"{seed}/schemas")
    places = list(plan.regions)
    for name in [*plan.streams, *common.abroad.late]:
        if rng.random() > SHARE:
            continue
        first = ", ".join(
            f"c{n} {rng.choice([*VALUES])}" + rng.choice(("", " not null"))
            for n in range(rng.randint(1, 3))
        )
        plan.schemas[name] = first
        versions = [first]
        for number in range(rng.randint(0, CHANGES_MAX)):
            # Often the last version, so that some changes fit, and seldom an earlier one.
            before = rng.choice(versions[-1:] * 3 + versions)
            added = f", x{number} {rng.choice([*VALUES])}"
            if rng.random() < 0.3:
                added += f", y{number} {rng.choice([*VALUES])}"
            versions.append(before + added)
        moments = sorted(
            WARM_UP_NS + rng.randrange(plan.duration_ns) for _ in range(len(versions) - 1)
        )
        for at_ns, schema in zip(moments, versions[1:], strict=True):
            plan.changes.append(Change(name, at_ns, rng.choice(places), schema))
    return plan


class SprinklerTyped(Sprinkler):
    state_tables = ()  # the transitions of servers and sessions are those of `sprinkler.py`

    def draw(self, seed: int) -> TypedPlan:
        return draw_plan(seed)

    def make_cluster(self, seed: int, plan: Any, trace: Trace | None, **options: Any) -> Cluster:
        cluster = super().make_cluster(seed, plan, trace, **options)
        self.plan: TypedPlan = plan
        self.rng = Random(f"{seed}/rows")
        cluster.schemas = plan.schemas
        cluster.rows_of = self._rows
        # Changes have publishers of their own: after a refusal a publisher's next batches fail.
        for region in {change.region: None for change in plan.changes}:
            cluster.add_publisher(f"{region}/changer")
        return cluster

    def build(self, seed: int, plan: Plan, trace: Trace | None) -> World:
        world = super().build(seed, plan, trace)
        for change in self.plan.changes:
            publisher = f"{change.region}/changer"
            value = encode_policy(NewSchema(change.schema))
            self.cluster.offer(change.at_ns, publisher, change.stream, [value], kind=CONFIG)
        return world

    def _made(self, stream: str) -> list[str]:
        """The acknowledged changes of a stream, in the order of their positions."""
        acked = self.cluster.records[stream].acked
        changes = {
            change.schema: acked.get(encode_policy(NewSchema(change.schema)), 0)
            for change in self.plan.changes
            if change.stream == stream
        }
        return sorted(filter(changes.__getitem__, changes), key=changes.__getitem__)

    def _rows(self, stream: str, count: int) -> Attributes:
        """The attributes of new events, of some version that a client may know."""
        schema = self.rng.choice([self.plan.schemas[stream], *self._made(stream)[-2:]])
        writer = writer_of(schema)
        assert writer is not None
        rows = []
        for _ in range(count):
            row = {}
            nodes = zip(
                writer.schema.names,
                writer.schema.type_names,
                writer.schema.types.nodes,
                strict=True,
            )
            for name, kind, node in nodes:
                value = self.rng.choice((*VALUES[kind], None) if node.nullable else VALUES[kind])
                row[name] = value
            rows.append(writer.row(row).fields)
        return writer.attributes(rows)

    def judge(self) -> Tally:
        cluster = self.cluster
        differing = [f for f in cluster.failed if f.why == "schema-differs"]
        cluster.failed = [failed for failed in cluster.failed if failed not in differing]
        found: list[str] = []
        for stream in self.plan.schemas:
            for value in cluster.refused.get(stream, ()):
                cluster.records[stream].offered.pop(value, None)  # no reader may have received it
            found += self._problems(stream)
        tally = super().judge()
        tally.violations[:0] = found
        return tally

    def _problems(self, stream: str) -> list[str]:
        found = []
        schema = self.plan.schemas[stream]
        for later in self._made(stream):
            if not extends(later, schema):
                found.append(f"{stream}: S2 {later!r} does not extend {schema!r}")
            schema = later
        stream_id = self.cluster.streams[stream]
        for nodes in self.cluster.regions.values():
            for node in nodes:
                machine = self.cluster.world.machine(node)
                state = None if machine is None else machine.layers["streams"].streams[stream_id]
                if state is not None and state.info.schema != schema:
                    found.append(f"{stream}: S4 {node} has {state.info.schema!r}, not {schema!r}")
        return found


SCENARIO = SprinklerTyped


def run_seed(
    seed: int,
    *,
    plan: Plan | None = None,
    trace: Trace | None = None,
    timeline: Timeline | None = None,
    **options: Any,
) -> SeedResult:
    """Run one seed of `SprinklerTyped(**options)`."""
    return trial.run_seed(
        SprinklerTyped(**options), seed, plan=plan, trace=trace, timeline=timeline
    )
