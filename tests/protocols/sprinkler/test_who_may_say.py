"""Each message to a server is accepted only from a peer that may send it; others change nothing.

Each scenario runs with the unchanged layers and with a mutant that does not check the sender
(`tests/mutations.py`). It returns what the forged message has changed. x/0 is head and tail of
region x; the stream belongs to region y.
"""

from collections.abc import Callable

import pytest

from surecast.columns.batch import COLLECTED, Batch
from surecast.core.replicated import AppendAt, Appended, AskPublishers, Submit, TakePublishers
from surecast.core.types import Close, Received
from surecast.protocols.sprinkler.messages import (
    Advertise,
    PeerEvents,
    PublishersKnown,
    PublishersWanted,
    RegionStale,
    RegionSubscribe,
)
from surecast.protocols.streams.messages import Publish
from tests import mutations
from tests.helpers import each_scenario
from tests.protocols.bench import INFO, STREAM, Bench, passed_down, sent

Scenario = Callable[[type | None], list[str]]
STRANGERS = ["client", "x/1", "z/0", "y/7"]  # none of them is a server of region y


def advertisement_of_a_stranger(mutant: type | None) -> list[str]:
    """A peer that is not a server of y advertises as y's tail, with a later end and epoch."""
    problems = []
    for stranger in STRANGERS:
        bench = Bench(mutant=mutant)
        bench.role(1)
        bench.add_stream(end=4)
        out = bench.give(Received(stranger, Advertise("y", 9, {STREAM: 99}, (INFO,), True)))
        problems += [f"the stream is pulled from {peer}" for peer, _ in sent(out, RegionSubscribe)]
        out = bench.advertised_by("y/0", 1, end=9)
        if [peer for peer, _ in sent(out, RegionSubscribe)] != ["y/0"]:
            problems.append("the stream is not pulled from the server that has it")
        if sent(out, RegionStale):
            problems.append("the real tail was answered stale")
    return problems


def publishers_known_to_a_stranger(mutant: type | None) -> list[str]:
    """R4: x pulled compacted batches and requests the publishers' state from y; another peer
    answers."""
    problems = []
    for stranger in STRANGERS:
        bench = Bench(mutant=mutant)
        bench.role(1)
        bench.add_stream()
        bench.advertised_by("y/0", 1, end=9)
        void = Batch.void(STREAM, 1, 9, COLLECTED)
        bench.give(Received("y/0", PeerEvents(STREAM, (void,), 9)))
        bench.chain_emits(Appended(STREAM, 9))
        out = bench.timer("sprinkler", "advertise")
        asked = [peer for peer, _ in sent(out, PublishersWanted)]
        problems += [] if asked == ["y/0"] else [f"asked {asked}"]
        lie = PublishersKnown(STREAM, 9, b"forged", True, "y", 9)
        if passed_down(bench.give(Received(stranger, lie)), TakePublishers):
            problems.append(f"{stranger} was believed")
        truth = PublishersKnown(STREAM, 9, b"as y knows", True, "y", 9)
        taken = passed_down(bench.give(Received("y/0", truth)), TakePublishers)
        if taken != [TakePublishers(STREAM, 9, b"as y knows", 0)]:
            problems.append("the answer of the region that was asked was ignored")
    return problems


def batch_with_a_place(mutant: type | None) -> list[str]:
    """A publisher sends a batch that names its own position, time and epoch."""
    bench = Bench("y/0", mutant)
    bench.role(1)
    bench.add_stream()
    plain = Batch.of(STREAM, [b"v"], publisher=bytes(8) + b"ann's id", pub_no=1)
    problems = []
    for batch, refused in ((plain, ""), (plain.sequenced(7, 1, 1), "bad-event")):
        (submit,) = passed_down(bench.give(Received("client", Publish(STREAM, batch))), Submit)
        if submit.refuse != refused:
            problems.append(f"a batch at {batch.lo} was refused as {submit.refuse!r}")
    return problems


