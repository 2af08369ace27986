"""A subscriber that stops reading at full load (acceptance: others undisturbed, memory bounded).

In `make torture` each stall lasts thirty seconds; here, until the other subscribers have received a
number of events. Two cases run every time, the other two nightly.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from surecast_lab.swarm import stall
from surecast_lab.swarm.load import KEYS, Gauge, _table
from surecast_lab.swarm.stall import CASES, run_stall

EVENTS = 300_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        "mesh-stopped",
        "thin-held",
        pytest.param("thin-stopped", marks=pytest.mark.nightly),
        pytest.param("mesh-held", marks=pytest.mark.nightly),
    ],
)
def test_a_subscriber_that_stops_reading_disturbs_no_other_and_misses_nothing(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stall, "WARM", 50_000)
    monkeypatch.setattr(stall, "MEASURED", 50_000)
    result = run_stall(case, tmp_path, events=EVENTS)
    assert result.violations == []
    assert result.rate_during > 0  # otherwise the wait for these events would have failed
    assert result.published_meanwhile > 0
    assert result.published > EVENTS
    assert 0 < result.memory_before <= result.memory_peak <= result.memory_allowed
    assert result.skipped == 0 or CASES[case].retain == "latest"


def read(*tables: pa.Table) -> Gauge:
    """A gauge that received these tables, without a server."""
    gauge = Gauge.__new__(Gauge)
    gauge.position, gauge.events, gauge.faults = 1, 0, []
    gauge.last = np.zeros(KEYS, np.int64)
    for table in tables:
        batch = table.combine_chunks().to_batches()[0]
        gauge._take(batch)
    return gauge


def rows(first: int, count: int, values_from: int | None = None) -> pa.Table:
    table = _table(values_from or first, count)
    return table.append_column("seq", pa.array(range(first, first + count), pa.int64()))


def test_a_reader_may_skip_events_that_were_superseded() -> None:
    gauge = read(rows(1, 10), rows(KEYS + 1, KEYS))
    assert gauge.faults == []
    assert gauge.missing(2 * KEYS + 1) == []


def test_a_reader_that_lacks_the_newest_event_of_a_key_is_reported() -> None:
    gauge = read(rows(1, KEYS), rows(KEYS + 3, 10))
    assert gauge.faults == []
    assert gauge.missing(KEYS + 13) == [KEYS + 1, KEYS + 2]


def test_events_that_come_twice_or_at_wrong_positions_are_reported() -> None:
    assert "[10, 12] was delivered at 11" in read(rows(1, 10), rows(10, 3)).faults[0]
    assert "other events" in read(rows(1, 10), rows(11, 5, values_from=12)).faults[0]
