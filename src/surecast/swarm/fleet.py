"""A deployment of real processes on this machine, and the outside record of what they did.

    with Fleet(folder, seed=7, regions={"east": 2, "west": 2}, clients=8) as fleet:
        fleet.open("orders", "east", LatestPerKey())
        fleet.publish("orders", rows=10, every_ns=5 * MS)
        fleet.kill("east/1")
        fleet.wait(lambda: fleet.settled())
        fleet.judge().violations  # []

Each replica, configuration service, publisher and client is a process; regions reach each other,
and clients each other, through a relay that can delay, lose and cut. `swarm.cluster` is the same
deployment in the simulator, and the same judge looks at both.
"""

import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from surecast.columns.batch import DATA
from surecast.columns.retention import Policy
from surecast.core.types import MS, LogId
from surecast.errors import SurecastError, UsageError
from surecast.protocols.sprinkler.checks import Offered, Reading, Record, Tally, check
from surecast.protocols.sprinkler.messages import Open
from surecast.runtime.relay import LinkSpec, RelayProcess, RelaySpec, Shape
from surecast.swarm import process
from surecast.swarm.process import ProcessSpec

__all__ = ["Fleet", "Worker"]

HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)  # below those the system hands out by itself
ANSWER_S = 60.0  # a live process that does not answer for so long is broken

Address = tuple[str, int]
Start = tuple[str, str, dict[str, Any], Address]  # a node's name, role, arguments, where it listens


