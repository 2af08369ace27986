"""A broker between an owner and brokers with subscribers: guarantees and rules, step by step."""

import pytest

from surecast.columns.batch import FILTERED
from surecast.core.types import MS, SECOND, Congested, Writable
from surecast.core.wire import SEQ_END_MAX, Codec
from surecast.errors import ConfigError
from surecast.protocols.gryphon.broker import CURIOUS_MAX, RANGES_MAX
from surecast.protocols.gryphon.config import LINKS_MAX, SUBSCRIPTIONS_MAX, GryphonConfig, paper
from surecast.protocols.gryphon.messages import (
    Ack,
    AckExpected,
    Attach,
    Attached,
    Detach,
    Fetch,
    Fetched,
    Filters,
    Knowledge,
    Nack,
    Reach,
    StreamsAre,
)
from surecast.registry import message_types
from tests.protocols.gryphon.made import (
    INFO,
    STREAM,
    TICK_NS,
    Driven,
    batch,
    table,
)

X, Y = "key == 'x'", "key == 'y'"


def keys_of(message: Knowledge) -> list[bytes | None]:
    return [key for one in message.batches for key in one.keys().to_list()]


# ---------------------------------------------------------------- knowledge


def test_events_that_no_filter_wants_travel_as_a_run_before_the_next_event() -> None:
    made = Driven()
    made.connect(s=table("s", X), t=table("t", Y))
    made.learn(1, 3, batch(1, [b"y", b"z"]))
    assert made.sent(to="s") == []
    (told,) = made.sent(Knowledge, "t")
    assert (told.lo, told.hi, keys_of(told)) == (1, 3, [b"y"])
    assert told.stamps == (("t", 7, 1),), "its filter has dropped z"
    made.learn(3, 4, batch(3, [b"x"]))
    (told,) = made.sent(Knowledge, "s")
    assert (told.lo, told.hi, keys_of(told)) == (1, 4, [b"x"]), "the run is in front of the event"
    assert told.stamps == (("s", 7, 1),)


def test_rows_that_a_filter_has_dropped_are_void_as_filtered() -> None:
    made = Driven()
    made.connect(s=table("s", X))
    made.learn(1, 4, batch(1, [b"x", b"y", b"x"]))
    (told,) = made.sent(Knowledge, "s")
    assert told.batches[0].reason == FILTERED
    assert told.batches[0].seqs().tolist() == [1, 3]


def test_positions_that_no_filter_has_touched_have_no_stamps() -> None:
    made = Driven()
    made.connect(s=table("s", ""))
    made.learn(1, 9, batch(4, [b"x"]))
    assert [told.stamps for told in made.sent(Knowledge, "s")] == [None]


def test_b7_the_lowest_version_that_was_applied_is_kept() -> None:
    made = Driven()
    made.connect(s=table("s", X, version=5))
    made.learn(1, 2, stamps=(("s", 7, 3), ("other", 1, 1)))
    made.learn(2, 4, batch(2, [b"x", b"y"]), stamps=None)
    (told,) = made.sent(Knowledge, "s")
    assert told.stamps == (("s", 7, 3),), "above, an older version was applied"


def test_b7_a_table_of_an_earlier_start_counts_as_unknown() -> None:
    made = Driven()
    made.connect(s=table("s", X, incarnation=8))
    made.learn(1, 3, batch(1, [b"x", b"y"]), stamps=(("s", 7, 9),))
    (told,) = made.sent(Knowledge, "s")
    assert told.stamps == ()


def test_a_change_of_a_table_that_does_not_fit_is_not_installed() -> None:
    made = Driven()
    made.connect(s=table("s", X))
    made.get("s", Filters(STREAM, (table("s", Y, base=4, version=5),)))
    made.learn(1, 3, batch(1, [b"x", b"y"]))
    (told,) = made.sent(Knowledge, "s")
    assert (keys_of(told), told.stamps) == ([b"x"], (("s", 7, 1),))
    assert len(made.sent(Filters, "p")) == 1, "a broker above may have version 4"


