"""replay: an archive, or any DataFrame with positions, → a stream, in order, at a given rate.

    surecast pipeline replay /lake/orders --stream orders --to orders.again --rate 50000

Events are published in the order of `seq`, in slices of so many positions. A replay with a rate has
smaller ones, of two seconds, and waits after each until the next is due. A replay with a name
publishes each event exactly once under that name: the region remembers up to which position it has
come, and running it again goes on behind, also when the archive has grown meanwhile.

Void and lost positions are left out; how many are lost is logged as a warning.
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
SLICE_S: Final = 2.0  # at most of a rate's events: each slice is a job of Spark's
Said = Callable[[int, int], None]  # events published, of so many


def replay(
    rows: DataFrame,
    to: str,
    options: Mapping[str, str],
    *,
    rate: float = 0.0,
    name: str = "",
    positions: int = SLICE,
    say: Said = lambda done, total: None,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> int:
    """Publish all events of `rows` to the stream `to`; returns how many there were.

    `rate`: events a second, 0: no limit. `name`: see the module; without one, each call is a new
    replay. `positions`: of a slice, at most.
    """
    if rate < 0:
        raise UsageError(f"rate={rate:g}: give events a second above 0, or none for no limit")
    if positions < 1:
        raise UsageError(f"positions={positions}: a slice has at least one")
    if rate:
        positions = min(positions, max(1, math.ceil(rate * SLICE_S)))
    events, target = _events(rows), {**options, "stream": to}
    before, after = 0, -1
    if name:
        before, after = _done_before(events, target, name)
        events = events.where(f"seq > {after}")
    slices = _slices(events, positions)
    total, done, began = before + sum(count for _, count in slices), before, now()
    if before:
        say(before, total)
    for last, count in slices:
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
    """How many of these events are published under this name, and up to which position."""
    from surecast.pipeline.sink import resumed

    came = resumed({**options, "queryId": name})
    found = events.where(f"seq <= {came.done}").count()
    if found > came.rows:
        raise UsageError(
            f"replay {name!r} has published {came.rows:,} events up to position {came.done}, and "
            f"these rows have {found:,} up to there: it only goes on behind. Replay them under "
            "another name"
        )
    return found, came.done


def _events(rows: DataFrame) -> DataFrame:
    """What a publisher gives, and `seq`; UsageError if these rows have no order."""
    from pyspark.sql import functions as f

    if missing := {"seq", "value"} - set(rows.columns):
        raise UsageError(
            f"there is no column {' and none called '.join(sorted(missing))} in these rows, only "
            f"{', '.join(rows.columns)}: replay takes what `archive` or the source gives, or any "
            "rows with a value and a seq to order them by"
        )
    if "kind" in rows.columns:
        _tell_lost(rows)
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
            "must have a place, from 0 on, or it would not be replayed"
        )
    columns = [name for name in ("key", "value", "attributes") if name in rows.columns]
    return rows.select("seq", *columns)


def _tell_lost(rows: DataFrame) -> None:
    from pyspark.sql import functions as f

    size = f.col("range") if "range" in rows.columns else f.lit(1)
    found = rows.where(f.col("kind") == "lost").agg(f.sum(size)).first()
    if found is not None and found[0]:
        log.warning("%s positions of these rows were lost: nothing is replayed for them", found[0])


def _slices(events: DataFrame, positions: int) -> list[tuple[int, int]]:
    """The last position of each slice that has events, and how many it has."""
    from pyspark.sql import functions as f

    groups = events.groupBy(f.floor(f.col("seq") / positions))
    return sorted((row[1], row[2]) for row in groups.agg(f.max("seq"), f.count("*")).collect())
