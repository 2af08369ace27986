"""The report of a process of a process cluster about its sessions: which ended, and why.

`upgrade_rounds.py` checks these reports: an upgrade of one process must not end other sessions.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from surecast.runtime.node import Node

__all__ = ["COUNTED", "SessionReport", "report"]

# Counters of the runtime that show problems between nodes of different versions.
COUNTED: Final = (
    "sessions_up",
    "sessions_lost",
    "session_timeouts",
    "queue_overflows",
    "refused",
    "refused_by_peer",
    "not_spoken",
    "unknown_messages",
)


class SessionReport(msgspec.Struct):
    """The sessions of one process that ended since the last report. `counters` count since the
    start of the process."""

    nodes: list[str]  # the nodes in this process
    ended: list[tuple[str, str, str]]  # (node, peer, reason) of each ended session
    counters: dict[str, int]


def report(nodes: Iterable[Node]) -> SessionReport:
    found = SessionReport([], [], {})
    counters: Counter[str] = Counter()
    for node in nodes:
        found.nodes.append(node.name)
        if node.running:
            ended = node.sessions.ended
            found.ended += [(node.name, *ended.popleft()) for _ in range(len(ended))]
        counters.update({name: node.counters[name] for name in COUNTED})
    found.counters = dict(counters)
    return found
