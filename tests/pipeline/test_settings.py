"""The settings of a new session, and which source of settings takes precedence."""

import os
import sys
from pathlib import Path

import pytest

from surecast.pipeline import settings
from surecast.pipeline.settings import settings_to_apply

# The settings that `spark-submit --master yarn --name nightly --conf …` passes to the JVM.
SUBMITTED = {
    "spark.master": "yarn",
    "spark.app.name": "nightly",
    "spark.submit.deployMode": "client",
    "spark.sql.session.timeZone": "Europe/Vienna",
}


def test_defaults_are_a_small_local_session() -> None:
    found = settings_to_apply({}, {}, has_jvm=False, log_level="ERROR")
    assert (found["spark.master"], found["spark.app.name"]) == ("local[*]", "surecast")
    assert (found["spark.driver.host"], found["spark.driver.memory"]) == ("127.0.0.1", "2g")
    assert "log4j2-error" in found["spark.driver.extraJavaOptions"]


def test_settings_of_others_are_not_overridden() -> None:
    found = settings_to_apply({}, SUBMITTED, has_jvm=True, log_level="ERROR")
    assert not found.keys() & SUBMITTED.keys()
    assert "spark.driver.host" not in found, "it is for local masters only"
    assert found["spark.sql.execution.arrow.pyspark.enabled"] == "true", "not set by others"


def test_settings_of_the_caller_override_others() -> None:
    conf = {"spark.master": "local[2]", "spark.sql.session.timeZone": "Asia/Tokyo"}
    found = settings_to_apply(conf, SUBMITTED, has_jvm=True, log_level="ERROR")
    assert {**found, **conf} == found
    assert found["spark.driver.host"] == "127.0.0.1"
    assert "spark.app.name" not in found


def test_a_running_jvm_gets_no_startup_settings() -> None:
    found = settings_to_apply({}, {}, has_jvm=True, log_level="ERROR")
    assert not found.keys() & set(settings.AT_START)


PYTHONS = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


@pytest.mark.parametrize(
    ("known", "env", "found"),
    [
        ({}, {}, (sys.executable, None)),
        ({}, {"PYSPARK_PYTHON": "/env"}, ("/env", None)),
        ({"spark.pyspark.python": "/conf"}, {}, ("/conf", None)),
        ({"spark.pyspark.python": "/conf"}, {"PYSPARK_PYTHON": "/env"}, ("/conf", None)),
        ({"spark.pyspark.driver.python": "/here"}, {}, (sys.executable, "/here")),
    ],
)
def test_the_settings_decide_which_python_is_used(
    known: dict[str, str],
    env: dict[str, str],
    found: tuple[str, str | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in PYTHONS:
        monkeypatch.setenv(name, "")  # so that it is restored afterwards
        monkeypatch.delenv(name)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    settings.set_python(known)
    assert tuple(os.environ.get(name) for name in PYTHONS) == found


def test_spark_defaults_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# spark.ui.enabled true\nspark.driver.memory  3g\n\nspark.app.x=1\n spark.y : z 9\n!no\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    found = {"spark.driver.memory": "3g", "spark.app.x": "1", "spark.y": "z 9"}
    assert settings.settings_of_others() == found
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "nowhere"))
    assert settings.settings_of_others() == {}


def test_pyspark_submit_args_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "--master 'local[3]' -c spark.x=a=b --conf \"spark.y=1 2\" --verbose pyspark-shell"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", words)
    found = {"spark.master": "local[3]", "spark.x": "a=b", "spark.y": "1 2"}
    assert settings.settings_of_others() == found
