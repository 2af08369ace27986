"""A relay in user space that simulates slow, lossy and broken links between real processes.

A *link* leads to one target (a host and port). The relay listens on an address for each link; a
process connects to this address instead of the target's. TCP and UDP are relayed on the same port
number. The properties belong to a *wire*: delay, jitter, loss, a bandwidth queue, and whether it is
cut in one or both directions. Links on the same wire share all of these, as all connections between
two datacenters share one line.

    relay = Relay(seed=7)
    wan = Shape(delay_ns=40 * MS, loss=0.001, bandwidth_bps=10**8)
    target = ("127.0.0.1", 9000)
    address = relay.add("e0-w0", target, wire="east-west", forward=wan, back=wan)
    relay.cut("east-west", "forward")  # drops what callers send; data to them still passes
    relay.mend("east-west")

`forward` is the direction from the caller to the target. A link added with `against` uses the wire
in reverse: what its callers send goes `back`.

**Determinism.** Jitter and loss are drawn from `Random("seed/wire/direction/link/…")`. Each TCP
connection of a link has its own sequence of random numbers, and all datagrams of a link share one.

- Datagrams: the k-th datagram of a link has the same jitter and the same loss in every run,
  independent of timing, as long as the shape (the properties of the wire) is the same.
- TCP: the handshake draws first. Each chunk (the bytes of one read) draws its jitter and then the
  losses of its packets. Each mend of a cut draws once. A client that waits for an answer before it
  sends the next request gets the same random numbers in every run. A client that streams gets the
  same sequence, but the operating system decides how many bytes each read returns.

Times are not deterministic: data never arrives before its computed time, but may arrive later.

`python -m surecast_lab.testing.relay SPEC.json` runs a relay as a separate process, controlled by
JSON lines on its standard input (the class `RelayProcess` starts and controls such a process). The
file contains a `RelaySpec`. The process prints `{"ready": {link: [host, port]}}`. Then it reads
commands: `{"cut": wire, "direction": …}`, `{"mend": wire}`,
`{"degrade": wire, "shape": {…}, "direction": …}`, `{"reset": wire}`, `{"add": {link…}}` and
`{"stats": true}`. It answers each command with `{"ok": …}` or `{"error": text}`, and ends when its
standard input is closed.
"""

import asyncio
import select
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from surecast.errors import ConfigError, SurecastError, UsageError
from surecast.runtime.addresses import bind
from surecast_lab.testing.relay_tcp import Address, TcpLink
from surecast_lab.testing.relay_udp import UdpLink
from surecast_lab.testing.relay_wire import BACK, FORWARD, Lane, LaneStats, RelayLimits, Shape

__all__ = ["LinkSpec", "Relay", "RelayLimits", "RelayProcess", "RelaySpec", "Shape", "WireStats"]

BOTH = "both"
LOOPBACK = ("127.0.0.1", 0)
LINE_BYTES_MAX = 1 << 20
ANSWER_MS = 30_000  # a relay that does not answer within this time counts as failed


class WireStats(msgspec.Struct):
    """Counts of a wire: connections open now, and those accepted and refused since the start."""

    connections: int
    accepted: int
    refused: int
    forward: LaneStats
    back: LaneStats


class LinkSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of `Relay.add`."""

    name: str
    target: Address
    listen: Address = LOOPBACK
    wire: str | None = None
    forward: Shape | None = None
    back: Shape | None = None
    against: bool = False


class RelaySpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    seed: int
    links: tuple[LinkSpec, ...] = ()
    limits: RelayLimits = RelayLimits()


@dataclass(slots=True)
class Wire:
    lanes: dict[str, Lane]  # by direction
    tcp: list[TcpLink] = field(default_factory=list)


class Relay:
    """Links and their wires. Create, use and close it inside a running event loop."""

    def __init__(self, seed: int, limits: RelayLimits | None = None) -> None:
        self.seed = seed
        self.limits = limits or RelayLimits()
        self.addresses: dict[str, Address] = {}
        self._loop = asyncio.get_running_loop()
        self._wires: dict[str, Wire] = {}
        self._links: list[TcpLink | UdpLink] = []

    def __enter__(self) -> "Relay":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(
        self,
        name: str,
        target: Address,
        listen: Address = LOOPBACK,
        *,
        wire: str | None = None,
        forward: Shape | None = None,
        back: Shape | None = None,
        against: bool = False,
    ) -> Address:
        """Add a link to `target`; returns the address to use in its place.

        `wire` is the name of the wire; by default it is the name of the link. `forward` and `back`
        are the shapes of the wire's two directions. The first link on a wire sets them; later links
        must give the same shapes or none. Hosts must be numeric addresses, and `target` and
        `listen` of the same family.
        """
        if name in self.addresses:
            raise UsageError(f"the relay has a link {name!r} already")
        on_wire = self._wire(name if wire is None else wire, forward, back)
        listener, datagrams = bind(listen, insecure=False)
        assert listener is not None
        lanes = (on_wire.lanes[FORWARD], on_wire.lanes[BACK])
        if against:
            lanes = lanes[::-1]
        tcp = TcpLink(self._loop, name, listener, target, *lanes, self.limits)
        udp = UdpLink(self._loop, name, datagrams, target, *lanes, self.limits)
        on_wire.tcp.append(tcp)
        self._links += [tcp, udp]
        host, port = listener.getsockname()[:2]
        self.addresses[name] = (host, port)
        return self.addresses[name]

    # ------------------------------------------------------------ faults

    def cut(self, wire: str, direction: str = BOTH) -> None:
        """Cut a wire: TCP data waits until it is mended, datagrams are dropped."""
        for lane in self._lanes(wire, direction):
            lane.set_cut(True)

    def mend(self, wire: str) -> None:
        """Restore a wire: no cut, and the original shape."""
        for lane in self._lanes(wire, BOTH):
            lane.set_shape(lane.built)
            lane.set_cut(False)

    def degrade(self, wire: str, shape: Shape, direction: str = BOTH) -> None:
        """Give a wire another shape until it is mended."""
        for lane in self._lanes(wire, direction):
            lane.set_shape(shape)

    def reset(self, wire: str) -> None:
        """Break all TCP connections on both sides at once, whether the wire is cut or not."""
        for link in self._find(wire).tcp:
            link.reset()

    def stats(self) -> dict[str, WireStats]:
        return {
            name: WireStats(
                connections=sum(len(link.connections) for link in wire.tcp),
                accepted=sum(link.accepted for link in wire.tcp),
                refused=sum(link.refused for link in wire.tcp),
                forward=wire.lanes[FORWARD].stats,
                back=wire.lanes[BACK].stats,
            )
            for name, wire in self._wires.items()
        }

    def close(self) -> None:
        """Close all sockets; connections are reset."""
        for link in self._links:
            link.close()
        self._links.clear()
        for wire in self._wires.values():
            for lane in wire.lanes.values():
                lane.close()

    # ------------------------------------------------------------ helpers

    def _wire(self, name: str, forward: Shape | None, back: Shape | None) -> Wire:
        shapes = {FORWARD: forward, BACK: back}
        wire = self._wires.get(name)
        if wire is None:
            label = f"{self.seed}/{name}"
            wire = self._wires[name] = Wire(
                {
                    way: Lane(self._loop, f"{label}/{way}", shape or Shape(), self.limits)
                    for way, shape in shapes.items()
                }
            )
        for way, shape in shapes.items():
            if shape is not None and shape != wire.lanes[way].built:
                raise UsageError(f"wire {name!r} was built with another {way} shape")
        return wire

    def _find(self, wire: str) -> Wire:
        if wire not in self._wires:
            raise UsageError(f"the relay has no wire {wire!r}, only {sorted(self._wires)}")
        return self._wires[wire]

    def _lanes(self, wire: str, direction: str) -> list[Lane]:
        if direction not in (BOTH, FORWARD, BACK):
            raise UsageError(f"direction {direction!r}: it must be both, forward or back")
        lanes = self._find(wire).lanes
        return list(lanes.values()) if direction == BOTH else [lanes[direction]]


# ---------------------------------------------------------------- as a separate process


async def serve(spec: RelaySpec) -> None:
    """Run a relay until standard input ends, and perform the commands read from it."""
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    with Relay(spec.seed, spec.limits) as relay:
        for link in spec.links:
            _add(relay, link)
        _say({"ready": relay.addresses})
        while line := await reader.readline():
            try:
                _say({"ok": _perform(relay, msgspec.json.decode(line))})
            except (SurecastError, msgspec.MsgspecError, OSError) as error:
                _say({"error": f"{type(error).__name__}: {error}"})


def _perform(relay: Relay, command: Any) -> Any:
    match command:
        case {"cut": str(wire)}:
            relay.cut(wire, command.get("direction", BOTH))
        case {"mend": str(wire)}:
            relay.mend(wire)
        case {"degrade": str(wire), "shape": shape}:
            relay.degrade(wire, msgspec.convert(shape, Shape), command.get("direction", BOTH))
        case {"reset": str(wire)}:
            relay.reset(wire)
        case {"add": link}:
            return _add(relay, msgspec.convert(link, LinkSpec))
        case {"stats": True}:
            return relay.stats()
        case _:
            raise UsageError(f"the relay does not know the command {command!r}")
    return None


def _add(relay: Relay, link: LinkSpec) -> Address:
    return relay.add(**{name: getattr(link, name) for name in link.__struct_fields__})


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


class RelayProcess:
    """A relay in a separate process, for tests and demos.

    All calls block until the relay has answered. This takes about a millisecond, so they may also
    be made in a running event loop. `addresses` has the links of the spec and those added later.
    """

    def __init__(self, spec: RelaySpec) -> None:
        with tempfile.TemporaryDirectory(prefix="surecast-relay-") as folder:
            path = Path(folder) / "spec.json"
            path.write_bytes(msgspec.json.encode(spec))
            self._process = subprocess.Popen(
                [sys.executable, "-m", "surecast_lab.testing.relay", str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C must not reach the relay; it ends with its stdin
            )
            try:
                ready = self._listen()["ready"]  # now the relay has read the spec
            except BaseException:
                self.close()
                raise
        self.addresses: dict[str, Address] = msgspec.convert(ready, dict[str, Address])

    def __enter__(self) -> "RelayProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def add(self, link: LinkSpec) -> Address:
        address: Address = msgspec.convert(self._ask({"add": link}), Address)
        self.addresses[link.name] = address
        return address

    def cut(self, wire: str, direction: str = BOTH) -> None:
        self._ask({"cut": wire, "direction": direction})

    def mend(self, wire: str) -> None:
        self._ask({"mend": wire})

    def degrade(self, wire: str, shape: Shape, direction: str = BOTH) -> None:
        self._ask({"degrade": wire, "shape": shape, "direction": direction})

    def reset(self, wire: str) -> None:
        self._ask({"reset": wire})

    def stats(self) -> dict[str, WireStats]:
        return msgspec.convert(self._ask({"stats": True}), dict[str, WireStats])

    def close(self) -> None:
        """End the process by closing its standard input; kill it if that does not suffice."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):  # the process has ended without reading the last command
            process.stdin.close()
        try:
            process.wait(ANSWER_MS / 1000)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def _ask(self, command: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(command) + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise SurecastError("the relay's process has ended") from None
        answer = self._listen()
        if "error" in answer:
            raise UsageError(answer["error"])
        return answer["ok"]

    def _listen(self) -> dict[str, Any]:
        """Read the next line. There is one answer per command, so the buffer is empty after it."""
        out = self._process.stdout
        assert out is not None
        poll = select.poll()
        poll.register(out, select.POLLIN)
        line = out.readline() if poll.poll(ANSWER_MS) else b""
        if not line:
            raise SurecastError("the relay's process has ended or does not answer")
        answer: dict[str, Any] = msgspec.json.decode(line)
        return answer


def main(path: str) -> None:
    try:
        spec = msgspec.json.decode(Path(path).read_bytes(), type=RelaySpec)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path}: {error}") from None
    asyncio.run(serve(spec))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m surecast_lab.testing.relay SPEC.json")
    main(sys.argv[1])
