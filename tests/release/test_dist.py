"""What `make dist` builds holds what it should, and works where nothing else is installed.

The nightly test does it as users do: pip fetches the dependencies.
"""

import json
import re
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from surecast import __version__
from tests.ports import free_base
from tests.release.bare import ROOT, BareEnvironment

pytestmark = pytest.mark.slow

NEEDS_SPARK = "pip install 'surecast[spark]'"


def dist(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "scripts" / "dist.py", "--out", out, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution."""
    out = tmp_path_factory.mktemp("dist")
    done = dist(out)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> BareEnvironment:
    return BareEnvironment(tmp_path_factory.mktemp("bare"), wheel)


def content(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


# ---------------------------------------------------------------- what is in them


def test_make_dist_leaves_a_wheel_and_a_source_distribution(built: Path) -> None:
    names = {f"surecast-{__version__}-py3-none-any.whl", f"surecast-{__version__}.tar.gz"}
    assert {path.name for path in built.iterdir()} == names


def test_the_wheel_has_our_packages_with_their_data_and_no_more(wheel: Path) -> None:
    files = content(wheel)
    info = f"surecast-{__version__}.dist-info"
    assert {name.split("/")[0] for name in files} == {
        "surecast", "surecast_lab", "pyspark_surecast", info
    }  # fmt: skip
    assert files.keys() >= {
        "surecast/py.typed",
        "surecast_lab/lab/sprinkler/mesh_measured.json",
        "pyspark_surecast/__init__.py",
        f"{info}/licenses/LICENSE",
    }
    assert not [name for name in files if re.search(r"(^|/)(tests?|__pycache__)/|\.pyc$", name)]
    assert "surecast = surecast.cli.entry:run" in files[f"{info}/entry_points.txt"].decode()
    size = sum(map(len, files.values()))
    assert size < 6_000_000, f"{size:,} bytes: what has got in?"


def test_the_source_distribution_has_no_tests(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as opened:
        names = [name.partition("/")[2] for name in opened.getnames()]
    assert {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "PKG-INFO"} <= set(names)
    assert not [name for name in names if name.startswith(("tests", "docs", "bench"))]


def test_a_wheel_from_the_source_distribution_is_that_from_the_tree(
    wheel: Path, tmp_path: Path
) -> None:
    done = dist(tmp_path, "--from-tree")
    assert done.returncode == 0, done.stderr
    (other,) = tmp_path.glob("*.whl")
    assert content(other) == content(wheel)


def load_dist() -> dict[str, object]:
    names: dict[str, object] = {"__name__": "dist", "__file__": str(ROOT / "scripts" / "dist.py")}
    exec(compile((ROOT / "scripts" / "dist.py").read_text(), "dist.py", "exec"), names)
    return names


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("surecast/py.typed", "surecast/py.typed is missing"),
        ("surecast_lab/lab/sprinkler/mesh_measured.json", "mesh_measured.json is missing"),
        (f"surecast-{__version__}.dist-info/licenses/LICENSE", "the licence file is missing"),
        (f"surecast-{__version__}.dist-info/entry_points.txt", "the console script is missing"),
        ("+tests/test_x.py", "tests/test_x.py is not in one of our packages"),
        ("+surecast/tests/test_x.py", "surecast/tests/test_x.py must not be shipped"),
        ("+surecast/__pycache__/x.pyc", "x.pyc must not be shipped"),
        ("+surecast/scratch.py", "surecast/scratch.py must not be in it"),
    ],
)
def test_the_check_of_the_wheel_can_fail(
    wheel: Path, tmp_path: Path, name: str, words: str
) -> None:
    """`name` is left out of the wheel, or with a plus put into it."""
    changed = tmp_path / wheel.name
    with zipfile.ZipFile(changed, "w") as made:
        for one, data in content(wheel).items():
            if one != name:
                made.writestr(one, data)
        if name.startswith("+"):
            made.writestr(name[1:], b"")
    complaints = load_dist()["wheel_complaints"]
    assert callable(complaints)
    assert complaints(wheel) == []
    assert any(words in line for line in complaints(changed))


# ---------------------------------------------------------------- installed, and nothing else


def test_nothing_but_the_core_dependencies_is_needed(bare: BareEnvironment) -> None:
    bare.pip("check")
    done = bare.program(
        "import importlib.util as u, surecast\n"
        "print(surecast.__version__, surecast.__file__)\n"
        "for name in ('pyspark', 'uvloop', 'matplotlib', 'pandas', 'pytest', 'pip'):\n"
        "    assert u.find_spec(name) is None, name\n"
    )
    assert done.returncode == 0, done.stderr
    version, where = done.stdout.split()
    assert version == __version__
    assert where.startswith(str(bare.packages)), "not the source of this repository"


def test_every_module_can_be_imported_but_those_that_need_an_extra(bare: BareEnvironment) -> None:
    """So no module needs a dependency that is not declared."""
    done = bare.program(
        "import importlib, pkgutil\n"
        "for top in ('surecast', 'surecast_lab'):\n"
        "    path = importlib.import_module(top).__path__\n"
        "    for one in pkgutil.walk_packages(path, top + '.', lambda name: None):\n"
        "        if not one.name.endswith('__main__'):\n"
        "            try: importlib.import_module(one.name)\n"
        "            except ModuleNotFoundError as error: print(one.name, error.name)\n"
    )
    assert done.returncode == 0, done.stderr
    missing = dict(line.split() for line in done.stdout.splitlines())
    assert {name.split(".")[0] for name in missing.values()} <= {"pyspark"}, missing
    assert all(name.startswith("surecast.pipeline.") for name in missing), missing


def test_the_command_says_its_version_and_its_verbs(bare: BareEnvironment) -> None:
    done = bare.run("--version")
    assert (done.returncode, done.stdout) == (0, f"surecast {__version__}\n"), done.stderr
    done = bare.run("--help")
    assert done.returncode == 0, done.stderr
    for verb in ("publish", "subscribe", "serve", "pipeline", "lab"):
        assert re.search(rf"\b{verb}\b", done.stdout), f"{verb} is not in --help"


def test_a_region_in_the_program_takes_and_gives_events(bare: BareEnvironment) -> None:
    done = bare.program(
        "import asyncio, surecast\n"
        "async def main():\n"
        "    async with surecast.local() as client:\n"
        "        stream = await client.stream('s', retain=surecast.latest_per_key())\n"
        "        await stream.publish_many([b'a', b'b'], keys=[b'k', b'l'])\n"
        "        async for event in stream.subscribe(start='earliest', stop='latest'):\n"
        "            print(event.seq, event.key, event.value)\n"
        "asyncio.run(main())\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 b'k' b'a'\n2 b'l' b'b'\n"
    if any((ROOT / "src").rglob("*.nbi")):
        assert "compiling" not in done.stderr, "the kernels were there already"


@pytest.fixture
def cluster(bare: BareEnvironment, tmp_path: Path) -> Iterator[str]:
    """The url of a server that `surecast up` has started."""
    port = free_base(90)
    words = ["up", "--regions", "1", "--replicas", "1", "--dir", str(tmp_path / "up")]
    words += ["--base-port", str(port), "--json"]
    process = subprocess.Popen(
        [bare.surecast, *words], cwd=bare.home, env=bare.env(), stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), "it ended before it was ready"
        yield f"surecast://127.0.0.1:{port}"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_cluster_of_processes_takes_and_gives_events(bare: BareEnvironment, cluster: str) -> None:
    done = bare.run("publish", "s", "hello", "--url", cluster)
    assert (done.returncode, done.stdout) == (0, "s: 1 (1 event)\n"), done.stderr
    words = ["subscribe", "s", "--from", "earliest", "--until", "latest", "--url", cluster]
    done = bare.run(*words)
    assert (done.returncode, "hello" in done.stdout) == (0, True), done.stderr


NEED_AN_EXTRA = (
    ["pipeline", "archive", "orders.>", "--to", "lake"],
    ["lab", "run", "sprinkler-e6", "--quick", "--sweep"],
    ["lab", "run", "sprinkler-e6", "--quick"],
    ["sim", "sprinkler", "--seed", "1", "--draw", "run.png"],
    ["sim", "sprinkler", "--seeds", "1", "--on-spark"],
    ["demo"],
)
RUN_ALL = """
import contextlib, io, json, sys
from surecast.cli.main import run
found = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["surecast", *words]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try: run()
        except SystemExit as end: code = end.code
    found.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(found))
