"""The operations of the HTTP port, as one table: paths, query parameters, answers.

http.py creates its routes from the table and refuses query parameters that are not in it.
openapi.py generates the description of the port from the same table, so the two cannot differ.

The values of parameters, and whether a required one is missing, are checked by the handlers in
http.py.
"""

import difflib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from surecast.core.policies import RETENTIONS
from surecast.core.status import SubscriptionInfo
from surecast.server.files import StreamFiles
from surecast.server.status import Status, StreamStatus

__all__ = [
    "ANSWERS",
    "CONFIRM",
    "NDJSON",
    "OCTETS",
    "OPERATIONS",
    "Deleted",
    "Operation",
    "Parameter",
    "SubscriptionList",
    "SubscriptionReset",
]

CONFIRM: Final = "yes-i-know-what-is-lost"
NDJSON: Final = "application/x-ndjson"
OCTETS: Final = "application/octet-stream"


# ---------------------------------------------------------------- answers


class StreamList(msgspec.Struct):
    streams: list[StreamStatus]  # at most http.streams_max
    total: int  # of all streams, including those not listed


class Problem(msgspec.Struct):
    """An error: what is wrong and what to do."""

    error: str


class Ready(msgspec.Struct):
    ready: bool
    reasons: list[str]  # why clients should not use this node; empty if it is ready


class Published(msgspec.Struct):
    """The positions of the published events, as half-open runs."""

    stream: str
    seqs: list[tuple[int, int]]  # (first position, position after the last) of each run


class SubscriptionList(msgspec.Struct):
    """A page of named subscriptions. A subscription to many streams may span several pages."""

    subscriptions: list[SubscriptionInfo]
    next: str  # the value of `after` that requests the next page; empty on the last page


class SubscriptionReset(msgspec.Struct):
    """The new position of a named subscription in each stream in which it was reset."""

    subscription: str
    positions: dict[str, int]


class Deleted(msgspec.Struct):
    """A stream was deleted; `seq` is its last position."""

    stream: str
    seq: int


class Changed(msgspec.Struct):
    """The schema of a stream. `seq` is the position of its change; null: it had this schema."""

    stream: str
    schema: str
    seq: int | None


class Alive(msgspec.Struct):
    status: str  # "alive"


class Done(msgspec.Struct):
    done: str  # what was done, in words


ANSWERS: Final = (
    Status, StreamList, StreamStatus, StreamFiles, Problem, Ready, Published, Alive, Done,
    SubscriptionList, SubscriptionReset, Deleted, Changed,
)  # fmt: skip


