"""Segments: damage of any byte is detected, views outlive files, and the plan of moves."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from tests.storage.stores import LOG, OTHER, Driver, batch, compact, content, names, small

from surecast.core.types import Append, Batch, Repair, Stored, StoreFailed, Truncate
from surecast.core.wire import encode_batch
from surecast.errors import StorageError
from surecast.storage.extents import Extent, Shelf
from surecast.storage.folder import Folder
from surecast.storage.inspect import verify
from surecast.storage.plan import groups_of, worn_out
from surecast.storage.segment_disk import own
from surecast.storage.segment_file import Mapped, SegmentWriter

Opened = Callable[..., Driver]


def written(path: Path) -> list[Batch]:
    """A segment of two runs; returns the batches of the first."""
    writer = SegmentWriter(path, 7, lambda: None)
    batches = [batch(1, 2), batch(3, 1, time_ns=9), batch(4, 5, 30)]
    writer.begin(LOG)
    for part in batches:
        writer.add(part)
    writer.begin(OTHER)
    writer.add(batch(1, 2, log=OTHER))
    writer.finish()
    writer.close()
    return batches


def read_all(path: Path) -> list[Batch]:
    """Every batch of a segment, found through its directory."""
    mapped = Mapped(path, 7)
    found = []
    for number in range(mapped.runs):
        run = mapped.run(number)
        los, offsets, *_ = mapped.index(run, number)
        for lo, at in zip(los.tolist(), offsets.tolist(), strict=True):
            found.append(mapped.batch(at, lo)[0])
    return found


def test_a_segment_contains_frames_byte_for_byte(tmp_path: Path) -> None:
    batches = written(tmp_path / "s")
    data = (tmp_path / "s").read_bytes()
    frames = b"".join(bytes(part) for b in batches for part in encode_batch(b))
    assert data[32 : 32 + len(frames)] == frames
    assert [(b.lo, b.hi, b.time_ns) for b in read_all(tmp_path / "s")] == [
        (1, 3, 5), (3, 4, 9), (4, 9, 5), (1, 3, 5),
    ]  # fmt: skip


@pytest.mark.slow
def test_corruption_of_any_byte_is_detected_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "s"
    written(path)
    data = path.read_bytes()
    rng = Random(1)
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 1 << rng.randrange(8)
        path.write_bytes(broken)
        with pytest.raises(StorageError) as caught:
            read_all(path)
        assert str(path) in str(caught.value)
        assert "damaged" in str(caught.value) or at < 4
        if 32 <= at < 32 + 128:
            assert "offset 32 " in str(caught.value)
    for size in range(0, len(data), 7):
        path.write_bytes(data[:size])
        with pytest.raises(StorageError):
            read_all(path)


def filled(driver: Driver, count: int = 40) -> None:
    for n in range(count):
        driver.do(Append(LOG, (batch(driver.disk.end(LOG), 3, 100),), n))
        assert driver.wait(1) == [Stored(n)]
    driver.settle()


def test_a_damaged_record_is_reported_and_never_served(opened: Opened) -> None:
    driver = opened(small())
    filled(driver)
    driver.close()
    path = sorted(driver.folder.glob("segment-*"))[0]
    data = bytearray(path.read_bytes())
    data[300] ^= 4
    path.write_bytes(data)
    (problem,) = verify(driver.folder).problems
    assert f"{path.name}: the record at offset 32 is damaged" in problem
    again = opened(small())
    assert again.disk.holes(LOG) == [(1, 4)]
    with pytest.raises(StorageError, match=rf"{path.name}: the record at offset 32 is damaged"):
        again.disk.read(LOG, 1, 1 << 40, 1 << 40)
    assert [b.lo for b in again.disk.read(LOG, 4, 1 << 40, 1 << 40)] == list(range(4, 121, 3))
    # A compaction of it fails, other data is moved, and the hole is known after a restart.
    again.do(compact(LOG, 1, 20, "c"))
    assert again.wait(1) == [StoreFailed("c", "io")]
    moves = again.store.moves
    filled(again)
    assert again.store.moves > moves
    again.close()
    third = opened(small())
    assert third.disk.holes(LOG) == [(1, 4)]
    assert len(third.store.damage) == 1
    third.do(Repair(LOG, (batch(1, 3, 100),), "r"))
    assert third.wait(1) == [Stored("r")]
    third.close()
    fourth = opened(small())
    assert fourth.store.damage == []
    assert [b.lo for b in fourth.disk.read(LOG, 1, 1 << 40, 1 << 40)] == list(range(1, 241, 3))


def test_without_a_check_at_opening_damage_is_detected_by_reading(opened: Opened) -> None:
    driver = opened(small())
    filled(driver)
    driver.close()
    path = sorted(driver.folder.glob("segment-*"))[0]
    data = bytearray(path.read_bytes())
    data[300] ^= 4
    path.write_bytes(data)
    again = opened(small(check="none"))
    assert again.store.damage == []
    with pytest.raises(StorageError, match=rf"{path.name}: the record at offset \d+ is damaged"):
        again.disk.read(LOG, 1, 1 << 40, 1 << 40)
    assert again.disk.read(LOG, 60, 70, 1 << 40), "the rest can be read"


def test_a_segment_with_another_number_is_not_read(opened: Opened) -> None:
    driver = opened(small())
    filled(driver)
    driver.close()
    first, second = sorted(driver.folder.glob("segment-*"))[:2]
    first.write_bytes(second.read_bytes())
    again = opened(small())
    assert "its header is that of segment" in again.store.damage[0]
    ((lo, hi),) = again.disk.holes(LOG)
    assert lo == 1
    assert again.disk.read(LOG, hi, 1 << 40, 1 << 40)[-1].hi == 121


def test_views_outlive_the_file(opened: Opened) -> None:
    driver = opened(small())
    filled(driver)
    held = driver.disk.read(LOG, 1, 60, 1 << 40)
    assert type(held[0].body) is memoryview
    assert type(driver.store.disk.pieces(LOG, 1, 60)[0]) is Extent
    before = sorted(driver.folder.glob("segment-*"))[0]
    driver.do(Truncate(LOG, 1))
    for _ in range(3):
        filled(driver, 12)
    driver.settle()
    driver.close()
    assert not before.exists()
    assert [row.seq for b in held for row in b.to_rows()] == list(range(1, 60))


def test_the_number_of_open_segments_is_bounded(opened: Opened) -> None:
    driver = opened(small(run_bytes_min=0, maps_max=2))
    filled(driver, 80)
    assert len(list(driver.folder.glob("segment-*"))) > 5
    assert driver.disk.read(LOG, 1, 1 << 40, 1 << 40)[-1].hi == 241
    assert len(driver.store._shelf._maps) <= 2


def test_a_small_part_of_a_large_buffer_is_copied_out_of_it() -> None:
    frame = b"".join(bytes(part) for part in encode_batch(batch(1, 5)))
    from surecast.core.wire import decode_batch

    chunk = bytearray(256 << 10)
    chunk[: len(frame)] = frame
    pinned, _ = decode_batch(chunk)
    kept = own(pinned)
    assert type(kept.body) is bytes
    assert [bytes(part) for part in encode_batch(kept)] == [
        bytes(part) for part in encode_batch(pinned)
    ]
    alone, _ = decode_batch(bytearray(frame))
    assert own(alone) is alone
    void = Batch.void(LOG, 1, 5, 1)
    assert own(void) is void


# ---------------------------------------------------------------- the plan of a move


def extent(lo: int, hi: int, nbytes: int, segment: int = 1) -> Any:
    made = Extent.__new__(Extent)
    made.lo, made.hi, made.nbytes = lo, hi, nbytes
    made.segment = SimpleNamespace(number=segment)  # type: ignore[assignment]
    return made


def sizes(groups: list[Any]) -> list[int]:
    return [len(group.pieces) for group in groups]


def test_a_move_writes_batches_and_keeps_large_extents() -> None:
    pieces = [extent(1, 5, 1 << 20), batch(5), batch(6), extent(7, 9, 1 << 20), batch(9)]
    groups = groups_of(pieces, (), 1 << 16)
    assert sizes(groups) == [1, 2, 1, 1]
    assert [group.is_new for group in groups] == [False, True, False, True]


def test_eight_small_adjacent_extents_are_joined() -> None:
    pieces: list[Any] = [extent(n, n + 1, 3000) for n in range(1, 8)]
    assert sizes(groups_of([*pieces], (), 1 << 16)) == [1] * 7
    assert sizes(groups_of([*pieces, batch(8)], (), 1 << 16)) == [1] * 8
    assert sizes(groups_of([*pieces, batch(8, 1, 3000)], (), 1 << 16)) == [8]
    assert sizes(groups_of([*pieces, batch(8), extent(9, 10, 3000)], (), 1 << 16)) == [9]
    assert sizes(groups_of([*pieces, batch(8, 1, 3000)], (), 1 << 10)) == [1] * 8
    large = extent(1, 2, 1 << 20)
    assert sizes(groups_of([large, *pieces[1:], batch(8), batch(9)], (), 1 << 16)) == [1] * 7 + [2]


def test_a_byte_is_rewritten_only_a_few_times() -> None:
    """A log that gets 200 bytes with every move: the number of copies and of extents is bounded."""
    pieces: list[Any] = []
    rewritten = 0
    for n in range(1, 6_001):
        groups = groups_of([*pieces, batch(n)], (), 1 << 16)
        rewritten += sum(p.nbytes for g in groups if g.is_new for p in g.pieces)
        pieces = [
            extent(g.pieces[0].lo, g.pieces[-1].hi, sum(p.nbytes for p in g.pieces)) for g in groups
        ]
    total = sum(piece.nbytes for piece in pieces)
    assert rewritten < 6 * total
    assert len(pieces) < 40 + total / (1 << 13)


def test_live_data_is_moved_out_of_mostly_unused_segments() -> None:
    assert worn_out({1: 100, 2: 100, 3: 100}, {1: 10, 2: 80, 3: 49}, 1000) == {1: None, 3: None}
    assert worn_out({1: 100, 2: 100, 3: 100}, {1: 10, 2: 80, 3: 49}, 30) == {1: None}
    groups = groups_of([extent(1, 5, 1 << 20, 3), extent(5, 9, 1 << 20, 4)], {3: None}, 0)
    assert [group.is_new for group in groups] == [True, False]


def test_a_segment_is_released_when_no_extent_refers_to_it(tmp_path: Path) -> None:
    shelf = Shelf(Folder(tmp_path / "d"), 2)
    whole = Extent(shelf.segment(1), 0, 1, 5, 100, 0)
    part = Extent(whole.segment, 0, 1, 3, 50, 0)
    assert shelf.segment(1) is whole.segment
    del whole
    assert shelf.take_gone() == []
    del part
    assert shelf.take_gone() == [1]


def test_contents_do_not_depend_on_the_configured_sizes(opened: Opened, tmp_path: Path) -> None:
    seen = []
    for number, options in enumerate(({}, {"run_bytes_min": 0}, {"inline_bytes_max": 0})):
        driver = Driver(tmp_path / str(number), small(**options))
        filled(driver, 30)
        driver.do(compact(LOG, 10, 50, "c", [(12, 30), (33, 34)]))
        driver.wait(1)
        filled(driver, 30)
        seen.append(content(driver.disk))
        driver.close()
        assert "manifest" in names(tmp_path / str(number))
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.slow
def test_streams_that_grow_equally_are_not_all_joined_by_one_move(opened: Opened) -> None:
    driver = opened(small(segment_bytes_max=1 << 30, run_bytes_min=1 << 16))
    logs = [bytes([n]) * 16 for n in range(50)]
    largest = 0
    for _ in range(40):
        for log in logs:
            driver.do(Append(log, (batch(driver.disk.end(log), 1, 100, log),), 0))
        driver.wait(len(logs))
        driver.settle()
        sizes = [path.stat().st_size for path in driver.folder.glob("segment-*")]
        largest = max([largest, *sizes])
    moves = driver.store.moves
    assert moves > 20
    # A round is 16 KB, as much as four journals; the largest log has up to 20 KB.
    assert largest < 70_000
    assert max(len(driver.store.disk.pieces(log, 1, 41)) for log in logs) < 30
