"""Reading with a filter, step by step: the replica applies it, and clients handle what it sends."""

from typing import Any

import pytest

from surecast.columns.batch import FILTERED, VOID, Batch
from surecast.core import endpoint
from surecast.core.endpoint import Follow, Following, Unfollow, filter_number
from surecast.core.replicated import Appended, Committed
from surecast.core.types import (
    MS,
    SECOND,
    Congested,
    Deliver,
    Emit,
    PeerDown,
    Received,
    Send,
    SetTimer,
    Start,
    TimerFired,
    Writable,
)
from surecast.protocols.streams.config import SubscriberConfig
from surecast.protocols.streams.fetcher import Fetcher
from surecast.protocols.streams.messages import (
    Events,
    FilterRefused,
    RangeEvents,
    ReadRange,
    Subscribe,
    Unsubscribe,
)
from surecast.protocols.streams.subscriber import Subscriber
from surecast.where.text import DEPTH_MAX, TEXT_MAX
from tests.protocols.bench import STREAM, Bench, sent

OWNER = "y/0"
EVERY_TENTH = "key == 'k0'"
NUMBER = filter_number(EVERY_TENTH)
NOTHING = "key == 'none'"
PUBLISHER = bytes(8) + b"ann's id"


def batch(lo: int, hi: int) -> Batch:
    keys = [b"k%d" % (seq % 10) for seq in range(lo, hi)]
    made = Batch.of(STREAM, [b"value"] * (hi - lo), keys, publisher=PUBLISHER, pub_no=lo)
    return made.sequenced(lo, 5, 1)


def commit(bench: Bench, hi: int) -> None:
    bench.disk.append(STREAM, (batch(bench.disk.end(STREAM), hi),))
    bench.chain_emits(Appended(STREAM, hi))
    bench.chain_emits(Committed(STREAM, hi))


@pytest.fixture
def owner() -> Bench:
    """The head of region y, which owns the stream s; 100 events of it are committed."""
    return served()


def served(**config: Any) -> Bench:
    bench = Bench(OWNER, streams=config)
    bench.role(1)
    bench.add_stream()
    commit(bench, 101)
    return bench


def read(effects: list[Any], kind: type[Any] = Events) -> list[tuple[str, list[int], int]]:
    """(peer, positions of events, end) of each message."""
    return [
        (peer, [seq for one in message.batches for seq in one.seqs().tolist()], message.end)
        for peer, message in sent(effects, kind)
    ]


# ---------------------------------------------------------------- the replica


def test_a_reader_with_a_filter_gets_only_the_events_that_pass(owner: Bench) -> None:
    out = owner.give(Received("c", Subscribe(STREAM, 1, EVERY_TENTH)))
    assert read(out) == [("c", list(range(10, 101, 10)), 101)]
    ((_, message),) = sent(out, Events)
    assert message.filter == NUMBER
    commit(owner, 201)
    assert read(owner.end_of_pass("streams")) == [("c", list(range(110, 201, 10)), 201)]
    owner.give(Received("c", Unsubscribe(STREAM)))
    commit(owner, 301)
    assert read(owner.end_of_pass("streams")) == []


def test_b11_a_reader_whose_filter_nothing_passes_gets_its_position_every_half_second(
    owner: Bench,
) -> None:
    """Runs in which nothing passes are held back, but not for longer."""
    owner.give(Received("c", Subscribe(STREAM, 1, NOTHING)))
    timers = []
    for end in range(201, 1001, 100):
        commit(owner, end)
        out = owner.end_of_pass("streams")
        assert sent(out, Events) == []
        timers += [effect for effect in out if isinstance(effect, SetTimer)]
    (timer,) = timers
    assert timer.key == ("streams", "tell")
    out = owner.timer("streams", "tell")
    ((peer, message),) = sent(out, Events)
    assert peer == "c"
    assert [(one.kind, one.lo, one.hi, one.reason) for one in message.batches] == [
        (VOID, 101, 901, FILTERED)
    ]
    assert not [effect for effect in out if isinstance(effect, SetTimer)]
    commit(owner, 1001)
    out = owner.end_of_pass("streams")
    assert [effect.key for effect in out if isinstance(effect, SetTimer)] == [("streams", "tell")]
    assert owner.service.config.tell_ns == 500 * MS


def test_a_filter_that_is_not_valid_is_refused(owner: Bench) -> None:
    for where, why in (
        ("sim == 'x'", "no column 'sim'"),
        ("key ==", "end of the filter"),
        ("x" * (TEXT_MAX + 1), "at most 16,384"),
        ("(" * (DEPTH_MAX + 1) + "exists key" + ")" * (DEPTH_MAX + 1), "deep"),
        ("\x00", "character 1"),
    ):
        for request in (Subscribe(STREAM, 1, where), ReadRange(STREAM, 1, 50, where)):
            ((peer, message),) = sent(owner.give(Received("c", request)), FilterRefused)
            assert (peer, message.stream, message.filter) == ("c", STREAM, filter_number(where))
            assert why in message.why, message.why
    assert owner.service.counters["streams.filter-refused"] == 10
    assert owner.service.filtered.count == 0


