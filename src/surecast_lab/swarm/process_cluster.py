"""A deployment of real processes on this machine, with records of what they did.

    with ProcessCluster(folder, seed=7, regions={"east": 3}, clients=4, thin=1) as cluster:
        cluster.open("east.orders", "east", LatestPerKey())
        cluster.publish("east.orders", rows=10, every_ns=5 * MS)
        cluster.kill("east-2")
        cluster.restart("east-2")
        cluster.wait(lambda: cluster.least("east.orders") > 1000)
        cluster.quiet()  # stops publishing
        cluster.rest()  # waits until all readers have everything
        cluster.judge().violations  # []

Each replica, publisher and reader is a process. So is each witness, except in a region of one
replica, where it is in the replica's process. Servers run the same code as `surecast serve`.
Regions reach each other, and clients reach each other, through a relay that can delay, lose and cut
traffic (`wiring.py`). A stream is owned by the region that is the first token of its name, or else
by the first region. Readers are mesh clients, which exchange events with each other, thin
subscribers, which get all events from a server, or programs that use the public API.
`swarm.cluster` is the same deployment in the simulator; both are judged in the same way.

It is a violation if a process ends without being killed: `wait` raises an error with the last lines
of its log, and `judge` reports a violation. Logs, data folders and recordings stay in `folder`.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from surecast.columns.batch import DATA
from surecast.columns.retention import KeepFor, Policy
from surecast.core.endpoint import Open
from surecast.core.streams import StreamSpec
from surecast.core.types import MS, SECOND, LogId
from surecast.errors import SurecastError, UsageError
from surecast.protocols.sprinkler.checks import Offered, Reading, Record, Tally, check
from surecast.runtime.addresses import Address
from surecast.server.config import parse_address, witness_name
from surecast.server.status import Status
from surecast_lab.swarm import process
from surecast_lab.swarm.delivery_log import delivered_path, file_name, read_delivered
from surecast_lab.swarm.process import ProcessSpec
from surecast_lab.swarm.wiring import Wiring
from surecast_lab.testing.deployment import url
from surecast_lab.testing.relay import RelayProcess, RelaySpec, Shape
from surecast_lab.testing.workers import Workers

__all__ = ["ProcessCluster"]

# How long publishers wait for the region that owns a stream: longer than any fault lasts, because
# every cut link is repaired.
PATIENCE = {"owner_ns": 3600 * SECOND}
EXPIRE_NS = 1 * SECOND  # how often heads look for expired events, unless set otherwise


class ProcessCluster:
    """Each region has one publisher, `clients` mesh clients and `thin` subscribers.

    `wan` has the delay and loss of links between regions, `lan` those of other links. `settings`
    has sections of the servers' configuration ("chain", "storage", ...). `without` names protocols
    that all processes lack until they are upgraded.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        regions: dict[str, int],
        clients: int,
        *,
        thin: int = 0,
        wan: Shape | None = None,
        lan: Shape | None = None,
        settings: dict[str, dict[str, Any]] | None = None,
        record: bool = False,
        without: tuple[str, ...] = (),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty; a cluster needs an empty folder for its data")
        self.folder, self.seed, self.record = folder, seed, record
        self.settings = settings or {}
        self.without = without
        self.regions = {
            r: tuple(f"{r}-{n}" for n in range(1, count + 1)) for r, count in regions.items()
        }
        self.workers = Workers(folder)
        self.specs: dict[str, ProcessSpec] = {}  # process → the spec of its last start
        self.clients: list[str] = []  # mesh clients
        self.thin: list[str] = []
        # Whether a region's only replica has lost its newest state. This state includes the numbers
        # of the batches accepted from each publisher. If no other region has these numbers,
        # publishes in flight may be refused as "expired", because the region cannot tell whether it
        # stored them before.
        self.batch_numbers_lost = False
        # Programs that read by the public API → the streams that each reads. All other readers read
        # all streams of the default delivery.
        self.programs: dict[str, list[str]] = {}
        self.faults: list[str] = []  # violations that programs found before they were upgraded
        self.apart: list[str] = []  # streams that do not have the default delivery
        self.loads: dict[str, list[tuple[Any, ...]]] = {}  # the load of each publisher
        self.earlier: dict[str, list[dict[str, Any]]] = {}  # a publisher's results before upgrades
        self.audits: list[str] = []
        self.audited: dict[str, int] = {}  # the end of each stream when the audit began
        self.policies: dict[str, Policy] = {}
        self.streams: dict[str, LogId] = {}
        self.relay = RelayProcess(RelaySpec(seed))
        try:
            wan, lan = wan or Shape(delay_ns=10 * MS, jitter_ns=MS), lan or Shape()
            shared = {**self.settings, "node": {"record": str(folder)}} if record else self.settings
            self.wiring = Wiring(folder, regions, self.relay, wan, lan, shared)
            self.owners = self.wiring.layout.owners()
            self._start_servers()
            self.add_clients(clients)
            self.add_thin(thin)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "ProcessCluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ building

    def _start_servers(self) -> None:
        """Start servers and publishers."""
        layout = self.wiring.layout
        self._spawn(
            self._spec(node.name, "server", layout.document(node), {}, parse_address(node.listen))
            for node in layout.nodes
        )
        new = []
        for region, names in self.regions.items():
            me = f"{region}/pub"
            args = {"replicas": names, "knobs": PATIENCE}
            new.append(self._spec(me, "publisher", args, self.wiring.book_through(me, names)))
        self._spawn(new)

    def _spec(
        self,
        name: str,
        role: str,
        args: dict[str, Any],
        book: dict[str, Address],
        listen: Address | None = None,
    ) -> ProcessSpec:
        listen = listen or self.wiring.free_address()
        folder = str(self.folder)
        return ProcessSpec(
            name, role, args, listen, book, folder, self.seed,
            record=self.record, without=self.without,
        )  # fmt: skip

    def _spawn(self, specs: Iterable[ProcessSpec]) -> list[str]:
        """Start processes in parallel and wait until all are ready; returns their names."""
        started = list(specs)
        for spec in started:
            self.workers.start(spec.name, process.make, spec)
            self.specs[spec.name] = spec
        self.workers.ready()
        return [spec.name for spec in started]

    def add_clients(self, count: int) -> None:
        """Add `count` mesh clients to each region; connections to them go through the relay."""
        new: list[ProcessSpec] = []
        for region, names in self.regions.items():
            args = {"replicas": names[::-1], "mesh": self.settings.get("mesh", {})}
            for _ in range(count):
                plain = f"{region}/c{len(self.clients) + len(new)}"
                home = self.wiring.free_address()
                host, port = self.wiring.client_link(plain, home)
                book = self.wiring.book(names)
                new.append(self._spec(f"{plain}@{host}:{port}", "client", args, book, home))
        self.clients += (added := self._spawn(new))
        self._follow(added)

    def add_thin(self, count: int) -> None:
        """Add `count` thin subscribers to each region, each with its own link through the relay."""
        new: list[ProcessSpec] = []
        for region, names in self.regions.items():
            for _ in range(count):
                number = len(self.thin) + len(new)
                me = f"{region}/t{number}"
                first = number % len(names)  # in turn, so that every replica has readers
                args = {"replicas": names[first:] + names[:first]}
                book = self.wiring.book_through(me, names)
                new.append(self._spec(me, "subscriber", args, book))
        self.thin += (added := self._spawn(new))
        self._follow(added)

    def add_user(self, name: str, role: str, args: dict[str, Any]) -> str:
        """Start a program that uses the public API (`load.py`, for example)."""
        region = self.wiring.region_of(name)
        args = {"url": url(self.wiring.layout, region), **args}
        return self._spawn([self._spec(name, role, args, {})])[0]

    def add_named(self, name: str, streams: Iterable[str]) -> None:
        """Start a program that reads by named subscriptions (`cursor_app.py`)."""
        args = {
            "name": name.replace("/", "-"),
            "streams": {stream: self.streams[stream].hex() for stream in streams},
            "stored": str(self.folder / f"{file_name(name)}.stored"),
        }
        self.programs[self.add_user(name, "cursor-app", args)] = list(streams)

    def add_pattern_reader(self, name: str, pattern: str, mesh: bool) -> None:
        """Start a program that reads all matching streams (`pattern_reader.py`)."""
        args = {"pattern": pattern, "mesh": mesh}
        self.programs[self.add_user(name, "pattern-reader", args)] = self.default_streams

    @property
    def default_streams(self) -> list[str]:
        """The streams of the default delivery."""
        return [stream for stream in self.streams if stream not in self.apart]

    def _follow(self, readers: list[str]) -> None:
        streams = [self.streams[stream] for stream in self.default_streams]
        for name in readers:
            if self.answers(name) and name not in self.programs:
                self.workers[name].ask("follow", streams, 1)

    # ------------------------------------------------------------ driving

    def wait(self, condition: Callable[[], bool], within_s: float = 120.0) -> None:
        """Wait until a condition holds; SurecastError after `within_s`, or if a process ended."""
        limit = time.monotonic() + within_s
        while True:
            self.workers.check()
            if not self.relay.alive:
                raise SurecastError("the relay process has ended, so all links are down")
            if condition():
                return
            if time.monotonic() > limit:
                raise SurecastError(
                    f"the cluster did not get there within {within_s} s; {self.describe()}"
                )
            time.sleep(0.05)

    def open(self, stream: str, region: str, policy: Policy) -> None:
        """Create a stream through the publisher of `region`, which need not be the owner."""
        if why := self.try_open(stream, region, policy):
            raise SurecastError(f"{stream} cannot be opened: {why}")
        self._follow(self.readers)

    def try_open(self, stream: str, region: str, policy: Policy, delivery: str = "") -> str:
        """Try to create a stream; returns the reason of a refusal, or "" if it is created. If
        `delivery` is given, the caller must add the stream to its readers' entries of `programs`.
        """
        publisher = self.workers[f"{region}/pub"]
        publisher.ask("open", Open(stream, StreamSpec(policy, delivery)))
        answer: dict[str, Any] = {}

        def answered() -> bool:
            answer.update(publisher.ask("status"))
            return stream in answer["opened"] or stream in answer["refused"]

        self.wait(answered)
        if stream in answer["refused"]:
            return str(answer["refused"][stream])
        self.streams[stream] = answer["opened"][stream]
        self.policies[stream] = policy
        if delivery:
            self.apart.append(stream)
        return ""

    def owner(self, stream: str) -> str:
        return self.owners.get(stream.partition(".")[0], self.owners[""])

    def publish(
        self, stream: str, rows: int, every_ns: int, keys: int = 50, region: str = ""
    ) -> None:
        """Publish continuously, in the region that owns the stream, or in `region`, which forwards
        the events to the owner."""
        publisher = f"{region or self.owner(stream)}/pub"
        load = (self.streams[stream], rows, every_ns, keys)
        self.loads.setdefault(publisher, []).append(load)
        self.workers[publisher].ask("publish", *load)

    def quiet(self) -> None:
        """Stop publishing; does not wait for acknowledgements."""
        self.loads.clear()
        for name in self.publishers:
            self.workers[name].ask("quiet")

    def kill(self, name: str) -> None:
        """Send SIGKILL. Publishers must not be killed, because the judge needs their record of what
        they published, which is only in their memory."""
        if name.endswith("/pub"):
            raise UsageError(f"{name} must not be killed: only it has the record of its offers")
        self.workers[name].kill()

    def crash_again(self, name: str, after_s: float) -> None:
        """Start a killed process, and kill it again after `after_s`, even if it is not ready."""
        self._begin(name)
        time.sleep(after_s)
        self.workers[name].kill()

    def _begin(self, name: str, **changes: Any) -> None:
        spec = self.specs[name]
        spec = msgspec.structs.replace(spec, life=spec.life + 1, **changes)
        self.workers[name].begin(spec)
        self.specs[name] = spec

    def restart(self, name: str) -> None:
        self._begin(name)
        self.workers[name].ready()
        if name in self.readers:
            # By itself it follows the streams in its delivery log, which lacks those of which it
            # has received nothing.
            self._follow([name])

    def restart_in_order(self, name: str) -> None:
        """Stop a server with SIGTERM, wait until its chain has removed it, and start it again, so
        that it joins as the tail. (If it were started earlier, it would keep its place.)"""
        self.workers[name].finish()
        self.wait(lambda: name not in self.members(self.wiring.region_of(name)))
        self.restart(name)

    def upgrade(self, name: str) -> None:
        """Replace a process that lacks protocols by one that has them all: stop it with SIGTERM
        and start it with the same name and folder. A publisher first waits for its last
        acknowledgement; the new process continues the numbering of the events, which is part of
        their values."""
        worker = self.workers[name]
        publishes = name in self.publishers
        if publishes:
            worker.ask("quiet")
            self.wait(lambda: not worker.ask("status")["unacknowledged"])
            self.earlier.setdefault(name, []).append(worker.ask("results"))
        if name in self.programs:
            self.faults += self._faults(name)
        worker.finish()
        self._begin(name, without=())
        worker.ready()
        if publishes:
            before = self.earlier[name][-1]
            worker.ask("resume", before["numbers"], before["ends"])
            for load in self.loads.get(name, ()):
                worker.ask("publish", *load)
        elif name in self.readers:
            self._follow([name])

    def stop(self, name: str) -> None:
        """Send SIGSTOP: the process exists but does not run."""
        self.workers[name].stop()

    def cont(self, name: str) -> None:
        self.workers[name].cont()

    # ------------------------------------------------------------ observing

    def lacks_protocols(self, name: str) -> bool:
        """Whether the process has not been upgraded yet."""
        return bool(self.specs[name].without)

    def data(self, name: str) -> Path:
        """The data folder of a replica."""
        layout = self.wiring.layout
        return next(layout.data(node) for node in layout.nodes if node.name == name)

    @property
    def publishers(self) -> list[str]:
        return [f"{region}/pub" for region in self.regions]

    @property
    def readers(self) -> list[str]:
        """Mesh clients, thin subscribers and programs that read by the public API (`programs`)."""
        return [*self.clients, *self.thin, *self.programs]

    def answers(self, name: str) -> bool:
        worker = self.workers[name]
        return worker.alive and not worker.stopped

    def server(self, name: str) -> Status:
        status: Status = self.workers[name].ask("status")
        return status

    def members(self, region: str) -> list[str]:
        """The members of the region's chain, head first, according to its witness; empty if the
        witness cannot answer."""
        inside = not self.wiring.has_separate_witness(region)
        name = self.regions[region][0] if inside else witness_name(region)
        found: list[str] = self.workers[name].ask("members") if self.answers(name) else []
        return found

    def positions(self, readers: list[str] | None = None) -> dict[str, dict[str, int]]:
        """Reader → stream that it reads → next position; only readers that can answer."""
        found = {}
        for name in self.readers if readers is None else readers:
            if self.answers(name):
                by_id = self.workers[name].ask("status")["positions"]
                wanted = self.programs.get(name, self.default_streams)
                found[name] = {s: by_id.get(self.streams[s], 1) for s in wanted}
        return found

    def least(self, stream: str, readers: list[str] | None = None) -> int:
        """The lowest next position of the readers; 1 if none can answer."""
        positions = self.positions(readers).values()
        return min((p[stream] for p in positions if stream in p), default=1)

    def in_flight(self) -> int:
        """The number of batches that are offered and not acknowledged."""
        return sum(self.workers[name].ask("status")["unacknowledged"] for name in self.publishers)

    def settled(self, readers: list[str] | None = None) -> bool:
        """Whether all offers are acknowledged, and all running readers have reached the same end,
        which is after all acknowledged events."""
        ends = dict.fromkeys(self.streams, 1)
        for name in self.publishers:
            status = self.workers[name].ask("status")
            if status["unacknowledged"]:
                return False
            for stream, stream_id in self.streams.items():
                ends[stream] = max(ends[stream], status["ends"].get(stream_id, 1))
        positions = self.positions(readers).values()
        for stream, least in ends.items():
            found = {p[stream] for p in positions if stream in p}
            if len(found) != 1 or min(found) < least:
                return False
        return True

    def rest(self, readers: list[str] | None = None) -> None:
        """Wait until the cluster is settled and stays settled. It may become unsettled because a
        chain's head appends to keep_for streams the entries that make old events void."""
        ages_ns = [p.ns for p in self.policies.values() if isinstance(p, KeepFor)]
        expire_ns = self.settings.get("streams", {}).get("expire_ns", EXPIRE_NS)
        quiet_s = (max(ages_ns) + 3 * expire_ns) / SECOND if ages_ns else 0.0
        before: dict[str, dict[str, int]] = {}
        since = 0.0

        def at_rest() -> bool:
            nonlocal before, since
            now, settled = self.positions(readers), self.settled(readers)
            if not settled or now != before:
                before, since = now, time.monotonic()
            return settled and time.monotonic() - since >= quiet_s

        self.wait(at_rest)

    def audit(self) -> None:
        """Read every stream of the default delivery from its first position, from every replica,
        with new readers. Call this once."""
        self.audited = {stream: self.least(stream) for stream in self.streams}
        self.audits = self._spawn(
            self._spec(f"{n}/audit", "subscriber", {"replicas": [n]}, self.wiring.book((n,)))
            for names in self.regions.values()
            for n in names
        )
        self._follow(self.audits)
        self.rest(self.audits + self.readers)

    def judge(self) -> Tally:
        """The verdict, from the publishers' acknowledgements and the readers' delivery logs."""
        tally = Tally()
        tally.violations += [w.last_lines() for w in self.workers.values() if w.crashed]
        records = {s: Record(s, policy) for s, policy in self.policies.items()}
        for name in self.publishers:
            self._take_published(name, records, tally)
        for reader in (*self.readers, *self.audits):
            self._take_read(reader, records)
        tally.violations += self.faults
        for name in self.programs:
            tally.violations += self._faults(name)
        for record in records.values():
            check(record, tally)
        return tally

    def _faults(self, name: str) -> list[str]:
        return [f"{name}: {fault}" for fault in self.workers[name].ask("results")["failed"]]

    def _take_published(self, name: str, records: dict[str, Record], tally: Tally) -> None:
        names = {stream_id: stream for stream, stream_id in self.streams.items()}
        for results in (*self.earlier.get(name, ()), self.workers[name].ask("results")):
            self._take_results(name, results, names, records, tally)

    def _take_results(
        self,
        name: str,
        results: dict[str, Any],
        names: dict[LogId, str],
        records: dict[str, Record],
        tally: Tally,
    ) -> None:
        for token, (stream_id, first, values, keys) in enumerate(results["offered"]):
            record, seq = records[names[stream_id]], results["acked"].get(token)
            for i, value in enumerate(values):
                record.offered[value] = Offered(name, first + i, DATA, keys[i], value, None)
                if seq is not None:
                    record.acked[value] = seq + i
        faults = results["failed"]
        if self.batch_numbers_lost:
            faults = [failed for failed in faults if not failed.endswith("failed: expired")]
        tally.violations += [f"{name}: {failed}" for failed in faults]

    def _take_read(self, reader: str, records: dict[str, Record]) -> None:
        readings = {stream_id: Reading(reader) for stream_id in self.streams.values()}
        for batch in read_delivered(delivered_path(str(self.folder), reader)):
            readings[batch.stream_id].take((batch,))
        for stream in self.programs.get(reader, self.default_streams):
            reading, record = readings[self.streams[stream]], records[stream]
            reading.settled = self.audited.get(stream, reading.position)
            (record.audits if reader in self.audits else record.readings).append(reading)

    def describe(self) -> str:
        ended = [n for n, w in self.workers.items() if not w.alive]
        try:
            positions = str(self.positions())
        except SurecastError as error:
            positions = f"unknown ({error})"
        return f"positions {positions}, ended {ended}, seed {self.seed}, in {self.folder}"

    def close(self) -> None:
        try:
            self.workers.close()
        finally:
            self.relay.close()
