"""Golden files: what this version writes. Every build of it must read and write the same bytes.

They are a part of the fixtures of its release, tests/fixtures/VERSION. Before the release, an
intended change of a format writes all of these fixtures anew:

    python -m tests.release_fixtures --overwrite

Read the difference before you commit it. After the release they are never changed: set VERSION to
the next version and run the command without --overwrite (docs/compatibility.md).
"""

import json
import os
from pathlib import Path
from typing import Any

VERSION = "0.2.0"  # the last one that changed a format
RELEASES = Path(__file__).parent / "fixtures"
FIXTURES = RELEASES / VERSION


def write_json(path: Path, value: dict[str, Any] | list[Any]) -> None:
    """A line for each entry: small, and differences can be read."""
    if isinstance(value, dict):
        lines = [f"{json.dumps(key)}: {_short(one)}" for key, one in value.items()]
    else:
        lines = [_short(one) for one in value]
    ends = "{}" if isinstance(value, dict) else "[]"
    path.write_text(ends[0] + "\n" + ",\n".join(lines) + "\n" + ends[1] + "\n")


def _short(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def golden(name: str, made: bytes) -> bytes:
    """Return the stored bytes; `made` is what this build writes (stored with SURECAST_REWRITE)."""
    path = FIXTURES / name
    if os.environ.get("SURECAST_REWRITE"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(made)
    return path.read_bytes()