def test_b11_progress_without_events_is_told() -> None:
    made = Driven()
    made.connect(s=table("s", X))
    made.learn(1, 30, batch(1, [b"y"]))
    assert made.sent(to="s") == []
    made.timer("tick", after_ns=made.config.silence_ns)
    (told,) = made.sent(Knowledge, "s")
    assert (told.lo, told.hi, told.batches, told.stamps) == (1, 30, (), (("s", 7, 1),))
    made.clear()
    made.timer("tick", after_ns=made.config.silence_ns)
    assert made.sent(Knowledge) == [], "once"


def test_b16_a_filter_that_cannot_be_evaluated_here_passes_everything() -> None:
    made = Driven()
    made.connect(s=table("s", "colour == 'red'"))
    made.learn(1, 3, batch(1, [b"x", b"y"]))
    (told,) = made.sent(Knowledge, "s")
    assert (keys_of(told), told.stamps) == ([b"x", b"y"], None)


def test_g6_too_many_filters_are_replaced_by_one_that_passes_everything() -> None:
    made = Driven(filters_max=3)
    made.connect(s=table("s", *(f"key == '{n}'" for n in range(4))))
    made.learn(1, 3, batch(1, [b"x", b"3"]))
    (told,) = made.sent(Knowledge, "s")
    assert keys_of(told) == [b"x", b"3"]


def test_knowledge_that_contradicts_itself_is_refused() -> None:
    made = Driven()
    made.connect(s=table("s", ""))
    made.learn(1, 2, batch(1, [b"x", b"y"]))  # the batch is longer
    made.learn(5, 5)
    made.get("b2", Knowledge(STREAM, True, 1, 1, 3, (batch(1, [b"x", b"y"]),), None))
    assert made.sent(to="s") == []


# ---------------------------------------------------------------- curiosity


def test_g7_equal_requests_are_passed_up_once_and_again_after_a_while() -> None:
    made = Driven(repeat_ns=100 * MS)
    made.connect(end=50, s=table("s", X), t=table("t", Y))
    made.get("s", Nack(STREAM, ((10, 20),)))
    made.get("t", Nack(STREAM, ((10, 25),)))
    assert [nack.ranges for nack in made.sent(Nack, "p")] == [((10, 20),), ((20, 25),)]
    made.clear()
    made.get("s", Nack(STREAM, ((10, 20),)), after_ns=79 * MS)
    assert made.sent(Nack) == [], "requested a short time ago"
    made.get("s", Nack(STREAM, ((10, 20),)), after_ns=2 * MS)
    assert [nack.ranges for nack in made.sent(Nack, "p")] == [((10, 20),)]


def test_g8_an_answer_goes_only_to_brokers_that_have_requested_it() -> None:
    made = Driven()
    made.connect(end=50, s=table("s", ""), t=table("t", ""))
    made.get("s", Nack(STREAM, ((10, 20),)))
    made.clear()
    made.learn(8, 14, batch(8, [b"x"] * 6), first=False)
    assert [(k.lo, k.hi, k.first) for k in made.sent(Knowledge, "s")] == [(10, 14, False)]
    assert made.sent(Knowledge, "t") == []
    made.clear()
    made.learn(8, 14, batch(8, [b"x"] * 6), first=False)
    assert made.sent(Knowledge) == [], "it was answered"


def test_a_broker_answers_from_what_it_knows() -> None:
    made = Driven()
    made.connect(s=table("s", X))
    made.learn(1, 5, batch(1, [b"x", b"y", b"x", b"y"]))
    made.clear()
    made.get("s", Nack(STREAM, ((2, 4),)))
    (told,) = made.sent(Knowledge, "s")
    assert (told.first, told.lo, told.hi, keys_of(told)) == (False, 2, 4, [b"x"])
    assert made.sent(Nack) == []


