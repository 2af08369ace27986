"""The journal: what was stored is there after any crash, and what was not is not half there."""

import errno
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from surecast.columns.batch import Batch
from surecast.core.types import Append, Compact, Compacted, SaveState, Stored, StoreFailed, Truncate
from surecast.errors import StorageError, UsageError
from surecast.storage.journal import Journal
from surecast.storage.memory import MemoryDisk
from surecast.storage.records import Record
from surecast.storage.store import MemoryStore, apply

LOG = bytes(range(16))
OTHER = bytes(16)
KILLS = 3


def batch(lo: int, count: int = 1, nbytes: int = 20, log: bytes = LOG) -> Batch:
    values = [f"{lo + i}".encode().ljust(nbytes, b".") for i in range(count)]
    return Batch.of(log, values).sequenced(lo, 5, 1)


def content(disk: MemoryDisk) -> dict[str, Any]:
    """All that a disk holds, batch by batch."""
    logs: dict[str, Any] = {}
    for log in disk.logs():
        batches = disk.read(log, 1, disk.end(log), 1 << 60)
        logs[log.hex()] = [(b.lo, b.hi, b.kind, b.reason, bytes(b.body or b"")) for b in batches]
    return {**logs, **{name: disk.state(name) for name in disk.states()}}


class Driver:
    """Drives a journal as a node does: answers are collected when it wakes."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.journal = Journal(directory, **options)
        self.woken = threading.Event()
        self.journal.attach(self.woken.set)
        self.answers: list[Any] = []

    def do(self, *effects: Any) -> None:
        for effect in effects:
            self.journal.perform(effect)

    def wait(self, count: int) -> list[Any]:
        """Collect until so many answers are there; return and forget them."""
        while len(self.answers) < count:
            assert self.woken.wait(20), f"{len(self.answers)} answers of {count}"
            self.woken.clear()
            self.answers += self.journal.collect()
        answers, self.answers = self.answers, []
        return answers

    @property
    def disk(self) -> MemoryDisk:
        return self.journal.disk

    def close(self) -> None:
        self.journal.close()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    drivers: list[Driver] = []

    def make(**options: Any) -> Driver:
        drivers.append(Driver(tmp_path / "disk", **options))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.close()


def history(rng: Random, count: int) -> list[Any]:
    """Effects a machine might ask for, valid one after another."""
    disk = MemoryDisk()
    effects: list[Any] = []
    for number in range(count):
        log = rng.choice((LOG, OTHER))
        end = disk.end(log)
        match rng.randrange(8):
            case 0:
                effect: Any = SaveState(
                    rng.choice("xyz"), rng.randbytes(rng.randint(0, 50)), number
                )
            case 1:
                effect = Truncate(log, rng.randint(1, end))
            case 2 if end > 3:
                hi = rng.randint(2, end)
                effect = Compact(log, (Batch.void(log, 1, hi, 1),), number)
            case _:
                one = batch(end, rng.randint(1, 5), log=log)
                effect = Append(log, (one, batch(one.hi, 2, log=log)), number)
        apply(disk, effect)
        effects.append(effect)
    return effects


def play_memory(effects: list[Any]) -> list[dict[str, Any]]:
    """The content of a disk before the first effect, and after each."""
    disk = MemoryDisk()
    contents = [content(disk)]
    for effect in effects:
        apply(disk, effect)
        contents.append(content(disk))
    return contents


# ---------------------------------------------------------------- the plain case


def test_answers_come_in_the_order_of_the_effects(opened: Callable[..., Driver]) -> None:
    driver = opened()
    driver.do(
        Append(LOG, (batch(1, 3), batch(4)), "a"),
        SaveState("s", b"x", "b"),
        Append(LOG, (batch(9),), "gap"),
        Truncate(LOG, 3),
        Compact(LOG, (Batch.void(LOG, 1, 3, 1),), "c"),
        Append(LOG, (), "nothing"),
    )
    assert driver.disk.end(LOG) == 3, "a machine sees what is not synced yet"
    assert driver.wait(5) == [
        Stored("a"),
        Stored("b"),
        StoreFailed("gap", "io"),
        Compacted("c"),
        Stored("nothing"),
    ]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("sync", ["data", "none"])
def test_what_was_stored_is_there_again(
    opened: Callable[..., Driver], seed: int, sync: str
) -> None:
    effects = history(Random(seed), 60)
    first = opened(sync=sync)
    first.do(*effects)
    first.wait(sum(type(effect) is not Truncate for effect in effects))
    first.close()
    again = opened()
    assert content(again.disk) == content(first.disk) == play_memory(effects)[-1]
    assert again.journal.cut_bytes == 0


def test_each_opening_is_another_life(opened: Callable[..., Driver]) -> None:
    for incarnation in range(1, 5):
        driver = opened()
        assert driver.journal.incarnation == incarnation
        driver.close()


def test_a_journal_has_one_owner(opened: Callable[..., Driver], tmp_path: Path) -> None:
    opened()
    with pytest.raises(StorageError, match="in use"):
        Journal(tmp_path / "disk")


def test_one_sync_serves_all_that_waited(
    opened: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = opened()
    syncs: list[int] = []
    go = threading.Event()
    began = threading.Event()

    def slow(file: int) -> None:
        syncs.append(file)
        began.set()
        assert go.wait(20)

    monkeypatch.setattr(os, "fdatasync", slow)
    driver.do(SaveState("s", b"0", 0))
    assert began.wait(20)
    driver.do(*(SaveState("s", b"%d" % number, number) for number in range(1, 100)))
    assert driver.journal.collect() == [], "nothing is stored before the sync is over"
    go.set()
    assert driver.wait(100) == [Stored(number) for number in range(100)]
    assert len(syncs) == 2


def test_nothing_that_cannot_be_written_is_taken(opened: Callable[..., Driver]) -> None:
    driver = opened()
    with pytest.raises(UsageError, match="synthetic"):
        driver.do(Append(LOG, (Batch.synthetic(LOG, 1, 100).sequenced(1, 0, 0),), "t"))


def test_memory_alone_answers_on_the_next_pass() -> None:
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


# ---------------------------------------------------------------- crashes


@pytest.mark.slow
def test_a_crash_at_any_byte_leaves_whole_records(
    opened: Callable[..., Driver], tmp_path: Path
) -> None:
    """Cut the file at every byte of its last records: each effect is there wholly or not at all."""
    effects = [
        Append(LOG, (batch(1, 2),), 0),
        SaveState("s", b"some state", 1),
        Append(LOG, (batch(3), batch(4)), 2),
        Truncate(LOG, 4),
        Append(OTHER, (batch(1, log=OTHER),), 3),
    ]
    contents = play_memory(effects)
    driver = opened()
    sizes = [driver.journal.path.stat().st_size]
    for number, effect in enumerate(effects):
        driver.do(effect)
        if type(effect) is not Truncate:
            driver.wait(1)
        else:
            driver.do(SaveState("s", b"some state", number))  # is answered, so the file has both
            driver.wait(1)
    driver.close()
    path = driver.journal.path
    data = path.read_bytes()
    seen: list[dict[str, Any]] = []
    copy = tmp_path / "copy"
    for size in range(sizes[0], len(data) + 1):
        copy.mkdir(exist_ok=True)
        (copy / "journal").write_bytes(data[:size])
        journal = Journal(copy, sync="none")
        found = content(journal.disk)
        journal.close()
        assert found in contents, f"cut at {size}"
        if not seen or seen[-1] != found:
            seen.append(found)
        # What was cut is gone for good, and the next life's records follow without a gap.
        assert (copy / "journal").stat().st_size >= size - journal.cut_bytes
        assert journal.cut_bytes < size
    assert seen == contents


@pytest.mark.parametrize("seed", range(3))
def test_what_follows_a_torn_tail_is_read_again(opened: Callable[..., Driver], seed: int) -> None:
    """Life after life, each cut short: every stored effect is there in the next."""
    rng = Random(seed)
    stored = 0
    for _ in range(15):
        driver = opened()
        assert driver.disk.end(LOG) >= stored + 1
        for _ in range(rng.randint(1, 5)):
            end = driver.disk.end(LOG)
            driver.do(Append(LOG, (batch(end, 3),), "t"))
            driver.wait(1)
            stored = end + 2
        driver.close()
        with driver.journal.path.open("ab") as file:  # an append that did not make it
            file.write(rng.randbytes(rng.randint(0, 200)))


def flip(path: Path, at: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def test_damage_below_what_was_synced_is_an_error_that_says_where(
    opened: Callable[..., Driver], tmp_path: Path
) -> None:
    driver = opened()
    starts = []
    for number in range(4):
        starts.append(driver.journal._file.size)
        driver.do(Append(LOG, (batch(1 + number),), number))
        driver.wait(1)
    driver.close()
    path = driver.journal.path
    data = path.read_bytes()
    rng = Random(1)
    spans = [(a, b) for a, b in zip(starts, [*starts[1:], len(data)], strict=True)]
    for start, end in spans:
        for at in rng.sample(range(start, start + 200), 12):
            path.write_bytes(data)
            flip(path, at, rng.randrange(8))
            with pytest.raises(StorageError, match="damaged") as caught:
                Journal(path.parent)
            assert str(path) in str(caught.value)
            offset = int(str(caught.value).split("offset ")[1].split()[0].replace(",", ""))
            assert start <= offset <= at < end
    path.write_bytes(data)
    Journal(path.parent).close()


def test_holes_in_the_last_unsynced_writes_are_a_crash_not_damage(
    opened: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
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
    start = driver.journal.path.stat().st_size
    driver.do(SaveState("first", b"x", 0))
    assert began.wait(20)
    driver.do(SaveState("second", b"x", 1), SaveState("third", b"x", 2))
    torn = driver.journal.path.read_bytes()  # "first" is written, its sync is not over
    go.set()
    driver.wait(3)
    whole = driver.journal.path.read_bytes()
    driver.close()
    assert len(whole) > len(torn) > start
    hole = whole[:start] + bytes(len(torn) - start)
    driver.journal.path.write_bytes(hole)
    again = opened()
    assert content(again.disk) == {LOG.hex(): content(driver.disk)[LOG.hex()]}
    assert again.journal.cut_bytes == len(hole) - start


KILLED = """
import sys
from surecast.columns.batch import Batch
from surecast.core.types import Append
from surecast.storage.journal import Journal
import threading
journal = Journal(sys.argv[1], rewrite_bytes_min=20_000)
woken = threading.Event()
journal.attach(woken.set)
LOG = bytes(range(16))
while True:
    end = journal.disk.end(LOG)
    journal.perform(Append(LOG, (Batch.of(LOG, [b"%d" % end] * 3).sequenced(end, 0, 0),), end + 3))
    if woken.is_set():
        woken.clear()
        for answer in journal.collect():
            print(answer.token, flush=True)
