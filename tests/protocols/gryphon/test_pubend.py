"""The broker at a replica of the owner, over a log that the test provides."""

from collections.abc import Mapping
from random import Random
from typing import Any

from surecast.columns.batch import Batch
from surecast.core.replicated import RoleChanged
from surecast.core.streams import (
    DIRECTORY,
    Adopt,
    Await,
    Create,
    Forget,
    Handed,
    Load,
    PieceLoaded,
    Refuse,
    Settle,
    StreamAdded,
    StreamsMoved,
    TakenBack,
)
from surecast.core.types import (
    Congested,
    EndOfPass,
    FromBelow,
    PassDown,
    PeerDown,
    Received,
    Send,
    TimerFired,
    Writable,
)
from surecast.protocols.gryphon.config import GryphonConfig
from surecast.protocols.gryphon.messages import (
    Ack,
    AckExpected,
    Attach,
    Attached,
    Detach,
    Fetch,
    Fetched,
    Find,
    Found,
    Join,
    Knowledge,
    Matched,
    Nack,
    Reach,
    StreamsAre,
)
from surecast.protocols.gryphon.pubend import ENDS_MAX, FETCH_BYTES_MAX, FETCHES_A_PASS, Pubend
from surecast.protocols.gryphon.role import NAMED_MAX, GryphonObserver
from surecast.protocols.streams.messages import CreateStream, StreamOpened
from tests.protocols.gryphon.made import INFO, STREAM, batch, table

X = "key == 'x'"
CELLS = {"sb": ("s",), "tb": ("t",)}
REGIONS = {"east": ("p", "p2"), "west": ("w", "w2")}


