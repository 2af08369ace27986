"""The judge of swarm/spark_rounds.py and, nightly, one short round; `make torture` runs longer."""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from surecast_lab.swarm.spark_rounds import (
    ALL,
    FILTERED,
    LATE,
    LATEST,
    Load,
    SparkRound,
    _Round,
    run_round,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.nightly
def test_a_query_reads_every_position_once_while_its_region_fails(
    spark: "SparkSession", tmp_path: Path
) -> None:
    result = run_round(spark, tmp_path, seconds=3, seed=1, pause_s=0.1)
    assert result.violations == []
    assert result.starts >= 6
    assert result.rows[ALL] == result.published[ALL] > 0
    assert result.rows[LATE] == result.published[LATE] > 0
    assert result.rows[LATEST] > 0


def test_data_loss_reported_for_a_mere_failure_is_a_violation() -> None:
    spark_round = _Round.__new__(_Round)
    spark_round.result = SparkRound(1)
    spark_round.note_failure("a task failed\n  Caused by: no server has sent anything")
    assert len(spark_round.result.failures) == 1
    assert spark_round.result.violations == []
    spark_round.note_failure("a task failed\n  DataLoss: data was lost: stream 'x' does not exist")
    assert "stream 'x' does not exist" in spark_round.result.violations[0]


def test_the_judge_detects_missing_duplicate_and_changed_rows(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """Wrong outputs must be violations, otherwise a clean round would mean nothing."""
    sound = [(ALL, seq, "event", 1, b"%012d" % (seq - 1), None) for seq in range(1, 6)]
    sound += [
        (LATEST, 3, "void", 3, None, None),
        (LATEST, 4, "event", 1, b"4", b"k1"),
        (LATEST, 5, "event", 1, b"5", None),
    ]
    spoilt = {
        "sound": sound,
        "missing": sound[:2] + sound[3:],
        "doubled": [*sound, sound[0]],
        "changed": [(*sound[0][:4], b"x" * 12, None), *sound[1:]],
        "void is short": [*sound[:5], (LATEST, 3, "void", 2, None, None), *sound[6:]],
        "not filtered": [*sound[:-1], (LATEST, 5, "event", 1, b"5", FILTERED)],
        "ends early": sound[:-1],
    }
    for what, rows in spoilt.items():
        folder = tmp_path / what.replace(" ", "-")
        (folder / "output").mkdir(parents=True)
        names = ("stream", "seq", "kind", "range", "value", "key")
        table = pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
        pq.write_table(table, folder / "output" / "part.parquet")
        spark_round = _Round.__new__(_Round)
        spark_round.spark, spark_round.folder, spark_round.result = spark, folder, SparkRound(1)
        load = Load.__new__(Load)
        load.published = {ALL: 5, LATEST: 5}
        load.checksum = sum(map(_crc, (row[4] for row in sound[:5])))
        spark_round.judge(load)
        assert bool(spark_round.result.violations) == (what != "sound"), (what, spark_round.result)


def _crc(value: bytes | None) -> int:
    import zlib

    return zlib.crc32(value or b"")
