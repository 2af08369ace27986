"""Query parameters and bodies that the HTTP port accepts.

An unknown parameter is refused: ignoring it once created streams that kept everything for ever
(`?retian=keep-last:9`).
"""

import asyncio
import re
import urllib.error
import urllib.request
from typing import Any

import pytest

from surecast import connect
from surecast.server.openapi import document
from surecast.server.operations import OPERATIONS, Operation
from tests.server.opened import Open, run

GUARDED = [operation for operation in OPERATIONS if operation.path.startswith("/v1/")]
EVENTS = "/v1/streams/s/events"
LINES = b'{"key": "k", "value": "1"}\n{"value": "2"}\n'


async def ask(region: Open, operation: Operation, query: str) -> tuple[int, Any]:
    path = f"{operation.path.replace('{name}', 's')}?{query}"
    if operation.method == "GET":
        return await region.get(path)
    body = b"x" if operation.method == "POST" else None
    return await region.post(path, body, method=operation.method)


def names_of(region: Open) -> set[str]:
    return set(region.server.streams.directory.by_name)


@pytest.mark.parametrize("operation", GUARDED, ids=lambda op: f"{op.method} {op.path}")
def test_an_unknown_parameter_is_named_with_those_that_are_known(operation: Operation) -> None:
    async def main() -> None:
        async with Open() as region:
            before = names_of(region)
            for query in ("colour=red", "colour", "=x", "KEY=x"):
                code, said = await ask(region, operation, query)
                assert code == 400, (query, said)
                assert repr(query.partition("=")[0]) in said["error"]
                for parameter in operation.query:
                    assert parameter.name in said["error"]
            assert names_of(region) == before

    run(main)


def test_openapi_lists_the_parameters_that_are_accepted_and_no_others() -> None:
    """Every parameter name of the OpenAPI document is tried on every route of the port."""
    paths = document()["paths"]
    described = {
        (path, method): {p["name"] for p in operation.get("parameters", ()) if p["in"] == "query"}
        for path, item in paths.items()
        for method, operation in item.items()
    }
    names = set().union(*described.values())
    assert {"key", "retain", "delivery", "lo", "hi", "stream"} <= names

    async def main() -> None:
        async with Open() as region:
            for operation in GUARDED:
                known = described[operation.path, operation.method.lower()]
                for name in names:
                    _, said = await ask(region, operation, f"{name}=1")
                    refused = "unknown query parameter" in str(said)
                    assert refused is (name not in known), (operation.path, name)

    run(main)


def test_a_parameter_that_is_given_twice_is_refused() -> None:
    async def main() -> None:
        async with Open() as region:
            code, said = await region.post(f"{EVENTS}?key=a&key=b", b"x")
            assert (code, "'key' is given 2 times" in said["error"]) == (400, True)
            assert "s" not in names_of(region)

    run(main)


def test_a_misspelt_parameter_creates_no_stream_and_gets_a_hint() -> None:
    async def main() -> None:
        async with Open() as region:
            code, said = await region.post(f"{EVENTS}?retian=keep-last:9", b"x")
            assert code == 400
            assert "did you mean 'retain'?" in said["error"]
            assert "s" not in names_of(region)

    run(main)


def test_parameters_of_health_and_metrics_are_ignored() -> None:
    """Load balancers and scrapers add parameters of their own."""

    async def main() -> None:
        async with Open() as region:
            for path in ("/healthz", "/readyz", "/metrics", "/openapi.json"):
                assert (await region.get(f"{path}?nocache=1"))[0] == 200

    run(main)


# ---------------------------------------------------------------- new streams


def test_a_post_can_set_retention_and_delivery_of_a_new_stream() -> None:
    async def main() -> None:
        async with Open() as region:
            assert (await region.post(f"{EVENTS}?retain=keep-last:2", b"x"))[0] == 200
            assert (await region.post(EVENTS, b"y"))[0] == 200  # any retention
            assert (await region.get("/v1/streams/s"))[1]["retention"] == "keep-last:2"
            code, said = await region.post(f"{EVENTS}?retain=latest_per_key", b"z")
            assert code == 409
            assert "keep-last:2" in said["error"]
            near = "/v1/streams/near/events?delivery=nakcast"
            assert (await region.post(near, b"x")) == (200, {"stream": "near", "seqs": [[1, 2]]})
            assert (await region.get("/v1/streams/near"))[1]["delivery"] == "nakcast"
            code, said = await region.post(f"{EVENTS}?delivery=nakcast", b"x")
            assert (code, "delivery='broadcast'" in said["error"]) == (409, True)

    run(main)