"""


def test_a_killed_process_loses_nothing_it_was_told_is_stored(tmp_path: Path) -> None:
    rng = Random(9)
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        told = 0
        for _ in range(rng.randint(20, 400)):
            told = int(process.stdout.readline())
        process.kill()
        rest = process.stdout.read().splitlines()
        told = int(rest[-2]) if len(rest) > 1 else told  # the last line may be cut short
        process.wait()
        process.stdout.close()
        journal = Journal(tmp_path)
        assert journal.disk.end(LOG) >= told
        rows = [row for one in journal.disk.read(LOG, 1, told, 1 << 40) for row in one.to_rows()]
        assert [row.seq for row in rows] == list(range(1, rows[-1].seq + 1))
        assert all(int(row.value) == (row.seq - 1) // 3 * 3 + 1 for row in rows)
        journal.close()


REWRITING = """
import sys, threading
from surecast.columns.batch import Batch
from surecast.core.types import Append, Compact, SaveState, Truncate
from surecast.storage.journal import Journal
journal = Journal(sys.argv[1], rewrite_bytes_min=2_000)
woken = threading.Event()
journal.attach(woken.set)
LOG = bytes(range(16))
number = int(journal.disk.state("s") or b"0")
while True:
    number += 1
    end = journal.disk.end(LOG)
    journal.perform(SaveState("s", b"%d" % number, (number, end, journal.rewrites)))
    journal.perform(Append(LOG, (Batch.of(LOG, [b"%d" % end] * 3).sequenced(end, 0, 0),), None))
    if number % 7 == 0:
        journal.perform(Truncate(LOG, end))
    elif number % 20 == 0:
        journal.perform(Compact(LOG, (Batch.void(LOG, 1, end, 1),), None))
    if number % 10 == 0:  # not so far ahead of the disk that nothing is ever answered
        woken.wait()
        woken.clear()
        for answer in journal.collect():
            if answer.token:
                print(*answer.token, flush=True)
