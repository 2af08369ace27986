"""Checks for optional dependencies, called by subcommands before they begin long work."""

from importlib.util import find_spec

from surecast.errors import UsageError

__all__ = ["demand_matplotlib"]


def demand_matplotlib() -> None:
    """Raise UsageError if matplotlib is not installed, because no figure could be drawn."""
    if find_spec("matplotlib") is None:
        raise UsageError(
            "the figure needs matplotlib, part of the extra spark: pip install 'surecast[spark]'"
        )
