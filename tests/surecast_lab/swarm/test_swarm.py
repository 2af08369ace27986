"""The swarm: fixed seeds pass, broken machines are caught, handlers are covered, plans valid."""

import re
from collections import Counter
from typing import Any

import pytest
from tests import mutations
from tests.goldens import Outputs, stored

from surecast.columns.batch import COLLECTED, Batch
from surecast.core.types import MS, SECOND, Peer, protocol_of
from surecast.protocols.chain.service import ConfigService
from surecast.protocols.sprinkler.region_sync import RegionSync
from surecast.protocols.streams.fetcher import Fetcher
from surecast.protocols.streams.inquirer import Inquirer
from surecast.protocols.streams.messages import Publish, ReadRange
from surecast.protocols.streams.publisher import Publisher
from surecast.protocols.streams.service import StreamService
from surecast.protocols.streams.subscriber import Subscriber
from surecast.sim.faults import Crash, Degrade, Timed
from surecast.sim.links import Link
from surecast.stacks import replica_layers
from surecast_lab.swarm.sprinkler import ADMINISTRATION, Plan, draw_plan, run_seed
from surecast_lab.swarm.trial import WARM_UP_NS, SeedResult

SEEDS = (8, 3, 103, 126, 20, 203, 279, 68)  # cheap seeds of many kinds
ROLES = (*replica_layers().values(), Publisher, Subscriber, Inquirer, Fetcher, ConfigService)


@pytest.fixture(scope="module")
def results() -> list[SeedResult]:
    return [run_seed(seed, trace=Outputs()) for seed in SEEDS]


@pytest.mark.slow
def test_fixed_seeds_pass(results: list[SeedResult]) -> None:
    for result in results:
        print(f"seed {result.seed}: {result.violations}")
        assert result.ok
        assert result.violations == []
        assert (result.lost, result.duplicated, result.misordered) == (0, 0, 0)
        assert 0 < result.acked == result.published < result.delivered


@pytest.mark.slow
def test_the_seeds_have_many_kinds_of_faults(results: list[SeedResult]) -> None:
    faults: Counter[str] = Counter()
    for result in results:
        faults.update(result.faults)
    assert faults.keys() >= {
        "clockjump",
        "crash",
        "cut",
        "damage",
        "degrade",
        "diskfailure",
        "isolate",
        "pause",
        "rollback",
        "wipe",
    }
    assert sum(result.faults_in_flight for result in results) > 30
    assert sum(result.void for result in results) > 1000
    asked: Counter[str] = Counter()
    for result in results:
        asked.update(result.callers)
    assert asked["attached"] > 3 * len(results)  # named subscriptions change hands ...
    assert min(asked["fenced"], asked["crashed"], asked["refused"]) >= 5
    assert min(asked["advanced"], asked["heard of"], asked["located"]) > 30
    assert min(asked["ranges read"], asked["answers of shorter copies"]) > 50
    assert asked["ranges read in part"] >= 5
    passed_on = sum(result.coverage["StreamService._on_pub_ack"] for result in results)
    assert passed_on > 100  # ... and streams are published from regions that do not own them


@pytest.mark.slow
def test_coverage_lists_every_handler_of_every_role(results: list[SeedResult]) -> None:
    handlers = {
        f"{role.__name__}.{name}"
        for role in ROLES
        for message, name in role.handlers.items()
        # See test_mesh.py, test_damage.py, test_lost_ranges.py and test_filters.py for these.
        if not message.__name__.startswith(("Mesh", "Doubt", "Hide", "RangeLost", "FilterRefused"))
        and message not in ADMINISTRATION
        and protocol_of(message) in ("chain", "streams", "sprinkler")
    }
    assert len(handlers) > 20
    totals: Counter[str] = Counter()
    for result in results:
        damaged = result.faults.get("damage", 0) + result.faults.get("rollback", 0)
        assert set(result.coverage) == handlers if damaged else set(result.coverage) <= handlers
        totals.update(result.coverage)
    idle = sorted(handler for handler in handlers if not totals[handler])
    assert idle == [], "these seeds should reach every message handler"


