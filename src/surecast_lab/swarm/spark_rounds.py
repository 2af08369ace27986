"""A fault test of the Spark source: a streaming query runs while the regions that it reads fail.

There are two regions, west and east, of two real servers each. A publisher fills two streams: one
keeps all events, the other the latest event of each key. A Spark query reads both by a pattern,
with void ranges, and writes Parquet files. It has a filter that no event with a certain key passes.
The steps of a round:

    west       it reads from west
    failover   both servers of west are killed (SIGKILL); the query is restarted with east's url
    head       the head of east is killed and started again two seconds later
    home       west is started again; the query is restarted with west's url
    owner      the link between the regions is cut; the query continues in east and also reads a
               third stream, which is unknown in west; then east is killed, and the query is
               restarted with west's url: it waits until east is up again
    end        publishing ends; the rest is read with availableNow, from east

Then Spark checks all output files together: they must contain every position of all streams
exactly once, every event of the first stream as it was published, and no event with the key. No
query may have reported a loss of data.

    python -m surecast_lab.swarm.spark_rounds [--minutes 10] [--seed 1]
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from surecast.client import sync
from surecast.client.rules import latest_per_key
from surecast.errors import SurecastError
from surecast.server.cluster import Cluster
from surecast_lab.testing.deployment import free_layout, lead_through, wire
from surecast_lab.testing.relay import RelayProcess, RelaySpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["SparkRound", "run_round"]

ALL, LATEST, LATE, PATTERN = "load.all", "load.latest", "load.late", "load.>"
ROWS, KEYS = 500, 2_000
FILTERED = b"k0"  # events with this key do not pass the filter; events without a key do
WHERE = f"not exists key or key != {FILTERED!r}"
READY_S = 120.0
STUCK_S = 180.0
DOWN_S = 2.0
AWAY_S = 8.0  # longer than positions must be missing before the source reports a loss


class SparkRound(msgspec.Struct):
    """The result of a round."""

    seed: int
    published: dict[str, int] = {}
    rows: dict[str, int] = {}  # in the output: events and void ranges
    void: int = 0  # positions of the second stream that the query saw as void
    starts: int = 0  # how often the query was started
    failures: list[str] = []  # errors of the query, which are allowed while its region is down
    batches: int = 0
    violations: list[str] = []
    seconds: float = 0.0


class Load:
    """A publisher in a separate thread. Its values are numbered; it pauses between batches."""

    def __init__(self, url: str, seed: int, pause_s: float) -> None:
        self.url = url
        self.pause_s = pause_s
        self.published = {ALL: 0, LATEST: 0}
        self.checksum = 0
        self.problem: BaseException | None = None
        self.late = False  # whether the third stream gets events, too
        self._rng = random.Random(seed)
        self._over = threading.Event()
        self._turn = threading.Lock()  # held while a batch is published, and for a pause
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with sync.connect(self.url) as client:
                everything = client.stream(ALL)
                newest = client.stream(LATEST, retain=latest_per_key())
                while not self._over.is_set():
                    with self._turn:
                        self._publish(everything, newest)
                        if self.late:
                            self._publish_late(client.stream(LATE))
                    self._over.wait(self.pause_s)
        except SurecastError as problem:
            self.problem = problem

    def _publish(self, everything: sync.Stream, newest: sync.Stream) -> None:
        first = self.published[ALL]
        values = [b"%012d" % (first + row) for row in range(ROWS)]
        everything.publish_many(values)
        self.checksum += sum(map(zlib.crc32, values))
        self.published[ALL] += ROWS
        keys = [b"k%d" % int(KEYS * self._rng.random() ** 2) for _ in range(ROWS)]
        newest.publish_many(values, keys=keys)
        self.published[LATEST] += ROWS

    def _publish_late(self, late: sync.Stream) -> None:
        late.publish_many([b"late"] * ROWS)
        self.published[LATE] = self.published.get(LATE, 0) + ROWS

    def pause(self) -> None:
        """Wait until all published events are acknowledged, and publish no more until `go_on`."""
        self._turn.acquire()

    def go_on(self) -> None:
        self._turn.release()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        if self.problem is not None:
            raise self.problem


class _Round:
    """The cluster, the query and the steps of one round."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        cluster: Cluster,
        relay: RelayProcess,
        result: SparkRound,
        say: Any,
    ) -> None:
        self.spark, self.folder, self.cluster, self.relay = spark, folder, cluster, relay
        self.result, self.say = result, say
        self.urls = {
            region: "surecast://"
            + ",".join(n.listen for n in self.replicas(region))
            for region in cluster.layout.regions()
        }  # fmt: skip
        self.query: StreamingQuery | None = None

    def replicas(self, region: str) -> list[Any]:
        nodes = self.cluster.layout.nodes
        return [node for node in nodes if node.region == region and node.role == "replica"]

    # ------------------------------------------------------------ the query

    def start(self, region: str, *, once: bool = False) -> None:
        writer = (
            self.rows(region)
            .writeStream.format("parquet")
            .option("path", str(self.folder / "output"))
            .option("checkpointLocation", str(self.folder / "checkpoint"))
        )
        writer = (
            writer.trigger(availableNow=True)
            if once
            else writer.trigger(processingTime="500 milliseconds")
        )
        self.query = writer.start()
        self.result.starts += 1

    def rows(self, region: str) -> DataFrame:
        """The rows of the streams. `load()` needs an answer of the region, so it is tried again."""
        from pyspark.errors import PySparkException

        reader = (
            self.spark.readStream.format("surecast")
            .option("url", self.urls[region])
            .option("subscribePattern", PATTERN)
            .option("startingOffsets", "earliest")
            .option("includeVoids", "true")
            .option("where", WHERE)
            .option("maxOffsetsPerTrigger", "200000")
        )
        deadline = time.monotonic() + STUCK_S
        while True:
            try:
                return reader.load()
            except PySparkException as problem:
                if time.monotonic() > deadline:
                    raise
                self.note_failure(str(problem))

    def stop(self) -> None:
        query, self.query = self.query, None
        assert query is not None
        self.result.batches += len(query.recentProgress)
        failure = query.exception()
        if failure is not None:
            self.note_failure(str(failure))
        query.stop()

    def note_failure(self, text: str) -> None:
        """Note an error of the query. It may fail while its region is down, but a report of lost
        data is a violation."""
        self.result.failures.append(text.strip().splitlines()[0][:200])
        for loss in re.findall(r"data was lost: [^\n]+", text)[:1]:
            self.result.violations.append(f"no data was lost, but the query reports: {loss[:200]}")

    def last_batch(self) -> int:
        assert self.query is not None
        progress = self.query.lastProgress
        return 0 if progress is None else int(progress["batchId"])

    def has_read(self, published: dict[str, int]) -> bool:
        assert self.query is not None
        progress = self.query.lastProgress
        places = {} if progress is None else json.loads(progress["sources"][0]["endOffset"])
        return all(places.get(name, {}).get("next") == n + 1 for name, n in published.items())

    def until(self, what: str, condition: Callable[[], bool], region: str) -> None:
        """Wait for a condition; a query that has ended is started again."""
        deadline = time.monotonic() + STUCK_S
        while not condition():
            assert self.query is not None
            if not self.query.isActive:
                self.stop()
                self.start(region)
            if time.monotonic() > deadline:
                raise SurecastError(f"stuck: {what}")
            time.sleep(0.2)

    def wait_for_batches(self, region: str, batches: int = 2) -> None:
        at = self.last_batch()
        self.until(
            f"no new micro-batch from {region}", lambda: self.last_batch() >= at + batches, region
        )

    # ------------------------------------------------------------ the steps

    def run(self, seconds: float, load: Load) -> None:
        act_s = seconds / 5
        self.start("west")
        self.rest("west", act_s)
        self.say("west is killed; the query continues in east")
        for node in self.replicas("west"):
            self.cluster.kill(node.name)
        self.stop()
        self.start("east")
        self.rest("east", act_s)
        head = self.replicas("east")[0].name
        self.say(f"{head} is killed")
        self.cluster.kill(head)
        time.sleep(DOWN_S)
        self.cluster.start(head)
        self.rest("east", act_s)
        self.say("west is up again; the query returns to it")
        for node in self.replicas("west"):
            self.cluster.start(node.name)
        self.cluster.wait_ready(READY_S)
        self.stop()
        self.start("west")
        self.rest("west", act_s)
        self.lose_the_owner(act_s, load)
        load.stop()
        self.stop()
        self.say("publishing has ended; the rest is read from east")
        self.start("east", once=True)
        assert self.query is not None
        self.query.awaitTermination(int(STUCK_S))
        self.stop()

    def lose_the_owner(self, act_s: float, load: Load) -> None:
        self.say("the link is cut; the query continues in east")
        self.relay.cut(wire("east", "west"))
        load.late = True
        self.stop()
        self.start("east")
        self.rest("east", act_s)
        load.pause()
        self.until("not all was read", lambda: self.has_read(load.published), "east")
        self.say("east is killed; the query waits in west")
        for node in self.replicas("east"):
            self.cluster.kill(node.name)
        self.stop()
        self.start("west")
        deadline = time.monotonic() + AWAY_S
        self.until("time", lambda: time.monotonic() >= deadline, "west")
        self.say("east is up again")
        self.relay.mend(wire("east", "west"))
        for node in self.replicas("east"):
            self.cluster.start(node.name)
        self.cluster.wait_ready(READY_S)
        load.go_on()
        self.rest("west", act_s)

    def rest(self, region: str, seconds: float) -> None:
        """Wait for `seconds`, and until the query has made progress."""
        deadline = time.monotonic() + seconds
        self.wait_for_batches(region)
        self.until("time", lambda: time.monotonic() >= deadline, region)

    # ------------------------------------------------------------ the verdict

    def judge(self, load: Load) -> None:
        from pyspark.sql import functions as f

        result = self.result
        result.published = dict(load.published)
        rows = self.spark.read.parquet(str(self.folder / "output")).cache()
        for stream in load.published:
            self._covered(rows.where(f.col("stream") == stream), stream)
        events = rows.where("kind = 'event'")
        kept = events.where(f.col("stream") == ALL)
        found = kept.select(f.count("*"), f.sum(f.crc32("value"))).first()
        if found is None or (found[0], found[1]) != (load.published[ALL], load.checksum):
            result.violations.append(
                f"{ALL}: {found} are in the output, {load.published[ALL]} were published"
            )
        passed = events.where(f.col("key") == f.lit(FILTERED)).count()
        if passed:
            result.violations.append(f"{passed} events in the output do not pass {WHERE}")
        void = rows.where("kind = 'void'").agg(f.sum("range")).first()
        result.void = int(void[0] or 0) if void else 0
        rows.unpersist()

    def _covered(self, rows: DataFrame, stream: str) -> None:
        """Every position must occur once: each row begins where the previous one ends."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        before = f.coalesce(f.lag("seq").over(Window.orderBy("seq", "range")), f.lit(0))
        placed = rows.select("seq", "range", before.alias("before"))
        wrong = placed.where("seq - range != before").orderBy("seq").limit(3).collect()
        for row in wrong:
            self.result.violations.append(
                f"{stream}: {row['range']} positions up to {row['seq']} follow {row['before']}"
            )
        last = rows.agg(f.max("seq"), f.count("*")).first()
        assert last is not None
        self.result.rows[stream] = int(last[1])
        if last[0] != self.result.published[stream]:
            self.result.violations.append(
                f"{stream} ends at {last[0]}, not at {self.result.published[stream]}"
            )


def run_round(
    spark: SparkSession,
    folder: Path,
    seconds: float,
    seed: int,
    pause_s: float = 0.02,
    say: Callable[[str], None] = lambda _: None,
) -> SparkRound:
    """Run all steps of a round in about `seconds`; all files are in `folder`."""
    began = time.monotonic()
    result = SparkRound(seed)
    with ExitStack() as stack:
        relay = stack.enter_context(RelayProcess(RelaySpec(seed)))
        layout = lead_through(relay, free_layout(folder / "cluster", 2, 2))
        cluster = stack.enter_context(Cluster(layout))
        cluster.wait_ready(READY_S)
        spark_round = _Round(spark, folder, cluster, relay, result, say)
        load = Load(spark_round.urls["east"], seed, pause_s)
        try:
            spark_round.run(seconds, load)
        finally:
            if spark_round.query is not None:
                spark_round.query.stop()
            load._over.set()
        spark_round.judge(load)
    result.seconds = round(time.monotonic() - began, 1)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a streaming query while its regions fail.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    from surecast.pipeline.session import spark_session

    spark = spark_session("local[2]")
    with tempfile.TemporaryDirectory(prefix="surecast-spark-") as folder:
        result = run_round(spark, Path(folder), options.minutes * 60, options.seed, say=_say)
    spark.stop()
    print(msgspec.json.format(msgspec.json.encode(result)).decode())
    sys.exit(1 if result.violations else 0)


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
