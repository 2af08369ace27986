"""A mesh client, step by step: the messages that it sends, and when."""

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
    """One client and its clock."""

    def __init__(self, start: int | None = 1, mesh: dict[str, Any] | None = None, **options: Any):
        config = ClientConfig("me", ("s0", "s1"), MeshConfig(**(mesh or {})), **options)
        self.client = MeshPeer(config, {} if start is None else {S: start}, Random(1))
        self.now_ns = SECOND
        self.started = self.step(Start(0, 1))

    def step(self, inp: Any) -> list[Any]:
        return self.client.step(self.now_ns, inp)

    def receive(self, peer: str, message: Any) -> list[Any]:
        return self.step(Received(peer, message))

    def later(self, ns: int) -> "Bench":
        self.now_ns += ns
        return self

    def at(self, position: int) -> "Bench":
        """A server has sent all below `position`."""
        ask = self.feed.asks[0]
        assert ask.peer in self.client.replicas
        batches = (batch(ask.lo, position),) if position > ask.lo else ()
        self.receive("s0", MeshEvents(S, ask.lo, max(ask.lo, position), position, True, batches))
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


def test_a_client_that_starts_requests_a_view_and_events_from_a_server() -> None:
    bench = Bench(start=7)
    assert bench.started[-4:] == [
        Emit(Following(S, 7)),
        Send("s0", MeshView(S, (), 0, True)),  # it does not know yet that position 7 exists
        Send("s0", MeshRequest(S, 7, 0)),
        SetTimer("deadline", bench.now_ns + 500 * MS),
    ]
    assert [e.key for e in bench.started[:3]] == ["gossip", "shuffle", "silence"]


def test_latest_begins_at_the_end_that_a_server_reports() -> None:
    bench = Bench(start=0)
    assert sent(bench.started) == [("s0", MeshView(S, (), 0, True)), ("s0", request(0, 0))]
    assert bench.receive("p", MeshNotify(S, 50)) == []  # only a server decides what is the latest
    assert (
        bench.receive("s0", MeshEvents(S, 0, 0, 0, True, ())) == []
    )  # this server does not know it
    bench.later(2 * SECOND)
    polled = bench.step(TimerFired("silence"))
    assert sent(polled) == [("s1", request(0, 0))]
    assert bench.receive("s1", MeshEvents(S, 0, 0, 42, True, ())) == [Emit(Following(S, 42))]
    assert sent(bench.receive("p", MeshNotify(S, 50))) == [("p", request(42, 50))]


def test_a_client_with_a_future_start_does_not_claim_to_have_events() -> None:
    """Otherwise peers would request positions that do not exist, and then ask the server."""
    bench = Bench(start=100, mesh={"fanout": 1})
    assert bench.receive("s0", MeshEvents(S, 100, 100, 50, True, ())) == []
    assert sent(bench.receive("p", MeshView(S, (), 50, True))) == [
        ("p", MeshView(S, ("p",), 0, False)),
        ("p", MeshLean(S, True)),
    ]
    assert bench.receive("p", MeshNotify(S, 60)) == []
    assert sent(bench.receive("p", request(50, 100))) == [
        ("p", MeshEvents(S, 50, 100, 0, True, ()))
    ]
    bench.later(10 * MS)
    assert sent(bench.receive("p", MeshNotify(S, 103))) == [("p", request(100, 103))]
    done = bench.receive("p", MeshEvents(S, 100, 103, 103, True, (batch(95, 103),)))
    assert delivered(done) == [(100, 103)]
    assert sent(bench.receive("q", request(100, 103)))[0][1].end == 103


def test_a_client_takes_part_in_a_mesh_only_while_it_follows_the_stream() -> None:
    bench = Bench(start=None)
    assert bench.receive("p", MeshNotify(S, 9)) == [Send("p", MeshLeave(S))]
    assert bench.receive("p", request(1, 9)) == [Send("p", MeshLeave(S))]
    assert bench.receive("p", MeshView(S, (), 9, True)) == [Send("p", MeshLeave(S))]
    assert bench.receive("p", MeshLean(S, True)) == [Send("p", MeshLeave(S))]
    assert bench.receive("p", MeshLeave(S)) == []  # a leave is not answered
    assert bench.receive("p", MeshEvents(S, 1, 9, 9, True, (batch(1, 9),))) == []
    assert len(sent(bench.step(Follow(S, 1)))) == 2
    assert bench.step(Follow(S, 5)) == []  # already
    bench.at(9)
    bench.receive("p", MeshView(S, ("q",), 9, False))
    bench.receive("r", MeshLean(S, True))
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


