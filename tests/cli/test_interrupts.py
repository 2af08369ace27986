"""Ctrl-C while a command is still being loaded: exit code 130 and no output.

The signal is sent when a given module is about to be imported, which is the same moment on every
machine. Before the first of these modules, while Python starts, no line of Surecast can run.
"""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.ports import free_ports
from tests.server.processes import WAIT_S, clean_env, config_text, free_base

pytestmark = pytest.mark.slow

RUN = """
import os, runpy, signal, sys
wanted = sys.argv.pop(1)
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
runpy.run_module("surecast.cli", run_name="__main__", alter_sys=True)
"""
EARLY = ("surecast.cli.main", "typer", "surecast.cli.publish", "surecast.cli.up")
MOMENTS: dict[str, tuple[list[str], list[str]]] = {  # modules that a verb imports, in this order
    "publish": (
        ["publish", "s", "x", "--url", "{mute}"],
        ["surecast.client.connection", "numpy", "asyncio", "surecast.protocols.streams.messages"],
    ),
    "subscribe": (["subscribe", "s", "--json", "--url", "{mute}"], ["numpy", "msgspec"]),
    "status": (["status", "--url", "{mute}"], ["surecast.client.stream", "numpy"]),
    "serve": (
        ["serve", "{config}"],
        ["surecast.server.settings", "surecast.server.http", "numba", "surecast.columns.runs"],
    ),
    "up": (
        ["up", "--regions", "1", "--in-memory", "--dir", "{dir}", "--base-port", "{base}"],
        ["surecast.server.cluster", "surecast.server.layout"],
    ),
    "sim": (["sim", "sprinkler", "--seeds", "1000"], ["surecast.sim.world"]),
    "bench": (["bench", "geo", "--seconds", "60", "--dir", "{dir}"], ["surecast_lab.bench.geo"]),
    "log": (["log", "info", "{dir}"], ["surecast.storage.inspect"]),
}


def check_interrupt(module: str, words: list[str]) -> None:
    """Check that Ctrl-C at the import of this module gives exit code 130 and no output."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, module, *words],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env=clean_env(),
        stdin=subprocess.DEVNULL,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", ""), module


def test_ctrl_c_before_the_verb_is_known() -> None:
    for module in EARLY:
        check_interrupt(module, ["--help"])


@pytest.mark.parametrize("verb", MOMENTS)
def test_ctrl_c_while_a_verb_is_loaded(verb: str, tmp_path: Path) -> None:
    port, http = free_ports(2)
    config = tmp_path / "node.toml"
    config.write_text(config_text(port, http))
    words, modules = MOMENTS[verb]
    with socket.create_server(("127.0.0.1", 0)) as mute:  # accepts connections and sends nothing
        places = {
            "mute": f"127.0.0.1:{mute.getsockname()[1]}",
            "config": config,
            "dir": tmp_path / "some",
            "base": free_base(90),
        }
        for module in modules:
            check_interrupt(module, [word.format(**places) for word in words])


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """As in the background of a shell script, or under nohup."""
    ignoring = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{RUN}"
    done = subprocess.run(
        [sys.executable, "-c", ignoring, "typer", "--version"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env=clean_env(),
    )
    assert (done.returncode, done.stdout[:8]) == (0, "surecast"), done.stderr
