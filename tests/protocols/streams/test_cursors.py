"""Named subscriptions: positions survive clients and servers, and a name has one holder at a time.

PRODUCT §8.8. Each scenario runs with the unchanged machines and with a mutant that lacks the rule.
"""

from collections.abc import Callable
from typing import Any

import pytest

from surecast.core.replicated import Refound
from surecast.core.streams import CURSORS
from surecast.core.types import MS, SECOND, Command, Received
from surecast.protocols.streams.cursors import Cursors
from surecast.protocols.streams.messages import Advance, Attach
from surecast_lab.swarm.cluster import Cluster
from tests import mutations
from tests.helpers import cluster_of, each_scenario, publish, run, settle, wait
from tests.protocols.streams.askers import Asker

Scenario = Callable[[type | None], list[str]]


def cursors_of(cluster: Cluster, node: str) -> Cursors:
    found: Cursors = cluster.world.machine(node).layers["cursors"]
    return found


def log_end(cluster: Cluster, node: str) -> int:
    """The end of the cursors' log at a node."""
    return int(cluster.world.machine(node).layers["streams"].end_of(CURSORS))


def of_three(mutant: type | None = None, events: int = 20, **options: Any) -> tuple[Cluster, bytes]:
    """A region of three replicas, which accepts publishes with one, and a stream with events."""
    cluster = cluster_of({"east": 3}, mutant=mutant, chain={"min_replicas": 1}, **options)
    publish(cluster, events)
    settle(cluster)
    return cluster, cluster.streams["s"]


def members(cluster: Cluster) -> list[str]:
    return [m.name for m in cluster.members("east")]


def held(asker: Asker, token: int) -> dict[bytes, int]:
    answer = asker.answer(token)
    assert answer.why == ""
    return dict(answer.positions)


# ---------------------------------------------------------------- plain use


def test_cursor_position_is_kept_for_the_next_holder() -> None:
    cluster, stream = of_three()
    one, two = Asker(cluster, "east/one"), Asker(cluster, "east/two")
    first = one.attach()
    assert held(one, first) == {}  # streams without a saved position begin at 1
    assert one.answer(one.advance(stream, 7)).why == ""
    assert held(two, two.attach()) == {stream: 7}
    assert one.answer(first).why == "fenced"  # sent without a request
    assert one.answer(one.advance(stream, 9)).why == "fenced"
    assert held(two, two.attach(take=False)) == {stream: 7}


def test_cursor_never_moves_backwards() -> None:
    cluster, stream = of_three()
    one = Asker(cluster, "east/one")
    held(one, one.attach())
    for seq in (5, 9, 3, 9):
        assert one.answer(one.advance(stream, seq)).why == ""
    assert held(one, one.attach()) == {stream: 9}


def test_cursor_of_each_name_is_its_own() -> None:
    cluster, stream = of_three()
    one = Asker(cluster, "east/one")
    for name, seq in (("a", 3), ("b", 5), ("a.b", 7)):
        held(one, one.attach(name))
        assert one.answer(one.advance(stream, seq, name)).why == ""
    assert [held(one, one.attach(n))[stream] for n in ("a", "b", "a.b")] == [3, 5, 7]


def test_cursor_without_take_does_not_fence() -> None:
    cluster, _ = of_three()
    one, two = Asker(cluster, "east/one"), Asker(cluster, "east/two")
    first = one.attach()
    held(one, first)
    assert two.answer(two.attach(take=False)).why == "fenced"
    run(cluster, SECOND)
    assert [a.why for a in one.answers[first]] == [""]


@pytest.mark.parametrize("name", ["", "a b", "*", "x" * 300])
def test_cursor_with_an_invalid_name_is_refused(name: str) -> None:
    cluster, _ = of_three(events=0)
    one = Asker(cluster, "east/one")
    assert one.answer(one.attach(name)).why == "bad-name"


def test_cursor_names_with_writes_in_progress_count_once() -> None:
    """A known name with a write in progress counts once, not twice."""
    cluster, stream = of_three(server={"cursors_max": 3})
    one = Asker(cluster, "east/one")
    for name in ("a", "b"):
        held(one, one.attach(name))
    moves = [one.advance(stream, seq, name) for seq in (2, 3) for name in ("a", "b")]
    third = one.attach("c")  # while the moves are in progress
    assert one.answer(third).why == ""
    assert [one.answer(move).why for move in moves] == [""] * 4
    assert one.answer(one.attach("d")).why == "too-many"
    assert one.answer(one.attach("a")).why == ""


