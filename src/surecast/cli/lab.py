"""`surecast lab`: lists and repeats the experiments of the papers, and writes a report.

`surecast_lab.lab` has the experiments. This file has the options and the output.
"""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surecast.cli.extras import demand_matplotlib
from surecast.cli.interrupts import loads
from surecast.cli.progress import Bar, writable
from surecast.cli.spark import Conf, Master, master_of, parse_conf

if TYPE_CHECKING:
    from surecast_lab.lab import Experiment, Verdict
    from surecast_lab.lab.run import Where

lab = typer.Typer(no_args_is_help=True, help="Repeat the experiments of the papers.")

SEEDS, SWEEP_SEEDS = 3, 5  # the default number of seeds, without and with --sweep

Out = Annotated[Path, typer.Option(help="Folder for tables, figures and verdicts.")]
OUT = Path("out/lab")  # the default of --out


@lab.command("list")
@loads("surecast_lab.lab")
def list_experiments(
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list on stdout.")] = False,
) -> None:
    """List the experiments and the question of each."""
    from surecast_lab.lab import experiments

    found = experiments().values()
    if as_json:
        keys = ("id", "title", "question", "setup", "paper")
        print(json.dumps([{key: getattr(one, key) for key in keys} for one in found]))
        return
    for one in found:
        print(f"{one.id:<16} {one.title}\n{'':<16} {one.question}")


@lab.command("run")
@loads("surecast_lab.lab.run")
def run_experiments(
    ids: Annotated[list[str], typer.Argument(help="Ids from `surecast lab list`, or `all`.")],
    out: Out = OUT,
    quick: Annotated[
        bool, typer.Option("--quick", help="The same experiment with much smaller numbers.")
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Number of seeds, from 1 on. Default: {SEEDS}; a sweep: {SWEEP_SEEDS}."
        ),
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Run on Spark: each point with each seed is a task.")
    ] = False,
    master: Master = None,
    conf: Conf = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Ignore results of earlier runs in --out.")
    ] = False,
    any_source: Annotated[
        bool,
        typer.Option("--any-source", help="Reuse earlier results even if the source has changed."),
    ] = False,
    point: Annotated[
        str | None,
        typer.Option(help="Run only this point, in this process. A failed run prints its name."),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="With --point: its seed.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the verdicts as a JSON list.")
    ] = False,
) -> None:
    """Run experiments; each writes tables, a figure and a verdict.

    An experiment consists of points: runs with different parameters and seeds. If a run was
    stopped, the next one continues with the missing points. Exits with 1 if a claim of a paper was
    not reproduced, or if points failed.
    """
    from surecast_lab.lab import experiments
    from surecast_lab.lab.run import PointFailed, demand_sweepable

    known = experiments()
    wanted = list(known) if "all" in ids else ids
    for name in wanted:
        if name not in known:
            raise typer.BadParameter(
                f"no experiment {name!r}; there are: {', '.join(known)}", param_hint="ids"
            )
    writable(out)
    if point is not None:
        if len(wanted) != 1 or sweep or seeds is not None:
            hint = "needs exactly one experiment, and allows only --seed and --quick"
            raise typer.BadParameter(hint, param_hint="--point")
        _run_point(known[wanted[0]], point, 1 if seed is None else seed, quick, out, as_json)
        return
    if seed is not None:
        raise typer.BadParameter(
            "needs --point; --seeds sets the number of seeds", param_hint="--seed"
        )
    if sweep and "all" in ids:
        for name in [name for name in wanted if known[name].alone]:
            typer.echo(f"left out, because it measures real processes: {name}", err=True)
            wanted.remove(name)
    for name in wanted if sweep else ():
        demand_sweepable(known[name])  # before Spark starts
    demand_matplotlib()
    count = seeds or (SWEEP_SEEDS if sweep else SEEDS)
    verdicts: list[Verdict] = []
    failures = 0
    with ExitStack() as stack:
        where = _where(stack, sweep, master, parse_conf(conf))
        for name in wanted:
            try:
                verdict = _run(
                    known[name], out, quick, range(1, count + 1), where, fresh, any_source
                )
            except PointFailed as failed:
                failures += 1
                typer.echo(str(failed), err=True)
                continue
            verdicts.append(verdict)
            if not as_json:
                print(render(known[name], verdict, out))
    if as_json:
        print(json.dumps([json.loads(verdict.to_json()) for verdict in verdicts]))
    good = not failures and all(verdict.reproduced for verdict in verdicts)
    raise typer.Exit(0 if good else 1)


