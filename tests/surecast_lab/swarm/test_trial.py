"""Trials of a tiny scenario: phases, faults, coverage and violations."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from random import Random
from typing import Any, ClassVar

import msgspec
import pytest

from surecast.core.machine import HandlerMachine
from surecast.core.sessions import SESSION
from surecast.core.types import MS, SECOND, Emit, Message, SetTimer, Start, TimerFired, tagged
from surecast.errors import UsageError
from surecast.protocols.sprinkler.checks import Tally
from surecast.sim.faults import Crash, Cut, Fault, Pause, Timed
from surecast.sim.links import Link
from surecast.sim.trace import Trace
from surecast.sim.world import World
from surecast_lab.swarm.timeline import Timeline
from surecast_lab.swarm.trial import (
    REJOIN_NS,
    SETTLE_NS,
    WARM_UP_NS,
    Scenario,
    SeedResult,
    run_seed,
)

AGAIN_NS = 100 * MS


class PingMessage(Message, tag=tagged("pings")):
    pass


class Ping(PingMessage):
    number: int


class Pong(PingMessage):
    number: int


class Goodbye(PingMessage):
    """A message that no machine sends."""


class Asker(HandlerMachine):
    """Sends numbered pings: the next one after an answer, the same one again without an answer."""

    handlers: ClassVar = {Pong: "_on_pong"}
    inputs: ClassVar = {Start: "_on_start", TimerFired: "_on_timer"}

    def __init__(self, count: int, counters: Counter[str]) -> None:
        super().__init__(counters)
        self.count, self.number = count, 1

    def _on_start(self, _inp: Start) -> None:
        self._on_timer(None)

    def _on_timer(self, _inp: Any) -> None:
        if self.number <= self.count:
            self._send("b/answers", Ping(self.number))
            self.out.append(SetTimer("again", self.now_ns + AGAIN_NS))

    def _on_pong(self, _peer: str, message: Pong) -> None:
        if message.number == self.number:
            self.out.append(Emit(self.number))
            self.number += 1


class TakesAnAnswerForTwo(Asker):
    def _on_pong(self, peer: str, message: Pong) -> None:
        super()._on_pong(peer, message)
        self.out.append(Emit(message.number))


class Answerer(HandlerMachine):
    handlers: ClassVar = {Ping: "_on_ping", Goodbye: "_on_goodbye"}

    def _on_ping(self, peer: str, message: Ping) -> None:
        self._send(peer, Pong(message.number))

    def _on_goodbye(self, _peer: str, _message: Goodbye) -> None:
        raise AssertionError


class AnswersWrongly(Answerer):
    def _on_ping(self, peer: str, message: Ping) -> None:
        self._send(peer, Pong(0 if message.number == 5 else message.number))


class Raises(Answerer):
    def _on_ping(self, peer: str, message: Ping) -> None:
        if message.number == 5:
            raise ValueError("five")
        super()._on_ping(peer, message)


class PingPlan(msgspec.Struct):
    duration_ns: int
    timed_faults: list[Timed]
    pings: int


class Pings(Scenario[PingPlan]):
    """One node sends pings, another answers; every ping must be answered, in order."""

    def __init__(
        self,
        answerer: type[Answerer] = Answerer,
        asker: type[Asker] = Asker,
        allowed: Callable[[Fault], bool] = lambda fault: True,
    ) -> None:
        self.answerer, self.asker, self.allowed = answerer, asker, allowed
        self.counts: dict[str, Counter[str]] = {"a/asks": Counter(), "b/answers": Counter()}
        self.pings = 0
        self.answered: list[int] = []
        self.audited_ns = 0
        self.away: list[str] = []

    def draw(self, seed: int) -> PingPlan:
        rng = Random(f"{seed}/pings")
        faults = [
            Timed(WARM_UP_NS + rng.randrange(SECOND), rng.randrange(SECOND), Crash("b/answers"))
        ]
        return PingPlan(2 * SECOND, faults, rng.randint(10, 50))

    def build(self, seed: int, plan: PingPlan, trace: Trace | None) -> World:
        self.pings = plan.pings
        self.world = world = World(seed, Link(5 * MS), trace=trace)
        world.on_emit("a/asks", lambda _now_ns, _name, number: self.answered.append(number))
        world.add("b/answers", lambda ctx: self.answerer(self.counts[ctx.name]))
        world.add("a/asks", lambda ctx: self.asker(plan.pings, self.counts[ctx.name]))
        return world

    @property
    def counters(self) -> dict[str, Counter[str]]:
        return self.counts

    def handlers(self) -> dict[type[HandlerMachine], Iterable[str]]:
        return {Asker: ["a/asks"], Answerer: ["b/answers"]}

    def allows(self, fault: Fault) -> bool:
        return self.allowed(fault)

    def in_flight(self) -> bool:
        return len(self.answered) < self.pings

    def gone(self) -> Collection[str]:
        return self.away

    def settled(self) -> bool:
        return len(self.answered) >= self.pings

    def unsettled(self) -> str:
        return f"{len(self.answered)} of {self.pings} were answered"

    def audit(self) -> list[str]:
        self.audited_ns = self.world.now_ns
        return []

    def judge(self) -> Tally:
        tally = Tally(published=self.pings, acked=len(self.answered))
        if self.answered != list(range(1, len(self.answered) + 1)):
            tally.violations.append(f"G1 answered in the order {self.answered}")
        return tally


def plan_of(*faults: Timed, pings: int = 30) -> PingPlan:
    return PingPlan(2 * SECOND, list(faults), pings)


def crash_at(seconds: float, name: str = "b/answers", for_ns: int = 500 * MS) -> Timed:
    return Timed(int(seconds * SECOND), for_ns, Crash(name))


def test_a_sound_scenario_passes_and_its_phases_follow_each_other() -> None:
    scenario = Pings()
    result = run_seed(scenario, 1, plan=plan_of(crash_at(0.5), crash_at(2.5)))
    assert result.ok
    assert result.violations == []
    assert (result.published, result.acked) == (30, 30)
    assert result.faults == {"crash": 2}
    assert result.faults_in_flight == 2
    heal_ns = WARM_UP_NS + 2 * SECOND + SECOND
    assert scenario.audited_ns == heal_ns + result.settled_ns + REJOIN_NS


def test_a_violation_that_the_judge_finds_is_reported() -> None:
    result = run_seed(Pings(asker=TakesAnAnswerForTwo), 1, plan=plan_of(pings=3))
    assert not result.ok
    assert result.violations == ["G1 answered in the order [1, 1, 2, 2, 3, 3]"]


def test_a_violation_that_the_audit_finds_is_reported() -> None:
    class FindsFault(Pings):
        def audit(self) -> list[str]:
            return ["G2 a node has forgotten"]

    result = run_seed(FindsFault(), 1, plan=plan_of())
    assert not result.ok
    assert result.violations == ["G2 a node has forgotten"]


def test_a_machine_that_raises_is_a_violation_and_the_rest_is_judged() -> None:
    scenario = Pings(Raises)
    result = run_seed(scenario, 1, plan=plan_of())
    assert not result.ok
    assert "a machine failed: ValueError('five')" in result.violations[0]
    assert result.violations[1:] == ["only 4 of 30 publishes were acknowledged"]
    assert scenario.audited_ns == 0


def test_not_settling_is_a_violation_and_there_is_no_audit() -> None:
    scenario = Pings(AnswersWrongly)
    result = run_seed(scenario, 1, plan=plan_of())
    assert not result.ok
    assert result.violations[0] == "4 of 30 were answered"
    assert result.settled_ns == SETTLE_NS
    assert scenario.audited_ns == 0


def test_a_scenario_has_its_own_time_to_settle() -> None:
    class Hasty(Pings):
        settle_ns = 3 * SECOND

    assert run_seed(Hasty(AnswersWrongly), 1, plan=plan_of()).settled_ns == 3 * SECOND


def test_few_acknowledged_publishes_are_a_violation_even_if_all_have_settled() -> None:
    class NeedsNothing(Pings):
        def settled(self) -> bool:
            return True

    result = run_seed(NeedsNothing(AnswersWrongly), 1, plan=plan_of())
    assert result.violations == ["only 4 of 30 publishes were acknowledged"]


def test_a_handler_that_was_never_reached_is_listed_with_zero() -> None:
    result = run_seed(Pings(), 1, plan=plan_of())
    assert result.coverage == {
        "Asker._on_pong": 30,
        "Answerer._on_ping": 30,
        "Answerer._on_goodbye": 0,
    }


def test_a_handler_that_the_plan_cannot_reach_is_not_listed() -> None:
    class WithoutGoodbyes(Pings):
        def is_expected(self, role: type[HandlerMachine], message: type[Any]) -> bool:
            return message is not Goodbye

    result = run_seed(WithoutGoodbyes(), 1, plan=plan_of())
    assert result.coverage == {"Asker._on_pong": 30, "Answerer._on_ping": 30}


def test_a_fault_that_is_not_allowed_is_not_applied() -> None:
    faults = (crash_at(0.01), Timed(20 * MS, SECOND, Pause("b/answers")))
    both = run_seed(Pings(), 1, plan=plan_of(*faults))
    one = run_seed(Pings(allowed=lambda f: isinstance(f, Pause)), 1, plan=plan_of(*faults))
    none = run_seed(Pings(allowed=lambda f: False), 1, plan=plan_of(*faults))
    assert both.faults == {"crash": 1, "pause": 1}
    assert one.faults == {"pause": 1}
    assert none.faults == {}
    assert none.faults_in_flight == 0
    assert none == run_seed(Pings(), 1, plan=plan_of())


def test_a_fault_ends_after_its_duration_or_when_all_is_healed() -> None:
    down: dict[int, bool] = {}
    cut: dict[int, bool] = {}

    class Watched(Pings):
        def build(self, seed: int, plan: PingPlan, trace: Trace | None) -> World:
            world = super().build(seed, plan, trace)
            for at_ms in (2_400, 2_600, 2_900, 3_100, 4_900, 5_100):
                world.call(at_ms * MS, lambda w, at=at_ms: look(w, at))
            return world

    def look(world: World, at_ms: int) -> None:
        down[at_ms] = world.machine("b/answers") is None
        cut[at_ms] = not world.reachable("a/asks", "b/answers") and not down[at_ms]

    last = Timed(3 * SECOND, 100 * SECOND, Cut("a", "b"))
    run_seed(Watched(), 1, plan=plan_of(crash_at(2.5, for_ns=300 * MS), last))
    assert [at for at, is_down in down.items() if is_down] == [2_600]
    assert [at for at, is_cut in cut.items() if is_cut] == [3_100, 4_900]


def test_a_node_that_left_for_good_is_not_restarted() -> None:
    class Leaves(Pings):
        def on_fault(self, fault: Fault) -> None:
            self.away.append("b/answers")

    scenario = Leaves()
    run_seed(scenario, 1, plan=plan_of(crash_at(2.5, for_ns=300 * MS)))
    assert scenario.world.machine("b/answers") is None


def test_the_same_seed_gives_the_same_result() -> None:
    def run(seed: int) -> SeedResult:
        return run_seed(Pings(), seed, trace=Trace(keep=False))

    assert run(7) == run(7)
    assert run(7).trace_digest
    assert len({run(seed).trace_digest for seed in range(5)}) == 5


def test_drawing_a_swarm_without_a_timeline_is_refused() -> None:
    with pytest.raises(UsageError, match="leave out --draw"):
        run_seed(Pings(), 1, timeline=Timeline())


def test_a_result_counts_transitions_and_has_0_for_expected_ones_that_were_not_met() -> None:
    class WithTables(Pings):
        state_tables = (SESSION,)

    plain, counted = run_seed(Pings(), 1).transitions, run_seed(WithTables(), 1).transitions
    assert plain
    assert all(plain.values())
    assert {label: n for label, n in counted.items() if n} == plain
    expected = {label for label, reason in SESSION.labels().items() if not reason}
    assert set(counted) == expected | set(plain)
    assert 0 in counted.values()
