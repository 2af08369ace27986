"""The descriptions of experiments, and how numbers are shown."""

import pytest

from surecast_lab.lab import experiments
from surecast_lab.lab.verdict import short, spread


def test_a_spread_has_a_mean_and_a_confidence_interval():
    found = spread([1.0, 2.0, 3.0])
    assert (found.mean, found.min, found.max, found.n) == (2.0, 1.0, 3.0, 3)
    assert found.ci95 == pytest.approx(4.3027 / 3**0.5, abs=1e-3)
    assert str(found) == "2 ± 2.5"
    assert spread([2.0]).ci95 is None
    assert str(spread([2.0])) == "2"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123456, "0.1235"),
        (3_456_000.4, "3,456,000"),
        (True, "yes"),
        (None, "–"),
        ([1, "a"], "1, a"),
        ({"x": 2.0, "y": [1]}, "x: 2, y: 1"),
        (spread([229.0, 120.0, 340.0]), "229.7 ± 273 [120, 340]"),
        ({"mean": 1.0, "min": 0.5, "max": 2.0}, "1 [0.5, 2]"),
    ],
)
def test_values_are_shown_with_few_digits_and_no_exponents(value, text):
    assert short(value) == text


def test_the_experiments_are_named_by_system_and_number():
    found = experiments()
    assert {"sprinkler-e5", "sprinkler-e6"} <= found.keys()
    for name, experiment in found.items():
        assert name == experiment.id
        assert experiment.question.endswith("?")
        assert experiment.title
        assert experiment.setup.endswith(".")
        assert experiment.paper


@pytest.mark.parametrize("name", experiments())
@pytest.mark.parametrize("quick", [True, False], ids=["quick", "full"])
def test_points_are_plain_distinct_and_the_same_for_every_seed(name, quick):
    import json

    from surecast_lab.lab.points import name_of

    experiment = experiments()[name]
    points = experiment.points(quick, [3, 4])
    assert json.loads(json.dumps(points)) == points
    assert len({(name_of(point), point["seed"]) for point in points}) == len(points)
    assert all(isinstance(experiment.weight(point), float) for point in points)
    if not experiment.alone and name != "sprinkler-economy":
        by_seed = [{name_of(p) for p in points if p["seed"] == seed} for seed in (3, 4)]
        assert by_seed[0] == by_seed[1]


@pytest.mark.parametrize("name", experiments())
def test_groups_and_values_do_not_overlap(name):
    experiment = experiments()[name]
    assert not experiment.by.keys() & experiment.values.keys()
    assert "seed" not in experiment.by.keys() | experiment.values.keys()
