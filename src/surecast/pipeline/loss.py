"""Decides whether positions that a query cannot read are lost, or void, or may still arrive.

Positions that retention has made void are not lost: readers receive the void range and its reason.
Positions are *lost* if they were assigned and no region has their events any more. This is the case
if the stream was deleted, or deleted and created again, or if it ends in every region below the
position that the query has reached. A region that is behind others, that is just starting, or that
restores its own streams from other regions has lost nothing: the query waits for it. The query also
waits for a region that does not answer, because this region may still have the events.

Positions in the middle of a stream are lost if a server answers the request for a range with
`core.endpoint.Lost` (here: `LostRange`). This means that the server has no copy and knows that no
other server has one. No further request is needed.

If the end of a stream seems to be lost (`LostEnd`), every server of the region is asked over HTTP.
Only answers of ready servers count. If one of these knows a region that has the positions, or may
have them, they are not lost.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from surecast.core.endpoint import Lost as LostRange
from surecast.errors import DataLoss, SurecastError
from surecast.pipeline.offsets import Place
from surecast.pipeline.region import Known, Region, ask_server

__all__ = [
    "LostEnd",
    "View",
    "end_error",
    "find_lost_end",
    "is_short",
    "judge",
    "lost_end_by_servers",
    "range_error",
    "shown_range",
    "views_of",
]

_REMEDY: Final = (
    "Set option failOnDataLoss=false (--no-fail-on-data-loss) to continue with the events that "
    "exist, or start the query again with a new checkpointLocation"
)


class LostEnd(NamedTuple):
    """The loss of the end of a stream (all positions from some position on), or of a whole stream.
    A loss in the middle is a `LostRange`, which a server reports."""

    words: str  # a description for the error text or the log
    reassigned: bool = True  # whether the same positions get new events, which must be read
    end: int = 1  # the highest end of the stream in any region


class View(NamedTuple):
    """A ready server, and what it knows about the other regions."""

    http: str  # its HTTP address, host:port
    region: str
    others: dict[str, dict[str, Any]]  # by name of region: server.status.RegionStatus as JSON

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


def views_of(http_addresses: Sequence[str], token: str) -> list[View] | None:
    """The servers that are ready; None if no server answers."""
    asked = [(http, ask_server(http, "/v1/status", token)) for http in http_addresses]
    answers = [(http, status) for http, status in asked if status is not None]
    if not answers:
        return None
    return [
        View(http, status["node"]["region"], {one["name"]: one for one in status["regions"]})
        for http, status in answers
        if status["ready"]
    ]


def find_lost_end(
    name: str, place: Place, known: Known | None, region: Region, views: Sequence[View] | None
) -> LostEnd | None:
    """The loss at the end of a stream that the query has read up to `place`; None if nothing is
    lost.

    `views` are the ready servers; None if the servers could not be asked over HTTP. Without them,
    the report of the region that the query reads from decides.
    """
    if not is_short(place, known):
        return None
    if views is not None:
        return lost_end_by_servers(name, place, views, region.token)
    if known is None:
        return _deleted(name, place)
    if known.stream_id != place.stream_id:
        return _created_again(name, place)
    # The owner assigns the positions, so it has all. Another region may only be behind the owner.
    return _shorter(name, place, known.end) if known.info.owner == region.name else None


def lost_end_by_servers(
    name: str, place: Place, views: Sequence[View], token: str
) -> LostEnd | None:
    """Ask all servers of a region about the stream; return the loss if they agree on it."""
    path = f"/v1/streams/{quote(name)}"
    return judge(name, place, [(view, ask_server(view.http, path, token)) for view in views])


# Each server, with its answer about a stream (server.status.StreamStatus as JSON); None if it does
# not know the stream.
Answers = Sequence[tuple[View, dict[str, Any] | None]]


def judge(name: str, place: Place, answers: Answers) -> LostEnd | None:
    """The loss that follows from each server's answer about the stream; None if there is none."""
    known = [(view, stream) for view, stream in answers if stream is not None]
    same = [pair for pair in known if pair[1]["stream_id"] == place.stream_id.hex()]
    # `quarantined` is the reason why a server cannot read a part of the stream, "" if it can.
    intact = [(view, stream) for view, stream in same if not stream["quarantined"]]
    if same and not intact:
        return _damaged(name, place, same)
    if any(stream["recovering"] or _end(stream) >= place.next for _, stream in intact):
        return None
    if intact:
        certain = all(_is_authoritative(view, stream) for view, stream in intact)
        return _shorter(name, place, max(_end(stream) for _, stream in intact)) if certain else None
    if known:  # only streams of the same name with another id
        certain = all(view.hears(stream["owner"]) for view, stream in known)
        return _created_again(name, place) if certain else None
    certain = bool(answers) and all(view.hears_all() for view, _ in answers)
    return _deleted(name, place) if certain else None


