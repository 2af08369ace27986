"""A stream is created only if all servers concerned have its delivery."""

import msgspec
import pyarrow as pa

from surecast.columns.batch import Batch
from surecast.columns.schema import read_schema
from surecast.columns.typed import Attributes
from surecast.core.replicated import AppendOwn, Submit
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


def test_a_stream_whose_schema_or_options_are_wrong_or_too_large_is_refused() -> None:
    bench = Bench()
    bench.role(1)
    large = ", ".join(f"column{number} int64" for number in range(190))
    wider = large.replace("column", "a long name of column ").replace(" int64", "` int64")
    for spec in (
        StreamSpec(schema=wider.replace("a long", "`a long")),
        StreamSpec(schema="n int64 "),  # not the canonical text
        StreamSpec(schema="n int65"),
        StreamSpec(schema="key binary"),
        StreamSpec(options=(("k", "v" * 5000),)),
    ):
        out = bench.give(Received("client", CreateStream("large", spec)))
        assert [message.why for _, message in sent(out, StreamOpened)] == ["bad-spec"]
    small = StreamSpec(schema=large, options=(("k", "v"),))
    assert passed_down(bench.give(Received("client", CreateStream("small", small))), AppendOwn)


def publish(bench: Bench, stream: bytes, batch: Batch) -> str:
    """The refusal of a batch; "" if it gets positions."""
    batch = batch.numbered(bytes(range(16)), 1)
    out = bench.give(Received("client", Publish(stream, batch)))
    (submit,) = passed_down(out, Submit)
    return submit.refuse


def test_a_stream_takes_only_events_of_its_schema() -> None:
    bench = Bench()
    bench.role(1)
    schema = read_schema("n int64, s string")
    typed_id = bytes([7]) * 16
    bench.list_stream(msgspec.structs.replace(
        INFO, stream_id=typed_id, name="typed", owner="x", schema=schema.text
    ))  # fmt: skip
    later_id = bytes([8]) * 16
    bench.list_stream(msgspec.structs.replace(
        INFO, stream_id=later_id, name="later", owner="x", schema="n int128"
    ))  # fmt: skip
    opaque_id = bytes([9]) * 16
    bench.list_stream(msgspec.structs.replace(INFO, stream_id=opaque_id, name="o", owner="x"))

    def batch(stream: bytes, text: str) -> Batch:
        types = read_schema(text).types
        table = pa.RecordBatch.from_arrays(
            [pa.array([None], kind) for kind in types.arrow_schema().types],
            schema=types.arrow_schema(),
        )
        return Batch.of(stream, [b""], attributes=Attributes(types, 1, table=table))

    assert publish(bench, typed_id, batch(typed_id, schema.text)) == ""
    for text in ("n int64", "s string, n int64", "n int32, s string"):
        assert publish(bench, typed_id, batch(typed_id, text)) == "bad-event"
    more = "n int64, s string, m int8"
    assert publish(bench, typed_id, batch(typed_id, more)) == "unknown-columns"
    assert publish(bench, typed_id, Batch.of(typed_id, [b"x"])) == "bad-event"
    assert publish(bench, later_id, batch(later_id, "n int64")) == "bad-event"
    assert publish(bench, opaque_id, batch(opaque_id, "n int64")) == "bad-event"
    assert publish(bench, opaque_id, Batch.of(opaque_id, [b"x"])) == ""
