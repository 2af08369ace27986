"""Damage of any file: the store opens, shows nothing wrong, and keeps all readable data.

A store is created once and damaged in many ways, one at a time: a flipped bit, a truncated,
partly zeroed or deleted file. `History` records what was ever written where. To try 500 of them:

    python -m tests.storage.test_damage 500
"""

import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from tests.storage.power import Image, Power, put
from tests.storage.stores import LOG, OTHER, Driver, compact, small

from surecast.columns.batch import Batch
from surecast.core.types import DAMAGE, Append, LogId, Repair, SaveState, Stored, Truncate
from surecast.core.wire import decode_batch, encode_batch
from surecast.storage.config import StorageConfig
from surecast.storage.inspect import info, verify
from surecast.storage.journal_file import JournalFile
from surecast.storage.memory import MemoryDisk
from surecast.storage.mover import Mover
from surecast.storage.records import Moved, Rewritten, read_records
from surecast.storage.segment_file import Mapped
from surecast.storage.segments import SegmentStore

Opened = Callable[..., Driver]

THIRD = b"a third log here"
LOGS = (LOG, OTHER, THIRD)
ROWS_MAX = 12  # of a batch
QUICK, MANY = 4, 20  # number of damages tried for each history


class History(NamedTuple):
    """The files of a store, and the contents it should show."""

    image: Image
    ends: dict[LogId, int]
    batches: dict[LogId, list[Batch]]
    holes: dict[LogId, list[tuple[int, int]]]
    states: dict[str, bytes | None]
    values: dict[LogId, dict[int, bytes]]  # the last value written to each position
    ever: dict[LogId, dict[int, set[bytes]]]
    units: dict[LogId, list[tuple[int, int]]]  # all batches ever appended


def config(**more: Any) -> StorageConfig:
    return small(journal_bytes_max=8192, inline_bytes_max=1200, **more)


@cache
def history(truncates: bool, clean: bool = True) -> History:
    """A store with segments, two journals, both kinds of compaction, states and a hole; closed if
    `clean`."""
    rng = Random(5)
    values: dict[LogId, dict[int, bytes]] = {log: {} for log in LOGS}
    ever: dict[LogId, dict[int, set[bytes]]] = {log: {} for log in LOGS}
    units: dict[LogId, list[tuple[int, int]]] = {log: [] for log in LOGS}

    def some(log: LogId, lo: int, count: int, version: int) -> Batch:
        lines = [b"%d/%d/%d" % (LOGS.index(log), lo + i, version) for i in range(count)]
        lines = [value.ljust(rng.randint(20, 150), b".") for value in lines]
        for i, value in enumerate(lines):
            values[log][lo + i] = value
            ever[log].setdefault(lo + i, set()).add(value)
        units[log].append((lo, lo + count))
        return Batch.of(log, lines).sequenced(lo, lo, 1)

    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name) / "disk"
        driver = Driver(folder, config())

        def play(numbers: range) -> None:
            for number in numbers:
                log = rng.choice(LOGS)
                end = driver.disk.end(log)
                if number % 9 == 8:
                    driver.do(SaveState(rng.choice("xyz"), b"%d" % number, number))
                elif truncates and number % 11 == 10 and end > 20:
                    driver.do(Truncate(log, end - rng.randint(1, 15)))
                    continue
                elif number % 7 == 6 and end > 20:
                    lo = rng.randint(1, end - 10)
                    hi = min(lo + rng.choice((10, 60)), end)
                    gone = [(p, p + 1) for p in range(lo, hi) if p % 3]
                    driver.do(compact(log, lo, hi, number, gone))
                else:
                    first = some(log, end, rng.randint(1, ROWS_MAX), number)
                    second = some(log, first.hi, 2, number)
                    driver.do(Append(log, (first, second), number))
                driver.wait(1)
                driver.settle()

        play(range(120))
        driver.close()
        # A hole from earlier damage.
        path = max(folder.glob("segment-*"), key=lambda file: file.stat().st_size)
        data = bytearray(path.read_bytes())
        data[300] ^= 1
        path.write_bytes(data)
        driver = Driver(folder, config())
        assert any(driver.disk.holes(log) for log in LOGS)
        play(range(120, 150))
        patch.setattr(Mover, "move", _no_room)  # from here on journals are kept
        journals = len(list(folder.glob("journal-*")))
        number = 150
        while len(list(folder.glob("journal-*"))) < journals + 1:
            play(range(number, number + 1))
            number += 1
        play(range(number, number + 16))
        disk = driver.disk
        if clean:
            driver.close()
        image = {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "lock"}
        found = History(
            image,
            {log: disk.end(log) for log in LOGS},
            {log: list(readable(disk, log)) for log in LOGS},
            {log: disk.holes(log) for log in LOGS},
            {state: disk.state(state) for state in disk.states()},
            values,
            ever,
            units,
        )
        found = found._replace(
            batches={log: [_kept(b) for b in some] for log, some in found.batches.items()}
        )
        driver.close()
    return found


