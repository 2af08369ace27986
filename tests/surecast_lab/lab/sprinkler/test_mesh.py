"""Sprinkler E2, E3 and the mesh economy in small: the claims hold, and the verdicts can fail."""

import pytest

from surecast.core.types import MS, SECOND
from surecast_lab.lab import experiments
from surecast_lab.lab.sprinkler import economy, load, mesh
from surecast_lab.lab.sprinkler.driver import BATCH_NS, PAPER_BYTES, RATE, Load
from surecast_lab.lab.sprinkler.mesh_points import (
    ours,
    printed,
    row_of,
    setting_of,
    steady,
    untuned,
)
from surecast_lab.lab.sprinkler.mesh_run import simulate
from surecast_lab.lab.summary import summarise

OFFERED = 3 * RATE / 1e6
SIZE = 40


def row(setting, seed=1, **names):
    return row_of(seed, setting, names, simulate(seed, setting))


# ---------------------------------------------------------------- the simulation


def test_loads_have_the_named_rates_and_sizes():
    load = Load(SECOND, event_bytes=PAPER_BYTES)
    assert load.batch_events * SECOND // BATCH_NS == RATE
    assert load.batch_bytes == 128 + 10 * load.batch_events
    assert ours(2, 1000, 10, load=1 / 6).rate == RATE // 6


def test_a_point_has_the_settings_of_its_mesh():
    point = {"reading": "short", "way": "printed", "fanout": 4, "shuffle_ms": 300, "seed": 1}
    made = setting_of({**point, "clients": 7, "keep_ns": MS, "meshed": ["r0", "r2"]})
    assert made == printed(4, 300, 7, keep_ns=MS, meshed=("r0", "r2"))
    with pytest.raises(TypeError, match="nonsense"):
        setting_of({**point, "clients": 7, "nonsense": 1})


@pytest.mark.slow
@pytest.mark.parametrize("module", [mesh, load], ids=["e2", "e3"])
def test_a_point_gives_the_declared_columns_and_is_reproducible(module):
    (experiment,) = module.EXPERIMENTS
    point = experiment.points(True, [7])[0] | {"clients": 10}
    (one,), (again,) = experiment.run_point(point), experiment.run_point(point)
    assert one == again
    assert one.keys() <= experiment.columns.keys()
    assert one["seed"] == 7


@pytest.mark.slow
def test_our_mesh_carries_the_papers_load_with_three_copies_from_servers():
    found = row(ours(2, 1000, SIZE, drain_ns=300 * MS))
    assert found["throughput"] > 0.98 * OFFERED
    assert found["copies"] == pytest.approx(3, abs=0.3)
    assert found["fallbacks"] < 0.1
    assert (found["unfinished"], found["misplaced"]) == (0, 0)
    assert 40 < found["latency_r1"] < 200, "one way is 40 ms already"


@pytest.mark.slow
def test_overload_makes_it_slow_but_loses_nothing():
    found = row(untuned(4, 1000, SIZE))
    assert found["copies"] > 6, "servers notify twelve clients"
    assert found["misplaced"] == 0


@pytest.mark.slow
def test_a_fanout_of_four_fits_the_tails_uplink_and_eight_does_not():
    four, eight = (row(steady(fanout, 100, SIZE)) for fanout in (4, 8))
    assert four["throughput"] > 0.98 * OFFERED
    assert four["copies"] == pytest.approx(4, abs=0.5)
    assert eight["throughput"] < 0.75 * four["throughput"]
    assert eight["server_backlog_ms"] > 10 * four["server_backlog_ms"]


@pytest.mark.slow
def test_a_tail_that_shuffles_often_sends_far_more_copies():
    restless, calm = row(printed(4, 30, SIZE)), row(steady(4, 30, SIZE))
    assert restless["copies"] > 2 * calm["copies"]
    assert restless["throughput"] < 0.75 * calm["throughput"]


@pytest.mark.slow
def test_a_small_fanout_needs_a_short_shuffle_time():
    short, long = row(steady(1, 30, SIZE)), row(steady(1, 1000, SIZE))
    assert short["throughput"] > 1.1 * long["throughput"]
    assert long["least"] < 0.5 * OFFERED, "some clients are not notified for long"


@pytest.mark.slow
def test_a_load_beyond_the_uplinks_is_felt():
    light, heavy = (
        row(ours(2, 1000, SIZE, load=sixths / 6, drain_ns=200 * MS)) for sixths in (1, 13)
    )
    assert light["throughput"] == pytest.approx(light["offered"], rel=0.05)
    assert heavy["latency_r0"] > 2 * light["latency_r0"]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run():
    setting = ours(2, 1000, 10, measure_ns=100 * MS)
    one, again, other = (simulate(seed, setting) for seed in (7, 7, 8))
    assert (one.latencies, one.counts, one.inputs) == (again.latencies, again.counts, again.inputs)
    assert one.latencies != other.latencies


@pytest.mark.slow
def test_a_servers_share_falls_with_the_number_of_clients():
    rows = [row for point in economy.points(True, [1]) for row in economy.run_one(point)]
    assert [name for name, holds in economy.claims(rows).items() if not holds] == []
    by_size = {r["clients"]: r["from_server"] for r in rows if r.get("told") == 3}
    assert by_size[10] / by_size[100] == pytest.approx(10, rel=0.2)


