"""The pages on states equal the state tables. After a change of a table, rewrite the pages with

SURECAST_REWRITE=1 python -m pytest tests/surecast_lab/lab/test_state_pages.py
"""

import os
import re
from pathlib import Path

import pytest

from surecast.core.sessions import SESSION
from surecast.core.states import StateTable
from surecast.protocols.chain.states import LEARNER, REPLICA, SERVICE
from surecast_lab.lab.state_pages import PAGES

DOCS = Path(__file__).parents[3] / "docs"
TABLES = {
    "protocols/chain-states.md": (REPLICA, LEARNER, SERVICE),
    "session-states.md": (SESSION,),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_equals_the_one_generated_from_its_tables(name: str) -> None:
    made = PAGES[name]()
    if os.environ.get("SURECAST_REWRITE"):
        (DOCS / name).write_text(made)
    assert (DOCS / name).read_text() == made


def drawn(table: StateTable, page: str) -> set[tuple[str, str, str]]:
    """The arrows of a table's diagram, one for each input."""
    found = set()
    for diagram in re.findall(r"```mermaid\n(.*?)```", page, re.DOTALL):
        if f"[*] --> {table.initial.name}\n" in diagram:
            for before, after, inputs in re.findall(r"(\w+) --> (\w+): (.*)", diagram):
                found |= {(before, inp, after) for inp in inputs.split(", ")}
    return found


@pytest.mark.parametrize("name", PAGES)
def test_every_transition_is_in_the_diagram_and_in_the_table(name: str) -> None:
    page = (DOCS / name).read_text()
    for table in TABLES[name]:
        rows = {(before.name, inp, after.name) for before, inp, after in table.rows()}
        assert drawn(table, page) == rows
        for before, inp, after in rows:
            assert f"| {before} | {inp} | {after} |" in page
        for state in table.states:
            assert f"| {state.name} | {state.value} |" in page


@pytest.mark.parametrize("table", [REPLICA, LEARNER, SERVICE, SESSION], ids=lambda one: one.name)
def test_tables_are_well_formed(table: StateTable) -> None:
    """Every state can be reached from the initial one, every input is described and used, and no
    row leads from a state to itself (an input that changes nothing is not a transition)."""
    rows = list(table.rows())
    assert all(before is not after for before, _, after in rows)
    assert {inp for _, inp, _ in rows} == set(table.inputs)
    reached = {table.initial}
    for _ in table.states:
        reached |= {after for before, _, after in rows if before in reached}
    assert reached == set(table.states)
    assert set(table.unmet) <= set(rows)
    assert all(len(reason) > 20 for reason in table.unmet.values())
