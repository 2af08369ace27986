"""The configuration service: compare and set, no unsafe change, no answer before it is on disk."""

from collections import Counter
from typing import Any

import pytest

from surecast.core.states import watched
from surecast.core.types import (
    DAMAGE,
    Received,
    SaveState,
    Send,
    SetTimer,
    Start,
    Stored,
    StoreFailed,
    TimerFired,
)
from surecast.protocols.chain.messages import Configuration, Member, Propose, Watch
from surecast.protocols.chain.service import ConfigService
from surecast.storage.memory import MemoryDisk

A, B, C = (Member(name, name.encode()) for name in "abc")
NEW_A = Member("a", b"another disk")


class ServiceHarness:
    """A service, driven by hand, on a disk that writes when the test calls `write`."""

    def __init__(self, disk: MemoryDisk | None = None, **chains: tuple[str, ...]) -> None:
        self.disk = disk or MemoryDisk()
        self.service = ConfigService(chains or {"chain": ("a", "b", "c")}, self.disk)
        self.transitions: Counter[str] = Counter()  # transitions, by label
        self.step = watched(self.service, self.transitions)
        self.disk_queue: list[SaveState] = []
        self.timers: list[Any] = []
        self.give(Start(0, 1))

    def give(self, inp: Any) -> dict[str, Any]:
        """Make a step; returns the messages sent, by receiver."""
        sent = {}
        for effect in self.step(0, inp):
            if isinstance(effect, Send):
                sent[effect.peer] = effect.message
            elif isinstance(effect, SaveState):
                self.disk_queue.append(effect)
            elif isinstance(effect, SetTimer):
                self.timers.append(effect.key)
        return sent

    def write(self) -> dict[str, Any]:
        sent = {}
        while self.disk_queue:
            effect = self.disk_queue.pop(0)
            self.disk.save(effect.name, effect.data)
            sent |= self.give(Stored(effect.token))
        return sent

    def watch(self, *members: Member, chain: str = "chain") -> dict[str, Any]:
        sent = {}
        for member in members:
            sent |= self.give(Received(member.name, Watch(chain, member)))
        return sent

    def propose(self, peer: str, epoch: int, *members: Member) -> dict[str, Any]:
        return self.give(Received(peer, Propose("chain", epoch, members)))


def founded() -> ServiceHarness:
    harness = ServiceHarness()
    harness.watch(A, B, C)
    harness.write()
    return harness


def configuration(epoch: int, *members: Member) -> Configuration:
    return Configuration("chain", epoch, members)


def test_a_chain_is_founded_when_all_its_replicas_have_contacted_the_service() -> None:
    harness = ServiceHarness()
    assert harness.watch(C, A) == {}
    assert harness.watch(C) == {}  # again: still one is missing
    harness.watch(B)
    assert harness.write() == dict.fromkeys(
        "abc", configuration(1, A, B, C)
    )  # in the configured order


def test_a_replica_that_loses_its_disk_before_the_founding_counts_once() -> None:
    harness = ServiceHarness()
    harness.watch(A, B, NEW_A)
    assert harness.disk_queue == []
    harness.watch(C)
    assert harness.write()["b"] == configuration(1, NEW_A, B, C)


def test_replicas_that_are_not_configured_do_not_found_a_chain() -> None:
    harness = ServiceHarness()
    harness.watch(A, B)
    assert harness.watch(Member("d", b"d")) == {"d": configuration(0)}
    assert harness.disk_queue == []
    assert harness.watch(A, chain="no such chain") == {}


def test_a_new_configuration_is_sent_to_all_watchers() -> None:
    harness = founded()
    harness.watch(Member("d", b"d"))
    assert harness.propose("b", 1, B, C) == {}
    assert harness.write() == dict.fromkeys("abcd", configuration(2, B, C))


def test_the_epoch_is_compared_and_set() -> None:
    """Of two proposals for one epoch one wins; the loser receives the winning configuration."""
    harness = founded()
    harness.propose("b", 1, B, C)
    assert harness.propose("a", 1, A, C) == {}  # no answer before it is on disk
    assert harness.write()["a"] == configuration(2, B, C)
    assert harness.propose("a", 1, A, C) == {"a": configuration(2, B, C)}
    assert harness.propose("a", 3, A, C) == {
        "a": configuration(2, B, C)
    }  # a later epoch loses as well
    assert harness.disk_queue == []


def test_the_same_members_again_make_a_fresh_epoch() -> None:
    """A tail uses this to make sure that no older proposal can still win."""
    harness = founded()
    harness.propose("a", 1, A, B, C)
    assert harness.write()["a"] == configuration(2, A, B, C)


@pytest.mark.parametrize(
    "members",
    [
        (),  # the last member is never dropped
        (Member("d", b"d"),),
        (NEW_A,),  # the same name with another disk
        (Member("d", b"d"), NEW_A),
        (A, A),
        (A, NEW_A),
    ],
    ids=["none", "stranger", "wiped", "both", "twice", "twice by name"],
)
def test_an_epoch_without_a_member_of_the_last_is_refused(members: tuple[Member, ...]) -> None:
    harness = founded()
    assert harness.propose("c", 1, *members) == {"c": configuration(1, A, B, C)}
    assert harness.disk_queue == []


