"""What servers say of a stream, and what of it is lost: nothing, as long as anybody may have it."""

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
from surecast.pipeline import region as asking
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
    """A server of `region` that hears from these others, or does not."""
    return View(
        "127.0.0.1:1",
        region,
        {
            name: {"name": name, "up": up, "replicas": {"1": f"{name}:1", "2": f"{name}:2"}}
            for name, up in others.items()
        },
    )


def stream(owner: str = "east", *, stream_id: bytes = PLACE.stream_id, **more: Any) -> Any:
    """Of which the server's own region, west, has 900, and others as they last said."""
    said = {"regions": {"west": 901, "east": 901}, "committed": 901, "recovering": False}
    return {"stream_id": stream_id.hex(), "owner": owner, **said, "quarantined": "", **more}


def lost(*said: tuple[View, Any]) -> str:
    loss = judge("orders", PLACE, said)
    return "" if loss is None else loss.words


def test_shorter_is_what_no_region_can_have_more_of() -> None:
    words = "nobody has more of it than up to 900"
    assert words in lost((view(east=True), stream()))
    assert words in lost((view(), stream("west")))
    assert words in lost((view(east=False), stream("west")))  # what we own is ours to tell
    assert words in lost((view(), stream("gone")))  # a region that was taken out for good


@pytest.mark.parametrize(
    "said",
    [
        (view(east=False), stream()),  # when it was last heard it had 900: long ago
        (view(east=True, north=False), stream()),  # of which east may get it back
        (view(east=True), stream(regions={"west": 901})),
        (view(east=True), stream(regions={"west": 901, "east": 1_001})),
        (view(east=False), stream(regions={"west": 901, "east": 1_001})),
        (view(east=True), stream("west", recovering=True)),
    ],
    ids=["silent", "third silent", "unheard of", "ahead", "ahead and silent", "recovering"],
)
def test_what_somebody_may_have_is_waited_for(said: tuple[View, Any]) -> None:
    assert lost(said) == ""
    assert lost((view(east=True), stream()), said) == ""  # one who knows is enough


def test_made_anew_is_what_its_owner_says() -> None:
    other = bytes(16)
    assert "made anew" in lost((view(east=True), stream(stream_id=other)))
    assert "made anew" in lost((view(), stream("west", stream_id=other)))
    assert lost((view(east=False), stream(stream_id=other))) == ""
    assert lost((view(east=True), stream(stream_id=other)), (view(east=False), stream())) == ""


def test_gone_is_what_no_region_has() -> None:
    assert "does not exist" in lost((view(), None))
    assert "does not exist" in lost((view(east=True, north=True), None))
    assert lost((view(east=True, north=False), None)) == ""
    assert lost((view(east=True), None), (view(east=False), None)) == ""
    assert lost() == ""  # nobody is ready


# ---------------------------------------------------------------- damaged


def damaged(**more: Any) -> Any:
    return stream("west", quarantined="a torn block", committed=501, **more)


def test_a_damaged_stream_is_lost_if_nobody_has_it_whole() -> None:
    ends = {"west": 501, "east": 901}
    loss = judge("orders", PLACE, [(view(east=True), damaged(regions=ends))])
    assert loss is not None
    assert "damaged from 501 on: a torn block" in loss.words
    assert not loss.again  # who mends it brings back the same positions
    assert lost((view(east=False), damaged(regions=ends))) == ""
    ends = {"west": 501, "east": 1_001}
    assert lost((view(east=False), damaged(regions=ends))) == ""  # it has them, and will be back


def test_another_server_may_have_a_damaged_stream_whole() -> None:
    bad = view(), damaged(regions={"west": 501})
    good = view(), stream("west", regions={"west": 1_001})
    assert lost(bad, good) == lost(good, bad) == ""
    short = view(), stream("west", regions={"west": 901})
    assert "up to 900" in lost(bad, short)


def test_another_region_that_has_a_damaged_stream_whole_is_named() -> None:
    ends = {"west": 501, "east": 1_001, "north": 901}
    with pytest.raises(SurecastError, match=r"damaged from 501 .*url=surecast://east:1,east:2"):
        lost((view(east=True, north=True), damaged(regions=ends)))


