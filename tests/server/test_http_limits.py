"""Bounds of the HTTP port, over sockets: slow and idle clients, many connections, many requests."""

import asyncio
from typing import Any

import pytest

from tests.server.opened import Open, Talk, run, until

HEALTH = (200, {"status": "alive"})
READY = (200, {"ready": True, "reasons": []})
HALF_HEAD = b"GET /v1/status HTTP/1.1\r\nHost: x\r\nX-Slow: "
HALF_BODY = b"POST /v1/streams/s/events HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc"
SOON = 50_000_000  # a timeout that a test waits for
NEVER = 3600 * 10**9  # a timeout that must not matter


async def open_many(region: Open, count: int, data: bytes) -> list[Talk]:
    talks = []
    for _ in range(count):
        talks.append(await region.talk())
        talks[-1].send(data)
    return talks


@pytest.mark.parametrize("half", [HALF_HEAD, HALF_BODY, b""], ids=["head", "body", "nothing"])
@pytest.mark.parametrize("count", [64, 300])
def test_half_sent_requests_do_not_block_health(half: bytes, count: int) -> None:
    async def main() -> None:
        async with Open() as region:
            talks = await open_many(region, count, half)
            for _ in range(3):
                assert await region.get("/healthz") == HEALTH
                assert await region.get("/readyz") == READY
            assert (await region.post("/v1/streams/s/events", b"x"))[0] == 200
            assert all(talk.writer for talk in talks)  # keeps the connections open until here

    run(main)


def test_headers_that_never_end_are_answered_408() -> None:
    async def main() -> None:
        async with Open({"header_timeout_ns": SOON}) as region:
            talk = await region.talk()
            talk.send(HALF_HEAD)
            status, said = await talk.answer()
            assert status == 408
            assert "http.header_timeout_ns" in said["error"]
            assert await talk.is_closed()
            silent = await region.talk()
            assert await silent.answer() == (0, None)  # closed without an answer

    run(main)


def test_single_bytes_do_not_extend_the_time_limit() -> None:
    async def main() -> None:
        async with Open({"header_timeout_ns": 4 * SOON}) as region:
            talk = await region.talk()
            talk.send(HALF_HEAD)
            answer = asyncio.create_task(talk.answer())
            while not answer.done():
                talk.send(b"x")
                await asyncio.sleep(0.01)
            assert answer.result()[0] == 408

    run(main)


def test_the_second_request_of_a_connection_has_the_same_time_limit() -> None:
    async def main() -> None:
        limits = {"header_timeout_ns": SOON, "idle_timeout_ns": NEVER}
        async with Open(limits) as region:
            talk = await region.talk()
            talk.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await talk.answer() == HEALTH
            talk.send(HALF_HEAD)
            assert (await talk.answer())[0] == 408
            talk = await region.talk()  # the same, sent at once
            talk.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" + HALF_HEAD)
            assert await talk.answer() == HEALTH
            assert (await talk.answer())[0] == 408

    run(main)


def test_a_body_that_never_ends_is_answered_408() -> None:
    async def main() -> None:
        async with Open({"body_timeout_ns": SOON}) as region:
            talk = await region.talk()
            talk.send(HALF_BODY)
            status, said = await talk.answer()
            assert status == 408
            assert "http.body_timeout_ns" in said["error"]
            assert await talk.is_closed()

    run(main)


def test_an_unread_body_does_not_keep_the_connection_open() -> None:
    async def main() -> None:
        limits = {"body_timeout_ns": 4 * SOON, "idle_timeout_ns": NEVER}
        async with Open(limits) as region:
            talk = await region.talk()
            talk.send(b"POST /v1/streams/a%20b/events HTTP/1.1\r\nHost: x\r\n")
            talk.send(b"Content-Length: 1000000\r\n\r\n")
            assert (await talk.answer())[0] == 400  # before the body
            closed = asyncio.create_task(talk.is_closed())
            while not closed.done():
                talk.send(b"x")
                await asyncio.sleep(0.01)

    run(main)


def test_an_idle_connection_is_closed() -> None:
    async def main() -> None:
        limits = {"idle_timeout_ns": SOON, "header_timeout_ns": NEVER}
        async with Open(limits) as region:
            talk = await region.talk()
            talk.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await talk.answer() == HEALTH
            assert await talk.is_closed()

    run(main)


