"""Each alarm of the node and of all roles: when it is raised, and whether a node with it is ready.

The real observers examine a state that is prepared for each alarm, without sockets.
"""

import ast
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from surecast import registry
from surecast.columns.retention import KeepAll
from surecast.core.streams import CURSORS, DIRECTORY, StreamInfo
from surecast.protocols.gryphon.config import GryphonConfig
from surecast.protocols.gryphon.line import Below
from surecast.protocols.gryphon.pieces import Pieces
from surecast.protocols.gryphon.pubend import Pubend
from surecast.protocols.gryphon.role import NAMED_MAX as GRYPHON_NAMED_MAX
from surecast.protocols.nakcast.config import NakcastConfig
from surecast.protocols.nakcast.role import NAMED_MAX as NAKCAST_NAMED_MAX
from surecast.protocols.nakcast.server import NakcastServer
from surecast.protocols.streams.observe import LISTED_MAX
from surecast.runtime.session import UP
from surecast.server import alarms as alarms_module
from surecast.server.alarms import alarms, codes
from surecast.server.status import not_ready
from tests.edits import Edit, must_fail


def healthy() -> Any:
    """The state that alarms examine, of the head of two replicas; one other region is connected."""
    members = [SimpleNamespace(name="e-1"), SimpleNamespace(name="e-2")]
    log = SimpleNamespace(failed=False, pending=[])
    stream = SimpleNamespace(
        info=SimpleNamespace(name="s"),
        stream_id=b"s",
        quarantined="",
        hole=0,
    )
    copy = SimpleNamespace(info=stream.info, recovering_since_ns=None)
    service: Any = SimpleNamespace(streams={b"s": stream})
    peer = SimpleNamespace(name="w", heard_ns=10**9, owners=b"same", live=True)
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
        roles=list(registry.roles().values()),
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
                has_read_directory=True,
                directory_committed=3,
                directory_at_start=6,
            ),
            "sprinkler": SimpleNamespace(
                now_ns=10**9,
                config=SimpleNamespace(dead_ns=10**9 // 2),
                owners=b"same",
                peers={"w": peer},
                is_live=lambda peer: peer.live,
                streams={b"s": copy},
                is_head=True,
                recovery=SimpleNamespace(has_asked=False, is_anybody_silent=lambda: False),
                forks=SimpleNamespace(report=lambda count: [], has_met=lambda peer: False),
            ),
            "nakcast": NakcastServer(NakcastConfig("e"), service, Counter()),
            "gryphon": Pubend(GryphonConfig("e/0", "e"), service, Random(1), Counter()),
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


def directory_unread(server: Any) -> None:
    server.layers["streams"].has_read_directory = False


def directory_damaged(server: Any) -> None:
    server.layers["streams"].hole_at = {DIRECTORY: 3, b"s": 10}


def entries_lost(server: Any) -> None:
    server.layers["streams"].entries_lost = [(DIRECTORY, 2, 4), (CURSORS, 5, 6)]


def asking(server: Any) -> None:
    server.layers["sprinkler"].recovery.is_anybody_silent = lambda: True


def forked(server: Any) -> None:
    server.layers["sprinkler"].forks.report = lambda count: [
        "s: positions 7 to 9 are now in _quarantine.s.7"
    ]


def failing(server: Any) -> None:
    server.layers["chain"].store_failures = 5
    server.layers["chain"].logs[b"log"].failed = True


def failing_again(server: Any) -> None:
    """Writes failed and the next attempt is in progress."""
    server.layers["chain"].store_failures = 5
    server.layers["chain"].logs[b"log"].pending = ["batch"]


def failing_here_not_there(server: Any) -> None:
    """Writes of one log fail while another log was written."""
    server.layers["chain"].logs[b"log"].failed = True


def behind(server: Any) -> None:
    server.layers["chain"].pending_bytes = 101


def unreachable(server: Any) -> None:
    server.layers["sprinkler"].peers["w"].heard_ns = 0


def never_heard(server: Any) -> None:
    server.layers["sprinkler"].peers["w"].heard_ns = -1
    server.layers["sprinkler"].peers["w"].owners = b""


def owners_differ(server: Any) -> None:
    server.layers["sprinkler"].peers["w"].owners = b"others"


def quarantined(server: Any) -> None:
    server.layers["streams"].streams[b"s"].quarantined = "journal-1: bad checksum"


def recovering(server: Any) -> None:
    server.layers["sprinkler"].streams[b"s"].recovering_since_ns = 0


def losing(server: Any) -> None:
    server.layers["nakcast"].losing[b"s"] = 4


def refused(server: Any) -> None:
    server.layers["nakcast"].refused = 2


def cut_off(server: Any, streams: int = 1) -> None:
    gryphon = server.layers["gryphon"]
    for number in range(streams):
        info = StreamInfo(b"%16d" % number, f"f{number}", "w", KeepAll(), delivery="filtered")
        line = gryphon._new_line(info, Pieces())
        line.below["b"] = Below("b")
        gryphon.lines[info.stream_id] = line


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
    (damaged, "stream-damaged", "s: positions 10 to 11 and 20 to 30 (ranges: 2)"),
    (directory_unread, "directory-unread", "2 of 5 entries are read"),
    (directory_damaged, "stream-damaged", "the region's directory: from entry 3 on"),
    (
        entries_lost,
        "entries-lost",
        "directory: entries 2 to 3, named subscriptions: entries 5 to 5",
    ),
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
    (losing, "readers-losing", "s, 4 positions"),
    (refused, "readers-refused", "nakcast, 2 joins refused"),
    (cut_off, "stream-unreachable", "f0"),
]
READY = {
    "in-memory", "witness-unreachable", "too-few-replicas", "replicas-missing", "disks-lost",
    "disk-behind", "region-unreachable", "stream-quarantined", "stream-recovering",
    "disk-distrusted", "replica-ahead", "stream-damaged", "entries-lost", "asking-regions",
    "stream-forked", "readers-losing", "readers-refused", "stream-unreachable",
}  # fmt: skip


