"""The HTTP port described as OpenAPI 3.1. A test holds it against the routes."""

from importlib.metadata import version
from typing import Any

import msgspec

from surecast.server.files import StreamFiles
from surecast.server.status import Status, StreamStatus

__all__ = ["document"]


class StreamList(msgspec.Struct):
    streams: list[StreamStatus]
    total: int


class Problem(msgspec.Struct):
    """What is wrong and what to do."""

    error: str


class Ready(msgspec.Struct):
    ready: bool
    reasons: list[str]


class Published(msgspec.Struct):
    """Where the events stand: half-open runs of positions."""

    stream: str
    seqs: list[tuple[int, int]]


class Alive(msgspec.Struct):
    status: str


class Done(msgspec.Struct):
    done: str


_NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
_KEY = {
    "name": "key",
    "in": "query",
    "description": "of a raw event",
    "schema": {"type": "string"},
}
_RANGE = [{"name": name, "in": "query", "schema": {"type": "integer"}} for name in ("lo", "hi")]
_STREAM = {"name": "stream", "in": "query", "required": True, "schema": {"type": "string"}}
_CONFIRM = {
    "name": "yes-i-know-what-is-lost",
    "in": "query",
    "required": True,
    "schema": {"const": "true"},
}


def document() -> dict[str, Any]:
    """The whole description."""
    types = (Status, StreamList, StreamStatus, StreamFiles, Problem, Ready, Published, Alive, Done)
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    refs = dict(zip(types, schemas, strict=True))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Surecast region server",
            "version": version("surecast"),
            "description": (
                "Health, metrics, status and publishing of one node. Any request may be answered "
                "400 (not HTTP, or its path or query is not UTF-8), 408 (too slow) or 431 (its "
                "headers are too large)."
            ),
        },
        "paths": _paths(refs),
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _paths(refs: dict[Any, Any]) -> dict[str, Any]:
    wrong = refs[Problem]
    open_to_all: list[Any] = []
    token: list[Any] = [{"token": []}]

    def get(summary: str, good: Any, *codes: int, security: Any = token, **more: Any) -> Any:
        return {
            "get": _operation(summary, {200: good, **dict.fromkeys(codes, wrong)}, security, more)
        }

    events = {
        "application/x-ndjson": {
            "schema": {"type": "string"},
            "example": '{"key": "user:42", "value": "gone"}\n',
        },
        "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
    }
    ready = _operation(
        "should clients come here?", {200: refs[Ready], 503: refs[Ready]}, open_to_all
    )
    publish = _operation(
        "publish events: a JSON object a line, or the body as one event",
        {
            200: refs[Published],
            **dict.fromkeys((400, 401, 403, 408, 409, 413, 502, 503, 504), wrong),
        },
        token,
        {"parameters": [_NAME, _KEY], "requestBody": {"required": True, "content": events}},
    )
    refusals = dict.fromkeys((400, 401, 403, 404, 409, 503), wrong)
    refound = _operation(
        "an operator's last word: no other member of the chain will come back, go on from this one",
        {202: refs[Done], **refusals},
        token,
        {"parameters": [_CONFIRM]},
    )
    force = _operation(
        "an operator's last word: give up a stream's history and begin again",
        {202: refs[Done], **refusals},
        token,
        {"parameters": [_STREAM, _CONFIRM]},
    )
    text = {"type": "string"}
    return {
        "/healthz": get("is the process alive?", refs[Alive], security=open_to_all),
        "/readyz": {"get": ready},
        "/metrics": {
            "get": _operation(
                "for Prometheus", {200: text, 503: text}, open_to_all, media="text/plain"
            )
        },
        "/openapi.json": get("this document", {"type": "object"}, 503, security=open_to_all),
        "/v1/status": get("everything this node knows", refs[Status], 401, 503),
        "/v1/streams": get("the streams", refs[StreamList], 401, 404, 503),
        "/v1/streams/{name}": get(
            "one stream", refs[StreamStatus], 400, 401, 404, 503, parameters=[_NAME]
        ),
        "/v1/streams/{name}/events": {"post": publish},
        "/v1/streams/{name}/files": get(
            "where it lies on this server's disk, and which positions are void",
            refs[StreamFiles],
            *(400, 401, 404, 503),
            parameters=[_NAME, *_RANGE],
        ),
        "/v1/admin/refound": {"post": refound},
        "/v1/admin/force-new-stream": {"post": force},
    }


def _operation(
    summary: str,
    answers: dict[int, Any],
    security: list[Any],
    more: dict[str, Any] | None = None,
    media: str = "application/json",
) -> dict[str, Any]:
    return {
        "summary": summary,
        "security": security,
        "responses": {
            str(code): {
                "description": _WORDS.get(code, "refused"),
                "content": {media: {"schema": schema}},
            }
            for code, schema in answers.items()
        },
        **(more or {}),
    }


_WORDS = {
    200: "fine",
    202: "under way",
    400: "the request makes no sense",
    401: "the token is missing or wrong",
    403: "not from there",
    404: "there is no such thing here",
    408: "the request took too long to arrive",
    409: "not in this state",
    413: "too large",
    502: "refused by the region that owns the stream",
    503: "not now",
    504: "no answer in time",
}
