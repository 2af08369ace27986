"""Measures the throughput of the asyncio driver (`surecast/runtime`), which runs state machines.

Every node is a separate process on this machine, connected by loopback TCP. There are two set-ups.
In the first one, a source sends frames or batches to a sink (one hop) as fast as back-pressure
allows. In the second one there are three region servers (*proxies*), each with a publisher
(*driver*) that keeps a number of batches unacknowledged; an event counts when all three regions
have it.

    python bench/runtime.py            # prints what `bench/run.py --only runtime` would record
    python bench/runtime.py --profile  # one run of three proxies, the first one profiled
"""

import asyncio
import cProfile
import json
import pstats
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from random import Random
from typing import Any, ClassVar

from surecast.columns.batch import DATA, Batch
from surecast.columns.retention import KeepLast, LatestPerKey, Policy
from surecast.core.machine import HandlerMachine
from surecast.core.roles import Deployment
from surecast.core.streams import StreamSpec
from surecast.core.types import (
    MS,
    Congested,
    LogId,
    Message,
    Peer,
    PeerUp,
    Send,
    SetTimer,
    Start,
    TimerFired,
    Writable,
)
from surecast.core.wire import Codec
from surecast.protocols.streams.messages import CreateStream, PubAck, Publish, PubNack, StreamOpened
from surecast.protocols.streams.publisher import anonymous_publisher
from surecast.registry import configs, message_types, witness
from surecast.runtime.addresses import AddressBook
from surecast.runtime.node import Node
from surecast.runtime.run import run
from surecast.stacks import region_replica

Row = dict[str, Any]

WARM_S, MEASURED_S = 1.5, 4.0
WINDOW = 32  # unacknowledged batches of a driver
KEYS = 100_000
POLICIES: dict[str, Policy] = {"keep_last": KeepLast(100_000_000), "latest_per_key": LatestPerKey()}


class Blob(Message):
    data: bytes


class Lot(Message):
    batch: Batch


HOP = Codec([Blob, Lot])


class Source(HandlerMachine):
    """Sends the same message repeatedly, as fast as back-pressure allows."""

    inputs: ClassVar[dict[type, str]] = {
        Start: "_on_start",
        PeerUp: "_on_more",
        TimerFired: "_on_more",
        Congested: "_on_congested",
        Writable: "_on_more",
    }

    def __init__(self, message: Message, burst: int) -> None:
        super().__init__()
        self.message, self.burst = message, burst
        self.congested = False

    def _on_start(self, _inp: Start) -> None:
        self._send("sink", self.message)

    def _on_congested(self, _inp: Congested) -> None:
        self.congested = True

    def _on_more(self, inp: Any) -> None:
        if type(inp) is Writable:
            self.congested = False
        if not self.congested:
            self.out += [Send("sink", self.message)] * self.burst
            self.out.append(SetTimer("more", self.now_ns))


class Sink(HandlerMachine):
    handlers: ClassVar[dict[type, str]] = {Blob: "_on_blob", Lot: "_on_lot"}

    def _on_blob(self, _peer: Peer, _message: Blob) -> None:
        self.counters["frames"] += 1

    def _on_lot(self, _peer: Peer, message: Lot) -> None:
        self.counters["frames"] += 1
        self.counters["events"] += message.batch.count


