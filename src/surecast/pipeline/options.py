"""Parses and checks a reader's options; an error names the option that is wrong.

An option that has the same meaning in Spark's Kafka connector has the same name as there. Spark
passes option names in lower case, so upper and lower case are not distinguished.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final

from surecast.core.names import is_name, is_pattern, matches
from surecast.endpoint.discovery import parse_url
from surecast.endpoint.error_messages import bad_name
from surecast.errors import FilterError, UsageError
from surecast.pipeline.offsets import (
    EARLIEST,
    LATEST,
    Bound,
    bound_of,
    timestamp_of,
    timestamps_of,
)

__all__ = ["NAMES", "SourceOptions", "check_names", "parse"]

URL: Final = "surecast://127.0.0.1:7400"
_NUMBER_MAX: Final = (1 << 31) - 1  # a Java int
COLUMNS: Final = ("stream", "seq", "kind", "range", "key", "value", "attributes", "timestamp")
_CHOICES: Final = (*COLUMNS, "tag")  # what option columns may name
NAMES: Final = (
    "url",
    "token",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "includeVoids",
    "where",
    "segments",
    "columns",
    "pushFilters",
)
_STARTS: Final = NAMES[4:7]  # startingOffsets, startingTimestamp, startingOffsetsByTimestamp
_ENDS: Final = NAMES[7:10]  # the same for the end
# Options of the Kafka connector or of writers, and what to use instead.
_ELSEWHERE: Final = {
    "kafka.bootstrap.servers": "the servers are named by url=surecast://host:port",
    "assign": "streams have no partitions: use subscribe",
    "path": "load() takes no path: name streams with subscribe or subscribePattern",
    "topic": "streams are read by subscribe or subscribePattern, and written to by stream",
    "minoffsetspertrigger": "batches have no minimum size: use a longer trigger",
    "maxtriggerdelay": "batches have no minimum size: use a longer trigger",
    "stream": "this is an option of writers; readers use subscribe",
}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """One reader's options."""

    url: str = URL
    token: str = field(default="", repr=False)
    streams: tuple[str, ...] = ()  # names of streams; empty if `pattern` is given instead
    pattern: str = ""
    start: Bound = EARLIEST
    end: Bound = LATEST
    trigger_offsets_max: int | None = None  # events per micro-batch; None: no limit
    partitions_min: int = 1  # number of Spark tasks, at least
    fail_on_loss: bool = True
    voids: bool = False  # whether to return a row for each void range
    files: bool = True  # whether to read segment files that this machine can access
    columns: tuple[str, ...] = COLUMNS
    push: bool = False  # whether the query's filters narrow the ranges that are read
    where: str = ""  # the filter, as its canonical text; "": there is none

    @property
    def needs_schema(self) -> bool:
        """Whether the rows, or the filter, depend on the schema of the streams."""
        return "attributes" in self.columns or self.tests_fields

    @property
    def tests_fields(self) -> bool:
        """Whether the filter tests other columns than those that every event has."""
        if not self.where:
            return False
        from surecast.where.columns import KEY, TIME
        from surecast.where.text import parse
        from surecast.where.tree import tests_in

        tests = tests_in(parse(self.where))
        return any(test.column not in (KEY.name, TIME.name) for test in tests)

    @property
    def wanted(self) -> str:
        """The option that names the streams, for error messages."""
        return f"subscribePattern={self.pattern}" if self.pattern else (
            f"subscribe={','.join(self.streams)}"
        )  # fmt: skip


