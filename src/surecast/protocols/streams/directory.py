"""Which streams exist. The directory is a log of the chain, and so it is replicated.

Each region has its own directory log: the streams that it owns and those learned from other
regions, each with the chain of this region that keeps its copy. Entries are applied in the log's
order. The first entry of a name wins, unless a later one replaces that stream, or follows it after
it was deleted. The stream that was replaced may be entered later than its successor, in a directory
that was repaired from other regions. The effect of an entry depends on this log alone, so all
replicas get the same streams.

A deletion is not in this log: it is the last event of the deleted stream's own log. The entry
stays, so that the id remains known.
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
    """An entry written by a head that knew that the previous stream of the name, `follows`, was
    deleted."""

    info: StreamInfo
    chain: str
    follows: bytes = b""


class Directory:
    """The committed entries, by id and by name."""

    def __init__(self) -> None:
        self.by_id: dict[LogId, StreamInfo] = {}
        self.by_name: dict[str, StreamInfo] = {}
        self.chains: dict[LogId, str] = {}
        self.made: dict[LogId, int] = {}  # streams created in this region → epoch
        self.deleted: dict[LogId, None] = {}
        self.latest: dict[str, LogId] = {}  # by name: the newest stream, deleted or not
        self.former: dict[LogId, None] = {}  # streams that entries replace or follow

    def apply(self, batch: Batch) -> list[StreamInfo]:
        """Apply a committed batch of the log. Returns the streams that it adds."""
        new = []
        for row in batch.to_rows():
            try:
                entry = msgspec.msgpack.decode(row.value, type=FollowingEntry)
            except msgspec.DecodeError as error:
                raise PeerError(f"directory entry {row.seq} cannot be read: {error}") from None
            info = entry.info
            before, is_former = self.latest.get(info.name), self._is_former(info.stream_id)
            fits = is_former or before in (None, info.replaces, entry.follows)
            if info.stream_id in self.by_id or not fits:
                continue
            if row.tag is not None:
                self.made[info.stream_id] = int(row.tag)
            self.chains[info.stream_id] = entry.chain
            self.former |= {info.replaces: None, entry.follows: None}
            self.by_id[info.stream_id] = info
            if not is_former:
                self.by_name[info.name] = info
                self.latest[info.name] = info.stream_id
            new.append(info)
        return new

    def _is_former(self, stream: LogId) -> bool:
        return stream in self.former

    def delete(self, info: StreamInfo) -> None:
        """The End event of the stream is committed: its name is free for another stream."""
        self.deleted[info.stream_id] = None
        if self.latest.get(info.name) == info.stream_id:
            self.by_name.pop(info.name, None)

    def undelete(self, info: StreamInfo) -> None:
        """The End event was truncated."""
        if self.deleted.pop(info.stream_id, 0) is None and self.latest[info.name] == info.stream_id:
            self.by_name[info.name] = info

    def follows(self, name: str) -> bytes:
        """The newest stream of that name, if it is deleted."""
        latest = self.latest.get(name, b"")
        return latest if latest in self.deleted else b""


def info_batch(info: StreamInfo, chain: str, made_epoch: int, follows: bytes = b"") -> Batch:
    """An entry of the directory. Entries of streams created in this region are tagged with the
    epoch of their creation."""
    entry = FollowingEntry(info, chain, follows) if follows else DirectoryEntry(info, chain)
    tags: list[bytes | None] | None = [b"%d" % made_epoch] if made_epoch else None
    return Batch.of(DIRECTORY, [msgspec.msgpack.encode(entry)], [info.stream_id], tags)
