"""The HTTP port: health, metrics, status, streams, publishing, and an operator's last words.

It runs in the event loop of the nodes, so it reads their machines directly (status.py) and changes
nothing but by giving a node an input. Requests under /v1 need the token, if there is one. What
changes something is refused to web pages (an Origin header), which could otherwise have a browser
on this machine do it.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from hmac import compare_digest
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from surecast.columns.intervals import POSITION_MAX
from surecast.core.replicated import Refound
from surecast.core.types import PassDown
from surecast.errors import ConfigError
from surecast.protocols.sprinkler.messages import ForceNewStream
from surecast.protocols.sprinkler.names import is_name
from surecast.runtime.book import Address, is_loopback, show_address
from surecast.server.config import parse_address
from surecast.server.files import files_of
from surecast.server.metrics import CONTENT_TYPE, Scrape
from surecast.server.openapi import document
from surecast.server.publishing import Publishing
from surecast.server.region import RegionServer
from surecast.server.status import look, not_ready, stream_named, streams

__all__ = ["HttpPort", "make_app"]

CONFIRM = "yes-i-know-what-is-lost"
STOP_S_MAX = 2  # requests under way when the process ends

Handler = Callable[[Request], Awaitable[Response]]


class HttpPort:
    """Listens from `start` to `stop`."""

    def __init__(self, server: RegionServer) -> None:
        self.server = server
        self.publishing = Publishing(server)
        self.address: Address | None = None
        self._uvicorn: _Quiet | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        config = self.server.config
        sock = _bind(parse_address(config.node.http))
        self.address = sock.getsockname()[:2]
        settings = uvicorn.Config(
            make_app(self.server, self.publishing),
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            limit_concurrency=config.http.connections_max,
            timeout_graceful_shutdown=STOP_S_MAX,
        )
        self._uvicorn = _Quiet(settings)
        self._task = asyncio.create_task(self._uvicorn.serve([sock]))

    async def stop(self) -> None:
        if self._uvicorn is not None and self._task is not None:
            self._uvicorn.should_exit = True
            await self._task
        await self.publishing.close()


class _Quiet(uvicorn.Server):
    """Signals are the process's business."""

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


def make_app(server: RegionServer, publishing: Publishing) -> Starlette:
    """The application; each route is a line of `openapi.document`, too."""
    pages = Pages(server, publishing)
    routes = [
        Route("/healthz", pages.healthz),
        Route("/readyz", pages.readyz),
        Route("/metrics", pages.metrics),
        Route("/openapi.json", pages.openapi),
        Route("/v1/status", pages.guarded(pages.status)),
        Route("/v1/streams", pages.guarded(pages.streams)),
        Route("/v1/streams/{name}", pages.guarded(pages.stream)),
        Route("/v1/streams/{name}/events", pages.guarded(pages.publish), methods=["POST"]),
        Route("/v1/streams/{name}/files", pages.guarded(pages.files)),
        Route("/v1/admin/refound", pages.guarded(pages.refound), methods=["POST"]),
        Route("/v1/admin/force-new-stream", pages.guarded(pages.force), methods=["POST"]),
    ]
    return Starlette(
        routes=routes, exception_handlers={HTTPException: _explain, Exception: _apologise}
    )


