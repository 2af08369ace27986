"""Messages of types that this node does not know: dropped, counted by tag, logged now and then.

In a cluster with nodes of different versions, some nodes may not speak all protocols. A frame with
a message of an unknown protocol is intact, so the session continues after it.
"""

import logging
import time
from collections import Counter
from typing import Final

from surecast.core.types import SECOND, Peer
from surecast.errors import UnknownMessage

__all__ = ["OTHER", "TAGS_MAX", "UnknownMessages"]

log = logging.getLogger("surecast.runtime")

TAGS_MAX: Final = 64  # counted one by one; bounded, because a peer can make up tags
OTHER: Final = "other"  # counts the rest
LOG_EVERY_NS: Final = 60 * SECOND


class UnknownMessages:
    """The unknown messages that one node has received; `counters` are the node's."""

    def __init__(self, node: Peer, counters: Counter[str]) -> None:
        self.node = node
        self.counters = counters
        self.by_tag: Counter[str] = Counter()
        self._logged_ns = -LOG_EVERY_NS
        self._unlogged = 0

    def drop(self, peer: Peer, unknown: UnknownMessage) -> None:
        full = len(self.by_tag) >= TAGS_MAX
        self.by_tag[OTHER if full and unknown.tag not in self.by_tag else unknown.tag] += 1
        self.counters["unknown_messages"] += 1
        self._unlogged += 1
        now_ns = time.monotonic_ns()
        if now_ns - self._logged_ns >= LOG_EVERY_NS:
            more = f" ({self._unlogged:,} since the last such line)" if self._unlogged > 1 else ""
            log.warning("%s: dropped %s from %s%s", self.node, unknown, peer, more)
            self._logged_ns, self._unlogged = now_ns, 0