def _kept(batch: Batch) -> Batch:
    """The batch with a body that does not refer to the file."""
    return batch.slice(batch.lo, batch.hi) if type(batch.body) is bytes else _copied(batch)


def _copied(batch: Batch) -> Batch:
    return decode_batch(_frame(batch))[0]


def _no_room(*_: Any) -> None:
    raise OSError(28, "injected")


def readable(disk: MemoryDisk, log: LogId) -> Iterator[Batch]:
    at = 1
    for lo, hi in [*disk.holes(log), (disk.end(log), 0)]:
        if at < lo:
            yield from disk.read(log, at, lo, 1 << 60)
        at = hi


def shown(disk: MemoryDisk) -> dict[str, Any]:
    """All contents of a disk, with holes but without the reasons of damage."""
    logs = {
        log.hex(): [(b.lo, b.hi, bytes(b.body or b"")) for b in readable(disk, log)] for log in LOGS
    }
    holes = {f"holes {log.hex()}": disk.holes(log) for log in LOGS}
    ends = {f"end {log.hex()}": disk.end(log) for log in LOGS}
    states = {name: disk.state(name) for name in disk.states() if name != DAMAGE}
    return {**logs, **holes, **ends, **states, "damaged": bool(disk.state(DAMAGE))}


# ---------------------------------------------------------------- what may be missing


def positions_behind(known: History, name: str, size: int) -> dict[LogId, set[int]]:
    """The positions stored in a segment or journal at or above the offset `size`."""
    found: dict[LogId, set[int]] = {log: set() for log in LOGS}
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(known.image[name])
        number = int(name.rpartition("-")[2])
        if name.startswith("segment"):
            mapped = Mapped(path, number)
            for i in range(mapped.runs):
                run = mapped.run(i)
                los, offsets, *_ = mapped.index(run, i)
                his = [*los.tolist()[1:], run.hi]
                ends = [*offsets.tolist()[1:], run.at + run.nbytes]
                for lo, hi, end in zip(los.tolist(), his, ends, strict=True):
                    if end > size:
                        found[run.log].update(range(lo, hi))
        else:
            data = memoryview(known.image[name])
            for end, record in read_records(data, number, len(data)):
                if end > size and hasattr(record, "batches"):
                    for part in record.batches:
                        found[record.log].update(range(part.lo, part.hi))
    return found


class Damage(NamedTuple):
    kind: str
    name: str
    at: int
    image: Image


