"""The session helper: finds Java, logs little, uses the right Python, and obeys the caller."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from surecast.errors import UsageError
from surecast.pipeline import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# ---------------------------------------------------------------- Java


def java(folder: Path, words: str, code: int = 0) -> Path:
    """Create the home of a fake Java that prints `words` as its version."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{words}' >&2\nexit {code}\n")
    program.chmod(0o755)
    return folder


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Java; returns its folder of JVMs."""
    jvms = tmp_path / "jvm"
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/bin" if not Path("/bin/java").exists() else str(tmp_path))
    monkeypatch.setattr(session, "_JVMS", jvms)
    return jvms


def test_missing_java_is_an_error_that_says_how_to_install_it(nowhere: Path) -> None:
    with pytest.raises(UsageError, match=r"needs Java 17.*there is none here.*apt-get install"):
        session.find_java()


def test_java_versions_that_are_too_old_are_listed(nowhere: Path, tmp_path: Path) -> None:
    java(nowhere / "eight", 'openjdk version "1.8.0_402"')
    eleven = java(nowhere / "eleven", 'openjdk version "11.0.20" 2023-07-18')
    java(nowhere / "broken", "no version at all", code=1)
    with pytest.raises(UsageError) as caught:
        session.find_java()
    assert f"{eleven} is version 11" in str(caught.value)
    assert "eight is version 8" in str(caught.value)
    assert "broken does not run" in str(caught.value)


def test_the_first_suitable_java_is_used(
    nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java(nowhere / "java-11", 'openjdk version "11.0.20"')
    seventeen = java(nowhere / "java-17", 'openjdk version "17.0.15" 2025-04-15')
    assert session.find_java() == seventeen
    home = java(tmp_path / "home", 'openjdk version "21.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert session.find_java() == home
    monkeypatch.setenv("JAVA_HOME", str(nowhere / "java-11"))
    assert session.find_java() == seventeen, "an old JAVA_HOME is skipped"


# ---------------------------------------------------------------- invalid masters


@pytest.mark.parametrize("master", ["nonsense", "spark:/host", "local(2)", ""])
def test_an_invalid_master_is_refused_at_once(master: str) -> None:
    with pytest.raises(UsageError, match="unknown to Spark"):
        session._check_master(master)


@pytest.mark.parametrize("master", ["spark://127.0.0.1:1", "sc://127.0.0.1:1/;user_id=me"])
def test_a_master_that_does_not_answer_is_refused_at_once(master: str) -> None:
    with pytest.raises(UsageError, match=r"does not answer.*refused"):
        session._check_master(master)


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2,4]", "yarn", "k8s://https://h:1"])
def test_other_masters_are_not_contacted(master: str) -> None:
    session._check_master(master)


# ---------------------------------------------------------------- precedence of settings

FRESH = """
import sys
from surecast.pipeline import spark_session
spark = spark_session("local[1]", conf={"spark.sql.shuffle.partitions": "7"})

def settings():
    names = "master app.name driver.memory sql.shuffle.partitions sql.session.timeZone"
    return [spark.conf.get(f"spark.{name}") for name in names.split()]

def whoami(batches):
    import sys
    import pyarrow as pa
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"python": [sys.executable] * batch.num_rows})

def fail(batches):
    raise ValueError("not today")

print("FIRST", *settings())
rows = spark.range(1).mapInArrow(whoami, "python string").collect()
assert [row.python for row in rows] == [sys.executable], rows
for action in (
    lambda: spark.range(1).mapInArrow(fail, "id bigint").collect(),
    lambda: spark.range(1).mapInArrow(fail, "id bigint").write.parquet(sys.argv[1]),
    lambda: spark.sql("select 1 / id from range(1)").collect(),
    lambda: spark.sql("select nothing"),
):
    try:
        action()
    except Exception as problem:
        print("RAISED", type(problem).__name__, "not today" in str(problem))
