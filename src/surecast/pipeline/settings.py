"""The settings of a new Spark session: Surecast's defaults, overridden by all other sources.

Sources in ascending priority: the defaults here, spark-defaults.conf, PYSPARK_SUBMIT_ARGS, the
settings of the JVM with which `spark-submit` started this program, the caller.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final

__all__ = ["APP", "LOCAL", "LOG_LEVEL", "set_python", "settings_of_others", "settings_to_apply"]

LOCAL: Final = "local[*]"
APP: Final = "surecast"
LOG_LEVEL: Final = "ERROR"
ARROW_ROWS: Final = 20_000  # rows per Arrow batch between the JVM and Python
DRIVER_MEMORY: Final = "2g"
# These settings have an effect only when the JVM starts.
AT_START: Final = ("spark.driver.memory", "spark.driver.extraJavaOptions")
_OPTIONS: Final = {
    "--master": "spark.master",
    "--name": "spark.app.name",
    "--driver-memory": "spark.driver.memory",
    "--driver-java-options": "spark.driver.extraJavaOptions",
}
# In Java, Arrow checks bounds and nulls at each access to a value, which takes a seventh of the
# time of a read. These flags switch the checks off.
_ARROW: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"

# With this configuration Spark logs to stderr, one line per problem. Some loggers are off because
# they would write long reports of failures that the caller also receives as exceptions. The gateway
# has its own entry because it prints three lines if its level differs from the root logger's level.
_LOG4J: Final = """\
rootLogger.level = {level}
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
logger.task.name = org.apache.spark.executor.Executor
logger.task.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.utils.name = org.apache.spark.util.Utils
logger.utils.level = off
logger.write.name = org.apache.spark.sql.execution.datasources
logger.write.level = off
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{{1}}: %m%n%ex{{short}}
"""


def settings_to_apply(
    callers: Mapping[str, str], others: Mapping[str, str], *, has_jvm: bool, log_level: str
) -> dict[str, str]:
    """The settings of the caller (`callers`), and defaults for settings that neither the caller nor
    another source (`others`) has."""
    master = callers.get("spark.master", others.get("spark.master", LOCAL))
    defaults = {"spark.master": LOCAL, "spark.app.name": APP}
    defaults |= _defaults(master.startswith("local"), log_level)
    omitted = others.keys() | (set(AT_START) if has_jvm else set())
    return {**{name: value for name, value in defaults.items() if name not in omitted}, **callers}


def set_python(known: Mapping[str, str]) -> None:
    """Set the environment variables for Python from the settings `known`: PySpark reads only the
    environment."""
    executors = known.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    os.environ["PYSPARK_PYTHON"] = executors or sys.executable
    if driver := known.get("spark.pyspark.driver.python"):
        os.environ["PYSPARK_DRIVER_PYTHON"] = driver


# ---------------------------------------------------------------- other sources


def settings_of_others() -> dict[str, str]:
    """The settings from all sources except the caller and the defaults in this file."""
    return {**_spark_defaults(), **_submit_args(), **_submitted()}


def _spark_defaults() -> dict[str, str]:
    """The environment's spark-defaults.conf."""
    folder = os.environ.get("SPARK_CONF_DIR")
    if folder is None and (home := os.environ.get("SPARK_HOME")):
        folder = f"{home}/conf"
    try:
        text = (Path(folder or "") / "spark-defaults.conf").read_text() if folder else ""
    except OSError:
        return {}
    lines = (line.strip() for line in text.splitlines())
    found = (re.match(r"([^\s=:]+)\s*[=:]?\s*(.*)", line) for line in lines if line[:1] not in "#!")
    return {one[1]: one[2] for one in found if one}


def _submit_args() -> dict[str, str]:
    """The settings in PYSPARK_SUBMIT_ARGS, which PySpark passes to the JVM that it starts."""
    found = {}
    for option, value in pairwise(shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))):
        if option in ("--conf", "-c"):
            name, _, found[name] = value.partition("=")
        elif option in _OPTIONS:
            found[_OPTIONS[option]] = value
    return found


def _submitted() -> dict[str, str]:
    """The settings given to `spark-submit`, if its JVM started this program."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # type: ignore[no-untyped-call, unused-ignore]
    return dict(SparkConf().getAll())


# ---------------------------------------------------------------- defaults


def _defaults(is_local: bool, log_level: str) -> dict[str, str]:
    scratch = Path(tempfile.gettempdir()) / f"surecast-spark-{os.getuid()}"
    scratch.mkdir(mode=0o700, exist_ok=True)
    log4j = _log4j(scratch, log_level.lower())
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_ROWS),
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j} "
        f"-Dderby.system.home={scratch} {_ARROW}",
        "spark.executor.extraJavaOptions": _ARROW,
        "spark.sql.python.filterPushdown.enabled": "true",
    }
    if is_local:
        settings |= {
            "spark.local.dir": tempfile.gettempdir(),  # Java ignores TMPDIR
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            "spark.ui.enabled": "false",
        }
    return settings


def _log4j(scratch: Path, level: str) -> Path:
    """Write the file with Spark's logging configuration. It is renamed into its place, because
    another session may be reading it."""
    path, text = scratch / f"log4j2-{level}.properties", _LOG4J.format(level=level)
    if not path.exists() or path.read_text() != text:
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(text)
        part.replace(path)
    return path
