"""The walk of one batch: which functions of `src/surecast` run while a batch goes through.

Two regions run in this process, over real sockets and with their logs on disk: `east`, which owns
the stream and has a head and a tail, and `west`, of one replica. Each process of a real deployment
is a thread here. One client publishes in east, another subscribes in west, and the reading function
of a Spark task then reads the batch from west.

`walk` publishes some batches to warm everything up, and then ROUNDS more while a profiling function
of the interpreter notes, for each thread, which function called which. What a timer started is left
out: beats, advertisements of what is known already, looks at the clock. So are the threads that
move and compact in the background. Whether a function runs now and then (two messages came in one
read) or for each batch is a matter of counting: a function is on the walk if it ran in most rounds.
"""

from __future__ import annotations

import ast
import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeVar

import surecast
from surecast.core.types import SECOND
from surecast.pipeline.fetch import Task, read
from surecast.pipeline.plan import Range
from surecast.server.config import build
from surecast.server.layout import lay_out, node_count
from surecast.server.region import RegionServer
from tests.ports import free_ports

__all__ = ["LEGS", "ROUNDS", "SRC", "Edge", "Function", "Leg", "passed_back", "walk"]

T = TypeVar("T")

SRC = str(Path(surecast.__file__).parent) + "/"
EVENTS = 300
WARM = 4  # batches before the first that is recorded
ROUNDS = 25
PATIENCE_S = 30.0
REST_S = 0.01  # for what follows the last event of a batch: acknowledgements
BACKGROUND = ("mover",)  # threads of the store that have nothing to do with one batch

# What nodes do at regular intervals or with older events is made rare: a slow machine would see it
# in every round, a fast one in few of them.
RARE_NS = 60 * SECOND
SETTINGS = {
    "chain": {
        "heartbeat_ns": 5 * SECOND,
        "suspect_ns": RARE_NS,
        "watch_ns": 5 * SECOND,
        "count_ns": RARE_NS,
        "save_ns": RARE_NS,
    },
    "streams": {"compact_ns": RARE_NS, "settle_ns": RARE_NS},
    "sprinkler": {"advertise_ns": SECOND},
}

# (what is going on, whose thread) → the title of this leg, in the order of the walk.
LEGS = {
    ("publish", "publisher"): "Publish, in the client",
    ("publish", "head"): "Publish, at the head of the owner's chain",
    ("publish", "tail"): "Publish, at the tail of the owner's chain",
    ("publish", "other"): "The other region: its replica takes the batch and sends it to readers",
    ("publish", "subscriber"): "The subscriber, a client of the other region",
    ("read", "task"): "The Spark task",
    ("read", "other"): "The Spark task, at the server that it reads from",
}


class Function(NamedTuple):
    file: str  # below src/surecast
    name: str  # with its class


Edge = tuple[Function | None, Function]  # caller, called; None: a call of the event loop


@dataclass
class Leg:
    """What ran in one party's threads in one phase, in how many rounds."""

    rounds: Counter[Function] = field(default_factory=Counter)
    edges: Counter[Edge] = field(default_factory=Counter)
    places: Counter[Function] = field(default_factory=Counter)  # sums of places in the order

    def add(self, edges: dict[Edge, None]) -> None:
        order = list(dict.fromkeys(called for _, called in edges))
        self.rounds.update(order)
        self.edges.update(edges.keys())
        for place, function in enumerate(order):
            self.places[function] += place

    def ran(self, rounds: float) -> list[Function]:
        """The functions of at least so many rounds, in the order in which they were entered."""
        found = [one for one, count in self.rounds.items() if count >= rounds]
        return sorted(found, key=lambda one: (self.places[one] / self.rounds[one], one))


# ---------------------------------------------------------------- recording


class Recorder:
    """Notes calls between functions of surecast, by thread, while `recording`."""

    def __init__(self) -> None:
        self.recording = False
        self.calls: dict[int, dict[Edge, None]] = {}
        self._functions: dict[CodeType, Function | None] = {}

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        if not self.recording or event != "call":
            return
        called = self._function(frame.f_code)
        if called is None:
            return
        caller: Function | None = None
        above = frame.f_back
        while above is not None:
            if caller is None:
                caller = self._function(above.f_code)
            if is_timer(above):
                return
            above = above.f_back
        self.calls.setdefault(threading.get_ident(), {})[caller, called] = None

    def _function(self, code: CodeType) -> Function | None:
        try:
            return self._functions[code]
        except KeyError:
            path, name = code.co_filename, code.co_qualname
            found = None
            if path.startswith(SRC):
                # A lambda or a generator expression counts as the function that it stands in.
                found = Function(path[len(SRC) :], name.partition(".<locals>")[0])
            self._functions[code] = found
            return found

    def take(self) -> dict[int, dict[Edge, None]]:
        """By thread, what was noted since the last call; in the order of the first calls."""
        calls, self.calls = self.calls, {}
        return calls


def is_timer(frame: FrameType) -> bool:
    """Whether this is the event loop's own frame for a call at a certain time."""
    if frame.f_code is not asyncio.Handle._run.__code__:
        return False
    return isinstance(frame.f_locals["self"], asyncio.TimerHandle)


# ---------------------------------------------------------------- the deployment