def test_a_config_without_servers_or_with_the_client_as_a_server_is_refused() -> None:
    with pytest.raises(ConfigError, match="replicas"):
        ClientConfig("me", ())
    with pytest.raises(ConfigError, match="name"):
        ClientConfig("me", ("me",))


# ---------------------------------------------------------------- the main exchange


def test_a_notification_leads_to_a_request_a_delivery_and_further_notifications() -> None:
    bench = Bench(mesh={"fanout": 2}).at(5)
    told = sent(bench.receive("a", MeshView(S, ("b",), 5, False)))
    assert sorted(told, key=str) == sorted(
        [("a", MeshLean(S, True)), ("b", MeshLean(S, True)), ("b", MeshNotify(S, 5))], key=str
    )  # a has the same events, so it is not notified
    bench.receive("c", MeshLean(S, True))
    bench.later(10 * MS)
    assert bench.receive("b", MeshNotify(S, 8)) == [
        Send("b", request(5, 8)),
        SetTimer("deadline", bench.now_ns + 20 * MS),
    ]
    assert bench.receive("a", MeshNotify(S, 8)) == []  # G11: once
    assert bench.receive("a", MeshNotify(S, 9)) == [Send("a", request(8, 9))]
    done = bench.later(2 * MS).receive("b", MeshEvents(S, 5, 8, 8, True, (batch(5, 8),)))
    assert delivered(done) == [(5, 8)]
    assert sent(done) == [("c", MeshNotify(S, 8))]  # a and b have it
    done = bench.receive("a", MeshEvents(S, 8, 9, 9, True, (batch(8, 9),)))
    assert delivered(done) == [(8, 9)]
    # Notifications that soon follow another one are delayed and combined.
    assert done[1:] == [SetTimer(("tell", S), bench.now_ns + 5 * MS)]
    bench.later(5 * MS)
    assert sent(bench.step(TimerFired(("tell", S)))) == [
        ("b", MeshNotify(S, 9)),
        ("c", MeshNotify(S, 9)),
    ]


def test_a_notification_is_sent_at_once_for_many_new_bytes() -> None:
    bench = Bench(mesh={"notify_bytes": 3 * SIZE}).at(5)
    bench.receive("p", MeshLean(S, True))
    for lo in range(5, 10):
        bench.receive("s0", MeshNotify(S, lo + 1))
    first = bench.receive("s0", MeshEvents(S, 5, 6, 10, True, (batch(5, 6),)))
    assert sent(first) == [("p", MeshNotify(S, 6))]
    waits = [
        bench.receive("s0", MeshEvents(S, n, n + 1, 10, True, (batch(n, n + 1),))) for n in (6, 7)
    ]
    assert [sent(w) for w in waits] == [[], []]
    third = bench.receive("s0", MeshEvents(S, 8, 9, 10, True, (batch(8, 9),)))
    assert sent(third) == [("p", MeshNotify(S, 9))]


def test_with_the_paper_preset_all_active_peers_are_notified_of_everything() -> None:
    bench = Bench(mesh={"mutual": False, "fanout": 2, "notify_gap_ns": 0}).at(5)
    bench.receive("a", MeshView(S, ("b",), 5, False))
    shuffled = sent(bench.step(TimerFired("shuffle")))
    assert sorted(shuffled, key=str) == [("a", MeshNotify(S, 5)), ("b", MeshNotify(S, 5))]


def test_requests_are_answered_with_whole_batches_in_bounded_parts() -> None:
    bench = Bench(reply_bytes_max=4 * SIZE).at(1)
    bench.receive("s0", MeshNotify(S, 13))
    parts = tuple(batch(lo, lo + 3) for lo in range(1, 13, 3))
    bench.receive("s0", MeshEvents(S, 1, 13, 13, True, parts))
    assert sent(bench.receive("p", request(2, 9))) == [
        ("p", MeshEvents(S, 2, 4, 13, False, parts[:1])),
        ("p", MeshEvents(S, 4, 7, 13, False, parts[1:2])),
        ("p", MeshEvents(S, 7, 9, 13, True, parts[2:3])),
    ]
    assert sent(bench.receive("p", request(20, 30))) == [("p", MeshEvents(S, 20, 30, 13, True, ()))]
    for lo, hi in ((5, 5), (9, 2), (-3, -1), (0, 0)):
        assert sent(bench.receive("p", request(lo, hi))) == [
            ("p", MeshEvents(S, lo, hi, 13, True, ()))
        ]


