"""A Spark session that works: Java found, the right Python on both sides, quiet, small by default.

    from surecast.pipeline import spark_session

    spark = spark_session()                              # local[*]: all cores of this machine
    spark = spark_session("spark://head:7077")           # a cluster; this package goes with it
    spark = spark_session("sc://head:15002")             # Spark Connect

What is set here are defaults. Whatever the caller or the environment's spark-defaults.conf says
otherwise stands, and a session that is running already is handed out as it is.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from select import POLLIN, poll
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final

from surecast.errors import UsageError
from surecast.pipeline.warm import java_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JAVA_MIN", "find_java", "package_zip", "running_session", "spark_session"]

JAVA_MIN: Final = 17
ARROW_ROWS: Final = 20_000  # rows a batch between the JVM and Python
DRIVER_MEMORY: Final = "2g"
ANSWER_S: Final = 5.0
MASTER_PORT, CONNECT_PORT = 7077, 15002
_JVMS: Final = Path("/usr/lib/jvm")
# Java's Arrow checks the bounds of every single value again: a seventh of the time of a read.
_ARROW: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"

# One line a problem on stderr, and none of Spark's own words below that. (The gateway is named
# because it says in three lines which level it has, unless that is the root's. The others tell at
# length of failures that reach the caller as exceptions.)
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


def spark_session(
    master: str = "local[*]",
    *,
    app: str = "surecast",
    conf: Mapping[str, str] | None = None,
    log_level: str = "ERROR",
) -> SparkSession:
    """The session that is running, or a new one with `master`; ours is a format it knows."""
    if (running := running_session()) is not None:
        return running
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    _check_master(master)
    if master.startswith("sc://"):
        return _connect(master, app, conf or {})
    os.environ["JAVA_HOME"] = str(find_java())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    is_local = master.startswith("local")
    theirs = _spark_defaults()
    settings = {n: v for n, v in _settings(is_local, log_level).items() if n not in theirs}
    settings |= {**(conf or {}), "spark.master": master, "spark.app.name": app}
    _start(settings)
    session = SparkSession.builder.getOrCreate()
    session.sparkContext.setLogLevel(log_level)
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)  # they repeat what is raised
    if not is_local:
        session.sparkContext.addPyFile(str(package_zip()))
    return session


def running_session() -> SparkSession | None:
    """The session of this process, whichever thread has made it."""
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError:
        raise UsageError("this needs PySpark: pip install 'surecast[spark]'") from None
    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def _start(settings: dict[str, str]) -> None:
    """Start a JVM, unless one runs already, and Spark in it."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    try:
        gateway = None
        if SparkContext._gateway is None:
            with _spoken() as stderr:
                launch: Callable[..., Any] = launch_gateway
                gateway = launch(conf, popen_kwargs={"stderr": stderr})
        SparkContext(conf=conf, gateway=gateway)
    except (Py4JError, PySparkRuntimeError) as problem:
        why = str(problem).strip().splitlines()
        words = next((line for line in why if "Exception:" in line), why[0] if why else "")
        raise UsageError(
            f"Spark did not start with master {settings['spark.master']!r}: {words.strip()}. Is "
            "that the address, and is the cluster up? local[*] needs none"
        ) from problem


def _check_master(master: str) -> None:
    """Is it one, and does somebody answer there? Spark itself would try for minutes."""
    if not re.match(r"local(\[|-cluster\[|$)|yarn$|(spark|sc|k8s)://", master):
        raise UsageError(
            f"--master {master!r} is none that Spark knows: local[*], local[4], "
            "spark://host:7077, sc://host:15002, yarn, k8s://https://host:443"
        )
    scheme, _, rest = master.partition("://")
    if scheme not in ("spark", "sc"):
        return
    problems = []
    for address in rest.partition("/")[0].split(","):
        host, _, port = address.rpartition(":") if ":" in address else (address, "", "")
        try:
            number = int(port or (CONNECT_PORT if scheme == "sc" else MASTER_PORT))
            with socket.create_connection((host.strip("[]"), number), ANSWER_S):
                return
        except (OSError, ValueError, OverflowError) as problem:
            problems.append(f"{address}: {problem}")
    raise UsageError(
        f"--master {master}: nobody answers there ({'; '.join(problems)}). Is that the address, "
        "and is Spark up? local[*] needs none"
    )


@contextmanager
def _spoken() -> Iterator[int]:
    """A stderr for the JVM that passes on all but what Java has to say about Spark's modules."""
    ours, theirs = os.pipe()
    spoken = _Spoken(ours)
    Thread(target=spoken.pass_on, name="stderr of Spark", daemon=True).start()
    atexit.register(spoken.pass_on_the_rest)
    try:
        yield theirs
    finally:
        os.close(theirs)


