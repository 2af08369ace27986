"""The segment store: answers, incarnations, group commit, and reading after moves."""

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.storage.stores import (
    LOG,
    OTHER,
    Driver,
    batch,
    compact,
    content,
    history,
    names,
    play_memory,
    play_one,
    small,
)

from surecast.columns.batch import Batch
from surecast.core.config import load
from surecast.core.types import Append, Compacted, SaveState, Stored, StoreFailed, Truncate
from surecast.errors import ConfigError, StorageError, UsageError
from surecast.storage import segments
from surecast.storage.config import StorageConfig
from surecast.storage.extents import Extent
from surecast.storage.memory import MemoryDisk
from surecast.storage.segments import SegmentStore
from surecast.storage.store import MemoryStore

Opened = Callable[..., Driver]


def test_answers_are_given_in_the_order_of_the_effects(opened: Opened) -> None:
    driver = opened()
    driver.do(
        Append(LOG, (batch(1, 3), batch(4)), "a"),
        SaveState("s", b"x", "b"),
        Append(LOG, (batch(9),), "gap"),
        Truncate(LOG, 3),
        Append(LOG, (), "nothing"),
    )
    assert driver.disk.end(LOG) == 3, "a machine sees what is not synced yet"
    assert driver.wait(4) == [
        Stored("a"),
        Stored("b"),
        StoreFailed("gap", "io"),
        Stored("nothing"),
    ]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("sync", ["data", "none"])
def test_stored_effects_are_found_after_reopening(opened: Opened, seed: int, sync: str) -> None:
    effects = history(Random(seed), 80)
    config = small(sync=sync)
    first = opened(config)
    for effect in effects:
        first.do(effect)
        if type(effect) is not Truncate:
            first.wait(1)
    seen = content(first.disk)
    first.close()
    again = opened(config)
    assert content(again.disk) == seen == play_memory(effects)[-1]
    assert again.store.cut_bytes == 0


def test_each_opening_increases_the_incarnation(opened: Opened) -> None:
    for incarnation in range(1, 5):
        driver = opened()
        assert driver.store.incarnation == incarnation
        driver.close()


def test_incarnations_increase_across_moves(opened: Opened) -> None:
    for incarnation in range(1, 5):
        driver = opened(small())
        assert driver.store.incarnation == incarnation
        for _ in range(6):
            driver.do(Append(LOG, (batch(driver.disk.end(LOG), 1, 900),), 0))
            driver.wait(1)
        driver.settle()
        assert driver.store.moves
        driver.close()


def test_a_directory_has_one_owner(opened: Opened, tmp_path: Path) -> None:
    opened()
    with pytest.raises(StorageError, match=f"in use by process {os.getpid()}") as caught:
        SegmentStore(tmp_path / "disk")
    assert "a directory of its own" in str(caught.value)


