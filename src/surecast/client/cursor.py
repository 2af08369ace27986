"""The client's side of a *cursor*: the positions of a named subscription that the region stores.

When the subscription begins, the client becomes the *holder* of the subscription's name and gets
the stored positions. The previous holder is *fenced*: it can store nothing more. While the program
reads the subscription, the client has the region store the new positions.

A position covers all events before it, so only the latest position of each stream matters. The
client sends the positions of all streams in one message, and the next message only after the
region's answer. The region answers when the positions are on disk at every replica.
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

# The position that `Cursor.begin` stores for the log of cursors. The region accepts only positions
# up to the end of a log. The end of this one is at least 2: it has an entry for this name's holder.
_BEGUN: Final = 2


class Cursor:
    """The cursor of a named subscription (see the module).

    `positions()` returns the first unprocessed position of each stream. `failed` is called with the
    error when this client is not the holder any more, for example because another reader took the
    name.
    """

    def __init__(
        self,
        name: str,
        control: Control,
        options: ClientOptions,
        positions: Callable[[], dict[LogId, int]],
        failed: Callable[[SurecastError], None],
    ) -> None:
        self.name = name
        # Whether a timer is set that will send the positions, so that `moved` need not be called.
        self.armed = False
        self.stored: dict[LogId, int] = {}  # the positions that the region has stored
        self._holder = secrets.token_bytes(16)
        self._control = control
        self._options = options
        self._positions = positions
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._token: int | None = None  # of the query that makes this client the holder
        # Done when the region has answered that query.
        self._attached: asyncio.Future[None] = self._loop.create_future()
        self._marks: dict[LogId, int] = {}  # stored in addition to `positions()` (`begin`)
        # Calls of `stored_at_least`: the positions that each waits for, and its future.
        self._waiting: list[tuple[dict[LogId, int], asyncio.Future[None]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        self._problem: SurecastError | None = None  # why nothing more can be stored

    # ------------------------------------------------------------ taking the name

    async def attach(self) -> None:
        """Become the holder of the name; the previous holder is fenced."""
        self._token = self._control.watch(TakeCursor(self.name, self._holder), self._on_answer)
        await asyncio.wait([self._attached])
        self.check()

    def _on_answer(self, answer: Any) -> None:
        """Called with each answer to the query of `attach`: the stored positions, or later the
        reason why this client is not the holder any more."""
        if isinstance(answer, SurecastError):
            self._lose(answer)
        elif answer.why:
            self._lose(subscription_error(self.name, answer.why))
        elif not self._attached.done():
            self.stored = dict(answer.positions)
            self._attached.set_result(None)

    def _lose(self, problem: SurecastError) -> None:
        """Called when this client is not the holder any more: fail all waiting calls."""
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
        """Raise an error if this client is not the holder any more, or the cursor is closed."""
        if self._problem is not None:
            raise type(self._problem)(*self._problem.args)

    # ------------------------------------------------------------ moving

    @property
    def has_begun(self) -> bool:
        """Whether this name was used before for a subscription by name or pattern.

        In that case a matching stream without a stored position is new: it did not exist when the
        name was last used, so none of its events was read. The client stores this fact as a
        position in the log of cursors itself (CURSORS), as if that log were one of the streams.
        """
        return CURSORS in self.stored

    def begin(self) -> None:
        """Make `has_begun` true: it is stored with the next positions."""
        self._marks[CURSORS] = _BEGUN

    def all_positions(self) -> dict[LogId, int]:
        """All that is to be stored: the positions, and the mark of `begin`."""
        return {**self._positions(), **self._marks}

    def moved(self) -> None:
        """Called when positions have moved: schedule a message, unless one is scheduled already."""
        if not self.armed:
            self.armed = True
            self._wait()

    def _wait(self) -> None:
        """Set the timer, so that acknowledgements of some time are sent in one message."""
        self._timer = self._loop.call_later(self._options.ack_every_ns / SECOND, self._due)

    def _due(self) -> None:
        if self._sending is None:
            self._send()
        else:
            self._wait()  # the previous message is not answered yet

    def moved_elsewhere(self) -> None:
        """The same as `moved`, for calls from a thread other than the event loop's."""
        if not self.armed:
            self._loop.call_soon_threadsafe(self.moved)

    async def stored_at_least(self, positions: dict[LogId, int]) -> None:
        """Wait until the region has stored these positions or later ones. `positions()` must return
        at least these from now on."""
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
        """Begin to send the positions, unless that is in progress."""
        if self._sending is None and self._problem is None:
            self._sending = self._loop.create_task(self._send_all())

    async def _send_all(self) -> None:
        """Send the positions until no call of `stored_at_least` waits."""
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
                    # All positions are stored. Calls that still wait do so for positions in streams
                    # that were deleted meanwhile.
                    waiting, self._waiting = self._waiting, []
                    for _, future in waiting:
                        if not future.done():
                            future.set_result(None)
                    return
                await self._advance(ahead)
                if not self._waiting:
                    return  # if positions have moved meanwhile, the timer is set
        except SurecastError as problem:
            self._lose(problem)
        finally:
            self._sending = None

    async def _advance(self, ahead: dict[LogId, int]) -> None:
        """Have the region store these positions, and end the waits for them."""
        answer = await self._control.ask(MoveCursor(self.name, self._holder, ahead))
        if answer.why:
            self._lose(subscription_error(self.name, answer.why))
            return
        self.stored.update(ahead)
        waiting = []
        for positions, future in self._waiting:
            if future.done():
                continue
            if self._is_stored(positions):
                future.set_result(None)
            else:
                waiting.append((positions, future))
        self._waiting = waiting

    # ------------------------------------------------------------ closing

    async def close(self) -> None:
        """Store the positions once more, then release the name."""
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
        """Store positions after `close`. This has no effect if another reader has taken the name
        since."""
        # Without a stored position a stream begins at 1, so there is nothing to store up to 1.
        ahead = {stream: at for stream, at in positions.items() if at > self.stored.get(stream, 1)}
        if ahead:
            await self._control.ask(MoveCursor(self.name, self._holder, ahead))
