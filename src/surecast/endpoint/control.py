"""The control node: opens streams, publishes and sends queries for a whole program.

The node's state machine handles retries, reconnects and failover. This module gives it commands,
and turns the events that it emits (Opened, Acked, Failed, Answered) into results that tasks can
await. If a caller stops waiting, its request may still be carried out, and the answer is ignored.
Values that cannot be encoded are refused here with a UsageError. Inside the node they would be an
internal error, which ends all requests of the client.

The state machine consists of layers (`core.compose`). The layer PUBLISHER publishes to the stream
service; most deliveries use it. A delivery with another way of publishing (`Delivery.publisher`)
has a layer of its own, with the name of the delivery. That layer opens the streams of the delivery
and publishes their batches.
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

# The limit for open queries. The state machine's own limit (`inquirer.questions_max`) is higher,
# because exceeding that one would be an internal error.
QUESTIONS_MAX: Final = 9_000

PUBLISHER: Final = "publisher"  # the layer that publishes to the stream service

# Called with each answer to a query, or with an error, after which there are no more answers.
OnAnswer = Callable[[Any], None]


@dataclass(slots=True)
class _Opening:
    """A call of `open` that waits for its answer, or for the end of earlier calls for that name."""

    spec: StreamSpec
    opened: asyncio.Future[Opened]


class Control:
    """The control node's calls (see the module). `node` is set after the construction, because the
    node needs `on_emit`."""

    node: Node

    def __init__(self) -> None:
        self._tokens = itertools.count(1)  # a token connects a batch or query with its answer
        # Calls of `open`, by the name of the stream. Only the first request of each name was sent.
        self._opens: dict[str, deque[_Opening]] = {}
        # The layer that publishes to an opened stream, if it is not PUBLISHER.
        self._publishers: dict[LogId, str] = {}
        # Batches without a result, by token: the function that gets the result.
        self._offers: dict[int, Callable[[Acked | Failed], None]] = {}
        # Queries by token: the function that gets the answers, and whether it gets more than one.
        self._questions: dict[int, tuple[OnAnswer, bool]] = {}
        self._problem = ""  # why there will be no more answers; "": there will be

    @property
    def busy(self) -> bool:
        """Whether any call waits for an answer."""
        return bool(self._opens or self._offers or self._questions)

    # ------------------------------------------------------------ requests

    async def open(self, name: str, spec: StreamSpec) -> Opened:
        """Open or create a stream. Only one request for a name is sent at a time, because an answer
        contains no more than the name to identify its request."""
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
        """The layer that opens streams of a delivery and publishes to them."""
        machine: Any = self.node.machine
        return delivery if delivery in machine.layers else PUBLISHER

    def offer(self, stream: LogId, batch: Batch, done: Callable[[Acked | Failed], None]) -> None:
        """Publish a batch after all batches of earlier calls; `done` is called with the result."""
        if self._problem:
            self.node.loop.call_soon(done, Failed(stream, 0, "closed"))
            return
        token = next(self._tokens)
        self._offers[token] = done
        layer = self._publishers.get(stream, PUBLISHER)
        self.node.give(Command(layer, OfferBatch(stream, batch, token)))

    async def ask(self, question: Any) -> Any:
        """The answer to a query (one of the questions in `core.endpoint`)."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        token = self._inquire(question, lambda answer: _settle(future, answer), keep=False)
        try:
            return await future
        finally:
            self.drop(token)

    def watch(self, question: Any, on_answer: OnAnswer) -> int:
        """Send a query that has several answers. `on_answer` is called with every answer, until
        `drop` is called with the returned token."""
        return self._inquire(question, on_answer, keep=True)

    def _inquire(self, question: Any, on_answer: OnAnswer, keep: bool) -> int:
        """Send a query and return its token. With `keep`, the query stays open after an answer."""
        self._check()
        if len(self._questions) >= QUESTIONS_MAX:
            raise UsageError(
                f"this client has {QUESTIONS_MAX:,} open queries, which is the limit. Subscriptions"
                " with a pattern or a name keep queries open: use fewer of them"
            )
        self.node.codec.check(question)
        token = next(self._tokens)
        self._questions[token] = on_answer, keep
        self.node.give(Command("inquirer", Inquire(question, token)))
        return token

    def drop(self, token: int) -> None:
        """End a query; later answers to it are ignored."""
        if self._questions.pop(token, None) is not None:
            self.node.give(Command("inquirer", Drop(token)))

    # ------------------------------------------------------------ answers

    def on_emit(self, event: Any) -> None:
        """Called with each event that the state machine emits."""
        match event:
            case Acked() | Failed():
                done = self._offers.pop(event.token, None)
                if done is not None:
                    done(event)
            case Answered(token, answer):
                # A token that is not found belongs to a query that was dropped meanwhile.
                on_answer, keep = self._questions.get(token, (None, True))
                if not keep:
                    del self._questions[token]
                if on_answer is not None:
                    on_answer(answer)
            case Opened():
                self._opened(event)

    def _opened(self, event: Opened) -> None:
        waiting = self._opens.get(event.name)
        if not waiting:
            return
        if (
            event.info is not None
            and not event.why
            and self._ask_other_layer(waiting[0], event.info)
        ):
            return  # wait for the other layer's answer
        _settle(waiting.popleft().opened, event)
        while waiting and waiting[0].opened.done():
            waiting.popleft()  # cancelled before it was sent
        if waiting:
            self._ask_to_open(event.name, waiting[0].spec)
        else:
            del self._opens[event.name]

    def _ask_other_layer(self, opening: _Opening, info: StreamInfo) -> bool:
        """Called with the answer of a layer to `opening`: the stream exists. If another layer
        publishes to streams of its delivery, ask that one to open the stream, too, and return True:
        the answer of that layer is the result. Otherwise note which layer publishes, and return
        False.

        The first layer is the wrong one if the user has opened the stream without `delivery=`: then
        PUBLISHER was asked, and only its answer says which delivery the stream has.
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
        """Called when there will be no more answers: all waiting calls fail with `problem`."""
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
        for on_answer, _ in questions.values():
            on_answer(Closed(problem))

    def _check(self) -> None:
        """Raise Closed if there will be no answer."""
        if self._problem:
            raise Closed(self._problem)


def _settle(future: asyncio.Future[Any], answer: Any) -> None:
    """Set the result of a future, or its exception. Does nothing if the caller was cancelled."""
    if future.done():
        return
    if isinstance(answer, BaseException):
        future.set_exception(answer)
    else:
        future.set_result(answer)
