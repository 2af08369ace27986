"""A fault test of the Spark sink, in rounds: drivers are killed, and each row must arrive once.

A round is one streaming query that reads files and writes their rows to one or several streams (the
targets). The sink first writes rows to a hidden staging stream of the region, and publishes them
when Spark commits the batch. A Spark driver is a real process with a JVM and Python workers. In a
round several drivers are stopped before they finish, and replaced: a driver is killed (with its
workers, or only the JVM), or it is suspended, replaced, and resumed while its successor works (a
*zombie*).

When this happens is a condition, not a time, in most cases: the k-th record of a certain kind in
the staging stream, or the middle of a batch's rows in the target. Before a restart, the newest
entry of the query's commit log may be deleted, as if a crash had lost it, so that Spark repeats a
committed batch. Tasks fail at random, before their first row or later. In each driver and in each
attempt of a task, rows are distributed to tasks and streams in a new random way and order.

    python -m surecast_lab.swarm.sink_rounds --rounds 20 [--seed 1]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from surecast.client import sync
from surecast.errors import SurecastError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Result", "is_excused", "judge", "run_round"]

BATCHES = 8  # number of files; each is a micro-batch
ROWS = 240  # rows in each file
PARTITIONS = 6
PAD = 32 << 10  # padding of a row, so that publishing a batch takes long enough to be interrupted
DIGITS = 7
DRIVER_S = 600.0  # a driver that runs longer counts as hanging
WATCH_S = 0.002
KINDS = ("chunk", "intent", "rows", "done", "any")
WAYS = ("kill", "kill", "kill-jvm", "stop")
# Spark's errors if two drivers use one checkpoint: in the offset log, and in the commit log.
OUSTED = ("CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming queries are concurrently using")


@dataclass
class Result:
    """The result of a round."""

    seed: int
    steps: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    kills: int = 0
    zombies: int = 0  # how many of the drivers were suspended, replaced, and resumed
    deletions: int = 0
    failures: int = 0  # tasks that raised
    rows: int = 0
    left: int = 0  # records in the staging stream at the end
    seconds: float = 0.0


# ---------------------------------------------------------------- the driver's process


def drive(job: dict[str, Any]) -> None:
    """Run the query until all files are written."""
    from pyspark.sql import functions as sql

    from surecast.pipeline.session import spark_session

    conf = {
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.driver.memory": "1g",
        "spark.sql.streaming.numRecentProgressUpdates": "1",
    }
    spark = spark_session("local[2,8]", app="sink-rounds", conf=conf, log_level="OFF")
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(job["input"])
    dealt = lines.repartition(PARTITIONS, sql.rand(random.randrange(1 << 30)))
    targets, failures, odds = job["targets"], job["failures"], job["odds"]

    def mix(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _mix(batches, targets, failures, odds)

    rows = dealt.mapInArrow(mix, "value string, key string, stream string")
    writer = rows.writeStream.format("surecast").option("url", job["url"])
    if targets == 1:
        writer = writer.option("stream", "rows.0")
    query = (
        writer.option("checkpointLocation", job["checkpoint"]).trigger(availableNow=True).start()
    )
    query.awaitTermination()
    spark.stop()


def _mix(
    batches: Iterator[pa.RecordBatch], targets: int, failures: str, odds: float
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task in random order and for random streams; some attempts fail."""
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    rng = Random(os.urandom(8))
    fails = context.attemptNumber() < 3 and rng.random() < odds
    for batch in batches:
        values = batch.column(0).to_pylist()
        rng.shuffle(values)
        cut = rng.randrange(len(values) + 1) if fails else len(values)
        names = [f"rows.{rng.randrange(targets)}" for _ in values]
        columns = [[v.ljust(PAD, ".") for v in values], [v[-1:] for v in values], names]
        made = pa.record_batch([pa.array(column) for column in columns], ["value", "key", "stream"])
        if cut:
            yield made.slice(0, cut)
        if fails:
            break
    if fails:
        with open(failures, "a") as counter:
            counter.write("x")
        raise RuntimeError("this attempt fails on purpose")


