"""Each alarm: when it is raised, and whether a node with it is ready. No sockets."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from surecast import registry
from surecast.core.streams import CURSORS, DIRECTORY
from surecast.protocols.streams.observe import NAMED_MAX
from surecast.runtime.session import UP
from surecast.server.alarms import alarms, codes
from surecast.server.status import not_ready

ROLES = ("chain", "streams", "sprinkler")  # other deliveries test their alarms themselves


def healthy() -> Any:
    """What alarms look at, of the head of two replicas that has heard of one other region."""
    members = [SimpleNamespace(name="e-1"), SimpleNamespace(name="e-2")]
    log = SimpleNamespace(failed=False, pending=[])
    stream = SimpleNamespace(
        info=SimpleNamespace(name="s"),
        stream_id=b"s",
        quarantined="",
        hole=0,
    )
    copy = SimpleNamespace(info=stream.info, recovering_since_ns=None)
    peer = SimpleNamespace(name="w", heard_ns=0, owners=b"same", live=True)
    return SimpleNamespace(
        draining=False,
        config=SimpleNamespace(
            name="e-1",
            node=SimpleNamespace(data_dir="data", region="e"),
            deployment=SimpleNamespace(witness="e/witness"),
        ),
        replica=SimpleNamespace(
            sessions=SimpleNamespace(by_peer={"e/witness": SimpleNamespace(state=UP)})
        ),
        roles=[role for name, role in registry.roles().items() if name in ROLES],
        layers={
            "chain": SimpleNamespace(
                config=SimpleNamespace(
                    chain="e", configured=("e-1", "e-2"), writable_min=2, pending_bytes_max=100
                ),
                members=members,
                epoch=3,
                is_member=True,
                active=True,
                saved=SimpleNamespace(clean=True, lost_epoch=0, distrust=""),
                ahead=lambda: [],
                store_failures=0,
                pending_bytes=0,
                logs={b"log": log},
            ),
            "streams": SimpleNamespace(
                streams={b"s": stream},
                disk=SimpleNamespace(holes=lambda log: []),
                entries_lost=[],
                hole_at={},
            ),
            "sprinkler": SimpleNamespace(
                now_ns=10**9,
                owners=b"same",
                peers={"w": peer},
                is_live=lambda peer: peer.live,
                streams={b"s": copy},
                is_head=True,
                recovery=SimpleNamespace(has_asked=False, is_anybody_silent=lambda: False),
                forks=SimpleNamespace(told=lambda count: [], has_met=lambda peer: False),
            ),
        },
    )


def not_founded(server: Any) -> None:
    (
        server.layers["chain"].epoch,
        server.layers["chain"].active,
        server.layers["chain"].is_member,
    ) = 0, False, False
    server.layers["chain"].members = []


def not_in_chain(server: Any) -> None:
    server.layers["chain"].is_member = False


def too_few(server: Any) -> None:
    del server.layers["chain"].members[1]


def missing(server: Any) -> None:
    del server.layers["chain"].members[1]
    server.layers["chain"].config.writable_min = 1


def disks_lost(server: Any) -> None:
    server.layers["chain"].saved.clean, server.layers["chain"].saved.lost_epoch = False, 2


def distrusted(server: Any) -> None:
    server.layers["chain"].saved.distrust = "the journal is shorter than it was"


def ahead(server: Any) -> None:
    server.layers["chain"].ahead = lambda: ["e-2"]


def damaged(server: Any) -> None:
    server.layers["streams"].streams[b"s"].hole = 10
    server.layers["streams"].disk.holes = lambda log: [(10, 12), (20, 31)]


def directory_damaged(server: Any) -> None:
    server.layers["streams"].hole_at = {DIRECTORY: 3, b"s": 10}


def entries_lost(server: Any) -> None:
    server.layers["streams"].entries_lost = [(DIRECTORY, 2, 4), (CURSORS, 5, 6)]


def asking(server: Any) -> None:
    server.layers["sprinkler"].recovery.is_anybody_silent = lambda: True


def forked(server: Any) -> None:
    server.layers["sprinkler"].forks.told = lambda count: [
        "s: positions 7 to 9 are now in _quarantine.s.7"
    ]


def failing(server: Any) -> None:
    server.layers["chain"].store_failures = 5
    server.layers["chain"].logs[b"log"].failed = True


def failing_again(server: Any) -> None:
    """While the next attempt is under way."""
    server.layers["chain"].store_failures = 5
    server.layers["chain"].logs[b"log"].pending = ["batch"]


def failing_here_not_there(server: Any) -> None:
    """Another log was written meanwhile."""
    server.layers["chain"].logs[b"log"].failed = True


def behind(server: Any) -> None:
    server.layers["chain"].pending_bytes = 101


def unreachable(server: Any) -> None:
    server.layers["sprinkler"].peers["w"].live = False


def never_heard(server: Any) -> None:
    server.layers["sprinkler"].peers["w"].live, server.layers["sprinkler"].peers["w"].heard_ns = (
        False,
        -1,
    )
    server.layers["sprinkler"].peers["w"].owners = b""


def owners_differ(server: Any) -> None:
    server.layers["sprinkler"].peers["w"].owners = b"others"


def quarantined(server: Any) -> None:
    server.layers["streams"].streams[b"s"].quarantined = "journal-1: bad checksum"


def recovering(server: Any) -> None:
    server.layers["sprinkler"].streams[b"s"].recovering_since_ns = 0


def in_memory(server: Any) -> None:
    server.config.node.data_dir = ""


def no_witness(server: Any) -> None:
    server.replica.sessions.by_peer.clear()


TABLE: list[tuple[Callable[[Any], None], str, str]] = [
    (in_memory, "in-memory", "e-1 keeps nothing on disk"),
    (not_founded, "not-founded", "e waits for e-1, e-2"),
    (not_in_chain, "not-in-chain", "epoch 3 has e-1, e-2"),
    (no_witness, "witness-unreachable", "no session with e/witness"),
    (too_few, "too-few-replicas", "1 of 2; missing: e-2"),
    (missing, "replicas-missing", "e-2"),
    (disks_lost, "disks-lost", "since epoch 2"),
    (distrusted, "disk-distrusted", "the journal is shorter than it was"),
    (ahead, "replica-ahead", "e-2"),
    (damaged, "stream-damaged", "s: positions 10 to 11 and 20 to 30, 2 ranges"),
    (directory_damaged, "stream-damaged", "the region's directory: from entry 3 on"),
    (entries_lost, "entries-lost", "directory 2 to 3 named subscriptions 5 to 5"),
    (asking, "asking-regions", "waiting, for w"),
    (forked, "stream-forked", "s: positions 7 to 9 are now in _quarantine.s.7"),
    (failing, "disk-failing", "writes fail, 5 in a row; 1 logs wait"),
    (failing_again, "disk-failing", "writes fail, 5 in a row; 1 logs wait"),
    (failing_here_not_there, "disk-failing", "writes fail, 0 in a row; 1 logs wait"),
    (behind, "disk-behind", "too much waits for the disk, 101 bytes"),
    (unreachable, "region-unreachable", "w, last heard 1 s ago"),
    (never_heard, "region-unreachable", "w, never heard"),
    (owners_differ, "owners-differ", "w"),
    (quarantined, "stream-quarantined", "s: journal-1: bad checksum"),
    (recovering, "stream-recovering", "s"),
]
READY = {
    "in-memory", "witness-unreachable", "too-few-replicas", "replicas-missing", "disks-lost",
    "disk-behind", "region-unreachable", "stream-quarantined", "stream-recovering",
    "disk-distrusted", "replica-ahead", "stream-damaged", "entries-lost", "asking-regions",
    "stream-forked",
}  # fmt: skip


def test_a_healthy_node_has_no_alarm() -> None:
    assert alarms(healthy()) == []
    assert not_ready(healthy()) == []


@pytest.mark.parametrize(
    ("happens", "code", "what"), TABLE, ids=lambda x: getattr(x, "__name__", "")
)
def test_each_alarm(happens: Callable[[Any], None], code: str, what: str) -> None:
    server = healthy()
    happens(server)
    found = alarms(server)
    assert [(alarm.code, alarm.what) for alarm in found] == [(code, what)]
    assert (found[0].means, found[0].todo) == (codes()[code].means, codes()[code].todo)
    assert not_ready(server) == ([] if code in READY else [f"{code}: {what}"])


def test_every_code_is_in_the_table() -> None:
    others = [role.observer.codes for name, role in registry.roles().items() if name not in ROLES]
    assert {code for _, code, _ in TABLE} == set(codes()).difference(*others)


def test_failures_without_anything_to_write_are_over() -> None:
    server = healthy()
    server.layers["chain"].store_failures = 5
    assert alarms(server) == []


def test_numbers_that_rise_do_not_make_a_new_alarm() -> None:
    """The log tells alarms apart by code and by what stands before the first comma."""
    for happens, later in (
        (failing, lambda server: setattr(server.layers["chain"], "store_failures", 6)),
        (behind, lambda server: setattr(server.layers["chain"], "pending_bytes", 12_345_678)),
        (unreachable, lambda server: setattr(server.layers["sprinkler"], "now_ns", 10**12)),
    ):
        server = healthy()
        happens(server)
        before = alarms(server)[0]
        later(server)
        after = alarms(server)[0]
        assert before.what != after.what
        assert before.what.split(",")[0] == after.what.split(",")[0]


def test_many_streams_are_counted() -> None:
    server = healthy()
    for number in range(NAMED_MAX + 3):
        info = SimpleNamespace(name=f"n{number}")
        server.layers["streams"].streams[number] = SimpleNamespace(
            info=info, quarantined="bad", hole=0
        )
        server.layers["sprinkler"].streams[number] = SimpleNamespace(
            info=info, recovering_since_ns=0
        )
    found = [alarm.what for alarm in alarms(server)]
    assert len(found) == NAMED_MAX + 2
    assert found[NAMED_MAX] == "and 3 more"
    assert found[-1].endswith("and 3 more")
