"""Bounds of the commands on input, held lines and waiting: at each limit and one step beyond."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from tests.edits import Check, Edit, Row, each_check, must_fail
from tests.ports import free_ports

from surecast.cli import log, publish, status, subscribe, up
from surecast.errors import ConnectError, StorageError, UsageError
from surecast.server.cluster import Cluster
from surecast.server.layout import plan

# ---------------------------------------------------------------- publish


def lines_of(data: bytes) -> list[bytes]:
    """The values that `surecast publish --lines` reads from a file with these bytes."""
    with TemporaryDirectory() as name:
        path = Path(name) / "lines"
        path.write_bytes(data)
        source = publish.Lines(path, None, as_objects=False)

        async def read() -> list[bytes]:
            return [event[1] async for events in source.events(None) for event in events]

        try:
            return asyncio.run(read())
        finally:
            source.file.close()


def length_of_an_input_line() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publish, "LINE_BYTES_MAX", 10)
        patch.setattr(publish, "READ_BYTES", 4)
        at_bound, longer = b"x" * 10, b"x" * 11
        assert lines_of(b"a\n" + at_bound + b"\n" + at_bound) == [b"a", at_bound, at_bound]
        for end in (b"", b"\n", b"\nb\n"):
            with pytest.raises(UsageError, match="line 2 is longer than 10 bytes"):
                lines_of(b"a\n" + longer + end)


# ---------------------------------------------------------------- subscribe


def number_of_held_lines() -> None:
    """Lines are written when HELD_LINES_MAX of them wait, without waiting for the time limit."""
    written: list[str] = []

    async def events() -> AsyncIterator[Any]:
        for number in range(7):
            yield SimpleNamespace(stream="s", seq=number)

    async def fill() -> list[str]:
        page = subscribe.Page(lambda event: str(event.seq))
        await page.fill(events(), 100)
        return page.lines

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subscribe, "HELD_LINES_MAX", 3)
        patch.setattr(subscribe, "_write", written.append)
        assert asyncio.run(fill()) == ["6"]
        assert written == ["012", "345"]


# ---------------------------------------------------------------- status


@contextmanager
def answers_after(wait_s: float) -> Iterator[str]:
    """The url of an HTTP server that answers after `wait_s`."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(1 << 16)
                time.sleep(wait_s)
                peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"
        thread.join()


def time_to_wait_for_an_answer() -> None:
    with answers_after(0) as url:
        assert status._fetch(url, "") == {}
    with pytest.MonkeyPatch.context() as patch, answers_after(1.5) as url:
        patch.setattr(status, "ANSWER_S_MAX", 0.1)
        with pytest.raises(ConnectError, match="does not answer: timed out"):
            status._fetch(url, "")


# ---------------------------------------------------------------- log, up


def search_depth_for_stores() -> None:
    with TemporaryDirectory() as name:
        inside = Path(name).joinpath(*(f"level{n}" for n in range(log.DEPTH_MAX - 1)))
        inside.mkdir(parents=True)
        (inside / "manifest").touch()
        assert log.stores(Path(name)) == [inside]
        deeper = Path(name) / "deeper"
        deeper.mkdir()
        (Path(name) / "level0").rename(deeper / "level0")
        with pytest.raises(StorageError, match="contain no manifest and no journal"):
            log.stores(Path(name))


def test_up_exits_with_1_when_a_cluster_is_not_ready_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(up, "READY_S_MAX", 0.05)
    (base,) = free_ports(1)
    cluster = Cluster(plan(tmp_path, 1, 1, base))  # none of its processes was started
    with pytest.raises(typer.Exit) as ended:
        up._wait_ready(cluster)
    assert ended.value.exit_code == 1
    assert "not ready after 0.05 s:\n  east-1: no answer" in capsys.readouterr().err


CLI = "surecast.cli."
CHECKS: list[Row] = [
    (length_of_an_input_line, Edit(CLI + "publish:Lines._event", "> LINE_BYTES_MAX", "> 1 << 60")),
    (
        number_of_held_lines,
        Edit(CLI + "subscribe:Page.fill", ">= HELD_LINES_MAX", "> 1 << 60"),
    ),
    (
        time_to_wait_for_an_answer,
        Edit(CLI + "status:_fetch", "patience_s=ANSWER_S_MAX", "patience_s=9"),
    ),
    (search_depth_for_stores, Edit(CLI + "log:stores", "range(DEPTH_MAX)", "range(9)")),
]


@each_check(CHECKS)
def test_bound_holds(check: Check, edit: Edit) -> None:
    check()


@each_check(CHECKS)
def test_a_missing_bound_is_noticed(check: Check, edit: Edit) -> None:
    must_fail(check, edit)
