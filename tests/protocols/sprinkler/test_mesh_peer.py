"""A mesh client, step by step: what it says to whom, and when."""

import itertools
from random import Random
from typing import Any

import pytest

from surecast.columns.batch import Batch
from surecast.core.endpoint import Follow, Following, Unfollow
from surecast.core.types import (
    MS,
    SECOND,
    Congested,
    Deliver,
    Emit,
    PeerDown,
    PeerUp,
    Received,
    Send,
    SetTimer,
    Start,
    TimerFired,
    Writable,
)
from surecast.errors import ConfigError
from surecast.protocols.sprinkler.config import ClientConfig, MeshConfig
from surecast.protocols.sprinkler.mesh_membership import Feed
from surecast.protocols.sprinkler.mesh_peer import MeshPeer
from surecast.protocols.sprinkler.messages import (
    MeshEvents,
    MeshLean,
    MeshLeave,
    MeshNotify,
    MeshRequest,
    MeshView,
)

S = bytes(range(16))
OTHER = bytes(16)
SIZE = 1000  # bytes of an event below


def batch(lo: int, hi: int, stream: bytes = S) -> Batch:
    made = Batch.synthetic(stream, hi - lo, SIZE * (hi - lo))
    return made.sequenced(lo, 5, 1)


class Bench:
    """One client, its clock, and what it did last."""

    def __init__(self, start: int | None = 1, mesh: dict[str, Any] | None = None, **options: Any):
        config = ClientConfig("me", ("s0", "s1"), MeshConfig(**(mesh or {})), **options)
        self.client = MeshPeer(config, {} if start is None else {S: start}, Random(1))
        self.now_ns = SECOND
        self.started = self.step(Start(0, 1))

    def step(self, inp: Any) -> list[Any]:
        return self.client.step(self.now_ns, inp)

    def says(self, peer: str, message: Any) -> list[Any]:
        return self.step(Received(peer, message))

    def later(self, ns: int) -> "Bench":
        self.now_ns += ns
        return self

    def at(self, position: int) -> "Bench":
        """A server has sent all below `position`."""
        ask = self.feed.asks[0]
        assert ask.peer in self.client.replicas
        batches = (batch(ask.lo, position),) if position > ask.lo else ()
        self.says("s0", MeshEvents(S, ask.lo, max(ask.lo, position), position, True, batches))
        assert self.feed.position == position
        self.later(10 * MS)
        return self

    @property
    def feed(self) -> Feed:
        return self.client.feeds[S]


def sent(effects: list[Any]) -> list[tuple[str, Any]]:
    return [(e.peer, e.message) for e in effects if isinstance(e, Send)]


def asked(effects: list[Any]) -> list[tuple[str, MeshRequest]]:
    return [(peer, m) for peer, m in sent(effects) if isinstance(m, MeshRequest)]


def delivered(effects: list[Any]) -> list[tuple[int, int]]:
    return [(b.lo, b.hi) for e in effects if isinstance(e, Deliver) for b in e.batches]


def request(lo: int, hi: int) -> MeshRequest:
    return MeshRequest(S, lo, hi)


# ---------------------------------------------------------------- starting


def test_it_asks_a_server_for_names_and_events() -> None:
    bench = Bench(start=7)
    assert bench.started[-4:] == [
        Emit(Following(S, 7)),
        Send("s0", MeshView(S, (), 0, True)),  # it cannot say yet that there are seven
        Send("s0", MeshRequest(S, 7, 0)),
        SetTimer("deadline", bench.now_ns + 500 * MS),
    ]
    assert [e.key for e in bench.started[:3]] == ["gossip", "shuffle", "silence"]


