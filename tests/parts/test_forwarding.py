"""Forwarding requests to another region: limits, and answers only from servers of the owner.
(tests/protocols/sprinkler and the swarms test it with whole regions.)"""

from types import SimpleNamespace
from typing import Any

import pytest

from surecast.core.streams import Refuse
from surecast.parts import forwarding
from surecast.parts.forwarding import Forwarding


class Known:
    """Two regions: west owns all streams; `west/0` is its head."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.commands: list[Any] = []
        self.head = "west/0"

    def owner_of(self, _stream: bytes) -> str:
        return "west"

    def head_of(self, _region: str) -> str:
        return self.head

    def region_of_server(self, peer: str) -> str:
        return peer.partition("/")[0] if "/" in peer else ""

    def moved(self, _server: str, head: str) -> None:
        self.head = head

    def send(self, peer: str, message: Any) -> None:
        self.sent.append((peer, message))

    def command(self, command: Any) -> None:
        self.commands.append(command)


def publish(publisher: bytes) -> Any:
    return SimpleNamespace(stream=b"s", batch=SimpleNamespace(publisher=publisher))


def ack(publisher: bytes) -> Any:
    return SimpleNamespace(stream=b"s", publisher=publisher, why="")


def test_an_answer_goes_to_the_client_and_only_from_a_server_of_the_owner() -> None:
    known = Known()
    made = Forwarding(known)
    made.on_publish("c", publish(b"p"))
    assert [peer for peer, _ in known.sent] == ["west/0"]
    made.on_ack("east/0", ack(b"p"))
    made.on_ack("c2", ack(b"p"))
    assert len(known.sent) == 1, "anybody could say that events are stored"
    made.on_ack("west/1", ack(b"p"))
    assert known.sent[-1][0] == "c"


def test_the_number_of_remembered_publishers_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "PUBLISHERS_MAX", 2)
    made = Forwarding(Known())
    for number in range(5):
        made.on_publish("c", publish(b"%d" % number))
    assert len(made.clients) == 2
    made.peer_down("c")
    assert made.clients == {}


def test_without_a_reachable_head_the_publish_is_refused() -> None:
    known = Known()
    known.head = ""
    Forwarding(known).on_publish("c", publish(b"p"))
    assert [(type(one), one.why) for one in known.commands] == [(Refuse, "owner-unreachable")]
