"""Clients that send inquiries, for tests of named subscriptions, patterns and times."""

from collections import Counter
from typing import Any

import msgspec

from surecast.core.endpoint import (
    DeleteCursor,
    Inquire,
    MoveCursor,
    ResetCursor,
    TakeCursor,
    WhereIs,
    WhichStreams,
)
from surecast.core.types import LogId
from surecast.parts.requests import Request
from surecast.protocols.streams.config import InquirerConfig
from surecast.protocols.streams.inquirer import Inquirer
from surecast.protocols.streams.messages import Attach
from surecast_lab.swarm.cluster import Cluster
from tests.helpers import wait


class HoldCursor(msgspec.Struct, frozen=True):
    """Like TakeCursor, but of an earlier holder that does not take the name from others."""

    name: str
    holder: bytes


class Holding(Inquirer):
    """An inquirer that also supports HoldCursor."""

    def _request(self, question: Any, token: int) -> Request:
        if isinstance(question, HoldCursor):
            attach = Attach(token, question.name, question.holder, False)
            return Request(attach, of_head=True, keep=True)
        return super()._request(question, token)


class Asker:
    """A client with an Inquirer; `answers` has the answers by token, in order of arrival."""

    def __init__(self, cluster: Cluster, name: str, replicas: tuple[str, ...] = ()) -> None:
        self.cluster, self.name = cluster, name
        self.me = name.encode().rjust(16, b".")[-16:]
        self.answers: dict[int, list[Any]] = {}
        self.token = 0
        config = InquirerConfig(replicas or cluster.regions[name.split("/")[0]])
        counters = cluster.counters[name] = Counter()
        cluster.world.on_emit(name, self._on_emit)
        cluster.world.add(name, lambda ctx: Holding(config, counters))

    def _on_emit(self, _now_ns: int, _name: str, event: Any) -> None:
        self.answers.setdefault(event.token, []).append(event.answer)

    def ask(self, question: Any) -> int:
        self.token += 1
        world = self.cluster.world
        world.at(world.now_ns, self.name, Inquire(question, self.token))
        return self.token

    def answer(self, token: int) -> Any:
        """Wait for an answer to the inquiry; returns the last one."""
        wait(self.cluster, lambda: token in self.answers)
        return self.answers[token][-1]

    # ------------------------------------------------------------ inquiries

    def attach(self, name: str = "sub", take: bool = True) -> int:
        return self.ask((TakeCursor if take else HoldCursor)(name, self.me))

    def advance(self, stream: LogId, seq: int, name: str = "sub") -> int:
        return self.ask(MoveCursor(name, self.me, {stream: seq}))

    def reset(self, stream: LogId, seq: int, name: str = "sub", force: bool = True) -> int:
        return self.ask(ResetCursor(name, self._change(), {stream: seq}, force))

    def delete(self, name: str = "sub", force: bool = True) -> int:
        return self.ask(DeleteCursor(name, self._change(), force))

    def _change(self) -> bytes:
        """A new identity for a request."""
        return f"{self.name}#{self.token}".encode().rjust(16, b".")[-16:]

    def locate(self, stream: LogId, time_ns: int) -> int:
        """The first position of a time; waits for the answer."""
        answer = self.answer(self.ask(WhereIs(stream, time_ns)))
        assert answer.why == ""
        return int(answer.seq)

    def watch(self, pattern: str) -> int:
        return self.ask(WhichStreams(pattern))

    def names(self, token: int) -> list[str]:
        """The names of all streams that a watch reported."""
        return [info.name for answer in self.answers.get(token, []) for info in answer.infos]