def test_a_congested_peer_gets_an_empty_answer_and_is_notified_when_it_is_writable() -> None:
    bench = Bench().at(5)
    bench.receive("p", MeshLean(S, True))
    bench.step(Congested("p"))
    assert sent(bench.receive("p", request(1, 5))) == [("p", MeshEvents(S, 1, 5, 5, True, ()))]
    bench.receive("s0", MeshNotify(S, 9))
    done = bench.receive("s0", MeshEvents(S, 5, 9, 9, True, (batch(5, 9),)))
    assert sent(done) == []
    assert sent(bench.step(Writable("p"))) == [("p", MeshNotify(S, 9))]


# ---------------------------------------------------------------- falling back


def test_a_hole_is_requested_from_the_server_at_once() -> None:
    bench = Bench().at(5)
    bench.receive("p", MeshNotify(S, 20))
    done = bench.receive("p", MeshEvents(S, 5, 20, 25, True, (batch(8, 12), batch(12, 15))))
    assert delivered(done) == []
    assert sent(done) == [("s0", request(5, 8)), ("s0", request(15, 20))]
    done = bench.receive("s0", MeshEvents(S, 5, 8, 25, True, (batch(5, 8),)))
    assert delivered(done) == [(5, 8), (8, 12), (12, 15)]
    done = bench.receive("s0", MeshEvents(S, 15, 20, 25, True, (batch(15, 20),)))
    assert delivered(done) == [(15, 20)]


def test_r12_an_end_below_the_requested_range_lowers_next() -> None:
    bench = Bench().at(5)
    bench.receive("p", MeshNotify(S, 20))
    done = bench.receive("p", MeshEvents(S, 5, 20, 9, True, (batch(5, 9),)))
    assert delivered(done) == [(5, 9)]
    assert sent(done) == []  # not a hole: the peer does not have them yet
    assert (bench.feed.position, bench.feed.next) == (9, 9)
    assert sent(bench.receive("q", MeshNotify(S, 20))) == [("q", request(9, 20))]
    bench.receive("q", MeshEvents(S, 9, 20, 3, True, ()))  # even further back
    assert (bench.feed.position, bench.feed.next) == (9, 9)


def test_a_peer_that_misses_its_deadline_is_replaced_by_the_server() -> None:
    bench = Bench().at(5)
    bench.receive("p", MeshNotify(S, 9))
    bench.later(19 * MS)
    assert sent(bench.step(TimerFired("deadline"))) == []
    bench.later(1 * MS)
    late = bench.step(TimerFired("deadline"))
    assert sent(late) == [("s0", request(5, 9))]
    assert late[-1] == SetTimer("deadline", bench.now_ns + 500 * MS)
    # A late answer of the peer is used as well.
    assert delivered(bench.receive("p", MeshEvents(S, 5, 9, 9, True, (batch(5, 9),)))) == [(5, 9)]
    assert delivered(bench.receive("s0", MeshEvents(S, 5, 9, 9, True, (batch(5, 9),)))) == []


def test_a_slow_network_is_learned_from_answers_that_come_too_late() -> None:
    """Otherwise answers of peers 30 ms away would always be late, and all events come twice."""
    bench = Bench().at(5)
    bench.receive("p", MeshNotify(S, 9))
    bench.later(20 * MS).step(TimerFired("deadline"))
    bench.later(10 * MS).receive("p", MeshEvents(S, 5, 9, 9, True, (batch(5, 9),)))
    assert bench.client.rtt_ns == 30 * MS
    bench.receive("p", MeshNotify(S, 12))
    assert bench.feed.asks[-1].deadline_ns == bench.now_ns + 90 * MS
    # But an answer after a minute does not raise deadlines to minutes.
    bench.later(90 * MS).step(TimerFired("deadline"))
    bench.later(60 * SECOND).receive("p", MeshEvents(S, 9, 12, 12, True, (batch(9, 12),)))
    assert bench.client.rtt_ns < 100 * MS
    for n in range(12, 80):
        bench.receive("q", MeshNotify(S, n + 1))
        patience_ns = bench.feed.asks[-1].deadline_ns - bench.now_ns
        assert patience_ns <= 500 * MS
        bench.later(2 * SECOND).step(TimerFired("deadline"))
        bench.receive("q", MeshEvents(S, n, n + 1, n + 1, True, (batch(n, n + 1),)))
    assert bench.client.late == {}


