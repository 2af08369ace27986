"""What a node knows, as plain values: read from its machines, which are never touched.

`look(server)` is everything `surecast status` shows of one node. Other regions are as their tails
last advertised them, a tenth of a second ago or, where a link is cut, longer.
"""

import os
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from surecast.columns.batch import REASON_NAMES
from surecast.core.policies import show_policy
from surecast.core.status import ChainStatus, RegionStatus, SubscriptionInfo
from surecast.core.streams import StreamState
from surecast.runtime.session import UP, Session
from surecast.server.alarms import Alarm, alarms
from surecast.server.config import witness_name
from surecast.server.region import RegionServer
from surecast.version import __version__

__all__ = [
    "ChainStatus",
    "LinkStatus",
    "NodeStatus",
    "RegionStatus",
    "Status",
    "StreamStatus",
    "look",
    "not_ready",
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


class LinkStatus(msgspec.Struct):
    """The session with another node of the deployment."""

    node: str
    region: str
    up: bool
    queued_bytes: int


class StreamStatus(msgspec.Struct, kw_only=True):
    """One stream at this replica. Positions are half-open ends: `committed` is the next one."""

    name: str
    stream_id: str
    owner: str
    delivery: str
    retention: str
    end: int  # appended here
    committed: int  # on disk at every replica; what readers are shown
    live: int  # of the positions that retention has seen: all but the last moment's
    void: int
    void_reasons: dict[str, int]  # how many of them are superseded, expired, collected
    kept_bytes: int = 0
    rate: float = 0.0  # events a second that come from another region, smoothed
    source: str = ""  # the region it is pulled from; "": ours, or nobody is ahead
    regions: dict[str, int]  # how far each region has come, as far as is known here
    lag: int  # positions that some region has and this one has not
    subscribers: int
    quarantined: str = ""
    recovering: bool = False
    details: dict[str, Any] = {}  # what its delivery says besides


class Status(msgspec.Struct):
    node: NodeStatus
    ready: bool
    not_ready: list[str]
    chain: ChainStatus | None  # null at a witness
    links: list[LinkStatus]
    regions: list[RegionStatus]
    streams: list[StreamStatus]
    streams_total: int
    subscriptions: list[SubscriptionInfo]  # the first so many (streams.cursors_shown_max)
    subscriptions_total: int
    sessions: int
    queued_bytes: int
    alarms: list[Alarm]
    roles: dict[str, Any]  # what roles of the replica say besides, by their names


def look(server: RegionServer, streams_max: int) -> Status:
    """Everything, with at most so many streams."""
    raised = alarms(server)
    reasons = _reasons(server, raised)
    sessions = [s for node in server.nodes for s in node.sessions.by_peer.values()]
    replica = server.replica is not None
    said = _said(server) if replica else {}
    return Status(
        node=_node(server),
        ready=not reasons,
        not_ready=reasons,
        chain=next((one["chain"] for one in said.values() if "chain" in one), None),
        links=_links(server),
        regions=_regions(server, said),
        streams=streams(server, streams_max) if replica else [],
        streams_total=len(existing(server)) if replica else 0,
        subscriptions=[info for one in said.values() for info in one.get("subscriptions", ())],
        subscriptions_total=sum(one.get("subscriptions_total", 0) for one in said.values()),
        sessions=sum(1 for session in sessions if session.state is UP),
        queued_bytes=sum(map(_queued_bytes, sessions)),
        alarms=raised,
        roles={name: more for name, one in said.items() if (more := _besides(one))},
    )


def not_ready(server: RegionServer) -> list[str]:
    """Why clients should go elsewhere for now; nothing if they need not."""
    return _reasons(server, alarms(server))


def _reasons(server: RegionServer, raised: list[Alarm]) -> list[str]:
    if server.draining:
        return ["draining: this process is about to end"]
    if server.replica is None:
        return []
    return [f"{alarm.code}: {alarm.what}" for alarm in raised if alarm.blocks]


def streams(server: RegionServer, count_max: int) -> list[StreamStatus]:
    """The first so many streams by name."""
    known = sorted(existing(server), key=lambda stream: stream.info.name)
    return [_stream(server, stream) for stream in known[:count_max]]


def existing(server: RegionServer) -> list[StreamState]:
    """The streams that are not deleted."""
    service = server.streams
    return [s for s in service.streams.values() if not service.is_deleted(s.info.stream_id)]


def stream_named(server: RegionServer, name: str) -> StreamStatus | None:
    info = server.streams.named(name)
    stream = server.streams.streams.get(info.stream_id) if info is not None else None
    return _stream(server, stream) if stream is not None else None


# ---------------------------------------------------------------- inside


def _node(server: RegionServer) -> NodeStatus:
    config, node = server.config, server.nodes[0]
    return NodeStatus(
        name=config.name,
        region=config.node.region,
        role=config.node.role,
        version=__version__,
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


def _said(server: RegionServer) -> dict[str, Mapping[str, Any]]:
    """What each role of the replica says, by its name."""
    return {role.name: role.observer.status(server.layers) for role in server.roles}


_PLACED = ("chain", "regions", "subscriptions", "subscriptions_total")


def _besides(said: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in said.items() if key not in _PLACED}


def _regions(server: RegionServer, said: Mapping[str, Mapping[str, Any]]) -> list[RegionStatus]:
    found: dict[str, RegionStatus] = {}
    for one in said.values():
        for region in one.get("regions", ()):
            known = server.config.regions[region.name]
            region.replicas, region.http = dict(known.replicas), dict(known.http)
            found.setdefault(region.name, region)
    return list(found.values())


_FROM_ROLES = ("kept_bytes", "rate", "source")


def _stream(server: RegionServer, stream: StreamState) -> StreamStatus:
    info, index = stream.info, stream.index
    counts = index.counts()
    regions = {server.config.node.region: stream.committed}
    subscribers, recovering = 0, False
    fields: dict[str, Any] = {}
    for role in server.roles:
        if role.delivery in ("", info.delivery):
            said = dict(role.observer.stream(server.layers, info.stream_id))
            regions |= said.pop("regions", {})
            subscribers += said.pop("subscribers", 0)
            recovering |= said.pop("recovering", False)
            fields |= said
    return StreamStatus(
        name=info.name,
        stream_id=info.stream_id.hex(),
        owner=info.owner,
        delivery=info.delivery,
        retention=show_policy(index.policy),
        end=stream.end,
        committed=stream.committed,
        live=counts.live,
        void=sum(counts.void.values()),
        void_reasons={REASON_NAMES[reason]: count for reason, count in counts.void.items()},
        regions=regions,
        lag=max(regions.values()) - stream.committed,
        subscribers=subscribers,
        quarantined=stream.quarantined,
        recovering=recovering,
        details={key: value for key, value in fields.items() if key not in _FROM_ROLES},
        **{key: fields[key] for key in _FROM_ROLES if key in fields},
    )
