"""What subcommands that run on Spark share: --master, --conf, a session, error messages."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from surecast import errors
from surecast.cli.progress import Bar
from surecast.errors import JobFailed, SurecastError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Conf", "Master", "master_of", "on_spark", "ours", "parse_conf", "watched"]

Master = Annotated[
    str | None,
    typer.Option(
        "--master", envvar="SURECAST_MASTER",
        show_default="local[*], unless Spark is set up otherwise",
        help="Spark master: local[*], spark://host:7077, yarn, k8s://…, sc://host:15002 (Connect).",
    ),
]  # fmt: skip
Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        metavar="NAME=VALUE",
        help="A Spark setting; overrides all others. Can be repeated.",
    ),
]


def parse_conf(given: list[str] | None) -> dict[str, str]:
    """["spark.executor.memory=4g"] → {"spark.executor.memory": "4g"}."""
    found = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not (name.strip() and equals):
            hint = "is not a setting such as spark.executor.memory=4g"
            raise typer.BadParameter(f"{text!r} {hint}", param_hint="--conf")
        found[name.strip()] = value.strip()
    return found


@contextmanager
def on_spark(master: str | None, conf: list[str] | None, job: str) -> Iterator["SparkSession"]:
    """A Spark session for one command; it is stopped at the end unless it existed before.

    Errors of Spark are raised as a SurecastError (see `ours`).
    """
    from surecast.pipeline.session import running_session, spark_session

    settings = parse_conf(conf)
    is_ours = running_session() is None  # raises UsageError if PySpark is missing
    from pyspark.errors import PySparkException

    with Bar(job, 0) as bar:
        bar.update(0, f"starting Spark, {master}" if master else "starting Spark")
        spark = spark_session(master, app=f"surecast {job}", conf=settings)
    try:
        yield spark
    except PySparkException as problem:
        raise ours(problem) from problem
    finally:
        if is_ours:
            spark.stop()


def master_of(spark: "SparkSession", master: str | None) -> str:
    """`master` if it is given, otherwise that of the session."""
    return master or str(spark.conf.get("spark.master"))


@contextmanager
def watched(spark: "SparkSession", job: str) -> Iterator[None]:
    """Show a progress bar of Spark's tasks inside the block."""
    from surecast.pipeline.progress import watch

    bar = Bar(f"{job} (tasks)", 0)
    with bar, watch(spark, job, lambda done, total, note: bar.update(done, note, total)):
        yield


def ours(problem: Exception) -> SurecastError:
    """The error to show to the user for an error of Spark.

    If a SurecastError in a task caused it, that error is returned, otherwise a JobFailed.
    """
    text = str(problem)
    # The text contains the traceback of the failed task. Its last error is the one that was raised.
    carried = re.findall(r"surecast\.errors\.(\w+): (.+)", text)
    if carried:
        name, words = carried[-1]
        kind: type[SurecastError] = getattr(errors, name, JobFailed)
        return kind(words)
    # Otherwise show the last exception of Python, or the first line of Spark's text.
    python = re.findall(r"^(\w[\w.]*(?:Error|Exception): .+)", text, re.MULTILINE)
    first = (text.strip() or type(problem).__name__).splitlines()[0]
    return JobFailed(str(python[-1]) if python else first)
