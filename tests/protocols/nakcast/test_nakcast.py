"""Nakcast: complete runs under loss, a test for each guarantee, and tests that checks can fail."""

import pytest

from surecast.columns.batch import Batch
from surecast.core.endpoint import Follow, Lost
from surecast.core.types import MS, SECOND, Deliver, Emit, LogId, Peer, Received
from surecast.protocols.nakcast.checks import (
    Given,
    Reading,
    Record,
    g1_in_order_once,
    g2_nothing_missing,
    g3_a_loss_is_a_loss,
    g4_what_was_published,
)
from surecast.protocols.nakcast.config import ReaderConfig
from surecast.protocols.nakcast.messages import Beacon, Data, Gone
from surecast.protocols.nakcast.reader import Followed, Reader
from surecast.sim import Link
from tests.protocols.nakcast.stage import READERS, STREAM, Stage

SEEDS = range(12)


def run(seed: int, reader_type: type[Reader] = Reader, **options: int) -> Record:
    """Send a hundred batches over a bad link. The second reader joins after most of them."""
    stage = Stage(seed, reader_type=reader_type, **options)
    stage.publish(100)
    stage.follow("r1", 0)
    stage.follow("r2", 80 * MS)
    return stage.run()


@pytest.mark.parametrize("seed", SEEDS)
def test_g1_in_order_once_despite_loss(seed: int) -> None:
    assert g1_in_order_once(run(seed)) == []
    assert g1_in_order_once(run(seed, repair_max=40)) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_g2_nothing_missing_despite_loss(seed: int) -> None:
    record = run(seed)
    assert g2_nothing_missing(record) == []
    assert not any(given.kind == "lost" for r in record.readings for given in r.given)
    assert g2_nothing_missing(run(seed, repair_max=40)) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_g3_a_loss_is_a_loss(seed: int) -> None:
    record = run(seed, repair_max=40)
    assert g3_a_loss_is_a_loss(record) == []
    late = record.readings[1].given
    assert late[0].kind == "lost"  # it joined too late for the first positions


@pytest.mark.parametrize("seed", SEEDS)
def test_g4_what_was_published(seed: int) -> None:
    assert g4_what_was_published(run(seed)) == []
    assert g4_what_was_published(run(seed, repair_max=40)) == []


def test_voids_are_not_lost() -> None:
    stage = Stage(3, repair_max=40)
    stage.publish(100)
    stage.log.void = [(1, 20), (30, 40)]
    stage.follow("r1", 5 * SECOND)
    stage.follow("r2", 5 * SECOND, start=10)
    record = stage.run()
    end = record.end
    for reading, start in zip(record.readings, (1, 10), strict=True):
        assert reading.given[:4] == [
            Given("void", start, 20),
            Given("lost", 20, 30),
            Given("void", 30, 40),
            Given("lost", 40, end - 40),
        ]
        assert reading.given[4].lo == end - 40
    assert g1_in_order_once(record) == []


def test_a_good_link_needs_no_naks() -> None:
    stage = Stage(1, Link(delay_ns=5 * MS), Silent)
    for name in READERS:
        stage.follow(name, 0)
    stage.publish(100, from_ns=50 * MS)
    assert g2_nothing_missing(stage.run()) == []


def test_a_reader_finds_a_server_that_comes_later() -> None:
    stage = Stage(2)
    stage.world.crash("p")
    stage.publish(5, from_ns=4 * SECOND)
    stage.follow("r1", 0)
    stage.follow("r2", 0)
    stage.world.call(3 * SECOND, lambda world: world.restart("p"))
    record = stage.run(20 * SECOND)
    assert g1_in_order_once(record) + g2_nothing_missing(record) == []


# ---------------------------------------------------------------- the checks can fail


class Eager(Reader):
    """Without G1: delivers batches in the order of arrival."""

    def _take(self, one: Followed, batch: Batch) -> None:
        self.out.append(Deliver(batch.stream_id, (batch,)))


