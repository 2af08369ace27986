"""The configuration service: decides which replicas form a chain, and in which order.

It runs in a region's witness. Each decision is a configuration with a number, the epoch. The
interface is two messages: `Watch` (answered now and on every change) and `Propose` (it changes the
configuration only if it names the current epoch, like compare-and-set). This implementation keeps
its table in memory and on its node's disk; another one could keep it in etcd. The service never
changes a chain by itself. It refuses proposals that cannot be safe: a configuration without any
member of the previous one, because its members might lack acknowledged events (R1).

A service whose disk has lost changes (or is an older copy of itself) learns its earlier decisions
from the replicas, because each of them reports the epoch it knows. If the disk is known to have
lost something, the service decides nothing until all replicas have reported.

The table is always written as a whole. The token of a write is (chain, epoch). The epoch is -1 if
only a serial number or the state `DAMAGE` has changed: no answer waits for such a write.
"""

from collections import Counter
from typing import Any, ClassVar

import msgspec

from surecast.core.machine import HandlerMachine
from surecast.core.states import StateTable, input_name
from surecast.core.types import (
    DAMAGE,
    MS,
    Disk,
    Peer,
    SaveState,
    Send,
    SetTimer,
    Start,
    Stored,
    StoreFailed,
    TimerFired,
)
from surecast.protocols.chain.messages import Configuration, Member, Propose, Watch
from surecast.protocols.chain.states import SERVICE, ServiceState

__all__ = ["ConfigService"]

RETRY_NS = 100 * MS  # after a failed write of the table


class Count(msgspec.Struct, array_like=True):
    """The serial number of a replica's disk, as last reported."""

    disk: bytes  # the identity of the disk
    life: bytes  # identifies the run of the replica that reported (`Watch.life`)
    serial: int


class ChainTable(msgspec.Struct, array_like=True):
    """What the service has decided about one chain, and the serial numbers of its disks."""

    epoch: int = 0
    members: tuple[Member, ...] = ()
    candidates: list[Member] = []  # replicas that have sent Watch, until the chain is founded
    lineage: int = 0  # see `Configuration`
    counts: dict[str, Count] = {}  # by name of the replica