class Party:
    """One process of a real deployment: a thread with an event loop, and the threads it starts."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()
        self.threads = {self._thread.ident}

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Have it done in the party's loop; threads that begin meanwhile belong to the party."""
        before = set(threading.enumerate())
        result = asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)
        new = set(threading.enumerate()) - before
        self.threads |= {one.ident for one in new if one.name not in BACKGROUND}
        return result

    def begin(self, work: Coroutine[Any, Any, T]) -> Callable[[], T]:
        """Have it done, and return what waits for the result."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        return lambda: future.result(PATIENCE_S)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Deployment:
    """See the module. Everything is stopped when `stack` is closed."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._stack = stack
        self.parties: dict[str, Party] = {}
        sizes = {"east": 2, "west": 1}
        layout = lay_out(folder, sizes, free_ports(node_count(sizes)), settings=SETTINGS)
        servers = {node.name: RegionServer(build(layout.document(node))) for node in layout.nodes}
        for name, server in servers.items():
            party = self._party(name)
            party.do(server.start())
            stack.callback(lambda party=party, server=server: party.do(server.stop()))
        roles = {"head": "head", "tail": "tail", "alone": "other"}
        for name, server in servers.items():
            if not server.config.is_witness:
                wait_for(lambda server=server: server.chain().place in roles)
                self.parties[roles[server.chain().place]] = self.parties.pop(name)
        self.urls = {
            region: "surecast://" + ",".join(node.listen for node in layout.of(region))
            for region in sizes
        }
        self.publisher = self._party("publisher")
        self.subscriber = self._party("subscriber")
        client = self._client(self.publisher, self.urls["east"])
        policy = surecast.latest_per_key()
        self.stream = self.publisher.do(client.stream("walk", retain=policy))
        reader = self._client(self.subscriber, self.urls["west"])
        self.subscriber.do(self._subscribe(reader))

    def _party(self, name: str) -> Party:
        party = self.parties[name] = Party(name)
        self._stack.callback(party.stop)
        return party

    def _client(self, party: Party, url: str) -> surecast.Client:
        client = surecast.connect(url)
        party.do(client.open())
        self._stack.callback(lambda: party.do(client.close()))
        return client

    async def _subscribe(self, client: surecast.Client) -> None:
        self.subscription = client.subscribe("walk", start="earliest")
        await self.subscription.ready()

    async def _receive(self, last: int) -> None:
        async for event in self.subscription:
            if event.seq == last:
                return
            assert event.seq < last

    def publish(self, number: int) -> tuple[int, int]:
        """Have a batch published, and received in the other region; its positions [lo, hi)."""
        values = [b"%d" % number] * EVENTS
        keys = [b"key %d" % n for n in range(EVENTS)]
        received = self.subscriber.begin(self._receive((number + 1) * EVENTS))
        seqs = self.publisher.do(self.stream.publish_many(values, keys=keys))
        received()
        time.sleep(REST_S)
        return seqs.first, seqs.last + 1

    def read(self, lo: int, hi: int) -> None:
        """Have a Spark task read these positions in the other region."""
        task = Task(
            ranges=(Range("walk", self.stream.stream_id, lo, hi),),
            url=self.urls["west"],
            token="",
            servers=(),
            files=False,
            voids=True,
            fail_on_loss=True,
        )
        rows = sum(batch.num_rows for batch in read(task))
        assert rows == hi - lo
        time.sleep(REST_S)

    def party_of(self, thread: int) -> str:
        """The name of the party that a thread belongs to; others are those of the task."""
        for name, party in self.parties.items():
            if thread in party.threads:
                return name
        return "task"


def wait_for(what: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


# ---------------------------------------------------------------- the walk


def walk(folder: Path, rounds: int = ROUNDS) -> dict[tuple[str, str], Leg]:
    """What runs for a batch of a deployment that keeps its data in `folder`."""
    recorder = Recorder()
    legs: dict[tuple[str, str], Leg] = {}

    @contextmanager
    def recorded(phase: str, on: bool) -> Iterator[None]:
        recorder.recording = on
        yield
        recorder.recording = False
        found: dict[str, dict[Edge, None]] = {}
        for thread, edges in recorder.take().items():
            found.setdefault(deployment.party_of(thread), {}).update(edges)
        for party, edges in found.items():
            legs.setdefault((phase, party), Leg()).add(edges)

    threading.setprofile(recorder.profile)
    sys.setprofile(recorder.profile)
    try:
        with ExitStack() as stack:
            deployment = Deployment(folder, stack)
            for number in range(WARM + rounds):
                on = number >= WARM
                with recorded("publish", on):
                    lo, hi = deployment.publish(number)
                with recorded("read", on):
                    deployment.read(lo, hi)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return legs


# ---------------------------------------------------------------- calls passed back


def passed_back(edges: Iterable[Edge], source: Path = Path(SRC)) -> list[str]:
    """Functions that do nothing but call a function of the file that they were called from."""
    callers: dict[Function, set[str]] = {}
    for caller, called in edges:
        if caller is not None and caller.file != called.file:
            callers.setdefault(called, set()).add(caller.file)
    return sorted(
        f"{middle.file}: {middle.name} only calls {called.name} for {called.file}, which has it"
        for middle, called in edges
        if middle is not None
        if called.file in callers.get(middle, ()) and only_calls(middle, source)
    )


def only_calls(function: Function, source: Path) -> bool:
    """Whether the body of a function is one call, not counting its docstring."""
    tree = ast.parse((source / function.file).read_text())
    return any(is_one_call(node) for node in definitions(tree, function.name))


def definitions(tree: ast.AST, name: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    first, _, rest = name.partition(".")
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef) and rest and node.name == first:
            yield from definitions(node, rest)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            yield node


def is_one_call(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A call whose arguments are calls is not counted: making these is work of its own."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    if len(body) != 1 or not isinstance(body[0], ast.Expr | ast.Return):
        return False
    value = body[0].value
    if isinstance(value, ast.Await | ast.YieldFrom):
        value = value.value
    if not isinstance(value, ast.Call):
        return False
    inside = [value.func, *value.args, *(keyword.value for keyword in value.keywords)]
    return not any(isinstance(node, ast.Call) for one in inside for node in ast.walk(one))
