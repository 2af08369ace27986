"""Messages of unknown types are dropped and counted; the session continues."""

import logging
from collections import Counter
from typing import Any

import pytest
from tests.runtime.stage import CODEC_TYPES, Ping, Stage, numbers, on_loops, play, until

from surecast.core.types import Enclosed, Message, PeerDown, Send, tagged
from surecast.core.wire import Codec
from surecast.errors import UnknownMessage
from surecast.runtime import tcp
from surecast.runtime.tcp import OTHER, TAGS_MAX, UnknownMessages


class Base(Message, tag=tagged("later")):
    pass


class News(Base):
    number: int


class Envelope(Message, tag="known/Envelope"):
    inside: Enclosed


NEWER = Codec([*CODEC_TYPES, Envelope, News])
OLDER = Codec([*CODEC_TYPES, Envelope])


@on_loops
def test_a_session_continues_after_a_message_of_an_unknown_type(loop: str) -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            await stage.add("a", codec=NEWER)
            b = await stage.add("b", codec=OLDER)
            b.speaks = ()  # otherwise a would not send it these messages
            first = [Send("b", Ping(1)), Send("b", News(2)), Send("b", Envelope(Enclosed(News(3))))]
            stage.do("a", *first, Send("b", Ping(4)))
            await until(lambda: numbers(b.machine) == [1, 4])
            stage.do("a", Send("b", News(5)))
            stage.do("a", Send("b", Envelope(Enclosed(Ping(6)))), Send("b", Ping(7)))
            await until(lambda: stage.kinds("b").count("Received") == 4)
            stage.do("b", Send("a", Ping(8)))
            await until(lambda: numbers(stage.machine("a")) == [8])
            assert b.unknown.by_tag == {"later/News": 3}
            assert b.counters["unknown_messages"] == 3
            assert b.counters["refused"] == 0
            for name in ("a", "b"):
                assert not stage.machine(name).of(PeerDown)
                assert stage.nodes[name].counters["sessions_up"] == 1

    play(loop, scenario)


@on_loops
def test_datagrams_of_an_unknown_type_are_dropped_and_counted(loop: str) -> None:
    async def scenario() -> None:
        async with Stage() as stage:
            await stage.add("a", codec=NEWER)
            b = await stage.add("b", codec=OLDER)
            stage.do("a", Send("b", News(1), reliable=False), Send("b", Ping(2), reliable=False))
            await until(lambda: numbers(b.machine) == [2])
            await until(lambda: b.unknown.by_tag == {"later/News": 1})
            assert b.counters["udp_refused"] == 0
            assert b.counters["udp_in"] == 1

    play(loop, scenario)


def test_a_malformed_message_still_ends_the_connection() -> None:
    class Garbage(Message, tag="Garbage"):
        number: int

    async def scenario() -> None:
        async with Stage() as stage:
            await stage.add("a", codec=Codec([*CODEC_TYPES, Garbage]))
            b = await stage.add("b", codec=OLDER)
            stage.do("a", Send("b", Ping(1)), Send("b", Garbage(2)))
            await until(lambda: b.counters["refused"] == 1)
            assert b.counters["unknown_messages"] == 0

    play("asyncio", scenario)


def test_counted_tags_are_bounded_and_log_lines_are_rare(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "surecast.runtime")
    now_ns = 0
    monkeypatch.setattr(tcp, "monotonic_ns", lambda: now_ns)
    counters: Counter[str] = Counter()
    unknown = UnknownMessages("b", counters)

    def drop(number: int) -> None:
        unknown.drop("a", UnknownMessage(f"later/News{number}", 136))

    for number in [*range(TAGS_MAX + 10), 0, 0, TAGS_MAX + 3]:
        drop(number)
    assert len(unknown.by_tag) == TAGS_MAX + 1
    assert unknown.by_tag["later/News0"] == 3
    assert unknown.by_tag[OTHER] == 11
    assert counters == {"unknown_messages": TAGS_MAX + 13}
    assert [record.getMessage() for record in caplog.records] == [
        "b: dropped a message of unknown type later/News0 in a frame of 136 bytes from a"
    ]
    now_ns = tcp.LOG_EVERY_NS
    drop(1)
    drop(2)
    assert len(caplog.records) == 2
    line: Any = caplog.records[1].getMessage()
    assert line.endswith(f"from a ({TAGS_MAX + 13:,} since the last such line)")
