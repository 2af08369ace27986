"""A region's replica without its chain: all layers above the chain, driven input by input.

By default the replica is x/0, and region y owns the stream s. A stub replaces the layer "chain": it
shows the test the commands that the layers above pass down, and emits the events that the test
chooses.
"""

from random import Random
from typing import Any, ClassVar

from surecast.columns.retention import KeepAll
from surecast.core import replicated
from surecast.core.compose import compose
from surecast.core.machine import HandlerMachine
from surecast.core.replicated import Appended, Committed, RoleChanged
from surecast.core.roles import Deployment
from surecast.core.streams import DIRECTORY, StreamInfo
from surecast.core.types import (
    MS,
    OWNER,
    Command,
    Emit,
    EndOfPass,
    Input,
    Received,
    Send,
    Start,
    TimerFired,
)
from surecast.protocols.sprinkler.mesh_server import MeshServer
from surecast.protocols.sprinkler.messages import Advertise
from surecast.protocols.sprinkler.region_sync import RegionSync
from surecast.protocols.sprinkler.sources import Copy
from surecast.protocols.streams.cursors import Cursors
from surecast.protocols.streams.directory import info_batch
from surecast.protocols.streams.queries import Queries
from surecast.protocols.streams.service import StreamService
from surecast.registry import configs
from surecast.stacks import region_replica
from surecast.storage.memory import MemoryDisk

STREAM = bytes(range(16))
INFO = StreamInfo(STREAM, "s", "y", KeepAll())
REGIONS = {"x": ("x/0", "x/1"), "y": ("y/0", "y/1"), "z": ("z/0",)}

_NAMES = [getattr(replicated, name) for name in replicated.__all__]
COMMANDS = tuple(kind for kind in _NAMES if issubclass(kind, Input))


class ChainEmits(Input):
    """Make the stub emit this event to the layers above."""

    event: Any


class StubChain(HandlerMachine):
    """Replaces the chain: emits each command to the owner (the test) and does nothing else."""

    provides = ("replicated",)
    inputs: ClassVar[dict[type, str]] = {
        ChainEmits: "_on_chain_emits",
        **dict.fromkeys(COMMANDS, "_on_command"),
    }

    def _on_chain_emits(self, inp: ChainEmits) -> None:
        self.out.append(Emit(inp.event))

    def _on_command(self, inp: Input) -> None:
        self.out.append(Emit(inp, OWNER))


class Bench:
    """The layers, their clock and their disk. `mutant` replaces the layer class it derives from."""

    def __init__(
        self,
        name: str = "x/0",
        mutant: type[Any] | None = None,
        *,
        streams: dict[str, Any] | None = None,
        disk: MemoryDisk | None = None,
        **options: Any,
    ) -> None:
        region = name.split("/")[0]
        self.disk = disk or MemoryDisk()
        replica = region_replica(
            configs(
                Deployment(region, name, REGIONS, f"{region}/config"),
                {"streams": streams or {}, "sprinkler": {"start": "trust", **options}},
            ),
            self.disk,
            Random(1),
            types=() if mutant is None else (mutant,),
        )
        self.stack = compose({**replica.layers, "chain": StubChain()})
        self.now_ns = 0
        self.give(Start(0, 1))

    @property
    def service(self) -> StreamService:
        return self._layer("streams")

    @property
    def cursors(self) -> Cursors:
        return self._layer("cursors")

    @property
    def queries(self) -> Queries:
        return self._layer("queries")

    @property
    def sync(self) -> RegionSync:
        return self._layer("sprinkler")

    @property
    def mesh(self) -> MeshServer:
        return self._layer("sprinkler.mesh")

    def _layer(self, name: str) -> Any:
        return self.stack.layers[name]

    # ------------------------------------------------------------ inputs

    def give(self, inp: Any, after_ns: int = MS) -> list[Any]:
        self.now_ns += after_ns
        return self.stack.step(self.now_ns, inp)

    def chain_emits(self, event: Any) -> list[Any]:
        """The chain emits this event to the layers above."""
        return self.give(Command("chain", ChainEmits(event)))

    def timer(self, layer: str, key: str) -> list[Any]:
        return self.give(TimerFired((layer, key)))

    def end_of_pass(self, layer: str, key: str = "serve") -> list[Any]:
        return self.give(EndOfPass((layer, key)))

    def role(self, epoch: int, *, head: bool = True, tail: bool = True) -> list[Any]:
        members = REGIONS[self.sync.config.region]
        return self.chain_emits(RoleChanged(epoch, members, head, tail, True))

    def add_stream(self, info: StreamInfo = INFO, end: int = 1, made_epoch: int = 0) -> Copy:
        """Add the stream to the directory, with a log that ends at `end`; returns its copy."""
        self.list_stream(info, made_epoch)
        self.chain_emits(Appended(info.stream_id, end))
        return self.sync.streams[info.stream_id]

    def list_stream(self, info: StreamInfo, made_epoch: int = 0) -> None:
        """Add the stream to the directory; `made_epoch`: it was created here, in that epoch."""
        at = self.disk.end(DIRECTORY)
        entry = info_batch(info, self.sync.config.region, made_epoch).sequenced(at, 1, 1)
        self.disk.append(DIRECTORY, (entry,))
        self.chain_emits(Appended(DIRECTORY, at + 1))
        self.chain_emits(Committed(DIRECTORY, at + 1))

    def advertised_by(self, node: str, epoch: int, end: int, full: bool = True) -> list[Any]:
        """A server of another region advertises the stream s."""
        ad = Advertise(node.split("/")[0], epoch, {STREAM: end}, (INFO,), full)
        return self.give(Received(node, ad))


def sent(effects: list[Any], kind: type) -> list[tuple[str, Any]]:
    """Messages of a type that were sent, as (peer, message)."""
    return [(e.peer, e.message) for e in effects if type(e) is Send and type(e.message) is kind]


def passed_down(effects: list[Any], kind: type) -> list[Any]:
    """Commands of a type that were passed down to the chain."""
    return [e.event for e in effects if type(e) is Emit and type(e.event) is kind]
