"""Sprinkler E6: how much garbage collection by key saves (the paper's Figure 10).

Events with keys pass, batch by batch, through the retention index of a server (a *proxy* in the
paper), which determines the events that are not void, that is, still stored. At certain points
their number is compared with the number of distinct keys in the same events, which must be the
same. The paper does not define its workload exactly. So several interpretations (*readings*) are
run, and the verdict names them; docs/lab/sprinkler.md discusses the results.

In addition to the paper's experiment, bytes are counted: of the log after compaction, and of the
traffic to a region that returns after an outage.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from surecast.parts.workload import key_column
from surecast_lab.lab.sprinkler.gc_figure import draw
from surecast_lab.lab.sprinkler.keys import (
    BOUNDED_SKEWS,
    FIXED,
    GROWING,
    GROWING_LAST,
    PAPER_SAVED_BOUNDED,
    PAPER_SAVED_UNBOUNDED,
    RANKED_20,
    RANKED_200,
    UNBOUNDED_SKEWS,
    ZETA,
    workloads,
)
from surecast_lab.lab.verdict import Experiment, Point, Row, Spread, Verdict, spread

if TYPE_CHECKING:
    from surecast.columns.batch import Batch
    from surecast.columns.retention import RetentionIndex

__all__ = ["EXPERIMENTS", "points", "run_point", "verdict_of"]

Ints = NDArray[np.int64]

# Part (b), bounded keys, is judged after this number of events (see the notes of the verdict).
JUDGED_EVENTS = 150_000
TOLERANCE = 0.05  # five percentage points, because the paper says "roughly"
QUOTED_EVENTS = (100_000, 150_000, 1_000_000, 10_000_000)  # numbers of events quoted in the verdict
BATCH_ROWS = 1_000
COMPACT_ROWS = 4_096  # rows of a batch after compaction
VALUE_SIZE = 10  # bytes; the paper's throughput experiments use events of ten bytes
STREAM_ID = bytes(range(16))  # any id

# ---------------------------------------------------------------- through the retention code


def batches_of(keys: Ints, value_size: int = VALUE_SIZE) -> Iterator["Batch"]:
    """The events as sequenced batches of a stream, from position 1 on."""
    import pyarrow as pa

    from surecast.columns.batch import Batch

    value_offsets = pa.py_buffer(np.arange(BATCH_ROWS + 1, dtype=np.int32) * value_size)
    value_data = pa.py_buffer(bytes(BATCH_ROWS * value_size))
    for start in range(0, keys.size, BATCH_ROWS):
        part = keys[start : start + BATCH_ROWS]
        offsets, data = key_column(part)
        key_buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        columns = {
            "key": pa.Array.from_buffers(pa.binary(), part.size, key_buffers),
            "value": pa.Array.from_buffers(
                pa.binary(), part.size, [None, value_offsets, value_data]
            ),
        }
        batch = Batch.from_arrow(STREAM_ID, pa.RecordBatch.from_pydict(columns))
        yield batch.sequenced(start + 1, time_ns=start, epoch=1)


def keep_latest(
    batches: Iterable["Batch"], checkpoints: Sequence[int] = ()
) -> tuple["RetentionIndex", list[int]]:
    """Feed the batches to a latest-per-key index. Returns the index, and the number of events that
    are not void at each checkpoint."""
    from surecast.columns.retention import LatestPerKey, RetentionIndex

    def read(lo: int, hi: int) -> list["Batch"]:
        raise AssertionError(f"latest-per-key must not read [{lo}, {hi}) of the log again")

    index = RetentionIndex(LatestPerKey())
    wanted = set(checkpoints)
    stored = []
    for batch in batches:
        index.feed(batch, read)
        fed = batch.hi - 1  # events so far; positions begin at 1
        if fed in wanted:
            stored.append(fed - sum(voids.total() for voids in index.voids.values()))
    return index, stored


def distinct_counts(keys: Ints, checkpoints: Sequence[int]) -> list[int]:
    """The expected result: the number of distinct keys among the first n events, for each
    checkpoint n, computed by sorting."""
    first_seen = np.sort(np.unique(keys, return_index=True)[1])
    return [int(np.searchsorted(first_seen, n, side="left")) for n in checkpoints]


def checkpoints_upto(events: int) -> list[int]:
    """The numbers of events at which to count: about five per power of ten, and those that the
    verdict quotes. All are ends of batches."""
    decades = np.log10(events / BATCH_ROWS)
    steps = np.logspace(0, decades, round(decades * 5) + 1)
    points = {round(step) * BATCH_ROWS for step in steps} | {events}
    points |= {n for n in QUOTED_EVENTS if n <= events}
    return sorted(points)


def byte_rows(keys: Ints, missed_counts: Sequence[int]) -> list[Row]:
    """The bytes of the frames that contain the last n events, for each n of `missed_counts`.

    `bytes_all` is their size as published, `bytes_kept` with void ranges in place of obsolete
    events. If n is the number of all events, this is the log before and after compaction; for a
    smaller n, what is sent to a region that missed the last n events.
    """
    from surecast.columns.batch import coalesce

    batches = list(batches_of(keys))
    index, _ = keep_latest(batches)
    rows = []
    for missed in missed_counts:
        behind = batches[(keys.size - missed) // BATCH_ROWS :]
        kept = coalesce([part for batch in behind for part in index.apply(batch)], COMPACT_ROWS)
        assert sum(batch.count for batch in kept) == missed
        stored = sum(batch.rows for batch in kept)
        bytes_all, bytes_kept = (sum(batch.nbytes for batch in of) for of in (behind, kept))
        rows.append(
            {
                "events": missed,
                "stored": stored,
                "saved": 1 - stored / missed,
                "bytes_all": bytes_all,
                "bytes_kept": bytes_kept,
                "bytes_saved": 1 - bytes_kept / bytes_all,
            }
        )
    return rows


# ---------------------------------------------------------------- the experiment


UNBOUNDED_EVENTS, BOUNDED_EVENTS = 10_000_000, 1_000_000  # of a run
QUICK_EVENTS = 150_000
# Part (a), unbounded keys, is judged only in runs of at least this many events: the share saved
# grows with the number of events, and shorter runs are far below the paper's share.
JUDGED_FROM = 5_000_000


def points(quick: bool, seeds: Sequence[int]) -> list[Point]:
    """Every workload with every seed."""
    events = (
        {"a": QUICK_EVENTS, "b": QUICK_EVENTS}
        if quick
        else {"a": UNBOUNDED_EVENTS, "b": BOUNDED_EVENTS}
    )
    return [
        {
            "part": workload.part,
            "reading": workload.reading,
            "skew": workload.skew,
            "events": events[workload.part],
            "seed": seed,
        }
        for workload in workloads()
        for seed in seeds
    ]


def run_point(point: Point) -> list[Row]:
    """Events stored at each checkpoint ("stored"). For the reading FIXED also bytes: of the log
    before and after compaction ("log"), and sent to a region after an outage ("wan")."""
    part, reading, skew, events, seed = (
        point[name] for name in ("part", "reading", "skew", "events", "seed")
    )
    (workload,) = (w for w in workloads() if (w.part, w.reading, w.skew) == (part, reading, skew))
    # The skew is part of the seed, so that the curves of one seed are independent of each other.
    keys = workload.draw(np.random.default_rng([seed, round(skew * 100)]), events)
    case = {"part": part, "reading": reading, "skew": skew, "seed": seed}
    checkpoints = checkpoints_upto(events)
    counts = keep_latest(batches_of(keys), checkpoints)[1]
    oracle = distinct_counts(keys, checkpoints)
    rows = [
        case
        | {"measure": "stored", "events": n, "stored": stored, "distinct": distinct}
        | {"saved": 1 - stored / n}
        for n, stored, distinct in zip(checkpoints, counts, oracle, strict=True)
    ]
    if reading == FIXED:
        for what, used, upto in (
            ("log", keys[:JUDGED_EVENTS], [JUDGED_EVENTS]),
            ("wan", keys, checkpoints),
        ):
            rows += [case | {"measure": what} | row for row in byte_rows(used, upto)]
    return rows


def saved(rows: Sequence[Row], reading: str, skew: float, events: int) -> list[float]:
    """The share of events not stored after `events` of them, one number per seed."""
    found = [
        1 - row["stored"] / row["events"]
        for row in rows
        if row["measure"] == "stored" and row["events"] == events
        if row["reading"] == reading and row["skew"] == skew
    ]
    assert found, f"no such point: {reading}, skew {skew}, {events} events"
    return found


def bytes_saved(rows: Sequence[Row], what: str, skew: float, events: int) -> list[float]:
    """The share of bytes not stored ("log") or not sent ("wan"), one number per seed."""
    return [
        1 - row["bytes_kept"] / row["bytes_all"]
        for row in rows
        if row["measure"] == what and row["skew"] == skew and row["events"] == events
    ]


def verdict_of(rows: Sequence[Row]) -> Verdict:
    last_a, last_b = (_last(rows, part) for part in ("a", "b"))
    unbounded = saved(rows, ZETA, 1.1, last_a)
    bounded = saved(rows, FIXED, 1.1, JUDGED_EVENTS)
    log, wan = (bytes_saved(rows, what, 1.1, JUDGED_EVENTS) for what in ("log", "wan"))
    three_quarters = _near(unbounded, PAPER_SAVED_UNBOUNDED)
    claims = {
        "a: about three quarters are saved": three_quarters
        if last_a >= JUDGED_FROM
        else None,  # None: not judged
        "a: more skew saves more": _rising(
            [saved(rows, ZETA, skew, last_a) for skew in UNBOUNDED_SKEWS]
        ),
        "b: about 85 % are saved at skew 1.1": _near(bounded, PAPER_SAVED_BOUNDED),
        "b: more skew saves more": _rising(
            [saved(rows, FIXED, skew, JUDGED_EVENTS) for skew in BOUNDED_SKEWS]
        ),
        "b: new keys change little": _little(rows, GROWING_LAST, last_b),
    }
    counted = [row for row in rows if row["measure"] == "stored"]
    wrong = sum(row["stored"] != row["distinct"] for row in counted)
    ours: dict[str, Any] = {
        "saved_unbounded": spread(unbounded),
        "saved_bounded": spread(bounded),
        "bytes_saved_log": spread(log),
        "bytes_saved_rejoin": spread(wan),
        "bytes_saved_rejoin_all": spread(bytes_saved(rows, "wan", 1.1, last_b)),
        "claims": claims,
        "points_where_retention_and_distinct_keys_differ": wrong,
        "points_compared": len(counted),
        "by_workload": _by_workload(rows),
        "in_other_readings": {
            "a: more skew saves more, with rank insertion": _rising(
                [saved(rows, RANKED_20, skew, last_a) for skew in (1.1, 1.5)]
            ),
            "b: new keys change little, their rank by Zeta": _little(rows, GROWING, last_b),
        },
    }
    return Verdict(
        id="sprinkler-e6",
        headline=f"{_percent(unbounded)} % of the events saved on unbounded keys, "
        f"{_percent(bounded)} % on 100,000 keys, and there {_percent(log)} % of the bytes, too",
        paper={
            "saved_unbounded": PAPER_SAVED_UNBOUNDED,
            "saved_bounded": PAPER_SAVED_BOUNDED,
            "a": "about three quarters saved, more with a higher skew",
            "b": "about 85 % saved at skew 1.1, more with a higher skew; one new key for "
            "every ten updates makes little difference",
        },
        ours=ours,
        reproduced=False not in claims.values() and wrong == 0,
        beaten=min(*log, *wan) >= PAPER_SAVED_BOUNDED,
        scale=f"{last_a:,} events on unbounded keys, {last_b:,} on 100,000 keys",
        seeds=list(dict.fromkeys(row["seed"] for row in rows)),
        notes=_notes(rows, last_a, last_b),
    )


def _last(rows: Sequence[Row], part: str) -> int:
    """The number of events in the runs of a part of the figure, "a" or "b"."""
    return int(max(row["events"] for row in rows if row["part"] == part))


def _percent(shares: Sequence[float]) -> str:
    return str(spread([100 * share for share in shares], 2))


def _near(values: Sequence[float], target: float) -> bool:
    """Whether every value differs from the target by at most TOLERANCE."""
    return all(abs(value - target) <= TOLERANCE for value in values)


def _rising(groups: Sequence[Sequence[float]]) -> bool:
    """Whether every value of a group is above every value of the group before it."""
    return all(max(low) < min(high) for low, high in pairwise(groups))


def _little(rows: Sequence[Row], reading: str, last: int) -> bool:
    """Whether new keys change the saved share by at most five percentage points, at every skew."""
    return all(
        abs(float(np.mean(saved(rows, reading, skew, n)) - np.mean(saved(rows, FIXED, skew, n))))
        <= TOLERANCE
        for skew in BOUNDED_SKEWS
        for n in (JUDGED_EVENTS, last)
    )


def _by_workload(rows: Sequence[Row]) -> dict[str, dict[str, Spread]]:
    """Saved shares of every workload at QUOTED_EVENTS, as far as its runs have that many events."""
    kinds = dict.fromkeys((row["part"], row["reading"], row["skew"]) for row in rows)
    points = {
        part: {row["events"] for row in rows if row["part"] == part and row["measure"] == "stored"}
        for part in ("a", "b")
    }
    return {
        f"({part}) {reading}, skew {skew}": {
            f"{n:,}": spread(saved(rows, reading, skew, n))
            for n in QUOTED_EVENTS
            if n in points[part]
        }
        for part, reading, skew in kinds
    }


def _notes(rows: Sequence[Row], last_a: int, last_b: int) -> list[str]:
    def share(reading: str, skew: float, events: int) -> str:
        return f"{100 * float(np.mean(saved(rows, reading, skew, events))):.1f} %"

    return [
        "Interpretation of (a): the key of each event is drawn from Zeta, independently of the"
        " others; there is no list of keys. Of the interpretations here, only this one also saves"
        " more with more skew. The share saved grows with the number of events, and the paper's"
        " number is unknown. "
        + (
            f"The share is judged after {last_a:,} events."
            if last_a >= JUDGED_FROM
            else f"{last_a:,} events are too few to judge the share."
        ),
        "If new keys enter at a rank drawn from Zeta, ten with every λ updates (as in E5), more"
        " skew does not save more, which contradicts the paper. With λ = 20 this workload saves "
        f"{share(RANKED_20, 1.1, last_a)} at skew 1.1 and {share(RANKED_20, 1.5, last_a)} at 1.5;"
        f" with λ = 200 {share(RANKED_200, 1.1, last_a)} and {share(RANKED_200, 1.5, last_a)}. The"
        " reason: only updates are events here, so a new key has one stored event if it is updated"
        " at all, and none otherwise. With more skew more of the new keys enter at popular ranks,"
        " so more of them are updated. If the insertion of a key is itself a stored event, the"
        " share saved is λ / (λ + 10) at any skew.",
        "On 100,000 keys, too, the share grows with the number of events: at skew 1.1 it is"
        f" {share(FIXED, 1.1, 100_000)} at 100,000, {share(FIXED, 1.1, JUDGED_EVENTS)} at"
        f" {JUDGED_EVENTS:,} (judged here; the paper's number is unknown) and"
        f" {share(FIXED, 1.1, last_b)} at {last_b:,}.",
        "Interpretation of (b): only updates are events; new keys start as the least popular. If"
        " they enter at a Zeta rank instead, the paper's 'little difference' fails at higher skew:"
        f" {share(FIXED, 1.5, last_b)} becomes {share(GROWING, 1.5, last_b)} at skew 1.5 and"
        f" {last_b:,} events ({share(FIXED, 1.1, last_b)} becomes {share(GROWING, 1.1, last_b)}"
        " at 1.1).",
        "Beaten means: at the point where the paper's share of events is saved (skew 1.1, 150,000"
        f" events), also at least {PAPER_SAVED_BOUNDED:.0%} of the bytes, both of the log after"
        " compaction and of the frames sent to a region that missed them all. Keys of 8 bytes,"
        f" values of {VALUE_SIZE}, batches of {BATCH_ROWS}; control messages are not counted.",
    ]


EXPERIMENTS = (
    Experiment(
        id="sprinkler-e6",
        title="Events stored with garbage collection by key (Fig. 10)",
        question="What share of a stream with keys need not be stored by a proxy, and need not be "
        "sent over a WAN?",
        paper="About three quarters saved on unbounded keys and 85 % on 100,000 keys at skew 1.1, "
        "more with more skew; one new key for every ten updates makes little difference.",
        setup="Events with keys of 8 bytes and values of 10 bytes, in batches of 1,000, go through "
        "the retention index that a proxy runs; events that it has not made void are stored. Every "
        "count is compared with the number of distinct keys of the same events, found by sorting. "
        "Bytes are counted as in frames: of the log after compaction, and of the messages to a "
        "region that returns after an outage.",
        by={"measure": str, "part": str, "reading": str, "skew": float, "events": int},
        values={
            "stored": int,
            "distinct": int,
            "saved": float,
            "bytes_all": int,
            "bytes_kept": int,
            "bytes_saved": float,
        },
        points=points,
        run_point=run_point,
        verdict_of=verdict_of,
        draw=draw,
        weight=lambda point: float(point["events"]),
    ),
)
