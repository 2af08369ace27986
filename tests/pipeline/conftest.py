"""One Spark session for all tests of the pipeline. Tests with the fixture `spark` are marked slow.

Files with such tests run in one worker of xdist (tests/conftest.py), because a second JVM would
cost more time than it saves.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from scripts.warm_spark import wait_until_made

from tests.java import set_java_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    wait_until_made()
    set_java_options()
    from surecast.pipeline.session import spark_session

    conf = {"spark.sql.shuffle.partitions": "4", "spark.default.parallelism": "4"}
    session = spark_session("local[2]", app="tests", conf=conf)
    yield session
    session.stop()
