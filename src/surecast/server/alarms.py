"""What is wrong at a node, what that means and what to do: for `surecast status`, logs, metrics.

The same table makes docs/configuration.md's list of alarms, so each code is explained in one place.
"""

from collections.abc import Iterator

import msgspec

from surecast.core.streams import CURSORS, DIRECTORY
from surecast.runtime.session import UP
from surecast.server.region import RegionServer

__all__ = ["CODES", "Alarm", "alarms"]

NAMED_MAX = 10  # streams named one by one; the rest is counted


class Code(msgspec.Struct, frozen=True):
    means: str
    todo: str
    blocks: bool = False  # not ready while it lasts


CODES: dict[str, Code] = {
    "in-memory": Code(
        "node.data_dir is empty: everything this node holds is gone when its process ends.",
        "Set node.data_dir, unless losing it is fine.",
    ),
    "not-founded": Code(
        "The chain does not exist yet: it is founded once the witness and every replica of the "
        "region have met.",
        "Start the witness and all replicas of the region; look for links that are down.",
        blocks=True,
    ),
    "not-in-chain": Code(
        "This replica is no member of its chain now: it is catching up with the others, or it "
        "cannot reach them. Clients are served by the others.",
        "Wait while `surecast status` shows a learner. If it does not join, see that it reaches "
        "the chain's tail and the witness.",
        blocks=True,
    ),
    "witness-unreachable": Code(
        "The witness cannot be reached. The chain goes on as it is, but nobody can be removed "
        "from it or join it: the next failure of a replica stops it.",
        "Start the witness again, on the same data folder, or mend the link to it.",
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
        "This chain lost its disks and fetches its streams from other regions. Publishes of what "
        "it owns wait until every other region has been heard.",
        "See that the other regions can be reached. If one will never come back, see "
        "docs/operations.md, 'A region that is gone'.",
    ),
    "disk-distrusted": Code(
        "The data folder of this replica lost something that it had confirmed: it is damaged, or "
        "an older copy of itself. The replica keeps what it can read and is sent the rest by the "
        "other replicas; a lone replica asks the other regions, and publishes of what it owns "
        "wait.",
        "Wait while it is filled. If no other replica is in the chain and there is no other "
        "region, restore a newer copy of the folder, or go on with what is left: see "
        "docs/operations.md, 'A data folder that is damaged or was restored'.",
    ),
    "entries-lost": Code(
        "Entries of the region's own logs could not be read and are in no other place: streams of "
        "the directory come back from other regions, places of named subscriptions begin anew.",
        "Look for streams that are missing in `surecast streams`; check named subscriptions.",
    ),
    "asking-regions": Code(
        "This server has just started and waits for the other regions before it gives positions, "
        "because its data folder may be an older copy of itself (sprinkler.start, ask_ns).",
        "Nothing: it ends when they have answered, or after sprinkler.ask_ns.",
    ),
    "replica-ahead": Code(
        "Another replica of the region has positions that this one, the chain's tail, has not: "
        "this one has lost them, or the other one kept a history that was given up.",
        "Stop both, look at both folders with `surecast log info`, and found the chain anew from "
        "the one that has most: see docs/operations.md.",
    ),
    "disk-failing": Code(
        "Writes to the data folder fail and are tried again; publishes wait. If that goes on, the "
        "replica leaves its chain, unless it is the only one.",
        "Make room on the disk: the replica goes on by itself. Or replace the disk: `surecast log "
        "verify` tells what is damaged.",
        blocks=True,
    ),
    "disk-behind": Code(
        "More is waiting for the disk than chain.pending_bytes_max allows: publishes are refused "
        "for now and tried again by their clients.",
        "Use a faster disk, fewer publishers or larger batches.",
    ),
    "region-unreachable": Code(
        "Another region is not heard from. Streams it owns get no new events here, unless a third "
        "region passes them on; publishes to them from here fail.",
        "Mend the link, or start that region. Nothing is lost meanwhile: it catches up.",
    ),
    "owners-differ": Code(
        "Another region's [owners] table is not like ours, so the two may disagree on who numbers "
        "a stream. No streams are created while they differ.",
        "Give all regions the same [owners] and restart those that were wrong.",
        blocks=True,
    ),
    "stream-quarantined": Code(
        "Part of a stream's log here cannot be read. What comes before that is served; publishes "
        "are refused. Other replicas may be whole.",
        "Run `surecast log verify` on the data folder. If the other replicas are well, empty this "
        "one's data folder: it is filled again from them.",
    ),
    "stream-damaged": Code(
        "Positions of a stream cannot be read on this disk, and no other replica of the region has "
        "them. What comes before is served, publishes of a stream that this region owns wait, and "
        "the positions are fetched from another region that has them.",
        "See that the other regions can be reached. If none has these positions, they are lost: "
        "restore the data folder from a copy, or give the history up (force-new-stream).",
    ),
    "stream-forked": Code(
        "Two regions have different events at the same positions of a stream, because its owner "
        "was restored from an older copy while it could ask nobody. The history whose newest event "
        "is older stays; the other one is copied to a stream of its own and taken back.",
        "Read the stream named here, and publish again what is needed of it.",
    ),
    "stream-recovering": Code(
        "Other regions have events of a stream that this region owns and lost. It fetches them "
        "before it takes publishes.",
        "See that the other regions can be reached; it ends by itself.",
    ),
}


