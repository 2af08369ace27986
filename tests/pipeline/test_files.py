"""A task reads every position once, even if a segment lacks some of them.

The checksums of these segments are right, but they hold less than their index or directory states,
as after a bug in the program that wrote them.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from surecast.columns.batch import SUPERSEDED, Batch
from surecast.columns.intervals import IntervalSet
from surecast.pipeline import files
from surecast.pipeline.plan import Range
from surecast.pipeline.region import Server
from surecast.storage.extents import Extent, Shelf
from surecast.storage.folder import Paths
from surecast.storage.segment_file import SegmentWriter

STREAM = b"s" * 16
NUMBER = 7  # of the segment
END = 31  # the stream is [1, END)


def batch_of(lo: int, hi: int) -> Batch:
    return Batch.of(STREAM, [b"%d" % seq for seq in range(lo, hi)]).sequenced(lo, 5, 1)


class Segment:
    """A segment with one run that holds `pieces`, and a fake server that reports it as complete."""

    def __init__(self, directory: Path, pieces: list[tuple[int, int]], voids: IntervalSet) -> None:
        self.directory = directory
        self.voids = voids
        self.fetched: list[tuple[int, int]] = []  # ranges read from servers instead
        writer = SegmentWriter(Paths(directory).segment(NUMBER), NUMBER, lambda: None)
        writer.begin(STREAM)
        for lo, hi in pieces:
            writer.add(batch_of(lo, hi))
        writer._hi = END
        writer.finish()
        writer.close()
        (self.run,) = writer.runs

    def ask_server(self, http: str, path: str, token: str) -> dict[str, Any]:
        lo, hi = (int(part.split("=")[1]) for part in path.split("?")[1].split("&"))
        return {
            "stream_id": STREAM.hex(),
            "directory": str(self.directory),
            "lo": lo,
            "hi": hi,
            "extents": [[NUMBER, 0, 1, END, self.run.index_crc]],
            "voids": {
                "collected": b64encode(IntervalSet().to_bytes()),
                "expired": b64encode(IntervalSet().to_bytes()),
                "superseded": b64encode(self.voids.clip(lo, hi).to_bytes()),
            },
        }

    def elsewhere(self, lo: int, hi: int) -> Iterator[Batch]:
        self.fetched.append((lo, hi))
        yield batch_of(lo, hi).without(self.voids, SUPERSEDED)

    def read(self, lo: int, hi: int) -> list[Batch]:
        self.fetched.clear()
        span, server = Range("orders", STREAM, lo, hi), Server("", str(self.directory))
        return list(files.read(span, server, "", self.elsewhere))


PIECES = {
    "a gap between two batches": [(1, 11), (16, 21), (21, END)],
    "a gap before the first batch": [(6, 11), (11, 21), (21, END)],
    "a gap after the last batch": [(1, 11), (11, 21), (21, 26)],
}
VOIDS = {"no voids": IntervalSet(), "some voids": IntervalSet([(3, 5), (17, 18)])}


def every_position_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: str, voids: str
) -> None:
    segment = Segment(tmp_path, PIECES[pieces], VOIDS[voids])
    monkeypatch.setattr(files, "ask_server", segment.ask_server)
    for lo in range(1, END):
        for hi in range(lo + 1, END + 1):
            at = lo
            for batch in segment.read(lo, hi):
                assert batch.lo == at, (lo, hi)
                at = batch.hi
                for row in batch.to_rows():
                    assert row.value == b"%d" % row.seq
                    assert row.seq not in segment.voids
            assert at == hi, (lo, hi)
    segment.read(1, END)
    assert segment.fetched, "nothing was missing in the file"


@pytest.mark.parametrize("voids", VOIDS)
@pytest.mark.parametrize("pieces", PIECES)
def test_positions_missing_in_a_file_are_read_from_the_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: str, voids: str
) -> None:
    every_position_is_read_once(tmp_path, monkeypatch, pieces, voids)


def test_a_complete_file_needs_no_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = Segment(tmp_path, [(1, 11), (11, 21), (21, END)], VOIDS["some voids"])
    monkeypatch.setattr(files, "ask_server", segment.ask_server)
    for lo, hi in ((1, END), (1, 11), (5, 25), (11, 12), (30, END)):
        found = segment.read(lo, hi)
        assert (found[0].lo, found[-1].hi) == (lo, hi)
        assert segment.fetched == []


def passes_gaps_on(
    one: Range, shelf: Shelf, row: tuple[int, int, int, int, int], lo: int, hi: int
) -> Iterator[Batch]:
    """A mutant: `files._from_file` without its checks of the next position."""
    number, index, *_ = row
    run = shelf.mapped(number).run(index)
    for batch in Extent(shelf.segment(number), index, run.lo, run.hi, 0, 0).batches(lo, hi):
        if batch.hi > lo:
            yield batch.slice(max(lo, batch.lo), min(hi, batch.hi))


@pytest.mark.parametrize("voids", VOIDS)
@pytest.mark.parametrize("pieces", PIECES)
def test_the_check_fails_if_gaps_are_not_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: str, voids: str
) -> None:
    monkeypatch.setattr(files, "_from_file", passes_gaps_on)
    with pytest.raises(AssertionError):
        every_position_is_read_once(tmp_path, monkeypatch, pieces, voids)