def test_each_part_of_an_answer_extends_its_deadline() -> None:
    """Each part extends the deadline: a large answer over a slow link is not requested twice."""
    bench = Bench().at(5)
    bench.receive("s0", MeshNotify(S, 9))
    for lo in range(5, 8):
        bench.later(400 * MS)
        bench.receive("s0", MeshEvents(S, lo, lo + 1, 9, False, (batch(lo, lo + 1),)))
        assert asked(bench.step(TimerFired("deadline"))) == []
    bench.later(500 * MS)
    assert asked(bench.step(TimerFired("deadline"))) == [("s1", request(8, 9))]


def test_requests_to_a_peer_that_is_down_go_to_the_server() -> None:
    bench = Bench().at(5)
    bench.step(PeerUp("p"))
    bench.receive("p", MeshView(S, (), 5, False))
    bench.receive("p", MeshLean(S, True))
    bench.receive("p", MeshNotify(S, 9))
    assert sent(bench.step(PeerDown("p"))) == [("s0", request(5, 9))]
    feed = bench.feed
    assert (feed.active, feed.leaning, feed.known.get("p")) == ([], {}, None)
    assert feed.view.peers == ["p"]  # it may come back
    bench.step(PeerDown("p"))
    assert feed.view.peers == []  # it could not be reached


def test_requests_to_a_peer_that_leaves_go_to_the_server() -> None:
    bench = Bench().at(5)
    bench.receive("p", MeshView(S, (), 5, False))
    bench.receive("p", MeshNotify(S, 9))
    assert sent(bench.receive("p", MeshLeave(S))) == [("s0", request(5, 9))]
    assert bench.feed.view.peers == bench.feed.active == []


def test_a_silent_server_is_left_for_the_next() -> None:
    bench = Bench().at(5)
    bench.receive("s0", MeshNotify(S, 9))
    bench.later(500 * MS)
    assert asked(bench.step(TimerFired("deadline"))) == [("s1", request(5, 9))]
    bench.later(500 * MS)
    assert asked(bench.step(TimerFired("deadline"))) == [("s0", request(5, 9))]


def test_the_rest_of_an_answer_is_requested_elsewhere_when_the_server_crashes() -> None:
    """The first part of an answer gives the end, so the client can request the rest elsewhere."""
    bench = Bench()
    bench.step(PeerUp("s0"))
    bench.receive("s0", MeshEvents(S, 1, 10, 50, False, (batch(1, 10),)))
    assert bench.feed.next == 50
    assert asked(bench.step(PeerDown("s0"))) == [("s1", request(10, 50))]


def test_a_client_sends_its_view_at_once_to_a_server_that_does_not_know_it() -> None:
    """A server notifies only clients it knows; otherwise the client would wait for its gossip."""
    bench = Bench().at(5)
    bench.step(PeerUp("s0"))
    shown = MeshView(S, (), 5, True)
    assert sent(bench.step(PeerDown("s0"))) == [("s1", shown)]
    assert sent(bench.step(PeerDown("s1"))) == []  # no server is up: no attempts at network speed
    assert sent(bench.step(PeerUp("s1"))) == []
    assert sent(bench.step(PeerUp("s0"))) == [("s0", shown)]  # it has forgotten us
    bench.receive("p", MeshView(S, ("q", "r", "t"), 5, False))
    bench.receive("s1", MeshNotify(S, 9))
    bench.later(10 * MS)
    bench.receive("s0", MeshNotify(S, 12))
    bench.later(500 * MS)
    moved = sent(bench.step(TimerFired("deadline")))
    assert [m for m in moved if isinstance(m[1], MeshView)] == [
        ("s1", MeshView(S, ("p", "q", "r", "t"), 5, False))
    ]


