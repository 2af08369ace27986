"""Short measurements that have a result on a busy machine, too."""

from collections.abc import Callable
from typing import TypeVar

__all__ = ["measured"]

T = TypeVar("T")


def measured(run: Callable[[float], T], is_enough: Callable[[T], bool], seconds: float) -> T:
    """The result of `run(seconds)`, or of a longer run (up to 25 times) if it is not enough."""
    for longer in (1, 5, 25):
        found = run(longer * seconds)
        if is_enough(found):
            break
    return found
