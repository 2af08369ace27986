"""The liveness model: the regions that a publish must reach while some parts are broken."""

from surecast_lab.swarm.liveness_model import LivenessModel

REGIONS = {"a": ("a-1", "a-2", "a-3"), "b": ("b-1", "b-2"), "c": ("c-1",)}
ALL = ["a", "b", "c"]


def reached(model: LivenessModel) -> dict[str, list[str]]:
    return {region: sorted(model.reached_from(region)) for region in REGIONS}


def test_without_faults_every_publish_reaches_every_region() -> None:
    assert reached(LivenessModel(REGIONS)) == {"a": ALL, "b": ALL, "c": ALL}


def test_a_chain_of_three_takes_publishes_without_one_a_chain_of_two_does_not() -> None:
    model = LivenessModel(REGIONS)
    model.replica_down("a", "a-2")
    model.replica_down("b", "b-1")
    assert reached(model) == {"a": ALL, "b": [], "c": ALL}  # b still receives
    model.replica_up("b", "b-1")
    assert reached(model)["b"] == ALL


def test_a_region_without_replicas_receives_and_forwards_nothing() -> None:
    model = LivenessModel(REGIONS)
    model.replica_down("c", "c-1")
    assert reached(model) == {"a": ["a", "b"], "b": ["a", "b"], "c": []}
    model.cut["a-b"] = True
    assert reached(model) == {"a": ["a"], "b": ["b"], "c": []}
    model.replica_up("c", "c-1")
    assert reached(model) == {"a": ALL, "b": ALL, "c": ALL}  # by way of c


def test_a_replica_that_is_not_a_member_cannot_continue_alone() -> None:
    model = LivenessModel(REGIONS)
    model.members["a"] = ["a-1", "a-2"]  # a-3 was dropped and has not rejoined
    for name in ("a-1", "a-2"):
        model.replica_down("a", name)
    assert not model.works("a")
    model.replica_up("a", "a-1")
    assert model.works("a")


def test_without_its_witness_a_chain_works_while_no_member_leaves() -> None:
    model = LivenessModel(REGIONS)
    model.witness_down("a")
    assert model.writable("a")
    model.replica_down("a", "a-1")
    assert not model.works("a")
    model.replica_up("a", "a-1")
    assert not model.works("a")  # a-1 needs the witness to know that it is still a member
    model.witness_up("a")
    assert model.writable("a")


def test_a_cut_off_publisher_reaches_no_region() -> None:
    model = LivenessModel(REGIONS)
    model.publisher_cut["b"] = True
    assert reached(model) == {"a": ALL, "b": [], "c": ALL}
