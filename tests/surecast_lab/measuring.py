"""Short measurements that have something to show on a busy machine, too."""

from collections.abc import Callable
from typing import TypeVar

__all__ = ["measured"]

T = TypeVar("T")


def measured(run: Callable[[float], T], is_enough: Callable[[T], bool], seconds: float) -> T:
    """What `run(seconds)` measures, or a longer run: an acknowledgement may take more time."""
    for longer in (1, 5, 25):
        found = run(longer * seconds)
        if is_enough(found):
            break
    return found
