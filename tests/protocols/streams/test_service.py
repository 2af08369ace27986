"""The stream service of one replica, step by step: readers, creates, commands of deliveries."""

from typing import Any

import pytest

from surecast.columns.batch import Batch
from surecast.columns.retention import KeepAll, KeepLast
from surecast.core.endpoint import Drain
from surecast.core.replicated import Appended, AppendOwn, Committed, Submit, Submitted, Truncated
from surecast.core.streams import (
    DIRECTORY,
    Adopt,
    Await,
    Limit,
    Resume,
    Settle,
    StreamInfo,
    StreamSpec,
    Suspend,
)
from surecast.core.types import Command, Congested, PeerDown, Received, Writable
from surecast.protocols.streams.directory import info_batch
from surecast.protocols.streams.messages import (
    CreateStream,
    Events,
    PubAck,
    Publish,
    PubNack,
    RangeEvents,
    ReadRange,
    StreamOpened,
    Subscribe,
    Unsubscribe,
)
from tests.protocols.bench import INFO, STREAM, Bench, passed_down, sent

OWNER = "y/0"  # of the stream s
PUBLISHER = bytes(8) + b"ann's id"


def batch(pub_no: int = 1) -> Batch:
    return Batch.of(STREAM, [b"v%d" % pub_no], publisher=PUBLISHER, pub_no=pub_no)


def tell(bench: Bench, command: Any) -> list[Any]:
    """Pass a command of a layer above to the service."""
    return bench.give(Command("streams", command))


def commit(bench: Bench, hi: int) -> None:
    """Append and commit events of s up to `hi`, one a batch."""
    for seq in range(bench.disk.end(STREAM), hi):
        bench.disk.append(STREAM, (batch(seq).sequenced(seq, seq, 1),))
    bench.chain_emits(Appended(STREAM, hi))
    bench.chain_emits(Committed(STREAM, hi))


def events(effects: list[Any]) -> list[tuple[str, int, int, int]]:
    """(peer, lo, hi, end) of each Events message; without events lo and hi are 0."""
    found = []
    for peer, message in sent(effects, Events):
        span = (message.batches[0].lo, message.batches[-1].hi) if message.batches else (0, 0)
        found.append((peer, *span, message.end))
    return found


@pytest.fixture
def owner() -> Bench:
    """The head of region y, which owns s; six events of it are committed."""
    bench = Bench(OWNER)
    bench.role(1)
    bench.add_stream()
    commit(bench, 7)
    return bench


# ---------------------------------------------------------------- readers


def test_a_reader_gets_committed_events_and_then_new_ones(owner: Bench) -> None:
    assert events(owner.give(Received("c", Subscribe(STREAM, 3)))) == [("c", 3, 7, 7)]
    commit(owner, 9)
    assert events(owner.end_of_pass("streams")) == [("c", 7, 9, 9)]
    owner.give(Received("c", Unsubscribe(STREAM)))
    commit(owner, 10)
    assert events(owner.end_of_pass("streams")) == []


def test_a_reader_at_the_end_gets_an_empty_message_with_the_end(owner: Bench) -> None:
    assert events(owner.give(Received("c", Subscribe(STREAM, 7)))) == [("c", 0, 0, 7)]


def test_uncommitted_events_are_not_sent_to_readers(owner: Bench) -> None:
    owner.disk.append(STREAM, (batch(7).sequenced(7, 7, 1),))
    owner.chain_emits(Appended(STREAM, 8))
    assert events(owner.give(Received("c", Subscribe(STREAM, 6)))) == [("c", 6, 7, 7)]


def test_a_reader_of_an_unknown_stream_gets_its_events_when_it_appears() -> None:
    bench = Bench(OWNER)
    bench.role(1)
    assert events(bench.give(Received("c", Subscribe(STREAM, 2)))) == []
    bench.add_stream()
    commit(bench, 4)
    assert events(bench.end_of_pass("streams")) == [("c", 2, 4, 4)]


