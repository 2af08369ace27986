"""Operators list, reset and delete named subscriptions.

A region stores a *cursor* for each named subscription: its positions, and its *holder*, the client
that reads under the name. A reset or a deletion expels the holder: its requests are refused from
then on. The first tests make single steps, with a stub in place of the chain. The scenarios run in
the simulator, each with the unchanged machines and with a mutant that lacks the rule under test.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from surecast.columns.batch import COLLECTED, Batch
from surecast.core.endpoint import WhichCursors
from surecast.core.replicated import Appended, AppendOwn, Committed
from surecast.core.status import subscription_infos
from surecast.core.streams import CURSORS, LogMoved, StreamInfo
from surecast.core.types import MS, SECOND, Command, FromBelow, PeerDown, Received
from surecast.errors import ConfigError
from surecast.protocols.streams import config
from surecast.protocols.streams.config import StreamsConfig
from surecast.protocols.streams.cursor_log import (
    FORMER_MAX,
    Cursor,
    CursorEntry,
    decode_entry,
)
from surecast.protocols.streams.cursors import COPIED_AT_ONCE, Cursors
from surecast.protocols.streams.messages import (
    Advance,
    Advanced,
    Attach,
    Attached,
    CursorChanged,
    CursorDelete,
    CursorReset,
    CursorsAre,
    Detach,
    ListCursors,
)
from surecast.protocols.streams.observe import StreamsObserver
from surecast.storage.memory import MemoryDisk
from surecast_lab.swarm.cluster import Cluster
from tests import mutations
from tests.helpers import each_scenario, run, wait
from tests.protocols.bench import INFO, STREAM, Bench, ChainEmits, passed_down, sent
from tests.protocols.streams.askers import Asker
from tests.protocols.streams.test_cursors import cursors_of, held, members, of_three

Scenario = Callable[[type | None], list[str]]

ANN, BOB = b"a" * 16, b"b" * 16  # holders
FIRST_REQUEST, SECOND_REQUEST = b"1" * 16, b"2" * 16  # ids of operators' requests
OTHER = StreamInfo(bytes(range(16, 32)), "t", "y", INFO.retention)


class Head:
    """The only replica of a region, with two streams of twenty events and a stub chain that
    commits when the test calls `commit`."""

    def __init__(self, **streams: Any) -> None:
        self.bench = Bench("y/0", streams=streams)
        self.bench.role(1)
        for info in (INFO, OTHER):
            self.bench.add_stream(info)
            values = [b"x"] * 20
            batch = Batch.of(info.stream_id, values, publisher=ANN, pub_no=1)
            self.bench.disk.append(info.stream_id, (batch.sequenced(1, 1, 1),))
            self.bench.chain_emits(Appended(info.stream_id, 21))
            self.bench.chain_emits(Committed(info.stream_id, 21))
        self.written: list[Batch] = []
        self.token = 100

    @property
    def cursors(self) -> Cursors:
        return self.bench.cursors

    @property
    def table(self) -> dict[str, Cursor]:
        return self.cursors.table

    def give(self, inp: Any) -> list[Any]:
        """Make a step; returns the answers it sends. Its appends wait for `commit`."""
        effects = self.bench.give(inp)
        for own in passed_down(effects, AppendOwn):
            assert own.log == CURSORS
            end = self.bench.disk.end(CURSORS)
            batch = own.batch.sequenced(end, self.bench.now_ns, 1)
            self.bench.disk.append(CURSORS, (batch,))
            self.written.append(batch)
            effects += self.bench.chain_emits(Appended(CURSORS, batch.hi))
        kinds = (Attached, Advanced, CursorChanged, CursorsAre)
        return [one for kind in kinds for one in sent(effects, kind)]

    def ask(self, peer: str, message: Any) -> list[Any]:
        return self.give(Received(peer, message))

    def commit(self) -> list[Any]:
        """Commit all appended entries and those that follow; returns the answers sent."""
        found = []
        while self.written:
            self.written.clear()
            end = self.bench.disk.end(CURSORS)
            found += self.give(Command("chain", ChainEmits(Committed(CURSORS, end))))
        return found

    def attach(self, name: str = "sub", holder: bytes = ANN, take: bool = True) -> list[Any]:
        self.token += 1
        now = self.ask(f"c/{holder[:1].decode()}", Attach(self.token, name, holder, take))
        return now + self.commit()

    def advance(self, seq: int, name: str = "sub", holder: bytes = ANN) -> str:
        """Save a position; returns why it was refused, "" if it was not."""
        self.token += 1
        peer = f"c/{holder[:1].decode()}"
        now = self.ask(peer, Advance(self.token, name, holder, {STREAM: seq}))
        answers = [m for _, m in now + self.commit() if type(m) is Advanced]
        assert len(answers) == 1
        return str(answers[0].why)

    def change(self, message: CursorReset | CursorDelete) -> str:
        """Send an operator's request; returns why it was refused, "" if it was not."""
        answers = self.ask("op", message) + self.commit()
        found = [m.why for peer, m in answers if type(m) is CursorChanged and peer == "op"]
        assert len(found) == 1
        return str(found[0])

    def reset(
        self, seq: int, *, request_id: bytes = FIRST_REQUEST, force: bool = True, name: str = "sub"
    ) -> str:
        return self.change(CursorReset(1, name, request_id, {STREAM: seq}, force))

    def delete(
        self, *, request_id: bytes = FIRST_REQUEST, force: bool = True, name: str = "sub"
    ) -> str:
        return self.change(CursorDelete(1, name, request_id, force))

    def entries(self) -> list[CursorEntry]:
        """The entries in the log, without rules."""
        disk = self.bench.disk
        batches = disk.read(CURSORS, 1, disk.end(CURSORS), 1 << 30)
        rows = [row for batch in batches for row in batch.to_rows() if row.key is not None]
        return [decode_entry(row.value) for row in rows]


