"""The golden scripts on sessions, tests/scripts/session-*.txt, played by script_player.py."""

from collections.abc import Iterator

import pytest
from tests.runtime.script_player import SessionPlayer
from tests.script_files import SCRIPTS, play_script

NAMES = sorted(path.name for path in SCRIPTS.glob("session-*.txt"))


@pytest.fixture
def player(monkeypatch: pytest.MonkeyPatch) -> Iterator[SessionPlayer]:
    made = SessionPlayer(monkeypatch)
    yield made
    made.close()


def test_all_session_scripts_are_found() -> None:
    assert NAMES == ["session-crossing.txt", "session-handshake.txt", "session-silence.txt"]


@pytest.mark.parametrize("name", NAMES)
def test_golden_script(name: str, player: SessionPlayer) -> None:
    play_script(name, player.play)
