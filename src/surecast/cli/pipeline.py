"""`surecast pipeline JOB`: runs the jobs of `surecast.pipeline.jobs` on any Spark master.

This file has the options and the output of each job.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surecast.cli.interrupts import loads
from surecast.cli.options import DEFAULT_URL, AsJson, Token, Url, parse_retention
from surecast.cli.progress import Bar
from surecast.cli.spark import Conf, Master, on_spark, watched
from surecast.core.policies import RETENTIONS
from surecast.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from surecast.columns.rules import Predicate
    from surecast.pipeline.jobs.audit import Audit
    from surecast.pipeline.jobs.top_keys import TopKey

pipeline = typer.Typer(no_args_is_help=True, help="Jobs on Spark that read and write streams.")

Streams = Annotated[str, typer.Argument(help="A name or a pattern, such as orders or orders.>")]
FailOnLoss = Annotated[
    bool,
    typer.Option(
        "--fail-on-data-loss/--no-fail-on-data-loss",
        help="Fail when positions are lost, or continue without them.",
    ),
]
# The values of --collect, for help texts and errors.
COLLECTS = "before-seq:N, before-time:2025-01-31T12:00+00:00, key:K, prefix:P, tag:T"
SAMPLE = 1_000_000  # about this number of keys is tested against their distribution
STREAMS_SHOWN = 10  # names that an error message lists at most


def _source(
    streams: str, url: str, token: str, fail_on_loss: bool, start: str = "earliest"
) -> dict[str, str]:
    """The options of the Spark source."""
    # The name of the option that says what to read.
    by = "subscribePattern" if any(sign in streams for sign in "*>") else "subscribe"
    fail = "true" if fail_on_loss else "false"
    options = {"url": url, by: streams, "startingOffsets": start, "failOnDataLoss": fail}
    return {**options, "token": token} if token else options


def _tell(as_json: bool, words: str, facts: dict[str, Any]) -> None:
    """Print the result of a job: `words`, or `facts` as JSON."""
    print(json.dumps(facts) if as_json else words)


# ---------------------------------------------------------------- archive, replay


@pipeline.command("archive")
@loads("surecast.pipeline.session")
def archive_streams(
    streams: Streams,
    to: Annotated[str, typer.Option(help="A folder, or any path that Spark can write to.")],
    url: Url = DEFAULT_URL,
    token: Token = "",
    follow: Annotated[bool, typer.Option("--follow", help="Run until Ctrl-C.")] = False,
    every: Annotated[
        str, typer.Option(help="With --follow: interval between batches.")
    ] = "10 seconds",
    fail_on_loss: FailOnLoss = True,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Write streams to Parquet, by stream and day, voids included, exactly once.

    Run it again to add new events: the folder contains its position.
    """
    from surecast.pipeline.jobs import archive as job
    from surecast.pipeline.progress import until

    began = time.monotonic()
    with on_spark(master, conf, "archive") as spark, Bar(f"archive {streams} (rows)", 0) as bar:
        options = _source(streams, url, token, fail_on_loss)
        if follow:
            query = job.follow(spark, to, options, once=False, every=every)
            rows, _ = until(query, lambda done, word: bar.update(done, word))
        else:
            rows = job.archive(spark, to, options, lambda done, word: bar.update(done, word))
    seconds = round(time.monotonic() - began, 1)
    _tell(
        as_json, f"{to}: {rows:,} rows added in {seconds:g} s", {"rows": rows, "seconds": seconds}
    )


