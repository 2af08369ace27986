"""What a server says of positions that were given up: to whom, how exactly, and for how long."""

from typing import Any

import pytest

from surecast.columns.batch import Batch
from surecast.core.replicated import Appended, Committed, Mended, Truncated
from surecast.core.streams import DIRECTORY, Forfeit, Limit
from surecast.core.types import Command, Congested, Received, Send
from surecast.protocols.sprinkler.messages import MeshEvents, MeshRequest
from surecast.protocols.streams import service
from surecast.protocols.streams.messages import (
    Events,
    Locate,
    Located,
    RangeEvents,
    RangeLost,
    ReadRange,
    StreamsAre,
    Subscribe,
    WatchStreams,
)
from tests import mutations
from tests.protocols.bench import STREAM, Bench, sent

LO, HI, END = 8, 12, 21  # positions [LO, HI) of the stream [1, END) cannot be read
WHY = "the only disk that had them is damaged"


def batch(seq: int) -> Batch:
    return Batch.of(STREAM, [b"v%d" % seq]).sequenced(seq, seq, 1)


def holed(mutant: type[Any] | None = None, **streams: Any) -> Bench:
    bench = Bench("y/0", mutant, streams=streams)
    bench.role(1)
    bench.knows()
    bench.disk.append(STREAM, [batch(seq) for seq in range(1, END)])
    damage(bench, LO, HI)
    bench.says(Appended(STREAM, END))
    bench.says(Committed(STREAM, END))
    return bench


def damage(bench: Bench, lo: int, hi: int) -> None:
    bench.disk.damage(STREAM, lo, hi, "a flipped bit")
    bench.says(Mended(STREAM))


def forfeit(bench: Bench, lo: int = LO, hi: int = HI, why: str = WHY) -> None:
    """As a layer above the service does."""
    assert bench.give(Command("streams", Forfeit(STREAM, lo, hi, why))) == []


def read(bench: Bench, lo: int = 1, hi: int = END) -> list[Any]:
    """The messages of one answer."""
    effects = bench.give(Received("c", ReadRange(STREAM, lo, hi)))
    assert all(type(e) is Send and e.peer == "c" for e in effects)
    return [e.message for e in effects]


def spans(messages: list[Any]) -> list[tuple[str, int, int]]:
    """What was said of which positions, in order."""
    found = []
    for message in messages:
        if isinstance(message, RangeLost):
            found.append(("lost", message.lo, message.hi))
        elif message.batches:
            found.append(("events", message.batches[0].lo, message.batches[-1].hi))
    return found


WHOLE = [("events", 1, LO), ("lost", LO, HI), ("events", HI, END)]


def test_without_a_word_from_above_a_range_ends_at_the_hole() -> None:
    bench = holed()
    (only,) = read(bench)
    assert spans([only]) == [("events", 1, LO)]
    assert (only.end, only.last) == (LO, True)
    assert read(bench, LO) == [RangeEvents(STREAM, LO, END, LO, True, ())]


def test_what_was_given_up_stands_in_its_place_and_the_range_goes_on() -> None:
    bench = holed()
    forfeit(bench)
    messages = read(bench)
    assert spans(messages) == WHOLE
    assert messages[1] == RangeLost(STREAM, LO, HI, END, False, WHY)
    assert [message.last for message in messages] == [False, False, True]
    assert {message.end for message in messages} == {END}
    assert bench.service.counters["streams.forfeited"] == HI - LO


@pytest.mark.parametrize(
    ("lo", "hi", "said"),
    [
        (3, 10, [("events", 3, 8), ("lost", 8, 10)]),
        (10, 15, [("lost", 10, 12), ("events", 12, 15)]),
        (9, 11, [("lost", 9, 11)]),
        (12, 14, [("events", 12, 14)]),
        (15, 40, [("events", 15, END)]),
        (9, 0, [("lost", 9, 12), ("events", 12, END)]),
    ],
)
def test_a_loss_is_cut_at_the_ends_of_what_was_asked_for(
    lo: int, hi: int, said: list[tuple[str, int, int]]
) -> None:
    bench = holed()
    forfeit(bench)
    messages = read(bench, lo, hi)
    assert spans(messages) == said
    assert messages[-1].last