@pytest.fixture
def head() -> Head:
    return Head()


# ---------------------------------------------------------------- a reset, step by step


def test_a_reset_is_one_batch_and_is_answered_when_it_is_committed(head: Head) -> None:
    head.attach()
    assert head.advance(15) == ""
    before = len(head.entries())
    assert head.ask("op", CursorReset(1, "sub", FIRST_REQUEST, {STREAM: 3}, True)) == []
    assert len(head.written) == 1, (
        "written in several batches, so a part of the reset could be committed"
    )
    assert head.entries()[before:] == [
        CursorEntry("sub", b"", change=FIRST_REQUEST, what="reset", expelled=ANN),
        CursorEntry("sub", b"", STREAM, 3),
    ]
    assert head.table["sub"].positions == {STREAM: 15}
    assert head.commit() == [
        ("c/a", Attached(101, {}, "reset")),
        ("op", CursorChanged(1)),
    ]
    assert head.table["sub"].positions == {STREAM: 3}


def test_every_request_of_an_expelled_holder_is_refused(head: Head) -> None:
    head.attach()
    assert head.advance(15) == ""
    assert head.reset(3) == ""
    assert head.advance(17) == "reset"
    for take in (False, True):
        assert [m.why for _, m in head.attach(take=take)] == ["reset"]
    assert head.attach(holder=BOB) == [("c/b", Attached(head.token, {STREAM: 3}))]
    assert head.advance(17) == "reset"
    assert [m.why for _, m in head.attach()] == ["reset"], (
        "the expelled holder fenced its successor"
    )
    assert head.table["sub"].positions == {STREAM: 3}
    assert head.table["sub"].holder == BOB


def test_an_earlier_holder_cannot_take_the_name_again_after_a_deletion(head: Head) -> None:
    """ANN fenced BOB, and the deletion expels ANN. A late request of BOB must be refused, too."""
    head.attach(holder=BOB)
    head.attach()
    assert head.advance(15) == ""
    assert [m.why for _, m in head.attach(holder=BOB)] == ["fenced", ""], (
        "refused before the deletion"
    )
    head.attach()
    assert head.delete() == ""
    assert [m.why for _, m in head.attach(holder=BOB)] == ["fenced"]
    assert head.table == {}


def test_former_holders_are_remembered_up_to_a_bound(head: Head) -> None:
    holders = [bytes([number]) * 16 for number in range(1, FORMER_MAX + 4)]
    for holder in holders:
        head.attach(holder=holder)
    assert head.table["sub"].former == tuple(holders[-2 : -FORMER_MAX - 2 : -1])
    assert head.reset(3) == ""
    assert head.table["sub"].former == tuple(holders[: -FORMER_MAX - 1 : -1])


