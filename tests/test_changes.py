"""`make check` runs the files of tests that can notice a change, nearest first, and says why."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.budget import OTHER_S, Quick
from tests.changes import (
    LIMIT_S,
    ROOT,
    Graph,
    always_runs,
    changed_files,
    is_mirror,
    limited,
    select,
)

Tree = Callable[[dict[str, str]], Graph]

# A small repository: `core` below `client`; `app` loads `client` late; `verbs` are found by name.
FILES = {
    "src/surecast/__init__.py": "_LATE = {'connect': 'client'}\ndef __getattr__(name): ...\n",
    "src/surecast/core/__init__.py": "",
    "src/surecast/core/types.py": "",
    "src/surecast/core/wire.py": "from surecast.core import types\n",
    "src/surecast/client/__init__.py": "def connect():\n    from surecast.core.wire import x\n",
    "src/surecast/cli/__init__.py": "",
    "src/surecast/cli/up.py": "import surecast.client\n",
    "src/surecast/lone.py": "",
    "tests/conftest.py": "from tests.plugin import hook\n",
    "tests/plugin.py": "",
    "tests/helpers.py": "import surecast.core.wire\n",
    "tests/test_all.py": "",
    "tests/core/conftest.py": "",
    "tests/core/test_types.py": "from surecast.core.types import x\n",
    "tests/client/test_helped.py": "def test():\n    from tests.helpers import x\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    def make(more: dict[str, str]) -> Graph:
        for name, text in {**FILES, **more}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return Graph(tmp_path)

    return make


# ---------------------------------------------------------------- what a file depends on


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("import surecast.core.wire", "core/wire.py"),
        ("import surecast.core.wire", "core/types.py"),  # through wire.py
        ("import surecast.core.wire", "core/__init__.py"),
        ("from surecast.core import wire", "core/wire.py"),
        ("from surecast.core import (\n    wire,\n)", "core/wire.py"),
        ("def test():\n    import surecast.core.wire", "core/wire.py"),
        ("if not TYPE_CHECKING:\n    import surecast.core.wire", "core/wire.py"),
        ("if TYPE_CHECKING:\n    x = 1\nelse:\n    import surecast.core.wire", "core/wire.py"),
        ("import surecast\nsurecast.connect", "client/__init__.py"),
        ("import surecast.core\nsurecast.connect", "client/__init__.py"),
        ("from surecast import connect", "client/__init__.py"),
        ("run('-m', 'surecast.core.wire')", "core/wire.py"),
        ("run('import surecast\\nsurecast.connect')", "client/__init__.py"),
        ("CODE = '''\n  from surecast.core import x, wire\n'''", "core/wire.py"),
        ("setattr('surecast.core.wire.LIMIT', 3)", "core/wire.py"),
        ("import_module(f'surecast.core.{name}')\nimport surecast.core", "core/wire.py"),
        ("import surecast.cli\nfor one in iter_modules(surecast.cli.__path__): ...", "cli/up.py"),
        ("import subprocess\nsubprocess.run(['surecast', 'up'])", "cli/up.py"),
        ("import subprocess\nsubprocess.run([f'{BIN}/surecast', 'up'])", "core/types.py"),
    ],
)
def test_a_test_depends_on_what_its_source_names(tree: Tree, text: str, needed: str) -> None:
    graph = tree({"tests/x/test_x.py": text + "\n"})
    needs = graph.needs("tests/x/test_x.py")
    assert f"src/surecast/{needed}" in needs
    assert "src/surecast/lone.py" not in needs


@pytest.mark.parametrize(
    "text",
    [
        "from surecast.core import types",
        "from surecast.core.types import wire",
        "'''Like surecast.core.wire.'''",
        "if TYPE_CHECKING:\n    import surecast.core.wire",
        "import subprocess\nsubprocess.run(['git'])",
    ],
)
def test_a_test_does_not_depend_on_what_it_cannot_run(tree: Tree, text: str) -> None:
    graph = tree({"tests/x/test_x.py": text + "\n"})
    assert "src/surecast/core/wire.py" not in graph.needs("tests/x/test_x.py")


def test_a_test_depends_on_helpers_and_on_the_conftests_above_it(tree: Tree) -> None:
    files = {"actors.py": "", "__init__.py": "", "test_y.py": "from actors import x\n"}
    graph = tree({f"tests/core/{name}": text for name, text in files.items()})
    needs = graph.needs("tests/core/test_y.py")
    assert "tests/core/__init__.py" in needs
    assert {"tests/conftest.py", "tests/plugin.py", "tests/core/conftest.py"} < needs
    assert "tests/core/actors.py" in needs
    assert "tests/core/conftest.py" not in graph.needs("tests/client/test_helped.py")
    assert "src/surecast/core/types.py" in graph.needs("tests/client/test_helped.py")


def test_a_relative_import_is_found(tree: Tree) -> None:
    graph = tree({"src/surecast/core/a.py": "from . import types\nfrom ..client import connect\n"})
    needs = graph.needs("src/surecast/core/a.py")
    assert {"src/surecast/core/types.py", "src/surecast/client/__init__.py"} < needs


# ---------------------------------------------------------------- what runs


ALL = {"tests/test_all.py", "tests/core/test_types.py", "tests/client/test_helped.py"}


@pytest.mark.parametrize(
    ("changed", "run"),
    [
        (["src/surecast/core/types.py"], ALL),
        (["src/surecast/core/wire.py"], {"tests/test_all.py", "tests/client/test_helped.py"}),
        (["src/surecast/lone.py"], {"tests/test_all.py"}),
        (["tests/core/test_types.py"], {"tests/test_all.py", "tests/core/test_types.py"}),
        (["tests/client/test_gone.py"], {"tests/test_all.py"}),
        (["README.md"], {"tests/test_all.py"}),
        ([], {"tests/test_all.py"}),
        (["tests/plugin.py"], ALL),
        (["tests/core/conftest.py"], {"tests/test_all.py", "tests/core/test_types.py"}),
        (["pyproject.toml"], ALL),
        (["src/surecast/core/gone.py"], ALL),
        (["src/surecast/core/data.json"], ALL),
        (["tests/fixtures/README.md"], ALL),
        (["README.md", "Makefile"], ALL),
    ],
)
def test_what_runs_after_a_change(tree: Tree, changed: list[str], run: set[str]) -> None:
    assert set(select(tree({}), changed).reasons) == run


def test_tests_that_read_pages_or_the_source_run_after_changes_of_these(tree: Tree) -> None:
    graph = tree(
        {
            "tests/x/test_page.py": "PAGE = ROOT / 'docs' / 'x'\n",
            "tests/x/test_source.py": "SRC = ROOT / 'src'\n",
        }
    )
    pages, code = select(graph, ["docs/x.md"]), select(graph, ["src/surecast/lone.py"])
    assert set(pages.reasons) == {"tests/test_all.py", "tests/x/test_page.py"}
    assert set(code.reasons) == {"tests/test_all.py", "tests/x/test_source.py"}


def test_the_reasons_are_told(tree: Tree) -> None:
    graph = tree({})
    assert select(graph, ["src/surecast/core/wire.py"]).told(3) == [
        "2 of 3 files of tests (ALL=1 runs all):",
        "  tests: 1, always",
        "  tests/client: 1, depends on src/surecast/core/wire.py",
    ]
    (line,) = select(graph, ["Makefile"]).told(3)
    assert line.startswith("all 3 files of tests: Makefile is not")
    (line,) = select(graph, ["src/surecast/core/types.py"]).told(3)
    assert line == "all 3 files of tests: all depend on src/surecast/core/types.py"


# ---------------------------------------------------------------- the time limit

WIRE = "src/surecast/core/wire.py"
# From near to far after a change to WIRE, and what each adds to FILES.
NEAR = {
    "tests/core/test_wire_more.py": "from tests.helpers import x\n",
    "tests/core/test_in_folder.py": "import surecast.core.wire\n",
    "tests/a/test_short.py": "import surecast.core.wire\n",
    "tests/a/test_long.py": "import surecast.core.wire\n",
    "tests/client/test_helped.py": "def test():\n    from tests.helpers import x\n",
    "tests/client/test_far.py": "from tests.client.steps import y\n",
}
STEPS = {"tests/client/steps.py": "from tests.helpers import x\n"}
TOOK = Quick({**dict.fromkeys(NEAR, 1.0), "tests/a/test_long.py": 2.0})


@pytest.mark.parametrize("count", range(len(NEAR) + 1))
def test_the_nearest_files_run_within_the_limit(tree: Tree, count: int) -> None:
    graph = tree({**STEPS, **NEAR})
    fit = list(NEAR)[:count]
    limit_s = sum(map(TOOK.of, fit)) + 0.5
    chosen = limited(graph, select(graph, [WIRE]), [WIRE], TOOK, limit_s)
    assert set(chosen.reasons) == {"tests/test_all.py", *fit}
    assert set(chosen.left_out) == NEAR.keys() - set(fit)


def test_a_short_file_runs_although_a_longer_one_before_it_does_not_fit(tree: Tree) -> None:
    graph = tree({**STEPS, **NEAR})
    took = Quick({**TOOK.seconds, "tests/core/test_wire_more.py": 60.0})
    chosen = limited(graph, select(graph, [WIRE]), [WIRE], took, 50.0)
    assert chosen.left_out == ("tests/core/test_wire_more.py",)


def test_the_limit_holds_after_changes_that_concern_all_tests(tree: Tree) -> None:
    graph = tree({})
    changed = ["pyproject.toml", "tests/core/test_types.py"]
    everything = select(graph, changed)
    assert limited(graph, everything, changed, Quick({}), 60.0) == everything
    chosen = limited(graph, everything, changed, Quick({}), OTHER_S * 1.5)
    assert set(chosen.reasons) == ALL - {"tests/client/test_helped.py"}, "changes come first"


def test_what_is_left_out_is_told(tree: Tree) -> None:
    graph = tree({"tests/client/test_more.py": "import tests.helpers\n"})
    chosen = limited(graph, select(graph, [WIRE]), [WIRE], Quick({}), OTHER_S / 2)
    assert chosen.told(4) == [
        "1 of 4 files of tests (ALL=1 runs all):",
        "  tests: 1, always",
        "LEFT OUT for the time limit: 2 files of tests that can notice the change, too "
        "(`make check ALL=1` and `make test` run them):",
        "  tests/client: test_helped, test_more",
    ]


@pytest.mark.parametrize(
    ("test", "changed", "mirrors"),
    [
        ("tests/core/test_wire.py", "src/surecast/core/wire.py", True),
        ("tests/core/test_wire_golden.py", "src/surecast/core/wire.py", True),
        ("tests/core/test_wires.py", "src/surecast/core/wire.py", False),
        ("tests/core/test_wire.py", "src/surecast/sim/wire.py", False),
        ("tests/columns/test_bulk.py", "src/surecast/columns/_bulk.py", True),
        ("tests/test_registry.py", "src/surecast/registry.py", True),
        ("tests/surecast_lab/lab/test_run.py", "src/surecast_lab/lab/run.py", True),
        ("tests/pipeline/test_regions.py", "tests/pipeline/regions.py", True),
    ],
)
def test_tests_have_the_folder_and_the_name_of_their_file(
    test: str, changed: str, mirrors: bool
) -> None:
    assert is_mirror(test, [changed]) == mirrors


# ---------------------------------------------------------------- what is kept for the next run


def test_what_was_found_is_used_again_until_it_may_be_wrong(tree: Tree, tmp_path: Path) -> None:
    known = tmp_path / "out" / "imports.json"
    test, wire, more = "tests/core/test_types.py", WIRE, "src/surecast/core/more.py"

    def needs() -> set[str]:
        graph = Graph(tmp_path, known)
        found = {path: graph.needs(path) for path in graph.tests}
        assert found == {path: Graph(tmp_path).needs(path) for path in graph.tests}
        graph.save(known)
        return found[test]

    tree({})
    assert wire not in needs()
    before = json.loads(known.read_text())
    before["uses"][test].append(wire)
    known.write_text(json.dumps(before))
    assert wire in Graph(tmp_path, known).needs(test), "it is used"
    (tmp_path / test).write_text("import surecast.core.wire, surecast.core.more\n")
    assert wire in needs()
    (tmp_path / more).write_text("")
    assert more in needs()
    (tmp_path / more).unlink()
    (tmp_path / test).unlink()
    (tmp_path / test).write_text("")
    assert wire not in needs()
    known.write_text("{")
    assert wire not in needs()


# ---------------------------------------------------------------- what has changed


@pytest.fixture
def git(tmp_path: Path) -> Callable[..., None]:
    def run(*words: str) -> None:
        who = ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    for name in ("old", "new", "gone"):
        (tmp_path / name).write_text(name)
    run("init", "-b", "main")
    run("add", ".")
    run("commit", "-m", "first")
    (tmp_path / "old").write_text("changed")
    run("commit", "-am", "second")
    return run


def test_changes_are_those_since_the_last_commit_or_of_it(
    tmp_path: Path, git: Callable[..., None]
) -> None:
    assert changed_files(tmp_path)[0] == ["old"]  # nothing since: the commit itself
    (tmp_path / "new").write_text("changed")
    (tmp_path / "added").write_text("")
    (tmp_path / "gone").unlink()
    found, base = changed_files(tmp_path)
    assert found == ["added", "gone", "new"]
    assert base.endswith("(second)")
    assert changed_files(tmp_path, "HEAD~1")[0] == ["added", "gone", "new", "old"]


def test_changes_are_those_since_the_branch_left_its_upstream(
    tmp_path: Path, git: Callable[..., None]
) -> None:
    git("update-ref", "refs/remotes/origin/main", "HEAD~1")
    (tmp_path / "new").write_text("changed")
    found, base = changed_files(tmp_path)
    assert found == ["new", "old"]
    assert base.endswith("(first)")


def test_without_git_all_tests_run(tmp_path: Path) -> None:
    with pytest.raises((OSError, subprocess.CalledProcessError)):
        changed_files(tmp_path)


# ---------------------------------------------------------------- this repository


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Graph(ROOT)


@pytest.mark.slow
def test_a_leaf_does_not_run_everything_and_the_core_does(graph: Graph) -> None:
    leaf = select(graph, ["src/surecast/cli/status.py"])
    assert len(leaf.reasons) < len(graph.tests) / 2
    assert "tests/columns/test_batch.py" not in leaf.reasons
    core = select(graph, ["src/surecast/core/types.py"])
    assert len(core.reasons) > len(graph.tests) * 0.9


@pytest.mark.slow
@pytest.mark.parametrize("package", ["core", "columns", "pipeline", "protocols/chain", "storage"])
def test_tests_of_a_changed_file_are_within_the_limit(graph: Graph, package: str) -> None:
    """Those named like it, and those that import it, unless they alone exceed the limit."""
    quick = Quick.load()
    for file in sorted((ROOT / "src" / "surecast" / package).glob("*.py")):
        path = file.relative_to(ROOT).as_posix()
        chosen = limited(graph, select(graph, [path]), [path], quick, LIMIT_S)
        assert not [test for test in chosen.left_out if is_mirror(test, [path])], path
        distances = graph.distances([path])
        direct = {test for test in graph.tests if distances.get(test) == 1}
        if sum(quick.of(test) for test in direct if not always_runs(test)) <= LIMIT_S:
            assert direct.isdisjoint(chosen.left_out), path


@pytest.mark.slow
def test_no_file_of_the_product_is_beyond_all_tests(graph: Graph) -> None:
    reached = {path for test in graph.tests for path in graph.needs(test)}
    beyond = {path for path in graph.files if path.startswith("src/")} - reached
    assert beyond == set()


LOADED = """
import sys, pytest
code = pytest.main(["-q", "-m", "not slow", "-p", "no:cacheprovider", *sys.argv[1:]])
names = ("surecast", "surecast_lab", "pyspark_surecast", "tests", "bench", "scripts")
files = {m.__file__ for n, m in sys.modules.items() if n.split(".")[0] in names if m.__file__}
print("LOADED", code, *sorted(files))
"""


@pytest.mark.nightly
def test_no_test_loads_a_file_on_which_it_does_not_depend(graph: Graph) -> None:
    """Every file of tests in an interpreter of its own: all modules that are loaded then."""
    surprises = []
    for test in graph.tests:
        run = subprocess.run(
            [sys.executable, "-c", LOADED, test], cwd=ROOT, capture_output=True, text=True
        )
        _, _, told = run.stdout.rpartition("LOADED ")
        code, *files = told.split()
        assert code in ("0", "5"), run.stdout  # 5: all of its tests are slow
        loaded = {Path(file).relative_to(ROOT).as_posix() for file in files}
        if more := loaded - graph.needs(test):
            surprises.append(f"{test}: {', '.join(sorted(more))}")
    assert surprises == []
