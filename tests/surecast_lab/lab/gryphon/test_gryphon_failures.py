"""Gryphon E3 to E5 with one seed: nothing is lost, and the verdicts can fail."""

from pathlib import Path
from typing import Any

import pytest

from surecast_lab.lab import experiments
from surecast_lab.lab.gryphon.failures import rows_of, run_point, verdict_of
from surecast_lab.lab.gryphon.failures_run import simulate
from surecast_lab.lab.summary import summarise

WHAT = ("link", "b1", "p1")


@pytest.fixture(scope="module")
def rows() -> dict[str, list[dict[str, Any]]]:
    return {
        what: [
            row
            for preset in ("paper", "ours")
            for row in run_point({"what": what, "preset": preset, "seed": 1})
        ]
        for what in WHAT
    }


@pytest.mark.slow
@pytest.mark.parametrize("what", WHAT)
def test_the_shapes_of_the_paper_are_reproduced_and_beaten(rows: Any, what: str) -> None:
    verdict = verdict_of(what, rows[what])
    assert (verdict.reproduced, verdict.beaten) == (True, True), verdict.ours


@pytest.mark.slow
@pytest.mark.parametrize("what", WHAT)
def test_a_lost_event_is_noticed(rows: Any, what: str) -> None:
    run = simulate(2, what, "ours")
    run.got["s5", "t3"].seqs.pop()
    row = rows_of(run, "ours", 2)[-1]
    assert row["lost"] == 1
    others = [other for other in rows[what] if other["preset"] == "paper"]
    verdict = verdict_of(what, [*others, row])
    assert (verdict.reproduced, verdict.beaten) == (False, False)


@pytest.mark.slow
def test_a_late_or_repeated_request_is_noticed(rows: Any) -> None:
    worse = [
        row | {"s1_peak_ms": 3_000.0, "s1_requests": 2.0} if row["measure"] == "run" else row
        for row in rows["link"]
    ]
    verdict = verdict_of("link", worse)
    assert (verdict.reproduced, verdict.beaten) == (False, False)
    sums = [
        row | {"b2_requested_ms": 2 * row["s1_requested_ms"]} if row["measure"] == "run" else row
        for row in rows["b1"]
    ]
    assert not verdict_of("b1", sums).reproduced, "the requests of s1 and s2 were not joined"


@pytest.mark.slow
def test_the_figure_is_drawn(rows: Any, tmp_path: Path) -> None:
    experiment = experiments()["gryphon-e3"]
    summary = summarise(rows["link"], list(experiment.by), list(experiment.values))
    experiment.draw(summary, tmp_path / "e3.png")
    assert (tmp_path / "e3.png").stat().st_size > 10_000