class Silent(Reader):
    """Without G2: never sends a NAK."""

    def _on_beacon(self, peer: Peer, message: Beacon) -> None:
        pass


class Hasty(Reader):
    """Without G3: reports missing positions as lost at once."""

    def _on_beacon(self, peer: Peer, message: Beacon) -> None:
        one = self._followed(peer, message.stream)
        if one is not None:
            self._lose(message.stream, one, message.end)


class Blind(Reader):
    """Reports void positions as lost."""

    def _on_gone(self, peer: Peer, message: Gone) -> None:
        super()._on_gone(peer, Gone(message.stream, message.lo, message.hi, ()))


class Forgetful(Reader):
    """Reports positions as lost although it holds them."""

    def _lose(self, stream: LogId, one: Followed, end: int) -> None:
        if one.next < end:
            self.out.append(Emit(Lost(stream, one.next, end, "")))
            one.next = end


def test_g1_check_finds_disorder_and_duplicates() -> None:
    assert g1_in_order_once(run(1, Eager))
    good = [Given("event", 1, 2), Given("void", 2, 5), Given("lost", 5, 7), Given("event", 7, 8)]
    assert g1_in_order_once(Record("s", 9, readings=[Reading("r", 1, good)])) == []
    for wrong in (good[1:], [good[0], good[0]], [good[0], good[2]], [Given("void", 1, 1)]):
        assert g1_in_order_once(Record("s", 9, readings=[Reading("r", 1, wrong)])), wrong


def test_g2_check_finds_missing_events() -> None:
    record = run(1, Silent)
    assert g1_in_order_once(record) == []
    assert len(g2_nothing_missing(record)) == len(READERS)


def test_g3_check_finds_false_losses() -> None:
    assert g3_a_loss_is_a_loss(run(1, Hasty))
    lost = [Reading("r", 1, [Given("lost", 1, 10), Given("event", 10, 101, b"v")])]
    assert g3_a_loss_is_a_loss(Record("s", 50, readings=lost)) == []
    assert g3_a_loss_is_a_loss(Record("s", 95, readings=lost))
    assert g3_a_loss_is_a_loss(Record("s", 50, keep_last=20, readings=lost))


def test_g4_check_finds_other_events() -> None:
    acked = {b"a": 1, b"b": 2}

    def found(*given: Given) -> list[str]:
        return g4_what_was_published(
            Record("s", 9, 0, acked, acked, [Reading("r", 1, list(given))])
        )

    assert found(Given("event", 1, 2, b"a"), Given("event", 2, 3, b"b")) == []
    assert found(Given("event", 1, 2, b"b"))
    assert found(Given("event", 3, 4, b"c"))


def test_a_reader_that_reports_voids_as_lost_is_caught() -> None:
    stage = Stage(3, reader_type=Blind, repair_max=40)
    stage.publish(100)
    stage.log.void = [(1, 150)]
    stage.follow("r1", 5 * SECOND)
    record = stage.run()
    record.keep_last = 20
    assert g3_a_loss_is_a_loss(record)


def test_positions_that_a_reader_holds_are_not_reported_lost() -> None:
    """A reader holds [3, 5) when the server reports that all below 9 is gone."""

    def lost_by(reader_type: type[Reader]) -> list[tuple[int, int]]:
        reader = reader_type(ReaderConfig(("p",)))
        reader.step(0, Follow(STREAM, 1))
        batch = Batch.of(STREAM, [b"a", b"b"]).sequenced(3, 0, 1)
        reader.step(1, Received("p", Data(batch)))
        effects = reader.step(2, Received("p", Gone(STREAM, 1, 9, ())))
        return [(e.event.lo, e.event.hi) for e in effects if type(e) is Emit]

    assert lost_by(Reader) == [(1, 3), (5, 9)]
    assert lost_by(Forgetful) == [(1, 9)]