def test_a_client_that_does_not_read_its_answers_is_disconnected() -> None:
    async def main() -> None:
        limits = {"response_timeout_ns": SOON, "idle_timeout_ns": NEVER}
        async with Open(limits) as region:
            talk = await region.talk()
            talk.writer.transport.pause_reading()  # type: ignore[attr-defined]
            talk.send(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 2_000)
            await until(lambda: len(region.port.connections.open) == 1)
            await until(lambda: not region.port.connections.open)
            assert await region.get("/healthz") == HEALTH

    run(main)


def test_a_new_connection_replaces_the_one_that_waited_longest() -> None:
    async def main() -> None:
        limits = {"connections_max": 3, "header_timeout_ns": NEVER, "idle_timeout_ns": NEVER}
        async with Open(limits) as region:
            oldest, *others = await open_many(region, 3, HALF_HEAD)
            await until(lambda: len(region.port.connections.open) == 3)
            newest = await region.talk()
            assert (await oldest.answer())[0] == 503
            for talk in (*others, newest):
                talk.send(b"\r\n\r\n" if talk is not newest else HALF_HEAD + b"\r\n\r\n")
                assert (await talk.answer())[0] == 200

    run(main)


def test_an_address_with_many_connections_closes_its_own() -> None:
    async def main() -> None:
        limits = {
            "connections_max": 5, "connections_per_peer_max": 3,
            "header_timeout_ns": NEVER,
        }  # fmt: skip
        async with Open(limits) as region:
            other = await region.talk("127.0.0.2")  # the longest waiting of all
            many = await open_many(region, 4, HALF_HEAD)
            assert await many[0].is_closed()  # connections_per_peer_max
            third = [await region.talk("127.0.0.3") for _ in range(2)]
            assert await many[1].is_closed()  # connections_max
            for talk in (other, *third):
                talk.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                assert await talk.answer() == HEALTH

    run(main)


def test_requests_beyond_the_bound_are_answered_503_but_not_health() -> None:
    async def main() -> None:
        limits = {"requests_max": 3, "requests_per_peer_max": 2, "connections_max": 3}
        async with Open(limits) as region:
            released = asyncio.Event()

            async def publish(*_: Any) -> list[tuple[int, int]]:
                await released.wait()
                return [(1, 2)]

            region.port.publishing.publish = publish  # type: ignore[method-assign]
            whole = HALF_BODY + b"defghij"
            slow = await open_many(region, 2, whole)
            requests = region.requests()
            await until(lambda: requests["127.0.0.1"] == 2)
            status, said = await region.get("/v1/status")
            assert status == 503
            assert "http.requests_per_peer_max" in said["error"]
            slow.append(await region.talk("127.0.0.2"))
            slow[-1].send(whole)
            await until(lambda: requests["127.0.0.2"] == 1)
            status, said = await region.get("/metrics")
            assert status == 503
            assert "http.requests_max" in said["error"]
            assert await region.get("/healthz") == HEALTH
            assert await region.get("/readyz") == READY
            released.set()
            for talk in slow:  # a complete request is never given up in favour of another
                assert await talk.answer() == (200, {"stream": "s", "seqs": [[1, 2]]})
            assert not requests
            assert (await region.get("/v1/status"))[0] == 200

    run(main)


def test_the_total_of_bodies_being_received_is_bounded() -> None:
    async def main() -> None:
        async with Open({"body_bytes_max": 10, "bodies_bytes_max": 10}) as region:
            slow = await region.talk()
            slow.send(HALF_BODY)
            await until(lambda: region.pages().bodies_bytes == 3)
            status, said = await region.post("/v1/streams/s/events", b"12345678")
            assert status == 503
            assert "http.bodies_bytes_max" in said["error"]
            assert (await region.post("/v1/streams/s/events", b"1234567"))[0] == 200
            slow.send(b"defghij")
            assert (await slow.answer())[0] == 200
            assert region.pages().bodies_bytes == 0

    run(main)


def test_large_headers_are_refused() -> None:
    async def main() -> None:
        async with Open({"header_bytes_max": 2_000}) as region:
            head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Large: " + b"x" * 3_000
            assert (await region.said(head))[0] == 431
            assert await region.get("/healthz") == HEALTH

    run(main)


def test_a_stopping_port_does_not_wait_for_slow_clients() -> None:
    async def main() -> None:
        async with Open({"header_timeout_ns": NEVER, "body_timeout_ns": NEVER}) as region:
            slow = await open_many(region, 5, HALF_HEAD) + await open_many(region, 5, HALF_BODY)
            assert await region.get("/healthz") == HEALTH
        for talk in slow:
            assert await talk.is_closed()

    run(main)
