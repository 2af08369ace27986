"""The control node: it opens streams, publishes and asks questions for a whole program.

Its machine sees to retries, reconnects and failover; here its events become results that tasks can
wait for. A caller that gives up waiting disturbs nobody: what it asked for may still happen, and
the answer finds nobody waiting.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from surecast.columns.batch import Batch
from surecast.core.endpoint import Acked, Answered, Drop, Failed, Inquire, OfferBatch, Open, Opened
from surecast.core.streams import StreamSpec
from surecast.core.types import Command, LogId
from surecast.errors import Closed, UsageError
from surecast.runtime.node import Node

__all__ = ["Control"]

QUESTIONS_MAX: Final = 9_000  # the machine's own bound is above it

Told = Callable[[Any], None]  # an answer, or (once, last) the error that ends all answers


class Control:
    """See the module. `node` is attached once it is made: it needs `on_emit` first."""

    node: Node

    def __init__(self) -> None:
        self._tokens = itertools.count(1)
        self._opens: dict[str, deque[tuple[StreamSpec, asyncio.Future[Opened]]]] = {}
        self._offers: dict[int, Callable[[Acked | Failed], None]] = {}
        self._questions: dict[int, tuple[Told, bool]] = {}  # and whether answers go on coming
        self._problem = ""

    @property
    def busy(self) -> bool:
        """Whether somebody waits for something."""
        return bool(self._opens or self._offers or self._questions)

    # ------------------------------------------------------------ what is asked

    async def open(self, name: str, spec: StreamSpec) -> Opened:
        """Open or create a stream. One at a time for each name: answers name nothing else."""
        self._check()
        waiting = self._opens.setdefault(name, deque())
        future: asyncio.Future[Opened] = asyncio.get_running_loop().create_future()
        waiting.append((spec, future))
        if len(waiting) == 1:
            self.node.give(Command("publisher", Open(name, spec)))
        return await future

    def offer(self, stream: LogId, batch: Batch, done: Callable[[Acked | Failed], None]) -> None:
        """Publish a batch after all offered before; `done` is told how it ended."""
        if self._problem:
            self.node.loop.call_soon(done, Failed(stream, 0, "closed"))
            return
        token = next(self._tokens)
        self._offers[token] = done
        self.node.give(Command("publisher", OfferBatch(stream, batch, token)))

    async def ask(self, question: Any) -> Any:
        """The answer to a question (`core.endpoint`)."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        token = self._inquire(question, lambda answer: _settle(future, answer), keep=False)
        try:
            return await future
        finally:
            self.drop(token)

    def watch(self, question: Any, told: Told) -> int:
        """Ask, and have `told` called with every answer until `drop`. Returns what to drop."""
        return self._inquire(question, told, keep=True)

    def _inquire(self, question: Any, told: Told, keep: bool) -> int:
        self._check()
        if len(self._questions) >= QUESTIONS_MAX:
            raise UsageError(
                f"{QUESTIONS_MAX:,} questions of this client are open: use fewer subscriptions"
            )
        token = next(self._tokens)
        self._questions[token] = told, keep
        self.node.give(Command("inquirer", Inquire(question, token)))
        return token

    def drop(self, token: int) -> None:
        if self._questions.pop(token, None) is not None:
            self.node.give(Command("inquirer", Drop(token)))

    # ------------------------------------------------------------ what is heard

    def on_emit(self, event: Any) -> None:
        match event:
            case Acked() | Failed():
                done = self._offers.pop(event.token, None)
                if done is not None:
                    done(event)
            case Answered(token, answer):
                told, keep = self._questions.get(token, (None, True))
                if not keep:
                    del self._questions[token]
                if told is not None:
                    told(answer)
            case Opened():
                self._opened(event)

    def _opened(self, event: Opened) -> None:
        waiting = self._opens.get(event.name)
        if not waiting:
            return
        _settle(waiting.popleft()[1], event)
        while waiting and waiting[0][1].done():
            waiting.popleft()  # given up before it was asked
        if waiting:
            self.node.give(Command("publisher", Open(event.name, waiting[0][0])))
        else:
            del self._opens[event.name]

    # ------------------------------------------------------------ the end

    def fail(self, problem: str) -> None:
        """No answers will come any more: everybody who waits is told why."""
        if self._problem:
            return
        self._problem = problem
        opens, self._opens = self._opens, {}
        for waiting in opens.values():
            for _, future in waiting:
                _settle(future, Closed(problem))
        offers, self._offers = self._offers, {}
        for done in offers.values():
            done(Failed(b"", 0, "closed"))
        questions, self._questions = self._questions, {}
        for told, _ in questions.values():
            told(Closed(problem))

    def _check(self) -> None:
        if self._problem:
            raise Closed(self._problem)


def _settle(future: asyncio.Future[Any], answer: Any) -> None:
    if future.done():
        return
    if isinstance(answer, BaseException):
        future.set_exception(answer)
    else:
        future.set_result(answer)
