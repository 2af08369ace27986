"""The log of problems that clients cause: the first line of each kind, then counts."""

import asyncio
import logging

import pytest

from surecast.server.limited_log import KINDS_MAX, LimitedLog
from tests.server.opened import run, until


def test_lines_held_back_are_counted_after_the_period(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        limited = LimitedLog(logging.getLogger("test"), "me", every_ns=20_000_000)
        limited.tell("a", "first\n\x1b[31m\ud800")
        for number in range(3):
            limited.tell("a", f"more {number}")
        limited.tell("b", "other")
        assert caplog.messages == ["me: HTTP: first\\n\\x1b[31m\\ud800", "me: HTTP: other"]
        await until(lambda: len(caplog.messages) == 3)
        assert caplog.messages[2].startswith("me: HTTP: 3 more of this kind in the last 0.02 s")
        assert caplog.messages[2].endswith(": more 2")
        await asyncio.sleep(0.1)  # without lines for a period, the next one is logged at once
        limited.tell("a", "again")
        assert caplog.messages[3:] == ["me: HTTP: again"]
        limited.close()

    run(main)


def test_the_number_of_kinds_in_the_log_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        limited = LimitedLog(logging.getLogger("test"), "me", every_ns=10**12)
        for number in range(KINDS_MAX + 50):
            limited.tell(f"kind {number}", "text")
        assert len(caplog.messages) == KINDS_MAX + 1
        limited.close()
        assert "49 more" in caplog.messages[-1]

    run(main)