def test_an_advance_after_an_uncommitted_reset_is_refused(head: Head) -> None:
    head.attach()
    assert head.advance(15) == ""
    head.ask("op", CursorReset(1, "sub", FIRST_REQUEST, {STREAM: 3}, True))
    late = head.ask("c/a", Advance(7, "sub", ANN, {STREAM: 17}))
    assert late == [("c/a", Advanced(7, "reset"))]
    head.commit()
    assert head.table["sub"].positions == {STREAM: 3}


@pytest.mark.parametrize("leaves", ["detach", "peer-down"])
def test_a_name_in_use_is_changed_only_by_force(head: Head, leaves: str) -> None:
    head.attach()
    assert head.reset(3, force=False) == "in-use"
    assert head.delete(force=False) == "in-use"
    assert head.written == []
    if leaves == "detach":
        head.ask("c/a", Detach(77, "sub"))  # of another Attach
        head.ask("c/b", Detach(head.token, "sub"))  # of another client
        assert head.reset(3, force=False) == "in-use"
        head.ask("c/a", Detach(head.token, "sub"))
    else:
        head.give(PeerDown("c/a"))
    assert head.reset(3, force=False) == ""
    assert head.advance(17) == "reset", (
        "the save of an expelled holder was accepted after it had left"
    )


def test_a_name_that_is_being_taken_is_in_use(head: Head) -> None:
    head.ask("c/a", Attach(5, "sub", ANN, True))  # not committed yet
    assert head.ask("op", CursorDelete(1, "sub", FIRST_REQUEST, False)) == [
        ("op", CursorChanged(1, "in-use"))
    ]
    assert head.ask("op", CursorDelete(2, "sub", FIRST_REQUEST, True)) == []
    assert head.commit() == [("c/a", Attached(5, {}, "deleted")), ("op", CursorChanged(2))]


def test_a_reset_does_not_change_positions_in_other_streams(head: Head) -> None:
    head.attach()
    message = Advance(9, "sub", ANN, {STREAM: 5, OTHER.stream_id: 6, CURSORS: 2})
    head.ask("c/a", message)
    head.commit()
    assert head.reset(9) == ""
    assert head.table["sub"].positions == {STREAM: 9, OTHER.stream_id: 6, CURSORS: 2}


@pytest.mark.parametrize(
    ("positions", "why"),
    [
        ({STREAM: 0}, "bad-position"),
        ({STREAM: 22}, "recovering"),
        ({b"?" * 16: 1}, "unknown-stream"),
        ({CURSORS: 1}, "unknown-stream"),
        ({STREAM: 21}, ""),  # accepted
    ],
)
def test_a_reset_accepts_only_committed_positions_of_known_streams(
    head: Head, positions: dict[bytes, int], why: str
) -> None:
    head.attach()
    assert head.change(CursorReset(1, "sub", FIRST_REQUEST, positions, True)) == why


def test_a_reset_to_an_uncommitted_position_is_refused(head: Head) -> None:
    head.attach()
    head.bench.chain_emits(Appended(STREAM, 25))
    assert head.reset(23) == "recovering"
    assert head.reset(21) == ""


def test_positions_in_one_reset_are_bounded() -> None:
    head = Head(cursors_reset_max=1)
    head.attach()
    both = {STREAM: 1, OTHER.stream_id: 1}
    assert head.change(CursorReset(1, "sub", FIRST_REQUEST, both, True)) == "too-many-positions"
    assert head.reset(1) == ""


@pytest.mark.parametrize("name", ["nobody", "a b", ""])
def test_changing_an_unknown_subscription_does_not_create_it(head: Head, name: str) -> None:
    why = "unknown-subscription" if name == "nobody" else "bad-name"
    assert head.reset(3, name=name) == why
    assert head.delete(name=name) == why
    assert head.table == {}


