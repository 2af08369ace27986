"""The OpenAPI 3.1 description of the HTTP port, generated from the table of its operations."""

from typing import Any

import msgspec

from surecast.server.operations import ANSWERS, OPERATIONS, Operation, Parameter
from surecast.version import __version__

__all__ = ["document"]

_NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}


def document() -> dict[str, Any]:
    """The whole description."""
    schemas, components = msgspec.json.schema_components(
        ANSWERS, ref_template="#/components/schemas/{name}"
    )
    refs = dict(zip(ANSWERS, schemas, strict=True))
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        described = _operation(operation, refs)
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Surecast region server",
            "version": __version__,
            "description": (
                "Health, metrics, status and publishing of one node. Any request may be answered "
                "400 (not HTTP, or its path or query is not UTF-8), 408 (too slow) or 431 (its "
                "headers are too large). Under /v1 a query parameter that is not listed here is "
                "refused with 400."
            ),
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(operation: Operation, refs: dict[Any, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "summary": operation.summary,
        "security": [{"token": []}] if operation.guarded else [],
        "responses": {
            str(code): {
                "description": _WORDS.get(code, "refused"),
                "content": {operation.media: {"schema": _schema(answer, refs)}},
            }
            for code, answer in operation.answers.items()
        },
    }
    parameters = [_NAME] if "{name}" in operation.path else []
    parameters += [_parameter(parameter) for parameter in operation.query]
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": operation.body}
    return described


def _schema(answer: Any, refs: dict[Any, Any]) -> Any:
    return answer if isinstance(answer, dict) else refs[answer]


def _parameter(parameter: Parameter) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": parameter.name,
        "in": "query",
        "description": parameter.description,
        "schema": parameter.schema,
    }
    return {**described, "required": True} if parameter.required else described


_WORDS = {
    200: "success",
    202: "accepted, not finished yet",
    400: "the request is not valid",
    401: "the token is missing or wrong",
    403: "not allowed from this client",
    404: "not found",
    408: "the request took too long to arrive",
    409: "not possible in the current state",
    413: "too large",
    415: "a JSON body with another Content-Type, or none",
    501: "not supported by the stream's delivery",
    502: "refused by the region that owns the stream",
    503: "not available now",
    504: "no answer in time",
}