"""


def test_a_verb_that_needs_an_extra_says_which(bare: BareEnvironment) -> None:
    """All of them in one process, which spares starting six."""
    done = bare.run("-c", RUN_ALL, json.dumps(NEED_AN_EXTRA), command=[bare.python])
    assert done.returncode == 0, done.stderr
    for words, (code, out, err) in zip(NEED_AN_EXTRA, json.loads(done.stdout), strict=True):
        assert (code, out) == (2, ""), (words, err)
        assert NEEDS_SPARK in err, (words, err)
    assert not list(bare.home.glob("*.png"))


def test_data_files_of_the_lab_are_found(bare: BareEnvironment) -> None:
    done = bare.program("from surecast_lab.lab.sprinkler import economy; print(economy.measured())")
    assert (done.returncode, "from_server" in done.stdout) == (0, True), done.stderr


# ---------------------------------------------------------------- as users do


@pytest.mark.nightly
def test_pip_installs_the_wheel_with_its_dependencies(wheel: Path, tmp_path: Path) -> None:
    """From the package index; kernels are compiled at the first start."""
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=120)
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "install", "--quiet", wheel], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    subprocess.run([*pip, "check"], check=True, timeout=120)
    (tmp_path / "home").mkdir()
    program = (
        "from surecast import sync\n"
        "with sync.local() as client:\n"
        "    stream = client.stream('s')\n"
        "    stream.publish_many([b'a', b'b'])\n"
        "    print([event.value for event in stream.subscribe(start='earliest', stop='latest')])\n"
    )
    done = subprocess.run(
        [python, "-c", program],
        cwd=tmp_path / "home",
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, "[b'a', b'b']\n"), done.stderr
