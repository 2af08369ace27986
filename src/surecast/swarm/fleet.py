"""A deployment of real processes on this machine, and the outside record of what they did.

    with Fleet(folder, seed=7, regions={"east": 2, "west": 2}, clients=8) as fleet:
        fleet.open("orders", "east", LatestPerKey())
        fleet.publish("orders", rows=10, every_ns=5 * MS)
        fleet.kill("east/1")
        fleet.restart("east/1")
        fleet.wait(lambda: fleet.least("orders") > 1000)
        fleet.quiet()
        fleet.wait(fleet.settled)
        fleet.judge().violations  # []

Each replica, configuration service, publisher and client is a process; regions reach each other,
and clients each other, through a relay that can delay, lose and cut. `swarm.cluster` is the same
deployment in the simulator, and the same judge looks at both.

A process that ends although nobody killed it is a fault of ours: `wait` raises what its log says
last, and `judge` counts it. Logs, journals and recordings stay in `folder`.
"""

import multiprocessing
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from surecast.columns.batch import DATA
from surecast.columns.retention import Policy
from surecast.core.types import MS, LogId
from surecast.errors import SurecastError, UsageError
from surecast.protocols.sprinkler.checks import Offered, Reading, Record, Tally, check
from surecast.protocols.sprinkler.messages import Open
from surecast.runtime.relay import LinkSpec, RelayProcess, RelaySpec, Shape
from surecast.swarm import process
from surecast.swarm.process import ProcessSpec

__all__ = ["Fleet", "Worker", "end"]

HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)  # below those the system hands out by itself
ANSWER_S = 60.0  # a live process that does not answer for so long is broken
END_S = 30.0  # ... and one that does not end is killed

Address = tuple[str, int]


