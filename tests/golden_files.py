"""Golden files in tests/fixtures: an earlier build wrote them; this build must read and write the
same bytes.

After an intended change of a format, write them anew with

    SURECAST_REWRITE=1 python -m pytest tests/core/test_wire_golden.py

(or another test that uses them) and read the difference before you commit it.
"""

import os
from pathlib import Path

FIXTURES = Path(__file__).parent / "fixtures"


def golden(name: str, made: bytes) -> bytes:
    """Return the stored bytes; `made` is what this build writes (stored with SURECAST_REWRITE)."""
    path = FIXTURES / name
    if os.environ.get("SURECAST_REWRITE"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(made)
    return path.read_bytes()
