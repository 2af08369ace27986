"""R4: a region that pulled compacted batches requests the publishers' state from other regions."""

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


def test_publishers_of_compacted_batches_are_requested_from_the_owner() -> None:
    """Regions with a later end may not know the publishers themselves, and would not answer."""
    bench = Bench()
    bench.role(1)
    bench.add_stream()  # a stream that y owns
    bench.advertised_by("y/0", 1, end=9)
    bench.advertised_by("z/0", 1, end=12)
    void = Batch.void(STREAM, 1, 9, COLLECTED)
    bench.give(Received("y/0", PeerEvents(STREAM, (void,), 9)))
    bench.chain_emits(Appended(STREAM, 9))
    assert asked(bench) == ["y/0"]


def test_publishers_are_requested_from_other_regions_if_the_owner_is_behind() -> None:
    bench = Bench()
    bench.role(1)
    bench.add_stream()
    bench.advertised_by("y/0", 1, end=4)
    bench.advertised_by("z/0", 1, end=9)
    void = Batch.void(STREAM, 1, 9, COLLECTED)
    bench.give(Received("z/0", PeerEvents(STREAM, (void,), 9)))
    bench.chain_emits(Appended(STREAM, 9))
    assert asked(bench) == ["z/0"]
    bench.advertised_by("y/0", 1, end=9)
    assert asked(bench) == ["y/0"]


@pytest.mark.slow
def test_regions_know_the_publishers_before_a_lone_owner_loses_its_disk() -> None:
    """Seed 57: four regions asked only a region that did not know the publishers. When the owner
    lost its disk twelve seconds later, no region knew, and publishers were refused as `expired`."""
    assert run_seed(57).violations == []
