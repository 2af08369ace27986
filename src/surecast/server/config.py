"""Configuration of a region server: the sections of its TOML file, and the rules between them.

`[node]` describes this process. `[regions.*]` and `[owners]` describe the deployment. They are the
same in the files of all nodes, except for addresses: these are the addresses at which *this* node
reaches the others, through a relay or a NAT if there is one. The other sections have defaults for
all keys. Each role of a replica, which is what one protocol adds to it (`core.roles`), has a
section with its name. `build` joins all sections into one `ServerConfig`, or raises a `ConfigError`
that says what is wrong, where, and what is allowed.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, get_type_hints

from surecast.core.config import check, load
from surecast.core.roles import Deployment, Role
from surecast.core.types import SECOND, Peer
from surecast.core.wire import Limits
from surecast.errors import ConfigError
from surecast.registry import roles
from surecast.runtime.addresses import Address, is_loopback
from surecast.runtime.session import RuntimeLimits
from surecast.storage.config import StorageConfig

__all__ = [
    "HttpConfig",
    "LogConfig",
    "NodeConfig",
    "RegionConfig",
    "ServerConfig",
    "build",
    "derived_fields",
    "parse_address",
    "sections",
    "witness_name",
]

DATAGRAM_ROOM = 512  # bytes of a datagram beside the batch in it and the token: names, headers
DATAGRAM_MIN = 512  # the least `datagram_bytes_max` of a role
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)
_NAME_RULE = "letters, digits, '-', '_' and '.', at most 63, a letter or digit first"


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """This process."""

    region: str  # the region that it belongs to, one of [regions]
    # The folder in which it keeps its data; "": in memory only, lost when the process ends.
    data_dir: str
    # The name of a replica, one of those in its region's `replicas`; a witness needs no name.
    name: str = ""
    role: Literal["replica", "witness"] = "replica"  # what this process is in its region
    # host:port to listen on for clients, replicas and other regions (TCP and UDP)
    listen: str = "127.0.0.1:7400"
    http: str = "127.0.0.1:7480"  # host:port of the HTTP port; "": no HTTP port
    # The secret that other nodes, clients, and HTTP requests under /v1 must present; "": none.
    token: str = ""
    # Allow addresses other than loopback, although nothing is encrypted yet.
    insecure: bool = False
    # The folder in which every input is recorded, for `surecast replay`; "": no recording.
    record: str = ""

    def validate(self) -> None:
        for key in ("listen", "http"):
            text = getattr(self, key)
            if key == "http" and not text:
                continue
            host = _address(text, key)[0]
            check(
                self, key, self.insecure or is_loopback(host),
                "anybody who can reach this machine could connect, and nothing is encrypted yet. "
                "Listen on 127.0.0.1, or set insecure = true if you trust everybody on the network",
            )  # fmt: skip
        # With port 0 the system chooses the port when the node starts. The recording does not
        # contain that port, but the replay needs it to build the same state machine.
        fixed = not self.record or parse_address(self.listen)[1] > 0
        check(self, "record", fixed, "a recording needs node.listen to name a port, not 0")
        named = bool(self.name) or self.role == "witness"
        check(self, "name", named, "a replica needs a name; give the one its region lists")


@dataclass(frozen=True, slots=True)
class RegionConfig:
    """A region, as this node reaches it."""

    # name = "host:port" of each replica; the first one is the head of the chain at its first start.
    replicas: dict[str, str]
    # host:port of its witness; "": the witness runs inside the region's only replica.
    witness: str = ""
    # name = "host:port" of the replicas' HTTP ports, for `surecast status`.
    http: dict[str, str] = field(default_factory=dict)

    def validate(self) -> None:
        check(self, "replicas", bool(self.replicas), "a region has at least one replica")
        for name, address in self.replicas.items():
            _check_name("replica", name)
            _address(address, f"replicas.{name}")
        if self.witness:
            _address(self.witness, "witness")
        for name, address in self.http.items():
            if name not in self.replicas:
                known = ", ".join(self.replicas)
                raise ConfigError(f"http names {name!r}, which is not a replica here: {known}")
            _address(address, f"http.{name}")


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """Bounds of the HTTP port; its address is `node.http`."""

    # Requests that are handled at a time, except for /healthz and /readyz; further ones get 503.
    requests_max: int = 64
    # Requests that are handled at a time for one client address; further ones get 503.
    requests_per_peer_max: int = 48
    # Connections that wait for their client: idle, sending a request, or not reading an answer.
    # When there is one more, the server takes the client address that has most of them, and closes
    # its connection that has waited longest.
    connections_max: int = 256
    # The same for one client address; all clients of a reverse proxy have one address.
    connections_per_peer_max: int = 192
    # Size of the request line and headers of one request; a larger one gets 431.
    header_bytes_max: int = 16 << 10
    body_bytes_max: int = 4 << 20  # size of the body of one request; a larger one gets 413
    # Size of the bodies of all requests being received or published; further requests get 503.
    bodies_bytes_max: int = 64 << 20
    # Time for the headers of a request to arrive; after that, the answer is 408.
    header_timeout_ns: int = 10 * SECOND
    # Time for the body of a request to arrive; after that, the answer is 408.
    body_timeout_ns: int = 30 * SECOND
    # A client that does not read its answer for this time is disconnected.
    response_timeout_ns: int = 30 * SECOND
    idle_timeout_ns: int = 75 * SECOND  # a connection without a request is closed after this time
    # Time for the region to answer a publish or a request about subscriptions; after that, the
    # answer is 504.
    publish_timeout_ns: int = 30 * SECOND
    # Metrics and status show at most this number of streams, the first by name.
    streams_max: int = 1_000
    # Each kind of bad request is logged once in this time, with the number of further ones.
    log_every_ns: int = 10 * SECOND

    def validate(self) -> None:
        for key in fields(self):
            check(self, key.name, getattr(self, key.name) > 0, "above 0")
        most = self.body_bytes_max
        enough = self.bodies_bytes_max >= most
        check(self, "bodies_bytes_max", enough, f"at least body_bytes_max ({most})")


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The log on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"  # the lowest level that is logged
    format: Literal["text", "json"] = "text"  # lines of text, or a JSON object per line


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The checked configuration of a server."""

    node: NodeConfig
    regions: dict[str, RegionConfig]
    owners: dict[str, str]  # prefix of stream names → the region that owns them
    # A witness has no roles; its `deployment` and `roles` are those of its region's first replica.
    deployment: Deployment
    roles: dict[str, Any]  # the configuration of each role, by the role's name
    storage: StorageConfig
    runtime: RuntimeLimits
    limits: Limits
    http: HttpConfig
    log: LogConfig

    @property
    def name(self) -> Peer:
        """This node's name on the wire."""
        return self.node.name or witness_name(self.node.region)

    @property
    def region(self) -> RegionConfig:
        return self.regions[self.node.region]

    @property
    def is_witness(self) -> bool:
        return self.node.role == "witness"

    @property
    def has_witness_inside(self) -> bool:
        return not self.is_witness and not self.region.witness