@pytest.mark.slow
def test_a_seed_gives_the_same_result_again(results: list[SeedResult]) -> None:
    assert run_seed(results[0].seed, trace=Outputs()) == results[0]


@pytest.mark.slow
def test_the_golden_digests_of_the_seeds_are_unchanged(results: list[SeedResult]) -> None:
    golden = stored()["sprinkler"]
    compared = {r.seed: r.trace_digest for r in results if str(r.seed) in golden}
    assert len(compared) >= 6
    assert compared == {seed: golden[str(seed)] for seed in compared}


# ---------------------------------------------------------------- a swarm that can fail

# Mutant → seeds that are known to catch it. SEEDS are tried after them, in case plans change.
CAUGHT_BY: dict[type, tuple[int, ...]] = {
    mutations.KeepsForks: (8,),
    mutations.AcksDuplicatesEarly: (8, 159),
    mutations.TakesAnyNumber: (8,),
    mutations.ForgetsPublishers: (126,),
    mutations.ForwardsBeforeStoring: (8,),
    mutations.StampsRawTime: (235, 150),
    mutations.DropsWhenFull: (68,),
    mutations.MovesForAnybody: (8,),
    mutations.ForwardsUnderItsOwnName: (305, 3),
}


def findings(seed: int, mutant: type, plan: Plan | None = None) -> list[str]:
    """The violations that a mutant causes. A stopped machine counts if one of its assertions failed
    or it cannot read its log; any other exception is a bug in the mutant and fails the test."""
    violations = run_seed(seed, plan=plan, types=(mutant,)).violations
    for violation in violations:
        stopped = re.match(r"a machine failed: (\w+)", violation)
        assert stopped is None or stopped[1] in ("AssertionError", "StorageError"), violation
    return violations


def caught(*mutants: type) -> list[Any]:
    """Parameters: these mutants in every run, the others nightly (tests of rules catch all)."""
    return [
        pytest.param(kind, id=kind.__name__, marks=() if kind in mutants else pytest.mark.nightly)
        for kind in CAUGHT_BY
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant",
    caught(mutations.KeepsForks, mutations.ForgetsPublishers, mutations.DropsWhenFull),
)
def test_a_broken_machine_is_caught(mutant: type) -> None:
    """Each mutant lacks a binding rule; one of a few seeds, which the unchanged machine passes,
    finds a violation."""
    seeds = dict.fromkeys((*CAUGHT_BY[mutant], *SEEDS))
    assert any(findings(seed, mutant) for seed in seeds)


def slow_chains(seed: int) -> Plan:
    """A plan with slow links within chains and crashes of heads: many appends never commit."""
    plan = draw_plan(seed)
    plan.regions = dict.fromkeys(plan.regions, 3)
    end_ns = WARM_UP_NS + plan.duration_ns
    plan.faults = []
    for n, region in enumerate(plan.regions):
        for pair in ((0, 1), (1, 2), (0, 2)):
            far = Degrade(*(f"{region}/{i}" for i in pair), Link(60 * MS))
            plan.faults.append(Timed(WARM_UP_NS, plan.duration_ns, far))
        for i, at_ns in enumerate(range(WARM_UP_NS + SECOND + n * 300 * MS, end_ns, 3 * SECOND)):
            plan.faults.append(Timed(at_ns, 1500 * MS, Crash(f"{region}/{i % 3}")))
    return plan


@pytest.mark.slow
def test_showing_uncommitted_events_is_caught() -> None:
    """R5. Ordinary seeds rarely lose appended batches: they are in flight for a millisecond."""
    seeds = (9, 17, 21)
    assert [run_seed(seed, plan=slow_chains(seed)).violations for seed in seeds] == [[], [], []]
    assert any(findings(seed, mutations.ShowsUncommitted, slow_chains(seed)) for seed in seeds)


class _AnswersRangesOtherwise(StreamService):
    """Sends wrong batches when a range is read; subscribers get the right ones."""

    def _on_read_range(self, peer: Peer, message: ReadRange) -> None:
        before = len(self.out)
        super()._on_read_range(peer, message)
        sent, self.out[before:] = self.out[before:], []
        for effect in sent:
            effect.message.batches = tuple(map(self.otherwise, effect.message.batches))
            self.out.append(effect)

    def otherwise(self, batch: Batch) -> Batch:
        raise NotImplementedError


