"""Scopes: a layer sees its own states and logs, and the logs of layers below it."""

import pytest

from surecast.columns.batch import Batch
from surecast.core.compose import NO_SCOPE, Scope, scope_tag
from surecast.core.types import DAMAGE, Append, Compact, Repair, Truncate
from surecast.errors import StorageError
from surecast.storage.memory import MemoryDisk
from surecast.storage.store import apply

CHAIN_LOG, OTHER_LOG, STRAY_LOG = (bytes([n]) * 16 for n in (1, 2, 3))
CHAIN, OTHER = scope_tag("chain"), scope_tag("other")


def batch(log: bytes, lo: int = 1) -> Batch:
    return Batch.of(log, [b"a", b"b"]).sequenced(lo, 7, 1)


@pytest.fixture
def disk() -> MemoryDisk:
    found = MemoryDisk()
    found.append(CHAIN_LOG, [batch(CHAIN_LOG)], CHAIN)
    found.append(OTHER_LOG, [batch(OTHER_LOG)], OTHER)
    found.append(STRAY_LOG, [batch(STRAY_LOG)])
    found.save("chain/state", b"of the chain")
    found.save("other/state", b"of the other")
    found.save(DAMAGE, b"cut short")
    return found


def test_a_layer_lists_its_own_logs_and_unowned_ones(disk: MemoryDisk) -> None:
    assert Scope(disk, "chain").logs() == [CHAIN_LOG, STRAY_LOG]
    assert Scope(disk, "other").logs() == [OTHER_LOG, STRAY_LOG]
    assert Scope(disk, "third").logs() == [STRAY_LOG]


def test_a_layer_reads_the_logs_of_layers_below(disk: MemoryDisk) -> None:
    upper = Scope(disk, "upper", ["chain"])
    assert upper.logs() == [CHAIN_LOG, STRAY_LOG]
    assert [b.lo for b in upper.read(CHAIN_LOG, 1, 3, 1 << 20)] == [1]
    assert upper.end(CHAIN_LOG) == 3


def test_the_logs_of_other_layers_seem_empty(disk: MemoryDisk) -> None:
    disk.damage(OTHER_LOG, 1, 2, "rotten")
    chain = Scope(disk, "chain")
    assert (chain.end(OTHER_LOG), chain.read(OTHER_LOG, 1, 3, 1 << 20)) == (1, [])
    assert (chain.holes(OTHER_LOG), chain.first_at(OTHER_LOG, 0, 1, 3)) == ([], 3)
    assert Scope(disk, "other").holes(OTHER_LOG) == [(1, 2)]


def test_states_are_separate_by_layer_and_damage_is_visible_to_all(disk: MemoryDisk) -> None:
    chain, other = Scope(disk, "chain"), Scope(disk, "other", ["chain"])
    assert chain.state("state") == b"of the chain"
    assert other.state("state") == b"of the other"
    assert chain.state(DAMAGE) == other.state(DAMAGE) == b"cut short"
    assert Scope(disk, "third").state("state") is None


def test_a_layer_cannot_write_to_the_log_of_another(disk: MemoryDisk) -> None:
    failed = apply(disk, Append(CHAIN_LOG, (batch(CHAIN_LOG, 3),), "t", OTHER))
    assert (failed.token, failed.reason) == ("t", "io")
    assert apply(disk, Repair(CHAIN_LOG, (batch(CHAIN_LOG),), "t", OTHER)).reason == "io"
    assert apply(disk, Compact(CHAIN_LOG, 1, 3, (b"\0",) * 3, 9, "t", OTHER)).reason == "io"
    with pytest.raises(StorageError, match="belongs to another layer"):
        apply(disk, Truncate(CHAIN_LOG, 1, OTHER))
    assert disk.end(CHAIN_LOG) == 3


def test_an_unowned_log_belongs_to_the_first_layer_that_appends(disk: MemoryDisk) -> None:
    apply(disk, Append(STRAY_LOG, (batch(STRAY_LOG, 3),), "t", CHAIN))
    assert disk.scope_of(STRAY_LOG) == CHAIN
    assert Scope(disk, "other").logs() == [OTHER_LOG]


def test_a_copy_of_a_disk_keeps_scopes(disk: MemoryDisk) -> None:
    copy = disk.copy()
    assert [copy.scope_of(log) for log in (CHAIN_LOG, OTHER_LOG, STRAY_LOG)] == [
        CHAIN,
        OTHER,
        NO_SCOPE,
    ]


def test_tags_fit_into_files_and_are_never_the_unowned_tag() -> None:
    for layer in ("chain", "sprinkler", "streams", "nakcast", "", "x" * 1000):
        assert 0 < scope_tag(layer) < 1 << 24
