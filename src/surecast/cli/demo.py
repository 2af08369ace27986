"""`surecast demo`: runs a cluster of real processes under faults, then audits it and draws it.

`surecast_lab.demo` runs the cluster. This file has the options, the progress, the output and the
figure.
"""

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from surecast.cli.extras import demand_matplotlib
from surecast.cli.interrupts import loads
from surecast.cli.progress import Bar, writable
from surecast.errors import SurecastError, UsageError

if TYPE_CHECKING:
    from surecast_lab.demo.run import Demo

SIGN_OF_LIFE_S = 2.0  # without a terminal, interval between lines of progress
BAD = ("lost", "duplicated", "misordered")  # counts that must be 0
COUNTS = ("published", "acked", "delivered", "void", *BAD)  # fields of a Tally, in the output too
VIOLATIONS_SHOWN = 5


@loads("surecast_lab.demo.run")
def demo(
    events: Annotated[
        int, typer.Option(min=1_000, max=10_000_000, help="Number of events to publish.")
    ] = 1_000_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed for the keys.")] = 7,
    out: Annotated[Path, typer.Option(help="Folder for the figure.")] = Path("out"),
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Keep configuration, data, logs, delivery records and trace."),
    ] = False,
    no_spark: Annotated[
        bool, typer.Option("--no-spark", help="Audit with numpy only; needs no Java.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Run three regions of real servers on this machine, cut a link and kill a server.

    Subscribers in every region read a million cache invalidations meanwhile. Then Spark audits
    what the publisher and the subscribers recorded. Exits with 1 if an event was lost, duplicated
    or out of order.
    """
    from surecast_lab.demo.run import run_demo

    demand_matplotlib()
    writable(out)
    signal.signal(signal.SIGTERM, _as_interrupt)
    folder = Path(tempfile.mkdtemp(prefix="surecast-demo-"))
    try:
        with Bar("demo", events, line_every_s=SIGN_OF_LIFE_S) as bar:
            result = run_demo(events, seed, folder, Teller(bar), not no_spark)
    except UsageError as problem:
        hint = "" if no_spark else "\nWithout Spark: --no-spark audits with numpy only."
        print(f"surecast: {problem}{hint}", file=sys.stderr)
        raise typer.Exit(2) from None
    except SurecastError as problem:
        hint = "" if keep else "\nRun it again with --keep to keep the logs."
        print(f"surecast: the demo failed: {problem}{hint}", file=sys.stderr)
        raise typer.Exit(1) from None
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if keep:
            print(f"configuration, data, logs, records, trace: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    figure = out / "demo.png"
    draw(result, figure)
    if as_json:
        where = {"figure": str(figure), "folder": str(folder) if keep else None}
        print(json.dumps({**summary(result), **where}))
    else:
        tell(result, figure)
    tally = result.tally
    raise typer.Exit(1 if tally.violations or any(getattr(tally, name) for name in BAD) else 0)


class Teller:
    """Shows progress: a line when a step of the demo begins, and a bar below."""

    def __init__(self, bar: Bar) -> None:
        self.bar = bar
        self.step = ""  # the current one
        self.began = time.monotonic()

    def __call__(self, step: str, note: str, acked: int) -> None:
        """`acked` is the number of acknowledged events, which the bar shows."""
        elapsed_s = time.monotonic() - self.began
        if step != self.step:
            self.step = step
            self.bar.say(f"{elapsed_s:5.1f} s  {step}")
        self.bar.update(acked, f"{elapsed_s:.0f} s {note}")


def summary(result: "Demo") -> dict[str, object]:
    """The result as printed by --json."""
    import msgspec

    tally = result.tally
    return {
        **{name: getattr(tally, name) for name in COUNTS},
        "violations": tally.violations,
        "judge": result.judge,
        "audit_s": round(result.audit_s, 1),
        "latency_ms": {region: msgspec.to_builtins(ms) for region, ms in result.latency.items()},
        "seconds": round(result.seconds, 1),
        "events_per_second": round(result.burst_events / result.burst_s),
        "longest_pause_s": round(result.longest_pause_s, 2),
        "switched_to": result.switched_to,
        "missed_events": result.missed_events,
        "missed_bytes": result.missed_bytes,
        "shipped_bytes": result.shipped_bytes,
        "saved": round(1 - result.shipped_bytes / result.missed_bytes, 3),
        "catch_up_s": round(result.catch_up_s, 2),
        "kept": result.kept,
        "faults": [[fault.what, fault.begin_s, fault.end_s] for fault in result.faults],
    }


def tell(result: "Demo", figure: Path) -> None:
    """Print the result as text, and commands to try next."""
    from rich.console import Console
    from rich.table import Table

    console, tally = Console(soft_wrap=True, highlight=False), result.tally
    table = Table("recorded by 1 publisher and 7 subscribers", "events")
    table.columns[1].justify = "right"
    for name in COUNTS:
        number = getattr(tally, name)
        style = "red" if number and name in BAD else ""
        table.add_row(name, f"{number:,}", style=style)
    console.print(table)
    for violation in tally.violations[:VIOLATIONS_SHOWN]:
        console.print(violation, style="red", markup=False)
    console.print(_judged(result), style="" if result.judge == "spark" else "bold", markup=False)
    console.print(_figures(result), markup=False)
    surecast = _command()
    console.print(
        f"Figure: {figure}\n\nNext:\n"
        f"  {surecast} up                       # the same regions, to publish to yourself\n"
        f"  {surecast} bench geo                # events per second on this machine\n"
        f"  {surecast} lab run sprinkler-e6     # savings by retention: figure 10 of the paper\n",
        markup=False,
    )


def _judged(result: "Demo") -> str:
    """A line that says which of the two judges checked the result, and whether they agree."""
    if result.judge != "spark":
        return "Judged by numpy alone (--no-spark)."
    agrees = not any("judges disagree" in words for words in result.tally.violations)
    words = "agrees" if agrees else "does NOT agree"
    return f"Judged by Spark in {result.audit_s:.0f} s; numpy's judge {words}."


def _latency(result: "Demo") -> str:
    if not result.latency:
        return ""
    regions = ", ".join(
        f"{region} {ms.p50_ms:,.0f} / {ms.p99_ms:,.0f} / {ms.max_ms:,.0f}"
        for region, ms in result.latency.items()
    )
    return f"Latency      publish → deliver, p50 / p99 / max in ms, all steps: {regions}\n"


def _figures(result: "Demo") -> str:
    kept = max(result.kept.values())
    through = f"through {result.switched_to}" if result.switched_to else "by another route"
    return (
        f"\nThroughput   {result.burst_events / result.burst_s:,.0f} events/s, each acknowledged "
        "by two disks, at full speed with all processes on this machine\n"
        f"Cut link     west continued to receive events {through}\n"
        f"Killed head  {result.longest_pause_s:.1f} s without an acknowledgement: the head was "
        f"restarted after {result.down_s:g} s; with one of two replicas down, publishes wait\n"
        f"Catch-up     west missed {result.missed_events:,} events, {_mb(result.missed_bytes)}; "
        f"{_mb(result.shipped_bytes)} brought it up to date in {result.catch_up_s:.1f} s: "
        f"{1 - result.shipped_bytes / result.missed_bytes:.0%} saved\n"
        f"Kept         {kept:,} of {result.events:,} events, the newest of each key, in every "
        f"region\n{_latency(result)}Total        {result.seconds:.0f} s\n"
    )


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB"


def _command() -> str:
    """The command with which this program was started, relative to the current folder."""
    here = Path(sys.argv[0])
    return os.path.relpath(here) if here.name == "surecast" else "surecast"


def _as_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def draw(result: "Demo", path: Path) -> None:
    """Draw the position of each region over time, and the faults."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    fig, (above, below) = plt.subplots(2, 1, figsize=(9, 6), sharex=True, height_ratios=(4, 1))
    acked = result.tracks["acknowledged"]
    above.plot(acked.at_s, acked.position, color="0.6", linewidth=5, label="acknowledged")
    for region, style in zip(result.kept, ("-", "--", ":"), strict=False):
        line = result.tracks[f"{region}-mesh-1"]
        above.plot(line.at_s, line.position, style, linewidth=2, label=f"subscriber in {region}")
    for row, fault in enumerate(result.faults):
        above.axvline(fault.begin_s, color="tab:red", alpha=0.3, linestyle="--", linewidth=1)
        lasted_s = fault.end_s - fault.begin_s
        below.barh(row, lasted_s, left=fault.begin_s, color="tab:red", alpha=0.5)
    below.set_yticks(range(len(result.faults)), [fault.what for fault in result.faults])
    below.invert_yaxis()
    above.set_xlim(left=0)
    above.set_ylabel("position reached")
    above.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    above.set_title("cache.invalidate, published in east, read in three regions")
    above.legend(loc="upper left")
    below.set_xlabel("seconds")
    fig.tight_layout()
    fig.savefig(path, dpi=120)
    plt.close(fig)
