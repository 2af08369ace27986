"""Compare the speed of two versions of the source: alternating runs, ratios with 95 % intervals.

    python bench/pairs.py 51f8da7 HEAD --pairs 10 -- geo --memory --replicas 1 --batch 500
    python bench/pairs.py 51f8da7 HEAD --pairs 10 -- bench/spark_read.py --events 5000000

The words after `--` are arguments of `surecast bench`, or a script of the bench folder that prints
JSON lines. A version is a commit, which is checked out temporarily, or a folder with a checkout.
Each pair runs both versions. It begins with the version that ended the previous pair (A B, B A,
A B, ...), so that slow changes of the machine affect both versions.

A ratio is the second version's figure divided by the first version's, or the inverse if a smaller
figure is better. So a ratio above 1 always means that the second version is better. The interval is
computed by a bootstrap over the pairs. Figures of other programs (NATS, the disk) are compared as
well: their ratios show how stable the machine is.

Every run is immediately appended to the file named by `--raw`. If the command is stopped, the same
command continues there.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from surecast_lab.bench.machine import circumstances

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = HERE / "results.jsonl"
LESS_IS_BETTER = ("us", "ms", "s", "ns/event", "s/M events")
# The parameters that distinguish figures of the same name.
NAMED = ("replicas", "batch", "kept", "way", "region", "by", "subscribers")
RESAMPLES = 10_000
RUN_SECONDS_MAX = 1_800

Figures = dict[str, tuple[float, str]]  # value and unit, by name


class Compared(NamedTuple):
    """One figure of both versions. `ratio` is above 1 if the second version is better."""

    name: str
    unit: str
    before: float
    after: float
    ratio: float
    low: float
    high: float
    pairs: int


def figures(rows: Sequence[dict[str, Any]]) -> Figures:
    """A run's figures by name, with processor seconds per million events where a row has both."""
    found: Figures = {}
    for row in rows:
        params = row.get("params", {})
        named = [f"{key}={params[key]}" for key in NAMED if key in params]
        name = " ".join([row["name"], *named])
        found[name] = (float(row["value"]), row["unit"])
        if row["unit"] == "1/s" and "cores" in params and row["value"]:
            used = sum(cores for who, cores in params["cores"].items() if who != "others")
            found[f"{name} cpu"] = (used / row["value"] * 1e6, "s/M events")
    return found


def compare(runs: Sequence[tuple[Figures, Figures]], seed: int = 1) -> list[Compared]:
    """For each figure: the geometric mean of the pairs' ratios, and its 95 % interval, computed by
    resampling the pairs."""
    rng = np.random.default_rng(seed)
    found = []
    for name, (_, unit) in runs[0][0].items():
        both = [(a[name][0], b[name][0]) for a, b in runs if name in a and name in b]
        pairs = np.array([pair for pair in both if min(pair) > 0], np.float64)
        if not len(pairs):
            continue
        logs = np.log(pairs[:, 1] / pairs[:, 0])
        if unit in LESS_IS_BETTER:
            logs = -logs
        drawn = logs[rng.integers(0, len(logs), (RESAMPLES, len(logs)))].mean(axis=1)
        low, high = np.exp(np.percentile(drawn, [2.5, 97.5]))
        before, after = np.median(pairs, axis=0)
        ratio = float(np.exp(logs.mean()))
        found.append(
            Compared(name, unit, before, after, ratio, float(low), float(high), len(pairs))
        )
    return found


def order(pairs: int) -> list[tuple[int, int]]:
    """(pair, version) in the order of the runs: AB BA AB …"""
    return [(pair, version) for pair in range(pairs) for version in ((0, 1), (1, 0))[pair % 2]]


@contextmanager
def checkout(version: str) -> Iterator[tuple[Path, str]]:
    """A folder with that version's source, and its commit."""
    if Path(version).is_dir():
        yield Path(version).resolve(), _git("rev-parse", "HEAD", at=Path(version))
        return
    commit = _git("rev-parse", "--verify", f"{version}^{{commit}}")
    with tempfile.TemporaryDirectory(prefix="surecast-pairs-") as place:
        tree = Path(place) / commit[:12]
        _git("worktree", "add", "--detach", str(tree), commit)
        try:
            yield tree, commit
        finally:
            _git("worktree", "remove", "--force", str(tree))


def warm(tree: Path) -> None:
    """Compile the kernels of that checkout now, so that no figure contains the compilation."""
    command = [sys.executable, "-m", "surecast.columns.warm"]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    subprocess.run(command, cwd=tree, env=environment, check=True)


def _git(*words: str, at: Path = ROOT) -> str:
    done = subprocess.run(["git", *words], cwd=at, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


def run(tree: Path, words: Sequence[str], scratch: Path) -> Figures:
    """Run one bench on the source in `tree`; SystemExit if it fails or loses events."""
    if words[0].endswith(".py"):
        command = [sys.executable, str(tree / words[0]), *words[1:]]
    else:
        command = [sys.executable, "-m", "surecast.cli", "bench", *words]
        command += ["--json", "--dir", str(scratch)]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    done = subprocess.run(
        command,
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} in {tree} failed:\n{done.stdout}{done.stderr}")
    read = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return figures([row for one in read for row in one.get("rows", [one])])


def show(one: Compared) -> str:
    return (
        f"  {one.name}: {one.before:,.4g} → {one.after:,.4g} {one.unit}, "
        f"ratio {one.ratio:.3f} [{one.low:.3f}, {one.high:.3f}], {one.pairs} pairs"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", help="commit or folder")
    parser.add_argument("after", help="commit or folder")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--raw", type=Path, help="file to which every run is appended")
    parser.add_argument(
        "--append", action="store_true", help=f"append the result to {RESULTS.name}"
    )
    parser.add_argument("words", nargs="+", help="arguments of surecast bench, after --")
    given = parser.parse_args()
    raw = given.raw or ROOT / "out" / "pairs" / f"{given.words[0].replace('/', '-')}.jsonl"
    raw.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="surecast-bench-")))
        trees = [stack.enter_context(checkout(one)) for one in (given.before, given.after)]
        commits = [commit for _, commit in trees]
        for tree, _ in trees:
            warm(tree)
        job = {"commits": commits, "words": given.words}
        done: dict[tuple[int, int], Figures] = {}
        if raw.exists():
            kept = [json.loads(line) for line in raw.read_text().splitlines()]
            done = {(one["pair"], one["version"]): one["figures"] for one in kept
                    if {key: one[key] for key in job} == job}  # fmt: skip
        for pair, version in order(given.pairs):
            if (pair, version) in done:
                continue
            print(f"pair {pair + 1} of {given.pairs}: {commits[version][:12]}", file=sys.stderr)
            done[pair, version] = run(trees[version][0], given.words, scratch)
            line = {**job, "pair": pair, "version": version, "figures": done[pair, version]}
            with raw.open("a") as file:
                file.write(json.dumps(line) + "\n")
    found = compare([(done[pair, 0], done[pair, 1]) for pair in range(given.pairs)])
    print(f"{' '.join(given.words)}: {commits[0][:12]} → {commits[1][:12]}")
    shared = circumstances()
    for one in found:
        print(show(one))
        if given.append:
            params = {**one._asdict(), "bench": " ".join(given.words), "commits": commits}
            row = {"name": "pairs.ratio", "value": round(one.ratio, 4), "unit": "x",
                   "params": params}  # fmt: skip
            with RESULTS.open("a") as results:
                results.write(json.dumps({**row, **shared}) + "\n")


if __name__ == "__main__":
    main()