def test_latest_begins_where_a_server_says() -> None:
    bench = Bench(start=0)
    assert sent(bench.started) == [("s0", MeshView(S, (), 0, True)), ("s0", request(0, 0))]
    assert bench.says("p", MeshNotify(S, 50)) == []  # a peer cannot say what is the latest
    assert bench.says("s0", MeshEvents(S, 0, 0, 0, True, ())) == []  # nor who does not know it
    bench.later(2 * SECOND)
    polled = bench.step(TimerFired("silence"))
    assert sent(polled) == [("s1", request(0, 0))]
    assert bench.says("s1", MeshEvents(S, 0, 0, 42, True, ())) == [Emit(Following(S, 42))]
    assert sent(bench.says("p", MeshNotify(S, 50))) == [("p", request(42, 50))]


def test_a_start_in_the_future_claims_nothing() -> None:
    """Peers would ask for what does not exist, find holes, and turn to the server for them."""
    bench = Bench(start=100, mesh={"fanout": 1})
    assert bench.says("s0", MeshEvents(S, 100, 100, 50, True, ())) == []
    assert sent(bench.says("p", MeshView(S, (), 50, True))) == [
        ("p", MeshView(S, ("p",), 0, False)),
        ("p", MeshLean(S, True)),
    ]
    assert bench.says("p", MeshNotify(S, 60)) == []
    assert sent(bench.says("p", request(50, 100))) == [("p", MeshEvents(S, 50, 100, 0, True, ()))]
    bench.later(10 * MS)
    assert sent(bench.says("p", MeshNotify(S, 103))) == [("p", request(100, 103))]
    done = bench.says("p", MeshEvents(S, 100, 103, 103, True, (batch(95, 103),)))
    assert delivered(done) == [(100, 103)]
    assert sent(bench.says("q", request(100, 103)))[0][1].end == 103


def test_follow_and_unfollow() -> None:
    bench = Bench(start=None)
    assert bench.says("p", MeshNotify(S, 9)) == [Send("p", MeshLeave(S))]
    assert bench.says("p", request(1, 9)) == [Send("p", MeshLeave(S))]
    assert bench.says("p", MeshView(S, (), 9, True)) == [Send("p", MeshLeave(S))]
    assert bench.says("p", MeshLean(S, True)) == [Send("p", MeshLeave(S))]
    assert bench.says("p", MeshLeave(S)) == []  # no ping-pong
    assert bench.says("p", MeshEvents(S, 1, 9, 9, True, (batch(1, 9),))) == []
    assert len(sent(bench.step(Follow(S, 1)))) == 2
    assert bench.step(Follow(S, 5)) == []  # already
    bench.at(9)
    bench.says("p", MeshView(S, ("q",), 9, False))
    bench.says("r", MeshLean(S, True))
    left = sent(bench.step(Unfollow(S)))
    assert {peer for peer, _ in left} == {"s0", "p", "q", "r"}
    assert all(message == MeshLeave(S) for _, message in left)
    assert bench.step(Unfollow(S)) == []
    assert bench.step(TimerFired(("tell", S))) == []
    assert bench.step(TimerFired("silence"))[1:] == []


def test_no_more_streams_than_allowed() -> None:
    bench = Bench(start=1, streams_max=1)
    assert bench.step(Follow(OTHER, 1)) == []
    assert list(bench.client.feeds) == [S]


def test_a_config_without_servers_or_with_oneself_as_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="replicas"):
        ClientConfig("me", ())
    with pytest.raises(ConfigError, match="name"):
        ClientConfig("me", ("me",))


# ---------------------------------------------------------------- the main exchange


