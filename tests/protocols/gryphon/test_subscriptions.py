"""The subscriptions at a broker, step by step: horizon, gaps, reads at the owner."""

from typing import Any

import pytest

from surecast.core.types import MS, SECOND, Congested, Writable
from surecast.core.wire import Codec
from surecast.errors import ConfigError
from surecast.protocols.gryphon.config import TABLE_BYTES_MAX, GryphonConfig
from surecast.protocols.gryphon.line import LIVE, PAUSED, READING, OwnTable
from surecast.protocols.gryphon.messages import (
    Ack,
    AckExpected,
    Attach,
    Attached,
    Fetch,
    Fetched,
    Filters,
    Join,
    Leave,
    Matched,
    Nack,
    Refused,
    StreamsAre,
)
from surecast.protocols.gryphon.subscriptions import REPEATS_MAX
from surecast.registry import message_types
from tests.protocols.gryphon.made import INFO, STREAM, Driven, batch

X = "key == 'x'"


def joined(start: int = 0, where: str = X, end: int = 10, **options: Any) -> Driven:
    """A broker with one subscription of the client `c`. Brokers above have its filter, unless the
    knowledge says otherwise."""
    made = Driven(**options)
    made.up("p")
    made.get("p", StreamsAre((INFO,)))
    made.get("c", Join(STREAM, 1, start, where))
    made.get("p", Attached(STREAM, end, ""))
    return made


def stamp(made: Driven, version: int = 1) -> tuple[tuple[str, int, int], ...]:
    return (("b", made.broker.incarnation, version),)


def sub(made: Driven, client: str = "c") -> Any:
    return made.broker.lines[STREAM].subs[client]


def got(made: Driven, client: str = "c") -> list[tuple[int, int, list[int]]]:
    return [
        (one.lo, one.hi, [seq for part in one.batches for seq in part.seqs().tolist()])
        for one in made.sent(Matched, client)
    ]


# ---------------------------------------------------------------- beginning


def test_a_subscription_from_the_latest_position_learns_at_once_where_it_begins() -> None:
    made = joined()
    assert got(made) == [(10, 10, [])]
    (attach,) = made.sent(Attach, "p")
    assert attach.at == 0
    assert [(t.broker, t.version, t.added) for t in attach.tables] == [("b", 1, ((1, X),))]


def test_g1_a_live_subscription_gets_exactly_the_events_that_pass() -> None:
    made = joined()
    made.clear()
    made.learn(10, 14, batch(10, [b"x", b"y", b"x", b"y"]), stamps=stamp(made))
    assert got(made) == [(10, 14, [10, 12])]


def test_b9_a_subscription_that_begins_behind_reads_at_the_owner_and_then_goes_live() -> None:
    made = joined(start=3)
    (fetch,) = made.sent(Fetch, "p")
    assert (fetch.lo, fetch.hi, fetch.where) == (3, 10, X)
    made.clear()
    made.learn(10, 12, batch(10, [b"x", b"x"]), stamps=stamp(made))
    assert got(made) == [], "these events wait until the reading gets there"
    made.get("p", Fetched(fetch.token, 3, 7, (batch(3, [b"x"]),)))
    (fetch,) = made.sent(Fetch, "p")
    assert (fetch.lo, fetch.hi) == (7, 10)
    made.get("p", Fetched(fetch.token, 7, 10, ()))
    assert got(made) == [(3, 7, [3]), (7, 10, []), (10, 12, [10, 11])]
    assert sub(made).state == LIVE


def test_a_subscription_that_begins_later_gets_nothing_before() -> None:
    made = joined(start=12)
    made.clear()
    made.learn(10, 14, batch(10, [b"x"] * 4), stamps=stamp(made))
    assert got(made) == [(12, 14, [12, 13])]


def test_a_filter_that_is_not_valid_is_refused() -> None:
    made = joined(where="colour == 'red'")
    (refused,) = made.sent(Refused, "c")
    assert "colour" in refused.why
    assert made.broker.subscriptions.count == 0


