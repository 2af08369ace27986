"""Runs many seeds of a swarm, adds up their results, and appends them to a ledger file.

A swarm is a randomized fault test in the simulator (`surecast_lab.swarm`): a seed determines a
cluster, a workload and faults; at the end all faults are healed, and the records of publishers and
subscribers are checked. `surecast sim` and `make torture` use this module. Seeds are independent of
each other, so they run in processes of this machine or as Spark tasks, and their results are added
up in any order.
"""

import json
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surecast.errors import UsageError
from surecast_lab.lab.pool import run_here
from surecast_lab.swarm import scenarios

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

__all__ = [
    "HOUR_NS",
    "SEEDS_FOR_COVERAGE",
    "SEEDS_FOR_TRANSITIONS",
    "SUMMED",
    "Result",
    "Summary",
    "append_to_ledger",
    "ledger_line",
    "load_swarm",
    "merge",
    "passed",
    "replay_command",
    "run_one",
    "run_seeds",
    "run_seeds_on_spark",
    "swarms",
]

Result = dict[str, Any]  # a SeedResult (swarm/trial.py) as plain data
Summary = dict[str, Any]  # the results of many seeds, as `merge` returns them

# Fields of a result that are added up.
SUMMED = (
    "faults_in_flight",
    "published",
    "acked",
    "delivered",
    "void",
    "lost",
    "duplicated",
    "misordered",
)
SEEDS_FOR_COVERAGE = 50  # fewer seeds may by chance not reach a message handler
SEEDS_FOR_TRANSITIONS = 500  # fewer seeds may by chance not reach a rare transition
HOUR_NS = 3_600_000_000_000
FAILING_IN_LEDGER = 100  # an entry lists at most so many failing seeds


def swarms() -> list[str]:
    """The names of all swarms; imports none of them."""
    return scenarios.names()


def load_swarm(protocol: str) -> Callable[..., Any]:
    """A function that runs a seed of a protocol (`trial.run_seed`); imports all it needs."""
    make = scenarios.load(protocol)
    from surecast_lab.swarm.trial import run_seed

    return lambda seed, **options: run_seed(make(), seed, **options)


def run_one(protocol: str, seed: int, **options: Any) -> Result:
    """Run one seed; the result is plain data. A crash of the run is a violation, too."""
    import msgspec

    try:
        result: Result = msgspec.to_builtins(load_swarm(protocol)(seed, **options))
    except Exception as error:
        crash = f"run crashed: {type(error).__name__}: {error}\n{traceback.format_exc()}"
        return {"seed": seed, "violations": [crash]}
    if not result["ok"] and not result["violations"]:
        result["violations"] = ["the run failed, but reports no violation"]
    return result


def run_seeds(protocol: str, seeds: Sequence[int], jobs: int) -> "Iterator[Result]":
    """Run the seeds in `jobs` processes, and yield results as they are ready. If a process crashes,
    that is a violation of all seeds without a result."""
    for number, result, error in run_here(partial(run_one, protocol), seeds, jobs):
        yield result if not error else {"seed": seeds[number], "violations": [error]}


def run_seeds_on_spark(
    spark: "SparkSession",
    protocol: str,
    seeds: Sequence[int],
    progress: Callable[[int, int, str], None],
) -> list[Result]:
    """Run every seed as a Spark task."""
    from surecast.pipeline.sweep import run_tasks

    return [
        result if not error else {"seed": seeds[number], "violations": [error]}
        for number, result, error in run_tasks(spark, partial(run_one, protocol), seeds, progress)
    ]


# ---------------------------------------------------------------- adding up


def merge(protocol: str, results: Iterable[Result]) -> Summary:
    """Add up the results of many seeds, in any order."""
    ordered = sorted(results, key=lambda result: result["seed"])
    coverage = _add_up(ordered, "coverage")
    transitions = _add_up(ordered, "transitions")
    enough_for_coverage = len(ordered) >= SEEDS_FOR_COVERAGE
    enough_for_transitions = len(ordered) >= SEEDS_FOR_TRANSITIONS
    return {
        "protocol": protocol,
        "seeds": len(ordered),
        "violations": sum(len(result["violations"]) for result in ordered),
        "simulated_hours": sum(result.get("simulated_ns", 0) for result in ordered) / HOUR_NS,
        "settled_s_max": max((r.get("settled_ns", 0) for r in ordered), default=0) / 1e9,
        "faults": _add_up(ordered, "faults"),
        "clients": _add_up(ordered, "clients"),
        **{key: sum(result.get(key, 0) for result in ordered) for key in SUMMED},
        "coverage": coverage,
        "unexercised": sorted(name for name, n in coverage.items() if n == 0)
        if enough_for_coverage
        else [],
        "transitions": transitions,
        "unmet": sorted(label for label, n in transitions.items() if n == 0)
        if enough_for_transitions
        else [],
        "failing_seeds": [
            {
                "seed": result["seed"],
                "violations": result["violations"],
                "replay": replay_command(protocol, result["seed"]),
            }
            for result in ordered
            if result["violations"]
        ],
    }


def _add_up(results: Iterable[Result], key: str) -> dict[str, int]:
    total: Counter[str] = Counter()
    for result in results:
        total.update(result.get(key, {}))
    return dict(sorted(total.items()))


def passed(summary: Summary) -> bool:
    """Whether there was no violation, and, if there were enough seeds, all message handlers and all
    transitions of the state tables were reached."""
    if summary["seeds"] >= SEEDS_FOR_COVERAGE and not summary["coverage"]:
        return False
    return not (summary["violations"] or summary["unexercised"] or summary["unmet"])


def replay_command(protocol: str, seed: int) -> str:
    return f"surecast sim {protocol} --seed {seed}"


# ---------------------------------------------------------------- the ledger


def ledger_line(summary: Summary, first_seed: int, seconds: float, ran: str) -> dict[str, Any]:
    """A run as one entry of the ledger: the swarm, its seeds, the results, date, commit and
    machine. `ran` says where the seeds ran, such as "processes"."""
    from surecast_lab.bench.machine import circumstances

    return {
        "protocol": summary["protocol"],
        "first_seed": first_seed,
        "seeds": summary["seeds"],
        "passed": passed(summary),
        "violations": summary["violations"],
        "failing_seeds": [one["seed"] for one in summary["failing_seeds"]][:FAILING_IN_LEDGER],
        "faults": sum(summary["faults"].values()),
        **{key: summary[key] for key in SUMMED},
        "simulated_hours": round(summary["simulated_hours"], 3),
        "seconds": round(seconds, 1),
        "ran": ran,
        **circumstances(),
    }


def append_to_ledger(path: Path, line: dict[str, Any] | None = None) -> None:
    """Append a line to the ledger, in one write, so that lines of concurrent runs do not mix.

    Without a line it only checks that the file can be written; this is done before a long run.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as ledger:
            if line is not None:
                ledger.write(json.dumps(line).encode() + b"\n")
    except OSError as error:
        why = f"cannot write to {path}: {error.strerror}; choose another --ledger"
        raise UsageError(why) from None
