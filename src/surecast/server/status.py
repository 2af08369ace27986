"""The status of a node as plain values, for `/v1/status`, `surecast status` and the metrics.

`look(server)` reads the whole status from the node's machines and changes nothing. The values of
other regions are those that the tails of their chains last advertised. They are usually a tenth of
a second old, and older while a link is cut.
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
    life: int  # how many times a node has been started on this data folder
    data_dir: str  # "": in memory only
    listen: str
    http: str
    rss_bytes: int
    store_pending_bytes: int  # waiting to be written to the disk
    draining: bool


class LinkStatus(msgspec.Struct):
    """The session with another node of the deployment."""

    node: str
    region: str
    up: bool
    queued_bytes: int  # waiting to be sent in this session


class StreamStatus(msgspec.Struct, kw_only=True):
    """One stream at this replica. `end` and `committed` are the first positions after the range,
    so `committed` is the next position to be committed."""

    name: str
    stream_id: str
    owner: str  # the region that accepts its publishes and numbers its events
    delivery: str
    retention: str
    end: int  # end of the positions in this replica's log
    committed: int  # end of the positions on disk at every replica, which readers may see
    # `live` and `void` count the positions that the stream's retention rule has processed. The
    # latest positions may be missing in both.
    live: int  # positions whose event is kept
    void: int  # positions whose event is obsolete
    void_reasons: dict[str, int]  # void positions by reason: superseded, expired, collected
    kept_bytes: int = 0  # approximate size of its batches in the log
    rate: float = 0.0  # events per second that come from another region, smoothed
    source: str = ""  # the region it is pulled from; "": this region owns it, or none is ahead
    regions: dict[str, int]  # `committed` of each region, as last reported
    lag: int  # positions that another region has and this one does not
    subscribers: int  # readers that this replica serves
    quarantined: str = ""  # why part of its log on this replica cannot be read; "": it can
    recovering: bool = False  # the region owns it, lost events, and fetches them from others
    schema: str = ""  # of its events' attributes, as text; "": it has none
    details: dict[str, Any] = {}  # further values that its delivery reports


class Status(msgspec.Struct):
    """Everything that `surecast status` shows of one node."""

    node: NodeStatus
    ready: bool
    not_ready: list[str]
    chain: ChainStatus | None  # null at a witness
    links: list[LinkStatus]
    regions: list[RegionStatus]
    streams: list[StreamStatus]
    streams_total: int  # all streams; `streams` may list fewer
    subscriptions: list[SubscriptionInfo]  # at most streams.cursors_shown_max
    subscriptions_total: int
    sessions: int  # sessions that are up, with nodes and clients
    queued_bytes: int  # waiting to be sent, in all sessions
    alarms: list[Alarm]
    roles: dict[str, Any]  # further values of the replica's roles, by the role's name


def look(server: RegionServer, streams_max: int) -> Status:
    """The whole status, with at most `streams_max` streams."""
    raised = alarms(server)
    reasons = _reasons(server, raised)
    sessions = [s for node in server.nodes for s in node.sessions.by_peer.values()]
    replica = server.replica is not None
    statuses = _of_roles(server) if replica else {}
    return Status(
        node=_node(server),
        ready=not reasons,
        not_ready=reasons,
        chain=next((s["chain"] for s in statuses.values() if "chain" in s), None),
        links=_links(server),
        regions=_regions(server, statuses),
        streams=streams(server, streams_max) if replica else [],
        streams_total=len(existing(server)) if replica else 0,
        subscriptions=[info for s in statuses.values() for info in s.get("subscriptions", ())],
        subscriptions_total=sum(s.get("subscriptions_total", 0) for s in statuses.values()),
        sessions=sum(1 for session in sessions if session.state is UP),
        queued_bytes=sum(map(_queued_bytes, sessions)),
        alarms=raised,
        roles={name: rest for name, s in statuses.items() if (rest := _rest(s))},
    )


def not_ready(server: RegionServer) -> list[str]:
    """The reasons why clients should not use this node now; empty if it is ready."""
    return _reasons(server, alarms(server))


def _reasons(server: RegionServer, raised: list[Alarm]) -> list[str]:
    if server.draining:
        return ["draining: this process is stopping"]
    if server.replica is None:
        return []
    return [f"{alarm.code}: {alarm.what}" for alarm in raised if alarm.blocks]


def streams(server: RegionServer, count_max: int) -> list[StreamStatus]:
    """The first `count_max` streams by name."""
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
        store_pending_bytes=getattr(node.store, "pending_bytes", 0),  # a MemoryStore has none
        draining=server.draining,
    )


def _rss_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux
        return 0


def _links(server: RegionServer) -> list[LinkStatus]:
    """The sessions with other nodes of the deployment, including those being opened."""
    links: dict[str, LinkStatus] = {}
    for region, known in server.config.regions.items():
        for name in (*known.replicas, witness_name(region)):
            for node in server.nodes:
                if (session := node.sessions.by_peer.get(name)) is not None:
                    up = session.state is UP
                    links[name] = LinkStatus(name, region, up, _queued_bytes(session))
    return list(links.values())


def _queued_bytes(session: Session) -> int:
    connection = session.connection if session.state is UP else None
    # Bytes that were given to asyncio, and that the system has not accepted yet.
    written = connection.transport.get_write_buffer_size() if connection is not None else 0
    return session.queued + session.after_bytes + written


def _of_roles(server: RegionServer) -> dict[str, Mapping[str, Any]]:
    """The status of each role of the replica, by the role's name."""
    return {role.name: role.observer.status(server.layers) for role in server.roles}


# Values of a role's status that have a field of their own in `Status`.
_PLACED = ("chain", "regions", "subscriptions", "subscriptions_total")


def _rest(status: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a role's status that are not in _PLACED."""
    return {key: value for key, value in status.items() if key not in _PLACED}


def _regions(server: RegionServer, statuses: Mapping[str, Mapping[str, Any]]) -> list[RegionStatus]:
    regions: dict[str, RegionStatus] = {}
    for status in statuses.values():
        for region in status.get("regions", ()):
            known = server.config.regions[region.name]
            region.replicas, region.http = dict(known.replicas), dict(known.http)
            regions.setdefault(region.name, region)
    return list(regions.values())


# Values that a role reports for a stream and that have a field of their own in `StreamStatus`.
_FROM_ROLES = ("kept_bytes", "rate", "source")


def _stream(server: RegionServer, stream: StreamState) -> StreamStatus:
    info, index = stream.info, stream.index
    counts = index.counts()
    regions = {server.config.node.region: stream.committed}
    subscribers, recovering = 0, False
    fields: dict[str, Any] = {}
    for role in server.roles:
        if role.delivery in ("", info.delivery):  # "": it is not the role of a delivery
            status = dict(role.observer.stream(server.layers, info.stream_id))
            regions |= status.pop("regions", {})
            subscribers += status.pop("subscribers", 0)
            recovering |= status.pop("recovering", False)
            fields |= status
    return StreamStatus(
        name=info.name,
        stream_id=info.stream_id.hex(),
        owner=info.owner,
        delivery=info.delivery,
        schema=info.schema,
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