def test_notify_request_events_deliver_notify() -> None:
    bench = Bench(mesh={"fanout": 2}).at(5)
    told = sent(bench.says("a", MeshView(S, ("b",), 5, False)))
    assert sorted(told, key=str) == sorted(
        [("a", MeshLean(S, True)), ("b", MeshLean(S, True)), ("b", MeshNotify(S, 5))], key=str
    )  # a has as much
    bench.says("c", MeshLean(S, True))
    bench.later(10 * MS)
    assert bench.says("b", MeshNotify(S, 8)) == [
        Send("b", request(5, 8)),
        SetTimer("deadline", bench.now_ns + 20 * MS),
    ]
    assert bench.says("a", MeshNotify(S, 8)) == []  # G11: once
    assert bench.says("a", MeshNotify(S, 9)) == [Send("a", request(8, 9))]
    done = bench.later(2 * MS).says("b", MeshEvents(S, 5, 8, 8, True, (batch(5, 8),)))
    assert delivered(done) == [(5, 8)]
    assert sent(done) == [("c", MeshNotify(S, 8))]  # a and b have it
    done = bench.says("a", MeshEvents(S, 8, 9, 9, True, (batch(8, 9),)))
    assert delivered(done) == [(8, 9)]
    # So soon after the last time they are told of several at once.
    assert done[1:] == [SetTimer(("tell", S), bench.now_ns + 5 * MS)]
    bench.later(5 * MS)
    assert sent(bench.step(TimerFired(("tell", S)))) == [
        ("b", MeshNotify(S, 9)),
        ("c", MeshNotify(S, 9)),
    ]


def test_much_news_is_told_at_once() -> None:
    bench = Bench(mesh={"notify_bytes": 3 * SIZE}).at(5)
    bench.says("p", MeshLean(S, True))
    for lo in range(5, 10):
        bench.says("s0", MeshNotify(S, lo + 1))
    first = bench.says("s0", MeshEvents(S, 5, 6, 10, True, (batch(5, 6),)))
    assert sent(first) == [("p", MeshNotify(S, 6))]
    waits = [
        bench.says("s0", MeshEvents(S, n, n + 1, 10, True, (batch(n, n + 1),))) for n in (6, 7)
    ]
    assert [sent(w) for w in waits] == [[], []]
    third = bench.says("s0", MeshEvents(S, 8, 9, 10, True, (batch(8, 9),)))
    assert sent(third) == [("p", MeshNotify(S, 9))]


def test_as_printed_everybody_is_told_everything() -> None:
    bench = Bench(mesh={"mutual": False, "fanout": 2, "notify_gap_ns": 0}).at(5)
    bench.says("a", MeshView(S, ("b",), 5, False))
    shuffled = sent(bench.step(TimerFired("shuffle")))
    assert sorted(shuffled, key=str) == [("a", MeshNotify(S, 5)), ("b", MeshNotify(S, 5))]


def test_requests_are_answered_with_whole_batches_in_parts_of_some_size() -> None:
    bench = Bench(reply_bytes_max=4 * SIZE).at(1)
    bench.says("s0", MeshNotify(S, 13))
    parts = tuple(batch(lo, lo + 3) for lo in range(1, 13, 3))
    bench.says("s0", MeshEvents(S, 1, 13, 13, True, parts))
    assert sent(bench.says("p", request(2, 9))) == [
        ("p", MeshEvents(S, 2, 4, 13, False, parts[:1])),
        ("p", MeshEvents(S, 4, 7, 13, False, parts[1:2])),
        ("p", MeshEvents(S, 7, 9, 13, True, parts[2:3])),
    ]
    assert sent(bench.says("p", request(20, 30))) == [("p", MeshEvents(S, 20, 30, 13, True, ()))]
    for lo, hi in ((5, 5), (9, 2), (-3, -1), (0, 0)):
        assert sent(bench.says("p", request(lo, hi))) == [
            ("p", MeshEvents(S, lo, hi, 13, True, ()))
        ]


def test_a_congested_peer_gets_an_empty_answer_and_news_when_it_can_take_them() -> None:
    bench = Bench().at(5)
    bench.says("p", MeshLean(S, True))
    bench.step(Congested("p"))
    assert sent(bench.says("p", request(1, 5))) == [("p", MeshEvents(S, 1, 5, 5, True, ()))]
    bench.says("s0", MeshNotify(S, 9))
    done = bench.says("s0", MeshEvents(S, 5, 9, 9, True, (batch(5, 9),)))
    assert sent(done) == []
    assert sent(bench.step(Writable("p"))) == [("p", MeshNotify(S, 9))]