"""


def test_a_process_killed_while_it_rewrites_its_journal_loses_nothing_either(
    tmp_path: Path,
) -> None:
    """Told is (a state's number, the log's end before it); later effects may be there as well."""
    rng = Random(10)
    rewrites = 0
    for _ in range(KILLS):
        process = subprocess.Popen(
            [sys.executable, "-c", REWRITING, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(rng.randint(100, 600))]
        process.kill()
        lines += process.stdout.read().splitlines()[:-1]  # the last line may be cut short
        process.wait()
        process.stdout.close()
        number, _, rewritten = map(int, lines[-1].split())
        rewrites += rewritten
        journal = Journal(tmp_path)
        assert int(journal.disk.state("s") or 0) >= number
        reached = journal.disk.end(LOG)
        seqs = [b.lo for b in journal.disk.read(LOG, 1, reached, 1 << 40)]
        assert seqs[0] == 1
        assert reached >= int(lines[-1].split()[1]) - 3  # at most one truncate is under way
        journal.close()
    assert rewrites


def test_a_journal_of_a_later_version_is_left_alone(opened: Callable[..., Driver]) -> None:
    driver = opened()
    driver.do(SaveState("s", b"x", 1))
    driver.wait(1)
    driver.close()
    path = driver.journal.path
    with path.open("ab") as file:
        file.write(b"".join(Record(9, bytes(16), [b"anything"], 0, 0).encode(0)))
    data = path.read_bytes()
    with pytest.raises(StorageError, match="later version"):
        opened()
    assert path.read_bytes() == data


@pytest.mark.parametrize("data", [b"SCJ\xf2" + bytes(100), b"Dear diary,", b"\x7fELF"])
def test_a_file_that_is_no_journal_is_left_alone(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "journal").write_bytes(data)
    with pytest.raises(StorageError, match="not a journal"):
        Journal(tmp_path)
    assert (tmp_path / "journal").read_bytes() == data


@pytest.mark.parametrize("data", [b"", b"SC", b"SCJ\xf1", bytes(100), b"SCJ\xf1" + bytes(100)])
def test_a_first_record_that_did_not_make_it_is_no_journal_lost(
    tmp_path: Path, data: bytes
) -> None:
    (tmp_path / "journal").write_bytes(data)
    journal = Journal(tmp_path)
    assert journal.incarnation == 1
    journal.close()


def test_a_path_that_cannot_be_a_journal_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="cannot open"):
        Journal(tmp_path / "file" / "node")
    (tmp_path / "node" / "journal").mkdir(parents=True)
    with pytest.raises(StorageError, match="cannot open"):
        Journal(tmp_path / "node")


def test_a_new_directory_is_entered_in_the_one_above_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def fsync(file: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{file}"))

    monkeypatch.setattr(os, "fsync", fsync)
    Journal(tmp_path / "a" / "b").close()
    assert synced == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]


# ---------------------------------------------------------------- failing disks


def test_a_life_that_cannot_be_written_down_does_not_begin(
    opened: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened().close()
    disk = Disk(monkeypatch)
    disk.room = 20
    with pytest.raises(StorageError, match="cannot write"):
        opened()
    disk.room = 1 << 60
    assert opened().journal.incarnation == 2


def test_a_torn_record_that_cannot_be_cut_off_is_the_last(
    opened: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What followed it would be lost when the journal is opened again."""
    driver = opened()
    driver.do(SaveState("s", b"kept", 0))
    assert driver.wait(1) == [Stored(0)]
    with monkeypatch.context() as patch:
        disk = Disk(patch)
        disk.room = 20
        patch.setattr(os, "ftruncate", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "no")))
        driver.do(SaveState("s", b"lost", 1))
        assert driver.wait(1) == [StoreFailed(1, "full")]
        disk.room = 1 << 60
        for number in (2, 3):
            driver.do(SaveState("s", b"lost", number))
            assert driver.wait(1) == [StoreFailed(number, "io")]
    driver.close()
    assert opened().disk.state("s") == b"kept"