def test_cursor_advance_beyond_the_end_of_the_head_waits() -> None:
    """A client that read more elsewhere advances beyond the head's end: the answer waits."""
    cluster, stream = of_three(events=5)
    one = Asker(cluster, "east/one")
    held(one, one.attach())
    token = one.advance(stream, 9)
    run(cluster, 2 * SECOND)
    assert token not in one.answers
    publish(cluster, 5)
    assert one.answer(token).why == ""


def test_cursor_position_1_is_saved_only_for_known_streams() -> None:
    cluster, stream = of_three(events=5)
    one = Asker(cluster, "east/one")
    held(one, one.attach())
    assert one.answer(one.advance(stream, 1)).why == ""
    assert held(one, one.attach()) == {stream: 1}
    token = one.advance(b"?" * 16, 1)
    run(cluster, SECOND)
    assert token not in one.answers  # the stream may still be created
    assert cursors_of(cluster, "east/0").table["sub"].positions == {stream: 1}


# ---------------------------------------------------------------- crashes


@pytest.mark.parametrize("place", [0, 1, 2], ids=["head", "middle", "tail"])
def test_cursor_survives_the_crash_of_any_replica(place: int) -> None:
    cluster, stream = of_three()
    one, two = Asker(cluster, "east/one"), Asker(cluster, "east/two")
    held(one, one.attach())
    assert one.answer(one.advance(stream, 7)).why == ""
    cluster.world.crash(f"east/{place}")
    token = one.advance(stream, 8)  # repeated until a replica answers
    assert one.answer(token).why == ""
    assert held(two, two.attach()) == {stream: 8}
    cluster.world.restart(f"east/{place}")
    wait(cluster, lambda: len(members(cluster)) == 3)
    run(cluster, SECOND)
    for node in ("east/0", "east/1", "east/2"):
        cursor = cursors_of(cluster, node).table["sub"]
        assert (cursor.holder, cursor.positions) == (two.me, {stream: 8})


def test_cursor_survives_a_crash_of_all_and_compaction() -> None:
    cluster, stream = of_three(server={"compact_ns": 100 * MS})
    one, two = Asker(cluster, "east/one"), Asker(cluster, "east/two")
    held(one, one.attach())
    for seq in range(2, 21):
        assert one.answer(one.advance(stream, seq)).why == ""
        assert one.answer(one.advance(stream, 2, "sub")).why == ""
        held(one, one.attach("other"))
    run(cluster, SECOND)
    log = cluster.world.disk("east/0")
    end = log.end(CURSORS)
    rows = sum(batch.rows for batch in log.read(CURSORS, 1, end, 1 << 30))
    assert rows < end - 1  # the latest of each key, and newer entries
    for node in ("east/0", "east/1", "east/2"):
        cluster.world.crash(node)
        cluster.world.restart(node)
    assert held(two, two.attach()) == {stream: 20}
    assert held(two, two.attach("other")) == {}


def test_cursor_request_is_repeated_when_its_answer_was_lost() -> None:
    cluster, stream = of_three()
    one = Asker(cluster, "east/one")
    held(one, one.attach())
    world = cluster.world
    world.cut("east/0", "east/one", two_way=False)
    token = one.advance(stream, 5)
    run(cluster, 300 * MS)
    end = log_end(cluster, "east/0")
    assert cursors_of(cluster, "east/0").table["sub"].positions == {stream: 5}
    world.mend("east/0", "east/one", two_way=False)
    assert one.answer(token).why == ""
    assert log_end(cluster, "east/0") - end <= 2  # answered again, not written again


def test_cursor_requests_at_a_stalled_chain_do_not_accumulate() -> None:
    """A request that is repeated 50 times takes one place in the queue and one log entry."""
    cluster, stream = of_three()
    one = Asker(cluster, "east/one", ("east/0",))
    held(one, one.attach())
    world = cluster.world
    world.pause("east/1")
    end = log_end(cluster, "east/0")
    message = Advance(77, "sub", one.me, {stream: 5})
    for i in range(50):
        world.at(world.now_ns + i * MS, "east/0", Received("east/one", message))
    run(cluster, 100 * MS)
    assert len(cursors_of(cluster, "east/0").waiting) == 1
    assert log_end(cluster, "east/0") == end + 1


