"""The console script `surecast`. It handles Ctrl-C before it imports anything large."""

from surecast.cli.interrupts import exits_at_once

__all__ = ["run"]


def run() -> None:
    with exits_at_once():
        from surecast.cli.main import run as run_verb
    run_verb()
