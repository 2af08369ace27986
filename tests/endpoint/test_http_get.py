"""Answers over HTTP that are whole, half or none."""

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
def answering(said: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A place where somebody answers so, and hangs up; what was asked there."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as door:

        def answer() -> None:
            connection, _ = door.accept()
            with connection:
                asked.append(connection.recv(1 << 16))
                connection.sendall(said)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{door.getsockname()[1]}/v1/status", asked
        thread.join(5)


def imported_anew() -> Any:
    """A copy of the module that nobody else uses."""
    spec = importlib.util.find_spec("surecast.endpoint.http_get")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def test_a_proxy_for_the_web_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(WHOLE) as (proxy, told), answering(WHOLE) as (url, asked):
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.removesuffix("/v1/status"))
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        fresh = imported_anew()  # proxies are looked up when it is imported
        assert fresh.http_get(url, "s3cret", patience_s=5) == b"{}"
        assert b"Authorization: Bearer s3cret" in asked[0]
        assert told == []
        socket.create_connection(("127.0.0.1", urlsplit(proxy).port)).close()  # let it end


@pytest.mark.parametrize("said", [WHOLE[:-1], b"SSH-2.0-OpenSSH\r\n", b""])
def test_half_an_answer_is_none(said: bytes) -> None:
    with answering(said) as (url, _), pytest.raises(OSError, match=r"no answer|closed|reset"):
        http_get(url, patience_s=5)


def test_a_refusal_is_told_as_one() -> None:
    refused = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
    with answering(refused) as (url, _), pytest.raises(HTTPError) as said:
        http_get(url, patience_s=5)
    assert said.value.code == 401
