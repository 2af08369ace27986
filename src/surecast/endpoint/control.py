"""The control node: it opens streams, publishes and asks questions for a whole program.

Its machine sees to retries, reconnects and failover; here its events become results that tasks can
wait for. If a caller stops waiting, its request may still be carried out; the answer is then
ignored. What cannot be encoded is refused here (UsageError), before the machine gets it: inside the
node it would be an internal error, which ends everything that the client has under way.

The machine has a layer that publishes to the stream service, and one for each delivery with a
publisher of its own, named like the delivery. Such a delivery's layer opens its streams and is
offered their batches.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from surecast.columns.batch import Batch
from surecast.core.endpoint import Acked, Answered, Drop, Failed, Inquire, OfferBatch, Open, Opened
from surecast.core.streams import StreamInfo, StreamSpec
from surecast.core.types import Command, LogId
from surecast.errors import Closed, UsageError
from surecast.runtime.node import Node

__all__ = ["Control"]

QUESTIONS_MAX: Final = 9_000  # the machine's own bound is above it

PUBLISHER: Final = "publisher"  # the layer that publishes to the stream service

Told = Callable[[Any], None]  # an answer, or (once, last) the error that ends all answers


@dataclass(slots=True)
class _Opening:
    """One call of `open` that waits for its answer, or for its turn."""

    spec: StreamSpec
    opened: asyncio.Future[Opened]


class Control:
    """See the module. `node` is attached once it is made: it needs `on_emit` first."""

    node: Node

    def __init__(self) -> None:
        self._tokens = itertools.count(1)
        self._opens: dict[str, deque[_Opening]] = {}
        self._publishers: dict[LogId, str] = {}  # the layer, of opened streams where not PUBLISHER
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
        self.node.codec.check(spec)
        waiting = self._opens.setdefault(name, deque())
        future: asyncio.Future[Opened] = asyncio.get_running_loop().create_future()
        waiting.append(_Opening(spec, future))
        if len(waiting) == 1:
            self._ask_to_open(name, spec)
        return await future

    def _ask_to_open(self, name: str, spec: StreamSpec) -> None:
        self.node.give(Command(self._layer_of(spec.delivery), Open(name, spec)))

    def _layer_of(self, delivery: str) -> str:
        machine: Any = self.node.machine
        return delivery if delivery in machine.layers else PUBLISHER

    def offer(self, stream: LogId, batch: Batch, done: Callable[[Acked | Failed], None]) -> None:
        """Publish a batch after all offered before; `done` is told how it ended."""
        if self._problem:
            self.node.loop.call_soon(done, Failed(stream, 0, "closed"))
            return
        token = next(self._tokens)
        self._offers[token] = done
        layer = self._publishers.get(stream, PUBLISHER)
        self.node.give(Command(layer, OfferBatch(stream, batch, token)))

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
        self.node.codec.check(question)
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
        if event.info is not None and not event.why and self._opens_again(waiting[0], event.info):
            return
        _settle(waiting.popleft().opened, event)
        while waiting and waiting[0].opened.done():
            waiting.popleft()  # given up before it was asked
        if waiting:
            self._ask_to_open(event.name, waiting[0].spec)
        else:
            del self._opens[event.name]

    def _opens_again(self, opening: _Opening, info: StreamInfo) -> bool:
        """Whether the stream has to be opened by another layer, too.

        Without `delivery=` the stream service opens it, and only its answer tells the delivery.
        """
        layer = self._layer_of(info.delivery)
        if layer != self._layer_of(opening.spec.delivery):
            opening.spec = msgspec.structs.replace(opening.spec, delivery=info.delivery)
            self._ask_to_open(info.name, opening.spec)
            return True
        if layer != PUBLISHER:
            self._publishers[info.stream_id] = layer
        return False

    # ------------------------------------------------------------ the end

    def fail(self, problem: str) -> None:
        """No answers will come any more: everybody who waits is told why."""
        if self._problem:
            return
        self._problem = problem
        opens, self._opens = self._opens, {}
        for waiting in opens.values():
            for opening in waiting:
                _settle(opening.opened, Closed(problem))
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
