"""Bounds on what the stream service and its clients hold and send: at each bound, and beyond it."""

from typing import Any

import msgspec
import pytest

from surecast.columns.batch import Batch
from surecast.columns.retention import KeepAll, LatestPerKey
from surecast.core.replicated import Appended, AppendOwn, Committed
from surecast.core.streams import CURSORS, StreamInfo, StreamSpec, spec_bytes
from surecast.core.types import Received
from surecast.errors import UsageError
from surecast.protocols.streams import cursors, queries
from surecast.protocols.streams.messages import (
    Attach,
    Attached,
    CreateStream,
    PubAck,
    StreamsAre,
    Subscribe,
    UnwatchStreams,
    WatchStreams,
)
from surecast.protocols.streams.observe import LISTED_MAX, StreamsObserver
from surecast.protocols.streams.service import SPEC_BYTES_MAX
from tests.edits import Check, Edit, Row, each_check, must_fail
from tests.protocols.bench import INFO, STREAM, Bench, passed_down, sent
from tests.protocols.streams.test_publisher import Steps
from tests.protocols.streams.test_publisher import sent as publishes
from tests.protocols.streams.test_service import OWNER, batch, commit, events, opened

HOLDER = b"h" * 16


def owner(**streams: Any) -> Bench:
    """The head of region y, which owns the stream s."""
    bench = Bench(OWNER, streams=streams)
    bench.role(1)
    bench.add_stream()
    return bench


# ---------------------------------------------------------------- streams


def create(bench: Bench, name: str, spec: StreamSpec | None = None) -> str:
    """The reason why a stream is not created; "" if its directory entry is appended."""
    out = bench.give(Received("a", CreateStream(name, spec or StreamSpec())))
    if passed_down(out, AppendOwn):
        return ""
    ((_, _, why),) = opened(out)
    return why


def number_of_streams() -> None:
    bench = owner(streams_max=2)
    assert create(bench, "t") == ""  # the second, with "s"
    assert create(bench, "u") == "too-many-streams"


def size_of_a_spec() -> None:
    """Schema and options are bounded because many directory entries go into one message."""
    empty = spec_bytes(StreamSpec(options=(("x", "x" * 256),))) - 256
    at_bound, beyond = (
        StreamSpec(options=(("x", "x" * (SPEC_BYTES_MAX - empty + more)),)) for more in (0, 1)
    )
    assert spec_bytes(at_bound) == SPEC_BYTES_MAX
    bench = owner()
    assert create(bench, "t", at_bound) == ""
    assert create(bench, "u", beyond) == "bad-spec"


# ---------------------------------------------------------------- readers


def number_of_subscriptions() -> None:
    bench = owner(subscriptions_max=2)
    commit(bench, 3)
    for peer in ("a", "b", "c"):
        bench.give(Received(peer, Subscribe(STREAM, 1)))
    assert list(bench.service.serving.followers[STREAM]) == ["a", "b"]
    assert bench.service.counters["streams.subscription-refused"] == 1
    # A repeated subscription of the same reader does not count twice.
    assert events(bench.give(Received("a", Subscribe(STREAM, 2)))) == [("a", 2, 3, 3)]


def first_position() -> None:
    for start, count in ((0, 0), (1, 1)):
        bench = owner()
        commit(bench, 3)
        assert len(events(bench.give(Received("a", Subscribe(STREAM, start))))) == count
        assert bench.service.serving.count == count
        assert bench.service.counters["streams.subscription-refused"] == 1 - count


def rows_of_a_batch_of_survivors() -> None:
    bench = Bench(OWNER, streams={"coalesce_rows_max": 4})
    bench.role(1)
    bench.list_stream(msgspec.structs.replace(INFO, retention=LatestPerKey()))
    for seq in range(1, 12):  # the last event has the key of the first one, which becomes void
        one = Batch.of(STREAM, [b"v"], [b"%d" % (seq % 10)]).sequenced(seq, seq, 1)
        bench.disk.append(STREAM, (one,))
    bench.chain_emits(Appended(STREAM, 12))
    bench.chain_emits(Committed(STREAM, 12))
    bench.timer("streams", "settle")
    rows = [one.rows for one in bench.service.readable(STREAM, 1) if one.rows]
    assert sum(rows) == 10
    assert max(rows) == 4


