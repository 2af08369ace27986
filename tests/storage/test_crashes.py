"""Crashes at every byte and call, by power cut and by SIGKILL: nothing acknowledged is lost."""

import os
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import pytest
from tests.storage.power import Power, put
from tests.storage.stores import (
    LOG,
    OTHER,
    Driver,
    batch,
    compact,
    content,
    history,
    play_memory,
    small,
)

from surecast.core.types import (
    DAMAGE,
    Append,
    Compact,
    SaveState,
    Stored,
    StoreFailed,
    Truncate,
)
from surecast.errors import StorageError
from surecast.storage.journal_file import JournalFile
from surecast.storage.mover import Mover
from surecast.storage.records import Record
from surecast.storage.segments import SegmentStore

Opened = Callable[..., Driver]
KILLS = 3


def reopened(folder: Path) -> dict[str, Any]:
    store = SegmentStore(folder, small(sync="none"))
    found = content(store.disk)
    store.close()
    return found


# ---------------------------------------------------------------- torn tails


@pytest.mark.slow
def test_truncation_at_every_byte_of_the_last_records_recovers_the_exact_prefix(
    opened: Opened, tmp_path: Path
) -> None:
    """Each effect is either complete, with all effects before it, or absent."""
    effects = [
        Append(LOG, (batch(1, 2),), 0),
        SaveState("s", b"some state", 1),
        Append(LOG, (batch(3), batch(4)), 2),
        compact(LOG, 2, 4, 3),
        Truncate(LOG, 4),
        Append(OTHER, (batch(1, log=OTHER),), 4),
    ]
    contents = play_memory(effects)
    driver = opened()
    driver.store._journal._file._marked = True  # records of effects only
    start = driver.journal.stat().st_size
    ends = (driver.folder / "ends").read_bytes()  # an older mark, which a power cut may leave
    for effect in effects:
        driver.do(effect)
        if type(effect) is not Truncate:
            driver.wait(1)
    driver.close()
    data = driver.journal.read_bytes()
    seen: list[dict[str, Any]] = []
    for size in range(start, len(data) + 1):
        image = {driver.journal.name: data[:size], "ends": ends}
        copy = put(image, tmp_path / "copies" / str(size))
        store = SegmentStore(copy, small(sync="none"))
        found = content(store.disk)
        store.close()
        assert found in contents, f"cut at {size}"
        if not seen or seen[-1] != found:
            seen.append(found)
        # The torn part is removed, and the records of the next run follow without a gap.
        assert (copy / driver.journal.name).stat().st_size >= size - store.cut_bytes
        assert store.cut_bytes < size
    assert seen == contents


@pytest.mark.parametrize("seed", range(3))
def test_records_written_after_a_torn_tail_are_read(opened: Opened, seed: int) -> None:
    """Several runs, each with a torn end: every stored effect is found by the next."""
    rng = Random(seed)
    stored = 0
    for _ in range(15):
        driver = opened(small())
        assert driver.disk.end(LOG) >= stored + 1
        for _ in range(rng.randint(1, 5)):
            end = driver.disk.end(LOG)
            driver.do(Append(LOG, (batch(end, 3, 100),), "t"))
            driver.wait(1)
            stored = end + 2
        driver.settle()
        driver.close()
        with driver.journal.open("ab") as file:  # an incomplete append
            file.write(rng.randbytes(rng.randint(0, 200)))


