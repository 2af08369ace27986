"""The chain's observer: reads a replica and reports its status and alarms, as plain values."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from surecast.core.roles import Code, Layers, Metric
from surecast.core.status import ChainStatus
from surecast.core.types import LogId
from surecast.protocols.chain.replica import Replica
from surecast.protocols.chain.states import ReplicaState

__all__ = ["ChainObserver"]

# The names of a replica's states in status and metrics.
PLACES: Mapping[ReplicaState, str] = {
    # As `ChainStatus.place`.
    ReplicaState.STARTING: "outside",
    ReplicaState.WAITING: "outside",
    ReplicaState.OUTSIDE: "outside",
    ReplicaState.LEARNER: "learner",
    ReplicaState.HEAD: "head",
    ReplicaState.MIDDLE: "middle",
    ReplicaState.NEW_TAIL: "tail",
    ReplicaState.TAIL: "tail",
    ReplicaState.SOLE: "alone",
    ReplicaState.RECOVERING: "alone",
}


class ChainObserver:
    codes: ClassVar[Mapping[str, Code]] = {
        "not-founded": Code(
            "The chain does not exist yet: it is founded once every replica of the region has "
            "connected to the witness.",
            "Start the witness and all replicas of the region; look for links that are down.",
            blocks=True,
        ),
        "not-in-chain": Code(
            "This replica is not a member of its chain now: it is catching up with the others, or "
            "it cannot reach them. The others serve clients.",
            "Wait while `surecast status` shows a learner. If it does not join, make sure that it "
            "reaches the chain's tail and the witness.",
            blocks=True,
        ),
        "too-few-replicas": Code(
            "The chain has fewer members than an acknowledgement promises (chain.min_replicas). "
            "Publishes wait; readers are served.",
            "Start the missing replicas. They join by themselves.",
        ),
        "replicas-missing": Code(
            "The chain works with fewer replicas than are configured.",
            "Start the missing replicas. They join by themselves.",
        ),
        "disks-lost": Code(
            "This chain lost its disks and fetches its streams from other regions. Publishes to "
            "streams that it owns wait until every other region has answered.",
            "Make sure that the other regions can be reached. If one will never return, see "
            "docs/operations.md, 'A region that is gone'.",
        ),
        "disk-distrusted": Code(
            "The data folder of this replica lost something that it had confirmed: it is damaged, "
            "or an older copy of itself. The replica keeps what it can read, and the other "
            "replicas send it the rest; a single replica asks the other regions, and publishes to "
            "streams that it owns wait.",
            "Wait while it is filled. If no other replica is in the chain and there is no other "
            "region, restore a newer copy of the folder, or continue with what is left: see "
            "docs/operations.md, 'A data folder that is damaged or was restored'.",
        ),
        "replica-ahead": Code(
            "Another replica of the region has positions that this one, the chain's tail, lacks: "
            "either this one has lost them, or the other one still has a history that was given "
            "up.",
            "Stop both, compare both folders with `surecast log info`, and found the chain again "
            "from the one that has more: see docs/operations.md.",
        ),
        "disk-failing": Code(
            "Writes to the data folder fail and are retried; publishes wait. If they continue to "
            "fail, the replica leaves its chain, unless it is the only one.",
            "Free space on the disk: the replica then continues by itself. Or replace the disk: "
            "`surecast log verify` reports what is damaged.",
            blocks=True,
        ),
        "disk-behind": Code(
            "More bytes wait for the disk than chain.pending_bytes_max allows: publishes are "
            "refused for now, and clients retry them.",
            "Use a faster disk, fewer publishers or larger batches.",
        ),
    }

    def alarms(self, layers: Layers) -> Iterator[tuple[str, str]]:
        chain: Replica = layers["chain"]
        config = chain.config
        members = [member.name for member in chain.members]
        missing = [name for name in config.configured if name not in members]
        if not chain.epoch:
            yield "not-founded", f"{config.chain} waits for {', '.join(config.configured)}"
        elif not chain.is_member:
            yield "not-in-chain", f"epoch {chain.epoch} has {', '.join(members) or 'nobody'}"
        if chain.active and len(members) < config.writable_min:
            need = config.writable_min
            yield "too-few-replicas", f"{len(members)} of {need}; missing: {', '.join(missing)}"
        elif chain.active and missing:
            yield "replicas-missing", ", ".join(missing)
        if chain.saved.distrust:
            yield "disk-distrusted", chain.saved.distrust
        if ahead := chain.ahead():
            yield "replica-ahead", ", ".join(ahead)
        if chain.active and not chain.saved.clean:
            yield "disks-lost", f"since epoch {chain.saved.lost_epoch}"
        # Failures are reported only while something waits to be written. (It may have been
        # truncated since the write failed.)
        failures = chain.store_failures
        waiting = sum(s.failed or bool(failures and s.pending) for s in chain.logs.values())  # logs
        if waiting:
            yield "disk-failing", f"writes fail, {failures} in a row; {waiting} logs wait"
        if chain.pending_bytes > config.pending_bytes_max:
            yield "disk-behind", f"too much waits for the disk, {chain.pending_bytes} bytes"

    def status(self, layers: Layers) -> Mapping[str, Any]:
        chain: Replica = layers["chain"]
        members = [member.name for member in chain.members]
        return {
            "chain": ChainStatus(
                epoch=chain.epoch,
                members=members,
                configured=list(chain.config.configured),
                place=PLACES[chain.state],
                writable=chain.active and len(members) >= chain.config.writable_min,
                writable_min=chain.config.writable_min,
                pending_bytes=chain.pending_bytes,
                unanswered=sum(len(state.waiting) for state in chain.logs.values()),
                clean=chain.saved.clean,
                damage=_damage(chain),
            )
        }

    def stream(self, _layers: Layers, _stream: LogId) -> Mapping[str, Any]:
        return {}

    def metrics(self, _layers: Layers) -> Iterator[Metric]:
        return iter(())


def _damage(chain: Replica) -> str:
    """What the replica's disk has lost, as text; empty: nothing."""
    if chain.saved.distrust:
        return chain.saved.distrust
    holes = sum(map(len, chain.holes.values()))
    return f"{holes} ranges of positions cannot be read" if holes else ""
