"""Finds free ports for tests and other runs with real processes, several of which may run at once.

Each worker of pytest-xdist, with the processes that it starts, uses its own block of ports; all
other processes use the whole range. A port that was returned may not be bound yet by its user.
Therefore a process returns all ports of its block once before it returns a port again.
"""

import os
import random
import socket
from collections.abc import Iterator
from itertools import chain, islice

from surecast.errors import SurecastError

__all__ = ["HOST", "PORTS", "block_of", "free_base", "free_ports"]

HOST = "127.0.0.1"
PORTS = range(10_000, 30_000)  # below the system's ephemeral ports
BLOCKS = 8

_next: dict[range, int] = {}  # by block: the next port to check


def free_ports(count: int) -> list[int]:
    """`count` ports, each free for TCP and UDP."""
    block = block_of(os.environ.get("PYTEST_XDIST_WORKER", ""))
    found = list(islice(filter(_is_free, _candidates(block)), count))
    if len(found) < count:
        raise SurecastError(f"there are no {count} free ports in {block}")
    return found


def free_base(count: int) -> int:
    """The first of `count` consecutive ports that are free for TCP and UDP."""
    block = block_of(os.environ.get("PYTEST_XDIST_WORKER", ""))
    row = 0
    for port in chain(_candidates(block), _candidates(block)):  # the first may start within a row
        row = 0 if port == block.start else row
        row = row + 1 if _is_free(port) else 0
        if row == count:
            return port - count + 1
    raise SurecastError(f"there are no {count} consecutive free ports in {block}")


def block_of(worker: str) -> range:
    """The ports of a worker of pytest-xdist ("gw3"); all ports for ""."""
    if not worker:
        return PORTS
    size = len(PORTS) // BLOCKS
    number = int(worker.removeprefix("gw")) % BLOCKS
    return PORTS[number * size : (number + 1) * size]


def _candidates(block: range) -> Iterator[int]:
    """Each port of a block once, starting after the last one that was checked."""
    at = _next.get(block, random.SystemRandom().choice(block))
    for _ in block:
        port, at = at, at + 1 if at + 1 in block else block.start
        _next[block] = at
        yield port


def _is_free(port: int) -> bool:
    with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        try:
            tcp.bind((HOST, port))
            udp.bind((HOST, port))
        except OSError:
            return False
        return True
