"""Reading a log from one position to another, in bounded pieces."""

from collections.abc import Iterator

from surecast.core.types import Batch, Disk, LogId

__all__ = ["read_through"]


def read_through(disk: Disk, log: LogId, lo: int, hi: int, nbytes_max: int) -> Iterator[Batch]:
    """Yields all batches of [lo, hi); the log must contain these positions. One read of the disk
    returns about `nbytes_max` bytes."""
    while lo < hi:
        batches = disk.read(log, lo, hi, nbytes_max)
        assert batches, f"log {log.hex()[:8]} does not hold position {lo}"
        yield from batches
        lo = batches[-1].hi
