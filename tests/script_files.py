"""Golden interaction scripts: text files in tests/scripts that drive a few machines step by step.

A line that begins with ">" is a command, one with "#" a comment. All other lines are the output of
the command above them: inputs, effects, and the state after each. A test plays the commands and
compares their output with the file. After an intended change, write the files anew with

    SURECAST_REWRITE=1 python -m pytest tests -k golden_script

and read the difference before you commit it. To add a script, write its commands only.
"""

import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["SCRIPTS", "play_script", "played"]

SCRIPTS = Path(__file__).parent / "scripts"

Play = Callable[[list[str]], list[str]]  # the words of a command → the lines that it shows


def played(text: str, play: Play) -> str:
    """The script with the output that its commands produce now."""
    lines = []
    for line in text.splitlines():
        if line.startswith("#"):
            follows = not lines or lines[-1].startswith("#")
            lines += [line] if follows else ["", line]
        elif line.startswith(">"):
            lines += ["", line, *play(line[1:].split())]
    return "\n".join(lines) + "\n"


def play_script(name: str, play: Play) -> None:
    path = SCRIPTS / name
    text = path.read_text()
    shown = played(text, play)
    if os.environ.get("SURECAST_REWRITE"):
        path.write_text(shown)
        text = shown
    assert shown == text