def test_many_streams_that_cannot_be_reached_are_counted() -> None:
    server = healthy()
    cut_off(server, GRYPHON_NAMED_MAX + 3)
    found = [alarm.what for alarm in alarms(server)]
    assert (len(found), found[-1]) == (GRYPHON_NAMED_MAX + 1, "and 3 more")


def test_a_healthy_node_has_no_alarm() -> None:
    assert alarms(healthy()) == []
    assert not_ready(healthy()) == []


def test_a_region_whose_tail_is_being_replaced_is_not_called_unreachable() -> None:
    """The session with its tail has ended; the next tail has not sent an advertisement yet."""
    server = healthy()
    server.layers["sprinkler"].peers["w"].live = False
    assert alarms(server) == []


@pytest.mark.parametrize(
    ("happens", "code", "what"), TABLE, ids=lambda x: getattr(x, "__name__", "")
)
def test_each_alarm_is_raised_with_its_text_and_effect_on_readiness(
    happens: Callable[[Any], None], code: str, what: str
) -> None:
    check_alarm(happens, code, what)


def check_alarm(happens: Callable[[Any], None], code: str, what: str) -> None:
    server = healthy()
    happens(server)
    found = alarms(server)
    assert [(alarm.code, alarm.what) for alarm in found] == [(code, what)]
    assert (found[0].means, found[0].todo) == (codes()[code].means, codes()[code].todo)
    assert not_ready(server) == ([] if code in READY else [f"{code}: {what}"])


def without_row(known: set[str]) -> list[str]:
    return sorted(known - {code for _, code, _ in TABLE})


def test_every_code_is_in_the_table() -> None:
    assert without_row(set(codes())) == []
    assert {code for _, code, _ in TABLE} == set(codes())


def test_a_code_without_a_row_is_noticed() -> None:
    assert without_row({*codes(), "disk-on-fire"}) == ["disk-on-fire"]


def test_failed_writes_raise_no_alarm_when_nothing_is_left_to_write() -> None:
    server = healthy()
    server.layers["chain"].store_failures = 5
    assert alarms(server) == []