def test_a_request_has_a_limited_number_of_ranges_and_positions() -> None:
    made = Driven(nack_positions_max=200)
    made.connect(end=100_000, s=table("s", X))
    made.get("s", Nack(STREAM, ((1, 1_000),)))
    assert [nack.ranges for nack in made.sent(Nack, "p")] == [((1, 201),)]
    made.clear()
    many = tuple((2 * n, 2 * n + 1) for n in range(1_000, 1_000 + 2 * RANGES_MAX))
    made.get("s", Nack(STREAM, many))
    assert sum(len(nack.ranges) for nack in made.sent(Nack, "p")) == RANGES_MAX
    line = made.broker.lines[STREAM]
    for n in range(CURIOUS_MAX):
        made.get("s", Nack(STREAM, tuple((5_000 + 10 * n + i, 5_001 + 10 * n + i) for i in (0, 2))))
    assert len(line.curious) <= CURIOUS_MAX
    assert line.below["s"].wants.runs <= CURIOUS_MAX + RANGES_MAX


def test_old_events_are_dropped_to_limit_the_memory_and_requested_again() -> None:
    made = Driven(cache_bytes_max=2_000)
    made.connect(s=table("s", ""))
    for lo in range(1, 200):
        made.learn(lo, lo + 1, batch(lo, [b"x"]))
    line = made.broker.lines[STREAM]
    assert line.known.nbytes <= 2_000
    made.clear()
    made.get("s", Nack(STREAM, ((1, 5),)))
    assert [nack.ranges for nack in made.sent(Nack, "p")] == [((1, 5),)]


# ---------------------------------------------------------------- acknowledgements


def test_an_acknowledgement_means_everybody_below() -> None:
    made = Driven()
    made.connect(end=1, s=table("s", ""), t=table("t", ""))
    made.learn(1, 9, batch(1, [b"x"] * 8))
    made.get("s", Ack(STREAM, 9))
    made.timer("acks", after_ns=made.config.ack_ns)
    assert made.sent(Ack) == []
    made.get("t", Ack(STREAM, 5))
    made.timer("acks", after_ns=made.config.ack_ns)
    assert made.sent(Ack, "p") == [Ack(STREAM, 5)]


def test_an_expected_acknowledgement_is_passed_down_to_those_that_are_behind() -> None:
    made = Driven()
    made.connect(end=1, s=table("s", ""), t=table("t", ""))
    made.learn(1, 9, batch(1, [b"x"] * 8))
    made.get("s", Ack(STREAM, 9))
    made.clear()
    made.get("p", AckExpected(STREAM, 9))
    assert made.sent(AckExpected, "s") == []
    assert made.sent(AckExpected, "t") == [AckExpected(STREAM, 9)]


def test_an_acknowledgement_is_repeated_when_it_is_expected() -> None:
    made = Driven()
    made.connect(end=1, s=table("s", ""))
    made.learn(1, 9, batch(1, [b"x"] * 8))
    made.get("s", Ack(STREAM, 9))
    made.timer("acks", after_ns=made.config.ack_ns)
    made.clear()
    made.get("p", AckExpected(STREAM, 9))
    assert made.sent(Ack, "p") == [Ack(STREAM, 9)], "the last one may have been lost"


# ---------------------------------------------------------------- links


def test_a_stream_keeps_its_path_until_it_fails_and_then_goes_sideways() -> None:
    made = Driven()
    made.up("p2")
    made.connect(s=table("s", X))
    source = made.broker.lines[STREAM].source
    other = {"p": "p2", "p2": "p"}[source]
    made.down(source)
    assert made.broker.lines[STREAM].source == other
    (attach,) = made.sent(Attach, other)
    assert attach.tables == (table("s", X),), "the filters below are told again"
    made.up("b2")
    made.down(other)
    assert made.broker.lines[STREAM].source == "b2", "through a broker of the same cell"
    made.get("b2", Reach("ib", "", (), ("east",)))
    assert made.broker.lines[STREAM].source == "b2"
    made.clear()
    made.up("p")
    assert made.broker.lines[STREAM].source == "p", "a link up is better"
    assert made.sent(Detach, "b2") == [Detach(STREAM)]


