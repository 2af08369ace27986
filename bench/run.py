"""Runs the benchmarks (`make bench`) and appends each figure to bench/results.jsonl, as JSON.

Each module listed here has functions `bench_*` without arguments that return rows: dicts with
`name`, `value`, `unit` and perhaps `params`. This script adds commit, machine and date. Only
figures from the same machine can be compared; each line names its machine.

    python bench/run.py [--only columns] [--dry-run]
"""

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from surecast_lab.bench.machine import circumstances

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.jsonl"
MODULES = ("columns", "compose", "wire", "simulator", "runtime", "mesh", "client", "cluster")

Row = dict[str, Any]


def load(name: str) -> ModuleType:
    """A bench module by its file: `bench` is a folder of scripts, not a package."""
    spec = importlib.util.spec_from_file_location(f"bench_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def benches(module: ModuleType) -> list[Callable[[], Any]]:
    found = [value for name, value in vars(module).items() if name.startswith("bench_")]
    if not found:
        raise SystemExit(f"{module.__file__} has no function bench_*")
    return found


def rows(measured: Any) -> Iterator[Row]:
    yield from [measured] if isinstance(measured, dict) else measured


def show(row: Row) -> str:
    params = ", ".join(f"{key}={value}" for key, value in row.get("params", {}).items())
    return f"  {row['name']}: {row['value']:,} {row['unit']}" + (f"  ({params})" if params else "")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure and append to bench/results.jsonl.")
    parser.add_argument("--only", choices=MODULES, action="append", help="just this module")
    parser.add_argument("--dry-run", action="store_true", help="print, do not append")
    options = parser.parse_args()
    shared = circumstances()
    print(f"{shared['machine']['cpu']}, {shared['machine']['cores']} cores", file=sys.stderr)
    for name in options.only or MODULES:
        for bench in benches(load(name)):
            print(f"{name}.{bench.__name__}", file=sys.stderr, flush=True)
            for row in rows(bench()):
                print(show(row), flush=True)
                if not options.dry_run:
                    with RESULTS.open("a") as results:
                        results.write(json.dumps({**row, **shared}) + "\n")


if __name__ == "__main__":
    main()
