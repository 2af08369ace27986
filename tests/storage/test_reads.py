"""The effect Read on the segment store: the same batches as a call, beside other work, bounded."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.storage.stores import LOG, OTHER, Driver, batch, compact, history, small

from surecast.core.types import Append, Batch, Compact, Compacted, Loaded, Read, Truncate
from surecast.storage.extents import Extent
from surecast.storage.reads import Reads, read_pieces
from surecast.storage.store import load

Opened = Callable[..., Driver]
WAIT_S = 20


def filled(driver: Driver, count: int = 60, log: bytes = LOG) -> None:
    """Append batches, and wait until most of them are in segments."""
    for number in range(count):
        driver.do(Append(log, (batch(driver.disk.end(log), 3, 60, log),), number))
        driver.wait(1)
    driver.settle()
    assert driver.store.moves


def same(found: list[Batch], expected: list[Batch]) -> bool:
    return [(b.lo, b.hi, b.nbytes, bytes(b.body or b"")) for b in found] == [
        (b.lo, b.hi, b.nbytes, bytes(b.body or b"")) for b in expected
    ]


@pytest.mark.parametrize("seed", range(4))
def test_a_read_gives_what_the_call_gives(opened: Opened, seed: int) -> None:
    """In random ranges of a log with segments, batches in memory, and pieces of compactions."""
    rng = Random(seed)
    driver = opened(small())
    for effect in history(rng, 150, 150):
        driver.do(effect)
        if type(effect) is not Truncate:
            driver.wait(1)
    driver.settle()
    disk = driver.disk
    assert any(type(piece) is Extent for log in (LOG, OTHER) for piece in disk._log(log).pieces)
    for number in range(40):
        log = rng.choice((LOG, OTHER))
        lo = rng.randint(1, disk.end(log))
        hi = rng.randint(lo, disk.end(log) + 5)
        read = Read(log, lo, hi, rng.choice((0, 300, 1000, 1 << 30)), number)
        driver.do(read)
        (answer,) = driver.wait(1)
        expected = load(disk, read)
        assert answer.token == number
        assert same(answer.batches, expected.batches)  # type: ignore[arg-type]


def test_a_read_shows_the_log_as_it_was_when_it_was_requested(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is truncated and filled with other content, compacted, and the files that nothing
    else uses are removed, all while the read waits."""
    driver = opened(small())
    filled(driver)
    end = driver.disk.end(LOG)
    expected = driver.disk.read(LOG, 1, end, 1 << 30)
    with held_reads(monkeypatch) as go:
        driver.do(Read(LOG, 1, end, 1 << 30, "whole"))
        driver.do(Compact(*_fields(compact(LOG, 1, 30, "c"))))
        assert driver.wait(1) == [Compacted("c")]
        driver.do(Truncate(LOG, 31))
        for number in range(40):
            driver.do(Append(LOG, (batch(driver.disk.end(LOG), 1, 200),), number))
            driver.wait(1)
        driver.settle()
        go.set()
        (answer,) = driver.wait(1)
    assert answer.token == "whole"
    assert same(list(answer.batches), expected)
    assert not same(driver.disk.read(LOG, 1, end, 1 << 30), expected)


def _fields(effect: Compact) -> tuple[Any, ...]:
    return (effect.log, effect.lo, effect.hi, effect.voids, effect.rows_max, effect.token)