def test_a_client_whose_first_server_is_down_asks_the_next_one() -> None:
    bench = Bench()
    assert asked(bench.step(PeerDown("s0"))) == [("s1", request(1, 0))]
    assert asked(bench.step(PeerDown("s1"))) == [("s0", request(1, 0))]


def test_a_server_that_is_behind_is_left_for_the_next_one() -> None:
    bench = Bench().at(5)
    bench.receive("p", MeshNotify(S, 9))
    bench.later(20 * MS).step(TimerFired("deadline"))
    done = bench.receive("s0", MeshEvents(S, 5, 9, 6, True, (batch(5, 6),)))
    assert delivered(done) == [(5, 6)]
    assert asked(done) == [("s1", request(6, 0))]
    done = bench.receive("s1", MeshEvents(S, 6, 6, 6, True, ()))
    assert asked(done) == []  # no server has more: no endless requests
    assert bench.feed.next == 6


def test_a_large_rest_is_requested_in_parts() -> None:
    bench = Bench()
    done = bench.receive("s0", MeshEvents(S, 1, 10, 100, True, (batch(1, 10),)))
    assert sent(done) == [("s0", request(10, 100))]
    done = bench.receive("s0", MeshEvents(S, 10, 60, 100, True, (batch(10, 60),)))
    assert sent(done) == [("s0", request(60, 100))]
    assert bench.receive("p", MeshNotify(S, 100)) == []


def test_r12_polls_alternate_between_servers_and_become_rare() -> None:
    bench = Bench().at(5)
    asked = []
    for tick in range(120):
        for peer, message in sent(bench.later(500 * MS).step(TimerFired("silence"))):
            asked.append((tick, peer))
            assert message == request(5, 0)
            bench.receive(peer, MeshEvents(S, 5, 5, 5, True, ()))
    gaps = [b[0] - a[0] for a, b in itertools.pairwise(asked)]
    assert {peer for _, peer in asked} == {"s0", "s1"}
    assert gaps == sorted(gaps)
    assert max(gaps) <= 17  # 8 s and a tick
    bench.receive("p", MeshNotify(S, 6))
    bench.receive("p", MeshEvents(S, 5, 6, 6, True, (batch(5, 6),)))
    bench.later(1 * SECOND)
    assert len(sent(bench.step(TimerFired("silence")))) == 1  # after news it polls often again


def test_silence_finds_a_server_that_knows_more_and_stays_there() -> None:
    bench = Bench().at(5)
    bench.later(2 * SECOND)
    assert sent(bench.step(TimerFired("silence"))) == [("s1", request(5, 0))]
    bench.receive("s1", MeshEvents(S, 5, 9, 9, True, (batch(5, 9),)))
    assert bench.client.server == "s1"


# ---------------------------------------------------------------- bounds


def test_a_full_early_buffer_stops_requests_until_it_has_space() -> None:
    bench = Bench(early_bytes_max=10 * SIZE).at(5)
    bench.receive("a", MeshNotify(S, 10))
    bench.receive("b", MeshNotify(S, 20))
    bench.receive(
        "b", MeshEvents(S, 10, 20, 20, True, tuple(batch(n, n + 1) for n in range(10, 20)))
    )
    assert bench.receive("c", MeshNotify(S, 40)) == []  # the buffer is full
    assert bench.receive("d", MeshNotify(S, 30)) == []  # and the larger end is remembered
    done = bench.receive("a", MeshEvents(S, 5, 10, 40, True, (batch(5, 10),)))
    assert delivered(done)[-1] == (19, 20)
    assert sent(done) == [("c", request(20, 40))]


