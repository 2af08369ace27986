"""R4: a region that pulled compacted batches asks who published them, and asks who knows."""

import pytest

from surecast.columns.batch import COLLECTED, Batch
from surecast.core.replicated import Appended
from surecast.core.types import MS, Received
from surecast.protocols.sprinkler.messages import PeerEvents, PublishersWanted
from surecast_lab.swarm.sprinkler import run_seed
from tests.protocols.bench import STREAM, Bench, sent


def asked(bench: Bench) -> list[str]:
    bench.now_ns += 600 * MS
    return [peer for peer, _ in sent(bench.timer("sprinkler", "advertise"), PublishersWanted)]


def test_the_owner_is_asked_who_published_compacted_batches() -> None:
    """Others that are further may have asked nobody yet, and would not answer."""
    bench = Bench()
    bench.role(1)
    bench.knows()  # a stream that y owns
    bench.hears("y/0", 1, end=9)
    bench.hears("z/0", 1, end=12)
    void = Batch.void(STREAM, 1, 9, COLLECTED)
    bench.give(Received("y/0", PeerEvents(STREAM, (void,), 9)))
    bench.says(Appended(STREAM, 9))
    assert asked(bench) == ["y/0"]


def test_all_regions_that_reach_far_enough_are_asked_if_the_owner_does_not() -> None:
    bench = Bench()
    bench.role(1)
    bench.knows()
    bench.hears("y/0", 1, end=4)
    bench.hears("z/0", 1, end=9)
    void = Batch.void(STREAM, 1, 9, COLLECTED)
    bench.give(Received("z/0", PeerEvents(STREAM, (void,), 9)))
    bench.says(Appended(STREAM, 9))
    assert asked(bench) == ["z/0"]
    bench.hears("y/0", 1, end=9)
    assert asked(bench) == ["y/0"]


@pytest.mark.slow
def test_regions_know_the_publishers_before_a_lone_owner_loses_its_disk() -> None:
    """Seed 57: four regions asked one that did not know either, again and again. When the owner
    lost its disk twelve seconds later nobody knew, and its publishers were told `expired`."""
    assert run_seed(57).violations == []
