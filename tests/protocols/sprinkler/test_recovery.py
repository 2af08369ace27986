"""When an owner gives no positions of its streams, step by step (R8)."""

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
    """Why a publish of s is not taken now; "" if it is."""
    batch = Batch.of(STREAM, [b"v"], publisher=bytes(8) + b"ann's id", pub_no=1)
    out = bench.give(Received("client", Publish(STREAM, batch)))
    whys = [nack.why for _, nack in sent(out, PubNack)]
    assert len(whys) + len(passed_down(out, Submit)) == 1
    return whys[0] if whys else ""


def owner(**options: Any) -> Bench:
    """The head of region y, which owns s and has three events of it."""
    bench = Bench("y/0", **options)
    bench.role(1)
    bench.knows(end=4)
    return bench


def period(bench: Bench) -> list[Any]:
    """An advertisement period has passed."""
    bench.now_ns += 100 * MS
    return bench.timer("sprinkler", "advertise")


def knows_publishers(bench: Bench, node: str, end: int, complete: bool = True) -> list[Any]:
    region = node.split("/")[0]
    return bench.give(Received(node, PublishersKnown(STREAM, end, b"state", complete, region, end)))


# ---------------------------------------------------------------- after a start


def test_after_a_start_the_other_regions_are_heard_first() -> None:
    bench = owner(start="ask")
    assert refused(bench) == "recovering"
    bench.hears("x/0", 1, end=4)
    assert refused(bench) == "recovering"  # z may know more
    bench.hears("z/0", 1, end=4)
    assert refused(bench) == ""


def test_after_a_start_a_region_that_is_silent_is_not_waited_for_for_ever() -> None:
    bench = owner(start="ask", ask_ns=SECOND)
    bench.hears("x/0", 1, end=4)
    bench.now_ns += SECOND // 2
    period(bench)
    assert refused(bench) == "recovering"
    bench.now_ns += SECOND // 2
    period(bench)
    assert refused(bench) == ""


def test_who_trusts_its_disk_does_not_wait() -> None:
    assert refused(owner(start="trust")) == ""


# ---------------------------------------------------------------- an owner behind its peers


def test_an_owner_that_is_behind_pulls_and_gives_no_positions_until_it_has_all() -> None:
    bench = owner()
    assert refused(bench) == ""
    out = bench.hears("x/0", 1, end=9)
    assert sent(out, RegionSubscribe) == [("x/0", RegionSubscribe("y", 1, STREAM, 4))]
    assert bench.sync.counters["sprinkler.owner-behind"] == 1
    assert refused(bench) == "recovering"
    bench.says(Appended(STREAM, 9))
    period(bench)
    bench.now_ns += 1
    bench.hears("x/0", 1, end=9)
    bench.hears("z/0", 1, end=9)
    bench.now_ns += SECOND  # it asks once in a while
    asked = [peer for peer, _ in sent(period(bench), PublishersWanted)]
    assert asked == list(OTHERS)
    assert refused(bench) == "recovering"  # who published what is part of what was lost
    for node in OTHERS:
        bench.hears(node, 1, end=9)
    taken = [knows_publishers(bench, node, 9) for node in OTHERS]
    assert [len(passed_down(out, TakePublishers)) for out in taken] == [1, 0]
    period(bench)
    assert refused(bench) == ""
    assert bench.sync.streams[STREAM].source is None


@pytest.mark.parametrize("appended", [9, 10])
def test_what_a_peer_has_appended_counts_before_it_has_committed_it(appended: int) -> None:
    bench = owner()
    bench.hears("x/0", 1, end=9)
    bench.says(Appended(STREAM, 9))
    for node in OTHERS:
        bench.hears(node, 1, end=9)
    for node in OTHERS:
        region = node.split("/")[0]
        known = PublishersKnown(STREAM, 9, b"state", True, region, appended)
        bench.give(Received(node, known))
    period(bench)
    assert refused(bench) == ("recovering" if appended > 9 else "")


def test_an_answer_that_is_not_complete_is_taken_when_no_region_knows_better() -> None:
    bench = owner()
    bench.hears("x/0", 1, end=9)
    bench.says(Appended(STREAM, 9))
    for node in OTHERS:
        bench.hears(node, 1, end=9)
    assert passed_down(knows_publishers(bench, "x/0", 9, False), TakePublishers) == []
    (taken,) = passed_down(knows_publishers(bench, "z/0", 9, False), TakePublishers)
    assert taken.horizon_ns > 0  # who published before is told that it expired
    assert taken.known_too


