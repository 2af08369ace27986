"""Pubend: the broker at a replica of a region, above its stream service.

For the streams that the region owns it needs nothing from above: it reads the replicated log, which
is never forgotten. So the replicas of the region are one cell (the pubend's cell of the paper), and
any of them can feed a broker. It answers reads of brokers and subscriptions, tells them which
positions they should have acknowledged, and creates streams. Of other regions' streams the region
keeps the directory entries, but no events.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, ClassVar, Final

from surecast.columns.batch import Batch
from surecast.columns.schema import extends
from surecast.core.names import owner_of
from surecast.core.replicated import RoleChanged
from surecast.core.streams import (
    DIRECTORY,
    Adopt,
    Answer,
    Attend,
    Await,
    Create,
    Describe,
    Forget,
    Handed,
    Load,
    PieceLoaded,
    Refuse,
    Resume,
    Settle,
    StreamAdded,
    StreamDeleted,
    StreamInfo,
    Streams,
    StreamsMoved,
    Suspend,
    TakenBack,
)
from surecast.core.types import (
    AtEndOfPass,
    EndOfPass,
    LogId,
    PassDown,
    Peer,
    PeerDown,
    PeerUp,
    Writable,
)
from surecast.errors import SurecastError
from surecast.parts.forwarding import Forwarding
from surecast.protocols.gryphon.broker import DELIVERY, LAYER, Broker
from surecast.protocols.gryphon.config import GryphonConfig
from surecast.protocols.gryphon.line import Below, Line
from surecast.protocols.gryphon.messages import (
    Attach,
    Detach,
    Fetch,
    Fetched,
    Find,
    Found,
    Join,
    Reach,
)
from surecast.protocols.gryphon.pieces import LogPieces

__all__ = ["Pubend"]

FETCHES_A_PASS: Final = 16  # most reads that are answered in one pass
READS_A_FETCH: Final = 16  # most reads of the log for one answer, if few events pass
FETCH_BYTES_MAX: Final = 256 << 10  # about the size of an answer
ENDS_MAX: Final = 64  # remembered ends of a stream


class Pubend(Broker):
    uses = ("streams",)
    handlers: ClassVar[dict[type, str]] = {
        **Broker.handlers,
        Find: "_on_find",
        Found: "_on_found",
    }
    from_below: ClassVar[dict[type, str]] = {
        StreamAdded: "_on_added",
        StreamDeleted: "_on_deleted",
        StreamsMoved: "_on_moved",
        PieceLoaded: "_on_piece_loaded",
        TakenBack: "_on_taken_back",
        RoleChanged: "_on_role_changed",
        Handed: "_on_handed",
    }

    def __init__(
        self,
        config: GryphonConfig,
        service: Streams,
        rng: Random,
        counters: Counter[str] | None = None,
    ) -> None:
        super().__init__(config, rng, counters)
        self.service = service
        self.is_head, self.is_clean = False, True
        self.fetching: list[tuple[Peer, Fetch]] = []  # reads to answer, in order of arrival
        self.loading: list[tuple[Peer, Fetch]] = []  # reads that wait for the disk (Load)
        self.attends = False
        self.region_of = {  # servers of other regions
            server: region
            for region, servers in config.regions.items()
            for server in servers
            if region != config.region
        }
        self.heads: dict[str, Peer] = {}  # of other regions, as far as known
        self.unreachable: dict[Peer, None] = {}  # servers whose last session has ended
        self.forwarding = Forwarding(self)
        # Questions that were passed to another region: token → (client, its message, when).
        self.finding: dict[int, tuple[Peer, Any, int]] = {}

    # ------------------------------------------------------------ the stream service

    def _on_added(self, event: StreamAdded) -> None:
        info = event.info
        if info.delivery != DELIVERY:
            return
        known = self.infos.get(info.stream_id)
        if known is not None and extends(known.schema, info.schema):
            info = known  # with the schema that the owner has told
        self.infos[info.stream_id] = info
        if info.owner == self.config.region:
            line = self._new_line(info, LogPieces(self.service, info.stream_id))
            line.attached, line.top = True, max(1, self.service.shown_end(info.stream_id))
            self.lines[info.stream_id] = line
            self._review(info.stream_id)
        self._learned(info)
        self._activate()

    def _on_deleted(self, event: StreamDeleted) -> None:
        info = event.info
        if info.delivery == DELIVERY and info.owner == self.config.region:
            self.deleted[info.stream_id] = None
            self._learned(info)

    def _on_role_changed(self, event: RoleChanged) -> None:
        self.is_head, self.is_clean = event.head, event.clean
        self.head = event.members[0] if event.members else ""
        for info in self.infos.values():
            self._review(info.stream_id)
            self._learned(info)

    def _review(self, stream: LogId) -> None:
        """Suspend or resume the assignment of positions: a chain that has lost its logs assigns no
        positions before they are recovered."""
        if self.is_head and self.infos[stream].owner == self.config.region:
            command = Resume(stream) if self.is_clean else Suspend(stream, "recovering")
            self.out.append(PassDown(command))

    def _learned(self, info: StreamInfo) -> None:
        """Add a stream of another region to the directory of this region, or tell the stream
        service its schema. Tell brokers below the changed schema of a stream of this region."""
        if info.owner == self.config.region:
            self._tell_neighbours([info])
        elif info.stream_id in self.deleted:
            self.command(Forget(info.stream_id))
        elif self.service.is_listed(info.stream_id):
            if info.schema:
                self.out.append(PassDown(Describe(info.stream_id, info.schema)))
        elif self.is_head:
            self.out.append(PassDown(Adopt(info)))

    # ------------------------------------------------------------ positions of times

    def _locate(self, peer: Peer, message: Any) -> None:
        """A client asks for a position in a stream of another region: ask a server there. The
        client repeats its question if there is no answer."""
        info = self.infos.get(message.stream)
        head = self.head_of(info.owner) if info is not None else ""
        if not head or len(self.finding) >= self.config.fetches_max:
            self.command(Answer(peer, message, 0, "recovering"))
            return
        token = self.next_token()
        self.finding[token] = (peer, message, self.now_ns)
        self._send(head, Find(token, message.stream, message.time_ns))

    def _on_find(self, peer: Peer, message: Find) -> None:
        if not self.region_of_server(peer):
            return
        line = self.lines.get(message.stream)
        if line is None or not self.is_owner(line):
            self._send(peer, Found(message.token, 0, "unknown-stream"))
        else:
            answer = self.service.locate(message.stream, message.time_ns)
            self._send(peer, Found(message.token, *answer))

    def _on_found(self, peer: Peer, message: Found) -> None:
        asked = self.finding.pop(message.token, None) if self.region_of_server(peer) else None
        if asked is not None:
            self.command(Answer(asked[0], asked[1], message.seq, message.why))

    def _on_moved(self, event: StreamsMoved) -> None:
        for stream in event.streams:
            line = self.lines.get(stream)
            if line is not None and self.is_owner(line):
                self._moved(line)

    def _moved(self, line: Line) -> None:
        line.top = max(line.top, self.service.shown_end(line.stream))
        self._look_for_schema(line)
        for below in line.below.values():
            self._pump(line, below)
        self.subscriptions.advance(line)

    def _look_for_schema(self, line: Line) -> None:
        if (state := self.service.streams.get(line.stream)) is not None:
            self.take_schema(line, state.info.schema)

    def _on_taken_back(self, event: TakenBack) -> None:
        """Committed positions were given up: everybody attaches and joins again."""
        streams = list(self.lines) if event.log == DIRECTORY else [event.log]
        for stream in streams:
            line = self.lines.get(stream)
            if line is None or not self.is_owner(line):
                continue
            for peer in list(line.below):
                self._send(peer, Detach(stream))
                self._remove_below(line, peer)
            self.subscriptions.drop(line)
            del self.lines[stream]
            if event.log != DIRECTORY:
                self._on_added(StreamAdded(line.info, 0, False))
        if event.log == DIRECTORY:
            others = {i: info for i, info in self.infos.items() if info.owner != self.config.region}
            self.infos = others
            self.fetching, self.loading = [], []
            for info in others.values():
                self._learned(info)

    def _attend(self) -> None:
        """The service reports new positions only while somebody needs them."""
        needed = any(line.below or line.subs for line in self.lines.values() if self.is_owner(line))
        if needed != self.attends:
            self.attends = needed
            self.out.append(PassDown(Attend(LAYER, needed)))

    # ------------------------------------------------------------ brokers and subscribers below

    def _on_attach(self, peer: Peer, message: Attach) -> None:
        self._catch_up(message.stream)
        super()._on_attach(peer, message)
        self._attend()

    def _on_join(self, peer: Peer, message: Join) -> None:
        self._catch_up(message.stream)
        super()._on_join(peer, message)
        self._attend()

    def _catch_up(self, stream: LogId) -> None:
        """While nobody needed new positions, the service has not reported them."""
        line = self.lines.get(stream)
        if line is not None and self.is_owner(line):
            self._moved(line)

    def _floor(self, line: Line) -> int:
        return line.top - self.config.again_max if self.is_owner(line) else 1

    def _send_known(self, line: Line, below: Below, lo: int, hi: int) -> list[tuple[int, int]]:
        if not self.is_owner(line):
            return super()._send_known(line, below, lo, hi)
        floor = self._floor(line)
        if lo < floor:
            self.counters["gryphon.too-old"] += 1
            self._send_range(line, below, False, lo, min(hi, floor), (), self.too_old)
            lo = min(hi, floor)
        for _ in range(self.config.batches_max):
            piece = line.known.piece_from(lo, min(hi, line.top))
            if piece is None:
                break
            self._send_again(line, below, piece)
            lo = piece.hi
        return []

    def _look_after(self, line: Line) -> None:
        if not self.is_owner(line):
            super()._look_after(line)

    def _send_acks(self) -> None:
        super()._send_acks()
        for line in self.lines.values():
            if self.is_owner(line):
                line.final = max(line.final, line.acked)

    def _tick(self) -> None:
        super()._tick()
        self._attend()
        old_ns = self.now_ns - self.config.fetch_ns
        for token in [token for token, (_, _, at_ns) in self.finding.items() if at_ns < old_ns]:
            del self.finding[token]
        for line in self.lines.values():
            if self.is_owner(line):
                self._check_acks(line)
                self._look_for_schema(line)

    def _check_acks(self, line: Line) -> None:
        """Tell brokers below what they should have acknowledged (liveness: this is how the loss of
        the last event is noticed)."""
        config, now_ns = self.config, self.now_ns
        if not line.ends or line.ends[-1][1] < line.top:
            line.ends.append((now_ns, line.top))
            if len(line.ends) > ENDS_MAX:
                del line.ends[1::2]
        old = [end for at_ns, end in line.ends if now_ns - at_ns >= config.expected_ns]
        if not old or all(below.acked >= old[-1] for below in line.below.values() if below.begun):
            line.wait_ns = config.expected_ns // 2
        elif now_ns >= line.expect_ns:
            self.counters["gryphon.expected"] += 1
            self.expect(line, old[-1])
            line.expect_ns = now_ns + line.wait_ns
            line.wait_ns = min(2 * line.wait_ns, config.expected_ns_max)

    # ------------------------------------------------------------ reads

    def _on_fetch(self, peer: Peer, message: Fetch) -> None:
        line = self.lines.get(message.stream)
        if line is None or not self.is_owner(line):
            super()._on_fetch(peer, message)
            return
        if peer != self.config.name and peer not in self.links.known:
            self.counters["gryphon.fetch-ignored"] += 1
            return
        if len(self.fetching) + len(self.loading) >= self.config.fetches_max or message.lo < 1:
            self.counters["gryphon.fetch-ignored"] += 1
            return
        self.out.append(AtEndOfPass("fetch"))
        self.fetching.append((peer, message))

    def _on_end_of_pass(self, inp: EndOfPass) -> None:
        if inp.key != "fetch":
            super()._on_end_of_pass(inp)
            return
        left, kept = self.config.filter_cost_max, list[tuple[Peer, Fetch]]()
        waits, answered = False, 0  # whether reads wait for the next pass
        before, self.fetching = self.fetching, []
        for peer, message in before:
            if peer in self.congested:
                kept.append((peer, message))  # until Writable
            elif answered >= FETCHES_A_PASS or left <= 0:
                kept.append((peer, message))
                waits = True
            else:
                answer, cost = self._answer_fetch(message, left)
                left, answered = left - cost, answered + 1
                if answer is None:
                    self.loading.append((peer, message))
                elif peer == self.config.name:
                    self.subscriptions.fetched(peer, answer)
                else:
                    self._send(peer, answer)
        # Answers to subscriptions of this server may have requested the next reads.
        self.fetching = [*kept, *self.fetching]
        if waits:
            self.out.append(AtEndOfPass("fetch"))

    def _on_writable(self, inp: Writable) -> None:
        super()._on_writable(inp)
        if self.fetching:
            self.out.append(AtEndOfPass("fetch"))

    def _on_piece_loaded(self, event: PieceLoaded) -> None:
        """Answer the reads that have waited for this piece."""
        ready = [
            (peer, message)
            for peer, message in self.loading
            if (message.stream, message.lo) == (event.stream, event.lo)
        ]
        if ready:
            self.loading = [one for one in self.loading if one not in ready]
            self.out.append(AtEndOfPass("fetch"))
            self.fetching += ready

    def _answer_fetch(self, message: Fetch, cost_max: int) -> tuple[Fetched | None, int]:
        """Read until there is enough to send, or until the filter has cost enough. Returns the
        answer and what it has cost. None: the first positions must be loaded first."""
        from surecast.where.batches import batch_filter

        stream, at = message.stream, message.lo
        info = self.infos.get(stream)
        if info is None:
            return Fetched(message.token, at, at, ()), 0
        self.counters["gryphon.fetched"] += 1
        try:
            where = batch_filter(message.where, info.schema) if message.where else None
        except SurecastError:
            where = None  # the subscriber's broker knows more columns, and filters again
        found: list[Batch] = []
        nbytes = cost = 0
        for _ in range(READS_A_FETCH):
            hi = min(message.hi, self.service.readable_end(stream))
            if at >= hi or nbytes >= FETCH_BYTES_MAX or cost >= cost_max:
                break
            if lost := self.service.lost_at(stream, at):
                if at > message.lo:
                    break
                end = min(lost[0], hi)
                return Fetched(message.token, at, end, (), lost[1] or "lost"), cost
            batches = self.service.at_hand(stream, at, hi)
            if batches is None and at == message.lo:
                self.command(Load(stream, at, hi))
                return None, cost
            if not batches:
                break
            at = batches[-1].hi
            for batch in batches:
                part = batch
                if where is not None:
                    cost += where.cost(batch)
                    try:
                        part = where.apply(batch)
                    except SurecastError:  # it lacks the types of the schema
                        self.counters["gryphon.filter-failed"] += 1
                if part.rows:
                    found.append(part)
                nbytes += part.nbytes
        return Fetched(message.token, message.lo, at, tuple(found)), cost

    # ------------------------------------------------------------ new streams, publishes

    def _on_handed(self, event: Handed) -> None:
        peer, message = event.peer, event.message
        match event.what:
            case "publish":
                self.forwarding.on_publish(peer, message)
            case "ack":
                self.forwarding.on_ack(peer, message)
            case "nack":
                self.forwarding.on_nack(peer, message)
            case "create":
                self._create(peer, message)
            case "locate":
                self._locate(peer, message)
            case "opened":
                if self.forwarding.take_refusal(peer, message):
                    self.command(Settle(message.name, message.why))
                elif message.info is not None and message.info.delivery != DELIVERY:
                    self.command(Settle(message.name, "config-mismatch"))

    def _create(self, peer: Peer, message: Any) -> None:
        """Create the stream here, or forward the request to the region that owns the name."""
        self._activate()
        owner = owner_of(self.config.owners, message.name, self.config.region)
        if owner == self.config.region:
            self.command(Create(peer, message))
        elif self.region_of_server(peer):  # do not forward it back and forth
            self.command(Refuse(peer, message, "owners-differ"))
        elif why := self.forwarding.create(owner, message):
            self.command(Refuse(peer, message, why))
        else:  # each repeated request is forwarded: the owner's answer may have been lost
            self.command(Await(peer, message))

    # ------------------------------------------------------------ used by Forwarding (its Regions)

    def owner_of(self, stream: LogId) -> str:
        info = self.infos.get(stream)
        return info.owner if info is not None else ""

    def head_of(self, region: str) -> Peer:
        """The last known head of a region, or any of its servers, which then names the head."""
        servers = self.config.regions.get(region, ())
        up = [server for server in servers if server not in self.unreachable]
        head = self.heads.get(region, "")
        return head if head in up else next(iter(up), "")

    def region_of_server(self, peer: Peer) -> str:
        return self.region_of.get(peer, "")

    def moved(self, server: Peer, head: Peer) -> None:
        region = self.region_of.get(server, "")
        if region and head in self.config.regions[region]:
            self.heads[region] = head

    def send(self, peer: Peer, message: Any) -> None:
        self._send(peer, message)

    def command(self, command: Any) -> None:
        self.out.append(PassDown(command))

    def _on_reach(self, peer: Peer, message: Reach) -> None:
        region = self.region_of.get(peer, "")
        if region and message.head in self.config.regions[region]:
            self.heads[region] = message.head
        super()._on_reach(peer, message)

    def _on_peer_up(self, inp: PeerUp) -> None:
        if not self.active:
            return
        self.unreachable.pop(inp.peer, None)
        super()._on_peer_up(inp)

    def _on_peer_down(self, inp: PeerDown) -> None:
        if not self.active:
            return
        if inp.peer in self.region_of:
            self.unreachable[inp.peer] = None
        self.forwarding.peer_down(inp.peer)
        self.fetching = [one for one in self.fetching if one[0] != inp.peer]
        self.loading = [one for one in self.loading if one[0] != inp.peer]
        super()._on_peer_down(inp)
