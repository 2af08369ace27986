"""The states of the chain's machines, and every transition between them, as data.

A replica has two independent states. The configuration service has one state for each chain. All of
them are derived from the machines' fields (`Roles.states`, `ConfigService.states`) and are stored
nowhere else.

**`ReplicaState`: the replica's place.** Every start begins in STARTING. The replica writes its
identity and a higher serial number to its disk. When both are stored, it is WAITING and requests
the configuration from the service, and the answer determines the next state. A member is HEAD,
MIDDLE, TAIL or SOLE, depending on its position. A replica that the configuration does not list is
OUTSIDE; once the tail has answered its Sync it is a LEARNER. Only a LEARNER (or a replica that was
one a moment ago) is added to a chain, always at the end, and it is NEW_TAIL until the old tail
hands over. Members never change their order, so a member moves towards the head or leaves. If the
disk of a replica is found to be an older copy of itself, the replica takes a new identity and is
STARTING again. If it is the only member of a chain of several replicas, it cannot leave. Then it is
RECOVERING until the layer above has asked the other regions (R8).

**`LearnerState`: what the last member does with a learner.** The state is NONE until a learner's
Sync arrives; then it is CATCHING_UP. When the learner has nearly caught up, it is GATED: from then
on the tail commits only what the learner has stored, too. When a note of this is on the tail's
disk, the learner is PROPOSED to the service. The next configuration ends this state, with the
learner as a member or without it.

**`ServiceState`: what the configuration service may answer about a chain.** It sends configurations
only in DECIDED, when its newest epoch is on its disk. RELEARNING means that the disk has lost
changes: the service waits until every replica of the chain has reported the epoch it knows.

A crash is not a transition: after a restart a machine begins in its initial state.
"""

from enum import Enum
from typing import Final

from surecast.core.states import Row, StateTable

__all__ = ["LEARNER", "REPLICA", "SERVICE", "LearnerState", "ReplicaState", "ServiceState"]


class ReplicaState(Enum):
    STARTING = "The identity of the disk and the serial number of this start are not on disk yet."
    WAITING = "No configuration was adopted since the start; the service is asked for one."
    OUTSIDE = "The configuration does not list this replica, and the tail has not answered a Sync."
    LEARNER = "Not a member; the tail sends it what it lacks."
    HEAD = "The first of several members: it accepts publishes and assigns positions."
    MIDDLE = "A member between two others."
    NEW_TAIL = "The last of several members: it stores batches; the old tail still serves readers."
    TAIL = "The last of several members: what it has stored is committed; it serves readers."
    SOLE = "The only member: head and tail at once."
    RECOVERING = "The only member; its disk has lost events, which other regions are asked for."


class LearnerState(Enum):
    NONE = "No learner is known here."
    CATCHING_UP = "A learner is sent what it lacks; commits do not wait for it."
    GATED = "The learner has nearly caught up: commits wait for its copy."
    PROPOSED = "The service was asked to make it a member; commits wait for its copy."


class ServiceState(Enum):
    UNFOUNDED = "Epoch 0: not every configured replica has sent Watch yet."
    SAVING = "A new epoch is being written; it is not sent to replicas yet."
    DECIDED = "The newest epoch is on disk and is sent to every replica that asks."
    RELEARNING = "The disk has lost changes: every replica must report the epoch it knows."


# ---------------------------------------------------------------- the replica's place

STARTING: Final = ReplicaState.STARTING
WAITING: Final = ReplicaState.WAITING
OUTSIDE: Final = ReplicaState.OUTSIDE
LEARNING: Final = ReplicaState.LEARNER
HEAD: Final = ReplicaState.HEAD
MIDDLE: Final = ReplicaState.MIDDLE
NEW_TAIL: Final = ReplicaState.NEW_TAIL
TAIL: Final = ReplicaState.TAIL
SOLE: Final = ReplicaState.SOLE
RECOVERING: Final = ReplicaState.RECOVERING

