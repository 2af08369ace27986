"""Blocking requests to a region: which streams it has, where they end, which positions are void.

Spark's driver uses these requests to plan a query. Every request has a deadline, so a query that
cannot be planned fails with a reason and does not hang. Errors name the option to change.
"""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64decode
from collections.abc import Coroutine
from difflib import get_close_matches
from types import TracebackType
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

from surecast.client.connection import Client
from surecast.client.sync import Loop
from surecast.columns.batch import REASON_NAMES, REASONS
from surecast.columns.intervals import IntervalSet
from surecast.core.streams import StreamInfo
from surecast.endpoint.discovery import parse_url, redacted, show_url
from surecast.endpoint.http_get import http_get
from surecast.endpoint.options import ClientOptions
from surecast.errors import ConnectError, SurecastError, UsageError, WrongToken

__all__ = ["Known", "Region", "Server", "Voids", "ask_server", "refused"]

T = TypeVar("T")

ANSWER_S: Final = 8.0  # timeout for the first answer: a wrong url is reported within ten seconds
PATIENCE_S: Final = 60.0  # timeout for an answer of a region that has answered before
APPEAR_S: Final = 2.0  # wait for a stream that was just created, perhaps in another region
HTTP_S: Final = 3.0  # timeout of an HTTP request
SILENT_S: Final = 30.0  # after an HTTP timeout, a server is not asked again for this time
LOOK_S: Final = 0.1  # between two looks for such a stream
REQUESTS_AT_ONCE: Final = 500  # a server accepts a thousand from one client
NEAR: Final = 5  # how many existing names an error suggests for a missing one


class Known(NamedTuple):
    """A stream in a region, as the region reports it."""

    info: StreamInfo
    end: int  # its last position + 1

    @property
    def stream_id(self) -> bytes:
        return self.info.stream_id


class Server(NamedTuple):
    """A server's HTTP address, and the directory of its log ("": none, or unknown)."""

    http: str
    directory: str


class Voids(NamedTuple):
    """The void positions of [lo, hi), as far as one answer of a server reaches."""

    lo: int
    hi: int
    positions: IntervalSet