def test_a_filter_of_a_stream_that_appears_later_is_bound_then() -> None:
    bench = Bench(OWNER)
    bench.role(1)
    assert bench.give(Received("c", Subscribe(STREAM, 1, EVERY_TENTH))) == []
    bench.give(Received("d", Subscribe(STREAM, 1, "nothing == 1")))
    bench.add_stream()
    commit(bench, 101)
    out = bench.end_of_pass("streams")
    assert read(out) == [("c", list(range(10, 101, 10)), 101)]
    ((peer, message),) = sent(out, FilterRefused)
    assert (peer, message.filter) == ("d", filter_number("nothing == 1"))


def test_a_reader_may_change_between_filters_and_no_filter(owner: Bench) -> None:
    owner.give(Received("c", Subscribe(STREAM, 1, EVERY_TENTH)))
    out = owner.give(Received("c", Subscribe(STREAM, 95)))
    assert read(out) == [("c", list(range(95, 101)), 101)]
    commit(owner, 111)
    assert read(owner.end_of_pass("streams")) == [("c", list(range(101, 111)), 111)]
    owner.give(Received("c", Subscribe(STREAM, 111, "key == 'k3'")))
    commit(owner, 151)
    assert read(owner.end_of_pass("streams")) == [("c", [113, 123, 133, 143], 151)]
    service = owner.service
    assert (service.serving.count, service.filtered.count) == (0, 1)
    owner.give(PeerDown("c"))
    assert (service.serving.count, service.filtered.count) == (0, 0)


def test_readers_without_a_filter_get_the_same_messages_beside_readers_with_one() -> None:
    alone, beside = served(), served()
    for bench in (alone, beside):
        bench.give(Received("c", Subscribe(STREAM, 1)))
    beside.give(Received("d", Subscribe(STREAM, 1, EVERY_TENTH)))
    for bench in (alone, beside):
        commit(bench, 201)
    first, second = (
        [message for peer, message in sent(bench.end_of_pass("streams"), Events) if peer == "c"]
        for bench in (alone, beside)
    )
    assert [(one.end, one.filter, [b.lo for b in one.batches]) for one in first] == [
        (one.end, one.filter, [b.lo for b in one.batches]) for one in second
    ]
    assert all(not b.is_filtered for one in second for b in one.batches)


def test_subscriptions_with_and_without_a_filter_are_bounded_together() -> None:
    bench = served(subscriptions_max=2)
    bench.give(Received("a", Subscribe(STREAM, 1)))
    bench.give(Received("b", Subscribe(STREAM, 1, EVERY_TENTH)))
    assert bench.give(Received("c", Subscribe(STREAM, 1))) == []
    assert bench.give(Received("c", Subscribe(STREAM, 1, EVERY_TENTH))) == []
    assert read(bench.give(Received("b", Subscribe(STREAM, 1, EVERY_TENTH)))) == [
        ("b", list(range(10, 101, 10)), 101)
    ]
    assert bench.give(Received("b", Subscribe(STREAM, 0, EVERY_TENTH))) == []


def test_a_congested_reader_gets_the_rest_when_its_queue_has_drained(owner: Bench) -> None:
    owner.give(Received("c", Subscribe(STREAM, 101, EVERY_TENTH)))
    owner.give(Congested("c"))
    commit(owner, 201)
    assert sent(owner.end_of_pass("streams"), Events) == []
    assert sent(owner.timer("streams", "tell"), Events) == []
    owner.give(Writable("c"))
    assert read(owner.end_of_pass("streams")) == [("c", list(range(110, 201, 10)), 201)]


def test_a_range_is_read_with_a_filter(owner: Bench) -> None:
    out = owner.give(Received("c", ReadRange(STREAM, 5, 50, EVERY_TENTH)))
    assert read(out, RangeEvents) == [("c", [10, 20, 30, 40], 101)]
    ((_, message),) = sent(out, RangeEvents)
    assert (message.filter, message.last, message.lo, message.hi) == (NUMBER, True, 5, 50)
    ((_, message),) = sent(owner.give(Received("c", ReadRange(STREAM, 5, 9, NOTHING))), RangeEvents)
    assert [(b.kind, b.lo, b.hi, b.reason) for b in message.batches] == [(VOID, 5, 9, FILTERED)]
    ((_, message),) = sent(owner.give(Received("c", ReadRange(STREAM, 5, 9))), RangeEvents)
    assert message.filter == 0
    other = bytes(16)
    ((_, message),) = sent(
        owner.give(Received("c", ReadRange(other, 5, 9, EVERY_TENTH))), RangeEvents
    )
    assert message.end == 0  # the stream is not known


def test_the_work_for_one_range_is_bounded() -> None:
    """An answer to a range ends when its filter has cost enough; the client requests the rest."""
    bench = served(filter_cost_max=9000, serve_bytes_max=500)
    for hi in range(201, 1001, 100):
        commit(bench, hi)
    out = bench.give(Received("c", ReadRange(STREAM, 1, 901, EVERY_TENTH)))
    messages = [message for _, message in sent(out, RangeEvents)]
    assert messages[-1].last
    assert 101 <= messages[-1].hi < 901


