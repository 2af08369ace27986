"""The console script `surecast`: prepares for Ctrl-C, then imports and runs main.py."""

from surecast.cli.interrupts import exits_at_once

__all__ = ["run"]


def run() -> None:
    with exits_at_once():
        from surecast.cli.main import run as run_verb
    run_verb()
