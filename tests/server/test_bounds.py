"""Bounds on what a server answers, logs and waits for: at each bound, and one step beyond it."""

import asyncio
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from surecast.columns.batch import COLLECTED
from surecast.columns.intervals import IntervalSet
from surecast.core.streams import StreamSpec
from surecast.core.types import Append
from surecast.errors import UsageError
from surecast.server import cluster, files, http
from surecast.server.cluster import Cluster
from surecast.server.layout import PORT_MAX, plan
from surecast.server.limited_log import TEXT_MAX, printable
from surecast.storage.extents import Extent
from tests.edits import Check, Edit, Row, each_check, must_fail
from tests.server.opened import Open, run, until
from tests.server.test_readiness import disk_of
from tests.storage.stores import LOG, Driver, batch, small

# ---------------------------------------------------------------- files of a stream


def with_region(scenario: Callable[[Open], Awaitable[None]], **limits: Any) -> None:
    async def main() -> None:
        async with Open(limits) as region:
            await scenario(region)

    run(main)


def void_ranges_in_an_answer() -> None:
    """With more than RUNS_MAX void ranges, an answer covers the positions before the next range."""

    async def scenario(region: Open) -> None:
        lines = b"\n".join(b'{"value": "x"}' for _ in range(9))
        await region.post("/v1/streams/s/events", lines, content_type="application/x-ndjson")
        (stream,) = region.streams()
        await until(lambda: stream.index.end == 10)
        for count, hi in ((3, 10), (4, 7)):  # [1, 2), [3, 4), [5, 6), [7, 8)
            lows = range(1, 2 * count, 2)
            stream.index.voids[COLLECTED] = IntervalSet([(lo, lo + 1) for lo in lows])
            found = files.files_of(region.server, "s", 1, 100)
            assert found is not None
            assert (found.lo, found.hi) == (1, hi)
            assert IntervalSet.from_bytes(found.voids["collected"], 9).runs == 3

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "RUNS_MAX", 3)
        with_region(scenario)


def extents_in_an_answer() -> None:
    """An answer has EXTENTS_MAX extents and ends where the next one begins."""
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        driver = Driver(Path(name) / "disk", small(run_bytes_min=0))
        for number in range(40):
            one = batch(driver.disk.end(LOG), 5, 100)
            driver.do(Append(LOG, (one,), number))
            driver.wait(1)
            driver.settle()
        store: Any = driver.store
        end = driver.disk.end(LOG)
        extents = [piece for piece in store.disk.pieces(LOG, 1, end) if type(piece) is Extent]
        assert len(extents) > 2
        stream: Any = SimpleNamespace(info=SimpleNamespace(stream_id=LOG), quarantined="")
        for count_max, hi in ((len(extents), end), (len(extents) - 1, extents[-1].lo)):
            patch.setattr(files, "EXTENTS_MAX", count_max)
            found, upto = files._extents(store, stream, 1, end)
            assert (len(found), upto) == (count_max, hi)
            expected = [(extent.lo, extent.hi) for extent in extents[:count_max]]
            assert [(extent.lo, extent.hi) for extent in found] == expected
        driver.close()


# ---------------------------------------------------------------- publishing by HTTP


def time_of_a_publish() -> None:
    """A publish that is not acknowledged within publish_timeout_ns is answered 504."""

    async def scenario(region: Open) -> None:
        publishing = region.pages().publishing
        assert await publishing.publish("s", b"x", False, None, StreamSpec()) == [(1, 2)]
        disk_of(region.server).capacity_bytes = 0  # from now on nothing is acknowledged
        task = asyncio.create_task(publishing.publish("s", b"x", False, None, StreamSpec()))
        await asyncio.wait({task}, timeout=3)
        is_answered = task.done()
        disk_of(region.server).capacity_bytes = None
        if not is_answered:
            await task
        assert is_answered, "still not answered"
        with pytest.raises(HTTPException, match=r"not acknowledged within 0\.5 s") as refused:
            await task
        assert refused.value.status_code == 504

    with_region(scenario, publish_timeout_ns=500_000_000)


# ---------------------------------------------------------------- stopping


def requests_when_the_process_ends() -> None:
    """A stopping server gives up open requests after STOP_S_MAX, before their own time limit."""

    async def scenario(region: Open) -> None:
        await region.post("/v1/streams/s/events", b"x")
        disk_of(region.server).capacity_bytes = 0  # the next one is not acknowledged
        talk = await region.talk()
        talk.send(b"POST /v1/streams/s/events HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\nx")
        await until(lambda: region.requests().total() == 1)
        stopping = asyncio.create_task(region.port.stop())
        answer = await talk.reader.readline()
        disk_of(region.server).capacity_bytes = None
        await stopping
        assert answer.split()[1:2] == [b"500"]  # uvicorn's answer to a cancelled request

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http, "STOP_S_MAX", 0.05)
        with_region(scenario, publish_timeout_ns=3_000_000_000)


def processes_that_do_not_end() -> None:
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "STOP_S_MAX", 1)
        messages: list[str] = []
        codes = []
        for ignores in ("", "trap '' TERM; "):
            made = Cluster(plan(Path(name), 1, 1, 7400), messages.append)
            process = subprocess.Popen(
                ["sh", "-c", f"{ignores}echo; exec sleep 3"], stdout=subprocess.PIPE
            )
            assert process.stdout is not None
            with process.stdout as output:
                output.readline()
            made.running["east-1"] = process
            made.stop()
            assert made.running == {}
            codes.append(process.returncode)
        assert codes == [-15, -9]
        assert messages == ["east-1 does not stop: killed"]


# ---------------------------------------------------------------- ports and lines


def highest_port() -> None:
    (node,) = plan(Path("x"), 1, 1, PORT_MAX - 80).nodes
    assert node.http == f"127.0.0.1:{PORT_MAX}"
    with pytest.raises(UsageError, match="lower --base-port"):
        plan(Path("x"), 1, 1, PORT_MAX - 79)


def length_of_a_line() -> None:
    assert printable("x" * TEXT_MAX) == "x" * TEXT_MAX
    assert printable("x" * (TEXT_MAX + 1)) == "x" * TEXT_MAX + "..."


SERVER = "surecast.server."
CHECKS: list[Row] = [
    (void_ranges_in_an_answer, Edit(SERVER + "files:_voids", "> RUNS_MAX", "> 1 << 60")),
    (extents_in_an_answer, Edit(SERVER + "files:_extents", "== EXTENTS_MAX", "== -1")),
    (
        time_of_a_publish,
        Edit(SERVER + "publishing:Publishing._answering", "timeout(timeout_s)", "timeout(None)"),
    ),
    (
        requests_when_the_process_ends,
        Edit(SERVER + "http:HttpPort.start", "_graceful_shutdown=STOP_S_MAX", "_keep_alive=5"),
    ),
    (
        processes_that_do_not_end,
        Edit(SERVER + "cluster:Cluster.stop", "time.monotonic() + STOP_S_MAX", "1 << 60"),
    ),
]


@each_check(CHECKS)
def test_bound_holds(check: Check, edit: Edit) -> None:
    check()


@each_check(CHECKS)
def test_a_missing_bound_is_noticed(check: Check, edit: Edit) -> None:
    must_fail(check, edit)


def test_the_last_port_is_used_and_none_beyond_it() -> None:
    highest_port()


def test_a_line_of_the_log_is_cut() -> None:
    length_of_a_line()