# ---------------------------------------------------------------- the subscriber


class Steps:
    def __init__(self) -> None:
        self.machine = Subscriber(SubscriberConfig(("a", "b"), idle_ns=SECOND), {})
        self.now_ns = 10 * SECOND
        self.give(Start(0, 1))

    def give(self, inp: Any) -> list[Any]:
        return [e for e in self.machine.step(self.now_ns, inp) if not isinstance(e, SetTimer)]

    def gets(self, peer: str, *batches: Batch, where: str = "") -> list[Any]:
        return self.give(Received(peer, Events(STREAM, batches, 999, filter_number(where))))


def test_a_subscriber_requests_its_filter_from_each_server() -> None:
    steps = Steps()
    assert steps.give(Follow(STREAM, 5, EVERY_TENTH, 3)) == [
        Emit(Following(STREAM, 5, 3)), Send("a", Subscribe(STREAM, 5, EVERY_TENTH)),
    ]  # fmt: skip
    one = batch(5, 20)
    assert steps.gets("a", one, where=EVERY_TENTH) == [Deliver(STREAM, (one,))]
    assert steps.give(PeerDown("a")) == [
        Send("a", Unsubscribe(STREAM)), Send("b", Subscribe(STREAM, 20, EVERY_TENTH)),
    ]  # fmt: skip
    steps.give(Unfollow(STREAM))
    assert steps.machine.filters == {}
    assert steps.give(Follow(STREAM, 20)) == [Send("b", Subscribe(STREAM, 20))]


def test_a_subscriber_drops_what_another_filter_has_left() -> None:
    steps = Steps()
    steps.give(Follow(STREAM, 1, EVERY_TENTH))
    steps.give(Follow(STREAM, 1, NOTHING))
    assert steps.gets("a", batch(1, 20), where=EVERY_TENTH) == []
    unfiltered = batch(1, 20)  # of a server that does not know filters
    assert steps.gets("a", unfiltered) == [Deliver(STREAM, (unfiltered,))]
    steps.give(Follow(STREAM, 20))
    assert steps.gets("a", batch(20, 30), where=NOTHING) == []


def test_a_subscriber_whose_filter_is_refused_subscribes_without_it() -> None:
    steps = Steps()
    steps.give(Follow(STREAM, 1, EVERY_TENTH))
    refusal = Received("a", FilterRefused(STREAM, NUMBER, "why"))
    assert steps.give(refusal) == [Send("a", Subscribe(STREAM, 1))]
    assert steps.give(refusal) == []
    assert steps.machine.counters["streams.filter-refused"] == 1
    assert steps.give(Received("a", FilterRefused(STREAM, 1, "another"))) == []
    steps.now_ns += 2 * SECOND
    out = steps.give(TimerFired("idle"))  # another server may know the filter
    assert out == [Send("a", Unsubscribe(STREAM)), Send("b", Subscribe(STREAM, 1, EVERY_TENTH))]


# ---------------------------------------------------------------- the fetcher


def test_a_fetcher_requests_its_filter_and_falls_back_if_it_is_refused() -> None:
    machine = Fetcher(SubscriberConfig(("a", "b"), idle_ns=SECOND))
    machine.step(0, Start(0, 1))
    assert machine.step(0, endpoint.ReadRange(STREAM, 1, 100, EVERY_TENTH)) == [
        Send("a", ReadRange(STREAM, 1, 100, EVERY_TENTH))
    ]
    other = RangeEvents(STREAM, 1, 50, 999, False, (batch(1, 50),), filter_number(NOTHING))
    assert machine.step(1, Received("a", other)) == []
    one = batch(1, 50)
    answer = RangeEvents(STREAM, 1, 50, 999, True, (one,), NUMBER)
    assert machine.step(1, Received("a", answer)) == [
        Deliver(STREAM, (one,)), Send("a", ReadRange(STREAM, 50, 100, EVERY_TENTH)),
    ]  # fmt: skip
    refusal = Received("a", FilterRefused(STREAM, NUMBER, "why"))
    assert machine.step(2, refusal) == [Send("a", ReadRange(STREAM, 50, 100))]
    assert machine.step(2, refusal) == []
    assert machine.step(3, PeerDown("a")) == [Send("b", ReadRange(STREAM, 50, 100, EVERY_TENTH))]
    assert machine.step(4, endpoint.ReadRange(STREAM, 1, 9)) == [Send("b", ReadRange(STREAM, 1, 9))]


def test_the_filters_of_all_readers_are_bounded() -> None:
    """At `filter_chars_max` a further filter is refused; then the client filters by itself."""
    bench = served(filter_chars_max=len(EVERY_TENTH) + 3)
    bench.give(Received("a", Subscribe(STREAM, 1, EVERY_TENTH)))
    ((_, message),) = sent(bench.give(Received("b", Subscribe(STREAM, 1, NOTHING))), FilterRefused)
    assert message.why == "this server has too many filters"
    bench.give(Received("a", Unsubscribe(STREAM)))
    assert not sent(bench.give(Received("b", Subscribe(STREAM, 1, NOTHING))), FilterRefused)
