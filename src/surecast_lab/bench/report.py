"""The result of a benchmark: as an object (and JSON) for programs, as text for people."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from surecast_lab.bench.machine import circumstances

__all__ = ["Progress", "Report", "Row", "quantile", "show"]

Progress = Callable[[int, int, str], None]  # (steps done, steps in all, current step)


class Row(msgspec.Struct):
    """One figure. `params`: everything it depends on, and further measurements."""

    name: str
    value: float
    unit: str
    params: dict[str, Any] = {}


class Report(msgspec.Struct, kw_only=True):
    """The result of a benchmark. `problems` lists errors, such as lost, duplicated, refused or
    misordered events. If there is any, none of the rows is valid."""

    bench: str
    rows: list[Row]
    problems: list[str]
    notes: list[str] = []  # explanations of the figures
    about: dict[str, Any] = msgspec.field(default_factory=circumstances)
    load_average: float = msgspec.field(default_factory=lambda: round(os.getloadavg()[0], 2))

    @property
    def exact(self) -> bool:
        """Whether no problem was found, so that the rows are valid."""
        return not self.problems

    def to_json(self) -> bytes:
        return msgspec.json.encode({**msgspec.structs.asdict(self), "exact": self.exact})

    def lines(self) -> list[str]:
        """The report as text for people."""
        machine = self.about["machine"]
        found = [
            f"{self.bench}: {machine['cpu']}, {machine['cores']} cores, {self.about['commit']}"
        ]
        found += [show(row) for row in self.rows]
        found += [f"  note: {note}" for note in self.notes]
        found += [f"  PROBLEM: {problem}" for problem in self.problems]
        return found


def show(row: Row) -> str:
    value = f"{row.value:,.0f}" if abs(row.value) >= 1000 else f"{row.value:,.4g}"
    params = ", ".join(f"{key}={_short(what)}" for key, what in row.params.items())
    unit = f" {row.unit}" if row.unit else ""
    return f"  {row.name}: {value}{unit}" + (f"  ({params})" if params else "")


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} {_short(item)}" for key, item in value.items()) + "}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest sample such that at least the fraction `share` of all samples is less than or
    equal to it; not interpolated. The samples must be in ascending order."""
    if not ordered:
        raise ValueError("no samples to compute a quantile of")
    place = -(-round(share * len(ordered) * 1e9) // 10**9)  # rounded up, without float errors
    return ordered[max(0, min(len(ordered), place) - 1)]