def test_a_lone_replica_may_replace_its_own_identity() -> None:
    """R8: no other replica can act for it; it recovers the lost events from other regions."""
    harness = ServiceHarness(chain=("a",))
    harness.watch(A)
    harness.write()
    harness.propose("a", 1, NEW_A)
    assert harness.write() == {"a": configuration(2, NEW_A)}
    assert harness.propose("a", 2, B) == {"a": configuration(2, NEW_A)}


def test_one_of_two_replicas_may_not_replace_its_own_identity() -> None:
    harness = founded()
    harness.propose("b", 1, A, B)
    harness.write()
    assert harness.propose("a", 2, NEW_A) == {"a": configuration(2, A, B)}


def test_no_configuration_is_sent_before_it_is_on_disk() -> None:
    harness = founded()
    harness.propose("a", 1, A, B)
    assert harness.watch(A, B, C) == {}
    assert harness.propose("c", 1, B, C) == {}
    assert harness.write() == dict.fromkeys("abc", configuration(2, A, B))


def test_a_crash_before_the_write_undoes_the_change() -> None:
    harness = founded()
    harness.propose("a", 1, A, B)  # never written, never sent
    again = ServiceHarness(harness.disk)
    assert again.watch(C) == {"c": configuration(1, A, B, C)}
    again.propose("b", 1, B, C)
    assert again.write() == {"c": configuration(2, B, C)}


def test_a_write_that_fails_is_tried_again() -> None:
    harness = founded()
    harness.propose("a", 1, A, B)
    (effect,) = harness.disk_queue
    harness.disk_queue.clear()
    assert harness.give(StoreFailed(effect.token, "full")) == {}
    assert harness.watch(A) == {}
    harness.give(TimerFired(harness.timers.pop()))
    assert harness.write()["a"] == configuration(2, A, B)


def test_of_two_changes_in_progress_only_the_newer_is_sent() -> None:
    harness = founded()
    harness.propose("a", 1, A, B)
    harness.propose("a", 2, A)  # compared with the epoch that is not on disk yet
    first, second = harness.disk_queue
    harness.disk_queue.clear()
    assert harness.give(Stored(first.token)) == {}
    assert harness.give(Stored(second.token)) == dict.fromkeys("abc", configuration(3, A))


def test_chains_are_kept_apart() -> None:
    harness = ServiceHarness(east=("a",), west=("b",))
    harness.watch(A, chain="east")
    harness.watch(B, chain="west")
    assert harness.write() == {
        "a": Configuration("east", 1, (A,)),
        "b": Configuration("west", 1, (B,)),
    }
    again = ServiceHarness(harness.disk, east=("a",), west=("b",))
    assert again.watch(B, chain="west") == {"b": Configuration("west", 1, (B,))}


# ---------------------------------------------------------------- older copies and lost changes


def counted(member: Member, life: bytes, start: int, serial: int, epoch: int = 0) -> Watch:
    return Watch("chain", member, life, start, serial, epoch, (A, B) if epoch else ())


def test_a_start_below_the_serial_number_of_the_disk_is_reported_as_behind() -> None:
    harness = founded()
    harness.give(Received("a", counted(A, b"1", 1, 7)))
    assert harness.give(Received("a", counted(A, b"2", 8, 8)))["a"].behind == 0  # as it should be
    assert harness.give(Received("a", counted(A, b"2", 8, 20)))["a"].behind == 0
    assert harness.give(Received("a", counted(A, b"3", 20, 20)))["a"].behind == 20
    assert harness.give(Received("a", counted(A, b"3", 20, 25)))["a"].behind == 20  # until it acts
    assert harness.give(Received("a", counted(NEW_A, b"3", 21, 26)))["a"].behind == 0
    assert harness.give(Received("a", counted(A, b"4", 21, 21)))["a"].behind == 0


def test_serial_numbers_of_disks_survive_a_restart_of_the_service() -> None:
    harness = founded()
    harness.give(Received("a", counted(A, b"1", 1, 7)))
    harness.write()
    again = ServiceHarness(disk=harness.disk)
    assert again.give(Received("a", counted(A, b"2", 5, 5)))["a"].behind == 7


def test_a_service_learns_a_later_epoch_from_a_replica() -> None:
    """The service was restored from an older copy."""
    harness = founded()
    assert harness.give(Received("a", counted(A, b"1", 1, 1, epoch=4))) == {}  # not on disk yet
    assert harness.write()["a"] == configuration(4, A, B)
    harness.propose("b", 1, B)
    assert harness.watch(B)["b"] == configuration(4, A, B)


def test_a_service_learns_no_epoch_from_a_stranger() -> None:
    harness = founded()
    harness.give(Received("stranger", counted(A, b"1", 1, 1, epoch=4)))
    assert harness.watch(B)["b"] == configuration(1, A, B, C)


def test_a_service_that_lost_changes_waits_for_all_replicas() -> None:
    harness = founded()
    harness.disk.save(DAMAGE, b"the journal was cut short")
    again = ServiceHarness(disk=harness.disk)
    for member in (A, B):
        assert again.give(Received(member.name, counted(member, b"1", 1, 1, epoch=2))) == {}
        again.propose(member.name, 1, member)
    again.give(Received("c", counted(C, b"1", 1, 1)))
    assert again.write()["a"] == again.watch(C)["c"] == configuration(2, A, B)
    assert again.disk.state(DAMAGE) == b""