class Worker:
    """A process, its pipe, and what it takes to start it again."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.stopped = False  # by SIGSTOP
        self.start()

    def start(self) -> None:
        # Forked from a server that has everything imported: milliseconds, and no compiled kernel
        # is loaded twice.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([process.__name__])
        self.control, theirs = context.Pipe()
        self.process = context.Process(target=process.run, args=(self.spec, theirs), daemon=True)
        self.process.start()
        theirs.close()

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    def hear(self) -> Any:
        if not self.control.poll(ANSWER_S):
            raise SurecastError(f"{self.spec.name} does not answer")
        try:
            return self.control.recv()
        except (EOFError, OSError):
            log = Path(self.spec.folder) / f"{process.file_name(self.spec.name)}.log"
            words = log.read_text()[-2000:] if log.exists() else "it never began"
            raise SurecastError(f"{self.spec.name} has ended: {words}") from None

    def ask(self, verb: str, *args: Any) -> Any:
        self.control.send((verb, *args))
        return self.hear()

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def end(self) -> None:
        if self.stopped:
            self.signal(signal.SIGCONT)
        self.control.close()  # it ends when it sees that
        self.process.join(10)
        if self.alive:
            self.process.kill()
            self.process.join()


class Fleet:
    """`clients` mesh clients in each region; links between regions have `wan`, others `lan`."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        regions: dict[str, int],
        clients: int,
        *,
        wan: Shape | None = None,
        lan: Shape | None = None,
        mesh: dict[str, Any] | None = None,
        chain: dict[str, Any] | None = None,
        record: bool = False,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty: a fleet keeps its journals there")
        self.folder, self.seed, self.record = folder, seed, record
        self.mesh, self.chain = mesh or {}, chain or {}
        self.wan = wan or Shape(delay_ns=10 * MS, jitter_ns=MS)
        self.lan = lan or Shape()
        self.regions = {r: tuple(f"{r}/{n}" for n in range(count)) for r, count in regions.items()}
        self.rng = Random(f"{seed}/fleet")
        self.ports = list(PORTS)
        self.rng.shuffle(self.ports)
        self.workers: dict[str, Worker] = {}
        self.clients: list[str] = []
        self.audits: list[str] = []
        self.records: dict[str, Record] = {}
        self.streams: dict[str, LogId] = {}
        self.owners: dict[str, str] = {}
        self.failures: list[str] = []
        self.relay = RelayProcess(RelaySpec(seed))
        self.homes: dict[str, Address] = {}  # where servers listen
        try:
            self._found()
            for region in self.regions:
                self._add_publisher(region)
            self.add_clients(clients)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ building

    def _free_port(self) -> int:
        while True:
            port = self.ports.pop()
            with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
                try:
                    tcp.bind((HOST, port))
                    udp.bind((HOST, port))
                except OSError:
                    continue
                return port

    def _found(self) -> None:
        """Start the servers; each region's book leads to the others through the relay."""
        for region, nodes in self.regions.items():
            for name in (*nodes, f"{region}/config"):
                self.homes[name] = (HOST, self._free_port())
        for region, nodes in self.regions.items():
            self.relay_links(region)
            args = {"region": region, "replicas": nodes}
            self._spawn([(f"{region}/config", "service", args, self.homes[f"{region}/config"])])
            replica = {
                "region": region,
                "regions": self.regions,
                "mesh": self.mesh,
                "chain": self.chain,
            }
            self._spawn([(name, "replica", replica, self.homes[name]) for name in nodes])

    def relay_links(self, region: str) -> None:
        """One wire for each pair of regions; links of the second region run against it."""
        for other, nodes in self.regions.items():
            if other == region:
                continue
            wire, against = f"{min(region, other)}-{max(region, other)}", region > other
            for name in nodes:
                link = f"{region}>{name}"
                self.relay.add(
                    LinkSpec(
                        link,
                        self.homes[name],
                        wire=wire,
                        forward=self.wan,
                        back=self.wan,
                        against=against,
                    )
                )

    def _book(self, region: str) -> dict[str, Address]:
        book = {}
        for name, address in self.homes.items():
            at_home = name.split("/")[0] == region
            book[name] = address if at_home else self.relay.addresses.get(f"{region}>{name}")
        return {name: address for name, address in book.items() if address is not None}

    def _spawn(self, nodes: list[Start]) -> None:
        """Start processes side by side and wait until each is ready."""
        for name, role, args, listen in nodes:
            region = name.split("/")[0]
            self.workers[name] = Worker(
                ProcessSpec(
                    name,
                    role,
                    args,
                    listen,
                    self._book(region),
                    str(self.folder),
                    self.seed,
                    record=self.record,
                )
            )
        for name, *_ in nodes:
            assert self.workers[name].hear() == "ready"

    def _add_publisher(self, region: str) -> None:
        args = {"region": region, "replicas": self.regions[region]}
        self._spawn([(f"{region}/pub", "publisher", args, (HOST, self._free_port()))])

    def add_clients(self, count: int) -> None:
        """So many mesh clients to each region; what reaches a client comes through the relay."""
        new: list[Start] = []
        for region, nodes in self.regions.items():
            args = {"region": region, "replicas": nodes[::-1], "mesh": self.mesh}
            for _ in range(count):
                plain = f"{region}/c{len(self.clients) + len(new)}"
                home = (HOST, self._free_port())
                host, port = self.relay.add(
                    LinkSpec(plain, home, wire=plain, forward=self.lan, back=self.lan)
                )
                new.append((f"{plain}@{host}:{port}", "client", args, home))
        self._spawn(new)
        self.clients += [name for name, *_ in new]
        for name, *_ in new:
            self.workers[name].ask("follow", list(self.streams.values()), 1)

    # ------------------------------------------------------------ driving

    def wait(self, condition: Callable[[], bool], within_s: float = 120.0) -> None:
        """Until a condition holds. The time is a limit for broken runs, never a measure."""
        limit = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > limit:
                raise SurecastError(f"waited {within_s} s in vain; {self.describe()}")
            time.sleep(0.05)

    def open(self, stream: str, owner: str, policy: Policy) -> None:
        publisher = self.workers[f"{owner}/pub"]
        publisher.ask("give", Open(stream, policy))
        self.wait(lambda: stream in publisher.ask("status")["opened"])
        self.streams[stream] = publisher.ask("status")["opened"][stream]
        self.owners[stream] = owner
        self.records[stream] = Record(stream, policy)
        for name in self.clients:
            self.workers[name].ask("follow", [self.streams[stream]], 1)

    def publish(self, stream: str, rows: int, every_ns: int, keys: int = 50) -> None:
        publisher = self.workers[f"{self.owners[stream]}/pub"]
        publisher.ask("publish", self.streams[stream], rows, every_ns, keys)

    def quiet(self) -> None:
        for name, worker in self.workers.items():
            if name.endswith("/pub"):
                worker.ask("quiet")

    def kill(self, name: str) -> None:
        self.workers[name].process.kill()
        self.workers[name].process.join()

    def restart(self, name: str) -> None:
        worker = self.workers[name]
        worker.spec = _again(worker.spec)
        worker.start()
        assert worker.hear() == "ready"

    def stop(self, name: str) -> None:
        """SIGSTOP: the process is there and does nothing."""
        self.workers[name].stopped = True
        self.workers[name].signal(signal.SIGSTOP)

    def cont(self, name: str) -> None:
        self.workers[name].signal(signal.SIGCONT)
        self.workers[name].stopped = False

    # ------------------------------------------------------------ looking

    def positions(self, readers: list[str] | None = None) -> dict[str, dict[str, int]]:
        """Reader → stream → next position; only of those that can answer."""
        found = {}
        for name in self.clients if readers is None else readers:
            worker = self.workers[name]
            if not worker.stopped and worker.alive:
                by_id = worker.ask("status")["positions"]
                found[name] = {s: by_id.get(i, 1) for s, i in self.streams.items()}
        return found

    def least(self, stream: str, readers: list[str] | None = None) -> int:
        return min(p[stream] for p in self.positions(readers).values())

    def settled(self, readers: list[str] | None = None) -> bool:
        """Everything offered is acknowledged, and all readers are at one end beyond it."""
        ends: dict[str, int] = {}
        for stream, owner in self.owners.items():
            publisher = self.workers[f"{owner}/pub"]
            if publisher.ask("status")["unacknowledged"]:
                return False
            of_stream = [
                a for a in publisher.ask("results")["acked"] if a[0] == self.streams[stream]
            ]
            ends[stream] = max((seq + count for _, _, count, seq in of_stream), default=1)
        positions = self.positions(readers).values()
        return all(
            len({p[s] for p in positions}) == 1 and min(p[s] for p in positions) >= end
            for s, end in ends.items()
        )

    def audit(self) -> None:
        """Read every replica afresh, from the first position of every stream."""
        new: list[Start] = []
        for region, nodes in self.regions.items():
            for node in nodes:
                args = {"region": region, "replicas": [node]}
                new.append((f"{node}.audit", "subscriber", args, (HOST, self._free_port())))
        self._spawn(new)
        self.audits = [name for name, *_ in new]
        for name in self.audits:
            self.workers[name].ask("follow", list(self.streams.values()), 1)
        self.wait(lambda: self.settled(self.audits + self.clients))

    def judge(self) -> Tally:
        """The verdict, from what publishers were told and what readers wrote down."""
        tally = Tally()
        names = {stream_id: name for name, stream_id in self.streams.items()}
        for name in [n for n in self.workers if n.endswith("/pub")]:
            results = self.workers[name].ask("results")
            values: dict[tuple[LogId, int], bytes] = {}
            for stream_id, first, offered, keys in results["offered"]:
                for i, value in enumerate(offered):
                    values[stream_id, first + i] = value
                    event = Offered(name, first + i, DATA, keys[i], value, None)
                    self.records[names[stream_id]].offered[value] = event
            for stream_id, pub_no, count, seq in results["acked"]:
                for i in range(count):
                    self.records[names[stream_id]].acked[values[stream_id, pub_no + i]] = seq + i
            tally.violations += [f"{name}: {failed}" for failed in results["failed"]]
        for reader in (*self.clients, *self.audits):
            readings = {s: Reading(reader) for s in self.streams}
            for batch in process.read_delivered(process.delivered_path(str(self.folder), reader)):
                readings[names[batch.stream_id]].take((batch,))
            for stream, reading in readings.items():
                record = self.records[stream]
                reading.settled = reading.position
                (record.audits if reader in self.audits else record.readings).append(reading)
        for record in self.records.values():
            check(record, tally)
        return tally

    def describe(self) -> str:
        ended = [n for n, w in self.workers.items() if not w.alive]
        return f"positions {self.positions()}, ended {ended}, seed {self.seed}, in {self.folder}"

    def close(self) -> None:
        for worker in self.workers.values():
            worker.end()
        self.relay.close()


def _again(spec: ProcessSpec) -> ProcessSpec:
    fields = {name: getattr(spec, name) for name in spec.__struct_fields__}
    return ProcessSpec(**{**fields, "life": spec.life + 1})
