"""Roles: the interface through which a protocol adds its server side to a region's replica.

A region's replica is a composition of layers (`core.compose`). A *role* is what one protocol adds
to it: a section of the configuration, one or more layers, and an observer that reports their state.
`registry.py` lists the roles. The server, the simulator and the tests build a replica from these
roles and name no protocol.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple, Protocol

from surecast.core.compose import Layer
from surecast.core.streams import Streams
from surecast.core.types import Disk, LogId, Peer

__all__ = ["Code", "Deployment", "Kit", "Layers", "Metric", "Observer", "Role"]

Layers = Mapping[str, Any]  # the layers of a replica, by name; an observer only reads them


@dataclass(frozen=True, slots=True)
class Deployment:
    """Where a replica is. Some fields of a role's configuration follow from it (`Role.derived`)."""

    region: str
    name: Peer  # of the replica
    regions: Mapping[str, tuple[Peer, ...]]  # the replicas of each region
    witness: Peer  # the configuration service of its region's chain
    owners: Mapping[str, str] = field(default_factory=dict)  # prefix of stream names → region
    addresses: Mapping[Peer, str] = field(default_factory=dict)  # of this region's replicas
    http: Mapping[Peer, str] = field(default_factory=dict)  # their HTTP addresses


@dataclass(frozen=True, slots=True)
class Kit:
    """The arguments with which a role makes its layers."""

    disk: Callable[[str], Disk]  # the part of the node's disk that a layer may read
    rng: Random
    counters: Counter[str] | None  # for `HandlerMachine`; None: the layer makes its own
    kinds: Mapping[str, type[Any]]  # the class of each layer; tests replace some
    deliveries: Mapping[str, str]  # delivery → the name of the layer that is its server side
    remote: frozenset[str]  # those of them that keep events only at the owner of a stream
    made: dict[str, Layer]  # the layers below, which exist already

    @property
    def service(self) -> Streams:
        """The stream service, for layers above it."""
        service: Any = self.made["streams"]
        return service  # type: ignore[no-any-return]


class Code(NamedTuple):
    """A kind of alarm, as it is documented."""

    means: str
    todo: str  # what the operator should do
    blocks: bool = False  # during the alarm, clients should use another server


class Metric(NamedTuple):
    """One value for Prometheus. All values of one name must have the same labels."""

    name: str  # without the prefix "surecast_"
    help: str
    value: float
    labels: Mapping[str, str] = {}


class Observer(Protocol):
    """Reports the state of a role's layers, as plain values."""

    @property
    def codes(self) -> Mapping[str, Code]:
        """The alarms that `alarms` may raise."""

    def alarms(self, layers: Layers) -> Iterator[tuple[str, str]]:
        """Yields the current alarms as (code, text): the text says what the alarm concerns."""

    def status(self, layers: Layers) -> Mapping[str, Any]:
        """What `surecast status` shows about the role; may be empty.

        The server has fields of its own for these keys: `chain` (a `core.status.ChainStatus`),
        `regions` (a list of `core.status.RegionStatus`), `subscriptions` (a list of
        `core.status.SubscriptionInfo`) and `subscriptions_total` (how many there are). Other keys
        are shown under the role's name.
        """

    def stream(self, layers: Layers, stream: LogId) -> Mapping[str, Any]:
        """What `surecast status` shows about one stream. The role of a delivery is called only for
        streams of that delivery.

        If several roles return the same key, their `subscribers` are added, their `regions` (region
        → end) are joined, and `recovering` is true if one of them is true. `kept_bytes`, `rate` and
        `source` are fields of `server.status.StreamStatus`; other keys are shown as `details`.
        """

    def metrics(self, layers: Layers) -> Iterator[Metric]:
        """Gauges in addition to those that the server derives from status. Each name begins with
        the role's name, so that names are unique."""


class Role(Protocol):
    """What a protocol adds to a region's replica."""

    @property
    def name(self) -> str:
        """The name of its row of the registry, of its section of the configuration and of its first
        layer. Names of other layers begin with it and a dot, or are keys of `layer_types`."""

    @property
    def delivery(self) -> str:
        """The delivery of which this role is the server side; empty: none."""

    @property
    def keeps_copies(self) -> bool:
        """Whether regions that do not own a stream of the delivery keep its events, too, or have
        nothing to do with it. If not, they ask its layer for the positions of times (Handed)."""

    @property
    def config(self) -> type[Any]:
        """A frozen dataclass, as `core.config` loads it. The first line of its docstring is the
        title of its section; a field that is a dataclass is a section below it. It may have a
        `summary()`: rows (what, value) for `surecast serve --check-config`."""

    @property
    def layer_types(self) -> Mapping[str, type[Any]]:
        """Its layers and their classes, lowest first."""

    def derived(self, deployment: Deployment) -> dict[str, Any]:
        """The fields of `config` that follow from the deployment and cannot be set."""

    def layers(self, config: Any, kit: Kit) -> dict[str, Layer]:
        """Make its layers, by name."""

    @property
    def observer(self) -> Observer: ...