class held_reads:
    """Reads of segment files wait for the event that this context returns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: str = "") -> None:
        self.patch = monkeypatch
        self.go = threading.Event()
        self.began = 0

    def __enter__(self) -> threading.Event:
        pread = os.pread

        def slow(file: int, count: int, at: int) -> bytes:
            self.began += 1
            assert self.go.wait(WAIT_S)
            return pread(file, count, at)

        self.patch.setattr(os, "pread", slow)
        return self.go

    def __exit__(self, *_: object) -> None:
        self.go.set()
        self.patch.undo()


def test_writes_are_answered_while_a_read_waits_for_the_disk(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = opened(small())
    filled(driver)
    with held_reads(monkeypatch) as go:
        driver.do(Read(LOG, 1, 9, 1 << 20, "slow"))
        driver.do(Append(OTHER, (batch(1, log=OTHER),), "fast"))
        (first,) = driver.wait(1)
        assert first.token == "fast"
        go.set()
        (second,) = driver.wait(1)
    assert second.token == "slow"
    assert [b.lo for b in second.batches] == [1, 4, 7]


def test_the_store_says_which_positions_are_cold(opened: Opened) -> None:
    driver = opened(small())
    assert driver.cold == {}
    filled(driver)
    driver.collect()
    extents = [piece for piece in driver.disk._log(LOG).pieces if type(piece) is Extent]
    assert driver.cold == {LOG: extents[-1].hi}
    driver.close()
    again = opened(small())
    again.collect()
    assert again.woken.is_set()
    assert again.cold == {LOG: extents[-1].hi}


def corrupt(driver: Driver, lo: int) -> None:
    """Change a byte of the batch that begins at `lo`, in its segment."""
    for piece in driver.disk._log(LOG).pieces:
        if type(piece) is Extent and piece.lo <= lo < piece.hi:
            offset = next(at for at, found in piece.located(lo, lo + 1))
            path = driver.folder / f"segment-{piece.segment.number:010}"
            with path.open("r+b") as file:
                file.seek(offset + 100)
                byte = file.read(1)
                file.seek(offset + 100)
                file.write(bytes([byte[0] ^ 255]))
            return
    raise AssertionError(f"{lo} is in no segment")


def test_damage_is_reported_like_by_a_call(opened: Opened) -> None:
    driver = opened(small())
    filled(driver)
    corrupt(driver, 7)
    driver.do(Read(LOG, 1, 20, 1 << 20, "through"), Read(LOG, 1, 7, 1 << 20, "before"))
    answers = {answer.token: answer for answer in driver.wait(2)}
    through = answers["through"]
    assert through == load(driver.disk, Read(LOG, 1, 20, 1 << 20, "through"))
    assert through.batches == ()
    assert "is damaged" in through.problem
    assert [b.lo for b in answers["before"].batches] == [1, 4]
    assert answers["before"].problem == ""


def test_a_file_that_cannot_be_read_is_a_problem_not_an_exception(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = opened(small())
    filled(driver)

    def broken(file: int, count: int, at: int) -> bytes:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", broken)
        driver.do(Read(LOG, 1, 9, 1 << 20, 1))
        (answer,) = driver.wait(1)
    assert "Input/output error" in answer.problem
    assert "segment-" in answer.problem
    driver.do(Read(LOG, 1, 9, 1 << 20, 2))
    assert driver.wait(1)[0].problem == ""


def test_a_read_that_begins_in_a_hole_or_behind_the_end(opened: Opened) -> None:
    driver = opened(small())
    filled(driver)
    driver.disk.damage(LOG, 4, 7, "a flipped bit")
    end = driver.disk.end(LOG)
    driver.do(*(Read(LOG, lo, end + 9, 1 << 20, lo) for lo in (1, 4, end)))
    driver.do(Read(bytes(15) + b"?", 1, 9, 1 << 20, "unknown"))
    found = {answer.token: answer for answer in driver.wait(4)}
    assert [b.lo for b in found[1].batches] == [1]
    assert "cannot be read" in found[4].problem
    assert found[end] == Loaded(end, ())
    assert found["unknown"] == Loaded("unknown", ())


def test_a_store_closes_while_reads_wait(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = opened(small(read_threads=1))
    filled(driver)
    held = held_reads(monkeypatch)
    with held as go:
        driver.do(*(Read(LOG, 1, 9, 1 << 20, n) for n in range(5)))
        timer = threading.Timer(0.01, go.set)
        timer.start()
        driver.close()
        timer.join()
    reads = driver.store._reads
    assert reads is not None
    assert not [thread for thread in reads._threads if thread.is_alive()]


# ---------------------------------------------------------------- limits and turns


class Gate:
    """A piece of a log whose read waits until the test lets it continue."""

    nbytes = 0

    def __init__(self, reading: "Reading") -> None:
        self.lo, self.hi = 1, 2
        self.reading = reading

    def load(self, lo: int, hi: int, nbytes_max: int, pause: Callable[[], None]) -> list[Batch]:
        with self.reading.changed:
            self.reading.inside += 1
            self.reading.changed.notify_all()
            assert self.reading.changed.wait_for(lambda: self.reading.permits > 0, WAIT_S)
            self.reading.permits -= 1
            self.reading.inside -= 1
        return [batch(1)]


class Reading:
    def __init__(self, threads_max: int, bytes_max: int = 1 << 20) -> None:
        self.changed = threading.Condition()
        self.inside = self.permits = 0
        self.woken = threading.Semaphore(0)
        self.reads = Reads(self.woken.release, threads_max, bytes_max)

    def put(self, log: bytes, token: Any) -> None:
        self.reads.put(Read(log, 1, 2, 1 << 20, token), [Gate(self)])

    def let(self, count: int) -> None:
        with self.changed:
            self.permits += count
            self.changed.notify_all()

    def wait_inside(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.inside == count, WAIT_S)

    def take(self, count: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < count:
            assert self.woken.acquire(timeout=WAIT_S)
            found += [loaded.token for loaded in self.reads.take()]
        return found


@pytest.fixture
def made() -> Iterator[Callable[..., Reading]]:
    readings: list[Reading] = []

    def make(threads_max: int, bytes_max: int = 1 << 20) -> Reading:
        readings.append(Reading(threads_max, bytes_max))
        return readings[-1]

    yield make
    for reading in readings:
        reading.let(100)
        reading.reads.close()


def test_at_most_read_threads_reads_are_performed_at_a_time(made: Callable[..., Reading]) -> None:
    reading = made(3)
    assert reading.reads._threads == []  # a node without cold reads has no threads for them
    for number in range(8):
        reading.put(LOG, number)
    reading.wait_inside(3)
    assert len(reading.reads._threads) == 3
    reading.let(8)
    assert sorted(reading.take(8)) == list(range(8))


def test_logs_are_read_in_turn(made: Callable[..., Reading]) -> None:
    reading = made(1)
    for number in range(5):
        reading.put(LOG, f"many{number}")
    reading.wait_inside(1)
    reading.put(OTHER, "one")
    reading.let(100)
    assert reading.take(6) == ["many0", "many1", "one", "many2", "many3", "many4"]


def test_reads_wait_while_too_much_was_not_fetched(made: Callable[..., Reading]) -> None:
    reading = made(1, bytes_max=1)
    reading.let(100)
    for number in range(3):
        reading.put(LOG, number)
    assert reading.woken.acquire(timeout=WAIT_S)
    with reading.reads._work:
        assert len(reading.reads._done) == 1
        assert sum(map(len, reading.reads._waiting.values())) == 2
    assert [loaded.token for loaded in reading.reads.take()] == [0]
    assert reading.take(2) == [1, 2]


def test_read_bytes_max_limits_what_a_store_has_read_and_not_given(opened: Opened) -> None:
    driver = opened(small(read_threads=1, read_bytes_max=4096))
    filled(driver)
    driver.collect()
    driver.woken.clear()
    assert driver.store._reads is None  # a node without cold reads has no threads for them
    driver.do(*(Read(LOG, 1, 100, 1 << 20, n) for n in range(3)))
    reads = driver.store._reads
    assert reads is not None
    assert driver.woken.wait(WAIT_S)
    with reads._work:
        assert (len(reads._done), reads._done_bytes > 4096) == (1, True)
        assert sum(map(len, reads._waiting.values())) == 2
    assert [answer.token for answer in driver.wait(3)] == [0, 1, 2]


def test_decoding_pauses_so_that_other_threads_can_work(opened: Opened, tmp_path: Path) -> None:
    """A thread that decodes holds the interpreter's lock: it pauses at least every 32 batches."""
    driver = opened(small(segment_bytes_max=1 << 20, journal_bytes_max=1 << 16))
    filled(driver, 400)
    pieces = driver.disk.pieces_from(LOG, 1, 1 << 60, 1 << 30)
    pauses: list[int] = []
    found = read_pieces(pieces, 1, 1 << 60, 1 << 30, lambda: pauses.append(1))
    assert same(found, driver.disk.read(LOG, 1, 1 << 60, 1 << 30))
    extents = sum(piece.summary()[0] for piece in pieces if type(piece) is Extent)
    assert len(pauses) >= extents // 32 - len(pieces)
    assert len(pauses) > 3