class Pages:
    """A method per route."""

    def __init__(self, server: RegionServer, publishing: Publishing) -> None:
        self.server = server
        self.publishing = publishing
        self.limits = server.config.http

    def guarded(self, handler: Handler) -> Handler:
        """Behind the token, if there is one; and what changes something only for programs."""

        async def handle(request: Request) -> Response:
            token = self.server.config.node.token
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if token and not compare_digest(given.encode(), token.encode()):
                raise HTTPException(401, "send the header Authorization: Bearer <node.token>")
            if request.method == "POST" and "origin" in request.headers:
                raise HTTPException(403, "web pages may look, but not change anything")
            return await handler(request)

        return handle

    # ------------------------------------------------------------ looking

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
        found = streams(self.server, self.limits.streams_max)
        return _json({"streams": found, "total": len(self.server.proxy.streams)})

    async def stream(self, request: Request) -> Response:
        self._need_replica()
        name = request.path_params["name"]
        found = stream_named(self.server, name)
        if found is None:
            raise HTTPException(404, f"there is no stream {name!r} here; see /v1/streams")
        return _json(found)

    async def files(self, request: Request) -> Response:
        self._need_replica()
        name, query = request.path_params["name"], request.query_params
        try:
            lo, hi = int(query.get("lo", "1")), int(query.get("hi", str(POSITION_MAX)))
        except ValueError:
            raise HTTPException(400, "lo and hi are positions, such as ?lo=1&hi=1000") from None
        found = files_of(self.server, name, max(1, lo), min(hi, POSITION_MAX))
        if found is None:
            raise HTTPException(404, f"there is no stream {name!r} here; see /v1/streams")
        return _json(found)

    # ------------------------------------------------------------ changing

    async def publish(self, request: Request) -> Response:
        self._need_replica()
        if self.server.draining:
            raise HTTPException(503, "this process is about to end; ask another replica")
        name = request.path_params["name"]
        if not is_name(name):
            raise HTTPException(400, f"{name!r} is no stream name: words with dots between")
        body = await self._body(request)
        lines = request.headers.get("content-type", "").startswith("application/x-ndjson")
        key = request.query_params.get("key")
        runs = await self.publishing.publish(name, body, lines, key)
        return _json({"stream": name, "seqs": runs})

    async def refound(self, request: Request) -> Response:
        self._operator(request)
        if self.server.chain.is_member:
            raise HTTPException(409, "this replica is a member of its chain: nothing to refound")
        self._give(PassDown(Refound()))
        return _json({"done": "asked the witness to found the chain anew from this replica"}, 202)

    async def force(self, request: Request) -> Response:
        self._operator(request)
        name = request.query_params.get("stream", "")
        info = self.server.proxy.directory.by_name.get(name)
        if info is None:
            raise HTTPException(404, f"there is no stream {name!r} here; give ?stream=NAME")
        if info.owner != self.server.config.node.region or not self.server.chain.is_head:
            raise HTTPException(
                409, f"ask the head of the region that owns it, {info.owner}: see /v1/status"
            )
        self._give(PassDown(ForceNewStream(name)))
        return _json({"done": f"{name} begins again with a new identity, at position 1"}, 202)

    # ------------------------------------------------------------ inside

    def _need_replica(self) -> None:
        if self.server.replica is None:
            raise HTTPException(404, "a witness keeps no streams; ask a replica of the region")

    def _operator(self, request: Request) -> None:
        self._need_replica()
        if request.client is None or not is_loopback(request.client.host):
            raise HTTPException(403, "only from this machine: give the command on the server")
        if request.query_params.get(CONFIRM) != "true":
            raise HTTPException(
                400, f"this gives up history for good; if that is your will, add ?{CONFIRM}=true"
            )

    def _give(self, command: PassDown) -> None:
        assert self.server.replica is not None
        self.server.replica.give(command)  # type: ignore[arg-type]  # a stack takes it for its top

    async def _body(self, request: Request) -> bytes:
        parts, nbytes = [], 0
        async for part in request.stream():
            nbytes += len(part)
            if nbytes > self.limits.body_bytes_max:
                most = self.limits.body_bytes_max
                raise HTTPException(413, f"at most {most} bytes a request (http.body_bytes_max)")
            parts.append(part)
        return b"".join(parts)


def _json(content: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")


async def _apologise(_request: Request, _problem: Exception) -> Response:
    return _json({"error": "something went wrong here; the log of this process says what"}, 500)


async def _explain(_request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    return _json({"error": problem.detail}, problem.status_code)
