"""Decides whether positions that a query cannot read are lost, or void, or may still arrive.

Positions that retention has made void are not lost: readers receive the void range and its reason.
Positions are *lost* if they were assigned and no region has their events any more. This is the case
if the stream was deleted, or deleted and created again, or if it ends in every region below the
position that the query has reached. A region that is behind others, that is just starting, or that
restores its own streams from other regions has lost nothing: the query waits for it. The query also
waits for a region that does not answer, because this region may still have the events.

Positions in the middle of a stream are lost if a server answers a range read with `Lost`. This
means that the server has no copy and knows that no other server has one. No further request is
needed.

If the end of a stream seems to be lost, every server of the region is asked over HTTP. Only answers
of ready servers count. If one of these knows a region that has the positions, or may have them,
they are not lost.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from surecast.core.endpoint import Lost
from surecast.errors import DataLoss, SurecastError
from surecast.pipeline.offsets import Place
from surecast.pipeline.region import Known, Region, ask_server

__all__ = [
    "Loss",
    "View",
    "is_short",
    "judge",
    "loss_of",
    "lost",
    "remedy",
    "remedy_of_range",
    "shown_range",
    "views_of",
]

_REMEDY: Final = (
    "Set option failOnDataLoss=false (--no-fail-on-data-loss) to go on with what is there, or "
    "start the query anew with another checkpointLocation"
)


class Loss(NamedTuple):
    """The loss of a whole stream, or of all positions from some position on."""

    words: str  # a description for the error text or the log
    again: bool = True  # whether the positions are assigned to new events, which must be read
    end: int = 1  # the highest end of the stream in any region


class View(NamedTuple):
    """A ready server, and its status of the other regions (server.status.RegionStatus)."""

    http: str
    region: str
    others: dict[str, dict[str, Any]]

    def hears(self, region: str) -> bool:
        """Whether the server is connected to this region, or belongs to it."""
        return region == self.region or bool(self.others.get(region, {}).get("up"))

    def hears_all(self) -> bool:
        return all(one["up"] for one in self.others.values())

    def url(self, region: str) -> str:
        return f"surecast://{','.join(self.others[region]['replicas'].values())}"


def is_short(place: Place, known: Known | None) -> bool:
    """Whether a region lacks positions that the query has read before. `known` is the region's
    report about the stream; None if it does not have the stream."""
    return known is None or known.stream_id != place.stream_id or known.end < place.next


def views_of(https: Sequence[str], token: str) -> list[View] | None:
    """The servers that are ready; None if no server answers."""
    said = [(http, ask_server(http, "/v1/status", token)) for http in https]
    there = [(http, status) for http, status in said if status is not None]
    if not there:
        return None
    return [
        View(http, status["node"]["region"], {one["name"]: one for one in status["regions"]})
        for http, status in there
        if status["ready"]
    ]


def loss_of(
    name: str, place: Place, known: Known | None, region: Region, views: Sequence[View] | None
) -> Loss | None:
    """The loss in a stream that the query has read up to `place`; None if nothing is lost.

    `views` are the ready servers; None if the servers could not be asked over HTTP. Without them,
    the report of the region that the query reads from decides.
    """
    if not is_short(place, known):
        return None
    if views is not None:
        return lost(name, place, views, region.token)
    if known is None:
        return _gone(name, place)
    if known.stream_id != place.stream_id:
        return _made_anew(name, place)
    return _shorter(name, place, known.end) if known.info.owner == region.name else None


def lost(name: str, place: Place, views: Sequence[View], token: str) -> Loss | None:
    """The loss that all servers of a region agree on; None if there is none."""
    path = f"/v1/streams/{quote(name)}"
    return judge(name, place, [(view, ask_server(view.http, path, token)) for view in views])


# Each server, with its answer about a stream (server.status.StreamStatus); None: unknown to it.
Said = Sequence[tuple[View, dict[str, Any] | None]]


def judge(name: str, place: Place, said: Said) -> Loss | None:
    """The loss that follows from each server's answer about the stream; None if there is none."""
    known = [(view, one) for view, one in said if one is not None]
    same = [(view, one) for view, one in known if one["stream_id"] == place.stream_id.hex()]
    whole = [(view, one) for view, one in same if not one["quarantined"]]
    if same and not whole:
        return _damaged(name, place, same)
    if any(one["recovering"] or _end(one) >= place.next for _, one in whole):
        return None
    if whole:
        sure = all(_is_authoritative(view, one) for view, one in whole)
        return _shorter(name, place, max(_end(one) for _, one in whole)) if sure else None
    if known:
        sure = all(view.hears(one["owner"]) for view, one in known)
        return _made_anew(name, place) if sure else None
    sure = bool(said) and all(view.hears_all() for view, _ in said)
    return _gone(name, place) if sure else None


def _end(stream: dict[str, Any]) -> int:
    """The highest end of the stream in any region."""
    ends: dict[str, int] = stream["regions"]
    return max(ends.values())


def _is_authoritative(view: View, stream: dict[str, Any]) -> bool:
    """Whether no region can have more of a stream than a server reports.

    This is certain for the owner, which assigns the positions. If another region is the owner, it
    may be restoring the stream from a third region, so all regions must be reachable.
    """
    owner = stream["owner"]
    if owner == view.region:
        return True
    return view.hears_all() and (owner in stream["regions"] or owner not in view.others)


def _damaged(name: str, place: Place, same: Sequence[tuple[View, dict[str, Any]]]) -> Loss | None:
    """The loss if no server of the region can read the stream to its end because of damage; None
    if other regions may have all of it. Raises SurecastError if another region is known to have
    the positions."""
    view, one = max(same, key=lambda pair: pair[1]["committed"])
    words = f"stream {name!r} is damaged from {one['committed']} on: {one['quarantined']}"
    ends: dict[str, int] = {r: end for r, end in one["regions"].items() if r != view.region}
    better = [other for other, end in ends.items() if end >= place.next and view.hears(other)]
    if better:
        raise SurecastError(
            f"{words}. Region {better[0]!r} has more of it: continue with option "
            f"url={view.url(better[0])}"
        )
    if _end(one) >= place.next or not view.hears_all():
        return None
    return Loss(words, again=False)


def _gone(name: str, place: Place) -> Loss:
    return Loss(f"stream {name!r}, read up to position {place.next - 1}, does not exist any more")


def _made_anew(name: str, place: Place) -> Loss:
    return Loss(
        f"stream {name!r} was made anew: the one that was read up to position {place.next - 1} had "
        "another id, and what followed there is gone"
    )


def _shorter(name: str, place: Place, end: int) -> Loss:
    return Loss(
        f"stream {name!r} was read up to position {place.next - 1}, and nobody has more of it than "
        f"up to {end - 1} any more",
        end=end,
    )


def shown_range(name: str, loss: Lost) -> str:
    one = loss.hi == loss.lo + 1
    which = f"position {loss.lo}" if one else f"positions {loss.lo} to {loss.hi - 1}"
    return f"{which} of stream {name!r}: {loss.why or 'the server gives no reason'}"


def remedy_of_range(name: str, loss: Lost) -> DataLoss:
    behind = json.dumps({name: loss.hi})
    return DataLoss(
        f"data was lost: {shown_range(name, loss)}. Set option failOnDataLoss=false "
        "(--no-fail-on-data-loss) to go on, with a row of kind 'lost' for them, or begin after "
        f"them: startingOffsets={behind}"
    )


def remedy(losses: Sequence[Loss]) -> DataLoss:
    return DataLoss(f"data was lost: {'; '.join(loss.words for loss in losses)}. {_REMEDY}")
