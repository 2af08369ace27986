"""What a node knows, as plain values: read from its machines, which are never touched.

`look(server)` is everything `surecast status` shows of one node. Other regions are as their tails
last advertised them, a tenth of a second ago or, where a link is cut, longer.
"""

import os
import time
from importlib.metadata import version

import msgspec

from surecast.columns.rules import KeepAll, KeepFor, KeepLast, Policy
from surecast.protocols.streams.stream import Stream
from surecast.runtime.session import UP, Session
from surecast.server.alarms import Alarm, alarms
from surecast.server.config import witness_name
from surecast.server.region import RegionServer

__all__ = [
    "ChainStatus",
    "LinkStatus",
    "NodeStatus",
    "RegionStatus",
    "Status",
    "StreamStatus",
    "look",
    "not_ready",
    "show_policy",
    "stream_named",
    "streams",
]


class NodeStatus(msgspec.Struct):
    """This process."""

    name: str
    region: str
    role: str
    version: str
    pid: int
    uptime_s: float
    life: int  # how often it was started on this data folder
    data_dir: str  # "": in memory only
    listen: str
    http: str
    rss_bytes: int
    store_pending_bytes: int  # on their way to the disk
    draining: bool


class ChainStatus(msgspec.Struct):
    """The region's replicas, as this one knows them. Epoch 0: not founded yet."""

    epoch: int
    members: list[str]
    configured: list[str]
    place: str  # of this replica: head, middle, tail, alone, learner, outside
    writable: bool  # enough members to take publishes
    writable_min: int
    pending_bytes: int  # appended and not on disk yet
    unanswered: int  # publishes taken in and not acknowledged yet


class LinkStatus(msgspec.Struct):
    """The session with another node of the deployment."""

    node: str
    region: str
    up: bool
    queued_bytes: int


class RegionStatus(msgspec.Struct):
    """Another region, as this one hears of it."""

    name: str
    up: bool  # heard from within the last few advertisements
    heard_s: float | None  # how long ago; null: never
    epoch: int
    head: str
    tail: str
    same_owners: bool
    replicas: dict[str, str]
    http: dict[str, str]


class StreamStatus(msgspec.Struct):
    """One stream at this replica. Positions are half-open ends: `committed` is the next one."""

    name: str
    stream_id: str
    owner: str
    retention: str
    end: int  # appended here
    committed: int  # on disk at every replica; what readers are shown
    live: int
    void: int
    kept_bytes: int
    rate: float  # events a second that come from another region, smoothed
    source: str  # the region it is pulled from; "": ours, or nobody is ahead
    regions: dict[str, int]  # how far each region has come, as far as is known here
    lag: int  # positions that some region has and this one has not
    subscribers: int
    quarantined: str = ""
    recovering: bool = False


class Status(msgspec.Struct):
    node: NodeStatus
    ready: bool
    not_ready: list[str]
    chain: ChainStatus | None  # null at a witness
    links: list[LinkStatus]
    regions: list[RegionStatus]
    streams: list[StreamStatus]
    streams_total: int
    sessions: int
    queued_bytes: int
    alarms: list[Alarm]


def look(server: RegionServer, streams_max: int) -> Status:
    """Everything, with at most so many streams."""
    reasons = not_ready(server)
    sessions = [s for node in server.nodes for s in node.sessions.by_peer.values()]
    replica = server.replica is not None
    return Status(
        node=_node(server),
        ready=not reasons,
        not_ready=reasons,
        chain=_chain(server) if replica else None,
        links=_links(server),
        regions=_regions(server) if replica else [],
        streams=streams(server, streams_max) if replica else [],
        streams_total=len(server.streams.streams) if replica else 0,
        sessions=sum(1 for session in sessions if session.state is UP),
        queued_bytes=sum(map(_queued_bytes, sessions)),
        alarms=alarms(server),
    )


def not_ready(server: RegionServer) -> list[str]:
    """Why clients should go elsewhere for now; nothing if they need not."""
    if server.draining:
        return ["draining: this process is about to end"]
    if server.replica is None:
        return []
    return [f"{alarm.code}: {alarm.what}" for alarm in alarms(server) if alarm.blocks]


def streams(server: RegionServer, count_max: int) -> list[StreamStatus]:
    """The first so many streams by name."""
    known = sorted(server.streams.streams.values(), key=lambda stream: stream.info.name)
    return [_stream(server, stream) for stream in known[:count_max]]


def stream_named(server: RegionServer, name: str) -> StreamStatus | None:
    info = server.streams.named(name)
    stream = server.streams.streams.get(info.stream_id) if info is not None else None
    return _stream(server, stream) if stream is not None else None


