"""For `surecast serve --check-config`: a summary of a configuration, and what would prevent a
server from starting with it on this machine."""

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from surecast.runtime.addresses import Address
from surecast.server.config import ServerConfig, parse_address
from surecast.storage.modes import open_file

__all__ = ["problems", "summary"]

PROBE_BYTES = 4096  # size of the file that is written to a folder to test it
PARTS = ("log", "witness")  # subfolders that the server creates in its data folder


def summary(config: ServerConfig) -> list[tuple[str, str]]:
    """A summary of a configuration: rows of a label and a text."""
    node = config.node
    data = os.path.abspath(node.data_dir) if node.data_dir else "NONE: everything is in memory only"
    rows = [
        ("this node", f"{config.name}, {node.role} of region {node.region}"),
        ("listens on", f"{node.listen} (data)" + (f", {node.http} (HTTP)" if node.http else "")),
        ("data folder", data),
        ("token", "required" if node.token else "none: all connections are accepted"),
    ]
    for region, known in config.regions.items():
        nodes = ", ".join(f"{name} at {place}" for name, place in known.replicas.items())
        # The witness decides which replicas are active. A lone replica may contain it.
        witness = (
            f"; witness at {known.witness}"
            if known.witness
            else "; the witness runs inside its only replica"
        )
        rows.append((f"region {region}", nodes + witness))
    for prefix, owner in sorted(config.owners.items()):
        what = f"{prefix} and {prefix}.>" if prefix else "all other streams"
        rows.append(("owner", f"{owner} of {what}"))
    for section in config.roles.values():  # the part of the configuration that a protocol defines
        if summary_of := getattr(section, "summary", None):
            rows += summary_of()
    return rows


def problems(config: ServerConfig) -> list[str]:
    """The reasons why a server could not start here with this configuration; empty if it could."""
    lines = list(_of_folder("node.data_dir", config.node.data_dir))
    lines += _of_folder("node.record", config.node.record)
    listen = parse_address(config.node.listen)
    lines += _of_port("node.listen", listen, socket.SOCK_STREAM)
    lines += _of_port("node.listen", listen, socket.SOCK_DGRAM)
    if config.node.http:
        lines += _of_port("node.http", parse_address(config.node.http), socket.SOCK_STREAM)
    return lines


def _of_folder(key: str, folder: str) -> Iterator[str]:
    """Test a folder: create it and write a file to it, as the server would, then remove what was
    created.

    Yields the problem if that fails.
    """
    if not folder:
        return
    place = Path(folder).absolute()
    made: list[Path] = []  # folders that did not exist, outermost first
    doing, at = "make", place  # for the error message: what is being tried, and with which folder
    try:
        for at in reversed([place, *place.parents]):
            if not at.is_dir():
                os.mkdir(at, 0o700)
                made.append(at)
        doing = "write to"
        # Existing subfolders are tested too: if another user has started the server before, they
        # belong to that user.
        for at in (place, *(place / part for part in PARTS)):
            if at == place or at.is_dir():
                _write_probe(at)
    except FileExistsError:
        yield f"{key}: {at} is not a folder"
    except OSError as problem:
        why = problem.strerror or problem
        yield f"{key}: cannot {doing} {at}: {why}; fix that, or change {key}"
    finally:
        for at in reversed(made):
            with suppress(OSError):  # another process has put files into it
                os.rmdir(at)


def _write_probe(folder: Path) -> None:
    """Write a file, sync and remove it; raises OSError if that fails."""
    path = folder / f".surecast-check-{secrets.token_hex(8)}"
    file = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        data = bytes(PROBE_BYTES)
        while data:
            data = data[os.write(file, data) :]
        os.fsync(file)
    finally:
        os.close(file)
        os.unlink(path)


def _of_port(key: str, address: Address, kind: socket.SocketKind) -> Iterator[str]:
    """Test an address by listening on it for a moment; yields the problem if that fails."""
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
            yield (
                f"{key}: cannot listen on {host}:{port}{udp}: {problem.strerror}; "
                "is this server running already?"
            )
