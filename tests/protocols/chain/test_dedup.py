"""Dedup, compared with a simple model: the list of all batches in the log."""

import copy
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surecast.columns.batch import COLLECTED, Batch
from surecast.core.types import SECOND
from surecast.errors import PeerError
from surecast.protocols.chain.dedup import (
    DUPLICATE,
    EXPIRED,
    MISMATCH,
    NEW,
    OUT_OF_ORDER,
    Dedup,
    Verdict,
    publisher_born_ns,
)

LOG = bytes(range(16))
INFLIGHT = 3
TTL_NS = 100 * SECOND
BORN_NS = 1_000 * SECOND
NAMED = bytes(8) + b"named..."
ANN, BOB = (BORN_NS.to_bytes(8, "big") + name for name in (b"ann.....", b"bob....."))


def batch(publisher: bytes, pub_no: int, count: int = 1) -> Batch:
    return Batch.synthetic(LOG, count, 100, publisher=publisher, pub_no=pub_no)


def empty() -> Dedup:
    return Dedup(INFLIGHT, TTL_NS)


# ---------------------------------------------------------------- by example


def taken(*batches: Batch, time_ns: int = BORN_NS) -> Dedup:
    """A Dedup that has noted these batches, from position 1 on."""
    dedup, lo = empty(), 1
    for one in batches:
        dedup.note(one.sequenced(lo, time_ns, 1))
        lo += one.count
    return dedup


def test_only_the_next_number_is_new() -> None:
    dedup = taken(batch(ANN, 1, 3), batch(ANN, 4))
    verdicts = {n: dedup.check(batch(ANN, n, 3), BORN_NS) for n in (1, 2, 5, 6)}
    assert verdicts[1] == Verdict(DUPLICATE, 1)
    assert verdicts[2] == Verdict(OUT_OF_ORDER, 5)  # the middle of a batch is no batch
    assert verdicts[5].kind == NEW
    assert verdicts[6] == Verdict(OUT_OF_ORDER, 5)
    assert dedup.check(batch(ANN, 4, 2), BORN_NS).kind == MISMATCH
    assert dedup.check(batch(BOB, 2), BORN_NS) == Verdict(OUT_OF_ORDER, 1)
    assert dedup.check(batch(BOB, 1), BORN_NS).kind == NEW


def test_compacted_batches_and_batches_of_the_head_add_no_publishers() -> None:
    dedup = empty()
    dedup.note(Batch.synthetic(LOG, 2, 100).sequenced(1, 1, 1))
    dedup.note(Batch.void(LOG, 3, 9, COLLECTED))
    assert dedup.publishers == {}


def test_an_idle_publisher_is_refused_as_expired() -> None:
    dedup = taken(batch(ANN, 1))
    assert dedup.check(batch(ANN, 2), BORN_NS + TTL_NS).kind == NEW
    for pub_no in (1, 2, 3):
        assert dedup.check(batch(ANN, pub_no), BORN_NS + TTL_NS + 1).kind == EXPIRED


def test_an_unknown_publisher_created_before_the_horizon_is_refused_as_expired() -> None:
    dedup = empty()
    assert dedup.check(batch(ANN, 1), BORN_NS + 1000 * TTL_NS).kind == NEW
    dedup.horizon_ns = BORN_NS
    assert dedup.check(batch(ANN, 1), BORN_NS).kind == EXPIRED
    young = (BORN_NS + 1).to_bytes(8, "big") + bytes(8)
    assert dedup.check(batch(young, 1), BORN_NS).kind == NEW


def test_a_publisher_created_in_the_far_future_is_refused() -> None:
    future = (BORN_NS + 1000 * TTL_NS).to_bytes(8, "big") + bytes(8)
    assert empty().check(batch(future, 1), BORN_NS).kind == EXPIRED


def test_named_publishers_never_expire() -> None:
    assert publisher_born_ns(NAMED) == 0
    dedup = taken(batch(NAMED, 1), batch(ANN, 1))
    dedup.note(batch(BOB, 1).sequenced(9, BORN_NS + 1000 * TTL_NS, 1))
    dedup.forget()
    later = empty()
    later.merge(dedup.snapshot(99))
    far_ns = BORN_NS + 2000 * TTL_NS
    for one in (dedup, later):
        assert one.check(batch(NAMED, 1), far_ns) == Verdict(DUPLICATE, 1)
        assert one.check(batch(NAMED, 2), far_ns).kind == NEW
        assert one.check(batch(ANN, 1), far_ns).kind == EXPIRED
    assert ANN not in later.publishers  # forgotten, and still refused as expired


def test_named_publishers_do_not_displace_others() -> None:
    dedup = Dedup(4, ttl_ns=1 << 60, publishers_max=10)
    for n in range(30):
        dedup.note(batch(bytes(8) + b"job%05d" % n, 1).sequenced(1 + n, BORN_NS, 1))
    for n in range(10):
        born = (BORN_NS + n).to_bytes(8, "big") + bytes(8)
        dedup.note(batch(born, 1).sequenced(31 + n, BORN_NS + n, 1))
    assert dedup.is_crowded()  # named publishers included
    dedup.forget()
    assert len(dedup.publishers) == 40
    assert not dedup.is_crowded()
    young = (BORN_NS + 10).to_bytes(8, "big") + bytes(8)
    dedup.note(batch(young, 1).sequenced(41, BORN_NS + 10, 1))
    assert dedup.is_crowded()
    dedup.forget()
    assert len(dedup.publishers) == 30 + 9  # some more at once


