"""The first contact: from a url to the names and addresses of a region's servers.

A url has one address or several, of any servers of the region: `surecast://host:port,host2:port2`.
`surecast://` may be left out. The first server that answers tells us about all of them.

A url has no user, password or query. One that has them is refused, and no message shows them:
`redacted` is the only form in which a url that somebody gave us is shown.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from surecast.core.types import SECOND
from surecast.core.wire import Codec
from surecast.endpoint.handshake import HttpAnswer, introduction
from surecast.errors import ConnectError, PeerError, UsageError, WrongToken
from surecast.runtime.addresses import Address, show_address

__all__ = ["Region", "discover", "parse_url", "redacted", "show_url"]

SCHEME: Final = "surecast"
PORT: Final = 7400
HIDDEN: Final = "***"
ADDRESSES_MAX: Final = 64  # in a url
_EVERYWHERE: Final = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Region:
    """Who serves the region, as one of its servers says."""

    name: str
    replicas: dict[str, Address]  # the one that answered first
    http: dict[str, str]
    own_host: str  # of this machine, as it reaches them


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
    """`url` without what may be secret in it: users, passwords and queries.

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
    if not colon or text.endswith("]"):  # no port; an IPv6 address may stand in brackets
        host, port = text.strip(), str(PORT)
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 1 << 16:
        where = redacted(within)
        raise UsageError(f"{redacted(text)!r} is not a valid host:port (in {where!r})")
    return host.removeprefix("[").removesuffix("]"), int(port)


async def discover(
    addresses: list[Address], codec: Codec, *, token: str, timeout_ns: int
) -> Region:
    """Ask one address after the other who serves the region."""
    problems: list[str] = []
    refused: list[str] = []
    for host, port in addresses:
        place = show_address((host, port))
        try:
            async with asyncio.timeout(timeout_ns / SECOND):
                said, own_host = await introduction(host, port, codec, token)
                return _region(said, host, own_host)
        except TimeoutError:
            problems.append(f"{place} did not answer within {timeout_ns / SECOND:g} s")
        except WrongToken:
            refused.append(place)
        except (OSError, PeerError, EOFError, ValueError) as problem:  # ValueError: no host name
            problems.append(f"{place} {_said(problem)}")
    if refused:
        raise WrongToken(_wrong_token(token, refused))
    raise ConnectError(
        f"no answer: {'; '.join(problems)}. If other servers of the region run, name them too: "
        "surecast://host:port,host:port (`surecast up` prints them). If none does, `surecast up` "
        "starts a cluster on this machine; surecast.local() needs no server"
    )


def _wrong_token(token: str, servers: list[str]) -> str:
    names = " and ".join(servers)
    what = f"refused by {names}" if token else f"none was given, and {names} requires one"
    return (
        f"wrong token: {what}. Pass what node.token says there as token= (--token or "
        "SURECAST_TOKEN on the command line); pass none if it is empty"
    )


def _said(problem: Exception) -> str:
    if isinstance(problem, ConnectionRefusedError):
        return "refused the connection: nothing listens there"
    if isinstance(problem, EOFError):
        return "closed the connection without an answer: is it a Surecast data port?"
    if isinstance(problem, HttpAnswer):
        return "is an HTTP port: connect to the data port of the server (node.listen, often 7400)"
    if isinstance(problem, PeerError):
        return f"gave a wrong answer: {problem}"
    return f"cannot be reached: {getattr(problem, 'strerror', None) or problem}"


def _region(said: Any, host: str, own_host: str) -> Region:
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
