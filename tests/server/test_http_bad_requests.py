"""Malformed requests get a clear 400 and one line in the log, and never a traceback."""

import logging
from typing import Any

import pytest

from surecast.server import http
from tests.server.opened import Open, run, until

EVENTS = b"POST /v1/streams/s/events HTTP/1.1\r\nHost: x\r\n"
LINES = EVENTS + b"Content-Type: application/x-ndjson\r\n"


def post(body: bytes, head: bytes = LINES) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def target(path: bytes, method: bytes = b"GET") -> bytes:
    return method + b" " + path + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"


BAD = {
    "a key that is not UTF-8": (post(b'{"key": "\xff", "value": "x"}'), "line 1: not UTF-8"),
    "a value that is not UTF-8": (post(b'{}\n{"value": "\xed\xa0\x80"}'), "line 2: not UTF-8"),
    "a field that is not UTF-8": (post(b'{"\xff": 1}'), "not UTF-8"),
    "half of a surrogate pair": (post(b'{"value": "\\ud800"}'), "not JSON"),
    "half of a surrogate pair, then text": (post(b'{"value": "\\ud800abcdef"}'), "not JSON"),
    "a control character": (post(b'{"value": "\x00"}'), "not JSON"),
    "not base64": (post(b'{"value_base64": "A"}'), "value_base64 is not base64"),
    "base64 that is not ASCII": (post('{"key_base64": "é"}'.encode()), "key_base64 is not base64"),
    "base64 that is a number": (post(b'{"key_base64": 1}'), "key_base64 is not base64"),
    "nested too deeply": (post(b"[" * 900), "not JSON"),
    "a key in the query that is not UTF-8": (
        target(b"/v1/streams/s/events?key=%ff", b"POST"), "the query is not UTF-8",
    ),
    "a stream name that is not UTF-8": (
        target(b"/v1/streams/%ff/events", b"POST"), "the path is not UTF-8",
    ),
    "a stream to look at that is not UTF-8": (
        target(b"/v1/streams/%ed%a0%80"), "the path is not UTF-8",
    ),
    "a stream name with a NUL": (
        target(b"/v1/streams/a%00b/events", b"POST"), "is not a valid stream name",
    ),
    "positions that are no numbers": (target(b"/v1/streams/s/files?lo=%00"), "are positions"),
    "a position of 5000 digits": (
        target(b"/v1/streams/s/files?lo=" + b"9" * 5000), "are positions",
    ),
    "garbage": (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", "not a valid HTTP request"),
    "a path with raw bytes": (target(b"/v1/streams/\xff"), "not a valid HTTP request"),
    "a NUL in a header": (
        EVENTS + b"Authorization: \x00\r\n\r\n", "not a valid HTTP request",
    ),
    "two lengths": (
        EVENTS + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", "not a valid HTTP request",
    ),
    "a negative length": (EVENTS + b"Content-Length: -1\r\n\r\n", "not a valid HTTP request"),
    "a chunk that is none": (
        EVENTS + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "not a valid HTTP request",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("data", "words"), BAD.values(), ids=BAD.keys())
def test_a_bad_request_gets_a_clear_400_and_one_line(
    data: bytes, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with Open({"body_bytes_max": 10_000}) as region:
            status, said = await region.said(data)
            assert status == 400
            assert words in said["error"]
            assert (await region.get("/healthz"))[0] == 200
            one_line(caplog)

    run(main)


def one_line(caplog: pytest.LogCaptureFixture) -> str:
    """The warning that was logged; there must be exactly one, on one short line."""
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.exc_info for record in records] == [None], caplog.text
    text = records[0].getMessage()
    assert text.startswith("e-1: HTTP: ")
    assert text.isprintable()
    assert len(text) < 400
    return text


@pytest.mark.parametrize(
    "data",
    [
        EVENTS + b"Content-Length: 100\r\n\r\nonly this",
        EVENTS + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
        EVENTS + b"Content-Le",
    ],
    ids=["length", "chunk", "head"],
)
@pytest.mark.parametrize("how", ["end", "reset"])
def test_an_aborted_request_is_answered_if_possible_and_logged_once(
    data: bytes, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that closes only its sending side gets an answer; after a reset there is none."""

    async def main() -> None:
        async with Open() as region:
            talk = await region.talk()
            talk.send(data)
            await until(lambda: region.port.connections.open)
            await region.get("/healthz")  # so the request has been read
            if how == "end":
                talk.writer.write_eof()
                status, said = await talk.answer()
                assert status == 400
                assert "ended before" in said["error"]
            else:
                talk.reset()
            await until(lambda: not region.port.connections.open)
            if how == "end" or b"Content-Le" not in data[-10:]:
                await until(lambda: caplog.records)  # the request's task logs after the close
                assert "ended before" in one_line(caplog)

    run(main)


def test_an_aborted_post_is_not_logged_with_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """As above, without examining the open connections."""

    async def main() -> None:
        async with Open() as region:
            for _ in range(5):
                talk = await region.talk()
                talk.send(EVENTS + b"Content-Length: 100\r\n\r\nonly this")
                await region.get("/healthz")
                talk.reset()
            await until(lambda: caplog.records)
            await region.get("/healthz")
            one_line(caplog)

    run(main)


def test_invalid_positions_are_refused_and_ranges_beyond_the_end_are_not() -> None:
    async def main() -> None:
        async with Open() as region:
            await region.post("/v1/streams/s/events", b"x")
            for query in (
                f"lo={10**24}",
                f"hi=-{10**24}",
                "lo=0",
                "lo=-1",
                "lo=1.0",
                "hi=1_0",
                "hi=",
            ):
                code, found = await region.get(f"/v1/streams/s/files?{query}")
                assert (code, "are positions" in found["error"]) == (400, True), query
            for query in ("lo=9&hi=1", f"lo={1 << 59}", f"lo=1&hi={1 << 59}", ""):
                code, _ = await region.get(f"/v1/streams/s/files?{query}")
                assert code == 200, query

    run(main)


@pytest.mark.parametrize("token", ["é", "\udcff", "a b", "x" * 1000])
def test_tokens_of_any_bytes_are_compared(token: str) -> None:
    async def main() -> None:
        async with Open(token="é") as region:
            header = b"Authorization: Bearer " + token.encode(errors="surrogateescape")
            head = b"GET /v1/status HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n\r\n"
            assert (await region.said(head))[0] == (200 if token == "é" else 401)

    run(main)


def test_the_host_header_is_ignored() -> None:
    async def main() -> None:
        async with Open() as region:
            for host in (b"[", b"\xff", b"evil/x"):
                data = b"GET /healthz/ HTTP/1.1\r\nHost: " + host + b"\r\n\r\n"
                assert (await region.said(data))[0] == 404

    run(main)


def test_an_upgrade_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Open() as region:
            head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket"
            more = b"\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eHh4eHh4eHh4eHh4eHh4eA=="
            assert (await region.said(head + more + b"\r\n\r\n"))[0] == 200
            assert not caplog.records

    run(main)


def test_many_bad_requests_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Open({"log_every_ns": 3600 * 10**9}) as region:
            for _ in range(30):
                assert (await region.said(b"\xff\r\n\r\n"))[0] == 400
                assert (await region.said(post(b"\xff")))[0] == 400
            assert len(caplog.records) == 2
        assert len(caplog.records) == 4  # the count is logged when the port stops
        assert all("29 more of this kind" in record.message for record in caplog.records[2:])

    run(main)


def test_a_bug_is_logged_with_its_traceback_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(http, "look", broken)

    async def main() -> None:
        async with Open() as region:
            for _ in range(5):
                assert (await region.get("/v1/status"))[0] == 500
            assert [record.levelname for record in caplog.records] == ["ERROR"]
            assert "in broken" in caplog.text
            assert "KeyError: 'a bug'" in caplog.text

    run(main)
