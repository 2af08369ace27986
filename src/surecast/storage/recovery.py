"""Opening a store: the manifest, the journals on top of it, and nothing that a crash has left.

Segments are not read, only missed if they are not there. The last journal may end in a torn record,
which is cut off; one that is followed by another was wholly on disk before that was begun.
"""

import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from surecast.core.types import Append, LogId, SaveState, Truncate
from surecast.errors import StorageError
from surecast.storage.config import StorageConfig
from surecast.storage.extents import Extent, Shelf
from surecast.storage.folder import Folder, Paths
from surecast.storage.journal_file import JournalFile
from surecast.storage.manifest import Extents, Manifest, read_manifest
from surecast.storage.mover import Mover
from surecast.storage.records import (
    LIFE,
    Moved,
    Rewritten,
    number_record,
    read_records,
)
from surecast.storage.segment_disk import SegmentDisk

__all__ = ["Recovered", "Replay", "content_of", "journals_of", "recover"]


class Recovered(NamedTuple):
    disk: SegmentDisk
    shelf: Shelf
    mover: Mover
    file: JournalFile  # to go on in
    incarnation: int  # of the life that begins
    held: list[Extent]  # that records of the journals refer to
    cut_bytes: int  # of a torn tail
    sealed_bytes: int  # of the journals before the last


def recover(folder: Folder, config: StorageConfig) -> Recovered:
    """Raises StorageError if something is missing, damaged or cannot be written."""
    shelf = Shelf(folder, config.maps_max)
    manifest = read_manifest(folder.manifest)
    journals = journals_of(folder, manifest)
    replay = Replay(shelf, manifest)
    for number in journals:
        replay.play(folder.journal(number))
    used = replay.segments()
    present = folder.numbers("segment")
    if missing := sorted(used.keys() - set(present)):
        raise StorageError(f"{folder.segment(missing[0])} is missing: put it back from a copy")
    current = journals[-1] if journals else manifest.journal
    file = JournalFile(folder, current, config.sync == "data")
    try:
        for number in journals[:-1]:
            _cut(folder.journal(number), replay.ends[number])
        file.cut(replay.ends.get(current, 0))
        _, unwritten = file.append([number_record(LIFE, replay.incarnation + 1)])
        if unwritten is not None:  # the next life would take itself for this one
            raise unwritten
        file.sync()
    except OSError as problem:
        file.close()
        raise StorageError(f"cannot write to {folder.path}: {problem}") from problem
    manifest.segment_next = max([manifest.segment_next, *(number + 1 for number in present)])
    mover = Mover(folder, shelf, config, manifest, replay.manifest_logs)
    mover.remove([number for number in present if number not in used])
    with suppress(OSError):
        os.unlink(folder.path / "manifest.new")
    mover.tidy()
    replay.disk.sync()
    return Recovered(
        replay.disk,
        shelf,
        mover,
        file,
        replay.incarnation + 1,
        replay.held,
        replay.cut_bytes,
        sum(replay.ends[number] for number in journals[:-1]),
    )


def journals_of(folder: Paths, manifest: Manifest) -> list[int]:
    """The journals to be played, none of which may be missing."""
    found = [number for number in folder.numbers("journal") if number >= manifest.journal]
    due = list(range(manifest.journal, manifest.journal + len(found)))
    new = manifest.journal == 1 and not manifest.incarnation
    if found != due or not (found or new):
        missing = next((n for n in due if n not in found), manifest.journal)
        raise StorageError(
            f"{folder.journal(missing)} is missing, or the manifest is an old one: "
            "put them back together from one copy"
        )
    return found


class Replay:
    """A disk on its way from the manifest's state to the journals' end."""

    def __init__(self, shelf: Shelf, manifest: Manifest) -> None:
        self.disk = SegmentDisk()
        self.incarnation = manifest.incarnation
        self.held: list[Extent] = []
        self.cut_bytes = 0
        self.ends: dict[int, int] = {}  # of each journal's whole records
        self.manifest_logs: dict[LogId, list[Extent]] = {}
        self._shelf = shelf
        self._torn: Path | None = None
        for name, rows in manifest.logs.items():
            self.manifest_logs[name] = extents = _extents(shelf, rows)
            self.disk.load(name, extents)
        for state, data in manifest.states:
            self.disk.save(state, data)

    def segments(self) -> dict[int, None]:
        """All that the manifest or a record refers to."""
        listed = [extent for some in self.manifest_logs.values() for extent in some]
        return {extent.segment.number: None for extent in [*listed, *self.held]}

    def play(self, path: Path) -> None:
        end = 0
        try:
            data = content_of(path)
            for end, record in read_records(data):  # noqa: B007
                if self._torn is not None:
                    raise StorageError(
                        f"the record at offset {self.ends[number_of(self._torn)]:,} of "
                        f"{self._torn.name} is damaged: {path.name} was begun when it was on disk"
                    )
                self._redo(record)
        except OSError as problem:
            raise StorageError(f"cannot read {path}: {problem}") from problem
        except StorageError as problem:
            raise StorageError(f"{path}: {problem}") from problem
        self.ends[number_of(path)] = end
        self.disk.sync()
        if end < len(data):
            self.cut_bytes += len(data) - end
            self._torn = self._torn or path

    def _redo(self, record: Any) -> None:
        disk = self.disk
        if type(record) is tuple:
            kind, number = record
            if kind == LIFE:
                self.incarnation = number
        elif type(record) is Append:
            disk.append(record.log, record.batches)
        elif type(record) is SaveState:
            disk.save(record.name, record.data)
        elif type(record) is Truncate:
            disk.truncate(record.log, record.end)
        elif type(record) is Rewritten:
            batches = record.batches
            disk.splice(record.log, batches[0].lo, batches[-1].hi, batches)
        else:
            assert type(record) is Moved, record
            extents = _extents(self._shelf, record.extents)
            self.held += extents
            disk.splice(record.log, extents[0].lo, extents[-1].hi, extents)


def number_of(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _extents(shelf: Shelf, rows: Extents) -> list[Extent]:
    return [Extent(shelf.segment(number), *rest) for number, *rest in rows]


def content_of(path: Path) -> memoryview:
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return memoryview(b"")
        # Batches are copied out of it: it may be cut when all of it is read.
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _cut(path: Path, size: int) -> None:
    """Of a journal that is not the last, what no later one has called written."""
    if path.stat().st_size > size:
        file = os.open(path, os.O_WRONLY)
        try:
            os.ftruncate(file, size)
            os.fsync(file)
        finally:
            os.close(file)
