"""Sends an HTTP request to a server, for `surecast status`, `surecast up` and Spark.

It does not use the proxies that are configured on this computer.
"""

from __future__ import annotations

from http.client import HTTPException
from typing import Final
from urllib.request import ProxyHandler, Request, build_opener

__all__ = ["http_get"]

_DIRECT: Final = build_opener(ProxyHandler({}))


def http_get(url: str, token: str = "", *, patience_s: float) -> bytes:
    """The body of the answer. Raises OSError if there is no complete answer, and its subclass
    HTTPError if the server refuses the request. `patience_s` limits the time for connecting and for
    each receive."""
    request = Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with _DIRECT.open(request, timeout=patience_s) as answer:
            body: bytes = answer.read()
            return body
    except HTTPException as problem:
        raise OSError(f"no complete answer: {problem!r}") from problem