def _end(stream: dict[str, Any]) -> int:
    """The highest end of the stream in any region."""
    ends: dict[str, int] = stream["regions"]
    return max(ends.values())


def _is_authoritative(view: View, stream: dict[str, Any]) -> bool:
    """Whether no region can have more of a stream than a server reports.

    This is certain for the owner, which assigns the positions. If another region is the owner, the
    owner may be restoring the stream from a third region, so all regions must be reachable. Then
    the owner's end must be known, unless the owner was removed from the deployment.
    """
    owner = stream["owner"]
    if owner == view.region:
        return True
    return view.hears_all() and (owner in stream["regions"] or owner not in view.others)


def _damaged(
    name: str, place: Place, same: Sequence[tuple[View, dict[str, Any]]]
) -> LostEnd | None:
    """The loss if no server of the region can read the stream to its end because of damage; None
    if other regions may have all of it. Raises SurecastError if another region is known to have
    the positions."""
    view, stream = max(same, key=lambda pair: pair[1]["committed"])
    words = f"stream {name!r} is damaged from {stream['committed']} on: {stream['quarantined']}"
    ends: dict[str, int] = {r: end for r, end in stream["regions"].items() if r != view.region}
    better = [other for other, end in ends.items() if end >= place.next and view.hears(other)]
    if better:
        raise SurecastError(
            f"{words}. Region {better[0]!r} has more of it: continue with option "
            f"url={view.url(better[0])}"
        )
    if _end(stream) >= place.next or not view.hears_all():
        return None
    return LostEnd(words, reassigned=False)  # a repair would bring back the same positions


def _deleted(name: str, place: Place) -> LostEnd:
    return LostEnd(
        f"stream {name!r}, read up to position {place.next - 1}, does not exist any more"
    )


def _created_again(name: str, place: Place) -> LostEnd:
    return LostEnd(
        f"stream {name!r} was deleted and created again: the query has read the old stream up to "
        f"position {place.next - 1}, and any later events of the old stream are lost"
    )


def _shorter(name: str, place: Place, end: int) -> LostEnd:
    return LostEnd(
        f"stream {name!r} was read up to position {place.next - 1}, but no region has positions "
        f"above {end - 1} any more",
        end=end,
    )


def shown_range(name: str, loss: LostRange) -> str:
    """A lost range as text, with the server's reason."""
    is_single = loss.hi == loss.lo + 1
    which = f"position {loss.lo}" if is_single else f"positions {loss.lo} to {loss.hi - 1}"
    return f"{which} of stream {name!r}: {loss.why or 'the server gives no reason'}"


def range_error(name: str, loss: LostRange) -> DataLoss:
    """The error for a lost range, with what the user can do."""
    after = json.dumps({name: loss.hi})
    return DataLoss(
        f"data was lost: {shown_range(name, loss)}. Set option failOnDataLoss=false "
        "(--no-fail-on-data-loss) to continue; the lost positions then become a row of kind "
        f"'lost'. Or begin after them: startingOffsets={after}"
    )


def end_error(losses: Sequence[LostEnd]) -> DataLoss:
    """The error for lost ends of streams, with what the user can do."""
    return DataLoss(f"data was lost: {'; '.join(loss.words for loss in losses)}. {_REMEDY}")
