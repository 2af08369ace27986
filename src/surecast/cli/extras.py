"""Optional dependencies that a verb needs: better missed before its work than at the end of it."""

from importlib.util import find_spec

from surecast.errors import UsageError

__all__ = ["demand_matplotlib"]


def demand_matplotlib() -> None:
    """UsageError if no figure can be drawn."""
    if find_spec("matplotlib") is None:
        raise UsageError("the figure needs matplotlib: pip install 'surecast[spark]'")
