"""Seeds that once found a bug; each stays here with what it found."""

import pytest

from surecast_lab.swarm.sprinkler import run_seed

FOUND = {
    13: "an audit judged a replica by rules it could not have heard of yet",
    15: "a replica with a wiped disk took its old self for its predecessor",
    19: "a learner whose disk failed at the wrong moment never became a member",
    31: "a changed policy counts from the CONFIG event on, which the judge saw otherwise",
    5024: "a learner that its tail forgot, in a session that lived on, never asked again",
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", FOUND)
def test_seed_that_once_failed(seed: int) -> None:
    assert run_seed(seed).violations == []