def test_the_number_of_subscriptions_is_limited() -> None:
    made = joined(subscriptions_max=1)
    made.get("d", Join(STREAM, 1, 0, X))
    (refused,) = made.sent(Refused, "d")
    assert "subscriptions_max" in refused.why
    made.get("c", Leave(STREAM))
    made.get("d", Join(STREAM, 2, 0, X))
    assert made.broker.subscriptions.count == 1


def test_what_a_client_sends_cannot_stop_a_broker() -> None:
    made = joined()
    for start in (-1, 1 << 62):
        made.get("d", Join(STREAM, 1, start, "(" * 5_000))
    made.get("d", Join(b"u" * 16, 1, 0, X))
    made.get("d", Leave(b"u" * 16))
    made.get("p", Fetched(99, 1, 5, ()))
    assert made.broker.subscriptions.count == 1


# ---------------------------------------------------------------- filters above


def test_b7_a_position_that_another_version_has_filtered_is_read_at_the_owner() -> None:
    made = joined()
    made.clear()
    made.learn(10, 14, batch(10, [b"x"]), stamps=stamp(made, version=0))
    assert got(made) == [], "what else was dropped is not known"
    (fetch,) = made.sent(Fetch, "p")
    assert (fetch.lo, fetch.hi) == (10, 14)
    made.get("p", Fetched(fetch.token, 10, 14, (batch(10, [b"x", b"x"]),)))
    assert got(made) == [(10, 14, [10, 11])]


def test_b7_a_version_of_an_earlier_start_of_this_broker_does_not_count() -> None:
    made = joined()
    made.clear()
    made.learn(10, 14, stamps=(("b", made.broker.incarnation + 1, 9),))
    assert [(one.lo, one.hi) for one in made.sent(Fetch, "p")] == [(10, 14)]
    assert Driven().broker.incarnation > 0


def test_b7_void_positions_count_whatever_filters_there_are() -> None:
    made = joined()
    made.clear()
    made.learn(10, 14, batch(10, [b"x"]), stamps=None)
    assert got(made) == [(10, 14, [10])]


def test_b8_positions_that_are_not_sent_again_are_read_at_the_owner() -> None:
    made = joined()
    made.clear()
    made.learn(10, 500, stamps=())
    assert [(one.lo, one.hi) for one in made.sent(Fetch, "p")] == [(10, 500)]


def test_only_new_filters_are_told_and_the_table_is_repeated_until_it_is_applied() -> None:
    made = joined()
    made.clear()
    made.get("d", Join(STREAM, 1, 0, X))
    assert made.sent(Filters) == [], "the same filter"
    made.get("e", Join(STREAM, 1, 0, "key == 'y'"))
    (told,) = made.sent(Filters, "p")
    assert [(t.base, t.version, t.added) for t in told.tables] == [(1, 2, ((2, "key == 'y'"),))]
    made.clear()
    made.timer("tick", after_ns=SECOND)
    (told,) = made.sent(Filters, "p")
    assert [(t.base, t.version, len(t.added)) for t in told.tables] == [(0, 2, 2)]
    made.learn(10, 11, stamps=stamp(made, 2))
    made.clear()
    made.timer("tick", after_ns=5 * SECOND)
    assert made.sent(Filters) == [], "it is applied"


def test_b13_too_many_filters_become_one_in_one_version() -> None:
    table = OwnTable("b", lambda: 7, filters_max=2, bytes_max=1 << 20)
    assert [table.add(X), table.add("key == 'y'")] == [1, 2]
    assert table.add("key == 'z'") == 5
    whole = table.whole(0)
    assert (whole.version, [text for _, text in whole.added]) == (5, [""])
    assert table.add("key == 'w'") == 5, "it is covered"
    for text in (X, "key == 'y'", "key == 'z'"):
        table.remove(text)
    assert [text for _, text in table.whole(0).added] == [""], "w is still covered"
    table.remove("key == 'w'")
    assert table.whole(0).added == ()


# ---------------------------------------------------------------- slow subscribers


def test_a_slow_subscriber_is_paused_and_reads_what_it_has_missed() -> None:
    made = joined()
    made.give(Congested("c"))
    made.clear()
    made.learn(10, 14, batch(10, [b"x"] * 4), stamps=stamp(made))
    assert (got(made), sub(made).state) == ([], PAUSED)
    made.give(Writable("c"))
    assert [(one.lo, one.hi) for one in made.sent(Fetch, "p")] == [(10, 14)]


