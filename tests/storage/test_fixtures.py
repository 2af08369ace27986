"""Data directories of all earlier versions can be read: tests/fixtures/VERSION/log.

`python -m tests.release_fixtures` writes those of a new version, beside the old ones.
"""

import shutil
from pathlib import Path

import pytest
from tests.golden_files import RELEASES
from tests.storage.stores import LOG, OTHER, Driver, small

from surecast.columns.batch import COLLECTED, EXPIRED, Batch, Row
from surecast.columns.compaction import encode_voids
from surecast.columns.intervals import IntervalSet
from surecast.core.types import Append, Compact, SaveState, Truncate
from surecast.storage.inspect import info, verify
from surecast.storage.segments import SegmentStore

VERSIONS = sorted(path.parent.name for path in RELEASES.glob("*/log"))
END, CUT = 241, 231  # the first end of the long stream, and where it was truncated and continued
PUBLISHER = b"publisher number"


def made(lo: int, count: int, log: bytes = LOG) -> Batch:
    values = [b"value %d" % (lo + i) for i in range(count)]
    keys = [b"key %d" % ((lo + i) % 7) if (lo + i) % 5 else None for i in range(count)]
    batch = Batch.of(log, values, keys, publisher=PUBLISHER, pub_no=lo + 1000)
    return batch.sequenced(lo, lo * 1_000_000, 3)


def expected() -> tuple[dict[int, Row], dict[int, int]]:
    """The rows of the long stream, and the reasons of its void positions."""
    reasons: dict[int, int] = {}
    for seq in range(10, 131):
        if seq % 3 == 0:
            reasons[seq] = COLLECTED
        elif seq % 10 == 1:
            reasons[seq] = EXPIRED
    rows = {}
    for lo in range(1, END, 4):
        for row in made(lo, 4).to_rows():
            rows[row.seq] = row
    for lo in range(CUT, END + 10, 10):
        for row in made(lo, 10).to_rows():
            rows[row.seq] = row
    return {seq: row for seq, row in rows.items() if seq not in reasons}, reasons


def make(folder: Path) -> None:
    """Write the fixtures of the current version."""
    path = folder / "whole"
    driver = Driver(path, small(journal_bytes_max=1 << 20, inline_bytes_max=4000))
    for lo in range(1, END, 4):
        driver.do(Append(LOG, (made(lo, 4),), lo))
        driver.wait(1)
        if lo % 40 == 1:
            driver.do(SaveState("small", b"as of %d" % lo, "s"))
            driver.do(Append(OTHER, (made(driver.disk.end(OTHER), 1, OTHER),), "o"))
            driver.wait(2)
        if lo in (81, 161):  # the rest stays in the journal
            driver.store._move()
            driver.settle()
    _, reasons = expected()
    voids = {
        reason: IntervalSet([(s, s + 1) for s, why in reasons.items() if why == reason])
        for reason in (COLLECTED, EXPIRED)
    }
    for lo, hi in ((10, 91), (91, 131)):  # the first gets a segment, the second is in the journal
        some = {reason: positions.clip(lo, hi) for reason, positions in voids.items()}
        driver.do(Compact(LOG, lo, hi, encode_voids(some), 100, "c"))
        driver.wait(1)
    driver.do(Truncate(LOG, CUT))
    for lo in range(CUT, END + 10, 10):
        driver.do(Append(LOG, (made(lo, 10),), lo))
        driver.wait(1)
    driver.do(SaveState("small", b"the last", "s"), SaveState("empty", b"", "e"))
    driver.wait(2)
    driver.close()
    (path / "lock").unlink()
    torn = shutil.copytree(path, folder / "torn")
    journal = sorted(torn.glob("journal-*"))[-1]
    data = journal.read_bytes()
    journal.write_bytes(data + data[-400:-200])  # part of an incomplete record


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["whole", "torn"])
def test_a_directory_of_an_earlier_version_can_be_read(
    tmp_path: Path, version: str, kind: str
) -> None:
    folder = shutil.copytree(RELEASES / version / "log" / kind, tmp_path / "disk")
    verdict = verify(folder)
    assert verdict.problems == []
    assert bool(verdict.torn_bytes) == (kind == "torn")
    assert info(folder).lives == 1
    assert any(folder.glob("segment-*"))
    for incarnation in (2, 3):  # opening it again changes nothing
        store = SegmentStore(folder)
        disk = store.disk
        rows, reasons = expected()
        assert disk.end(LOG) == END + 10
        batches = disk.read(LOG, 1, END + 10, 1 << 40)
        assert {row.seq: row for b in batches for row in b.to_rows()} == rows
        live = {row.seq for b in batches for row in b.to_rows()}
        void = {s: b.reason for b in batches for s in range(b.lo, b.hi) if s not in live}
        assert void == reasons
        others = [row for b in disk.read(OTHER, 1, 99, 1 << 40) for row in b.to_rows()]
        assert [row.value for row in others] == [b"value %d" % n for n in range(1, 7)]
        assert disk.first_at(LOG, 150 * 1_000_000, 1, END) == 153
        assert (disk.state("small"), disk.state("empty")) == (b"the last", b"")
        assert store.incarnation == incarnation
        assert bool(store.cut_bytes) == (kind == "torn" and incarnation == 2)
        store.close()


def test_the_directories_of_the_first_release_are_there() -> None:
    assert "0.2.0" in VERSIONS