@pipeline.command("replay")
@loads("surecast.pipeline.session")
def replay_rows(
    source: Annotated[str, typer.Argument(help="An archive, or other Parquet with value and seq.")],
    to: Annotated[str, typer.Option(help="The stream to publish to.")],
    stream: Annotated[str, typer.Option(help="Which stream of the archive.")] = "",
    rate: Annotated[float, typer.Option(min=0, help="Events per second; 0: no limit.")] = 0.0,
    name: Annotated[
        str, typer.Option(help="Name of this replay. Run it again with the name to continue.")
    ] = "",
    positions: Annotated[
        int, typer.Option(min=1, help="Positions that are published at a time.")
    ] = 100_000,
    url: Url = DEFAULT_URL,
    token: Token = "",
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Publish an archive to a stream, in order, at a given rate."""
    from surecast.pipeline.jobs.archive import read
    from surecast.pipeline.jobs.replay import replay
    from surecast.pipeline.rows import SCHEMA

    options = {"url": url, **({"token": token} if token else {})}
    with on_spark(master, conf, "replay") as spark, Bar(f"replay to {to}", 0) as bar:
        rows = spark.read.parquet(source)
        # An archive has all these columns; `read` gives their types explicitly.
        if set(SCHEMA.names) <= set(rows.columns):
            rows = read(spark, source)
        if stream:
            rows = _of_stream(rows, stream, source)
        events = replay(
            rows, to, options, rate=rate, name=name, positions=positions,
            say=lambda done, total: bar.update(done, total=total),
        )  # fmt: skip
    _tell(as_json, f"{to}: {events:,} events published", {"stream": to, "events": events})


def _of_stream(rows: "DataFrame", stream: str, source: str) -> "DataFrame":
    """The rows of one stream; UsageError if there are none."""
    found = rows.where(rows["stream"] == stream)
    if found.isEmpty():
        some = rows.select("stream").distinct().orderBy("stream").limit(STREAMS_SHOWN + 1).collect()
        names = [row["stream"] for row in some[:STREAMS_SHOWN]]
        listed = ", ".join(names) + (" and more" if len(some) > STREAMS_SHOWN else "")
        raise UsageError(f"{source} has no stream {stream!r}; it has {listed or 'none at all'}")
    return found


# ---------------------------------------------------------------- compact, audit


@pipeline.command("compact")
@loads("surecast.pipeline.session")
def compact_archive(
    source: Annotated[str, typer.Argument(help="An archive: rows as the source gives them.")],
    to: Annotated[str, typer.Option(help="Folder for the result; must not exist.")],
    retain: Annotated[str, typer.Option(help=f"The rule: {RETENTIONS}.")],
    collect: Annotated[
        list[str] | None, typer.Option(help=f"Also make void: {COLLECTS}. Can be repeated.")
    ] = None,
    stream: Annotated[str, typer.Option(help="Only this stream of the archive.")] = "",
    holes_are_void: Annotated[
        bool, typer.Option("--holes-are-void", help="The archive was written without voids.")
    ] = False,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Apply retention to an archive: write the events that a rule keeps, and void ranges.

    Exits with 1 if the archive lacks positions, or has some twice.
    """
    from surecast.pipeline.jobs.archive import read
    from surecast.pipeline.jobs.compact import Collected, compact

    policy = parse_retention(retain)
    assert policy is not None
    rules = [Collected(_parse_collect(text)) for text in collect or []]
    _check_new(to)
    began = time.monotonic()
    with on_spark(master, conf, "compact") as spark, watched(spark, "compact"):
        rows = read(spark, source)
        if stream:
            rows = _of_stream(rows, stream, source)
        before = rows.where("kind = 'event'").count()
        with compact(rows, policy, rules, holes_are_void=holes_are_void) as left:
            left.orderBy("stream", "seq").write.parquet(to)
        kept = spark.read.parquet(to).groupBy("kind").count().collect()
    counts = {row["kind"]: row["count"] for row in kept}
    events, voids = counts.get("event", 0), counts.get("void", 0)
    saved = 1 - events / before if before else 0.0
    seconds = round(time.monotonic() - began, 1)
    words = f"{to}: {events:,} of {before:,} events are left ({saved:.1%} less), {voids:,} voids"
    facts = {"before": before, "left": events, "voids": voids, "saved": saved, "seconds": seconds}
    if lost := counts.get("lost", 0):
        words += f", {lost:,} ranges were lost"
        facts["lost"] = lost
    _tell(as_json, f"{words}, in {seconds:g} s", facts)


def _parse_collect(text: str) -> "Predicate":
    """The predicate that a value of --collect names: "prefix:user." → key_prefix(b"user.")."""
    from datetime import datetime

    from surecast.client import rules

    what, colon, value = text.partition(":")
    try:
        if what == "before-seq":
            return rules.before_seq(int(value))
        if what == "before-time":
            return rules.before_time(datetime.fromisoformat(value))
    except (ValueError, UsageError) as problem:
        raise typer.BadParameter(f"{text!r}: {problem}", param_hint="--collect") from None
    by_bytes = {"key": rules.key_is, "prefix": rules.key_prefix, "tag": rules.tag_is}
    if not colon or what not in by_bytes:
        raise typer.BadParameter(f"{text!r} is not one of {COLLECTS}", param_hint="--collect")
    return by_bytes[what](value.encode())


def _check_new(to: str) -> None:
    """Raise UsageError if the folder for the result exists and is not empty."""
    if "://" not in to and os.path.isdir(to) and os.listdir(to):
        raise UsageError(f"--to {to} exists already; give a folder that does not")


@pipeline.command("audit")
@loads("surecast.pipeline.session")
def audit_trace(
    trace: Annotated[
        str, typer.Argument(help="A folder with the tables published, delivered, readers.")
    ],
    retain: Annotated[
        str, typer.Option(help="Retention of the streams: keep-all, latest-per-key or keep-last:N.")
    ] = "keep-all",
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Count lost, duplicated, misordered and void events, and latencies, in traces.

    A trace records what publishers sent and readers received. Exits with 1 if an event was lost,
    duplicated, misordered or otherwise wrong.
    """
    import msgspec

    from surecast.pipeline.jobs.audit import audit
    from surecast.pipeline.jobs.trace import load

    policy = parse_retention(retain)
    assert policy is not None
    with on_spark(master, conf, "audit") as spark, watched(spark, "audit"):
        found = audit(load(spark, trace), policy)
    if as_json:
        print(msgspec.json.encode({"sound": found.sound, **msgspec.to_builtins(found)}).decode())
    else:
        _show_audit(found)
    raise typer.Exit(0 if found.sound else 1)


def _show_audit(found: "Audit") -> None:
    print(
        f"published {found.published:,}, acknowledged {found.acked:,}, delivered "
        f"{found.delivered:,}, void {found.void:,}\n"
        f"lost {found.lost:,}, duplicated {found.duplicated:,}, misordered {found.misordered:,}"
    )
    for region, latency in sorted(found.regions.items()):
        print(
            f"latency in {region}: p50 {latency.p50_ms:.1f} ms, p90 {latency.p90_ms:.1f}, "
            f"p99 {latency.p99_ms:.1f}, at most {latency.max_ms:.1f}"
        )
    for violation in found.violations:
        print(f"VIOLATED {violation}")
    print("sound" if found.sound else "NOT sound")


# ---------------------------------------------------------------- generated events, top keys


@pipeline.command("workload")
@loads("surecast.pipeline.session")
def make_workload(
    events: Annotated[int, typer.Option(min=1, help="Number of events.")],
    to: Annotated[str, typer.Option(help="Folder for the Parquet files; must not exist.")] = "",
    count: Annotated[
        bool, typer.Option("--count", help="Only count the events, write nothing.")
    ] = False,
    law: Annotated[
        str, typer.Option(help="Distribution of keys: zipf, zeta or population.")
    ] = "zipf",
    keys: Annotated[
        int, typer.Option(min=0, help="Number of keys (population: at the start).")
    ] = 100_000,
    skew: Annotated[float, typer.Option(min=0, help="Skew of their popularity.")] = 1.1,
    new_share: Annotated[
        float, typer.Option(min=0, max=1, help="population: share of events with a new key.")
    ] = 0.05,
    newcomers: Annotated[
        str, typer.Option(help="population: rank of a new key: drawn by zeta, or last.")
    ] = "zeta",
    rate: Annotated[float, typer.Option(help="Events per second, Poisson.")] = 1_000_000.0,
    value_bytes: Annotated[int, typer.Option(min=0, help="Size of every value.")] = 10,
    stream: Annotated[str, typer.Option(help="The name in the column `stream`.")] = "workload",
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same events.")] = 1,
    check: Annotated[
        bool,
        typer.Option(
            "--check/--no-check", help="Test the keys of a sample against the distribution."
        ),
    ] = True,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Generate any number of events as rows of an archive, with constant memory.

    Exits with 1 if the keys of a sample do not follow the distribution.
    """
    import msgspec

    from surecast.pipeline.jobs import fit
    from surecast.pipeline.jobs.workload import Workload, law_of, workload

    if bool(to) == count:
        raise UsageError("give --to FOLDER to write the events, or --count to count them only")
    made: dict[str, Any] = {
        "events": events, "law": law, "keys": keys, "skew": skew, "new_share": new_share,
        "newcomers": newcomers, "rate": rate, "value_bytes": value_bytes, "stream": stream,
        "seed": seed,
    }  # fmt: skip
    spec = Workload(**made)
    _check_new(to)
    began = time.monotonic()
    judged, unjudged = None, ""  # the test of the keys, or the reason why it was not possible
    with on_spark(master, conf, "workload") as spark, watched(spark, "workload"):
        rows = workload(spark, spec)
        if to:
            rows.write.parquet(to)
            rows = spark.read.parquet(to)
        found = rows.count()
        if check and law != "population":
            sample = rows.sample(min(1.0, SAMPLE / events), seed)
            try:
                judged = fit.goodness_of_fit(sample, law_of(spec))
            except fit.Unjudged as problem:
                unjudged = str(problem)
    seconds = round(time.monotonic() - began, 1)
    facts = {**made, "to": to, "events": found, "seconds": seconds}
    words = f"{found:,} events in {seconds:g} s" + (f", in {to}" if to else ", counted")
    if judged is not None:
        facts["fit"] = {**msgspec.to_builtins(judged), "plausible": judged.plausible}
        follow = "follow" if judged.plausible else "do NOT follow"
        words += f"; the keys of {judged.sample:,} {follow} the law, p = {judged.p:.3f}"
    if unjudged:
        facts["unjudged"] = unjudged
        words += f"; not judged: {unjudged}"
    _tell(as_json, words, facts)
    raise typer.Exit(1 if judged is not None and not judged.plausible else 0)


@pipeline.command("top-keys")
@loads("surecast.pipeline.session")
def show_top_keys(
    streams: Streams,
    window: Annotated[str, typer.Option(help="Length of a window.")] = "10 seconds",
    late: Annotated[str, typer.Option(help="How late an event may arrive.")] = "10 seconds",
    top: Annotated[int, typer.Option(min=1, help="Keys per window.")] = 10,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", show_default="latest; with --once earliest", help="earliest or latest."
        ),
    ] = None,
    once: Annotated[
        bool,
        typer.Option(
            "--once",
            help="Process the current events, then exit. Windows that end less than --late before "
            "the newest event are not printed, because events for them may still arrive.",
        ),
    ] = False,
    checkpoint: Annotated[
        str, typer.Option(help="A folder for the position, to continue later.")
    ] = "",
    fail_on_loss: FailOnLoss = True,
    url: Url = DEFAULT_URL,
    token: Token = "",
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Print the most frequent keys of each window when the window has ended, until Ctrl-C."""
    from surecast.pipeline.jobs.top_keys import top_keys
    from surecast.pipeline.progress import until

    start = start or ("earliest" if once else "latest")
    if start not in ("earliest", "latest"):
        raise UsageError(f"--from is earliest or latest, not {start!r}")
    tell: Callable[[list[TopKey]], None] = _json_lines if as_json else _lines
    with on_spark(master, conf, "top-keys") as spark:
        query = top_keys(
            spark, _source(streams, url, token, fail_on_loss, start), tell, window=window,
            late=late, top=top, checkpoint=checkpoint, once=once,
        )  # fmt: skip
        until(query, lambda _rows, _word: None)


def _lines(found: "list[TopKey]") -> None:
    for one in found:
        if one.rank == 1:
            print(f"{one.begin:%Y-%m-%d %H:%M:%S} {one.stream}")
        key = "(none)" if one.key is None else one.key.decode(errors="backslashreplace")
        print(f"  {one.rank:>3} {one.events:>10,} {key}")
    sys.stdout.flush()


def _json_lines(found: "list[TopKey]") -> None:
    for one in found:
        key = None if one.key is None else one.key.decode(errors="backslashreplace")
        row = {**one._asdict(), "key": key}
        print(json.dumps({**row, "begin": str(one.begin), "end": str(one.end)}))
    sys.stdout.flush()
