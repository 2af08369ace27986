"""The segment store against a `MemoryDisk`: the same effects, the same reads, at every point."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.storage.stores import LOG, OTHER, Driver, content, history, play_one, small

from surecast.columns.batch import Batch
from surecast.core.types import Append, SaveState, Stored, Truncate
from surecast.storage.config import StorageConfig
from surecast.storage.memory import MemoryDisk


def shown(batches: list[Any]) -> list[Any]:
    return [(b.lo, b.hi, b.rows, b.time_ns, b.nbytes, bytes(b.body or b"")) for b in batches]


def compare(rng: Random, ours: MemoryDisk, model: MemoryDisk) -> None:
    """Check that both disks answer random reads equally."""
    assert sorted(ours.logs()) == sorted(model.logs())
    for log in (LOG, OTHER):
        end = model.end(log)
        assert ours.end(log) == end
        for _ in range(3):
            lo = rng.randint(-1, end + 1)
            hi = rng.randint(lo, end + 3)
            nbytes_max = rng.choice((0, 200, 900, 1 << 40))
            found = ours.read(log, lo, hi, nbytes_max)
            assert shown(found) == shown(model.read(log, lo, hi, nbytes_max))
            time_ns = rng.randrange(100)
            assert ours.first_at(log, time_ns, lo, hi) == model.first_at(log, time_ns, lo, hi)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_store_and_model_show_the_same_after_every_effect(tmp_path: Path, seed: int) -> None:
    """Also across reopening; moves may happen at any time."""
    print(f"seed {seed}")
    rng = Random(seed)
    config = small(
        inline_bytes_max=rng.choice((0, 600, 4096)),
        run_bytes_min=rng.choice((0, 4096)),
        segment_bytes_max=rng.choice((4096, 1 << 20)),
    )
    model = MemoryDisk()
    driver = Driver(tmp_path, config)
    moves = 0
    for effect in history(rng, 150, 200):
        play_one(model, effect)
        driver.do(effect)
        if type(effect) is not Truncate:
            driver.wait(1)
        compare(rng, driver.disk, model)
        if rng.random() < 0.05:
            if rng.random() < 0.5:
                driver.settle()
            moves += driver.store.moves
            driver.close()
            driver = Driver(tmp_path, config)
            assert content(driver.disk) == content(model)
    driver.settle()
    assert content(driver.disk) == content(model)
    moves += driver.store.moves
    driver.close()
    assert moves > 5


@pytest.mark.slow
def test_held_memory_stays_bounded_while_300_mb_are_written(tmp_path: Path) -> None:
    """300 MB are written to a store with a journal of 4 MB: held memory and pieces are bounded."""
    config = StorageConfig(sync="none", journal_bytes_max=4 << 20, backlog_bytes_max=16 << 20)
    driver = Driver(tmp_path, config)
    body = Batch.of(LOG, [bytes(26)] * 5000)
    held = written = 0
    while written < 300_000_000:
        end = driver.disk.end(LOG)
        next_batch = body.sequenced(end, end, 1)
        driver.do(Append(LOG, (next_batch,), 0), SaveState("s", b"%d" % end, 1))
        assert driver.wait(2) == [Stored(0), Stored(1)]
        written += next_batch.nbytes
        held = max(held, driver.store.disk.held_bytes)
    driver.settle()
    end = driver.disk.end(LOG)
    assert driver.store.disk.nbytes > 290_000_000
    assert held < 32 << 20, "the backlog, and batches before it is noticed"
    pieces = driver.store.disk.pieces(LOG, 1, end)
    assert len(pieces) < 400
    for lo in range(1, end, end // 50):
        assert driver.disk.read(LOG, lo, lo + 1, 1)[0].lo == lo
    assert driver.disk.first_at(LOG, 5_000_001, 1, end) == 5_000_001
    driver.close()
    again = Driver(tmp_path, config)
    assert again.disk.end(LOG) == end
    assert again.store.disk.held_bytes < 16 << 20
    again.close()