def test_rising_numbers_do_not_make_a_new_alarm() -> None:
    """The log distinguishes alarms by code and by the text before the first comma."""
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
    for number in range(LISTED_MAX + 3):
        info = SimpleNamespace(name=f"n{number}")
        server.layers["streams"].streams[number] = SimpleNamespace(
            info=info, quarantined="bad", hole=0
        )
        server.layers["sprinkler"].streams[number] = SimpleNamespace(
            info=info, recovering_since_ns=0
        )
    found = [alarm.what for alarm in alarms(server)]
    assert len(found) == LISTED_MAX + 2
    assert found[LISTED_MAX] == "and 3 more"
    assert found[-1].endswith("and 3 more")


def test_many_damaged_streams_are_counted() -> None:
    server = healthy()
    server.layers["streams"].disk.holes = lambda log: [(10, 12)]
    for number in range(LISTED_MAX + 3):
        server.layers["streams"].streams[number] = SimpleNamespace(
            info=SimpleNamespace(name=f"n{number}"), stream_id=number, quarantined="", hole=10
        )
    found = [alarm.what for alarm in alarms(server)]
    assert len(found) == LISTED_MAX + 1
    assert found[0] == "n0: positions 10 to 11 (ranges: 1)"
    assert found[-1] == "and 3 more"


def test_many_streams_whose_readers_lose_events_are_counted() -> None:
    server = healthy()
    nakcast = server.layers["nakcast"]
    for number in range(NAKCAST_NAMED_MAX + 3):
        name = SimpleNamespace(info=SimpleNamespace(name=f"n{number}"))
        nakcast.service.streams[number] = name
        nakcast.losing[number] = 1
    found = [alarm.what for alarm in alarms(server)]
    assert len(found) == NAKCAST_NAMED_MAX + 1
    assert found[-1] == "and 3 more"


# ---------------------------------------------------------------- the tests can fail


def raised_in(module: Any) -> Iterator[tuple[str, Edit]]:
    """Each statement of a module that raises an alarm: the code, and an edit that removes it."""
    tree = ast.parse(inspect.getsource(module))
    owners = [("", tree), *((f"{c.name}.", c) for c in tree.body if isinstance(c, ast.ClassDef))]
    for prefix, owner in owners:
        for function in owner.body:
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple):
                    code = ast.literal_eval(node.value.elts[0])
                    text = ast.get_source_segment(inspect.getsource(module), node)
                    assert text is not None
                    yield code, Edit(f"{module.__name__}:{prefix}{function.name}", text, "None")


def all_raised() -> list[tuple[str, Edit]]:
    observers = [type(role.observer).__module__ for role in registry.roles().values()]
    modules = [alarms_module, *map(import_module, dict.fromkeys(observers))]
    return [found for module in modules for found in raised_in(module)]


def check_code(code: str) -> None:
    for row in TABLE:
        if row[1] == code:
            check_alarm(*row)
    test_many_streams_are_counted()
    test_many_damaged_streams_are_counted()
    test_many_streams_whose_readers_lose_events_are_counted()
    test_many_streams_that_cannot_be_reached_are_counted()


def test_every_code_is_raised_somewhere() -> None:
    assert {code for code, _ in all_raised()} == set(codes())


@pytest.mark.parametrize(("code", "edit"), all_raised(), ids=lambda x: x if type(x) is str else "")
def test_an_alarm_that_is_not_raised_is_noticed(code: str, edit: Edit) -> None:
    must_fail(lambda: check_code(code), edit)


@pytest.mark.parametrize("code", codes())
def test_an_alarm_with_the_wrong_effect_on_readiness_is_noticed(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = codes()[code]
    tables: list[Any] = [role.observer.codes for role in registry.roles().values()]
    (table,) = [one for one in (alarms_module.OF_NODES, *tables) if code in one]
    monkeypatch.setitem(table, code, known._replace(blocks=not known.blocks))
    with pytest.raises(AssertionError):
        check_code(code)