def test_only_the_head_changes_anything(head: Head) -> None:
    head.attach()
    head.bench.role(2, head=False)
    assert head.ask("op", CursorReset(1, "sub", FIRST_REQUEST, {STREAM: 3}, True)) == [
        ("op", CursorChanged(1, "not-head", "y/0"))
    ]
    assert head.ask("op", ListCursors(2, "", ("", b""))) == [
        ("op", CursorsAre(2, (), ("", b""), True, "not-head", "y/0"))
    ]


# ---------------------------------------------------------------- a request that is sent again


def test_a_repeated_reset_is_answered_and_not_carried_out_again(head: Head) -> None:
    head.attach()
    assert head.reset(3) == ""
    head.attach(holder=BOB)
    assert head.advance(9, holder=BOB) == ""
    assert head.reset(3) == "", "the repeated request was refused"
    assert head.table["sub"].positions == {STREAM: 9}
    assert head.table["sub"].holder == BOB
    assert head.reset(3, request_id=SECOND_REQUEST) == ""
    assert head.table["sub"].positions == {STREAM: 3}


def test_a_repeated_deletion_does_not_delete_the_next_subscription_of_that_name(head: Head) -> None:
    head.attach()
    assert head.advance(15) == ""
    assert head.delete() == ""
    head.attach(holder=BOB)
    assert head.advance(9, holder=BOB) == ""
    assert head.delete() == ""
    assert head.table["sub"].positions == {STREAM: 9}
    assert head.delete(request_id=SECOND_REQUEST) == ""
    assert head.delete(request_id=SECOND_REQUEST) == ""
    assert head.table == {}


def test_deleted_names_are_remembered_up_to_a_bound() -> None:
    head = Head(cursors_deleted_max=2)
    for name in ("a", "b", "c"):
        head.attach(name)
        assert head.delete(name=name) == ""
    assert list(head.cursors.stored.deleted) == ["b", "c"]
    assert head.delete(name="a") == "unknown-subscription"
    assert head.delete(name="b") == ""


# ---------------------------------------------------------------- a deletion, step by step


def test_a_deletion_supersedes_all_entries_of_the_name(head: Head) -> None:
    head.attach()
    message = Advance(9, "sub", ANN, {STREAM: 5, OTHER.stream_id: 6, CURSORS: 2})
    head.ask("c/a", message)
    head.commit()
    assert head.delete() == ""
    assert head.table == {}
    latest = {entry.key: entry for entry in head.entries()}
    assert all(entry.seq == 0 and entry.holder == b"" for entry in latest.values())
    assert len(latest) == 4


def test_a_deleted_name_is_not_brought_back_by_its_holder(head: Head) -> None:
    head.attach()
    assert head.advance(15) == ""
    assert head.delete() == ""
    assert head.advance(17) == "deleted"
    for take in (False, True):
        assert [m.why for _, m in head.attach(take=take)] == ["deleted"]
    assert head.advance(17, holder=BOB) == "fenced"
    assert head.table == {}
    assert head.attach(holder=BOB) == [("c/b", Attached(head.token, {}))]
    assert head.advance(17) == "deleted"
    assert head.table["sub"].positions == {}


def test_a_deletion_makes_room_for_another_name() -> None:
    head = Head(cursors_max=2)
    for name in ("a", "b"):
        head.attach(name)
    assert [m.why for _, m in head.attach("c")] == ["too-many"]
    assert head.delete(name="a") == ""
    assert [m.why for _, m in head.attach("c")] == [""]


# ---------------------------------------------------------------- the log does not grow


def restarted(head: Head) -> Cursors:
    """A new machine that has read the log from its beginning."""
    old = head.cursors
    cursors = Cursors(old.config, old.service, old.disk)
    cursors.step(0, FromBelow(LogMoved(CURSORS, head.bench.disk.end(CURSORS))))
    return cursors