@pytest.mark.parametrize(
    ("query", "code", "words"),
    [
        ("retain=", 400, "keep-last:N"),
        ("retain=forever", 400, "'forever' is not a retention policy. Valid: keep-all"),
        ("retain=keep-last:0", 400, "keep-last:N"),
        ("delivery=", 400, "delivery"),
        ("delivery=pigeon", 501, "there is no delivery='pigeon'"),
    ],
)
def test_invalid_settings_for_a_new_stream_create_none(query: str, code: int, words: str) -> None:
    async def main() -> None:
        async with Open() as region:
            found, said = await region.post(f"{EVENTS}?{query}", b"x")
            assert (found, words in said["error"]) == (code, True), said
            assert "s" not in names_of(region)

    run(main)


# ---------------------------------------------------------------- bodies

FORM = "application/x-www-form-urlencoded"  # the default of curl -d


@pytest.mark.parametrize("media", ["", FORM, "application/json", "text/plain; charset=utf-8"])
@pytest.mark.parametrize(
    "body", [LINES, b' {"value": 1}', b'[{"value": 1},\n {"value": 2}]', b'{"value":\n 1}', b"{}"]
)
def test_a_json_body_needs_an_explicit_content_type(media: str, body: bytes) -> None:
    async def main() -> None:
        async with Open() as region:
            if media:
                code, said = await region.post(EVENTS, body, content_type=media)
            else:  # urllib would add one
                head = b"POST %b HTTP/1.1\r\nHost: x\r\n" % EVENTS.encode()
                code, said = await region.said(
                    head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
                )
            assert code == 415
            for words in (
                "application/x-ndjson",
                "application/octet-stream",
                media.partition(";")[0],
            ):
                assert words in said["error"]
            assert "s" not in names_of(region)

    run(main)


def test_the_content_type_decides_between_events_and_one_event() -> None:
    async def main() -> None:
        async with Open() as region:
            for media in ("application/x-ndjson", "Application/X-NDJSON; charset=utf-8"):
                assert (await region.post(EVENTS, LINES, content_type=media))[0] == 200
            media = "application/octet-stream"
            assert (await region.post(EVENTS, LINES, content_type=media))[0] == 200
            for raw in (b"5", b'"text"', b"{not json", b"[1, 2", b"{\xff}", b"x={}"):
                assert (await region.post(EVENTS, raw, content_type=FORM))[0] == 200, raw
            assert (await region.post(EVENTS, b"x", content_type="application/json"))[0] == 415
            code, said = await region.post(
                f"{EVENTS}?key=k", LINES, content_type="application/x-ndjson"
            )
            assert (code, "each line has its own key" in said["error"]) == (400, True)
            address = region.server.nodes[0].address
            assert address is not None
            async with connect(f"127.0.0.1:{address[1]}") as client:
                values = []
                async for event in client.subscribe("s", start="earliest"):
                    values.append(event.value)
                    if event.seq == 11:
                        break
            assert values[:5] == [b"1", b"2", b"1", b"2", LINES]
            assert len(values) == 11

    run(main)


# ---------------------------------------------------------------- tokens


def test_a_wrong_token_and_a_missing_one_have_different_errors() -> None:
    async def main() -> None:
        async with Open(token="secret") as region:
            code, said = await region.get("/v1/status", "guess")
            assert (code, said["error"].startswith("wrong token:")) == (401, True)
            code, said = await region.get("/v1/status")
            assert (code, "needs a token" in said["error"]) == (401, True)
            assert not re.search("secret|guess", str(said))

    run(main)


def test_a_stream_is_deleted_by_http() -> None:
    async def main() -> None:
        async with Open() as region:
            path = EVENTS.removesuffix("/events")
            assert await region.post(path, None, method="DELETE") == (
                404,
                {"error": "there is no stream 's' here; see /v1/streams"},
            )
            await region.post(EVENTS, LINES, content_type="application/x-ndjson")
            code, said = await region.post(path, None, method="DELETE")
            assert (code, said) == (200, {"stream": "s", "seq": 3})
            assert await region.post(EVENTS, b"again") == (200, {"stream": "s", "seqs": [[1, 2]]})

    run(main)


def allow_header(url: str, method: str) -> str | None:
    request = urllib.request.Request(url, method=method, headers={"Authorization": "Bearer secret"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=10)
    return refused.value.headers["allow"]


def test_a_wrong_path_and_a_wrong_method_say_what_exists() -> None:
    async def main() -> None:
        async with Open(token="secret") as region:
            for path in ("/v1/stream", "/v2/streams/s", "/healthz/"):
                code, said = await region.get(path)
                assert code == 404
                assert said == {"error": "there is no such path; /openapi.json lists all paths"}
            for path, method, allowed in (
                (EVENTS, "GET", "POST"),
                (EVENTS.removesuffix("/events"), "PUT", "DELETE, GET, HEAD"),
                ("/healthz", "POST", "GET, HEAD"),
            ):
                code, said = await region.post(path, None, method=method)
                assert code == 405
                assert said["error"] == (
                    f"{method} is not allowed here; allowed: {allowed}; see /openapi.json"
                )
                assert await asyncio.to_thread(allow_header, region.where(path), method) == allowed

    run(main)
