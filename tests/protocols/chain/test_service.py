"""The configuration service: compare and set, nothing unsafe, nothing said before it is on disk."""

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


class Desk:
    """A service on a disk that writes when it is told to."""

    def __init__(self, disk: MemoryDisk | None = None, **chains: tuple[str, ...]) -> None:
        self.disk = disk or MemoryDisk()
        self.service = ConfigService(chains or {"chain": ("a", "b", "c")}, self.disk)
        self.met: Counter[str] = Counter()  # transitions, by label
        self.step = watched(self.service, self.met)
        self.asked: list[SaveState] = []
        self.timers: list[Any] = []
        self.give(Start(0, 1))

    def give(self, inp: Any) -> dict[str, Any]:
        """Returns what was sent, by receiver."""
        sent = {}
        for effect in self.step(0, inp):
            if isinstance(effect, Send):
                sent[effect.peer] = effect.message
            elif isinstance(effect, SaveState):
                self.asked.append(effect)
            elif isinstance(effect, SetTimer):
                self.timers.append(effect.key)
        return sent

    def write(self) -> dict[str, Any]:
        sent = {}
        while self.asked:
            effect = self.asked.pop(0)
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


def founded() -> Desk:
    desk = Desk()
    desk.watch(A, B, C)
    desk.write()
    return desk


def told(epoch: int, *members: Member) -> Configuration:
    return Configuration("chain", epoch, members)


def test_a_chain_is_founded_when_all_its_replicas_have_come() -> None:
    desk = Desk()
    assert desk.watch(C, A) == {}
    assert desk.watch(C) == {}  # again: still one is missing
    desk.watch(B)
    assert desk.write() == dict.fromkeys("abc", told(1, A, B, C))  # in the configured order


def test_a_replica_that_loses_its_disk_before_the_founding_counts_once() -> None:
    desk = Desk()
    desk.watch(A, B, NEW_A)
    assert desk.asked == []
    desk.watch(C)
    assert desk.write()["b"] == told(1, NEW_A, B, C)


def test_strangers_found_nothing() -> None:
    desk = Desk()
    desk.watch(A, B)
    assert desk.watch(Member("d", b"d")) == {"d": told(0)}
    assert desk.asked == []
    assert desk.watch(A, chain="no such chain") == {}


def test_a_change_goes_to_all_who_watch() -> None:
    desk = founded()
    desk.watch(Member("d", b"d"))
    assert desk.propose("b", 1, B, C) == {}
    assert desk.write() == dict.fromkeys("abcd", told(2, B, C))


def test_the_epoch_is_compared_and_set() -> None:
    """Of two proposals for the same epoch one wins; the loser hears what won."""
    desk = founded()
    desk.propose("b", 1, B, C)
    assert desk.propose("a", 1, A, C) == {}  # nothing is said before it is on disk
    assert desk.write()["a"] == told(2, B, C)
    assert desk.propose("a", 1, A, C) == {"a": told(2, B, C)}
    assert desk.propose("a", 3, A, C) == {"a": told(2, B, C)}  # nor from the future
    assert desk.asked == []


def test_the_same_members_again_make_a_fresh_epoch() -> None:
    """How a tail makes sure that no older proposal can still win."""
    desk = founded()
    desk.propose("a", 1, A, B, C)
    assert desk.write()["a"] == told(2, A, B, C)


@pytest.mark.parametrize(
    "members",
    [
        (),  # the last member is never dropped
        (Member("d", b"d"),),
        (NEW_A,),  # a name is not enough: its disk is another
        (Member("d", b"d"), NEW_A),
        (A, A),
        (A, NEW_A),
    ],
    ids=["none", "stranger", "wiped", "both", "twice", "twice by name"],
)
def test_an_epoch_without_a_member_of_the_last_is_refused(members: tuple[Member, ...]) -> None:
    desk = founded()
    assert desk.propose("c", 1, *members) == {"c": told(1, A, B, C)}
    assert desk.asked == []


def test_a_lone_replica_may_found_itself_again() -> None:
    """R8: nobody else can act for it; what it lost comes back from other regions."""
    desk = Desk(chain=("a",))
    desk.watch(A)
    desk.write()
    desk.propose("a", 1, NEW_A)
    assert desk.write() == {"a": told(2, NEW_A)}
    assert desk.propose("a", 2, B) == {"a": told(2, NEW_A)}


def test_one_of_two_left_may_not_found_itself_again() -> None:
    desk = founded()
    desk.propose("b", 1, A, B)
    desk.write()
    assert desk.propose("a", 2, NEW_A) == {"a": told(2, A, B)}