# ---------------------------------------------------------------- compaction


def pieces(**streams: Any) -> tuple[list[int], int]:
    """The number of events (of ten) in each closed piece, and in the open one."""
    bench = owner(**streams)
    commit(bench, 11)
    stream = bench.service.streams[STREAM]
    bench.service.feed(stream)
    return [piece.hi - piece.lo for piece in stream.pieces.closed], stream.pieces.open.rows


def rows_of_a_piece() -> None:
    assert pieces(piece_rows_max=4) == ([4, 4], 2)


def bytes_of_a_piece() -> None:
    nbytes = batch(1).sequenced(1, 1, 1).nbytes
    assert pieces(piece_bytes_max=3 * nbytes) == ([3, 3, 3], 1)
    assert pieces(piece_bytes_max=3 * nbytes + 1) == ([4, 4], 2)


# ---------------------------------------------------------------- questions


def listed(bench: Bench, count: int) -> None:
    for number in range(count):
        bench.list_stream(StreamInfo(bytes([number]) * 16, f"t.{number}", "y", KeepAll()))


def watch(bench: Bench, token: int, peer: str = "a") -> list[StreamsAre]:
    return [m for _, m in sent(bench.give(Received(peer, WatchStreams(token, "t.*"))), StreamsAre)]


def streams_in_a_message() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queries, "INFOS_MAX", 2)
        for count, messages in ((2, [(2, True)]), (5, [(2, False), (2, False), (1, True)])):
            bench = owner()
            listed(bench, count)
            assert [(len(m.infos), m.complete) for m in watch(bench, 1)] == messages


def bytes_of_streams_in_a_message() -> None:
    with pytest.MonkeyPatch.context() as patch:
        bench = owner()
        listed(bench, 5)
        size = spec_bytes(StreamSpec())
        for bound, messages in ((2 * size, [2, 2, 1]), (5 * size, [5]), (size - 1, [1] * 5)):
            patch.setattr(queries, "INFOS_BYTES_MAX", bound)
            assert [len(m.infos) for m in watch(bench, 1)] == messages


def watches_of_a_client() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queries, "WATCHES_MAX", 2)
        bench = owner()
        assert [watch(bench, token)[0].why for token in (1, 2, 3, 2)] == ["", "", "too-many", ""]
        assert watch(bench, 3, "b")[0].why == ""
        bench.give(Received("a", UnwatchStreams(1)))
        assert watch(bench, 3)[0].why == ""


# ---------------------------------------------------------------- named subscriptions


def attach(bench: Bench, name: str) -> str | None:
    """The reason why an attach is refused; None if it waits for the chain to commit."""
    out = bench.give(Received(f"client {name}", Attach(1, name, HOLDER, True)))
    for command in passed_down(out, AppendOwn):
        at = bench.disk.end(CURSORS)
        bench.disk.append(CURSORS, (command.batch.sequenced(at, 1, 1),))
        bench.chain_emits(Appended(CURSORS, at + 1))
    answers = sent(out, Attached)
    return answers[0][1].why if answers else None


def clients_that_wait() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cursors, "WAITING_MAX", 2)
        bench = owner()
        assert [attach(bench, name) for name in "abc"] == [None, None, "busy"]
        answers = sent(bench.chain_emits(Committed(CURSORS, 2)), Attached)
        assert [(peer, answer.why) for peer, answer in answers] == [("client a", "")]
        assert attach(bench, "c") is None


# ---------------------------------------------------------------- publishers


