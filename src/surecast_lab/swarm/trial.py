"""Runs one seed of a swarm (a randomized fault test in the simulator), for any protocol.

    result = run_seed(Sprinkler(), 42)

A `Scenario` is the part that is specific to a protocol: it builds a simulated world from the plan
drawn from the seed, says which faults are allowed, and judges the result. This module has the part
that is common to all protocols. A run has these phases, in simulated time:

    warm up   WARM_UP_NS without faults: clusters form
    faults    the plan's `duration_ns`: each fault begins at its time, if the scenario allows it,
              and is healed when its own duration is over
    heal      a second later everything is healed
    settle    until `Scenario.settled` returns True, but at most `settle_ns`
    rejoin    REJOIN_NS: nodes that are still behind catch up
    audit     if the scenario has settled: it checks everything once more (`Scenario.audit`)
    judge     in all cases: the verdict from what clients sent and received (`Scenario.judge`)

It is a violation if the scenario does not settle in time. It is also a violation if the code of a
node raises an exception, because in production the node would crash again and again. The same seed
gives the same result in every process.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from surecast.core.machine import HandlerMachine
from surecast.core.states import StateTable
from surecast.core.types import SECOND, tag_of
from surecast.errors import UsageError
from surecast.sim.faults import Fault, Timed
from surecast.sim.trace import Trace
from surecast.sim.world import World

if TYPE_CHECKING:
    from surecast_lab.swarm.timeline import Timeline

__all__ = [
    "REJOIN_NS",
    "SETTLE_NS",
    "WARM_UP_NS",
    "Plan",
    "Scenario",
    "SeedResult",
    "Tally",
    "heal_all",
    "run_seed",
]

WARM_UP_NS = 2 * SECOND
SETTLE_NS = 90 * SECOND
REJOIN_NS = 5 * SECOND
ACKED_MIN = 0.9  # share of the publishes; a run with fewer acknowledgements proves little
VIOLATIONS_MAX = 20  # a result lists at most this many


class Plan(Protocol):
    """What is drawn from a seed. This module uses these fields; a scenario's plan has more."""

    @property
    def duration_ns(self) -> int:
        """How long after WARM_UP_NS faults may begin."""

    @property
    def timed_faults(self) -> Sequence[Timed]: ...


class Tally(Protocol):
    """The counts of a scenario's judge, and the violations it found, as texts for people."""

    published: int
    acked: int
    delivered: int
    void: int
    lost: int
    duplicated: int
    misordered: int
    violations: list[str]


class SeedResult(msgspec.Struct):
    seed: int
    ok: bool
    violations: list[str]
    simulated_ns: int
    settled_ns: int  # time from healing until the scenario had settled
    faults: dict[str, int]
    faults_in_flight: int  # faults that were applied while work was in flight
    published: int
    acked: int
    delivered: int
    void: int
    lost: int
    duplicated: int
    misordered: int
    clients: dict[str, int]  # `Scenario.clients_did`
    coverage: dict[str, int]
    counters: dict[str, int]
    inputs: int
    trace_digest: str = ""
    callers: dict[str, int] = {}  # `Scenario.callers_did`
    # How often each transition of a state table was met, by label; 0: expected, but not met.
    transitions: dict[str, int] = {}


P = TypeVar("P", bound=Plan)


class Scenario(Protocol[P]):
    """A world of one protocol, its faults and its judge. An instance is used for one seed.

    Scenarios derive from this class; methods with a body need not be overridden.
    """

    settle_ns: int = SETTLE_NS  # simulated time to settle after everything is healed
    # Many seeds together must meet every transition in these tables, except transitions for which
    # the table gives a reason why they do not occur.
    state_tables: Sequence[StateTable] = ()

    def draw(self, seed: int) -> P:
        """The plan of a seed: the same in every process."""

    def build(self, seed: int, plan: P, trace: Trace | None) -> World:
        """Create the world, and schedule the workload."""

    @property
    def counters(self) -> Mapping[str, Counter[str]]:
        """For each node: how often it handled each type of message, over all its restarts."""

    def handlers(self) -> Mapping[type[HandlerMachine], Iterable[str]]:
        """The machine classes whose message handlers the seeds must reach, and the nodes that run
        them."""

    def is_expected(self, role: type[HandlerMachine], message: type[Any]) -> bool:
        """Whether the plan can lead to this message. If not, its handler is not in the coverage."""
        return True

    # ------------------------------------------------------------ faults

    def allows(self, fault: Fault) -> bool:
        """False if the protocol does not promise to survive the fault, or it has no target now."""
        return True

    def in_flight(self) -> bool:
        """Whether work is in flight that a fault can hit."""
        return True

    def on_fault(self, fault: Fault) -> None:
        """Called before a fault is applied."""

    def gone(self) -> Collection[str]:
        """Nodes that have left permanently: healing does not restart them."""
        return ()

    # ------------------------------------------------------------ after healing

    def settled(self) -> bool:
        """Whether all work is finished, and all readers have its results."""

    def unsettled(self) -> str:
        """A description of what has not settled, for people."""
        return "not settled"

    def on_settled(self) -> None:
        """Called at the end of the phase "settle", whether or not the run has settled."""

    def audit(self) -> list[str]:
        """Check everything once more, in a world that has settled; returns the violations."""
        return []

    # ------------------------------------------------------------ the end

    def judge(self) -> Tally:
        """The verdict, from what clients observed; also called if the run has not settled."""

    def clients_did(self) -> dict[str, int]:
        """What clients did (joined, left, ...) and which losses the delivery reported: name →
        count."""
        return {}

    def callers_did(self) -> dict[str, int]:
        """Requests and answers of query clients: name → count."""
        return {}

    def show(self, timeline: "Timeline", heal_ns: int) -> None:
        """Have `timeline` observe the run, so that it can be drawn."""
        raise UsageError("the runs of this swarm cannot be drawn: leave out --draw")