@pytest.mark.parametrize("start", [0, -1])
def test_a_subscription_before_the_first_position_is_refused(owner: Bench, start: int) -> None:
    assert owner.give(Received("c", Subscribe(STREAM, start))) == []
    assert owner.service.counters["streams.subscription-refused"] == 1
    assert owner.service.serving.count == 0


def test_subscriptions_are_bounded_and_those_that_end_make_room() -> None:
    bench = Bench(OWNER, streams={"subscriptions_max": 2})
    bench.role(1)
    bench.add_stream()
    for peer in ("a", "b", "c"):
        bench.give(Received(peer, Subscribe(STREAM, 1)))
    assert list(bench.service.serving.followers[STREAM]) == ["a", "b"]
    assert bench.service.counters["streams.subscription-refused"] == 1
    bench.give(PeerDown("a"))
    assert events(bench.give(Received("c", Subscribe(STREAM, 1)))) == [("c", 0, 0, 1)]


def test_a_congested_reader_is_sent_nothing_until_it_is_writable(owner: Bench) -> None:
    owner.give(Received("c", Subscribe(STREAM, 7)))
    owner.give(Congested("c"))
    commit(owner, 9)
    assert events(owner.end_of_pass("streams")) == []
    assert events(owner.give(Writable("c"))) == [("c", 7, 9, 9)]


def test_a_range_is_read_up_to_the_visible_end(owner: Bench) -> None:
    out = owner.give(Received("c", ReadRange(STREAM, 2, 20)))
    ((peer, answer),) = sent(out, RangeEvents)
    assert (peer, answer.lo, answer.hi, answer.end, answer.last) == ("c", 2, 20, 7, True)
    assert [(b.lo, b.hi) for b in answer.batches] == [(seq, seq + 1) for seq in range(2, 7)]


def test_a_reader_of_truncated_positions_is_dropped(owner: Bench) -> None:
    """The reader must not get positions after a gap. It receives nothing and subscribes again."""
    owner.give(Received("c", Subscribe(STREAM, 1)))
    owner.disk.truncate(STREAM, 4)
    owner.chain_emits(Truncated(STREAM, 4))
    assert owner.service.serving.followers == {}
    assert owner.service.shown_end(STREAM) == 4


# ---------------------------------------------------------------- commands of deliveries


def test_a_suspended_stream_accepts_no_publishes(owner: Bench) -> None:
    publish = Received("c", Publish(STREAM, batch()))
    assert len(passed_down(owner.give(publish), Submit)) == 1
    tell(owner, Suspend(STREAM, "recovering"))
    out = owner.give(publish)
    assert passed_down(out, Submit) == []
    assert sent(out, PubNack) == [("c", PubNack(STREAM, PUBLISHER, 1, "recovering"))]
    tell(owner, Resume(STREAM))
    assert len(passed_down(owner.give(publish), Submit)) == 1


def test_nothing_is_visible_from_the_limit_of_a_stream_on(owner: Bench) -> None:
    tell(owner, Limit(STREAM, 4))
    assert owner.service.shown_end(STREAM) == 4
    assert owner.service.committed_end(STREAM) == 7
    assert events(owner.give(Received("c", Subscribe(STREAM, 1)))) == [("c", 1, 4, 4)]
    commit(owner, 9)
    assert events(owner.end_of_pass("streams")) == []
    tell(owner, Limit(STREAM, None))
    assert events(owner.end_of_pass("streams")) == [("c", 4, 9, 9)]


def test_a_draining_server_refuses_publishes_and_acknowledges_accepted_ones(
    owner: Bench,
) -> None:
    (submit,) = passed_down(owner.give(Received("c", Publish(STREAM, batch()))), Submit)
    tell(owner, Drain())
    out = owner.give(Received("c", Publish(STREAM, batch(2))))
    assert [nack.why for _, nack in sent(out, PubNack)] == ["busy"]
    owner.chain_emits(Submitted(submit.token, 7))
    acks = sent(owner.end_of_pass("streams"), PubAck)
    assert acks == [("c", PubAck(STREAM, PUBLISHER, 1, 7))]


