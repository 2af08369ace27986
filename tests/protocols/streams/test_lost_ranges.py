"""How a server reports positions that were given up as lost, and to which readers."""

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
    bench.add_stream()
    bench.disk.append(STREAM, [batch(seq) for seq in range(1, END)])
    damage(bench, LO, HI)
    bench.chain_emits(Appended(STREAM, END))
    bench.chain_emits(Committed(STREAM, END))
    return bench


def damage(bench: Bench, lo: int, hi: int) -> None:
    bench.disk.damage(STREAM, lo, hi, "a flipped bit")
    bench.chain_emits(Mended(STREAM))


def forfeit(bench: Bench, lo: int = LO, hi: int = HI, why: str = WHY) -> None:
    """Send the command by which a layer above the service gives up positions."""
    assert bench.give(Command("streams", Forfeit(STREAM, lo, hi, why))) == []


def read(bench: Bench, lo: int = 1, hi: int = END) -> list[Any]:
    """Request a range; returns the messages of the answer."""
    effects = bench.give(Received("c", ReadRange(STREAM, lo, hi)))
    assert all(type(e) is Send and e.peer == "c" for e in effects)
    return [e.message for e in effects]


def spans(messages: list[Any]) -> list[tuple[str, int, int]]:
    """(kind, lo, hi) of the ranges in an answer, in order."""
    found = []
    for message in messages:
        if isinstance(message, RangeLost):
            found.append(("lost", message.lo, message.hi))
        elif message.batches:
            found.append(("events", message.batches[0].lo, message.batches[-1].hi))
    return found


WHOLE = [("events", 1, LO), ("lost", LO, HI), ("events", HI, END)]


def test_a_range_ends_at_a_hole_that_was_not_given_up() -> None:
    bench = holed()
    (only,) = read(bench)
    assert spans([only]) == [("events", 1, LO)]
    assert (only.end, only.last) == (LO, True)
    assert read(bench, LO) == [RangeEvents(STREAM, LO, END, LO, True, ())]


def test_a_lost_range_is_sent_in_its_place_and_the_answer_continues() -> None:
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
def test_a_loss_is_cut_at_the_ends_of_the_requested_range(
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
    """A layer above gives up too much; the readable positions that are reported lost."""
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


def test_repaired_positions_are_readable_at_once_and_no_longer_lost() -> None:
    bench = holed()
    forfeit(bench)
    bench.disk.repair(STREAM, [batch(seq) for seq in range(LO, HI - 1)])
    assert spans(read(bench)) == [
        ("events", 1, LO),
        ("events", LO, HI - 1),
        ("lost", HI - 1, HI),
        ("events", HI, END),
    ]
    bench.chain_emits(Mended(STREAM))
    bench.disk.repair(STREAM, [batch(HI - 1)])
    bench.chain_emits(Mended(STREAM))
    assert bench.service.forfeited == {}
    assert spans(read(bench)) == [("events", 1, END)]
    damage(bench, LO, HI)  # damaged again: another region may have it
    assert spans(read(bench)) == [("events", 1, LO)]


def test_truncated_positions_are_not_lost() -> None:
    bench = holed()
    forfeit(bench)
    bench.chain_emits(Truncated(STREAM, LO + 1))  # the disk follows after the step
    assert bench.service.lost_at(STREAM, LO) == (LO + 1, WHY)
    assert bench.service.lost_at(STREAM, LO + 1) is None
    bench.chain_emits(Truncated(DIRECTORY, 1))
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


def test_a_range_ends_at_a_part_of_a_hole_that_was_not_given_up() -> None:
    bench = holed()
    forfeit(bench, LO + 1, HI)
    messages = read(bench)
    assert spans(messages) == [("events", 1, LO)]
    assert (messages[-1].end, messages[-1].last) == (LO, True)


def test_events_beyond_the_limit_are_not_read_after_a_loss() -> None:
    bench = holed()
    forfeit(bench)
    bench.give(Command("streams", Limit(STREAM, 14)))
    messages = read(bench)
    assert spans(messages) == [("events", 1, LO), ("lost", LO, HI), ("events", HI, 14)]
    assert messages[-1].end == 14


def test_uncommitted_events_are_not_read_after_a_loss() -> None:
    bench = holed()
    forfeit(bench)
    bench.disk.append(STREAM, [batch(END)])
    bench.chain_emits(Appended(STREAM, END + 1))
    assert spans(read(bench, 1, END + 1)) == WHOLE


def test_damage_that_is_found_behind_a_loss_ends_the_range() -> None:
    """The server is the only replica; in a chain with others it would stop instead."""
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


def test_giving_up_positions_can_be_repeated_and_done_in_parts() -> None:
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


def test_giving_up_positions_of_an_unknown_stream_has_no_effect() -> None:
    bench = holed()
    bench.give(Command("streams", Forfeit(b"?" * 16, 1, 5, WHY)))
    assert bench.service.forfeited == {}
    assert bench.service.readable_end(b"?" * 16) == 0


def test_lost_ranges_and_their_reasons_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
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


# ---------------------------------------------------------------- other readers


def test_followers_and_meshes_get_the_stream_up_to_the_hole() -> None:
    """Their messages cannot report a loss, and a hole must not be skipped silently."""
    bench = holed()
    forfeit(bench)
    ((_, message),) = sent(bench.give(Received("c", Subscribe(STREAM, 1))), Events)
    assert (message.batches[-1].hi, message.end) == (LO, LO)
    for _, answer in sent(bench.give(Received("c", MeshRequest(STREAM, 1, 0))), MeshEvents):
        assert answer.end == LO
        assert all(one.hi <= LO for one in answer.batches)


def test_the_reported_end_is_the_end_of_readable_or_lost_ranges() -> None:
    bench = holed()
    for end in (LO, END):
        ((_, are),) = sent(bench.give(Received("c", WatchStreams(end, "s"))), StreamsAre)
        assert are.ends == (end,)
        ((_, located),) = sent(bench.give(Received("c", Locate(1, STREAM, -1))), Located)
        assert located.seq == end
        forfeit(bench)
