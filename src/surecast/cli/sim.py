"""`surecast sim <protocol>`: run seeds of a protocol's swarm, in parallel, and judge the whole.

Each seed is one world: it draws a cluster, a workload and faults, heals, and is checked from the
records of publishers and subscribers. Seeds share nothing, so they run in processes of their own
and their results are added up here, in any order.
"""

import importlib
import json
import multiprocessing
import os
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Annotated, Any

import typer

from surecast.cli.progress import Bar, writable

Result = dict[str, Any]  # a SeedResult as plain data
Summary = dict[str, Any]

SWARMS = {
    "sprinkler": "surecast.swarm.sprinkler:run_seed",
    "sprinkler-mesh": "surecast.swarm.mesh:run_seed",
}

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
SEEDS_FOR_COVERAGE = 50  # fewer seeds may leave a handler untouched by chance
DEFAULT_SEEDS = 100
HOUR_NS = 3_600_000_000_000


def sim(
    protocol: Annotated[str, typer.Argument(help="Whose swarm to run: " + ", ".join(SWARMS))],
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to run.")] = DEFAULT_SEEDS,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    seed: Annotated[int | None, typer.Option(min=0, help="Run this one seed only.")] = None,
    jobs: Annotated[int, typer.Option(min=0, help="Processes; 0: one per core.")] = 0,
    draw: Annotated[
        Path | None, typer.Option(help="With --seed: draw the run into this .png or .svg.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Torture a protocol in the simulator: faults drawn from each seed, then heal and check.

    Exits with 1 if a guarantee was violated, or if over 50 seeds or more some message handler was
    never reached.
    """
    if protocol not in SWARMS:
        raise typer.BadParameter(
            f"no swarm for {protocol!r}; there is one for: {', '.join(SWARMS)}",
            param_hint="protocol",
        )
    if seed is not None and (seeds != DEFAULT_SEEDS or first_seed):
        raise typer.BadParameter("one seed, or --seeds and --first-seed", param_hint="--seed")
    if draw is not None:
        if seed is None:
            raise typer.BadParameter("one --seed can be drawn", param_hint="--draw")
        if draw.suffix not in (".png", ".svg"):
            raise typer.BadParameter(f"{draw} is neither .png nor .svg", param_hint="--draw")
        writable(draw.parent)
    wanted = [seed] if seed is not None else range(first_seed, first_seed + seeds)
    results = []
    violations = 0
    with Bar(f"sim {protocol}", len(wanted)) as bar:
        bar.update(0)
        found = run_seeds(protocol, wanted, jobs or os.cpu_count() or 1)
        if draw is not None and seed is not None:
            found = iter([run_and_draw(protocol, seed, draw)])
        for result in found:
            results.append(result)
            violations += len(result["violations"])
            if result["violations"]:
                bar.say(describe_failure(protocol, result))
            bar.update(len(results), f"{violations} violations")
    summary = merge(protocol, results)
    print(json.dumps(summary) if as_json else render(protocol, summary, results))
    raise typer.Exit(0 if passed(summary) else 1)


def load_swarm(protocol: str) -> Callable[..., Any]:
    """The `run_seed` of a protocol; imports everything it needs."""
    module, _, name = SWARMS[protocol].partition(":")
    run_seed: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return run_seed


def run_one(protocol: str, seed: int, **options: Any) -> Result:
    """One seed as plain data. A crash of the run is a violation too, never an empty success."""
    import msgspec

    try:
        result: Result = msgspec.to_builtins(load_swarm(protocol)(seed, **options))
    except Exception as error:
        story = f"run crashed: {type(error).__name__}: {error}\n{traceback.format_exc()}"
        return {"seed": seed, "violations": [story]}
    if not result["ok"] and not result["violations"]:
        result["violations"] = ["run reports failure without saying which"]
    return result


def run_and_draw(protocol: str, seed: int, path: Path) -> Result:
    """One seed, and a picture of what became of everybody in it; also of a run that failed."""
    from surecast.swarm.story import Story

    story = Story()
    result = run_one(protocol, seed, story=story)
    verdict = f"{len(result['violations'])} violations"
    if not result["violations"]:
        verdict = f"all at one end {result['settled_ns'] / 1e9:.1f} s after healing"
    story.draw(path, f"{replay_command(protocol, seed)}: {story.about()}; {verdict}")
    return result


def run_seeds(protocol: str, seeds: Iterable[int], jobs: int) -> Iterator[Result]:
    """Results as they come. A worker that dies is reported as a violation of its seeds."""
    todo = iter(seeds)
    if jobs == 1:
        yield from (run_one(protocol, seed) for seed in todo)
        return
    # Spawned, not forked: each worker starts clean, whatever threads this process has.
    context = multiprocessing.get_context("spawn")
    running: dict[Future[Result], int] = {}
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_live_with_parent) as pool:
        try:
            while True:
                while len(running) < 2 * jobs and (seed := next(todo, None)) is not None:
                    running[pool.submit(run_one, protocol, seed)] = seed
                if not running:
                    return
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
                    del running[future]
        except BrokenProcessPool:
            for seed in sorted([*running.values(), *todo]):
                yield {"seed": seed, "violations": ["not run to its end: a worker process died"]}
        except BaseException:  # Ctrl-C: nobody waits for the seeds under way
            for worker in list(pool._processes.values()):
                worker.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _live_with_parent() -> None:
    """A worker leaves Ctrl-C to its parent, and goes when that is gone, however it went."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def merge(protocol: str, results: Iterable[Result]) -> Summary:
    """Add up the results of many seeds; the order they come in does not matter."""
    ordered = sorted(results, key=lambda result: result["seed"])
    coverage = _add_up(ordered, "coverage")
    enough = len(ordered) >= SEEDS_FOR_COVERAGE
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
        "unexercised": sorted(name for name, n in coverage.items() if n == 0) if enough else [],
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


def peer_share(summary: Summary) -> float:
    """Of all positions that mesh clients got, how many came from other clients; 0 if none did."""
    clients: dict[str, int] = summary["clients"]
    peers, servers = clients.get("got from peers", 0), clients.get("got from servers", 0)
    return peers / max(1, peers + servers)


def passed(summary: Summary) -> bool:
    """No violation; and where coverage counts, some handlers are known and all were reached."""
    if summary["seeds"] >= SEEDS_FOR_COVERAGE and not summary["coverage"]:
        return False
    return not summary["violations"] and not summary["unexercised"]


def replay_command(protocol: str, seed: int) -> str:
    return f"surecast sim {protocol} --seed {seed}"


def describe_failure(protocol: str, result: Result) -> str:
    lines = [f"seed {result['seed']} violates:"]
    lines += [f"  {violation}" for violation in result["violations"][:10]]
    if len(result["violations"]) > 10:
        lines.append(f"  ... and {len(result['violations']) - 10} more")
    lines.append(f"  replay it with: {replay_command(protocol, result['seed'])}")
    return "\n".join(lines)


def render(protocol: str, summary: Summary, results: list[Result]) -> str:
    """The summary for people."""
    verdict = "passed" if passed(summary) else "FAILED"
    rows = [
        ("seeds", f"{summary['seeds']:,}"),
        ("violations", f"{summary['violations']:,}"),
        ("simulated hours", f"{summary['simulated_hours']:,.2f}"),
        ("faults", f"{sum(summary['faults'].values()):,}"),
        *(("  " + kind, f"{count:,}") for kind, count in summary["faults"].items()),
        *((key.replace("_", " "), f"{summary[key]:,}") for key in SUMMED),
        *((f"mesh clients {what}", f"{n:,}") for what, n in summary["clients"].items()),
        *([("mesh share from peers", f"{share:.0%}")] if (share := peer_share(summary)) else []),
        ("slowest to settle", f"{summary['settled_s_max']:.1f} s after healing"),
        ("handlers reached", _handlers(summary["coverage"])),
    ]
    if len(results) == 1 and results[0].get("trace_digest"):
        rows.append(("trace digest", results[0]["trace_digest"]))
    width = max(len(name) for name, _ in rows)
    lines = [f"{protocol}: {verdict}", *(f"  {name:<{width}}  {text}" for name, text in rows)]
    if summary["unexercised"]:
        lines.append(f"never reached in any seed: {', '.join(summary['unexercised'])}")
    if summary["failing_seeds"]:
        lines.append("to see a failing seed again:")
        lines += [f"  {failing['replay']}" for failing in summary["failing_seeds"][:20]]
    return "\n".join(lines)


def _handlers(coverage: dict[str, int]) -> str:
    return f"{sum(1 for count in coverage.values() if count)} of {len(coverage)}"
