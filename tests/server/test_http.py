"""The HTTP port of a region: status, metrics, publishing, and operations of an operator."""

import json

import pytest
from prometheus_client.parser import text_string_to_metric_families

from surecast import connect, keep_last
from surecast.core.policies import as_policy
from surecast.errors import UnknownMessage, UsageError
from surecast.server.http import make_app
from surecast.server.openapi import document
from surecast.server.publishing import Publishing
from surecast.server.status import look, not_ready
from tests.server.opened import Open, run, until


def test_health_status_and_streams() -> None:
    async def main() -> None:
        async with Open() as region:
            assert await region.get("/healthz") == (200, {"status": "alive"})
            assert await region.get("/readyz") == (200, {"ready": True, "reasons": []})
            address = region.server.nodes[0].address
            assert address is not None
            async with connect(f"surecast://127.0.0.1:{address[1]}") as client:
                for name in ("a", "b", "c"):
                    stream = await client.stream(name, retain=keep_last(2))
                    await stream.publish_many([b"x"] * 5)
                await until(lambda: all(s.index.end == 6 for s in region.streams()))
                code, found = await region.get("/v1/streams")
                assert (code, found["total"]) == (200, 3)
                assert [s["name"] for s in found["streams"]] == ["a", "b"]  # streams_max = 2
                code, one = await region.get("/v1/streams/c")
                assert (one["committed"], one["live"], one["void"]) == (6, 2, 3)
                assert one["void_reasons"] == {"collected": 0, "expired": 3, "superseded": 0}
                assert (one["owner"], one["retention"]) == ("e", "keep-last:2")
                assert (one["regions"], one["lag"]) == ({"e": 6}, 0)
                assert (await region.get("/v1/streams/d"))[0] == 404
            code, status = await region.get("/v1/status")
            assert status["chain"]["place"] == "alone"
            assert [alarm["code"] for alarm in status["alarms"]] == ["in-memory"]
            assert {link["node"] for link in status["links"]} == {"e-1", "e/witness"}

    run(main)


def test_metrics_can_be_read_by_prometheus() -> None:
    async def main() -> None:
        async with Open() as region:
            await region.post("/v1/streams/a/events", b"x")
            for node in region.server.nodes:
                node.unknown.drop("somebody", UnknownMessage("later/News", 136))
            code, text = await region.get("/metrics")
            assert code == 200
            found = {
                (sample.name, *sample.labels.values()): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            }
            assert found["surecast_ready",] == 1
            assert found["surecast_chain_epoch",] == 1
            assert found["surecast_stream_committed", "e", "a"] == 2  # labels come sorted
            assert found["surecast_alarms", "in-memory"] == 1
            assert found["surecast_messages_total", "Publish", "streams"] >= 1
            assert found["surecast_unknown_messages_total", "later/News"] == 2
            assert found["surecast_runtime_total", "unknown_messages"] == 1
            assert found["process_resident_memory_bytes",] > 1 << 20

    run(main)


def test_events_can_be_published_by_http() -> None:
    async def main() -> None:
        async with Open() as region:
            lines = b'{"key": "k", "value": "1"}\n{"value": "2"}\n'
            kind = {"content_type": "application/x-ndjson"}
            answer = await region.post("/v1/streams/s/events", lines, **kind)
            assert answer == (200, {"stream": "s", "seqs": [[1, 3]]})
            answer = await region.post("/v1/streams/s/events?key=raw", b"\xff\n")
            assert answer == (200, {"stream": "s", "seqs": [[3, 4]]})
            address = region.server.nodes[0].address
            assert address is not None
            async with connect(f"surecast://127.0.0.1:{address[1]}") as client:
                events = []
                async for event in client.subscribe("s", start="earliest"):
                    events.append((event.key, event.value))
                    if len(events) == 3:
                        break
            assert events == [(b"k", b"1"), (None, b"2"), (b"raw", b"\xff\n")]
            code, wrong = await region.post("/v1/streams/s/events", b"{}\nno", **kind)
            assert code == 400
            assert "line 2: not JSON" in wrong["error"]
            assert (await region.post("/v1/streams/s/events", b"\n", **kind))[0] == 400
            assert (await region.post("/v1/streams/a%20b/events", b"x"))[0] == 400
            assert (await region.post("/v1/streams/s/events", b"x" * 1001))[0] == 413

    run(main)