SCENARIOS: list[tuple[str, Scenario, type]] = [
    ("advertise", advertisement_of_a_stranger, mutations.TakesAnybodysAdvertisement),
    ("publishers", publishers_known_to_a_stranger, mutations.TakesAnybodysPublishersKnown),
    ("place", batch_with_a_place, mutations.TakesPlacedBatches),
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
    "batch",
    [
        Batch.of(STREAM, [b"v"], publisher=bytes(16), pub_no=0),
        Batch.of(bytes(16), [b"v"], publisher=bytes(16), pub_no=1),
        Batch.void(STREAM, 1, 2, COLLECTED),
    ],
    ids=["without-number", "of-another-stream", "void"],
)
def test_malformed_batches_of_publishers_are_refused(batch: Batch) -> None:
    bench = Bench("y/0")
    bench.role(1)
    bench.add_stream()
    (submit,) = passed_down(bench.give(Received("client", Publish(STREAM, batch))), Submit)
    assert submit.refuse == "bad-event"


def test_events_are_accepted_only_from_servers_of_other_regions() -> None:
    bench = Bench()
    bench.role(1)
    bench.add_stream()
    bench.advertised_by("y/0", 1, end=9)
    forged = Batch.of(STREAM, [b"forged"], publisher=bytes(8) + b"ann's id", pub_no=1)
    out = bench.give(Received("client", PeerEvents(STREAM, (forged.sequenced(1, 1, 1),), 2)))
    assert passed_down(out, AppendAt) == []


def test_stale_is_accepted_only_from_servers_of_other_regions() -> None:
    bench = Bench()
    bench.role(1)
    out = bench.give(Received("client", RegionStale("x", 9)))
    assert [effect for effect in out if type(effect) is Close] == []


def test_a_region_that_does_not_know_all_publishers_answers_only_the_owner() -> None:
    bench = Bench("x/0")
    bench.role(1)
    bench.add_stream()  # a stream that y owns
    bench.advertised_by("y/0", 1, end=9)
    void = Batch.void(STREAM, 1, 9, COLLECTED)
    bench.give(Received("y/0", PeerEvents(STREAM, (void,), 9)))
    bench.chain_emits(Appended(STREAM, 9))
    wanted = PublishersWanted(STREAM, 9)
    assert passed_down(bench.give(Received("z/0", wanted)), AskPublishers) == []
    (asked,) = passed_down(bench.give(Received("y/0", wanted)), AskPublishers)
    assert asked.token == "y/0"
    bench.give(Received("y/0", PublishersKnown(STREAM, 9, b"as y knows", True, "y", 9)))
    (asked,) = passed_down(bench.give(Received("z/0", wanted)), AskPublishers)
    assert asked.token == "z/0"


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_region_is_subscribed_only_by_its_own_servers(stranger: str) -> None:
    bench = Bench()
    bench.role(1)
    bench.add_stream()
    assert bench.give(Received(stranger, RegionSubscribe("y", 1, STREAM, 1))) == []
    assert bench.sync.serving.followers == {}
    out = bench.give(Received("y/0", RegionSubscribe("y", 1, STREAM, 1)))
    assert [peer for peer, _ in sent(out, PeerEvents)] == ["y/0"]


def test_publishers_are_reported_only_to_servers_of_other_regions() -> None:
    """If a client could name a server as the asker, it could make a server message itself."""
    bench = Bench("x/0")
    bench.role(1)
    bench.add_stream()
    for node, asker in [("client", ""), ("client", "x/0"), ("client", "y/0"), ("x/1", "x/0")]:
        out = bench.give(Received(node, PublishersWanted(STREAM, 9, asker)))
        assert passed_down(out, AskPublishers) == []
    for node, asker, token in [("y/0", "", "y/0"), ("y/0", "z/0", "y/0"), ("x/1", "z/0", "z/0")]:
        out = bench.give(Received(node, PublishersWanted(STREAM, 9, asker)))
        assert [command.token for command in passed_down(out, AskPublishers)] == [token]