def damage_one_file(known: History, rng: Random) -> Damage:
    prefix = rng.choice(("segment", "journal", "manifest", "ends"))
    name = rng.choice(sorted(name for name in known.image if name.startswith(prefix)))
    data = known.image[name]
    kind = rng.choice(("flip", "flip", "flip", "cut", "zero", "delete"))
    at = rng.randrange(max(len(data), 1))
    image = dict(known.image)
    if kind == "delete":
        del image[name]
    elif kind == "flip" and data:
        broken = bytearray(data)
        broken[at] ^= 1 << rng.randrange(8)
        image[name] = bytes(broken)
    elif kind == "zero":
        at = at // 512 * 512
        image[name] = data[:at] + bytes(len(data[at : at + 512])) + data[at + 512 :]
    else:
        kind, at = "cut", rng.choice((0, at, at // 8 * 8))
        image[name] = data[:at]
    return Damage(kind, name, at, image)


def check(known: History, disk: MemoryDisk) -> dict[LogId, set[int]]:
    """Check that nothing shown is wrong; returns the positions that are not shown any more."""
    doubt = bool(disk.state(DAMAGE))
    missing: dict[LogId, set[int]] = {}
    for log in LOGS:
        live = {row.seq for b in known.batches[log] for row in b.to_rows()}
        before = {p for lo, hi in known.holes[log] for p in range(lo, hi)}
        seen: set[int] = set()
        for part in readable(disk, log):
            rows = {row.seq: row.value for row in part.to_rows()}
            for p in range(part.lo, part.hi):
                seen.add(p)
                if p >= known.ends[log]:
                    assert doubt, f"{p} is beyond the end"
                elif p in rows:
                    assert rows[p] == known.values[log][p] or (
                        doubt and rows[p] in known.ever[log][p]
                    )
                else:
                    assert p not in live or doubt, f"{p} is void, but was live"
        missing[log] = set(range(1, known.ends[log])) - seen - before
        assert disk.end(log) >= known.ends[log] or doubt
    return missing


def check_missing(known: History, done: Damage, disk: MemoryDisk) -> None:
    """Check that only damaged data is missing, and that possibly lost changes are reported."""
    doubt = bool(disk.state(DAMAGE))
    kind = done.name.partition("-")[0]
    missing = {log: some for log, some in check(known, disk).items() if some}
    if kind in ("ends", "manifest"):
        assert not missing
    elif done.kind == "flip":
        assert len(missing) <= 1
        for log, some in missing.items():
            units = [*known.units[log], *((b.lo, b.hi) for b in known.batches[log])]
            assert any(lo <= min(some) and max(some) < hi for lo, hi in units), "one batch"
    elif done.kind != "zero":
        allowed = positions_behind(known, done.name, done.at if done.kind == "cut" else 0)
        assert all(some <= allowed[log] for log, some in missing.items())
    if kind == "segment":
        assert not doubt
        assert {n: disk.state(n) for n in known.states} == known.states
    if kind != "segment" and done.kind == "delete":
        assert doubt
    if kind == "journal" and done.kind == "cut" and done.at < len(known.image[done.name]) - 72:
        assert doubt


@pytest.mark.parametrize("truncates", [False, True])
@pytest.mark.parametrize("seeds", [QUICK, pytest.param(MANY, marks=pytest.mark.slow)])
def test_a_store_opens_with_any_damage_and_shows_nothing_wrong(
    tmp_path: Path, truncates: bool, seeds: int
) -> None:
    known = history(truncates)
    for seed in range(1000 * seeds, 1001 * seeds):
        rng = Random(seed)
        done = damage_one_file(known, rng)
        print(f"seed {seed}: {done.kind} {done.name} at {done.at}")
        folder = put(done.image, tmp_path / str(seed))
        found = verify(folder)
        assert {p.name: p.read_bytes() for p in folder.iterdir()} == done.image
        holdings = info(folder)
        driver = Driver(folder, config(sync="none"))
        disk = driver.disk
        check_missing(known, done, disk)
        assert bool(found.problems) == bool(driver.store.damage)
        assert holdings.problems == found.problems
        first = shown(disk)
        driver.close()
        # Opened again, it shows the same and reports nothing new.
        driver = Driver(folder, config(sync="none"))
        assert shown(driver.disk) == first
        assert driver.store._mover.moves == 0
        continue_after_damage(known, driver)
        driver.close()
        driver = Driver(folder, config(sync="none"))
        assert driver.store.damage == []
        driver.close()


def continue_after_damage(known: History, driver: Driver) -> None:
    """Fill the holes, append, move, and report that the damage was handled."""
    for log in LOGS:
        for lo, hi in driver.disk.holes(log):
            fills = [Batch.of(log, [b"filled"] * (hi - lo)).sequenced(lo, 1, 1)]
            known_here = [b for b in known.batches[log] if b.hi > lo and b.lo < hi]
            if known_here and known_here[0].lo <= lo and known_here[-1].hi >= hi:
                fills = [b.slice(max(b.lo, lo), min(b.hi, hi)) for b in known_here]
            driver.do(Repair(log, tuple(fills), "repaired"))
            assert driver.wait(1) == [Stored("repaired")]
        assert driver.disk.holes(log) == []
        end = driver.disk.end(log)
        driver.do(Append(log, (Batch.of(log, [bytes(3000)] * 2).sequenced(end, 1, 1),), "more"))
        assert driver.wait(1) == [Stored("more")]
    driver.do(SaveState(DAMAGE, b"", "dealt with"))
    assert driver.wait(1) == [Stored("dealt with")]
    driver.settle()
    assert driver.store.moves
    for log in LOGS:
        read = driver.disk.read(log, 1, driver.disk.end(log), 1 << 60)
        assert [b.lo for b in read] == [1, *(b.hi for b in read[:-1])]


@pytest.mark.parametrize("truncates", [False, True])
def test_a_killed_store_loses_nothing_compared_with_a_closed_one(
    tmp_path: Path, truncates: bool
) -> None:
    known = history(truncates, clean=False)
    store = SegmentStore(put(known.image, tmp_path / "disk"), config())
    assert len(store.damage) == sum(map(len, known.holes.values())), "the earlier hole"
    assert store.disk.state(DAMAGE) is None
    assert {log: store.disk.holes(log) for log in LOGS} == known.holes
    assert {log: store.disk.end(log) for log in LOGS} == known.ends
    store.close()


@pytest.mark.slow
def test_a_store_opens_with_damage_of_several_files(tmp_path: Path) -> None:
    known = history(True)
    for seed in range(15):
        rng = Random(seed)
        image = dict(known.image)
        for _ in range(rng.randint(2, 6)):
            done = damage_one_file(known._replace(image={**known.image, **image}), rng)
            image = {n: d for n, d in done.image.items() if n in image}
        print(f"seed {seed}")
        folder = put(image, tmp_path / str(seed))
        verify(folder)
        driver = Driver(folder, config(sync="none"))
        check(known, driver.disk)
        first = shown(driver.disk)
        driver.close()
        driver = Driver(folder, config(sync="none"))
        assert shown(driver.disk) == first
        continue_after_damage(known, driver)
        driver.close()
        store = SegmentStore(folder, config())
        assert store.damage == []
        store.close()


@pytest.mark.parametrize("seeds", [3, pytest.param(8, marks=pytest.mark.slow)])
def test_a_crash_while_a_damaged_store_is_opened_changes_nothing(
    tmp_path: Path, seeds: int
) -> None:
    """A crash at every step that changes a file, by SIGKILL and by power cut."""
    known = history(True)
    steps = 0
    for seed in range(seeds):
        done = damage_one_file(known, Random(1000 * seeds + seed))
        folder = put(done.image, tmp_path / str(seed))
        with pytest.MonkeyPatch.context() as patch:
            power = Power(patch, folder, lambda: 0, seed)
            power.adopt()
            store = SegmentStore(folder, config())
            expected = shown(store.disk)
            store.close()
        seen: set[int] = set()
        for number, (call, _, image) in enumerate(power.steps):
            key = hash(tuple(sorted(image.items())))
            if key in seen:
                continue
            seen.add(key)
            again = SegmentStore(put(image, tmp_path / f"{seed}-{number}"), config(sync="none"))
            assert shown(again.disk) == expected, f"{done.kind} {done.name} {done.at}, {call}"
            again.close()
        steps += len(seen)
    assert steps > 5 * seeds


# ---------------------------------------------------------------- each part of a segment


def moved(folder: Path) -> Path:
    """Create a store with two logs completely in one segment; returns the segment's path."""
    driver = Driver(folder, small(journal_bytes_max=1 << 20))
    for n in range(8):
        driver.do(Append(LOG, (_some(driver, LOG, 1 + n % 3),), n))
        driver.do(Append(OTHER, (_some(driver, OTHER, 2),), n))
        driver.wait(2)
    driver.store._move()
    driver.settle()
    driver.close()
    (path,) = folder.glob("segment-*")
    return path


def _some(driver: Driver, log: LogId, count: int) -> Batch:
    lo = driver.disk.end(log)
    values = [b"%d" % (lo + i) for i in range(count)]
    return Batch.of(log, values).sequenced(lo, 1, 1)


def test_a_flipped_bit_in_a_segment_loses_at_most_its_batch(tmp_path: Path) -> None:
    """Outside of frames nothing is lost: indices and directory only help to find frames."""
    path = moved(tmp_path / "disk")
    data = path.read_bytes()
    image = {p.name: p.read_bytes() for p in path.parent.iterdir() if p.name != "lock"}
    mapped = Mapped(path, 1)
    frames: list[tuple[int, int, LogId, int, int]] = []
    for number in range(mapped.runs):
        run = mapped.run(number)
        los, offsets, *_ = mapped.index(run, number)
        his, ends = [*los.tolist()[1:], run.hi], [*offsets.tolist()[1:], run.at + run.nbytes]
        for at, end, lo, hi in zip(offsets.tolist(), ends, los.tolist(), his, strict=True):
            frames.append((at, end, run.log, lo, hi))
    assert len(frames) == 16
    rng = Random(2)
    places = [rng.randrange(at, at + 128) for at, *_ in frames]
    places += [rng.randrange(at + 128, end) for at, end, *_ in frames[::3]]
    places += [rng.randrange(frames[-1][1], len(data)) for _ in range(8)]
    places += [0, 5, 20, len(data) - 8, len(data) - 30]
    for at in places:
        broken = bytearray(data)
        broken[at] ^= 1 << rng.randrange(8)
        folder = put({**image, path.name: bytes(broken)}, tmp_path / f"{at}")
        store = SegmentStore(folder, small(sync="none"))
        hit = [(log, lo, hi) for start, end, log, lo, hi in frames if start <= at < end]
        found = [(log, lo, hi) for log in (LOG, OTHER) for lo, hi in store.disk.holes(log)]
        assert found == hit, at
        assert store.damage, at
        assert store.disk.state(DAMAGE) is None
        assert (store.disk.end(LOG), store.disk.end(OTHER)) == (16, 17)
        store.close()


def test_an_event_that_looks_like_a_frame_is_not_read_as_one(tmp_path: Path) -> None:
    """The search for frames meets its bytes if the header before it and the index are damaged."""
    fake = _frame(Batch.of(LOG, [b"never published"]).sequenced(2, 1, 1))
    for padding in range(8):  # at one of these offsets it is aligned like a frame
        folder = tmp_path / f"{padding}"
        driver = Driver(folder, small(journal_bytes_max=1 << 20))
        for lo, value in ((1, b"one"), (2, bytes(padding) + fake + bytes(50)), (3, b"three")):
            driver.do(Append(LOG, (Batch.of(LOG, [value]).sequenced(lo, 1, 1),), lo))
            driver.wait(1)
        image = {driver.journal.name: driver.journal.read_bytes()}
        driver.store._move()
        driver.settle()
        driver.close()
        (path,) = folder.glob("segment-*")
        data = bytearray(path.read_bytes())
        run = Mapped(path, 1).run(0)
        _, offsets, *_ = Mapped(path, 1).index(run, 0)
        data[int(offsets[1]) + 40] ^= 1
        data[run.index_at] ^= 1
        path.write_bytes(data)
        store = SegmentStore(folder, small())
        assert store.disk.holes(LOG) == [(2, 3)]
        store.close()
        # The same in a journal, whose record contains its length.
        data = bytearray(image["journal-0000000001"])
        at = data.index(bytes(padding) + fake) - 300
        header = data.index(b"SCF\xf1", at)
        data[header + 40] ^= 1
        image["journal-0000000001"] = bytes(data)
        store = SegmentStore(put(image, tmp_path / f"{padding} journal"), small())
        assert store.disk.holes(LOG) == [(2, 3)]
        store.close()


def _frame(batch: Batch) -> bytes:
    return b"".join(bytes(part) for part in encode_batch(batch))


# ---------------------------------------------------------------- each kind of record


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> tuple[Image, list[tuple[int, Any]]]:
    """A journal with a record of every kind, and the offset of each."""
    folder = tmp_path_factory.mktemp("journal") / "disk"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JournalFile, "mark", lambda _: None)
        driver = Driver(folder, small(journal_bytes_max=1 << 20, inline_bytes_max=600))
        for log in (LOG, OTHER):
            for n in range(6):
                driver.do(Append(log, (_valued(log, 1 + 3 * n, 3, b"old"),), n))
        driver.wait(12)
        driver.do(SaveState("s", b"first", 1))
        driver.do(compact(LOG, 1, 4, 2, [(2, 3)]))  # small: written to the journal
        driver.wait(2)
        driver.do(compact(LOG, 4, 16, 3, [(5, 6)]))  # large: written to a segment
        driver.wait(1)
        driver.do(SaveState("s", b"second", 4))
        driver.do(Truncate(OTHER, 5), Append(OTHER, (_valued(OTHER, 5, 3, b"new"),), 5))
        driver.wait(2)
        driver.close()
    image = {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "lock"}
    records, at = [], 0
    for end, record in read_records(memoryview(image["journal-0000000001"]), 1, 0):
        records.append((at, record))
        at = end
    return image, records


def _valued(log: LogId, lo: int, count: int, prefix: bytes) -> Batch:
    values = [b"%s %d".ljust(60, b".") % (prefix, lo + i) for i in range(count)]
    return Batch.of(log, values).sequenced(lo, 1, 1)


def rows(disk: MemoryDisk, log: LogId) -> dict[int, bytes]:
    return {r.seq: r.value.rstrip(b".") for b in readable(disk, log) for r in b.to_rows()}


@pytest.mark.parametrize("part", ["head", "payload"])
def test_damage_of_each_kind_of_record_loses_only_that_record(
    journal: tuple[Image, list[tuple[int, Any]]], tmp_path: Path, part: str
) -> None:
    image, records = journal
    kinds = dict.fromkeys(type(record).__name__ for _, record in records)
    assert list(kinds) == ["tuple", "Append", "SaveState", "Rewritten", "Moved", "Truncate"]
    for at, record in records:
        data = bytearray(image["journal-0000000001"])
        data[at + (64 + 6 if part == "payload" else 20)] ^= 4
        folder = put({**image, "journal-0000000001": bytes(data)}, tmp_path / f"{at}")
        store = SegmentStore(folder, small(sync="none"))
        disk = store.disk
        kind = type(record)
        gone: set[int] = set()
        last = False  # of its log
        if kind is Append and part == "payload":
            gone = set(range(record.batches[0].lo, record.batches[0].hi))
            last = gone == {5, 6, 7} or (record.log == LOG and 16 in gone)
        doubt = part == "head" or kind in (SaveState, Truncate) or last
        assert bool(disk.state(DAMAGE)) == doubt, record
        assert any(f"offset {at:,} is damaged" in line for line in store.damage)
        assert store.incarnation == 2
        second = kind is SaveState and record.data == b"second"
        assert disk.state("s") == (b"first" if second else b"second")
        # A lost compaction leaves its input; the others cover [1, 16).
        expected = {seq: b"old %d" % seq for seq in range(1, 19)}
        if kind is not Rewritten:
            del expected[2]
        if kind is not Moved:
            del expected[5]
        if last and record.log == LOG:
            expected = {seq: value for seq, value in expected.items() if seq not in gone}
        assert rows(disk, LOG) == expected, record
        expected = {seq: b"old %d" % seq for seq in range(1, 5)}
        if kind is Append and record.log == OTHER and not last:
            expected = {seq: value for seq, value in expected.items() if seq not in gone}
        if not (last and record.log == OTHER):
            expected.update({seq: b"new %d" % seq for seq in (5, 6, 7)})
        assert rows(disk, OTHER) == expected, record
        assert disk.holes(LOG) == []
        assert sum(hi - lo for lo, hi in disk.holes(OTHER)) == disk.end(OTHER) - 1 - len(expected)
        store.close()


@pytest.mark.parametrize("missing", [False, True])
def test_a_compaction_whose_segment_is_damaged_leaves_its_input(
    journal: tuple[Image, list[tuple[int, Any]]], tmp_path: Path, missing: bool
) -> None:
    image = dict(journal[0])
    data = bytearray(image.pop("segment-0000000001"))
    data[200] ^= 1
    if not missing:
        image["segment-0000000001"] = bytes(data)
    store = SegmentStore(put(image, tmp_path / "disk"), small())
    assert "segment-0000000001" in store.damage[0]
    assert store.disk.state(DAMAGE) is None
    assert store.disk.holes(LOG) == []
    assert set(rows(store.disk, LOG)) == set(range(1, 19)) - {2}
    store.close()


if __name__ == "__main__":
    for truncates in (False, True):
        with TemporaryDirectory() as folder:
            test_a_store_opens_with_any_damage_and_shows_nothing_wrong(
                Path(folder), truncates, int(sys.argv[1])
            )