def test_a_writer_that_meets_a_bug_answers_all_the_same(
    opened: Callable[..., Driver],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver = opened()
    with monkeypatch.context() as patch:
        patch.setattr(Record, "encode", lambda *_: 1 / 0)
        driver.do(SaveState("s", b"x", 1))
        assert driver.wait(1) == [StoreFailed(1, "io")]
    assert "ZeroDivisionError" in caplog.text
    driver.do(SaveState("s", b"x", 2))
    assert driver.wait(1) == [StoreFailed(2, "io")]
    driver.close()
    assert opened().disk.state("s") is None


def test_a_rewrite_that_may_not_last_is_the_end(
    opened: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new file has the old one's place, but a crash might bring the old one back."""
    driver = opened(rewrite_bytes_min=1000)

    def fsync(file: int) -> None:
        raise OSError(errno.EIO, "injected")

    monkeypatch.setattr(os, "fsync", fsync)
    answers: list[Any] = []
    for number in range(50):
        driver.do(SaveState("s", bytes(200), number))
        answers += driver.wait(1)
    failed = [answer for answer in answers if type(answer) is StoreFailed]
    assert answers == [*map(Stored, range(50 - len(failed))), *failed]
    assert 30 < len(failed) < 50
    driver.close()


class Disk:
    """Stands in for `os.writev` and takes only so many bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._room = 1 << 60
        self._lock = threading.Lock()
        self._write = os.write
        monkeypatch.setattr(os, "writev", self.writev)
        monkeypatch.setattr(os, "write", self.write)

    def writev(self, file: int, buffers: Any) -> int:
        return self.write(file, b"".join(buffers))

    @property
    def room(self) -> int:
        return self._room

    @room.setter
    def room(self, nbytes: int) -> None:
        with self._lock:
            self._room = nbytes

    def write(self, file: int, data: Any) -> int:
        with self._lock:
            if not self._room:
                raise OSError(errno.ENOSPC, "injected")
            count = self._write(file, data[: self._room])
            self._room -= count
            return count


@pytest.mark.parametrize("room", [0, 1, 55, 56, 57, 100, 150, 250, 260, 300])
def test_a_full_disk_fails_what_does_not_fit_and_keeps_what_does(
    opened: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    disk = Disk(monkeypatch)
    driver = opened()
    driver.do(Append(LOG, (batch(1),), "before"))
    driver.wait(1)
    driver.do(SaveState("mark", b"", "marked"))
    driver.wait(1)
    before = content(driver.disk)
    disk.room = room
    effects = [Append(LOG, (batch(2 + n),), n) for n in range(3)]
    driver.do(*effects, SaveState("s", b"x", "state"))
    answers = driver.wait(4)
    kinds = [type(answer) for answer in answers]
    assert [answer.token for answer in answers] == [0, 1, 2, "state"]
    good = kinds.count(Stored)
    assert kinds == [Stored] * good + [StoreFailed] * (4 - good)
    assert {answer.reason for answer in answers[good:]} == {"full"}
    assert driver.disk.end(LOG) == 2 + good
    # Room again: life goes on where the failure left it.
    disk.room = 1 << 60
    driver.do(Append(LOG, (batch(2 + good, nbytes=9),), "after"))
    assert driver.wait(1) == [Stored("after")]
    after = content(driver.disk)
    driver.close()
    again = opened()
    assert content(again.disk) == after
    assert after[LOG.hex()][0] == before[LOG.hex()][0]


def test_a_truncate_is_kept_when_the_disk_is_full(
    opened: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    driver = opened()
    driver.do(*(Append(LOG, (batch(n),), n) for n in range(1, 6)))
    driver.wait(5)
    driver.journal._file._marked = True  # no mark may use up the room
    disk.room = 0
    driver.do(Append(LOG, (batch(6),), "a"), Truncate(LOG, 4), Append(LOG, (batch(4),), "b"))
    assert driver.wait(2) == [StoreFailed("a", "full"), StoreFailed("b", "full")]
    assert driver.disk.end(LOG) == 4
    driver.do(SaveState("s", b"", "c"))
    assert driver.wait(1) == [StoreFailed("c", "full")]
    assert driver.disk.end(LOG) == 4
    disk.room = 1 << 60
    driver.do(Append(LOG, (batch(4, 7),), "d"))
    assert driver.wait(1) == [Stored("d")]
    driver.close()
    again = opened()
    assert again.disk.end(LOG) == 11
    assert content(again.disk) == content(driver.disk)


def test_the_systems_own_limit_is_a_full_disk(opened: Callable[..., Driver]) -> None:
    driver = opened()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (driver.journal._file.size + 3000, hard))
    try:
        driver.do(*(Append(LOG, (batch(n, nbytes=800),), n) for n in range(1, 8)))
        answers = driver.wait(7)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    good = sum(type(answer) is Stored for answer in answers)
    assert 1 <= good < 7
    assert answers[good:] == [StoreFailed(n, "full") for n in range(good + 1, 8)]
    driver.close()
    assert opened().disk.end(LOG) == 1 + good


def test_a_failed_sync_is_final(
    opened: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = opened()
    driver.do(Append(LOG, (batch(1),), "good"))
    driver.wait(1)

    def fail(file: int) -> None:
        raise OSError(errno.EIO, "injected")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        driver.do(Append(LOG, (batch(2),), "a"), SaveState("s", b"", "b"))
        assert driver.wait(2) == [StoreFailed("a", "io"), StoreFailed("b", "io")]
    driver.do(Append(LOG, (batch(2),), "c"))
    assert driver.wait(1) == [StoreFailed("c", "io")]
    assert driver.disk.end(LOG) == 2
    driver.close()
    again = opened()
    assert content(again.disk) == {LOG.hex(): content(driver.disk)[LOG.hex()]}


@pytest.mark.parametrize("seed", range(6))
def test_memory_and_file_agree_whatever_fails(
    opened: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = Random(seed)
    disk = Disk(monkeypatch)
    driver = opened(rewrite_bytes_min=10_000)
    failed = 0
    for number in range(60):
        disk.room = rng.choice((1 << 60, rng.randint(0, 2000)))
        effects: list[Any] = []
        for _ in range(rng.randint(1, 4)):
            log = rng.choice((LOG, OTHER))
            end = driver.disk.end(log)
            choice = rng.randrange(6)
            if choice == 0:
                driver.do(Truncate(log, rng.randint(1, end)))
            elif choice == 1 and end > 2:
                effects.append(Compact(log, (Batch.void(log, 1, rng.randint(2, end), 1),), number))
                driver.do(effects[-1])
            elif choice == 2:
                effects.append(SaveState(rng.choice("xy"), rng.randbytes(20), number))
                driver.do(effects[-1])
            else:
                effects.append(Append(log, (batch(end, 2, 50, log),), number))
                driver.do(effects[-1])
        answers = driver.wait(len(effects))
        failed += sum(type(answer) is StoreFailed for answer in answers)
    disk.room = 1 << 60
    driver.do(SaveState("last", b"", "last"))
    assert driver.wait(1) == [Stored("last")]
    driver.close()
    assert failed > 5
    assert content(opened().disk) == content(driver.disk)


# ---------------------------------------------------------------- growth


def test_compaction_frees_the_disk(opened: Callable[..., Driver]) -> None:
    driver = opened(rewrite_bytes_min=50_000)
    for number in range(200):
        end = driver.disk.end(LOG)
        driver.do(
            Append(LOG, (batch(end, 10, 100),), "a"),
            Compact(LOG, (Batch.void(LOG, 1, end + 5, 1),), "c"),
            SaveState("s", b"%d" % number, "s"),
        )
        driver.wait(3)
    assert driver.journal.rewrites > 2
    assert driver.journal.path.stat().st_size < 100_000
    driver.close()
    again = opened()
    assert content(again.disk) == content(driver.disk)
    assert again.journal.incarnation == 2


def test_a_rewrite_that_does_not_fit_leaves_all_as_it_was(
    opened: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = opened(rewrite_bytes_min=4000)
    monkeypatch.setattr(Path, "rename", _no_room)
    for _ in range(30):
        end = driver.disk.end(LOG)
        driver.do(Append(LOG, (batch(end),), "a"))
        driver.do(Compact(LOG, (Batch.void(LOG, 1, end + 1, 1),), "c"))
        assert driver.wait(2) == [Stored("a"), Compacted("c")]
    assert driver.journal.rewrites == 0
    assert driver.journal._rewrite_at > 4000, "none was tried"
    driver.close()
    assert sorted(path.name for path in driver.journal.path.parent.iterdir()) == ["journal", "lock"]
    monkeypatch.undo()
    assert content(opened().disk) == content(driver.disk)


def _no_room(self: Path, target: Any) -> None:
    raise OSError(errno.ENOSPC, "injected")
