"""Streams of a delivery are created only where all servers have it."""

import msgspec

from surecast.columns.batch import Batch
from surecast.core.replicated import AppendOwn
from surecast.core.streams import StreamSpec
from surecast.core.types import PeerDown, PeerUp, Received
from surecast.protocols.streams.messages import (
    CreateStream,
    Introduce,
    PubAck,
    Publish,
    PubNack,
    StreamOpened,
)
from tests.protocols.bench import INFO, STREAM, Bench, passed_down, sent

ALL = ("chain", "sprinkler", "streams")


def opened(bench: Bench, name: str = "new", delivery: str = "broadcast") -> list[str]:
    """Why a stream cannot be created; empty if it is being made."""
    out = bench.give(Received("client", CreateStream(name, StreamSpec(delivery=delivery))))
    refused = [message.why for _, message in sent(out, StreamOpened)]
    assert bool(refused) != bool(passed_down(out, AppendOwn))
    return refused


def test_a_delivery_that_the_server_has_not_got_is_refused() -> None:
    bench = Bench()
    bench.role(1)
    assert opened(bench, delivery="pigeon") == ["no-delivery"]
    assert opened(bench) == []


def test_a_stream_is_created_once_every_replica_lists_its_delivery() -> None:
    bench = Bench()
    bench.role(1)
    bench.give(PeerUp("x/1", ("chain", "streams")))
    assert opened(bench) == ["no-delivery"]
    bench.give(PeerUp("x/1", ALL))  # it was replaced by a later version
    assert opened(bench) == []


def test_a_stream_is_created_once_the_servers_of_other_regions_list_its_delivery() -> None:
    bench = Bench()
    bench.role(1)
    bench.give(PeerUp("y/1", ("chain", "streams")))
    bench.give(PeerUp("some client", ("streams",)))  # which need not
    assert opened(bench) == ["no-delivery"]
    bench.give(PeerUp("y/1", ALL))
    assert opened(bench) == []


def test_a_replica_that_lacked_a_delivery_and_is_down_is_waited_for() -> None:
    """It may come back as the old version that it was."""
    bench = Bench()
    bench.role(1)
    bench.give(PeerUp("x/1", ("chain", "streams")))
    bench.give(PeerDown("x/1"))
    out = bench.give(Received("client", CreateStream("new", StreamSpec())))
    assert [message.why for _, message in sent(out, StreamOpened)] == ["recovering"]  # later
    assert [peer for peer, _ in sent(out, Introduce)] == ["x/1"]
    bench.give(PeerUp("x/1", ALL))
    assert opened(bench) == []


def test_a_new_head_asks_replicas_it_has_not_met() -> None:
    bench = Bench()
    out = bench.role(1)
    assert [peer for peer, _ in sent(out, Introduce)] == ["x/1"]
    bench.give(PeerUp("x/1", ALL))
    bench.role(2, head=False)
    assert sent(bench.role(3), Introduce) == []


def test_a_server_without_a_streams_delivery_keeps_the_stream_and_refuses_its_publishes() -> None:
    """The owner is another region: nobody here can pass them on."""
    bench = Bench()
    bench.role(1)
    bench.lists(msgspec.structs.replace(INFO, delivery="pigeon"))
    assert STREAM in bench.service.streams
    assert STREAM not in bench.sync.streams
    out = bench.give(
        Received("client", Publish(STREAM, Batch.of(STREAM, [b"x"]).numbered(bytes(16), 1)))
    )
    assert [message.why for _, message in sent(out, PubNack)] == ["owner-unreachable"]
    assert bench.give(Received("y/0", PubAck(STREAM, bytes(16), 1, 1))) == []


def test_a_stream_whose_schema_and_options_are_too_large_is_refused() -> None:
    """The entry of the directory goes into messages with a thousand others, and must fit."""
    bench = Bench()
    bench.role(1)
    for spec in (StreamSpec(schema="s" * 1000), StreamSpec(options=(("k", "v" * 1000),))):
        out = bench.give(Received("client", CreateStream("large", spec)))
        assert [message.why for _, message in sent(out, StreamOpened)] == ["bad-spec"]
    small = StreamSpec(schema="s" * 300, options=(("k", "v"),))
    assert passed_down(bench.give(Received("client", CreateStream("small", small))), AppendOwn)
