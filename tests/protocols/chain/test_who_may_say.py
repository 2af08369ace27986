"""Each message is accepted only from the peer that may send it; from others it changes nothing.

Each scenario runs with the unchanged replica and with a mutant that does not check the sender
(`tests/mutations.py`). It returns what the message from the wrong peer has changed.
"""

from collections.abc import Callable

import pytest

from surecast.core.replicated import Refused, RoleChanged, Submitted
from surecast.core.types import SECOND, Append, Received, SaveState, Stored
from surecast.protocols.chain.dedup import Dedup
from surecast.protocols.chain.messages import (
    Ack,
    Configuration,
    Forward,
    Member,
    Propose,
    Publishers,
    Stale,
    Sync,
    Watch,
)
from surecast.protocols.chain.service import ConfigService
from surecast.storage.memory import MemoryDisk
from tests import mutations
from tests.helpers import each_scenario
from tests.protocols.chain.test_chain import LOG, Harness, beats, founded, sequenced

Scenario = Callable[[type | None], list[str]]
OTHER = bytes(8) + b"bob's id"


def forged_state() -> bytes:
    """A publishers' state that claims the first batch of `PUBLISHER` for position 1."""
    known = Dedup(64, 10**18)
    known.note(sequenced(1))
    return known.snapshot(2)


def forward_from_a_stranger(mutant: type | None) -> list[str]:
    """A peer that is not the predecessor forwards an event to the tail before the head does."""
    harness = founded(1, "b", "a", replica_type=mutant)
    harness.receive("c", Forward(1, LOG, (sequenced(1, publisher=OTHER),), 2))
    harness.write()
    problems = []
    if harness.take_sent(Ack):
        problems.append("the tail acknowledged what the head never sequenced")
    harness.receive("b", Forward(1, LOG, (sequenced(1),), 1))
    harness.write()
    (batch,) = harness.disk.read(LOG, 1, 2, 1)
    if batch.publisher == OTHER:
        problems.append("position 1 holds the event of a peer that is not the predecessor")
    return problems


def publishers_from_a_stranger(mutant: type | None) -> list[str]:
    """A peer that is not the predecessor claims that a publisher's first batch was taken."""
    harness = founded(1, "b", "a", min_replicas=1, replica_type=mutant)
    harness.receive("c", Publishers(1, LOG, 1, forged_state()))
    harness.write()
    harness.set_members(2, "a")
    harness.write()
    token = harness.submit()
    harness.write()
    if harness.take_emitted(Submitted) != [Submitted(token, 1)]:
        return ["a new batch was treated as a duplicate because of a message from a stranger"]
    return []


def configuration_of_another_chain(mutant: type | None) -> list[str]:
    """The service also keeps other chains; one of them is at a later epoch, without us."""
    harness = founded(1, "a", replicas=2, min_replicas=1, replica_type=mutant)
    harness.take_emitted(RoleChanged)
    harness.receive("service", Configuration("other", 9, (Member("z", b"z"),)))
    harness.write()
    problems = []
    if harness.take_emitted(RoleChanged):
        problems.append("the role changed by the configuration of another chain")
    harness.submit()
    harness.write()
    if harness.take_emitted(Refused):
        problems.append("the head refused a publish")
    harness.set_members(2, "a")
    if [role.epoch for role in harness.take_emitted(RoleChanged)] != [2]:
        problems.append("the next configuration of the own chain was not adopted")
    return problems


SCENARIOS: list[tuple[str, Scenario, type]] = [
    ("forward", forward_from_a_stranger, mutations.TakesAnybodysForward),
    ("publishers", publishers_from_a_stranger, mutations.TakesAnybodysPublishers),
    ("chain", configuration_of_another_chain, mutations.TakesAnyChainsConfiguration),
]


@each_scenario(SCENARIOS)
def test_a_message_is_accepted_only_from_the_right_peer(scenario: Scenario, mutant: type) -> None:
    assert scenario(None) == []


@each_scenario(SCENARIOS)
def test_a_message_of_any_peer_is_accepted_without_the_check(
    scenario: Scenario, mutant: type
) -> None:
    assert scenario(mutant) != []


@pytest.mark.parametrize(
    ("members", "predecessor"),
    [
        pytest.param(("a", "b", "c"), "", id="head"),
        pytest.param(("b", "a", "c"), "b", id="middle"),
        pytest.param(("b", "c", "a"), "c", id="tail"),
        pytest.param(("b", "c"), "c", id="learner"),  # the tail serves it
    ],
)
def test_data_is_accepted_only_from_the_predecessor(
    members: tuple[str, ...], predecessor: str
) -> None:
    harness = founded(1, *members)
    for peer in ("b", "c", "client"):
        harness.receive(peer, Forward(1, LOG, (sequenced(1),), 1))
        harness.receive(peer, Publishers(1, LOG, 1, forged_state()))
        written = [e for e in harness.disk_queue if isinstance(e, Append | SaveState)]
        assert bool(written) is (peer == predecessor)
        harness.write()
    assert harness.disk.end(LOG) == (2 if predecessor else 1)


def test_only_successor_and_learner_acknowledge() -> None:
    harness = founded(1, "a", "b", "c")
    token = harness.submit()
    harness.write()
    for peer in ("c", "client"):
        harness.receive(peer, Ack(1, LOG, 2))
    harness.wait(SECOND)
    assert harness.take_emitted(Submitted) == []
    harness.receive("b", Ack(1, LOG, 2))
    assert harness.take_emitted(Submitted) == [Submitted(token, 1)]


def test_a_sync_in_the_name_of_the_successor_from_another_peer_is_not_followed() -> None:
    harness: Harness = founded(1, "a", "b")
    harness.submit()
    harness.write()
    harness.receive("client", Sync(1, Member("b", b"b"), {LOG: 2}, {LOG: 2}))
    assert harness.take_emitted(Submitted) == []
    assert harness.take_sent(Forward) == []


# ---------------------------------------------------------------- claims of clients


def test_a_configuration_is_accepted_only_from_the_service() -> None:
    harness = founded(1, "a", replicas=2, min_replicas=1)
    harness.take_emitted(RoleChanged)
    harness.receive("client", Configuration("chain", 9, (Member("z", b"z"),)))
    assert harness.take_emitted(RoleChanged) == []


def test_a_stranger_cannot_discard_a_log_by_claiming_a_later_lineage() -> None:
    """Otherwise any connected peer could make a replica truncate committed events."""
    harness = founded(1, "a", replicas=2, min_replicas=1)
    for _ in range(3):
        harness.submit()
    harness.write()
    harness.receive("client", Stale(9, (Member("z", b"z"),), 7))
    harness.write()
    assert harness.disk.end(LOG) == 4


@pytest.mark.parametrize("force", [False, True])
def test_only_replicas_of_a_chain_propose_its_members(force: bool) -> None:
    service = ConfigService({"chain": ("a", "b")}, MemoryDisk())
    a, b = Member("a", b"a"), Member("b", b"b")
    for member in (a, b):
        out = service.step(0, Received(member.name, Watch("chain", member)))
    service.step(0, Stored(out[-1].token))
    out = service.step(0, Received("client", Propose("chain", 1, (b,), force)))
    assert [effect for effect in out if isinstance(effect, SaveState)] == []


def test_a_learner_joins_under_its_own_name() -> None:
    """Otherwise the peer would be proposed as b, with a disk that b does not have."""
    harness = founded(1, "a", replicas=2, min_replicas=1)
    harness.receive("client", Sync(1, Member("b", b"forged"), {}, {}))
    beats(harness, SECOND, "client")
    assert harness.take_sent(Propose) == []
