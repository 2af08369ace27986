"""What is lost, told apart from what is void and from what is late.

Positions that retention has made void are still accounted for: whoever reads there is sent a range.
*Lost* are positions that were handed out and that nobody has any more: the stream was made anew, or
is gone, or ends everywhere below where the query already is. A region that is behind others, that
is just starting, or that gets its own streams back from others has lost nothing: it is waited for.

So a suspicion is taken to every server of the region, over HTTP. Only those that are ready have a
say, and one that knows of anybody who has the positions is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from surecast.errors import SurecastError
from surecast.pipeline.offsets import Place
from surecast.pipeline.region import Known, Region, ask_server

__all__ = ["DataLoss", "loss_of", "lost", "remedy"]

_REMEDY: Final = (
    "Set option failOnDataLoss=false to go on with what is there, or start the query anew with "
    "another checkpointLocation"
)


class DataLoss(SurecastError):
    """Positions that a query had been promised are gone. `failOnDataLoss=false` goes on."""


def loss_of(name: str, place: Place, known: Known | None, region: Region) -> str:
    """What is lost of a stream that the query has read up to `place`; "" if nothing is."""
    if known is not None and known.stream_id == place.stream_id and known.end >= place.next:
        return ""
    if region.https:
        return lost(name, place, region.https, region.token)
    if known is None:
        return _gone(name, place)
    if known.stream_id != place.stream_id:
        return _made_anew(name, place)
    return _shorter(name, place, known.end) if known.info.owner == region.name else ""


def lost(name: str, place: Place, https: Sequence[str], token: str) -> str:
    """What the servers of a region, if they are ready, agree to be lost."""
    ready = [http for http in https if ask_server(http, "/readyz", token) is not None]
    said = [ask_server(http, f"/v1/streams/{quote(name)}", token) for http in ready]
    known: list[dict[str, Any]] = [one for one in said if one is not None]
    same = [one for one in known if one["stream_id"] == place.stream_id.hex()]
    for one in same:
        if one["quarantined"]:
            return f"stream {name!r} is damaged from {one['committed']} on: {one['quarantined']}"
        ends: dict[str, int] = one["regions"]
        if one["recovering"] or one["owner"] not in ends or max(ends.values()) >= place.next:
            return ""
    if same:
        return _shorter(name, place, max(same[0]["regions"].values()))
    if known:
        return _made_anew(name, place)
    return _gone(name, place) if ready else ""


def _gone(name: str, place: Place) -> str:
    return f"stream {name!r}, read up to position {place.next - 1}, does not exist any more"


def _made_anew(name: str, place: Place) -> str:
    return (
        f"stream {name!r} was made anew: the one that was read up to position {place.next - 1} had "
        "another id, and what followed there is gone"
    )


def _shorter(name: str, place: Place, end: int) -> str:
    return (
        f"stream {name!r} was read up to position {place.next - 1}, and nobody has more of it than "
        f"up to {end - 1} any more"
    )


def remedy(losses: list[str]) -> DataLoss:
    return DataLoss(f"data was lost: {'; '.join(losses)}. {_REMEDY}")