def test_events_that_wait_for_a_reading_are_limited() -> None:
    made = joined(start=3, queue_bytes_max=1_000)
    for lo in range(10, 40):
        made.learn(lo, lo + 1, batch(lo, [b"x"]), stamps=stamp(made))
    waiting = sub(made)
    assert waiting.state == READING
    assert waiting.queue_bytes <= 1_000
    assert waiting.join > 10, "what was dropped is read, too"


# ---------------------------------------------------------------- gaps


def test_g10_no_request_without_a_gap() -> None:
    made = joined()
    for lo in range(10, 60, 5):
        made.learn(lo, lo + 5, batch(lo, [b"x"] * 5), stamps=stamp(made))
        made.timer("gaps", after_ns=SECOND)
    assert made.sent(Nack) == []


def test_a_gap_is_requested_after_a_while_and_again_with_growing_times() -> None:
    made = joined(gap_ns=10 * MS, repeat_ns=30 * MS)
    made.learn(20, 25, batch(20, [b"x"] * 5), stamps=stamp(made))
    assert made.sent(Nack) == []
    made.timer("gaps", after_ns=10 * MS)
    assert [one.ranges for one in made.sent(Nack, "p")] == [((10, 20),)]
    for wait_ms in (30, 60, 120):
        made.clear()
        made.timer("gaps", after_ns=(wait_ms - 1) * MS)
        assert made.sent(Nack) == []
        made.timer("gaps", after_ns=MS)
        assert len(made.sent(Nack, "p")) == 1


def test_g3_nothing_beyond_a_gap_is_passed_to_subscribers() -> None:
    made = joined()
    made.clear()
    made.learn(20, 25, batch(20, [b"x"] * 5), stamps=stamp(made))
    assert got(made) == []
    made.learn(10, 20, batch(10, [b"x"] * 10), stamps=stamp(made), first=False)
    assert got(made) == [(10, 20, list(range(10, 20))), (20, 25, list(range(20, 25)))]


def test_after_a_part_of_a_gap_the_rest_is_requested_at_once() -> None:
    made = joined(nack_positions_max=4)
    made.learn(20, 25, batch(20, [b"x"] * 5), stamps=stamp(made))
    made.timer("gaps", after_ns=10 * MS)
    assert [one.ranges for one in made.sent(Nack, "p")] == [((10, 14),)]
    made.clear()
    made.learn(10, 14, batch(10, [b"x"] * 4), stamps=stamp(made), first=False)
    made.timer("gaps")
    assert [one.ranges for one in made.sent(Nack, "p")] == [((14, 18),)]


def test_repetitions_have_a_longest_time() -> None:
    made = joined(repeat_ns=30 * MS, repeat_ns_max=100 * MS)
    made.learn(20, 25, batch(20, [b"x"] * 5), stamps=stamp(made))
    for _ in range(8):
        made.timer("gaps", after_ns=100 * MS)
    (gap,) = made.broker.lines[STREAM].gaps
    assert gap.due_ns - made.now_ns <= 100 * MS


def test_an_expected_position_that_is_missing_is_requested_at_once() -> None:
    made = joined()
    made.clear()
    made.get("p", AckExpected(STREAM, 30))
    made.timer("gaps")
    assert [one.ranges for one in made.sent(Nack, "p")] == [((10, 30),)]


def test_g5_only_what_was_passed_on_is_acknowledged() -> None:
    made = joined()
    made.timer("acks", after_ns=50 * MS)
    made.clear()
    made.learn(10, 14, batch(10, [b"x"] * 4), stamps=stamp(made))
    made.learn(20, 25, batch(20, [b"x"] * 5), stamps=stamp(made))
    made.timer("acks", after_ns=50 * MS)
    assert made.sent(Ack, "p") == [Ack(STREAM, 14)]


# ---------------------------------------------------------------- time


def test_b11_a_subscriber_learns_how_far_the_stream_has_got() -> None:
    made = joined()
    made.learn(10, 500, stamps=stamp(made))
    made.clear()
    made.timer("tick", after_ns=made.config.silence_ns)
    assert got(made) == [(10, 500, [])]