class ConfigService(HandlerMachine):
    """Serves any number of chains. A chain is founded once all its `replicas` have sent Watch."""

    handlers: ClassVar[dict[type, str]] = {Watch: "_on_watch", Propose: "_on_propose"}
    inputs: ClassVar[dict[type, str]] = {
        Start: "_on_start",
        Stored: "_on_stored",
        StoreFailed: "_on_store_failed",
        TimerFired: "_on_timer",
    }
    state_tables: ClassVar[tuple[StateTable, ...]] = (SERVICE,)

    def __init__(
        self,
        chains: dict[str, tuple[Peer, ...]],
        disk: Disk,
        counters: Counter[str] | None = None,
    ) -> None:
        super().__init__(counters)
        self.replicas = chains  # configured names; their order is used only to found a chain
        self.disk = disk
        self.tables = {chain: ChainTable() for chain in chains}
        # Chain → the peers that have sent Watch. Used as ordered sets: all values are true.
        self.watchers: dict[str, dict[Peer, bool]] = {chain: {} for chain in chains}
        self.unsaved: dict[str, bool] = {}  # chains whose newest epoch is not on disk yet
        # If our disk has lost changes: chain → the replicas that have reported since the start. A
        # chain is removed when all its replicas have reported.
        self.amnesic: dict[str, dict[str, bool]] = {}
        self.validated: dict[str, int] = {}  # the epochs at the last call of `validate`

    def state(self, chain: str) -> ServiceState:
        """The service's state for a chain, derived here and nowhere else."""
        if chain in self.amnesic:
            return ServiceState.RELEARNING
        if chain in self.unsaved:
            return ServiceState.SAVING
        return ServiceState.DECIDED if self.tables[chain].epoch else ServiceState.UNFOUNDED

    def states(self) -> dict[str, Any]:
        return {chain: self.state(chain) for chain in self.tables}

    def input_name(self, inp: Any) -> str:
        return input_name(inp)

    def validate(self) -> None:
        """Assert the invariants that hold after every step."""
        for chain, table in self.tables.items():
            names = [member.name for member in table.members]
            assert bool(names) == (table.epoch > 0), f"epoch {table.epoch} with members {names}"
            assert len(set(names)) == len(names), f"a member twice: {names}"
            assert set(names) <= set(self.replicas.get(chain, names)), f"not replicas: {names}"
            assert not (table.candidates and table.epoch), "candidates of a chain that is founded"
            assert table.epoch >= self.validated.get(chain, 0), "the epoch fell"
            self.validated[chain] = table.epoch
        for effect in self.out:
            if type(effect) is Send and type(effect.message) is Configuration:
                sent = effect.message
                assert sent.behind or sent.chain not in self.unsaved, "sent before it is on disk"

    def _on_start(self, _inp: Start) -> None:
        if data := self.disk.state("chains"):
            self.tables |= msgspec.msgpack.decode(data, type=dict[str, ChainTable])
        if self.disk.state(DAMAGE):
            self.amnesic = {chain: {} for chain in self.tables}

    def _on_stored(self, inp: Stored) -> None:
        chain, epoch = inp.token
        if epoch == self.tables[chain].epoch:
            self.unsaved.pop(chain, None)
            for peer in self.watchers[chain]:
                self._tell(peer, chain)

    def _on_store_failed(self, inp: StoreFailed) -> None:
        if inp.token[1] < 0:
            # Not repeated: a replica reports its serial number again, and with a `DAMAGE` that is
            # still on disk, the next start asks all replicas again.
            return
        self.out.append(SetTimer(inp.token, self.now_ns + RETRY_NS))

    def _on_timer(self, inp: TimerFired) -> None:
        chain, _epoch = inp.key  # the token of the write that failed
        self._save(chain)

    def _on_watch(self, peer: Peer, message: Watch) -> None:
        table = self.tables.get(message.chain)
        if table is None:
            return
        self.watchers[message.chain][peer] = True
        if behind := self._count(table, message):
            configuration = Configuration(
                message.chain, table.epoch, table.members, table.lineage, behind
            )
            self._send(peer, configuration)
            return
        if message.member.name == peer and peer in self.replicas[message.chain]:
            self._learn(table, message)
        if message.chain in self.amnesic:
            return  # no answer yet: a replica that has not reported may know a later epoch
        names = self.replicas[message.chain]
        if table.epoch == 0 and message.member.name in names:
            others = [m for m in table.candidates if m.name != message.member.name]
            table.candidates = [*others, message.member]
            if len(table.candidates) == len(names):
                members = sorted(table.candidates, key=lambda m: names.index(m.name))
                table.candidates = []
                self._change(message.chain, tuple(members))
            return
        self._tell(peer, message.chain)

    def _count(self, table: ChainTable, message: Watch) -> int:
        """Keep the sender's serial number, and return 0. If the sender's disk is an older copy of
        itself, return the number that was kept before.

        In that case the kept number does not change. So every Watch is answered with it until the
        replica has given its disk a new identity.
        """
        name, disk = message.member.name, message.member.disk
        known = table.counts.get(name)
        if not message.life:
            return 0
        if known is not None and known.disk == disk:
            if known.life != message.life and message.start <= known.serial:
                self.counters["service.rolled-back"] += 1
                return known.serial
            if known.life == message.life and message.serial <= known.serial:
                return 0
        table.counts[name] = Count(disk, message.life, message.serial)
        self._keep(message.chain)
        return 0

    def _learn(self, table: ChainTable, message: Watch) -> None:
        """If a replica knows a later epoch, take it: our disk is an older copy, or has lost
        changes."""
        if message.epoch > table.epoch and message.members:
            self.counters["service.learned"] += 1
            table.epoch, table.members = message.epoch, message.members
            table.lineage = message.lineage
            self._save(message.chain)
        heard = self.amnesic.get(message.chain)
        if heard is not None:
            heard[message.member.name] = True
            if len(heard) == len(self.replicas[message.chain]):
                del self.amnesic[message.chain]
                if not self.amnesic:
                    self.out.append(SaveState(DAMAGE, b"", (message.chain, -1)))

    def _on_propose(self, peer: Peer, message: Propose) -> None:
        table = self.tables.get(message.chain)
        if table is None or peer not in self.replicas[message.chain]:
            return  # only the replicas of a chain may propose its members
        if message.chain in self.amnesic:
            return
        safe = message.force or self._is_safe(table, message.members)
        if message.epoch == table.epoch and safe and message.members:
            table.lineage += message.force  # one more if it is true
            self._change(message.chain, message.members)
        else:
            self._tell(peer, message.chain)

    def _is_safe(self, table: ChainTable, members: tuple[Member, ...]) -> bool:
        """Whether these members may be the next ones. R1: a member of the last epoch must remain.
        The replica of a chain of one may found its chain again with a new disk (R8)."""
        if not members or len({m.name for m in members}) < len(members):
            return False
        names = {m.name for m in table.members}
        return any(m in table.members for m in members) or (
            len(members) == 1 and names == {members[0].name}
        )

    def _change(self, chain: str, members: tuple[Member, ...]) -> None:
        """Make `members` the chain's next configuration."""
        table = self.tables[chain]
        table.epoch, table.members = table.epoch + 1, members
        self._save(chain)

    def _keep(self, chain: str) -> None:
        """Write the table after a serial number has changed. No answer waits for this write."""
        if chain not in self.unsaved:
            token = (chain, -1)
            self.out.append(SaveState("chains", msgspec.msgpack.encode(self.tables), token))

    def _save(self, chain: str) -> None:
        """Write the table with a new epoch of this chain. It is sent out once it is on disk."""
        self.unsaved[chain] = True
        token = (chain, self.tables[chain].epoch)
        self.out.append(SaveState("chains", msgspec.msgpack.encode(self.tables), token))

    def _tell(self, peer: Peer, chain: str) -> None:
        """Send the chain's configuration to `peer`."""
        if chain in self.unsaved:
            return  # `_on_stored` sends it: an epoch that is not on disk could be lost in a crash
        table = self.tables[chain]
        self._send(peer, Configuration(chain, table.epoch, table.members, table.lineage))