@pytest.mark.slow
def test_one_sync_serves_all_waiting_effects(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = opened()
    syncs: list[int] = []
    go, began = threading.Event(), threading.Event()

    def slow(file: int) -> None:
        syncs.append(file)
        began.set()
        assert go.wait(20)

    monkeypatch.setattr(os, "fdatasync", slow)
    driver.do(SaveState("s", b"0", 0))
    assert began.wait(20)
    logs = [number.to_bytes(16, "big") for number in range(10_000)]
    driver.do(*(Append(log, (batch(1, log=log),), log) for log in logs))
    assert driver.store.collect() == [], "nothing is stored before the sync is over"
    assert driver.store.pending_bytes > 10_000 * 128
    go.set()
    assert driver.wait(10_001) == [Stored(0), *map(Stored, logs)]
    assert len(syncs) == 2
    assert driver.store.pending_bytes == 0


def test_a_move_of_many_streams_is_one_file_and_one_sync(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = StorageConfig(journal_bytes_max=1 << 20)
    driver = opened(config)
    synced: list[str] = []
    fsync = os.fsync

    def note(file: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{file}")).name)
        fsync(file)

    monkeypatch.setattr(os, "fsync", note)
    logs = [number.to_bytes(16, "big") for number in range(5000)]
    driver.do(*(Append(log, (batch(1, log=log),), log) for log in logs))
    driver.wait(5000)
    driver.settle()
    moves = driver.store.moves
    assert 1 <= moves <= 3, "another one for data that arrived during the first"
    assert synced.count("segment-0000000001") == 1
    assert len(synced) <= 6 * moves
    driver.close()
    again = opened(config)
    assert all(again.disk.end(log) == 2 for log in logs)
    assert [len(again.disk.read(log, 1, 2, 1)) for log in logs] == [1] * 5000


def test_a_batch_that_cannot_be_written_is_refused(opened: Opened) -> None:
    driver = opened()
    with pytest.raises(UsageError, match="synthetic"):
        driver.do(Append(LOG, (Batch.synthetic(LOG, 1, 100).sequenced(1, 0, 0),), "t"))
    driver.do(Append(LOG, (batch(1),), "t"))
    assert driver.wait(1) == [Stored("t")]


def test_a_memory_store_answers_on_the_next_pass() -> None:
    store = MemoryStore()
    woken: list[int] = []
    store.attach(lambda: woken.append(1))
    store.perform(Append(LOG, (batch(1),), "a"))
    store.perform(Truncate(LOG, 1))
    store.perform(SaveState("s", b"", "b"))
    assert woken == [1]
    assert store.collect() == [Stored("a"), Stored("b")]
    assert store.collect() == []
    store.disk.fail("full")
    store.perform(Append(LOG, (batch(1),), "c"))
    assert store.collect() == [StoreFailed("c", "full")]
    store.close()


# ---------------------------------------------------------------- compactions


@pytest.mark.parametrize("memory", [True, False])
def test_a_compaction_is_visible_only_after_its_answer(opened: Opened, memory: bool) -> None:
    store: MemoryStore | SegmentStore = MemoryStore() if memory else opened().store
    woken = threading.Event()
    store.attach(woken.set)
    token = ("c", 1)
    answers: list[object] = []
    for effect in (Append(LOG, (batch(1, 4), batch(5, 4)), "a"), compact(LOG, 2, 7, token)):
        store.perform(effect)
        due = len(answers) + 1
        before = content(store.disk)
        while len(answers) < due:
            assert woken.wait(20)
            woken.clear()
            answers += store.collect()
    assert answers == [Stored("a"), Compacted(token)]
    assert content(store.disk) == before
    store.show(Compacted(token))
    shown = store.disk.read(LOG, 1, 9, 1 << 40)
    assert [(b.lo, b.hi, b.rows) for b in shown] == [(1, 2, 1), (2, 7, 0), (7, 9, 2)]


@pytest.mark.parametrize("memory", [True, False])
def test_a_truncate_that_cuts_into_a_compaction_drops_it(opened: Opened, memory: bool) -> None:
    store: MemoryStore | SegmentStore = MemoryStore() if memory else opened().store
    woken = threading.Event()
    store.attach(woken.set)
    store.perform(Append(LOG, (batch(1, 8),), "a"))
    for token, hi in (("cut", 6), ("whole", 4)):
        store.perform(compact(LOG, 2, hi, token))
    store.perform(Truncate(LOG, 5))
    store.perform(Append(LOG, (batch(5, 9),), "b"))
    answers: list[object] = []
    while len(answers) < 4:
        assert woken.wait(20)
        woken.clear()
        some = store.collect()
        answers += some
        for answer in some:
            if type(answer) is Compacted:
                store.show(answer)
    assert StoreFailed("cut", "truncated") in answers
    assert Compacted("whole") in answers
    rows = [(b.lo, b.hi, b.rows) for b in store.disk.read(LOG, 1, 99, 1 << 40)]
    assert rows == [(1, 2, 1), (2, 4, 0), (4, 5, 1), (5, 14, 9)]


def test_a_compaction_truncated_after_its_answer_was_collected_changes_nothing(
    opened: Opened,
) -> None:
    driver = opened()
    driver.do(Append(LOG, (batch(1, 8),), "a"))
    driver.wait(1)
    driver.do(compact(LOG, 2, 6, "c"))
    answers: list[object] = []
    while not answers:
        assert driver.woken.wait(20)
        driver.woken.clear()
        answers += driver.store.collect()
    driver.do(Truncate(LOG, 5))
    driver.store.show(Compacted("c"))
    assert [(b.lo, b.hi, b.rows) for b in driver.disk.read(LOG, 1, 9, 1 << 40)] == [(1, 5, 4)]


def test_large_compactions_are_written_to_a_segment_and_small_ones_to_the_journal(
    opened: Opened,
) -> None:
    driver = opened(small(journal_bytes_max=1 << 20, segment_bytes_max=1 << 20))
    driver.do(*(Append(LOG, (batch(n, 1, 500),), n) for n in range(1, 41)))
    driver.wait(40)
    driver.do(compact(LOG, 1, 11, "small"))
    driver.wait(1)
    assert not list(driver.folder.glob("segment-*"))
    driver.do(compact(LOG, 11, 41, "large", [(n, n + 1) for n in range(12, 40, 2)]))
    driver.wait(1)
    assert len(list(driver.folder.glob("segment-*"))) == 1
    before = content(driver.disk)
    driver.close()
    again = opened()
    assert content(again.disk) == before
    rows = [row.seq for b in again.disk.read(LOG, 1, 41, 1 << 40) for row in b.to_rows()]
    assert rows == [11, *range(13, 41, 2), 40]


def test_compaction_frees_the_disk(opened: Opened) -> None:
    driver = opened(small())
    for number in range(150):
        end = driver.disk.end(LOG)
        driver.do(Append(LOG, (batch(end, 10, 100),), "a"), SaveState("s", b"%d" % number, "s"))
        driver.wait(2)
        driver.do(compact(LOG, 1, end + 5, "c"))
        driver.wait(1)
    driver.settle()
    assert driver.store.moves > 20
    assert sum(path.stat().st_size for path in driver.folder.iterdir()) < 40_000
    before = content(driver.disk)
    driver.close()
    again = opened(small())
    assert content(again.disk) == before
    assert again.store.incarnation == 2


def test_a_reader_gets_every_live_event_once_during_compactions(
    opened: Opened,
) -> None:
    """Held batches stay valid while their files are removed; the rest is read from new files."""
    driver = opened(small())
    rng = Random(7)
    for _ in range(120):
        driver.do(Append(LOG, (batch(driver.disk.end(LOG), 4, 60),), "a"))
        driver.wait(1)
    driver.settle()
    end, at = driver.disk.end(LOG), 1
    live = {seq for seq in range(1, end) if seq % 7 == 0}
    held: list[Batch] = []
    while at < end:
        some = driver.disk.read(LOG, at, end, 300)
        held += some
        at = some[-1].hi
        lo = rng.randrange(1, end - 40)
        gone = [(s, s + 1) for s in range(lo, lo + 40) if s not in live]
        driver.do(compact(LOG, lo, lo + 40, "c", gone))
        driver.wait(1)
        driver.settle()
    assert driver.store.moves > 5
    seqs = [row.seq for b in held for row in b.to_rows()]
    assert seqs == sorted(set(seqs))
    assert live <= set(seqs)
    assert all(int(row.value.strip(b".")) == row.seq for b in held for row in b.to_rows())


# ---------------------------------------------------------------- moves


def test_after_a_move_memory_is_released_and_everything_can_be_read(opened: Opened) -> None:
    driver = opened(small())
    model = MemoryDisk()
    for n in range(40):
        effect = Append(LOG, (batch(model.end(LOG), 3, 100),), n)
        play_one(model, effect)
        driver.do(effect)
        driver.wait(1)
    driver.settle()
    disk = driver.store.disk
    assert disk.held_bytes < 8192
    pieces = disk.pieces(LOG, 1, disk.end(LOG))
    assert type(pieces[0]) is Extent
    assert len(pieces) < 30
    assert content(disk) == content(model)
    for lo, hi in ((1, 2), (5, 6), (40, 90), (2, 500)):
        for nbytes_max in (1, 700, 1 << 30):
            ours, theirs = (d.read(LOG, lo, hi, nbytes_max) for d in (disk, model))
            assert [(b.lo, b.hi) for b in ours] == [(b.lo, b.hi) for b in theirs]


def test_unused_files_are_removed(opened: Opened) -> None:
    driver = opened(small())
    for n in range(60):
        driver.do(Append(LOG, (batch(driver.disk.end(LOG), 3, 100),), n))
        driver.wait(1)
    driver.settle()
    assert sum(name.startswith("journal") for name in names(driver.folder)) == 1
    driver.do(Truncate(LOG, 1))
    for n in range(12):
        driver.do(SaveState("s", bytes(1000), n))
        driver.wait(1)
        driver.settle()
    driver.close()
    left = [name for name in names(driver.folder) if not name.startswith("journal")]
    assert left == ["ends", "lock", "manifest"]


@pytest.mark.slow
def test_a_log_has_few_extents_after_many_moves(opened: Opened) -> None:
    driver = opened(small(run_bytes_min=1 << 16, segment_bytes_max=1 << 17))
    for n in range(300):
        driver.do(
            Append(LOG, (batch(driver.disk.end(LOG), 1, 20),), n),
            Append(OTHER, (batch(driver.disk.end(OTHER), 3, 1000, OTHER),), n),
        )
        driver.wait(2)
        driver.settle()
    assert driver.store.moves > 100
    assert len(driver.store.disk.pieces(LOG, 1, driver.disk.end(LOG))) < 40
    assert len(driver.store.disk.pieces(OTHER, 1, driver.disk.end(OTHER))) < 80
    assert len(list(driver.folder.glob("segment-*"))) < 60


def test_positions_are_found_by_time(opened: Opened) -> None:
    driver = opened(small())
    model = MemoryDisk()
    rng = Random(3)
    time_ns = 0
    for n in range(80):
        time_ns += rng.randrange(4)
        effect = Append(LOG, (batch(model.end(LOG), rng.randint(1, 4), 90, time_ns=time_ns),), n)
        play_one(model, effect)
        driver.do(effect)
        driver.wait(1)
        if n % 20 == 10:
            compaction = compact(LOG, 3, 3 + n, "c", [(5, 6 + n // 2)])
            play_one(model, compaction)
            driver.do(compaction)
            driver.wait(1)
    driver.settle()
    assert driver.store.moves
    end = model.end(LOG)
    for sought in range(time_ns + 2):
        for lo, hi in ((1, end), (1, end + 9), (7, 30), (end - 5, end), (9, 9)):
            found = driver.disk.first_at(LOG, sought, lo, hi)
            assert found == model.first_at(LOG, sought, lo, hi)
            below = [
                row.time_ns for b in model.read(LOG, lo, found, 1 << 40) for row in b.to_rows()
            ]
            assert all(time < sought for time in below), "never too high"
    assert driver.disk.first_at(OTHER, 0, 1, 5) == 5


# ---------------------------------------------------------------- configuration


def test_an_invalid_configuration_is_refused_with_its_key() -> None:
    text = '[storage]\nsync = "none"\njournal_bytes_max = "8MiB"\ninline_bytes_max = 4096'
    config = load(StorageConfig, text, "storage")
    assert (config.sync, config.journal_bytes_max) == ("none", 8 << 20)
    for key, value in (
        ("journal_bytes_max", 1),
        ("segment_bytes_max", 1),
        ("backlog_bytes_max", 1 << 20),
        ("queue_bytes_max", 1),
        ("inline_bytes_max", 1 << 40),
        ("run_bytes_min", 1 << 50),
        ("maps_max", 0),
        ("sync", "often"),
    ):
        with pytest.raises(ConfigError, match=key):
            StorageConfig(**{key: value})  # type: ignore[arg-type]


def test_moved_batches_are_released_in_small_steps(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no step of the event loop takes long, and the log is still one extent."""
    monkeypatch.setattr(segments, "_PIECES_AT_ONCE", 7)
    driver = opened(StorageConfig(journal_bytes_max=20_000, inline_bytes_max=0))
    moved: list[int] = []
    let_go = driver.store.disk.moved

    def note(log: bytes, old: Sequence[Any], new: Extent) -> None:
        moved.append(len(old))
        before = content(driver.disk)
        let_go(log, old, new)
        assert content(driver.disk) == before

    monkeypatch.setattr(driver.store.disk, "moved", note)
    driver.do(*(Append(LOG, (batch(n, 1, 250),), n) for n in range(1, 61)))
    driver.wait(60)
    driver.do(Truncate(LOG, 55))
    driver.settle()
    assert 1 <= driver.store.moves <= 2
    assert max(moved) == 7
    assert sum(moved) > 20
    pieces = driver.store.disk.pieces(LOG, 1, 55)
    assert [type(piece) for piece in pieces[:1]] == [Extent]
    assert sum(type(piece) is Extent for piece in pieces) == driver.store.moves
    assert [b.lo for b in driver.disk.read(LOG, 1, 99, 1 << 40)] == list(range(1, 55))
