"""Creates a Spark session with working defaults: finds Java, sets the Python of driver and
executors, reduces logging, and uses little memory.

    from surecast.pipeline import spark_session

    spark = spark_session()                              # spark-submit's master, or local[*]
    spark = spark_session("spark://head:7077")           # a cluster; this package is sent to it
    spark = spark_session("sc://head:15002")             # Spark Connect

All settings here are defaults. The settings of the caller, spark-submit, PYSPARK_SUBMIT_ARGS and
the environment's spark-defaults.conf take precedence (settings.py). A session that is already
running is returned unchanged.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import socket
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from select import POLLIN, poll
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final

from surecast.errors import UsageError
from surecast.pipeline.settings import (
    APP,
    LOG_LEVEL,
    set_python,
    settings_of_others,
    settings_to_apply,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JAVA_MIN", "find_java", "package_zip", "running_session", "spark_session"]

JAVA_MIN: Final = 17
ANSWER_S: Final = 5.0  # timeout for a connection to the master
MASTER_PORT, CONNECT_PORT = 7077, 15002
PACKAGES: Final = ("surecast", "surecast_lab", "pyspark_surecast")  # all packages of the wheel
_JVMS: Final = Path("/usr/lib/jvm")  # where Linux distributions install Java


def spark_session(
    master: str | None = None,
    *,
    app: str | None = None,
    conf: Mapping[str, str] | None = None,
    log_level: str | None = None,
) -> SparkSession:
    """The running session, or a new one in which the format `surecast` is registered.

    For an argument that is None, the other settings apply. If they have no value, master, app and
    log_level are local[*], surecast and ERROR.
    """
    if (running := running_session()) is not None:
        return running
    callers = dict(conf or {})
    if master is None:
        master = callers.get("spark.master", os.environ.get("SPARK_REMOTE"))
    if master is not None:
        _check_master(master)
        if master.startswith("sc://"):
            return _connect(master, app or APP, callers)
        callers["spark.master"] = master
    if app is not None:
        callers["spark.app.name"] = app
    return _configured(_start(callers, settings_of_others(), log_level or LOG_LEVEL), log_level)


def _configured(known: Mapping[str, str], log_level: str | None) -> SparkSession:
    """Create the session in the Spark that was started, and configure what settings cannot. `known`
    are the effective settings."""
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    from surecast.pipeline.source import SurecastSource

    session = SparkSession.builder.getOrCreate()
    if log_level or "spark.log.level" not in known:
        session.sparkContext.setLogLevel(log_level or LOG_LEVEL)
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)  # else they log raised errors
    if not known["spark.master"].startswith("local"):
        session.sparkContext.addPyFile(str(package_zip()))
    # Spark would also find the source without this call. But then it would run the source, also in
    # executors, with the Python of the JVM's environment and without the zip.
    session.dataSource.register(SurecastSource)
    return session


def running_session() -> SparkSession | None:
    """The session of this process, created by any thread; None if there is none."""
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError:
        raise UsageError("this needs PySpark: pip install 'surecast[spark]'") from None
    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def _start(callers: Mapping[str, str], others: Mapping[str, str], log_level: str) -> dict[str, str]:
    """Start a JVM, unless one is running, and Spark in it; return the effective settings."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    has_jvm = SparkContext._gateway is not None
    settings = settings_to_apply(callers, others, has_jvm=has_jvm, log_level=log_level)
    known = {**others, **settings}
    set_python(known)
    # A new JVM reads the other settings itself; a running one may have those of an earlier session.
    overrides = known if has_jvm else settings
    conf = SparkConf(loadDefaults=False).setAll(list(overrides.items()))
    try:
        gateway = None
        if not has_jvm:
            os.environ["JAVA_HOME"] = str(find_java())
            with _filtered_stderr() as stderr:
                launch: Callable[..., Any] = launch_gateway
                gateway = launch(conf, popen_kwargs={"stderr": stderr})
        SparkContext(conf=conf, gateway=gateway)
    except (Py4JError, PySparkRuntimeError) as problem:
        lines = str(problem).strip().splitlines()
        words = next((line for line in lines if "Exception:" in line), lines[0] if lines else "")
        raise UsageError(
            f"Spark did not start with master {known['spark.master']!r}: {words.strip()}. Is "
            "the address correct, and is the cluster running? local[*] needs no cluster"
        ) from problem
    return known


def _check_master(master: str) -> None:
    """Raise UsageError unless the master is valid and answers. (Spark itself would try to connect
    for minutes.)"""
    if not re.match(r"local(\[|-cluster\[|$)|yarn$|(spark|sc|k8s)://", master):
        raise UsageError(
            f"--master {master!r} is unknown to Spark. Use local[*], local[4], "
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
        f"--master {master} does not answer ({'; '.join(problems)}). Is the address correct, and "
        "is Spark running? local[*] needs no cluster"
    )


