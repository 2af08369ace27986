"""Topologies of a simulation: named sites (regions) and the links between them.

A `Topology` has a link for each ordered pair of sites; `World.set_site_links` applies it. A node
called "east/0" is in the site "east". Delays are one-way.
"""

from collections.abc import Mapping, Sequence

import msgspec

from surecast.core.types import MS, US
from surecast.errors import UsageError
from surecast.sim.links import Link

__all__ = ["LAN", "WAN", "Topology", "line", "mesh", "star"]

LAN = Link(delay_ns=100 * US, jitter_ns=20 * US)
WAN = Link(delay_ns=40 * MS, jitter_ns=2 * MS)


class Topology(msgspec.Struct, frozen=True):
    """Sites and directed links; (site, site) is the link within a site."""

    sites: tuple[str, ...]
    links: dict[tuple[str, str], Link]

    def nodes(self, per_site: int) -> list[str]:
        """Names for `per_site` nodes in each site: "east/0", "east/1", ..."""
        return [f"{site}/{i}" for site in self.sites for i in range(per_site)]


def mesh(
    sites: Sequence[str],
    between: Link = WAN,
    within: Link = LAN,
    delays_ns: Mapping[tuple[str, str], int] | None = None,
) -> Topology:
    """Links between all pairs of sites. `delays_ns[a, b]` (or [b, a]) is the delay between `a` and
    `b`, if it differs from the delay of `between`."""
    links = _within(sites, within)
    delays = dict(delays_ns or {})
    for a in sites:
        for b in sites:
            if a != b:
                delay_ns = delays.get((a, b), delays.get((b, a), between.delay_ns))
                links[a, b] = msgspec.structs.replace(between, delay_ns=delay_ns)
    for pair in delays:
        if pair not in links:
            raise UsageError(f"delays_ns has {pair}, but not both of these are sites")
    return Topology(tuple(sites), links)


def line(sites: Sequence[str], between: Link = WAN, within: Link = LAN) -> Topology:
    """Sites in a row: the link between two sites has the delay of all hops between them."""
    hops = {(a, b): abs(i - j) for i, a in enumerate(sites) for j, b in enumerate(sites) if i != j}
    return _routed(sites, hops, between, within)


def star(sites: Sequence[str], between: Link = WAN, within: Link = LAN) -> Topology:
    """The first site is the centre: a link between two other sites has the delay of two hops."""
    centre = sites[0]
    hops = {(a, b): 1 if centre in (a, b) else 2 for a in sites for b in sites if a != b}
    return _routed(sites, hops, between, within)


def _routed(
    sites: Sequence[str], hops: Mapping[tuple[str, str], int], between: Link, within: Link
) -> Topology:
    """Links between all sites. A link of n hops has n times the delay of one hop, and the same
    bandwidth.

    A cut between two sites affects only their own link. It does not affect links of several hops
    that would lead through these sites.
    """
    links = _within(sites, within)
    for pair, count in hops.items():
        links[pair] = msgspec.structs.replace(
            between,
            delay_ns=between.delay_ns * count,
            jitter_ns=between.jitter_ns * count,
            loss=1 - (1 - between.loss) ** count,
        )
    return Topology(tuple(sites), links)


def _within(sites: Sequence[str], link: Link) -> dict[tuple[str, str], Link]:
    if len(set(sites)) != len(sites):
        raise UsageError("sites must have different names")
    return {(site, site): link for site in sites}
