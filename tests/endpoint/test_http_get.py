"""HTTP answers that are complete, incomplete or missing."""

import importlib.util
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

import pytest

from surecast.endpoint.http_get import http_get


@contextmanager
def answering(answer: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A server that sends `answer` once and closes. Yields its url and the requests."""
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                requests.append(connection.recv(1 << 16))
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1/status", requests
        thread.join(5)


def fresh_import() -> Any:
    """A separate copy of the module."""
    spec = importlib.util.find_spec("surecast.endpoint.http_get")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def test_configured_web_proxies_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(WHOLE) as (proxy, proxied), answering(WHOLE) as (url, requests):
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.removesuffix("/v1/status"))
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        fresh = fresh_import()  # proxies are read at import
        assert fresh.http_get(url, "s3cret", patience_s=5) == b"{}"
        assert b"Authorization: Bearer s3cret" in requests[0]
        assert proxied == []
        socket.create_connection(
            ("127.0.0.1", urlsplit(proxy).port)
        ).close()  # so that its thread ends


@pytest.mark.parametrize("answer", [WHOLE[:-1], b"SSH-2.0-OpenSSH\r\n", b""])
def test_an_incomplete_answer_is_an_error(answer: bytes) -> None:
    with (
        answering(answer) as (url, _),
        pytest.raises(OSError, match=r"no complete answer|closed|reset"),
    ):
        http_get(url, patience_s=5)


def test_a_refusal_is_raised_with_its_status_code() -> None:
    refused = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
    with answering(refused) as (url, _), pytest.raises(HTTPError) as caught:
        http_get(url, patience_s=5)
    assert caught.value.code == 401
