"""`surecast up`: runs a complete deployment of real processes on this machine until Ctrl-C."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from surecast.cli.interrupts import loads
from surecast.cli.options import DEFAULT_URL, console
from surecast.cli.progress import Bar

if TYPE_CHECKING:
    from surecast.server.cluster import Cluster
    from surecast.server.layout import Layout

READY_S_MAX = 120.0  # time for all processes to become ready
LOOK_S = 0.2  # interval between checks of the processes and their logs
# The program of the process that compiles the kernels.
_COMPILE = (
    "from surecast.cli.options import show_logs; show_logs(); "
    "from surecast.columns import kernels; kernels.warm()"
)


@loads("surecast.server.cluster", "surecast.server.layout")
def up(
    regions: Annotated[int, typer.Option(min=1, max=16, help="Number of regions.")] = 3,
    replicas: Annotated[int, typer.Option(min=1, max=7, help="Replicas of each region.")] = 2,
    folder: Annotated[
        Path, typer.Option("--dir", help="Folder for configuration, data and logs.")
    ] = Path("out/up"),
    base_port: Annotated[int, typer.Option(min=1, max=65_000, help="The first data port.")] = 7400,
    in_memory: Annotated[
        bool,
        typer.Option("--in-memory", help="Keep no events on disk: all are lost when it stops."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="When ready, print one JSON object on stdout.")
    ] = False,
) -> None:
    """Start a deployment on this machine: regions of replicas, each replica a process.

    Writes a configuration file for each process under --dir, and overwrites it at each start: copy
    a file before you change it. To try a setting: SURECAST_SECTION__KEY=value surecast up. Ctrl-C
    or SIGTERM stops all processes in order. After a restart with the same --dir all events are
    still there. Exits with 0 then, or with 1 if a process stopped unexpectedly.
    """
    from surecast.server.cluster import Cluster
    from surecast.server.layout import plan

    signal.signal(signal.SIGTERM, _as_interrupt)
    layout = plan(folder, regions, replicas, base_port, in_memory)
    code = 0
    try:
        if not kernels_are_compiled():
            compile_kernels()
        with Cluster(layout, _say) as cluster:
            _wait_ready(cluster)
            if as_json:
                print(json.dumps(facts(layout)), flush=True)
            else:
                tell(layout)
            code = watch(cluster)
            _say("\nstopping")
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise typer.Exit(code)


def kernels_are_compiled() -> bool:
    """Whether one of numba's caches on disk has the kernels of this installation and this Python.

    This looks for the files, because importing numba would take too long. A cache outside the
    package has one folder for each folder of source files; its name contains a hash of the path.
    """
    from surecast import columns

    package = Path(columns.__path__[0]).absolute()
    folder = f"{package.name}_{hashlib.sha1(str(package).encode()).hexdigest()}"
    places = [
        package / "__pycache__",
        Path(os.path.expanduser("~/.cache/numba")) / folder,
        Path(tempfile.gettempdir()) / f"surecast-numba-{os.geteuid()}" / folder,
    ]
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        places = [Path(given) / folder]
    changed_s = (package / "kernels.py").stat().st_mtime
    pattern = f"kernels.*.py{sys.version_info.major}{sys.version_info.minor}.nbi"
    return any(
        index.stat().st_mtime >= changed_s for place in places for index in place.glob(pattern)
    )


def compile_kernels() -> None:
    """Compile the kernels in one process, so that the servers do not all compile them at once.

    If this fails, each server tries to compile them again and logs the reason.
    """
    words = [sys.executable, "-c", _COMPILE]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            process.wait()
        except BaseException:  # Ctrl-C
            process.kill()
            raise


def watch(cluster: "Cluster") -> int:
    """Print warnings and the ends of alarms, and report processes that stop, until interrupted.
    Returns the exit code."""
    code = 0
    cluster.skip_warnings()  # those from before all processes were ready
    try:
        while cluster.running:
            for line in cluster.warnings():
                _say(line)
            for name, exit_code in cluster.dead():
                code = 1
                restart = f"{_command()} serve {cluster.nodes[name].config}"
                _say(
                    f"{name} stopped unexpectedly (exit code {exit_code}). Last log lines:\n"
                    f"{cluster.last_lines(name)}\n  to restart it, in another shell: {restart}"
                )
            time.sleep(LOOK_S)
        _say("all processes have stopped")
    except KeyboardInterrupt:
        pass
    return code


def _wait_ready(cluster: "Cluster") -> None:
    from surecast.server.cluster import ClusterError

    try:
        with Bar("starting", len(cluster.nodes)) as bar:
            cluster.wait_ready(
                READY_S_MAX, lambda done, total: bar.update(done, "servers ready", total)
            )
    except ClusterError as problem:
        _say(f"surecast: {problem}")
        raise typer.Exit(1) from None


def tell(layout: "Layout") -> None:
    """Print a table of the nodes, and commands to try next."""
    from rich.table import Table

    table = Table("region", "node", "url", "HTTP")
    for node in layout.nodes:
        url = node.url if node.role == "replica" else "(witness)"
        table.add_row(node.region, node.name, url, f"http://{node.http}")
    page = console()
    page.print(table)
    command, first, *others = _command(), *layout.regions()
    # Options of the commands that publish in the first region and read in another one.
    near = layout.of(first)[0].url
    near = "" if near == DEFAULT_URL else f" --url {near}"
    far = f" --url {layout.of(others[0])[0].url}" if others else near
    kept = "no events on disk" if layout.in_memory else f"data in {layout.folder / 'data'}"
    page.print(
        f"Configuration in {layout.folder / 'config'}, logs in {layout.folder / 'logs'}, {kept}.\n"
        f"Ctrl-C stops all of it.\n\nNext, in another shell:\n"
        f"  {command} subscribe 'demo.>'{far}   # reads in {others[0] if others else first}\n"
        f"  {command} publish demo.hello 'hello, world'{near}\n"
        f"  {command} status{near}",
        highlight=False,
        markup=False,
    )


def facts(layout: "Layout") -> dict[str, object]:
    nodes = [
        {
            "name": node.name, "region": node.region, "role": node.role, "url": node.url,
            "http": f"http://{node.http}", "config": str(node.config),
        }
        for node in layout.nodes
    ]  # fmt: skip
    return {"folder": str(layout.folder), "in_memory": layout.in_memory, "nodes": nodes}


def _command() -> str:
    """The command with which this program was started, as short as possible."""
    here = Path(sys.argv[0])
    if here.name != "surecast" or shutil.which("surecast") == str(here.absolute()):
        return "surecast"
    path = os.path.relpath(here)
    return path if not path.startswith("..") else str(here)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _as_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
