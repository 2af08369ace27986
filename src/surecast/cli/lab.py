"""`surecast lab`: list the experiments of the papers and run them again."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surecast.cli.progress import Bar, writable

if TYPE_CHECKING:
    from surecast.lab import Experiment, Verdict

lab = typer.Typer(no_args_is_help=True, help="The papers' experiments, run again.")


@lab.command("list")
def list_experiments(
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list on stdout.")] = False,
) -> None:
    """List the experiments and what each one asks."""
    from surecast.lab import experiments

    found = experiments().values()
    if as_json:
        keys = ("id", "title", "question", "paper")
        print(json.dumps([{key: getattr(one, key) for key in keys} for one in found]))
        return
    for one in found:
        print(f"{one.id:<16} {one.title}\n{'':<16} {one.question}")


@lab.command("run")
def run_experiments(
    ids: Annotated[list[str], typer.Argument(help="Ids from `surecast lab list`, or `all`.")],
    out: Annotated[Path, typer.Option(help="Where tables, figures and verdicts go.")] = Path(
        "out/lab"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="The same shape, much smaller.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="How often, from seed 1 on.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="The verdicts as a JSON list.")] = False,
) -> None:
    """Run experiments; each leaves a table, a figure and a verdict.

    Exits with 1 if some claim of a paper was not reproduced.
    """
    from surecast.lab import experiments

    known = experiments()
    wanted = list(known) if "all" in ids else ids
    for name in wanted:
        if name not in known:
            raise typer.BadParameter(
                f"no experiment {name!r}; there are: {', '.join(known)}", param_hint="ids"
            )
    writable(out)
    verdicts = []
    for name in wanted:
        verdict = _run(known[name], out, quick, range(1, seeds + 1))
        verdicts.append(verdict)
        if not as_json:
            print(render(known[name], verdict, out))
    if as_json:
        print(json.dumps([json.loads(verdict.to_json()) for verdict in verdicts]))
    raise typer.Exit(0 if all(verdict.reproduced for verdict in verdicts) else 1)


def _run(experiment: "Experiment", out: Path, quick: bool, seeds: range) -> "Verdict":
    with Bar(experiment.id, total=1) as bar:

        def progress(done: int, total: int, note: str) -> None:
            bar.update(done, note, total)

        return experiment.run(progress, out, quick, list(seeds))


def render(experiment: "Experiment", verdict: "Verdict", out: Path) -> str:
    """Claim by claim: the paper's number beside ours."""
    judged = "reproduced" if verdict.reproduced else "NOT reproduced"
    lines = [
        f"{experiment.id}: {experiment.title}",
        f"  {judged}{', beaten' if verdict.beaten else ''}"
        f" ({verdict.scale}; seeds {', '.join(map(str, verdict.seeds))}; {verdict.wall_s:.1f} s)",
    ]
    claims = [*verdict.paper, *(claim for claim in verdict.ours if claim not in verdict.paper)]
    for claim in claims:
        lines.append(f"  {claim}")
        if claim in verdict.paper:
            lines.append(f"    paper  {_short(verdict.paper[claim])}")
        if claim in verdict.ours:
            lines.append(f"    ours   {_short(verdict.ours[claim])}")
    lines += [f"  note: {note}" for note in verdict.notes]
    lines += [f"  {what:<8} {path}" for what, path in experiment.files(out).items()]
    return "\n".join(lines)


def _short(value: Any) -> str:
    """A value of a verdict for people: numbers with few digits, spreads as mean [least, most]."""
    import msgspec

    plain = msgspec.to_builtins(value)
    if isinstance(plain, float):
        return f"{plain:.4g}"
    if isinstance(plain, dict) and plain.keys() == {"mean", "min", "max"}:
        return f"{plain['mean']:.4g} [{plain['min']:.4g}, {plain['max']:.4g}]"
    if isinstance(plain, dict):
        return ", ".join(f"{key}: {_short(item)}" for key, item in plain.items())
    if isinstance(plain, list):
        return ", ".join(_short(item) for item in plain)
    return str(plain)