def batches_under_way() -> None:
    steps = Steps(inflight_max=2)
    effects = [steps.offer(token) for token in (1, 2, 3)]
    assert [publishes(some) for some in effects] == [[("w/0", 1)], [("w/0", 2)], []]
    name = effects[0][0].message.batch.publisher
    acked = steps.give(Received("w/0", PubAck(STREAM, name, 1, 10)))
    assert publishes([e for e in acked if hasattr(e, "message")]) == [("w/0", 3)]


def batches_that_wait() -> None:
    steps = Steps(queue_max=2)
    steps.offer(1)
    steps.offer(2)
    with pytest.raises(UsageError, match=r"2 batches .*publisher\.queue_max"):
        steps.offer(3)
    assert steps.machine.unacknowledged == 2


# ---------------------------------------------------------------- alarms


def streams_in_alarms() -> None:
    bench = owner()
    listed(bench, LISTED_MAX)
    for number in range(LISTED_MAX):
        bench.service.streams[bytes([number]) * 16].quarantined = "bad"
    observer = StreamsObserver()
    assert len(list(observer.alarms({"streams": bench.service}))) == LISTED_MAX
    bench.service.streams[STREAM].quarantined = "bad"
    found = list(observer.alarms({"streams": bench.service}))
    assert len(found) == LISTED_MAX + 1
    assert found[-1] == ("stream-quarantined", "and 1 more")


SERVICE = "surecast.protocols.streams.service:StreamService."
QUERIES = "surecast.protocols.streams.queries:Queries."
PUBLISHER = "surecast.protocols.streams.publisher:Publisher."
CHECKS: list[Row] = [
    (
        number_of_streams,
        Edit(SERVICE + "_refusal_to_create", ">= self.config.streams_max", "> 1 << 60"),
    ),
    (size_of_a_spec, Edit(SERVICE + "_refusal_to_create", "> SPEC_BYTES_MAX", "> 1 << 60")),
    (
        number_of_subscriptions,
        Edit("surecast.parts.serving:Serving.has_room", "self.count < count_max", "True"),
    ),
    (first_position, Edit(SERVICE + "_on_subscribe", "message.start < 1 or", "")),
    (
        rows_of_a_batch_of_survivors,
        Edit(SERVICE + "readable", "config.coalesce_rows_max", "4096"),
    ),
    (rows_of_a_piece, Edit(SERVICE + "_pieces", "self.config.piece_rows_max", "1 << 60")),
    (bytes_of_a_piece, Edit(SERVICE + "_pieces", "self.config.piece_bytes_max", "1 << 60")),
    (
        streams_in_a_message,
        Edit(QUERIES + "_on_watch_streams", "len(part) >= INFOS_MAX or", ""),
    ),
    (
        bytes_of_streams_in_a_message,
        Edit(QUERIES + "_on_watch_streams", "or nbytes + size > INFOS_BYTES_MAX", ""),
    ),
    (watches_of_a_client, Edit(QUERIES + "_on_watch_streams", "len(watches) >= WATCHES_MAX", "0")),
    (
        clients_that_wait,
        Edit(
            "surecast.protocols.streams.cursors:Cursors._refusal",
            "len(self.waiting) >= WAITING_MAX",
            "False",
        ),
    ),
    (
        batches_under_way,
        Edit(
            PUBLISHER + "_send_more",
            "min(len(queue.waiting), self.config.inflight_max)",
            "len(queue.waiting)",
        ),
    ),
    (batches_that_wait, Edit(PUBLISHER + "_take", ">= self.config.queue_max", "> 1 << 60")),
    (
        streams_in_alarms,
        Edit(
            "surecast.protocols.streams.observe:StreamsObserver.alarms",
            "in bad[:LISTED_MAX]",
            "in bad",
        ),
    ),
]


@each_check(CHECKS)
def test_bound_holds(check: Check, edit: Edit) -> None:
    check()


@each_check(CHECKS)
def test_a_missing_bound_is_noticed(check: Check, edit: Edit) -> None:
    must_fail(check, edit)