def test_g11_batches_dropped_from_a_full_buffer_are_requested_from_the_server() -> None:
    bench = Bench(early_bytes_max=10 * SIZE).at(5)
    bench.receive("a", MeshNotify(S, 10))
    bench.receive("b", MeshNotify(S, 30))
    parts = tuple(batch(n, n + 2) for n in range(10, 30, 2))
    bench.receive("b", MeshEvents(S, 10, 30, 30, True, parts))
    feed = bench.feed
    assert (feed.early_bytes, feed.next) == (10 * SIZE, 20)
    done = bench.receive("a", MeshEvents(S, 5, 10, 30, True, (batch(5, 10),)))
    assert delivered(done)[-1] == (18, 20)
    assert sent(done) == [("s0", request(20, 30))]  # at once, and not from a peer again
    # With new events after them: the dropped ones from the server, the new ones from the peer.
    bench = Bench(early_bytes_max=10 * SIZE).at(5)
    bench.receive("a", MeshNotify(S, 10))
    bench.receive("b", MeshNotify(S, 30))
    bench.receive("b", MeshEvents(S, 10, 30, 30, True, parts))
    bench.receive("c", MeshNotify(S, 35))
    done = bench.receive("a", MeshEvents(S, 5, 10, 30, True, (batch(5, 10),)))
    assert sent(done) == [("s0", request(20, 30)), ("c", request(30, 35))]


def test_g11_a_full_buffer_causes_one_request_only() -> None:
    """A dropped batch leaves a little space; it must not cause requests for all known positions."""
    bench = Bench(early_bytes_max=10 * SIZE + 1).at(5)
    bench.receive("a", MeshNotify(S, 10))
    asked = 0
    for n in range(30, 60):
        for peer, message in sent(bench.receive("b", MeshNotify(S, n))):
            asked += 1
            parts = tuple(batch(k, k + 1) for k in range(message.lo, message.hi))
            bench.receive(peer, MeshEvents(S, message.lo, message.hi, n, True, parts))
    assert asked == 1


def test_open_requests_are_bounded() -> None:
    bench = Bench(asks_max=3).at(5)
    for n in range(6, 12):
        bench.receive("p", MeshNotify(S, n))
    assert [(a.lo, a.hi) for a in bench.feed.asks] == [(5, 6), (6, 7), (7, 8)]
    for n in (6, 7, 8):
        done = bench.receive("p", MeshEvents(S, n - 1, n, n, True, (batch(n - 1, n),)))
    assert sent(done)[-1] == ("p", request(8, 11))
    # Requests for holes count as well: [11, 40) arrives with every second position missing.
    bench.receive("p", MeshEvents(S, 8, 11, 40, True, (batch(8, 11),)))
    bench.receive("p", MeshNotify(S, 40))
    odd = tuple(batch(n, n + 1) for n in range(12, 40, 2))
    done = bench.receive("p", MeshEvents(S, 11, 40, 40, True, odd))
    assert len(sent(done)) == len(bench.feed.asks) == 3
    while bench.feed.asks:
        ask = bench.feed.asks[0]
        answer = MeshEvents(S, ask.lo, ask.hi, 40, True, (batch(ask.lo, ask.hi),))
        bench.receive(ask.peer, answer)
        assert len(bench.feed.asks) <= 3
    assert bench.feed.position == 40


def test_events_of_another_stream_are_dropped_and_requested_from_the_server() -> None:
    bench = Bench().at(5)
    bench.receive("p", MeshNotify(S, 9))
    done = bench.receive("p", MeshEvents(S, 5, 9, 9, True, (batch(5, 9, OTHER),)))
    assert delivered(done) == []
    assert sent(done) == [("s0", request(5, 9))]
    assert bench.client.counters["mesh.bad-events"] == 1


def test_leaning_peers_are_bounded() -> None:
    bench = Bench(mesh={"view_max": 4}).at(5)
    for n in range(100):
        bench.receive(f"p{n}", MeshLean(S, True))
    assert len(bench.feed.leaning) == 8
    bench.receive("p3", MeshLean(S, False))
    assert len(bench.feed.leaning) == 7


def test_state_about_other_clients_is_bounded() -> None:
    bench = Bench(mesh={"view_max": 4}, sessions_max=10).at(5)
    for n in range(200):
        bench.step(PeerUp(f"p{n}"))
        bench.receive(f"p{n}", MeshNotify(S, 5))
        bench.receive(f"p{n}", MeshView(S, tuple(f"p{k}" for k in range(n)), 5, False))
    closed = [e.peer for e in bench.step(TimerFired("gossip")) if type(e).__name__ == "Close"]
    for peer in closed:
        bench.step(PeerDown(peer))
    feed = bench.feed
    assert len(feed.known) <= 4 * 4
    assert len(feed.view.peers) == 4
    assert len(bench.client.up) <= 4 + 4 + 8
    assert not set(closed) & {*feed.view.peers, *feed.active}
