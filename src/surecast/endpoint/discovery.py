"""The first contact: from a url to the names and addresses of a region's servers.

A url has one or more addresses, of any servers of the region: `surecast://host:port,host2:port2`.
`surecast://` may be left out. The first server that answers returns the addresses of all. Its
name is not known before, so it gets a HELLO without one, then a query for the servers.

A url with a user, password or query is refused, and no message shows these: messages show a url
only in the form returned by `redacted`.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from surecast.core.types import SECOND, tag_of
from surecast.core.wire import HEADER_SIZE, Codec, frame_size
from surecast.errors import ConnectError, PeerError, UnknownMessage, UsageError, WrongToken
from surecast.registry import message_type
from surecast.runtime import hello
from surecast.runtime.addresses import Address, show_address

__all__ = ["Region", "discover", "parse_url", "redacted", "show_url"]

T = TypeVar("T")

SCHEME: Final = "surecast"
PORT: Final = 7400
HIDDEN: Final = "***"
ADDRESSES_MAX: Final = 64  # in a url
_EVERYWHERE: Final = ("0.0.0.0", "::")

QUESTION: Final = "streams/Introduce"
ANSWER: Final = "streams/Introduced"
WRONG_TOKEN: Final = ("wrong token", "wrong credential")  # the latter: servers of version 0.1
FRAMES_MAX: Final = 100  # frames before the answer; bounds the wait if none comes


@dataclass(frozen=True, slots=True)
class Region:
    """The servers of a region, as reported by one of them."""

    name: str
    replicas: dict[str, Address]  # the one that answered is the first
    http: dict[str, str]
    own_host: str  # this machine's address on the connection to them


class HttpAnswer(PeerError):
    """The answer is HTTP: the port is not a data port."""


def parse_url(url: str) -> list[Address]:
    """The addresses in `surecast://host[:port][,host[:port]]…`; the scheme may be left out."""
    if not isinstance(url, str):
        raise UsageError(f"a url is text such as surecast://127.0.0.1:{PORT}, not {type(url)}")
    before, separator, after = url.partition("://")
    scheme, rest = (before, after) if separator else (SCHEME, url)
    if any(mark in rest for mark in "@?#"):
        raise UsageError(
            f"a url has no user, password or query: {redacted(url)!r}. Pass a token as token= "
            "(--token or SURECAST_TOKEN on the command line)"
        )
    if scheme in ("http", "https"):
        raise UsageError(
            f"{redacted(url)!r} names an HTTP port. Clients connect to the data port of a server "
            f"(node.listen), such as surecast://127.0.0.1:{PORT}"
        )
    if scheme != SCHEME or not rest.strip("/"):
        raise UsageError(f"a url looks like surecast://127.0.0.1:{PORT}, not {redacted(url)!r}")
    parts = rest.rstrip("/").split(",")
    if len(parts) > ADDRESSES_MAX:
        raise UsageError(f"a url names at most {ADDRESSES_MAX} addresses, not {len(parts)}")
    return [parse_address(part, url) for part in parts]


def redacted(url: str) -> str:
    """`url` without its possible secrets: users, passwords and queries.

    Everything up to the last @ is left out, because a password may have commas and question marks.
    """
    before, separator, after = url.partition("://")
    scheme, rest = (before + separator, after) if separator else ("", url)
    _, at, place = rest.rpartition("@")
    shown = re.split("[?#]", place, maxsplit=1)
    query = f"?{HIDDEN}" if len(shown) > 1 else ""
    return f"{scheme}{f'{HIDDEN}@' if at else ''}{shown[0]}{query}"


def show_url(addresses: Iterable[Address]) -> str:
    """A url of these addresses, each once."""
    return f"surecast://{','.join(map(show_address, dict.fromkeys(addresses)))}"


def parse_address(text: str, within: str) -> Address:
    host, colon, port = text.strip().rpartition(":")
    if not colon or text.endswith("]"):  # no port; an IPv6 address may be in brackets
        host, port = text.strip(), str(PORT)
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 1 << 16:
        raise UsageError(f"{redacted(text)!r} is not a valid host:port (in {redacted(within)!r})")
    return host.removeprefix("[").removesuffix("]"), int(port)


async def discover(
    addresses: list[Address], codec: Codec, *, token: str, timeout_ns: int
) -> Region:
    """Request the region's servers from one address after the other until one answers."""
    problems: list[str] = []
    refused: list[str] = []
    for host, port in addresses:
        place = show_address((host, port))
        try:
            async with asyncio.timeout(timeout_ns / SECOND):
                introduced, own_host = await _introduction(host, port, codec, token)
                return _region(introduced, host, own_host)
        except TimeoutError:
            problems.append(f"{place} did not answer within {timeout_ns / SECOND:g} s")
        except WrongToken:
            refused.append(place)
        except (OSError, PeerError, EOFError, ValueError) as problem:  # ValueError: bad host name
            problems.append(f"{place} {_describe(problem)}")
    if refused:
        raise WrongToken(_wrong_token(token, refused))
    raise ConnectError(
        f"no answer: {'; '.join(problems)}. If other servers of the region run, add them: "
        "surecast://host:port,host:port (`surecast up` prints them). If none runs, `surecast up` "
        "starts a cluster on this machine; surecast.local() needs no server"
    )


