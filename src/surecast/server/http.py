"""The HTTP port of a server: health, metrics, status, publishing, and commands for operators.

The port runs in the event loop of the nodes. So its handlers may read the state of the nodes'
machines directly (status.py). They change it only by giving a node an input.

Requests under /v1 need the token if one is configured. They may have only the query parameters in
the table of operations (operations.py): a misspelt parameter is refused, not ignored. POST and
DELETE requests with an Origin header are refused. They come from a web page, and a page that is
open on this machine could otherwise change streams without its user's knowledge.

At most `http.requests_max` complete requests are handled at a time; /healthz and /readyz are not
counted. connections.py bounds the number of connections. Bad requests are answered 400, and
limited_log.py bounds the number of log lines about them.
"""

import asyncio
import logging
import socket
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import wraps
from hmac import compare_digest
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from surecast.core.names import is_name
from surecast.core.replicated import Refound
from surecast.core.streams import ForceNewStream
from surecast.core.wire import SEQ_END_MAX
from surecast.endpoint.error_messages import bad_name
from surecast.errors import ConfigError
from surecast.runtime.addresses import Address, is_loopback, show_address
from surecast.server.config import parse_address
from surecast.server.connections import CLOSED, HttpConnections
from surecast.server.files import files_of
from surecast.server.limited_log import LimitedLog
from surecast.server.metrics import CONTENT_TYPE, Scrape
from surecast.server.openapi import document
from surecast.server.operations import CONFIRM, NDJSON, OPERATIONS, Changed, Deleted, Operation
from surecast.server.publishing import Publishing, check_content, spec_of
from surecast.server.region import RegionServer
from surecast.server.status import existing, look, not_ready, stream_named, streams
from surecast.server.subscriptions import HttpSubscriptions

__all__ = ["HttpPort", "make_app"]

log = logging.getLogger("surecast.server")

STOP_S_MAX = 2  # time for requests in progress to finish when the process ends
ORDINARY = (401, 403, 404, 405, 409)  # status codes of errors that are too common to be logged
READ_ONLY = ("GET", "HEAD")  # methods that change nothing
FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")  # headers that a proxy adds

Handler = Callable[[Request], Awaitable[Response]]


class HttpPort:
    """The HTTP port; listens from `start` to `stop`."""

    def __init__(self, server: RegionServer) -> None:
        self.server = server
        self.publishing = Publishing(server)
        self.log = LimitedLog(log, server.config.name, server.config.http.log_every_ns)
        self.connections = HttpConnections(server.config.http, self.log)
        self.app = make_app(server, self.publishing, self.log)
        self.address: Address | None = None
        self._uvicorn: _Quiet | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        config = self.server.config
        sock = _bind(parse_address(config.node.http))
        self.address = sock.getsockname()[:2]
        settings = uvicorn.Config(
            CheckedApp(self.app, self.log),
            http=self.connections.protocol(),
            ws="none",
            h11_max_incomplete_event_size=config.http.header_bytes_max,
            # A reverse proxy on this machine may tell the client's address in a header.
            forwarded_allow_ips="127.0.0.1,::1",
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=STOP_S_MAX,
        )
        self._uvicorn = _Quiet(settings)
        self._task = asyncio.create_task(self._uvicorn.serve([sock]))

    async def stop(self) -> None:
        if self._uvicorn is not None and self._task is not None:
            self._uvicorn.should_exit = True
            await self._task
            self.connections.abort()
        await self.publishing.close()
        self.log.close()


