"""The directory of a region: which streams exist. It is a replicated log of the region's chain.

Each region has its own directory log. It has an entry for each stream that the region owns or has
learned of from another region, with the chain of this region that keeps the copy. Entries are
applied in the order of the log. The first entry with a name is used. A later entry with the same
name is used only if its stream *replaces* the earlier stream (whose history was given up), or
*follows* it (the earlier stream was deleted). In a directory that was repaired from other regions,
a replaced stream may be entered later than the stream that replaced it. The effect of an entry
depends only on this log, so all replicas get the same streams.

A deletion is not recorded in this log, but as the last event of the deleted stream's own log (the
End event). The entry of a deleted stream stays, so that its id remains known.
"""

import msgspec

from surecast.columns.batch import Batch
from surecast.core.streams import DIRECTORY, StreamInfo
from surecast.core.types import LogId
from surecast.errors import PeerError

__all__ = ["Directory", "info_batch"]


class DirectoryEntry(msgspec.Struct, array_like=True, frozen=True):
    """An entry for a stream that follows no other one."""

    info: StreamInfo
    chain: str  # the chain that keeps the copy; a region has only one chain today


class FollowingEntry(msgspec.Struct, array_like=True, frozen=True):
    """An entry for a stream that follows a deleted one of the same name. Entries are always decoded
    as this type."""

    info: StreamInfo
    chain: str
    # The id of the deleted stream. Empty: there is none, or the head did not know that it is
    # deleted.
    follows: bytes = b""


class Directory:
    """The streams of the committed entries, by id and by name."""

    def __init__(self) -> None:
        self.by_id: dict[LogId, StreamInfo] = {}  # also deleted and replaced streams
        self.by_name: dict[str, StreamInfo] = {}  # the stream that the name stands for now
        self.chains: dict[LogId, str] = {}
        self.made: dict[LogId, int] = {}  # streams created in this region → the chain's epoch then
        self.deleted: dict[LogId, None] = {}
        self.latest: dict[str, LogId] = {}  # by name: the newest stream, deleted or not
        self.former: dict[LogId, None] = {}  # streams that other entries replace or follow

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
            # Either the name is new, or the stream replaces or follows the newest one of the name,
            # or (in a repaired directory) an entry before this one replaces or follows this stream.
            fits = is_former or before in (None, info.replaces, entry.follows)
            if info.stream_id in self.by_id or not fits:
                continue
            if row.tag is not None:  # see `info_batch`
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
        """Mark a stream as deleted, so that its name is free. Called when its End event is
        committed."""
        self.deleted[info.stream_id] = None
        if self.latest.get(info.name) == info.stream_id:
            self.by_name.pop(info.name, None)

    def undelete(self, info: StreamInfo) -> None:
        """Undo `delete`, because the End event was truncated."""
        if self.deleted.pop(info.stream_id, 0) is None and self.latest[info.name] == info.stream_id:
            self.by_name[info.name] = info

    def follows(self, name: str) -> bytes:
        """The id of the newest stream of that name, if it is deleted; else b""."""
        latest = self.latest.get(name, b"")
        return latest if latest in self.deleted else b""


def info_batch(info: StreamInfo, chain: str, made_epoch: int, follows: bytes = b"") -> Batch:
    """An entry of the directory. Entries of streams created in this region are tagged with the
    epoch of their creation."""
    entry = FollowingEntry(info, chain, follows) if follows else DirectoryEntry(info, chain)
    tags: list[bytes | None] | None = [b"%d" % made_epoch] if made_epoch else None
    return Batch.of(DIRECTORY, [msgspec.msgpack.encode(entry)], [info.stream_id], tags)
