"""One Spark for all tests of the pipeline: a test that takes `spark` is slow and of its group.

Such tests need no marks of their own. Files with such tests run in one worker of xdist
(tests/conftest.py), because a second JVM would take more than it gives.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


# Most queries here run once, over a few rows: to compile each takes longer than to interpret it.
# (Those of the demo, the standalone cluster, the example and the killed drivers are compiled.)
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
CONF = {"spark.sql.shuffle.partitions": "4", "spark.default.parallelism": "4", **INTERPRETED}


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    from surecast.pipeline.session import spark_session

    session = spark_session("local[2]", app="tests", conf=CONF)
    yield session
    session.stop()


@pytest.fixture
def compiled(spark: "SparkSession") -> "Iterator[SparkSession]":
    """The same with compiled queries, for a test of many rows."""
    for name in INTERPRETED:
        spark.conf.unset(name)
    yield spark
    for name, value in INTERPRETED.items():
        spark.conf.set(name, value)
