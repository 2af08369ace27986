"""Requests: a client's machine that sends requests to a region's replicas until one answers.

A request has a token, which its answers repeat. Most requests can be sent to any replica. Requests
with `of_head` are sent to the head of the region's chain, and follow it if another replica becomes
the head. If a replica is silent or its session ends, all open requests to it are sent to the next
replica. A request with `keep` stays open after its first answer.

A protocol derives a machine from `Requests`, lists the messages that are answers, and defines the
message for each question (`_request`).
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from surecast.core.endpoint import Answered, Drop, Inquire
from surecast.core.machine import HandlerMachine
from surecast.core.types import Emit, Message, Peer, PeerDown, SetTimer, Start, TimerFired
from surecast.errors import UsageError

__all__ = ["Request", "Requests"]

# Refusals (`why` of an answer) that are temporary: the request is sent again after a pause.
PASSING = ("not-head", "recovering", "busy", "unknown-stream")
# "unknown-stream" is treated as temporary this many times, because a new stream may not have
# reached this replica yet.
PATIENT = 20


class RequestsConfig(Protocol):
    """The configuration that `Requests` needs."""

    @property
    def replicas(self) -> tuple[Peer, ...]: ...

    @property
    def retry_ns(self) -> int:
        """A replica that has not answered for this time counts as silent."""

    @property
    def backoff_ns(self) -> int:
        """The pause before a request is sent again."""

    @property
    def questions_max(self) -> int:
        """Most open requests."""


@dataclass(slots=True)
class Request:
    """An open request."""

    message: Message
    of_head: bool = False
    keep: bool = False  # the request stays open, and gets further answers, until it is dropped
    then: Message | None = None  # replaces `message` after the first answer
    cancel: Message | None = None  # sent when the request is dropped
    answered: bool = False  # by the replica that it was sent to last
    refusals: int = 0  # temporary refusals in a row


@dataclass(slots=True)
class Aim:
    """The replica that requests are sent to, and when it last answered."""

    at: int = 0  # index of `config.replicas`
    heard_ns: int = 0  # the last answer, or the time since when an answer is expected


class Requests(HandlerMachine):
    """The base class of machines that send requests. Timers: "retry" looks for silent replicas;
    "again" sends all requests that are not answered."""

    inputs: ClassVar[dict[type, str]] = {
        Start: "_on_start",
        Inquire: "_on_inquire",
        Drop: "_on_drop",
        TimerFired: "_on_timer",
        PeerDown: "_on_peer_down",
    }

    def __init__(self, config: RequestsConfig, counters: Counter[str] | None = None) -> None:
        super().__init__(counters)
        self.config = config
        self.open: dict[int, Request] = {}  # by token
        # False: for requests to any replica; True: for requests to the head.
        self.aims = {False: Aim(), True: Aim()}

    def _on_start(self, _inp: Start) -> None:
        self.out.append(SetTimer("retry", self.now_ns + self.config.retry_ns))

    def _on_inquire(self, inp: Inquire) -> None:
        if len(self.open) >= self.config.questions_max:
            raise UsageError(
                f"{self.config.questions_max} questions are open (inquirer.questions_max)"
            )
        request = self._request(inp.question, inp.token)
        if not self._owed(request.of_head):
            self.aims[request.of_head].heard_ns = self.now_ns  # the wait for an answer begins now
        self.open[inp.token] = request
        self._ask(request)

    def _request(self, question: Any, token: int) -> Request:
        """The request for this question; its answers repeat `token`."""
        raise NotImplementedError

    def _on_drop(self, inp: Drop) -> None:
        request = self.open.pop(inp.token, None)
        if request is not None and request.cancel is not None:
            self._send(self._replica(request), request.cancel)

    def _replica(self, request: Request) -> Peer:
        return self.config.replicas[self.aims[request.of_head].at]

    def _owed(self, of_head: bool) -> bool:
        """Whether a request of this kind is sent and not answered."""
        return any(
            not request.answered and request.of_head == of_head for request in self.open.values()
        )

    def _ask(self, request: Request) -> None:
        request.answered = False
        self._send(self._replica(request), request.message)

    # ------------------------------------------------------------ answers

    def _on_answer(self, peer: Peer, message: Any) -> None:
        """Handle an answer: a message with `token` and `why`, and perhaps `head`."""
        request = self.open.get(message.token)
        if request is None or peer != self._replica(request):
            return
        self.aims[request.of_head].heard_ns = self.now_ns
        why = message.why
        if why in PASSING and not (why == "unknown-stream" and request.refusals >= PATIENT):
            request.refusals += 1
            request.answered = False
            self._go_to_head(why, getattr(message, "head", ""))
            self.out.append(SetTimer("again", self.now_ns + self.config.backoff_ns))
            return
        request.answered, request.refusals = True, 0
        if not request.keep or why:
            del self.open[message.token]
        elif request.then is not None:
            request.message, request.then = request.then, None
        self.out.append(Emit(Answered(message.token, message)))

    def _go_to_head(self, why: str, head: Peer) -> None:
        """From now on, send requests with `of_head` to the replica `head`. If a replica is not the
        head and does not know it (""), to the next replica."""
        aim, replicas = self.aims[True], self.config.replicas
        if head in replicas:
            aim.at = replicas.index(head)
        elif why == "not-head":
            aim.at = (aim.at + 1) % len(replicas)

    # ------------------------------------------------------------ silence

    def _on_timer(self, inp: TimerFired) -> None:
        if inp.key == "again":
            self._ask_again()
            return
        self.out.append(SetTimer("retry", self.now_ns + self.config.retry_ns))
        for of_head, aim in self.aims.items():
            if self._owed(of_head) and self.now_ns - aim.heard_ns >= self.config.retry_ns:
                self._next(of_head)

    def _ask_again(self) -> None:
        for request in self.open.values():
            if not request.answered:
                self._ask(request)

    def _next(self, of_head: bool) -> None:
        """Send all open requests of one kind (`of_head`) to the next replica, after a pause."""
        aim = self.aims[of_head]
        aim.at, aim.heard_ns = (aim.at + 1) % len(self.config.replicas), self.now_ns
        for request in self.open.values():
            if request.of_head == of_head:
                request.answered = False
        self.out.append(SetTimer("again", self.now_ns + self.config.backoff_ns))

    def _on_peer_down(self, inp: PeerDown) -> None:
        for of_head, aim in self.aims.items():
            if inp.peer == self.config.replicas[aim.at]:
                self._next(of_head)