class Alarm(msgspec.Struct, frozen=True):
    """Something is wrong here: what, what it means, what to do."""

    code: str
    what: str
    means: str
    todo: str
    blocks: bool


def alarms(server: RegionServer) -> list[Alarm]:
    return [
        Alarm(code, what, CODES[code].means, CODES[code].todo, CODES[code].blocks)
        for code, what in _found(server)
    ]


def _found(server: RegionServer) -> Iterator[tuple[str, str]]:
    if not server.config.node.data_dir:
        yield "in-memory", f"{server.config.name} keeps nothing on disk"
    if server.replica is not None:
        yield from _of_chain(server)
        yield from _of_regions(server)
        yield from _of_streams(server)


def _of_chain(server: RegionServer) -> Iterator[tuple[str, str]]:
    chain, configured = server.chain, server.config.region.replicas
    members = [member.name for member in chain.members]
    assert server.replica is not None
    session = server.replica.sessions.by_peer.get(chain.config.service)
    if session is None or session.state is not UP:
        yield "witness-unreachable", f"no session with {chain.config.service}"
    if not chain.epoch:
        yield "not-founded", f"{server.config.node.region} waits for {', '.join(configured)}"
    elif not chain.is_member:
        yield "not-in-chain", f"epoch {chain.epoch} has {', '.join(members) or 'nobody'}"
    missing = [name for name in configured if name not in members]
    if chain.active and len(members) < chain.config.writable_min:
        need = chain.config.writable_min
        yield "too-few-replicas", f"{len(members)} of {need}; missing: {', '.join(missing)}"
    elif chain.active and missing:
        yield "replicas-missing", ", ".join(missing)
    if chain.saved.distrust:
        yield "disk-distrusted", chain.saved.distrust
    if recent := chain.ahead():
        yield "replica-ahead", ", ".join(recent)
    if chain.active and not chain.saved.clean:
        yield "disks-lost", f"since epoch {chain.saved.lost_epoch}"
    # Failures count only while something waits to be written: what was taken back needs no room.
    failures = chain.store_failures
    waiting = sum(s.failed or bool(failures and s.pending) for s in chain.logs.values())
    if waiting:
        yield "disk-failing", f"writes fail, {failures} in a row; {waiting} logs wait"
    if chain.pending_bytes > chain.config.pending_bytes_max:
        yield "disk-behind", f"too much waits for the disk, {chain.pending_bytes} bytes"


def _of_regions(server: RegionServer) -> Iterator[tuple[str, str]]:
    regions = server.regions
    for peer in regions.peers.values():
        if not regions.is_live(peer):
            ago = (regions.now_ns - peer.heard_ns) / 1e9
            yield (
                "region-unreachable",
                f"{peer.name}, "
                + (f"last heard {ago:.0f} s ago" if peer.heard_ns >= 0 else "never heard"),
            )
        if peer.heard_ns >= 0 and peer.owners != regions.owners:
            yield "owners-differ", peer.name


def _of_damage(server: RegionServer) -> Iterator[tuple[str, str]]:
    service, regions = server.streams, server.regions
    holed = [stream for stream in service.streams.values() if stream.hole]
    for stream in holed[:NAMED_MAX]:
        holes = service.disk.holes(stream.stream_id)
        ranges = " and ".join(f"{lo} to {hi - 1}" for lo, hi in holes[:NAMED_MAX])
        yield "stream-damaged", f"{stream.info.name}: positions {ranges}, {len(holes)} ranges"
    if len(holed) > NAMED_MAX:
        yield "stream-damaged", f"and {len(holed) - NAMED_MAX} more"
    names = {DIRECTORY: "directory", CURSORS: "named subscriptions"}
    for log, name in names.items():
        if log in service.hole_at:
            yield "stream-damaged", f"the region's {name}: from entry {service.hole_at[log]} on"
    if lost := service.entries_lost:
        yield "entries-lost", " ".join(f"{names[log]} {lo} to {hi - 1}" for log, lo, hi in lost[:5])
    recovery = regions.recovery
    if regions.is_head and not recovery.has_asked and recovery.is_anybody_silent():
        silent = [p.name for p in regions.peers.values() if not regions.forks.has_met(p)]
        yield "asking-regions", "waiting, for " + " ".join(silent)
    for what in regions.forks.told(NAMED_MAX):
        yield "stream-forked", what


def _of_streams(server: RegionServer) -> Iterator[tuple[str, str]]:
    streams = server.streams.streams.values()
    bad = [(s.info.name, s.quarantined) for s in streams if s.quarantined]
    for name, why in bad[:NAMED_MAX]:
        yield "stream-quarantined", f"{name}: {why}"
    if len(bad) > NAMED_MAX:
        yield "stream-quarantined", f"and {len(bad) - NAMED_MAX} more"
    yield from _of_damage(server)
    copies = server.regions.streams.values()
    back = [copy.info.name for copy in copies if copy.recovering_since_ns is not None]
    if back:
        more = f" and {len(back) - NAMED_MAX} more" if len(back) > NAMED_MAX else ""
        yield "stream-recovering", ", ".join(back[:NAMED_MAX]) + more
