"""The invariants of a replica, asserted after every step in tests and simulations.

`Roles.validate` calls `check`; production code does not (core/states.py). Each group of assertions
names the rule of docs/protocols/chain.md that it checks.
"""

from typing import TYPE_CHECKING

import msgspec

from surecast.core.types import LogId, Truncate
from surecast.protocols.chain.logs import Follower, LogState
from surecast.protocols.chain.states import LearnerState

if TYPE_CHECKING:
    from surecast.protocols.chain.roles import Roles

__all__ = ["Seen", "check"]


class Seen(msgspec.Struct):
    """Values of a replica at the last check. They must never fall; `committed` may, but only with a
    Truncate."""

    epoch: int = 0
    serial_kept: int = 0  # the serial number of the disk that is stored on it
    committed: dict[LogId, int] = {}  # the committed end of each log


def check(replica: "Roles") -> None:
    """Assert all invariants of this replica, and update `replica.validated`."""
    seen = replica.validated
    assert replica.epoch >= seen.epoch, f"the epoch fell from {seen.epoch} to {replica.epoch}"
    assert replica.serial_kept >= seen.serial_kept, "the serial number fell"
    seen.epoch, seen.serial_kept = replica.epoch, replica.serial_kept
    _check_place(replica)
    _check_learner(replica)
    for follower in (replica.follower, replica.learner):
        if follower is not None:
            _check_follower(replica, follower)
    pending_bytes = 0
    for log, state in replica.logs.items():
        pending_bytes += _check_log(replica, state)
        committed, before = state.committed, seen.committed.get(log, 1)
        if committed != before:
            if committed > before:
                _check_commit(replica, log, state)
            else:
                _check_taken_back(replica, log, committed)
            seen.committed[log] = committed
    assert pending_bytes == replica.pending_bytes, "pending bytes are miscounted"


def _check_place(replica: "Roles") -> None:
    """A member is identified by name and disk; the head is the first member, the tail the last."""
    saved, me = replica.saved, replica.me
    members = saved.members
    assert me.name == replica.config.name
    assert me.disk == saved.disk
    assert replica.is_member == (replica.active and me in members)
    assert replica.is_head == (replica.is_member and members[0] == me)
    assert replica.is_last == (replica.is_member and members[-1] == me)
    assert not replica.active or (saved.epoch > 0 and members), "active without a configuration"
    assert replica.kept_epoch <= saved.epoch, "an epoch on disk that is not known here"
    assert replica.serial_kept <= replica.serial
    if replica.is_member:
        assert replica.has_token or (replica.is_last and not replica.is_head), (
            "only a new tail waits for the token"
        )
        assert not replica.holes or len(members) == 1, "a member has holes, but is not alone"
        assert saved.clean or saved.lost_epoch, "not clean, but no epoch of the loss (R8)"
    else:
        assert not replica.owes_token or not replica.active, "only a member hands over the tail"
    if replica.active and replica.owes_token:
        assert replica.succ == members[-1].name, "the token is for the last member"


def _check_learner(replica: "Roles") -> None:
    """Only the last member adds a learner, and notes this on disk before it proposes the
    learner."""
    learner = replica.learner
    assert learner is None or replica.is_last, "only the last member may have a learner"
    if replica.join:
        assert learner is not None, "gated without a learner"
        assert replica.learner_member is not None
        assert replica.learner_member not in replica.members, "the learner is a member already"
    if replica.learner_state is LearnerState.PROPOSED:
        assert replica.saved.joining, "proposed without a note on disk"
    if replica.active and replica.saved.joining:
        assert replica.join, "a proposal is noted, but nothing is gated"


def _check_follower(replica: "Roles", follower: Follower) -> None:
    """R6: everything sent to a follower is on our disk."""
    assert follower is replica.learner or follower.peer == replica.succ
    for log, sent in follower.sent.items():
        assert sent <= replica.logs[log].stored, "sent before it is on disk (R6)"


def _check_log(replica: "Roles", state: LogState) -> int:
    """`committed <= stored <= end`; the positions from `stored` to `end` wait for the disk. Returns
    the number of bytes that wait."""
    assert 1 <= state.committed <= state.stored <= state.end, (
        f"committed {state.committed}, stored {state.stored}, end {state.end}"
    )
    assert replica.is_head or not state.waiting, "submissions wait, but this is not the head"
    at, nbytes = state.stored, 0
    for pending in state.pending:
        assert pending.lo == at, "a gap in what waits for the disk"
        at = pending.hi
        nbytes += pending.nbytes
    assert at == state.end, "positions are neither on disk nor waiting for it"
    return nbytes


def _check_commit(replica: "Roles", log: LogId, state: LogState) -> None:
    """The last member commits only what a learner that is being added (gated) has stored, too; a
    learner commits only what the tail has reported."""
    if replica.is_last and replica.join and replica.learner is not None:
        allowed = replica.learner.acked.get(log, 1)
        assert state.committed <= allowed, "committed beyond what the learner has"
    if replica.active and not replica.is_member:
        assert state.committed <= state.known, "a learner has committed by itself"


def _check_taken_back(replica: "Roles", log: LogId, committed: int) -> None:
    """The committed end falls to `committed` only if the same step truncates the log there."""
    cut = any(
        type(effect) is Truncate and effect.log == log and effect.end == committed
        for effect in replica.out
    )
    assert cut, "committed positions were given up without a Truncate"