# ---------------------------------------------------------------- scenarios


def barrier(mutant: type | None) -> list[str]:
    """The head crashes while the entry of a new holder is on its way down the chain.

    The next head has the entry and cannot commit it yet. It must not answer from earlier entries,
    because the new holder may have been confirmed already.
    """
    cluster, stream = of_three(mutant)
    world = cluster.world
    one, two = Asker(cluster, "east/one"), Asker(cluster, "east/two")
    held(one, one.attach())
    assert one.answer(one.advance(stream, 5)).why == ""
    run(cluster, 200 * MS)
    world.fail_disk("east/2", "io")  # the tail retries for a while
    two.attach()
    run(cluster, 50 * MS)
    world.crash("east/0")
    wait(cluster, lambda: cursors_of(cluster, "east/1").is_head, 20 * SECOND)
    before = cursors_of(cluster, "east/1").table["sub"].holder
    assert before == one.me, "the scenario needs an entry that is not committed"
    moved = Advance(88, "sub", one.me, {stream: 9})
    world.at(world.now_ns, "east/1", Received("east/one", moved))
    run(cluster, 10 * MS)
    world.heal_all()
    run(cluster, 10 * SECOND)
    table = cursors_of(cluster, members(cluster)[0]).table["sub"]
    if table.holder != two.me:
        return ["the successor was lost"]
    return [] if table.positions == {stream: 5} else ["a replaced holder moved the cursor"]


def fenced_holder(mutant: type | None) -> list[str]:
    """A replaced holder ignores that and advances."""
    cluster, stream = of_three(mutant)
    one, two = Asker(cluster, "east/one"), Asker(cluster, "east/two")
    held(one, one.attach())
    held(two, two.attach())
    one.advance(stream, 15)
    run(cluster, SECOND)
    positions = held(two, two.attach())
    return [] if positions == {} else [f"a replaced holder moved it to {positions}"]


def two_heads(mutant: type | None) -> list[str]:
    """The old head is cut off with the old holder and still acts as head; the new head goes on."""
    cluster, stream = of_three(mutant)
    world = cluster.world
    one, two = Asker(cluster, "east/one"), Asker(cluster, "east/two", ("east/1", "east/2"))
    first = one.attach()
    held(one, first)
    assert one.answer(one.advance(stream, 5)).why == ""
    run(cluster, 200 * MS)
    for other in ("east/1", "east/2", "east/config", "east/two", "east/pub0"):
        world.cut("east/0", other)
    for other in ("east/1", "east/2"):
        world.cut("east/one", other)
    wait(cluster, lambda: members(cluster) == ["east/1", "east/2"])
    assert held(two, two.attach()) == {stream: 5}
    assert two.answer(two.advance(stream, 15)).why == ""
    assert cursors_of(cluster, "east/0").is_head  # it does not know of the new head
    again = one.attach(take=False)  # as after a broken session
    moved = one.advance(stream, 9)
    run(cluster, 2 * SECOND)
    problems = []
    if again in one.answers:
        problems.append(f"sent back to {one.answers[again][0].positions}")
    if moved in one.answers:
        problems.append("the former head moved a cursor")
    world.heal_all()
    run(cluster, 10 * SECOND)
    assert one.answer(first).why == one.answer(again).why == one.answer(moved).why == "fenced"
    assert held(two, two.attach()) == {stream: 15}
    return problems


def lost_with_the_head(mutant: type | None) -> list[str]:
    """The head receives an advance, confirms it, and is lost before another replica has it."""
    cluster, stream = of_three(mutant)
    world = cluster.world
    one, two = Asker(cluster, "east/one"), Asker(cluster, "east/two", ("east/1", "east/2"))
    held(one, one.attach())
    world.cut("east/0", "east/1", two_way=False)
    token = one.advance(stream, 9)
    run(cluster, 20 * MS)
    answered = token in one.answers
    world.crash("east/0")
    world.wipe("east/0")
    world.crash("east/one")
    positions = held(two, two.attach())
    return ["a confirmed advance is lost"] if answered and positions != {stream: 9} else []