# ---------------------------------------------------------------- falling back


def test_a_hole_is_asked_of_the_server_at_once() -> None:
    bench = Bench().at(5)
    bench.says("p", MeshNotify(S, 20))
    done = bench.says("p", MeshEvents(S, 5, 20, 25, True, (batch(8, 12), batch(12, 15))))
    assert delivered(done) == []
    assert sent(done) == [("s0", request(5, 8)), ("s0", request(15, 20))]
    done = bench.says("s0", MeshEvents(S, 5, 8, 25, True, (batch(5, 8),)))
    assert delivered(done) == [(5, 8), (8, 12), (12, 15)]
    done = bench.says("s0", MeshEvents(S, 15, 20, 25, True, (batch(15, 20),)))
    assert delivered(done) == [(15, 20)]


def test_r12_an_end_below_what_was_asked_lowers_next() -> None:
    bench = Bench().at(5)
    bench.says("p", MeshNotify(S, 20))
    done = bench.says("p", MeshEvents(S, 5, 20, 9, True, (batch(5, 9),)))
    assert delivered(done) == [(5, 9)]
    assert sent(done) == []  # there is no hole: they have not come yet
    assert (bench.feed.position, bench.feed.next) == (9, 9)
    assert sent(bench.says("q", MeshNotify(S, 20))) == [("q", request(9, 20))]
    bench.says("q", MeshEvents(S, 9, 20, 3, True, ()))  # even further back
    assert (bench.feed.position, bench.feed.next) == (9, 9)


def test_who_does_not_answer_in_time_is_not_waited_for() -> None:
    bench = Bench().at(5)
    bench.says("p", MeshNotify(S, 9))
    bench.later(19 * MS)
    assert sent(bench.step(TimerFired("deadline"))) == []
    bench.later(1 * MS)
    late = bench.step(TimerFired("deadline"))
    assert sent(late) == [("s0", request(5, 9))]
    assert late[-1] == SetTimer("deadline", bench.now_ns + 500 * MS)
    # The peer's answer comes all the same: it is as good as any.
    assert delivered(bench.says("p", MeshEvents(S, 5, 9, 9, True, (batch(5, 9),)))) == [(5, 9)]
    assert delivered(bench.says("s0", MeshEvents(S, 5, 9, 9, True, (batch(5, 9),)))) == []


def test_a_slow_network_is_learned_from_answers_that_come_too_late() -> None:
    """Else peers that are 30 ms away would be asked, not waited for, and everything come twice."""
    bench = Bench().at(5)
    bench.says("p", MeshNotify(S, 9))
    bench.later(20 * MS).step(TimerFired("deadline"))
    bench.later(10 * MS).says("p", MeshEvents(S, 5, 9, 9, True, (batch(5, 9),)))
    assert bench.client.rtt_ns == 30 * MS
    bench.says("p", MeshNotify(S, 12))
    assert bench.feed.asks[-1].deadline_ns == bench.now_ns + 90 * MS
    # But one that slept for a minute does not make us wait for minutes.
    bench.later(90 * MS).step(TimerFired("deadline"))
    bench.later(60 * SECOND).says("p", MeshEvents(S, 9, 12, 12, True, (batch(9, 12),)))
    assert bench.client.rtt_ns < 100 * MS
    for n in range(12, 80):
        bench.says("q", MeshNotify(S, n + 1))
        patience_ns = bench.feed.asks[-1].deadline_ns - bench.now_ns
        assert patience_ns <= 500 * MS
        bench.later(2 * SECOND).step(TimerFired("deadline"))
        bench.says("q", MeshEvents(S, n, n + 1, n + 1, True, (batch(n, n + 1),)))
    assert bench.client.late == {}


