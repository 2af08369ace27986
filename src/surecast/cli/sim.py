"""`surecast sim PROTOCOL`: runs simulated fault tests of a protocol over many seeds.

Such a test is called a *swarm*: it draws a cluster, a workload and faults from a seed, and checks
what clients received. `surecast_lab/lab/torture.py` runs the seeds and adds up the results. This
file has the options and the output.
"""

import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from surecast.cli.extras import demand_matplotlib
from surecast.cli.interrupts import loads
from surecast.cli.progress import Bar, writable
from surecast.cli.spark import Conf, Master, master_of, parse_conf
from surecast_lab.lab.torture import (
    SUMMED,
    Result,
    Summary,
    append_to_ledger,
    ledger_line,
    load_swarm,
    merge,
    passed,
    replay_command,
    run_one,
    run_seeds,
    run_seeds_on_spark,
    swarms,
)

__all__ = [
    "Result",
    "describe_failure",
    "load_swarm",
    "merge",
    "passed",
    "render",
    "run_one",
    "sim",
    "swarms",
]

DEFAULT_SEEDS = 100


@loads("surecast.registry", "surecast.sim")
def sim(
    protocol: Annotated[str, typer.Argument(help="The swarm to run: " + ", ".join(swarms()))],
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds to run.")] = DEFAULT_SEEDS,
    first_seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    seed: Annotated[int | None, typer.Option(min=0, help="Run this one seed only.")] = None,
    jobs: Annotated[int, typer.Option(min=0, help="Number of processes; 0: one per core.")] = 0,
    draw: Annotated[
        Path | None, typer.Option(help="With --seed: draw the run to this .png or .svg file.")
    ] = None,
    on_spark: Annotated[
        bool, typer.Option("--on-spark", help="Run every seed as a Spark task, on --master.")
    ] = False,
    master: Master = None,
    conf: Conf = None,
    ledger: Annotated[
        Path | None, typer.Option(help="Append a JSON line about this run to a file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Test a protocol in the simulator: draw faults from each seed, repair them, then check.

    Exits with 1 if a guarantee was violated. With 50 or more seeds, also if no seed reached some
    message handler; with 500 or more, also if no seed reached some transition of a state table.
    """
    if protocol not in swarms():
        raise typer.BadParameter(
            f"no swarm for {protocol!r}; there is one for: {', '.join(swarms())}",
            param_hint="protocol",
        )
    if seed is not None and (seeds != DEFAULT_SEEDS or first_seed):
        raise typer.BadParameter(
            "cannot be combined with --seeds and --first-seed", param_hint="--seed"
        )
    if draw is not None:
        if seed is None:
            raise typer.BadParameter("needs --seed", param_hint="--draw")
        if draw.suffix not in (".png", ".svg"):
            raise typer.BadParameter(f"{draw} is neither .png nor .svg", param_hint="--draw")
        demand_matplotlib()
        writable(draw.parent)  # raises UsageError if it is not
    if on_spark and (draw is not None or jobs):
        raise typer.BadParameter(
            "cannot be combined with --draw or --jobs", param_hint="--on-spark"
        )
    if ledger is not None:
        append_to_ledger(ledger)  # without a line: only checks that the file can be written
    wanted = [seed] if seed is not None else list(range(first_seed, first_seed + seeds))
    started = time.perf_counter()
    if on_spark:
        results, master = _on_spark(protocol, wanted, master, parse_conf(conf))
    else:
        if draw is not None and seed is not None:
            found = iter([run_and_draw(protocol, seed, draw)])
        else:
            found = run_seeds(protocol, wanted, jobs or os.cpu_count() or 1)
        results = _watched(protocol, found, len(wanted))
    summary = merge(protocol, results)
    if ledger is not None:
        ran = f"Spark, {master}" if on_spark else "processes"  # where the seeds ran
        line = ledger_line(summary, wanted[0], time.perf_counter() - started, ran)
        append_to_ledger(ledger, line)
    print(json.dumps(summary) if as_json else render(protocol, summary, results))
    raise typer.Exit(0 if passed(summary) else 1)


def _watched(protocol: str, found: Iterable[Result], total: int) -> list[Result]:
    """Collect all results in a list. A failure is printed as soon as its result arrives."""
    results = []
    violations = 0
    with Bar(f"sim {protocol}", total) as bar:
        bar.update(0)
        for result in found:
            results.append(result)
            violations += len(result["violations"])
            if result["violations"]:
                bar.say(describe_failure(protocol, result))
            bar.update(len(results), f"{violations} violations")
    return results


def _on_spark(
    protocol: str, seeds: Sequence[int], master: str | None, conf: dict[str, str]
) -> tuple[list[Result], str]:
    """Run the seeds on Spark; returns the results and the master. Failures are printed at the
    end."""
    from surecast.pipeline.session import spark_session

    with Bar(f"sim {protocol}", len(seeds)) as bar:
        bar.update(0, "starting Spark")
        spark = spark_session(master, app=f"surecast sim {protocol}", conf=conf)
        try:
            master = master_of(spark, master)
            results = run_seeds_on_spark(
                spark, protocol, seeds, lambda done, total, note: bar.update(done, note, total)
            )
        finally:
            spark.stop()
        for result in results:
            if result["violations"]:
                bar.say(describe_failure(protocol, result))
    return results, master


def run_and_draw(protocol: str, seed: int, path: Path) -> Result:
    """Run one seed and draw the positions of all readers over time, also if the run fails."""
    from surecast_lab.swarm.timeline import Timeline

    timeline = Timeline()
    result = run_one(protocol, seed, timeline=timeline)
    verdict = f"{len(result['violations'])} violations"
    if not result["violations"]:
        verdict = f"all converged {result['settled_ns'] / 1e9:.1f} s after the repair"
    timeline.draw(path, f"{replay_command(protocol, seed)}: {timeline.about()}; {verdict}")
    return result


def peer_share(summary: Summary) -> float:
    """The share of positions that mesh clients got from other clients."""
    clients: dict[str, int] = summary["clients"]
    peers, servers = clients.get("got from peers", 0), clients.get("got from servers", 0)
    return peers / max(1, peers + servers)


def describe_failure(protocol: str, result: Result) -> str:
    """The violations of one seed as text, with the command that repeats it."""
    lines = [f"seed {result['seed']} violates:"]
    lines += [f"  {violation}" for violation in result["violations"][:10]]
    if len(result["violations"]) > 10:
        lines.append(f"  ... and {len(result['violations']) - 10} more")
    lines.append(f"  replay it with: {replay_command(protocol, result['seed'])}")
    return "\n".join(lines)


def render(protocol: str, summary: Summary, results: list[Result]) -> str:
    """The summary as text."""
    verdict = "passed" if passed(summary) else "FAILED"
    rows = [
        ("seeds", f"{summary['seeds']:,}"),
        ("violations", f"{summary['violations']:,}"),
        ("simulated hours", f"{summary['simulated_hours']:,.2f}"),
        ("faults", f"{sum(summary['faults'].values()):,}"),
        *(("  " + kind, f"{count:,}") for kind, count in summary["faults"].items()),
        *((key.replace("_", " "), f"{summary[key]:,}") for key in SUMMED),
        *((f"clients {what}", f"{n:,}") for what, n in summary["clients"].items()),
        *([("mesh share from peers", f"{share:.0%}")] if (share := peer_share(summary)) else []),
        ("slowest to converge", f"{summary['settled_s_max']:.1f} s after the repair"),
        ("handlers reached", _share(summary["coverage"])),
        ("transitions reached", _share(summary["transitions"])),
    ]
    if len(results) == 1 and results[0].get("trace_digest"):
        rows.append(("trace digest", results[0]["trace_digest"]))
    width = max(len(name) for name, _ in rows)
    lines = [f"{protocol}: {verdict}", *(f"  {name:<{width}}  {text}" for name, text in rows)]
    if summary["unexercised"]:
        lines.append(f"never reached in any seed: {', '.join(summary['unexercised'])}")
    if summary["unmet"]:
        lines.append("transitions of the protocol's state tables that no seed reached:")
        lines += [f"  {label}" for label in summary["unmet"]]
    if summary["failing_seeds"]:
        lines.append("to repeat a failing seed:")
        lines += [f"  {failing['replay']}" for failing in summary["failing_seeds"][:20]]
    return "\n".join(lines)


def _share(counts: dict[str, int]) -> str:
    return f"{sum(1 for count in counts.values() if count)} of {len(counts)}"
