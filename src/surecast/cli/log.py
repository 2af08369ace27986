"""`surecast log`: shows the contents of a node's data directory, and checks every record in it.

A data directory contains one or two *stores*: one for the log of a replica, one for a witness. The
commands here read the files of a store (`storage.inspect`) without starting the node.
"""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surecast.cli.interrupts import loads
from surecast.cli.progress import Bar
from surecast.errors import StorageError

if TYPE_CHECKING:
    from surecast.storage.inspect import Holdings, StreamInfo, Verdict

log = typer.Typer(no_args_is_help=True, help="Inspect the data directory of a node.")

BAR_AFTER_S = 2.0  # a check that takes longer shows its progress
DEPTH_MAX = 3  # levels of folders that are searched for stores, including the given one

Directory = Annotated[
    Path, typer.Argument(help="A node's data directory, or a folder that contains several.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


@log.command("info")
@loads("surecast.storage.inspect")
def show_info(directory: Directory, as_json: AsJson = False) -> None:
    """Show the streams of a data directory: positions, live and void, segments, bytes, times.

    Live and void positions are counted as by the server, so `surecast status` shows the same
    numbers. Stop the node first, or compare when nothing is being published.
    """
    contents = [_look(path) for path in stores(directory)]
    if as_json:
        rows = [_plain(holdings, names) for holdings, names in contents]
        print(json.dumps({"stores": rows}))
        return
    for holdings, names in contents:
        print(_holdings(holdings, names))


@log.command("verify")
@loads("surecast.storage.inspect")
def verify_records(directory: Directory, as_json: AsJson = False) -> None:
    """Read and check every record. Stop the node first.

    Exits with 1 if data is damaged or missing; each problem shows the file and the offset.
    """
    found = {str(path): _verify(path) for path in stores(directory)}
    damaged = any(verdict.problems for verdict in found.values())
    if as_json:
        rows = [{"path": path, **asdict(verdict)} for path, verdict in found.items()]
        print(json.dumps({"ok": not damaged, "stores": rows}))
    else:
        for path, verdict in found.items():
            print(_verdict(path, verdict))
    if damaged:
        raise typer.Exit(1)


def stores(directory: Path) -> list[Path]:
    """The folder itself if it is a store; otherwise the stores below it, sorted."""
    if not directory.is_dir():
        raise StorageError(f"{directory} is not a directory")
    level = [directory]
    for _ in range(DEPTH_MAX):
        found = [path for path in level if _is_store(path)]
        if found:
            return sorted(found)
        level = [below for path in level for below in path.iterdir() if below.is_dir()]
    raise StorageError(
        f"{directory} and the folders in it contain no manifest and no journal: give the "
        "folder that `node.data_dir` names in the node's configuration"
    )


def _is_store(path: Path) -> bool:
    """Whether a folder has files of a store."""
    names = ("manifest", "ends", "journal-*", "segment-*")
    return any(next(path.glob(name), None) is not None for name in names)


def _verify(path: Path) -> "Verdict":
    from surecast.storage.inspect import verify

    began = time.monotonic()
    bar: Bar | None = None

    def progress(done: int, total: int) -> None:
        nonlocal bar
        if bar is None and time.monotonic() - began > BAR_AFTER_S:
            bar = Bar(f"verify {path.name} (MB)", total // 1_000_000)
            bar.__enter__()
        if bar is not None:
            bar.update(done // 1_000_000)

    try:
        return verify(path, progress)
    finally:
        if bar is not None:
            bar.__exit__(None, None, None)


# ---------------------------------------------------------------- for people


def _look(path: Path) -> "tuple[Holdings, dict[bytes, str]]":
    """The contents of a store, and the names of its logs: streams, and two logs of the region."""
    from surecast.columns.rules import LatestPerKey
    from surecast.core.streams import CURSORS, DIRECTORY
    from surecast.registry import directory
    from surecast.storage.inspect import batches, info

    listed = directory(batches(path, DIRECTORY))
    policies = {stream: listed[stream].retention for stream in listed}
    known = {stream: listed[stream].name for stream in listed}
    names = {DIRECTORY: "(directory of streams)", CURSORS: "(named subscriptions)", **known}
    # The log of named subscriptions has no entry in the directory, and this retention rule.
    return info(path, {CURSORS: LatestPerKey(), **policies}), names


def _holdings(one: "Holdings", names: dict[bytes, str]) -> str:
    lines = [
        f"{one.path}",
        f"  {one.lives} starts of the node; {one.segments} segments, {_size(one.segment_bytes)}; "
        f"{one.journals} journals, {_size(one.journal_bytes)}"
        + (f", of which {one.torn_bytes} bytes are a torn tail" if one.torn_bytes else ""),
    ]
    lines += [f"  PROBLEM: {problem}" for problem in one.problems]
    if one.states:
        size = _size(sum(one.states.values()))
        lines.append(f"  {len(one.states)} saved states, {size}")
    for stream in one.streams:
        lines += _stream(stream, names)
    return "\n".join(lines)


def _stream(one: "StreamInfo", names: dict[bytes, str]) -> list[str]:
    times = ""
    if one.time_first_ns is not None and one.time_last_ns is not None:
        times = f"{_time(one.time_first_ns)} to {_time(one.time_last_ns)}"
    spare = one.rows - one.live  # void events that are still stored
    return [
        f"  {names.get(one.log, '(not in the directory)')}  {one.log.hex()}"
        + ("  (deleted)" if one.deleted else ""),
        f"    positions [1, {one.end:,}): {one.live:,} live, {one.void:,} void{_reasons(one)}"
        + (f", {one.unreadable:,} cannot be read" if one.unreadable else "")
        + f"; {times}",
        f"    {one.batches:,} batches, {_size(one.nbytes)}, in {one.segments} segments"
        + (f" and {_size(one.journal_bytes)} of the journal" if one.journal_bytes else "")
        + (f"; {spare:,} void events are not compacted away yet" if spare > 0 else ""),
    ]


def _reasons(one: "StreamInfo") -> str:
    some = [f"{count:,} {reason}" for reason, count in one.void_reasons.items() if count]
    return f" ({', '.join(some)})" if some else ""


def _verdict(path: str, verdict: "Verdict") -> str:
    read = (
        f"{path}: {verdict.records:,} records in {verdict.segments} segments and "
        f"{verdict.journals} journals, {_size(verdict.nbytes)}"
    )
    lines = [f"{read}: {f'{len(verdict.problems)} problems' if verdict.problems else 'all right'}"]
    if verdict.torn_bytes:
        lines.append(
            f"  {verdict.torn_bytes} bytes at the end of the journal are an incomplete record that "
            "was never acknowledged (after a crash); opening the store removes them"
        )
    lines += [f"  {problem}" for problem in verdict.problems]
    if verdict.problems:
        lines.append(
            "  next: start the node: it keeps readable data, and restores the rest from another "
            "replica"
        )
    return "\n".join(lines)


def _plain(one: "Holdings", names: dict[bytes, str]) -> dict[str, Any]:
    """The contents of a store as printed by --json. `names` has the names of its logs, by id."""
    made = {**asdict(one), "path": str(one.path)}
    made["streams"] = [
        {**row, "log": row["log"].hex(), "name": names.get(row["log"])} for row in made["streams"]
    ]
    return made


def _size(nbytes: int) -> str:
    if nbytes < 10_000:
        return f"{nbytes} bytes"
    return f"{nbytes / 1e6:,.1f} MB" if nbytes < 10e9 else f"{nbytes / 1e9:,.1f} GB"


def _time(time_ns: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(time_ns / 1e9, UTC).isoformat(timespec="milliseconds")
