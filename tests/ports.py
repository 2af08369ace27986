"""Ports to listen at, for tests that run beside each other."""

import os
import random
import socket
from contextlib import ExitStack

__all__ = ["free_ports"]

HOST = "127.0.0.1"
FIRST, END = 10_000, 20_000  # below those that the system hands out by itself
WORKERS_MAX = 8


def free_ports(count: int) -> list[int]:
    """So many, each once, free for TCP and UDP; none that another worker of xdist may be given."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % WORKERS_MAX
    candidates = range(FIRST + worker, END, WORKERS_MAX)
    found: list[int] = []
    for port in random.SystemRandom().sample(candidates, len(candidates)):
        if len(found) == count:
            break
        with ExitStack() as stack:
            try:
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                    stack.enter_context(socket.socket(type=kind)).bind((HOST, port))
            except OSError:
                continue
            found.append(port)
    assert len(found) == count, f"{count} ports are not free"
    return found
