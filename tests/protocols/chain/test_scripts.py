"""The chain's golden scripts (tests/scripts/chain-*.txt); script_player.py has the commands."""

import pytest

from tests.protocols.chain.script_player import ChainPlayer
from tests.script_files import SCRIPTS, play_script, played

NAMES = sorted(path.name for path in SCRIPTS.glob("chain-*.txt"))


def test_the_eight_scripts_are_there() -> None:
    assert [name.removeprefix("chain-").removesuffix(".txt") for name in NAMES] == [
        "founding",
        "head-crash",
        "learner-joins",
        "middle-crash",
        "publish",
        "roll-back",
        "stale-epoch",
        "tail-crash",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_golden_script(name: str) -> None:
    play_script(name, ChainPlayer().play)


def test_a_script_shows_the_output_of_the_machines_and_not_its_own_text() -> None:
    """The output comes from the machines and not from the file, so the comparison can fail."""
    text = (SCRIPTS / "chain-founding.txt").read_text()
    assert "[WAITING → HEAD]" in text
    other = text.replace("[WAITING → HEAD]", "[WAITING → SOLE]")
    assert played(other, ChainPlayer().play) == text