# ---------------------------------------------------------------- requests


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter."""

    name: str
    description: str
    schema: dict[str, Any] = field(default_factory=lambda: {"type": "string"})
    required: bool = False
    repeated: bool = False  # may be given several times


@dataclass(frozen=True, slots=True)
class Operation:
    """One HTTP method of one path."""

    path: str
    handler: str  # the name of the method of `http.Pages` that answers it
    summary: str
    answers: dict[int, Any]  # status code → a type of ANSWERS, or a JSON schema
    method: Literal["GET", "POST", "DELETE"] = "GET"
    query: tuple[Parameter, ...] = ()
    body: dict[str, Any] | None = None  # media type → OpenAPI's description of it
    media: str = "application/json"  # the Content-Type of the answers
    # Whether the request counts for http.requests_max. A publish is counted later, by its handler,
    # when its body is complete.
    counted: bool = True

    @property
    def guarded(self) -> bool:
        """Whether requests need the token and may have only the parameters in `query`."""
        return self.path.startswith("/v1/")

    def wrong_query(self, names: Iterable[str]) -> str:
        """An error text if a request may not have query parameters of these names, else ""."""
        known = [parameter.name for parameter in self.query]
        repeated = [parameter.name for parameter in self.query if parameter.repeated]
        for name, count in Counter(names).items():
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                takes = f"takes the parameters {', '.join(known)}" if known else "takes none"
                request = f"{self.method} {self.path}"
                return f"unknown query parameter {name[:100]!r}; {hint}{request} {takes}"
            if count > 1 and name not in repeated:
                return f"the query parameter {name!r} is given {count} times"
        return ""


_EVENTS: Final = {
    NDJSON: {
        "schema": {"type": "string"},
        "description": "events: a JSON object a line, with key, value and tag (or key_base64, "
        "value_base64, tag_base64) and the fields of the stream's schema",
        "example": '{"key": "user:42", "value": "gone"}\n',
    },
    OCTETS: {
        "schema": {"type": "string", "format": "binary"},
        "description": "one event: the body as it is",
    },
    "*/*": {
        "schema": {"type": "string", "format": "binary"},
        "description": "one event: the body as it is, if it is not JSON (else 415)",
    },
}
_RANGE: Final = tuple(
    Parameter(name, what, {"type": "integer"})
    for name, what in (("lo", "the first position"), ("hi", "the position after the last"))
)
_FORCE: Final = Parameter(
    "force",
    "true: do it even if a client is reading under the name; that client gets the error Fenced",
    {"enum": ["true", "false"]},
)
_SURE: Final = Parameter(
    CONFIRM, "confirms that history is lost permanently", {"const": "true"}, required=True
)


def _refused(*codes: int) -> dict[int, Any]:
    """The answers with these status codes: all are errors."""
    return dict.fromkeys(codes, Problem)


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation("/healthz", "healthz", "is the process alive?", {200: Alive}, counted=False),
    Operation(
        "/readyz", "readyz", "should clients use it?", {200: Ready, 503: Ready}, counted=False
    ),
    Operation(
        "/metrics",
        "metrics",
        "for Prometheus",
        {code: {"type": "string"} for code in (200, 503)},
        media="text/plain",
    ),
    Operation(
        "/openapi.json", "openapi", "this document", {200: {"type": "object"}, **_refused(503)}
    ),
    Operation(
        "/v1/status",
        "status",
        "the status of this node",
        {200: Status, **_refused(400, 401, 503)},
    ),
    Operation(
        "/v1/streams", "streams", "the streams", {200: StreamList, **_refused(400, 401, 404, 503)}
    ),
    Operation(
        "/v1/streams/{name}",
        "stream",
        "one stream",
        {200: StreamStatus, **_refused(400, 401, 404, 503)},
    ),
    Operation(
        "/v1/streams/{name}",
        "delete_stream",
        "delete a stream and all its events, in every region",
        {200: Deleted, **_refused(400, 401, 403, 404, 501, 502, 503, 504)},
        "DELETE",
    ),
    Operation(
        "/v1/streams/{name}/schema",
        "change_schema",
        "add fields to the schema of a stream, in every region",
        {200: Changed, **_refused(400, 401, 403, 404, 409, 501, 502, 503, 504)},
        "POST",
        query=(
            Parameter(
                "schema",
                "the whole new schema: the current one, followed by new fields that may be null",
                required=True,
            ),
        ),
    ),
    Operation(
        "/v1/streams/{name}/events",
        "publish",
        "publish events: a JSON object a line, or the body as one event. A stream that does not "
        "exist is created",
        {200: Published, **_refused(400, 401, 403, 408, 409, 413, 415, 501, 502, 503, 504)},
        "POST",
        query=(
            Parameter("key", f"the key of the event, if the body is one; with {NDJSON} each line "
                      "has its own"),
            Parameter("retain", f"what the stream keeps: {RETENTIONS}. An existing stream must "
                      "agree (409); left out, a new stream keeps all"),
            Parameter("delivery", "how the stream is delivered. An existing stream must agree "
                      "(409); left out, a new stream has delivery broadcast"),
            Parameter("schema", "the typed fields of the events, such as `sym string not null, px "
                      "float64`. An existing stream must agree (409); left out, a new stream has "
                      "none"),
        ),
        body=_EVENTS,
        counted=False,
    ),
    Operation(
        "/v1/streams/{name}/files",
        "files",
        "its segments on this server's disk, and which positions are void",
        {200: StreamFiles, **_refused(400, 401, 404, 503)},
        query=_RANGE,
    ),
    Operation(
        "/v1/subscriptions",
        "subscriptions",
        "the named subscriptions of the region, a page at a time",
        {200: SubscriptionList, **_refused(400, 401, 404, 503, 504)},
        query=(Parameter("after", "`next` of the previous page"),),
    ),
    Operation(
        "/v1/subscriptions/{name}/reset",
        "reset_subscription",
        "move a named subscription: its next reader begins at `start`",
        {200: SubscriptionReset, **_refused(400, 401, 403, 404, 409, 503, 504)},
        "POST",
        query=(
            Parameter(
                "start",
                "earliest, latest, a position, or a time such as 2026-01-31T12:00:00Z",
                required=True,
            ),
            Parameter(
                "stream",
                "a stream or pattern; default: all streams in which it has a position",
                repeated=True,
            ),
            _FORCE,
        ),
    ),
    Operation(
        "/v1/subscriptions/{name}",
        "delete_subscription",
        "delete a named subscription with its positions",
        {200: Done, **_refused(400, 401, 403, 404, 409, 503, 504)},
        "DELETE",
        query=(_FORCE,),
    ),
    Operation(
        "/v1/admin/refound",
        "refound",
        "for an operator who knows that no other member of the chain will come back: continue the "
        "chain with this replica alone",
        {202: Done, **_refused(400, 401, 403, 404, 409, 503)},
        "POST",
        query=(_SURE,),
    ),
    Operation(
        "/v1/admin/force-new-stream",
        "force",
        "for an operator: give up a stream's history, and begin the stream again at position 1",
        {202: Done, **_refused(400, 401, 403, 404, 409, 503)},
        "POST",
        query=(Parameter("stream", "its name", required=True), _SURE),
    ),
)  # fmt: skip
