"""Nakcast, step by step: the effects of single inputs at the server and the reader."""

from typing import Any

import pytest

from surecast.columns.batch import COLLECTED, Batch
from surecast.core.endpoint import Follow, Lost, Unfollow
from surecast.core.roles import Deployment
from surecast.core.streams import (
    DIRECTORY,
    Create,
    Handed,
    Refuse,
    Resume,
    StreamSpec,
    Suspend,
    TakenBack,
)
from surecast.core.types import (
    MS,
    SECOND,
    AtEndOfPass,
    Command,
    Congested,
    Deliver,
    Emit,
    EndOfPass,
    PeerDown,
    Received,
    Send,
    SetTimer,
    Start,
    TimerFired,
    Writable,
)
from surecast.errors import ConfigError, UsageError
from surecast.protocols.nakcast.config import NakcastConfig, ReaderConfig
from surecast.protocols.nakcast.delivery import Nakcast
from surecast.protocols.nakcast.messages import Beacon, Data, Gone, Join, Leave, Nak
from surecast.protocols.nakcast.reader import Reader
from surecast.protocols.nakcast.role import NakcastObserver, NakcastRole
from surecast.protocols.streams.messages import CreateStream
from tests.protocols.nakcast.stage import OTHER, STREAM, Commit, Log, Say, role, server


class Served:
    """A server with a log of `batches` batches of two events each."""

    def __init__(self, batches: int = 0, **options: Any) -> None:
        self.log = Log()
        self.machine = server(self.log, **options)
        self.now_ns = 0
        self.step(Start(0, 1))
        for number in range(batches):
            self.log.commit([b"%d" % number, b"x" * 10])

    @property
    def layer(self) -> Any:
        return self.machine.layers["nakcast"]

    def step(self, inp: Any, after_ns: int = 0) -> list[Any]:
        self.now_ns += after_ns
        effects: list[Any] = self.machine.step(self.now_ns, inp)
        return effects

    def gets(self, peer: str, message: Any) -> list[tuple[str, Any]]:
        return datagrams(self.step(Received(peer, message)))

    def commit(self, *values: bytes) -> list[Any]:
        return self.step(Command("streams", Commit(list(values))))


def datagrams(effects: list[Any]) -> list[tuple[str, Any]]:
    sends = [effect for effect in effects if type(effect) is Send]
    assert all(not effect.reliable for effect in sends)
    return [(effect.peer, effect.message) for effect in sends]