def test_entries_of_deleted_names_are_collected() -> None:
    """Live entries are copied to the end of the log, some at a time; then all older entries are
    collected."""
    head = Head(cursors_dead_max=100, cursors_deleted_max=3, cursors_max=5_000)
    kept = {f"kept.{n}": 2 + n % 19 for n in range(COPIED_AT_ONCE)}
    for name, seq in kept.items():
        head.ask("c/a", Attach(1, name, ANN, True))
        head.ask("c/a", Advance(2, name, ANN, {STREAM: seq}))
    head.commit()
    head.attach("was.reset")
    assert head.reset(7, name="was.reset") == ""
    moved = {name: dict(cursor.moved_ns) for name, cursor in head.table.items()}
    copied = head.cursors.counters["streams.cursors-copied"]
    number = 0
    while head.cursors.counters["streams.cursors-copied"] == copied:
        name = f"gone.{number}"
        head.attach(name)
        assert head.advance(9, name=name) == ""
        assert head.delete(name=name, request_id=number.to_bytes(16, "big")) == ""
        number += 1
        assert number < 2 * COPIED_AT_ONCE
    expected = {name: {STREAM: seq} for name, seq in kept.items()}
    expected["was.reset"] = {STREAM: 7}
    again = restarted(head)
    for cursors in (head.cursors, again):
        assert {name: cursor.positions for name, cursor in cursors.table.items()} == expected
        assert {name: cursor.moved_ns for name, cursor in cursors.table.items()} == moved
        assert list(cursors.stored.deleted) == [f"gone.{number - n}" for n in (3, 2, 1)]
        assert cursors.stored.dead < 100
    assert again.table == head.table
    # A request that was carried out before the copy is still recognised.
    assert head.reset(7, name="was.reset") == ""
    assert head.advance(9, name="was.reset") == "reset"
    kept_log = head.bench.service.kept[CURSORS]
    head.bench.service.feed(kept_log)
    live = kept_log.index.live(1, kept_log.index.end).total()
    assert live < 2 * len(expected) + 100, "entries of deleted names are still live"


def test_a_collected_entry_is_ignored_even_if_it_is_still_in_the_log() -> None:
    """Compaction may remove the entry that deletes a name before the entries with its positions."""
    head = Head(cursors_dead_max=1, cursors_deleted_max=1)
    head.attach("gone")
    assert head.advance(9, name="gone") == ""
    assert head.delete(name="gone") == ""
    head.attach("more")
    assert head.delete(name="more") == ""  # "gone" is no longer among those remembered
    old, end = head.cursors, head.bench.disk.end(CURSORS)
    *_, copy, rule = head.bench.disk.read(CURSORS, 1, end, 1 << 30)
    assert [decode_entry(row.value).name for row in copy.to_rows()] == ["more"]
    disk = MemoryDisk()
    disk.append(CURSORS, head.bench.disk.read(CURSORS, 1, 3, 1 << 30))
    disk.append(CURSORS, [Batch.void(CURSORS, 3, copy.lo, COLLECTED), copy, rule])
    cursors = Cursors(old.config, old.service, disk)
    cursors.step(0, FromBelow(LogMoved(CURSORS, rule.lo)))
    assert cursors.table["gone"].positions == {STREAM: 9}, (
        "wrong setup: the log does not have the position of 'gone'"
    )
    cursors.step(0, FromBelow(LogMoved(CURSORS, end)))
    assert cursors.table == {}


# ---------------------------------------------------------------- lists


def test_pages_are_bounded_and_have_every_position_once() -> None:
    head = Head(cursors_page_max=7)
    infos = [StreamInfo(bytes([n]) * 16, f"s.{n}", "y", INFO.retention) for n in range(100, 112)]
    for info in infos:
        head.bench.add_stream(info)
        batch = Batch.of(info.stream_id, [b"x"] * 5, publisher=ANN, pub_no=1)
        head.bench.disk.append(info.stream_id, (batch.sequenced(1, 1, 1),))
        head.bench.chain_emits(Appended(info.stream_id, 6))
        head.bench.chain_emits(Committed(info.stream_id, 6))
    expected: dict[str, dict[str, int]] = {}
    for name, count in (("none", 0), ("one", 1), ("six", 6), ("seven", 7), ("many", 12)):
        head.attach(name)
        positions = {info.stream_id: 4 for info in infos[:count]}
        head.ask("c/a", Advance(5, name, ANN, positions))
        head.commit()
        expected[name] = {info.name: 4 for info in infos[:count]}
    pages, after = [], ("", b"")
    while not pages or not pages[-1].complete:
        [(_, page)] = head.ask("op", ListCursors(1, "", after))
        assert 0 < sum(1 + len(one.positions) for one in page.cursors) <= 7
        assert page.after > after
        pages.append(page)
        after = page.after
    rows = [(c.name, p.stream) for page in pages for c in page.cursors for p in c.positions]
    assert len(rows) == len(set(rows)) == 26
    found = subscription_infos(one for page in pages for one in page.cursors)
    shown = {info.name: {p.stream: p.seq for p in info.positions} for info in found}
    assert shown == expected
    assert {info.name: info.lag for info in found} == {n: 2 * len(e) for n, e in expected.items()}
    [(_, page)] = head.ask("op", ListCursors(1, "one", ("", b"")))
    assert [(one.name, len(one.positions)) for one in page.cursors] == [("one", 1)]


