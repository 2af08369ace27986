"""Rules for damage and rollbacks: a scenario for each, run with the rule and without it."""

from collections.abc import Callable
from random import Random

from surecast.columns.retention import KeepAll
from surecast.core.types import SECOND
from tests import mutations
from tests.helpers import cluster_of, each_scenario, heal_and_judge, publish, run, settle, wait
from tests.protocols.test_damage import (
    CHAIN,
    damage,
    forked,
    holes,
    members,
    restored_when_the_other_region_has_just_caught_up,
    roles,
    rows_of,
    start,
    stop,
)

Scenario = Callable[[type | None], list[str]]


def hole_at_the_tail(mutant: type | None) -> list[str]:
    """The tail restarts before the head, with a record that it cannot read."""
    cluster = cluster_of({"east": 2, "west": 1}, mutant=mutant, chain=CHAIN)
    publish(cluster, 30)
    settle(cluster)
    head, name = members(cluster)
    for replica in (head, name):
        stop(cluster, replica)
    damage(cluster, name, 10, 12)
    start(cluster, name)
    for _ in range(30):
        run(cluster, SECOND // 10)
        if holes(cluster, name) and roles(cluster, name) != (False, False):
            return [f"{name} serves"]
    publish(cluster, 1)
    problems = heal_and_judge(cluster)
    return problems or [f"{hole} was not repaired" for hole in holes(cluster, name)]


def only_copy_behind_a_hole(mutant: type | None) -> list[str]:
    """Only a lone owner has the newest events; an event before them is damaged."""
    cluster = cluster_of({"east": 1, "west": 1}, mutant=mutant)
    publish(cluster, 30)
    settle(cluster)
    cluster.world.cut("east", "west")
    publish(cluster, 10)
    wait(cluster, lambda: not cluster.unacknowledged())
    stop(cluster, "east/0")
    damage(cluster, "east/0", 10, 12)
    start(cluster, "east/0")
    return heal_and_judge(cluster)


def older_copy_left_alone(mutant: type | None) -> list[str]:
    """The tail restarts from an older copy, and the head is down."""
    cluster = cluster_of({"east": 2, "west": 1}, mutant=mutant, chain=CHAIN)
    cluster.world.cut("east", "west")
    publish(cluster, 20)
    head, tail = members(cluster)
    cluster.world.copy_disk(tail)
    publish(cluster, 20)
    run(cluster, SECOND)
    for name in (head, tail):
        stop(cluster, name)
    cluster.world.roll_back(tail)
    start(cluster, tail)
    publish(cluster, 5)
    run(cluster, 5 * SECOND)
    return heal_and_judge(cluster)


def journal_cut_short(mutant: type | None) -> list[str]:
    """As above, but the tail's disk itself reports that changes are missing."""
    cluster = cluster_of({"east": 2, "west": 1}, mutant=mutant, chain=CHAIN)
    cluster.world.cut("east", "west")
    publish(cluster, 20)
    head, tail = members(cluster)
    cluster.world.copy_disk(tail)
    cluster.world.copy_disk("east/config")
    publish(cluster, 20)
    run(cluster, SECOND)
    for name in (head, tail):
        stop(cluster, name)
    cluster.world.damage(tail, "journal", Random(1))
    stop(cluster, "east/config")
    cluster.world.roll_back("east/config")  # so the witness does not know either
    start(cluster, "east/config")
    start(cluster, tail)
    publish(cluster, 5)
    run(cluster, 5 * SECOND)
    return heal_and_judge(cluster)


def owner_restored(mutant: type | None) -> list[str]:
    """A lone owner and its witness restart from older copies; another region is cut off."""
    cluster = cluster_of({"east": 1, "west": 1}, mutant=mutant, publishers=2)
    publish(cluster, 20)
    settle(cluster)
    for name in ("east/0", "east/config"):
        cluster.world.copy_disk(name)
    publish(cluster, 20)
    settle(cluster)
    cluster.world.cut("east", "west")
    for name in ("east/0", "east/config"):
        stop(cluster, name)
        cluster.world.roll_back(name)
        start(cluster, name)
    publish(cluster, 5, "east/pub1")
    run(cluster, SECOND)
    return heal_and_judge(cluster)


def histories_meet(mutant: type | None) -> list[str]:
    cluster, values = forked({"east": 1, "west": 1}, KeepAll(), mutant=mutant)
    cluster.world.network.wiring.mend_all()
    cluster.world.network.rewire(cluster.world.now_ns)
    run(cluster, 10 * SECOND)
    ours, theirs = (rows_of(cluster, node, "s") for node in ("east/0", "west/0"))
    problems = [f"{seq} has two events" for seq in ours if ours[seq] != theirs.get(seq)]
    if problems or len(ours) != 40:
        return problems or [f"{len(ours)} events"]
    names = cluster.world.machine("east/0").layers["streams"].directory.by_name
    kept = list(rows_of(cluster, "east/0", "_quarantine.s.21").values()) if len(names) > 1 else []
    return [] if kept == values else ["what was taken back is gone"]


def publishers_nobody_knows(mutant: type | None) -> list[str]:
    """R4: the restored owner and the other region have the events without the publishers' state."""
    regions = {"east": 1, "west": 1}
    cluster = restored_when_the_other_region_has_just_caught_up(regions, mutant)
    publish(cluster, 3)
    problems = heal_and_judge(cluster)
    return [problem for problem in problems if not problem.endswith("failed: expired")]


def publishers_one_region_knows(mutant: type | None) -> list[str]:
    """R4: one of two other regions has the publishers' state."""
    regions = {"east": 1, "west": 1, "north": 1}
    cluster = restored_when_the_other_region_has_just_caught_up(regions, mutant)
    publish(cluster, 3)
    return heal_and_judge(cluster)


SCENARIOS: list[tuple[str, Scenario, type]] = [
    ("holes", hole_at_the_tail, mutations.ServesWithHoles),
    ("behind-holes", only_copy_behind_a_hole, mutations.CutsAtHoles),
    ("older-copy", older_copy_left_alone, mutations.IgnoresOlderCopies),
    ("lost-changes", journal_cut_short, mutations.IgnoresLostChanges),
    ("ask", owner_restored, mutations.NumbersAtOnce),
    ("compare", histories_meet, mutations.MixesHistories),
    ("quarantine", histories_meet, mutations.DropsHistories),
    ("nobody-knows", publishers_nobody_knows, mutations.KeepsOutdatedPublishers),
    ("one-knows", publishers_one_region_knows, mutations.TakesUnsureAnswers),
]


@each_scenario(SCENARIOS)
def test_rule_holds(scenario: Scenario, mutant: type) -> None:
    assert scenario(None) == []


@each_scenario(SCENARIOS)
def test_scenario_fails_without_the_rule(scenario: Scenario, mutant: type) -> None:
    assert scenario(mutant) != []
