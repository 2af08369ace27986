"""replay: publishes an archive, or any DataFrame with positions, to a stream, in order.

    surecast pipeline replay /lake/orders --stream orders --to orders.again --rate 50000

Events are published in the order of `seq`, in slices of a fixed number of positions; each slice is
a Spark job. With a rate, slices are smaller (the events of two seconds), and the replay waits after
each slice until the next one is due. With a name, the replay publishes each event exactly
once under that name: the region stores the position that the replay has reached, and another run
continues after this position, also if the archive has grown meanwhile.

Void and lost positions are left out; the number of lost positions is logged as a warning. A stream
that does not exist is created with the schema of the rows, if they have one.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from surecast.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["SLICE", "replay"]

log = logging.getLogger("surecast.pipeline")

SLICE: Final = 100_000  # positions published at a time
SLICE_S: Final = 2.0  # maximum duration of a slice in a replay with a rate
Report = Callable[[int, int], None]  # events published so far, events in all


def replay(
    rows: DataFrame,
    to: str,
    options: Mapping[str, str],
    *,
    rate: float = 0.0,
    name: str = "",
    positions: int = SLICE,
    say: Report = lambda done, total: None,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> int:
    """Publish all events of `rows` to the stream `to`; return the number of events.

    `rate` is in events per second; 0 means no limit. Events that were published before under the
    same `name` are not published again; without a name, each call is a new replay. `positions` is
    the maximum number of positions of a slice.
    """
    if rate < 0:
        raise UsageError(f"rate={rate:g}: give events a second above 0, or none for no limit")
    if positions < 1:
        raise UsageError(f"positions={positions}: a slice must have at least one")
    if rate:
        positions = min(positions, max(1, math.ceil(rate * SLICE_S)))
    events, target = _events(rows), {**options, "stream": to}
    before, after = 0, -1  # events published by earlier runs, and the position they have reached
    if name:
        before, after = _done_before(events, target, name)
        events = events.where(f"seq > {after}")
    slices = _slices(events, positions)
    total, done, began = before + sum(count for _, count in slices), before, now()
    if before:
        say(before, total)
    for last, count in slices:
        # A slice begins at a multiple of `positions` (see `_slices`).
        part = events.where(f"seq BETWEEN {last // positions * positions} AND {last}")
        identity = {"queryId": name, "queryPart": f"{after}..{last}"} if name else {}
        writer = part.sort("seq").drop("seq").write.format("surecast").mode("append")
        writer.options(**target, **identity).save()
        after = last
        done += count
        say(done, total)
        if rate and done < total and (early := began + (done - before) / rate - now()) > 0:
            sleep(early)
    return total


def _done_before(events: DataFrame, options: Mapping[str, str], name: str) -> tuple[int, int]:
    """How many of these events were published before under this name, and up to which position."""
    from surecast.pipeline.sink import resumed

    outcome = resumed({**options, "queryId": name})
    found = events.where(f"seq <= {outcome.done}").count()
    if found > outcome.rows:
        raise UsageError(
            f"replay {name!r} has published {outcome.rows:,} events up to position {outcome.done}, "
            f"but these rows have {found:,} events up to that position. A replay that continues "
            "publishes only later positions, so the additional events would be left out. Replay "
            "these rows under another name"
        )
    return found, outcome.done


def _events(rows: DataFrame) -> DataFrame:
    """The rows with an event, with only `seq` and the columns of an event. Raises UsageError if the
    rows cannot be ordered."""
    from pyspark.sql import functions as f

    if missing := {"seq", "value"} - set(rows.columns):
        raise UsageError(
            f"there is no column {' and none called '.join(sorted(missing))} in these rows, only "
            f"{', '.join(rows.columns)}: replay takes what `archive` or the source gives, or any "
            "rows with a value and a seq to order them by"
        )
    if "kind" in rows.columns:
        _warn_of_lost(rows)
        rows = rows.where(f.col("kind") == "event")
    if "stream" in rows.columns:
        found = sorted(row[0] for row in rows.select("stream").distinct().limit(5).collect())
        if len(found) > 1:
            raise UsageError(
                f"these rows are of several streams ({', '.join(found)}), whose positions have no "
                "common order: choose one (--stream NAME)"
            )
    kind = dict(rows.dtypes)["seq"]
    if kind not in ("tinyint", "smallint", "int", "bigint"):
        raise UsageError(
            f"column seq is of type {kind}: it must be a whole number to order rows by"
        )
    if strange := rows.where("seq IS NULL OR seq < 0").select("seq").first():
        raise UsageError(
            f"there are rows with seq {'NULL' if strange[0] is None else strange[0]}: every row "
            "must have a seq of at least 0, or it would not be replayed"
        )
    columns: list[str] = [name for name in ("key", "value", "attributes") if name in rows.columns]
    if "tag" in rows.columns and dict(rows.dtypes).get("attributes", "").startswith("struct"):
        columns.append("tag")  # in other rows it is in `attributes`
    return rows.select("seq", *columns)


def _warn_of_lost(rows: DataFrame) -> None:
    from pyspark.sql import functions as f

    size = f.col("range") if "range" in rows.columns else f.lit(1)
    found = rows.where(f.col("kind") == "lost").agg(f.sum(size)).first()
    if found is not None and found[0]:
        log.warning("%s positions of these rows were lost: nothing is replayed for them", found[0])


def _slices(events: DataFrame, positions: int) -> list[tuple[int, int]]:
    """The last position and the number of events of each slice that has events."""
    from pyspark.sql import functions as f

    groups = events.groupBy(f.floor(f.col("seq") / positions))
    return sorted((row[1], row[2]) for row in groups.agg(f.max("seq"), f.count("*")).collect())
