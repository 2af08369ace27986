"""A broker: passes streams from their owners down a tree, and what is missing up.

For each stream the broker keeps what it knows (pieces.py). From above it gets knowledge: events,
and ranges that need no event. It sends each broker below the events that pass the filters below it,
in order of positions; what was filtered out travels as a final range in front of the next event, so
that a filtered event never looks like a lost one. Brokers below request what they miss. A broker
answers from what it knows, and passes the rest of the request up once, even if several request it.

A broker that serves subscribers keeps one horizon for each stream, however many subscriptions there
are. `subscriptions.py` has that part, `pubend.py` what a replica of the owner does in addition.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import ClassVar, Final

import msgspec

from surecast.columns.batch import CONFIG, Batch
from surecast.columns.rules import schema_after
from surecast.columns.schema import extends
from surecast.core.machine import HandlerMachine
from surecast.core.streams import StreamInfo
from surecast.core.types import (
    AtEndOfPass,
    Congested,
    EndOfPass,
    LogId,
    Peer,
    PeerDown,
    PeerUp,
    SetTimer,
    Start,
    TimerFired,
    Writable,
)
from surecast.core.wire import SEQ_END_MAX
from surecast.protocols.gryphon.config import TABLE_BYTES_MAX, GryphonConfig
from surecast.protocols.gryphon.line import EVERYTHING, Below, Line, OwnTable
from surecast.protocols.gryphon.links import Links
from surecast.protocols.gryphon.messages import (
    Ack,
    AckExpected,
    Attach,
    Attached,
    Detach,
    Fetch,
    Fetched,
    Filters,
    Join,
    Knowledge,
    Leave,
    Nack,
    Reach,
    Stamps,
    StreamsAre,
    Table,
)
from surecast.protocols.gryphon.pieces import LogPieces, Piece, Pieces
from surecast.protocols.gryphon.stamps import UNKNOWN, lowest
from surecast.protocols.gryphon.subscriptions import Subscriptions

__all__ = ["DELIVERY", "LAYER", "Broker"]

DELIVERY: Final = "filtered"  # the value of `StreamInfo.delivery`
LAYER: Final = "gryphon"  # the name of the layer in a replica, which is also that of the role
INFOS_A_MESSAGE = 100  # most streams in one StreamsAre
RANGES_MAX = 64  # most ranges of one Nack
CURIOUS_MAX = 1_000  # most ranges that were requested from above, of one stream
LINGER_FACTOR = 40  # a stream that nobody uses is detached after this many `link_ns`


class Broker(HandlerMachine):
    handlers: ClassVar[dict[type, str]] = {
        Reach: "_on_reach",
        StreamsAre: "_on_streams_are",
        Attach: "_on_attach",
        Attached: "_on_attached",
        Detach: "_on_detach",
        Filters: "_on_filters",
        Knowledge: "_on_knowledge",
        Nack: "_on_nack",
        Ack: "_on_ack",
        AckExpected: "_on_ack_expected",
        Fetch: "_on_fetch",
        Fetched: "_on_fetched",
        Join: "_on_join",
        Leave: "_on_leave",
    }
    inputs: ClassVar[dict[type, str]] = {
        Start: "_on_start",
        TimerFired: "_on_timer",
        EndOfPass: "_on_end_of_pass",
        PeerUp: "_on_peer_up",
        PeerDown: "_on_peer_down",
        Congested: "_on_congested",
        Writable: "_on_writable",
    }

    # The stamps of positions that are not sent again (B8): they are not known to be final.
    too_old: ClassVar[Stamps | None] = UNKNOWN
    subscriptions_type: ClassVar[type[Subscriptions]] = Subscriptions  # tests replace it

    def __init__(
        self, config: GryphonConfig, rng: Random, counters: Counter[str] | None = None
    ) -> None:
        super().__init__(counters)
        self.config = config
        self._rng = rng
        self._incarnation = 0
        self.infos: dict[LogId, StreamInfo] = {}  # all streams of this delivery that are known
        self.lines: dict[LogId, Line] = {}  # the streams that are used here
        self.deleted: dict[LogId, None] = {}  # streams that were deleted
        self.links = Links(config)
        self.congested: dict[Peer, None] = {}
        self.head: Peer = ""  # of the region, if this is a replica
        self.active = False  # the timer runs
        self.acks_due = False  # the timer "acks" is set
        # Reads for other brokers that were passed up: token → (the broker that has sent the read,
        # its token, when it came, the broker above that must answer).
        self.relayed: dict[int, tuple[Peer, int, int, Peer]] = {}
        self.last_token = 0
        self.unsent: dict[LogId, None] = {}  # streams with more to send in the next pass
        self.subscriptions = self.subscriptions_type(self)

    @property
    def incarnation(self) -> int:
        """Identifies this start of the broker: the versions of its tables begin anew. (Drawn when
        it is first needed: other layers of a replica use the same generator.)"""
        self._incarnation = self._incarnation or 1 + self._rng.getrandbits(62)
        return self._incarnation

    # ------------------------------------------------------------ start, links

    def _on_start(self, _inp: Start) -> None:
        if not self.config.region:
            self._activate()

    def _activate(self) -> None:
        """Begin to tell the neighbours what can be reached. A replica begins when there is a stream
        of this delivery."""
        if not self.active:
            self.active = True
            self._tick()

    def _neighbours(self) -> list[Peer]:
        """Those that are told what can be reached: all above and beside, and those below that have
        connected."""
        known = (*self.links.upward, *self.links.mates, *self.links.peers)
        return list(dict.fromkeys(known))

    def _tell_reach(self) -> None:
        reach = self.links.own_reach(self.head, self.now_ns)
        for peer in self._neighbours():
            self._send(peer, reach)

    def _on_peer_up(self, inp: PeerUp) -> None:
        self.congested.pop(inp.peer, None)
        if inp.peer in self.links.upward or inp.peer in self.links.mates:
            self.links.went_up(inp.peer)

    def _on_peer_down(self, inp: PeerDown) -> None:
        peer = inp.peer
        self.congested.pop(peer, None)
        self.links.went_down(peer)
        for line in list(self.lines.values()):
            self._remove_below(line, peer)
            if line.source == peer:
                self._lose_source(line)
        self.subscriptions.peer_down(peer)
        for token in [token for token, entry in self.relayed.items() if entry[0] == peer]:
            del self.relayed[token]

    def _on_reach(self, peer: Peer, message: Reach) -> None:
        if peer not in self.links.known:
            self.counters["gryphon.strange-reach"] += 1
            return
        self.links.heard(peer, message, self.now_ns)
        self._activate()
        neighbour = self.links.peers[peer]
        if not neighbour.knows:
            neighbour.knows = True
            self._send(peer, self.links.own_reach(self.head, self.now_ns))
            self._tell_streams(peer, list(self.infos.values()))
        self._review_sources()

    def _tell_streams(self, peer: Peer, infos: list[StreamInfo]) -> None:
        """Tell a broker beside or below which streams there are."""
        if peer in self.links.upward:
            infos = [info for info in infos if info.owner == self.config.region]
        for at in range(0, len(infos), INFOS_A_MESSAGE):
            part = infos[at : at + INFOS_A_MESSAGE]
            gone = tuple(info.stream_id for info in part if info.stream_id in self.deleted)
            self._send(peer, StreamsAre(tuple(part), gone))

    def _on_streams_are(self, peer: Peer, message: StreamsAre) -> None:
        if peer not in self.links.upward and peer not in self.links.mates:
            self.counters["gryphon.strange-streams"] += 1
            return
        new = [
            info
            for info in message.infos
            if info.delivery == DELIVERY
            and info.owner != self.config.region
            and self._is_newer(info)
        ]
        for info in new:
            self.infos[info.stream_id] = info
            if line := self.lines.get(info.stream_id):
                self.take_schema(line, info.schema)
            self._learned(info)
        for stream in message.deleted:
            gone = self.infos.get(stream)
            if gone is not None and stream not in self.deleted:
                self.deleted[stream] = None
                self._learned(gone)
                new = [*(one for one in new if one.stream_id != stream), gone]
        self._tell_neighbours(new, peer)
        self._activate()

    def _tell_neighbours(self, infos: list[StreamInfo], besides: Peer = "") -> None:
        for peer, neighbour in self.links.peers.items() if infos else ():
            if neighbour.up and peer != besides:
                self._tell_streams(peer, infos)

    def _is_newer(self, info: StreamInfo) -> bool:
        """Whether a stream is new, or its schema was changed."""
        known = self.infos.get(info.stream_id)
        return known is None or (known != info and extends(info.schema, known.schema))

    def _learned(self, _info: StreamInfo) -> None:
        """A stream, or its changed schema, has become known."""

    # ------------------------------------------------------------ streams and their sources

    def is_owner(self, line: Line) -> bool:
        return isinstance(line.known, LogPieces)

    def line(self, stream: LogId) -> Line | None:
        """The state of a stream, which is made if the stream is known. A new one is not attached
        yet (`find_source`)."""
        line = self.lines.get(stream)
        if line is None and (info := self.infos.get(stream)):
            line = self.lines[stream] = self._new_line(info, Pieces())
        return line

    def _new_line(self, info: StreamInfo, known: Pieces | LogPieces) -> Line:
        from surecast.protocols.gryphon.matching import Matcher  # loads pyarrow and kernels

        config = self.config
        table = OwnTable(
            config.name, lambda: self.incarnation, config.filters_max, config.filters_bytes_max
        )
        line = Line(info, known, Matcher(info.schema), table)
        line.used_ns = self.now_ns
        return line

    def find_source(self, line: Line) -> None:
        """Attach to the best broker above, if another one than now."""
        if self.is_owner(line):
            return
        source = self.links.choose(line.stream, line.info.owner, line.source, self.now_ns)
        if source and source != line.source:
            if line.source:
                self._send(line.source, Detach(line.stream))
                self._remove_asked(line)
            line.source, line.attached = source, False
            self._attach(line)

    def _attach(self, line: Line) -> None:
        line.asked_ns = self.now_ns
        tables = [line.table.whole(self.now_ns)] if line.subs else []
        for below in line.below.values():
            tables += [
                Table(name, incarnation, 0, version, tuple(filters.items()))
                for name, (incarnation, version, filters) in below.tables.items()
            ]
        self.counters["gryphon.attached"] += 1
        first, *more = _groups(tables)
        self._send(line.source, Attach(line.stream, self._wanted_from(line), first))
        for group in more:
            self._send(line.source, Filters(line.stream, group))

    def _wanted_from(self, line: Line) -> int:
        """The first position that is needed here; 0: only new ones."""
        needed = [line.horizon] if line.horizon else []
        needed += [below.sent for below in line.below.values() if below.begun]
        needed += [below.at for below in line.below.values() if not below.begun and below.at]
        return min(needed, default=0)

    def _lose_source(self, line: Line) -> None:
        line.source, line.attached = "", False
        self._remove_asked(line)
        self.find_source(line)

    def _remove_asked(self, line: Line) -> None:
        """What was requested from the former broker above will not come: allow it to be requested
        again."""
        line.curious.clear()
        self.subscriptions.source_lost(line)

    def _review_sources(self) -> None:
        for line in self.lines.values():
            self.find_source(line)

    def _on_attached(self, peer: Peer, message: Attached) -> None:
        line = self.lines.get(message.stream)
        end = message.end
        if line is None or line.source != peer or line.attached or not 0 < end <= SEQ_END_MAX:
            return
        line.attached, line.acked = True, 1  # the acknowledgement is repeated
        self.take_schema(line, message.schema)
        line.top = max(line.top, message.end)
        for below in line.below.values():
            if not below.begun:
                self._begin(line, below)
        self.subscriptions.attached(line, message.end)
        self._update_ack(line)

    def take_schema(self, line: Line, schema: str) -> None:
        """The stream has this schema now. Fields may have been added, nothing else."""
        if schema != line.info.schema and extends(schema, line.info.schema):
            line.info = msgspec.structs.replace(line.info, schema=schema)
            line.matcher.set_schema(schema)
            self.infos[line.stream] = line.info
            self._learned(line.info)

    # ------------------------------------------------------------ brokers below

    def _on_attach(self, peer: Peer, message: Attach) -> None:
        line = self.line(message.stream) if peer in self.links.known else None
        if line is not None and peer == line.source:
            self._send(peer, Detach(message.stream))  # it must choose another one
            return
        if line is None or not 0 <= message.at <= SEQ_END_MAX:
            self.counters["gryphon.attach-ignored"] += 1
            return  # it tries again
        self._remove_below(line, peer)
        if len(line.below) >= self.config.brokers_max:
            self.counters["gryphon.attach-ignored"] += 1
            return
        below = line.below[peer] = Below(peer, at=message.at)
        self._install(line, below, message.tables)
        if line.source:
            self._send(line.source, Filters(line.stream, message.tables))
        else:
            self.find_source(line)  # Attach has the tables
        if line.attached:
            self._begin(line, below)

    def _begin(self, line: Line, below: Below) -> None:
        end = self._end(line)
        below.begun, below.told_ns = True, self.now_ns
        at = min(below.at or end, end)
        below.sent = below.run_lo = at
        self._send(below.peer, Attached(line.stream, end, line.info.schema))
        if at < end and not self.config.resume:
            below.sent = below.run_lo = end
        elif at < (floor := self._floor(line)):
            self.counters["gryphon.too-old"] += 1
            self._send_range(line, below, True, at, floor, (), self.too_old)
            below.sent = below.run_lo = floor
        self._pump(line, below)

    def _end(self, line: Line) -> int:
        return line.top

    def _floor(self, _line: Line) -> int:
        """Positions below it are not sent again; only subscriptions read them, one by one."""
        return 1

    def _on_detach(self, peer: Peer, message: Detach) -> None:
        line = self.lines.get(message.stream)
        if line is None:
            return
        if peer == line.source:  # it has given up the stream
            self._lose_source(line)
        self._remove_below(line, peer)

    def _remove_below(self, line: Line, peer: Peer) -> None:
        below = line.below.pop(peer, None)
        if below is None:
            return
        gone = []
        for name, (incarnation, _, filters) in below.tables.items():
            for number in filters:
                line.matcher.remove(peer, (name, number))
            if not any(name in other.tables for other in line.below.values()):
                gone.append(Table(name, incarnation, 0, 0, ()))
        line.used_ns = self.now_ns
        if gone and line.source and line.source != peer:
            self._send(line.source, Filters(line.stream, tuple(gone)))
        self._update_ack(line)

    # ------------------------------------------------------------ filter tables

    def _on_filters(self, peer: Peer, message: Filters) -> None:
        line = self.lines.get(message.stream)
        below = line.below.get(peer) if line is not None else None
        if line is None or below is None:
            return
        self._install(line, below, message.tables)
        if line.source:
            self._send(line.source, message)

    def _install(self, line: Line, below: Below, tables: tuple[Table, ...]) -> None:
        """Install changes of the tables of brokers below. A change of another version than the one
        that is here is ignored; the whole table comes later, because the stamps do not change."""
        for table in tables:
            if table.broker == self.config.name or table.broker not in self.links.known:
                self.counters["gryphon.strange-table"] += 1
                continue
            known = below.tables.get(table.broker)
            if table.base:
                if known is None or known[:2] != (table.incarnation, table.base):
                    self.counters["gryphon.table-skipped"] += 1
                    continue
                filters = known[2]
            else:
                filters = {}
                for number in known[2] if known is not None else ():
                    line.matcher.remove(below.peer, (table.broker, number))
                if not table.version:
                    below.tables.pop(table.broker, None)
                    continue
            for number in table.removed:
                if filters.pop(number, None) is not None:
                    line.matcher.remove(below.peer, (table.broker, number))
            for number, text in table.added:
                filters[number] = text
                line.matcher.add(below.peer, (table.broker, number), text)
            if len(filters) > self.config.filters_max:  # one filter that passes everything instead
                for number in filters:
                    line.matcher.remove(below.peer, (table.broker, number))
                filters = {0: EVERYTHING}
                line.matcher.add(below.peer, (table.broker, 0), EVERYTHING)
                self.counters["gryphon.widened"] += 1
            below.tables[table.broker] = (table.incarnation, table.version, filters)
        below.restamp()

    def _filter(
        self, line: Line, below: Below, piece: Piece
    ) -> tuple[tuple[Batch, ...], Stamps | None]:
        """The events of a piece that a broker below wants, and the stamps of the rest."""
        kept: list[Batch] = []
        dropped = False
        for batch in piece.batches:
            if line.matcher.takes_all(below.peer, batch):
                kept.append(batch)
                continue
            part = line.matcher.parts(batch).get(below.peer)
            if part is not None:
                kept.append(part)
            dropped = dropped or part is not batch
        stamps = lowest(piece.stamps, below.stamps) if dropped else piece.stamps
        return tuple(kept), stamps

    # ------------------------------------------------------------ knowledge, down

    def _on_knowledge(self, peer: Peer, message: Knowledge) -> None:
        line = self.lines.get(message.stream)
        if line is None or peer != line.source:
            self._refuse(peer, message.stream)
            return
        if not 0 < message.lo < message.hi <= SEQ_END_MAX:
            self.counters["gryphon.bad-knowledge"] += 1
            return
        line.final = max(line.final, message.final)
        batches = message.batches
        if any(
            batch.stream_id != message.stream or batch.lo < message.lo or batch.hi > message.hi
            for batch in batches
        ):
            self.counters["gryphon.bad-knowledge"] += 1
            return
        self.learn(line, Piece(message.lo, message.hi, batches, message.stamps))

    def learn(self, line: Line, piece: Piece) -> None:
        """Add knowledge from above, and pass it on."""
        assert isinstance(line.known, Pieces)
        for batch in piece.batches:
            if batch.kind == CONFIG:
                self.take_schema(line, schema_after(line.info.schema, batch))
        line.known.add(piece)
        line.top = max(line.top, piece.hi)
        for below in line.below.values():
            if below.wants:
                self._answer(line, below, piece)
            self._pump(line, below)
        self.subscriptions.advance(line)
        self._trim(line)

    def _trim(self, line: Line) -> None:
        """Drop what is not needed any more, or too much."""
        assert isinstance(line.known, Pieces)
        line.known.drop_below(line.final)
        if not line.below:
            line.known.drop_below(line.horizon)
        if line.known.nbytes > self.config.cache_bytes_max:
            line.known.shrink(self.config.cache_bytes_max)

    def _answer(self, line: Line, below: Below, piece: Piece) -> None:
        """Send a broker below what it has requested of this piece."""
        for lo, hi in below.wants.clip(piece.lo, piece.hi):
            self._send_again(line, below, piece.part(lo, hi))
            below.wants.discard(lo, hi)

    def _send_again(self, line: Line, below: Below, piece: Piece) -> None:
        batches, stamps = self._filter(line, below, piece)
        self.counters["gryphon.sent-again"] += 1
        self._send_range(line, below, False, piece.lo, piece.hi, batches, stamps)

    def _pump(self, line: Line, below: Below) -> None:
        """Send a broker below what is new, in order. What is unknown here is left out: that broker
        notices the gap, and requests it."""
        room = self.config.batches_max
        while below.begun and below.sent < line.top and below.peer not in self.congested:
            if not room:
                self._soon(line)
                break
            piece = line.known.piece_from(below.sent, line.top)
            if piece is None:
                following = line.known.next_known(below.sent)
                if following is None or following <= below.sent:
                    break
                self._flush(line, below)
                below.sent = below.run_lo = following
                continue
            room -= 1
            batches, stamps = self._filter(line, below, piece)
            stamps = lowest(below.run_stamps, stamps)
            below.sent = piece.hi
            if batches:
                self._send_range(line, below, True, below.run_lo, piece.hi, batches, stamps)
                below.run_lo, below.run_stamps = piece.hi, None
            else:
                below.run_stamps = stamps

    def _flush(self, line: Line, below: Below) -> None:
        """Send the final positions that were not sent yet."""
        if below.run_lo < below.sent:
            self.counters["gryphon.silence"] += 1
            self._send_range(line, below, True, below.run_lo, below.sent, (), below.run_stamps)
            below.run_lo, below.run_stamps = below.sent, None

    def _send_range(
        self,
        line: Line,
        below: Below,
        first: bool,
        lo: int,
        hi: int,
        batches: tuple[Batch, ...],
        stamps: Stamps | None,
    ) -> None:
        below.told_ns = self.now_ns
        message = Knowledge(line.stream, first, line.final, lo, hi, batches, stamps)
        self._send(below.peer, message)

    def _soon(self, line: Line) -> None:
        if not self.unsent:
            self.out.append(AtEndOfPass("pump"))
        self.unsent[line.stream] = None

    def _on_end_of_pass(self, inp: EndOfPass) -> None:
        if inp.key == "pump":
            unsent, self.unsent = self.unsent, {}
            for stream in unsent:
                if line := self.lines.get(stream):
                    for below in line.below.values():
                        self._pump(line, below)
                    self.subscriptions.advance(line)
        else:
            self.subscriptions.end_of_pass()

    def _on_congested(self, inp: Congested) -> None:
        self.congested[inp.peer] = None

    def _on_writable(self, inp: Writable) -> None:
        self.congested.pop(inp.peer, None)
        for line in self.lines.values():
            if below := line.below.get(inp.peer):
                self._pump(line, below)
        self.subscriptions.writable(inp.peer)

    # ------------------------------------------------------------ curiosity, up

    def _on_nack(self, peer: Peer, message: Nack) -> None:
        line = self.lines.get(message.stream)
        below = line.below.get(peer) if line is not None else None
        if line is None or below is None or not below.begun:
            return
        self.counters["gryphon.nacks"] += 1
        left = self.config.nack_positions_max
        unknown: list[tuple[int, int]] = []
        for lo, hi in message.ranges[:RANGES_MAX]:
            hi = min(hi, lo + left, line.top)
            if 0 < lo < hi:
                left -= hi - lo
                unknown += self._send_known(line, below, lo, hi)
        if below.wants.runs > CURIOUS_MAX:
            below.wants.clear()  # it requests again what it still misses
        for lo, hi in unknown:
            below.wants.add(lo, hi)
        self.request(line, unknown)

    def _send_known(self, line: Line, below: Below, lo: int, hi: int) -> list[tuple[int, int]]:
        """Send the known part of [lo, hi) again; returns the rest."""
        assert isinstance(line.known, Pieces)
        for piece in line.known.parts(lo, hi):
            self._send_again(line, below, piece)
        return list(line.known.missing(lo, hi))

    def request(self, line: Line, ranges: list[tuple[int, int]]) -> None:
        """Request ranges from above, except those that were requested a short time ago (guarantee
        7: one request for all brokers below)."""
        if not ranges or not line.source or not line.attached:
            return
        now_ns, config = self.now_ns, self.config
        line.curious = [entry for entry in line.curious if entry[0] > now_ns]
        fresh = [
            part
            for lo, hi in ranges
            for part in _without(lo, hi, [(a, b) for _, a, b in line.curious])
        ][:RANGES_MAX]
        self.counters["gryphon.nacks-joined"] += len(fresh) < len(ranges)
        if not fresh:
            return
        until_ns = now_ns + int(config.repeat_ns * config.forget_share)
        if len(line.curious) + len(fresh) <= CURIOUS_MAX:
            line.curious += [(until_ns, lo, hi) for lo, hi in fresh]
        self.counters["gryphon.nacks-sent"] += 1
        self._send(line.source, Nack(line.stream, tuple(fresh)))

    # ------------------------------------------------------------ acknowledgements, up

    def _on_ack(self, peer: Peer, message: Ack) -> None:
        line = self.lines.get(message.stream)
        below = line.below.get(peer) if line is not None else None
        if line is None or below is None or message.end <= below.acked:
            return
        below.acked = min(message.end, max(line.top, below.acked))
        below.wants.discard(1, below.acked)
        self._update_ack(line)

    def _acked(self, line: Line) -> int:
        """The end of what everybody here and below has acknowledged."""
        ends = [below.acked for below in line.below.values()]
        if line.subs and line.horizon:
            ends.append(line.horizon)
        return min(ends, default=line.top)

    def _update_ack(self, line: Line) -> None:
        if self._acked(line) > line.acked and not self.acks_due:
            self.acks_due = True
            self.out.append(SetTimer("acks", self.now_ns + self.config.ack_ns))

    def acknowledged(self, line: Line) -> None:
        """The subscriptions' horizon has moved."""
        self._update_ack(line)

    def _send_acks(self) -> None:
        self.acks_due = False
        for line in self.lines.values():
            end = self._acked(line)
            if end > line.acked:
                line.acked = end
                self._send_ack(line)

    def _send_ack(self, line: Line) -> None:
        if line.source and line.attached:
            self._send(line.source, Ack(line.stream, line.acked))

    def _on_ack_expected(self, peer: Peer, message: AckExpected) -> None:
        line = self.lines.get(message.stream)
        if line is None or peer != line.source:
            self._refuse(peer, message.stream)
        elif line.attached and 0 < message.end <= SEQ_END_MAX:
            self.expect(line, message.end)

    def _refuse(self, peer: Peer, stream: LogId) -> None:
        """A broker above sends a stream that this one gets from another broker, or does not need
        any more. It would wait for acknowledgements."""
        self.counters["gryphon.knowledge-ignored"] += 1
        if peer in self.links.upward or peer in self.links.mates:
            self._send(peer, Detach(stream))

    def expect(self, line: Line, end: int) -> None:
        """Everything below `end` should have been acknowledged: ask those that have not."""
        if not self.is_owner(line):
            line.top = max(line.top, end)
        for below in line.below.values():
            if below.begun and below.acked < end:
                self._flush(line, below)
                self._send(below.peer, AckExpected(line.stream, end))
        if line.subs:
            self.subscriptions.expect(line, end)
        if line.acked > 1:
            self._send_ack(line)

    # ------------------------------------------------------------ reads at the owner

    def next_token(self) -> int:
        self.last_token += 1
        return self.last_token

    def _on_fetch(self, peer: Peer, message: Fetch) -> None:
        """Pass a read on towards the owner."""
        line = self.lines.get(message.stream)
        source = line.source if line is not None else ""
        if peer != self.config.name and peer not in self.links.known:
            source = ""
        if not source or source == peer or len(self.relayed) >= self.config.fetches_max:
            self.counters["gryphon.fetch-ignored"] += 1
            return  # it is repeated
        token = self.next_token()
        self.relayed[token] = (peer, message.token, self.now_ns, source)
        self._send(source, Fetch(token, message.stream, message.lo, message.hi, message.where))

    def _on_fetched(self, peer: Peer, message: Fetched) -> None:
        asked = self.relayed.get(message.token)
        if asked is None:
            self.subscriptions.fetched(peer, message)
            return
        to, token, _, source = asked
        if peer != source:
            return  # nobody else may answer
        del self.relayed[message.token]
        self._send(to, Fetched(token, message.lo, message.hi, message.batches, message.lost))

    # ------------------------------------------------------------ subscribers

    def _on_join(self, peer: Peer, message: Join) -> None:
        self.subscriptions.join(peer, message)

    def _on_leave(self, peer: Peer, message: Leave) -> None:
        self.subscriptions.leave(peer, message)

    # ------------------------------------------------------------ time

    def _on_timer(self, inp: TimerFired) -> None:
        if inp.key == "tick":
            self._tick()
        elif inp.key == "acks":
            self._send_acks()
        else:  # "gaps"
            self.subscriptions.gaps_due()

    def _tick(self) -> None:
        config = self.config
        self.out.append(SetTimer("tick", self.now_ns + config.link_ns))
        self._tell_reach()
        self._review_sources()
        lost_ns = 2 * config.link_lost_ns
        for line in list(self.lines.values()):
            for below in line.below.values():
                if below.begun and self.now_ns - below.told_ns >= config.silence_ns:
                    self._flush(line, below)
            if line.source and not line.attached and self.now_ns - line.asked_ns >= lost_ns:
                self._attach(line)  # the broker above did not know the stream
            self._look_after(line)
        self.subscriptions.tick()
        old_ns = self.now_ns - 4 * config.fetch_ns
        for token in [token for token, entry in self.relayed.items() if entry[2] < old_ns]:
            del self.relayed[token]

    def _look_after(self, line: Line) -> None:
        self._update_ack(line)
        if line.below or line.subs:
            line.used_ns = self.now_ns
        elif self.now_ns - line.used_ns > LINGER_FACTOR * self.config.link_ns:
            if line.source:
                self._send(line.source, Detach(line.stream))
            del self.lines[line.stream]


def _groups(tables: list[Table]) -> list[tuple[Table, ...]]:
    """The tables in groups that fit into a message each. There is at least one group."""
    groups: list[list[Table]] = [[]]
    size = 0
    for table in tables:
        nbytes = 200 + sum(20 + 4 * len(text) for _, text in table.added)
        if groups[-1] and size + nbytes > TABLE_BYTES_MAX:
            groups.append([])
            size = 0
        groups[-1].append(table)
        size += nbytes
    return [tuple(group) for group in groups]


def _without(lo: int, hi: int, ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """[lo, hi) without the given ranges."""
    left = [(lo, hi)]
    for first, last in ranges:
        left = [
            part
            for a, b in left
            for part in ((a, min(b, first)), (max(a, last), b))
            if part[0] < part[1]
        ]
    return left