# The sections that have a class, without those of the roles.
SECTIONS: dict[str, type[Any]] = {
    "node": NodeConfig,
    "http": HttpConfig,
    "log": LogConfig,
    "storage": StorageConfig,
    "runtime": RuntimeLimits,
    "limits": Limits,
}
TABLES = ("regions", "owners")  # sections without a class


def sections() -> dict[str, type[Any]]:
    """The configuration class of each section that has one, by name, such as "sprinkler.mesh"."""
    classes = dict(SECTIONS)
    for role in roles().values():
        assert role.name not in (*SECTIONS, *TABLES), f"{role.name} is a section of the server"
        classes |= _nested(role.name, role.config)
    return classes


def _nested(section: str, cls: type[Any]) -> dict[str, type[Any]]:
    """The class of a section and those of the sections below it."""
    classes = {section: cls}
    for name, hint in get_type_hints(cls).items():
        if isinstance(hint, type) and is_dataclass(hint):
            classes |= _nested(f"{section}.{name}", hint)
    return classes


def derived_fields(role: Role) -> set[str]:
    """The fields of a role's configuration that follow from the deployment and cannot be set."""
    # Any deployment gives the same field names.
    return set(role.derived(Deployment("r", "n", {"r": ("n",)}, "w")))


def witness_name(region: str) -> Peer:
    return f"{region}/witness"