def test_a_publish_to_a_stream_whose_owner_is_unreachable_is_refused() -> None:
    bench = Bench("x/0")
    bench.role(1)
    bench.add_stream()
    out = bench.give(Received("c", Publish(STREAM, batch())))
    assert sent(out, PubNack) == [("c", PubNack(STREAM, PUBLISHER, 1, "owner-unreachable"))]


# ---------------------------------------------------------------- creating


def made(bench: Bench, info: StreamInfo, made_epoch: int = 1) -> list[Any]:
    """Append and commit an entry of the directory; returns the effects of the commit."""
    at = bench.disk.end(DIRECTORY)
    bench.disk.append(DIRECTORY, (info_batch(info, "y", made_epoch).sequenced(at, 1, 1),))
    bench.chain_emits(Appended(DIRECTORY, at + 1))
    return bench.chain_emits(Committed(DIRECTORY, at + 1))


def opened(effects: list[Any]) -> list[tuple[str, str, str]]:
    return [(peer, m.info.name if m.info else "", m.why) for peer, m in sent(effects, StreamOpened)]


def test_simultaneous_creates_make_one_stream_and_are_all_answered() -> None:
    bench = Bench(OWNER)
    bench.role(1)
    (entry,) = passed_down(
        bench.give(Received("a", CreateStream("n", StreamSpec(KeepLast(3))))), AppendOwn
    )
    assert entry.log == DIRECTORY
    for peer, policy in (("b", None), ("c", KeepAll()), ("gone", None)):
        out = bench.give(Received(peer, CreateStream("n", StreamSpec(policy))))
        assert passed_down(out, AppendOwn) == sent(out, StreamOpened) == []
    bench.give(PeerDown("gone"))
    out = made(bench, StreamInfo(b"n" * 16, "n", "y", KeepLast(3)))
    assert opened(out) == [("a", "n", ""), ("b", "n", ""), ("c", "n", "config-mismatch")]
    assert bench.service.asked == bench.service.making == {}
    assert opened(bench.give(Received("d", CreateStream("n", StreamSpec())))) == [("d", "n", "")]


def test_only_the_head_creates_streams_and_waiting_clients_are_redirected() -> None:
    bench = Bench(OWNER)
    bench.role(1)
    bench.give(Received("a", CreateStream("n", StreamSpec())))
    out = bench.role(2, head=False)
    assert opened(out) == [("a", "", "not-head")]
    out = bench.give(Received("a", CreateStream("n", StreamSpec())))
    assert sent(out, StreamOpened) == [("a", StreamOpened("n", None, "not-head", "y/0"))]


def test_clients_that_wait_for_a_create_elsewhere_get_its_result() -> None:
    bench = Bench(OWNER)
    bench.role(1)
    for peer in ("a", "b"):
        assert tell(bench, Await(peer, CreateStream("n", StreamSpec()))) == []
    out = tell(bench, Settle("n", "too-many-streams"))
    assert opened(out) == [("a", "", "too-many-streams"), ("b", "", "too-many-streams")]
    assert tell(bench, Settle("n", "too-many-streams")) == []
    tell(bench, Await("a", CreateStream("n", StreamSpec())))
    bench.give(PeerDown("a"))
    assert bench.service.asked == {}


def test_an_invalid_stream_name_is_refused() -> None:
    bench = Bench(OWNER)
    bench.role(1)
    assert opened(bench.give(Received("a", CreateStream("a b", StreamSpec())))) == [
        ("a", "", "bad-name")
    ]


def test_directory_entries_of_adopted_streams_have_no_epoch() -> None:
    bench = Bench(OWNER)
    bench.role(3)
    other = StreamInfo(b"o" * 16, "o", "x", KeepAll())
    for info, is_made in ((other, False), (INFO, True)):
        (entry,) = passed_down(tell(bench, Adopt(info, made=is_made)), AppendOwn)
        (row,) = entry.batch.to_rows()
        assert (row.key, row.tag) == (info.stream_id, b"3" if is_made else None)
