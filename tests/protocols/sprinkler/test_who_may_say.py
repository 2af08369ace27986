"""Which peer may tell a server what, and what a publisher may send: anything else changes nothing.

Each story is told with the layers as they are and with a mutant that believes everybody
(`tests/mutations.py`); it returns what the lie has changed. x/0 is head and tail of region x; the
stream belongs to region y.
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
from tests.helpers import tell_each
from tests.protocols.bench import INFO, STREAM, Bench, passed_down, sent

Story = Callable[[type | None], list[str]]
STRANGERS = ["client", "x/1", "z/0", "y/7"]  # none of them is a server of region y


def advertisement_of_a_stranger(mutant: type | None) -> list[str]:
    """A peer that is no server of y claims to be its tail, ahead of y and of a later epoch."""
    problems = []
    for stranger in STRANGERS:
        bench = Bench(mutant=mutant)
        bench.role(1)
        bench.knows(end=4)
        out = bench.give(Received(stranger, Advertise("y", 9, {STREAM: 99}, (INFO,), True)))
        problems += [f"the stream is pulled from {peer}" for peer, _ in sent(out, RegionSubscribe)]
        out = bench.hears("y/0", 1, end=9)
        if [peer for peer, _ in sent(out, RegionSubscribe)] != ["y/0"]:
            problems.append("the stream is not pulled from the server that has it")
        if sent(out, RegionStale):
            problems.append("the real tail was told that it is none")
    return problems


def publishers_known_to_a_stranger(mutant: type | None) -> list[str]:
    """R4: x pulled compacted batches and asks y who published them; another peer answers."""
    problems = []
    for stranger in STRANGERS:
        bench = Bench(mutant=mutant)
        bench.role(1)
        bench.knows()
        bench.hears("y/0", 1, end=9)
        void = Batch.void(STREAM, 1, 9, COLLECTED)
        bench.give(Received("y/0", PeerEvents(STREAM, (void,), 9)))
        bench.says(Appended(STREAM, 9))
        out = bench.timer("sprinkler", "advertise")
        asked = [peer for peer, _ in sent(out, PublishersWanted)]
        problems += [] if asked == ["y/0"] else [f"asked {asked}"]
        lie = PublishersKnown(STREAM, 9, b"forged", True, "y", 9)
        if passed_down(bench.give(Received(stranger, lie)), TakePublishers):
            problems.append(f"{stranger} was believed")
        truth = PublishersKnown(STREAM, 9, b"as y knows", True, "y", 9)
        taken = passed_down(bench.give(Received("y/0", truth)), TakePublishers)
        if taken != [TakePublishers(STREAM, 9, b"as y knows", 0)]:
            problems.append("the answer of the region that was asked did not count")
    return problems


def batch_with_a_place(mutant: type | None) -> list[str]:
    """A publisher sends a batch that names its own position, time and epoch."""
    bench = Bench("y/0", mutant)
    bench.role(1)
    bench.knows()
    plain = Batch.of(STREAM, [b"v"], publisher=bytes(8) + b"ann's id", pub_no=1)
    problems = []
    for batch, refused in ((plain, ""), (plain.sequenced(7, 1, 1), "bad-event")):
        (submit,) = passed_down(bench.give(Received("client", Publish(STREAM, batch))), Submit)
        if submit.refuse != refused:
            problems.append(f"a batch at {batch.lo} was refused as {submit.refuse!r}")
    return problems


STORIES: list[tuple[str, Story, type]] = [
    ("advertise", advertisement_of_a_stranger, mutations.TakesAnybodysAdvertisement),
    ("publishers", publishers_known_to_a_stranger, mutations.TakesAnybodysPublishersKnown),
    ("place", batch_with_a_place, mutations.TakesPlacedBatches),
]


@tell_each(STORIES)
def test_only_the_right_peer_is_believed(story: Story, mutant: type) -> None:
    assert story(None) == []


@tell_each(STORIES)
def test_story_fails_when_anybody_is_believed(story: Story, mutant: type) -> None:
    assert story(mutant) != []


@pytest.mark.parametrize(
    "batch",
    [
        Batch.of(STREAM, [b"v"], publisher=bytes(16), pub_no=0),
        Batch.of(bytes(16), [b"v"], publisher=bytes(16), pub_no=1),
        Batch.void(STREAM, 1, 2, COLLECTED),
    ],
    ids=["without-number", "of-another-stream", "void"],
)
def test_what_no_publisher_may_send_is_refused(batch: Batch) -> None:
    bench = Bench("y/0")
    bench.role(1)
    bench.knows()
    (submit,) = passed_down(bench.give(Received("client", Publish(STREAM, batch))), Submit)
    assert submit.refuse == "bad-event"


def test_events_come_from_servers_of_other_regions_alone() -> None:
    bench = Bench()
    bench.role(1)
    bench.knows()
    bench.hears("y/0", 1, end=9)
    forged = Batch.of(STREAM, [b"forged"], publisher=bytes(8) + b"ann's id", pub_no=1)
    out = bench.give(Received("client", PeerEvents(STREAM, (forged.sequenced(1, 1, 1),), 2)))
    assert passed_down(out, AppendAt) == []


def test_a_tail_is_told_stale_by_servers_of_other_regions_alone() -> None:
    bench = Bench()
    bench.role(1)
    out = bench.give(Received("client", RegionStale("x", 9)))
    assert [effect for effect in out if type(effect) is Close] == []


def test_a_region_that_does_not_know_all_publishers_answers_only_the_owner() -> None:
    bench = Bench("x/0")
    bench.role(1)
    bench.knows()  # a stream that y owns
    bench.hears("y/0", 1, end=9)
    void = Batch.void(STREAM, 1, 9, COLLECTED)
    bench.give(Received("y/0", PeerEvents(STREAM, (void,), 9)))
    bench.says(Appended(STREAM, 9))
    wanted = PublishersWanted(STREAM, 9)
    assert passed_down(bench.give(Received("z/0", wanted)), AskPublishers) == []
    (asked,) = passed_down(bench.give(Received("y/0", wanted)), AskPublishers)
    assert asked.token == "y/0"
    bench.give(Received("y/0", PublishersKnown(STREAM, 9, b"as y knows", True, "y", 9)))
    (asked,) = passed_down(bench.give(Received("z/0", wanted)), AskPublishers)
    assert asked.token == "z/0"


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_region_is_sent_streams_by_word_of_its_own_servers_alone(stranger: str) -> None:
    bench = Bench()
    bench.role(1)
    bench.knows()
    assert bench.give(Received(stranger, RegionSubscribe("y", 1, STREAM, 1))) == []
    assert bench.sync.serving.followers == {}
    out = bench.give(Received("y/0", RegionSubscribe("y", 1, STREAM, 1)))
    assert [peer for peer, _ in sent(out, PeerEvents)] == ["y/0"]


def test_only_servers_of_other_regions_are_told_what_publishers_had_accepted() -> None:
    """A client that names a server as the asker would make this one send itself a message."""
    bench = Bench("x/0")
    bench.role(1)
    bench.knows()
    for node, asker in [("client", ""), ("client", "x/0"), ("client", "y/0"), ("x/1", "x/0")]:
        out = bench.give(Received(node, PublishersWanted(STREAM, 9, asker)))
        assert passed_down(out, AskPublishers) == []
    for node, asker, told in [("y/0", "", "y/0"), ("y/0", "z/0", "y/0"), ("x/1", "z/0", "z/0")]:
        out = bench.give(Received(node, PublishersWanted(STREAM, 9, asker)))
        assert [one.token for one in passed_down(out, AskPublishers)] == [told]