def test_a_loss_may_be_the_last_message_of_an_answer() -> None:
    bench = holed(serves_per_step=2)
    forfeit(bench)
    assert spans(read(bench)) == WHOLE[:2]
    assert read(bench)[-1].last
    assert spans(read(bench, HI)) == WHOLE[2:]
    bench.give(Congested("c"))
    (only,) = read(bench, LO)
    assert only == RangeLost(STREAM, LO, HI, END, True, WHY)


# ---------------------------------------------------------------- what can be read is not lost


def lost_though_readable(mutant: type[Any] | None = None) -> set[int]:
    """A layer above claims too much; the positions that can be read and are said to be lost."""
    bench = holed(mutant)
    forfeit(bench, 5, 15)
    lost: set[int] = set()
    for start in range(1, END):
        for what, lo, hi in spans(read(bench, start)):
            lost |= set(range(lo, hi)) if what == "lost" else set()
    assert lost >= set(range(LO, HI))
    return lost - set(range(LO, HI))


def test_a_position_that_can_be_read_is_never_lost() -> None:
    assert lost_though_readable() == set()
    assert lost_though_readable(mutations.ForfeitsReadable) == {5, 6, 7, 12, 13, 14}


def test_what_is_repaired_can_be_read_at_once_and_is_forgotten() -> None:
    bench = holed()
    forfeit(bench)
    bench.disk.repair(STREAM, [batch(seq) for seq in range(LO, HI - 1)])
    assert spans(read(bench)) == [
        ("events", 1, LO),
        ("events", LO, HI - 1),
        ("lost", HI - 1, HI),
        ("events", HI, END),
    ]
    bench.says(Mended(STREAM))
    bench.disk.repair(STREAM, [batch(HI - 1)])
    bench.says(Mended(STREAM))
    assert bench.service.forfeited == {}
    assert spans(read(bench)) == [("events", 1, END)]
    damage(bench, LO, HI)  # another time; perhaps somebody has it
    assert spans(read(bench)) == [("events", 1, LO)]


def test_what_is_taken_back_is_not_lost() -> None:
    bench = holed()
    forfeit(bench)
    bench.says(Truncated(STREAM, LO + 1))  # the disk follows after the step
    assert bench.service.lost_at(STREAM, LO) == (LO + 1, WHY)
    assert bench.service.lost_at(STREAM, LO + 1) is None
    bench.says(Truncated(DIRECTORY, 1))
    assert bench.service.forfeited == {}


def test_a_second_hole_that_was_not_given_up_ends_the_range() -> None:
    bench = holed()
    damage(bench, 15, 17)
    forfeit(bench)
    messages = read(bench)
    assert spans(messages) == [("events", 1, LO), ("lost", LO, HI), ("events", HI, 15)]
    assert messages[-1].end == 15
    forfeit(bench, 15, 17, "also that")
    assert spans(read(bench)) == [*spans(messages), ("lost", 15, 17), ("events", 17, END)]


def test_a_part_of_a_hole_that_was_not_given_up_is_waited_for() -> None:
    bench = holed()
    forfeit(bench, LO + 1, HI)
    messages = read(bench)
    assert spans(messages) == [("events", 1, LO)]
    assert (messages[-1].end, messages[-1].last) == (LO, True)


def test_what_its_delivery_does_not_want_shown_is_not_read_behind_a_loss_either() -> None:
    bench = holed()
    forfeit(bench)
    bench.give(Command("streams", Limit(STREAM, 14)))
    messages = read(bench)
    assert spans(messages) == [("events", 1, LO), ("lost", LO, HI), ("events", HI, 14)]
    assert messages[-1].end == 14


