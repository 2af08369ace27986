"""Opening a store: reads the manifest, replays the journals, removes files left by a crash.

segments.py calls `recover`; inspect.py uses `Replay`, which reads without changing anything. The
whole folder is read and verified first. Damage never prevents opening: readable positions can be
read, and unreadable positions become holes of their log. If the newest changes may be missing, the
state `DAMAGE` says why.

If no damage was found, the last journal continues after its last whole record. Otherwise the store
is repaired at once, in the same way as by a move (mover.py): the content of all journals is written
to a segment, and a new manifest with the holes and the state `DAMAGE` replaces the old one. Until
the new manifest is on disk, no file is cut or removed, and the mark (journal_file.py) is not
written. So a crash during the repair leaves the folder as it was.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from surecast.core.types import DAMAGE, Append, Batch, LogId, SaveState, Truncate
from surecast.errors import StorageError
from surecast.storage.check import Progress
from surecast.storage.config import StorageConfig
from surecast.storage.extents import Extent, Shelf
from surecast.storage.folder import Damaged, Folder, Paths
from surecast.storage.frames import Lost
from surecast.storage.journal_file import (
    NEW,
    EndsMark,
    JournalFile,
    MarkFile,
    create_journal,
    read_mark,
)
from surecast.storage.manifest import Manifest, read_manifest
from surecast.storage.memory import Hole
from surecast.storage.mover import Mover, Snapshot
from surecast.storage.records import (
    APPEND,
    LIFE,
    SAVE,
    SEAL,
    TRUNCATE,
    DamagedRecord,
    Moved,
    Rewritten,
    number_record,
    read_records,
)
from surecast.storage.salvage import Salvage
from surecast.storage.segment_disk import SegmentDisk, own
from surecast.storage.segment_file import open_map

__all__ = ["Recovered", "Replay", "recover"]

log = logging.getLogger("surecast.storage")

_REASONS_MAX: Final = 20  # maximum number of reasons in the state DAMAGE
_LINES_MAX: Final = 20  # maximum number of logged warnings about damage
_PROGRESS_AFTER_S: Final = 2.0
_PROGRESS_EVERY_S: Final = 30.0


class Recovered(NamedTuple):
    """The parts of a store that has been opened, for `SegmentStore`."""

    disk: SegmentDisk
    shelf: Shelf
    mover: Mover
    file: JournalFile  # the journal file that is continued
    incarnation: int  # the number of the node's run that begins now
    held: list[Extent]  # extents that records of the journals refer to
    cut_bytes: int  # size of the torn records that were cut off
    sealed_bytes: int  # total size of all journals but the last
    damage: list[str]  # lines for the operator


def recover(folder: Folder, config: StorageConfig) -> Recovered:
    """Open the store in `folder`. Raises StorageError if a file cannot be read or written, or was
    written by a later version."""
    shelf = Shelf(folder, config.maps_max)
    replay = Replay(folder, shelf)
    mover = Mover(folder, shelf, config, replay.manifest)
    try:
        replay.run(config.check, mover, _report(folder))
        mover.load(replay.manifest_logs)
        if replay.found:
            _repair(folder, replay, mover)
        file = _begin_run(folder, replay, config)
    except OSError as problem:
        raise StorageError(f"cannot write to {folder.path}: {problem}") from problem
    used = {**mover.segments(), **{extent.segment.number: None for extent in replay.held}}
    mover.remove([number for number in folder.numbers("segment") if number not in used])
    with suppress(OSError):
        os.unlink(folder.path / "manifest.new")
    mover.tidy()
    replay.disk.sync()
    damage = replay.damage()
    _log_damage(folder, damage)
    # After a repair, no journal but the current one is left.
    sealed = [n for n in replay.ends if n != replay.current] if not replay.found else []
    return Recovered(
        replay.disk,
        shelf,
        mover,
        file,
        replay.incarnation + 1,
        replay.held,
        replay.cut_bytes,
        sum(replay.ends[number] for number in sealed),
        damage,
    )


def _begin_run(folder: Folder, replay: "Replay", config: StorageConfig) -> JournalFile:
    """Open the journal after its last whole record and record the new incarnation."""
    marks = MarkFile(folder, replay.mark)
    try:
        file = JournalFile(folder, replay.current, config.sync == "data", marks)
    except BaseException:
        marks.abandon()
        raise
    try:
        if not replay.found:
            for number in replay.empty:
                os.unlink(folder.journal(number))
            file.cut(replay.ends.get(replay.current, 0))
        marks.incarnation = replay.incarnation + 1
        _, unwritten = file.append([number_record(LIFE, marks.incarnation)])
        if unwritten is not None:  # the next run would get the same incarnation
            raise unwritten
        file.sync_all()
    except BaseException:
        file.abandon()
        raise
    return file


def _repair(folder: Folder, replay: "Replay", mover: Mover) -> None:
    """Write the content that was read to new files. The next opening then finds the same content,
    and no damage except what the new manifest records."""
    disk = replay.disk
    if replay.lost:
        disk.save(DAMAGE, "\n".join(replay.reasons()).encode())
    disk.sync()
    create_journal(folder, replay.next_journal)
    states = [(name, disk.state(name) or b"") for name in disk.states()]
    dirty = disk.take_dirty()
    snapshot = Snapshot(dirty, states, replay.incarnation, [], disk.scopes(dirty))
    for name, groups in mover.move(snapshot, replay.next_journal, lambda: None):
        for group in groups:
            disk.moved(name, group.pieces, group.extent)
    replay.held.clear()
    replay.current = replay.next_journal


def _report(folder: Folder) -> Progress:
    """Returns a function that logs the progress of the check if the check takes long."""
    due = time.monotonic() + _PROGRESS_AFTER_S

    def report(done: int, total: int) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + _PROGRESS_EVERY_S
            log.info("checking %s: %.1f of %.1f GB", folder.path, done / 1e9, total / 1e9)

    return report


def _log_damage(folder: Folder, damage: list[str]) -> None:
    for line in damage[:_LINES_MAX]:
        log.warning("%s: %s", folder.path, line)
    if len(damage) > _LINES_MAX:
        log.warning("%s: %d more lines like these", folder.path, len(damage) - _LINES_MAX)


class Replay:
    """Builds the disk from the manifest and the journals. Changes no file of the folder, except
    that a `Mover` may copy batches to new segments."""

    def __init__(self, folder: Paths, shelf: Shelf) -> None:
        self.disk = SegmentDisk()
        self.mark: EndsMark | None = None  # None: the folder is new, or the mark is lost
        self.manifest = Manifest()  # empty if there is none
        self.manifest_logs: dict[LogId, list[Any]] = {}  # the logs before journals are replayed
        self.found: list[str] = []  # descriptions of all problems of files
        self.lost: dict[str, None] = {}  # those problems that may have destroyed the newest changes
        self.held: list[Extent] = []  # extents that records refer to
        self.cut_bytes = 0  # size of torn records at the ends of journals
        self.records = 0  # number of records in all journals
        self.ends: dict[int, int] = {}  # where the whole records of each journal end
        self.empty: list[int] = []  # empty journals after the last one that was written
        self._folder = folder
        self._shelf = shelf
        self._salvage = Salvage(shelf)
        self._salvage.found = self.found
        self._journals = folder.numbers("journal")
        self._segments = folder.numbers("segment")
        self._short: dict[LogId, str] = {}  # logs that may have had more positions, and why
        self._why = "records are missing"  # the latest problem; the reason for holes found next
        self._rebuild = False  # the manifest is lost: logs are rebuilt from the segments
        self._filling = False  # replayed records may be older than the content of the logs
        self._read_mark()
        self._read_manifest()
        self.incarnation = self.manifest.incarnation
        if self.mark is not None:
            self.incarnation = max(self.incarnation, self.mark.incarnation)
        known = [*self._journals, self.manifest.journal, self.mark.journal if self.mark else 1]
        self.next_journal = max(known) + 1  # a number that no journal has had
        self.current = self.manifest.journal  # number of the journal that is continued
        after = [number + 1 for number in self._segments]
        self.manifest.segment_next = max([self.manifest.segment_next, *after])

    def run(self, check: str, mover: Mover | None, on_progress: Progress) -> None:
        """Read all files. `check` is that of `StorageConfig`; without `mover`, batches from damaged
        segments stay in memory."""
        self._salvage.mover = mover
        if check == "all":
            self._salvage.check(self._segments, on_progress)
        if self._rebuild:
            why, self._why = self._why, f"{self._folder.manifest} is lost, and no segment holds it"
            for number in self._segments:
                for name, piece in self._salvage.everything(number):
                    self._rewrite(name, [piece])
            for name, scope in self._salvage.scopes.items():
                self.disk.claim(name, scope)
            self._why = why
        else:
            self._load()
        self._play_all()
        for name, why in self._short.items():
            end = self.disk.end(name)
            self._lose(f"log {name.hex()} may have had positions from {end:,} on: {why}")

    # ------------------------------------------------------------ reports

    @property
    def batches(self) -> int:
        """The number of batches in the segments that were checked."""
        return self._salvage.batches()

    def damage(self) -> list[str]:
        """All holes, the reasons why the newest changes may be missing, and other problems of
        files."""
        lines = dict(self._consequences())  # each line with its reason
        whys = dict.fromkeys(lines.values())
        return [*lines, *dict.fromkeys(problem for problem in self.found if problem not in whys)]

    def problems(self) -> list[str]:
        """All problems of files, then the consequences of earlier damage for the logs."""
        found = dict.fromkeys(self.found)
        return [*found, *(line for line, why in self._consequences() if why not in found)]

    def _consequences(self) -> Iterator[tuple[str, str]]:
        """Lines that say which positions or changes are lost, each with the reason."""
        for name in self.disk.logs():
            for hole in self.disk.hole_pieces(name):
                yield f"log {name.hex()}: {hole.problem()}", hole.why
        for why in self.reasons():
            yield f"the newest changes may be missing: {why}", why

    def reasons(self) -> list[str]:
        """The lines of the state `DAMAGE`: those from earlier openings, and those found now."""
        before = (self.disk.state(DAMAGE) or b"").decode(errors="replace")
        known = dict.fromkeys([*filter(None, before.split("\n")), *self.lost])
        return list(known)[:_REASONS_MAX]

    def _note(self, problem: str) -> None:
        """Add a problem to `found`."""
        if problem not in self.found[-1:]:  # one problem may affect many records in a row
            self.found.append(problem)

    def _lose(self, why: str) -> None:
        """Note a problem that may have destroyed the newest changes."""
        self._note(why)
        self.lost[why] = None

    # ------------------------------------------------------------ mark and manifest

    @property
    def _is_new(self) -> bool:
        """Whether the folder has no files, except perhaps an unfinished mark."""
        files = self._journals or self._segments or self._folder.manifest.exists()
        return self.mark is None and not files

    def _read_mark(self) -> None:
        path = self._folder.ends
        try:
            self.mark = read_mark(path)
            why = f"{path} is missing"
        except Damaged as problem:
            why = str(problem)
        if self.mark is None and not self._is_new:
            self._lose(why)

    def _read_manifest(self) -> None:
        """Read the manifest. If it is lost, decide to rebuild the logs from the segments."""
        path = self._folder.manifest
        exists = path.exists()
        try:
            self.manifest = read_manifest(path)
        except Damaged as problem:
            exists = False
            self._note(str(problem))
        if exists:
            return
        journals = self._journals
        if journals == list(range(1, len(journals) + 1)) and (journals or not self._segments):
            # The journals are complete from number 1 on, so they hold everything: the folder had no
            # manifest yet.
            return
        self._rebuild = True
        self._lose(f"{path} is lost: logs are rebuilt from segments, states may be old")
        if journals:
            self.manifest.journal = journals[0]
        elif self.mark is not None:
            self.manifest.journal = self.mark.journal

    def _load(self) -> None:
        """Set logs and states to those of the manifest."""
        manifest = self.manifest
        for name in dict.fromkeys([*manifest.logs, *manifest.holes]):
            pieces: list[Any] = [Hole(*row) for row in manifest.holes.get(name, ())]
            for row in manifest.logs.get(name, ()):
                pieces += self._salvage.pieces(name, row)
            pieces.sort(key=lambda piece: int(piece.lo))
            self.manifest_logs[name] = pieces
            self.disk.load(name, list(pieces))
            self.disk.claim(name, manifest.scopes.get(name, 0))
        for state, data in manifest.states:
            self.disk.save(state, data)

    # ------------------------------------------------------------ journals

    def _play_all(self) -> None:
        """Replay all journals from the manifest's on; `written` is the last one with content."""
        folder, mark = self._folder, self.mark
        first = due = self.manifest.journal  # `due`: the number that the next journal must have
        present = [number for number in self._journals if number >= first]
        sizes = {number: _size(folder.journal(number)) for number in present}
        written = max([0, *(number for number in present if sizes[number])])
        if mark is not None:
            written = max(written, mark.journal)
        gaps = [a for a, b in pairwise(present) if b != a + 1]
        for number in present:
            if number != due:
                self._missing(due, number)
            due = number + 1
            # The content of a journal before a gap may have moved to segments, and may have been
            # changed there by records of the missing journals.
            self._filling = self._rebuild and number <= max(gaps, default=0)
            if number > max(written, first):
                self.empty.append(number)
                continue
            self.current = number
            self._play(number, number < written)
        if mark is None:
            if not present and not self._is_new:
                self._missing(first, first + 1)
        elif mark.journal >= due and mark[1:] != NEW[1:]:  # all fields except `writes`
            self._missing(due, mark.journal + 1)

    def _missing(self, lo: int, hi: int) -> None:
        """Note that the journals with numbers in [lo, hi) are missing."""
        last = f" to {self._folder.journal(hi - 1).name}" if hi > lo + 1 else ""
        self._why = f"{self._folder.journal(lo)}{last} is missing"
        self._lose(self._why)

    def _play(self, number: int, sealed: bool) -> None:
        """Replay a journal. `sealed`: the journal has a successor, so all of it was on disk."""
        path = self._folder.journal(number)
        try:
            data = open_map(path)  # batches are copied, so the map is not kept
        except OSError as problem:
            raise StorageError(f"cannot read {path}: {problem}") from problem
        claimed = self.mark.size if self.mark is not None and self.mark.journal == number else 0
        end, kind = 0, 0  # of the last record; kind 0: one that has no number
        records = read_records(data, number, max(claimed, len(data) if sealed else 0))
        while True:
            try:
                end, record = next(records)
            except StopIteration:
                break
            except StorageError as problem:
                raise StorageError(f"{path}: {problem}") from problem
            self.records += 1
            if type(record) is DamagedRecord:
                kind = record.kind
                self._redo_damaged(path, record)
            else:
                kind = record[0] if type(record) is tuple else 0
                self._redo(path, record)
        self.ends[number] = end
        self.disk.sync()
        self.cut_bytes += len(data) - end
        if sealed and kind != SEAL:
            self._why = f"{path} was cut short: it ends at {len(data):,} without a seal"
            self._lose(self._why)
        elif len(data) < claimed:
            self._why = f"{path} was cut short: it has {len(data):,} bytes of {claimed:,}"
            self._lose(self._why)

    def _redo(self, path: Path, record: Any) -> None:
        """Apply a record (`records.read_records`) to the disk."""
        disk = self.disk
        if type(record) is tuple:
            kind, number = record
            if kind == LIFE:
                self.incarnation = max(self.incarnation, number)
        elif type(record) is SaveState:
            disk.save(record.name, record.data)
        elif self._filling:
            for batch in getattr(record, "batches", ()):
                self._fill(record.log, batch)
        elif type(record) is Append:
            self.disk.claim(record.log, record.scope)
            self._append(record.log, record.batches)
        elif type(record) is Truncate:
            self._truncate(record.log, record.end)
        elif type(record) is Rewritten:
            self._rewrite(record.log, list(record.batches))
        else:
            assert type(record) is Moved, record
            for row in record.extents:
                # Unreadable parts of a compaction's result are skipped: there, the log keeps the
                # batches from before the compaction.
                pieces = self._salvage.pieces(record.log, row)
                self.held += [piece for piece in pieces if type(piece) is Extent]
                for piece in pieces:
                    if type(piece) is not Hole:
                        self._rewrite(record.log, [piece])

    def _redo_damaged(self, path: Path, record: DamagedRecord) -> None:
        """Apply the readable part of a damaged record, and note what may be lost."""
        why = f"{path}: the record at offset {record.at:,} is damaged: {record.why}"
        self._why = why
        self._note(why)
        if record.kind in (0, SAVE, TRUNCATE):  # 0: it may have been one of these
            self._lose(why)
        elif record.kind == LIFE and self.mark is None:
            self.incarnation += 1  # a run began here; its number cannot be read
        if record.kind == APPEND and not record.frames:  # how many positions it had is unknown
            self._short[record.log] = why
        for frame in record.frames:
            if isinstance(frame, Batch):
                # If the kind is unknown, the batch may be of an append or of a compaction.
                name = record.log if record.kind else frame.stream_id
                if self._filling or not record.kind:
                    self._fill(name, frame)
                elif record.kind == APPEND:
                    self._append(name, (frame,))
                else:
                    self._rewrite(name, [frame])
            elif record.kind == APPEND and not self._filling:
                self._lose_frame(record.log, frame)
            elif not record.kind:
                self.disk.skip(frame.log, frame.hi, why)

    def _lose_frame(self, name: LogId, frame: Lost) -> None:
        """Make a hole of an appended batch that cannot be read."""
        if not frame.hi:  # its positions are unknown
            self._short[name] = self._why
            return
        self._short.pop(name, None)
        if frame.lo < self.disk.end(name):  # only possible after a truncate, which is missing
            self._lost_truncate(name, frame.lo)
        self.disk.skip(name, frame.hi, self._why)

    # ------------------------------------------------------------ logs that have gaps

    def _append(self, name: LogId, batches: tuple[Batch, ...]) -> None:
        """Replay an append. If it does not begin at the log's end, earlier records are missing."""
        disk = self.disk
        if batches[0].lo != disk.end(name):
            self._reach(name, batches[0].lo)
            if batches[0].lo < disk.end(name):
                self._lost_truncate(name, batches[0].lo)
        self._short.pop(name, None)
        disk.append(name, batches)

    def _truncate(self, name: LogId, end: int) -> None:
        """Replay a truncate. Its position may be above the log's end, because an append before it
        failed; then it changes nothing."""
        if end <= self.disk.end(name):
            self._short.pop(name, None)
        self._change(name, lambda: self.disk.truncate(name, end))

    def _lost_truncate(self, name: LogId, lo: int) -> None:
        """Truncate the log to `lo`, as a record that is missing must have done."""
        self._lose(f"log {name.hex()} was truncated to {lo:,} by a record that is lost")
        self._change(name, lambda: self.disk.truncate(name, lo))

    def _rewrite(self, name: LogId, pieces: list[Any]) -> None:
        """Replace the positions of consecutive pieces by these pieces."""
        pieces = [own(piece) if type(piece) is Batch else piece for piece in pieces]
        lo, hi = pieces[0].lo, pieces[-1].hi
        self._reach(name, hi)
        self._change(name, lambda: self.disk.splice(name, lo, hi, pieces))

    def _fill(self, name: LogId, batch: Batch) -> None:
        """Add a batch that may be outdated. It is used only for positions without other data."""
        self._reach(name, batch.hi)
        for lo, hi in self.disk.holes(name):
            lo, hi = max(lo, batch.lo), min(hi, batch.hi)
            if lo < hi:
                self._rewrite(name, [batch.slice(lo, hi)])

    def _reach(self, name: LogId, end: int) -> None:
        """Extend the log to `end` with a hole, if the log ends below it."""
        if end > self.disk.end(name):
            self._why = self._short.get(name, self._why)
            self._note(self._why)
            self.disk.skip(name, end, self._why)

    def _change(self, name: LogId, change: Callable[[], None]) -> None:
        """Run `change`; if an unchecked segment is damaged, check the log's segments and retry."""
        try:
            change()
        except StorageError:
            pieces = self.disk.pieces(name, 1, self.disk.end(name))
            self._salvage.force(p.segment.number for p in pieces if type(p) is Extent)
            new: list[Any] = []
            for piece in pieces:
                new += self._salvage.pieces(name, piece.row()) if type(piece) is Extent else [piece]
            self.disk.splice(name, 1, self.disk.end(name), new)
            change()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as problem:
        raise StorageError(f"cannot read {path}: {problem}") from problem