@pytest.mark.parametrize("data", [b"", b"\xc0", b"\x91\x01", b"\x93", b"surecast", b"\x91\x90"])
def test_a_malformed_snapshot_raises_peer_error(data: bytes) -> None:
    with pytest.raises(PeerError):
        empty().merge(data)
    with pytest.raises(PeerError):
        empty().replace(data, 1)


def test_publishers_of_a_truncated_suffix_are_replaced_by_the_predecessors_state() -> None:
    """Position 2 held ann's batch 2, which was truncated; it now holds bob's batch 1."""
    dedup = taken(batch(ANN, 1), batch(ANN, 2))
    theirs = taken(batch(ANN, 1), batch(BOB, 1))
    dedup.replace(theirs.snapshot(3), 3)
    assert dedup.check(batch(ANN, 2), BORN_NS).kind == NEW
    assert dedup.check(batch(BOB, 1), BORN_NS) == Verdict(DUPLICATE, 2)


# ---------------------------------------------------------------- against the model


@dataclass
class Model:
    """The log itself. Only truncation removes entries."""

    # (publisher, number, count, lo)
    entries: list[tuple[bytes, int, int, int]] = field(default_factory=list)
    ever: dict[bytes, int] = field(default_factory=dict)  # publisher → most batches it ever had
    committed: int = 1

    @property
    def end(self) -> int:
        return self.entries[-1][3] + self.entries[-1][2] if self.entries else 1

    def of(self, publisher: bytes) -> list[tuple[int, int, int]]:
        return [entry[1:] for entry in self.entries if entry[0] == publisher]

    def next_no(self, publisher: bytes) -> int:
        mine = self.of(publisher)
        return mine[-1][0] + mine[-1][1] if mine else 1

    def truncate(self) -> None:
        self.entries = [entry for entry in self.entries if entry[3] < self.committed]

    def under_way(self, publisher: bytes) -> int:
        return sum(lo >= self.committed for _, _, lo in self.of(publisher))

    def judge(self, dedup: Dedup, publisher: bytes) -> None:
        """Check the verdict on everything a publisher can send now against the log."""
        mine, next_no = self.of(publisher), self.next_no(publisher)
        now_ns = BORN_NS
        assert dedup.check(batch(publisher, next_no), now_ns).kind == NEW
        ahead = dedup.check(batch(publisher, next_no + 1), now_ns)
        assert ahead == Verdict(OUT_OF_ORDER, next_no)
        # It may still retry its last INFLIGHT batches, counting truncated ones.
        lost = self.ever.get(publisher, 0) - len(mine)
        for back, (pub_no, count, lo) in enumerate(reversed(mine), start=1):
            again = dedup.check(batch(publisher, pub_no, count), now_ns)
            if back + max(0, lost) <= INFLIGHT:
                assert again == Verdict(DUPLICATE, lo)
                other = dedup.check(batch(publisher, pub_no, count + 1), now_ns)
                assert other.kind == MISMATCH
            assert again in (Verdict(DUPLICATE, lo), Verdict(OUT_OF_ORDER, next_no))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from([ANN, BOB, NAMED]), st.integers(1, 3)),
        st.tuples(st.just("commit"), st.integers(0, 3), st.none()),
        st.tuples(st.just("truncate"), st.none(), st.none()),
        st.tuples(st.just("restart"), st.integers(0, 4), st.none()),
        st.tuples(st.just("join"), st.integers(0, 4), st.integers(0, 5)),
    ),
    min_size=8,
    max_size=40,
)


@pytest.mark.slow
@settings(max_examples=500)
@given(STEPS)
def test_dedup_agrees_with_the_log(steps: list[tuple[str, object, object]]) -> None:
    model, dedup = Model(), empty()
    past = [empty()]  # earlier states, which replicas that were cut off may still have
    for what, a, b in steps:
        if what == "publish":
            assert isinstance(a, bytes)
            assert isinstance(b, int)
            if model.under_way(a) >= INFLIGHT:
                continue
            one = batch(a, model.next_no(a), b)
            dedup.note(one.sequenced(model.end, BORN_NS, 1))
            model.entries.append((a, one.pub_no, b, model.end))
            model.ever[a] = max(model.ever.get(a, 0), len(model.of(a)))
            past.append(copy.deepcopy(dedup))
        elif what == "commit":
            ends = [entry[3] + entry[2] for entry in model.entries if entry[3] >= model.committed]
            assert isinstance(a, int)
            model.committed = ([model.committed, *ends])[: a + 1][-1]
            model.ever = {p: len(model.of(p)) for p in model.ever}
        elif what == "truncate":
            model.truncate()
            dedup.truncate(model.committed)
        else:
            assert isinstance(a, int)
            at = ([entry[3] for entry in model.entries] + [model.end])[-1 - a :][0]
            if what == "restart":  # from an earlier snapshot and the log since
                again = empty()
                again.merge(dedup.snapshot(at))
            else:  # a learner with any earlier state
                assert isinstance(b, int)
                again = copy.deepcopy(past[-1 - b :][0])
                again.truncate(at)
                again.replace(dedup.snapshot(at), at)
            before = Model([e for e in model.entries if e[3] < at], model.ever, model.committed)
            for publisher in (ANN, BOB, NAMED):
                before.judge(again, publisher)
            for publisher, pub_no, count, lo in model.entries:
                if lo >= at:
                    again.note(batch(publisher, pub_no, count).sequenced(lo, BORN_NS, 1))
            dedup = again
        for publisher in (ANN, BOB, NAMED):
            model.judge(dedup, publisher)
