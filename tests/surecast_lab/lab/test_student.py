"""Student's t, compared with the values of printed tables."""

import pytest

from surecast_lab.lab.student import t_factor, within


@pytest.mark.parametrize(
    ("count", "factor"),
    [(2, 12.706), (3, 4.303), (4, 3.182), (5, 2.776), (6, 2.571), (10, 2.262), (31, 2.042)],
)
def test_factors_of_the_printed_table(count, factor):
    assert t_factor(count) == pytest.approx(factor, abs=6e-4)


def test_many_numbers_approach_the_normal_law():
    assert t_factor(10_001) == pytest.approx(1.96, abs=1e-3)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 8])
def test_the_closed_form_is_the_integral_of_the_density(freedom):
    from math import gamma, pi, sqrt

    import numpy as np

    t = np.linspace(0, 2.5, 200_001)
    constant = gamma((freedom + 1) / 2) / (sqrt(freedom * pi) * gamma(freedom / 2))
    density = constant * (1 + t**2 / freedom) ** (-(freedom + 1) / 2)
    assert within(2.5, freedom) == pytest.approx(2 * np.trapezoid(density, t), abs=1e-9)


def test_the_confidence_interval_covers_the_true_mean_in_95_percent():
    import numpy as np

    from surecast_lab.lab.verdict import spread

    rng = np.random.default_rng(7)
    trials = 2_000
    held = 0
    for values in rng.normal(3.0, 2.0, (trials, 5)):
        found = spread(values.tolist(), 12)
        held += abs(found.mean - 3.0) <= found.ci95
    assert held / trials == pytest.approx(0.95, abs=0.015)
