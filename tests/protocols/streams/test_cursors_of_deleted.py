"""Positions of named subscriptions in deleted streams are removed, at every replica.

Scenarios in the simulator, each with the unchanged machines and with a mutant that lacks the rule.
"""

from typing import Any

import pytest

from surecast.columns.retention import KeepAll
from surecast.core.endpoint import WhichCursors
from surecast.core.types import MS, SECOND
from surecast.protocols.streams import cursors as cursors_module
from surecast_lab.swarm.cluster import Cluster
from tests import mutations
from tests.helpers import cluster_of, each_scenario, publish, run, wait
from tests.protocols.streams.askers import Asker
from tests.protocols.streams.test_deletion import (
    delete,
    is_deleted_everywhere,
    recreate,
    replicas,
    streams_at,
)


def cursors_at(cluster: Cluster, node: str) -> Any:
    return cluster.world.machine(node).layers["cursors"]


def left_in(cluster: Cluster, stream: bytes) -> list[str]:
    """The positions in a stream that replicas still have."""
    return [
        f"{node}: {name} has position {cursor.positions[stream]}"
        for node in replicas(cluster)
        for name, cursor in cursors_at(cluster, node).table.items()
        if stream in cursor.positions
    ]


def saved(mutant: type | None = None, regions: dict[str, int] | None = None) -> Any:
    """A cluster with a holder that has saved position 4 of `s` and 3 of `t`."""
    streams = {"s": ("east", KeepAll()), "t": ("east", KeepAll())}
    cluster = cluster_of(regions or {"east": 2}, streams, mutant=mutant)
    for stream in streams:
        publish(cluster, 5, stream=stream)
    wait(cluster, lambda: not cluster.unacknowledged())
    asker = Asker(cluster, "east/app")
    assert asker.answer(asker.attach()).why == ""
    for stream, seq in (("s", 4), ("t", 3)):
        assert asker.answer(asker.advance(cluster.streams[stream], seq)).why == ""
    return cluster, asker


def positions_are_removed(mutant: type | None) -> list[str]:
    cluster, _ = saved(mutant)
    delete(cluster, "east/pub0")
    wait(cluster, lambda: is_deleted_everywhere(cluster))
    run(cluster, SECOND)
    kept = cluster.streams["t"]
    assert len(left_in(cluster, kept)) == 2  # that of the other stream stays
    return left_in(cluster, cluster.streams["s"])


def a_late_acknowledgement_saves_nothing(mutant: type | None) -> list[str]:
    cluster, asker = saved(mutant)
    delete(cluster, "east/pub0")
    wait(cluster, lambda: is_deleted_everywhere(cluster))
    run(cluster, SECOND)
    assert asker.answer(asker.advance(cluster.streams["s"], 6)).why == ""
    run(cluster, SECOND)
    return left_in(cluster, cluster.streams["s"])


def a_new_head_removes_what_its_predecessor_left(mutant: type | None) -> list[str]:
    """The head crashes when the tail has committed the End event and the head does not know it."""
    cluster, _ = saved(mutant)
    head, tail = (member.name for member in cluster.members("east"))
    stream = cluster.streams["s"]
    end = streams_at(cluster, tail).committed_end(stream)
    delete(cluster, "east/pub0")
    wait(cluster, lambda: streams_at(cluster, tail).committed_end(stream) == end + 1)
    assert streams_at(cluster, head).committed_end(stream) == end
    cluster.world.crash(head)
    wait(cluster, lambda: cursors_at(cluster, tail).is_head)
    assert streams_at(cluster, tail).is_deleted(stream)
    cluster.world.heal_all()
    wait(cluster, lambda: bool(cluster.world.machine(head)))
    wait(cluster, lambda: is_deleted_everywhere(cluster))
    run(cluster, 3 * SECOND)
    return left_in(cluster, stream)


SCENARIOS = [
    ("removed", positions_are_removed, mutations.KeepsPositionsOfDeletedStreams),
    ("late", a_late_acknowledgement_saves_nothing, mutations.SavesPositionsInDeletedStreams),
    ("new-head", a_new_head_removes_what_its_predecessor_left, mutations.LooksForNoPositions),
]


