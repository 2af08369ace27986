"""Tasks read the same rows over real sockets and from real files."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import msgspec
import pytest

import surecast
from surecast.client.connection import Client
from surecast.columns.batch import Batch
from surecast.columns.intervals import IntervalSet
from surecast.core.endpoint import Lost
from surecast.endpoint.region_link import RegionLink
from surecast.errors import ConnectError, DataLoss, SurecastError, UsageError
from surecast.pipeline import fetch, files, loss
from surecast.pipeline import region as region_module
from surecast.pipeline.fetch import Task, TaskConnection, pieces_of
from surecast.pipeline.plan import Range
from surecast.pipeline.region import Known, Region
from surecast.server.files import files_of
from tests.pipeline.regions import Served, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def region(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data") as served:
        yield served


def plan(region: Served, name: str = "orders", **changes: Any) -> Task:
    """A task that reads a whole stream, from files if possible."""
    with Region(region.url, region.token) as connection:
        known = connection.expect((name,))[name]
        servers = tuple(connection.servers(name))
        connection.settle([known.stream_id])
        fields: dict[str, Any] = {
            "ranges": (Range(name, known.stream_id, 1, known.end),),
            "url": region.url,
            "token": region.token,
            "servers": servers,
            "files": True,
            "voids": True,
            "fail_on_loss": True,
            "patience_s": 5.0,
        }
    return Task(**{**fields, **changes})


def rows(task: Task) -> list[dict[str, Any]]:
    return [row for part in fetch.read(task) for row in part.to_pylist()]


def batches(task: Task) -> list[Batch]:
    with ExitStack() as stack:
        line = TaskConnection(task, stack)
        found = [piece for one in task.ranges for piece in pieces_of(one, task, line)]
    assert not any(isinstance(piece, Lost) for piece in found)
    return [piece for piece in found if isinstance(piece, Batch)]


def events(found: list[dict[str, Any]]) -> list[tuple[int, bytes]]:
    return [(row["seq"], row["value"]) for row in found if row["kind"] == "event"]


def from_servers(task: Task) -> Task:
    return replace(task, files=False)


def test_a_whole_stream_is_read_from_servers(region: Served) -> None:
    values = [b"%d" % n for n in range(30_000)]
    region.publish("orders", values, [b"k%d" % (n % 7) for n in range(30_000)])
    found = rows(plan(region, files=False))
    assert events(found) == list(enumerate(values, 1))
    assert {row["stream"] for row in found} == {"orders"}
    assert found[9]["key"] == b"k2"
    times = [row["timestamp"] for row in found]
    assert times == sorted(times)


def test_a_range_of_a_stream_is_read_exactly(region: Served) -> None:
    region.publish("orders", [b"%d" % n for n in range(1, 10_001)])
    task = plan(region)
    for lo, hi in ((1, 2), (4_000, 4_001), (4_096, 4_098), (777, 9_999), (10_000, 10_001)):
        one = task.ranges[0]._replace(lo=lo, hi=hi)
        for each in (task, from_servers(task)):
            found = events(rows(replace(each, ranges=(one,))))
            assert found == [(n, b"%d" % n) for n in range(lo, hi)]


def test_files_and_servers_give_the_same_rows(region: Served, monkeypatch: Any) -> None:
    rng = random.Random(7)
    values = [rng.randbytes(10) for _ in range(40_000)]
    # Half of the keys occur once, so that compactions leave large segments.
    keys = [b"%08d" % rng.choice((rng.randrange(500), 10**6 + n)) for n in range(40_000)]
    region.publish("orders", values, keys, retain=surecast.latest_per_key())
    with region.client() as client:
        client.stream("orders").collect(surecast.key_prefix(b"0000001"))
    wait_for(lambda: region.positions_in_files("orders") > 10_000, "few positions in files")
    task = plan(region)
    opened: list[int] = []
    monkeypatch.setattr(files, "_from_file", _counting(files._from_file, opened))
    seen, served = rows(task), rows(from_servers(task))
    assert sum(opened) > 10_000, "hardly anything was read from files"
    assert events(seen) == events(served)
    assert _covered(seen) == _covered(served) == 40_002  # the last is the collect itself
    live = dict(zip(keys, values, strict=True))
    wanted = {v for k, v in live.items() if not k.startswith(b"0000001")}
    assert {value for _, value in events(seen)} == wanted


def _counting(real: Any, opened: list[int]) -> Any:
    def counted(one: Range, shelf: Any, row: Any, lo: int, hi: int) -> Iterator[Batch]:
        opened.append(hi - lo)
        return real(one, shelf, row, lo, hi)  # type: ignore[no-any-return]

    return counted


def _covered(found: list[dict[str, Any]]) -> int:
    """Check that each position occurs once, in order; returns the first missing one."""
    at = 1
    for row in found:
        assert row["seq"] - row["range"] + 1 == at, row
        at = row["seq"] + 1
    return at


@pytest.mark.slow
def test_reading_while_compaction_removes_files(region: Served) -> None:
    """Every live event and every position is read once, whatever the store does meanwhile."""
    rng = random.Random(11)
    over = threading.Event()
    newest: dict[bytes, bytes] = {}

    def publish() -> None:
        with region.client() as client:
            stream = client.stream("orders", retain=surecast.latest_per_key())
            for turn in range(150):
                keys = [b"%08d" % rng.randrange(300) for _ in range(500)]
                values = [b"%010d" % (turn * 500 + n) for n in range(500)]
                stream.publish_many(values, keys=keys)
                newest.update(zip(keys, values, strict=True))
        over.set()

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        wait_for(lambda: region.segments() > 0 or over.is_set(), "nothing left the journal")
        reads = 0
        while not over.is_set() or reads < 3:
            task = plan(region)
            found = rows(task)
            assert _covered(found) == task.ranges[0].hi
            reads += 1
    finally:
        publisher.join()
    task = plan(region)
    for each in (task, from_servers(task)):
        last = {row["key"]: row["value"] for row in rows(each) if row["kind"] == "event"}
        assert last == newest


def test_a_damaged_record_is_read_from_the_servers(region: Served, tmp_path: Path) -> None:
    """The damage is in a copy of the files, because the server reads its own."""
    values = [b"%010d" % n for n in range(20_000)]
    region.publish("orders", values, [b"12345678"] * 20_000)
    wait_for(lambda: region.segments() > 1, "nothing left the journal")
    task = plan(region)
    good = Path(task.servers[0].directory)
    other = tmp_path / "copy"
    other.mkdir()
    for path in good.glob("segment-*"):
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 0xFF
        (other / path.name).write_bytes(data)
    assert events(_read_at(task, other)) == list(enumerate(values, 1))
    for path in list(other.iterdir())[:1]:
        path.unlink()
    assert events(_read_at(task, other)) == list(enumerate(values, 1))


def test_files_of_another_store_are_not_read(region: Served, tmp_path: Path) -> None:
    """The names of files and streams are equal and all checksums right, but the events differ."""
    region.publish("orders", [b"right %06d" % n for n in range(10_000)])
    wait_for(lambda: region.segments() > 0, "nothing left the journal")
    with Served(tmp_path / "other") as stranger:
        stranger.publish("orders", [b"wrong %06d" % n for n in range(10_000)])
        wait_for(lambda: stranger.segments() > 0, "nothing left the journal")
        task = plan(region)
        found = events(_read_at(task, tmp_path / "other" / "log"))
    assert [value for _, value in found] == [b"right %06d" % n for n in range(10_000)]


def test_files_of_a_diverged_store_are_not_read(region: Served, tmp_path: Path) -> None:
    """The same stream and names of segments, but other events from some position on."""
    region.publish("orders", [b"right %06d" % n for n in range(100)])
    region.back_up(tmp_path / "other")
    with Served(tmp_path / "other") as stranger:
        stranger.publish("orders", [b"wrong %06d" % n for n in range(100, 10_000)])
        region.publish("orders", [b"right %06d" % n for n in range(100, 10_000)])
        for one in (region, stranger):
            wait_for(lambda served=one: served.segments() > 0, "nothing left the journal")
        task = plan(region)
        assert task.ranges[0].stream_id == plan(stranger).ranges[0].stream_id
        found = events(_read_at(task, tmp_path / "other" / "log"))
    assert [value for _, value in found] == [b"right %06d" % n for n in range(10_000)]


def test_only_committed_positions_seen_by_retention_are_reported_in_files(region: Served) -> None:
    region.publish("orders", [b"%010d" % n for n in range(10_000)])
    wait_for(lambda: region.segments() > 0, "nothing left the journal")
    plan(region)
    assert region.server is not None
    service = region.server.streams
    stream = service.streams[service.directory.by_name["orders"].stream_id]
    answer = files_of(region.server, "orders", 1, 1 << 60)
    assert answer is not None
    assert answer.hi == 10_001
    assert answer.extents
    for bound, seen in (("committed", 50), ("index", 20)):
        if bound == "committed":
            stream.committed = seen
        else:
            stream.index.end = seen
        answer = files_of(region.server, "orders", 1, 1 << 60)
        assert answer is not None
        assert answer.hi == seen
        assert max(extent.hi for extent in answer.extents) <= seen


def _read_at(task: Task, directory: Path) -> list[dict[str, Any]]:
    """Read with the answers of the server, but from files in another directory."""
    real = files.Paths
    files.Paths = lambda _: real(directory)  # type: ignore[assignment,misc]
    try:
        return rows(task)
    finally:
        files.Paths = real  # type: ignore[misc]


def test_invalid_requests_for_files_have_status_codes(region: Served) -> None:
    region.publish("orders", [b"1"])
    url = f"http://{region.config.node.http}/v1/streams"
    for path, code in (("nobody/files", 404), ("orders/files?lo=x", 400)):
        with pytest.raises(HTTPError) as refused:
            urlopen(f"{url}/{path}")
        assert refused.value.code == code
    answer = json.loads(urlopen(f"{url}/orders/files").read())
    assert (answer["lo"], answer["directory"]) == (1, str(region.data) + "/log")


def test_without_http_everything_is_read_from_servers(tmp_path: Path) -> None:
    with Served(tmp_path / "data", http=False) as region:
        region.publish("orders", [b"a", b"b"])
        task = plan(region)
        assert task.servers == ()
        assert events(rows(task)) == [(1, b"a"), (2, b"b")]


def test_a_token_is_accepted_at_both_ports(tmp_path: Path) -> None:
    with Served(tmp_path / "data", token="sesame") as region:
        region.publish("orders", [b"0123456789"] * 10_000)
        wait_for(lambda: region.segments() > 0, "nothing left the journal")
        task = plan(region)
        assert len(task.servers) == 1
        assert len(events(rows(task))) == 10_000
        assert len(events(rows(from_servers(task)))) == 10_000


def test_positions_removed_by_retention_are_void_and_not_lost(region: Served) -> None:
    region.publish("orders", [b"%d" % n for n in range(5_000)], retain=surecast.keep_last(10))
    found = rows(plan(region))
    assert _covered(found) == 5_001
    assert events(found)[-10:] == [(n + 1, b"%d" % n) for n in range(4_990, 5_000)]


@pytest.mark.slow
@pytest.mark.parametrize("fail_on_loss", [True, False])
def test_positions_that_no_region_has_are_lost(region: Served, fail_on_loss: bool) -> None:
    region.publish("orders", [b"1", b"2"])
    task = plan(region, patience_s=0.5, fail_on_loss=fail_on_loss)
    (one,) = task.ranges
    for strange, reason, left in (
        (one._replace(hi=10), "no region has positions above 2", 2),
        (one._replace(stream_id=b"?" * 16), "created again", 0),
        (one._replace(stream="nobody", stream_id=b"?" * 16), "does not exist any more", 0),
    ):
        changed = replace(task, ranges=(strange,))
        if fail_on_loss:
            with pytest.raises(DataLoss, match=f"{reason}.*failOnDataLoss=false"):
                rows(changed)
        else:
            assert len(rows(changed)) == left


def test_positions_that_a_server_declared_lost_are_lost(region: Served, caplog: Any) -> None:
    """A server with a damaged disk: unreadable positions are waited for until declared lost."""
    values = [b"%06d" % n for n in range(1, 20_001)]
    region.publish("orders", values)
    ((lo, hi),) = region.damage("orders")
    assert 1 <= lo < hi <= 20_001
    with Region(region.url, "") as connection:
        assert connection.expect(("orders",))["orders"].end == lo
        region.forfeit("orders", lo, hi, "its only disk was damaged")
        assert connection.expect(("orders",))["orders"].end == 20_001
    task = plan(region)
    for one in (task, from_servers(task)):
        with pytest.raises(DataLoss) as refused:
            rows(one)
        assert f"positions {lo} to {hi - 1} of stream 'orders'" in str(refused.value)
        assert "its only disk was damaged" in str(refused.value)
        assert "failOnDataLoss=false (--no-fail-on-data-loss) to continue" in str(refused.value)
        assert f'startingOffsets={{"orders": {hi}}}' in str(refused.value)
        found = rows(replace(one, fail_on_loss=False))
        assert _covered(found) == 20_001
        assert [(r["seq"], r["range"]) for r in found if r["kind"] == "lost"] == [(hi - 1, hi - lo)]
        wanted = [(n, value) for n, value in enumerate(values, 1) if not lo <= n < hi]
        assert events(found) == wanted
        assert f"positions {lo} to {hi - 1} of stream 'orders'" in caplog.text
        behind = replace(one, ranges=(one.ranges[0]._replace(lo=hi),))
        assert events(rows(behind)) == wanted[lo - 1 :]


@pytest.mark.slow
def test_a_stream_damaged_up_to_its_end_is_lost_from_there_on(
    region: Served, monkeypatch: Any
) -> None:
    """If no other events can get these positions, a row reports them lost."""
    region.publish("orders", [b"1", b"2"])
    task = plan(region, patience_s=0.2, fail_on_loss=False)
    late = replace(task, ranges=(task.ranges[0]._replace(hi=10),))
    for reassigned, expected in ((False, [(9, 7)]), (True, [])):
        known = loss.LostEnd("damaged", reassigned=reassigned)
        monkeypatch.setattr(fetch, "lost_end_by_servers", lambda *_, known=known: known)
        found = rows(late)
        assert [(r["seq"], r["range"]) for r in found if r["kind"] == "lost"] == expected
        assert len(events(found)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("fail_on_loss", [True, False])
def test_positions_that_may_still_arrive_are_not_lost(
    region: Served, fail_on_loss: bool, monkeypatch: Any
) -> None:
    """Positions are not lost if another region has or may have them, or if no server is ready."""
    region.publish("orders", [b"1", b"2"])
    task = plan(region, patience_s=0.5, fail_on_loss=fail_on_loss)
    late = replace(task, ranges=(task.ranges[0]._replace(hi=10),))
    real = loss.ask_server

    def ahead(http: str, path: str, token: str) -> dict[str, Any] | None:
        answer = real(http, path, token)
        if answer is not None and "owner" in answer:
            answer["regions"]["west"] = 10
        return answer

    def starting(http: str, path: str, token: str) -> dict[str, Any] | None:
        answer = real(http, path, token)
        return answer if answer is None or "ready" not in answer else {**answer, "ready": False}

    def cut_off(http: str, path: str, token: str) -> dict[str, Any] | None:
        answer = real(http, path, token)
        if answer is not None and "node" in answer:
            answer["regions"] = [{"name": "west", "up": False, "replicas": {}}]
        elif answer is not None:
            answer["owner"] = "west"
        return answer

    for answer in (ahead, starting, cut_off):
        monkeypatch.setattr(loss, "ask_server", answer)
        with pytest.raises(SurecastError, match="They may still arrive") as refused:
            rows(late)
        assert not isinstance(refused.value, DataLoss)


def test_a_task_waits_for_a_server_that_restarts(region: Served) -> None:
    region.publish("orders", [b"%010d" % n for n in range(60_000)])
    task = plan(region, files=False, patience_s=30.0)
    found = fetch.read(task)
    some = next(found)
    region.stop()
    region.start()
    count = some.num_rows + sum(part.num_rows for part in found)
    assert count == 60_000


def test_a_task_waits_for_a_server_that_is_down_when_it_begins(
    region: Served, monkeypatch: Any
) -> None:
    region.publish("orders", [b"1", b"2"])
    task = plan(region, files=False, patience_s=30.0)
    region.stop()
    real, tried = RegionLink.discover, threading.Event()

    async def watched(link: RegionLink) -> Any:
        try:
            return await real(link)
        finally:
            tried.set()

    monkeypatch.setattr(RegionLink, "discover", watched)
    with ThreadPoolExecutor() as pool:
        found = pool.submit(rows, task)
        assert tried.wait(30)
        region.start()
        assert events(found.result(60)) == [(1, b"1"), (2, b"2")]


def test_a_task_that_cannot_connect_names_the_option(tmp_path: Path) -> None:
    with Served(tmp_path / "data", token="sesame") as region:
        region.publish("orders", [b"1"])
        task = plan(region, files=False, patience_s=0.5)
        with pytest.raises(UsageError, match="option token"):
            rows(replace(task, token="simsim", patience_s=30.0))
    with pytest.raises(ConnectError, match="option url: no answer"):
        rows(task)


def test_waiting_for_silent_servers_is_bounded(monkeypatch: Any) -> None:
    """Waiting for a first answer and for a stream takes ten seconds at most."""
    assert region_module.ANSWER_S + region_module.APPEAR_S <= 10
    monkeypatch.setattr(region_module, "ANSWER_S", 0.6)
    with ExitStack() as stack:
        mute = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        addresses = ",".join(f"127.0.0.1:{server.getsockname()[1]}" for server in mute)
        with pytest.raises(SurecastError, match="option url"):
            Region(f"surecast://{addresses}", "")


def test_unreachable_addresses_reported_by_a_region_are_an_error(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """As behind address translation: the url leads to the region, its own addresses do not."""
    monkeypatch.setattr(region_module, "ANSWER_S", 1.0)
    with Served(tmp_path / "data", advertised="127.0.0.1:9") as region:
        began = time.monotonic()
        with (
            Region(region.url, "") as connection,
            pytest.raises(SurecastError, match=r"reached from here, at .*127\.0\.0\.1:9\?"),
        ):
            connection.streams(("orders",))
        assert time.monotonic() - began < 5


def test_a_region_reports_ends_times_and_voids_of_streams(region: Served) -> None:
    region.publish("orders", [b"%d" % n for n in range(3_000)], retain=surecast.keep_last(100))
    region.publish("trades", [])
    with Region(region.url, "") as connection:
        found = connection.streams((), ">")
        assert {name: known.end for name, known in found.items()} == {"orders": 3_001, "trades": 1}
        orders = found["orders"]
        assert isinstance(orders, Known)
        assert connection.locate(orders.stream_id, 0) >= 1
        assert connection.locate(orders.stream_id, 1 << 62) == 3_001
        connection.settle([orders.stream_id])
        voids = connection.voids("orders", orders.stream_id, 1, 3_001)
        assert voids is not None
        assert voids.hi == 3_001
        assert voids.positions == IntervalSet([(1, 2_901)])
        assert connection.voids("orders", b"?" * 16, 1, 10) is None


def only_the_new_history_is_read(region: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams whose history was given up, one of them twice, are read by their newest id, in
    whatever order a server lists the histories."""
    for name in ("orders", "trades"):
        region.publish(name, [b"old"] * 5)
        region.force_new_stream(name)
        region.publish(name, [b"new"] * 2)
    region.force_new_stream("orders")
    region.publish("orders", [b"newest"])
    assert region.server is not None
    newest = region.server.streams.directory.by_name
    real = Client.ends
    for turn in (list, reversed):

        async def ends(client: Client, pattern: str, turn: Any = turn) -> list[Any]:
            return list(turn(await real(client, pattern)))

        monkeypatch.setattr(Client, "ends", ends)
        for names, pattern in ((("orders", "trades"), ""), ((), ">")):
            with Region(region.url, "") as connection:
                found = connection.streams(names, pattern)
            assert {name: known.end for name, known in found.items()} == {"orders": 2, "trades": 3}
            for name, known in found.items():
                assert known.stream_id == newest[name].stream_id
    assert events(rows(plan(region))) == [(1, b"newest")]


def test_a_stream_whose_history_was_given_up_is_read_by_its_new_id(
    region: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_the_new_history_is_read(region, monkeypatch)


def test_the_check_fails_if_an_old_history_is_read(
    region: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Client.ends

    async def ends(client: Client, pattern: str) -> list[Any]:
        """Without the field `replaces`, so that `Region.streams` cannot tell histories apart."""
        found = await real(client, pattern)
        return [(msgspec.structs.replace(info, replaces=b""), end) for info, end in found]

    monkeypatch.setattr(Client, "ends", ends)
    with pytest.raises(AssertionError):
        only_the_new_history_is_read(region, monkeypatch)


def test_settle_accepts_many_streams(region: Served) -> None:
    """More streams than a client may have open questions."""
    region.publish("orders", [b"1"])
    with Region(region.url, "") as connection:
        connection.settle([connection.expect(("orders",))["orders"].stream_id] * 10_001)
