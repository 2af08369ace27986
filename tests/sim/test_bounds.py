"""Bounds of the simulated network: at each bound, and one step beyond it."""

from random import Random

from tests.edits import Check, Edit, Row, each_check, must_fail

from surecast.core.types import MS
from surecast.sim.links import RETRANSMITS_MAX, Link, Path, Pipe


class Losing(Random):
    """A Random with which the first `lost` attempts are lost."""

    def __init__(self, lost: int) -> None:
        super().__init__(1)
        self.lost = lost

    def random(self) -> float:
        self.lost -= 1
        return 0.0 if self.lost >= 0 else 0.99


def retransmissions() -> None:
    """A message that was lost RETRANSMITS_MAX times arrives, however bad the link is."""
    path = Path("a", "b", Link(delay_ns=10 * MS, loss=0.9), Pipe(), False)
    for lost in (0, 1, RETRANSMITS_MAX):
        assert path.retransmit_ns(Losing(lost)) == lost * 40 * MS
    assert path.retransmit_ns(Losing(RETRANSMITS_MAX + 1)) == RETRANSMITS_MAX * 40 * MS


CHECKS: list[Row] = [
    (
        retransmissions,
        Edit("surecast.sim.links:Path.retransmit_ns", "range(RETRANSMITS_MAX)", "range(1000)"),
    ),
]


@each_check(CHECKS)
def test_bound_holds(check: Check, edit: Edit) -> None:
    check()


@each_check(CHECKS)
def test_a_missing_bound_is_noticed(check: Check, edit: Edit) -> None:
    must_fail(check, edit)
