"""`surecast demo`: what the system is for, in a minute: faults, an audit, a picture."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surecast.cli.progress import Bar, writable

if TYPE_CHECKING:
    from surecast.swarm.demo import Demo


def demo(
    out: Annotated[Path, typer.Option(help="Where the figure goes.")] = Path("out"),
    seed: Annotated[int, typer.Option(min=0, help="Another seed, another run.")] = 7,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Three simulated regions of two replicas; a link is cut and healed, a head crashes.

    Exits with 1 if anything was lost, doubled or out of order.
    """
    from surecast.swarm.demo import run_demo

    writable(out)
    with Bar("demo", 1) as bar:
        result = run_demo(seed, lambda done, total, note: bar.update(done, note, total))
    figure = out / "demo.png"
    draw(result, figure)
    tally = result.tally
    fine = result.settled and not tally.violations
    if as_json:
        print(json.dumps(summary(result, figure)))
    else:
        tell(result, figure)
    raise typer.Exit(0 if fine else 1)


def summary(result: "Demo", figure: Path) -> dict[str, object]:
    tally = result.tally
    return {
        "published": tally.published,
        "acked": tally.acked,
        "delivered": tally.delivered,
        "void": tally.void,
        "lost": tally.lost,
        "duplicated": tally.duplicated,
        "misordered": tally.misordered,
        "violations": tally.violations,
        "settled": result.settled,
        "longest_wait_s": result.longest_wait_s,
        "simulated_s": result.simulated_ns / 1e9,
        "inputs": result.inputs,
        "figure": str(figure),
    }


def tell(result: "Demo", figure: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console, tally = Console(), result.tally
    console.print(
        f"\n{len(result.regions)} regions × 2 replicas, {result.simulated_ns / 1e9:.0f} simulated "
        f"seconds, {result.inputs:,} inputs. The link east – west was cut for 4 s, then the head "
        "of east crashed and came back.\n"
    )
    table = Table("as seen by publishers and subscribers", "events")
    for name in ("published", "acked", "delivered", "void", "lost", "duplicated", "misordered"):
        number = getattr(tally, name)
        bad = number and name in ("lost", "duplicated", "misordered")
        table.add_row(name, f"[red]{number:,}[/red]" if bad else f"{number:,}")
    console.print(table)
    positions, live = result.stored["east"]
    console.print(
        f"cache.invalidate has {positions:,} positions; the newest event of each key, {live:,} in "
        f"all, is still kept: {1 - live / positions:.0%} saved, the same in every region.\n"
        f"West went on through north while the link was cut ({result.switched} changes of source). "
        f"With one replica of two left, east took no publishes for {result.longest_wait_s:.1f} s: "
        "an acknowledgement means two disks (min_replicas = 2)."
    )
    for violation in tally.violations[:5]:
        console.print(f"[red]{violation}[/red]", highlight=False)
    if not result.settled:
        console.print("[red]the regions did not reach the same end[/red]")
    console.print(
        f"\nFigure: {figure}\n\nNext:\n"
        "  .venv/bin/surecast sim sprinkler --seeds 20   # twenty worlds of worse misfortune\n"
        "  .venv/bin/surecast lab run sprinkler-e6       # what retention saves: fig. 10\n"
        "  .venv/bin/surecast demo --seed 8              # another run\n",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def draw(result: "Demo", path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    from surecast.swarm.demo import FAULTS

    fig, (above, below) = plt.subplots(2, 1, figsize=(9, 6), sharex=True, height_ratios=(2, 1))
    newest = [max(at) for at in zip(*result.positions.values(), strict=True)]
    for region, style in zip(result.regions, ("-", "--", ":"), strict=False):
        ends = result.positions[region]
        above.plot(result.times_s, ends, style, label=f"reader in {region}", linewidth=2)
        behind = [most - at for most, at in zip(newest, ends, strict=True)]
        below.plot(result.times_s, behind, style, linewidth=1.5)
    for begin_ns, end_ns, what in FAULTS:
        for axes in (above, below):
            axes.axvspan(begin_ns / 1e9, end_ns / 1e9, color="tab:red", alpha=0.12)
        above.text(
            (begin_ns + end_ns) / 2e9,
            0.03,
            what,
            ha="center",
            va="bottom",
            fontsize=9,
            color="tab:red",
            transform=above.get_xaxis_transform(),
        )
    above.set_ylabel("position reached")
    above.set_title("cache.invalidate, published in east")
    above.legend(loc="upper left")
    below.set_ylabel("events behind\nthe first reader")
    below.set_xlabel("simulated time (s)")
    fig.tight_layout()
    fig.savefig(path, dpi=120)
    plt.close(fig)
