"""Every exit code that is documented, met; and which error of ours leads to which."""

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
def test_the_pages_list_all_of_them(text: str) -> None:
    said = re.search(r"Exit codes?:? (.*?)\n\n", text + "\n\n", re.DOTALL)
    assert said is not None
    assert {int(code) for code in re.findall(r"\b(\d+)\b", said[1])} == CODES


def made(kind: type[SurecastError]) -> SurecastError:
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
def test_an_error_is_2_if_the_caller_can_mend_it_and_3_if_nobody_answered(
    kind: type[SurecastError],
) -> None:
    wanted = 3 if issubclass(kind, ConnectError) else 1
    if issubclass(kind, UsageError | ConfigError):
        wanted = 2
    assert exit_code(made(kind)) == wanted


@pytest.mark.slow
def test_each_code_from_a_real_process(tmp_path: Path) -> None:
    """130 is that of tests/cli/test_interrupts.py, too."""
    (free,) = free_ports(1)
    nobody = ("--url", f"127.0.0.1:{free}")
    assert surecast("--version").returncode == 0
    assert surecast("publish").returncode == 2  # typer's own
    assert surecast("publish", "s", "x", "--retain", "what", *nobody).returncode == 2
    assert surecast("publish", "a b", "x", "--url", "nats://x").returncode == 2
    assert surecast("serve", str(tmp_path / "missing.toml")).returncode == 2
    for words in (["publish", "s", "x"], ["subscribe", "s"], ["streams"], ["status"]):
        done = surecast(*words, *nobody)
        assert done.returncode == 3, done
        assert "Traceback" not in done.stderr
    config = tmp_path / "node.toml"
    config.write_text(config_text(*free_ports(2), "/proc/surecast"))  # cannot be made
    done = surecast("serve", str(config))
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
