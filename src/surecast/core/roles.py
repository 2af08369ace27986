"""The server side of a protocol: what its row of the registry says of a region's replica.

A replica is a composition of layers (`core.compose`). A *role* is what one protocol puts into it: a
section of the configuration, one or more layers, and an observer that tells what they know. The
server, the simulator and the tests build a replica from roles and name no protocol.
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

Layers = Mapping[str, Any]  # of a replica, by name; an observer reads them and changes nothing


@dataclass(frozen=True, slots=True)
class Deployment:
    """Where a replica stands: what parts of a role's configuration follow from."""

    region: str
    name: Peer  # of the replica
    regions: Mapping[str, tuple[Peer, ...]]  # the replicas of each region
    witness: Peer  # the configuration service of its region's chain
    owners: Mapping[str, str] = field(default_factory=dict)  # prefix of stream names → region
    addresses: Mapping[Peer, str] = field(default_factory=dict)  # of this region's replicas
    http: Mapping[Peer, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kit:
    """What the layers of a role are made with."""

    disk: Callable[[str], Disk]  # the part of the node's disk that a layer may read
    rng: Random
    counters: Counter[str] | None
    kinds: Mapping[str, type[Any]]  # the class of each layer; tests put others in their place
    deliveries: Mapping[str, str]  # delivery → the layer that is its server side
    made: dict[str, Layer]  # the layers below

    @property
    def service(self) -> Streams:
        """The stream service, for layers above it."""
        service: Any = self.made["streams"]
        return service  # type: ignore[no-any-return]


class Code(NamedTuple):
    """A kind of alarm."""

    means: str
    todo: str
    blocks: bool = False  # clients should go elsewhere


class Metric(NamedTuple):
    """One value for Prometheus; those of one name have the same labels."""

    name: str  # without the prefix "surecast_"
    help: str
    value: float
    labels: Mapping[str, str] = {}


class Observer(Protocol):
    """Tells what the layers of a role know, as plain values."""

    @property
    def codes(self) -> Mapping[str, Code]:
        """The alarms that `alarms` may raise."""

    def alarms(self, layers: Layers) -> Iterator[tuple[str, str]]:
        """What is wrong: a code, and what it concerns."""

    def status(self, layers: Layers) -> Mapping[str, Any]:
        """What `surecast status` shows of the role; may be empty.

        `chain` is a `core.status.ChainStatus`, `regions` a list of `core.status.RegionStatus`,
        `subscriptions` a list of `core.status.SubscriptionInfo` and `subscriptions_total` how many
        there are: the server has a place for these. The rest is shown under the role's name.
        """

    def stream(self, layers: Layers, stream: LogId) -> Mapping[str, Any]:
        """What `surecast status` shows of one stream. A delivery's role is asked about its own.

        Of what several roles say, `subscribers` are added, `regions` (region → end) are joined, and
        `recovering` is true if one says so. `kept_bytes`, `rate` and `source` have a place in
        `server.status.StreamStatus`; the rest is shown as `details`.
        """

    def metrics(self, layers: Layers) -> Iterator[Metric]:
        """Gauges besides those that the server makes of status; each name begins with the role's,
        so that no two are equal."""


class Role(Protocol):
    """What a protocol puts into a region's replica."""

    @property
    def name(self) -> str:
        """Of its row of the registry, of its section of the configuration and of its first layer.
        Other layers begin with it and a dot, or are named in `layer_types`."""

    @property
    def delivery(self) -> str:
        """The delivery whose server side it is; empty: none."""

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

    def layers(self, config: Any, kit: Kit) -> dict[str, Layer]: ...

    @property
    def observer(self) -> Observer: ...