class Region:
    """Blocking requests over one connection, which `__init__` opens and `close` closes. Only one
    thread at a time may use it."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.token = token
        addresses = parse_url(url)
        each_s = min(3.0, ANSWER_S / len(addresses))  # so that each address can be tried in time
        self._client = Client(url, token=token, options=ClientOptions(connect_timeout=each_s))
        self._loop = Loop()
        self._patience_s = ANSWER_S  # timeout of the next request
        # By HTTP address: until when (time.monotonic) a server that timed out is not asked again.
        self._silent_until: dict[str, float] = {}
        try:
            self._within(ANSWER_S, self._client.open())
        except BaseException as problem:
            self._loop.stop()
            if isinstance(problem, ConnectError):
                raise refused(url, problem) from None
            if isinstance(problem, TimeoutError):
                raise self._no_answer(ANSWER_S, redacted(url)) from None
            raise
        self.name = self._client.region

    def __enter__(self) -> Region:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        if not self._loop.closed:
            try:
                self._loop.call(self._client.close())
            finally:
                self._loop.stop()

    @property
    def addresses(self) -> str:
        """A surecast:// url with the addresses of all servers of the region."""
        return show_url([*parse_url(self.url), *self._client.servers.values()])

    # ------------------------------------------------------------ streams

    def streams(self, names: tuple[str, ...], pattern: str = "") -> dict[str, Known]:
        """The streams of these names that exist; without names, all that match the pattern."""

        async def ask() -> list[tuple[StreamInfo, int]]:
            found: list[tuple[StreamInfo, int]] = []
            asked = names or (pattern,)
            for at in range(0, len(asked), REQUESTS_AT_ONCE):
                some = (self._client.ends(one) for one in asked[at : at + REQUESTS_AT_ONCE])
                found += [known for answer in await asyncio.gather(*some) for known in answer]
            return found

        found = self._call(ask())
        # A stream may have been replaced by a new one of the same name: only the new one counts.
        replaced = {info.replaces for info, _ in found}
        return {
            info.name: Known(info, end) for info, end in found if info.stream_id not in replaced
        }

    def expect(self, names: tuple[str, ...], pattern: str = "") -> dict[str, Known]:
        """Like `streams`, but raises UsageError if a named stream does not exist, or if no stream
        matches the pattern."""
        deadline = time.monotonic() + APPEAR_S
        while True:
            found = self.streams(names, pattern)
            missing = [name for name in names if name not in found]
            if found and not missing:
                return found
            if time.monotonic() > deadline:
                break
            time.sleep(LOOK_S)
        wanted = missing[0] if missing else pattern
        existing = sorted(self.streams((), ">"))
        near = get_close_matches(wanted, existing, NEAR) or existing[:NEAR]
        offered = f"Its streams include {', '.join(near)}" if near else "It has no streams"
        if pattern:
            raise UsageError(
                f"option subscribePattern: no stream of region {self.name!r} matches {pattern!r}. "
                f"{offered}"
            )
        raise UsageError(
            f"option subscribe: region {self.name!r} has no stream {wanted!r}. {offered}"
        )

    def find(self, names: tuple[str, ...], pattern: str = "") -> dict[str, Known]:
        """Like `streams`, but waits for a moment for one of them to appear if there is none."""
        deadline = time.monotonic() + APPEAR_S
        while not (found := self.streams(names, pattern)) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        return found

    def locate(self, stream_id: bytes, time_ns: int) -> int:
        """The position of the first event not older than `time_ns`; the end if there is none."""
        return self._call(self._client._locate(stream_id, time_ns))

    def settle(self, stream_ids: list[bytes]) -> None:
        """Let the servers apply retention to these streams now. They also do this before they send
        events, so afterwards their lists of void positions agree with the events they send."""

        async def ask() -> None:
            for at in range(0, len(stream_ids), REQUESTS_AT_ONCE):
                some = stream_ids[at : at + REQUESTS_AT_ONCE]
                await asyncio.gather(*(self._client._locate(one, 0) for one in some))

        self._call(ask())

    # ------------------------------------------------------------ over HTTP

    @property
    def http_addresses(self) -> tuple[str, ...]:
        """The HTTP addresses (host:port) of the region's servers."""
        return tuple(self._client.http.values())

    def servers(self, name: str) -> list[Server]:
        """The servers with an HTTP port. If a server has the stream `name`, the result includes
        the server's data directory."""
        path = f"/v1/streams/{quote(name)}/files?lo=1&hi=1"
        answers = [(http, self._ask(http, path) or {}) for http in self.http_addresses]
        return [Server(http, str(one.get("directory", ""))) for http, one in answers]

    def voids(self, name: str, stream_id: bytes, lo: int, hi: int) -> Voids | None:
        """The void positions of [lo, hi), or of the first part of this range if one answer cannot
        hold all (`Voids.hi` is the end of the part); None if no server answers."""
        path = f"/v1/streams/{quote(name)}/files?lo={lo}&hi={hi}"
        for http in self.http_addresses:
            answer = self._ask(http, path)
            if answer is not None and answer["stream_id"] == stream_id.hex():
                void = IntervalSet()
                for some in voids_in(answer).values():
                    void.update(some)
                return Voids(lo, int(answer["hi"]), void)
        return None

    # ------------------------------------------------------------ inside

    def _ask(self, http: str, path: str) -> dict[str, Any] | None:
        """Like `ask_server`, but a server that timed out is not asked again for SILENT_S."""
        began = time.monotonic()
        if began < self._silent_until.get(http, 0.0):
            return None
        answer = ask_server(http, path, self.token)
        if answer is None and time.monotonic() - began >= 0.9 * HTTP_S:  # probably a timeout
            self._silent_until[http] = time.monotonic() + SILENT_S
        return answer

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a request. The first request has the same short deadline as opening the connection,
        because servers may be reachable at the url, but not at the addresses that they report."""
        try:
            answer = self._within(self._patience_s, work)
        except TimeoutError:
            raise self._no_answer(self._patience_s, self.addresses) from None
        self._patience_s = PATIENCE_S
        return answer

    def _within(self, seconds: float, work: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(seconds):
                return await work

        return self._loop.call(bounded())

    def _no_answer(self, seconds: float, places: str) -> SurecastError:
        return SurecastError(
            f"option url: the region at {redacted(self.url)} has not answered for {seconds:g} s. "
            "Is it running (`surecast status`), and can all of its servers be reached from here, "
            f"at {places}? A query may continue with the url of another region"
        )


def refused(url: str, problem: ConnectError) -> SurecastError:
    """The error to raise when connecting failed; it names the option to change."""
    if isinstance(problem, WrongToken):
        return UsageError(
            f"option token: the region at {redacted(url)} refuses it. Give the token its servers "
            f"were started with (node.token). {problem}"
        )
    return ConnectError(f"option url: {problem}")


def ask_server(http: str, path: str, token: str) -> dict[str, Any] | None:
    """A server's JSON answer; None if the request fails."""
    try:
        answer: dict[str, Any] = json.loads(
            http_get(f"http://{http}{path}", token, patience_s=HTTP_S)
        )
        return answer
    except (OSError, ValueError):
        return None


def voids_in(answer: dict[str, Any]) -> dict[int, IntervalSet]:
    """The void positions in a server's answer (server.files.StreamFiles), by reason."""
    runs_max = max(1, int(answer["hi"]) - int(answer["lo"]))
    return {
        reason: IntervalSet.from_bytes(b64decode(answer["voids"][REASON_NAMES[reason]]), runs_max)
        for reason in REASONS
    }
