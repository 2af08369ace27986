"""The swarm with meshes: fixed seeds pass, broken clients are caught, plans are within bounds."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest
from tests.goldens import Outputs, stored

from surecast.columns.retention import KeepAll
from surecast.core.types import MS, SECOND, Peer, Start
from surecast.parts.peer_sampling import View
from surecast.protocols.sprinkler.config import MeshConfig
from surecast.protocols.sprinkler.mesh_membership import Feed
from surecast.protocols.sprinkler.mesh_peer import MeshPeer
from surecast.protocols.sprinkler.messages import MeshEvents
from surecast.sim.faults import Crash, Pause
from surecast.sim.trace import Trace
from surecast_lab.swarm.cluster import Cluster
from surecast_lab.swarm.sprinkler_mesh import draw_plan, run_seed
from surecast_lab.swarm.timeline import Timeline
from surecast_lab.swarm.trial import WARM_UP_NS, SeedResult, heal_all

SEEDS = (36, 21, 37, 19, 9, 4)  # cheap seeds of many kinds; the last has many clients


@pytest.fixture(scope="module")
def results() -> list[SeedResult]:
    return [run_seed(seed, trace=Outputs()) for seed in SEEDS]


@pytest.mark.slow
def test_the_golden_digests_of_the_seeds_are_unchanged(results: list[SeedResult]) -> None:
    golden = stored()["sprinkler-mesh"]
    assert {r.seed: r.trace_digest for r in results} == {seed: golden[str(seed)] for seed in SEEDS}


@pytest.mark.slow
def test_fixed_seeds_pass(results: list[SeedResult]) -> None:
    for result in results:
        print(f"seed {result.seed}: {result.violations}")
        assert result.ok
        assert result.violations == []
        assert (result.lost, result.duplicated, result.misordered) == (0, 0, 0)
        assert 0 < result.acked == result.published < result.delivered


@pytest.mark.slow
def test_the_seeds_have_many_kinds_of_client_activity(results: list[SeedResult]) -> None:
    total: Counter[str] = Counter()
    for result in results:
        total.update(result.clients)
    assert total["came"] >= 5 * len(SEEDS)
    assert min(total["left"], total["crashed"], total["stalled"], total["changed"]) > 0
    assert total["got from peers"] > 1000
    assert total["got from servers"] > 1000


@pytest.mark.slow
def test_every_handler_of_the_mesh_is_reached(results: list[SeedResult]) -> None:
    handlers = {f"MeshPeer.{name}" for name in MeshPeer.handlers.values()}
    handlers |= {f"MeshServer.{name}" for name in ("_on_view", "_on_request", "_on_leave")}
    totals: Counter[str] = Counter()
    for result in results:
        assert handlers <= set(result.coverage)
        assert not {"Replica._on_patch", "Replica._on_wanted"} & set(result.coverage)  # no damage
        totals.update(result.coverage)
    assert sorted(handler for handler in handlers if not totals[handler]) == []


@pytest.mark.slow
def test_a_timeline_does_not_change_the_run_and_can_be_drawn(
    results: list[SeedResult], tmp_path: Path
) -> None:
    timeline = Timeline()
    assert run_seed(SEEDS[0], timeline=timeline, trace=Outputs()) == results[0]
    assert len(timeline.spans) == sum(results[0].faults.values())
    clients = {r for lines in timeline.lines.values() for r in lines if "/sub" not in r}
    assert len(clients) == results[0].clients["came"]
    for stream, lines in timeline.lines.items():  # all readers reach the end
        last_s = timeline.times_s[-1]
        ends = {line.positions[-1] for line in lines.values() if line.times_s[-1] == last_s}
        assert len(ends) == 1, stream
        assert ends.pop() >= timeline.ends[stream][-1]
    timeline.draw(tmp_path / "seed.png", "a test")
    assert (tmp_path / "seed.png").read_bytes().startswith(b"\x89PNG")


# ---------------------------------------------------------------- a swarm that can fail


class NeverFallsBack(MeshPeer):
    """Without G4: positions that a peer does not send are not requested from a server."""

    def _fill(self, feed: Feed) -> None:
        pass

    def _mind_silence(self, feed: Feed) -> None:
        pass


class TakesHolesForVoids(MeshPeer):
    """Without G2: events are delivered although positions before them are missing."""

    def _on_events(self, peer: Peer, message: MeshEvents) -> None:
        feed = self.feeds.get(message.stream)
        if feed is not None and feed.position and message.batches:
            feed.position = max(feed.position, message.batches[0].lo)
        super()._on_events(peer, message)


class _Everybody(View):
    def merge(self, sender: Peer, theirs: Iterable[Peer], rng: Random) -> None:
        self.size_max = 1 << 30
        super().merge(sender, theirs, rng)


class KnowsEverybody(MeshPeer):
    """Without G12: views are not bounded."""

    view_type: ClassVar[type[View]] = _Everybody


class HoardsEvents(MeshPeer):
    """Without G11: delivered events are never dropped."""

    def _on_start(self, inp: Start) -> None:
        self.config = replace(self.config, keep_bytes_max=1 << 40)
        super()._on_start(inp)


class NeverQuiet(MeshPeer):
    """Without R12: servers are polled all the time, also without new events."""

    def _gossip(self) -> None:
        super()._gossip()
        for feed in self.feeds.values():
            for _ in range(5):
                self._ask_rest(feed, self.server)


# Mutant → the guarantee that it is found to break.
MUTANTS: dict[type[MeshPeer], str] = {
    NeverFallsBack: "G9",
    TakesHolesForVoids: "G2",
    KnowsEverybody: "G12",
    HoardsEvents: "G11",
    NeverQuiet: "R12",
}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_client_is_caught(mutant: type[MeshPeer]) -> None:
    """One of a few seeds, which the unchanged client passes, finds the fault."""
    for seed in SEEDS[:4]:
        found = run_seed(seed, client_type=mutant).violations
        if any(MUTANTS[mutant] in violation for violation in found):
            return
    pytest.fail("a swarm that cannot fail would be worthless")


# ---------------------------------------------------------------- plans


def test_the_plan_of_a_seed_is_stable() -> None:
    plans = [draw_plan(seed) for seed in range(50)]
    assert plans == [draw_plan(seed) for seed in range(50)]
    assert all(a != b for i, a in enumerate(plans) for b in plans[:i])


def test_plans_are_within_the_documented_bounds() -> None:
    meshes: Counter[str] = Counter()
    client_faults: Counter[type] = Counter()
    sizes = []
    for seed in range(200):
        plan = draw_plan(seed)
        mesh = plan.mesh
        assert mesh is not None
        assert 2 <= len(plan.regions) <= 4
        assert 5 <= len(mesh.visits) <= 60
        sizes.append(len(mesh.visits))
        names = {visit.name for visit in mesh.visits}
        assert len(names) == len(mesh.visits)
        meshes["default"] += mesh.config == MeshConfig()
        meshes["paper"] += mesh.config.shuffle_ns == 30 * MS
        meshes["tiny view"] += mesh.config.view_max <= 3
        meshes["tiny buffers"] += mesh.client.get("early_bytes_max", 1 << 30) <= 500
        meshes["soon congested"] += mesh.high_water_bytes < 1 << 20
        for visit in mesh.visits:
            assert visit.follows.keys() <= plan.streams.keys()
            assert visit.name.split("/")[0] in plan.regions
        starts = [skip for visit in mesh.visits for skip in visit.follows.values()]
        meshes["earliest"] += 0.0 in starts
        meshes["latest"] += 1.0 in starts
        meshes["from a seq"] += any(0 < skip < 1 for skip in starts)
        for timed in plan.faults:
            assert timed.at_ns >= WARM_UP_NS
            if getattr(timed.fault, "name", "") in names:
                client_faults[type(timed.fault)] += 1
    assert min(sizes) < 8
    assert max(sizes) > 55
    assert min(meshes.values()) > 20, meshes
    assert min(client_faults[Crash], client_faults[Pause]) > 100


# ---------------------------------------------------------------- clients of a cluster


def test_a_client_that_left_is_not_restarted_and_one_that_follows_again_has_two_readings() -> None:
    cluster = Cluster(1, {"a": 1}, trace=Trace(keep=False))
    cluster.open("s", "a", KeepAll())
    world = cluster.world
    assert world.run(5 * SECOND, until=lambda _: "s" in cluster.streams)
    for name in ("a/c0", "a/c1"):
        cluster.add_client(name, {"s": 1})
    cluster.offer(world.now_ns, "a/pub0", "s", [b"1", b"2", b"3"])
    world.run(world.now_ns + 2 * SECOND)
    cluster.unfollow("a/c0", "s")
    cluster.remove_client("a/c1")
    world.run(world.now_ns + SECOND)
    cluster.offer(world.now_ns, "a/pub0", "s", [b"4"])
    world.run(world.now_ns + SECOND)
    cluster.follow("a/c0", "s", 2)
    heal_all(world, cluster.gone)
    world.run(world.now_ns + SECOND)
    assert world.run(world.now_ns + 10 * SECOND, until=lambda _: cluster.settled())
    assert world.machine("a/c1") is None
    readings = [r for r in cluster.records["s"].readings if r.reader.startswith("a/c")]
    got = {(r.reader, r.left): [event.value for event in r.events] for r in readings}
    assert got == {
        ("a/c0", True): [b"1", b"2", b"3"],
        ("a/c1", True): [b"1", b"2", b"3"],
        ("a/c0", False): [b"2", b"3", b"4"],
    }
    assert cluster.judge().violations == []