def test_nobody_is_told_before_it_is_on_disk() -> None:
    desk = founded()
    desk.propose("a", 1, A, B)
    assert desk.watch(A, B, C) == {}
    assert desk.propose("c", 1, B, C) == {}
    assert desk.write() == dict.fromkeys("abc", told(2, A, B))


def test_a_crash_before_the_write_takes_the_change_back() -> None:
    desk = founded()
    desk.propose("a", 1, A, B)  # never written, never said
    again = Desk(desk.disk)
    assert again.watch(C) == {"c": told(1, A, B, C)}
    again.propose("b", 1, B, C)
    assert again.write() == {"c": told(2, B, C)}


def test_a_write_that_fails_is_tried_again() -> None:
    desk = founded()
    desk.propose("a", 1, A, B)
    (effect,) = desk.asked
    desk.asked.clear()
    assert desk.give(StoreFailed(effect.token, "full")) == {}
    assert desk.watch(A) == {}
    desk.give(TimerFired(desk.timers.pop()))
    assert desk.write()["a"] == told(2, A, B)


def test_of_two_changes_under_way_only_the_newer_is_told() -> None:
    desk = founded()
    desk.propose("a", 1, A, B)
    desk.propose("a", 2, A)  # somebody guessed; still a compare and set
    first, second = desk.asked
    desk.asked.clear()
    assert desk.give(Stored(first.token)) == {}
    assert desk.give(Stored(second.token)) == dict.fromkeys("abc", told(3, A))


def test_chains_are_kept_apart() -> None:
    desk = Desk(east=("a",), west=("b",))
    desk.watch(A, chain="east")
    desk.watch(B, chain="west")
    assert desk.write() == {
        "a": Configuration("east", 1, (A,)),
        "b": Configuration("west", 1, (B,)),
    }
    again = Desk(desk.disk, east=("a",), west=("b",))
    assert again.watch(B, chain="west") == {"b": Configuration("west", 1, (B,))}


# ---------------------------------------------------------------- older copies and lost changes


def counted(member: Member, life: bytes, start: int, serial: int, epoch: int = 0) -> Watch:
    return Watch("chain", member, life, start, serial, epoch, (A, B) if epoch else ())


def test_a_life_that_starts_below_what_its_disk_had_counted_is_told_so() -> None:
    desk = founded()
    desk.give(Received("a", counted(A, b"1", 1, 7)))
    assert desk.give(Received("a", counted(A, b"2", 8, 8)))["a"].behind == 0  # as it should be
    assert desk.give(Received("a", counted(A, b"2", 8, 20)))["a"].behind == 0
    assert desk.give(Received("a", counted(A, b"3", 20, 20)))["a"].behind == 20
    assert desk.give(Received("a", counted(A, b"3", 20, 25)))["a"].behind == 20  # until it acts
    assert desk.give(Received("a", counted(NEW_A, b"3", 21, 26)))["a"].behind == 0
    assert desk.give(Received("a", counted(A, b"4", 21, 21)))["a"].behind == 0


def test_what_disks_have_counted_outlives_the_service() -> None:
    desk = founded()
    desk.give(Received("a", counted(A, b"1", 1, 7)))
    desk.write()
    again = Desk(disk=desk.disk)
    assert again.give(Received("a", counted(A, b"2", 5, 5)))["a"].behind == 7


def test_a_service_learns_a_later_epoch_from_a_replica() -> None:
    """It was restored from an older copy."""
    desk = founded()
    assert desk.give(Received("a", counted(A, b"1", 1, 1, epoch=4))) == {}  # not before it is kept
    assert desk.write()["a"] == told(4, A, B)
    desk.propose("b", 1, B)
    assert desk.watch(B)["b"] == told(4, A, B)


def test_a_stranger_teaches_a_service_nothing() -> None:
    desk = founded()
    desk.give(Received("stranger", counted(A, b"1", 1, 1, epoch=4)))
    assert desk.watch(B)["b"] == told(1, A, B, C)


def test_a_service_that_lost_changes_hears_all_replicas_first() -> None:
    desk = founded()
    desk.disk.save(DAMAGE, b"the journal was cut short")
    again = Desk(disk=desk.disk)
    for member in (A, B):
        assert again.give(Received(member.name, counted(member, b"1", 1, 1, epoch=2))) == {}
        again.propose(member.name, 1, member)
    again.give(Received("c", counted(C, b"1", 1, 1)))
    assert again.write()["a"] == again.watch(C)["c"] == told(2, A, B)
    assert again.disk.state(DAMAGE) == b""
