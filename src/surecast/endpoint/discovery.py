"""Finds the names and addresses of a region's servers, starting from a url.

A url has the addresses of one or more servers of the region: `surecast://host:port,host2:port2`.
`surecast://` may be left out. The servers are tried in turn; the first one that answers returns the
addresses of all. Nodes normally begin a connection with a HELLO that names both sides. Here the
server's name is not known yet, so it gets a HELLO without its name, followed by a query for the
servers.

A url with a user, password or query is refused. These parts may be secret, so messages show a url
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
PORT: Final = 7400  # the port of an address without one
HIDDEN: Final = "***"  # replaces the parts of a url that may be secret
ADDRESSES_MAX: Final = 64  # in a url
_EVERYWHERE: Final = ("0.0.0.0", "::")  # a server with this address listens on all interfaces

# The tags of the query for the servers of a region, and of its answer.
QUESTION: Final = "streams/Introduce"
ANSWER: Final = "streams/Introduced"
# The reasons with which servers refuse a token; those of version 0.1 use the second one.
WRONG_TOKEN: Final = ("wrong token", "wrong credential")
FRAMES_MAX: Final = 100  # a server that sends this number of frames without the answer is given up


@dataclass(frozen=True, slots=True)
class Region:
    """The servers of a region, as reported by one of them."""

    name: str
    replicas: dict[str, Address]  # servers by name; the server that answered is the first
    http: dict[str, str]  # the addresses of their HTTP ports, by the servers' names
    own_host: str  # this computer's address on the connection to the server that answered


class HttpAnswer(PeerError):
    """The server answered with HTTP, so this is not its data port."""


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
    """`url` without users, passwords and queries, which may be secret.

    Everything up to the last @ is left out, because a password may contain commas and question
    marks.
    """
    before, separator, after = url.partition("://")
    scheme, rest = (before + separator, after) if separator else ("", url)
    _, at, after_user = rest.rpartition("@")
    addresses, *query = re.split("[?#]", after_user, maxsplit=1)
    hidden_query = f"?{HIDDEN}" if query else ""
    return f"{scheme}{f'{HIDDEN}@' if at else ''}{addresses}{hidden_query}"


def show_url(addresses: Iterable[Address]) -> str:
    """A url with these addresses, without repetitions."""
    return f"surecast://{','.join(map(show_address, dict.fromkeys(addresses)))}"


def parse_address(text: str, within: str) -> Address:
    """The address in the text `host[:port]`. `within` is the url or a description of the place that
    `text` is from, for the error message."""
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
    problems: list[str] = []  # for each address that failed: the address, and why
    refused: list[str] = []  # the addresses that refused the token
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
    """Why there was no answer, to follow the address in the error message."""
    if isinstance(problem, ConnectionRefusedError):
        return "refused the connection: no server listens there"
    if isinstance(problem, EOFError):
        return "closed the connection without an answer: is it a Surecast data port?"
    if isinstance(problem, HttpAnswer):
        return "is an HTTP port: connect to the data port of the server (node.listen, often 7400)"
    if isinstance(problem, PeerError):
        return f"gave an invalid answer: {problem}"
    return f"cannot be reached: {getattr(problem, 'strerror', None) or problem}"


def _region(introduced: Any, host: str, own_host: str) -> Region:
    """The region as described by a server's answer. For servers that listen on all interfaces, the
    address is `host`, the one at which this server has answered."""
    if not introduced.replicas:
        raise PeerError("it knows of no servers")

    def address_of(name: str, text: str) -> Address:
        try:
            address = parse_address(text, f"the address of {name} from {introduced.name}")
        except UsageError as problem:
            raise PeerError(str(problem)) from None
        return (host, address[1]) if address[0] in _EVERYWHERE else address

    # The server that answered comes first, because False sorts before True.
    names = sorted(introduced.replicas, key=lambda name: name != introduced.name)
    replicas = {name: address_of(name, introduced.replicas[name]) for name in names}
    return Region(introduced.region, replicas, dict(introduced.http), own_host)


# ---------------------------------------------------------------- the handshake


async def _introduction(host: str, port: int, codec: Codec, token: str) -> tuple[Any, str]:
    """Connect to a server and query it for the servers of its region. Returns its answer (a
    streams/Introduced message), and this computer's address on the connection.

    Raises WrongToken if the server refuses the token, and PeerError for any other wrong answer.
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
    """Read frames until the answer; other messages of the server are ignored."""
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
    """Read a message of the handshake (`runtime.hello`)."""
    return hello.CODEC.decode(await _frame(reader, hello.CODEC))[0]


async def _frame(reader: asyncio.StreamReader, codec: Codec) -> bytes:
    header = await _or_eof(reader.readexactly(HEADER_SIZE))
    if header.startswith(b"HTTP/"):
        raise HttpAnswer
    size = frame_size(header, codec.limits)
    assert size is not None
    return header + await _or_eof(reader.readexactly(size - HEADER_SIZE))


async def _or_eof(reading: Awaitable[T]) -> T:
    """The result of a read. If the connection ended before enough bytes were read, raises
    HttpAnswer, PeerError (in the middle of a frame) or EOFError (between frames)."""
    try:
        return await reading
    except asyncio.IncompleteReadError as short:
        if short.partial.startswith(b"HTTP/"):
            raise HttpAnswer from None
        if short.partial:
            raise PeerError("it closed the connection in the middle of a frame") from None
        raise EOFError from None
