"""What the digests of tests/goldens.py cover. A few of them are compared in test_swarm.py and
test_mesh.py, all by `make goldens`."""

from tests.goldens import Outputs, stored

from surecast.core.types import Send
from surecast.protocols.chain.messages import Beat


def test_two_hundred_seeds_of_each_swarm_are_stored() -> None:
    found = stored()
    assert set(found) == {"sprinkler", "sprinkler-mesh"}
    for digests in found.values():
        assert list(digests) == [str(seed) for seed in range(200)]
        assert len(set(digests.values())) == 200


def test_a_digest_depends_on_the_order_within_a_node_and_not_between_nodes() -> None:
    def digest(*steps: tuple[int, str, object, list[object]]) -> str:
        outputs = Outputs()
        for step in steps:
            outputs.record(step)
        return outputs.digest()

    one: list[object] = [Send("x", Beat(1))]
    two: list[object] = [Send("x", Beat(2))]
    assert digest((0, "a", None, one), (0, "b", None, two)) == digest(
        (0, "b", None, two), (0, "a", None, one)
    )
    assert digest((0, "a", None, one + two)) != digest((0, "a", None, two + one))
    assert digest((0, "a", None, one + two)) == digest((0, "a", None, one), (0, "a", None, two))
    assert digest((0, "a", None, one)) != digest((1, "a", None, one))
