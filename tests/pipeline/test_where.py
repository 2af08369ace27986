"""Filters as conditions of Spark give the answers of the plain-Python twin."""

from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from surecast.errors import UsageError
from surecast.pipeline.where import condition
from surecast.where.binding import bind
from surecast.where.columns import columns_of
from surecast.where.evaluate import passes
from surecast.where.text import parse, shown
from tests.where import drawn
from tests.where.twin import accepts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILTERS = 60  # of each table


def nanoseconds(field: pa.Field) -> bool:
    return pa.types.is_timestamp(field.type) and field.type.unit == "ns"


def test_conditions_accept_the_same_rows(spark: "SparkSession") -> None:
    from pyspark.sql import functions as F

    for seed in range(6):
        case = next(
            case
            for case in map(drawn.draw, range(seed * 10_000, (seed + 1) * 10_000))
            if case.rows == 100 and len(case.batch) >= 4 and not any(map(nanoseconds, case.schema))
        )
        columns = columns_of(case.schema)
        nodes = [drawn.node(Random(n), case.schema, 3) for n in range(FILTERS)]
        table = spark.createDataFrame(pa.table(case.batch))
        there = {name: F.col(name) for name in case.batch}
        tests = [condition(bind(node, columns), there) for node in nodes]
        rows = table.select(*(test.alias(f"f{n}") for n, test in enumerate(tests))).collect()
        for n, node in enumerate(nodes):
            wanted = [accepts(node, event) for event in case.events]
            assert [row[n] for row in rows] == wanted, (seed, n, shown(node))
            assert passes(bind(node, columns), case.batch, case.rows).tolist() == wanted


def test_a_column_with_nanoseconds_is_refused(spark: "SparkSession") -> None:
    from pyspark.sql import functions as F

    bound = bind(parse("time > '2026-11-19T00:00:00Z'"), columns_of(pa.schema([])))
    with pytest.raises(UsageError, match="time has nanoseconds"):
        condition(bound, {"time": F.col("time")})
