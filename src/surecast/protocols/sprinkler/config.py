"""The configuration of Sprinkler at a region's servers, and of members of its meshes."""

from dataclasses import dataclass, field
from typing import Any, Literal

from surecast.core.types import MS, SECOND, Peer
from surecast.errors import ConfigError

__all__ = [
    "BULK_DEADLINE_NS",
    "ClientConfig",
    "MeshConfig",
    "SprinklerConfig",
    "bulk_mesh",
    "paper",
    "paper_mesh",
]


@dataclass(frozen=True, slots=True)
class MeshConfig:
    """Clients that pass events on to each other.

    The region's servers are members of the meshes, too.
    """

    view_max: int = 20  # how many peers a client knows (its view), for each stream; V in the paper
    # How many peers of the view a client chooses at random and notifies of new events; F in the
    # paper.
    fanout: int = 4
    server_fanout: int = 4  # the same for a server, which then sends new events to each of them
    shuffle_ns: int = 1 * SECOND  # how often these peers are chosen again; S in the paper
    gossip_ns: int = 1 * SECOND  # how often a view is sent to one of its peers; G in the paper
    # One of this many views is sent to the server instead, so that groups of clients that have lost
    # contact with each other find each other again.
    server_every: int = 10
    # True: the chosen peers notify in return, no peer is notified of events it is known to have,
    # and peers are chosen again only if there were new events. False: as in the paper, without
    # these savings.
    mutual: bool = True
    # The least time between two notifications. What is delivered in between is announced by one.
    notify_gap_ns: int = 5 * MS
    notify_bytes: int = 64 << 10  # notify earlier if there are this many bytes of new events
    meshes_max: int = 10_000  # streams that have a mesh, at one server

    def __post_init__(self) -> None:
        for key in (
            "view_max",
            "fanout",
            "server_fanout",
            "server_every",
            "shuffle_ns",
            "gossip_ns",
            "meshes_max",
        ):
            if getattr(self, key) < 1:
                raise ConfigError(f"mesh.{key} is {getattr(self, key)}; the least is 1")
        if self.fanout > self.view_max:
            raise ConfigError(
                f"mesh.fanout is {self.fanout}: only the {self.view_max} peers of a view can be "
                "notified (mesh.view_max)"
            )