@each_scenario(SCENARIOS)
def test_rule_holds(scenario: Any, mutant: type) -> None:
    assert scenario(None) == []


@each_scenario(SCENARIOS)
def test_scenario_fails_without_the_rule(scenario: Any, mutant: type) -> None:
    assert scenario(mutant) != []


def test_many_positions_are_removed_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursors_module, "REMOVED_AT_ONCE", 3)
    cluster, asker = saved()
    for number in range(10):
        name = f"sub.{number}"
        assert asker.answer(asker.attach(name)).why == ""
        assert asker.answer(asker.advance(cluster.streams["s"], 2, name)).why == ""
    asker.answer(asker.delete("sub.3"))
    delete(cluster, "east/pub0")
    asker.delete("sub.4")  # at the same time
    wait(cluster, lambda: is_deleted_everywhere(cluster))
    run(cluster, SECOND)
    assert left_in(cluster, cluster.streams["s"]) == []
    for node in replicas(cluster):
        names = sorted(cursors_at(cluster, node).table)
        assert names == ["sub", *(f"sub.{n}" for n in range(10) if n not in (3, 4))]


def test_removed_positions_stay_removed_after_a_restart() -> None:
    cluster, asker = saved()
    delete(cluster, "east/pub0")
    wait(cluster, lambda: is_deleted_everywhere(cluster))
    run(cluster, SECOND)
    for node in replicas(cluster):
        cluster.world.crash(node)
    run(cluster, SECOND)
    cluster.world.heal_all()
    wait(cluster, lambda: all(cluster.world.machine(node) for node in replicas(cluster)))
    wait(cluster, lambda: is_deleted_everywhere(cluster))
    run(cluster, 3 * SECOND)
    assert left_in(cluster, cluster.streams["s"]) == []
    assert len(left_in(cluster, cluster.streams["t"])) == 2
    token = asker.ask(WhichCursors("sub", ("", b"")))
    (state,) = asker.answer(token).cursors
    assert [position.stream for position in state.positions] == ["t"]


def test_removals_count_as_dead_entries_and_are_compacted_away() -> None:
    streams = {"s": ("east", KeepAll()), "t": ("east", KeepAll())}
    server = {"cursors_dead_max": 3, "compact_ns": 100 * MS, "piece_rows_max": 4}
    cluster = cluster_of({"east": 2}, streams, server=server)
    for stream in streams:
        publish(cluster, 5, stream=stream)
    asker = Asker(cluster, "east/app")
    for number in range(5):
        name = f"sub.{number}"
        assert asker.answer(asker.attach(name)).why == ""
        for stream in streams:
            assert asker.answer(asker.advance(cluster.streams[stream], 2, name)).why == ""
    delete(cluster, "east/pub0")
    wait(cluster, lambda: is_deleted_everywhere(cluster))
    run(cluster, 5 * SECOND)
    for node in replicas(cluster):
        assert cluster.counters[node]["streams.cursors-copied"] == (node == "east/0")
        assert cursors_at(cluster, node).stored.dead == 0
        cluster.world.crash(node)
    cluster.world.heal_all()
    run(cluster, 5 * SECOND)
    assert left_in(cluster, cluster.streams["s"]) == []
    assert len(left_in(cluster, cluster.streams["t"])) == 10


def test_a_reset_ignores_a_stream_that_was_deleted_meanwhile() -> None:
    cluster, asker = saved()
    delete(cluster, "east/pub0")
    wait(cluster, lambda: is_deleted_everywhere(cluster))
    assert asker.answer(asker.reset(cluster.streams["s"], 2)).why == ""
    run(cluster, 200 * MS)
    assert left_in(cluster, cluster.streams["s"]) == []


def test_the_new_stream_of_the_name_begins_without_a_position() -> None:
    cluster, asker = saved(regions={"east": 2, "west": 1})
    delete(cluster, "west/pub0")
    wait(cluster, lambda: is_deleted_everywhere(cluster))
    info = recreate(cluster, "east/pub0")
    run(cluster, SECOND)
    assert left_in(cluster, info.stream_id) == []
    answer = asker.answer(asker.attach())
    assert answer.positions == {cluster.streams["t"]: 3}
