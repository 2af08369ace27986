"""Sockets to listen on: TCP and UDP at the same port, so that one address names a node."""

import socket
from typing import Final

from surecast.errors import ConfigError
from surecast.runtime.addresses import Address

__all__ = ["bind"]

_TRIES: Final = 50  # a port that the system offers for TCP may be in use for UDP
_UDP_BUFFER_BYTES: Final = 4 << 20  # holds bursts during a pass; the system may allow less


def bind(listen: Address | None, insecure: bool) -> tuple[socket.socket | None, socket.socket]:
    """A TCP socket (None: the node only connects) and a UDP socket, neither blocking."""
    if listen is None:
        return None, _udp("0.0.0.0" if insecure else "127.0.0.1", 0)
    host, port = listen
    for _ in range(1 if port else _TRIES):
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
