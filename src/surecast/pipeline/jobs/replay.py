"""replay: an archive, or any DataFrame with positions, → a stream, in order, at a given rate.

    surecast pipeline replay /lake/orders --stream orders --to orders.again --rate 50000

Events are published in the order of `seq`, in slices of so many positions; after each slice a
replay with a rate waits until it is due. A replay with a name publishes each slice exactly once
under that name: running it again goes on behind the last slice that was committed, also when the
archive has grown meanwhile. For that the slices must be the same: do not change their size between
two runs of one name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from surecast.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["SLICE", "replay"]

SLICE: Final = 100_000  # positions published at a time
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
    replay. `positions`: of a slice.
    """
    if rate < 0:
        raise UsageError(f"rate={rate:g}: give events a second above 0, or none for no limit")
    if positions < 1:
        raise UsageError(f"positions={positions}: a slice has at least one")
    events = _events(rows)
    slices = _slices(events, positions)
    total, done, began = sum(slices.values()), 0, now()
    for number in sorted(slices):
        _publish(events, number, positions, {**options, "stream": to}, name)
        done += slices[number]
        say(done, total)
        if rate and (early := began + done / rate - now()) > 0:
            sleep(early)
    return total


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
        rows = rows.where(f.col("kind") == "event")
    if "stream" in rows.columns:
        found = sorted(row[0] for row in rows.select("stream").distinct().limit(5).collect())
        if len(found) > 1:
            raise UsageError(
                f"these rows are of several streams ({', '.join(found)}), whose positions have no "
                "common order: choose one (--stream NAME)"
            )
    columns = [name for name in ("key", "value", "attributes") if name in rows.columns]
    return rows.select("seq", *columns)


def _slices(events: DataFrame, positions: int) -> dict[int, int]:
    """How many events each slice has; those without any are not there."""
    from pyspark.sql import functions as f

    number = f.floor(f.col("seq") / positions).alias("slice")
    return {int(row[0]): int(row[1]) for row in events.groupBy(number).count().collect()}


def _publish(
    events: DataFrame, number: int, positions: int, options: Mapping[str, str], name: str
) -> None:
    from pyspark.sql import functions as f

    first = number * positions
    part = events.where((f.col("seq") >= first) & (f.col("seq") < first + positions))
    identity = {"queryId": f"{name}@{first}+{positions}"} if name else {}
    writer = part.sort("seq").drop("seq").write.format("surecast").mode("append")
    writer.options(**options, **identity).save()
