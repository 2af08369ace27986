"""Publishing rows of a schema by HTTP."""

import pytest

from surecast.client.connection import Client
from surecast.server import publishing
from tests.server.opened import Open, run

LINES = {"content_type": "application/x-ndjson"}


def test_rows_of_a_schema_can_be_published_by_http() -> None:
    async def main() -> None:
        async with Open() as region:
            new = "/v1/streams/t/events?schema=sym%20string%20not%20null,%20px%20float64"
            answer = await region.post(new, b'{"sym": "a", "px": 1.5, "key": "k"}', **LINES)
            assert answer == (200, {"stream": "t", "seqs": [[1, 2]]})
            path = "/v1/streams/t/events"
            body = b'{"attributes": {"sym": "b"}, "value": "v"}\n{"sym": "c", "px": "NaN"}\n'
            assert (await region.post(path, body, **LINES))[0] == 200
            assert (await region.get("/v1/streams/t"))[1]["schema"] == (
                "sym string not null, px float64"
            )
            code, said = await region.post(path, b'{"sym": "d"}\n{"sym": 4}', **LINES)
            assert (code, said["error"]) == (
                400, "line 2: column 'sym' is string, and the event has 4 (int)"
            )  # fmt: skip
            code, said = await region.post(path, b"raw")
            assert code == 400
            assert "send JSON objects with its fields" in said["error"]
            code, said = await region.post(path + "?schema=n%20int8", b'{"sym": "d"}', **LINES)
            assert code == 409
            assert "has schema='sym string not null, px float64'" in said["error"]
            code, said = await region.post("/v1/streams/u/events?schema=n", b"{}", **LINES)
            assert code == 400
            assert "where a type" in said["error"]
            address = region.server.nodes[0].address
            assert address is not None
            async with Client(f"surecast://127.0.0.1:{address[1]}") as client:
                found = [
                    (event.key, event.value, str(event.attributes))
                    async for event in client.subscribe("t", start="earliest", stop="latest")
                ]
            assert found == [
                (b"k", b"", "{'sym': 'a', 'px': 1.5}"),
                (None, b"v", "{'sym': 'b', 'px': None}"),
                (None, b"", "{'sym': 'c', 'px': nan}"),
            ]

    run(main)


def test_a_short_request_cannot_take_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with Open() as region:
            wide = ",".join(f"c{number}%20int64" for number in range(100))
            new = f"/v1/streams/t/events?schema={wide}"
            assert (await region.post(new, b"{}", **LINES))[0] == 200
            path = "/v1/streams/t/events"
            monkeypatch.setattr(publishing, "ROWS_BYTES_MAX", 9 * 900)  # nine rows
            assert (await region.post(path, b"{}\n" * 9, **LINES))[0] == 200
            code, said = await region.post(path, b"{}\n" * 10, **LINES)
            assert code == 400
            assert said["error"].startswith("line 10: the rows up to here take 9,000 bytes")
            assert (await region.get("/v1/streams/t"))[1]["end"] == 11

    run(main)


def test_a_schema_is_changed_by_http() -> None:
    async def main() -> None:
        async with Open() as region:
            path = "/v1/streams/t"
            new = f"{path}/events?schema=n%20int64"
            assert (await region.post(new, b'{"n": 1}', **LINES))[0] == 200
            more = "n%20int64,%20s%20string"
            for seq in (2, None):  # the second request changes nothing
                assert await region.post(f"{path}/schema?schema={more}", b"") == (
                    200, {"stream": "t", "schema": "n int64, s string", "seq": seq}
                )  # fmt: skip
            body = b'{"n": 3, "s": "x"}'
            assert (await region.post(f"{path}/events", body, **LINES))[0] == 200
            assert (await region.get(path))[1]["schema"] == "n int64, s string"
            for query, code, words in (
                ("?schema=n%20int64", 409, "the field 's' is missing"),
                ("?schema=n%20int8", 409, "'n' is int64, and cannot become int8"),
                ("?schema=n", 400, "where a type"),
                ("", 400, "?schema= is the whole new schema"),
            ):
                found, said = await region.post(f"{path}/schema{query}", b"")
                assert (found, words in said["error"]) == (code, True), said
            assert (await region.post(f"/v1/streams/u/schema?schema={more}", b""))[0] == 404

    run(main)