def test_the_retention_of_a_new_stream_can_be_set_by_http() -> None:
    async def main() -> None:
        async with Open() as region:
            for spelling in ("keep-last:2", "keep_last:2"):
                path = f"/v1/streams/s/events?retain={spelling}"
                assert (await region.post(path, b"x"))[0] == 200
            assert (await region.get("/v1/streams/s"))[1]["retention"] == "keep-last:2"
            code, said = await region.post("/v1/streams/s/events?retain=keep-all", b"x")
            assert code == 409
            assert "has retain=keep-last:2, but keep-all was requested" in said["error"]
            code, said = await region.post("/v1/streams/t/events?retain=for-ever", b"x")
            assert code == 400
            with pytest.raises(UsageError) as caught:
                as_policy("for-ever")
            assert said["error"] == str(caught.value)
            assert (await region.get("/v1/streams/t"))[0] == 404
            assert (await region.post("/v1/streams/s/events", b"x"))[0] == 200

    run(main)


def test_v1_needs_the_token_and_web_pages_cannot_publish() -> None:
    async def main() -> None:
        async with Open(token="secret") as region:
            assert (await region.get("/healthz"))[0] == 200
            assert (await region.get("/metrics"))[0] == 200
            for path in ("/v1/status", "/v1/streams", "/v1/streams/x"):
                assert (await region.get(path))[0] == 401
                assert (await region.get(path, "wrong"))[0] == 401
                assert (await region.get(path, "secret"))[0] in (200, 404)
            events = "/v1/streams/s/events"
            assert (await region.post(events, b"x"))[0] == 401
            assert (await region.post(events, b"x", "secret", Origin="http://evil"))[0] == 403
            assert (await region.post(events, b"x", "secret"))[0] == 200

    run(main)


def test_operations_of_an_operator_need_a_confirmation() -> None:
    async def main() -> None:
        async with Open() as region:
            code, said = await region.post("/v1/admin/refound", b"")
            assert code == 400
            assert "yes-i-know-what-is-lost=true" in said["error"]
            sure = "yes-i-know-what-is-lost=true"
            assert (await region.post(f"/v1/admin/refound?{sure}", b""))[0] == 409  # is a member
            force = f"/v1/admin/force-new-stream?{sure}&stream=s"
            assert (await region.post(force, b""))[0] == 404
            await region.post("/v1/streams/s/events", b"x")
            before = (await region.get("/v1/streams/s"))[1]["stream_id"]
            assert (await region.post(force, b"", Origin="http://evil"))[0] == 403
            assert (await region.post(force, b""))[0] == 202
            directory = region.server.streams.directory
            await until(lambda: directory.by_name["s"].stream_id.hex() != before)

    run(main)


def test_a_region_without_its_witness_raises_an_alarm_and_continues() -> None:
    async def main() -> None:
        async with Open() as region:
            server = region.server
            assert server.witness is not None
            await server.witness.stop()
            await until(lambda: "witness-unreachable" in [a.code for a in look(server, 0).alarms])
            assert not not_ready(server)
            assert (await region.post("/v1/streams/s/events", b"x"))[0] == 200

    run(main)


def test_a_draining_server_is_not_ready_and_refuses_publishes() -> None:
    async def main() -> None:
        async with Open() as region:
            region.server.draining = True
            code, said = await region.get("/readyz")
            assert (code, said["ready"]) == (503, False)
            assert "draining" in said["reasons"][0]
            assert (await region.post("/v1/streams/s/events", b"x"))[0] == 503

    run(main)


def test_openapi_describes_exactly_the_routes() -> None:
    async def main() -> None:
        server = Open().server
        app = make_app(server, Publishing(server))
        routes = {
            (route.path, method.lower())  # type: ignore[attr-defined]
            for route in app.routes
            for method in route.methods - {"HEAD"}  # type: ignore[attr-defined]
        }
        described = {(path, m) for path, item in document()["paths"].items() for m in item}
        assert described == routes

    run(main)


def test_openapi_references_resolve_and_operations_are_described() -> None:
    text = json.dumps(document())
    refs = {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert refs <= set(document()["components"]["schemas"])
    for path, item in document()["paths"].items():
        for operation in item.values():
            assert operation["summary"], path
            named = {p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"}
            assert named == ({"name"} if "{name}" in path else set())
