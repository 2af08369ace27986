"""Programs of the system that some tests need: `needs("chromium")` skips, but never in CI."""

import os
import shutil
from typing import NoReturn

import pytest

__all__ = ["lack", "needs"]


def needs(program: str) -> str:
    """Where it is. Without it the test is skipped; in CI it fails, for there it must run."""
    found = shutil.which(program)
    if found is None:
        lack(f"{program} is not installed: scripts/services.sh installs it")
    return found


def lack(why: str) -> NoReturn:
    """What a test needs is not there."""
    if os.environ.get("SURECAST_CI") == "1":
        pytest.fail(why)
    pytest.skip(why)
