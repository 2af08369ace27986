"""The checks of an audit (audit.py) as Spark queries; later queries use results of earlier ones.

Large tables identify a reader by its number `rid` and a stream by its number `sid`. All rows are
sorted once and joined once. Single positions are examined only for readers whose counts or order
show a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from pyspark import StorageLevel
from pyspark.sql import functions as F

from surecast.columns.rules import KeepLast, LatestPerKey, Policy
from surecast.errors import UsageError
from surecast.pipeline.jobs.audit import Audit, Counts, Latency, ReaderAudit, StreamAudit
from surecast.pipeline.jobs.lateness import Lateness, step_of
from surecast.pipeline.jobs.queries import (
    SHOWN_MAX,
    examples,
    falls,
    in_order,
    latest,
    many,
    shown,
    small_table,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

    from surecast.pipeline.jobs.trace import Trace

__all__ = ["Judge", "join_hint"]

SPARE: Final = 1_000_000  # higher positions than this plus twice the published events are invalid
HELD_MAX: Final = 2_000_000  # maximum number of acknowledged events in the memory of an executor
HELD_BYTES_MAX: Final = 256 << 20  # maximum size of their keys and values, per executor or task
SID_SHIFT: Final = 44  # positions are smaller than 2 to this power
# The result of comparing a delivered event with the event that was acknowledged at its position.
# OTHER_FIELDS: its value is the same, but its key or its attributes are not.
FITS, OTHER_FIELDS, OTHER_EVENT, NO_ACK = range(4)


class Judge:
    """One audit. Call the `check_…` methods in the order of `audit`, then `close`; always call
    `release`."""

    def __init__(self, trace: Trace, retain: Policy, chunk_rows: int) -> None:
        self.spark = trace.published.sparkSession
        self.retain = retain
        self.chunk_rows = chunk_rows
        self._kept: list[DataFrame] = []  # cached tables
        # Rows of the table `readers`, sorted by stream, region and reader. A reader's index here,
        # and in the lists below, is its `rid`.
        self.reader_rows = sorted(trace.readers.collect(), key=lambda row: row[:3])
        if not self.reader_rows:
            raise UsageError("the trace has no reader: there is nothing to judge")
        counts = trace.published.groupBy("stream").agg(
            many(),
            F.count("seq").alias("acked"),
            F.max("seq").alias("latest"),
            F.count_if(F.col("key").isNull()).alias("no_key"),
            F.sum(_size("key") + _size("value") + _size("attributes")).alias("bytes"),
        )
        published = {row["stream"]: row for row in counts.collect()}
        names = sorted(published.keys() | {row["stream"] for row in self.reader_rows})
        self.streams = [StreamAudit(stream=name) for name in names]
        self.sid = [names.index(row["stream"]) for row in self.reader_rows]  # by `rid`
        self.readers = [
            ReaderAudit(stream=row["stream"], region=row["region"], reader=row["reader"])
            for row in self.reader_rows
        ]
        self.regions: dict[str, Latency] = {}
        # The last position with an event that the reader received, or that was reported as lost.
        self.latest = [0] * len(self.reader_rows)
        self.voids = [0] * len(self.reader_rows)  # positions reported to the reader as void
        self.losses = [0] * len(self.reader_rows)  # positions reported to the reader as lost
        self.invalid: set[int] = set()  # readers that received invalid positions
        # By `sid`:
        self.limits = [SPARE] * len(names)  # higher positions are invalid
        self.unknown = [0] * len(names)  # number of positions that appear in no acknowledgement
        self.acked_upto = [0] * len(names)  # the highest acknowledged position
        self.ends = [1] * len(names)  # the highest end that a reader has reached
        self.bytes = sum(row["bytes"] for row in published.values())  # of all keys and values
        self.has_no_key = any(row["no_key"] for row in published.values())  # some events have none
        for sid, stream in enumerate(self.streams):
            if (row := published.get(stream.stream)) is not None:
                stream.published, stream.acked = row["n"], row["acked"]
                self.limits[sid] = 2 * row["n"] + SPARE
                self.acked_upto[sid] = row["latest"] or 0
        numbered = self._frame(list(enumerate(names)), "sid int, stream string")
        self.published = trace.published.join(F.broadcast(numbered), "stream")
        self.acks = self.published.where("seq IS NOT NULL")
        self.delivered = trace.delivered

    def _frame(self, rows: Sequence[tuple[Any, ...]], ddl: str) -> DataFrame:
        return small_table(self.spark, rows, ddl)

    def _keep(self, rows: DataFrame) -> DataFrame:
        self._kept.append(rows.persist(StorageLevel.MEMORY_AND_DISK))
        return rows

    def release(self) -> None:
        for rows in self._kept:
            rows.unpersist()

    # ------------------------------------------------------------ publishers' records

    def check_publishers(self) -> None:
        """Each published stream has a reader, and the values of its events are unique."""
        for sid in sorted(set(range(len(self.streams))) - set(self.sid)):
            self._violated(sid, "published, and no reader recorded anything")
        same_value = self.published.groupBy("sid", "value").agg(F.min("number").alias("at"), many())
        for row in examples(same_value.where("n > 1"), "sid"):
            words = "values were offered twice, so this trace cannot be judged: numbers"
            self._violated(row["sid"], f"{words} {shown(row)}")

    # ------------------------------------------------------------ the order of delivery

    def check_order(self) -> None:
        """G2, R10, G9: positions and times rise, and all readers reach the same end."""
        rows = [
            (rid, sid, row["stream"], row["reader"], row["first"], self.limits[sid])
            for rid, (sid, row) in enumerate(zip(self.sid, self.reader_rows, strict=True))
        ]
        ddl = "rid int, sid int, stream string, reader string, first bigint, limit bigint"
        readers = self._frame(rows, ddl)
        given = self.delivered.join(F.broadcast(readers), ["stream", "reader"], "left").select(
            "rid",
            "sid",
            "number",
            (F.col("kind") == "event").alias("is_event"),
            (F.col("kind") == "lost").alias("is_lost"),
            (F.col("seq") - F.col("range") + 1).alias("lo"),
            F.col("seq").alias("last"),
            "key",
            "value",
            "attributes",
            F.unix_micros("timestamp").alias("time_us"),
            "got_ns",
            F.expr("seq < first OR seq > limit OR range < 1").alias("invalid"),
        )
        self.given = given.where("NOT invalid")
        event, lost, invalid = F.col("is_event"), F.col("is_lost"), F.col("invalid")
        positions = F.col("last") - F.col("lo") + 1
        found = in_order(
            given.drop("key", "value", "attributes", "got_ns"),
            "rid",
            "number",
            self.chunk_rows,
            n=F.count("*"),
            upto=F.max("number"),
            events=F.count_if(event),
            voids=F.sum(F.when(~event & ~lost, positions)),
            losses=F.sum(F.when(lost & ~invalid, positions)),
            lost_at=F.min(F.when(lost & ~invalid, F.col("lo"))),
            end=F.max(F.when(~invalid, F.col("last"))) + 1,
            latest=F.max(F.when((event | lost) & ~invalid, F.col("last"))),
            invalid=F.count_if(invalid),
            invalid_at=F.min(F.when(invalid, F.col("last"))),
            backwards=F.count_if(F.col("time_us") < F.col("time_before")),
            oldest=F.min("time_us"),
            newest=F.max("time_us"),
        )
        if None in found:  # rows of readers that are not in the table `readers`
            self._refuse_unknown_readers()
        for rid, chunks in found.items():
            self._judge_order(rid, chunks)
        for rid, reader in enumerate(self.readers):
            self.ends[self.sid[rid]] = max(self.ends[self.sid[rid]], reader.end)
            if self.reader_rows[rid]["malformed"]:
                words = f"{self.reader_rows[rid]['malformed']} events were changed on the way"
                self._accused(rid, "G1 {}: " + words)
        suspects: list[tuple[int, int, int]] = []
        for rid, reader in enumerate(self.readers):
            end = self.ends[self.sid[rid]]
            if reader.end != end:
                self._accused(rid, f"G9 {{}} ended at {reader.end:,}, not {end:,}")
            # If positions rise, none occurs twice. So all positions that were not delivered or lost
            # are void, and their number is known without looking at each.
            not_void = reader.delivered + self.losses[rid]
            reader.void = max(0, end - self.reader_rows[rid]["first"] - not_void)
            # A reader that requests voids must get a row for each void position.
            skipped = self.reader_rows[rid]["voids"] and reader.void != self.voids[rid]
            if skipped or reader.misordered or rid in self.invalid:
                suspects.append((rid, self.reader_rows[rid]["first"], end))
        if suspects:
            self._count_positions(suspects)

    def _judge_order(self, rid: int, chunks: list[Row]) -> None:
        """Evaluate the results of `check_order` for one reader: a row for each chunk."""
        reader = self.readers[rid]
        if sum(row["n"] for row in chunks) != chunks[-1]["upto"] or any(
            row["again"] for row in chunks
        ):
            raise UsageError(
                f"the trace of {reader.reader}, {reader.stream}, is not complete: its rows must be "
                "numbered 1, 2, 3, … in the order of delivery"
            )
        reader.delivered = sum(row["events"] for row in chunks)
        reader.end = max([self.reader_rows[rid]["first"], *(row["end"] or 0 for row in chunks)])
        self.latest[rid] = max(row["latest"] or 0 for row in chunks)
        self.voids[rid] = sum(row["voids"] or 0 for row in chunks)
        if losses := sum(row["losses"] or 0 for row in chunks):
            self.losses[rid] = losses
            reader.lost += losses
            at = min(row["lost_at"] for row in chunks if row["losses"])
            self._accused(rid, f"G4 {{}}: {losses:,} positions were reported lost, from {at:,}")
        if invalid := sum(row["invalid"] for row in chunks):
            self.invalid.add(rid)
            at = min(row["invalid_at"] for row in chunks if row["invalid"])
            words = f"{invalid:,} positions that are invalid or were not requested, such as {at:,}"
            self._accused(rid, "G1 {}: " + words)
        fell, at = falls(chunks)
        reader.misordered += fell
        if fell:
            words = f"positions fall or repeat {fell:,} times, first after {at:,}"
            self._accused(rid, "G2 {}: " + words)
        timed = [row for row in chunks if row["newest"] is not None]  # None: only void positions
        over = any(after["oldest"] < before["newest"] for before, after in pairwise(timed))
        if over or any(row["backwards"] for row in chunks):
            self._accused(rid, "R10 {}: time runs backwards")

    def _count_positions(self, suspects: list[tuple[int, int, int]]) -> None:
        """G2: examine each position of these readers (rid, first, end), to find positions without
        an event and positions without any row."""
        readers = F.broadcast(self._frame(suspects, "rid int, first bigint, end bigint"))
        given = self.given.join(readers, "rid")
        each = F.explode(F.sequence("lo", "last")).alias("at")
        reported = given.select("rid", "is_event", "is_lost", each)
        known = reported.groupBy("rid", "at").agg(
            F.max("is_event").alias("event"),
            F.min("is_event").alias("only_event"),
            F.max("is_lost").alias("lost"),
        )
        every = self.spark.range(1, max(end for _, _, end in suspects)).toDF("at")
        wanted = every.crossJoin(readers).where("first <= at AND at < end")
        places = self._keep(wanted.join(known, ["rid", "at"], "left"))
        void = {rid: 0 for rid, _, _ in suspects}
        no_event = places.where("event IS NULL OR NOT event AND NOT lost")
        for row in no_event.groupBy("rid").count().collect():
            void[row["rid"]] = row["count"]
        for rid, count in void.items():
            self.readers[rid].void = count
        self._each(places.where("event AND NOT only_event"), "G2 {}: void and an event at")
        with_voids = [rid for rid in void if self.reader_rows[rid]["voids"]]
        skipped = places.where(F.col("event").isNull() & F.col("rid").isin(with_voids))
        for rid, n in self._each(skipped, "G2 {}: skipped without a void").items():
            self.readers[rid].lost += n

    def _refuse_unknown_readers(self) -> None:
        known = self._frame(
            [(row["stream"], row["reader"]) for row in self.reader_rows],
            "stream string, reader string",
        )
        pairs = self.delivered.select("stream", "reader").distinct()
        some = pairs.join(known, ["stream", "reader"], "left_anti").limit(SHOWN_MAX).collect()
        names = ", ".join(f"{row['reader']} of {row['stream']}" for row in some)
        raise UsageError(f"the trace has events of readers that are not in readers/: {names}")

    # ------------------------------------------------------------ acknowledged positions

    def check_positions(self) -> None:
        """G10: no position was acknowledged twice. Also counts positions without an
        acknowledgement."""
        ends = self._frame(list(enumerate(self.ends)), "sid int, end bigint")
        places = self.acks.join(F.broadcast(ends), "sid").select(
            "sid", "seq", F.col("seq").alias("lo"), F.col("seq").alias("last"), "end"
        )
        inside = F.count_if(F.col("seq") < F.col("end"))
        found = in_order(places, "sid", "seq", self.chunk_rows, inside=inside)
        given_twice = False
        for sid, end in enumerate(self.ends):
            chunks = found.get(sid, [])
            # The positions are sorted: if one does not rise, it was acknowledged again.
            repeated, _ = falls(chunks)
            self.unknown[sid] = end - 1 - sum(row["inside"] for row in chunks) + repeated
            given_twice |= repeated > 0
        if not given_twice:
            return
        given = self.acks.groupBy("sid", F.col("seq").alias("at")).agg(many())
        for row in examples(given.where("n > 1"), "sid"):
            self.streams[row["sid"]].duplicated += row["n"]
            self._violated(row["sid"], f"G10 positions were given twice: {shown(row)}")
        self.acks = latest(self.acks, ["sid", "seq"], "number")

    # ------------------------------------------------------------ delivered events

    def check_events(self) -> None:
        """G1, G10: each event is the one that was acknowledged at its position."""
        acks = self.acks.select(
            _place("seq").alias("place"),
            F.col("key").alias("ack_key"),
            F.col("value").alias("ack_value"),
            F.col("attributes").alias("ack_attributes"),
            "offered_ns",
        )
        same = F.col("ack_key").eqNullSafe(F.col("key"))
        same &= F.col("ack_attributes").eqNullSafe(F.col("attributes"))
        fits = (
            F.when(F.col("ack_value").isNull(), NO_ACK)
            .when(F.col("ack_value") != F.col("value"), OTHER_EVENT)
            .when(same, FITS)
            .otherwise(OTHER_FIELDS)
        )
        acked = sum(stream.acked for stream in self.streams)
        tasks = int(self.spark.conf.get("spark.sql.shuffle.partitions") or 1)
        acks = acks.hint(join_hint(acked, self.bytes, tasks))
        fit = F.col("fits") <= OTHER_FIELDS  # the value is the acknowledged one
        self.got = (
            self.given.where("is_event")
            .withColumn("place", _place("last"))
            .join(acks, "place", "left")
            .withColumn("fits", fits)
            .select(
                "rid",
                "sid",
                "last",
                "fits",
                F.when(fit, F.col("ack_key")).otherwise(F.col("key")).alias("key"),
                F.when(~fit, F.col("value")).alias("value"),
                F.when(~fit, F.col("attributes")).alias("attributes"),
                F.when(fit, F.col("got_ns") - F.col("offered_ns")).alias("late_ns"),
            )
        )
        step = step_of(F.col("late_ns")).alias("step")
        counted = self.got.groupBy("rid", step, (F.col("fits") > FITS).alias("odd"))
        late = Lateness(len(self.reader_rows))
        self.odd: set[int] = set()  # readers that got an event other than the acknowledged one
        for row in counted.agg(many(), F.max("late_ns").alias("longest")).collect():
            self.odd |= {row["rid"]} if row["odd"] else set()
            if row["step"] is not None:
                late.add(row["rid"], row["step"], row["n"], row["longest"])
        for rid, reader in enumerate(self.readers):
            reader.latency = late.of([rid])
        for region in sorted({reader.region for reader in self.readers}):
            rids = [rid for rid, reader in enumerate(self.readers) if reader.region == region]
            if (latency := late.of(rids)) is not None:
                self.regions[region] = latency
        times = (
            self.given.where("is_event")
            .groupBy("sid", F.col("last").alias("at"))
            .agg(F.min("time_us").alias("least"), F.max("time_us").alias("most"))
        )
        for row in examples(times.where("least < most"), "sid"):
            words = "G10 readers received different times for events at"
            self._violated(row["sid"], f"{words} {shown(row)}")

    # ------------------------------------------------------------ events that do not fit

    def check_mismatches(self) -> None:
        """Examine events that differ from the event that was acknowledged at their position. They
        are identified by their values, which are unique."""
        self.truth = self.acks.select("sid", "seq", "publisher", "number", "key")
        self.resolved: DataFrame | None = None  # the events of `odd` readers, identified by value
        if self.odd:
            self._look_up()
        falling = {rid for rid, reader in enumerate(self.readers) if reader.misordered}
        if suspects := sorted(falling | self.odd):
            self._find_doubles(suspects)
        # If all events of a stream are acknowledged, none of them can be at a position that appears
        # in no acknowledgement.
        if unpublished := [
            (sid, self.ends[sid])
            for sid, stream in enumerate(self.streams)
            if self.unknown[sid] and stream.acked == stream.published
        ]:
            self._find_unpublished(unpublished)

    def _find_unpublished(self, suspects: list[tuple[int, int]]) -> None:
        """G1: find positions of these streams (sid, end) without a published event."""
        streams = F.broadcast(self._frame(suspects, "sid int, end bigint"))
        every = self.spark.range(1, max(end for _, end in suspects)).toDF("seq")
        places = every.crossJoin(streams).where("seq < end").select("sid", "seq")
        unpublished = places.join(self.truth, ["sid", "seq"], "left_anti")
        for row in examples(unpublished.withColumnRenamed("seq", "at"), "sid"):
            self.streams[row["sid"]].duplicated += row["n"]
            self._violated(row["sid"], f"G1 nobody published what stands at {shown(row)}")

    def _look_up(self) -> None:
        """Identify the events of `odd` readers by their values, and report those that nobody
        published, or that have another key or position than the acknowledged ones."""
        other_fields = self.got.where(F.col("fits") == OTHER_FIELDS).select(
            "rid", F.col("last").alias("at")
        )
        self._each(other_fields, "G1 {}: another key, or other attributes, than published at")
        known = self.published.select(
            "sid",
            "value",
            "publisher",
            "number",
            F.col("key").alias("own_key"),
            F.col("attributes").alias("own_attributes"),
            F.col("seq").alias("own_seq"),
        )
        odd = self.got.where(F.col("fits") >= OTHER_EVENT)
        found = self._keep(
            odd.join(known, ["sid", "value"], "left").withColumn("at", F.col("last"))
        )
        self._each(found.where("number IS NULL"), "G1 {}: nobody published what it got at")
        real = found.where("number IS NOT NULL")
        other = "NOT key <=> own_key OR NOT attributes <=> own_attributes"
        self._each(real.where(other), "G1 {}: another key, or other attributes, than published at")
        displaced = real.where(F.col("fits") == OTHER_EVENT)
        for rid, n in self._each(displaced, "G10 {}: got another event than stands at").items():
            self.readers[rid].lost += n
        # An event's id: its acknowledged position; without one, its publisher and number.
        by_publisher = F.concat_ws("/", "sid", "publisher", "number")
        by_position = F.concat_ws("/", "sid", "own_seq")
        self.resolved = real.select(
            "rid", "last", F.col("own_key").alias("key"),
            F.when(F.col("own_seq").isNull(), by_publisher).otherwise(by_position).alias("id"),
        )  # fmt: skip
        unknown = real.where(F.col("fits") == NO_ACK).select(
            "sid", "at", "publisher", "number", "own_key", "own_seq"
        )
        unknown = self._keep(unknown.distinct())
        differing = unknown.groupBy("sid", "at").agg(many()).where("n > 1")
        for row in examples(differing, "sid"):
            self.streams[row["sid"]].lost += row["n"]
            words = "G10 readers got different events at"
            self._violated(row["sid"], f"{words} {shown(row)}")
        acked = F.max(F.col("own_seq").isNotNull().cast("int"))  # 1: acknowledged elsewhere
        places = unknown.groupBy("sid", "publisher", "number").agg(
            F.min("at").alias("at"), (F.count("*") + acked).alias("n")
        )
        for row in examples(places.where("n > 1"), "sid"):
            self.streams[row["sid"]].duplicated += row["n"]
            words = "G10 events stand at two positions, also at"
            self._violated(row["sid"], f"{words} {shown(row)}")
        extra = latest(unknown, ["sid", "at"], "number").select(
            "sid", F.col("at").alias("seq"), "publisher", "number", F.col("own_key").alias("key")
        )
        self.truth = self.truth.unionByName(extra)

    def _find_doubles(self, suspects: list[int]) -> None:
        """G10: find events that a reader received twice. Not needed for a reader with rising
        positions whose events all match the acknowledged ones."""
        fit = self.got.where(F.col("rid").isin(suspects) & (F.col("fits") <= OTHER_FIELDS))
        ids = fit.select("rid", "last", F.concat_ws("/", "sid", "last").alias("id"))
        every = ids if self.resolved is None else ids.unionByName(self.resolved.drop("key"))
        twice = every.groupBy("rid", "id").agg(F.min("last").alias("at"), many()).where("n > 1")
        again = twice.groupBy("rid").agg(F.sum(F.col("n") - 1).alias("again")).collect()
        for row in again:
            self.readers[row["rid"]].duplicated += row["again"]
        self._each(twice, "G10 {}: got events twice, those at")

    # ------------------------------------------------------------ positions without an event

    def check_voids(self) -> None:
        """G4: positions that a reader did not receive are void by the rule. Also G10 for events
        beyond every reader's end."""
        ends = self._frame(list(enumerate(self.ends)), "sid int, end bigint")
        known = self.truth.join(F.broadcast(ends), "sid")
        if any(upto >= end for upto, end in zip(self.acked_upto, self.ends, strict=True)):
            beyond = known.where("seq >= end").select("sid", F.col("seq").alias("at"))
            for row in examples(beyond, "sid"):
                self.streams[row["sid"]].lost += row["n"]
                words = "G10 acknowledged and lost, beyond every reader's end:"
                self._violated(row["sid"], f"{words} {shown(row)}")
        rows = [
            (self.sid[rid], rid, self.reader_rows[rid]["first"], self.latest[rid])
            for rid, reader in enumerate(self.readers)
            if reader.void
        ]
        if not rows:
            return
        readers = self._frame(rows, "sid int, rid int, first bigint, latest bigint")
        within = known.where("seq < end").select("sid", "seq", "key")
        suspects = self._unexplained(within, F.broadcast(readers))
        if suspects is None:
            return
        received = self.given.where("is_event").select("rid", F.col("last").alias("seq"))
        if any(self.losses):  # positions reported as lost are counted already
            received = received.unionByName(self._lost_positions())
        lost = (
            suspects.where("seq >= first")
            .select("rid", "seq")
            .join(received, ["rid", "seq"], "left_anti")
        )
        named = lost.withColumnRenamed("seq", "at")
        for rid, n in self._each(named, "G4 {}: neither delivered nor outdated").items():
            self.readers[rid].lost += n

    def _lost_positions(self) -> DataFrame:
        """(rid, seq) of each position that was reported to a reader as lost."""
        each = F.explode(F.sequence("lo", "last")).alias("seq")
        return self.given.where("is_lost").select("rid", each)

    def _unexplained(self, known: DataFrame, readers: DataFrame) -> DataFrame | None:
        """(rid, first, seq) of events that a reader should have received and may lack; None if it
        is certain that no reader lacks any."""
        if isinstance(self.retain, KeepLast):
            return known.join(readers, "sid").where(F.col("seq") > F.col("latest") - self.retain.n)
        if not isinstance(self.retain, LatestPerKey):
            return known.join(readers, "sid")
        # An event is outdated if the reader received a later event with the same key. So the reader
        # can lack an event only if it lacks the last event of a key, or an event without a key.
        if self.resolved is None:  # all delivered events have the keys they were published with
            got = self.given.where("is_event").select("rid", "key", "last")
        else:
            got = self.got.where(F.col("fits") <= OTHER_FIELDS).select("rid", "key", "last")
            got = got.unionByName(self.resolved.select("rid", "key", "last"))
        if any(self.losses):  # a lost event outdates earlier ones of its key
            lost = known.join(readers, "sid").join(self._lost_positions(), ["rid", "seq"])
            got = got.unionByName(lost.select("rid", "key", F.col("seq").alias("last")))
        newest_got = got.groupBy("rid", "key").agg(F.max("last").alias("newest_got"))
        newest = (
            known.where("key IS NOT NULL").groupBy("sid", "key").agg(F.max("seq").alias("newest"))
        )
        behind = (
            newest.join(readers, "sid")
            .join(newest_got, ["rid", "key"], "left")
            .withColumn("newest_got", F.coalesce("newest_got", F.lit(0)))
            .where("newest_got < newest")
            .select("sid", "key", "rid", "first", "newest_got")
        )
        suspects = []
        if self.has_no_key:
            without_key = known.where("key IS NULL").join(readers, "sid")
            suspects.append(without_key.select("rid", "first", "seq"))
        if not behind.isEmpty():
            later = known.join(behind, ["sid", "key"]).where("seq > newest_got")
            suspects.append(later.select("rid", "first", "seq"))
        if not suspects:
            return None
        return suspects[0] if len(suspects) == 1 else suspects[0].unionByName(suspects[1])

    # ------------------------------------------------------------ the order of publishers

    def check_publishers_order(self) -> None:
        """G3: positions follow the order in which each publisher offered its events."""
        number = F.col("number")  # the same number twice does not count here; G10 reports it
        numbered = self.truth.withColumn("who", F.concat_ws("/", "sid", "publisher")).select(
            "who", "seq", (number + 1).alias("lo"), number.alias("last")
        )
        for who, chunks in sorted(in_order(numbered, "who", "seq", self.chunk_rows).items()):
            fell, at = falls(chunks)
            sid, _, publisher = str(who).partition("/")
            if fell:
                self.streams[int(sid)].misordered += fell
                words = f"G3 not in the order in which {publisher} offered them, {fell:,} times"
                self._violated(int(sid), f"{words}, first after its number {at:,}")

    # ------------------------------------------------------------ the verdict

    def close(self) -> Audit:
        verdict = Audit(streams=self.streams, readers=self.readers, regions=self.regions)
        for sid, reader in zip(self.sid, self.readers, strict=True):
            _add(self.streams[sid], reader)
        for stream in self.streams:
            _add(verdict, stream)
            verdict.published += stream.published
            verdict.acked += stream.acked
            several = f"{stream.stream}: " if len(self.streams) > 1 else ""
            verdict.violations += [several + words for words in stream.violations]
        return verdict

    def _each(self, rows: DataFrame, words: str) -> dict[int, int]:
        """Add a violation for each reader with rows (rid, at); return how many each has."""
        found = examples(rows, "rid")
        for row in found:
            self._accused(row["rid"], f"{words} {shown(row)}")
        return {row["rid"]: row["n"] for row in found}

    def _accused(self, rid: int, words: str) -> None:
        """Add a violation for a reader; `{}` in the text stands for its name."""
        self._violated(self.sid[rid], words.format(self.readers[rid].reader))

    def _violated(self, sid: int, words: str) -> None:
        self.streams[sid].violations.append(words)


def join_hint(events: int, size: int, tasks: int) -> str:
    """The kind of join to use with a table of `events` rows and `size` bytes, so that the memory is
    sufficient."""
    if events <= HELD_MAX and size <= HELD_BYTES_MAX:
        return "broadcast"
    return "shuffle_hash" if size <= tasks * HELD_BYTES_MAX else "merge"


def _size(name: str) -> Column:
    return F.coalesce(F.octet_length(name), F.lit(0))


def _add(to: Counts, counts: Counts) -> None:
    for name in Counts.__struct_fields__:
        setattr(to, name, getattr(to, name) + getattr(counts, name))


def _place(seq: str) -> Column:
    """Stream and position as one number, because joins by one number are the cheapest."""
    return F.shiftleft(F.col("sid").cast("bigint"), SID_SHIFT) + F.col(seq)
