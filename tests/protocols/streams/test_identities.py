"""After a failed batch a publisher uses a new identity: the order of its batches."""

from collections.abc import Callable
from typing import Any

from surecast.core.types import TimerFired
from surecast.protocols.streams.messages import Publish
from tests import mutations
from tests.helpers import each_scenario
from tests.protocols.streams.test_named_publisher import Steps, sent, told

Scenario = Callable[[type | None], list[str]]


def identity(effects: list[Any]) -> bytes:
    (message,) = [e.message for e in effects if isinstance(getattr(e, "message", None), Publish)]
    return bytes(message.batch.publisher)


def new_identity_overtakes(mutant: type | None) -> list[str]:
    """The second of three batches is refused for good while the first still waits for its ack.
    Later batches have a new identity, so no number orders them after the first."""
    steps = Steps(mutant)
    old = identity(steps.offer(1, 0))
    steps.offer(2, 0)
    steps.offer(3, 0)
    failed = steps.nack(2, "bad-event", name=old)
    assert [t[:2] for t in told(failed)] == [("failed", 2), ("failed", 3)]
    problems = []
    early = [*steps.offer(4, 0), *steps.offer(5, 0)]
    if sent(early):
        problems.append("batches of the new identity were sent while one of the old waits")
    again = sent(steps.give(TimerFired("again")))
    if again != [(old, 1)]:
        problems.append(
            f"{len(again)} batches were sent again, not just the one of the old identity"
        )
    released = steps.ack(1, 10, old)
    assert told(released) == [("acked", 1, 1, 10)]
    if [pub_no for publisher, pub_no in sent(released) if publisher != old] != [1, 2]:
        problems.append("the acknowledgement of the old batch did not release the new ones")
    return problems


SCENARIOS: list[tuple[str, Scenario, type]] = [
    ("order", new_identity_overtakes, mutations.OvertakesOldIdentity),
]


@each_scenario(SCENARIOS)
def test_rule_holds(scenario: Scenario, mutant: type) -> None:
    assert scenario(None) == []


@each_scenario(SCENARIOS)
def test_scenario_fails_without_the_rule(scenario: Scenario, mutant: type) -> None:
    assert scenario(mutant) != []