def _wrong_token(token: str, servers: list[str]) -> str:
    names = " and ".join(servers)
    what = f"refused by {names}" if token else f"none was given, and {names} requires one"
    return (
        f"wrong token: {what}. Pass the server's node.token as token= (--token or "
        "SURECAST_TOKEN on the command line); pass none if it is empty"
    )


def _describe(problem: Exception) -> str:
    if isinstance(problem, ConnectionRefusedError):
        return "refused the connection: no server listens there"
    if isinstance(problem, EOFError):
        return "closed the connection without an answer: is it a Surecast data port?"
    if isinstance(problem, HttpAnswer):
        return "is an HTTP port: connect to the data port of the server (node.listen, often 7400)"
    if isinstance(problem, PeerError):
        return f"gave a wrong answer: {problem}"
    return f"cannot be reached: {getattr(problem, 'strerror', None) or problem}"


def _region(introduced: Any, host: str, own_host: str) -> Region:
    """The region in a server's answer. A server that listens on all addresses is reached at `host`,
    where this one answered."""
    if not introduced.replicas:
        raise PeerError("it knows of no servers")

    def place(name: str, text: str) -> Address:
        try:
            address = parse_address(text, f"the address of {name} from {introduced.name}")
        except UsageError as problem:
            raise PeerError(str(problem)) from None
        return (host, address[1]) if address[0] in _EVERYWHERE else address

    names = sorted(introduced.replicas, key=lambda name: name != introduced.name)
    replicas = {name: place(name, introduced.replicas[name]) for name in names}
    return Region(introduced.region, replicas, dict(introduced.http), own_host)


# ---------------------------------------------------------------- the handshake


async def _introduction(host: str, port: int, codec: Codec, token: str) -> tuple[Any, str]:
    """The answer of the server at an address about its region (streams/Introduced), and our own
    host.

    Raises WrongToken if it refuses the token, PeerError for any other answer.
    """
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
            if answer.why in WRONG_TOKEN:
                raise WrongToken(answer.why)
            raise PeerError(answer.why)
        if not isinstance(answer, hello.Hello):
            raise PeerError("no HELLO")
        writer.write(hello.BEAT + b"".join(codec.encode(message_type(QUESTION)())))
        return await _answer(reader, codec), own_host
    finally:
        with suppress(OSError):
            writer.write(hello.BYE)
        writer.close()


async def _answer(reader: asyncio.StreamReader, codec: Codec) -> Any:
    for _ in range(FRAMES_MAX):
        frame = await _frame(reader, codec)
        if len(frame) == hello.MARK_SIZE and frame in (hello.BEAT, hello.BYE):
            continue
        try:
            message, _ = codec.decode(frame)
        except UnknownMessage:  # of a protocol that this client does not know
            continue
        if tag_of(type(message)) == ANSWER:
            return message
    raise PeerError("it did not send the servers of the region")


async def _driver_frame(reader: asyncio.StreamReader) -> Any:
    return hello.CODEC.decode(await _frame(reader, hello.CODEC))[0]


async def _frame(reader: asyncio.StreamReader, codec: Codec) -> bytes:
    header = await _or_eof(reader.readexactly(HEADER_SIZE))
    if header.startswith(b"HTTP/"):
        raise HttpAnswer
    size = frame_size(header, codec.limits)
    assert size is not None
    return header + await _or_eof(reader.readexactly(size - HEADER_SIZE))


async def _or_eof(reading: Awaitable[T]) -> T:
    try:
        return await reading
    except asyncio.IncompleteReadError as short:
        if short.partial.startswith(b"HTTP/"):
            raise HttpAnswer from None
        if short.partial:
            raise PeerError("it closed the connection in the middle of a frame") from None
        raise EOFError from None
