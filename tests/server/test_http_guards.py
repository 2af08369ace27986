"""Access control of every HTTP route: token, web pages, other machines, other regions.

Each check also runs against an application without the guard, where it must fail.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from surecast import connect
from surecast.core.streams import ForceNewStream
from surecast.core.types import Command
from surecast.protocols.streams.service import StreamService
from surecast.runtime.addresses import is_loopback
from surecast.server.config import build
from surecast.server.http import Pages, make_app
from surecast.server.operations import CONFIRM
from surecast.server.publishing import Publishing
from surecast.server.region import RegionServer
from tests.ports import free_ports
from tests.server.opened import Open, run, two_replicas, until

FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")  # headers of proxies
HERE, ELSEWHERE = "127.0.0.1", "10.0.0.1"
TOKEN = {"authorization": "Bearer secret"}
Check = Callable[[Starlette], Any]
SURE = f"{CONFIRM}=true"
FORCE = "/v1/admin/force-new-stream"
QUERIES = {"/v1/admin/refound": SURE, FORCE: f"{SURE}&stream=s"}  # path → a valid query


async def ask(
    app: Starlette,
    method: str,
    path: str,
    headers: dict[str, str] | None = None,
    *,
    client: str = HERE,
    query: str | None = None,
) -> int:
    """The status of the application's answer to a client at address `client`."""
    statuses = []
    query = QUERIES.get(path, "") if query is None else query

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"x", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http",
        "method": method, "path": path, "raw_path": path.encode(), "root_path": "",
        "query_string": query.encode(), "server": ("127.0.0.1", 80), "client": (client, 1234),
        "headers": [(k.encode(), v.encode("latin-1")) for k, v in (headers or {}).items()],
    }  # fmt: skip
    await app(scope, receive, send)
    assert len(statuses) == 1
    return int(statuses[0])


def routes_of(app: Starlette, under: str = "/") -> Iterator[tuple[str, str]]:
    """Method and path of every route."""
    for route in app.routes:
        assert isinstance(route, Route)
        assert route.methods
        for method in sorted(route.methods - {"HEAD"}):
            if route.path.startswith(under):
                yield method, route.path.replace("{name}", "s")


# ---------------------------------------------------------------- the checks


async def check_token(app: Starlette) -> None:
    routes = list(routes_of(app, "/v1/"))
    assert len(routes) >= 7
    for method, path in routes:
        for wrong in ("", "Bearer", "Bearer wrong", "Bearer secret2", "Bearer é", "Basic secret"):
            headers = {"authorization": wrong} if wrong else {}
            assert await ask(app, method, path, headers) == 401, (method, path, wrong)


async def check_open_to_all(app: Starlette) -> None:
    """The list of routes that need no token; a new route outside /v1 must be added here."""
    found = [path for _, path in routes_of(app) if not path.startswith("/v1/")]
    assert found == ["/healthz", "/readyz", "/metrics", "/openapi.json"]


async def check_web_pages(app: Starlette) -> None:
    """Requests of web pages are refused for every method except GET."""
    routes = [(method, path) for method, path in routes_of(app) if method != "GET"]
    assert {method for method, _ in routes} >= {"POST", "DELETE"}
    assert len(routes) >= 5
    for method, path in routes:
        for origin in ("http://evil", "null", ""):
            headers = {**TOKEN, "origin": origin}
            assert await ask(app, method, path, headers) == 403, (method, path, origin)


async def check_other_machines(app: Starlette) -> None:
    routes = list(routes_of(app, "/v1/admin/"))
    assert len(routes) >= 2
    for method, path in routes:
        for client in (ELSEWHERE, "::ffff:10.0.0.1", "", "garbage"):
            assert await ask(app, method, path, TOKEN, client=client) == 403, (path, client)
        for header in FORWARDED:  # a proxy on this machine forwards requests of others
            headers = {**TOKEN, header: ELSEWHERE}
            assert await ask(app, method, path, headers) == 403, (path, header)
        assert await ask(app, method, path, TOKEN) not in (401, 403), path
    for method, path in routes_of(app, "/v1/"):
        if not path.startswith("/v1/admin/"):  # with the token these are for other machines, too
            assert await ask(app, method, path, TOKEN, client=ELSEWHERE) not in (401, 403), path
            assert await ask(app, method, path, client=ELSEWHERE) == 401, path


async def check_confirmed(app: Starlette) -> None:
    for method, path in routes_of(app, "/v1/admin/"):
        stream = "&stream=s" if path == FORCE else ""
        for sure in ("", f"{CONFIRM}=false", CONFIRM):
            query = f"{sure}{stream}".removeprefix("&")
            assert await ask(app, method, path, TOKEN, query=query) == 400, (path, query)


CHECKS: list[Check] = [
    check_token, check_open_to_all, check_web_pages, check_other_machines, check_confirmed,
]  # fmt: skip


def on_region(check: Check) -> None:
    async def main() -> None:
        async with Open(token="secret") as region:
            await check(make_app(region.server, Publishing(region.server)))

    run(main)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_route_is_guarded(check: Check) -> None:
    on_region(check)


def test_a_new_route_of_any_method_is_guarded() -> None:
    async def change(_request: Request) -> Response:
        return Response("changed")

    async def with_more_routes(app: Starlette) -> None:
        guarded = app.state.pages.guarded(change)
        app.router.routes.append(Route("/v1/new", guarded, methods=["DELETE", "PATCH", "PUT"]))
        assert await ask(app, "DELETE", "/v1/new", TOKEN) == 200
        await check_token(app)
        await check_web_pages(app)

    on_region(with_more_routes)


