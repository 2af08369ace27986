"""The alarms of a node: `surecast status`, the log and the metrics show those raised now.

An alarm has a code, such as `witness-unreachable`. This file defines the alarms that concern the
whole node. The others come from the observers of the replica's roles: a role is what one protocol
adds to a replica (`core.roles`). The list of alarms in docs/configuration.md is generated from the
same tables, so each code is explained in one place.
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
        "node.data_dir is empty: everything this node holds is lost when its process ends.",
        "Set node.data_dir, unless this data may be lost.",
    ),
    "witness-unreachable": Code(
        "The witness cannot be reached. The chain continues as it is, but replicas cannot be "
        "removed from it or join it: the next failure of a replica stops it.",
        "Start the witness again, on the same data folder, or repair the link to it.",
    ),
}


class Alarm(msgspec.Struct, frozen=True):
    """A problem of this node."""

    code: str
    what: str  # what is wrong here and now, in words
    means: str  # the consequences
    todo: str  # what the operator should do
    blocks: bool  # clients should use another server


def codes() -> dict[str, Code]:
    """The meaning of every alarm that a node may raise, by code."""
    by_code = dict(OF_NODES)
    for role in roles().values():
        for code, known in role.observer.codes.items():
            assert code not in by_code, (
                f"two roles have the alarm {code!r}; {role.name} is the second"
            )
            by_code[code] = known
    return by_code


def alarms(server: RegionServer) -> list[Alarm]:
    """The alarms that this node raises now."""
    known = codes()
    return [
        Alarm(code, what, known[code].means, known[code].todo, known[code].blocks)
        for code, what in _raised(server)
    ]


def _raised(server: RegionServer) -> Iterator[tuple[str, str]]:
    """Yields the `code` and `what` of each alarm that is raised now."""
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
