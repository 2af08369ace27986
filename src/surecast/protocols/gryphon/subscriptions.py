"""The subscriptions at a broker: `Subscriptions`, a part of `Broker`.

All subscriptions to a stream share one *horizon*: everything below it was passed to them. It moves
over known positions only; a missing range (a *gap*) is requested after a while. A subscription that
is *live* is sent the events of each piece that pass its filter. All other cases are one (rule B9):
a subscription that begins behind the horizon, that comes from another broker, whose client was too
slow, or whose filter was not applied to a piece, *reads* the missing positions at the stream's
owner, up to a position that the horizon has not reached when the reading begins (`Sub.join`).
Events from there on wait in its queue. When the reading gets there, the subscription is live.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from surecast.columns.batch import DATA, Batch
from surecast.columns.intervals import IntervalSet
from surecast.core.types import AtEndOfPass, LogId, Peer, SetTimer
from surecast.errors import SurecastError
from surecast.protocols.gryphon.line import LIVE, PAUSED, READING, WAITING, Gap, Line, Sub
from surecast.protocols.gryphon.messages import (
    Ack,
    Fetch,
    Fetched,
    Filters,
    Join,
    Leave,
    Matched,
    Refused,
)
from surecast.protocols.gryphon.pieces import Piece
from surecast.protocols.gryphon.stamps import version_of

if TYPE_CHECKING:
    from surecast.protocols.gryphon.broker import Broker

__all__ = ["Subscriptions"]

PIECES_A_PASS: Final = 64  # most pieces of one stream that are passed to subscriptions in one pass
NACK_RANGES: Final = 64  # ranges of one request
# A table that is not applied above is sent again after this many link_ns, and then less and less
# often: an idle stream does not show whether it is applied.
_REPEAT_TABLE: Final = 4
REPEATS_MAX: Final = 8  # the time is doubled at most this often


class Subscriptions:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.config = broker.config
        self.count = 0
        self.by_peer: dict[Peer, dict[LogId, None]] = {}
        self.fetches: dict[
            int, tuple[Line, Sub, Peer]
        ] = {}  # by token, with the broker that must answer
        self.changed: dict[LogId, None] = {}  # streams whose filters have changed in this pass
        self.gap_timer_ns = 0  # the timer "gaps" is set for this time; 0: not set
        # For the time until a request is repeated, as for TCP: smoothed round trip and variation.
        self.round_trip_ns = self.variation_ns = 0

    # ------------------------------------------------------------ coming and going

    def join(self, peer: Peer, message: Join) -> None:
        broker = self.broker
        line = broker.line(message.stream)
        if line is None or message.start < 0:
            broker.counters["gryphon.unknown-stream"] += 1
            return  # the subscriber joins again, here or elsewhere
        from surecast.protocols.gryphon.matching import canonical

        self._remove(line, peer)
        why = ""
        if self.count >= self.config.subscriptions_max:
            why = f"this server has {self.count} subscriptions (gryphon.subscriptions_max)"
        else:
            try:
                text = canonical(message.where)
            except SurecastError as problem:
                why = str(problem)
        if why:
            self._refuse(line, peer, message.number, why)
            return
        was_wide = line.table.is_wide
        sub = Sub(peer, message.number, text, line.table.add(text))
        broker.counters["gryphon.widened"] += line.table.is_wide and not was_wide
        sub.next, sub.told_ns = message.start, broker.now_ns
        line.subs[peer] = sub
        self.by_peer.setdefault(peer, {})[message.stream] = None
        self.count += 1
        line.matcher.add(sub, 0, text, exact=True)
        self._table_changed(line)
        if not line.source:
            broker.find_source(line)
        if len(line.subs) == 1:
            line.horizon, line.gaps = 0, []
        if line.attached:
            if not line.horizon:
                line.horizon = broker._end(line)
            self._begin(line, sub)

    def _refuse(self, line: Line, peer: Peer, number: int, why: str) -> None:
        self.broker.counters["gryphon.joins-refused"] += 1
        self.broker._send(peer, Refused(line.stream, number, why))

    def leave(self, peer: Peer, message: Leave) -> None:
        if line := self.broker.lines.get(message.stream):
            self._remove(line, peer)

    def peer_down(self, peer: Peer) -> None:
        for stream in list(self.by_peer.get(peer, ())):
            if line := self.broker.lines.get(stream):
                self._remove(line, peer)

    def _remove(self, line: Line, peer: Peer) -> None:
        sub = line.subs.pop(peer, None)
        if sub is None:
            return
        self.count -= 1
        streams = self.by_peer[peer]
        del streams[line.stream]
        if not streams:
            del self.by_peer[peer]
        self.fetches.pop(sub.fetching, None)
        line.matcher.remove(sub, 0)
        line.table.remove(sub.text)
        line.used_ns = self.broker.now_ns
        self._table_changed(line)
        self.broker.acknowledged(line)

    def drop(self, line: Line) -> None:
        """Drop all subscriptions to a stream; their clients join again."""
        for peer in list(line.subs):
            self._remove(line, peer)

    def _table_changed(self, line: Line) -> None:
        if not self.changed:
            self.broker.out.append(AtEndOfPass("filters"))
        self.changed[line.stream] = None

    def end_of_pass(self) -> None:
        """Tell the broker above how the filters have changed."""
        broker = self.broker
        changed, self.changed = self.changed, {}
        for stream in changed:
            line = broker.lines.get(stream)
            if line is None or not line.source:
                continue
            if table := line.table.changes(broker.now_ns):
                broker._send(line.source, Filters(stream, (table,)))

    # ------------------------------------------------------------ beginning

    def attached(self, line: Line, end: int) -> None:
        """The stream is connected (again); it has positions up to `end`."""
        if not line.subs:
            return
        if not line.horizon:
            line.horizon = end
        for sub in list(line.subs.values()):
            if sub.state == WAITING:
                self._begin(line, sub)
            elif sub.state == READING and not sub.fetching:
                self._read(line, sub)
        self.advance(line)

    def _begin(self, line: Line, sub: Sub) -> None:
        """The position from which on a new subscription takes the broker's events must not be below
        the horizon, nor below its own start: both would lose events (B9)."""
        from surecast.protocols.gryphon.matching import refusal

        if why := refusal(sub.text, line.info.schema):  # which is certain only now
            self._refuse(line, sub.peer, sub.number, why)
            self._remove(line, sub.peer)
            return
        if not sub.next:  # it learns at once where it begins, to continue there elsewhere
            sub.next = max(line.top, line.horizon)
            begins = Matched(line.stream, sub.number, sub.next, sub.next, ())
            self.broker._send(sub.peer, begins)
        sub.told = sub.next
        self._resume(line, sub)

    def _resume(self, line: Line, sub: Sub) -> None:
        """Continue at `sub.next`: with new events, or by reading what is missing."""
        sub.queue, sub.queue_bytes = [], 0
        if sub.next >= line.horizon:
            sub.state = LIVE
        else:
            sub.state, sub.join = READING, line.horizon
            self._read(line, sub)

    def _go_live(self, line: Line, sub: Sub) -> None:
        queue, sub.queue, sub.queue_bytes = sub.queue, [], 0
        sub.state = LIVE
        for hi, batches in queue:
            self._tell(line, sub, hi, batches)
            sub.next = hi

    # ------------------------------------------------------------ live events

    def advance(self, line: Line) -> None:
        """Move the horizon over what is known, and pass the events to subscriptions."""
        if not line.horizon or not line.subs:
            return
        broker, before = self.broker, line.horizon
        for _ in range(PIECES_A_PASS):
            piece = line.known.piece_from(line.horizon, line.top)
            if piece is None:
                break
            self._pass_on(line, piece)
            line.horizon = piece.hi
        else:
            broker._soon(line)
        if line.horizon > before:
            broker.acknowledged(line)
        if not broker.is_owner(line):
            self._look_for_gaps(line)

    def _pass_on(self, line: Line, piece: Piece) -> None:
        version = version_of(piece.stamps, self.broker.config.name, self.broker.incarnation)
        if version is not None:
            line.seen = version
        if version is not None and version < line.table.version and not piece.is_dense:
            for sub in line.subs.values():
                if sub.version > version:
                    self._must_read(line, sub, piece)
        wanted: dict[Sub, list[Batch]] = {}
        for batch in piece.batches:
            for receiver, part in line.matcher.parts(batch).items():
                if isinstance(receiver, Sub):
                    wanted.setdefault(receiver, []).append(part)
            if batch.kind != DATA:  # an event of the stream itself goes to everybody
                everybody: Any = line.subs.values()
            else:
                everybody = [one for one in line.matcher.all_takers() if isinstance(one, Sub)]
            for sub in everybody:
                wanted.setdefault(sub, []).append(batch)
        for sub, batches in wanted.items():
            self._give(line, sub, piece, tuple(batches))

    def _must_read(self, line: Line, sub: Sub, piece: Piece) -> None:
        """The filter of this subscription was not applied to the positions of the piece that have
        no event (B7)."""
        if sub.state == LIVE and sub.next < piece.hi:
            sub.next = max(sub.next, piece.lo)
            self.broker.counters["gryphon.stale-filter"] += 1
            sub.state, sub.join = READING, piece.hi
            self._read(line, sub)
        elif sub.state == READING:
            sub.join = max(sub.join, piece.hi)
            sub.queue, sub.queue_bytes = [], 0

    def _give(self, line: Line, sub: Sub, piece: Piece, batches: tuple[Batch, ...]) -> None:
        """Pass events of a piece, which begins at the horizon, to a subscription."""
        if sub.state == LIVE:
            if sub.next >= piece.hi:
                return
            if sub.next > piece.lo:
                inside = [batch for batch in batches if batch.hi > sub.next]
                batches = tuple(batch.slice(sub.next, batch.hi) for batch in inside)
            if sub.peer in self.broker.congested:
                self._pause(line, sub, max(sub.next, piece.lo))
                return
            self._tell(line, sub, piece.hi, batches)
            sub.next = piece.hi
        elif sub.state == READING and sub.join <= piece.lo:
            sub.queue.append((piece.hi, batches))
            sub.queue_bytes += sum(batch.nbytes for batch in batches)
            if sub.queue_bytes > self.config.queue_bytes_max:
                sub.queue, sub.queue_bytes, sub.join = [], 0, piece.hi
                self.broker.counters["gryphon.queue-dropped"] += 1

    def _pause(self, line: Line, sub: Sub, at: int) -> None:
        sub.state, sub.next = PAUSED, at
        self.broker.counters["gryphon.paused"] += 1

    def writable(self, peer: Peer) -> None:
        for stream in self.by_peer.get(peer, ()):
            line = self.broker.lines[stream]
            sub = line.subs[peer]
            if sub.state == PAUSED:
                self._resume(line, sub)
            elif sub.state == READING and not sub.fetching:
                self._read(line, sub)

    def _tell(
        self, line: Line, sub: Sub, hi: int, batches: tuple[Batch, ...], lost: str = ""
    ) -> None:
        """Send the subscriber the events of [told, hi)."""
        if hi > sub.told:
            matched = Matched(line.stream, sub.number, sub.told, hi, batches, lost)
            self.broker._send(sub.peer, matched)
            sub.told, sub.told_ns = hi, self.broker.now_ns

    # ------------------------------------------------------------ reading at the owner

    def _read(self, line: Line, sub: Sub) -> None:
        """Read the next part of [next, join) at the owner, or go live if it is empty."""
        broker = self.broker
        if sub.fetching or sub.peer in broker.congested:
            return
        if sub.next >= sub.join:
            self._go_live(line, sub)
            return
        sub.asked_ns = broker.now_ns
        if not broker.is_owner(line) and not (line.source and line.attached):
            return  # again when it is attached
        if len(self.fetches) >= self.config.fetches_max:
            return  # again at the next tick
        sub.fetching = broker.next_token()
        asked = self.config.name if broker.is_owner(line) else line.source
        self.fetches[sub.fetching] = (line, sub, asked)
        fetch = Fetch(sub.fetching, line.stream, sub.next, sub.join, sub.text)
        if broker.is_owner(line):
            broker._on_fetch(self.config.name, fetch)
        else:
            broker._send(line.source, fetch)

    def fetched(self, peer: Peer, message: Fetched) -> None:
        line, sub, asked = self.fetches.get(message.token, (None, None, ""))
        if line is None or sub is None or asked != peer:
            return  # nobody else may answer
        del self.fetches[message.token]
        sub.fetching = 0
        if any(
            batch.stream_id != line.stream or batch.lo < message.lo or batch.hi > message.hi
            for batch in message.batches
        ):
            self.broker.counters["gryphon.bad-knowledge"] += 1
            return
        if sub.state != READING or message.lo != sub.next or message.hi > sub.join:
            return
        if message.hi > message.lo:
            # `told` may be lower: while the subscription was live, nothing passed below `next`.
            self._tell(line, sub, message.lo, ())
            self._tell(line, sub, message.hi, message.batches, message.lost)
            sub.next = message.hi
            self._read(line, sub)

    def source_lost(self, line: Line) -> None:
        """The broker above is gone: reads that it should pass on are repeated."""
        for sub in line.subs.values():
            if sub.fetching:
                self.fetches.pop(sub.fetching, None)
                sub.fetching = 0
        for gap in line.gaps:
            gap.tries, gap.due_ns = 0, self.broker.now_ns + self.config.gap_ns
        if line.gaps:
            self._set_gap_timer(line)

    # ------------------------------------------------------------ gaps

    def _look_for_gaps(self, line: Line) -> None:
        if line.horizon >= line.top:
            line.gaps.clear()
            return
        now_ns = self.broker.now_ns
        missing, kept = line.known.missing(line.horizon, line.top), []
        for gap in line.gaps:
            left = missing.clip(gap.lo, gap.hi)
            if gap.tries and left.total() < gap.size:  # an answer came
                if gap.tries == 1 and gap.asked_ns:
                    self._measured(now_ns - gap.asked_ns)
                gap.asked_ns = 0
                if left.intersection(gap.asked):  # the rest of the answer is perhaps on its way
                    gap.tries, gap.due_ns = 1, now_ns + self._shortest_ns()
                else:
                    gap.tries, gap.due_ns = 0, now_ns  # request the rest, if there is any
            if left:
                gap.size = left.total()
                kept.append(gap)
        for gap in kept:
            missing.discard(gap.lo, gap.hi)
        kept += [Gap(lo, hi, hi - lo, now_ns + self.config.gap_ns) for lo, hi in missing]
        line.gaps = kept
        self._set_gap_timer(line)

    def _measured(self, took_ns: int) -> None:
        if not self.round_trip_ns:
            self.round_trip_ns, self.variation_ns = took_ns, took_ns // 2
            return
        off_ns = abs(self.round_trip_ns - took_ns)
        self.variation_ns += (off_ns - self.variation_ns) // 4
        self.round_trip_ns += (took_ns - self.round_trip_ns) // 8

    def _shortest_ns(self) -> int:
        """The time after which an answer is late."""
        return max(self.config.repeat_ns, self.round_trip_ns + 4 * self.variation_ns)

    def _set_gap_timer(self, line: Line) -> None:
        due_ns = min((gap.due_ns for gap in line.gaps), default=0)
        if due_ns and (not self.gap_timer_ns or due_ns < self.gap_timer_ns):
            self.gap_timer_ns = due_ns
            self.broker.out.append(SetTimer("gaps", due_ns))

    def gaps_due(self) -> None:
        self.gap_timer_ns = 0
        for line in self.broker.lines.values():
            if line.gaps:
                self._request_gaps(line)
                self._set_gap_timer(line)

    def _request_gaps(self, line: Line) -> None:
        """Request the gaps whose time has come, a limited number of positions at once."""
        now_ns, config = self.broker.now_ns, self.config
        missing = line.known.missing(line.horizon, line.top)
        left, ranges = config.nack_positions_max, list[tuple[int, int]]()
        for gap in line.gaps:
            if gap.due_ns > now_ns:
                continue
            gap.asked = IntervalSet()
            for lo, hi in missing.clip(gap.lo, gap.hi):
                hi = min(hi, lo + left)
                if lo < hi and len(ranges) < NACK_RANGES:
                    ranges.append((lo, hi))
                    gap.asked.add(lo, hi)
                    left -= hi - lo
            if not gap.asked:
                gap.due_ns = now_ns + config.gap_ns  # too much was requested at once: later
                continue
            wait_ns = min(self._shortest_ns() << min(gap.tries, 20), config.repeat_ns_max)
            gap.tries, gap.asked_ns, gap.due_ns = gap.tries + 1, now_ns, now_ns + wait_ns
        self.broker.request(line, ranges)

    def expect(self, line: Line, end: int) -> None:
        """Positions below `end` should be here: request what is missing at once."""
        if not line.horizon or self.broker.is_owner(line):
            return
        self._look_for_gaps(line)
        for gap in line.gaps:
            if gap.lo < end and not gap.tries:
                gap.due_ns = self.broker.now_ns
        self._set_gap_timer(line)
        if not line.gaps and line.acked > 1 and line.source:
            self.broker._send(line.source, Ack(line.stream, line.acked))

    # ------------------------------------------------------------ time

    def tick(self) -> None:
        broker, config = self.broker, self.config
        for line in broker.lines.values():
            if not line.subs:
                continue
            for sub in line.subs.values():
                if sub.state == READING:
                    if broker.now_ns - sub.asked_ns >= config.fetch_ns or not sub.fetching:
                        self.fetches.pop(sub.fetching, None)
                        sub.fetching = 0
                        self._read(line, sub)
                elif sub.state == LIVE and broker.now_ns - sub.told_ns >= config.silence_ns:
                    # B11: a subscriber learns how far the stream has got without events for it.
                    self._tell(line, sub, max(sub.next, line.horizon), ())
                    sub.told_ns = broker.now_ns
            self._repeat_table(line)

    def _repeat_table(self, line: Line) -> None:
        """Send the table again until the broker above applies it (B7)."""
        broker = self.broker
        if not line.source or not line.attached or line.seen >= line.table.version:
            return
        wait_ns = _REPEAT_TABLE * self.config.link_ns << min(line.table.repeats, REPEATS_MAX)
        if broker.now_ns - line.table.sent_ns >= wait_ns:
            line.table.repeats += 1
            whole = line.table.whole(broker.now_ns)
            broker._send(line.source, Filters(line.stream, (whole,)))
