"""Bounds of a client on questions, addresses, frames and streams: at each limit and one beyond."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from surecast.columns.batch import Batch
from surecast.core.endpoint import WhichStreams
from surecast.core.wire import Codec, decode_batch, encode_batch
from surecast.endpoint import control, discovery
from surecast.endpoint.control import Control
from surecast.endpoint.discovery import ADDRESSES_MAX, FRAMES_MAX, parse_url
from surecast.endpoint.options import _EVENT_BYTES_MAX, ClientOptions
from surecast.errors import ConfigError, PeerError, SurecastError, UsageError
from surecast.protocols.streams.messages import Introduced
from surecast.registry import message_types
from surecast.runtime.hello import BEAT
from tests.client.stage import Regions, play
from tests.edits import Check, Edit, Row, each_check, must_fail


def open_questions() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control, "QUESTIONS_MAX", 2)
        client, commands = Control(), []
        node: Any = SimpleNamespace(give=commands.append, codec=Codec(message_types()))
        client.node = node
        tokens = [client.watch(WhichStreams("a"), lambda answer: None) for _ in range(2)]
        with pytest.raises(UsageError, match="this client has 2 open queries"):
            client.watch(WhichStreams("b"), lambda answer: None)
        assert len(commands) == 2
        client.drop(tokens[0])
        client.watch(WhichStreams("b"), lambda answer: None)
        assert len(client._questions) == 2


def addresses_in_a_url() -> None:
    def parsed(count: int) -> int:
        return len(parse_url("surecast://" + ",".join(f"h{n}:1" for n in range(count))))

    assert parsed(ADDRESSES_MAX) == ADDRESSES_MAX
    with pytest.raises(UsageError, match=f"at most {ADDRESSES_MAX} addresses"):
        parsed(ADDRESSES_MAX + 1)


def frames_before_the_answer() -> None:
    """A server that sends FRAMES_MAX frames without an answer is given up."""
    codec = Codec(message_types())
    answer = Introduced("east", "east-1", {"east-1": "h:1"}, {})

    def read_answer(frames: int) -> Any:
        async def main() -> Any:
            reader = asyncio.StreamReader()
            reader.feed_data(BEAT * frames + b"".join(codec.encode(answer)))
            return await discovery._answer(reader, codec)

        return asyncio.run(main())

    assert read_answer(FRAMES_MAX - 1) == answer
    with pytest.raises(PeerError, match="did not send the servers of the region"):
        read_answer(FRAMES_MAX)


def size_of_an_event() -> None:
    """The largest allowed `event_bytes_max` is the largest event that fits into a frame."""
    room = 2 * _EVENT_BYTES_MAX
    ClientOptions(event_bytes_max=_EVENT_BYTES_MAX, outbox_bytes_max=room)
    with pytest.raises(ConfigError, match=f"1 to {_EVENT_BYTES_MAX}, or no frame holds it"):
        ClientOptions(event_bytes_max=_EVENT_BYTES_MAX + 1, outbox_bytes_max=room)
    largest = Batch.of(bytes(16), [bytes(_EVENT_BYTES_MAX)], publisher=bytes(16), pub_no=1)
    batch, _ = decode_batch(b"".join(encode_batch(largest.sequenced(1, 1, 1))))
    assert batch.values().data.size == _EVENT_BYTES_MAX


def streams_of_a_pattern() -> None:
    """A subscription fails when more streams match than `ClientOptions.streams_max`."""

    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east", streams_max=2) as client:
            for name in ("t.1", "t.2"):
                await (await client.stream(name)).publish(name.encode())
            async with client.subscribe("t.*", start="earliest") as reader:
                first = {(await anext(reader)).value, (await anext(reader)).value}
                assert first == {b"t.1", b"t.2"}
                third = await client.stream("t.3")
                with pytest.raises(SurecastError, match=r"more than 2 streams match 't\.\*'"):
                    await asyncio.gather(third.publish(b"t.3"), anext(reader))

    play(scenario)


CHECKS: list[Row] = [
    (
        open_questions,
        Edit("surecast.endpoint.control:Control._inquire", ">= QUESTIONS_MAX", "> 1 << 60"),
    ),
    (
        frames_before_the_answer,
        Edit("surecast.endpoint.discovery:_answer", "range(FRAMES_MAX)", "range(1000)"),
    ),
    (
        streams_of_a_pattern,
        Edit(
            "surecast.client.subscription_task:SubscriptionTask._meet",
            ">= self._options.streams_max",
            "> 1 << 60",
        ),
    ),
]


@each_check(CHECKS)
def test_bound_holds(check: Check, edit: Edit) -> None:
    check()


@each_check(CHECKS)
def test_a_missing_bound_is_noticed(check: Check, edit: Edit) -> None:
    must_fail(check, edit)


@pytest.mark.parametrize("check", [addresses_in_a_url, size_of_an_event])
def test_urls_and_options_beyond_their_bounds_are_refused(check: Check) -> None:
    check()
