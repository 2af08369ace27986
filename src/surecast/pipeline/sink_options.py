"""Parses and checks a writer's options; an error names the option that is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from surecast.columns.rules import Policy
from surecast.core.names import is_internal, is_name
from surecast.core.policies import parse_policy
from surecast.endpoint.discovery import parse_url
from surecast.endpoint.error_messages import bad_name
from surecast.errors import UsageError
from surecast.pipeline.options import URL, check_names
from surecast.pipeline.staging import ONCE, staging_name

__all__ = ["NAMES", "SinkOptions", "check_target", "parse"]

NAMES: Final = ("url", "token", "stream", "createStreams", "retain", "queryId", "queryPart")
_SPARKS_OWN: Final = ("checkpointlocation", "queryname")  # options for Spark itself; ignored here
_QUERY: Final = re.compile(r"[A-Za-z0-9_~:@=+.-]{1,100}")
_PART: Final = re.compile(r"(-1|\d{1,18})\.\.(\d{1,18})")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """One writer's options."""

    url: str = URL
    token: str = field(default="", repr=False)
    stream: str | None = None  # the target stream; None: each row names its target
    create: bool = True  # whether to create missing streams
    retain: Policy | None = None  # the retention of created streams
    # queryId: the name of a batch job; if the job is repeated, nothing is published twice.
    query: str | None = None
    # queryPart, for a batch job in parts: where the previous part ends (-1: none), where this ends.
    part: tuple[int, int] | None = None

    @property
    def staging(self) -> str:
        """The stream to which tasks write rows before the driver publishes them."""
        return staging_name(self.stream)


def parse(given: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a writer. Raises UsageError for the first wrong one."""
    options = {key: value for key, value in given.items() if key.lower() not in _SPARKS_OWN}
    if "path" in (key.lower() for key in options):
        raise UsageError(
            "option path: save() and start() take no path. Name the stream to write to with "
            "option('stream', ...), or give the rows a column `stream`"
        )
    check_names(options, NAMES)
    named = {name: options[key] for key in options for name in NAMES if name.lower() == key.lower()}
    url = named.get("url", URL)
    try:
        parse_url(url)
    except UsageError as problem:
        raise UsageError(f"option url: {problem}") from None
    stream = named.get("stream")
    if stream is not None:
        check_target(stream, "option stream")
    query = named.get("queryId")
    if query is not None and (not _QUERY.fullmatch(query) or query.startswith(ONCE)):
        raise UsageError(
            f"option queryId: {query!r} is not a valid job name: up to 100 letters, digits and any "
            f"of _~:@=+.-, and it must not begin with {ONCE}"
        )
    part = None if "queryPart" not in named else _part(named["queryPart"], query)
    create = named.get("createStreams", "true").lower()
    if create not in ("true", "false"):
        raise UsageError(f"option createStreams is true or false, not {create!r}")
    retain = None if "retain" not in named else parse_policy(named["retain"], "option retain")
    return SinkOptions(url, named.get("token", ""), stream, create == "true", retain, query, part)


def check_target(name: str, where: str) -> None:
    """Raise UsageError if a stream of this name cannot be written to. `where` is the option or
    column that contains the name, for the error."""
    if not is_name(name):
        raise UsageError(f"{where}: {bad_name(name)}")
    if is_internal(name):
        raise UsageError(
            f"{where}: {name!r} begins with _, which is reserved for Surecast's internal streams. "
            "Choose another name"
        )
    # The name of its staging stream is longer, and otherwise as valid as the name itself.
    if not is_name(staging_name(name)):
        room = 255 - len(staging_name(""))
        raise UsageError(f"{where}: {name[:40]}… is longer than {room} characters")


def _part(text: str, query: str | None) -> tuple[int, int]:
    found = _PART.fullmatch(text)
    if query is None or found is None or int(found[1]) >= int(found[2]):
        raise UsageError(
            "option queryPart needs a queryId, and has the form PREVIOUS..OWN: where the previous "
            "part ends (-1: there is none) and where this part ends, a higher number, such as "
            f"499..600, not {text!r}"
        )
    return int(found[1]), int(found[2])
