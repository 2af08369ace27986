"""Names to addresses. A name may contain its address: `c3@127.0.0.1:41234`.

Mesh clients exchange names only, so a name of that form must be enough to reach its node. An entry
of the address book takes precedence over the address in the name; that is how a link is routed
through a relay.

Any peer can send any name, and a node sends its credential to every node it connects to. An address
that comes only from a name is therefore used only on loopback, or if `insecure` is set.
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
    """`host:port` as in a url."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class AddressBook:
    """The addresses of nodes. May be shared by several nodes, and changed while they run."""

    def __init__(self, entries: Mapping[Peer, Address] | None = None) -> None:
        self._entries: dict[Peer, Address] = dict(entries or {})

    def set(self, name: Peer, address: Address) -> None:
        self._entries[name] = address

    def remove(self, name: Peer) -> None:
        self._entries.pop(name, None)

    def find(self, name: Peer, insecure: bool = False) -> Address | None:
        """The address of `name`. None if it is unknown or must not be trusted: such a node can
        only connect to us."""
        address = self._entries.get(name)
        if address is None and (address := own_address(name)) is not None:
            return address if insecure or is_loopback(address[0]) else None
        return address


@lru_cache(4096)  # called for every datagram
def own_address(name: Peer) -> Address | None:
    """The address in a name, behind its last @, or None. `name` may be any text from a peer."""
    _, at, place = name.rpartition("@")
    host, colon, port = place.rpartition(":")
    if not (at and colon and host and port.isascii() and port.isdigit() and len(port) <= 5):
        return None
    if int(port) > 65535:
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)


def with_address(name: Peer, address: Address) -> Peer:
    """`name` with `address` in it, in place of the one it had."""
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
            "are not encrypted yet. Listen on 127.0.0.1, or allow it with insecure=True"
        )