def test_an_answer_under_way_is_waited_for() -> None:
    """In parts, each within the time: a large answer over a slow link is not asked for twice."""
    bench = Bench().at(5)
    bench.says("s0", MeshNotify(S, 9))
    for lo in range(5, 8):
        bench.later(400 * MS)
        bench.says("s0", MeshEvents(S, lo, lo + 1, 9, False, (batch(lo, lo + 1),)))
        assert asked(bench.step(TimerFired("deadline"))) == []
    bench.later(500 * MS)
    assert asked(bench.step(TimerFired("deadline"))) == [("s1", request(8, 9))]


def test_a_peer_that_goes_is_replaced_by_the_server() -> None:
    bench = Bench().at(5)
    bench.step(PeerUp("p"))
    bench.says("p", MeshView(S, (), 5, False))
    bench.says("p", MeshLean(S, True))
    bench.says("p", MeshNotify(S, 9))
    assert sent(bench.step(PeerDown("p"))) == [("s0", request(5, 9))]
    feed = bench.feed
    assert (feed.active, feed.leaning, feed.known.get("p")) == ([], {}, None)
    assert feed.view.peers == ["p"]  # it may come back
    bench.step(PeerDown("p"))
    assert feed.view.peers == []  # it could not be reached


def test_a_peer_that_leaves_is_replaced_by_the_server() -> None:
    bench = Bench().at(5)
    bench.says("p", MeshView(S, (), 5, False))
    bench.says("p", MeshNotify(S, 9))
    assert sent(bench.says("p", MeshLeave(S))) == [("s0", request(5, 9))]
    assert bench.feed.view.peers == bench.feed.active == []


def test_a_silent_server_is_left_for_the_next() -> None:
    bench = Bench().at(5)
    bench.says("s0", MeshNotify(S, 9))
    bench.later(500 * MS)
    assert asked(bench.step(TimerFired("deadline"))) == [("s1", request(5, 9))]
    bench.later(500 * MS)
    assert asked(bench.step(TimerFired("deadline"))) == [("s0", request(5, 9))]


def test_a_server_that_dies_in_the_middle_is_gone_on_from_at_once() -> None:
    """Where the rest ends is known from its first part; without that it would take a silence."""
    bench = Bench()
    bench.step(PeerUp("s0"))
    bench.says("s0", MeshEvents(S, 1, 10, 50, False, (batch(1, 10),)))
    assert bench.feed.next == 50
    assert asked(bench.step(PeerDown("s0"))) == [("s1", request(10, 50))]


def test_a_server_that_is_new_to_us_gets_to_know_us_at_once() -> None:
    """It tells of news only whom it knows: until the next gossip nobody would hear of any."""
    bench = Bench().at(5)
    bench.step(PeerUp("s0"))
    shown = MeshView(S, (), 5, True)
    assert sent(bench.step(PeerDown("s0"))) == [("s1", shown)]
    assert sent(bench.step(PeerDown("s1"))) == []  # nobody there: no knocking at network speed
    assert sent(bench.step(PeerUp("s1"))) == []
    assert sent(bench.step(PeerUp("s0"))) == [("s0", shown)]  # it has forgotten us
    bench.says("p", MeshView(S, ("q", "r", "t"), 5, False))
    bench.says("s1", MeshNotify(S, 9))
    bench.later(10 * MS)
    bench.says("s0", MeshNotify(S, 12))
    bench.later(500 * MS)
    moved = sent(bench.step(TimerFired("deadline")))
    assert [m for m in moved if isinstance(m[1], MeshView)] == [
        ("s1", MeshView(S, ("p", "q", "r", "t"), 5, False))
    ]


def test_the_first_server_is_dead_from_the_beginning() -> None:
    bench = Bench()
    assert asked(bench.step(PeerDown("s0"))) == [("s1", request(1, 0))]
    assert asked(bench.step(PeerDown("s1"))) == [("s0", request(1, 0))]


