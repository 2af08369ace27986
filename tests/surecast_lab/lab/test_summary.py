"""The summary over seeds: its statistics, its groups, and its lines for figures."""

import pytest
from tests.surecast_lab.lab.toys import TOY, run_point

from surecast_lab.lab.student import t_factor
from surecast_lab.lab.summary import Summary, summarise


def rows(seeds):
    return [row for point in TOY.points(False, seeds) for row in run_point(point)]


def test_statistics_of_a_group():
    table = [{"seed": n, "x": 1, "y": y, "z": None} for n, y in enumerate((1.0, 2.0, 6.0))]
    (found,) = summarise(table, ["x"], ["y", "z"]).rows
    half = t_factor(3) * 7**0.5 / 3**0.5  # the variance is 7
    assert found == {
        "x": 1, "value": "y", "n": 3, "mean": 3.0, "low": pytest.approx(3 - half),
        "high": pytest.approx(3 + half), "min": 1.0, "q1": 1.5, "median": 2.0, "q3": 4.0,
        "max": 6.0,
    }  # fmt: skip


def test_one_seed_has_no_interval_and_is_drawn_without_one():
    summary = summarise(rows([1]), list(TOY.by), list(TOY.values))
    assert {row["low"] for row in summary.rows} == {None}
    line = summary.line("x", "y", scale=10)
    assert line.low == line.mean == line.high
    assert summary.caption == "one seed"


def test_every_group_and_value_has_its_line():
    summary = summarise(rows([1, 2, 3]), list(TOY.by), list(TOY.values))
    assert len(summary.rows) == 3 * 4 + 3 * 2, "y at four x, count and good once; late never"
    assert summary.seeds == 3
    assert summary.each("scale") == [1, 10, 100]
    assert summary.each("x", scale=1) == [0, 1, 2, 3]
    assert summary.mean("count", scale=10) == 4
    line = summary.line("x", "y", scale=10)
    assert line.x == [0, 1, 2, 3]
    assert all(lo < mean < hi for lo, mean, hi in zip(line.low, line.mean, line.high, strict=True))
    assert line.scaled(2).mean == [2 * y for y in line.mean]
    assert line.only({1, 3}).x == [1, 3]


def test_a_mean_of_several_groups_is_refused():
    summary = Summary(summarise(rows([1, 2]), list(TOY.by), list(TOY.values)).rows)
    with pytest.raises(ValueError, match="too many"):
        summary.mean("y", scale=10)
