"""A small experiment that can be made to fail; importable, so that other processes can run it."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from surecast_lab.lab.summary import Summary
from surecast_lab.lab.verdict import Experiment, Row, Verdict, spread

__all__ = ["TOY", "toy"]


def points(quick: bool, seeds: Sequence[int]) -> list[dict[str, Any]]:
    return [{"scale": scale, "seed": seed} for seed in seeds for scale in (1, 10, 100)]


def run_point(point: dict[str, Any]) -> list[Row]:
    if point.get("trouble") == "raise":
        raise ValueError(f"scale {point['scale']} is too much")
    if point.get("trouble") == "die":
        os._exit(3)  # as when native code crashes
    rng = Random(f"{point['scale']} {point['seed']}")
    named = {"seed": point["seed"], "scale": point["scale"]}
    rows: list[Row] = [
        named | {"measure": "x", "x": x, "y": point["scale"] * (x + rng.random())} for x in range(4)
    ]
    return [*rows, named | {"measure": "all", "count": 4, "late": None, "good": True}]


def verdict_of(rows: Sequence[Row]) -> Verdict:
    seeds = list(dict.fromkeys(row["seed"] for row in rows))
    return Verdict(
        id="toy",
        headline=f"{len(rows)} rows",
        paper={"y": 1.5, "shape": "rises"},
        ours={"y": spread([row["y"] for row in rows if row["measure"] == "x" and row["x"] == 1])},
        reproduced=True,
        beaten=False,
        scale="small",
        seeds=seeds,
        notes=[],
    )


def draw(summary: Summary, path: Path) -> None:
    path.write_text(f"{len(summary.rows)} lines, {summary.caption}")


TOY = Experiment(
    id="toy",
    title="A toy",
    question="Does it run?",
    setup="Three scales.",
    paper="It rises.",
    by={"measure": str, "scale": int, "x": int},
    values={"y": float, "count": int, "late": float, "good": bool},
    points=points,
    run_point=run_point,
    verdict_of=verdict_of,
    draw=draw,
)


def toy(trouble: dict[tuple[int, int], str]) -> Experiment:
    """TOY, with a failure at some (scale, seed): "raise" or "die"."""

    def troubled(quick: bool, seeds: Sequence[int]) -> list[dict[str, Any]]:
        made = points(quick, seeds)
        for point in made:
            if kind := trouble.get((point["scale"], point["seed"])):
                point["trouble"] = kind
        return made

    return replace(TOY, points=troubled)
