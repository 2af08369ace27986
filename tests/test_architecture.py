"""The source text keeps the import rules and purity; importing surecast loads no heavy library."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parent.parent / "src"

PURE = ("columns", "core", "parts", "protocols", "where")
BANNED = {"asyncio", "socket", "os", "time", "uuid", "secrets", "threading", "logging"}

# What each top-level package of surecast may import, besides itself and errors. A new package needs
# a row here. (surecast/__init__.py is the package "".)
_BELOW_REGISTRY = {"columns", "core", "parts", "protocols"}
_JOINED = {
    *_BELOW_REGISTRY, "registry", "stacks", "storage", "sim", "runtime", "endpoint", "server",
    "client",
}  # fmt: skip
_PRODUCT = {*_JOINED, "pipeline", "web", ""}
# The packages of surecast_lab. Only commands of the command line import them.
LAB = "surecast_lab."
SEES: dict[str, set[str]] = {
    "errors": set(),
    "version": set(),
    "numba_cache": set(),
    "": {"client", "endpoint", "sync", "version"},
    "sync": {"client"},
    "columns": {"numba_cache"},
    "core": {"columns"},
    "where": {"columns", "numba_cache"},
    "parts": {"columns", "core", "numba_cache"},
    "protocols": {"columns", "core", "parts", "where"},
    "storage": {"columns", "core"},
    "sim": {"columns", "core", "storage"},
    "runtime": {"columns", "core", "storage"},
    "registry": _BELOW_REGISTRY,
    "stacks": {*_BELOW_REGISTRY, "registry"},
    # These see protocols only through the registry (and cli, below).
    "endpoint": {"columns", "core", "registry", "runtime"},
    "client": {"columns", "core", "endpoint", "server", "where"},
    "pipeline": {
        "columns", "core", "parts", "storage", "endpoint", "client", "numba_cache", "where", "",
    },
    "server": {*_JOINED, "version"} - {"protocols", "sim", "client"},
    "web": _PRODUCT - {"protocols", "sim"},
    "cli": {
        *_PRODUCT, "where", LAB + "swarm", LAB + "bench", LAB + "lab", LAB + "demo",
    } - {"protocols"},
    LAB: set(),
    LAB + "testing": {*_JOINED},
    LAB + "bench": {*_PRODUCT, LAB + "testing"},
    LAB + "swarm": {*_PRODUCT, LAB + "testing", LAB + "bench"},
    LAB + "demo": {*_PRODUCT, LAB + "testing", LAB + "swarm"},
    LAB + "lab": {*_PRODUCT, LAB + "testing", LAB + "swarm", LAB + "bench"},
}  # fmt: skip


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of each import of `module`, also of imports inside functions."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = ast.unparse(node.func).rpartition(".")[2]
            if called in ("import_module", "__import__"):
                yield node.lineno, str(node.args[0].value)


def room(name: str) -> str:
    """The top-level package of surecast that a dotted name belongs to; "" for surecast itself.

    Packages of surecast_lab begin with its name."""
    parts = name.split(".")
    if parts[0] == "surecast_lab":
        return LAB + (parts[1] if len(parts) > 1 and LAB + parts[1] in SEES else "")
    if len(parts) > 1 and (parts[1] in SEES or (SRC / "surecast" / parts[1]).exists()):
        return parts[1]
    return ""  # a name the package itself defines


def complaints(source: str, module: str, is_package: bool = False) -> list[str]:
    """Violations of the import rules if `source` were the text of `module`."""
    found: list[str] = []
    package, _, rest = module.partition(".")
    here = (LAB if package == "surecast_lab" else "") + rest.partition(".")[0]
    if here not in SEES:
        return [f"{module}: the package {here!r} has no row in SEES"]
    tree = ast.parse(source)
    for line, name in imports(tree, module, is_package):
        top = name.split(".")[0]
        if here in PURE and top in BANNED:
            found.append(f"{module}:{line} is pure and imports {top}")
        if here in PURE and top == "random" and name != "random.Random":
            found.append(f"{module}:{line} is pure and imports {name}; only the type Random may be")
        if top not in ("surecast", "surecast_lab"):
            continue
        there = room(name)
        allowed = SEES[here] | {here, "errors"}
        if there not in allowed:
            found.append(
                f"{module}:{line} ({here or 'surecast'}) imports {name} ({there or 'surecast'})"
            )
        ours, theirs = _protocol(module), _protocol(name)
        if ours and theirs and ours != theirs:
            found.append(f"{module}:{line} protocol {ours} imports protocol {theirs}")
    if here in PURE:
        found += [f"{module}:{line} draws an unseeded Random" for line in _unseeded(tree)]
    return found


def _protocol(name: str) -> str:
    parts = name.split(".")
    if parts[:2] != ["surecast", "protocols"] or len(parts) < 3:
        return ""
    return parts[2]


def _unseeded(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Random" and not node.args:
            yield node.lineno


def modules() -> list[tuple[str, Path]]:
    found = []
    for path in sorted((*(SRC / "surecast").rglob("*.py"), *(SRC / "surecast_lab").rglob("*.py"))):
        parts = list(path.relative_to(SRC).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        found.append((".".join(parts), path))
    return found


@pytest.mark.parametrize(("module", "path"), modules(), ids=lambda value: str(value)[-60:])
def test_source_keeps_the_rules(module: str, path: Path) -> None:
    assert complaints(path.read_text(), module, path.name == "__init__.py") == []


@pytest.mark.parametrize(
    ("module", "source", "words"),
    [
        ("surecast.columns.x", "from surecast.core.types import Batch", "(columns) imports"),
        ("surecast.core.x", "import surecast.parts.views", "(core) imports"),
        ("surecast.core.x", "def f():\n    from surecast.sim.world import World", "(sim)"),
        ("surecast.parts.x", "from surecast.protocols.chain import messages", "(protocols)"),
        ("surecast.protocols.chain.x", "from surecast import registry", "(registry)"),
        ("surecast.protocols.chain.x", "from ...storage.memory import MemoryDisk", "(storage)"),
        ("surecast.storage.x", "from surecast.sim.world import World", "(sim)"),
        ("surecast.sim.x", "from surecast.protocols.chain.replica import Replica", "(protocols)"),
        ("surecast.runtime.x", "from surecast.sim import world", "(sim)"),
        ("surecast_lab.swarm.x", "from surecast.cli.main import run", "(cli)"),
        ("surecast_lab.swarm.x", "from surecast_lab import lab", "(surecast_lab.lab)"),
        ("surecast.server.x", "from surecast_lab.swarm import trial", "(surecast_lab.swarm)"),
        ("surecast.server.x", "from surecast.web import feed", "(web)"),
        ("surecast.pipeline.x", "from surecast.protocols.chain.replica import R", "(protocols)"),
        (
            "surecast.pipeline.x",
            "from surecast.protocols.sprinkler.checks import g1",
            "(protocols)",
        ),
        ("surecast.client.x", "from surecast.protocols.streams.messages import M", "(protocols)"),
        ("surecast.client.x", "from surecast.stacks import region_replica", "(stacks)"),
        ("surecast.endpoint.x", "from surecast.protocols.sprinkler import delivery", "(protocols)"),
        ("surecast.endpoint.x", "from surecast.client.events import Event", "(client)"),
        ("surecast.server.x", "from surecast.client import connect", "(client)"),
        ("surecast.server.x", "from surecast.protocols.chain.role import R", "(protocols)"),
        ("surecast.server.x", "def f():\n    import surecast.protocols.streams", "(protocols)"),
        ("surecast.cli.x", "def f():\n    from surecast.protocols import chain", "(protocols)"),
        ("surecast.registry", "from surecast.stacks import x", "(stacks)"),
        ("surecast.errors", "from surecast.core.types import MS", "(core)"),
        ("surecast", "from surecast.columns.batch import Batch", "(columns)"),
        ("surecast.nowhere.x", "", "no row"),
        ("surecast.protocols.a.x", "from surecast.protocols.b.messages import M", "protocol a"),
        ("surecast.protocols.a.x", "from surecast.protocols import b", "protocol a"),
        ("surecast.protocols.a.x", "from ..b import messages", "protocol a"),
        ("surecast.protocols.a.x", "import asyncio", "imports asyncio"),
        ("surecast.core.x", "from os import path", "imports os"),
        ("surecast.core.x", "import os.path", "imports os"),
        ("surecast.columns.x", "import importlib\nimportlib.import_module('time')", "imports time"),
        ("surecast.parts.x", "import random", "imports random"),
        ("surecast.parts.x", "from random import random", "imports random.random"),
        ("surecast.parts.x", "from random import Random\nr = Random()", "unseeded"),
    ],
)
def test_the_checker_finds_violations(module: str, source: str, words: str) -> None:
    found = complaints(source, module)
    assert any(words in complaint for complaint in found), found


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("surecast.core.x", "from surecast.columns.batch import Batch\nfrom random import Random"),
        ("surecast.protocols.a.x", "from surecast.protocols.a import messages"),
        ("surecast.protocols.a.x", "from . import messages\nfrom .messages import M"),
        ("surecast.protocols.a.x", "from surecast.errors import PeerError"),
        ("surecast.storage.x", "import os, time, threading"),
        (
            "surecast_lab.swarm.x",
            "from surecast.protocols.chain import x\nfrom surecast.sim import y",
        ),
        ("surecast.endpoint.x", "from surecast.registry import delivery"),
        ("surecast.server.x", "from surecast.registry import roles\nfrom surecast import stacks"),
        ("surecast.cli.x", "from surecast.registry import directory"),
        ("surecast.cli.x", "from surecast_lab.lab import x\nfrom surecast_lab.swarm import y"),
    ],
)
def test_the_checker_accepts_allowed_imports(module: str, source: str) -> None:
    assert complaints(source, module) == []


def test_a_delivery_is_named_only_in_its_own_files() -> None:
    """A delivery is a folder, a row of the registry and a scenario. (Exceptions: the default
    delivery is named in `core.streams`; lab and swarm name Sprinkler, which is older than the
    rule.)"""
    named = []
    for module, path in modules():
        parts = module.split(".")[1:]
        home = parts[:2] == ["protocols", "nakcast"] or parts in (
            ["registry"],
            ["swarm", "nakcast"],
        )
        if not home and "nakcast" in path.read_text().lower():
            named.append(module)
    assert named == []


def rooms_seen() -> dict[str, set[str]]:
    """The packages that each package imports, also inside functions."""
    found: dict[str, set[str]] = {}
    for module, path in modules():
        here = room(module)
        for _, name in imports(ast.parse(path.read_text()), module, path.name == "__init__.py"):
            if name.split(".")[0] in ("surecast", "surecast_lab") and room(name) != here:
                found.setdefault(here, set()).add(room(name))
    return found


def test_imports_between_packages_have_no_cycle() -> None:
    TopologicalSorter(rooms_seen()).prepare()  # raises CycleError


def loaded_by(code: str) -> set[str]:
    """Run `code` in a fresh interpreter; return the top-level modules loaded afterwards."""
    tail = "\nimport sys\nprint('LOADED', *sorted({m.split('.')[0] for m in sys.modules}))"
    run = subprocess.run(
        [sys.executable, "-c", code + tail], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    return set(run.stdout.rpartition("LOADED")[2].split())


HELP = """
import runpy, sys
sys.argv = ["surecast", *{words!r}]
try:
    runpy.run_module("surecast.cli.main", run_name="__main__")
except SystemExit as end:
    assert not end.code, end.code
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import surecast", {"numba", "pyarrow", "numpy"}),
        (HELP.format(words=["--help"]), {"numba", "pyarrow", "numpy"}),
        (HELP.format(words=["sim", "--help"]), {"numba", "pyarrow", "numpy"}),
        (HELP.format(words=["lab", "list"]), {"numba", "pyarrow", "matplotlib"}),
        (HELP.format(words=["--version"]), {"numba", "pyarrow", "numpy"}),
        ("import surecast.core.types, surecast.columns.batch", {"numba", "pyarrow"}),
    ],
    ids=["import", "help", "sim-help", "lab-list", "version", "types"],
)
def test_heavy_libraries_are_loaded_late(code: str, heavy: set[str]) -> None:
    loaded = loaded_by(code)
    assert "surecast" in loaded
    assert not loaded & heavy


def test_the_load_probe_finds_heavy_libraries() -> None:
    assert "numpy" in loaded_by("import numpy")
