"""Where a query begins and ends, and how the progress of a streaming query is stored.

A *bound* is the value of an option such as `startingOffsets`: earliest, latest, a position or a
time, for all streams or for each. A *place* is a query's progress in one stream: the next position
to read, and the id of the stream. The id is stored because a stream that was deleted and created
again has the same name but other events. Positions are the same in every region, so a query may
continue in another region with the same places.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from surecast.core.wire import SEQ_END_MAX
from surecast.errors import UsageError

__all__ = [
    "EARLIEST",
    "LATEST",
    "At",
    "Bound",
    "Place",
    "Time",
    "bound_of",
    "places_from",
    "places_to",
    "share",
    "timestamp_of",
    "timestamps_of",
]

_WORDS: Final = {"earliest": -2, "latest": -1}
_MS: Final = 10**6  # a millisecond in nanoseconds
_MS_MAX: Final = (1 << 63) // _MS  # the latest time, in milliseconds since 1970


class At(NamedTuple):
    """A position; -2 is the earliest, -1 the latest."""

    seq: int


class Time(NamedTuple):
    """The position of the first event at or after this time."""

    ns: int  # nanoseconds since 1970


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading begins, or ends, in each stream."""

    option: str  # the name of the option; "" for a default
    rest: At | Time  # for streams that `each` does not name
    each: Mapping[str, At | Time] = field(default_factory=dict)  # by name of stream

    def of(self, stream: str) -> At | Time:
        return self.each.get(stream, self.rest)


EARLIEST: Final = Bound("", At(-2))
LATEST: Final = Bound("", At(-1))


# ---------------------------------------------------------------- options


def bound_of(option: str, text: str) -> Bound:
    """Parse `startingOffsets` or `endingOffsets`: "earliest", "latest", or JSON by stream."""
    word = text.strip().lower()
    if word in _WORDS:
        return Bound(option, At(_WORDS[word]))
    if not text.lstrip().startswith("{"):
        raise UsageError(
            f'option {option} is earliest, latest or JSON such as {{"orders": 123}}, not {text!r}'
        )
    each = {name: At(_position(option, name, value)) for name, value in _json(option, text).items()}
    rest = EARLIEST if option.startswith("starting") else LATEST
    return Bound(option, rest.rest, each)


def _position(option: str, name: str, value: Any) -> int:
    if isinstance(value, str) and value.lower() in _WORDS:
        value = _WORDS[value.lower()]
    ending = option.startswith("ending")
    if isinstance(value, bool) or not isinstance(value, int) or not -2 <= value < SEQ_END_MAX:
        raise UsageError(
            f"option {option}, stream {name!r}: a position from 1 on, "
            f'"earliest" (-2) or "latest" (-1), not {value!r:.80}'
        )
    if value == 0 or (ending and value == -2):
        raise UsageError(
            f"option {option}, stream {name!r}: positions begin at 1"
            + ("; with earliest as the end, nothing would be read" if value else "")
        )
    return value


def timestamp_of(option: str, text: str) -> Bound:
    """Parse `startingTimestamp`: milliseconds since 1970, for all streams."""
    try:
        value: Any = int(text)
    except ValueError:
        value = text
    return Bound(option, _time(option, "", value))


def timestamps_of(option: str, text: str) -> Bound:
    """Parse `startingOffsetsByTimestamp`: milliseconds since 1970, by stream."""
    each = {name: _time(option, name, value) for name, value in _json(option, text).items()}
    rest = EARLIEST if option.startswith("starting") else LATEST
    return Bound(option, rest.rest, each)


def _time(option: str, name: str, value: Any) -> Time:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MS_MAX:
        where = f", stream {name!r}" if name else ""
        raise UsageError(
            f"option {option}{where}: milliseconds since 1970, such as 1767225600000, not {value!r}"
        )
    return Time(value * _MS)


def _json(option: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as problem:
        raise UsageError(f"option {option} is not valid JSON: {problem}. It is {text!r}") from None
    if not isinstance(found, dict) or not found:
        raise UsageError(f'option {option} is JSON by stream, such as {{"orders": 123}}: {text!r}')
    for name, value in found.items():
        if isinstance(value, dict):
            raise UsageError(
                f"option {option}, stream {name!r}: streams have no partitions; write "
                f'{{"{name}": 123}}'
            )
    return found


# ---------------------------------------------------------------- what Spark stores


class Place(NamedTuple):
    """A query's progress in one stream."""

    stream_id: bytes
    next: int  # the next position to read


def places_to(places: Mapping[str, Place]) -> dict[str, Any]:
    """Places as JSON for Spark's offset log, in a fixed order, so that equal places have equal
    text."""
    return {
        name: {"id": place.stream_id.hex(), "next": place.next}
        for name, place in sorted(places.items())
    }


def places_from(offset: Mapping[str, Any]) -> dict[str, Place]:
    """The places in an offset that Spark stored."""
    try:
        return {
            name: Place(bytes.fromhex(value["id"]), _next(value["next"]))
            for name, value in offset.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UsageError(
            "the checkpoint contains an offset that is not Surecast's: "
            f"{json.dumps(offset)[:200]}. Was it written by a query on another source? Use "
            "another checkpointLocation for this query"
        ) from None


def _next(value: Any) -> int:
    """Check a stored next position; ValueError if no stream can have it."""
    if type(value) is not int or not 1 <= value <= SEQ_END_MAX:
        raise ValueError(value)
    return value


def share(backlog: Mapping[str, int], most: int) -> dict[str, int]:
    """Divide `most` events among streams in proportion to their backlogs. Every stream with a
    backlog gets at least one event."""
    total = sum(backlog.values())
    if total <= most:
        return dict(backlog)
    return {name: max(1, size * most // total) if size else 0 for name, size in backlog.items()}
