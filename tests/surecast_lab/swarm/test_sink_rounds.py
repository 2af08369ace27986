"""The verdict of swarm/sink_rounds.py can fail: rounds with wrong results are found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from surecast_lab.swarm import sink_rounds
from surecast_lab.swarm.sink_rounds import BATCHES, ROWS, batch_of_file, is_excused

Rows = dict[str, list[bytes]]
DONE = f"q/done/{BATCHES - 1:016x}"


def judge(
    streams: Rows, left: list[str], kills: int, batch_of: tuple[int, ...] = tuple(range(BATCHES))
) -> list[str]:
    return sink_rounds.judge(streams, left, kills, BATCHES, list(batch_of))


def sound() -> Rows:
    numbers = [b"%07d" % n for n in range(BATCHES * ROWS)]
    return {"rows.0": numbers[::2], "rows.1": numbers[1::2]}


def test_a_correct_round_has_no_problems() -> None:
    streams = sound()
    streams["rows.0"][: ROWS // 2] = reversed(streams["rows.0"][: ROWS // 2])  # within a batch
    assert judge(streams, [DONE], 0) == []
    assert judge(streams, [DONE, "q/07/chunk/w/0/1/2", "q/07/intent/w/x"], 1) == []


def test_two_files_in_one_batch_have_no_order_between_them(tmp_path: Path) -> None:
    """From a round: a driver was stopped after it found a file and before it planned a batch."""
    streams = sound()
    rows = streams["rows.1"]
    rows[ROWS], rows[ROWS + ROWS // 2] = rows[ROWS + ROWS // 2], rows[ROWS]  # of files 2 and 3
    (problem,) = judge(streams, [DONE], 0)
    assert "rows.1: a batch's rows are behind" in problem
    log = tmp_path / "offsets"
    log.mkdir()
    for batch, last in enumerate((0, 1, 3, 4, 5, 6, 7)):
        (log / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{{"logOffset":{last}}}')
        (log / f".{batch}.crc").write_bytes(b"x")
    batch_of = batch_of_file(tmp_path)
    assert batch_of == [0, 1, 2, 2, 3, 4, 5, 6]
    assert judge(streams, [DONE], 0, tuple(batch_of)) == []
    (problem,) = judge(streams, [DONE], 0, tuple(batch_of[:-1]))
    assert problem == "7 of 8 files were read"


def lose(streams: Rows) -> None:
    del streams["rows.0"][5]


def double(streams: Rows) -> None:
    streams["rows.1"].insert(0, streams["rows.0"][0])


def invent(streams: Rows) -> None:
    streams["rows.0"].append(b"9999999")


def misorder(streams: Rows) -> None:
    rows = streams["rows.1"]
    rows[0], rows[-1] = rows[-1], rows[0]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lose, "1 rows lost"),
        (double, "1 rows doubled"),
        (invent, "1 rows never written"),
        (misorder, "rows.1: a batch's rows are behind"),
    ],
)
def test_wrong_rows_are_reported(spoil: Callable[[Rows], None], said: str) -> None:
    streams = sound()
    spoil(streams)
    (problem,) = judge(streams, [DONE], 0)
    assert said in problem


def test_the_state_that_drivers_leave_is_bounded() -> None:
    chunks = [f"q/{n:016x}/chunk/writer-{n}/0/{n}/0" for n in range(4)]
    assert judge(sound(), [DONE, *chunks], 3) == []
    (problem,) = judge(sound(), [DONE, *chunks], 2)
    assert "4 drivers' batches left" in problem
    (problem,) = judge(sound(), [f"q/done/{n:016x}" for n in range(BATCHES)], 2)
    assert "8 done records left" in problem


def test_only_a_concurrency_error_of_spark_excuses_a_driver() -> None:
    ousted = "[STREAM_FAILED] ... [CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log."
    assert is_excused(1, ousted)
    # Seed 103: for the log of commits Spark's error has no name.
    other = "terminated with exception: Multiple streaming queries are concurrently using file:/x"
    assert is_excused(1, other)
    assert not is_excused(-9, other)
    assert not is_excused(-1, ousted)  # it hung
    assert not is_excused(-9, ousted)
    assert not is_excused(1, "SurecastError: batch 3 of query q was abandoned by its own driver")
    assert not is_excused(0, ousted)
