"""The swarm of brokers and filtered subscriptions: seeds pass, and broken machines are caught."""

from collections import Counter
from typing import Any, ClassVar

import pytest

from surecast.columns.batch import Batch
from surecast.protocols.gryphon.broker import Broker
from surecast.protocols.gryphon.line import LIVE, READING, Below, Line, Sub
from surecast.protocols.gryphon.messages import Stamps, Table
from surecast.protocols.gryphon.pieces import Piece
from surecast.protocols.gryphon.pubend import Pubend
from surecast.protocols.gryphon.subscriptions import Subscriptions
from surecast_lab.swarm import trial
from surecast_lab.swarm.gryphon import RULES, GryphonScenario, draw_plan
from surecast_lab.swarm.trial import SeedResult

SEEDS = (3, 6, 16, 21)  # small ones, with all kinds of faults


@pytest.fixture(scope="module")
def results() -> list[SeedResult]:
    return [trial.run_seed(GryphonScenario(), seed) for seed in SEEDS]


@pytest.mark.slow
def test_fixed_seeds_pass(results: list[SeedResult]) -> None:
    for result in results:
        print(f"seed {result.seed}: {result.violations}")
        assert result.violations == []
        assert 0 < result.acked == result.published
        assert result.delivered > 0


@pytest.mark.slow
def test_the_seeds_reach_every_handler_and_most_rules(results: list[SeedResult]) -> None:
    totals: Counter[str] = Counter()
    for result in results:
        totals.update(result.coverage)
        totals.update(result.clients)
    seldom = {"Pubend._on_fetched", "Pubend._on_ack_expected", "Pubend._on_detach"}
    seldom |= {"Reader._on_refused", "Broker._on_detach"}
    handlers = [name for result in results for name in result.coverage]
    missed = {name for name in handlers if not totals[name]} - seldom
    assert not {name for name in missed if not name.startswith("Pubend")}, missed
    few = {"widened", "nacks-joined", "paused"}
    assert all(totals[what] for name, what in RULES.items() if name not in few), totals
    assert all(totals[what] for what in ("change", "move", "leave", "sleep")), totals


@pytest.mark.slow
def test_g10_without_faults_nothing_is_requested_and_nothing_is_late() -> None:
    plan = draw_plan(16)
    plan.faults, plan.broker_faults, plan.changes = [], [], []
    plan.settings = {}
    result = trial.run_seed(GryphonScenario(), 16, plan=plan)
    assert result.violations == []
    assert result.clients["requests of brokers"] == 0
    assert result.delivered > 100


def test_plans_have_forests_of_brokers_and_many_kinds_of_subscribers() -> None:
    plans = [draw_plan(seed) for seed in range(60)]
    assert all(plan.cells and plan.subscribers and plan.broker_faults for plan in plans)
    assert max(len(plan.brokers()) for plan in plans) > 8
    assert max(len(plan.subscribers) for plan in plans) > 30
    assert any(len(brokers) > 1 for plan in plans for brokers in plan.cells.values())
    assert {start > 1 for plan in plans for _, _, start, _, _ in plan.subscribers.values()} == {
        True, False,
    }  # fmt: skip


# ---------------------------------------------------------------- a swarm that can fail


class IgnoresStamps(Subscriptions):
    """B7: a final position counts for every subscription, whichever filters were applied."""

    def _must_read(self, line: Line, sub: Sub, piece: Piece) -> None:
        pass


class BeginsAtTheHorizon(Subscriptions):
    """B9: a subscription takes the broker's events from its start on, without reading."""

    def _resume(self, line: Line, sub: Sub) -> None:
        sub.queue, sub.queue_bytes, sub.state = [], 0, LIVE


class KeepsItsQueue(Subscriptions):
    """B9: the end of a reading is not moved behind a position that must be read."""

    def _must_read(self, line: Line, sub: Sub, piece: Piece) -> None:
        if sub.state != READING:
            super()._must_read(line, sub, piece)


def _broken(subscriptions: type[Subscriptions]) -> dict[str, Any]:
    return {"subscriptions_type": subscriptions}


class _Gapped:
    """Changes of a filter table are installed although an earlier change is missing."""

    def _install(self, line: Line, below: Below, tables: tuple[Table, ...]) -> None:
        adjusted = []
        for table in tables:
            known = below.tables.setdefault(table.broker, (table.incarnation, 0, {}))
            base = known[1] if table.base and known[0] == table.incarnation else table.base
            values = (table.broker, table.incarnation, base, table.version)
            adjusted.append(Table(*values, table.added, table.removed))
        super()._install(line, below, tuple(adjusted))  # type: ignore[misc]


class _NotKnown:
    """B8: positions that are not sent again are said to be void."""

    too_old: ClassVar[Stamps | None] = None


class _Unstamped:
    """B7: a broker does not say that its own filter has dropped events."""

    def _filter(
        self, line: Line, below: Below, piece: Piece
    ) -> tuple[tuple[Batch, ...], Stamps | None]:
        kept, _ = super()._filter(line, below, piece)  # type: ignore[misc]
        return kept, piece.stamps


MUTANTS: list[tuple[str, dict[str, Any] | type[Any], int]] = [
    ("stamps are ignored", _broken(IgnoresStamps), 2),
    ("no reading before going live", _broken(BeginsAtTheHorizon), 2),
    ("the queue is kept", _broken(KeepsItsQueue), 21),
    ("old positions are void", _NotKnown, 5),
    ("tables with gaps", _Gapped, 21),
    ("own filter is not stamped", _Unstamped, 1),
]


@pytest.mark.slow
@pytest.mark.parametrize(("what", "broken", "seed"), MUTANTS, ids=[name for name, _, _ in MUTANTS])
def test_a_broken_broker_is_caught(what: str, broken: Any, seed: int) -> None:
    bases = () if isinstance(broken, dict) else (broken,)
    members = broken if isinstance(broken, dict) else {}
    pubend = type("BrokenPubend", (*bases, Pubend), dict(members))
    broker = type("BrokenBroker", (*bases, Broker), dict(members))
    result = trial.run_seed(GryphonScenario(types=(pubend,), broker=broker), seed)
    assert result.violations, f"{what}: not noticed"
