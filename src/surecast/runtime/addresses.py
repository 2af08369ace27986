"""Names to addresses. A name may carry its own: `c3@127.0.0.1:41234`.

Mesh clients tell each other names and nothing else, so a name of that form must be enough to reach
its node. An entry of the book goes before what the name says: that is how a link is led through a
relay.

A name may come from anybody, and a node says its credential to whomever it calls. So what only a
name says is followed where a node may listen: on loopback, and elsewhere if `insecure` allows it.
"""

from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address

from surecast.core.types import Peer
from surecast.errors import ConfigError

__all__ = [
    "Address",
    "AddressBook",
    "check_listen",
    "is_loopback",
    "own_address",
    "show_address",
    "with_address",
]

Address = tuple[str, int]


def show_address(address: Address) -> str:
    """As in a url."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class AddressBook:
    """Where nodes listen. May be shared by several nodes, and changed while they run."""

    def __init__(self, entries: Mapping[Peer, Address] | None = None) -> None:
        self._entries: dict[Peer, Address] = dict(entries or {})

    def set(self, name: Peer, address: Address) -> None:
        self._entries[name] = address

    def remove(self, name: Peer) -> None:
        self._entries.pop(name, None)

    def find(self, name: Peer, insecure: bool = False) -> Address | None:
        """Where `name` listens; None: nobody knows, or nobody to be trusted; it must come to us."""
        found = self._entries.get(name)
        if found is None and (found := own_address(name)) is not None:
            return found if insecure or is_loopback(found[0]) else None
        return found


@lru_cache(4096)  # asked for every datagram
def own_address(name: Peer) -> Address | None:
    """The address a name carries behind its last @, if it does. Any text may come from a peer."""
    _, at, place = name.rpartition("@")
    host, colon, port = place.rpartition(":")
    if not (at and colon and host and port.isascii() and port.isdigit() and len(port) <= 5):
        return None
    if int(port) > 65535:
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)


def with_address(name: Peer, address: Address) -> Peer:
    """`name`, carrying `address` in place of the one it carries."""
    host, port = address
    return f"{name.rpartition('@')[0] or name}@{f'[{host}]' if ':' in host else host}:{port}"


@lru_cache(4096)
def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def check_listen(host: str, insecure: bool) -> None:
    if not insecure and not is_loopback(host):
        raise ConfigError(
            f"listening on {host!r} would let in anybody who can reach this machine: connections "
            "are not encrypted yet. Listen on 127.0.0.1, or ask for it with insecure=True"
        )
