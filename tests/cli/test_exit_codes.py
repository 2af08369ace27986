"""Every documented exit code, and the exit code of each error class."""

import inspect
import re
import sys
from pathlib import Path

import pytest
from tests.ports import free_ports
from tests.server.processes import config_text, surecast

from surecast import cli, errors
from surecast.cli.options import exit_code
from surecast.errors import ConfigError, ConnectError, EventsLost, SurecastError, UsageError

README = Path(__file__).resolve().parents[2] / "README.md"

CODES = {0, 1, 2, 3, 130}


@pytest.mark.parametrize(
    "text",
    [cli.__doc__ or "", sys.modules[exit_code.__module__].__doc__ or "",
     README.read_text()],
    ids=["cli", "options", "README"],
)  # fmt: skip
def test_the_documentation_lists_every_exit_code(text: str) -> None:
    sentence = re.search(r"Exit codes?:? (.*?)\n\n", text + "\n\n", re.DOTALL)
    assert sentence is not None
    assert {int(code) for code in re.findall(r"\b(\d+)\b", sentence[1])} == CODES


def example_of(kind: type[SurecastError]) -> SurecastError:
    if kind is EventsLost:
        return EventsLost("s", 1, 2, "why")
    if kind is errors.UnknownMessage:
        return errors.UnknownMessage("tag", 8)
    return kind("why")


@pytest.mark.parametrize(
    "kind",
    [kind for _, kind in inspect.getmembers(errors, inspect.isclass)
     if issubclass(kind, SurecastError)],
)  # fmt: skip
def test_usage_and_configuration_errors_are_2_and_connection_errors_3(
    kind: type[SurecastError],
) -> None:
    wanted = 3 if issubclass(kind, ConnectError) else 1
    if issubclass(kind, UsageError | ConfigError):
        wanted = 2
    assert exit_code(example_of(kind)) == wanted


@pytest.mark.slow
def test_real_processes_exit_with_each_code(tmp_path: Path) -> None:
    """For 130 see tests/cli/test_interrupts.py."""
    (free,) = free_ports(1)
    no_server = ("--url", f"127.0.0.1:{free}")
    assert surecast("--version").returncode == 0
    assert surecast("publish").returncode == 2  # typer's own
    assert surecast("publish", "s", "x", "--retain", "what", *no_server).returncode == 2
    assert surecast("publish", "a b", "x", "--url", "nats://x").returncode == 2
    assert surecast("serve", str(tmp_path / "missing.toml")).returncode == 2
    for words in (["publish", "s", "x"], ["subscribe", "s"], ["streams"], ["status"]):
        done = surecast(*words, *no_server)
        assert done.returncode == 3, done
        assert "Traceback" not in done.stderr
    config = tmp_path / "node.toml"
    config.write_text(config_text(*free_ports(2), "/proc/surecast"))  # cannot be created
    done = surecast("serve", str(config))
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
