"""Writes two pages from state tables: docs/protocols/chain-states.md and docs/session-states.md.

    python -m surecast_lab.lab.state_pages

For each table a page has the states, a diagram (in Mermaid, which GitHub draws), the inputs and the
transitions. tests/surecast_lab/lab/test_state_pages.py compares the stored pages with the tables.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

from surecast.core import sessions
from surecast.core.sessions import NOT_ON_SOCKETS, SESSION
from surecast.core.states import Row, StateTable
from surecast.protocols.chain import states
from surecast.protocols.chain.states import LEARNER, REPLICA, SERVICE

__all__ = ["PAGES", "write"]

NOTE = (
    "This page is made from `{source}` by `python -m surecast_lab.lab.state_pages`; do not edit it "
    "by hand. Tests and simulations look every change of state up in these tables: one that is not "
    "listed is an assertion error. An input may always leave a state as it is. The column *not "
    "met* says in which kind of run a transition does not occur, and why."
)
TITLES = {
    "replica": "The place of a replica",
    "learner": "The last member and a learner",
    "service": "The configuration service, for each chain",
    "session": "A session",
}
# Kind of run → {transition that does not occur in it: reason}. A Row is (state, input, next state).
Reasons = Mapping[str, Mapping[Row, str]]


def _page(title: str, module: ModuleType, source: str, tables: Mapping[str, str]) -> str:
    # The page shows the module's docstring without its first paragraph.
    _, theory = (module.__doc__ or "").split("\n\n", 1)
    parts = [f"# {title}", NOTE.format(source=source), theory.strip()]
    return "\n\n".join([*parts, *tables.values()]) + "\n"


def _table(table: StateTable, reasons: Reasons) -> str:
    lines = [f"## {TITLES[table.name]}", "", "| state | meaning |", "|---|---|"]
    lines += [f"| {state.name} | {state.value} |" for state in table.states]
    lines += ["", "```mermaid", *_diagram(table), "```", "", "| input | meaning |", "|---|---|"]
    lines += [f"| {name} | {about} |" for name, about in table.inputs.items()]
    lines += ["", "| state | input | next state | not met |", "|---|---|---|---|"]
    for row in table.rows():
        whys = [f"{where}: {rows[row]}" for where, rows in reasons.items() if row in rows]
        before, inp, after = row
        lines.append(f"| {before.name} | {inp} | {after.name} | {' '.join(whys)} |")
    return "\n".join(lines)


def _diagram(table: StateTable) -> Iterator[str]:
    """One arrow for each pair of states, with all the inputs that lead from one to the other."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for before, inp, after in table.rows():
        arrows.setdefault((before.name, after.name), []).append(inp)
    yield "stateDiagram-v2"
    yield f"    [*] --> {table.initial.name}"
    for (before, after), inputs in arrows.items():
        yield f"    {before} --> {after}: {', '.join(inputs)}"


def chain_page() -> str:
    tables = {
        table.name: _table(table, {"in seeds": table.unmet})
        for table in (REPLICA, LEARNER, SERVICE)
    }
    title = "States of the chain"
    return _page(title, states, "src/surecast/protocols/chain/states.py", tables)


def session_page() -> str:
    reasons = {"in the simulator": SESSION.unmet, "over sockets": NOT_ON_SOCKETS}
    tables = {SESSION.name: _table(SESSION, reasons)}
    return _page("States of a session", sessions, "src/surecast/core/sessions.py", tables)


# The pages, by their path in docs/.
PAGES = {"protocols/chain-states.md": chain_page, "session-states.md": session_page}


def write(docs: Path) -> None:
    for name, page in PAGES.items():
        (docs / name).write_text(page())


if __name__ == "__main__":
    import sys

    write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
