"""Comparing histories, step by step: what does not need a whole cluster."""

from surecast.protocols.sprinkler.forks import DONE_MAX, Quarantined, Search
from tests.protocols.sprinkler.test_switching import INFO, Bench

GONE = b"x" * 16  # of a stream that the directory no longer has


def test_streams_that_are_forgotten_meanwhile_are_told_by_their_id() -> None:
    """A chain that is founded anew forgets its directory; alarms are read at any time."""
    bench = Bench()
    bench.role(1)
    bench.knows()
    forks = bench.proxy.forks
    forks.searches[GONE] = Search("y", 7, 3)
    forks.others[GONE] = {"z": 5}
    forks.others[INFO.stream_id] = {"z": 9}
    told = forks.told(10)
    assert sum(GONE.hex() in line for line in told) == 2
    assert any(line.startswith(f"{INFO.name}: z has later events") for line in told)
    bench.proxy.limited(GONE)  # nothing to show, nothing to raise


def test_only_so_many_lines_are_told() -> None:
    bench = Bench()
    forks = bench.proxy.forks
    forks.done += [Quarantined(f"s{n}", 1, 2, "copy", "y") for n in range(DONE_MAX)]
    assert len(forks.told(10)) == 10
