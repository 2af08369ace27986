"""A client's requests to the replicas of a region: sent until they are answered, wherever that is.

A request has a token, and so do its answers. Any replica will do for most; those `of_head` follow
the head wherever it moves. A silent or departed replica is replaced by the next one, and all that
it was asked and is still open is asked there again. A request that is *kept* stays open after its
first answer.

A protocol derives a machine from `Requests`, lists the messages that are answers, and says which
message asks a question.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from surecast.core.endpoint import Answered, Drop, Inquire
from surecast.core.machine import HandlerMachine
from surecast.core.types import Emit, Message, Peer, PeerDown, SetTimer, Start, TimerFired
from surecast.errors import UsageError

__all__ = ["Request", "Requests"]

PASSING = ("not-head", "recovering", "busy", "unknown-stream")  # ask again, perhaps elsewhere
PATIENT = 20  # rounds an unknown stream may take to reach this replica


class RequestsConfig(Protocol):
    """What can be set."""

    @property
    def replicas(self) -> tuple[Peer, ...]: ...

    @property
    def retry_ns(self) -> int: ...

    @property
    def backoff_ns(self) -> int: ...

    @property
    def questions_max(self) -> int: ...


@dataclass(slots=True)
class Request:
    """A question that still has a claim to an answer."""

    message: Message
    of_head: bool = False
    keep: bool = False  # answers come until it is dropped
    then: Message | None = None  # what asks the same once it was answered
    cancel: Message | None = None  # what says that it is dropped
    answered: bool = False  # where it was asked last
    refusals: int = 0


@dataclass(slots=True)
class Aim:
    """Which replica is asked now, and when it last said something."""

    at: int = 0
    heard_ns: int = 0


class Requests(HandlerMachine):
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
        self.open: dict[int, Request] = {}
        # Who is asked what any replica knows (False), and what only the head may say (True).
        self.aims = {False: Aim(), True: Aim()}

    def _on_start(self, _inp: Start) -> None:
        self.out.append(SetTimer("retry", self.now_ns + self.config.retry_ns))

    def _on_inquire(self, inp: Inquire) -> None:
        if len(self.open) >= self.config.questions_max:
            raise UsageError(
                f"{self.config.questions_max} questions are open (inquirer.questions_max)"
            )
        one = self._request(inp.question, inp.token)
        if not self._owed(one.of_head):
            self.aims[one.of_head].heard_ns = self.now_ns  # silence counts from now on
        self.open[inp.token] = one
        self._ask(one)

    def _request(self, question: Any, token: int) -> Request:
        """What asks the question; its answers repeat `token`."""
        raise NotImplementedError

    def _on_drop(self, inp: Drop) -> None:
        one = self.open.pop(inp.token, None)
        if one is not None and one.cancel is not None:
            self._send(self._replica(one), one.cancel)

    def _replica(self, one: Request) -> Peer:
        return self.config.replicas[self.aims[one.of_head].at]

    def _owed(self, of_head: bool) -> bool:
        """Is an answer still to come from the replica that is asked now?"""
        return any(not one.answered and one.of_head == of_head for one in self.open.values())

    def _ask(self, one: Request) -> None:
        one.answered = False
        self._send(self._replica(one), one.message)

    # ------------------------------------------------------------ answers

    def _on_answer(self, peer: Peer, message: Any) -> None:
        one = self.open.get(message.token)
        if one is None or peer != self._replica(one):
            return
        self.aims[one.of_head].heard_ns = self.now_ns
        why = message.why
        if why in PASSING and not (why == "unknown-stream" and one.refusals >= PATIENT):
            one.refusals += 1
            one.answered = False
            self._go_to_head(why, getattr(message, "head", ""))
            self.out.append(SetTimer("again", self.now_ns + self.config.backoff_ns))
            return
        one.answered, one.refusals = True, 0
        if not one.keep or why:
            del self.open[message.token]
        elif one.then is not None:
            one.message, one.then = one.then, None
        self.out.append(Emit(Answered(message.token, message)))

    def _go_to_head(self, why: str, head: Peer) -> None:
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
        for one in self.open.values():
            if not one.answered:
                self._ask(one)

    def _next(self, of_head: bool) -> None:
        """Ask the next replica: all that the one before was to answer, or to go on answering."""
        aim = self.aims[of_head]
        aim.at, aim.heard_ns = (aim.at + 1) % len(self.config.replicas), self.now_ns
        for one in self.open.values():
            if one.of_head == of_head:
                one.answered = False
        self.out.append(SetTimer("again", self.now_ns + self.config.backoff_ns))

    def _on_peer_down(self, inp: PeerDown) -> None:
        for of_head, aim in self.aims.items():
            if inp.peer == self.config.replicas[aim.at]:
                self._next(of_head)
