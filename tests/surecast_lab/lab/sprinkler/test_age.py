"""Sprinkler E5 in its quick size, and its parts."""

import json

import numpy as np
import pytest

from surecast_lab.lab import experiments
from surecast_lab.lab.run import run
from surecast_lab.lab.sprinkler.age import ages_at_invalidation, bin_by_age, fit_line, verdict_of


def test_ages_equal_those_of_a_plain_walk_through_the_population():
    from surecast.parts.workload import population

    ticks, skew, lam = 50, 1.2, 30
    ages = ages_at_invalidation(np.random.default_rng(1), skew, lam, ticks)
    made = population(
        np.random.default_rng(1), skew=skew, updates=lam, inserts=10,
        events=int(np.ceil(ticks * (lam + 10) * 1.02)) + 1000,
    )  # fmt: skip
    born, expected = {}, []
    for key, new, time in zip(
        made.key.tolist(), made.new.tolist(), made.time.tolist(), strict=True
    ):
        if new:
            born[key] = int(time)
        elif time < ticks:
            expected.append(int(time) - born[key])
    assert ages.tolist() == expected


def test_bins_hold_every_age_from_one_on_once():
    ages = np.array([0, 0, 1, 1, 2, 7, 99, 999])
    binned = bin_by_age(ages, 1000)
    assert sum(row["events"] for row in binned) == 6
    edges = [row["age_lo"] for row in binned] + [binned[-1]["age_hi"]]
    assert edges == sorted(set(edges))
    assert (edges[0], edges[-1]) == (1, 1000)


def test_the_fit_finds_a_power_law_and_its_flaws():
    ages = np.logspace(0, 4, 41)
    law = [{"age": a, "events": 1000, "invalidations": 5e6 * a**-1.3} for a in ages]
    fit = fit_line(law, 10, 1000)
    assert fit["slope"] == pytest.approx(-1.3)
    assert fit["at_100"] == pytest.approx(5e6 * 100**-1.3)
    assert fit["r2"] == pytest.approx(1)
    assert fit["worst"] == pytest.approx(1)
    bent = [row | {"invalidations": 5e6 * np.exp(-row["age"] / 50)} for row in law]
    assert fit_line(bent, 10, 1000)["r2"] < 0.9, "an exponential must not pass for straight"


def fits(slopes, levels, r2=0.999):
    """One fit for each curve; slopes by skew, levels by λ."""
    fit = {"measure": "line", "seed": 1, "ticks": 1000, "r2": r2, "worst": 1.0, "age_last": 100}
    return [
        fit | {"skew": skew, "lambda": lam, "slope": slope, "at_100": level}
        for skew, slope in zip((1.1, 1.3, 1.5), slopes, strict=True)
        for lam, level in zip((20, 200), levels, strict=True)
    ]


@pytest.mark.parametrize(
    ("case", "failing"),
    [
        (fits((-1.1, -1.3, -1.5), (1, 10)), None),
        (fits((-1.1, -1.5, -1.3), (1, 10)), "steeper"),
        (fits((-1.1, -1.3, -1.5), (10, 1)), "higher"),
        (fits((-1.1, -1.3, -1.5), (1, 10), r2=0.98), "straight"),
    ],
)
def test_each_claim_can_fail(case, failing):
    verdict = verdict_of(case)
    assert verdict.reproduced == (failing is None)
    claims = {name: verdict.ours[name] for name in ("straight", "steeper", "higher")}
    assert [name for name, holds in claims.items() if not holds] == ([failing] if failing else [])


@pytest.mark.slow
def test_quick_run_reproduces_figure_9(tmp_path):
    experiment = experiments()["sprinkler-e5"]
    verdict = run(experiment, lambda *_: None, tmp_path, quick=True, seeds=(1, 2, 3))
    assert verdict.reproduced
    lines = verdict.ours["lines"]
    for skew in (1.1, 1.3, 1.5):
        for lam in (20, 200):
            # A key's rank grows in step with its age, so its share of updates falls as age**-skew.
            slope = lines[f"skew {skew}, λ {lam}"]["slope"].mean
            assert slope == pytest.approx(-skew, abs=0.1)
        few, many = (lines[f"skew {skew}, λ {lam}"]["at_age_100"].mean for lam in (20, 200))
        assert many / few == pytest.approx(10, rel=0.1)
    files = experiment.files(tmp_path)
    assert files["figure"].read_bytes().startswith(b"\x89PNG")
    assert json.loads(files["verdict"].read_bytes())["reproduced"] is True