# ---------------------------------------------------------------- what a query makes of it


def reader(region: Served, **options: str) -> StreamReader:
    given = {"url": region.url, "subscribe": "orders", **options}
    return StreamReader(parse(given, streaming=True))


def after(made: StreamReader, place: Place, limit: ReadLimit | None = None) -> Place:
    """Where a query goes that has come to `place`."""
    found = made.latestOffset(places_to({"orders": place}), limit or ReadAllAvailable())
    return places_from(found)["orders"]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses count sooner."""
    monkeypatch.setattr(source, "GRACE_S", 0.3)
    monkeypatch.setattr(source, "GRACE_S_MAX", 0.6)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_without_http_another_stream_of_the_name_is_a_loss(tmp_path: Path) -> None:
    """Not one to go over to without a word."""
    with Served(tmp_path / "data") as region:
        region.publish("orders", [b"new"] * 5)
        assert region._http is not None
        region._loop.call(region._http.stop())
        made = reader(region)
        with pytest.raises(DataLoss, match="made anew"):
            after(made, PLACE)
        made.stop()
        made = reader(region, failOnDataLoss="false")
        found = after(made, PLACE)
        assert found.stream_id != PLACE.stream_id
        assert found.next == 6
        made.stop()


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
        made = reader(region, failOnDataLoss="false")
        place = PLACE._replace(next=10)
        assert after(made, place, limit) == after(made, place, limit) == place
        assert [one.getMessage() for one in caplog.records if one.name == "surecast.pipeline"] == [
            "region 'local' does not have all of stream 'orders' up to position 9, which was read "
            "before: the query waits for it"
        ]
        made.stop()


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_a_query_does_not_go_back_in_a_damaged_stream(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as region:
        region.publish("orders", [b"%d" % n for n in range(100)])
        made = reader(region, failOnDataLoss="false")
        place = Place(made.region.expect(("orders",))["orders"].stream_id, 101)
        damage(region, place.stream_id)
        assert after(made, place) == place
        made.stop()
        made = reader(region)
        assert after(made, place) == place, "it has all of it: nothing that it needs is lost"
        made.stop()


def damage(region: Served, stream_id: bytes) -> None:
    """The only server of a region finds that it cannot read a stream of 100 events from 51 on."""
    assert region.server is not None
    service = region.server.streams
    service._quarantine(service.streams[stream_id], "a torn block", 51)


def rows(found: list[InputPartition]) -> list[int]:
    tasks = [replace(one.value, patience_s=0.2) for one in found]
    return [seq for task in tasks for batch in read(task) for seq in batch["seq"].to_pylist()]


@pytest.mark.slow
@pytest.mark.parametrize("segments", ["auto", "never"])
def test_what_is_damaged_is_no_shorter_for_it(tmp_path: Path, segments: str) -> None:
    """A query that comes to the damage fails: it does not end there, and says so again."""
    with Served(tmp_path / "data") as region, Region(region.url, "") as asked:
        region.publish("orders", [b"%d" % n for n in range(100)])
        known = asked.expect(("orders",))["orders"]
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
            row for one in read(replace(work.value, patience_s=0.2)) for row in one.to_pylist()
        ]
        assert [row["seq"] for row in found] == [*range(1, 51), 100]
        assert [(row["kind"], row["range"]) for row in found[-2:]] == [("event", 1), ("lost", 50)]
        made = reader(region)
        begin, end = Place(known.stream_id, 31), Place(known.stream_id, 101)
        assert after(made, begin) == end
        with pytest.raises(DataLoss, match="damaged from 51 on"):
            rows(made.partitions(places_to({"orders": begin}), places_to({"orders": end})))
        made.stop()


@pytest.mark.slow
def test_times_behind_the_damage_are_not_known(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as region, Region(region.url, "") as asked:
        region.publish("orders", [b"%d" % n for n in range(100)])
        known = asked.expect(("orders",))["orders"]
        assert asked.locate(known.stream_id, 0) == 1
        damage(region, known.stream_id)
        assert asked.locate(known.stream_id, 0) == 1
        assert asked.locate(known.stream_id, 1) == 1
        assert asked.locate(known.stream_id, -1) == 101
        with pytest.raises(SurecastError, match="damaged in its region"):
            asked.locate(known.stream_id, 1 << 62)


@pytest.mark.slow
def test_a_query_goes_back_no_further_than_anybody_has_the_stream() -> None:
    """Its region may be behind another one, which has what the query has read."""
    ends = {"west": 801, "east": 901}
    loss = judge(
        "orders", PLACE._replace(next=1001), [(view(east=True), stream("east", regions=ends))]
    )
    assert loss is not None
    info = StreamInfo(PLACE.stream_id, "orders", "east", KeepAll())
    begins = [source._begin(PLACE, Known(info, end), loss).next for end in (801, 901, 950)]
    assert begins == [901, 901, 950]


@pytest.mark.slow
def test_a_port_where_nobody_answers_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def ask(http: str, path: str, token: str) -> dict[str, Any] | None:
        asked.append(http)
        return ask_server(http, path, token)

    with Served(tmp_path / "data", http=False) as served, socket.create_server(("", 0)) as port:
        served.publish("orders", [b"1"])
        http = f"127.0.0.1:{port.getsockname()[1]}"
        monkeypatch.setattr(Region, "https", (http,))
        monkeypatch.setattr(asking, "ask_server", ask)
        monkeypatch.setattr(asking, "HTTP_S", 0.2)
        with Region(served.url, "") as made:
            known = made.expect(("orders",))["orders"]
            for _ in range(5):
                assert made.voids("orders", known.stream_id, 1, 2) is None
            assert made.servers("orders") == [Server(http, "")]
    assert asked == [http]


@pytest.mark.slow
def test_a_name_server_that_is_silent_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    over, known = threading.Event(), threading.Event()

    def look_up(*_: object, **__: object) -> NoReturn:
        over.wait(60)
        known.set()
        raise socket.gaierror("nobody knows")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(asking, "ANSWER_S", 0.3)
    monkeypatch.setattr(client_sync, "ENDS_S", 0.1)
    with pytest.raises(SurecastError, match="option url"):
        Region("surecast://nowhere.example:7400", "")
    assert not known.is_set()
    over.set()


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_what_a_region_that_died_has_is_not_lost(tmp_path: Path) -> None:
    """It was read there, and the region that is read now never heard of it."""
    with ExitStack() as stack:
        relay = stack.enter_context(RelayProcess(RelaySpec(1)))
        layout = lead_through(relay, free_layout(tmp_path / "cluster", regions=2, replicas=1))
        cluster = stack.enter_context(Cluster(layout))
        cluster.wait_ready(60)
        east, west = (layout.of(name)[0] for name in ("east", "west"))
        publish(east.url, "orders", 900)
        with Region(west.url, "") as asked:
            wait_for(lambda: [one.end for one in asked.streams(("orders",)).values()] == [901])
        relay.cut(wire("east", "west"))
        publish(east.url, "orders", 100)
        publish(east.url, "late", 5)
        with Region(east.url, "") as asked:
            known = asked.expect(("orders", "late"))
        cluster.kill(east.name)
        made = StreamReader(
            parse(
                {"url": west.url, "subscribe": "orders,late", "failOnDataLoss": "false"},
                streaming=True,
            )
        )
        stack.callback(made.stop)
        end = places_to({name: Place(one.stream_id, one.end) for name, one in known.items()})
        wait_for(lambda: not all(v.hears_all() for v in views_of(made.region.https, "") or []))
        assert made.latestOffset(end, ReadAllAvailable()) == end
        start = places_to({"orders": Place(known["orders"].stream_id, 991)})
        for one in made.partitions(start, end):  # as a batch that is planned again
            task = replace(one.value, patience_s=0.5)
            assert {part.stream for part in task.ranges} == {"orders", "late"}
            for part in task.ranges:
                with pytest.raises(SurecastError, match="They may still arrive") as refused:
                    list(read(replace(task, ranges=(part,))))
                assert not isinstance(refused.value, DataLoss)


def publish(url: str, name: str, count: int) -> None:
    with sync.connect(url) as client:
        client.stream(name).publish_many([b"%d" % n for n in range(count)])
