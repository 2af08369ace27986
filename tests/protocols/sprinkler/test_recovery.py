"""Recovery of an owner (R8), step by step: when it refuses publishes of its streams."""

from typing import Any

import msgspec
import pytest

from surecast.columns.batch import Batch
from surecast.core.replicated import (
    Appended,
    Committed,
    Recovered,
    RoleChanged,
    Submit,
    TakePublishers,
)
from surecast.core.streams import StreamSpec
from surecast.core.types import MS, SECOND, Received
from surecast.protocols.sprinkler.messages import (
    Advertise,
    Compare,
    PublishersKnown,
    PublishersWanted,
    RegionSubscribe,
)
from surecast.protocols.streams.messages import CreateStream, Publish, PubNack
from tests.protocols.bench import INFO, REGIONS, STREAM, Bench, passed_down, sent

OTHERS = ("x/0", "z/0")  # the tails of the regions that do not own s


def refused(bench: Bench) -> str:
    """The reason why a publish of s is refused now; "" if it is accepted."""
    batch = Batch.of(STREAM, [b"v"], publisher=bytes(8) + b"ann's id", pub_no=1)
    out = bench.give(Received("client", Publish(STREAM, batch)))
    whys = [nack.why for _, nack in sent(out, PubNack)]
    assert len(whys) + len(passed_down(out, Submit)) == 1
    return whys[0] if whys else ""


def owner(**options: Any) -> Bench:
    """The head of region y, which owns s and has three events of it."""
    bench = Bench("y/0", **options)
    bench.role(1)
    bench.add_stream(end=4)
    return bench


def period(bench: Bench) -> list[Any]:
    """Let an advertisement period pass."""
    bench.now_ns += 100 * MS
    return bench.timer("sprinkler", "advertise")


def knows_publishers(bench: Bench, node: str, end: int, complete: bool = True) -> list[Any]:
    region = node.split("/")[0]
    return bench.give(Received(node, PublishersKnown(STREAM, end, b"state", complete, region, end)))


# ---------------------------------------------------------------- after a start


def test_after_a_start_an_owner_waits_for_the_other_regions() -> None:
    bench = owner(start="ask")
    assert refused(bench) == "recovering"
    bench.advertised_by("x/0", 1, end=4)
    assert refused(bench) == "recovering"  # z may know more
    bench.advertised_by("z/0", 1, end=4)
    assert refused(bench) == ""


def test_after_a_start_a_silent_region_is_waited_for_at_most_ask_ns() -> None:
    bench = owner(start="ask", ask_ns=SECOND)
    bench.advertised_by("x/0", 1, end=4)
    bench.now_ns += SECOND // 2
    period(bench)
    assert refused(bench) == "recovering"
    bench.now_ns += SECOND // 2
    period(bench)
    assert refused(bench) == ""


def test_an_owner_that_trusts_its_disk_does_not_wait_after_a_start() -> None:
    assert refused(owner(start="trust")) == ""


# ---------------------------------------------------------------- an owner behind its peers


def test_an_owner_that_is_behind_pulls_and_refuses_publishes_until_it_has_all() -> None:
    bench = owner()
    assert refused(bench) == ""
    out = bench.advertised_by("x/0", 1, end=9)
    assert sent(out, RegionSubscribe) == [("x/0", RegionSubscribe("y", 1, STREAM, 4))]
    assert bench.sync.counters["sprinkler.owner-behind"] == 1
    assert refused(bench) == "recovering"
    bench.chain_emits(Appended(STREAM, 9))
    period(bench)
    bench.now_ns += 1
    bench.advertised_by("x/0", 1, end=9)
    bench.advertised_by("z/0", 1, end=9)
    bench.now_ns += SECOND  # after this it requests again
    asked = [peer for peer, _ in sent(period(bench), PublishersWanted)]
    assert asked == list(OTHERS)
    assert refused(bench) == "recovering"  # the publishers' state was lost as well
    for node in OTHERS:
        bench.advertised_by(node, 1, end=9)
    taken = [knows_publishers(bench, node, 9) for node in OTHERS]
    assert [len(passed_down(out, TakePublishers)) for out in taken] == [1, 0]
    period(bench)
    assert refused(bench) == ""
    assert bench.sync.streams[STREAM].source is None


@pytest.mark.parametrize("appended", [9, 10])
def test_recovery_also_waits_for_events_that_a_peer_has_appended_and_not_committed(
    appended: int,
) -> None:
    bench = owner()
    bench.advertised_by("x/0", 1, end=9)
    bench.chain_emits(Appended(STREAM, 9))
    for node in OTHERS:
        bench.advertised_by(node, 1, end=9)
    for node in OTHERS:
        region = node.split("/")[0]
        known = PublishersKnown(STREAM, 9, b"state", True, region, appended)
        bench.give(Received(node, known))
    period(bench)
    assert refused(bench) == ("recovering" if appended > 9 else "")


