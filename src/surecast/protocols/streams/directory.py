"""Which streams exist. The directory is a log of the chain, so that it is replicated like one.

Each region keeps its own directory log: streams it owns, and those it has heard of, each with the
chain of this region that keeps its copy. Entries come in the log's order; the first entry of a name
wins, unless a later one says that it replaces it.
"""

import msgspec

from surecast.columns.batch import Batch
from surecast.core.streams import DIRECTORY, StreamInfo
from surecast.core.types import LogId
from surecast.errors import PeerError

__all__ = ["Directory", "info_batch"]


class DirectoryEntry(msgspec.Struct, array_like=True, frozen=True):
    info: StreamInfo
    chain: str  # of this region; one today, several when a region uses several processes


class Directory:
    """The committed entries, by id and by name."""

    def __init__(self) -> None:
        self.by_id: dict[LogId, StreamInfo] = {}
        self.by_name: dict[str, StreamInfo] = {}
        self.chains: dict[LogId, str] = {}
        self.made: dict[LogId, int] = {}  # streams created through this very log → epoch

    def apply(self, batch: Batch) -> list[StreamInfo]:
        """Take in a committed batch of the log; the entries that are new."""
        new = []
        for row in batch.to_rows():
            try:
                entry = msgspec.msgpack.decode(row.value, type=DirectoryEntry)
            except msgspec.DecodeError as error:
                raise PeerError(f"directory entry {row.seq} cannot be read: {error}") from None
            info = entry.info
            named = self.by_name.get(info.name)
            if info.stream_id in self.by_id or (named and info.replaces != named.stream_id):
                continue
            if row.tag is not None:
                self.made[info.stream_id] = int(row.tag)
            self.chains[info.stream_id] = entry.chain
            self.by_id[info.stream_id] = self.by_name[info.name] = info
            new.append(info)
        return new


def info_batch(info: StreamInfo, chain: str, made_epoch: int) -> Batch:
    """An entry. Streams created here, not heard of, are tagged with the epoch of their creation."""
    tags: list[bytes | None] | None = [b"%d" % made_epoch] if made_epoch else None
    return Batch.of(
        DIRECTORY, [msgspec.msgpack.encode(DirectoryEntry(info, chain))], [info.stream_id], tags
    )
