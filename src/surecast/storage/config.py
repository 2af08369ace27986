"""Configuration of a node's store: durability, sizes and memory."""

from dataclasses import dataclass
from typing import Final, Literal

from surecast.core.config import check
from surecast.core.wire import Limits
from surecast.storage.modes import FILE, FOLDER, GROUP_FILE, GROUP_FOLDER

__all__ = ["LOG_LIMITS", "StorageConfig"]

# Limits for reading stored batches. They are wide, because a batch may have been accepted when the
# configured limits were larger than now.
LOG_LIMITS: Final = Limits(
    frame_bytes_max=(1 << 32) - 1, control_bytes_max=1 << 20, batch_rows_max=(1 << 31) - 1
)


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """`[storage]` in TOML."""

    sync: Literal["data", "none"] = "data"  # "none": a power cut may lose acknowledged events
    journal_bytes_max: int = 64 << 20  # at this size, its batches move to segments; bounds memory
    backlog_bytes_max: int = 256 << 20  # journals not yet moved to segments; above it, writes wait
    segment_bytes_max: int = 256 << 20  # size of a segment file; a larger move writes several files
    queue_bytes_max: int = 256 << 20  # bytes waiting to be written; above it, writes fail
    inline_bytes_max: int = 1 << 20  # compaction results up to this size go to the journal
    run_bytes_min: int = 1 << 20  # a log's adjacent parts in segments are joined up to this size
    read_threads: int = 4  # reads of segments that are performed at a time, beside other work
    read_bytes_max: int = 64 << 20  # bytes that these reads may have ready; above it, they wait
    maps_max: int = 256  # segments mapped at a time, which also limits open files
    memory_bytes_max: int = 4 << 30  # memory of a node without data folder; above it, writes fail
    check: Literal["all", "none"] = "all"  # segments read at start; "none": damage shows at reads
    group_read: bool = False  # the folder's group may read it, for Spark executors of another user

    @property
    def file_mode(self) -> int:
        return GROUP_FILE if self.group_read else FILE

    @property
    def folder_mode(self) -> int:
        return GROUP_FOLDER if self.group_read else FOLDER

    def validate(self) -> None:
        check(self, "sync", self.sync in ("data", "none"), '"data" or "none"')
        check(self, "check", self.check in ("all", "none"), '"all" or "none"')
        journal = self.journal_bytes_max
        check(self, "journal_bytes_max", 1 << 12 <= journal <= 1 << 34, "4KiB to 16GiB")
        backlog = self.backlog_bytes_max
        check(self, "backlog_bytes_max", backlog >= 2 * journal, "twice journal_bytes_max or more")
        segment = self.segment_bytes_max
        check(self, "segment_bytes_max", 1 << 12 <= segment <= 1 << 40, "4KiB to 1TiB")
        check(self, "queue_bytes_max", self.queue_bytes_max >= 1 << 12, "4KiB or more")
        check(self, "inline_bytes_max", 0 <= self.inline_bytes_max <= journal, "up to the journal")
        check(self, "run_bytes_min", 0 <= self.run_bytes_min <= segment, "up to segment_bytes_max")
        check(self, "read_threads", 1 <= self.read_threads <= 64, "1 to 64")
        check(self, "read_bytes_max", self.read_bytes_max >= 1 << 12, "4KiB or more")
        check(self, "maps_max", self.maps_max >= 1, "1 or more")
        check(self, "memory_bytes_max", self.memory_bytes_max >= 1 << 20, "1MiB or more")

    def __post_init__(self) -> None:
        self.validate()
