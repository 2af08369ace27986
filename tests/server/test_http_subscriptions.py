"""Named subscriptions over HTTP, in status and in metrics."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.exceptions import HTTPException

from surecast import Client, connect
from surecast.core.status import SubscriptionInfo
from surecast.endpoint.subscriptions import AtTime
from surecast.server.config import build
from surecast.server.http import HttpPort
from surecast.server.openapi import document
from surecast.server.region import RegionServer
from surecast.server.subscriptions import _TIME_NS_MAX, parse_begin
from tests.server.opened import Open, run


def client_of(region: Open) -> Client:
    address = region.server.nodes[0].address
    assert address is not None
    return connect(f"surecast://127.0.0.1:{address[1]}")


async def delete(region: Open, path: str) -> int:
    def ask() -> int:
        try:
            with urlopen(Request(region.where(path), method="DELETE")) as answer:
                return int(answer.status)
        except OSError as refused:
            return int(getattr(refused, "code", 0))

    return await asyncio.to_thread(ask)


async def subscribed(client: Client, name: str, seq: int, stream: str = "s") -> None:
    """Create a named subscription whose next event is `seq`."""
    opened = await client.stream(stream)
    async with opened.subscribe(seq, name=name):
        pass


def small(**streams: Any) -> Open:
    """A region with these settings of the stream service."""
    region = Open()
    raw = {
        "node": {"name": "e-1", "region": "e", "data_dir": "", "listen": "127.0.0.1:0",
                 "http": "127.0.0.1:0"},
        "regions": {"e": {"replicas": {"e-1": "127.0.0.1:0"}}},
        "streams": streams,
    }  # fmt: skip
    region.server = RegionServer(build(raw))
    region.port = HttpPort(region.server)
    return region


def test_subscriptions_are_listed_reset_and_deleted() -> None:
    async def main() -> None:
        async with Open() as region, client_of(region) as client:
            assert await region.get("/v1/subscriptions") == (200, {"subscriptions": [], "next": ""})
            stream = await client.stream("s")
            await stream.publish_many([b"x"] * 10)
            await subscribed(client, "billing", 5)
            while (await region.get("/v1/subscriptions"))[1]["subscriptions"][0]["connected"]:
                await asyncio.sleep(0.01)  # the Detach of the closed subscription is in flight
            code, found = await region.get("/v1/subscriptions")
            [info] = found["subscriptions"]
            assert (code, info["name"], info["lag"], info["connected"]) == (
                200,
                "billing",
                6,
                False,
            )
            assert info["positions"][0]["seq"] == 5
            reset = "/v1/subscriptions/billing/reset"
            assert await region.post(f"{reset}?start=3", b"") == (
                200, {"subscription": "billing", "positions": {"s": 3}},
            )  # fmt: skip
            code, found = await region.post(f"{reset}?start=2020-01-01T00:00:00Z&stream=s", b"")
            assert found["positions"] == {"s": 1}
            for wrong in ("", "start=oldest", "start=0", "start=12", "start=2020-01-01T00:00:00",
                          "start=latest&force=maybe", "start=latest&stream=none",
                          "start=" + "9" * 30, "start=0001-01-01T00:00:00Z",
                          "start=9999-12-31T00:00:00Z"):  # fmt: skip
                assert (await region.post(f"{reset}?{wrong}", b""))[0] == 400, wrong
            missing = "/v1/subscriptions/nobody"
            assert (await region.post(f"{missing}/reset?start=latest", b""))[0] == 404
            assert await delete(region, missing) == 404
            async with stream.subscribe(name="billing"):
                assert (await region.post(f"{reset}?start=latest", b""))[0] == 409
                assert await delete(region, "/v1/subscriptions/billing") == 409
                code, _ = await region.post(f"{reset}?start=latest&force=true", b"")
                assert code == 200
            assert await delete(region, "/v1/subscriptions/billing") == 200
            assert await client.subscriptions() == []

    run(main)


def test_subscriptions_are_listed_in_pages() -> None:
    async def main() -> None:
        async with small(cursors_page_max=4) as region, client_of(region) as client:
            names = [f"n{i}" for i in range(7)]
            for name in names:
                await subscribed(client, name, 1)
            found: list[str] = []
            pages, after = 0, ""
            while pages == 0 or after:
                code, page = await region.get(f"/v1/subscriptions?after={after}")
                assert code == 200
                assert len(page["subscriptions"]) <= 2  # each has a position
                found += [one["name"] for one in page["subscriptions"]]
                pages, after = pages + 1, page["next"]
            assert (found, pages) == (names, 4)
            assert (await region.get("/v1/subscriptions?after=n1/xy"))[0] == 400
            assert [info.name for info in await client.subscriptions()] == names

    run(main)


def test_lag_is_in_status_and_metrics_up_to_a_bound() -> None:
    async def main() -> None:
        async with small(cursors_shown_max=4) as region, client_of(region) as client:
            stream = await client.stream("s")
            await stream.publish_many([b"x"] * 10)
            for number in (1, 2, 3):
                await subscribed(client, f"n{number}", number)
            _, status = await region.get("/v1/status")
            assert [(one["name"], one["lag"]) for one in status["subscriptions"]] == [
                ("n1", 10), ("n2", 9),
            ]  # fmt: skip
            assert status["subscriptions_total"] == 3
            assert "streams" not in status["roles"]
            _, text = await region.get("/metrics")
            found = {
                (sample.name, *sample.labels.values()): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            }
            lag = "surecast_streams_subscription_lag"
            shown = {key[1:]: value for key, value in found.items() if key[0] == lag}
            assert shown == {("s", "n1"): 10, ("s", "n2"): 9}  # labels come sorted
            assert found["surecast_streams_subscriptions",] == 3
            assert found["surecast_streams_subscription_lag_omitted",] == 1

    run(main)


@pytest.mark.parametrize(
    "name", ["SubscriptionList", "SubscriptionReset", SubscriptionInfo.__name__]
)
def test_openapi_has_the_schemas_of_subscriptions(name: str) -> None:
    assert document()["components"]["schemas"][name]["properties"]


def test_times_of_a_reset_fit_64_bits() -> None:
    last = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=_TIME_NS_MAX // 1000)
    assert parse_begin(last.isoformat()) == AtTime(_TIME_NS_MAX // 1000 * 1000)
    assert parse_begin("1970-01-01T00:00:00Z") == AtTime(0)
    for wrong in (last + timedelta(microseconds=1), datetime(1969, 12, 31, tzinfo=UTC)):
        with pytest.raises(HTTPException):
            parse_begin(wrong.isoformat())
