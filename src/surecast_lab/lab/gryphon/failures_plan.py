"""The times of a run of Gryphon's experiments E3 to E5."""

from typing import Final

from surecast.core.types import MS

__all__ = ["DOWN_S", "END_S", "EVENT_NS", "FAIL_S", "STALL_NS"]

EVENT_NS: Final = 40 * MS  # between two events of a stream
FAIL_S: Final = 5  # when the failure begins
DOWN_S: Final = 12  # how long it lasts; a link that is cut stalls for the first 2 to 2.5 s of it
STALL_NS: Final = 1_900 * MS  # how long a broker stalls before it crashes
END_S: Final = 30
