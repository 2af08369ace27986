"""`surecast replay`: run a seed of a swarm again, with its whole trace, and compare.

What is replayed is the seed: a world has no other input, so a recorded trace serves only to see
whether the same thing happened again, and where it first did not.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from surecast import __version__
from surecast.cli import sim
from surecast.cli.progress import writable

FAULTS_SHOWN = 200


def replay(
    what: Annotated[
        str,
        typer.Argument(
            help="A seed; a trace written with --out; or the output of `surecast sim --json`, "
            "whose failing seeds are then replayed."
        ),
    ],
    protocol: Annotated[str, typer.Option(help="Whose swarm, if WHAT is a seed.")] = "sprinkler",
    out: Annotated[Path | None, typer.Option(help="Write the trace here, as Parquet.")] = None,
    tail: Annotated[int, typer.Option(min=0, help="Show so many last rows of the trace.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON on stdout, one line a seed.")
    ] = False,
) -> None:
    """Run a seed of the simulator again: its faults, its violations and its trace's digest.

    Exits with 1 if a guarantee is violated, or if a recorded trace is not met again.
    """
    good = True
    for recording in recordings(what, protocol):
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


def recordings(what: str, protocol: str) -> list[dict[str, Any]]:
    """What to run and what is known of it: protocol, seed, perhaps the trace's digest and path."""
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
        if recording["protocol"] not in sim.SWARMS:
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
            f"{path} does not say which seed it is a trace of", param_hint="what"
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
        raise typer.BadParameter(f"{path} names no failing seed", param_hint="what")
    return found


def run(protocol: str, seed: int) -> tuple[Any, sim.Result]:
    from surecast.sim.trace import Trace

    trace = Trace()
    return trace, sim.run_one(protocol, seed, trace=trace)


def write(trace: Any, protocol: str, seed: int, path: Path) -> None:
    """The trace as Parquet, with what is needed to run it again."""
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
    """None if the trace is the recorded one, else where they part."""
    if trace.digest() == recording["trace_digest"]:
        return None
    import pyarrow.parquet as pq

    before, after = list(_rows(pq.read_table(recording["path"]))), list(_rows(trace.to_table()))
    for number, (old, new) in enumerate(zip(before, after, strict=False)):
        if old != new:
            return f"row {number} was {_spell(old)}\nand is now {_spell(new)}"
    agree = min(len(before), len(after))
    return f"the first {agree} rows agree; there were {len(before)}, there are now {len(after)}"


def _rows(table: Any) -> Any:
    return zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True)


def _spell(row: tuple[Any, ...]) -> str:
    """A row of a trace for people: when, where, what, with whom, about which positions."""
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
    faults = [row for row in rows if row[2] == "fault"]
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
            "the recorded trace was met again, row for row"
            if difference is None
            else f"the recorded trace was NOT met again:\n{difference}"
        )
    return "\n".join(lines)
