"""What is wrong at a node, what that means and what to do: for `surecast status`, logs, metrics.

The roles of a replica have alarms of their own, which their observers raise (`core.roles`). The
same tables make docs/configuration.md's list of alarms, so each code is explained in one place.
"""

from collections.abc import Iterator

import msgspec

from surecast.core.roles import Code
from surecast.registry import roles
from surecast.runtime.session import UP
from surecast.server.region import RegionServer

__all__ = ["Alarm", "alarms", "codes"]

OF_NODES: dict[str, Code] = {
    "in-memory": Code(
        "node.data_dir is empty: everything this node holds is gone when its process ends.",
        "Set node.data_dir, unless losing it is fine.",
    ),
    "witness-unreachable": Code(
        "The witness cannot be reached. The chain goes on as it is, but nobody can be removed "
        "from it or join it: the next failure of a replica stops it.",
        "Start the witness again, on the same data folder, or mend the link to it.",
    ),
}


class Alarm(msgspec.Struct, frozen=True):
    """Something is wrong here: what, what it means, what to do."""

    code: str
    what: str
    means: str
    todo: str
    blocks: bool


def codes() -> dict[str, Code]:
    """Every alarm that there is, by its code."""
    found = dict(OF_NODES)
    for role in roles().values():
        for code, known in role.observer.codes.items():
            assert code not in found, (
                f"two roles have the alarm {code!r}; {role.name} is the second"
            )
            found[code] = known
    return found


def alarms(server: RegionServer) -> list[Alarm]:
    known = codes()
    return [
        Alarm(code, what, known[code].means, known[code].todo, known[code].blocks)
        for code, what in _found(server)
    ]


def _found(server: RegionServer) -> Iterator[tuple[str, str]]:
    if not server.config.node.data_dir:
        yield "in-memory", f"{server.config.name} keeps nothing on disk"
    if server.replica is None:
        return
    witness = server.config.deployment.witness
    session = server.replica.sessions.by_peer.get(witness)
    if session is None or session.state is not UP:
        yield "witness-unreachable", f"no session with {witness}"
    for role in server.roles:
        yield from role.observer.alarms(server.layers)