# ---------------------------------------------------------------- from rows to verdicts


def made_up_e2(throughput):
    """Rows whose throughput follows a rule instead of a simulation."""
    return [
        {
            "measure": "point",
            "seed": 1,
            **{name: point[name] for name in ("reading", "fanout", "shuffle_ms", "clients")},
            "throughput": throughput(point["reading"], point["fanout"], point["shuffle_ms"]),
            **dict.fromkeys(("least", "copies", "fallbacks", "server_backlog_ms"), 1.0),
            "misplaced": 0,
            "inputs": 1,
        }
        for point in mesh.points(True, [1])
    ]


def as_the_paper_has_it(reading, fanout, shuffle_ms):
    if reading == "ours":
        return 2.6
    return {1: 2.6 if shuffle_ms < 100 else 2.0, 4: 2.65, 8: 1.5}[fanout]


def test_e2_figures_like_the_papers_are_reproduced_and_beaten():
    verdict = mesh.verdict_of(made_up_e2(as_the_paper_has_it))
    assert verdict.reproduced, verdict.ours["claims"]
    assert verdict.beaten
    assert verdict.ours["best_fanout"] == 4


@pytest.mark.parametrize(
    ("throughput", "broken"),
    [
        (lambda r, f, s: 2.65, "larger fanouts do worse"),
        (lambda r, f, s: 2.4, "a fanout of 4 sustains 2.592 M/s"),
        (
            lambda r, f, s: 2.9 if f == 1 else as_the_paper_has_it(r, f, s),
            "no other fanout does better",
        ),
    ],
)
def test_e2_can_fail(throughput, broken):
    verdict = mesh.verdict_of(made_up_e2(throughput))
    assert not verdict.reproduced
    assert not verdict.ours["claims"][broken]


def test_a_claim_shows_how_many_seeds_fulfil_it():
    better = [dict(row, seed=2) for row in made_up_e2(as_the_paper_has_it)]
    flat = [dict(row, seed=3) for row in made_up_e2(lambda r, f, s: 2.65)]
    found = mesh.verdict_of([*made_up_e2(as_the_paper_has_it), *better, *flat]).ours
    assert found["claims_by_single_seeds"]["larger fanouts do worse"] == "2 of 3"
    assert found["claims_by_single_seeds"]["a fanout of 4 sustains 2.592 M/s"] == "3 of 3"


def made_up_e3(knee_at, latency_ms=150.0):
    rows = []
    for point in load.points(True, [1]):
        sixths = point["sixths"]
        offered = OFFERED * sixths / 6
        over = sixths >= knee_at
        rows.append(
            {
                "measure": "point",
                "seed": 1,
                **{name: point[name] for name in ("reading", "fanout", "sixths", "clients")},
                "offered": offered,
                "throughput": 0.7 * offered if over else offered,
                "unfinished": 0.5 if over else 0.0,
                "latency_r0": 900.0 if over else latency_ms,
                "latency_r1": 900.0 if over else latency_ms + 5,
                "misplaced": 0,
                "inputs": 1,
            }
        )
    return rows


def test_e3_finds_the_knee_and_judges_the_latency_before_it():
    rows = made_up_e3(knee_at=11)
    line = load.curve(rows, "ours", 2)
    assert load.knee(line) == 11
    verdict = load.verdict_of(rows)
    assert (verdict.reproduced, verdict.beaten) == (True, True), verdict.ours["claims"]


def test_e3_can_fail():
    late = load.verdict_of(made_up_e3(knee_at=11, latency_ms=310))
    assert (late.reproduced, late.beaten) == (False, False)
    early = load.verdict_of(made_up_e3(knee_at=5))
    assert (early.reproduced, early.beaten) == (False, False)
    never = load.verdict_of(made_up_e3(knee_at=99))
    assert not never.reproduced, "a system that never saturates was not loaded enough"


def test_economy_can_fail():
    base = {"measure": "point", "seed": 1, "reading": "each replica tells 1", "told": 3}
    good = base | {
        "clients": 100,
        "copies": 3.1,
        "from_server": 0.031,
        "throughput": 1,
        "offered": 1,
    }
    assert economy.verdict_of([good]).reproduced
    assert not economy.verdict_of([good | {"copies": 5.0, "from_server": 0.05}]).reproduced
    real = {"measure": "real", "clients": 50, "from_server": 0.9, "what": "test"}
    assert not economy.verdict_of([good, real]).reproduced


def test_measured_points_are_well_formed():
    for point in economy.measured():
        assert point["clients"] > 0
        assert 0 < point["from_server"] <= 1


@pytest.mark.slow
def test_figures_are_drawn_from_rows_alone(tmp_path):
    e2 = made_up_e2(as_the_paper_has_it)
    real = {"measure": "real", "clients": 8, "from_server": 0.5, "what": "test"}
    share = {"measure": "point", "seed": 1, "reading": "each replica tells 1", "told": 3}
    for name, rows in (
        ("sprinkler-e2", e2),
        ("sprinkler-e3", made_up_e3(11)),
        ("sprinkler-economy", [share | {"clients": 10, "from_server": 0.3}, real]),
    ):
        figure = tmp_path / f"{name}.png"
        experiment = experiments()[name]
        experiment.draw(summarise(rows, list(experiment.by), list(experiment.values)), figure)
        assert figure.read_bytes().startswith(b"\x89PNG")
