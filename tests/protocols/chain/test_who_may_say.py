"""Which peer may send a replica what: messages from any other peer change nothing.

Each story is told with the replica as it is and with a mutant that does not look at the sender
(`tests/mutations.py`); it returns what the message of the wrong peer has changed.
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
from tests.helpers import tell_each
from tests.protocols.chain.test_chain import LOG, Desk, beats, founded, sequenced

Story = Callable[[type | None], list[str]]
OTHER = bytes(8) + b"bob's id"


def forged_state() -> bytes:
    """A publishers' state that claims the first batch of `PUBLISHER` for position 1."""
    known = Dedup(64, 10**18)
    known.note(sequenced(1))
    return known.snapshot(2)


def forward_from_a_stranger(mutant: type | None) -> list[str]:
    """A peer that is not the predecessor forwards an event to the tail before the head does."""
    desk = founded(1, "b", "a", replica_type=mutant)
    desk.hear("c", Forward(1, LOG, (sequenced(1, publisher=OTHER),), 2))
    desk.write()
    problems = []
    if desk.tell(Ack):
        problems.append("the tail acknowledged what the head never sequenced")
    desk.hear("b", Forward(1, LOG, (sequenced(1),), 1))
    desk.write()
    (batch,) = desk.disk.read(LOG, 1, 2, 1)
    if batch.publisher == OTHER:
        problems.append("position 1 holds the event of a peer that is not the predecessor")
    return problems


def publishers_from_a_stranger(mutant: type | None) -> list[str]:
    """A peer that is not the predecessor claims that a publisher's first batch was taken."""
    desk = founded(1, "b", "a", min_replicas=1, replica_type=mutant)
    desk.hear("c", Publishers(1, LOG, 1, forged_state()))
    desk.write()
    desk.found(2, "a")
    desk.write()
    token = desk.submit()
    desk.write()
    if desk.answers(Submitted) != [Submitted(token, 1)]:
        return ["a new batch was taken for a duplicate, on the word of a stranger"]
    return []


def configuration_of_another_chain(mutant: type | None) -> list[str]:
    """The service also keeps other chains; one of them is at a later epoch, without us."""
    desk = founded(1, "a", replicas=2, min_replicas=1, replica_type=mutant)
    desk.answers(RoleChanged)
    desk.hear("service", Configuration("other", 9, (Member("z", b"z"),)))
    desk.write()
    problems = []
    if desk.answers(RoleChanged):
        problems.append("the role changed by the configuration of another chain")
    desk.submit()
    desk.write()
    if desk.answers(Refused):
        problems.append("the head refused a publish")
    desk.found(2, "a")
    if [role.epoch for role in desk.answers(RoleChanged)] != [2]:
        problems.append("the next configuration of the own chain was not adopted")
    return problems


STORIES: list[tuple[str, Story, type]] = [
    ("forward", forward_from_a_stranger, mutations.TakesAnybodysForward),
    ("publishers", publishers_from_a_stranger, mutations.TakesAnybodysPublishers),
    ("chain", configuration_of_another_chain, mutations.TakesAnyChainsConfiguration),
]


@tell_each(STORIES)
def test_only_the_right_peer_is_believed(story: Story, mutant: type) -> None:
    assert story(None) == []


@tell_each(STORIES)
def test_story_fails_when_anybody_is_believed(story: Story, mutant: type) -> None:
    assert story(mutant) != []


@pytest.mark.parametrize(
    ("members", "predecessor"),
    [
        pytest.param(("a", "b", "c"), "", id="head"),
        pytest.param(("b", "a", "c"), "b", id="middle"),
        pytest.param(("b", "c", "a"), "c", id="tail"),
        pytest.param(("b", "c"), "c", id="learner"),  # the tail serves it
    ],
)
def test_data_comes_from_the_predecessor_alone(members: tuple[str, ...], predecessor: str) -> None:
    desk = founded(1, *members)
    for peer in ("b", "c", "client"):
        desk.hear(peer, Forward(1, LOG, (sequenced(1),), 1))
        desk.hear(peer, Publishers(1, LOG, 1, forged_state()))
        written = [e for e in desk.asked if isinstance(e, Append | SaveState)]
        assert bool(written) is (peer == predecessor)
        desk.write()
    assert desk.disk.end(LOG) == (2 if predecessor else 1)


def test_only_successor_and_learner_acknowledge() -> None:
    desk = founded(1, "a", "b", "c")
    token = desk.submit()
    desk.write()
    for peer in ("c", "client"):
        desk.hear(peer, Ack(1, LOG, 2))
    desk.wait(SECOND)
    assert desk.answers(Submitted) == []
    desk.hear("b", Ack(1, LOG, 2))
    assert desk.answers(Submitted) == [Submitted(token, 1)]


def test_a_sync_in_the_name_of_the_successor_from_another_peer_is_not_followed() -> None:
    desk: Desk = founded(1, "a", "b")
    desk.submit()
    desk.write()
    desk.hear("client", Sync(1, Member("b", b"b"), {LOG: 2}, {LOG: 2}))
    assert desk.answers(Submitted) == []
    assert desk.tell(Forward) == []


# ---------------------------------------------------------------- not yet so


def test_a_configuration_comes_from_the_service_alone() -> None:
    desk = founded(1, "a", replicas=2, min_replicas=1)
    desk.answers(RoleChanged)
    desk.hear("client", Configuration("chain", 9, (Member("z", b"z"),)))
    assert desk.answers(RoleChanged) == []


def test_a_stranger_that_claims_a_later_lineage_discards_no_log() -> None:
    """Committed events are truncated at once: the claim needs no more than a connection."""
    desk = founded(1, "a", replicas=2, min_replicas=1)
    for _ in range(3):
        desk.submit()
    desk.write()
    desk.hear("client", Stale(9, (Member("z", b"z"),), 7))
    desk.write()
    assert desk.disk.end(LOG) == 4


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
    """The peer would be proposed as b, with a disk that b does not have."""
    desk = founded(1, "a", replicas=2, min_replicas=1)
    desk.hear("client", Sync(1, Member("b", b"forged"), {}, {}))
    beats(desk, SECOND, "client")
    assert desk.tell(Propose) == []