class Log:
    """The calls of the stream service that a pubend makes, for one stream."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.lost: tuple[int, int] = (0, 0)
        self.cold: set[int] = set()  # positions that must be loaded first
        self.streams: Mapping[bytes, Any] = {}

    def shown_end(self, _stream: bytes) -> int:
        return self.batches[-1].hi if self.batches else 1

    readable_end = shown_end

    def lost_at(self, _stream: bytes, seq: int) -> tuple[int, str] | None:
        return (self.lost[1], "gone") if self.lost[0] <= seq < self.lost[1] else None

    def readable(self, _stream: bytes, lo: int, hi: int = 0) -> list[Batch]:
        hi = hi or self.shown_end(b"")
        if lo < self.lost[0]:
            hi = min(hi, self.lost[0])
        found = [one for one in self.batches if one.lo < hi and one.hi > lo]
        return [found[0].slice(lo, hi)] if found else []

    def at_hand(self, stream: bytes, lo: int, hi: int = 0) -> list[Batch] | None:
        return None if lo in self.cold else self.readable(stream, lo, hi)

    def locate(self, stream: bytes, _time_ns: int) -> tuple[int, str]:
        return self.shown_end(stream), ""

    def is_listed(self, _stream: bytes) -> bool:
        return False


class Owner:
    def __init__(self, region: str = "east", **options: Any) -> None:
        self.log = Log()
        name = REGIONS[region][0]
        config = GryphonConfig(name, region=region, regions=REGIONS, cells=CELLS, **options)
        self.pubend = Pubend(config, self.log, Random(1))  # type: ignore[arg-type]
        self.now_ns = 0
        self.out: list[Any] = []
        self.below(RoleChanged(1, REGIONS[region], head=True, tail=False, clean=True))
        if region == "east":
            self.below(StreamAdded(INFO, 1, True))

    def give(self, inp: Any, after_ns: int = 0) -> None:
        self.now_ns += after_ns
        self.out += self.pubend.step(self.now_ns, inp)
        while passes := [one for one in self.out if type(one).__name__ == "AtEndOfPass"]:
            self.out = [one for one in self.out if type(one).__name__ != "AtEndOfPass"]
            for one in passes:
                self.out += self.pubend.step(self.now_ns, EndOfPass(one.key))

    def below(self, event: Any) -> None:
        self.give(FromBelow(event))

    def get(self, peer: str, message: Any) -> None:
        self.give(Received(peer, message))

    def append(self, keys: list[bytes | None]) -> None:
        self.log.batches.append(batch(self.log.shown_end(b""), keys))
        self.below(StreamsMoved((STREAM,)))

    def sent(self, kind: type[Any], to: str = "") -> list[Any]:
        sends = [one for one in self.out if isinstance(one, Send) and to in ("", one.peer)]
        return [one.message for one in sends if isinstance(one.message, kind)]

    def commands(self, kind: type[Any]) -> list[Any]:
        given = [one.command for one in self.out if isinstance(one, PassDown)]
        return [one for one in given if isinstance(one, kind)]


def test_a_broker_below_is_sent_new_events_and_a_subscriber_those_that_pass() -> None:
    made = Owner()
    made.append([b"x"])
    made.get("s", Attach(STREAM, 0, (table("s", X),)))
    made.get("c", Join(STREAM, 1, 0, X))
    assert made.sent(Attached, "s") == [Attached(STREAM, 2, "")]
    made.append([b"y", b"x"])
    assert [(one.lo, one.hi) for one in made.sent(Knowledge, "s")] == [(2, 4)]
    assert [one.lo for one in made.sent(Matched, "c")[-1].batches] == [2]
    assert made.sent(Matched, "c")[-1].batches[0].seqs().tolist() == [3]


def test_a_subscriber_from_the_first_position_reads_the_log() -> None:
    made = Owner()
    made.append([b"x", b"y", b"x"])
    made.get("c", Join(STREAM, 1, 1, X))
    (told,) = made.sent(Matched, "c")
    assert (told.lo, told.hi, told.batches[0].seqs().tolist()) == (1, 4, [1, 3])


def test_b8_positions_far_below_the_end_are_not_sent_again() -> None:
    made = Owner(again_max=5)
    for _ in range(10):
        made.append([b"x"])
    made.get("s", Attach(STREAM, 3, (table("s", X),)))
    first, *rest = made.sent(Knowledge, "s")
    assert (first.lo, first.hi, first.batches, first.stamps) == (3, 6, (), ())
    assert [one.lo for one in rest] == [6, 7, 8, 9, 10]
    made.get("s", Nack(STREAM, ((1, 8),)))
    first, *rest = made.sent(Knowledge, "s")[-3:]
    assert (first.lo, first.hi, first.stamps) == (1, 6, ())
    assert [(one.lo, one.first) for one in rest] == [(6, False), (7, False)]


def test_b2_acknowledgements_delete_nothing() -> None:
    made = Owner()
    made.append([b"x"] * 5)
    made.get("s", Attach(STREAM, 1, (table("s", X),)))
    made.get("s", Ack(STREAM, 6))
    made.give(TimerFired("acks"))
    assert made.pubend.lines[STREAM].final == 6
    made.get("c", Join(STREAM, 1, 1, X))
    assert sum(one.rows for told in made.sent(Matched, "c") for one in told.batches) == 5


def test_g9_what_is_not_acknowledged_in_time_is_expected_again_and_again() -> None:
    made = Owner(expected_ns=1_000_000_000, expected_ns_max=4_000_000_000)
    made.get("s", Attach(STREAM, 1, (table("s", X),)))
    made.append([b"x"] * 5)
    for _ in range(4):
        made.give(TimerFired("tick"), after_ns=250_000_000)
    assert made.sent(AckExpected) == []
    for _ in range(80):
        made.give(TimerFired("tick"), after_ns=250_000_000)
    assert 4 <= len(made.sent(AckExpected, "s")) <= 8, "less and less often"
    assert {one.end for one in made.sent(AckExpected, "s")} == {6}
    made.get("s", Ack(STREAM, 6))
    made.out.clear()
    for _ in range(80):
        made.give(TimerFired("tick"), after_ns=250_000_000)
    assert made.sent(AckExpected) == []
    for _ in range(2 * ENDS_MAX):
        made.append([b"x"])
        made.give(TimerFired("tick"), after_ns=1)
    assert len(made.pubend.lines[STREAM].ends) <= ENDS_MAX


def test_one_answer_to_a_read_has_a_limited_size() -> None:
    made = Owner()
    value = b"v" * (FETCH_BYTES_MAX // 2)
    for seq in range(1, 6):
        made.log.batches.append(Batch.of(STREAM, [value], [b"x"]).sequenced(seq, 1, 1))
    made.get("s", Fetch(4, STREAM, 1, 6, X))
    (told,) = made.sent(Fetched, "s")
    assert (told.token, told.lo, told.hi) == (4, 1, 3)


def test_a_read_of_old_positions_waits_for_the_disk_alone() -> None:
    made = Owner()
    made.append([b"x"])
    made.append([b"x"])
    made.log.cold = {1}
    made.get("s", Fetch(7, STREAM, 1, 3, X))
    made.get("s", Fetch(8, STREAM, 2, 3, X))
    assert [(one.lo, one.hi) for one in made.commands(Load)] == [(1, 3)]
    assert [one.token for one in made.sent(Fetched, "s")] == [8], "the other one is not held up"
    made.log.cold = set()
    made.below(PieceLoaded(STREAM, 1))
    assert [(one.token, one.lo, one.hi) for one in made.sent(Fetched, "s")][1:] == [(7, 1, 3)]


def test_many_reads_are_answered_in_turn_and_not_to_those_that_take_no_more() -> None:
    """Found by a hostile tester: after one congestion nobody was answered any more."""
    made = Owner()
    made.append([b"x"])
    made.give(Congested("t"))
    made.get("t", Fetch(1, STREAM, 1, 2, X))
    assert made.sent(Fetched) == []
    made.get("s", Fetch(2, STREAM, 1, 2, X))
    assert [one.token for one in made.sent(Fetched)] == [2]
    for token in range(3 * FETCHES_A_PASS):
        made.get("t", Fetch(10 + token, STREAM, 1, 2, X))
    made.get("s", Fetch(3, STREAM, 1, 2, X))
    assert [one.token for one in made.sent(Fetched)] == [2, 3]
    made.give(Writable("t"))
    assert len(made.sent(Fetched, "t")) == 1 + 3 * FETCHES_A_PASS
    made.give(Congested("t"))
    made.get("t", Fetch(99, STREAM, 1, 2, X))
    made.give(PeerDown("t"))
    assert made.pubend.fetching == []


def test_costly_filters_are_applied_in_several_passes() -> None:
    made = Owner(filter_cost_max=1)
    for _ in range(4):
        made.append([b"x"])
    made.pubend.step(0, Received("s", Fetch(1, STREAM, 1, 5, X)))
    made.pubend.step(0, Received("s", Fetch(2, STREAM, 1, 5, X)))
    made.out = made.pubend.step(0, EndOfPass("fetch"))
    assert [(one.token, one.hi) for one in made.sent(Fetched)] == [(1, 2)], "then it was enough"


def test_reads_of_streams_that_were_given_up_stop_no_server() -> None:
    made = Owner()
    made.append([b"x"])
    made.give(Congested("s"))
    made.get("s", Fetch(1, STREAM, 1, 2, X))
    made.below(TakenBack(DIRECTORY, 1))
    made.give(Writable("s"))
    made.get("s", Fetch(2, STREAM, 1, 2, X))
    assert made.pubend.fetching == []


def test_only_brokers_and_servers_may_read_and_ask() -> None:
    made = Owner()
    made.append([b"x"])
    made.get("client", Fetch(1, STREAM, 1, 2, X))
    made.get("client", Find(1, STREAM, -1))
    made.get("w", Find(1, STREAM, -1))
    assert made.sent(Fetched) == []
    assert [one.seq for one in made.sent(Found)] == [2]


def test_the_number_of_waiting_reads_is_limited() -> None:
    made = Owner(fetches_max=2)
    made.pubend.fetching = [("t", Fetch(1, STREAM, 1, 2, X))] * 2
    made.pubend.step(0, Received("s", Fetch(0, STREAM, 1, 2, X)))
    assert len(made.pubend.fetching) == 2


def test_b14_lost_positions_are_reported_and_reading_goes_on() -> None:
    made = Owner()
    made.append([b"x"] * 9)
    made.log.lost = (3, 6)
    made.get("c", Join(STREAM, 1, 1, X))
    told = made.sent(Matched, "c")
    assert [(one.lo, one.hi, one.lost) for one in told] == [
        (1, 3, ""), (3, 6, "gone"), (6, 10, ""),
    ]  # fmt: skip


def test_when_positions_were_given_up_everybody_attaches_again() -> None:
    made = Owner()
    made.get("s", Attach(STREAM, 1, (table("s", X),)))
    made.get("c", Join(STREAM, 1, 0, X))
    made.below(TakenBack(STREAM, 1))
    assert made.sent(Detach, "s") == [Detach(STREAM)]
    assert made.pubend.lines[STREAM].below == {}
    assert made.pubend.lines[STREAM].subs == {}


def test_status_and_metrics_show_what_is_below_and_alarms_a_few_streams_by_name() -> None:
    made = Owner()
    made.get("s", Attach(STREAM, 1, (table("s", X),)))
    made.get("c", Join(STREAM, 1, 0, X))
    layers = {"gryphon": made.pubend}
    status = GryphonObserver().status(layers)
    assert (status["streams"], status["subscribers"], status["brokers_below"]) == (1, 1, 1)
    reserved = {"chain", "regions", "subscriptions", "subscriptions_total"}
    assert not reserved.intersection(status), "the server reads these in its own way"
    shown = GryphonObserver().stream(layers, STREAM)
    assert (shown["subscribers"], shown["brokers"]) == (1, ["s"])
    metrics = {one.name: one.value for one in GryphonObserver().metrics(layers)}
    assert metrics["gryphon_subscriptions"] == 1
    assert list(GryphonObserver().alarms(layers)) == []
    assert NAMED_MAX < 10


# ---------------------------------------------------------------- other regions


def test_streams_of_other_regions_are_added_to_the_directory() -> None:
    made = Owner("west")
    made.get("p", Reach("east", "p", ("east",), ()))
    made.get("p", StreamsAre((INFO,)))
    assert [one.info for one in made.commands(Adopt)] == [INFO]
    made.get("c", StreamsAre((INFO,)))
    assert len(made.commands(Adopt)) == 1, "a client is no broker"
    made.get("p", StreamsAre((), (STREAM,)))
    assert made.commands(Forget) == [Forget(STREAM)]
    made.get("c", Reach("", "", ("east",), ()))
    made.get("c", Attach(STREAM, 0, ()))
    assert "c" not in made.pubend.links.peers
    assert made.pubend.lines == {}


def test_a_new_stream_is_created_at_its_owner() -> None:
    made = Owner("west", owners={"": "east"})
    create = CreateStream("f", None)  # type: ignore[arg-type]
    made.below(Handed("create", "c", create))
    assert made.sent(CreateStream, "p") == [create]
    assert [one.peer for one in made.commands(Await)] == ["c"]
    made.below(Handed("opened", "p", StreamOpened("f", None, "not-head", "p2")))
    made.below(Handed("create", "c", create))
    assert made.sent(CreateStream, "p2") == [create]
    made.below(Handed("opened", "p2", StreamOpened("f", None, "bad-spec")))
    assert [(one.name, one.why) for one in made.commands(Settle)] == [("f", "bad-spec")]


def test_a_new_stream_of_this_region_is_created_here() -> None:
    made = Owner(owners={"": "east"})
    made.below(Handed("create", "c", CreateStream("g", None)))  # type: ignore[arg-type]
    assert [one.peer for one in made.commands(Create)] == ["c"]


def test_without_a_reachable_owner_requests_are_refused() -> None:
    made = Owner("west", owners={"": "east"})
    made.below(Handed("create", "c", CreateStream("f", None)))  # type: ignore[arg-type]
    assert made.commands(Refuse) == [], "nobody was asked before"
    for server in REGIONS["east"]:
        made.give(PeerDown(server))
    made.below(Handed("create", "c", CreateStream("f", None)))  # type: ignore[arg-type]
    assert [one.why for one in made.commands(Refuse)] == ["owner-unreachable"]
