"""A deployment on this machine as real processes: starts, watches and stops them.

    cluster = Cluster(plan(Path("out/up"), regions=3, replicas=2, base_port=7400))
    with cluster:                       # writes files, starts processes
        cluster.wait_ready(60)
        cluster.kill("east-2")          # SIGKILL, to test failures
        cluster.start("east-2")

Each process has its own configuration file, data folder and log. All of them are stopped when this
process ends, however it ends. `surecast up`, `surecast demo` and tests use this.
"""

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from urllib.error import HTTPError

from surecast.endpoint.http_get import http_get
from surecast.errors import SurecastError, UsageError
from surecast.server.config import parse_address
from surecast.server.layout import Layout, Planned
from surecast.server.logs import ALARM_OVER
from surecast.storage.modes import open_file

__all__ = ["Cluster", "ClusterError"]

LOOK_S = 0.1  # interval between checks while waiting for processes to become ready
STOP_S_MAX = 20  # a process that runs for longer after SIGTERM is killed
LAST_LINES = 12  # the number of log lines that are shown if a process ends unexpectedly
# Lines of a log (logs.py) that say that an alarm is raised or over; groups: its node and code.
_ALARM = re.compile(r"\S+ +warning +(\S+): ([a-z]+(?:-[a-z]+)*): ")
_OVER = re.compile(rf"\S+ +info +(\S+): {ALARM_OVER}(\S+)$")
_PR_SET_PDEATHSIG = 1  # from <sys/prctl.h>


class ClusterError(SurecastError):
    """A process of the cluster ended or did not become ready; the message says which, and why."""


