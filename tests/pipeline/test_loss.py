"""When positions of a stream count as lost: not as long as any region may have them."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from surecast import sync
from surecast.client import sync as client_sync
from surecast.columns.rules import KeepAll
from surecast.core.streams import StreamInfo
from surecast.errors import DataLoss, SurecastError
from surecast.pipeline import region as region_module
from surecast.pipeline import source
from surecast.pipeline.fetch import read
from surecast.pipeline.loss import View, judge, views_of
from surecast.pipeline.offsets import Place, places_from, places_to
from surecast.pipeline.options import parse
from surecast.pipeline.region import Known, Region, Server, ask_server
from surecast.pipeline.source import BatchReader, StreamReader
from surecast.server.cluster import Cluster
from surecast_lab.testing.deployment import free_layout, lead_through, wire
from surecast_lab.testing.relay import RelayProcess, RelaySpec
from tests.pipeline.regions import Served, wait_for

PLACE = Place(bytes(range(16)), 1_001)  # read up to 1000


def view(region: str = "west", **others: bool) -> View:
    """A server of `region`, and whether it is connected with these other regions."""
    return View(
        "127.0.0.1:1",
        region,
        {
            name: {"name": name, "up": up, "replicas": {"1": f"{name}:1", "2": f"{name}:2"}}
            for name, up in others.items()
        },
    )


def stream(owner: str = "east", *, stream_id: bytes = PLACE.stream_id, **more: Any) -> Any:
    """A stream of which the server's own region, west, has 900 events; others as last reported."""
    fields = {"regions": {"west": 901, "east": 901}, "committed": 901, "recovering": False}
    return {"stream_id": stream_id.hex(), "owner": owner, **fields, "quarantined": "", **more}


def lost(*answers: tuple[View, Any]) -> str:
    """The reason why positions are lost according to these answers; "" if they are not."""
    loss = judge("orders", PLACE, answers)
    return "" if loss is None else loss.words


def test_positions_that_no_region_can_have_are_lost() -> None:
    words = "no region has positions above 900"
    assert words in lost((view(east=True), stream()))
    assert words in lost((view(), stream("west")))
    assert words in lost((view(east=False), stream("west")))  # the owner decides
    assert words in lost((view(), stream("gone")))  # the owner was removed permanently


@pytest.mark.parametrize(
    "answer",
    [
        (view(east=False), stream()),  # it had 900 when last connected
        (view(east=True, north=False), stream()),  # from which east may get them back
        (view(east=True), stream(regions={"west": 901})),
        (view(east=True), stream(regions={"west": 901, "east": 1_001})),
        (view(east=False), stream(regions={"west": 901, "east": 1_001})),
        (view(east=True), stream("west", recovering=True)),
    ],
    ids=["silent", "third silent", "unheard of", "ahead", "ahead and silent", "recovering"],
)
def test_positions_that_some_region_may_have_are_not_lost(answer: tuple[View, Any]) -> None:
    assert lost(answer) == ""
    assert lost((view(east=True), stream()), answer) == ""  # one such answer is sufficient


def test_the_owner_decides_whether_a_stream_was_created_again() -> None:
    other = bytes(16)
    assert "created again" in lost((view(east=True), stream(stream_id=other)))
    assert "created again" in lost((view(), stream("west", stream_id=other)))
    assert lost((view(east=False), stream(stream_id=other))) == ""
    assert lost((view(east=True), stream(stream_id=other)), (view(east=False), stream())) == ""


def test_a_stream_that_no_region_has_is_lost() -> None:
    assert "does not exist" in lost((view(), None))
    assert "does not exist" in lost((view(east=True, north=True), None))
    assert lost((view(east=True, north=False), None)) == ""
    assert lost((view(east=True), None), (view(east=False), None)) == ""
    assert lost() == ""  # no server is ready


# ---------------------------------------------------------------- damaged


def damaged(**more: Any) -> Any:
    return stream("west", quarantined="a torn block", committed=501, **more)


def test_a_damaged_stream_is_lost_if_no_region_has_it_complete() -> None:
    ends = {"west": 501, "east": 901}
    loss = judge("orders", PLACE, [(view(east=True), damaged(regions=ends))])
    assert loss is not None
    assert "damaged from 501 on: a torn block" in loss.words
    assert not loss.reassigned  # a repair brings back the same positions
    assert lost((view(east=False), damaged(regions=ends))) == ""
    ends = {"west": 501, "east": 1_001}
    assert lost((view(east=False), damaged(regions=ends))) == ""  # east has them and may return


def test_a_damaged_stream_is_not_lost_if_another_server_has_it_complete() -> None:
    bad = view(), damaged(regions={"west": 501})
    good = view(), stream("west", regions={"west": 1_001})
    assert lost(bad, good) == lost(good, bad) == ""
    short = view(), stream("west", regions={"west": 901})
    assert "above 900" in lost(bad, short)


