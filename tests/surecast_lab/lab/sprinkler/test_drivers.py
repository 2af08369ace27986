"""Sprinkler E1: its claims can fail, its figure is drawn, a small run counts exactly."""

import pytest
from tests.surecast_lab.measuring import measured

from surecast.errors import SurecastError
from surecast_lab.lab import experiments
from surecast_lab.lab.run import run
from surecast_lab.lab.sprinkler import drivers as e1
from surecast_lab.lab.summary import summarise


def rows(totals, runs=(1,)):
    """A row for each point: `totals` has a list for each number of proxies (1, 2, 3), with a total
    for 1, 2, 4 … drivers."""
    return [
        {
            "seed": run,
            "proxies": proxies,
            "drivers": 2**place,
            "total": total * (1 + run / 100),
            "per_driver": total / (proxies * 2**place),
            "events": 1000,
            "proxy_cores": 0.5,
            "other_cores": 0.0,
        }
        for run in runs
        for proxies, line in zip((1, 2, 3), totals, strict=True)
        for place, total in enumerate(line)
    ]


GOOD = [[2e6, 4e6, 4.5e6], [1.5e6, 3.5e6, 3.9e6], [1e6, 3e6, 3.3e6]]
FLAT_START = [[2e6, 1.9e6, 1.9e6], *GOOD[1:]]
STILL_RISING = [*GOOD[:2], [1e6, 2e6, 4e6 * 0.9]]
MORE_WITH_MORE = [GOOD[2], GOOD[1], GOOD[0]]


@pytest.mark.parametrize(
    ("totals", "failing"),
    [
        (GOOD, None),
        (FLAT_START, "more drivers carry more"),
        (STILL_RISING, "then it saturates"),
        (MORE_WITH_MORE, "the peak does not rise with more proxies"),
    ],
)
def test_each_claim_can_fail(totals, failing):
    held = e1.claims(rows(totals))
    failed = [claim for claim, holds in held.items() if not holds]
    assert failing in failed if failing else not failed
    assert e1.verdict_of(rows(totals)).reproduced == (failing is None)


def test_beaten_means_above_the_papers_upper_figure_with_three_proxies():
    assert e1.verdict_of(rows(GOOD)).beaten
    slow = [[t * 0.8 for t in line] for line in GOOD]
    assert not e1.verdict_of(rows(slow)).beaten


def test_the_verdict_has_mean_least_and_greatest_over_runs():
    verdict = e1.verdict_of(rows(GOOD, runs=(1, 2, 3)))
    found = verdict.ours["three_proxies_events_per_s"]
    assert (found.min, found.mean, found.max) == (3_333_000, 3_366_000, 3_399_000)
    assert verdict.ours["at_drivers_a_proxy"] == 4
    assert verdict.seeds == [1, 2, 3]


def test_the_figure_is_drawn_from_the_rows(tmp_path):
    experiment = experiments()["sprinkler-e1"]
    summary = summarise(rows(GOOD, runs=(1, 2)), list(experiment.by), list(experiment.values))
    e1.draw(summary, tmp_path / "e1.png")
    assert (tmp_path / "e1.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_lost_events_has_no_result(monkeypatch):
    from surecast_lab.bench.broadcast import Run

    lost = Run(1.0, {}, 1, 1.0, {"others": 0.0, "east-1": 0.5}, ["west-1 has 3 events"])
    monkeypatch.setattr(e1, "broadcast", lambda *_args, **_options: lost)
    with pytest.raises(SurecastError, match="lost or doubled"):
        e1.run_point(e1.points(True, [1])[0])


@pytest.mark.nightly
@pytest.mark.slow
def test_a_small_run_with_real_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(e1, "DRIVERS_QUICK", (1, 2))
    monkeypatch.setattr(e1, "PROXIES", (1, 2, 3))
    experiment = experiments()["sprinkler-e1"]

    def verdict_after(seconds):
        monkeypatch.setattr(e1, "SECONDS_QUICK", seconds)
        return run(experiment, lambda *_: None, tmp_path / str(seconds), quick=True, seeds=(1, 2))

    def has_counted(verdict):
        return verdict.ours["three_proxies_events_per_s"].min > 0

    verdict = measured(verdict_after, has_counted, seconds=0.2)
    assert verdict.seeds == [1], "a quick look takes one run"
    assert verdict.ours["three_proxies_events_per_s"].min > 0
    files = experiment.files(next(tmp_path.iterdir()))
    assert files["figure"].read_bytes().startswith(b"\x89PNG")
    assert files["table"].exists()
