"""Finds the address of a node by its name, and opens the sockets that a node listens on.

A node's name may contain its address, such as `c3@127.0.0.1:41234`. Clients in a mesh (which send
events to each other) exchange only names, so such a name must be enough to reach its node. An entry
of the address book takes precedence over the address in a name. In this way tests can route the
connections to a node through a relay.

Any peer can send any name, and a node sends its token to every node that it connects to. Therefore
an address that is known only from a name is used only on loopback, or if `insecure` is set.

A node listens for TCP and UDP at the same port, so that one address is enough.
"""

import socket
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Final

from surecast.core.types import Peer
from surecast.errors import ConfigError

__all__ = [
    "Address",
    "AddressBook",
    "bind",
    "check_listen",
    "is_loopback",
    "own_address",
    "show_address",
    "with_address",
]

Address = tuple[str, int]

_TRIES: Final = 50  # attempts to find a port that is free for TCP and for UDP
# Large enough for the datagrams that arrive while a node processes others. The system may allow
# less.
_UDP_BUFFER_BYTES: Final = 4 << 20


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
        """The address of a node. None if it is unknown or must not be used (see the module); then
        a connection exists only if that node opens it."""
        address = self._entries.get(name)
        if address is None and (address := own_address(name)) is not None:
            return address if insecure or is_loopback(address[0]) else None
        return address


@lru_cache(4096)  # called for every datagram
def own_address(name: Peer) -> Address | None:
    """The address in a name, after its last @, or None. `name` may be any text from a peer."""
    _, at, address = name.rpartition("@")
    host, colon, port = address.rpartition(":")
    if not (at and colon and host and port.isascii() and port.isdigit() and len(port) <= 5):
        return None
    if int(port) > 65535:
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)


def with_address(name: Peer, address: Address) -> Peer:
    """`name` with `address` in it, which replaces the address that it contained."""
    host, port = address
    return f"{name.rpartition('@')[0] or name}@{f'[{host}]' if ':' in host else host}:{port}"


@lru_cache(4096)
def is_loopback(host: str) -> bool:
    """Whether a host name or IP address always means this computer."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def check_listen(host: str, insecure: bool) -> None:
    """Raise ConfigError if a node must not listen at this address."""
    if not insecure and not is_loopback(host):
        raise ConfigError(
            f"listening on {host!r} would let in anybody who can reach this machine: connections "
            "are not encrypted yet. Listen on 127.0.0.1, or allow it with insecure=True"
        )


# ---------------------------------------------------------------- sockets


def bind(listen: Address | None, insecure: bool) -> tuple[socket.socket | None, socket.socket]:
    """A listening TCP socket and a UDP socket, both non-blocking, at the address `listen`. If its
    port is 0, the system chooses one. With None the node does not listen: there is no TCP socket,
    and the system chooses the port of the UDP socket."""
    if listen is None:
        return None, _udp("0.0.0.0" if insecure else "127.0.0.1", 0)
    host, port = listen
    for _ in range(1 if port else _TRIES):  # each attempt gets another port if `port` is 0
        tcp = _tcp(host, port)
        try:
            return tcp, _udp(*tcp.getsockname()[:2])
        except OSError as error:
            tcp.close()
            problem = error
    raise ConfigError(f"cannot listen for datagrams on {host}:{port}: {problem}")


def _tcp(host: str, port: int) -> socket.socket:
    tcp = socket.socket(_family(host), socket.SOCK_STREAM)
    try:
        tcp.setblocking(False)
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tcp.bind((host, port))
        tcp.listen(512)
    except OSError as error:
        tcp.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error}") from error
    return tcp


def _udp(host: str, port: int) -> socket.socket:
    udp = socket.socket(_family(host), socket.SOCK_DGRAM)
    try:
        udp.setblocking(False)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            udp.setsockopt(socket.SOL_SOCKET, option, _UDP_BUFFER_BYTES)
        udp.bind((host, port))
    except OSError:
        udp.close()
        raise
    return udp


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