def test_a_chain_that_lost_its_disks_is_whole_when_every_region_was_followed() -> None:
    bench = Bench("y/0")
    lost = RoleChanged(3, REGIONS["y"], True, True, False, 3)
    bench.says(lost)
    bench.knows()
    assert refused(bench) == "recovering"
    for node in OTHERS:
        bench.hears(node, 1, end=1)
    assert passed_down(period(bench), Recovered) == []  # the publishers are not known
    for node in OTHERS:
        knows_publishers(bench, node, 1)
    assert len(passed_down(period(bench), Recovered)) == 1
    assert refused(bench) == ""


def test_a_stream_made_since_the_disks_were_lost_needs_no_recovery() -> None:
    bench = Bench("y/0")
    bench.says(RoleChanged(3, REGIONS["y"], True, True, False, 3))
    copy = bench.knows(made_epoch=3)
    assert copy.recovering_since_ns is None
    assert refused(bench) == ""


def test_a_stream_that_a_peer_has_and_we_do_not_is_waited_for() -> None:
    bench = Bench("y/0")
    bench.says(RoleChanged(3, REGIONS["y"], True, True, False, 3))
    for node in OTHERS:
        ends = {STREAM: 5} if node == "x/0" else {}
        infos = (INFO,) if node == "x/0" else ()
        bench.give(Received(node, Advertise(node[0], 1, ends, infos, True)))
    assert passed_down(period(bench), Recovered) == []


def test_who_is_no_longer_head_leaves_it_to_the_next_one_and_asks_afresh() -> None:
    bench = owner()
    bench.hears("x/0", 1, end=9)
    assert refused(bench) == "recovering"
    bench.role(2, head=False)
    assert bench.sync.streams[STREAM].recovering_since_ns is None
    assert refused(bench) == "not-head"
    bench.says(Appended(STREAM, 9))
    bench.role(3)
    assert refused(bench) == ""


def late_region(bench: Bench) -> list[Any]:
    """x is heard for the first time; it must be compared with."""
    ad = Advertise("x", 1, {STREAM: 4}, (INFO,), True, "x/0", life=b"L", disk=b"D", start=1)
    out = bench.give(Received("x/0", ad))
    assert len(sent(out, Compare)) == 1
    return out


def owner_that_waited() -> Bench:
    """Nobody was heard for `ask_ns`."""
    bench = owner(start="ask")
    bench.disk.append(STREAM, (Batch.of(STREAM, [b"v"] * 3).sequenced(1, 1000, 1),))
    bench.says(Committed(STREAM, 4))
    bench.end_of_pass("streams")
    assert refused(bench) == "recovering"
    bench.now_ns = 3 * SECOND
    period(bench)
    assert refused(bench) == ""
    return bench


def test_a_region_that_is_heard_late_is_asked_while_no_position_was_given() -> None:
    bench = owner_that_waited()
    late_region(bench)
    assert refused(bench) == "recovering"


def test_the_first_position_that_is_given_ends_the_asking() -> None:
    bench = owner_that_waited()
    bench.disk.append(STREAM, (Batch.of(STREAM, [b"v"]).sequenced(4, 2000, 1),))
    bench.says(Appended(STREAM, 5))
    bench.says(Committed(STREAM, 5))
    bench.end_of_pass("streams")
    late_region(bench)
    assert refused(bench) == ""


def test_a_position_of_a_stream_that_was_just_made_does_not_end_the_asking() -> None:
    bench = owner_that_waited()
    bench.give(Received("client", CreateStream("new", StreamSpec())))
    (made,) = bench.service.made_now
    info = msgspec.structs.replace(INFO, stream_id=made, name="new")
    bench.lists(info, 1)
    bench.disk.append(made, (Batch.of(made, [b"v"]).sequenced(1, 2000, 1),))
    bench.says(Appended(made, 2))
    bench.says(Committed(made, 2))
    bench.end_of_pass("streams")
    late_region(bench)
    assert refused(bench) == "recovering"