# ---------------------------------------------------------------- the checks can fail


def without_guard(*names: str) -> Any:
    """A `Pages.guarded` that leaves these handlers unguarded; without names, all handlers."""
    guarded = Pages.guarded

    def replaced(self: Pages, handler: Any) -> Any:
        return handler if not names or handler.__name__ in names else guarded(self, handler)

    return replaced


def operator_from_anywhere(self: Pages, request: Request) -> None:
    self._need_replica()
    if request.query_params.get(CONFIRM) != "true":
        raise HTTPException(400)


def operator_by_proxy(self: Pages, request: Request) -> None:
    if request.client is None or not is_loopback(request.client.host):
        raise HTTPException(403)


def operator_unconfirmed(self: Pages, _request: Request) -> None:
    self._need_replica()


MUTANTS: dict[str, tuple[str, Any, list[Check]]] = {
    "V1 refound": ("guarded", without_guard("refound"), [check_token, check_web_pages]),
    "V1 force-new-stream": ("guarded", without_guard("force"), [check_token, check_web_pages]),
    "V2 from any machine": ("_operator", operator_from_anywhere, [check_other_machines]),
    "V2 through a proxy": ("_operator", operator_by_proxy, [check_other_machines]),
    "V2 unconfirmed": ("_operator", operator_unconfirmed, [check_confirmed]),
    "V3 files": ("guarded", without_guard("files"), [check_token]),
    "publishing": ("guarded", without_guard("publish"), [check_token, check_web_pages]),
    "reset": ("guarded", without_guard("reset_subscription"), [check_token, check_web_pages]),
    "delete": ("guarded", without_guard("delete_subscription"), [check_token, check_web_pages]),
    "no guard at all": ("guarded", without_guard(), [check_token, check_web_pages]),
}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS.keys())
def test_a_missing_guard_is_noticed(
    mutant: tuple[str, Any, list[Check]], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, replaced, checks = mutant
    monkeypatch.setattr(Pages, name, replaced)
    for check in checks:
        with pytest.raises(AssertionError):
            on_region(check)


# ---------------------------------------------------------------- V4: only the owner's head


def spy(patch: pytest.MonkeyPatch) -> list[str]:
    """Replace the step that gives a stream a new identity; returns the list of such streams."""
    names: list[str] = []
    patch.setattr(StreamService, "_record", lambda _self, info, _epoch: names.append(info.name))
    return names


async def force(server: RegionServer) -> int:
    """Request force-new-stream over HTTP; returns the status after the machine has executed it."""
    answer = await ask(make_app(server, Publishing(server)), "POST", FORCE)
    node = server.replica
    assert node is not None
    await until(lambda: not node.pending)
    return answer


async def check_refused_by_port(server: RegionServer, recorded: list[str]) -> None:
    assert await force(server) == 409
    assert recorded == []


async def check_refused_by_machine(server: RegionServer, recorded: list[str]) -> None:
    """The command is given to the machine directly, without the HTTP port."""
    node = server.replica
    assert node is not None
    node.give(Command("streams", ForceNewStream("s")))
    await until(lambda: not node.pending)
    assert recorded == []


@asynccontextmanager
async def two_regions() -> AsyncIterator[list[RegionServer]]:
    """The region that owns all streams, and another one; both know the stream "s"."""
    places = [f"127.0.0.1:{port}" for port in free_ports(2)]
    regions = {
        name: {"replicas": {f"{name}-1": place}} for name, place in zip("ew", places, strict=True)
    }
    servers = []
    async with AsyncExitStack() as stack:
        for name, place in zip("ew", places, strict=True):
            node = {"name": f"{name}-1", "region": name, "data_dir": "", "http": ""}
            node["listen"] = place
            owned = {"node": node, "regions": regions, "owners": {"": "e"}}
            servers.append(RegionServer(build(owned)))
            await servers[-1].start()
            stack.push_async_callback(servers[-1].stop)
        await knows_stream(servers)
        yield servers


@asynccontextmanager
async def head_and_tail() -> AsyncIterator[list[RegionServer]]:
    async with two_replicas() as servers:
        await knows_stream(servers)
        yield servers


async def knows_stream(servers: list[RegionServer]) -> None:
    async with connect(f"surecast://{servers[0].config.node.listen}") as client:
        await client.stream("s")
    await until(lambda: all("s" in server.streams.directory.by_name for server in servers))


def force_anywhere(self: StreamService, inp: ForceNewStream) -> None:
    self._record(self.directory.by_name[inp.name], self.epoch)


@pytest.mark.parametrize("places", [two_regions, head_and_tail])
def test_only_the_head_of_the_owner_gives_a_stream_a_new_id(places: Any) -> None:
    async def main() -> None:
        async with places() as (owner, other):
            with pytest.MonkeyPatch.context() as patch:
                recorded = spy(patch)
                await check_refused_by_port(other, recorded)
                await check_refused_by_machine(other, recorded)
                assert await force(owner) == 202
                assert recorded == ["s"]
            # Without the guards the same checks fail.
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Pages, "_need_owner", lambda _self, _owner: None)
                with pytest.raises(AssertionError):
                    await check_refused_by_port(other, spy(patch))
                service: Any = other.streams  # a machine binds its handlers when it is made
                patch.setitem(service._inputs, ForceNewStream, partial(force_anywhere, service))
                with pytest.raises(AssertionError):
                    await check_refused_by_machine(other, spy(patch))

    run(main)