def test_a_broker_beside_that_has_no_link_up_is_not_used() -> None:
    made = Driven()
    made.connect(s=table("s", X))
    made.get("b2", Reach("ib", "", (), ("east",)))  # it goes sideways itself
    made.down("p")
    assert made.broker.lines[STREAM].source == ""


def test_a_broker_above_that_was_left_is_told_so_again() -> None:
    """Found by seed 42: the owner waited for the acknowledgements of a broker that had moved."""
    made = Driven()
    made.up("p2")
    made.connect(s=table("s", X))
    other = {"p": "p2", "p2": "p"}[made.broker.lines[STREAM].source]
    made.get(other, AckExpected(STREAM, 9))
    made.get(other, Knowledge(STREAM, True, 1, 1, 2, (), None))
    assert made.sent(Detach, other) == [Detach(STREAM)] * 2
    made.get("c", AckExpected(STREAM, 9))
    assert made.sent(to="c") == []


def test_a_neighbour_that_is_silent_for_long_is_not_chosen() -> None:
    made = Driven()
    made.connect(s=table("s", X))
    made.timer("tick", after_ns=made.config.link_lost_ns + TICK_NS)
    assert made.broker.links.own_reach("", made.now_ns).direct == ()


def test_after_a_change_of_the_path_streams_continue_where_they_were() -> None:
    made = Driven()
    made.up("p2")
    made.connect(s=table("s", ""))
    made.get(made.broker.lines[STREAM].source, Attached(STREAM, 1, ""))
    made.learn(1, 30, batch(1, [b"x"] * 29))
    made.broker.lines[STREAM].below["s"].sent = 20
    made.down(made.broker.lines[STREAM].source)
    assert [attach.at for attach in made.sent(Attach)][-1] == 20


def test_the_filters_below_are_told_with_the_first_attach() -> None:
    """Without them the broker above would drop everything, and each subscription would read."""
    made = Driven()
    made.up("p")
    made.get("p", StreamsAre((INFO,)))
    made.get("s", Attach(STREAM, 0, (table("s", X),)))
    assert [one.tables for one in made.sent(Attach, "p")] == [(table("s", X),)]
    made.get("t", Attach(STREAM, 0, (table("t", Y),)))
    assert [one.tables for one in made.sent(Filters, "p")] == [(table("t", Y),)]


def test_a_broker_that_takes_no_more_is_sent_the_rest_later() -> None:
    made = Driven()
    made.connect(s=table("s", ""))
    made.give(Congested("s"))
    made.learn(1, 4, batch(1, [b"x"] * 3))
    assert made.sent(Knowledge) == []
    made.give(Writable("s"))
    assert [(told.lo, told.hi) for told in made.sent(Knowledge, "s")] == [(1, 4)]


def test_one_pass_sends_a_limited_number_of_messages_and_the_next_one_the_rest() -> None:
    made = Driven(batches_max=2)
    made.connect(s=table("s", ""))
    made.give(Congested("s"))
    for lo in range(1, 8):
        made.learn(lo, lo + 1, batch(lo, [b"x"]))
    made.give(Writable("s"))
    assert [told.lo for told in made.sent(Knowledge, "s")] == list(range(1, 8))


def test_the_number_of_brokers_below_is_limited() -> None:
    made = Driven(brokers_max=1)
    made.connect(s=table("s", ""), t=table("t", ""))
    assert list(made.broker.lines[STREAM].below) == ["s"]


def test_reads_are_passed_up_and_the_answers_down() -> None:
    made = Driven(fetches_max=1)
    made.connect(s=table("s", ""), t=table("t", ""))
    made.get("s", Fetch(41, STREAM, 1, 9, X))
    (fetch,) = made.sent(Fetch, "p")
    assert (fetch.lo, fetch.hi, fetch.where) == (1, 9, X)
    made.get("t", Fetch(41, STREAM, 1, 9, Y))
    assert len(made.sent(Fetch)) == 1, "fetches_max are under way; it is repeated"
    made.clear()
    made.get("p", Fetched(fetch.token, 1, 9, ()))
    assert made.sent(Fetched, "s") == [Fetched(41, 1, 9, ())]


