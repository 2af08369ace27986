"""Lists, resets and deletes the named subscriptions of a region, for the client and the HTTP port.

The head of the region's chain executes the requests (`protocols/streams/cursors.py`). The control
node repeats a request until the head answers. A reset or deletion has a random id, so that the head
applies a repeated request only once.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Literal, NamedTuple

from surecast.core.endpoint import DeleteCursor, ResetCursor, WhereIs, WhichCursors
from surecast.core.names import is_name, is_pattern
from surecast.core.status import SubscriptionInfo, SubscriptionPosition, subscription_infos
from surecast.core.streams import CursorState, StreamInfo
from surecast.core.types import LogId
from surecast.endpoint.control import Control
from surecast.endpoint.error_messages import subscription_error
from surecast.errors import PeerError, UnknownSubscription, UsageError

__all__ = ["AtTime", "Begin", "SubscriptionInfo", "SubscriptionPosition", "Subscriptions"]

STREAMS_MAX: Final = 10_000  # streams in one reset, so that the message fits into a frame
ASKED_AT_ONCE: Final = 100  # concurrent queries for the position at a time

# A function that returns the streams that match a pattern, each with its end (the position that
# its next event gets).
Ends = Callable[[str], Awaitable[list[tuple[StreamInfo, int]]]]


class AtTime(NamedTuple):
    """Begin at the first event that is not older than this time."""

    time_ns: int


Begin = Literal["earliest", "latest"] | int | AtTime


class _Target(NamedTuple):
    """A stream in which a subscription is reset, and the position that its next event gets."""

    stream_id: LogId
    end: int


class Subscriptions:
    """The named subscriptions of a region; `ends` finds the streams that match a pattern."""

    def __init__(self, control: Control, ends: Ends) -> None:
        self._control = control
        self._ends = ends

    async def everything(self) -> list[SubscriptionInfo]:
        """All named subscriptions, ordered by name."""
        return subscription_infos(await self._states())

    async def page(
        self, after: tuple[str, bytes]
    ) -> tuple[list[SubscriptionInfo], tuple[str, bytes] | None]:
        """One page of subscriptions, and the `after` of the next page (None: this is the last one).

        A page has the subscriptions that follow `after` and fit into one answer. `after` is a
        subscription's name and a stream id, because the positions of one subscription may be on
        several pages; ("", b"") is the first page.
        """
        answer = await self._control.ask(WhichCursors("", after))
        infos = subscription_infos(answer.cursors)
        return infos, None if answer.complete else answer.after

    async def reset(
        self, name: str, begin: Begin, streams: Iterable[str] | None, force: bool
    ) -> dict[str, int]:
        """Move a subscription to `begin` in `streams`, which are names or patterns. With None, move
        it in all streams in which it has a position. Returns the position in each stream."""
        states = await self._existing(name)
        if streams is None:
            known = [position for state in states for position in state.positions]
            targets = {at.stream: _Target(at.stream_id, at.end) for at in known}
            if not targets:
                raise UsageError(
                    f"the subscription {name!r} has no position in a stream yet: name the streams "
                    "to reset it in"
                )
        else:
            targets = await self._targets(streams)
        if len(targets) > STREAMS_MAX:
            raise UsageError(
                f"{len(targets):,} streams in one reset; at most {STREAMS_MAX:,}: name fewer"
            )
        seqs = await self._find(begin, targets)
        positions = {target.stream_id: seqs[stream] for stream, target in targets.items()}
        change = secrets.token_bytes(16)
        answer = await self._control.ask(ResetCursor(name, change, positions, force))
        if answer.why:
            raise subscription_error(name, answer.why)
        return seqs

    async def delete(self, name: str, force: bool) -> None:
        """Delete a subscription. Raises UnknownSubscription if there is none of that name."""
        await self._existing(name)
        change = secrets.token_bytes(16)
        answer = await self._control.ask(DeleteCursor(name, change, force))
        # "unknown-subscription" means that it was deleted since the check above.
        if answer.why and answer.why != "unknown-subscription":
            raise subscription_error(name, answer.why)

    # ------------------------------------------------------------ inside

    async def _states(self, name: str = "") -> list[CursorState]:
        """The subscription of this name, or all if it is "". A subscription whose positions are on
        several pages is listed once per page."""
        states: list[CursorState] = []
        after: tuple[str, bytes] = ("", b"")
        while True:
            answer = await self._control.ask(WhichCursors(name, after))
            states += answer.cursors
            if answer.complete:
                return states
            if answer.after <= after:
                raise PeerError(f"the region repeats a page of its subscriptions after {after}")
            after = answer.after

    async def _existing(self, name: str) -> list[CursorState]:
        """The subscription of this name, as by `_states`; raises an error if there is none."""
        check_subscription_name(name)
        states = await self._states(name)
        if not states:
            raise UnknownSubscription(
                f"the region has no subscription named {name!r}; `surecast subscriptions list` "
                "shows those it has"
            )
        return states

    async def _targets(self, streams: Iterable[str]) -> dict[str, _Target]:
        """The streams that match these names or patterns, by name."""
        targets: dict[str, _Target] = {}
        for pattern in streams:
            if not isinstance(pattern, str) or not is_pattern(pattern):
                raise UsageError(f"{pattern!r} is not a stream name or pattern")
            matching = await self._ends(pattern)
            if not matching:
                raise UsageError(f"no stream of the region matches {pattern!r}")
            targets |= {info.name: _Target(info.stream_id, end) for info, end in matching}
        if not targets:
            raise UsageError("no streams are named")
        return targets

    async def _find(self, begin: Begin, targets: dict[str, _Target]) -> dict[str, int]:
        """The position that `begin` stands for in each stream."""
        if begin == "earliest":
            return dict.fromkeys(targets, 1)
        if begin == "latest":
            return {stream: target.end for stream, target in targets.items()}
        if isinstance(begin, AtTime):
            return await self._locate(begin.time_ns, targets)
        for stream, target in targets.items():
            if not 1 <= begin <= target.end:
                raise UsageError(
                    f"stream {stream!r} has positions from 1 to {target.end} (the next event); "
                    f"{begin} is not one of them"
                )
        return dict.fromkeys(targets, begin)

    async def _locate(self, time_ns: int, targets: dict[str, _Target]) -> dict[str, int]:
        """The position of the first event at or after a time, in each stream."""
        seqs: dict[str, int] = {}
        todo = list(targets)
        for at in range(0, len(todo), ASKED_AT_ONCE):
            part = todo[at : at + ASKED_AT_ONCE]
            questions = (WhereIs(targets[stream].stream_id, time_ns) for stream in part)
            answers = await asyncio.gather(*map(self._control.ask, questions))
            for stream, located in zip(part, answers, strict=True):
                if located.why:
                    raise subscription_error(stream, located.why)
                seqs[stream] = located.seq
        return seqs


def check_subscription_name(name: str) -> None:
    """Raise UsageError if the name is not valid."""
    if not isinstance(name, str) or not is_name(name):
        raise UsageError(
            f"{name!r} is not a valid subscription name: it follows the rules of stream names, "
            "such as billing.eu"
        )
