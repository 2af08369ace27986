"""System programs that some tests need: `needs("chromium")` skips the test, but fails it in CI."""

import os
import shutil
from typing import NoReturn

import pytest

__all__ = ["lack", "needs"]


def needs(program: str) -> str:
    """The path of the program. Without it the test is skipped; in CI it fails."""
    found = shutil.which(program)
    if found is None:
        lack(f"{program} is not installed: scripts/services.sh installs it")
    return found


def lack(why: str) -> NoReturn:
    """Skip the test because something it needs is missing; in CI, fail it."""
    if os.environ.get("SURECAST_CI") == "1":
        pytest.fail(why)
    pytest.skip(why)
