"""A newcomer's first commands: urls, tokens, missing streams, the first start."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from numba.core import caching
from tests.server.processes import (
    COMMAND,
    WAIT_S,
    Process,
    Served,
    clean_env,
    free_base,
    surecast,
    wait_for,
)

from surecast import columns
from surecast.cli import up

pytestmark = pytest.mark.slow

VERBS = (["publish", "s", "x"], ["subscribe", "s"], ["streams"], ["status"])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served"), token="secret") as served:
        yield served


def test_a_url_needs_no_scheme_and_a_token_may_come_from_the_environment(served: Served) -> None:
    address = served.url.removeprefix("surecast://")
    env = {**clean_env(), "SURECAST_URL": address, "SURECAST_TOKEN": "secret"}
    done = subprocess.run(
        [*COMMAND, "publish", "plain", "x"], capture_output=True, text=True, env=env, timeout=WAIT_S
    )
    assert (done.returncode, done.stdout) == (0, "plain: 1 (1 event)\n"), done.stderr


@pytest.mark.parametrize("verb", VERBS, ids=lambda words: words[0])
def test_a_wrong_token_is_reported_as_such(served: Served, verb: list[str]) -> None:
    done = surecast(*verb, "--url", served.url, "--token", "hunter2")
    assert done.returncode == 3
    assert "surecast: wrong token: refused by 127.0.0.1:" in done.stderr
    assert "--token" in done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", VERBS, ids=lambda words: words[0])
def test_a_password_in_a_url_is_never_shown(verb: list[str]) -> None:
    done = surecast(*verb, "--url", "surecast://me:hunter2@127.0.0.1:1")
    assert done.returncode == 2
    assert "surecast://***@127.0.0.1:1" in done.stderr
    assert "hunter2" not in done.stdout + done.stderr


def test_a_token_in_a_flag_or_file_is_not_shown_with_an_error(tmp_path: Path) -> None:
    config = tmp_path / "node.toml"
    config.write_text("[node]\ntoken = 87654321\n")
    for words in (
        ["--set", "node.token=hunter2", "--set", "node.htp=1"],
        ["--set", "node token=hunter2"],
        [],
    ):
        done = surecast("serve", str(config), "--check-config", *words)
        assert done.returncode == 2
        assert "surecast: " in done.stderr
        assert "hunter2" not in done.stdout + done.stderr
        assert "87654321" not in done.stdout + done.stderr


def test_a_url_with_the_http_port_is_reported_as_such(served: Served) -> None:
    done = surecast("publish", "s", "x", "--url", served.http, "--token", "secret")
    assert done.returncode == 3
    assert f"{served.http} is an HTTP port" in done.stderr


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("absent", "there is no stream 'absent' yet"),
        ("absent.>", "no stream matches 'absent.>' yet"),
    ],
)
def test_subscribing_to_a_missing_stream_says_once_that_it_waits(
    served: Served, tmp_path: Path, pattern: str, words: str
) -> None:
    options = ("--url", served.url, "--token", "secret")
    reading = ["subscribe", pattern, "--json", "--count", "1", *options]
    with Process(tmp_path, reading) as process:
        wait_for(lambda: words in process.err.read_text(), "it says that it waits")
        name = "absent" if pattern == "absent" else "absent.one"
        assert surecast("publish", name, "x", *options).returncode == 0
        assert process.popen.wait(WAIT_S) == 0
        assert len(process.err.read_text().splitlines()) == 1
        assert json.loads(process.out.read_text())["value"] == "x"


def test_subscribing_to_an_existing_stream_prints_no_message(served: Served) -> None:
    options = ("--url", served.url, "--token", "secret")
    surecast("publish", "present", "x", *options)
    done = surecast("subscribe", "present", "--from", "earliest", "--count", "1", *options)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_first_start_reports_compilation_and_its_progress(tmp_path: Path) -> None:
    """`up` compiles once for all servers; later starts find the kernels and print nothing."""
    env = {"NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
    words = ["up", "--regions", "1", "--replicas", "1", "--in-memory", "--json"]
    for start in ("first", "second"):
        more = ["--dir", str(tmp_path / start), "--base-port", str(free_base(90))]
        with Process(tmp_path / f"{start}-output", [*words, *more], env) as up:
            wait_for(lambda up=up: up.out.read_text().endswith("\n"), "ready")
            assert up.end(signal.SIGINT) == 0
            messages = up.err.read_text()
            assert set(json.loads(up.out.read_text())) >= {"nodes"}  # a single JSON object
        log = (tmp_path / start / "logs" / "east-1.log").read_text()
        assert "compil" not in log  # the server itself compiled nothing
        if start == "first":
            assert "surecast: compiling kernels for this machine" in messages
            assert " of 14 are done" in messages
            assert "surecast: compiled 14 kernels in " in messages
        else:
            assert "compil" not in messages


def test_a_server_logs_that_it_compiles_and_ends_at_once_on_ctrl_c(
    tmp_path: Path,
) -> None:
    with Served(tmp_path) as other:
        config = tmp_path / "again.toml"
        other.end()
        config.write_text(other.config.read_text())
    env = {"NUMBA_CACHE_DIR": str(tmp_path / "kernels"), "SURECAST_LOG__FORMAT": "json"}
    with Process(tmp_path / "again", ["serve", str(config)], env) as served:
        wait_for(lambda: "compiling kernels for this machine" in served.said(), "it compiles")
        os.kill(served.popen.pid, signal.SIGINT)
        assert served.popen.wait(WAIT_S) == 130
        first = json.loads(served.err.read_text().splitlines()[0])
        assert (first["logger"], first["level"]) == ("surecast.kernels", "warning")
        assert "Traceback" not in served.said()


@pytest.mark.parametrize("given", [True, False], ids=["NUMBA_CACHE_DIR", "home"])
def test_only_kernels_of_this_installation_count_as_compiled(
    given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "columns"
    package.mkdir(parents=True)
    source = package / "kernels.py"
    source.write_text("")
    cache = tmp_path / "cache" if given else tmp_path / ".cache" / "numba"
    monkeypatch.setattr(columns, "__path__", [str(package)])
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    if given:
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(cache))
    version = f"py{sys.version_info.major}{sys.version_info.minor}"
    of_another = cache / "columns_0123456789"
    locator = caching.UserProvidedCacheLocator.get_suitable_cache_subpath(str(source))
    ours = cache / locator
    for folder in (of_another, ours):
        assert not up.kernels_are_compiled()
        folder.mkdir(parents=True)
        (folder / f"kernels.find-10.{version}.nbi").write_text("")
    assert up.kernels_are_compiled()
    os.utime(ours / f"kernels.find-10.{version}.nbi", (1, 1))  # older than the source
    assert not up.kernels_are_compiled()
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / f"kernels.find-10.{version}.nbi").write_text("")
    # With NUMBA_CACHE_DIR, numba looks there first, and compiles if it finds nothing.
    assert up.kernels_are_compiled() != given