def flip(path: Path, at: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def lines(damage: list[str]) -> str:
    return "\n".join(damage)


def test_damage_of_a_synced_record_is_reported_and_everything_else_is_kept(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JournalFile, "mark", lambda _: None)  # records of effects only
    driver = opened()
    starts = []
    for number in range(4):
        starts.append(driver.store._journal._file.size)
        driver.do(Append(LOG, (batch(1 + number),), number))
        driver.wait(1)
    driver.close()
    path = driver.journal
    rng = Random(1)
    for number, start in enumerate(starts):
        for at in rng.sample(range(start, start + 200), 12):
            copy = shutil.copytree(driver.folder, tmp_path / f"{at}")
            flip(copy / path.name, at, rng.randrange(8))
            store = SegmentStore(copy)
            assert f"{copy / path.name}: the record at offset {start:,} is damaged" in lines(
                store.damage
            )
            in_head, last = at < start + 64, number == 3 and at < start + 192
            assert bool(store.disk.state(DAMAGE)) == (in_head or last)
            if in_head:  # the frame is intact
                assert content(store.disk)[LOG.hex()] == content(driver.disk)[LOG.hex()]
            elif last:  # the end of the log is unknown
                assert store.disk.end(LOG) == 4
            else:
                assert store.disk.holes(LOG) == [(1 + number, 2 + number)]
                assert store.disk.end(LOG) == 5
            store.close()


def test_a_journal_with_a_successor_has_no_torn_tail(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its last bytes were on disk before the next journal began, whatever `synced` says."""
    driver = opened(small())
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", _no_room)  # the move fails: both journals stay
        while len(list(driver.folder.glob("journal-*"))) < 2:
            driver.do(Append(LOG, (batch(driver.disk.end(LOG), 3, 100),), "t"))
            driver.wait(1)
        driver.settle()
    driver.close()
    first = sorted(driver.folder.glob("journal-*"))[0].name
    for cut in (8, 64, 72, 200):
        copy = shutil.copytree(driver.folder, tmp_path / str(cut))
        os.truncate(copy / first, (copy / first).stat().st_size - cut)
        store = SegmentStore(copy, small())
        assert f"{copy / first}" in lines(store.damage)
        lost = (store.disk.state(DAMAGE) or b"").decode()
        assert ("was cut short" in lost) == (cut > 8), "the head of the seal is sufficient"
        assert store.disk.end(LOG) == driver.disk.end(LOG), "the next journal continues"
        assert bool(store.disk.holes(LOG)) == (cut == 200)
        store.close()
    again = opened(small())
    assert content(again.disk) == content(driver.disk)
    assert again.store.damage == []


def _no_room(*_: Any) -> None:
    raise OSError(28, "injected")


def test_holes_in_the_last_unsynced_writes_are_a_crash_not_damage(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut may keep a later page and lose an earlier one, as long as neither was synced."""
    driver = opened()
    driver.do(Append(LOG, (batch(1),), "kept"))
    driver.wait(1)
    go, began = threading.Event(), threading.Event()

    def hold(file: int) -> None:
        began.set()
        assert go.wait(20)

    monkeypatch.setattr(os, "fdatasync", hold)
    start = driver.journal.stat().st_size
    driver.do(SaveState("first", b"x", 0))
    assert began.wait(20)
    driver.do(SaveState("second", b"x", 1), SaveState("third", b"x", 2))
    torn = driver.journal.read_bytes()  # "first" is written but not synced yet
    ends = (driver.folder / "ends").read_bytes()
    go.set()
    driver.wait(3)
    whole = driver.journal.read_bytes()
    driver.close()
    assert len(whole) > len(torn) > start
    hole = whole[:start] + bytes(len(torn) - start)
    driver.journal.write_bytes(hole)
    (driver.folder / "ends").write_bytes(ends)
    again = opened()
    assert again.store.damage == []
    assert content(again.disk) == {LOG.hex(): content(driver.disk)[LOG.hex()]}
    assert again.store.cut_bytes == len(hole) - start


# ---------------------------------------------------------------- at every call


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_crash_at_any_step_of_moves_and_compactions_loses_and_duplicates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Before and after each write, sync, rename and unlink: by SIGKILL, and by a power cut that
    loses all or part of the unsynced data."""
    effects = history(Random(seed), 45, 150)
    contents = play_memory(effects)
    acknowledged = 0

    with monkeypatch.context() as patch:
        (tmp_path / "disk").mkdir()
        power = Power(patch, tmp_path / "disk", lambda: acknowledged, seed)
        driver = Driver(tmp_path / "disk", small(journal_bytes_max=4096))
        for number, effect in enumerate(effects, 1):
            driver.do(effect)
            if type(effect) is not Truncate:
                driver.wait(1)
                if type(effect) is not Compact:  # which guarantees nothing
                    acknowledged = number
            if seed % 2:  # otherwise writes and moves run concurrently
                driver.settle()
        driver.settle()
        moves = driver.store.moves
        driver.close()
    assert moves >= 2
    assert all(power.calls[call] > 1 for call in ("writev", "fsync", "fdatasync", "rename"))
    assert power.calls["unlink"] > 2
    checked: dict[int, bool] = {}
    for number, (call, acknowledged_then, image) in enumerate(power.steps):
        key = hash((acknowledged_then, tuple(sorted(image.items()))))
        if checked.setdefault(key, False):
            continue
        checked[key] = True
        folder = put(image, tmp_path / "copies" / str(number))
        found = reopened(folder)
        assert found in contents[acknowledged_then:], (
            f"{call}, acknowledged {acknowledged_then}, image {folder}"
        )
        assert reopened(folder) == found
        for path in folder.iterdir():  # images are needed only once
            path.unlink()
    assert len(checked) > 100


def test_the_directory_is_synced_before_records_of_a_new_journal_are_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a move, which would sync the directory."""
    (tmp_path / "disk").mkdir()
    images = []
    with monkeypatch.context() as patch:
        power = Power(patch, tmp_path / "disk", lambda: 0, 1)
        patch.setattr(Mover, "move", _no_room)
        driver = Driver(tmp_path / "disk", small())
        for n in range(30):
            driver.do(Append(LOG, (batch(1 + n, 1, 300),), n))
            assert driver.wait(1) == [Stored(n)]
            images.append(power.synced())
        assert len(list(driver.folder.glob("journal-*"))) > 2
        driver.close()
    for n, image in enumerate(images):
        store = SegmentStore(put(image, tmp_path / "copies" / str(n)), small())
        assert store.disk.end(LOG) == n + 2
        store.close()


@pytest.mark.slow
@pytest.mark.parametrize("call", ["writev", "fsync", "fdatasync", "rename", "unlink", "open"])
def test_any_failing_call_is_reported_and_the_store_opens_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The n-th call of a kind fails, for many n: answers and contents still agree."""
    for number in range(16) if call == "rename" else range(0, 60, 3):
        folder = tmp_path / f"{call}{number}"
        with monkeypatch.context() as patch:
            failing = Failing(patch, call, number)
            try:
                driver = Driver(folder, small())
            except StorageError:
                continue  # opening failed with an error
            kept = 1
            for n in range(40):
                end = driver.disk.end(LOG)
                driver.do(Append(LOG, (batch(end, 2, 150),), n))
                if driver.wait(1) == [Stored(n)]:
                    kept = end + 2
                if n % 10 == 5:
                    driver.do(compact(LOG, max(1, end - 9), end, "c", [(end - 1, end)]))
                    (answer,) = driver.wait(1)
                    assert type(answer) is not StoreFailed or answer.reason in ("io", "full")
                driver.settle()
            assert driver.disk.end(LOG) == kept
            seen = [row.seq for b in driver.disk.read(LOG, 1, kept, 1 << 40) for row in b.to_rows()]
            driver.close()
        store = SegmentStore(folder, small())
        found = [row.seq for b in store.disk.read(LOG, 1, kept, 1 << 40) for row in b.to_rows()]
        assert store.disk.end(LOG) == kept, f"{call} {number}"
        assert found == seen or failing.final, f"{call} {number}"
        store.close()


class Failing:
    """Makes the call with this number fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call: str, number: int) -> None:
        self.left = number
        self.real = getattr(os, call)
        self.final = call == "fdatasync"  # then nothing more is written, not even a compaction
        monkeypatch.setattr(os, call, self)

    def __call__(self, *args: Any, **more: Any) -> Any:
        self.left -= 1
        if self.left == -1:
            raise OSError(5, "injected")
        return self.real(*args, **more)


# ---------------------------------------------------------------- killed


KILLED = """
import sys, threading
from surecast.columns.batch import COLLECTED, Batch
from surecast.columns.compaction import encode_voids
from surecast.columns.intervals import IntervalSet
from surecast.core.types import DAMAGE, Append, ColdBelow, Compact, Compacted, SaveState, Truncate
from surecast.storage.config import StorageConfig
from surecast.storage.segments import SegmentStore
config = StorageConfig(journal_bytes_max=20_000, inline_bytes_max=500, run_bytes_min=4096)
store = SegmentStore(sys.argv[1], config)
woken = threading.Event()
store.attach(woken.set)
LOG = bytes(range(16))
number = int(store.disk.state("s") or b"0")
while True:
    number += 1
    end = store.disk.end(LOG)
    store.perform(Append(LOG, (Batch.of(LOG, [b"%d" % end] * 3).sequenced(end, 0, 0),), None))
    store.perform(SaveState("s", b"%d" % number, (number, end + 3, store.moves)))
    if number % 7 == 0:
        lo = max(1, end - 60)
        gone = IntervalSet([(p, p + 1) for p in range(lo, end) if p % 3 == 2])
        store.perform(Compact(LOG, lo, end, encode_voids({COLLECTED: gone}), 100, None))
    if number % 10 == 0:  # limits how far it runs ahead of the disk
        woken.wait()
        woken.clear()
        for answer in store.collect():
            if type(answer) is Compacted:
                store.show(answer)
            elif type(answer) is not ColdBelow and answer.token:
                print(*answer.token, flush=True)
"""


@pytest.mark.slow
def test_a_killed_process_loses_no_acknowledged_effect(tmp_path: Path) -> None:
    """It prints (number of the state, end of the log, moves); later effects may be stored, too."""
    rng = Random(9)
    moves = 0
    for _ in range(KILLS):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(rng.randint(300, 900))]
        process.kill()
        lines += process.stdout.read().splitlines()[:-1]  # the last line may be cut short
        process.wait()
        process.stdout.close()
        number, end, moved = map(int, lines[-1].split())
        moves += moved
        store = SegmentStore(tmp_path)
        assert int(store.disk.state("s") or 0) >= number
        assert store.disk.end(LOG) >= end
        found = store.disk.read(LOG, 1, store.disk.end(LOG), 1 << 40)
        assert [b.lo for b in found] == [1, *(b.hi for b in found[:-1])]
        rows = [row for part in found for row in part.to_rows()]
        assert {r.seq for r in rows} >= {s for s in range(1, end) if s % 3 != 2}
        assert all(int(row.value) == (row.seq - 1) // 3 * 3 + 1 for row in rows)
        store.close()
    assert moves > 5


# ---------------------------------------------------------------- files of other kinds


def test_a_journal_of_a_later_version_is_refused_and_not_changed(opened: Opened) -> None:
    driver = opened()
    driver.do(SaveState("s", b"x", 1))
    driver.wait(1)
    driver.close()
    path = driver.journal
    with path.open("ab") as file:
        later = Record(99, bytes(16), [b"anything"], 0, 0)
        file.write(b"".join(later.encode(1, path.stat().st_size, 0)))
    data = path.read_bytes()
    with pytest.raises(StorageError, match="later version"):
        opened()
    assert path.read_bytes() == data


JOURNAL = "journal-0000000001"


@pytest.mark.parametrize("data", [b"SCJ\xf2" + bytes(100), b"other text", b"\x7fELF"])
def test_a_file_that_is_not_a_journal_is_refused_and_not_changed(
    tmp_path: Path, data: bytes
) -> None:
    (tmp_path / JOURNAL).write_bytes(data)
    with pytest.raises(StorageError, match="not a journal"):
        SegmentStore(tmp_path)
    assert (tmp_path / JOURNAL).read_bytes() == data


@pytest.mark.parametrize("data", [b"", b"SC", b"SCJ\xf1", bytes(100), b"SCJ\xf1" + bytes(100)])
def test_a_journal_with_an_incomplete_first_record_is_not_damage(
    tmp_path: Path, data: bytes
) -> None:
    (tmp_path / JOURNAL).write_bytes(data)
    store = SegmentStore(tmp_path)
    assert store.incarnation == 1
    store.close()


def test_a_path_that_cannot_be_a_store_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="cannot open"):
        SegmentStore(tmp_path / "file" / "node")
    (tmp_path / "node" / JOURNAL).mkdir(parents=True)
    with pytest.raises(StorageError, match="cannot read"):
        SegmentStore(tmp_path / "node")


