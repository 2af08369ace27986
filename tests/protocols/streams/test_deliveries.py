"""A stream is created only if all servers concerned have its delivery."""

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
    """The reasons why a stream is refused; empty if it is being created."""
    out = bench.give(Received("client", CreateStream(name, StreamSpec(delivery=delivery))))
    refused = [message.why for _, message in sent(out, StreamOpened)]
    assert bool(refused) != bool(passed_down(out, AppendOwn))
    return refused


def test_a_delivery_that_the_server_lacks_is_refused() -> None:
    bench = Bench()
    bench.role(1)
    assert opened(bench, delivery="pigeon") == ["no-delivery"]
    assert opened(bench) == []


def test_a_stream_is_created_once_every_replica_lists_its_delivery() -> None:
    bench = Bench()
    bench.role(1)
    bench.give(PeerUp("x/1", ("chain", "streams")))
    assert opened(bench) == ["no-delivery"]
    bench.give(PeerUp("x/1", ALL))  # upgraded
    assert opened(bench) == []


def test_a_stream_is_created_once_the_servers_of_other_regions_list_its_delivery() -> None:
    bench = Bench()
    bench.role(1)
    bench.give(PeerUp("y/1", ("chain", "streams")))
    bench.give(PeerUp("some client", ("streams",)))  # clients need not list it
    assert opened(bench) == ["no-delivery"]
    bench.give(PeerUp("y/1", ALL))
    assert opened(bench) == []


def test_a_create_waits_for_a_replica_that_lacked_the_delivery_and_is_down() -> None:
    """It may come back with the old version."""
    bench = Bench()
    bench.role(1)
    bench.give(PeerUp("x/1", ("chain", "streams")))
    bench.give(PeerDown("x/1"))
    out = bench.give(Received("client", CreateStream("new", StreamSpec())))
    assert [message.why for _, message in sent(out, StreamOpened)] == ["recovering"]  # later
    assert [peer for peer, _ in sent(out, Introduce)] == ["x/1"]
    bench.give(PeerUp("x/1", ALL))
    assert opened(bench) == []


def test_a_new_head_contacts_replicas_it_has_no_session_with() -> None:
    bench = Bench()
    out = bench.role(1)
    assert [peer for peer, _ in sent(out, Introduce)] == ["x/1"]
    bench.give(PeerUp("x/1", ALL))
    bench.role(2, head=False)
    assert sent(bench.role(3), Introduce) == []


def test_a_server_without_a_streams_delivery_keeps_the_stream_and_refuses_its_publishes() -> None:
    """The owner is another region, and this server cannot forward to it."""
    bench = Bench()
    bench.role(1)
    bench.list_stream(msgspec.structs.replace(INFO, delivery="pigeon"))
    assert STREAM in bench.service.streams
    assert STREAM not in bench.sync.streams
    out = bench.give(
        Received("client", Publish(STREAM, Batch.of(STREAM, [b"x"]).numbered(bytes(16), 1)))
    )
    assert [message.why for _, message in sent(out, PubNack)] == ["owner-unreachable"]
    assert bench.give(Received("y/0", PubAck(STREAM, bytes(16), 1, 1))) == []


def test_a_stream_whose_schema_and_options_are_too_large_is_refused() -> None:
    """A message has to hold a thousand directory entries."""
    bench = Bench()
    bench.role(1)
    for spec in (StreamSpec(schema="s" * 1000), StreamSpec(options=(("k", "v" * 1000),))):
        out = bench.give(Received("client", CreateStream("large", spec)))
        assert [message.why for _, message in sent(out, StreamOpened)] == ["bad-spec"]
    small = StreamSpec(schema="s" * 300, options=(("k", "v"),))
    assert passed_down(bench.give(Received("client", CreateStream("small", small))), AppendOwn)
