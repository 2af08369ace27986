"""One seed of any protocol's swarm: draw, build, apply faults, heal everything, judge.

    result = run_seed(Sprinkler(), 42)

A `Scenario` says what is built, which faults it can stand and when it is right; all that the seeds
of different protocols have in common is here. The phases, in simulated time:

    warm up   WARM_UP_NS without faults: clusters form
    faults    the plan's `duration_ns`: each fault begins at its time, if the scenario allows it,
              and is healed when its own duration is over
    heal      a second later everything is healed
    settle    at most the scenario's `settle_ns`, until it says that it has settled
    rejoin    REJOIN_NS: nodes that were left behind come back
    audit     only of what has settled: the scenario looks at everything once more
    judge     always

Not settling is a violation, and so is an exception of a machine, which would be a crash loop in
production. The same seed gives the same result in every process.
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
ACKED_MIN = 0.9  # of what was published; a run in which less is done shows nothing
VIOLATIONS_MAX = 20  # that a result names


class Plan(Protocol):
    """What a seed draws. Only its scenario knows the rest."""

    @property
    def duration_ns(self) -> int:
        """How long after WARM_UP_NS faults may begin."""

    @property
    def timed_faults(self) -> Sequence[Timed]: ...


class Tally(Protocol):
    """What a judge counted and found; `violations` are for people."""

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
    settled_ns: int  # how long after healing the scenario had settled
    faults: dict[str, int]
    faults_in_flight: int  # those that met work under way
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
    """What a trial runs: a world of one protocol, its faults and its judge. One instance, one seed.

    Scenarios derive from it; methods with a body may stay as they are.
    """

    settle_ns: int = SETTLE_NS  # simulated time to settle after everything is healed
    # Many seeds together meet every transition in these tables that gives no reason why not.
    state_tables: Sequence[StateTable] = ()

    def draw(self, seed: int) -> P:
        """The plan of a seed: the same in every process."""

    def build(self, seed: int, plan: P, trace: Trace | None) -> World:
        """Make the world, and put the workload on its agenda."""

    @property
    def counters(self) -> Mapping[str, Counter[str]]:
        """Of each node, through all its lives: how often it handled which message."""

    def handlers(self) -> Mapping[type[HandlerMachine], Iterable[str]]:
        """The machines whose message handlers must be reached, and the nodes they run at."""

    def is_expected(self, role: type[HandlerMachine], message: type[Any]) -> bool:
        """False: nothing in this plan leads to this message. Then its handler is not listed."""
        return True

    # ------------------------------------------------------------ faults

    def allows(self, fault: Fault) -> bool:
        """False: the fault exceeds what the protocol promises to survive, or has no target now."""
        return True

    def in_flight(self) -> bool:
        """Whether work is under way that a fault can hit."""
        return True

    def on_fault(self, fault: Fault) -> None:
        """A fault is about to be applied."""

    def gone(self) -> Collection[str]:
        """Nodes that left for good: healing does not bring them back."""
        return ()

    # ------------------------------------------------------------ after healing

    def settled(self) -> bool:
        """Everything that was begun is done, and everybody has it."""

    def unsettled(self) -> str:
        """What is not, for people."""
        return "not settled"

    def on_settled(self) -> None:
        """The phase "settle" is over, in time or not."""

    def audit(self) -> list[str]:
        """Look at everything once more, in a world that has settled; what is wrong."""
        return []

    # ------------------------------------------------------------ the end

    def judge(self) -> Tally:
        """The verdict on what was seen from outside; also on runs that have not settled."""

    def clients_did(self) -> dict[str, int]:
        """What happened to clients, and how often; also losses that the delivery may report."""
        return {}

    def callers_did(self) -> dict[str, int]:
        """How often something was asked and answered."""
        return {}

    def show(self, story: "Timeline", heal_ns: int) -> None:
        """Have the run drawn."""
        raise UsageError("the runs of this swarm cannot be drawn: leave out --draw")


def run_seed(
    scenario: Scenario[P],
    seed: int,
    *,
    plan: P | None = None,
    trace: Trace | None = None,
    story: "Timeline | None" = None,
) -> SeedResult:
    """Run one seed, or another plan in its place."""
    trial = _Trial(scenario, seed, scenario.draw(seed) if plan is None else plan, trace, story)
    trial.run()
    return trial.result()


def heal_all(world: World, gone: Iterable[str]) -> None:
    """`World.heal_all`, but the nodes that left for good stay away."""
    world.heal_all()
    for name in gone:
        world.crash(name)


class _Trial:
    """One seed's world on its way."""

    def __init__(
        self,
        scenario: Scenario[P],
        seed: int,
        plan: P,
        trace: Trace | None,
        story: "Timeline | None",
    ) -> None:
        self.scenario, self.seed, self.story = scenario, seed, story
        self.violations: list[str] = []
        self.applied: Counter[str] = Counter()  # faults, by kind
        self.in_flight = 0
        self.settled_ns = 0
        self.heal_ns = WARM_UP_NS + plan.duration_ns + SECOND
        self.world = scenario.build(seed, plan, trace)
        for timed in plan.timed_faults:
            self._schedule(timed)
        if story is not None:
            scenario.show(story, self.heal_ns)

    def _schedule(self, timed: Timed) -> None:
        fault = timed.fault

        def apply(world: World) -> None:
            if not self.scenario.allows(fault):
                return
            self.applied[type(fault).__name__.lower()] += 1
            self.in_flight += self.scenario.in_flight()
            self.scenario.on_fault(fault)
            if self.story is not None:
                self.story.suffer(fault, world.now_ns, world.now_ns + timed.for_ns)
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
    """How often each message handler ran, by role; 0 for those that were never reached."""
    counters = scenario.counters
    return {
        f"{role.__name__}.{name}": sum(counters[node][tag_of(message)] for node in nodes)
        for role, nodes in scenario.handlers().items()
        for message, name in role.handlers.items()
        if scenario.is_expected(role, message)
    }


def _transitions(scenario: Scenario[Any], met: Mapping[str, int]) -> dict[str, int]:
    """How often each transition was met; 0 for those of the scenario's tables that were not."""
    expected = {
        label: 0
        for table in scenario.state_tables
        for label, reason in table.labels().items()
        if not reason
    }
    return {**expected, **dict(sorted(met.items()))}
