"""The batches of another region that a head appends, with a mutant for each rule."""

from collections.abc import Callable
from typing import Any

from surecast.columns.batch import Batch
from surecast.core.replicated import AppendAt, Appended
from surecast.core.types import SECOND, Received
from surecast.protocols.sprinkler.messages import PeerEvents, RegionSubscribe
from tests import mutations
from tests.helpers import each_scenario
from tests.protocols.bench import STREAM, Bench, passed_down, sent

Scenario = Callable[[type | None], list[str]]
OTHER = bytes(16)


def batch(lo: int, time_ns: int, stream: bytes = STREAM) -> Batch:
    made = Batch.of(stream, [b"%d" % lo], publisher=bytes(8) + b"ann's id", pub_no=lo)
    return made.sequenced(lo, time_ns, 1)


def pulling(mutant: type | None) -> Bench:
    """x/0, which pulls a stream from y/0 and has its first event, with time 100."""
    bench = Bench(mutant=mutant)
    bench.role(1)
    bench.add_stream()
    bench.advertised_by("y/0", 1, end=9)
    assert appended(events(bench, batch(1, 100))) == [1]
    bench.disk.append(STREAM, (batch(1, 100),))
    bench.chain_emits(Appended(STREAM, 2))
    return bench


def events(bench: Bench, *batches: Batch) -> list[Any]:
    return bench.give(Received("y/0", PeerEvents(STREAM, batches, 9)))


def appended(effects: list[Any]) -> list[int]:
    """The positions that the chain was asked to append."""
    return [b.lo for command in passed_down(effects, AppendAt) for b in command.batches]


def another_stream(mutant: type | None) -> list[str]:
    """A source sends batches of another stream in a message for this one."""
    bench = pulling(mutant)
    if appended(events(bench, batch(2, 200, OTHER))):
        return ["an event of another stream was appended"]
    assert appended(events(bench, batch(2, 200))) == [2]
    return []


def falling_times(mutant: type | None) -> list[str]:
    """R10: times never decrease along a stream; otherwise replicas cannot index it."""
    problems = []
    for times in ([99], [100, 90], [200, 150]):
        bench = pulling(mutant)
        batches = [batch(2 + n, time_ns) for n, time_ns in enumerate(times)]
        if appended(events(bench, *batches)):
            problems.append(f"after time 100, events of {times} were appended")
        assert appended(events(bench, batch(2, 100), batch(3, 100))) == [2, 3]
    return problems


SCENARIOS: list[tuple[str, Scenario, type]] = [
    ("stream", another_stream, mutations.AppendsOtherStreams),
    ("r10-times", falling_times, mutations.AppendsOlderBatches),
]


@each_scenario(SCENARIOS)
def test_rule_holds(scenario: Scenario, mutant: type) -> None:
    assert scenario(None) == []


@each_scenario(SCENARIOS)
def test_scenario_fails_without_the_rule(scenario: Scenario, mutant: type) -> None:
    assert scenario(mutant) != []


def test_one_batch_of_another_stream_refuses_the_message() -> None:
    bench = pulling(None)
    assert appended(events(bench, batch(2, 200), batch(3, 200, OTHER))) == []


def test_events_that_do_not_fit_are_requested_again_once_a_period() -> None:
    bench = pulling(None)
    for wait_ns, asked in ((SECOND, True), (1, False), (SECOND, True)):
        bench.now_ns += wait_ns
        out = bench.give(Received("y/0", PeerEvents(STREAM, (batch(2, 99),), 9)), 0)
        assert bool(sent(out, RegionSubscribe)) is asked


def test_r10_holds_for_a_message_that_begins_with_stored_batches() -> None:
    bench = pulling(None)
    assert appended(events(bench, batch(1, 100), batch(2, 50))) == []
