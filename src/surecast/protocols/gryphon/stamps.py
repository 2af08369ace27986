"""Stamps: which versions of brokers' filter tables have decided that positions are final.

Each broker with subscribers numbers the versions of its filter table. A broker above it that drops
events notes in the message which version it has used. The subscriber's broker compares: a position
without an event counts for a subscription only if the version has the subscription's filter (rule
B7 of the specification). Otherwise that subscription reads the position at the stream's owner.

A value is None if no filter was applied. Else it has the version of each broker whose filter was
applied; the version of any other broker counts as 0, which no subscription accepts.
"""

from surecast.protocols.gryphon.messages import Stamps

__all__ = ["UNKNOWN", "lowest", "version_of"]

UNKNOWN: Stamps = ()  # filters of unknown versions were applied


def lowest(one: Stamps | None, other: Stamps | None) -> Stamps | None:
    """The stamps of positions to which both filters were applied, or of two ranges together: of
    each broker the lower version."""
    if one is None or one is other:
        return other
    if other is None:
        return one
    known = {(broker, incarnation): version for broker, incarnation, version in other}
    return tuple(
        (broker, incarnation, min(version, known[broker, incarnation]))
        for broker, incarnation, version in one
        if (broker, incarnation) in known
    )


def version_of(stamps: Stamps | None, broker: str, incarnation: int) -> int | None:
    """The version of this broker's table that was applied; 0: an unknown one. None: no filter."""
    if stamps is None:
        return None
    for name, number, version in stamps:
        if name == broker and number == incarnation:
            return version
    return 0