class _Quiet(uvicorn.Server):
    """A uvicorn server that leaves signals to process.py."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bind(address: Address) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as problem:
        sock.close()
        raise ConfigError(
            f"cannot listen for HTTP on {show_address(address)}: {problem.strerror}; "
            "set node.http to another address, or to nothing"
        ) from None
    return sock


class CheckedApp:
    """Wraps the application: refuses requests whose text is not UTF-8, and logs exceptions."""

    def __init__(self, app: ASGIApp, log: LimitedLog) -> None:
        self.app = app
        self.log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if wrong := _not_utf8(scope):
                self.log.tell("not UTF-8", f"{_show(scope)}: {wrong}")
                await _json({"error": wrong}, 400)(scope, receive, send)
            else:
                await self.app(scope, receive, send)
        except Exception as bug:  # Starlette has answered 500
            at = traceback.extract_tb(bug.__traceback__)[-1]
            kind = f"bug: {type(bug).__name__} at {at.filename}:{at.lineno}"
            self.log.tell(kind, f"{_show(scope)}: {type(bug).__name__}: {bug}", bug)


def _not_utf8(scope: Scope) -> str:
    """An error text if the path or the query is not UTF-8, else "".

    Without this check, decoders would replace the invalid bytes by U+FFFD.
    """
    parts = {
        "raw_path": "the path is not UTF-8",
        "query_string": "the query is not UTF-8; send such a key as key_base64 of a JSON line",
    }
    for part, wrong in parts.items():
        try:
            unquote_to_bytes(scope[part]).decode()
        except UnicodeDecodeError:
            return wrong
    return ""


def _show(scope: Scope) -> str:
    """A request, for the log."""
    host = scope["client"][0] if scope.get("client") else "?"
    return f"{scope['method']} {scope['raw_path'].decode('latin-1')[:100]} from {host}"


def make_app(
    server: RegionServer, publishing: Publishing, limited: LimitedLog | None = None
) -> Starlette:
    """The application: a route for each of `OPERATIONS`."""
    http = server.config.http
    limited = limited or LimitedLog(log, server.config.name, http.log_every_ns)
    pages = Pages(server, publishing, limited)
    routes = [
        Route(operation.path, pages.handler(operation), methods=[operation.method])
        for operation in OPERATIONS
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={
            405: pages.wrong_method, HTTPException: pages.explain, Exception: _answer_500,
        },
    )  # fmt: skip
    app.state.pages = pages
    app.router.default = _no_such_path
    app.router.redirect_slashes = False  # a redirect would use the client's Host header
    return app


class Pages:
    """The handlers of requests: one method for each operation, and the checks before it."""

    def __init__(self, server: RegionServer, publishing: Publishing, log: LimitedLog) -> None:
        self.server = server
        self.publishing = publishing
        self.named = HttpSubscriptions(server, publishing)  # named subscriptions
        self.limits = server.config.http
        self.log = log
        # The number of complete requests that are not answered yet, by the client's address.
        self.requests: Counter[str] = Counter()
        self.bodies_bytes = 0  # size of the bodies of all requests being received or published

    def handler(self, operation: Operation) -> Handler:
        """The handler of an operation, wrapped in the checks that the operation needs."""
        handler: Handler = getattr(self, operation.handler)
        if operation.counted:
            handler = self.counted(handler)
        if operation.guarded:
            handler = self.guarded(self.checked(operation, handler))
        return handler

    def guarded(self, handler: Handler) -> Handler:
        """`handler` with a check of the token, and of the Origin header (see the module)."""

        @wraps(handler)
        async def handle(request: Request) -> Response:
            token = self.server.config.node.token
            given = request.headers.get("authorization", "").encode("latin-1")  # as it was sent
            if token and not compare_digest(given.removeprefix(b"Bearer "), token.encode()):
                wrong = "wrong token" if given else "this server needs a token"
                raise HTTPException(
                    401, f"{wrong}: send the header Authorization: Bearer <node.token>"
                )
            if request.method not in READ_ONLY and "origin" in request.headers:
                raise HTTPException(403, "web pages may only read (the request has an Origin)")
            return await handler(request)

        return handle

    def checked(self, operation: Operation, handler: Handler) -> Handler:
        """`handler` with a check of the names of query parameters."""

        @wraps(handler)
        async def handle(request: Request) -> Response:
            names = (name for name, _ in request.query_params.multi_items())
            if wrong := operation.wrong_query(names):
                raise HTTPException(400, wrong)
            return await handler(request)

        return handle

    def counted(self, handler: Handler) -> Handler:
        """`handler` with a check that no more than `http.requests_max` requests run."""

        @wraps(handler)
        async def handle(request: Request) -> Response:
            with self._place(request):
                return await handler(request)

        return handle

    # ------------------------------------------------------------ reading

    async def healthz(self, _request: Request) -> Response:
        return _json({"status": "alive"})

    async def readyz(self, _request: Request) -> Response:
        reasons = not_ready(self.server)
        return _json({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)

    async def metrics(self, _request: Request) -> Response:
        text = await asyncio.to_thread(Scrape(self.server, self.limits.streams_max).text)
        return Response(text, headers={"content-type": CONTENT_TYPE})

    async def openapi(self, _request: Request) -> Response:
        return _json(document())

    async def status(self, _request: Request) -> Response:
        return _json(look(self.server, self.limits.streams_max))

    async def streams(self, _request: Request) -> Response:
        self._need_replica()
        shown = streams(self.server, self.limits.streams_max)
        return _json({"streams": shown, "total": len(existing(self.server))})

    async def stream(self, request: Request) -> Response:
        self._need_replica()
        name = request.path_params["name"]
        status = stream_named(self.server, name)
        if status is None:
            raise HTTPException(404, f"there is no stream {name!r} here; see /v1/streams")
        return _json(status)

    async def files(self, request: Request) -> Response:
        self._need_replica()
        name, query = request.path_params["name"], request.query_params
        lo, hi = _position(query.get("lo", "1")), _position(query.get("hi", str(SEQ_END_MAX)))
        files = files_of(self.server, name, lo, max(lo, hi))
        if files is None:
            raise HTTPException(404, f"there is no stream {name!r} here; see /v1/streams")
        return _json(files)

    async def subscriptions(self, request: Request) -> Response:
        self._need_replica()
        return _json(await self.named.page(request.query_params))

    # ------------------------------------------------------------ changing

    async def publish(self, request: Request) -> Response:
        self._need_replica()
        if self.server.draining:
            raise HTTPException(503, "this process is stopping; use another replica")
        name = request.path_params["name"]
        if not is_name(name):
            raise HTTPException(400, bad_name(name))
        query = request.query_params
        spec = spec_of(query.get("retain"), query.get("delivery"), query.get("schema"))
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        lines, key = media == NDJSON, query.get("key")
        if lines and key is not None:
            raise HTTPException(400, f"with {NDJSON} each line has its own key: leave out ?key=")
        async with self._body(request) as body:
            check_content(media, body)
            with self._place(request):
                runs = await self.publishing.publish(name, body, lines, key, spec)
        return _json({"stream": name, "seqs": runs})

    async def delete_stream(self, request: Request) -> Response:
        self._need_replica()
        name = request.path_params["name"]
        info = self.server.streams.named(name)
        if info is None:
            raise HTTPException(404, f"there is no stream {name!r} here; see /v1/streams")
        return _json(Deleted(name, await self.publishing.delete(info)))

    async def change_schema(self, request: Request) -> Response:
        self._need_replica()
        name = request.path_params["name"]
        info = self.server.streams.named(name)
        if info is None:
            raise HTTPException(404, f"there is no stream {name!r} here; see /v1/streams")
        schema = spec_of(None, None, request.query_params.get("schema")).schema
        if not schema:
            raise HTTPException(
                400, "?schema= is the whole new schema, such as `sym string, px float64`"
            )
        return _json(Changed(name, schema, await self.publishing.change(info, schema)))

    async def reset_subscription(self, request: Request) -> Response:
        self._need_replica()
        name = request.path_params["name"]
        return _json(await self.named.reset(name, request.query_params))

    async def delete_subscription(self, request: Request) -> Response:
        self._need_replica()
        name = request.path_params["name"]
        await self.named.delete(name, request.query_params)
        return _json({"done": f"the subscription {name} is deleted"})

    async def refound(self, request: Request) -> Response:
        """Found the chain anew, with this replica as its only member (see `Refound`)."""
        self._operator(request)
        chain = self.server.chain()
        if chain.is_member and chain.clean:
            raise HTTPException(409, "this replica is a member of its chain: nothing to refound")
        self.server.give(Refound())
        return _json({"done": "asked the witness to refound the chain from this replica"}, 202)

    async def force(self, request: Request) -> Response:
        """Give up the history of a stream that cannot be recovered (see `ForceNewStream`)."""
        self._operator(request)
        name = request.query_params.get("stream", "")
        info = self.server.streams.named(name)
        if info is None:
            raise HTTPException(404, f"there is no stream {name!r} here; give ?stream=NAME")
        self._need_owner(info.owner)
        self.server.give(ForceNewStream(name))
        return _json({"done": f"{name} begins again with a new identity, at position 1"}, 202)

    # ------------------------------------------------------------ inside

    def _need_replica(self) -> None:
        if self.server.replica is None:
            raise HTTPException(404, "a witness keeps no streams; use a replica of the region")

    def _operator(self, request: Request) -> None:
        """Refuse a command for operators unless it comes from this machine and is confirmed."""
        self._need_replica()
        here = request.client is not None and is_loopback(request.client.host)
        if not here or any(name in request.headers for name in FORWARDED):
            raise HTTPException(403, "only from this machine: run the command on the server")
        if request.query_params.get(CONFIRM) != "true":
            raise HTTPException(
                400, f"this loses history permanently; to confirm, add ?{CONFIRM}=true"
            )

    def _need_owner(self, owner: str) -> None:
        if owner != self.server.config.node.region or not self.server.chain().is_head:
            raise HTTPException(
                409, f"use the head of the region that owns it, {owner}: see /v1/status"
            )

    @contextmanager
    def _place(self, request: Request) -> Iterator[None]:
        """Count a complete request inside the `with` block; answer 503 if too many are counted."""
        peer = request.client.host if request.client is not None else ""
        if self.requests.total() >= self.limits.requests_max:
            raise HTTPException(503, "too many requests at a time (http.requests_max)")
        if self.requests[peer] >= self.limits.requests_per_peer_max:
            raise HTTPException(
                503, "too many requests at a time from this address (http.requests_per_peer_max)"
            )
        self.requests[peer] += 1
        try:
            yield
        finally:
            self.requests[peer] -= 1
            if not self.requests[peer]:
                del self.requests[peer]

    @asynccontextmanager
    async def _body(self, request: Request) -> AsyncIterator[bytes]:
        """The whole body of a request. `bodies_bytes` includes it until the `with` block ends."""
        parts: list[bytes] = []
        try:
            await self._receive(request, parts)
            yield b"".join(parts)
        finally:
            self.bodies_bytes -= sum(map(len, parts))

    async def _receive(self, request: Request, parts: list[bytes]) -> None:
        """Append the parts of the body to `parts` as they arrive, and count their bytes."""
        limit_s = self.limits.body_timeout_ns / 1e9
        nbytes = 0
        try:
            async with asyncio.timeout(limit_s):
                async for part in request.stream():
                    parts.append(part)
                    nbytes += len(part)
                    self.bodies_bytes += len(part)
                    self._check_size(nbytes)
        except ClientDisconnect:
            raise HTTPException(400, "the connection ended before the body was complete") from None
        except TimeoutError:
            text = f"the body took longer than {limit_s:g} s (http.body_timeout_ns)"
            raise HTTPException(408, text, {"connection": "close"}) from None

    def _check_size(self, nbytes: int) -> None:
        if nbytes > self.limits.body_bytes_max:
            most = self.limits.body_bytes_max
            raise HTTPException(413, f"at most {most} bytes a request (http.body_bytes_max)")
        if self.bodies_bytes > self.limits.bodies_bytes_max:
            raise HTTPException(503, "too many bytes of requests at a time (http.bodies_bytes_max)")

    async def wrong_method(self, request: Request, _problem: Exception) -> Response:
        """The answer for a path that does not have the method of the request."""
        # Each route has one operation, so several may have the same path.
        routes = [r for r in request.app.routes if r.matches(request.scope)[0] is not Match.NONE]
        allowed = ", ".join(sorted({method for route in routes for method in route.methods}))
        text = f"{request.method} is not allowed here; allowed: {allowed}; see /openapi.json"
        return await self.explain(request, HTTPException(405, text, {"allow": allowed}))

    async def explain(self, request: Request, problem: Exception) -> Response:
        """The answer for an HTTPException; logged unless its status is in ORDINARY."""
        assert isinstance(problem, HTTPException)
        status = problem.status_code
        if status not in ORDINARY and not request.scope.get(CLOSED):
            text = f"{_show(request.scope)}: {status}: {problem.detail}"
            self.log.tell(f"answered {status}", text)
        answer = _json({"error": problem.detail}, status)
        answer.headers.update(problem.headers or {})
        return answer


def _position(text: str) -> int:
    """A position, or the end of a range; answers 400 for anything else."""
    digits = text.isascii() and text.isdigit() and len(text) < 20
    if not digits or not 1 <= int(text) <= SEQ_END_MAX:
        raise HTTPException(
            400, f"lo and hi are positions from 1 to {SEQ_END_MAX}, such as ?lo=1&hi=1000"
        )
    return int(text)


def _json(content: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")


async def _no_such_path(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise HTTPException(404, "there is no such path; /openapi.json lists all paths")


async def _answer_500(_request: Request, _problem: Exception) -> Response:
    return _json({"error": "internal error; see the log of this process"}, 500)