def one_after_the_other(mutant: type | None) -> list[str]:
    """The attach of a new holder is written and not committed when the old holder advances."""
    cluster, stream = of_three(mutant)
    world = cluster.world
    one, two = Asker(cluster, "east/one"), Asker(cluster, "east/two")
    held(one, one.attach())
    take = Attach(5, "sub", two.me, True)
    late = Advance(9, "sub", one.me, {stream: 15})
    world.at(world.now_ns, "east/0", Received("east/two", take))
    world.at(world.now_ns + 1, "east/0", Received("east/one", late))
    run(cluster, SECOND)
    table = cursors_of(cluster, "east/0").table["sub"]
    assert table.holder == two.me
    return [] if table.positions == {} else ["the old holder advanced after it was replaced"]


def cut_off_head(mutant: type | None) -> list[str]:
    """A cut-off head writes an advance that is never committed. When the head returns, the advance
    is truncated (R1) and its cursor equals that of the chain, which continued without it."""
    cluster, stream = of_three(mutant)
    world = cluster.world
    one, two = Asker(cluster, "east/one", ("east/0",)), Asker(cluster, "east/two", ("east/1",))
    held(one, one.attach())
    others = ("east/1", "east/2", "east/config")
    for peer in others:
        world.cut("east/0", peer)
    one.advance(stream, 15)
    run(cluster, 100 * MS)
    assert cursors_of(cluster, "east/0").written
    wait(cluster, lambda: members(cluster) == ["east/1", "east/2"])
    assert held(two, two.attach()) == {}
    assert two.answer(two.advance(stream, 3)).why == ""
    for peer in others:
        world.mend("east/0", peer)
    wait(cluster, lambda: len(members(cluster)) == 3)
    run(cluster, SECOND)
    cursors = cursors_of(cluster, "east/0")
    problems = []
    if cursors.table["sub"] != cursors_of(cluster, "east/1").table["sub"]:
        problems.append(f"the head that was away has {cursors.table['sub']}")
    if cursors.table["sub"].positions != {stream: 3}:
        problems.append("an uncommitted advance was kept")
    if cursors.written:
        problems.append("the uncommitted entries still count as written")
    return problems


SCENARIOS: list[tuple[str, Scenario, type]] = [
    ("barrier", barrier, mutations.AnswersBeforeTheBarrier),
    ("fencing", fenced_holder, mutations.MovesForAnybody),
    ("two-heads", two_heads, mutations.AnswersHoldersFromMemory),
    ("durable", lost_with_the_head, mutations.AnswersUncommitted),
    ("order", one_after_the_other, mutations.FencesLate),
    ("taken-back", cut_off_head, mutations.KeepsForks),
]


@each_scenario(SCENARIOS)
def test_cursor_rule_holds(scenario: Scenario, mutant: type) -> None:
    assert scenario(None) == []


@each_scenario(SCENARIOS)
def test_cursor_scenario_fails_without_the_rule(scenario: Scenario, mutant: type) -> None:
    assert scenario(mutant) != []


# ---------------------------------------------------------------- refounded chains


def test_cursor_of_a_refounded_chain_is_that_of_the_chosen_replica() -> None:
    """An operator refounds the chain from one replica; the others discard their later entries."""
    cluster, stream = of_three()
    world = cluster.world
    one = Asker(cluster, "east/one")
    held(one, one.attach())
    assert one.answer(one.advance(stream, 5)).why == ""
    run(cluster, SECOND)
    world.crash("east/0")
    wait(cluster, lambda: len(members(cluster)) == 2)
    world.crash("east/1")
    wait(cluster, lambda: members(cluster) == ["east/2"])
    assert one.answer(one.advance(stream, 9)).why == ""  # only east/2 has this
    run(cluster, SECOND)
    world.crash("east/2")
    world.restart("east/0")
    run(cluster, SECOND)
    world.at(world.now_ns, "east/0", Command("chain", Refound()))
    wait(cluster, lambda: members(cluster) == ["east/0"])
    two = Asker(cluster, "east/two")
    assert held(two, two.attach()) == {stream: 5}
    for node in ("east/1", "east/2"):
        world.restart(node)
    wait(cluster, lambda: len(members(cluster)) == 3)
    run(cluster, SECOND)
    for node in ("east/0", "east/1", "east/2"):
        cursors = cursors_of(cluster, node)
        assert cursors.table["sub"].positions == {stream: 5}
        assert cursors.table["sub"].holder == two.me
        assert cursors.committed == log_end(cluster, "east/0")
        kept = cluster.world.machine(node).layers["streams"].kept[CURSORS]
        assert kept.committed == cursors.committed