@contextmanager
def _filtered_stderr() -> Iterator[int]:
    """A pipe to use as the JVM's stderr. Its content is copied to this process's stderr, without
    Java's warnings about Spark's modules."""
    ours, theirs = os.pipe()
    stderr_filter = _StderrFilter(ours)
    Thread(target=stderr_filter.pass_on, name="stderr of Spark", daemon=True).start()
    atexit.register(stderr_filter.pass_on_the_rest)
    try:
        yield theirs
    finally:
        os.close(theirs)


class _StderrFilter:
    """Copies the JVM's stderr to this process's stderr as it arrives. The rest is copied when this
    program ends."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe
        self.lock = Lock()  # held from reading data until it is written
        self.begun = b""  # the beginning of a line whose end was not read yet

    def pass_on(self) -> None:
        while True:
            self._has_data(None)
            with self.lock:
                if self._has_data() and not self._pass_on_some():
                    return

    def pass_on_the_rest(self) -> None:
        with self.lock:
            while self._has_data() and self._pass_on_some():
                pass

    def _has_data(self, timeout_ms: int | None = 0) -> bool:
        """Whether there is something to read, or the end; None: wait until there is."""
        poller = poll()
        poller.register(self.pipe, POLLIN)
        return bool(poller.poll(timeout_ms))

    def _pass_on_some(self) -> bool:
        """Copy one block; False at the end of the data."""
        data = os.read(self.pipe, 1 << 16)
        *lines, self.begun = (self.begun + data).split(b"\n")
        if not data and self.begun:
            lines, self.begun = [self.begun], b""
        output = b"".join(line + b"\n" for line in lines if not line.startswith(_NOISE))
        while output:
            output = output[os.write(_STDERR, output) :]
        return bool(data)


_NOISE: Final = (b"WARNING: Using incubator modules", b"WARNING: package sun.security.action not")
_STDERR: Final = 2


def _connect(master: str, app: str, conf: Mapping[str, str]) -> SparkSession:
    """A session of a Spark Connect server; this package is sent to the server."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(master).appName(app)
    for name, value in conf.items():
        if name != "spark.master":
            builder = builder.config(name, value)
    try:
        session: SparkSession = builder.getOrCreate()
        session.addArtifacts(str(package_zip()), pyfile=True)
    except (ImportError, PySparkException) as problem:
        first = str(problem).strip().splitlines()[:1]
        raise UsageError(
            f"no Spark Connect session at {master!r}: {''.join(first)} (the client needs "
            "pip install 'pyspark[connect]', the server the same version of Spark)"
        ) from problem
    return session


# ---------------------------------------------------------------- Java


def find_java() -> Path:
    """The home directory of a Java installation that Spark can use, from JAVA_HOME, the PATH or
    the system's folder."""
    homes = [Path(home)] if (home := os.environ.get("JAVA_HOME")) else []
    if on_path := shutil.which("java"):
        homes.append(Path(on_path).resolve().parent.parent)
    if _JVMS.is_dir():
        homes += sorted(_JVMS.iterdir(), reverse=True)
    versions: dict[Path, int] = {}
    for candidate in homes:
        if candidate not in versions and (candidate / "bin" / "java").exists():
            versions[candidate] = _version(candidate / "bin" / "java")
            if versions[candidate] >= JAVA_MIN:
                return candidate
    found = "; ".join(
        f"{path} is version {version}" if version else f"{path} does not run"
        for path, version in versions.items()
    )
    raise UsageError(
        f"Spark needs Java {JAVA_MIN} or later, and {found or 'there is none here'}. Install it "
        "(Debian, Ubuntu: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
    )


def _version(java: Path) -> int:
    """The major version of a `java` program; 0 if it does not run."""
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    numbers = re.search(r'version "(?:1\.)?(\d+)', output.stderr + output.stdout)
    return int(numbers.group(1)) if numbers else 0


# ---------------------------------------------------------------- executors elsewhere


def package_zip(folder: Path | None = None) -> Path:
    """Write the wheel's packages to a zip that executors can import from (`addPyFile`).

    The dependencies of the packages (numpy, pandas, pyarrow, numba, msgspec) must be installed
    where the executors run.
    """
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="surecast-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = folder / "surecast.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as made:
        for package in PACKAGES:
            spec = find_spec(package)
            assert spec is not None
            assert spec.origin is not None
            root = Path(spec.origin).parent
            for file in sorted(root.rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    made.write(file, file.relative_to(root.parent))
    return target
