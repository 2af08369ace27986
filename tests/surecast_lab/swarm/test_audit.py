"""The judge of large runs, compared with the judge of small runs on correct and falsified runs."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.surecast_lab.swarm.runs import EVENTS, SPOILT, Run, lose

from surecast.errors import UsageError
from surecast_lab.swarm.audit import judge
from surecast_lab.swarm.audit_log import Marks, load_offered, load_read, numbers, save

# ---------------------------------------------------------------- correct runs


@pytest.mark.parametrize("seed", range(8))
def test_both_judges_accept_a_correct_run(seed: int) -> None:
    run = Run(seed)
    tally, twin = run.judged(), run.judged_by_twin()
    assert tally == twin
    assert tally.violations == []
    assert (tally.published, tally.acked) == (EVENTS, EVENTS)
    assert tally.delivered + tally.void == EVENTS * len(run.readers)


# ---------------------------------------------------------------- falsified runs


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda spoil: spoil.__name__)
@pytest.mark.parametrize("seed", range(3))
def test_both_judges_find_a_falsified_run(spoil: Callable[[Run], None], seed: int) -> None:
    run = Run(seed)
    spoil(run)
    tally, twin = run.judged(), run.judged_by_twin()
    assert twin.violations, "the judge of small runs found nothing"
    assert any(words.startswith(SPOILT[spoil]) for words in tally.violations), tally.violations
    assert (tally.published, tally.acked) == (twin.published, twin.acked)
    assert tally.delivered == twin.delivered
    for name in ("lost", "duplicated", "misordered"):
        assert bool(getattr(tally, name)) or not getattr(twin, name), name


def test_a_value_offered_twice_cannot_be_judged() -> None:
    run = Run(1)
    run.offered.value = run.offered.value.copy()
    run.offered.value[5] = run.offered.value[4]
    assert "the publisher offered one value twice" in run.judged().violations[0]


def test_lost_events_are_counted() -> None:
    run = Run(1)
    lose(run)
    tally = run.judged()
    assert tally.lost == 1
    assert tally.violations[0].startswith("G4 r0: neither delivered nor outdated ")


@pytest.mark.parametrize("seed", range(8))
def test_reported_voids_must_match_the_gaps(seed: int) -> None:
    run = Run(seed)
    with_voids = [r for r in run.readers if r.voids is not None and len(r.voids) > 1]
    for reader in with_voids:
        assert reader.voids is not None
        sound = reader.voids
        reader.voids = sound[1:]
        assert "skipped without a void" in "".join(run.judged().violations)
        reader.voids = np.concatenate((sound, [[EVENTS, EVENTS + 1]]))
        assert "void and an event at" in "".join(run.judged().violations)
        reader.voids = np.concatenate((sound[:1], sound))
        assert "overlap" in "".join(run.judged().violations)
        reader.voids = sound
    assert run.judged().violations == []


def test_an_event_of_another_size_is_a_violation() -> None:
    run = Run(2)
    run.readers[0].malformed = 1
    assert "changed on the way" in run.judged().violations[0]


# ---------------------------------------------------------------- files


def test_audit_logs_can_be_saved_and_loaded(tmp_path: Path) -> None:
    run = Run(3)
    run.offered.marks = Marks(np.array([5, 6]), np.array([1, 2]))
    save(tmp_path / "p.npz", run.offered)
    for reader in run.readers:
        save(tmp_path / f"{reader.reader}.npz", reader)
    offered = load_offered(tmp_path / "p.npz")
    assert offered.marks.at_ns.tolist() == [5, 6]
    again = (load_read(tmp_path / f"{reader.reader}.npz") for reader in run.readers)
    assert judge(offered, again, run.end) == run.judged()


def test_numbers_compare_as_their_bytes_do() -> None:
    column = numbers(b"u0000042u0000043")
    assert column.tolist() == [int.from_bytes(b"u0000042", "big"), 0x7530303030303433]
    with pytest.raises(UsageError, match="9 bytes"):
        numbers(b"123456789")