def test_a_list_shows_attached_readers_and_times_of_saves(head: Head) -> None:
    head.attach("a")
    head.attach("b", holder=BOB)
    assert head.advance(5, name="a") == ""
    saved_ns = head.bench.now_ns
    head.give(PeerDown("c/b"))
    [(_, page)] = head.ask("op", ListCursors(1, "", ("", b"")))
    a, b = page.cursors
    assert (a.attached, b.attached, a.pattern) == (True, False, False)
    assert [(p.stream, p.seq, p.end) for p in a.positions] == [("s", 5, 21)]
    assert 0 < a.positions[0].moved_ns <= saved_ns
    assert b.positions == ()
    head.bench.role(2, head=False)
    assert [state.attached for state in head.cursors.page()[0]] == [None, None]


def test_a_page_size_that_no_message_can_hold_is_refused() -> None:
    for wrong in (1, config._PAGE_MAX + 1):
        with pytest.raises(ConfigError, match="cursors_page_max"):
            StreamsConfig("x", "x/0", ("x/0",), cursors_page_max=wrong)
    StreamsConfig("x", "x/0", ("x/0",), cursors_page_max=config._PAGE_MAX)


def test_status_and_metrics_show_positions_up_to_a_bound_and_count_the_rest() -> None:
    head = Head(cursors_shown_max=4)  # a name counts as a row
    for name in ("a", "b", "c"):
        head.attach(name)
        assert head.advance(5, name=name) == ""
    layers = {"streams": head.bench.service, "cursors": head.cursors}
    status = StreamsObserver().status(layers)
    assert [info.name for info in status["subscriptions"]] == ["a", "b"]
    assert status["subscriptions_total"] == 3
    metrics = list(StreamsObserver().metrics(layers))
    lags = [one.value for one in metrics if one.name == "streams_subscription_lag"]
    (omitted,) = (m.value for m in metrics if m.name == "streams_subscription_lag_omitted")
    assert (lags, omitted) == ([16, 16], 1)


# ---------------------------------------------------------------- scenarios


def cursors_at_replicas(cluster: Cluster) -> list[Any]:
    """The cursor of the subscription 'sub' at each replica; None where there is none."""
    nodes = [f"east/{n}" for n in range(3)]
    return [cursors_of(cluster, node).table.get("sub") for node in nodes]


def expelled_holder(mutant: type | None) -> list[str]:
    """An expelled holder saves a position after the reset."""
    cluster, stream = of_three(mutant)
    one, op = Asker(cluster, "east/one"), Asker(cluster, "east/op")
    held(one, one.attach())
    assert one.answer(one.advance(stream, 15)).why == ""
    assert op.answer(op.reset(stream, 3)).why == ""
    late = one.advance(stream, 17)
    run(cluster, SECOND)
    positions = {cursor.positions[stream] for cursor in cursors_at_replicas(cluster)}
    problems = [] if positions == {3} else [f"the reset was undone: {positions}"]
    if not one.answer(late).why:
        problems.append("the save of an expelled holder was accepted")
    return problems


def repeated_take(mutant: type | None) -> list[str]:
    """The attach of a holder was sent twice, and the copy arrives after the holder was expelled.

    The holder's last save follows right after the copy.
    """
    cluster, stream = of_three(mutant)
    one, op = Asker(cluster, "east/one"), Asker(cluster, "east/op")
    token = one.attach()
    held(one, token)
    assert one.answer(one.advance(stream, 15)).why == ""
    assert op.answer(op.reset(stream, 3)).why == ""
    world = cluster.world
    world.at(world.now_ns, "east/0", Received("east/one", Attach(token, "sub", one.me, True)))
    saved = Advance(99, "sub", one.me, {stream: 17})
    world.at(world.now_ns + MS, "east/0", Received("east/one", saved))
    run(cluster, SECOND)
    positions = {cursor.positions[stream] for cursor in cursors_at_replicas(cluster)}
    return [] if positions == {3} else [f"the reset was undone: {positions}"]