def parse(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """The options of a batch or a streaming reader. Raises UsageError for the first wrong one."""
    check_names(given, NAMES)
    options = {name: given[key] for key in given for name in NAMES if name.lower() == key.lower()}
    if streaming and (found := [name for name in _ENDS if name in options]):
        raise UsageError(
            f"option {found[0]} is for spark.read: a streaming query has no end; stop it with "
            "trigger(availableNow=True) or query.stop()"
        )
    url = options.get("url", URL)
    try:
        parse_url(url)
    except UsageError as problem:
        raise UsageError(f"option url: {problem}") from None
    streams, pattern = _wanted(options)
    start = _bound(options, _STARTS, LATEST if streaming else EARLIEST)
    end = _bound(options, _ENDS, LATEST)
    _check_bounds(start, end, streams, pattern)
    most = options.get("maxOffsetsPerTrigger")
    return SourceOptions(
        url,
        options.get("token", ""),
        streams,
        pattern,
        start,
        end,
        None if most is None else _number("maxOffsetsPerTrigger", most),
        _number("minPartitions", options.get("minPartitions", "1")),
        _boolean("failOnDataLoss", options.get("failOnDataLoss", "true")),
        _boolean("includeVoids", options.get("includeVoids", "false")),
        _choice("segments", options.get("segments", "auto"), ("auto", "never")) == "auto",
        _columns(options.get("columns", ",".join(COLUMNS))),
        _boolean("pushFilters", options.get("pushFilters", "false")),
        _where(options.get("where", "")),
    )


def _where(text: str) -> str:
    """The canonical text of a filter. Its columns are checked when the streams are known."""
    if not text.strip():
        return ""
    from surecast.where.text import parse, shown

    try:
        return shown(parse(text))
    except FilterError as problem:
        raise UsageError(f"option where: {problem}") from None


def check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Raise UsageError for the first unknown name, and suggest the most similar known name."""
    spelled = {name.lower(): name for name in known}
    for name in given:
        if name.lower() in spelled:
            continue
        if hint := _ELSEWHERE.get(name.lower()):
            raise UsageError(f"option {name}: {hint}")
        near = get_close_matches(name.lower(), spelled, 1)
        meant = f"did you mean {spelled[near[0]]}?" if near else ""
        raise UsageError(
            f"unknown option {name}: {meant or 'there are ' + ', '.join(spelled.values())}"
        )


def _wanted(options: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    """The names of the streams, or a pattern; the other one is empty."""
    names, pattern = options.get("subscribe"), options.get("subscribePattern")
    if (names is None) == (pattern is None):
        both = "subscribe and subscribePattern are both given: use" if names else "say"
        raise UsageError(
            f"{both} which streams to read, with subscribe=orders,trades or with "
            "subscribePattern=orders.>"
        )
    if pattern is not None:
        if not is_pattern(pattern):
            raise UsageError(
                f"option subscribePattern: {pattern!r} is not a valid stream pattern: use tokens "
                "separated by dots, * for any one token, > at the end for one or more, such as "
                "orders.>"
            )
        return (), pattern
    assert names is not None
    found = tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    if not found:
        raise UsageError("option subscribe is empty: name streams, such as subscribe=orders,trades")
    for name in found:
        if not is_name(name):
            hint = " (patterns go into subscribePattern)" if is_pattern(name) else ""
            raise UsageError(f"option subscribe: {bad_name(name)}{hint}")
    return found, ""


def _bound(options: Mapping[str, str], names: tuple[str, ...], default: Bound) -> Bound:
    """The bound that one of the options `names` sets; `default` if none is given."""
    given = [name for name in names if name in options]
    if not given:
        return default
    if len(given) > 1:
        raise UsageError(f"options {' and '.join(given)} have the same purpose: give only one")
    name = given[0]
    text = options[name]
    if name.endswith("Timestamp") and "Offsets" not in name:
        return timestamp_of(name, text)
    return timestamps_of(name, text) if name.endswith("ByTimestamp") else bound_of(name, text)


def _check_bounds(start: Bound, end: Bound, streams: tuple[str, ...], pattern: str) -> None:
    for bound in (start, end):
        for name in bound.each:
            if streams and name not in streams:
                raise UsageError(
                    f"option {bound.option} names {name!r}, which subscribe does not: "
                    f"{', '.join(streams)}"
                )
            if pattern and not matches(pattern, name):
                raise UsageError(
                    f"option {bound.option} names {name!r}, which subscribePattern {pattern} does "
                    "not match"
                )
    if end.option and end.rest == EARLIEST.rest:  # endingOffsets=earliest
        raise UsageError(
            f"option {end.option}: no event is before the earliest position. Use latest, "
            'positions such as {"orders": 123}, or leave it out'
        )


def _columns(text: str) -> tuple[str, ...]:
    """The wanted columns, in the order of _CHOICES. Spark does not tell a source written in Python
    which columns a query needs. With this option, a user can save the cost of the others."""
    wanted = {name.strip().lower() for name in text.split(",")}
    strange = sorted(wanted - set(_CHOICES))
    if strange:
        raise UsageError(f"option columns names {strange[0]!r}; there are {', '.join(_CHOICES)}")
    return tuple(name for name in _CHOICES if name in wanted)


def _number(name: str, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= _NUMBER_MAX:
        raise UsageError(
            f"option {name} is a whole number from 1 to {_NUMBER_MAX:,}, not {text!r:.80}"
        )
    return number


def _boolean(name: str, text: str) -> bool:
    return _choice(name, text, ("true", "false")) == "true"


def _choice(name: str, text: str, choices: tuple[str, ...]) -> str:
    if text.lower() not in choices:
        raise UsageError(f"option {name} is {' or '.join(choices)}, not {text!r}")
    return text.lower()