def test_a_server_behind_its_peers_is_left_and_the_next_is_asked_for_all() -> None:
    bench = Bench().at(5)
    bench.says("p", MeshNotify(S, 9))
    bench.later(20 * MS).step(TimerFired("deadline"))
    done = bench.says("s0", MeshEvents(S, 5, 9, 6, True, (batch(5, 6),)))
    assert delivered(done) == [(5, 6)]
    assert asked(done) == [("s1", request(6, 0))]
    done = bench.says("s1", MeshEvents(S, 6, 6, 6, True, ()))
    assert asked(done) == []  # nobody has more: no ping-pong
    assert bench.feed.next == 6


def test_a_large_rest_is_asked_for_piece_by_piece() -> None:
    bench = Bench()
    done = bench.says("s0", MeshEvents(S, 1, 10, 100, True, (batch(1, 10),)))
    assert sent(done) == [("s0", request(10, 100))]
    done = bench.says("s0", MeshEvents(S, 10, 60, 100, True, (batch(10, 60),)))
    assert sent(done) == [("s0", request(60, 100))]
    assert bench.says("p", MeshNotify(S, 100)) == []


def test_r12_silence_asks_each_time_another_server_and_less_and_less_often() -> None:
    bench = Bench().at(5)
    asked = []
    for tick in range(120):
        for peer, message in sent(bench.later(500 * MS).step(TimerFired("silence"))):
            asked.append((tick, peer))
            assert message == request(5, 0)
            bench.says(peer, MeshEvents(S, 5, 5, 5, True, ()))
    gaps = [b[0] - a[0] for a, b in itertools.pairwise(asked)]
    assert {peer for _, peer in asked} == {"s0", "s1"}
    assert gaps == sorted(gaps)
    assert max(gaps) <= 17  # 8 s and a tick
    bench.says("p", MeshNotify(S, 6))
    bench.says("p", MeshEvents(S, 5, 6, 6, True, (batch(5, 6),)))
    bench.later(1 * SECOND)
    assert len(sent(bench.step(TimerFired("silence")))) == 1  # news: it may go on


def test_silence_finds_a_server_that_knows_more_and_stays_there() -> None:
    bench = Bench().at(5)
    bench.later(2 * SECOND)
    assert sent(bench.step(TimerFired("silence"))) == [("s1", request(5, 0))]
    bench.says("s1", MeshEvents(S, 5, 9, 9, True, (batch(5, 9),)))
    assert bench.client.server == "s1"


# ---------------------------------------------------------------- bounds


def test_a_full_early_buffer_asks_no_more_and_resumes() -> None:
    bench = Bench(early_bytes_max=10 * SIZE).at(5)
    bench.says("a", MeshNotify(S, 10))
    bench.says("b", MeshNotify(S, 20))
    bench.says("b", MeshEvents(S, 10, 20, 20, True, tuple(batch(n, n + 1) for n in range(10, 20))))
    assert bench.says("c", MeshNotify(S, 40)) == []  # no room
    assert bench.says("d", MeshNotify(S, 30)) == []  # nor is the larger one forgotten
    done = bench.says("a", MeshEvents(S, 5, 10, 40, True, (batch(5, 10),)))
    assert delivered(done)[-1] == (19, 20)
    assert sent(done) == [("c", request(20, 40))]


def test_g11_what_was_dropped_for_want_of_room_is_asked_of_the_server() -> None:
    bench = Bench(early_bytes_max=10 * SIZE).at(5)
    bench.says("a", MeshNotify(S, 10))
    bench.says("b", MeshNotify(S, 30))
    parts = tuple(batch(n, n + 2) for n in range(10, 30, 2))
    bench.says("b", MeshEvents(S, 10, 30, 30, True, parts))
    feed = bench.feed
    assert (feed.early_bytes, feed.next) == (10 * SIZE, 20)
    done = bench.says("a", MeshEvents(S, 5, 10, 30, True, (batch(5, 10),)))
    assert delivered(done)[-1] == (18, 20)
    assert sent(done) == [("s0", request(20, 30))]  # at once, and not of a peer again
    # With something new behind it, each from where it belongs.
    bench = Bench(early_bytes_max=10 * SIZE).at(5)
    bench.says("a", MeshNotify(S, 10))
    bench.says("b", MeshNotify(S, 30))
    bench.says("b", MeshEvents(S, 10, 30, 30, True, parts))
    bench.says("c", MeshNotify(S, 35))
    done = bench.says("a", MeshEvents(S, 5, 10, 30, True, (batch(5, 10),)))
    assert sent(done) == [("s0", request(20, 30)), ("c", request(30, 35))]