class SaysRangesAreVoid(_AnswersRangesOtherwise):
    def otherwise(self, batch: Batch) -> Batch:
        return Batch.void(batch.stream_id, batch.lo, batch.hi, COLLECTED)


class MakesUpWhatIsInRanges(_AnswersRangesOtherwise):
    def otherwise(self, batch: Batch) -> Batch:
        made_up = Batch.of(batch.stream_id, [b"made up"] * batch.count)
        return made_up.sequenced(batch.lo, int(batch.times()[0]) if batch.rows else 1, 1)


class SkipsWhatIsInRanges(_AnswersRangesOtherwise):
    """Sends batches one position too high, which a reader must not accept as the next ones."""

    def otherwise(self, batch: Batch) -> Batch:
        return Batch.void(batch.stream_id, batch.lo + 1, batch.hi + 1, COLLECTED)


# Mutant → the violation that the judge reports.
RANGES_FOUND: dict[type, str] = {
    SaysRangesAreVoid: r"is void, but \d+ is not",
    MakesUpWhatIsInRanges: r"got Event.*b'made up'.*; others got Event",
    SkipsWhatIsInRanges: "ranges were not read",
}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", RANGES_FOUND, ids=lambda mutant: mutant.__name__)
def test_a_server_that_sends_wrong_ranges_is_caught(mutant: type) -> None:
    found = findings(SEEDS[0], mutant)
    assert any(re.search(RANGES_FOUND[mutant], violation) for violation in found)


class HasAnotherConstructor(RegionSync):
    """A mutant that is out of date: its constructor fails."""

    def __init__(self) -> None:
        raise NotImplementedError


class HasAnotherHandler(RegionSync):
    """A mutant that is out of date: a method has other parameters."""

    def _on_advertise(self) -> None:  # type: ignore[override]
        raise NotImplementedError


@pytest.mark.parametrize("mutant", [HasAnotherConstructor, HasAnotherHandler])
def test_a_mutant_that_cannot_run_does_not_count_as_caught(mutant: type) -> None:
    with pytest.raises((TypeError, AssertionError), match="positional argument"):
        findings(SEEDS[0], mutant)


class TakesNothing(StreamService):
    """Refuses every publish as busy."""

    def _refusal(self, message: Publish) -> str:
        return "busy"


@pytest.mark.slow
def test_a_swarm_without_acknowledged_publishes_does_not_pass() -> None:
    result = run_seed(SEEDS[0], types=(TakesNothing,))
    assert not result.ok
    assert result.acked == 0
    assert any("no convergence" in violation for violation in result.violations)
    assert f"only 0 of {result.published} publishes were acknowledged" in result.violations


# ---------------------------------------------------------------- plans


def test_the_plan_of_a_seed_is_stable() -> None:
    plans = [draw_plan(seed) for seed in range(50)]
    assert plans == [draw_plan(seed) for seed in range(50)]
    assert all(a != b for i, a in enumerate(plans) for b in plans[:i])


def test_plans_are_within_the_documented_bounds() -> None:
    kinds: Counter[str] = Counter()
    policies: Counter[str] = Counter()
    for seed in range(200):
        plan = draw_plan(seed)
        nodes = {f"{r}/{n}" for r, count in plan.regions.items() for n in range(count)}
        assert 3 <= len(plan.regions) <= 5
        assert all(1 <= count <= 3 for count in plan.regions.values())
        assert 1 <= plan.publishers <= 3
        assert all(owner in plan.regions for owner, _ in plan.streams.values())
        policies.update(type(policy).__name__ for _, policy in plan.streams.values())
        assert plan.faults
        for timed in plan.faults:
            kinds[type(timed.fault).__name__] += 1
            assert timed.at_ns >= WARM_UP_NS
            assert timed.for_ns > 0
            name = getattr(timed.fault, "name", None)
            assert name is None or name in nodes or name.endswith("/config")
    assert set(policies) == {"KeepAll", "KeepFor", "KeepLast", "LatestPerKey"}
    assert len(kinds) >= 8, kinds
    assert min(kinds.values()) > 20, kinds