def parse_address(text: str) -> Address:
    """ "127.0.0.1:7400" or "[::1]:7400" → ("127.0.0.1", 7400)."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ConfigError('not an address; write "host:port", such as "127.0.0.1:7400"')
    return host, int(port)


def build(document: Mapping[str, Any]) -> ServerConfig:
    """The configuration in a parsed TOML document. Raises ConfigError."""
    _refuse_unknown(document)
    _refuse_misplaced(document)
    filled = {section: load(cls, document, section) for section, cls in SECTIONS.items()}
    node: NodeConfig = filled["node"]
    regions = _regions(document.get("regions", {}))
    _check_place(node, regions)
    owners = _owners(document.get("owners"), node, regions)
    replica = node.name if node.role == "replica" else next(iter(regions[node.region].replicas))
    here = regions[node.region]
    deployment = Deployment(
        region=node.region,
        name=replica,
        regions={region: tuple(config.replicas) for region, config in regions.items()},
        witness=witness_name(node.region),
        owners=owners,
        addresses=dict(here.replicas),
        # The address in `node.http` is used even if the section of the region does not list it.
        http={**here.http, **({replica: node.http} if node.http and replica == node.name else {})},
    )
    of_roles = {
        name: _fit_datagrams(
            load(role.config, document, name, role.derived(deployment)), node, filled["runtime"]
        )
        for name, role in roles().items()
    }
    return ServerConfig(
        node, regions, owners, deployment, of_roles,
        filled["storage"],
        filled["runtime"], filled["limits"], filled["http"], filled["log"],
    )  # fmt: skip


# ---------------------------------------------------------------- inside


def _refuse_unknown(document: Mapping[str, Any]) -> None:
    names = (*sections(), *TABLES)
    known = [name for name in names if "." not in name]
    for section in document:
        if section not in known:
            near = difflib.get_close_matches(section, known, n=1)
            hint = f"did you mean [{near[0]}]? " if near else ""
            raise ConfigError(f"unknown section [{section}]; {hint}Allowed: {', '.join(names)}")


def _refuse_misplaced(document: Mapping[str, Any]) -> None:
    """Raise ConfigError for a key that belongs into another section."""
    derived = {name: derived_fields(role) for name, role in roles().items()}
    keys = {
        section: {field.name for field in fields(cls)} - derived.get(section, set())
        for section, cls in sections().items()
    }
    for section in keys:
        table: Any = document
        for word in section.split("."):
            table = table.get(word, {}) if isinstance(table, Mapping) else {}
        for key in table if isinstance(table, Mapping) else ():
            homes = [name for name, known in keys.items() if key in known]
            if homes and section not in homes:
                raise ConfigError(f"[{section}] {key}: this is a key of [{homes[0]}]")


def _fit_datagrams(config: Any, node: NodeConfig, runtime: RuntimeLimits) -> Any:
    """The configuration of a role, with datagrams that are not larger than those of the node, which
    would drop them."""
    largest = getattr(config, "datagram_bytes_max", 0)
    room = runtime.datagram_bytes_max - DATAGRAM_ROOM - len(node.token.encode())
    if not largest or largest <= room:
        return config
    return replace(config, datagram_bytes_max=max(room, DATAGRAM_MIN))


def _address(text: str, key: str) -> Address:
    """As parse_address, but the error names the key that has this value."""
    try:
        return parse_address(text)
    except ConfigError as problem:
        raise ConfigError(f"{key} = {text!r}: {problem}") from None


def _check_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{what} name {name!r}: allowed are {_NAME_RULE}")


def _regions(table: Any) -> dict[str, RegionConfig]:
    if not isinstance(table, Mapping) or not table:
        raise ConfigError(
            "there are no [regions]: add one, such as\n"
            '  [regions.east]\n  replicas = { "east-1" = "127.0.0.1:7400" }'
        )
    regions: dict[str, RegionConfig] = {}
    names: dict[str, str] = {}  # node → its region
    places: dict[str, str] = {}  # address → the node there
    for region in table:
        _check_name("region", region)
        config = regions[region] = load(RegionConfig, {"regions": table}, f"regions.{region}")
        if len(config.replicas) > 1 and not config.witness:
            raise ConfigError(
                f"[regions.{region}] has {len(config.replicas)} replicas and no witness. Give the "
                "address of one, best on a machine of its own: on a replica's machine it would "
                "fail together with that replica"
            )
        for name, address in {**config.replicas, witness_name(region): config.witness}.items():
            if name in names:
                raise ConfigError(f"{name!r} is in [regions.{names[name]}] and [regions.{region}]")
            names[name] = region
            # Port 0 means a port that the system chooses, so it can be given several times.
            if address and not address.endswith(":0") and address in places:
                raise ConfigError(f"{places[address]} and {name} have the same address, {address}")
            places[address] = name
    return regions


def _check_place(node: NodeConfig, regions: dict[str, RegionConfig]) -> None:
    """Raise ConfigError if this node is not part of the deployment in its own configuration."""
    if node.region not in regions:
        raise ConfigError(
            f"[node] region = {node.region!r}: there is no such region; [regions] has "
            + ", ".join(regions)
        )
    here = regions[node.region]
    if node.role == "witness":
        if node.name not in ("", witness_name(node.region)):
            raise ConfigError(
                f"[node] name = {node.name!r}: a witness is called {witness_name(node.region)}; "
                "leave the name out"
            )
        if not here.witness:
            raise ConfigError(f"[regions.{node.region}] has no address of its witness")
    elif node.name not in here.replicas:
        raise ConfigError(
            f"[node] name = {node.name!r}: not a replica of [regions.{node.region}], which lists "
            + ", ".join(here.replicas)
        )


def _owners(table: Any, node: NodeConfig, regions: dict[str, RegionConfig]) -> dict[str, str]:
    """The region that owns each prefix of streams; the longest prefix of whole words decides."""
    if table is None and len(regions) == 1:
        return {"": node.region}
    if not isinstance(table, Mapping) or "" not in table:
        raise ConfigError(
            "[owners] needs a default, the region that owns all streams not covered by others:\n"
            f'  [owners]\n  "" = "{next(iter(regions))}"'
        )
    for prefix, owner in table.items():
        if owner not in regions:
            raise ConfigError(
                f"[owners] {prefix!r} = {owner!r}: there is no such region, only "
                + ", ".join(regions)
            )
        words = prefix.split(".") if prefix else []
        if not all(words) or any(word in ("*", ">") for word in words):
            raise ConfigError(
                f"[owners] {prefix!r}: a prefix is whole words of stream names with dots between, "
                'such as "orders.eu"; it needs no wildcard'
            )
    return dict(table)