class Cluster:
    """A deployment's processes (see the module).

    `nodes` has all nodes of the plan by name; `running` has those whose process runs.
    """

    def __init__(self, layout: Layout, say: Callable[[str], None] = lambda text: None) -> None:
        """`say` shows a line of text to the user."""
        self.layout = layout
        self.say = say
        self.nodes = {node.name: node for node in layout.nodes}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._read: dict[str, int] = {}  # how many bytes of each log `warnings` has read
        # Node and code of alarms that `warnings` has yielded and that are not over.
        self._alarms: set[tuple[str, str]] = set()

    # ------------------------------------------------------------ start and stop

    def __enter__(self) -> "Cluster":
        check_ports(self.layout)
        self.layout.write()
        try:
            for name in self.nodes:
                self.start(name)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self, name: str) -> None:
        """Start a process; its output goes to its log."""
        node = self.nodes[name]
        path = self.layout.log(node)
        # Creates the log if it is missing, so that only this user may read it.
        os.close(open_file(path, os.O_WRONLY | os.O_CREAT))
        self._read[name] = path.stat().st_size
        # A variable such as SURECAST_NODE__HTTP would override the same key of every node.
        env = {key: v for key, v in os.environ.items() if not key.startswith("SURECAST_NODE__")}
        with path.open("ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "surecast.cli", "serve", str(node.config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                start_new_session=True,  # Ctrl-C is sent only to this process; it stops the others
                preexec_fn=_end_with_parent,
            )

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL."""
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """End all processes: replicas first, because they may need their witness to drain."""
        for role in ("replica", "witness"):
            ending = {n: p for n, p in self.running.items() if self.nodes[n].role == role}
            for process in ending.values():
                process.terminate()
            deadline = time.monotonic() + STOP_S_MAX
            for name, process in ending.items():
                try:
                    process.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    self.say(f"{name} does not stop: killed")
                    process.kill()
                    process.wait()
                del self.running[name]

    # ------------------------------------------------------------ watching

    def wait_ready(
        self, timeout_s: float, progress: Callable[[int, int], None] = lambda done, all: None
    ) -> None:
        """Wait until every process is ready. Raises ClusterError if one ends or time is up.

        `progress` is called with the number of ready processes and of all processes.
        """
        deadline = time.monotonic() + timeout_s
        waiting = dict(self.nodes)
        while True:
            for name, code in self.dead():
                raise ClusterError(f"{name} ended with exit code {code}:\n{self.last_lines(name)}")
            reasons = {name: not_ready(node) for name, node in waiting.items()}
            waiting = {name: node for name, node in waiting.items() if reasons[name]}
            progress(len(self.nodes) - len(waiting), len(self.nodes))
            if not waiting:
                return
            if time.monotonic() > deadline:
                lines = "\n".join(f"  {name}: {'; '.join(reasons[name])}" for name in waiting)
                raise ClusterError(
                    f"not ready after {timeout_s:g} s:\n{lines}\n"
                    f"Their logs are in {self.layout.folder / 'logs'}"
                )
            time.sleep(LOOK_S)

    def dead(self) -> Iterator[tuple[str, int]]:
        """Processes that ended unexpectedly since the last call, with their exit codes."""
        for name, process in list(self.running.items()):
            code = process.poll()
            if code is not None:
                del self.running[name]
                yield name, code

    def warnings(self) -> Iterator[str]:
        """The lines with level warning or above that were logged since the last call, and those
        which say that an alarm among these lines is over."""
        for name, node in self.nodes.items():
            path = self.layout.log(node)
            if name not in self._read or path.stat().st_size <= self._read[name]:
                continue
            with path.open("rb") as file:
                file.seek(self._read[name])
                text = file.read()
            whole, newline, _ = text.rpartition(b"\n")
            self._read[name] += len(whole) + len(newline)
            for line in whole.decode(errors="replace").splitlines():
                # A line begins with the time and the level (logs.py), then comes the message.
                if any(f" {level} " in line[:40] for level in ("warning", "error", "critical")):
                    if raised := _ALARM.match(line):
                        self._alarms.add((raised[1], raised[2]))
                    yield line
                elif (over := _OVER.match(line)) and (over[1], over[2]) in self._alarms:
                    self._alarms.remove((over[1], over[2]))
                    yield line

    def skip_warnings(self) -> None:
        """Leave out the lines that were logged until now, and the ends of the alarms in them."""
        for _ in self.warnings():
            pass
        self._alarms.clear()

    def last_lines(self, name: str) -> str:
        """The last lines of a node's log, to be shown in an error message."""
        path = self.layout.log(self.nodes[name])
        lines = _tail(path).splitlines()[-LAST_LINES:]
        return "\n".join(f"  {line}" for line in lines) + f"\n  (all of it: {path})"


def check_ports(layout: Layout) -> None:
    """Raise UsageError for the first port that is in use."""
    for node in layout.nodes:
        for text, kinds in (
            (node.listen, (socket.SOCK_STREAM, socket.SOCK_DGRAM)),
            (node.http, (socket.SOCK_STREAM,)),
        ):
            for kind in kinds:
                with socket.socket(socket.AF_INET, kind) as probe:
                    if kind is socket.SOCK_STREAM:
                        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    try:
                        probe.bind(parse_address(text))
                    except OSError:
                        port = parse_address(text)[1]
                        raise UsageError(
                            f"port {port}, wanted for {node.name}, is in use. Stop what uses it "
                            "(is `surecast up` running already?), or choose other ports with "
                            "--base-port"
                        ) from None


def not_ready(node: Planned) -> list[str]:
    """The reasons why a node is not ready, from its HTTP port; empty if it is ready."""
    try:
        http_get(f"http://{node.http}/readyz", patience_s=2)
        return []
    except HTTPError as refused:
        reasons: list[str] = json.loads(refused.read()).get("reasons", [])
        return reasons or [f"HTTP {refused.code}"]
    except OSError as problem:
        return [f"no answer at http://{node.http}/readyz ({getattr(problem, 'reason', problem)})"]


def _tail(path: Path, nbytes: int = 16 << 10) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - nbytes))
        return file.read().decode(errors="replace")


def _end_with_parent() -> None:
    """Called in a new child process: ask Linux to send it SIGTERM when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