def lost_answer(mutant: type | None) -> list[str]:
    """The answer to a reset is lost, the next holder advances, and the reset is requested again.
    A new head answers it, which knows the first request only from the log."""
    cluster, stream = of_three(mutant)
    world = cluster.world
    one, two, op = (Asker(cluster, f"east/{name}") for name in ("one", "two", "op"))
    held(one, one.attach())
    assert one.answer(one.advance(stream, 15)).why == ""
    assert op.answer(op.ask(WhichCursors())).why == ""  # now it has a session
    world.cut("east/0", "east/op", two_way=False)
    token = op.reset(stream, 3)
    wait(cluster, lambda: cursors_of(cluster, "east/0").table["sub"].positions == {stream: 3})
    assert held(two, two.attach()) == {stream: 3}
    assert two.answer(two.advance(stream, 9)).why == ""
    run(cluster, SECOND)
    assert token not in op.answers
    world.crash("east/0")
    assert op.answer(token).why == ""
    again = two.advance(stream, 10)
    why = two.answer(again).why
    problems = [] if why == "" else [f"the next holder was expelled: {why}"]
    run(cluster, SECOND)
    cursor = cursors_of(cluster, members(cluster)[0]).table["sub"]
    if cursor.positions != {stream: 10}:
        problems.append(f"reset twice: {cursor.positions}")
    return problems


def deleted_and_compacted(mutant: type | None) -> list[str]:
    """A name is deleted and used again; compaction removes the entry that deleted it."""
    cluster, stream = of_three(mutant, server={"compact_ns": 100 * MS})
    one, two, op = (Asker(cluster, f"east/{name}") for name in ("one", "two", "op"))
    held(one, one.attach())
    assert one.answer(one.advance(stream, 15)).why == ""
    assert op.answer(op.delete()).why == ""
    # Each attach supersedes the entry of the last one. After forty of them most of the log is void,
    # so it is compacted.
    for _ in range(40):
        assert held(two, two.attach()) == {}
    run(cluster, SECOND)
    log = cluster.world.disk("east/0")
    rows = [
        decode_entry(row.value)
        for batch in log.read(CURSORS, 1, log.end(CURSORS), 1 << 30)
        for row in batch.to_rows()
    ]
    assert not any(row.what == "deleted" and not row.holder for row in rows), (
        "the entry that deleted the name is still in the log"
    )
    for node in ("east/0", "east/1", "east/2"):
        cluster.world.crash(node)
        cluster.world.restart(node)
    positions = held(two, two.attach())
    return [] if positions == {} else [f"the deleted position came back: {positions}"]


SCENARIOS: list[tuple[str, Scenario, type]] = [
    ("fencing", expelled_holder, mutations.LeavesHolderInPlace),
    ("expelled", repeated_take, mutations.TakesExpelledHolders),
    ("once", lost_answer, mutations.RepeatsChanges),
    ("every-key", deleted_and_compacted, mutations.DeletesOnlyTheName),
]


@each_scenario(SCENARIOS)
def test_change_rule_holds(scenario: Scenario, mutant: type) -> None:
    assert scenario(None) == []


@each_scenario(SCENARIOS)
def test_change_scenario_fails_without_the_rule(scenario: Scenario, mutant: type) -> None:
    assert scenario(mutant) != []


# ---------------------------------------------------------------- crashes and head changes