def answers(sent: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The answer to a NAK, without the beacon that ends it."""
    *found, (_, last) = sent
    assert type(last) is Beacon
    return found


def spans(sent: list[tuple[str, Any]]) -> list[tuple[int, int]]:
    return [(message.batch.lo, message.batch.hi) for _, message in sent]


def placed(lo: int, count: int = 1, size: int = 1) -> Batch:
    return Batch.of(STREAM, [b"v" * size] * count).sequenced(lo, 0, 1)


# ---------------------------------------------------------------- the server


def test_committed_events_are_sent_once_to_each_reader() -> None:
    served = Served(3)
    for peer in ("a", "b"):
        assert served.gets(peer, Join(STREAM)) == [(peer, Beacon(STREAM, 7))]
    sent = datagrams(served.commit(b"one", b"two"))
    assert [peer for peer, _ in sent] == ["a", "b"]
    assert spans(sent) == [(7, 9), (7, 9)]
    assert sent[0][1] is sent[1][1]  # a driver encodes it once
    assert spans(datagrams(served.commit(b"three"))) == [(9, 10), (9, 10)]


def test_streams_of_another_delivery_are_not_served() -> None:
    served = Served(1)
    assert served.gets("a", Join(OTHER)) == []
    assert served.gets("a", Join(bytes(16))) == []
    assert served.layer.followers == 0
    assert served.layer.counters["nakcast.unknown-stream"] == 2


def test_readers_that_cannot_read_the_stream_s_frames_are_sent_nothing() -> None:
    served = Served(1)
    served.log.cannot_read = ("old",)
    assert served.gets("old", Join(STREAM)) == []
    assert served.gets("new", Join(STREAM)) != []
    assert [peer for peer, _ in datagrams(served.commit(b"one"))] == ["new"]
    assert served.layer.counters["nakcast.reader-too-old"] == 1


def test_naks_are_answered_from_the_log_and_only_to_followers() -> None:
    served = Served(10, answers_max=4)
    assert served.gets("a", Nak(STREAM, ((1, 5),))) == []
    served.gets("a", Join(STREAM))

    def answer(*holes: tuple[int, int]) -> list[tuple[int, int]]:
        sent = answers(served.gets("a", Nak(STREAM, holes)))
        assert {peer for peer, _ in sent} <= {"a"}
        return spans(sent)

    assert served.gets("a", Nak(STREAM, (), 7)) == [("a", Beacon(STREAM, 21, 7))]
    assert answer((3, 5), (9, 11)) == [(3, 5), (9, 11)]
    assert answer((4, 6)) == [(4, 5), (5, 6)]
    assert answer((1, 21)) == [(1, 3), (3, 5), (5, 7), (7, 9)]  # no more than `answers_max`
    assert answer((-5, 10**30)) == [(1, 3), (3, 5), (5, 7), (7, 9)]
    assert answer((21, 99), (7, 7), (9, 2)) == []
    assert answer(*[(1, 2)] * 1000) == [(1, 2)] * 4


def test_bytes_in_answer_to_one_nak_are_bounded() -> None:
    served = Served(100, answer_bytes_max=1)
    served.gets("a", Join(STREAM))
    assert len(answers(served.gets("a", Nak(STREAM, ((1, 201),))))) == 1
    assert served.log.reads == 1


def test_positions_older_than_repair_max_are_gone_and_not_read() -> None:
    served = Served(10, repair_max=6, answers_max=2)
    served.gets("a", Join(STREAM))
    gone = answers(served.gets("a", Nak(STREAM, ((1, 5), (6, 9), (7, 10)))))
    assert gone == [("a", Gone(STREAM, 1, 5, ()))]  # one for each NAK
    assert served.log.reads == 0
    (_, gone), *sent = answers(served.gets("a", Nak(STREAM, ((3, 17),))))
    assert gone == Gone(STREAM, 3, 15, ())
    assert spans(sent) == [(15, 17)]
    served.log.void = [(2, 4), (5, 6), (8, 9)]
    ((_, gone),) = answers(served.gets("a", Nak(STREAM, ((1, 15),))))
    assert (gone.lo, gone.hi) == (1, 8)  # the reader requests the rest again
    assert [(void.lo, void.hi) for void in gone.voids] == [(2, 4), (5, 6)]
    assert served.layer.counters["nakcast.positions-lost"] == 4 + 12 + 4


def test_large_batches_are_split_and_a_large_event_is_sent_over_the_session() -> None:
    served = Served(0, datagram_bytes_max=512)
    served.gets("a", Join(STREAM))
    sent = datagrams(served.commit(*[b"x" * 100] * 8))
    assert len(sent) > 1
    assert next(lo for lo, _ in spans(sent)) == 1
    assert spans(sent)[-1][1] == 9
    assert all(message.batch.nbytes <= 512 for _, message in sent)
    (large,) = served.commit(b"y" * 600)
    assert large.reliable
    served.step(Congested("a"))
    assert served.commit(b"y" * 600) == []
    served.step(Writable("a"))
    assert len(served.commit(b"y" * 600)) == 1


def test_beacons_come_soon_after_news_and_seldom_without() -> None:
    served = Served(1, beacon_ns=20 * MS, idle_beacon_ns=80 * MS)
    joined = served.step(Received("a", Join(STREAM)))
    assert SetTimer(("nakcast", "beacon"), 20 * MS) in joined

    def beacons(ticks: int) -> str:
        found = ""
        for _ in range(ticks):
            sent = datagrams(served.step(TimerFired(("nakcast", "beacon")), after_ns=20 * MS))
            found += "B" if sent else "."
        return found

    assert beacons(12) == "BB.B...B...B"
    served.commit(b"news")
    assert beacons(2) == "BB"


def test_a_reader_that_left_is_sent_nothing_and_no_timer_runs_without_readers() -> None:
    served = Served(1)
    for peer in ("a", "b"):
        served.gets(peer, Join(STREAM))
    served.gets("a", Leave(STREAM))
    served.gets("a", Leave(STREAM))
    assert [peer for peer, _ in datagrams(served.commit(b"v"))] == ["b"]
    served.step(PeerDown("b"))
    assert (served.layer.followers, served.layer.groups) == (0, {})
    assert not served.log.attending
    assert served.step(TimerFired(("nakcast", "beacon")), after_ns=SECOND) == []


def test_followers_are_bounded() -> None:
    served = Served(1, followers_max=2)
    for peer in ("a", "b", "c"):
        served.gets(peer, Join(STREAM))
    assert list(served.layer.groups[STREAM].followers) == ["a", "b"]
    assert served.layer.counters["nakcast.join-refused"] == 1
    assert served.gets("a", Join(STREAM)) == [
        ("a", Beacon(STREAM, 3))
    ]  # a repeated join is accepted


def test_reads_in_one_pass_are_bounded() -> None:
    served = Served(1, reads_max=2)
    served.gets("a", Join(STREAM))
    for _ in range(19):
        served.log.commit([b"v"])
    first = served.commit(b"v")
    assert spans(datagrams(first))[-1][1] == 3 + 8  # four batches a read
    assert AtEndOfPass(("nakcast", "send")) in first
    rest = served.step(EndOfPass(("nakcast", "send")))
    assert spans(datagrams(rest))[-1][1] == 3 + 16
    served.gets("a", Leave(STREAM))
    assert served.step(EndOfPass(("nakcast", "send"))) == []


def test_a_stream_is_created_only_in_the_region_that_owns_its_name() -> None:
    served = Served(owners={"": "east", "west": "west"})
    for name, kind in (("a.b", Create), ("west.a", Refuse)):
        message = CreateStream(name, StreamSpec(delivery="nakcast"))
        served.step(Command("streams", Say(Handed("create", "c", message))))
        assert type(served.log.commands[-1]) is kind
    assert served.log.commands[-1].why == "other-region"


def test_streams_are_suspended_while_the_chain_rebuilds_its_logs() -> None:
    served = Served()
    served.step(Command("streams", Say(role(clean=False))))
    assert served.log.commands == [Suspend(STREAM, "recovering")]
    served.step(Command("streams", Say(role(clean=True))))
    assert served.log.commands[1:] == [Resume(STREAM)]
    served.step(Command("streams", Say(role(head=False, clean=False))))
    assert len(served.log.commands) == 2


def test_positions_that_were_truncated_are_sent_again() -> None:
    served = Served(5)
    served.gets("a", Join(STREAM))
    served.step(Command("streams", Say(TakenBack(STREAM, 3))))
    served.log.batches, served.log.end = served.log.batches[:1], 3
    assert spans(datagrams(served.commit(b"other"))) == [(3, 4)]
    served.step(Command("streams", Say(TakenBack(DIRECTORY, 1))))
    assert (served.layer.streams, served.layer.groups, served.layer.followers) == ({}, {}, 0)


def test_status_and_metrics_report_the_servers_state() -> None:
    served = Served(10, repair_max=6)
    layers, observer = served.machine.layers, NakcastObserver()
    assert list(observer.alarms(layers)) == []
    served.gets("a", Join(STREAM))
    served.gets("a", Nak(STREAM, ((1, 5),)))
    assert observer.status(layers) == {
        "streams": 1, "followers": 1, "sent_again": 0, "positions_lost": 4,
    }  # fmt: skip
    assert observer.stream(layers, STREAM) == {"subscribers": 1}
    assert [(m.name, m.value) for m in observer.metrics(layers)] == [
        ("nakcast_followers", 1), ("nakcast_positions_lost", 4),
    ]  # fmt: skip


def test_alarms_name_the_stream_and_end_after_alarm_ns() -> None:
    served = Served(10, repair_max=6, followers_max=1)
    layers, observer = served.machine.layers, NakcastObserver()
    served.gets("a", Join(STREAM))
    served.gets("a", Nak(STREAM, ((1, 5),)))  # it has just joined, at the earliest position
    assert list(observer.alarms(layers)) == []
    out = served.step(Received("a", Nak(STREAM, ((5, 9),))))
    assert SetTimer(("nakcast", "calm"), 60 * SECOND) in out
    served.gets("b", Join(STREAM))
    assert list(observer.alarms(layers)) == [
        ("readers-losing", "s, 4 positions"), ("readers-refused", "nakcast, 1 joins refused"),
    ]  # fmt: skip
    served.step(TimerFired(("nakcast", "calm")), after_ns=60 * SECOND)
    assert list(observer.alarms(layers)) == []
    assert set(observer.codes) == {"readers-losing", "readers-refused"}


# ---------------------------------------------------------------- the reader


def reader(**options: Any) -> Reader:
    made = Reader(ReaderConfig(("p", "q"), **options))
    made.step(0, Start(0, 1))
    made.step(0, Follow(STREAM, 1))
    return made


def test_a_reader_delivers_in_order_what_comes_out_of_order() -> None:
    made = reader()
    one, two, three = placed(1, 2), placed(3), placed(4)
    made.step(0, Received("p", Data(two)))
    made.step(0, Received("p", Data(three)))
    assert made.step(0, Received("p", Data(one))) == [Deliver(STREAM, (one, two, three))]
    assert made.step(0, Received("p", Data(two))) == []


def test_overlapping_batches_are_cut() -> None:
    """After a compaction the same positions arrive in different batches."""
    made = reader()
    made.step(0, Received("p", Data(placed(3, 4))))
    made.step(0, Received("p", Data(placed(5, 4))))
    (delivered,) = made.step(0, Received("p", Data(placed(1, 3))))
    assert [(b.lo, b.hi) for b in delivered.batches] == [(1, 4), (4, 7), (7, 9)]


def naks(effects: list[Any]) -> list[tuple[tuple[int, int], ...]]:
    return [m.holes for _, m in datagrams(effects) if type(m) is Nak]


def test_a_reader_sends_naks_for_all_holes_until_they_are_filled() -> None:
    made = reader(nak_ns=20 * MS)
    made.step(0, Received("p", Data(placed(5, 2))))
    made.step(0, Received("p", Data(placed(9))))
    holes = ((1, 5), (7, 9), (10, 12))
    assert naks(made.step(0, Received("p", Beacon(STREAM, 12)))) == [holes]
    assert naks(made.step(5 * MS, Received("p", Beacon(STREAM, 12)))) == []  # a NAK is open
    again = made.step(20 * MS, TimerFired("nak"))  # no answer came
    assert naks(again) == [holes]
    assert again[-1] == SetTimer("nak", 60 * MS)  # later each time
    made.step(21 * MS, Received("p", Data(placed(1, 11))))
    assert naks(made.step(22 * MS, Received("p", Beacon(STREAM, 12, 2)))) == []
    assert made.step(60 * MS, TimerFired("nak")) == []


def test_the_delay_between_naks_follows_the_time_that_answers_take() -> None:
    made = reader(nak_ns=20 * MS)
    assert naks(made.step(0, Received("p", Beacon(STREAM, 9)))) == [((1, 9),)]
    made.step(300 * MS, Received("p", Data(placed(1, 2))))
    made.step(300 * MS, Received("p", Beacon(STREAM, 9, 7)))  # of another NAK
    after = made.step(300 * MS, Received("p", Beacon(STREAM, 9, 1)))
    assert naks(after) == [((3, 9),)]
    assert made.wait_ns == 600 * MS
    made.step(400 * MS, TimerFired("nak"))
    assert made.step(899 * MS, TimerFired("nak"))[-1] == SetTimer("nak", 1499 * MS)
    assert naks(made.step(901 * MS, TimerFired("nak"))) == [((3, 9),)]
    assert made.wait_ns == 1 * SECOND  # nak_ns_max


def test_open_naks_are_limited_to_asks_max_streams() -> None:
    made = reader(asks_max=2)
    streams = [STREAM, *(bytes([n]) * 16 for n in range(4))]
    for stream in streams:
        made.step(0, Follow(stream, 1))
    asked = [naks(made.step(0, Received("p", Beacon(stream, 5)))) for stream in streams]
    assert list(map(len, asked)) == [1, 1, 0, 0, 0]
    out = made.step(1, Received("p", Beacon(streams[0], 5, 1)))
    assert [m.stream for _, m in datagrams(out)] == [streams[2]]  # each in its turn
    made.step(1, Unfollow(streams[2]))
    out = made.step(2, Received("p", Beacon(streams[1], 5, 1)))
    assert [m.stream for _, m in datagrams(out)] == [streams[3], streams[4]]


def test_a_nak_for_a_hole_before_an_early_batch_waits_for_nak_ns() -> None:
    made = reader(nak_ns=20 * MS)
    assert made.step(0, Received("p", Data(placed(5)))) == [SetTimer("nak", 20 * MS)]
    assert naks(made.step(20 * MS, TimerFired("nak"))) == [((1, 5),)]


def test_a_reader_holds_no_more_than_its_window_and_bytes() -> None:
    made = reader(window=2)
    for lo in (3, 5, 7, 9):
        made.step(0, Received("p", Data(placed(lo))))
    assert sorted(made.streams[STREAM].held) == [3, 5]
    made = reader(held_bytes_max=1)
    for lo in (3, 5):
        made.step(0, Received("p", Data(placed(lo))))
    assert sorted(made.streams[STREAM].held) == [3]


def test_a_loss_is_reported_in_its_place() -> None:
    made = reader()
    made.step(0, Received("p", Data(placed(3, 2))))
    void = Batch.void(STREAM, 6, 8, COLLECTED)
    effects = made.step(0, Received("p", Gone(STREAM, 1, 10, (void,))))
    shown = [
        ("lost", e.event.lo, e.event.hi) if type(e) is Emit
        else ("got", e.batches[0].lo, e.batches[-1].hi)
        for e in effects
    ]  # fmt: skip
    assert shown == [
        ("lost", 1, 3), ("got", 3, 5), ("lost", 5, 6), ("got", 6, 8), ("lost", 8, 10),
    ]  # fmt: skip
    assert all(type(e.event) is Lost for e in effects if type(e) is Emit)


@pytest.mark.parametrize(("lo", "hi"), [(2, 5), (1, 1), (5, 3)])
def test_a_gone_that_is_not_about_the_next_position_is_ignored(lo: int, hi: int) -> None:
    made = reader()
    assert made.step(0, Received("p", Gone(STREAM, lo, hi, ()))) == []


def test_wrong_voids_in_a_gone_are_ignored() -> None:
    made = reader()
    wrong = (Batch.void(OTHER, 1, 2, COLLECTED), placed(1), Batch.void(STREAM, 2, 9, COLLECTED))
    effects = made.step(0, Received("p", Gone(STREAM, 1, 4, wrong)))
    assert [(e.event.lo, e.event.hi) for e in effects] == [(1, 4)]


def test_other_streams_and_other_servers_are_ignored() -> None:
    made = reader()
    assert made.step(0, Received("x", Data(placed(1)))) == []
    assert made.step(0, Received("q", Beacon(STREAM, 5))) == []
    assert made.step(0, Received("p", Beacon(OTHER, 5))) == []
    made.step(0, Unfollow(STREAM))
    assert made.step(0, Received("p", Data(placed(1)))) == []


def joined(effects: list[Any]) -> list[tuple[str, Any]]:
    return [(e.peer, e.message) for e in effects if type(e) is Send and e.reliable]


def test_a_reader_moves_to_the_next_server_when_its_server_is_down_or_silent() -> None:
    made = reader(idle_ns=SECOND)
    made.step(0, Received("p", Data(placed(1, 3))))
    assert joined(made.step(MS, PeerDown("p"))) == [("p", Leave(STREAM)), ("q", Join(STREAM))]
    assert made.step(MS, PeerDown("p")) == []
    silent = made.step(2 * SECOND, TimerFired("idle"))
    assert [peer for peer, _ in joined(silent)] == ["q", "p"]
    assert made.streams[STREAM].next == 4


def test_a_reader_leaves_a_server_that_sends_nothing_new() -> None:
    """The server may have been dropped from its chain without knowing it; its beacons continue."""
    made = reader(idle_ns=SECOND, stale_ns=5 * SECOND)
    made.step(0, Received("p", Data(placed(1, 3))))
    left = []
    for second in range(1, 8):
        made.step(second * SECOND - 1, Received(made._server, Beacon(STREAM, 4)))
        left.append(made.target)
        made.step(second * SECOND, TimerFired("idle"))
    assert left == [0, 0, 0, 0, 0, 1, 1]
    alone = Reader(ReaderConfig(("p",), idle_ns=SECOND))
    alone.step(0, Follow(STREAM, 1))
    alone.step(SECOND, Received("p", Beacon(STREAM, 1)))
    assert joined(alone.step(SECOND + 1, TimerFired("idle"))) == []


def test_a_reader_leaves_a_server_that_lacks_one_of_its_streams() -> None:
    made = reader(idle_ns=SECOND)
    made.step(0, Follow(OTHER, 1))
    made.step(900 * MS, Received("p", Beacon(STREAM, 1)))
    moved = joined(made.step(SECOND, TimerFired("idle")))
    assert [peer for peer, m in moved if type(m) is Join] == ["q", "q"]
    alone = Reader(ReaderConfig(("p",), idle_ns=SECOND))
    alone.step(0, Follow(OTHER, 1))
    assert joined(alone.step(SECOND, TimerFired("idle"))) == [("p", Join(OTHER))]


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    "wrong",
    [
        {"repair_max": 0}, {"beacon_ns": 0}, {"answers_max": 0}, {"answer_bytes_max": 0},
        {"reads_max": 0}, {"followers_max": 0}, {"datagram_bytes_max": 100},
        {"datagram_bytes_max": 65_000}, {"idle_beacon_ns": 1}, {"idle_beacon_ns": 2 * SECOND},
        {"alarm_ns": 0},
        {"answers_max": 257},
        {"answer_bytes_max": 2 << 20},
        {"beacon_ns": 1},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_values_in_a_servers_config_are_refused_by_name(wrong: dict[str, Any]) -> None:
    NakcastConfig("east").validate()
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        NakcastConfig("east", **wrong).validate()


@pytest.mark.parametrize(
    "key", ["window", "held_bytes_max", "asks_max", "nak_ns", "nak_ns_max", "idle_ns", "stale_ns"]
)
def test_wrong_values_in_a_readers_config_are_refused_by_name(key: str) -> None:
    ReaderConfig(("p",)).validate()
    with pytest.raises(ConfigError, match=key):
        ReaderConfig(("p",), **{key: 0}).validate()
    with pytest.raises(ConfigError, match="servers"):
        ReaderConfig(()).validate()


def test_the_role_follows_from_the_deployment() -> None:
    regions = {"east": ("east-1",), "west": ("west-1",)}
    deployment = Deployment("east", "east-1", regions, "east/witness", {"": "east"})
    derived = NakcastRole().derived(deployment)
    assert NakcastConfig(**derived) == NakcastConfig("east", {"": "east"})


def test_a_stream_takes_no_options() -> None:
    Nakcast().check(StreamSpec(delivery="nakcast"))
    with pytest.raises(UsageError, match="takes no options"):
        Nakcast().check(StreamSpec(delivery="nakcast", options=(("fast", "yes"),)))