def _where(stack: ExitStack, sweep: bool, master: str | None, conf: dict[str, str]) -> "Where":
    """Where to run: in this process, or on Spark in a session that ends with `stack`."""
    from surecast_lab.lab.run import Where

    if not sweep:
        return Where()
    from surecast.pipeline.session import spark_session

    with Bar("Spark", total=0) as bar:
        bar.update(0, "starting")
        spark = spark_session(master, app="surecast lab", conf=conf)
    stack.callback(spark.stop)
    return Where(spark=spark, master=master_of(spark, master))


def _run(
    experiment: "Experiment",
    out: Path,
    quick: bool,
    seeds: range,
    where: "Where",
    fresh: bool,
    any_source: bool,
) -> "Verdict":
    from surecast_lab.lab.run import run

    with Bar(experiment.id, total=1) as bar:

        def progress(done: int, total: int, note: str) -> None:
            bar.update(done, note, total)

        return run(experiment, progress, out, quick, list(seeds), where, fresh, any_source)


def _run_point(
    experiment: "Experiment", name: str, seed: int, quick: bool, out: Path, as_json: bool
) -> None:
    from surecast_lab.lab.run import point_called, run_one

    rows = run_one(experiment, point_called(experiment, name, seed, quick), out)
    if as_json:
        print(json.dumps(rows))
        return
    print(f"{experiment.id}, {name}, seed {seed}: {len(rows)} rows; `lab run` reuses this result")


@lab.command("report")
@loads("surecast_lab.lab.report")
def report(
    out: Annotated[Path, typer.Option(help="Folder with the results of `lab run`.")] = OUT,
    to: Annotated[
        Path | None, typer.Option(help="Folder for the report. Default: report in --out.")
    ] = None,
) -> None:
    """Write a report of static HTML pages from the results in --out; open its index.html."""
    from surecast_lab.lab import experiments
    from surecast_lab.lab.report import write_book

    folder = writable(to or out / "report")
    book = write_book(list(experiments().values()), out, folder)
    missing = f"; not run yet: {', '.join(book.missing)}" if book.missing else ""
    total = len(book.pages) + len(book.missing)
    print(f"{book.index}: {len(book.pages)} of {total} experiments{missing}")


def render(experiment: "Experiment", verdict: "Verdict", out: Path) -> str:
    """The verdict as text: for each claim the figure of the paper and the one measured here."""
    from surecast_lab.lab.verdict import short

    judged = "reproduced" if verdict.reproduced else "NOT reproduced"
    lines = [
        f"{experiment.id}: {experiment.title}",
        f"  {judged}{', beaten' if verdict.beaten else ''}"
        f" ({verdict.scale}; seeds {', '.join(map(str, verdict.seeds))}; {verdict.wall_s:.1f} s)",
        f"  {verdict.headline}",
    ]
    claims = [*verdict.paper, *(claim for claim in verdict.ours if claim not in verdict.paper)]
    for claim in claims:
        lines.append(f"  {claim}")
        if claim in verdict.paper:
            lines.append(f"    paper  {short(verdict.paper[claim])}")
        if claim in verdict.ours:
            lines.append(f"    ours   {short(verdict.ours[claim])}")
    lines += [f"  note: {note}" for note in verdict.notes]
    lines += [f"  {what:<8} {path}" for what, path in experiment.files(out).items()]
    return "\n".join(lines)
