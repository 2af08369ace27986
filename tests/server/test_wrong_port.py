"""Clients at the HTTP port and HTTP requests at the data port get an error that names the port."""

import logging
import time

import pytest

from surecast import ClientOptions, ConnectError, connect
from tests.server.opened import Open, run, until
from tests.server.processes import get

PATIENT = ClientOptions(connect_timeout=30)


def test_a_client_at_the_http_port_fails_at_once() -> None:
    async def main() -> None:
        async with Open() as region:
            assert region.port.address is not None
            began = time.monotonic()
            with pytest.raises(ConnectError, match=r"is an HTTP port: connect to the data port"):
                await connect(f"127.0.0.1:{region.port.address[1]}", options=PATIENT)
            assert time.monotonic() - began < 10  # long before the time-out
            assert (await region.get("/healthz"))[0] == 200

    run(main)


@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
def test_an_http_request_at_the_data_port_is_answered(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with Open() as region:
            address = region.server.nodes[0].address
            assert address is not None
            region.port.address = address  # `said` connects to this address
            head = f"{method} /v1/status HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            code, said = await region.said(head)
            assert code == 400
            assert "data port of a Surecast server" in said["error"]
            assert "node.http" in said["error"]
            assert "an HTTP request at the data port" in caplog.text
            async with connect(f"127.0.0.1:{address[1]}") as client:
                await (await client.stream("s")).publish(b"x")

    with caplog.at_level(logging.WARNING, "surecast.runtime"):
        run(main)


def test_urllib_reads_the_answer_of_the_data_port() -> None:
    """The answer is complete HTTP, so that curl and other clients can read it."""

    async def main() -> None:
        import asyncio

        async with Open() as region:
            address = region.server.nodes[0].address
            assert address is not None
            where = f"http://127.0.0.1:{address[1]}/v1/status"
            code, said = await asyncio.to_thread(get, where)
            assert (code, "data port" in said["error"]) == (400, True)

    run(main)


def test_a_server_whose_peer_is_an_http_port_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Open() as region:
            assert region.port.address is not None
            node = region.server.nodes[0]
            node.book.set("w-1", region.port.address)
            node.sessions.opening.open("w-1")
            await until(lambda: "its answer is HTTP" in caplog.text)

    with caplog.at_level(logging.WARNING, "surecast.runtime"):
        run(main)
