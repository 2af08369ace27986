"""Links between simulated nodes, and the bandwidth queues (pipes) that they share.

A `Link` describes delay, bandwidth and loss. A `Path` is one direction between two nodes, with the
values of the link that applies to it. A `Pipe` is the queue of messages that wait for bandwidth.
All nodes of a site share one pipe to each other site. Within a site, each node has one pipe for all
that it sends. A link that is set for two nodes by name has its own pipe.
"""

from collections.abc import Iterable
from random import Random

import msgspec

from surecast.core.types import MS, SECOND

__all__ = ["ANY", "Link", "Path", "Pipe", "Wiring"]

ANY = "*"  # stands for every node, wherever a node or site may be named

RETRANSMIT_NS_MIN = 20 * MS
RETRANSMITS_MAX = 12  # of one message; after these, the message arrives in any case


class Link(msgspec.Struct, frozen=True):
    """One direction between two nodes or sites.

    For datagrams, all fields apply. In a session, a loss only delays the message, as with TCP, and
    no message is duplicated or reordered.
    """

    delay_ns: int = MS
    jitter_ns: int = 0  # each message takes up to this much longer, at random
    bandwidth_bps: int = 0  # 0: unlimited
    loss: float = 0.0  # the share of messages that are lost
    duplicate: float = 0.0  # the share of datagrams that arrive twice
    reorder: float = 0.0  # the share of datagrams that are delayed by up to `reorder_ns`
    reorder_ns: int = 5 * MS


class Pipe:
    """A bandwidth queue; at `free_ns` everything in it will have been sent."""

    __slots__ = ("free_ns",)

    def __init__(self) -> None:
        self.free_ns = 0


class Path:
    """One direction between two nodes. `plain`: the link has neither loss nor a bandwidth limit."""

    __slots__ = ("cut", "delay_ns", "dst", "jitter_ns", "link", "pipe", "plain", "src")

    def __init__(self, src: str, dst: str, link: Link, pipe: Pipe, cut: bool) -> None:
        self.src = src
        self.dst = dst
        self.pipe = pipe
        self.cut = cut
        self.set(link)

    def set(self, link: Link) -> None:
        self.link = link
        self.delay_ns = link.delay_ns
        self.jitter_ns = link.jitter_ns
        self.plain = not link.loss and not link.bandwidth_bps

    def sent_ns(self, now_ns: int, nbytes: int) -> int:
        """Queue `nbytes` in the pipe. Returns the time when their last bit leaves the pipe."""
        bps = self.link.bandwidth_bps
        if not bps:
            return now_ns
        pipe = self.pipe
        sent = max(now_ns, pipe.free_ns) + nbytes * 8 * SECOND // bps
        pipe.free_ns = sent
        return sent

    def retransmit_ns(self, rng: Random) -> int:
        """The delay that losses add to a message that is retransmitted until it arrives."""
        loss = self.link.loss
        extra = 0
        if loss:
            timeout = max(4 * self.delay_ns, RETRANSMIT_NS_MIN)  # four delays are two round trips
            for _ in range(RETRANSMITS_MAX):
                if rng.random() >= loss:
                    break
                extra += timeout
        return extra


class Wiring:
    """Knows which link applies between which nodes, and which links are degraded or cut."""

    def __init__(self, default: Link) -> None:
        self.default = default
        # The keys are (from, to), each the name of a node or of a site, or ANY.
        self._links: dict[tuple[str, str], Link] = {}
        self._degraded: dict[tuple[str, str], Link] = {}  # used in place of `_links`
        self._cuts: dict[tuple[str, str], None] = {}
        # The keys are ("pair", from node, to node), ("uplink", from node, "") and ("sites", from
        # site, to site).
        self._pipes: dict[tuple[str, str, str], Pipe] = {}

    def set_link(self, a: str, b: str, link: Link) -> None:
        self._links[a, b] = link

    def degrade(self, a: str, b: str, link: Link) -> None:
        self._degraded[a, b] = link

    def cut(self, a: str, b: str) -> None:
        self._cuts[a, b] = None

    def mend(self, a: str, b: str) -> None:
        self._cuts.pop((a, b), None)
        self._degraded.pop((a, b), None)

    def mend_all(self) -> None:
        self._cuts.clear()
        self._degraded.clear()

    def path(self, src: str, src_site: str, dst: str, dst_site: str) -> Path:
        pairs = _pairs(src, src_site, dst, dst_site)
        if (src, dst) in self._links:
            key = ("pair", src, dst)
        elif src_site == dst_site:
            key = ("uplink", src, "")
        else:
            key = ("sites", src_site, dst_site)
        pipe = self._pipes.get(key)
        if pipe is None:
            pipe = self._pipes[key] = Pipe()
        return Path(src, dst, self._link(pairs), pipe, any(p in self._cuts for p in pairs))

    def refresh(self, paths: Iterable[tuple[Path, str, str]]) -> None:
        """Bring paths (with the sites of both ends) up to date after a change."""
        for path, src_site, dst_site in paths:
            new = self.path(path.src, src_site, path.dst, dst_site)
            path.cut = new.cut
            path.pipe = new.pipe
            path.set(new.link)

    def _link(self, pairs: tuple[tuple[str, str], ...]) -> Link:
        for links in (self._degraded, self._links):
            for pair in pairs:
                if pair in links:
                    return links[pair]
        return self.default


def _pairs(src: str, src_site: str, dst: str, dst_site: str) -> tuple[tuple[str, str], ...]:
    """The pairs of names that apply to a path, the most specific first."""
    return tuple((a, b) for a in (src, src_site, ANY) for b in (dst, dst_site, ANY))