def test_g11_a_full_buffer_is_not_filled_again_and_again() -> None:
    """Dropping leaves a little room; who asks for all there is because of it does nothing else."""
    bench = Bench(early_bytes_max=10 * SIZE + 1).at(5)
    bench.says("a", MeshNotify(S, 10))
    asked = 0
    for n in range(30, 60):
        for peer, message in sent(bench.says("b", MeshNotify(S, n))):
            asked += 1
            parts = tuple(batch(k, k + 1) for k in range(message.lo, message.hi))
            bench.says(peer, MeshEvents(S, message.lo, message.hi, n, True, parts))
    assert asked == 1


def test_requests_under_way_are_bounded() -> None:
    bench = Bench(asks_max=3).at(5)
    for n in range(6, 12):
        bench.says("p", MeshNotify(S, n))
    assert [(a.lo, a.hi) for a in bench.feed.asks] == [(5, 6), (6, 7), (7, 8)]
    for n in (6, 7, 8):
        done = bench.says("p", MeshEvents(S, n - 1, n, n, True, (batch(n - 1, n),)))
    assert sent(done)[-1] == ("p", request(8, 11))
    # Holes count, too: [11, 40) comes with every second position missing.
    bench.says("p", MeshEvents(S, 8, 11, 40, True, (batch(8, 11),)))
    bench.says("p", MeshNotify(S, 40))
    odd = tuple(batch(n, n + 1) for n in range(12, 40, 2))
    done = bench.says("p", MeshEvents(S, 11, 40, 40, True, odd))
    assert len(sent(done)) == len(bench.feed.asks) == 3
    while bench.feed.asks:
        ask = bench.feed.asks[0]
        answer = MeshEvents(S, ask.lo, ask.hi, 40, True, (batch(ask.lo, ask.hi),))
        bench.says(ask.peer, answer)
        assert len(bench.feed.asks) <= 3
    assert bench.feed.position == 40


def test_events_of_another_stream_are_not_taken_and_the_server_is_asked() -> None:
    bench = Bench().at(5)
    bench.says("p", MeshNotify(S, 9))
    done = bench.says("p", MeshEvents(S, 5, 9, 9, True, (batch(5, 9, OTHER),)))
    assert delivered(done) == []
    assert sent(done) == [("s0", request(5, 9))]
    assert bench.client.counters["mesh.bad-events"] == 1


def test_who_leans_is_bounded() -> None:
    bench = Bench(mesh={"view_max": 4}).at(5)
    for n in range(100):
        bench.says(f"p{n}", MeshLean(S, True))
    assert len(bench.feed.leaning) == 8
    bench.says("p3", MeshLean(S, False))
    assert len(bench.feed.leaning) == 7


def test_what_is_remembered_of_others_is_bounded() -> None:
    bench = Bench(mesh={"view_max": 4}, sessions_max=10).at(5)
    for n in range(200):
        bench.step(PeerUp(f"p{n}"))
        bench.says(f"p{n}", MeshNotify(S, 5))
        bench.says(f"p{n}", MeshView(S, tuple(f"p{k}" for k in range(n)), 5, False))
    closed = [e.peer for e in bench.step(TimerFired("gossip")) if type(e).__name__ == "Close"]
    for peer in closed:
        bench.step(PeerDown(peer))
    feed = bench.feed
    assert len(feed.known) <= 4 * 4
    assert len(feed.view.peers) == 4
    assert len(bench.client.up) <= 4 + 4 + 8
    assert not set(closed) & {*feed.view.peers, *feed.active}
