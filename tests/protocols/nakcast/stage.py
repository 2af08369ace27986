"""A nakcast server over a log in memory and its readers, connected by bad links in a `World`."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, ClassVar

from surecast.columns.batch import COLLECTED, Batch
from surecast.columns.retention import KeepAll
from surecast.core.compose import compose
from surecast.core.endpoint import Follow, Lost
from surecast.core.machine import HandlerMachine
from surecast.core.replicated import RoleChanged
from surecast.core.streams import (
    Attend,
    Create,
    Refuse,
    Resume,
    StreamAdded,
    StreamInfo,
    StreamsMoved,
    Suspend,
)
from surecast.core.types import MS, SECOND, Command, Emit, Input, LogId, Start
from surecast.protocols.nakcast.checks import Given, Reading, Record
from surecast.protocols.nakcast.config import NakcastConfig, ReaderConfig
from surecast.protocols.nakcast.reader import Reader
from surecast.protocols.nakcast.server import NakcastServer
from surecast.sim import Link, World

STREAM = bytes(range(16))
OTHER = bytes(range(16, 32))
INFO = StreamInfo(STREAM, "s", "east", KeepAll(), delivery="nakcast")
OTHER_INFO = StreamInfo(OTHER, "o", "east", KeepAll())
BAD = Link(delay_ns=5 * MS, jitter_ns=3 * MS, loss=0.3, duplicate=0.1, reorder=0.2)
READERS = ("r1", "r2")


class Commit(Input):
    """Append these values to the log as one committed batch."""

    values: list[bytes]


class Say(Input):
    """Make the stream service emit this event to the layers above."""

    event: Any


class Log(HandlerMachine):
    """Replaces the stream service: one stream in memory; appends commit at once."""

    provides = ("streams",)
    inputs: ClassVar[dict[type, str]] = {
        Start: "_on_start",
        Commit: "_on_commit",
        Say: "_on_say",
        Attend: "_on_attend",
        **dict.fromkeys((Create, Refuse, Resume, Suspend), "_on_command"),
    }

    def __init__(self) -> None:
        super().__init__()
        self.cannot_read: tuple[str, ...] = ()  # peers of an earlier version
        self.batches: list[Batch] = []
        self.end = 1
        self.void: list[tuple[int, int]] = []
        self.commands: list[Any] = []
        self.attending = False
        self.reads = 0

    def _on_start(self, _inp: Start) -> None:
        self.out.append(Emit(StreamAdded(INFO, 1, False)))
        self.out.append(Emit(StreamAdded(OTHER_INFO, 1, False)))

    def _on_commit(self, inp: Commit) -> None:
        self.commit(inp.values)
        self.out.append(Emit(StreamsMoved((STREAM,)), "nakcast"))

    def commit(self, values: list[bytes]) -> None:
        batch = Batch.of(STREAM, values).sequenced(self.end, 0, 1)
        self.batches.append(batch)
        self.end = batch.hi

    def _on_say(self, inp: Say) -> None:
        self.out.append(Emit(inp.event))

    def _on_attend(self, inp: Attend) -> None:
        assert (inp.layer, inp.on) == ("nakcast", not self.attending)
        self.attending = inp.on

    def _on_command(self, command: Any) -> None:
        self.commands.append(command)

    # called by the layer above

    @property
    def streams(self) -> dict[LogId, Any]:
        return {info.stream_id: SimpleNamespace(info=info) for info in (INFO, OTHER_INFO)}

    def may_read(self, peer: str, _stream: LogId) -> bool:
        return peer not in self.cannot_read

    def shown_end(self, stream: LogId) -> int:
        return self.end if stream == STREAM else 5 if stream == OTHER else 0

    def end_event(self, stream: LogId) -> list[Batch]:
        return []

    def readable(self, stream: LogId, lo: int, hi: int = 0) -> list[Batch]:
        assert stream == STREAM
        self.reads += 1
        hi = hi or self.end
        found = [batch for batch in self.batches if batch.lo < hi and batch.hi > lo][:4]
        return [batch.slice(max(batch.lo, lo), min(batch.hi, hi)) for batch in found]

    def voids(self, stream: LogId, lo: int, hi: int, count_max: int) -> tuple[list[Batch], int]:
        clipped = [(max(a, lo), min(b, hi)) for a, b in self.void if a < hi and b > lo]
        if len(clipped) > count_max:
            hi = clipped[count_max][0]
        return [Batch.void(STREAM, a, b, COLLECTED) for a, b in clipped[:count_max]], hi


def server(log: Log | None = None, **options: Any) -> Any:
    """A composition of log and server."""
    log = log or Log()
    config = NakcastConfig("east", **options)
    layer: Any = log
    return compose({"streams": layer, "nakcast": NakcastServer(config, layer)})


class Stage:
    """A server, two readers, and a record of what the readers' applications received."""

    def __init__(
        self,
        seed: int,
        link: Link = BAD,
        reader_type: type[Reader] = Reader,
        **options: Any,
    ) -> None:
        self.world = World(seed, link)
        self.log = Log()
        self.world.add("p", lambda ctx: server(self.log, **options))
        self.readings = {name: Reading(name) for name in READERS}
        self.values: list[bytes] = []
        for name in READERS:
            config = ReaderConfig(("p",), window=16)
            self.world.add(name, lambda ctx, config=config: reader_type(config))
            self.world.on_deliver(name, self._on_deliver)
            self.world.on_emit(name, self._on_emit)
        self.repair_max = options.get("repair_max", NakcastConfig("east").repair_max)

    def follow(self, name: str, at_ns: int, start: int = 1) -> None:
        self.readings[name].start = start
        self.world.at(at_ns, name, Follow(STREAM, start))

    def publish(self, batches: int, from_ns: int = 0) -> None:
        for number in range(batches):
            values = [b"%d.%d" % (len(self.values), i) for i in range(1 + number % 3)]
            self.values += values
            self.world.at(from_ns + number * MS, "p", Command("streams", Commit(values)))

    def run(self, until_ns: int = 10 * SECOND) -> Record:
        self.world.run(until_ns)
        acked = {value: seq for seq, value in enumerate(self.values, 1)}
        readings = list(self.readings.values())
        return Record("s", self.repair_max, 0, acked, acked, readings)

    def _on_deliver(self, _now: int, name: str, stream: LogId, batches: Iterable[Batch]) -> None:
        given = self.readings[name].given
        for batch in batches:
            if not batch.rows:
                given.append(Given("void", batch.lo, batch.hi))
            for row in batch.to_rows():
                given.append(Given("event", row.seq, row.seq + 1, row.value))

    def _on_emit(self, _now: int, name: str, event: Any) -> None:
        assert isinstance(event, Lost)
        self.readings[name].given.append(Given("lost", event.lo, event.hi))


def role(*, head: bool = True, clean: bool = True) -> RoleChanged:
    return RoleChanged(1, ("p",), head, head, clean)