REPLICA_TRANSITIONS: dict[tuple[ReplicaState, str], frozenset[ReplicaState]] = {
    (STARTING, "Stored committed"): frozenset({WAITING}),
    (STARTING, "Stale"): frozenset({OUTSIDE}),
    (WAITING, "Configuration"): frozenset(
        {STARTING, OUTSIDE, HEAD, MIDDLE, TAIL, SOLE, RECOVERING}
    ),
    (WAITING, "Stale"): frozenset({OUTSIDE}),
    (WAITING, "RolledBack"): frozenset({STARTING}),
    (OUTSIDE, "SyncAck"): frozenset({LEARNING}),
    (OUTSIDE, "Configuration"): frozenset({STARTING, NEW_TAIL, RECOVERING}),
    (OUTSIDE, "Stale"): frozenset({NEW_TAIL, RECOVERING}),
    (OUTSIDE, "RolledBack"): frozenset({STARTING}),
    (LEARNING, "Configuration"): frozenset({STARTING, OUTSIDE, NEW_TAIL, RECOVERING}),
    (LEARNING, "Stale"): frozenset({OUTSIDE, NEW_TAIL, RECOVERING}),
    (LEARNING, "PeerDown"): frozenset({OUTSIDE}),
    (LEARNING, "TimerFired beat"): frozenset({OUTSIDE}),
    (LEARNING, "Forward"): frozenset({OUTSIDE}),
    (LEARNING, "Stored repair"): frozenset({OUTSIDE}),
    (LEARNING, "StoreFailed repair"): frozenset({OUTSIDE}),
    (LEARNING, "RolledBack"): frozenset({STARTING}),
    (HEAD, "Configuration"): frozenset({STARTING, OUTSIDE, SOLE, RECOVERING}),
    (HEAD, "Stale"): frozenset({OUTSIDE, SOLE}),
    (HEAD, "RolledBack"): frozenset({STARTING}),
    (MIDDLE, "Configuration"): frozenset({STARTING, OUTSIDE, HEAD, TAIL, SOLE}),
    (MIDDLE, "Stale"): frozenset({OUTSIDE, HEAD, TAIL, SOLE}),
    (MIDDLE, "RolledBack"): frozenset({STARTING}),
    (NEW_TAIL, "TailToken"): frozenset({TAIL}),
    (NEW_TAIL, "Configuration"): frozenset({STARTING, OUTSIDE, HEAD, MIDDLE, TAIL, SOLE}),
    (NEW_TAIL, "Stale"): frozenset({OUTSIDE, HEAD, MIDDLE, TAIL, SOLE}),
    (NEW_TAIL, "RolledBack"): frozenset({STARTING}),
    (TAIL, "Configuration"): frozenset({STARTING, OUTSIDE, HEAD, MIDDLE, SOLE}),
    (TAIL, "Stale"): frozenset({OUTSIDE, HEAD, MIDDLE, SOLE}),
    (TAIL, "RolledBack"): frozenset({STARTING}),
    (SOLE, "Configuration"): frozenset({STARTING, OUTSIDE, HEAD}),
    (SOLE, "RolledBack"): frozenset({STARTING, RECOVERING}),
    (RECOVERING, "Recovered"): frozenset({SOLE}),
    (RECOVERING, "Configuration"): frozenset({STARTING, OUTSIDE, HEAD}),
    (RECOVERING, "RolledBack"): frozenset({STARTING}),
}

# Rows that do not occur in 500 runs (seeds) of the random fault test (swarm) `sprinkler`, with the
# reasons. A step test in tests/protocols/chain/test_states.py tests each of them.
_RARE = "Too rare for 500 seeds: "
_SERVICE_FIRST = (
    f"{_RARE}the service reports an older copy before other regions do, unless the service was "
    "rolled back, too (with the only replica of its chain)."
)
_IN_WAITING = f"{_RARE}the service reports an older copy in its first answer, in WAITING."
_OPERATOR = "Needs an operator's `refound`; seeds have no operators."
_SHORT = (
    f"{_RARE}the old tail hands over after one exchange of messages, and the chain must change in "
    "between."
)
_MISSED_EPOCH = f"{_RARE}the replica must miss one epoch and hear of the next."
_ADMITTED = f"{_RARE}a learner must lose its tail at the moment at which it is admitted."
_MEMBER_FIRST = f"{_RARE}a member must report the epoch before the service does."