class Worker:
    """A process, its pipe, and what it takes to start it again."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self._start()

    def _start(self) -> None:
        self.stopped = False  # by SIGSTOP
        self.killed = False  # by us, so that it is no surprise
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

    @property
    def crashed(self) -> bool:
        return not self.killed and not self.alive

    def ready(self) -> None:
        """Wait until it runs; it says so by itself."""
        said = self._hear()
        assert said == "ready", said

    def ask(self, verb: str, *args: Any) -> Any:
        if self.stopped:
            raise UsageError(f"{self.spec.name} is stopped: it cannot answer before `cont`")
        try:
            self.control.send((verb, *args))
        except OSError:
            raise SurecastError(self.last_words()) from None
        return self._hear()

    def _hear(self) -> Any:
        try:
            if self.control.poll(ANSWER_S):
                return self.control.recv()
        except (EOFError, OSError):
            raise SurecastError(self.last_words()) from None
        self.process.kill()  # what it may still say would be taken for another answer
        raise SurecastError(f"no answer for {ANSWER_S:.0f} s, killed: {self.last_words()}")

    def last_words(self) -> str:
        """How it ended, and what it logged last."""
        self.process.join(END_S)
        log = process.log_path(self.spec)
        words = log.read_text(errors="replace")[-2000:] if log.exists() else ""
        return f"{self.spec.name} has ended, exit code {self.process.exitcode}; " + (
            f"{log} ends with:\n{words}" if words else f"nothing in its log, {log}"
        )

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        if self.alive:  # else the number may be another's by now
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def stop(self) -> None:
        self.stopped = True
        self.signal(signal.SIGSTOP)

    def cont(self) -> None:
        self.signal(signal.SIGCONT)
        self.stopped = False

    def kill(self) -> None:
        self.killed = True
        self.process.kill()  # works on a stopped one, too
        self.process.join()
        self.stopped = False

    def restart(self) -> None:
        if self.alive:
            raise UsageError(f"{self.spec.name} is running: `kill` it before it can start again")
        self.control.close()
        self.spec = msgspec.structs.replace(self.spec, life=self.spec.life + 1)
        self._start()
        self.ready()


def end(workers: Iterable[Worker]) -> None:
    """End processes, all at once: in order if they can, else by force."""
    workers = list(workers)
    for worker in workers:
        worker.cont()
        worker.control.close()  # it ends when it sees that
    limit = time.monotonic() + END_S
    for worker in workers:
        worker.process.join(max(0.0, limit - time.monotonic()))
        worker.kill()


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
        # Not from the seed: fleets side by side must not try the same ports in the same order.
        self._ports = iter(random.sample(PORTS, len(PORTS)))
        self.workers: dict[str, Worker] = {}
        self.clients: list[str] = []
        self.audits: list[str] = []
        self.policies: dict[str, Policy] = {}
        self.streams: dict[str, LogId] = {}
        self.owners: dict[str, str] = {}
        self.homes: dict[str, Address] = {}  # where servers listen
        self.relay = RelayProcess(RelaySpec(seed))
        try:
            self._found()
            self._spawn(
                self._spec(f"{region}/pub", "publisher", {"replicas": nodes})
                for region, nodes in self.regions.items()
            )
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
        for port in self._ports:
            with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
                try:
                    tcp.bind((HOST, port))
                    udp.bind((HOST, port))
                except OSError:
                    continue
                return port
        raise SurecastError(f"no port in {PORTS} is free for both TCP and UDP")

    def _found(self) -> None:
        """Start the servers; each region's book leads to the others through the relay."""
        for region, nodes in self.regions.items():
            for name in (*nodes, f"{region}/config"):
                self.homes[name] = (HOST, self._free_port())
        for region, nodes in self.regions.items():
            self._add_links(region)
            self._spawn([self._spec(f"{region}/config", "service", {"replicas": nodes})])
            args = {"regions": self.regions, "mesh": self.mesh, "chain": self.chain}
            self._spawn([self._spec(name, "replica", args) for name in nodes])

    def _add_links(self, region: str) -> None:
        """One wire for each pair of regions; links of the second region run against it."""
        for other, nodes in self.regions.items():
            if other == region:
                continue
            wire, against = f"{min(region, other)}-{max(region, other)}", region > other
            for name in nodes:
                self.relay.add(
                    LinkSpec(
                        f"{region}>{name}",
                        self.homes[name],
                        wire=wire,
                        forward=self.wan,
                        back=self.wan,
                        against=against,
                    )
                )

    def _book(self, region: str) -> dict[str, Address]:
        book = {n: home for n, home in self.homes.items() if _region(n) == region}
        for other, nodes in self.regions.items():
            if other != region:
                book.update((name, self.relay.addresses[f"{region}>{name}"]) for name in nodes)
        return book

    def _spec(
        self, name: str, role: str, args: dict[str, Any], listen: Address | None = None
    ) -> ProcessSpec:
        region = _region(name)
        return ProcessSpec(
            name,
            role,
            {"region": region, **args},
            listen or self.homes.get(name) or (HOST, self._free_port()),
            self._book(region),
            str(self.folder),
            self.seed,
            record=self.record,
        )

    def _spawn(self, specs: Iterable[ProcessSpec]) -> list[str]:
        """Start processes side by side and wait until each is ready; their names."""
        names = []
        for spec in specs:
            assert spec.name not in self.workers, spec.name
            self.workers[spec.name] = Worker(spec)
            names.append(spec.name)
        for name in names:
            self.workers[name].ready()
        return names

    def add_clients(self, count: int) -> None:
        """So many mesh clients to each region; what reaches a client comes through the relay."""
        new: list[ProcessSpec] = []
        for region, nodes in self.regions.items():
            args = {"replicas": nodes[::-1], "mesh": self.mesh}
            for _ in range(count):
                plain = f"{region}/c{len(self.clients) + len(new)}"
                home = (HOST, self._free_port())
                host, port = self.relay.add(
                    LinkSpec(plain, home, wire=plain, forward=self.lan, back=self.lan)
                )
                new.append(self._spec(f"{plain}@{host}:{port}", "client", args, home))
        self.clients += (names := self._spawn(new))
        self._follow(names, list(self.streams.values()))

    def _follow(self, readers: list[str], streams: list[LogId]) -> None:
        for name in readers:
            self.workers[name].ask("follow", streams, 1)

    # ------------------------------------------------------------ driving

    def wait(self, condition: Callable[[], bool], within_s: float = 120.0) -> None:
        """Until a condition holds. The time is a limit for broken runs, never a measure."""
        limit = time.monotonic() + within_s
        while True:
            for worker in self.workers.values():
                if worker.crashed:
                    raise SurecastError(worker.last_words())
            if not self.relay.alive:
                raise SurecastError("the relay has ended, and all links with it")
            if condition():
                return
            if time.monotonic() > limit:
                raise SurecastError(f"waited {within_s} s in vain; {self.describe()}")
            time.sleep(0.05)

    def open(self, stream: str, owner: str, policy: Policy) -> None:
        publisher = self.workers[f"{owner}/pub"]
        publisher.ask("give", Open(stream, policy))
        self.wait(lambda: stream in publisher.ask("status")["opened"])
        self.streams[stream] = publisher.ask("status")["opened"][stream]
        self.owners[stream] = owner
        self.policies[stream] = policy
        self._follow(self.clients, [self.streams[stream]])

    def publish(self, stream: str, rows: int, every_ns: int, keys: int = 50) -> None:
        publisher = self.workers[f"{self.owners[stream]}/pub"]
        publisher.ask("publish", self.streams[stream], rows, every_ns, keys)

    def quiet(self) -> None:
        for name, worker in self.workers.items():
            if name.endswith("/pub"):
                worker.ask("quiet")

    def kill(self, name: str) -> None:
        """SIGKILL. A publisher alone knows what it offered and is the judge's witness: not it."""
        if name.endswith("/pub"):
            raise UsageError(f"{name} cannot be killed: nobody else knows what it published")
        self.workers[name].kill()

    def restart(self, name: str) -> None:
        self.workers[name].restart()

    def stop(self, name: str) -> None:
        """SIGSTOP: the process is there and does nothing."""
        self.workers[name].stop()

    def cont(self, name: str) -> None:
        self.workers[name].cont()

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
        """How far the last of them is; of nobody that can answer, the first position."""
        return min((p[stream] for p in self.positions(readers).values()), default=1)

    def settled(self, readers: list[str] | None = None) -> bool:
        """All that was offered is acknowledged, and all readers that run are at one end past it."""
        ends: dict[str, int] = {}
        for stream, owner in self.owners.items():
            status = self.workers[f"{owner}/pub"].ask("status")
            if status["unacknowledged"]:
                return False
            ends[stream] = status["ends"].get(self.streams[stream], 1)
        positions = self.positions(readers).values()
        return all(
            len({p[s] for p in positions}) == 1 and min(p[s] for p in positions) >= end
            for s, end in ends.items()
        )

    def audit(self) -> None:
        """Read every replica afresh, from the first position of every stream. Once."""
        self.audits = self._spawn(
            self._spec(f"{node}.audit", "subscriber", {"replicas": [node]})
            for nodes in self.regions.values()
            for node in nodes
        )
        self._follow(self.audits, list(self.streams.values()))
        self.wait(lambda: self.settled(self.audits + self.clients))

    def judge(self) -> Tally:
        """The verdict, from what publishers were told and what readers wrote down."""
        tally = Tally()
        tally.violations += [w.last_words() for w in self.workers.values() if w.crashed]
        records = {s: Record(s, policy) for s, policy in self.policies.items()}
        names = {stream_id: name for name, stream_id in self.streams.items()}
        for name in [n for n in self.workers if n.endswith("/pub")]:
            results = self.workers[name].ask("results")
            values: dict[tuple[LogId, int], bytes] = {}
            for stream_id, first, offered, keys in results["offered"]:
                for i, value in enumerate(offered):
                    values[stream_id, first + i] = value
                    event = Offered(name, first + i, DATA, keys[i], value, None)
                    records[names[stream_id]].offered[value] = event
            for stream_id, pub_no, count, seq in results["acked"]:
                for i in range(count):
                    records[names[stream_id]].acked[values[stream_id, pub_no + i]] = seq + i
            tally.violations += [f"{name}: {failed}" for failed in results["failed"]]
        for reader in (*self.clients, *self.audits):
            readings = {s: Reading(reader) for s in self.streams}
            for batch in process.read_delivered(process.delivered_path(str(self.folder), reader)):
                readings[names[batch.stream_id]].take((batch,))
            for stream, reading in readings.items():
                record = records[stream]
                reading.settled = reading.position
                (record.audits if reader in self.audits else record.readings).append(reading)
        for record in records.values():
            check(record, tally)
        return tally

    def describe(self) -> str:
        ended = [n for n, w in self.workers.items() if not w.alive]
        try:
            positions = str(self.positions())
        except SurecastError as error:
            positions = f"unknown ({error})"
        return f"positions {positions}, ended {ended}, seed {self.seed}, in {self.folder}"

    def close(self) -> None:
        try:
            end(self.workers.values())
        finally:
            self.relay.close()


def _region(name: str) -> str:
    return name.partition("/")[0]
