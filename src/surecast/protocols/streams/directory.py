"""Which streams exist. The directory is a log of the chain, so that it is replicated like one.

Each region keeps its own directory log: streams it owns, and those it has heard of, each with the
chain of this region that keeps its copy. Entries come in the log's order; the first entry of a name
wins, unless a later one says that it replaces it, or that it follows it (which was deleted). What
an entry does depends on this log alone, so all replicas come to the same streams.

A deletion is not in this log: it is the last event of the deleted stream's own log. The entry
stays, so that the id is known for good.
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


class FollowingEntry(msgspec.Struct, array_like=True, frozen=True):
    """An entry whose head knew that the stream of the name before it, `follows`, was deleted."""

    info: StreamInfo
    chain: str
    follows: bytes = b""


class Directory:
    """The committed entries, by id and by name."""

    def __init__(self) -> None:
        self.by_id: dict[LogId, StreamInfo] = {}
        self.by_name: dict[str, StreamInfo] = {}
        self.chains: dict[LogId, str] = {}
        self.made: dict[LogId, int] = {}  # streams created through this very log → epoch
        self.deleted: dict[LogId, None] = {}
        self.latest: dict[str, LogId] = {}  # by name: the newest stream, deleted or not

    def apply(self, batch: Batch) -> list[StreamInfo]:
        """Take in a committed batch of the log; the entries that are new."""
        new = []
        for row in batch.to_rows():
            try:
                entry = msgspec.msgpack.decode(row.value, type=FollowingEntry)
            except msgspec.DecodeError as error:
                raise PeerError(f"directory entry {row.seq} cannot be read: {error}") from None
            info = entry.info
            before = self.latest.get(info.name)
            if info.stream_id in self.by_id or before not in (None, info.replaces, entry.follows):
                continue
            if row.tag is not None:
                self.made[info.stream_id] = int(row.tag)
            self.chains[info.stream_id] = entry.chain
            self.by_id[info.stream_id] = self.by_name[info.name] = info
            self.latest[info.name] = info.stream_id
            new.append(info)
        return new

    def delete(self, info: StreamInfo) -> None:
        """The stream's log has come to its End event: the name is free for another stream."""
        self.deleted[info.stream_id] = None
        if self.latest.get(info.name) == info.stream_id:
            self.by_name.pop(info.name, None)

    def undelete(self, info: StreamInfo) -> None:
        """The End event was taken back."""
        if self.deleted.pop(info.stream_id, 0) is None and self.latest[info.name] == info.stream_id:
            self.by_name[info.name] = info

    def follows(self, name: str) -> bytes:
        """The newest stream of that name, if it is deleted."""
        latest = self.latest.get(name, b"")
        return latest if latest in self.deleted else b""


def info_batch(info: StreamInfo, chain: str, made_epoch: int, follows: bytes = b"") -> Batch:
    """An entry. Streams created here, not heard of, are tagged with the epoch of their creation."""
    entry = FollowingEntry(info, chain, follows) if follows else DirectoryEntry(info, chain)
    tags: list[bytes | None] | None = [b"%d" % made_epoch] if made_epoch else None
    return Batch.of(DIRECTORY, [msgspec.msgpack.encode(entry)], [info.stream_id], tags)
