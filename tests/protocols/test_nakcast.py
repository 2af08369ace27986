"""Nakcast: steps first, then whole runs under loss, then proof that the checks can fail."""

from collections.abc import Callable
from typing import Any

import pytest

from surecast.core.types import (
    MS,
    SECOND,
    Batch,
    Deliver,
    Received,
    Send,
    SetTimer,
    Start,
    TimerFired,
)
from surecast.errors import ConfigError
from surecast.protocols.nakcast.checks import Record, g1_in_order_once, g2_nothing_missing
from surecast.protocols.nakcast.config import NakcastConfig
from surecast.protocols.nakcast.messages import Beacon, Data, Nak, Publish
from surecast.protocols.nakcast.publisher import Publisher
from surecast.protocols.nakcast.reader import Reader
from surecast.sim import Link, World

STREAM = bytes(range(16))
READERS = ("r1", "r2")


def batch(number: int, count: int = 1) -> Batch:
    return Batch.synthetic(STREAM, count, 100 * count, pub_no=number)


def placed(number: int, lo: int, count: int = 1) -> Batch:
    return batch(number, count).sequenced(lo, 0, 0)


def config(**more: Any) -> NakcastConfig:
    return NakcastConfig(readers=READERS, **more)


def datagrams(effects: list[Any]) -> list[tuple[str, Any]]:
    assert all(type(effect) is Send and not effect.reliable for effect in effects)
    return [(effect.peer, effect.message) for effect in effects]


# ---------------------------------------------------------------- steps


def test_publisher_places_batches_and_sends_them_to_all() -> None:
    publisher = Publisher(config(), STREAM)
    publisher.step(0, Publish(batch(1, count=3)))
    sent = datagrams(publisher.step(5, Publish(batch(2, count=2))))
    assert [peer for peer, _ in sent] == ["r1", "r2"]
    for _, message in sent:
        assert (message.batch.lo, message.batch.hi, message.batch.pub_no) == (4, 6, 2)


def test_publisher_beacons_at_start_and_by_timer() -> None:
    publisher = Publisher(config(beacon_ns=20 * MS), STREAM)
    publisher.step(0, Publish(batch(1, count=3)))
    for inp in (Start(0, 1), TimerFired("beacon")):
        *beacons, timer = publisher.step(7, inp)
        assert datagrams(beacons) == [(reader, Beacon(STREAM, 4)) for reader in READERS]
        assert timer == SetTimer("beacon", 7 + 20 * MS)


def test_publisher_answers_the_asker_alone_and_survives_lies() -> None:
    publisher = Publisher(config(window=4), STREAM)
    for number in range(10):
        publisher.step(0, Publish(batch(number, count=2)))

    def answer(*holes: tuple[int, int], stream: bytes = STREAM) -> list[int]:
        sent = datagrams(publisher.step(0, Received("r2", Nak(stream, holes))))
        assert all(peer == "r2" for peer, _ in sent)
        return [message.batch.pub_no for _, message in sent]

    assert answer((3, 5), (9, 11)) == [1, 4]
    assert answer((4, 6)) == [1, 2]  # what overlaps the hole
    assert answer((3, 5), (3, 5)) == [1]
    assert answer((1, 21)) == [0, 1, 2, 3]  # no more than the window
    assert answer((-5, 10**30)) == [0, 1, 2, 3]
    assert answer((21, 99), (7, 7), (9, 2)) == []
    assert answer((3, 5), stream=bytes(16)) == []


def test_reader_delivers_in_order_what_comes_out_of_order() -> None:
    reader = Reader(config(), STREAM)
    one, two, three = placed(1, 1, 2), placed(2, 3), placed(3, 4)
    assert reader.step(0, Received("p", Data(two))) == []
    assert reader.step(0, Received("p", Data(three))) == []
    assert reader.step(0, Received("p", Data(one))) == [Deliver(STREAM, (one, two, three))]
    assert reader.step(0, Received("p", Data(two))) == []


