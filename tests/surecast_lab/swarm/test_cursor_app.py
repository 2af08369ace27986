"""A program with named subscriptions: its delivery log, and the faults that it reports."""

import asyncio
from pathlib import Path
from typing import Any

from surecast.client.events import Event
from surecast.protocols.sprinkler.checks import Reading
from surecast_lab.swarm.cursor_app import CursorApp, _Stored, _StreamDeliveries, as_batches
from surecast_lab.swarm.delivery_log import read_delivered

STREAM = bytes(15) + b"s"


def event(seq: int, time_ns: int = 1) -> Event:
    return Event("s", seq, b"k", b"%d" % seq, time_ns)


def void(lo: int, hi: int) -> Event:
    return Event("s", hi - 1, None, b"", 1, None, "void", hi - lo, "collected")


def write(folder: Path, *events: Event) -> list[str]:
    """Start the program, let it receive and log these events; returns the faults it reports."""

    async def run() -> list[str]:
        args: dict[str, Any] = {"stored": str(folder / "stored")}
        app = CursorApp(args, folder / "delivered")
        page = _StreamDeliveries(app, STREAM)
        for received in events:
            page.take(received)
        app.delivery_log.take(STREAM, tuple(as_batches(STREAM, page.pending, page.next)))
        return app.faults

    return asyncio.run(run())


def reading(folder: Path) -> Reading:
    found = Reading("r")
    found.take(tuple(read_delivered(folder / "delivered")))
    return found


def test_received_events_are_logged_as_batches(tmp_path: Path) -> None:
    assert write(tmp_path, event(1), event(2), void(3, 6), event(6, 7), event(7, 8)) == []
    found = reading(tmp_path)
    assert found.faults == []
    assert [(e.seq, e.time_ns, e.value) for e in found.events] == [
        (1, 1, b"1"),
        (2, 1, b"2"),
        (6, 7, b"6"),
        (7, 8, b"7"),
    ]
    assert [(lo, hi) for lo, hi, _ in found.voids] == [(3, 6)]
    assert len(read_delivered(tmp_path / "delivered")) == 4  # 1 and 2 have one time


def test_events_received_again_after_a_restart_are_logged_once(tmp_path: Path) -> None:
    write(tmp_path, event(1), event(2), event(3))
    assert write(tmp_path, event(2), void(3, 6), event(6)) == []
    found = reading(tmp_path)
    assert found.faults == []
    assert (found.position, [e.seq for e in found.events]) == (7, [1, 2, 3, 6])
    assert [(lo, hi) for lo, hi, _ in found.voids] == [(4, 6)]


def test_a_position_after_the_logged_end_shows_as_a_gap(tmp_path: Path) -> None:
    write(tmp_path, event(1), event(2))
    write(tmp_path, event(4))
    assert "gap before [4, 5)" in reading(tmp_path).faults[0]


def test_a_position_before_the_stored_one_is_a_fault(tmp_path: Path) -> None:
    write(tmp_path, event(1), event(2), event(3))
    stored = _Stored(tmp_path / "stored")
    stored.note(STREAM, 3)
    assert write(tmp_path, event(3), event(4)) == []
    assert write(tmp_path, event(2), event(3), event(4), event(5)) == [
        "stored up to 3, but it continues at 2"
    ]


def test_a_torn_line_of_the_stored_positions_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "stored"
    _Stored(path).note(STREAM, 12)
    _Stored(path).note(STREAM, 345)
    path.write_bytes(path.read_bytes()[:-2])
    stored = _Stored(path)
    assert stored.positions == {STREAM: 12}
    stored.note(STREAM, 13)
    assert _Stored(path).positions == {STREAM: 13}