class _Spoken:
    """What a JVM says: passed on as it comes, and what is left of it when this program ends."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe
        self.lock = Lock()  # held from reading until what was read is written
        self.begun = b""  # a line without its end

    def pass_on(self) -> None:
        while True:
            self._is_there(None)
            with self.lock:
                if self._is_there() and not self._pass_on_some():
                    return

    def pass_on_the_rest(self) -> None:
        with self.lock:
            while self._is_there() and self._pass_on_some():
                pass

    def _is_there(self, patience_ms: int | None = 0) -> bool:
        asked = poll()
        asked.register(self.pipe, POLLIN)
        return bool(asked.poll(patience_ms))

    def _pass_on_some(self) -> bool:
        """Is there more to come?"""
        data = os.read(self.pipe, 1 << 16)
        *lines, self.begun = (self.begun + data).split(b"\n")
        if not data and self.begun:
            lines, self.begun = [self.begun], b""
        said = b"".join(line + b"\n" for line in lines if not line.startswith(_NOISE))
        while said:
            said = said[os.write(_STDERR, said) :]
        return bool(data)


_NOISE: Final = (b"WARNING: Using incubator modules", b"WARNING: package sun.security.action not")
_STDERR: Final = 2


def _connect(master: str, app: str, conf: Mapping[str, str]) -> SparkSession:
    """A session of a Spark Connect server, which is given this package."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(master).appName(app)
    for name, value in conf.items():
        builder = builder.config(name, value)
    try:
        session: SparkSession = builder.getOrCreate()
        session.addArtifacts(str(package_zip()), pyfile=True)
    except (ImportError, PySparkException) as problem:
        first = str(problem).strip().splitlines()[:1]
        raise UsageError(
            f"no Spark Connect session at {master!r}: {''.join(first)} (the client needs "
            "pip install 'pyspark[connect]', the server this very version of Spark)"
        ) from problem
    return session


def _spark_defaults() -> set[str]:
    """Names that the environment's spark-defaults.conf sets, which are not ours to set again."""
    folder = os.environ.get("SPARK_CONF_DIR")
    if folder is None and (home := os.environ.get("SPARK_HOME")):
        folder = f"{home}/conf"
    try:
        text = (Path(folder or "") / "spark-defaults.conf").read_text() if folder else ""
    except OSError:
        return set()
    lines = (line.strip() for line in text.splitlines())
    return {re.split(r"[\s=:]", line)[0] for line in lines if line and line[0] not in "#!"}


def _settings(is_local: bool, log_level: str) -> dict[str, str]:
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
        f"-Dderby.system.home={scratch} {_ARROW} {java_options()}",
        "spark.executor.extraJavaOptions": _ARROW,
        "spark.sql.python.filterPushdown.enabled": "true",
    }
    if is_local:
        settings |= {
            "spark.local.dir": tempfile.gettempdir(),  # Java does not look at TMPDIR
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            "spark.ui.enabled": "false",
        }
    return settings


def _log4j(scratch: Path, level: str) -> Path:
    """The file that says what Spark may log; another session may be reading it right now."""
    path, text = scratch / f"log4j2-{level}.properties", _LOG4J.format(level=level)
    if not path.exists() or path.read_text() != text:
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(text)
        part.replace(path)
    return path


# ---------------------------------------------------------------- Java


def find_java() -> Path:
    """The home of a Java that Spark runs on: of JAVA_HOME, of the PATH, or of the system."""
    homes = [Path(said)] if (said := os.environ.get("JAVA_HOME")) else []
    if on_path := shutil.which("java"):
        homes.append(Path(on_path).resolve().parent.parent)
    if _JVMS.is_dir():
        homes += sorted(_JVMS.iterdir(), reverse=True)
    found: dict[Path, int] = {}
    for home in homes:
        if home not in found and (home / "bin" / "java").exists():
            found[home] = _version(home / "bin" / "java")
            if found[home] >= JAVA_MIN:
                return home
    seen = "; ".join(
        f"{home} is version {version}" if version else f"{home} does not run"
        for home, version in found.items()
    )
    raise UsageError(
        f"Spark needs Java {JAVA_MIN} or later, and {seen or 'there is none here'}. Install it "
        "(Debian, Ubuntu: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
    )


def _version(java: Path) -> int:
    """Its major version; 0 if it does not run."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    numbers = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    return int(numbers.group(1)) if numbers else 0


# ---------------------------------------------------------------- executors elsewhere


def package_zip(folder: Path | None = None) -> Path:
    """This package as a zip that executors can import from (`addPyFile`).

    What it depends on (numpy, pyarrow, numba, msgspec) must be installed where they run.
    """
    import pyspark_surecast
    import surecast

    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="surecast-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = folder / "surecast.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as made:
        for package in (surecast, pyspark_surecast):
            assert package.__file__ is not None
            root = Path(package.__file__).parent
            for file in sorted(root.rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    made.write(file, file.relative_to(root.parent))
    return target