spark.stop()
spark = spark_session(conf={"spark.sql.shuffle.partitions": "8"})
print("SECOND", *settings())
spark.sparkContext._jvm.System.err.println("something is wrong")
"""


@pytest.mark.slow
def test_a_new_session_uses_this_python_and_reports_errors_once(tmp_path: Path) -> None:
    """A raised error is not logged in full as well; other messages are shown."""
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.driver.memory 1g\nspark.sql.session.timeZone Europe/Vienna\n"
    )
    env = {**os.environ, "SPARK_CONF_DIR": str(tmp_path)}
    env.pop("PYSPARK_PYTHON", None)
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(tmp_path / "out")],
        env=env, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "FIRST local[1] surecast 1g 7 Europe/Vienna",
        "RAISED PythonException True",
        "RAISED PythonException True",
        "RAISED ArithmeticException False",
        "RAISED AnalysisException False",
        "SECOND local[*] surecast 1g 8 Europe/Vienna",
    ]
    assert done.stderr == "something is wrong\n", "even a message just before the end"


SUBMITTED = """
from surecast.pipeline import spark_session
spark = spark_session(conf={"spark.sql.shuffle.partitions": "8"})
names = ("master", "app.name", "sql.shuffle.partitions", "sql.session.timeZone", "ui.enabled")
print("FOUND", *(spark.conf.get(f"spark.{name}") for name in names))

def whose(batches):
    import os
    import pyarrow as pa
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"python": [os.environ.get("WHOSE")] * batch.num_rows})

(row,) = spark.range(1).mapInArrow(whose, "python string").collect()
source = spark._jsparkSession.sessionState().dataSourceManager().lookupDataSource("surecast")
print("PYTHON", row.python, source.dataSourceCls().pythonExec())
"""


@pytest.mark.slow
def test_settings_of_spark_submit_are_kept(tmp_path: Path) -> None:
    import pyspark

    script = tmp_path / "script.py"
    script.write_text(SUBMITTED)
    home = Path(pyspark.__file__).parent
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nWHOSE=executor exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    env = {**os.environ, "JAVA_HOME": str(session.find_java()), "SPARK_HOME": str(home)}
    done = subprocess.run(
        [
            home / "bin" / "spark-submit", "--master", "local[3]", "--name", "nightly",
            "--conf", "spark.sql.shuffle.partitions=7",
            "--conf", "spark.sql.session.timeZone=Europe/Vienna",
            "--conf", f"spark.pyspark.python={python}",
            "--conf", f"spark.pyspark.driver.python={sys.executable}", script,
        ],
        env=env, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    output = done.stdout.splitlines()
    assert "FOUND local[3] nightly 8 Europe/Vienna false" in output
    assert f"PYTHON executor {python}" in output, "for tasks and for our source"


def test_a_running_session_is_returned_unchanged(spark: "SparkSession") -> None:
    conf = {"spark.sql.shuffle.partitions": "99"}
    assert session.spark_session("local[*]", conf=conf) is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == "4"


# ---------------------------------------------------------------- executors elsewhere

IMPORTS = """
import sys
sys.path[:] = [{zip!r}, *(p for p in sys.path if not p.rstrip("/").endswith("/src"))]
import surecast, pyspark_surecast
assert ".zip" in surecast.__file__, surecast.__file__
import numpy as np
from surecast.parts.workload import keys_at_ranks
print(keys_at_ranks(np.array([True, True, False]), np.array([1, 1, 2])).tolist())
"""


@pytest.mark.slow
def test_the_zip_contains_everything_an_executor_imports(tmp_path: Path) -> None:
    made = session.package_zip(tmp_path)
    names = zipfile.ZipFile(made).namelist()
    assert {"surecast/__init__.py", "pyspark_surecast/__init__.py"} <= set(names)
    assert not [name for name in names if "__pycache__" in name]
    code = IMPORTS.format(zip=str(made))
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import site; site.main()\n" + code],
        capture_output=True, text=True, timeout=300, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[0, 1, 0]\n", "kernels compile from within a zip"
