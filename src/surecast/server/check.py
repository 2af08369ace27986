"""`surecast serve --check-config`: what this configuration would do, here and now."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

from surecast.runtime.book import Address
from surecast.server.config import ServerConfig, parse_address

__all__ = ["problems", "summary"]


def summary(config: ServerConfig) -> list[tuple[str, str]]:
    """What it says, in words: a row per fact."""
    node = config.node
    data = os.path.abspath(node.data_dir) if node.data_dir else "NONE: everything is in memory only"
    rows = [
        ("this node", f"{config.name}, {node.role} of region {node.region}"),
        ("listens on", f"{node.listen} (data)" + (f", {node.http} (HTTP)" if node.http else "")),
        ("data folder", data),
        ("token", "required of everybody" if node.token else "none: whoever connects is let in"),
    ]
    for region, known in config.regions.items():
        nodes = ", ".join(f"{name} at {place}" for name, place in known.replicas.items())
        witness = f"; witness at {known.witness}" if known.witness else "; its witness inside"
        rows.append((f"region {region}", nodes + witness))
    for prefix, owner in sorted(config.owners.items()):
        what = f"{prefix} and {prefix}.>" if prefix else "all other streams"
        rows.append(("owner", f"{owner} of {what}"))
    for of_role in config.roles.values():
        if summary_of := getattr(of_role, "summary", None):
            rows += summary_of()
    return rows


def problems(config: ServerConfig) -> list[str]:
    """What would keep it from running on this machine."""
    found = list(_of_folder("node.data_dir", config.node.data_dir))
    found += _of_folder("node.record", config.node.record)
    listen = parse_address(config.node.listen)
    found += _of_port("node.listen", listen, socket.SOCK_STREAM)
    found += _of_port("node.listen", listen, socket.SOCK_DGRAM)
    if config.node.http:
        found += _of_port("node.http", parse_address(config.node.http), socket.SOCK_STREAM)
    return found


def _of_folder(key: str, folder: str) -> Iterator[str]:
    """Can we write there? Nothing is made: a check leaves no trace."""
    if not folder:
        return
    place = Path(folder).absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        yield f"{key}: {place} is not a folder"
    elif not os.access(place, os.W_OK | os.X_OK):
        yield f"{key}: {place} cannot be written to by this user; change its owner, or {key}"


def _of_port(key: str, address: Address, kind: socket.SocketKind) -> Iterator[str]:
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            if kind is socket.SOCK_STREAM:
                probe.listen(1)
        except OSError as problem:
            udp = " for datagrams" if kind is socket.SOCK_DGRAM else ""
            yield f"{key}: cannot listen on {host}:{port}{udp}: {problem.strerror}; is it running?"