class Driver:
    """A driver's process and its children, in a separate session."""

    def __init__(self, job: dict[str, Any], log: Path) -> None:
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", __spec__.name, "--drive", json.dumps(job)],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.ends_s = time.monotonic() + DRIVER_S

    def signal(self, number: int, *, only: str = "") -> None:
        """Signal all processes of the session; the JVM first, or it would replace its workers."""
        processes = self._processes()
        for pid in sorted(processes, key=lambda pid: "java" not in processes[pid]):
            if only in processes[pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def kill(self, way: str) -> None:
        if way == "kill-jvm":
            self.signal(signal.SIGKILL, only="java")
            time.sleep(0.2)  # workers outlive the JVM by a moment, as on another machine
        while self._processes():
            self.signal(signal.SIGKILL)
            self.process.poll()
            time.sleep(WATCH_S)
        self.process.wait()

    def _processes(self) -> dict[int, str]:
        """The running processes of its session: pid → name of the program."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*/stat"):
            try:
                name, _, fields = entry.read_text().rpartition(") ")
            except OSError:
                continue  # it has ended
            state, _, _, session = fields.split()[:4]
            if int(session) == self.process.pid and state != "Z":
                found[int(entry.parent.name)] = name.partition("(")[2]
        return found

    def wait(self) -> int:
        """Wait for the end of the driver; returns its exit code, -1 if it hangs."""
        try:
            return self.process.wait(max(0.0, self.ends_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill("kill")
            return -1


# ---------------------------------------------------------------- observing


class Watch:
    """Counts the records of the staging stream by kind, and the rows in the targets."""

    def __init__(self, client: sync.Client, targets: int) -> None:
        self._client = client
        self._names = [f"rows.{n}" for n in range(targets)]
        self.staging = "_spark.rows.0" if targets == 1 else "_spark"
        self.seen: Counter[str] = Counter()
        self.batch = -1  # the last batch with a record in the staging stream
        self._stopped = False
        self._thread = threading.Thread(target=self._count_records, daemon=True)
        self._thread.start()

    def _count_records(self) -> None:
        sub = self._client.subscribe(self.staging, start="earliest")
        try:
            for event in sub:
                if self._stopped:
                    return
                _, first, second, *_ = (event.key or b"").decode().split("/")
                kind, batch = (first, second) if first == "done" else (second, first)
                self.seen[kind] += 1
                self.batch = max(self.batch, int(batch, 16))
        except SurecastError:
            return  # the client is closed

    def rows(self) -> int:
        return sum(end - 1 for end in self._ends("rows.*").values())

    def _ends(self, pattern: str) -> dict[str, int]:
        found = self._client._loop.call(self._client._inner.ends(pattern))
        return {info.name: end for info, end in found}

    def stop(self) -> None:
        self._stopped = True

    def read(self) -> dict[str, list[bytes]]:
        """The row numbers in each target, in order."""
        found: dict[str, list[bytes]] = {}
        for name, end in self._ends("rows.*").items():
            found[name] = []
            if end == 1:
                continue
            for batch in self._client.subscribe(name, start="earliest").batches():
                found[name] += [value[:DIGITS] for value in batch.column("value").to_pylist()]
                if batch.column("seq")[-1].as_py() == end - 1:
                    break
        return found

    def left(self) -> list[str]:
        """The keys of the records left in the staging stream."""
        end, found = self._ends(self.staging)[self.staging], []
        for event in self._client.subscribe(self.staging, start="earliest", voids=True):
            if event.kind == "event":
                found.append((event.key or b"").decode())
            if event.seq >= end - 1:
                break
        return found


@dataclass
class Moment:
    """When a driver is killed or suspended: at the `count`-th record of a kind, or within the rows
    of batch `count`."""

    kind: str
    count: int
    pause_s: float
    rows: int = 0  # in the targets when it was drawn; these rows do not count

    def __str__(self) -> str:
        return f"{self.kind} {self.count} + {1000 * self.pause_s:.0f} ms"

    def is_reached(self, watch: Watch) -> bool:
        if self.kind == "any":
            return watch.seen["chunk"] >= self.count
        if self.kind == "rows":
            if watch.batch < self.count:
                return False  # a batch has records before it has rows: no request is needed yet
            rows = watch.rows()
            return rows > max(ROWS * self.count, self.rows) and rows % ROWS > 0
        return watch.seen[self.kind] >= self.count


def draw_moment(rng: Random, watch: Watch, kind: str, batches: int) -> Moment:
    """Draw a future moment, in one of the next batches."""
    rows = watch.rows()
    done = rows // ROWS
    ahead = rng.randint(1, max(1, min(4, batches - 1 - done)))
    if kind == "rows":
        return Moment(kind, done + ahead - 1, 0.0, rows)
    if kind in ("chunk", "any"):
        count = watch.seen["chunk"] + rng.randint(1, PARTITIONS * ahead)
        return Moment(kind, count, rng.random() * (1.5 if kind == "any" else 0.02))
    return Moment(kind, watch.seen[kind] + ahead, rng.choice((0.0, 0.0, 0.005, 0.05)))


# ---------------------------------------------------------------- a round


def delete_newest_commit(checkpoint: Path) -> str | None:
    """Delete the newest entry of the query's commit log, as if it had not reached the disk."""
    entries = [entry for entry in (checkpoint / "commits").glob("[0-9]*") if entry.is_file()]
    if not entries:
        return None
    newest = max(entries, key=lambda entry: int(entry.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    return newest.name


def batch_of_file(checkpoint: Path) -> list[int]:
    """The micro-batch in which each file was read. Mostly each batch has one file, but if a driver
    is killed after finding a file and before planning its batch, the next batch has two."""
    found: list[int] = []
    entries = [entry for entry in (checkpoint / "offsets").glob("[0-9]*") if entry.is_file()]
    for entry in sorted(entries, key=lambda entry: int(entry.name)):
        last = json.loads(entry.read_text().splitlines()[-1])["logOffset"]
        found += [int(entry.name)] * (last + 1 - len(found))
    return found


def run_round(
    seed: int,
    folder: Path,
    *,
    strikes: int = 2,
    kinds: tuple[str, ...] = (),
    batches: int = BATCHES,
) -> Result:
    """Run one query in which `strikes` drivers are killed or suspended.

    `kinds` are the kinds of moments at which this happens; by default they are drawn.
    """
    began = time.monotonic()
    rng, result = Random(f"sink/{seed}"), Result(seed)
    targets = rng.choice((1, 3))
    source, checkpoint, failures = folder / "input", folder / "checkpoint", folder / "failures"
    source.mkdir(parents=True)
    for batch in range(batches):
        lines = b"\n".join(map(_row, range(batch * ROWS, (batch + 1) * ROWS)))
        (source / f"{batch:03d}.txt").write_bytes(lines + b"\n")
        os.utime(source / f"{batch:03d}.txt", (1_600_000_000 + batch,) * 2)  # the order of reading
    result.steps.append(f"{targets} target(s)")
    with sync.local(folder / "region") as client:
        watch = Watch(client, targets)
        local = client._inner._local
        assert local is not None
        job = {
            "url": local.url,
            "input": str(source),
            "checkpoint": str(checkpoint),
            "targets": targets,
            "failures": str(failures),
            "odds": rng.choice((0.05, 0.15)),
        }
        log = folder / "drivers.log"
        zombies: list[Driver] = []
        try:
            for strike in range(strikes):
                kind = kinds[strike % len(kinds)] if kinds else rng.choice(KINDS)
                moment = draw_moment(rng, watch, kind, batches)
                _strike(Driver(job, log), moment, rng, watch, result, zombies)
                if rng.random() < 0.6 and (lost := delete_newest_commit(checkpoint)):
                    result.deletions += 1
                    result.steps.append(f"commit {lost} deleted")
            _finish(job, log, zombies, rng, watch, result)
        finally:
            for zombie in zombies:
                zombie.kill("kill")
            watch.stop()
        streams, left = watch.read(), watch.left()
        result.violations += judge(streams, left, result.kills, batches, batch_of_file(checkpoint))
        result.rows, result.left = sum(map(len, streams.values())), len(left)
    result.failures = len(failures.read_bytes()) if failures.exists() else 0
    result.seconds = time.monotonic() - began
    return result


def _strike(
    driver: Driver,
    moment: Moment,
    rng: Random,
    watch: Watch,
    result: Result,
    zombies: list[Driver],
) -> None:
    """Let a driver run until `moment`, then kill or suspend it."""
    while driver.process.poll() is None and not moment.is_reached(watch):
        if time.monotonic() > driver.ends_s:
            driver.kill("kill")
            result.violations.append(f"a driver did not reach {moment}")
            return
        time.sleep(WATCH_S)
    time.sleep(moment.pause_s)
    code = driver.process.poll()
    if code is not None:
        result.steps.append(f"ended ({code}) before {moment}")
        if code:
            result.violations.append(f"a driver failed before it was killed ({code})")
        return
    way = rng.choice(WAYS)
    if way == "stop":
        driver.signal(signal.SIGSTOP)
        zombies.append(driver)
        result.zombies += 1
    else:
        driver.kill(way)
    result.kills += 1
    result.steps.append(f"{way} at {moment}, {watch.rows()} rows")


def _finish(
    job: dict[str, Any],
    log: Path,
    zombies: list[Driver],
    rng: Random,
    watch: Watch,
    result: Result,
) -> None:
    """Run a last driver to the end; suspended drivers are resumed while it works, or afterwards."""
    last_log = log.with_name("last.log")
    driver = Driver(job, last_log)
    wake_at = watch.rows() + rng.randint(0, ROWS)
    while zombies and driver.process.poll() is None and watch.rows() < wake_at:
        if time.monotonic() > driver.ends_s:
            break
        time.sleep(WATCH_S)
    for zombie in zombies:
        zombie.signal(signal.SIGCONT)
    code = driver.wait()
    if zombies and is_excused(code, last_log.read_text(errors="replace")):
        result.steps.append(
            f"the last driver failed, because a zombie used its checkpoint ({code})"
        )
        for zombie in zombies:
            zombie.kill("kill")
        code = Driver(job, last_log).wait()
    if code:
        result.violations.append(f"the last driver failed ({code})")
    for zombie in zombies:
        zombie.ends_s = time.monotonic() + 20.0
        zombie.wait()


def is_excused(code: int, output: str) -> bool:
    """Whether a driver ended because another one used its checkpoint, which Spark does not
    allow."""
    return code > 0 and any(words in output for words in OUSTED)


def _row(number: int) -> bytes:
    return str(number).zfill(DIGITS).encode()


def judge(
    streams: dict[str, list[bytes]], left: list[str], kills: int, files: int, batch_of: list[int]
) -> list[str]:
    """Find faults in the targets' rows, and in the records left in the staging stream.

    Rows must be in the order of the batches in which their files were read (`batch_of`). A killed
    driver may leave the records of one batch and a `done` record; the sink must have removed
    (collected) all others.
    """
    if len(batch_of) != files:
        return [f"{len(batch_of)} of {files} files were read"]
    found = Counter(row for rows in streams.values() for row in rows)
    wanted = dict.fromkeys(map(_row, range(files * ROWS)))
    lost = [row for row in wanted if row not in found]
    twice = [row for row, count in found.items() if count > 1]
    strange = [row for row in found if row not in wanted]
    problems = [
        f"{len(rows)} rows {what}, such as {rows[:3]}"
        for what, rows in (("lost", lost), ("doubled", twice), ("never written", strange))
        if rows
    ]
    for name, rows in streams.items():
        order = [batch_of[int(row) // ROWS] for row in rows if row in wanted]
        if order != sorted(order):
            problems.append(f"{name}: a batch's rows are behind those of a later batch")
    keys = [key.split("/") for key in left]
    dones = [key for key in keys if key[1] == "done"]
    writers = {key[3] for key in keys if key[1] != "done"}
    for what, count in (("done records", len(dones)), ("drivers' batches", len(writers))):
        if count > kills + 1:
            problems.append(f"{count} {what} left in the staging stream after {kills} kills")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None, help="seed of the first round")
    parser.add_argument(
        "--strikes", type=int, default=2, help="drivers killed or suspended in each round"
    )
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.drive:
        drive(json.loads(args.drive))
        return 0
    first = random.SystemRandom().randrange(1 << 30) if args.seed is None else args.seed
    print(f"{args.rounds} rounds from seed {first}", flush=True)
    results = []
    for number in range(args.rounds):
        with tempfile.TemporaryDirectory(prefix="surecast-sink-") as folder:
            result = run_round(first + number, Path(folder), strikes=args.strikes)
            if result.violations:
                for log in sorted(Path(folder).glob("*.log")):
                    print(log.read_text(errors="replace")[-4000:], file=sys.stderr)
        results.append(result)
        verdict = "; ".join(result.violations) or "every row once"
        print(
            f"round {number + 1} (seed {result.seed}): {'; '.join(result.steps)}; "
            f"{result.failures} failed tasks, {result.rows} rows, {result.left} records left, "
            f"{result.seconds:.0f} s: {verdict}",
            flush=True,
        )
    total = {
        name: sum(getattr(result, name) for result in results)
        for name in ("kills", "zombies", "deletions", "failures", "rows")
    }
    bad = [result.seed for result in results if result.violations]
    counts = ", ".join(f"{count} {name}" for name, count in total.items())
    print(
        f"{len(results)} rounds: {counts}. "
        + (f"VIOLATED: {bad}" if bad else "Every row arrived once.")
    )
    if not total["kills"]:
        print("No driver was killed before it finished, so these rounds prove nothing.")
    return 1 if bad or not total["kills"] else 0


if __name__ == "__main__":
    sys.exit(main())