def test_a_read_without_an_answer_is_repeated() -> None:
    made = joined(start=3)
    made.clear()
    made.timer("tick", after_ns=made.config.fetch_ns)
    assert [(one.lo, one.hi) for one in made.sent(Fetch, "p")] == [(3, 10)]


# ---------------------------------------------------------------- found by a hostile tester


def test_the_largest_table_fits_into_a_message() -> None:
    config = GryphonConfig("b")
    table = OwnTable("b", lambda: 7, config.filters_max, config.filters_bytes_max)
    for number in range(config.filters_max):
        table.add(f"key == '{number}'")
        table.add("\u00dc" * 4_000 + str(number) if number < 40 else "x")
        if table.is_wide:
            break
    assert table.is_wide, "filters_bytes_max"
    small = OwnTable("b", lambda: 7, config.filters_max, config.filters_bytes_max)
    for number in range(config.filters_max):
        small.add(str(number).rjust(20))
    assert not small.is_wide
    codec = Codec(message_types())
    for whole in (table.whole(0), small.whole(0)):
        assert codec.encode(Attach(STREAM, 1, (whole,)))
        assert codec.encode(Filters(STREAM, (whole,)))
    wrong = {"filters_bytes_max": TABLE_BYTES_MAX}
    with pytest.raises(ConfigError, match="fits into a message"):
        GryphonConfig("b", **wrong).validate()  # type: ignore[arg-type]


def test_a_table_is_repeated_less_and_less_often() -> None:
    made = joined()
    made.clear()
    for _ in range(240):
        made.timer("tick", after_ns=SECOND // 4)
    assert 3 <= len(made.sent(Filters, "p")) <= 7, "an idle stream does not show its filters"
    assert REPEATS_MAX < 20


def test_only_the_broker_that_was_asked_may_answer_a_read() -> None:
    made = joined(start=3)
    (fetch,) = made.sent(Fetch, "p")
    made.clear()
    made.get("q", Fetched(fetch.token, 3, 10, (batch(3, [b"x"] * 7),)))
    assert got(made) == []
    made.get("p", Fetched(fetch.token, 3, 5, (batch(3, [b"x"] * 7),)))
    assert got(made) == [], "its batches are not of the range"
    made.timer("tick", after_ns=made.config.fetch_ns)
    (fetch,) = made.sent(Fetch, "p")
    made.get("p", Fetched(fetch.token, 3, 10, (batch(3, [b"x"] * 7),)))
    assert got(made) == [(3, 10, list(range(3, 10)))]


def test_the_rest_of_an_answer_is_not_requested_again_while_it_is_on_its_way() -> None:
    made = joined(nack_positions_max=8, repeat_ns=30 * MS)
    made.learn(30, 35, batch(30, [b"x"] * 5), stamps=stamp(made))
    made.timer("gaps", after_ns=10 * MS)
    assert [one.ranges for one in made.sent(Nack, "p")] == [((10, 18),)]
    made.clear()
    made.learn(10, 14, batch(10, [b"x"] * 4), stamps=stamp(made), first=False)
    made.timer("gaps", after_ns=5 * MS)
    assert made.sent(Nack) == [], "14 to 17 may be on their way"
    made.learn(14, 18, batch(14, [b"x"] * 4), stamps=stamp(made), first=False)
    made.timer("gaps")
    assert [one.ranges for one in made.sent(Nack, "p")] == [((18, 26),)], "all of it has come"


def test_gaps_beyond_what_is_requested_at_once_wait_for_a_later_time() -> None:
    """Found by seed 107 of the swarm: the timer for them fired without end."""
    made = joined(nack_positions_max=4)
    made.learn(20, 22, batch(20, [b"x"] * 2), stamps=stamp(made))
    made.learn(30, 32, batch(30, [b"x"] * 2), stamps=stamp(made))
    made.timer("gaps", after_ns=10 * MS)
    assert [one.ranges for one in made.sent(Nack, "p")] == [((10, 14),)]
    assert all(gap.due_ns > made.now_ns for gap in made.broker.lines[STREAM].gaps)
