"""Journals, manifests and segments of an earlier build are read, and written with the same bytes.

The bytes are in tests/fixtures/VERSION/storage; tests/golden_files.py says how to regenerate
them. Complete folders, written by a running store, are in VERSION/log (test_fixtures.py).
"""

from pathlib import Path
from typing import Any

from tests.golden_files import golden

from surecast.columns.batch import COLLECTED, Batch
from surecast.columns.intervals import IntervalSet
from surecast.core.types import Append, SaveState, Truncate
from surecast.storage.config import LOG_LIMITS
from surecast.storage.folder import Folder
from surecast.storage.manifest import Manifest, read_manifest, write_manifest
from surecast.storage.records import (
    LIFE,
    MARK,
    SEAL,
    Moved,
    Record,
    Rewritten,
    moved_record,
    number_record,
    read_records,
    record_of,
    rewritten_record,
)
from surecast.storage.segment_file import Mapped, SegmentWriter

LOG, OTHER, PUBLISHER = bytes(range(16)), bytes(range(16, 32)), bytes(range(0xA0, 0xB0))
JOURNAL = 7
SEGMENT = 3


def rows(lo: int, count: int, log: bytes = LOG) -> Batch:
    values = [b"value %d" % (lo + i) for i in range(count)]
    keys = [b"key %d" % i if i % 3 else None for i in range(count)]
    batch = Batch.of(log, values, keys, publisher=PUBLISHER, pub_no=lo)
    return batch.sequenced(lo, 1_700_000_000_000_000_000 + lo, 5)


SPARSE = rows(1, 8).without(IntervalSet([(2, 5)]), COLLECTED)
EXTENTS = [(SEGMENT, 0, 1, 9, 4096, 1_700_000_000_000_000_001), (SEGMENT, 1, 9, 20, 512, -1)]

# ---------------------------------------------------------------- the journal

RECORDS: list[Any] = [
    (LIFE, 2),
    Append(LOG, (rows(1, 3), Batch.void(LOG, 4, 100, COLLECTED)), None),
    Append(OTHER, (rows(1, 1, OTHER),), None),
    SaveState("chain", b"\x00some state\xff", None),
    Truncate(LOG, 60),
    Rewritten(LOG, (SPARSE,)),
    Moved(LOG, EXTENTS),
    (MARK, 0),
    (SEAL, 0),
]


def as_record(found: Any) -> Record:
    if isinstance(found, Rewritten):
        return rewritten_record(found.log, found.batches)
    if isinstance(found, Moved):
        return moved_record(found.log, found.extents)
    if isinstance(found, tuple):
        return number_record(*found)
    return record_of(found, LOG_LIMITS)


def journal(records: list[Any]) -> bytes:
    """A journal in which each record states that it is synced up to the previous one."""
    data = b""
    synced = 0
    for record in records:
        encoded = b"".join(as_record(record).encode(JOURNAL, len(data), synced))
        synced = len(data)
        data += encoded
    return data


def test_a_journal_written_earlier_is_read_and_written_the_same() -> None:
    made = journal(RECORDS)
    stored = golden("storage/journal", made)
    assert made == stored
    found = [record for _, record in read_records(memoryview(stored), JOURNAL, len(stored))]
    assert [type(record) for record in found] == [type(record) for record in RECORDS]
    assert journal(found) == stored


def test_the_contents_of_the_journal_equal_literals() -> None:
    stored = golden("storage/journal", journal(RECORDS))
    life, first, other, state, cut, rewritten, moved, mark, seal = (
        record for _, record in read_records(memoryview(stored), JOURNAL, len(stored))
    )
    assert (life, mark, seal) == ((5, 2), (6, 0), (8, 0))
    assert first.log == bytes(range(16))
    assert [(batch.lo, batch.hi, batch.rows) for batch in first.batches] == [(1, 4, 3), (4, 100, 0)]
    assert [row.value for row in other.batches[0].to_rows()] == [b"value 1"]
    assert (state.name, state.data) == ("chain", b"\x00some state\xff")
    assert cut == Truncate(bytes(range(16)), 60)
    assert [row.seq for row in rewritten.batches[0].to_rows()] == [1, 5, 6, 7, 8]
    assert moved.extents == EXTENTS


# ---------------------------------------------------------------- the manifest


def manifest() -> Manifest:
    return Manifest(
        journal=JOURNAL,
        incarnation=2,
        segment_next=SEGMENT + 1,
        logs={LOG: EXTENTS, OTHER: []},
        states=[("chain", b"\x00some state\xff"), ("empty", b"")],
        holes={LOG: [(20, 30, "body CRC")]},
    )


def written(folder: Path, value: Manifest) -> bytes:
    target = Folder(folder)
    try:
        write_manifest(target, value)
        return target.manifest.read_bytes()
    finally:
        target.close()


def test_a_manifest_written_earlier_is_read_and_written_the_same(tmp_path: Path) -> None:
    made = written(tmp_path / "made", manifest())
    stored = golden("storage/manifest", made)
    assert made == stored
    path = tmp_path / "stored"
    path.write_bytes(stored)
    found = read_manifest(path)
    assert found == manifest()
    assert written(tmp_path / "again", found) == stored


# ---------------------------------------------------------------- a segment


def segment(path: Path, runs: list[tuple[bytes, list[Batch]]]) -> bytes:
    writer = SegmentWriter(path, SEGMENT, lambda: None)
    for log, batches in runs:
        writer.begin(log)
        for batch in batches:
            writer.add(batch)
    writer.finish()
    writer.close()
    return path.read_bytes()


def test_a_segment_written_earlier_is_read_and_written_the_same(tmp_path: Path) -> None:
    runs = [(LOG, [SPARSE, rows(9, 11)]), (OTHER, [rows(1, 1, OTHER)])]
    made = segment(tmp_path / "made", runs)
    stored = golden("storage/segment", made)
    assert made == stored
    path = tmp_path / "stored"
    path.write_bytes(stored)
    mapped = Mapped(path, SEGMENT)
    found = []
    for number in range(mapped.runs):
        run = mapped.run(number)
        los, offsets, _, _ = mapped.index(run, number)
        batches = [mapped.batch(at, lo)[0] for at, lo in zip(offsets, los, strict=True)]
        found.append((run.log, batches))
    assert [(log, [batch.lo for batch in batches]) for log, batches in found] == [
        (LOG, [1, 9]),
        (OTHER, [1]),
    ]
    assert segment(tmp_path / "again", found) == stored
