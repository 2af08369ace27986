"""What a round may wait for, given what is broken: the model by itself."""

from surecast_lab.swarm.liveness_model import LivenessModel

REGIONS = {"a": ("a-1", "a-2", "a-3"), "b": ("b-1", "b-2"), "c": ("c-1",)}
ALL = ["a", "b", "c"]


def reached(liveness: LivenessModel) -> dict[str, list[str]]:
    return {region: sorted(liveness.reached_from(region)) for region in REGIONS}


def test_when_all_is_well_everything_reaches_everybody() -> None:
    assert reached(LivenessModel(REGIONS)) == {"a": ALL, "b": ALL, "c": ALL}


def test_a_chain_of_three_takes_publishes_without_one_a_chain_of_two_does_not() -> None:
    liveness = LivenessModel(REGIONS)
    liveness.replica_down("a", "a-2")
    liveness.replica_down("b", "b-1")
    assert reached(liveness) == {"a": ALL, "b": [], "c": ALL}  # b reads on
    liveness.replica_up("b", "b-1")
    assert reached(liveness)["b"] == ALL


def test_a_region_without_replicas_gets_nothing_and_passes_nothing_on() -> None:
    liveness = LivenessModel(REGIONS)
    liveness.replica_down("c", "c-1")
    assert reached(liveness) == {"a": ["a", "b"], "b": ["a", "b"], "c": []}
    liveness.cut["a-b"] = True
    assert reached(liveness) == {"a": ["a"], "b": ["b"], "c": []}
    liveness.replica_up("c", "c-1")
    assert reached(liveness) == {"a": ALL, "b": ALL, "c": ALL}  # by way of c


def test_a_replica_that_is_no_member_cannot_go_on_alone() -> None:
    liveness = LivenessModel(REGIONS)
    liveness.members["a"] = ["a-1", "a-2"]  # a-3 was dropped and has not joined again
    for name in ("a-1", "a-2"):
        liveness.replica_down("a", name)
    assert not liveness.works("a")
    liveness.replica_up("a", "a-1")
    assert liveness.works("a")


def test_without_its_witness_a_chain_stands_as_long_as_nobody_leaves_it() -> None:
    liveness = LivenessModel(REGIONS)
    liveness.witness_down("a")
    assert liveness.writable("a")
    liveness.replica_down("a", "a-1")
    assert not liveness.works("a")
    liveness.replica_up("a", "a-1")
    assert not liveness.works("a")  # nobody can tell it that it still is a member
    liveness.witness_up("a")
    assert liveness.writable("a")


def test_a_publisher_that_is_cut_off_moves_nothing() -> None:
    liveness = LivenessModel(REGIONS)
    liveness.publisher_cut["b"] = True
    assert reached(liveness) == {"a": ALL, "b": [], "c": ALL}
