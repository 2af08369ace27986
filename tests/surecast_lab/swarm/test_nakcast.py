"""The swarm with two deliveries on the same chains: seeds pass, and broken machines are caught."""

from collections import Counter
from typing import Any

import pytest

from surecast.columns.batch import Batch
from surecast.core.streams import StreamAdded
from surecast.core.types import Deliver, LogId, Peer, Send
from surecast.protocols.nakcast.config import ReaderConfig
from surecast.protocols.nakcast.delivery import Nakcast
from surecast.protocols.nakcast.messages import Beacon, Gone, Nak
from surecast.protocols.nakcast.reader import Followed, Reader
from surecast.protocols.nakcast.server import NakcastServer
from surecast_lab.swarm import trial
from surecast_lab.swarm.nakcast import NakcastScenario, draw_plan
from surecast_lab.swarm.trial import SeedResult

SEEDS = (2, 7, 11, 24)  # small seeds; keep_last() is within repair_max


@pytest.fixture(scope="module")
def results() -> list[SeedResult]:
    return [trial.run_seed(NakcastScenario(), seed) for seed in SEEDS]


@pytest.mark.slow
def test_fixed_seeds_pass(results: list[SeedResult]) -> None:
    for result in results:
        print(f"seed {result.seed}: {result.violations}")
        assert result.violations == []
        assert 0 < result.acked == result.published
        assert result.delivered > 0


@pytest.mark.slow
def test_the_seeds_have_many_kinds_of_faults(results: list[SeedResult]) -> None:
    totals: Counter[str] = Counter()
    for result in results:
        totals.update(result.coverage)
        totals.update(result.counters)
        totals.update(result.clients)
    assert all(totals[handler] for handler in results[0].coverage), totals
    assert set(results[0].coverage) == {
        "NakcastServer._on_join", "NakcastServer._on_leave", "NakcastServer._on_nak",
        "Reader._on_data", "Reader._on_beacon", "Reader._on_gone",
    }  # fmt: skip
    assert totals["positions reported lost"] > 0
    assert totals["nakcast.sent-again"] > 0


def test_plans_have_both_deliveries_and_some_have_a_server_without_nakcast() -> None:
    plans = [draw_plan(seed) for seed in range(60)]
    assert all(plan.streams and plan.nakcast_streams and plan.readers for plan in plans)
    assert 5 < sum(bool(plan.lacks) for plan in plans) < 55
    assert all(plan.regions[plan.lacks.split("/")[0]] > 1 for plan in plans if plan.lacks)


# ---------------------------------------------------------------- a swarm that can fail


class Deaf(NakcastServer):
    """Ignores NAKs."""

    def _on_nak(self, peer: Peer, message: Nak) -> None:
        pass


class Stingy(NakcastServer):
    """Reports all requested positions as lost."""

    def _on_nak(self, peer: Peer, message: Nak) -> None:
        for lo, hi in message.holes:
            self._tell_gone(peer, message.stream, lo, hi)


class Careless(NakcastServer):
    """Reports voids as lost."""

    def _tell_gone(self, peer: Peer, stream: LogId, lo: int, hi: int) -> None:
        self.out.append(Send(peer, Gone(stream, lo, hi, ()), reliable=False))


class Greedy(NakcastServer):
    """Serves streams of other deliveries, too."""

    def _on_added(self, event: StreamAdded) -> None:
        self.streams[event.info.stream_id] = None


class Eager(Reader):
    """Delivers batches in the order of arrival."""

    def _take(self, one: Followed, batch: Batch) -> None:
        self.out.append(Deliver(batch.stream_id, (batch,)))


class Silent(Reader):
    """Never sends a NAK."""

    def _on_beacon(self, peer: Peer, message: Beacon) -> None:
        self._followed(peer, message.stream)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "words"),
    [
        (Deaf, "G9 no convergence"),
        (Stingy, "G3"),
        (Careless, "G3"),
        (Greedy, "knows other streams than its own"),
        (Eager, "G2"),
        (Silent, "G9 no convergence"),
    ],
)
def test_a_broken_machine_is_caught(
    mutant: type[Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    types = (mutant,) if issubclass(mutant, NakcastServer) else ()
    if not types:
        read = lambda self, ctx, place: mutant(ReaderConfig(place.servers))  # noqa: E731
        monkeypatch.setattr(Nakcast, "reader", read)
    found: list[str] = []
    for seed in SEEDS:
        found += trial.run_seed(NakcastScenario(types=types), seed).violations
        if any(words in violation for violation in found):
            return
    raise AssertionError(found)
