"""A named subscription's place: taken when it begins, moved as events are dealt with.

Acknowledgements are cumulative, so only the latest positions matter: they are sent together, one
message at a time, and whoever waits for an acknowledgement is told when that message is on disk at
every replica.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any, Final

from surecast.core.endpoint import MoveCursor, TakeCursor
from surecast.core.streams import CURSORS
from surecast.core.types import SECOND, LogId
from surecast.endpoint.control import Control
from surecast.endpoint.error_messages import subscription_error
from surecast.endpoint.options import ClientOptions
from surecast.errors import Closed, SurecastError

__all__ = ["Cursor"]

_BEGUN: Final = 2  # a position that the log of the places has, once somebody holds a name


class Cursor:
    """`positions()` says how far things are; `failed` is told when the place is lost."""

    def __init__(
        self,
        name: str,
        control: Control,
        options: ClientOptions,
        positions: Callable[[], dict[LogId, int]],
        failed: Callable[[SurecastError], None],
    ) -> None:
        self.name = name
        self.armed = False  # a message will be sent soon
        self.stored: dict[LogId, int] = {}  # as the region has it
        self._holder = secrets.token_bytes(16)
        self._control = control
        self._options = options
        self._positions = positions
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._token: int | None = None
        self._attached: asyncio.Future[None] = self._loop.create_future()
        self._marks: dict[LogId, int] = {}
        self._waiting: list[tuple[dict[LogId, int], asyncio.Future[None]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        self._problem: SurecastError | None = None

    # ------------------------------------------------------------ taking the place

    async def attach(self) -> None:
        """Become the holder of the name; whoever was it is fenced."""
        self._token = self._control.watch(TakeCursor(self.name, self._holder), self._told)
        await asyncio.wait([self._attached])
        self.check()

    def _told(self, answer: Any) -> None:
        if isinstance(answer, SurecastError):
            self._lose(answer)
        elif answer.why:
            self._lose(subscription_error(self.name, answer.why))
        elif not self._attached.done():
            self.stored = dict(answer.positions)
            self._attached.set_result(None)

    def _lose(self, problem: SurecastError) -> None:
        if self._problem is not None:
            return
        self._problem = problem
        if not self._attached.done():
            self._attached.set_result(None)
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(type(problem)(*problem.args))
        self._failed(problem)

    def check(self) -> None:
        """Raise if the place is lost, or given up."""
        if self._problem is not None:
            raise type(self._problem)(*self._problem.args)

    # ------------------------------------------------------------ moving on

    @property
    def has_begun(self) -> bool:
        """Whether this name has read by a pattern before.

        If so, streams that it has no place in have appeared while nobody read, and none of their
        events was seen. That is kept as a place in the log of the places themselves, which has an
        entry at least: who holds the name.
        """
        return CURSORS in self.stored

    def begin(self) -> None:
        self._marks[CURSORS] = _BEGUN

    def all_positions(self) -> dict[LogId, int]:
        return {**self._positions(), **self._marks}

    def moved(self) -> None:
        """Positions have changed: say so, soon. Cheap when it has been said."""
        if not self.armed:
            self.armed = True
            self._wait()

    def _wait(self) -> None:
        self._timer = self._loop.call_later(self._options.ack_every_ns / SECOND, self._due)

    def _due(self) -> None:
        if self._sending is None:
            self._send()
        else:
            self._wait()  # for the one under way

    def moved_elsewhere(self) -> None:
        """`moved`, from another thread."""
        if not self.armed:
            self._loop.call_soon_threadsafe(self.moved)

    async def stored_at_least(self, positions: dict[LogId, int]) -> None:
        """Wait until the region has these positions, which are among `positions()` already."""
        self.check()
        if self._is_stored(positions):
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((positions, future))
        self._send()
        await future

    def _is_stored(self, positions: dict[LogId, int]) -> bool:
        return all(self.stored.get(stream, 0) >= at for stream, at in positions.items())

    def _send(self) -> None:
        if self._sending is None and self._problem is None:
            self._sending = self._loop.create_task(self._send_all())

    async def _send_all(self) -> None:
        try:
            while self._problem is None:
                if self._timer is not None:
                    self._timer.cancel()
                self.armed = False
                ahead = {
                    stream: at
                    for stream, at in self.all_positions().items()
                    if at > self.stored.get(stream, 0)
                }
                if not ahead:
                    # What is still waited for belongs to streams that were deleted meanwhile.
                    waiting, self._waiting = self._waiting, []
                    for _, future in waiting:
                        if not future.done():
                            future.set_result(None)
                    return
                await self._advance(ahead)
                if not self._waiting:
                    return  # whatever has moved meanwhile has set the timer
        except SurecastError as problem:
            self._lose(problem)
        finally:
            self._sending = None

    async def _advance(self, ahead: dict[LogId, int]) -> None:
        answer = await self._control.ask(MoveCursor(self.name, self._holder, ahead))
        if answer.why:
            self._lose(subscription_error(self.name, answer.why))
            return
        self.stored.update(ahead)
        still = []
        for positions, future in self._waiting:
            if future.done():
                continue
            if self._is_stored(positions):
                future.set_result(None)
            else:
                still.append((positions, future))
        self._waiting = still

    # ------------------------------------------------------------ giving it up

    async def close(self) -> None:
        """Say how far things are, once more; then let go."""
        try:
            if self._problem is None and self._attached.done():
                await self.stored_at_least(self.all_positions())
        finally:
            self._problem = self._problem or Closed("the subscription is closed")
            if self._timer is not None:
                self._timer.cancel()
            if self._sending is not None:
                self._sending.cancel()
            if self._token is not None:
                self._control.drop(self._token)

    async def store_later(self, positions: dict[LogId, int]) -> None:
        """Store positions after `close`. No effect if somebody has taken the name since."""
        ahead = {stream: at for stream, at in positions.items() if at > self.stored.get(stream, 1)}
        if ahead:
            await self._control.ask(MoveCursor(self.name, self._holder, ahead))