REPLICA_UNMET: dict[Row, str] = {
    **{
        (state, "RolledBack", STARTING): _SERVICE_FIRST
        for state in (WAITING, OUTSIDE, LEARNING, HEAD, MIDDLE, NEW_TAIL, RECOVERING)
    },
    (SOLE, "RolledBack", RECOVERING): _SERVICE_FIRST,
    **{
        (state, "Configuration", STARTING): _IN_WAITING
        for state in (LEARNING, HEAD, MIDDLE, NEW_TAIL, TAIL, SOLE, RECOVERING)
    },
    (HEAD, "Configuration", RECOVERING): f"{_RARE}a replica that recovers alone must become head "
    "of a longer chain, and be alone again before it has recovered.",
    **{
        (state, inp, RECOVERING): _OPERATOR
        for state in (OUTSIDE, LEARNING)
        for inp in ("Configuration", "Stale")
    },
    (SOLE, "Configuration", OUTSIDE): _OPERATOR,
    (RECOVERING, "Configuration", OUTSIDE): _OPERATOR,
    (RECOVERING, "Configuration", HEAD): f"{_RARE}another replica must join while the only member "
    "recovers.",
    **{(NEW_TAIL, "Configuration", state): _SHORT for state in (OUTSIDE, HEAD, TAIL, SOLE)},
    **{(NEW_TAIL, "Stale", state): _SHORT for state in (OUTSIDE, HEAD, MIDDLE, TAIL, SOLE)},
    **{(OUTSIDE, inp, NEW_TAIL): _ADMITTED for inp in ("Configuration", "Stale")},
    **{(MIDDLE, inp, SOLE): _MISSED_EPOCH for inp in ("Configuration", "Stale")},
    **{(TAIL, inp, HEAD): _MISSED_EPOCH for inp in ("Configuration", "Stale")},
    **{(state, "Stale", OUTSIDE): _MEMBER_FIRST for state in (STARTING, WAITING)},
    (LEARNING, "Forward", OUTSIDE): "Sessions keep the order of messages: no batch is missing.",
    (LEARNING, "StoreFailed repair", OUTSIDE): f"{_RARE}a disk must fail while it repairs a hole.",
}

REPLICA = StateTable(
    name="replica",
    states=ReplicaState,
    initial=STARTING,
    transitions=REPLICA_TRANSITIONS,
    inputs={
        "Stored committed": "The serial number of this start is on disk.",
        "Configuration": "The service sends the configuration, or reports that the disk is an "
        "older copy (`behind`).",
        "Stale": "A member answers a message of an old epoch with the configuration it knows.",
        "SyncAck": "The predecessor (for a learner: the tail) has received the replica's Sync.",
        "Forward": "Batches, with a gap before them: the learner sends another Sync.",
        "TailToken": "The old tail has stopped serving.",
        "PeerDown": "The session with the tail has ended.",
        "TimerFired beat": "The beat timer fired, and nothing was received from the tail for "
        "`suspect_ns`.",
        "Stored repair": "A hole was filled: the learner sends another Sync, with the new ends of "
        "its logs.",
        "StoreFailed repair": "A hole could not be filled: the learner sends another Sync.",
        "RolledBack": "Other regions know a higher serial number of this disk: it is an older "
        "copy.",
        "Recovered": "The layer above has recovered what was lost.",
    },
    unmet=REPLICA_UNMET,
)


# ---------------------------------------------------------------- the last member and a learner

NONE: Final = LearnerState.NONE
CATCHING_UP: Final = LearnerState.CATCHING_UP
GATED: Final = LearnerState.GATED
PROPOSED: Final = LearnerState.PROPOSED