def test_an_incomplete_answer_is_used_when_all_regions_have_answered() -> None:
    bench = owner()
    bench.advertised_by("x/0", 1, end=9)
    bench.chain_emits(Appended(STREAM, 9))
    for node in OTHERS:
        bench.advertised_by(node, 1, end=9)
    assert passed_down(knows_publishers(bench, "x/0", 9, False), TakePublishers) == []
    (taken,) = passed_down(knows_publishers(bench, "z/0", 9, False), TakePublishers)
    assert taken.horizon_ns > 0  # publishers created before this are refused as expired
    assert taken.known_too


def test_a_chain_that_lost_its_disks_has_recovered_when_it_has_the_state_of_every_region() -> None:
    bench = Bench("y/0")
    lost = RoleChanged(3, REGIONS["y"], True, True, False, 3)
    bench.chain_emits(lost)
    bench.add_stream()
    assert refused(bench) == "recovering"
    for node in OTHERS:
        bench.advertised_by(node, 1, end=1)
    assert passed_down(period(bench), Recovered) == []  # the publishers are not known
    for node in OTHERS:
        knows_publishers(bench, node, 1)
    assert len(passed_down(period(bench), Recovered)) == 1
    assert refused(bench) == ""


def test_a_stream_created_after_the_disks_were_lost_needs_no_recovery() -> None:
    bench = Bench("y/0")
    bench.chain_emits(RoleChanged(3, REGIONS["y"], True, True, False, 3))
    copy = bench.add_stream(made_epoch=3)
    assert copy.recovering_since_ns is None
    assert refused(bench) == ""


def test_recovery_waits_for_a_stream_that_only_a_peer_has() -> None:
    bench = Bench("y/0")
    bench.chain_emits(RoleChanged(3, REGIONS["y"], True, True, False, 3))
    for node in OTHERS:
        ends = {STREAM: 5} if node == "x/0" else {}
        infos = (INFO,) if node == "x/0" else ()
        bench.give(Received(node, Advertise(node[0], 1, ends, infos, True)))
    assert passed_down(period(bench), Recovered) == []


def test_a_former_head_ends_its_recovery() -> None:
    bench = owner()
    bench.advertised_by("x/0", 1, end=9)
    assert refused(bench) == "recovering"
    bench.role(2, head=False)
    assert bench.sync.streams[STREAM].recovering_since_ns is None
    assert refused(bench) == "not-head"
    bench.chain_emits(Appended(STREAM, 9))
    bench.role(3)
    assert refused(bench) == ""


def late_region(bench: Bench) -> list[Any]:
    """x advertises for the first time and must be compared with; returns the effects."""
    ad = Advertise("x", 1, {STREAM: 4}, (INFO,), True, "x/0", life=b"L", disk=b"D", start=1)
    out = bench.give(Received("x/0", ad))
    assert len(sent(out, Compare)) == 1
    return out


def owner_that_waited() -> Bench:
    """An owner that received no advertisement for `ask_ns`."""
    bench = owner(start="ask")
    bench.disk.append(STREAM, (Batch.of(STREAM, [b"v"] * 3).sequenced(1, 1000, 1),))
    bench.chain_emits(Committed(STREAM, 4))
    bench.end_of_pass("streams")
    assert refused(bench) == "recovering"
    bench.now_ns = 3 * SECOND
    period(bench)
    assert refused(bench) == ""
    return bench


def test_a_region_that_advertises_late_is_compared_with_before_the_first_new_position() -> None:
    bench = owner_that_waited()
    late_region(bench)
    assert refused(bench) == "recovering"


def test_after_its_first_new_position_an_owner_does_not_recover_for_late_regions() -> None:
    bench = owner_that_waited()
    bench.disk.append(STREAM, (Batch.of(STREAM, [b"v"]).sequenced(4, 2000, 1),))
    bench.chain_emits(Appended(STREAM, 5))
    bench.chain_emits(Committed(STREAM, 5))
    bench.end_of_pass("streams")
    late_region(bench)
    assert refused(bench) == ""


def test_a_position_in_a_new_stream_does_not_end_the_recovery_of_others() -> None:
    bench = owner_that_waited()
    bench.give(Received("client", CreateStream("new", StreamSpec())))
    (made,) = bench.service.made_now
    info = msgspec.structs.replace(INFO, stream_id=made, name="new")
    bench.list_stream(info, 1)
    bench.disk.append(made, (Batch.of(made, [b"v"]).sequenced(1, 2000, 1),))
    bench.chain_emits(Appended(made, 2))
    bench.chain_emits(Committed(made, 2))
    bench.end_of_pass("streams")
    late_region(bench)
    assert refused(bench) == "recovering"