def test_a_stream_that_nobody_uses_is_detached() -> None:
    made = Driven()
    made.connect(s=table("s", ""))
    made.get("s", Detach(STREAM))
    made.up("p")
    for _ in range(50):
        made.get("p", Reach("", "p", ("east",), ()))
        made.timer("tick", after_ns=TICK_NS)
    assert made.broker.lines == {}
    assert made.sent(Detach, "p") == [Detach(STREAM)]


# ---------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"above": {"a": "b", "b": "a"}, "cells": {"a": ("x",), "b": ("y",)}}, "circle"),
        ({"above": {"a": "nowhere"}, "cells": {"a": ("x",)}}, "nowhere"),
        ({"again_max": 0}, "above 0"),
        ({"repeat_ns_max": 1}, "repeat_ns"),
        ({"expected_ns_max": 1}, "expected_ns"),
        ({"link_lost_ns": 1}, "link_ns"),
        ({"forget_share": 0.0}, "above 0"),
        ({"subscriptions_max": SUBSCRIPTIONS_MAX + 1}, "at most"),
        ({"brokers_max": LINKS_MAX + 1}, "at most"),
    ],
)
def test_a_wrong_configuration_is_refused(options: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        GryphonConfig("b", **options).validate()  # type: ignore[arg-type]


def test_the_settings_of_the_paper() -> None:
    made = paper(GryphonConfig("b"))
    assert (made.gap_ns, made.repeat_ns, made.expected_ns) == (200 * MS, 600 * MS, 10 * SECOND)
    assert not made.resume


# ---------------------------------------------------------------- found by a hostile tester


def test_positions_that_no_stream_has_stop_no_broker() -> None:
    made = Driven()
    made.connect(end=50, s=table("s", X))
    for lo in (1 << 63, SEQ_END_MAX, 51):
        made.get("s", Nack(STREAM, ((lo + 1, lo + 3),)))
    made.get("t", Attach(STREAM, 1 << 63, ()))
    made.get("p", Knowledge(STREAM, True, 1, 1, 1 << 63, (), None))
    made.get("p", AckExpected(STREAM, 1 << 63))
    assert made.sent(Nack) == []
    assert made.broker.lines[STREAM].top == 50


def test_a_broker_below_that_claims_to_be_far_ahead_is_sent_what_is_new() -> None:
    made = Driven()
    made.connect(end=50, at=10**15, s=table("s", ""))
    made.learn(50, 52, batch(50, [b"x"] * 2))
    assert [(told.lo, told.hi) for told in made.sent(Knowledge, "s")] == [(50, 52)]


def test_tables_of_strangers_and_of_the_broker_itself_are_not_installed() -> None:
    made = Driven()
    made.connect(s=table("s", X))
    never = table("b", "key == 'never'", version=10**6)
    made.get("s", Filters(STREAM, (never, table("stranger", X))))
    assert list(made.broker.lines[STREAM].below["s"].tables) == ["s"]


def test_many_tables_are_told_in_several_messages() -> None:
    made = Driven()
    long = "key == '" + "v" * 1_000 + "'"
    made.connect(s=table("s", *(f"{long} or key == '{n}'" for n in range(150))))
    below = made.broker.lines[STREAM].below["s"]
    for name in ("b2", "t"):
        below.tables[name] = below.tables["s"]
    made.up("p2")
    made.down(made.broker.lines[STREAM].source)
    tables = [one.tables for one in made.sent(Attach)[-1:]] + [
        one.tables for one in made.sent(Filters)
    ]
    assert sum(map(len, tables)) == 3
    codec = Codec(message_types())
    assert all(codec.encode(Filters(STREAM, one)) for one in tables)


def test_two_mates_that_choose_each_other_do_not_wait() -> None:
    made = Driven()
    made.connect(s=table("s", X))
    source = made.broker.lines[STREAM].source
    made.get(source, Attach(STREAM, 0, ()))
    assert made.sent(Detach, source) == [Detach(STREAM)]