def test_another_region_that_has_a_damaged_stream_complete_is_named() -> None:
    ends = {"west": 501, "east": 1_001, "north": 901}
    with pytest.raises(SurecastError, match=r"damaged from 501 .*url=surecast://east:1,east:2"):
        lost((view(east=True, north=True), damaged(regions=ends)))


# ---------------------------------------------------------------- effects on queries


def reader(region: Served, **options: str) -> StreamReader:
    given = {"url": region.url, "subscribe": "orders", **options}
    return StreamReader(parse(given, streaming=True))


def after(query: StreamReader, place: Place, limit: ReadLimit | None = None) -> Place:
    """The next offset of a query that has read up to `place`."""
    found = query.latestOffset(places_to({"orders": place}), limit or ReadAllAvailable())
    return places_from(found)["orders"]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions count as lost after a shorter time."""
    monkeypatch.setattr(source, "GRACE_S", 0.3)
    monkeypatch.setattr(source, "GRACE_S_MAX", 0.6)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_without_http_another_stream_of_the_name_is_a_loss(tmp_path: Path) -> None:
    """The query must not continue silently with the other stream."""
    with Served(tmp_path / "data") as region:
        region.publish("orders", [b"new"] * 5)
        assert region._http is not None
        region._loop.call(region._http.stop())
        query = reader(region)
        with pytest.raises(DataLoss, match="created again"):
            after(query, PLACE)
        query.stop()
        query = reader(region, failOnDataLoss="false")
        found = after(query, PLACE)
        assert found.stream_id != PLACE.stream_id
        assert found.next == 6
        query.stop()


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("limit", [ReadAllAvailable(), ReadMaxRows(3)], ids=str)
def test_a_query_waits_for_servers_that_are_not_ready(
    tmp_path: Path, limit: ReadLimit, caplog: pytest.LogCaptureFixture
) -> None:
    with Served(tmp_path / "data") as region:
        region.publish("orders", [b"new"] * 50)
        assert region.server is not None
        region.server.draining = True
        query = reader(region, failOnDataLoss="false")
        place = PLACE._replace(next=10)
        assert after(query, place, limit) == after(query, place, limit) == place
        assert [r.getMessage() for r in caplog.records if r.name == "surecast.pipeline"] == [
            "region 'local' does not have all of stream 'orders' up to position 9, which was read "
            "before: the query waits for it"
        ]
        query.stop()


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_a_query_does_not_go_back_in_a_damaged_stream(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as region:
        region.publish("orders", [b"%d" % n for n in range(100)])
        query = reader(region, failOnDataLoss="false")
        place = Place(query.region.expect(("orders",))["orders"].stream_id, 101)
        damage(region, place.stream_id)
        assert after(query, place) == place
        query.stop()
        query = reader(region)
        assert after(query, place) == place, "it has read everything: no position it needs is lost"
        query.stop()


def damage(region: Served, stream_id: bytes) -> None:
    """Let the server find that it cannot read a stream of 100 events from 51 on."""
    assert region.server is not None
    service = region.server.streams
    service._quarantine(service.streams[stream_id], "a torn block", 51)


def rows(found: list[InputPartition]) -> list[int]:
    tasks = [replace(partition.value, patience_s=0.2) for partition in found]
    return [seq for task in tasks for batch in read(task) for seq in batch["seq"].to_pylist()]


@pytest.mark.slow
@pytest.mark.parametrize("segments", ["auto", "never"])
def test_a_damaged_stream_does_not_count_as_shorter(tmp_path: Path, segments: str) -> None:
    """A query that reaches the damage fails, every time, and does not end there."""
    with Served(tmp_path / "data") as region, Region(region.url, "") as connection:
        region.publish("orders", [b"%d" % n for n in range(100)])
        known = connection.expect(("orders",))["orders"]
        damage(region, known.stream_id)
        given = {"url": region.url, "subscribe": "orders", "segments": segments}
        for start in ("earliest", '{"orders": 80}'):
            for _ in range(2):
                options = parse({**given, "startingOffsets": start}, streaming=False)
                with pytest.raises(DataLoss, match="damaged from 51 on"):
                    rows(BatchReader(options).partitions())
        options = parse({**given, "failOnDataLoss": "false"}, streaming=False)
        (work,) = BatchReader(options).partitions()
        found = [
            row for part in read(replace(work.value, patience_s=0.2)) for row in part.to_pylist()
        ]
        assert [row["seq"] for row in found] == [*range(1, 51), 100]
        assert [(row["kind"], row["range"]) for row in found[-2:]] == [("event", 1), ("lost", 50)]
        query = reader(region)
        begin, end = Place(known.stream_id, 31), Place(known.stream_id, 101)
        assert after(query, begin) == end
        with pytest.raises(DataLoss, match="damaged from 51 on"):
            rows(query.partitions(places_to({"orders": begin}), places_to({"orders": end})))
        query.stop()


@pytest.mark.slow
def test_times_after_the_damage_are_unknown(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as region, Region(region.url, "") as connection:
        region.publish("orders", [b"%d" % n for n in range(100)])
        known = connection.expect(("orders",))["orders"]
        assert connection.locate(known.stream_id, 0) == 1
        damage(region, known.stream_id)
        assert connection.locate(known.stream_id, 0) == 1
        assert connection.locate(known.stream_id, 1) == 1
        assert connection.locate(known.stream_id, -1) == 101
        with pytest.raises(SurecastError, match="damaged in its region"):
            connection.locate(known.stream_id, 1 << 62)


@pytest.mark.slow
def test_a_query_goes_back_only_to_the_highest_end_of_any_region() -> None:
    """Its region may be behind another one, which has the positions the query has read."""
    ends = {"west": 801, "east": 901}
    loss = judge(
        "orders", PLACE._replace(next=1001), [(view(east=True), stream("east", regions=ends))]
    )
    assert loss is not None
    info = StreamInfo(PLACE.stream_id, "orders", "east", KeepAll())
    begins = [source._begin(PLACE, Known(info, end), loss).next for end in (801, 901, 950)]
    assert begins == [901, 901, 950]


@pytest.mark.slow
def test_a_port_that_does_not_answer_is_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[str] = []

    def ask(http: str, path: str, token: str) -> dict[str, Any] | None:
        requests.append(http)
        return ask_server(http, path, token)

    with Served(tmp_path / "data", http=False) as served, socket.create_server(("", 0)) as port:
        served.publish("orders", [b"1"])
        http = f"127.0.0.1:{port.getsockname()[1]}"
        monkeypatch.setattr(Region, "http_addresses", (http,))
        monkeypatch.setattr(region_module, "ask_server", ask)
        monkeypatch.setattr(region_module, "HTTP_S", 0.2)
        with Region(served.url, "") as query:
            known = query.expect(("orders",))["orders"]
            for _ in range(5):
                assert query.voids("orders", known.stream_id, 1, 2) is None
            assert query.servers("orders") == [Server(http, "")]
    assert requests == [http]


@pytest.mark.slow
def test_a_silent_name_server_does_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    over, known = threading.Event(), threading.Event()

    def look_up(*_: object, **__: object) -> NoReturn:
        over.wait(60)
        known.set()
        raise socket.gaierror("unknown host")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(region_module, "ANSWER_S", 0.3)
    monkeypatch.setattr(client_sync, "ENDS_S", 0.1)
    with pytest.raises(SurecastError, match="option url"):
        Region("surecast://nowhere.example:7400", "")
    assert not known.is_set()
    over.set()


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_positions_of_a_region_that_is_down_are_not_lost(tmp_path: Path) -> None:
    """They were read there, and never reached the region that is read now."""
    with ExitStack() as stack:
        relay = stack.enter_context(RelayProcess(RelaySpec(1)))
        layout = lead_through(relay, free_layout(tmp_path / "cluster", regions=2, replicas=1))
        cluster = stack.enter_context(Cluster(layout))
        cluster.wait_ready(60)
        east, west = (layout.of(name)[0] for name in ("east", "west"))
        publish(east.url, "orders", 900)
        with Region(west.url, "") as connection:
            wait_for(lambda: [one.end for one in connection.streams(("orders",)).values()] == [901])
        relay.cut(wire("east", "west"))
        publish(east.url, "orders", 100)
        publish(east.url, "late", 5)
        with Region(east.url, "") as connection:
            known = connection.expect(("orders", "late"))
        cluster.kill(east.name)
        query = StreamReader(
            parse(
                {"url": west.url, "subscribe": "orders,late", "failOnDataLoss": "false"},
                streaming=True,
            )
        )
        stack.callback(query.stop)
        end = places_to({name: Place(info.stream_id, info.end) for name, info in known.items()})
        wait_for(
            lambda: not all(v.hears_all() for v in views_of(query.region.http_addresses, "") or [])
        )
        assert query.latestOffset(end, ReadAllAvailable()) == end
        start = places_to({"orders": Place(known["orders"].stream_id, 991)})
        for partition in query.partitions(start, end):  # like a batch that is planned again
            task = replace(partition.value, patience_s=0.5)
            assert {part.stream for part in task.ranges} == {"orders", "late"}
            for part in task.ranges:
                with pytest.raises(SurecastError, match="They may still arrive") as refused:
                    list(read(replace(task, ranges=(part,))))
                assert not isinstance(refused.value, DataLoss)


def publish(url: str, name: str, count: int) -> None:
    with sync.connect(url) as client:
        client.stream(name).publish_many([b"%d" % n for n in range(count)])