@pytest.mark.parametrize("crashed", [0, 1, 2], ids=["head", "middle", "tail"])
@pytest.mark.parametrize("deletes", [False, True], ids=["reset", "delete"])
def test_a_change_survives_the_crash_of_any_replica(crashed: int, deletes: bool) -> None:
    cluster, stream = of_three()
    one, op = Asker(cluster, "east/one"), Asker(cluster, "east/op")
    held(one, one.attach())
    assert one.answer(one.advance(stream, 15)).why == ""
    token = op.delete() if deletes else op.reset(stream, 3)
    run(cluster, MS)  # under way
    cluster.world.crash(f"east/{crashed}")
    late = one.advance(stream, 17)
    assert op.answer(token).why == ""
    assert one.answer(late).why in ("", "reset", "deleted")  # it may have been in time
    cluster.world.restart(f"east/{crashed}")
    wait(cluster, lambda: len(members(cluster)) == 3)
    run(cluster, SECOND)
    if deletes:
        assert cursors_at_replicas(cluster) == [None] * 3
    else:
        assert [cursor.positions for cursor in cursors_at_replicas(cluster)] == [{stream: 3}] * 3
    two = Asker(cluster, "east/two")
    assert held(two, two.attach()) == ({} if deletes else {stream: 3})


def test_a_change_written_by_a_head_that_is_cut_off_is_truncated() -> None:
    cluster, stream = of_three()
    world = cluster.world
    one = Asker(cluster, "east/one")
    held(one, one.attach())
    assert one.answer(one.advance(stream, 15)).why == ""
    op = Asker(cluster, "east/op", ("east/0",))
    others = ("east/1", "east/2", "east/config")
    for peer in others:
        world.cut("east/0", peer)
    token = op.delete()
    run(cluster, 100 * MS)
    assert cursors_of(cluster, "east/0").written["sub"].cursor.is_deleted
    wait(cluster, lambda: members(cluster) == ["east/1", "east/2"])
    two = Asker(cluster, "east/two", ("east/1",))
    assert held(two, two.attach()) == {stream: 15}
    assert two.answer(two.advance(stream, 18)).why == ""
    world.crash("east/op")  # no repeated request
    for peer in others:
        world.mend("east/0", peer)
    wait(cluster, lambda: len(members(cluster)) == 3)
    run(cluster, SECOND)
    assert token not in op.answers
    assert [cursor.positions for cursor in cursors_at_replicas(cluster)] == [{stream: 18}] * 3
    assert [cursor.holder for cursor in cursors_at_replicas(cluster)] == [two.me] * 3


@pytest.mark.parametrize("seed", range(12))
def test_a_holder_finds_the_operators_position_after_crashes_and_head_changes(seed: int) -> None:
    """Expelled holders continue to save, replicas crash and come back, the log is compacted and
    copied. The next holder finds exactly the position that the operator set."""
    rng = Random(seed)
    cluster, stream = of_three(
        seed=seed,
        server={"compact_ns": 100 * MS, "cursors_dead_max": 2, "cursors_deleted_max": 1},
    )
    world = cluster.world
    op = Asker(cluster, "east/op")
    expelled: list[Asker] = []
    expected: dict[bytes, int] = {}
    deleted = 0
    for number in range(8):
        holder = Asker(cluster, f"east/h{number}")
        assert held(holder, holder.attach()) == expected
        seq = max([*expected.values(), 1]) + rng.randrange(1, 4)
        assert holder.answer(holder.advance(stream, seq)).why == ""
        expected = {stream: seq}
        down = rng.choice([None, *range(3)])
        deletes = rng.random() < 0.4
        to = rng.randrange(1, 4)
        token = op.delete() if deletes else op.reset(stream, to)
        run(cluster, rng.randrange(20) * MS)
        if down is not None:
            world.crash(f"east/{down}")
        expelled.append(holder)
        for other in expelled:
            other.advance(stream, 20)
        answer = op.answer(token)
        assert answer.why == ""
        deleted += deletes
        expected = {} if deletes else {stream: to}
        for other in expelled:  # they continue, answered or not
            other.advance(stream, 20)
            other.attach(take=False)
        run(cluster, 200 * MS)
        if down is not None:
            world.restart(f"east/{down}")
            wait(cluster, lambda: len(members(cluster)) == 3)
    run(cluster, SECOND)
    assert [cursor and cursor.positions for cursor in cursors_at_replicas(cluster)] == [
        expected or None
    ] * 3
    copied = [cluster.counters[f"east/{n}"]["streams.cursors-copied"] for n in range(3)]
    assert any(copied) or deleted < 3