def run_seed(
    scenario: Scenario[P],
    seed: int,
    *,
    plan: P | None = None,
    trace: Trace | None = None,
    timeline: "Timeline | None" = None,
) -> SeedResult:
    """Run one seed; `plan` replaces the plan that the seed draws."""
    trial = _Trial(scenario, seed, scenario.draw(seed) if plan is None else plan, trace, timeline)
    trial.run()
    return trial.result()


def heal_all(world: World, gone: Iterable[str]) -> None:
    """`World.heal_all`, except for nodes that have left permanently (`gone`)."""
    world.heal_all()
    for name in gone:
        world.crash(name)


class _Trial:
    """The run of one seed."""

    def __init__(
        self,
        scenario: Scenario[P],
        seed: int,
        plan: P,
        trace: Trace | None,
        timeline: "Timeline | None",
    ) -> None:
        self.scenario, self.seed, self.timeline = scenario, seed, timeline
        self.violations: list[str] = []
        self.applied: Counter[str] = Counter()  # faults, by kind
        self.in_flight = 0
        self.settled_ns = 0
        self.heal_ns = WARM_UP_NS + plan.duration_ns + SECOND
        self.world = scenario.build(seed, plan, trace)
        for timed in plan.timed_faults:
            self._schedule(timed)
        if timeline is not None:
            scenario.show(timeline, self.heal_ns)

    def _schedule(self, timed: Timed) -> None:
        fault = timed.fault

        def apply(world: World) -> None:
            if not self.scenario.allows(fault):
                return
            self.applied[type(fault).__name__.lower()] += 1
            self.in_flight += self.scenario.in_flight()
            self.scenario.on_fault(fault)
            if self.timeline is not None:
                self.timeline.note_fault(fault, world.now_ns, world.now_ns + timed.for_ns)
            fault.apply(world)
            world.call(world.now_ns + timed.for_ns, heal)

        def heal(world: World) -> None:
            if getattr(fault, "name", "") not in self.scenario.gone():
                fault.heal(world)

        self.world.call(timed.at_ns, apply)

    def run(self) -> None:
        try:
            self._run()
        except Exception as problem:
            notes = " ".join(getattr(problem, "__notes__", []))
            self.violations.append(f"a machine failed: {problem!r} {notes[:500]}")

    def _run(self) -> None:
        scenario, world = self.scenario, self.world
        world.run(self.heal_ns)
        heal_all(world, scenario.gone())
        limit_ns = self.heal_ns + scenario.settle_ns
        settled = world.run(limit_ns, until=lambda _: scenario.settled())
        self.settled_ns = world.now_ns - self.heal_ns
        if not settled:
            self.violations.append(scenario.unsettled())
        scenario.on_settled()
        world.run(world.now_ns + REJOIN_NS)
        if settled:
            self.violations += scenario.audit()

    def result(self) -> SeedResult:
        scenario, world = self.scenario, self.world
        tally = scenario.judge()
        violations = [*self.violations, *tally.violations]
        if tally.acked < ACKED_MIN * tally.published:
            violations.append(
                f"only {tally.acked} of {tally.published} publishes were acknowledged"
            )
        counters = sum(scenario.counters.values(), Counter[str]())
        return SeedResult(
            seed=self.seed,
            ok=not violations,
            violations=violations[:VIOLATIONS_MAX],
            simulated_ns=world.now_ns,
            settled_ns=self.settled_ns,
            faults=dict(self.applied),
            faults_in_flight=self.in_flight,
            published=tally.published,
            acked=tally.acked,
            delivered=tally.delivered,
            void=tally.void,
            lost=tally.lost,
            duplicated=tally.duplicated,
            misordered=tally.misordered,
            clients=scenario.clients_did(),
            coverage=_coverage(scenario),
            counters={k: v for k, v in sorted(counters.items()) if "." in k},
            inputs=world.inputs,
            trace_digest=world.trace.digest() if world.trace is not None else "",
            callers=scenario.callers_did(),
            transitions=_transitions(scenario, world.met),
        )


def _coverage(scenario: Scenario[Any]) -> dict[str, int]:
    """How often each message handler ran, by role; 0 for handlers that never ran."""
    counters = scenario.counters
    return {
        f"{role.__name__}.{name}": sum(counters[node][tag_of(message)] for node in nodes)
        for role, nodes in scenario.handlers().items()
        for message, name in role.handlers.items()
        if scenario.is_expected(role, message)
    }


def _transitions(scenario: Scenario[Any], met: Mapping[str, int]) -> dict[str, int]:
    """How often each transition of a state table occurred; 0 for those of the scenario's tables
    that did not occur."""
    expected = {
        label: 0
        for table in scenario.state_tables
        for label, reason in table.labels().items()
        if not reason
    }
    return {**expected, **dict(sorted(met.items()))}