def show_policy(policy: Policy) -> str:
    """A policy as `surecast publish --retain` takes it."""
    if isinstance(policy, KeepAll):
        return "keep-all"
    if isinstance(policy, KeepLast):
        return f"keep-last:{policy.n}"
    if isinstance(policy, KeepFor):
        for unit, ns in (("d", 86_400 * 10**9), ("h", 3600 * 10**9), ("min", 60 * 10**9)):
            if policy.ns % ns == 0:
                return f"keep-for:{policy.ns // ns}{unit}"
        return f"keep-for:{policy.ns / 1e9:g}s"
    return "latest-per-key"


# ---------------------------------------------------------------- inside


def _node(server: RegionServer) -> NodeStatus:
    config, node = server.config, server.nodes[0]
    return NodeStatus(
        name=config.name,
        region=config.node.region,
        role=config.node.role,
        version=version("surecast"),
        pid=os.getpid(),
        uptime_s=round((time.time_ns() - server.started_ns) / 1e9, 1),
        life=node.store.incarnation,
        data_dir=os.path.abspath(config.node.data_dir) if config.node.data_dir else "",
        listen=config.node.listen,
        http=config.node.http,
        rss_bytes=_rss_bytes(),
        store_pending_bytes=getattr(node.store, "pending_bytes", 0),  # memory has none
        draining=server.draining,
    )


def _rss_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux
        return 0


def _chain(server: RegionServer) -> ChainStatus:
    chain = server.chain
    members = [member.name for member in chain.members]
    return ChainStatus(
        epoch=chain.epoch,
        members=members,
        configured=list(server.config.region.replicas),
        place=_place(server),
        writable=chain.active and len(members) >= chain.config.writable_min,
        writable_min=chain.config.writable_min,
        pending_bytes=chain.pending_bytes,
        unanswered=server.unanswered(),
    )


def _place(server: RegionServer) -> str:
    chain = server.chain
    if not chain.is_member:
        return "learner" if chain.active and chain.pred and chain.synced else "outside"
    if chain.is_head and chain.is_last:
        return "alone"
    if chain.is_head:
        return "head"
    return "tail" if chain.is_last else "middle"


def _links(server: RegionServer) -> list[LinkStatus]:
    """Sessions with nodes of the deployment: those there are, and those being opened."""
    found: dict[str, LinkStatus] = {}
    for region, known in server.config.regions.items():
        for name in (*known.replicas, witness_name(region)):
            for node in server.nodes:
                if (session := node.sessions.by_peer.get(name)) is not None:
                    up = session.state is UP
                    found[name] = LinkStatus(name, region, up, _queued_bytes(session))
    return list(found.values())


def _queued_bytes(session: Session) -> int:
    connection = session.connection if session.state is UP else None
    written = connection.transport.get_write_buffer_size() if connection is not None else 0
    return session.queued + session.after_bytes + written


def _regions(server: RegionServer) -> list[RegionStatus]:
    regions = server.regions
    found = []
    for peer in regions.peers.values():
        known = server.config.regions[peer.name]
        heard_s = round((regions.now_ns - peer.heard_ns) / 1e9, 2) if peer.heard_ns >= 0 else None
        same = heard_s is None or peer.owners == regions.owners
        found.append(
            RegionStatus(
                peer.name,
                regions.is_live(peer),
                heard_s,
                peer.epoch,
                peer.head,
                peer.tail,
                same,
                dict(known.replicas),
                dict(known.http),
            )
        )
    return found


def _stream(server: RegionServer, stream: Stream) -> StreamStatus:
    regions = server.regions
    void = sum(voids.total() for voids in stream.index.voids.values())
    ends = {server.config.node.region: stream.committed}
    for peer in regions.peers.values():
        if stream.stream_id in peer.ends:
            ends[peer.name] = peer.ends[stream.stream_id]
    pieces, copy = stream.pieces, regions.streams.get(stream.stream_id)
    source = copy.source if copy is not None else None
    recovering = copy is not None and copy.recovering_since_ns is not None
    return StreamStatus(
        name=stream.info.name,
        stream_id=stream.stream_id.hex(),
        owner=stream.info.owner,
        retention=show_policy(stream.index.policy),
        end=stream.end,
        committed=stream.committed,
        live=stream.index.end - 1 - void,
        void=void,
        kept_bytes=sum(piece.nbytes for piece in (*pieces.closed, pieces.open)),
        rate=round(copy.rate, 1) if copy is not None else 0.0,
        source=source.region if source is not None else "",
        regions=ends,
        lag=max(ends.values()) - stream.committed,
        subscribers=_subscribers(server, stream),
        quarantined=stream.quarantined,
        recovering=recovering or bool(stream.hole),
    )


def _subscribers(server: RegionServer, stream: Stream) -> int:
    """Readers here, and other regions."""
    both = (server.streams.serving, server.regions.serving)
    return sum(len(serving.followers.get(stream.stream_id, ())) for serving in both)
