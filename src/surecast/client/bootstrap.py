"""The first contact: from a url to the names and addresses of a region's servers.

A url has one address or several, of any servers of the region: `surecast://host:port,host2:port2`.
The first that answers tells us about all of them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from surecast.core.types import SECOND
from surecast.core.wire import HEADER_SIZE, Codec, frame_size
from surecast.errors import ConnectError, PeerError, UnknownMessage, UsageError
from surecast.protocols.sprinkler.messages import Introduce, Introduced
from surecast.runtime import hello
from surecast.runtime.book import Address

__all__ = ["Region", "discover", "parse_url", "wants_token"]

T = TypeVar("T")

PORT: Final = 7400
ADDRESSES_MAX: Final = 64  # in a url
_EVERYWHERE: Final = ("0.0.0.0", "::")
_WITH_TOKEN: Final = "connect with token="
_FRAMES_MAX: Final = 100  # before the answer: a server that talks of other things has none


@dataclass(frozen=True, slots=True)
class Region:
    """Who serves the region, as one of its servers says."""

    name: str
    replicas: dict[str, Address]  # the one that answered first
    http: dict[str, str]
    own_host: str  # of this machine, as it reaches them


def parse_url(url: str) -> list[Address]:
    """The addresses in `surecast://host[:port][,host[:port]]…`"""
    scheme, _, rest = url.partition("://")
    if scheme != "surecast" or not rest.strip("/"):
        raise UsageError(f"a url looks like surecast://127.0.0.1:{PORT}, not {url!r}")
    parts = rest.rstrip("/").split(",")
    if len(parts) > ADDRESSES_MAX:
        raise UsageError(f"a url names at most {ADDRESSES_MAX} addresses, not {len(parts)}")
    return [parse_address(part, url) for part in parts]


def parse_address(text: str, within: str) -> Address:
    host, colon, port = text.strip().rpartition(":")
    if not colon or text.endswith("]"):  # no port; an IPv6 address may stand in brackets
        host, port = text.strip(), str(PORT)
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 1 << 16:
        raise UsageError(f"{text!r} is no host:port (in {within!r})")
    return host.removeprefix("[").removesuffix("]"), int(port)


async def discover(
    addresses: list[Address], codec: Codec, *, token: str, timeout_ns: int
) -> Region:
    """Ask one address after the other who serves the region."""
    problems = []
    for host, port in addresses:
        try:
            async with asyncio.timeout(timeout_ns / SECOND):
                return await _introduce(host, port, codec, token)
        except TimeoutError:
            problems.append(f"{host}:{port} did not answer within {timeout_ns / SECOND:g} s")
        except (OSError, PeerError, EOFError, ValueError) as problem:  # ValueError: no host name
            problems.append(f"{host}:{port} {_said(problem)}")
    raise ConnectError(
        f"no answer: {'; '.join(problems)}. If other servers of the region run, name them too: "
        "surecast://host:port,host:port (`surecast up` prints them). If none does, `surecast up` "
        "starts a cluster on this machine; surecast.local() needs no server"
    )


def wants_token(problem: ConnectError) -> bool:
    """Whether a server answered and refused the token: to ask again is of no use."""
    return _WITH_TOKEN in str(problem)


def _said(problem: Exception) -> str:
    if isinstance(problem, ConnectionRefusedError):
        return "refused the connection: nothing listens there"
    if isinstance(problem, EOFError):
        return "closed the connection without a word: is it a Surecast data port?"
    if isinstance(problem, PeerError):
        return f"said something else: {problem}"
    return f"cannot be reached: {getattr(problem, 'strerror', None) or problem}"


async def _introduce(host: str, port: int, codec: Codec, token: str) -> Region:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        own_host = writer.get_extra_info("sockname")[0]
        name = f"ask-{secrets.token_hex(8)}"
        writer.write(
            hello.encode(
                hello.Hello(
                    hello.VERSION, name, "", secrets.token_bytes(8), 1, role="asker",
                    credential=token,
                )
            )
        )  # fmt: skip
        answer = await _driver_frame(reader)
        if isinstance(answer, hello.Refused):
            hint = f" ({_WITH_TOKEN})" if "credential" in answer.why else ""
            raise PeerError(f"{answer.why}{hint}")
        if not isinstance(answer, hello.Hello):
            raise PeerError("no HELLO")
        writer.write(hello.BEAT + b"".join(codec.encode(Introduce())))
        return _region(await _answer(reader, codec), host, own_host)
    finally:
        with suppress(OSError):
            writer.write(hello.BYE)
        writer.close()


async def _answer(reader: asyncio.StreamReader, codec: Codec) -> Introduced:
    for _ in range(_FRAMES_MAX):
        frame = await _frame(reader, codec)
        if len(frame) == hello.MARK_SIZE and frame in (hello.BEAT, hello.BYE):
            continue
        try:
            message, _ = codec.decode(frame)
        except UnknownMessage:  # of a protocol that this client does not know
            continue
        if isinstance(message, Introduced):
            return message
    raise PeerError("it does not say who serves the region")


async def _driver_frame(reader: asyncio.StreamReader) -> Any:
    return hello.CODEC.decode(await _frame(reader, hello.CODEC))[0]


async def _frame(reader: asyncio.StreamReader, codec: Codec) -> bytes:
    header = await _or_eof(reader.readexactly(HEADER_SIZE))
    size = frame_size(header, codec.limits)
    assert size is not None
    return header + await _or_eof(reader.readexactly(size - HEADER_SIZE))


async def _or_eof(reading: Awaitable[T]) -> T:
    try:
        return await reading
    except asyncio.IncompleteReadError as short:
        if short.partial:
            raise PeerError("it broke off in the middle of a frame") from None
        raise EOFError from None


def _region(said: Introduced, host: str, own_host: str) -> Region:
    """What a server says of its region. Who listens everywhere is found where we reached it."""
    if not said.replicas:
        raise PeerError("it knows of no servers")

    def place(name: str, text: str) -> Address:
        try:
            found = parse_address(text, f"what {said.name} says of {name}")
        except UsageError as problem:
            raise PeerError(str(problem)) from None
        return (host, found[1]) if found[0] in _EVERYWHERE else found

    names = sorted(said.replicas, key=lambda name: name != said.name)
    replicas = {name: place(name, said.replicas[name]) for name in names}
    return Region(said.region, replicas, dict(said.http), own_host)
