"""Comparing two versions: the order of runs, and the ratios computed from their figures."""

import importlib.util
import sys
from pathlib import Path

import pytest

_PATH = Path(__file__).resolve().parents[3] / "bench" / "pairs.py"
_SPEC = importlib.util.spec_from_file_location("bench_pairs", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
pairs = importlib.util.module_from_spec(_SPEC)
sys.modules["bench_pairs"] = pairs
_SPEC.loader.exec_module(pairs)


def test_versions_run_in_the_order_abba() -> None:
    assert [version for _, version in pairs.order(4)] == [0, 1, 1, 0, 0, 1, 1, 0]


def test_a_ratio_above_one_is_faster_whatever_the_unit() -> None:
    before = {"events": (100.0, "1/s"), "delay": (8.0, "us")}
    after = {"events": (200.0, "1/s"), "delay": (4.0, "us")}
    rate, delay = pairs.compare([(before, after)] * 3)
    assert (rate.ratio, delay.ratio) == (pytest.approx(2), pytest.approx(2))
    assert (rate.low, rate.high) == (pytest.approx(2), pytest.approx(2))


def test_the_interval_contains_the_ratio_and_grows_with_the_noise() -> None:
    calm = [({"x": (100.0, "1/s")}, {"x": (100.0 + n % 2, "1/s")}) for n in range(10)]
    noisy = [({"x": (100.0, "1/s")}, {"x": (100.0 + 50 * (n % 2), "1/s")}) for n in range(10)]
    (one,), (other,) = pairs.compare(calm), pairs.compare(noisy)
    for found in (one, other):
        assert found.low < found.ratio < found.high
        assert found.pairs == 10
    assert other.high - other.low > 10 * (one.high - one.low)


def test_processor_seconds_exclude_other_processes_of_the_machine() -> None:
    params = {"batch": 500, "cores": {"east-1": 0.5, "driver": 0.25, "others": 3.0}, "events": 7}
    rows = [{"name": "geo_events", "value": 3e6, "unit": "1/s", "params": params}]
    assert pairs.figures(rows) == {
        "geo_events batch=500": (3e6, "1/s"),
        "geo_events batch=500 cpu": (0.25, "s/M events"),
    }


def test_a_figure_of_one_version_only_is_left_out() -> None:
    assert pairs.compare([({"old": (1.0, "1/s")}, {"new": (1.0, "1/s")})]) == []
