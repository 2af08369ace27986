"""For `surecast serve --check-config`: a summary of a configuration, and what would prevent a
server from starting with it on this machine."""

import errno
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from surecast.runtime.addresses import Address, show_address
from surecast.server.config import ServerConfig, parse_address
from surecast.storage.modes import open_file

__all__ = ["Findings", "check", "summary"]

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


class Findings(NamedTuple):
    """What a check of a configuration on this machine has found."""

    problems: list[str]  # the reasons why a server could not start; empty if it could
    warnings: list[str]


def check(config: ServerConfig) -> Findings:
    """Check whether a server could start here with this configuration."""
    node = config.node
    found = Findings([*_of_folder("node.data_dir", node.data_dir)], [])
    found.problems.extend(_of_folder("node.record", node.record))
    ports = [("node.listen", node.listen, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)]
    if node.http:
        ports.append(("node.http", node.http, socket.SOCK_STREAM))
    running = _running(node.data_dir)
    own: dict[str, None] = {}  # the keys whose addresses the process `running` itself uses
    for key, text, kind in ports:
        address = parse_address(text)
        failure = _listen(address, kind)
        if failure is None:
            continue
        if failure.errno == errno.EADDRINUSE and _has_port_alone(running, address[1], kind):
            own[key] = None
        else:
            found.problems.append(_of_port(key, address, kind, failure))
    if running:
        what = "".join(f", {key}" for key in own)
        found.warnings.append(
            f"node.data_dir{what}: in use by process {running}, which is a server on this data "
            "folder. If that is this node, restart it to apply a change of the configuration; if "
            "not, give this node a data folder and ports of its own"
        )
    return found


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


def _listen(address: Address, kind: socket.SocketKind) -> OSError | None:
    """Listen on an address for a moment. Returns the error if that fails."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            if kind is socket.SOCK_STREAM:
                probe.listen(1)
        except OSError as failure:
            return failure
    return None


def _of_port(key: str, address: Address, kind: socket.SocketKind, failure: OSError) -> str:
    """The problem that `_listen` has failed."""
    udp = " for datagrams" if kind is socket.SOCK_DGRAM else ""
    todo = "fix that"
    if failure.errno == errno.EADDRINUSE:
        todo = "stop the process that uses it (it may be this node, if that is running)"
    where = show_address(address)
    return f"{key}: cannot listen on {where}{udp}: {failure.strerror}; {todo}, or change {key}"


# ------------------------------------------------------------ a running node


def _running(data_dir: str) -> int:
    """The id of the process that runs a server on this data folder, or 0 if none is found.

    It is the process that the lock of the data folder names, if it has the lock open. It cannot be
    found if the node has no data folder, if it belongs to another user, or without /proc.
    """
    for part in PARTS if data_dir else ():
        lock = os.path.realpath(os.path.join(data_dir, part, "lock"))
        with suppress(OSError, ValueError):
            process = int(Path(lock).read_text())
            if lock in _open_files(process):
                return process
    return 0


def _has_port_alone(process: int, port: int, kind: socket.SocketKind) -> bool:
    """Whether a process listens on a port, and no other process does, at whatever address.
    `process` is 0 if it is not known."""
    table, listens = ("tcp", "0A") if kind is socket.SOCK_STREAM else ("udp", "07")
    lines: list[str] = []
    for name in (table, f"{table}6"):
        with suppress(OSError):
            lines += Path("/proc/net", name).read_text().splitlines()[1:]
    sockets = set()
    for line in lines:
        _, local, _, state, *_, inode = line.split()[:10]
        if state == listens and int(local.rpartition(":")[2], 16) == port:
            sockets.add(f"socket:[{inode}]")
    return bool(process and sockets) and sockets <= _open_files(process)


def _open_files(process: int) -> set[str]:
    """The files and sockets that a process has open, as Linux names them; empty if unknown."""
    found = set()
    with suppress(OSError):
        for file in Path(f"/proc/{process}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed in the meantime
                found.add(os.readlink(file))
    return found
