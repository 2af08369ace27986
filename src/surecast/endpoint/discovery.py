"""The first contact: from a url to the names and addresses of a region's servers.

A url has one address or several, of any servers of the region: `surecast://host:port,host2:port2`.
The first that answers tells us about all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from surecast.core.types import SECOND
from surecast.core.wire import Codec
from surecast.endpoint.handshake import REFUSED, introduction
from surecast.errors import ConnectError, PeerError, UsageError
from surecast.runtime.book import Address, show_address

__all__ = ["Region", "discover", "parse_url", "show_url", "wants_token"]

PORT: Final = 7400
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
    """The addresses in `surecast://host[:port][,host[:port]]…`"""
    scheme, _, rest = url.partition("://")
    if scheme != "surecast" or not rest.strip("/"):
        raise UsageError(f"a url looks like surecast://127.0.0.1:{PORT}, not {url!r}")
    parts = rest.rstrip("/").split(",")
    if len(parts) > ADDRESSES_MAX:
        raise UsageError(f"a url names at most {ADDRESSES_MAX} addresses, not {len(parts)}")
    return [parse_address(part, url) for part in parts]


def show_url(addresses: Iterable[Address]) -> str:
    """A url of these addresses, each once."""
    return f"surecast://{','.join(map(show_address, dict.fromkeys(addresses)))}"


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
                said, own_host = await introduction(host, port, codec, token)
                return _region(said, host, own_host)
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
    return REFUSED in str(problem)


def _said(problem: Exception) -> str:
    if isinstance(problem, ConnectionRefusedError):
        return "refused the connection: nothing listens there"
    if isinstance(problem, EOFError):
        return "closed the connection without a word: is it a Surecast data port?"
    if isinstance(problem, PeerError):
        return f"said something else: {problem}"
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
