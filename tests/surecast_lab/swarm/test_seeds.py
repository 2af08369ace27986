"""Seeds that once found a bug, with a description of the bug."""

import pytest

from surecast_lab.swarm.sprinkler import run_seed

FOUND = {
    13: "an audit judged a replica by rules that it could not have received yet",
    15: "a replica with a wiped disk treated its former identity as its predecessor",
    19: "a learner whose disk failed at the wrong moment never became a member",
    31: "the judge did not apply a changed policy from the CONFIG event on",
    5024: "a learner that its tail forgot, while their session stayed up, never asked again",
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", FOUND)
def test_a_seed_that_once_failed_passes(seed: int) -> None:
    assert run_seed(seed).violations == []