LEARNER_TRANSITIONS: dict[tuple[LearnerState, str], frozenset[LearnerState]] = {
    (NONE, "Sync"): frozenset({CATCHING_UP}),
    (CATCHING_UP, "TimerFired beat"): frozenset({NONE, GATED}),
    (CATCHING_UP, "Configuration"): frozenset({NONE}),
    (CATCHING_UP, "Stale"): frozenset({NONE}),
    (CATCHING_UP, "RolledBack"): frozenset({NONE}),
    (GATED, "Stored chain"): frozenset({PROPOSED}),
    (GATED, "Sync"): frozenset({CATCHING_UP}),
    (GATED, "TimerFired beat"): frozenset({NONE}),
    (GATED, "Configuration"): frozenset({NONE}),
    (GATED, "Stale"): frozenset({NONE}),
    (GATED, "RolledBack"): frozenset({NONE}),
    (PROPOSED, "Configuration"): frozenset({NONE}),
    (PROPOSED, "Stale"): frozenset({NONE}),
    (PROPOSED, "RolledBack"): frozenset({NONE}),
}

LEARNER_UNMET: dict[Row, str] = {
    **{(state, "RolledBack", NONE): _SERVICE_FIRST for state in (CATCHING_UP, GATED, PROPOSED)},
    (GATED, "Stale", NONE): _MEMBER_FIRST,
    (
        GATED,
        "Sync",
        CATCHING_UP,
    ): f"{_RARE}the learner's disk must be replaced by another one while commits wait for it.",
}

LEARNER = StateTable(
    name="learner",
    states=LearnerState,
    initial=NONE,
    transitions=LEARNER_TRANSITIONS,
    inputs={
        "Sync": "A replica outside the chain reports the ends of its logs.",
        "TimerFired beat": "The beat timer fired, and the learner has nearly caught up, is silent, "
        "or takes too long.",
        "Stored chain": "The note that a learner may be proposed is on disk.",
        "Configuration": "A new epoch, with the learner as a member or without it.",
        "Stale": "A new epoch, received from a member.",
        "RolledBack": "This replica's disk is an older copy: it leaves the chain.",
    },
    unmet=LEARNER_UNMET,
)


# ---------------------------------------------------------------- the configuration service

UNFOUNDED: Final = ServiceState.UNFOUNDED
SAVING: Final = ServiceState.SAVING
DECIDED: Final = ServiceState.DECIDED
RELEARNING: Final = ServiceState.RELEARNING

SERVICE_TRANSITIONS: dict[tuple[ServiceState, str], frozenset[ServiceState]] = {
    (UNFOUNDED, "Start"): frozenset({DECIDED, RELEARNING}),
    (UNFOUNDED, "Watch"): frozenset({SAVING}),
    (UNFOUNDED, "Propose"): frozenset({SAVING}),
    (SAVING, "Stored"): frozenset({DECIDED}),
    (DECIDED, "Propose"): frozenset({SAVING}),
    (DECIDED, "Watch"): frozenset({SAVING}),
    (RELEARNING, "Watch"): frozenset({UNFOUNDED, SAVING, DECIDED}),
}

_WITNESS = (
    "Seeds do not damage the disk of a service, and roll it back only together with the only "
    "replica of its chain."
)

SERVICE_UNMET: dict[Row, str] = {
    (UNFOUNDED, "Start", RELEARNING): _WITNESS,
    (UNFOUNDED, "Propose", SAVING): _OPERATOR,
    (DECIDED, "Watch", SAVING): _WITNESS,
    **{(RELEARNING, "Watch", state): _WITNESS for state in (UNFOUNDED, SAVING, DECIDED)},
}

SERVICE = StateTable(
    name="service",
    states=ServiceState,
    initial=UNFOUNDED,
    transitions=SERVICE_TRANSITIONS,
    inputs={
        "Start": "The service starts and reads its disk.",
        "Watch": "A replica asks for the configuration. It is the last replica that was needed to "
        "found the chain, or it knows a later epoch than the service.",
        "Propose": "A replica proposes the members of the next epoch.",
        "Stored": "The new epoch is on disk.",
    },
    unmet=SERVICE_UNMET,
)
