"""`surecast bench`: benchmarks with real processes on this machine; `surecast_lab.bench` has them.

This file defines the options of each benchmark and prints its report.
"""

from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surecast.cli.interrupts import loads
from surecast.cli.progress import Bar, writable

if TYPE_CHECKING:
    from surecast_lab.bench.report import Progress, Report

bench = typer.Typer(
    no_args_is_help=True,
    help="Measure real servers, publishers and readers on this machine.",
)

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Folder = Annotated[
    Path,
    typer.Option(
        "--dir",
        help="Folder for data and logs during the run. Durable figures measure its disk.",
        show_default=True,
    ),
]
DIR = Path("out/bench")  # the default of --dir
Durable = Annotated[
    bool | None,
    typer.Option(
        "--durable/--memory", help="Sync to disk before acknowledging, or keep in memory."
    ),
]
Seconds = Annotated[float, typer.Option(min=0.1, max=3600, help="Duration of each measurement.")]
Keys = Annotated[int, typer.Option(min=1, help="Number of keys.")]
Skew = Annotated[
    float, typer.Option(min=0, help="Skew of the keys' popularity (Zipf); 0: uniform.")
]


@bench.command()
@loads("surecast_lab.bench.geo")
def geo(
    replicas: Annotated[
        list[int] | None,
        typer.Option(min=1, max=9, help="Replicas of each region. Default: 1 and 2."),
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="Events per batch. Default: 500 and 4000.")
    ] = None,
    durable: Durable = None,
    seconds: Seconds = 8.0,
    window: Annotated[
        int, typer.Option(min=1, max=64, help="Maximum of unacknowledged batches of a publisher.")
    ] = 32,
    keys: Keys = 100_000,
    skew: Skew = 1.1,
    folder: Folder = DIR,
    as_json: Json = False,
) -> None:
    """Events per second replicated to three regions. Without options: the whole table."""
    from surecast_lab.bench import geo as module

    options = module.GeoOptions(
        replicas=replicas or (1, 2),
        batches=batch or (500, 4000),
        durable=(False, True) if durable is None else (durable,),
        seconds=seconds,
        window=window,
        keys=keys,
        skew=skew,
    )
    _run("geo", module.measure, options, folder, as_json)


@bench.command()
@loads("surecast_lab.bench.fanout")
def fanout(
    subscribers: Annotated[int, typer.Option(min=1, max=256, help="Reader processes.")] = 16,
    events: Annotated[int, typer.Option(min=1, help="Events that each reader gets.")] = 2_000_000,
    batch: Annotated[int, typer.Option(min=1, help="Events per batch.")] = 500,
    folder: Folder = DIR,
    as_json: Json = False,
) -> None:
    """One publisher, many readers in one region, without and with the mesh; NATS for comparison."""
    from surecast_lab.bench import fanout as module

    options = module.FanoutOptions(subscribers, events, batch)
    _run("fanout", module.measure, options, folder, as_json)


@bench.command()
@loads("surecast_lab.bench.latency")
def latency(
    rate: Annotated[float, typer.Option(min=1, help="Events per second.")] = 2_000,
    seconds: Seconds = 10.0,
    durable: Durable = False,
    folder: Folder = DIR,
    as_json: Json = False,
) -> None:
    """Time from publish to acknowledgement and delivery, in the same and in another region."""
    from surecast_lab.bench import latency as module

    options = module.LatencyOptions(rate, seconds, bool(durable))
    _run("latency", module.measure, options, folder, as_json)


@bench.command()
@loads("surecast_lab.bench.durable")
def durable(
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="Events per batch. Default: 500 and 4000.")
    ] = None,
    tasks: Annotated[int, typer.Option(min=1, help="Tasks that publish single events.")] = 1_000,
    seconds: Seconds = 5.0,
    folder: Folder = DIR,
    as_json: Json = False,
) -> None:
    """Events per second, each on disk before it is acknowledged."""
    from surecast_lab.bench import durable as module

    options = module.DurableOptions(batch or (500, 4000), tasks, seconds)
    _run("durable", module.measure, options, folder, as_json)


@bench.command()
@loads("surecast_lab.bench.catchup")
def catchup(
    events: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Published during the outage. Default: 150000 and 1000000."),
    ] = None,
    keys: Keys = 100_000,
    skew: Skew = 1.1,
    durable: Durable = False,
    folder: Folder = DIR,
    as_json: Json = False,
) -> None:
    """Bytes sent to a region after an outage, with and without retention."""
    from surecast_lab.bench import catchup as module

    options = module.CatchupOptions(
        events or (150_000, 1_000_000), keys, skew, durable=bool(durable)
    )
    _run("catchup", module.measure, options, folder, as_json)


def _run(
    name: str,
    measure: "Callable[[Any, Path, Progress], Report]",
    options: Any,
    folder: Path,
    as_json: bool,
) -> None:
    """Run a benchmark and print its report; exit code 1 if an event was lost or duplicated."""
    place = Path(mkdtemp(prefix=f"{name}-", dir=writable(folder)))
    with Bar(f"bench {name}", 1) as bar:

        def progress(done: int, total: int, note: str) -> None:
            bar.update(done, note, total)

        report = measure(options, place, progress)
    # The folder has the logs of all processes. It is kept if events were lost or duplicated, and
    # after an error.
    if report.exact:
        rmtree(place)
    print(report.to_json().decode() if as_json else "\n".join(report.lines()))
    raise typer.Exit(0 if report.exact else 1)