class Driver(HandlerMachine):
    """A publisher: opens its stream, and keeps WINDOW batches unacknowledged."""

    handlers: ClassVar[dict[type, str]] = {
        StreamOpened: "_on_opened",
        PubAck: "_on_ack",
        PubNack: "_on_nack",
    }
    inputs: ClassVar[dict[type, str]] = {Start: "_on_start", TimerFired: "_on_timer"}

    def __init__(self, head: Peer, rows: int, policy: Policy, rng: Random) -> None:
        super().__init__()
        self.head, self.policy, self.rng = head, policy, rng
        self.rows = rows
        self.publisher = b""
        self.stream: LogId = b""
        self.made = [self._make() for _ in range(64)]
        self.next_no = 1

    def _make(self) -> Batch:
        keys: list[bytes | None] | None = None
        if isinstance(self.policy, LatestPerKey):
            keys = [int(KEYS ** self.rng.random()).to_bytes(8, "big") for _ in range(self.rows)]
        return Batch.of(bytes(16), [self.rng.randbytes(10) for _ in range(self.rows)], keys)

    def _on_start(self, _inp: Start) -> None:
        self.publisher = anonymous_publisher(self.wall_ns, self.rng)
        self.out.append(SetTimer("open", self.now_ns + 300 * MS))

    def _on_timer(self, _inp: TimerFired) -> None:
        if not self.stream:
            self._send(self.head, CreateStream(f"of-{self.head[:-2]}", StreamSpec(self.policy)))
            self.out.append(SetTimer("open", self.now_ns + 300 * MS))

    def _on_opened(self, _peer: Peer, message: StreamOpened) -> None:
        if message.info is not None and not self.stream:
            self.stream = message.info.stream_id
            for _ in range(WINDOW):
                self._publish()

    def _publish(self) -> None:
        like = self.made[self.next_no // self.rows % len(self.made)]
        batch = Batch(
            DATA, self.stream, like.schema_id, self.publisher, self.next_no, 0, like.count,
            like.rows, 0, 0, 0, like.body, like.body_crc, like.nbytes, like.form,
        )  # fmt: skip
        self.next_no += like.count
        self._send(self.head, Publish(self.stream, batch))

    def _on_ack(self, _peer: Peer, message: PubAck) -> None:
        for _ in range(1 + len(message.more)):
            self.counters["events"] += self.rows
            self._publish()

    def _on_nack(self, _peer: Peer, message: PubNack) -> None:
        raise AssertionError(f"refused: {message.why}")


# ---------------------------------------------------------------- worker processes


async def work(spec: dict[str, Any]) -> None:
    """Run the nodes of one process; answer each line of input with its counts."""
    book = AddressBook({name: tuple(where) for name, where in spec["book"].items()})
    rng = Random(spec["seed"])
    role, name = spec["role"], spec["name"]
    watched: Any
    if role == "source":
        message = Lot(_lot(spec["rows"])) if spec["rows"] else Blob(rng.randbytes(spec["nbytes"]))
        watched = await _node(name, Source(message, spec["burst"]), book, HOP)
    elif role == "sink":
        watched = await _node(name, Sink(), book, HOP)
    elif role == "driver":
        driver = Driver(spec["head"], spec["rows"], POLICIES[spec["policy"]], rng)
        watched = await _node(name, driver, book, Codec(message_types()))
    else:
        watched = await _proxy(spec, book)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    say({"ready": True})
    while await reader.readline():
        if watched.failed.done():
            raise SystemExit(f"{name}: {watched.failed.exception()!r}")
        say({"at": time.monotonic(), "cpu": time.process_time(), **look(watched.machine)})
    await watched.stop()


def _lot(rows: int) -> Batch:
    rng = Random(1)
    batch = Batch.of(bytes(range(16)), [rng.randbytes(10) for _ in range(rows)])
    return batch.sequenced(1, 1, 1)


async def _node(name: str, machine: Any, book: AddressBook, codec: Codec) -> Node:
    node = Node(name, lambda _ctx: machine, book=book, codec=codec, listen=book.find(name))
    await node.start()
    return node


async def _proxy(spec: dict[str, Any], book: AddressBook) -> Node:
    """A region of one replica, with its configuration service, in one process."""
    from surecast.columns import kernels

    kernels.warm()  # as a server does before it listens
    region, name = spec["name"].split("/")[0], spec["name"]
    codec = Codec(message_types())
    service = Node(
        f"{region}/config",
        lambda ctx: witness({region: (name,)}, ctx.disk),
        book=book,
        codec=codec,
        listen=book.find(f"{region}/config"),
    )
    await service.start()
    regions = {r: tuple(nodes) for r, nodes in spec["regions"].items()}
    made = configs(Deployment(region, name, regions, f"{region}/config"))
    node = Node(
        name,
        lambda ctx: region_replica(made, ctx.disk, ctx.rng),
        book=book,
        codec=codec,
        listen=book.find(name),
    )
    await node.start()
    return node


def look(machine: Any) -> dict[str, Any]:
    if hasattr(machine, "layers"):
        streams = machine.layers["streams"].streams
        return {"ends": {s.hex(): t.committed for s, t in streams.items()}}
    return dict(machine.counters)


def say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


class Workers:
    """Worker processes by name; `close` ends them."""

    def __init__(self, specs: dict[str, dict[str, Any]], names: list[str]) -> None:
        ports = _free_ports(len(names))
        book = {name: ("127.0.0.1", port) for name, port in zip(names, ports, strict=True)}
        self.processes = {}
        for number, (name, spec) in enumerate(specs.items()):
            whole = {"name": name, "book": book, "seed": number, "profile": False, **spec}
            words = [sys.executable, __file__, "--worker", json.dumps(whole)]
            self.processes[name] = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            self._read_answer(name)

    def _read_answer(self, name: str) -> dict[str, Any]:
        line = self.processes[name].stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise SystemExit(f"bench worker {name} has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def look(self, name: str) -> dict[str, Any]:
        stdin = self.processes[name].stdin
        assert stdin is not None
        stdin.write("look\n")
        stdin.flush()
        return self._read_answer(name)

    def close(self) -> None:
        for process in self.processes.values():
            assert process.stdin is not None
            process.stdin.close()
        for process in self.processes.values():
            process.wait(30)


def _free_ports(count: int) -> list[int]:
    """Free ports below the range of ephemeral ports, where connections of the last run may still
    hold some ports."""
    found: list[int] = []
    for port in Random().sample(range(20_000, 32_000), 100 + count):
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            try:
                tcp.bind(("127.0.0.1", port))
                udp.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
        if len(found) == count:
            return found
    raise SystemExit("too few free ports between 20000 and 32000")


# ---------------------------------------------------------------- benches


def hop(nbytes: int = 0, rows: int = 0) -> tuple[float, float, float]:
    """(frames/s, events/s, bytes of one frame)"""
    message: Message = Lot(_lot(rows)) if rows else Blob(bytes(nbytes))
    size = sum(map(len, HOP.encode(message)))
    specs: dict[str, dict[str, Any]] = {
        "sink": {"role": "sink"},
        "source": {
            "role": "source",
            "nbytes": nbytes,
            "rows": rows,
            "burst": max(1, min(512, (1 << 18) // size)),
        },
    }
    workers = Workers(specs, list(specs))
    try:
        time.sleep(WARM_S)
        before = workers.look("sink")
        time.sleep(MEASURED_S)
        after = workers.look("sink")
    finally:
        workers.close()
    seconds = after["at"] - before["at"]
    events = (after.get("events", 0) - before.get("events", 0)) / seconds
    return (after["frames"] - before["frames"]) / seconds, events, size


def three_proxies(rows: int, policy: str, profile: bool = False) -> tuple[float, dict[str, float]]:
    """Events/s that reach all three regions, and the share of a core that each process used."""
    regions = {r: [f"{r}/0"] for r in ("east", "north", "west")}
    specs: dict[str, dict[str, Any]] = {
        f"{r}/0": {"role": "proxy", "regions": regions, "profile": profile and r == "east"}
        for r in regions
    }
    names = [*specs, *(f"{r}/config" for r in regions)]
    for r in regions:
        specs[f"{r}/driver"] = {
            "role": "driver", "head": f"{r}/0", "rows": rows, "policy": policy
        }  # fmt: skip
    workers = Workers(specs, [*names, *(f"{r}/driver" for r in regions)])
    proxies = [f"{r}/0" for r in regions]
    try:
        time.sleep(WARM_S + 1)
        before = {p: workers.look(p) for p in specs}
        time.sleep(MEASURED_S)
        after = {p: workers.look(p) for p in specs}
    finally:
        workers.close()
    rate = 0.0
    for stream in before[proxies[0]]["ends"]:
        first = min(proxies, key=lambda p: after[p]["ends"].get(stream, 1))
        gained = after[first]["ends"].get(stream, 1) - before[first]["ends"].get(stream, 1)
        rate += gained / (after[first]["at"] - before[first]["at"])
    seconds = after[proxies[0]]["at"] - before[proxies[0]]["at"]
    cpu = {p: round((after[p]["cpu"] - before[p]["cpu"]) / seconds, 2) for p in specs}
    return rate, cpu


def bench_frames_one_hop() -> Iterator[Row]:
    for nbytes in (100, 4096, 65536):
        frames, _, size = hop(nbytes=nbytes)
        params = {"payload": nbytes, "mb_per_s": round(frames * size / 1e6, 1)}
        yield {"name": "frames_one_hop", "value": round(frames), "unit": "1/s", "params": params}


def bench_batches_one_hop() -> Iterator[Row]:
    for rows in (500, 4000):
        _, events, size = hop(rows=rows)
        params = {"rows": rows, "mb_per_s": round(events / rows * size / 1e6, 1)}
        yield {"name": "events_one_hop", "value": round(events), "unit": "1/s", "params": params}


def bench_three_proxies() -> Iterator[Row]:
    for policy in POLICIES:
        for rows in (500, 4000):
            rate, cpu = three_proxies(rows, policy)
            busy = sum(share for name, share in cpu.items() if name.endswith("/0"))
            params = {"rows": rows, "policy": policy, "window": WINDOW, "cores": cpu}
            params["proxies_ns_per_event"] = round(1e9 * busy / rate)
            yield {
                "name": "events_three_proxies", "value": round(rate), "unit": "1/s",
                "params": params,
            }  # fmt: skip


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        spec = json.loads(sys.argv[2])
        profiler = cProfile.Profile() if spec["profile"] else None
        if profiler:
            profiler.enable()
        run(work(spec))
        if profiler:
            profiler.disable()
            stats = pstats.Stats(profiler, stream=sys.stderr)
            stats.sort_stats("tottime").print_stats(45)
        return
    if sys.argv[1:2] == ["--profile"]:
        rate, cpu = three_proxies(500, "latest_per_key", profile=True)
        print(f"{rate:,.0f} events/s, {cpu}")
        return
    for bench in (bench_frames_one_hop, bench_batches_one_hop, bench_three_proxies):
        for row in bench():
            print(row, flush=True)


if __name__ == "__main__":
    main()
