"""Confidence intervals of a mean over a few seeds, by Student's t-distribution, without scipy."""

from functools import cache
from math import atan, cos, pi, sin, sqrt

__all__ = ["CONFIDENCE", "t_factor", "within"]

CONFIDENCE = 0.95


@cache
def t_factor(count: int) -> float:
    """The factor by which the standard error of a mean of `count` numbers is multiplied for its
    95 % confidence interval: 12.71 for two numbers, 2.776 for five, 1.96 for very many."""
    assert count >= 2, "one number has no spread"
    low, high = 0.0, 1000.0
    for _ in range(60):  # bisection: 60 steps reach the precision of a float
        middle = (low + high) / 2
        if within(middle, count - 1) < CONFIDENCE:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def within(t: float, freedom: int) -> float:
    """The probability that |T| <= t, where T has Student's t-distribution with this number of
    degrees of freedom (`freedom`). It is a finite sum, because that number is an integer."""
    angle = atan(t / sqrt(freedom))
    squared = cos(angle) ** 2
    odd = freedom % 2
    term = cos(angle) if odd else 1.0
    total = 0.0
    for power in range(1 + odd, freedom, 2):
        total += term
        term *= squared * power / (power + 1)
    if odd:
        return 2 / pi * (angle + sin(angle) * total)
    return sin(angle) * total