def test_a_new_directory_is_synced_into_its_parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def fsync(file: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{file}"))

    monkeypatch.setattr(os, "fsync", fsync)
    SegmentStore(tmp_path / "a" / "b").close()
    folders = [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]
    ends = str(tmp_path / "a" / "b" / "ends")
    # The mark exists before the first journal; it is synced at opening and closing.
    assert synced == [*folders[:2], ends, folders[2], folders[2], ends, ends]


@pytest.mark.parametrize("name", ["segment-", "journal-", "manifest", "ends"])
def test_a_missing_file_is_reported(opened: Opened, name: str) -> None:
    driver = opened(small())
    for n in range(20):
        driver.do(Append(LOG, (batch(driver.disk.end(LOG), 3, 200),), n))
        driver.wait(1)
    driver.settle()
    driver.close()
    path = sorted(driver.folder.glob(f"{name}*"))[0]
    path.unlink()
    again = opened(small())
    assert str(path) in lines(again.store.damage)
    assert bool(again.disk.state(DAMAGE)) == (name != "segment-")
    assert bool(again.disk.holes(LOG)) == (name == "segment-")
    if name != "journal-":
        assert again.disk.end(LOG) == 61


def test_a_manifest_of_a_later_version_is_refused_and_not_changed(opened: Opened) -> None:
    driver = opened(small())
    for n in range(20):
        driver.do(Append(LOG, (batch(driver.disk.end(LOG), 3, 200),), n))
        driver.wait(1)
    driver.settle()
    driver.close()
    path = driver.folder / "manifest"
    data = path.read_bytes()
    body = data[16:]
    path.write_bytes(
        struct.pack("<4sIQ", b"SCM\xf2", crc32(body, crc32(b"SCM\xf2")), len(body)) + body
    )
    before = {file.name: file.read_bytes() for file in driver.folder.iterdir()}
    with pytest.raises(StorageError, match="later version"):
        opened(small())
    before["lock"] = (driver.folder / "lock").read_bytes()
    assert {file.name: file.read_bytes() for file in driver.folder.iterdir()} == before
    path.write_bytes(b"SCM\xf0" + data[4:])  # a flipped bit; the checksum holds
    again = opened(small())
    assert again.disk.end(LOG) == 61
    assert again.store.damage == []