def test_reader_asks_for_every_hole_up_to_the_beacon() -> None:
    reader = Reader(config(), STREAM)
    reader.step(0, Received("p", Data(placed(3, 5, 2))))
    reader.step(0, Received("p", Data(placed(5, 9))))
    asked = datagrams(reader.step(0, Received("p", Beacon(STREAM, 12))))
    assert asked == [("p", Nak(STREAM, ((1, 5), (7, 9), (10, 12))))]
    assert datagrams(reader.step(0, Received("p", Beacon(STREAM, 10)))) == [
        ("p", Nak(STREAM, ((1, 5), (7, 9))))
    ]


def test_reader_asks_for_nothing_when_it_has_all() -> None:
    reader = Reader(config(), STREAM)
    reader.step(0, Received("p", Data(placed(1, 1, 4))))
    assert reader.step(0, Received("p", Beacon(STREAM, 5))) == []


def test_reader_holds_no_more_than_its_window() -> None:
    reader = Reader(config(window=2), STREAM)
    for lo in (3, 5, 7, 9):
        reader.step(0, Received("p", Data(placed(lo, lo))))
    assert sorted(reader.held) == [3, 5]


def test_other_streams_are_ignored() -> None:
    reader = Reader(config(), bytes(16))
    assert reader.step(0, Received("p", Data(placed(1, 1)))) == []
    assert reader.step(0, Received("p", Beacon(STREAM, 5))) == []


@pytest.mark.parametrize(
    "wrong",
    [{"readers": ()}, {"readers": ("a", "a")}, {"beacon_ns": 0}, {"window": 0}],
    ids=str,
)
def test_config_says_what_is_wrong(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        NakcastConfig(**{"readers": READERS, **wrong}).validate()


# ---------------------------------------------------------------- whole runs

BAD = Link(delay_ns=5 * MS, jitter_ns=3 * MS, loss=0.3, duplicate=0.1, reorder=0.2)


def run(seed: int, make_reader: Callable[..., Any] = Reader, link: Link = BAD) -> Record:
    """A hundred batches over a bad link; the record the two applications would have kept."""
    group = config(window=16)
    world = World(seed, link)
    world.add("p", lambda ctx: Publisher(group, STREAM))
    for name in READERS:
        world.add(name, lambda ctx: make_reader(group, STREAM))
    published = [batch(number, count=1 + number % 3) for number in range(100)]
    for number, one in enumerate(published):
        world.at(number * MS, "p", Publish(one))
    world.run(until_ns=5 * SECOND)
    delivered = {
        name: [one for _, batches in world.delivered[name] for one in batches] for name in READERS
    }
    return Record(published, delivered)


@pytest.mark.parametrize("seed", range(20))
def test_g1_in_order_once_despite_loss(seed: int) -> None:
    assert g1_in_order_once(run(seed)) == []


@pytest.mark.parametrize("seed", range(20))
def test_g2_nothing_missing_despite_loss(seed: int) -> None:
    assert g2_nothing_missing(run(seed)) == []


# ---------------------------------------------------------------- the checks can fail


class Eager(Reader):
    """Takes out what keeps G1: delivers whatever comes, as it comes."""

    def _on_data(self, batch: Batch) -> list[Any]:
        return [Deliver(self.stream, (batch,))]


class Silent(Reader):
    """Takes out what keeps G2: never asks."""

    def _on_beacon(self, peer: str, end: int) -> list[Any]:
        return []


def test_g1_check_sees_disorder_and_duplicates() -> None:
    assert g1_in_order_once(run(1, Eager))
    twice = [batch(1), batch(2)]
    for delivered in (
        [placed(1, 1), placed(1, 1)],
        [placed(2, 1), placed(1, 2)],
        [placed(1, 1), placed(2, 3)],
        [placed(1, 1), placed(2, 2), placed(2, 3)],
    ):
        assert g1_in_order_once(Record(twice, {"r1": delivered})), delivered
    assert g1_in_order_once(Record(twice, {"r1": [placed(1, 1), placed(2, 2)]})) == []


def test_g2_check_sees_what_is_missing() -> None:
    record = run(1, Silent)
    assert g1_in_order_once(record) == []
    assert len(g2_nothing_missing(record)) == len(READERS)


def test_a_good_link_needs_no_naks() -> None:
    record = run(1, Silent, Link(delay_ns=5 * MS))
    assert g2_nothing_missing(record) == []
