"""Clients that ask questions, for stories about named subscriptions, patterns and times."""

from collections import Counter
from typing import Any

from surecast.core.types import LogId
from surecast.protocols.sprinkler.config import InquirerConfig
from surecast.protocols.sprinkler.inquirer import Inquirer
from surecast.protocols.sprinkler.messages import (
    Advance,
    Attach,
    Inquire,
    Locate,
    WatchStreams,
)
from surecast.swarm.cluster import Cluster
from tests.helpers import wait


class Asker:
    """A client with an Inquirer; `answers` has what it was told, by token, in order."""

    def __init__(self, cluster: Cluster, name: str, replicas: tuple[str, ...] = ()) -> None:
        self.cluster, self.name = cluster, name
        self.me = name.encode().rjust(16, b".")[-16:]
        self.answers: dict[int, list[Any]] = {}
        self.token = 0
        config = InquirerConfig(replicas or cluster.regions[name.split("/")[0]])
        counters = cluster.counters[name] = Counter()
        cluster.world.on_emit(name, self._on_emit)
        cluster.world.add(name, lambda ctx: Inquirer(config, counters))

    def _on_emit(self, _now_ns: int, _name: str, event: Any) -> None:
        self.answers.setdefault(event.token, []).append(event.answer)

    def ask(self, question: Any, of_head: bool = False, keep: bool = False) -> int:
        self.cluster.world.at(
            self.cluster.world.now_ns, self.name, Inquire(question, of_head, keep)
        )
        return int(question.token)

    def next(self) -> int:
        self.token += 1
        return self.token

    def answer(self, token: int) -> Any:
        """The last answer, once there is one."""
        wait(self.cluster, lambda: token in self.answers)
        return self.answers[token][-1]

    # ------------------------------------------------------------ what stories ask

    def attach(self, name: str = "sub", take: bool = True) -> int:
        return self.ask(Attach(self.next(), name, self.me, take), of_head=True, keep=True)

    def advance(self, stream: LogId, seq: int, name: str = "sub") -> int:
        return self.ask(Advance(self.next(), name, self.me, {stream: seq}), of_head=True)

    def locate(self, stream: LogId, time_ns: int) -> int:
        """Where a time begins; waits for the answer."""
        answer = self.answer(self.ask(Locate(self.next(), stream, time_ns)))
        assert answer.why == ""
        return int(answer.seq)

    def watch(self, pattern: str) -> int:
        return self.ask(WatchStreams(self.next(), pattern), keep=True)

    def names(self, token: int) -> list[str]:
        """All that was heard of under a watch."""
        return [info.name for answer in self.answers.get(token, []) for info in answer.infos]