@dataclass(frozen=True, slots=True)
class SprinklerConfig:
    """Between regions.

    `region`, `name`, `regions` and `owners` follow from the deployment (`SprinklerRole.derived`).
    """

    region: str
    name: Peer
    regions: dict[str, tuple[Peer, ...]] = field(default_factory=dict)  # every region's replicas
    owners: dict[str, str] = field(default_factory=dict)  # prefix of names → region that owns them
    advertise_ns: int = 100 * MS  # A: how often a region advertises the ends of its copies
    # A_dead, in advertisement periods. A source region is given up if it is silent this long, or
    # is ahead but sends no events this long.
    dead_after: int = 5
    # The rule for changing to another source region: "production", or "literal", the paper's rule,
    # which can stall.
    switching: str = "production"
    # C of the literal rule, in events times seconds: the source is changed for a region that leads
    # by more than this many events one second after the source's last advertisement, or by more
    # than twice as many half a second after it.
    literal_damping: float = 1.0
    serves_per_step: int = 8  # messages per step to one region, or to one member of a mesh
    # "ask": after a start, wait for the other regions before assigning positions, because the data
    # folder may be an older copy of itself; "trust": do not wait.
    start: Literal["ask", "trust"] = "ask"
    ask_ns: int = 3 * SECOND  # with "ask": how long to wait for regions that do not answer
    mesh: MeshConfig = field(default_factory=MeshConfig)

    def __post_init__(self) -> None:
        if self.region not in self.regions:
            raise ConfigError(f"sprinkler.regions has no entry for this region, {self.region!r}")
        if self.name not in self.regions[self.region]:
            raise ConfigError(
                f"sprinkler.regions[{self.region!r}] does not list this replica, {self.name!r}"
            )
        for prefix, region in self.owners.items():
            if region not in self.regions:
                raise ConfigError(
                    f"owners[{prefix!r}] is {region!r}, which is not a region; there are: "
                    f"{', '.join(self.regions)}"
                )
        if self.switching not in ("production", "literal"):
            raise ConfigError(
                f"sprinkler.switching is {self.switching!r}; use 'production' or 'literal'"
            )
        if self.start not in ("ask", "trust"):
            raise ConfigError(f"sprinkler.start is {self.start!r}; use 'ask' or 'trust'")
        for key in ("advertise_ns", "serves_per_step"):
            if getattr(self, key) < 1:
                raise ConfigError(f"{key} is {getattr(self, key)}; the least is 1")
        if self.dead_after < 2:
            raise ConfigError(
                f"sprinkler.dead_after is {self.dead_after}; below 2 a source that misses one "
                "advertisement is given up"
            )

    @property
    def dead_ns(self) -> int:
        return self.dead_after * self.advertise_ns


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """A client that takes part in its region's mesh."""

    name: Peer
    replicas: tuple[Peer, ...]  # of its own region, the preferred one first
    mesh: MeshConfig = field(default_factory=MeshConfig)
    keep_bytes_max: int = 8 << 20  # delivered events kept for peers, for each stream
    early_bytes_max: int = 8 << 20  # early events held until lower positions come, for each stream
    reply_bytes_max: int = 256 << 10  # bytes of one message to a peer
    # A peer has this many round trips to answer a request, and at least `deadline_ns_min`. After
    # this time a server is asked.
    deadline_rtts: int = 3
    deadline_ns_min: int = 20 * MS
    server_retry_ns: int = 500 * MS  # if a server is silent for this long, ask the next replica
    silence_ns: int = 1 * SECOND  # if nothing new comes for this long, ask a server
    silence_ns_max: int = 8 * SECOND  # if servers have nothing new either, wait longer, up to this
    asks_max: int = 64  # most open requests, for each stream
    sessions_max: int = 400  # above this, sessions with peers that are no longer known are closed
    streams_max: int = 1_000  # most streams that the client follows

    def __post_init__(self) -> None:
        if not self.replicas:
            raise ConfigError("client.replicas is empty: a mesh needs a server to fall back on")
        if self.name in self.replicas:
            raise ConfigError(f"client.name {self.name!r} is the name of a replica")
        for key in ("early_bytes_max", "reply_bytes_max", "asks_max"):
            if getattr(self, key) < 1:
                raise ConfigError(f"client.{key} is {getattr(self, key)}; the least is 1")


def paper_mesh(**options: Any) -> MeshConfig:
    """The mesh as in the paper: whenever peers are chosen again, all of them are notified, even of
    events they have, and a server notifies as many peers as a client does."""
    as_printed: dict[str, Any] = {"shuffle_ns": 30 * MS, "mutual": False, "notify_gap_ns": 0}
    server_fanout = options.get("fanout", MeshConfig().fanout)
    return MeshConfig(**{"server_fanout": server_fanout, **as_printed, **options})


def bulk_mesh(**options: Any) -> MeshConfig:
    """A mesh for streams that fill uplinks: fewer peers are notified at the same time, because each
    of them requests many events.

    Since peers notify in return, a fanout of two gives about four neighbours. A stalled client
    delays its neighbours for longer than with the defaults. Use this with
    `ClientConfig(deadline_ns_min=BULK_DEADLINE_NS)`.
    """
    return MeshConfig(**{"fanout": 2, "server_fanout": 1, **options})


BULK_DEADLINE_NS = 100 * MS  # an answer may have to wait this long if an uplink is full


def paper(region: str, name: Peer, regions: dict[str, tuple[Peer, ...]]) -> SprinklerConfig:
    """A configuration with the switching rule and the mesh of the paper."""
    return SprinklerConfig(region, name, regions, switching="literal", mesh=paper_mesh())