def test_what_is_not_committed_is_not_read_behind_a_loss_either() -> None:
    bench = holed()
    forfeit(bench)
    bench.disk.append(STREAM, [batch(END)])
    bench.says(Appended(STREAM, END + 1))
    assert spans(read(bench, 1, END + 1)) == WHOLE


def test_damage_that_is_found_behind_a_loss_ends_the_range() -> None:
    """In a chain with others the server would stop instead; here it is the only one."""
    bench = holed()
    forfeit(bench)
    bench.service.members = ("y/0",)
    bench.disk.damage(STREAM, 15, 17, "a bit flipped while it ran")
    bench.service.disk.holes = lambda log: [(LO, HI)]  # type: ignore[method-assign]
    messages = read(bench)
    assert spans(messages) == [("events", 1, LO), ("lost", LO, HI), ("events", HI, 15)]
    assert messages[-1].end == LO
    assert "flipped while it ran" in bench.service.streams[STREAM].quarantined


# ---------------------------------------------------------------- the command


def test_the_command_may_be_given_again_and_in_parts() -> None:
    bench = holed()
    forfeit(bench, 10, HI, "first")
    forfeit(bench, LO, 11)
    forfeit(bench)
    assert spans(read(bench)) == WHOLE
    assert bench.service.lost_at(STREAM, LO) == (HI, WHY)
    assert bench.service.counters["streams.forfeited"] == HI - LO
    assert bench.service.counters["streams.forfeit-refused"] == 0


@pytest.mark.parametrize(("lo", "hi"), [(1, 5), (12, 40), (11, 9), (9, 9), (-5, 0)])
def test_a_range_that_is_not_in_a_hole_is_refused(lo: int, hi: int) -> None:
    bench = holed()
    forfeit(bench, lo, hi)
    assert bench.service.forfeited == {}
    assert bench.service.counters["streams.forfeit-refused"] == 1


def test_a_stream_that_is_not_known_is_not_remembered() -> None:
    bench = holed()
    bench.give(Command("streams", Forfeit(b"?" * 16, 1, 5, WHY)))
    assert bench.service.forfeited == {}
    assert bench.service.readable_end(b"?" * 16) == 0


def test_ranges_and_words_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "FORFEITS_MAX", 2)
    bench = holed()
    for lo in (15, 17):
        damage(bench, lo, lo + 1)
    forfeit(bench, why="x" * 10_000)
    forfeit(bench, 15, 16, why="x" * 10_000)
    forfeit(bench, 17, 18)
    assert list(bench.service.forfeited[STREAM][0]) == [(LO, HI), (15, 16)]
    assert bench.service.lost_at(STREAM, LO) == (HI, "x" * service.WHY_MAX)
    assert bench.service.counters["streams.forfeit-refused"] == 1


# ---------------------------------------------------------------- everybody else


def test_followers_and_meshes_are_shown_the_stream_up_to_the_hole() -> None:
    """Their messages have no place for a loss, and nobody may take a hole for nothing."""
    bench = holed()
    forfeit(bench)
    ((_, message),) = sent(bench.give(Received("c", Subscribe(STREAM, 1))), Events)
    assert (message.batches[-1].hi, message.end) == (LO, LO)
    for _, answer in sent(bench.give(Received("c", MeshRequest(STREAM, 1, 0))), MeshEvents):
        assert answer.end == LO
        assert all(one.hi <= LO for one in answer.batches)


def test_who_asks_where_the_stream_ends_is_told_up_to_where_ranges_are_answered() -> None:
    bench = holed()
    for end in (LO, END):
        ((_, are),) = sent(bench.give(Received("c", WatchStreams(end, "s"))), StreamsAre)
        assert are.ends == (end,)
        ((_, located),) = sent(bench.give(Received("c", Locate(1, STREAM, -1))), Located)
        assert located.seq == end
        forfeit(bench)
