"""`surecast replay`: repeats a run and compares it with the first run.

There are two kinds of runs. A run of a *swarm* (a randomized fault test, `surecast sim`) is
repeated from its seed, which determines everything. If a trace of the first run is given, the new
trace is compared with it. A run over sockets is repeated from the recordings of its nodes
(`node.record`, `sim.playback`), which contain every input of their machines.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from surecast import __version__
from surecast.cli import sim
from surecast.cli.interrupts import loads
from surecast.cli.progress import Bar, writable

FAULTS_SHOWN = 200  # of one seed; the others are only counted


@loads("surecast.registry", "surecast.sim.playback", "surecast.sim.trace")
def replay(
    what: Annotated[
        list[str],
        typer.Argument(
            help="A seed; the trace of a seed, written with --out; the output of "
            "`surecast sim --json`, whose failing seeds are then replayed; or recordings of nodes "
            "that ran over sockets, or a directory of them."
        ),
    ],
    protocol: Annotated[str, typer.Option(help="The swarm, if WHAT is a seed.")] = "sprinkler",
    out: Annotated[
        Path | None,
        typer.Option(help="Write the trace (of one seed, or of the recordings) to this file."),
    ] = None,
    tail: Annotated[int, typer.Option(min=0, help="Show this many last rows of the trace.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, one line for each seed or recorded run.")
    ] = False,
) -> None:
    """Run a seed of the simulator, or a recorded run over sockets, again.

    Exits with 1 if a guarantee is violated, or if the replay differs from the recorded run.
    """
    if paths := recorded_lives(what):
        raise typer.Exit(0 if play(paths, out, tail, as_json) else 1)
    good = True
    recordings = runs_of_seeds(what[0], protocol)
    if out is not None and len(recordings) > 1:
        raise typer.BadParameter(
            f"--out writes the trace of one seed, and {what[0]} has {len(recordings)} failing "
            f"seeds. Replay them one by one: surecast replay {recordings[0]['seed']} --out {out}"
        )
    for recording in recordings:
        trace, result = run(recording["protocol"], recording["seed"])
        difference = compare(recording, trace) if recording.get("trace_digest") else None
        good = good and not result["violations"] and difference is None
        if out is not None:
            write(trace, recording["protocol"], recording["seed"], out)
        if as_json:
            print(json.dumps({**result, "difference": difference}))
        else:
            print(render(recording, result, trace, difference, tail))
    raise typer.Exit(0 if good else 1)


# ---------------------------------------------------------------- runs over sockets


def recorded_lives(what: list[str]) -> list[Path]:
    """The recordings of nodes that `what` names. Empty if it names a seed, a trace or the output of
    `surecast sim --json`.

    One recording contains one *life* of a node: from a start to its end.
    """
    found: list[Path] = []
    others: list[str] = []
    for name in what:
        path = Path(name)
        if path.is_dir():
            inside = sorted(path.glob("*.rec"))
            if not inside:
                raise typer.BadParameter(f"there is no recording (*.rec) in {name}")
            found += inside
        elif _is_recording(path):
            found.append(path)
        else:
            others.append(name)
    if others and len(what) > 1:
        raise typer.BadParameter(
            f"{others[0]!r} is not a recording; only recordings can be given together"
        )
    return found


def _is_recording(path: Path) -> bool:
    from surecast.core.record import MAGIC

    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def play(paths: list[Path], out: Path | None, tail: int, as_json: bool) -> bool:
    """Replay recordings and print the result; True if all effects (what the state machines return)
    are as recorded."""
    import msgspec

    from surecast.errors import PeerError
    from surecast.registry import recorded_types
    from surecast.server import nodes
    from surecast.sim.playback import play
    from surecast.sim.trace import Trace
    from surecast_lab.swarm import process

    trace = Trace(keep=out is not None or tail > 0)
    try:
        with Bar("replay, MB", sum(path.stat().st_size for path in paths) / 1e6) as bar:
            played = play(
                paths,
                recorded_types(),
                {**nodes.BUILDS, **process.BUILDS},
                trace,
                lambda nbytes: bar.update(nbytes / 1e6),
            )
    except PeerError as error:
        if as_json:
            print(json.dumps({"recordings": len(paths), "error": str(error)}))
        else:
            print(f"cannot be replayed: {error}")
        return False
    if out is not None:
        writable(out.parent)
        trace.write_parquet(out)
    if as_json:
        result = {"recordings": len(paths), "trace_digest": trace.digest()}
        print(json.dumps({**result, **msgspec.to_builtins(played)}))
    else:
        print(render_played(played, list(trace.rows())[-tail:] if tail else []))
    return played.difference is None


def render_played(played: Any, last: list[Any]) -> str:
    """The result of `sim.playback.play` as text; `last` has the rows of the trace to show."""
    lives = played.lives
    named = [f"{node} ({count} starts)" if count > 1 else node for node, count in lives.items()]
    lines = [
        f"{len(lives)} node{'s' * (len(lives) != 1)}: {', '.join(named)}",
        f"{played.steps:,} steps played, spanning {played.span_ns / 1e9:.3f} s",
    ]
    lines += [
        f"{path} is incomplete: its process was killed, or still runs" for path in played.unclosed
    ]
    if last:
        lines += ["last rows:", *(f"  {_spell(row)}" for row in last)]
    if played.difference is None:
        steps, effects = f"{played.steps:,} steps", f"{played.effects:,} effects"
        lines.append(f"the replay equals the recorded run: {steps}, {effects}")
    else:
        lines.append(f"the replay DIFFERS from the recorded run:\n{played.difference}")
    return "\n".join(lines)


# ---------------------------------------------------------------- seeds


def runs_of_seeds(what: str, protocol: str) -> list[dict[str, Any]]:
    """The runs of swarms that `what` names: {"protocol": ..., "seed": ...}. If `what` is a trace,
    the only run also has "trace_digest" and the "path" of the trace."""
    if what.isdigit():
        found = [{"protocol": protocol, "seed": int(what)}]
    else:
        path = Path(what)
        if not path.is_file():
            raise typer.BadParameter(f"{what!r} is neither a seed nor a file", param_hint="what")
        with path.open("rb") as file:
            is_parquet = file.read(4) == b"PAR1"
        found = [_from_trace(path)] if is_parquet else _from_summary(path)
    for recording in found:
        if recording["protocol"] not in sim.swarms():
            raise typer.BadParameter(f"no swarm for {recording['protocol']!r}")
    return found


def _from_trace(path: Path) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_schema(path).metadata or {}
    except pa.ArrowInvalid as error:
        raise typer.BadParameter(f"{path}: {error}", param_hint="what") from error
    if b"surecast" not in metadata:
        raise typer.BadParameter(
            f"{path} does not contain the seed of its trace", param_hint="what"
        )
    recording: dict[str, Any] = json.loads(metadata[b"surecast"])
    return {**recording, "path": path}


def _from_summary(path: Path) -> list[dict[str, Any]]:
    try:
        summary = json.loads(path.read_text())
        found = [
            {"protocol": summary["protocol"], "seed": int(failing["seed"])}
            for failing in summary["failing_seeds"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise typer.BadParameter(
            f"{path} is neither a trace nor the output of `surecast sim --json`", param_hint="what"
        ) from error
    if not found:
        raise typer.BadParameter(f"{path} contains no failing seed", param_hint="what")
    return found


def run(protocol: str, seed: int) -> tuple[Any, sim.Result]:
    from surecast.sim.trace import Trace

    trace = Trace()
    return trace, sim.run_one(protocol, seed, trace=trace)


def write(trace: Any, protocol: str, seed: int, path: Path) -> None:
    """Write the trace as Parquet. Its metadata has the protocol and the seed, so that the file can
    be given to `surecast replay`."""
    import pyarrow.parquet as pq

    known = {
        "protocol": protocol,
        "seed": seed,
        "trace_digest": trace.digest(),
        "surecast": __version__,
    }
    writable(path.parent)
    table = trace.to_table().replace_schema_metadata({"surecast": json.dumps(known)})
    pq.write_table(table, path)


def compare(recording: dict[str, Any], trace: Any) -> str | None:
    """The first difference between the recorded trace and `trace`; None if they are equal."""
    if trace.digest() == recording["trace_digest"]:
        return None
    import pyarrow.parquet as pq

    before, after = list(_rows(pq.read_table(recording["path"]))), list(_rows(trace.to_table()))
    for number, (old, new) in enumerate(zip(before, after, strict=False)):
        if old != new:
            return f"row {number} was {_spell(old)}\nand is now {_spell(new)}"
    agree = min(len(before), len(after))
    return f"the first {agree} rows are equal; there were {len(before)}, now {len(after)}"


def _rows(table: Any) -> Any:
    """The rows of an Arrow table with a trace, as tuples; `_spell` names their fields."""
    return zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True)


def _spell(row: tuple[Any, ...]) -> str:
    """A row of a trace as text: time, node, kind, what, peer, stream, positions."""
    at_ns, node, kind, what, peer, stream, lo, hi, _size = row
    words = [f"{at_ns / 1e9:12.6f} s", f"{node:<14}", f"{kind:<6}", what]
    words += [f"peer {peer}"] if peer else []
    words += [f"on {stream}"] if stream else []
    words += [f"[{lo}, {hi})"] if hi else []
    return " ".join(words)


def render(
    recording: dict[str, Any],
    result: sim.Result,
    trace: Any,
    difference: str | None,
    tail: int,
) -> str:
    protocol = recording["protocol"]
    rows = list(_rows(trace.to_table()))
    faults = [row for row in rows if row[2] == "fault"]  # row[2] is the kind (see `_spell`)
    lines = [f"seed {result['seed']}: {len(rows):,} rows of trace"]
    lines += [f"  {_spell(row)}" for row in faults[:FAULTS_SHOWN]]
    if len(faults) > FAULTS_SHOWN:
        lines.append(f"  ... and {len(faults) - FAULTS_SHOWN} more faults")
    if tail:
        lines += ["last rows:", *(f"  {_spell(row)}" for row in rows[-tail:])]
    lines.append(sim.render(protocol, sim.merge(protocol, [result]), [result]))
    if result["violations"]:
        lines.append(sim.describe_failure(protocol, result))
    if recording.get("trace_digest"):
        lines.append(
            "the replay equals the recorded trace, row for row"
            if difference is None
            else f"the replay DIFFERS from the recorded trace:\n{difference}"
        )
    return "\n".join(lines)
