"""Detects and resolves forks: two regions with different events at the same positions of a stream.

A fork can arise if the disk of a stream's owner was replaced by an older copy of itself while no
other region could be reached: the owner then assigns positions that it had assigned before.
Therefore regions compare some of their newest events when they exchange advertisements (the ends of
their copies) for the first time after either of them was started, and exchange nothing of a stream
before that. If two histories differ, the one whose newest event is *older* is kept. The other
region searches for the first position that differs, copies its own events from there on to a
separate stream (`_quarantine.<name>.<position>`, at the same positions), truncates them in the
original stream, and pulls the positions that it then lacks.

The heads of both regions compare, independently of each other, with the tail of the other region
(head and tail of the region's chain). `Compare` lists positions. `Compared` has the *marks* of the
events there: position, time and digest, which compaction does not change. For a void position (its
event is obsolete), it is the mark of the next lower event.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from surecast.columns.batch import COLLECTED, DATA, VOID, Batch, Row
from surecast.columns.retention import KeepAll
from surecast.columns.rules import schema_in
from surecast.core.names import NAME_LEN_MAX
from surecast.core.replicated import Abandon, AppendAt
from surecast.core.streams import Adopt, StreamInfo
from surecast.core.types import LogId, Peer
from surecast.errors import StorageError
from surecast.protocols.sprinkler.messages import Compare, Compared, Doubt, Hide, Mark
from surecast.protocols.sprinkler.sources import Copy, PeerRegion, Regions

__all__ = ["Forks", "Quarantined", "mark_of"]

STREAMS_AT_ONCE: Final = 50  # streams in one Compare: about 10 ms of work for the receiver
SEQS_MAX: Final = 64  # positions of a stream in one Compare
BACK: Final = (1, 2, 6, 24)  # the positions compared first are this far below the end
# How far below a void position an event is looked for: first at the position itself, then in larger
# and larger ranges.
NEAR: Final = (0, 64, 512, 4096, 32768)
STEPS: Final = 16  # positions that one step of a search compares
DONE_MAX: Final = 100  # truncated histories that are listed in the alarm
COPY_BYTES: Final = 256 << 10  # bytes of a history that are copied by one append
PREFIX: Final = "_quarantine"


def mark_of(row: Row, attributes: bytes = b"") -> Mark:
    """The mark of an event: the same in all regions, and after compaction. `attributes` is the
    result of `Attributes.row_bytes`, if the stream has a schema."""
    parts = hashlib.blake2b(digest_size=8)
    for part in (row.key, row.value, row.tag):
        parts.update(b"-" if part is None else b"%d:" % len(part) + part)
    parts.update(attributes)
    return Mark(row.seq, row.time_ns, parts.digest())


@dataclass(slots=True)
class Question:
    """A Compare that a region has not answered yet."""

    token: int
    sent_ns: int
    seqs: dict[LogId, tuple[int, ...]]  # stream → positions


@dataclass(slots=True)
class Meeting:
    """The comparison with one region. It is valid for one start (`life`) of that region's tail."""

    life: bytes  # as in `PeerRegion`
    todo: list[LogId]  # streams not compared yet
    question: Question | None = None

    @property
    def is_over(self) -> bool:
        return not self.todo and self.question is None


@dataclass(slots=True)
class Search:
    """The removal of our history of a stream, from the first position that differs on: search for
    this position, copy our events, truncate them."""

    region: str  # the region whose history is kept
    differs: int  # the lowest position known to differ
    same: int = 0  # the highest position known to be the same
    start: int = 0  # the first position that differs; 0: not found yet
    # The stream that our events [start, end) are copied to. None: copying has not begun.
    copy: StreamInfo | None = None
    end: int = 0


@dataclass(slots=True, frozen=True)
class Quarantined:
    """Events [start, end) of a stream that were truncated and are in the stream `copy` now."""

    stream: str  # this and `copy` are names
    start: int
    end: int
    copy: str
    region: str  # the region whose history was kept


@dataclass(slots=True)
class Forks:
    """The part of `RegionSync` (`regions`) that compares histories and removes one of two."""

    regions: Regions
    meetings: dict[str, Meeting] = field(default_factory=dict)  # by region
    searches: dict[LogId, Search] = field(default_factory=dict)  # streams whose history we remove
    # Stream → other regions that must remove their history → the lowest position known to differ.
    others: dict[LogId, dict[str, int]] = field(default_factory=dict)
    # Streams that our head hides: from which position on, and when Hide was last received.
    hidden: dict[LogId, tuple[int, int]] = field(default_factory=dict)
    done: list[Quarantined] = field(default_factory=list)  # the last removals, for the alarm
    tokens: int = 0  # the token of the last Compare
    doubted_ns: int = -1 << 62  # when Doubt was last sent to other regions

    # ------------------------------------------------------------ what may be shown and pulled

    def limit(self, stream_id: LogId) -> int | None:
        """The position from which on readers are shown nothing, because our events there may be
        removed. None: there is no such limit."""
        search = self.searches.get(stream_id)
        if search is not None:
            return search.same + 1
        hidden = self.hidden.get(stream_id)
        return hidden[0] if hidden is not None else None

    def is_settling(self, stream_id: LogId) -> bool:
        """Whether our history of this stream is being removed, or another stream's history is being
        copied to this stream."""
        return stream_id in self.searches or any(
            search.copy is not None and search.copy.stream_id == stream_id
            for search in self.searches.values()
        )

    def on_hide(self, peer: Peer, message: Hide) -> None:
        """Hide a part of a stream, because our head has found that another history is kept."""
        if peer == self.regions.head and message.stream in self.regions.streams:
            self.hidden[message.stream] = message.seq, self.regions.now_ns
            self.regions.limited(message.stream)

    def expire(self) -> None:
        """Show a stream again if the head no longer sends Hide for it."""
        before_ns = self.regions.now_ns - self.regions.config.dead_ns
        for stream_id in [s for s, (_, at_ns) in self.hidden.items() if at_ns < before_ns]:
            del self.hidden[stream_id]
            self.regions.limited(stream_id)

    def may_pull(self, stream: Copy, peer: PeerRegion) -> bool:
        """Whether the stream may be pulled from a region: the histories were compared and are the
        same."""
        if stream.stream_id in self.searches:
            return False
        if peer.name in self.others.get(stream.stream_id, ()):
            return False
        if not peer.life or stream.end == 1:  # it does not compare, or there is nothing to compare
            return True
        meeting = self.meetings.get(peer.name)
        if meeting is None or meeting.life != peer.life:
            return False
        asked = meeting.question.seqs if meeting.question else {}
        return stream.stream_id not in meeting.todo and stream.stream_id not in asked

    def has_met(self, peer: PeerRegion) -> bool:
        """Whether all streams were compared with the region since its tail's last start."""
        if not peer.life:
            return True
        meeting = self.meetings.get(peer.name)
        return meeting is not None and meeting.life == peer.life and meeting.is_over

    def report(self, count_max: int) -> list[str]:
        """Lines for an operator (alarm stream-forked): which positions of which streams differ, and
        where the removed events are."""
        lines = [
            f"{done.stream}: positions {done.start} to {done.end - 1} are now in {done.copy}, "
            f"because {done.region} has older events there"
            for done in self.done[-count_max:]
        ]
        for stream_id, search in self.searches.items():
            name = self._name(stream_id)
            lines.append(
                f"{name}: {search.region} has older events, which begin at a position from "
                f"{search.same + 1} to {search.differs}"
            )
        for region, name in list(self.regions.doubles)[:count_max]:
            lines.append(
                f"{name}: {region} has another stream of that name; neither of the two is exchanged"
            )
        for stream_id, regions in self.others.items():
            for region, seq in regions.items():
                name = self._name(stream_id)
                lines.append(
                    f"{name}: {region} has later events, which begin at position {seq} or before"
                )
        return lines[:count_max]

    def _name(self, stream_id: LogId) -> str:
        """The name of a stream, or its id. The name is not known if an operator has founded the
        chain again (`Refound`) and the directory was lost by that."""
        stream = self.regions.streams.get(stream_id)
        return stream.info.name if stream is not None else stream_id.hex()

    # ------------------------------------------------------------ comparing (the head asks)

    def look(self) -> None:
        """Compare with all regions, and continue all searches. Called once per period, and after
        advertisements."""
        for peer in self.regions.peers.values():
            if peer.tail and peer.life and self.regions.is_live(peer):
                self._meet(peer)
        for stream_id in list(self.searches):
            self._hide(stream_id)
            self._go_on(stream_id)
        if self.others and self.regions.now_ns - self.doubted_ns >= self.regions.config.dead_ns:
            self.doubted_ns = self.regions.now_ns
            for stream_id, regions in self.others.items():
                self._tell(regions, stream_id)

    def _hide(self, stream_id: LogId) -> None:
        """Make the other replicas of the region hide the history that will be removed, too."""
        limit = self.limit(stream_id)
        assert limit is not None
        for name in self.regions.members:
            if name != self.regions.config.name:
                self.regions.send(name, Hide(stream_id, limit))

    def _tell(self, regions: Iterable[str], stream_id: LogId) -> None:
        """Send Doubt to the heads of these regions. It is needed because they may have compared the
        stream before there was a difference."""
        for region in regions:
            if head := self.regions.peers[region].head:
                self.regions.send(head, Doubt((stream_id,)))

    def doubt(self, stream_id: LogId) -> None:
        """Compare a stream with every region again, before anything more of it is pulled."""
        stream = self.regions.streams.get(stream_id)
        if stream is None or stream_id in self.searches:
            return
        for meeting in self.meetings.values():
            asked = meeting.question.seqs if meeting.question else {}
            if stream_id not in meeting.todo and stream_id not in asked:
                meeting.todo.append(stream_id)
        stream.source = None
        self.look()

    def last(self, stream: Copy) -> tuple[Mark, ...]:
        """Marks of the last event before the first missing position, and of the last event."""
        seqs = [seq - 1 for seq in (stream.whole, stream.end) if seq > 1]
        return tuple(self._marks(stream.stream_id, seqs))

    def contradicts(self, stream_id: LogId, marks: tuple[Mark, ...]) -> bool:
        """Whether another region's marks show a difference from our history."""
        return bool(marks) and self._end(stream_id) > 1 and self._compare(stream_id, marks)[1] > 0

    def reset(self) -> None:
        """Discard all comparisons. Called when this replica becomes the head, or no longer is."""
        self.meetings.clear()
        self.others.clear()
        for search in self.searches.values():
            self._give_up_copy(search)  # start the copy again, because it may not be committed
        if not self.regions.is_head:
            gone, self.searches = self.searches, {}
            for stream_id in gone:
                self.regions.limited(stream_id)

    def _meet(self, peer: PeerRegion) -> None:
        """Compare the next streams with a region, or repeat a Compare that it has not answered."""
        meeting = self.meetings.get(peer.name)
        if meeting is None or meeting.life != peer.life:
            both = [s for s, end in peer.ends.items() if end > 1 and self._end(s) > 1]
            # This question is never sent. With it, the meeting is not over before one Compare was
            # answered, even if there is no stream to compare.
            never_sent = Question(0, -1 << 62, {})
            meeting = self.meetings[peer.name] = Meeting(peer.life, both, never_sent)
        question = meeting.question
        if question is not None:
            if self.regions.now_ns - question.sent_ns < self.regions.config.dead_ns:
                return
            if question.sent_ns >= 0:  # no answer: ask again
                self._ask(meeting, peer, question.seqs)
                return
        elif not meeting.todo:
            return
        chosen, meeting.todo = meeting.todo[:STREAMS_AT_ONCE], meeting.todo[STREAMS_AT_ONCE:]
        seqs = {}
        for stream_id in chosen:
            top = min(self._end(stream_id), peer.ends.get(stream_id, 1))
            stream = self.regions.streams.get(stream_id)
            # Also the positions that RegionSubscribe.last contains. If the peer finds a difference
            # there, this side must find it, too.
            last = [mark.seq for mark in self.last(stream)] if stream is not None else []
            near = [top - back for back in BACK if top > back]
            seqs[stream_id] = tuple(dict.fromkeys([*near, *(seq for seq in last if seq < top)]))
        self._ask(meeting, peer, seqs)

    def _ask(self, meeting: Meeting, peer: PeerRegion, seqs: dict[LogId, tuple[int, ...]]) -> None:
        self.tokens += 1
        meeting.question = Question(self.tokens, self.regions.now_ns, seqs)
        self.regions.send(peer.tail, Compare(self.tokens, seqs))

    def _end(self, stream_id: LogId) -> int:
        """Positions below this end are compared: the committed end, even if holes are below it."""
        if stream_id not in self.regions.streams:
            return 1
        return self.regions.service.committed_end(stream_id)

    # ------------------------------------------------------------ answering (any replica)

    def on_compare(self, node: Peer, message: Compare) -> None:
        """Answer with the marks of the requested events that are committed and readable, and with
        the mark of the newest event."""
        marks: dict[LogId, tuple[Mark, ...]] = {}
        for stream_id, seqs in list(message.seqs.items())[: 2 * STREAMS_AT_ONCE]:
            end = self._end(stream_id)
            asked = [seq for seq in seqs[:SEQS_MAX] if 0 < seq < end]
            # The newest event decides which of two histories is kept.
            marks[stream_id] = tuple(self._marks(stream_id, [*asked, end - 1]))
        self.regions.send(node, Compared(message.token, marks))

    def _marks(self, stream_id: LogId, seqs: Iterable[int]) -> list[Mark]:
        """The marks of the events at these positions; for a void position, of the next lower
        event."""
        marks = {}
        for seq in dict.fromkeys(seqs):
            if (mark := self._mark(stream_id, seq)) is not None:
                marks[mark.seq] = mark
        return sorted(marks.values())

    def time_of(self, stream_id: LogId, seq: int) -> int:
        """The time of the event at a position or, if it is void, of the next lower event; 0 if
        there is none nearby."""
        mark = self._mark(stream_id, seq) if seq > 0 else None
        return mark.time_ns if mark is not None else 0

    def _mark(self, stream_id: LogId, seq: int) -> Mark | None:
        hi = seq + 1
        for back in NEAR:
            lo = max(1, seq - back)
            if lo >= hi:
                break
            for batch in reversed(self._readable(stream_id, lo, hi)):
                if batch.is_synthetic:
                    return None  # of a simulation: the batch has a size, but no events
                if batch.rows:
                    last = int(batch.seqs()[-1])
                    one = batch.slice(last, last + 1)
                    attributes = one.attributes()
                    return mark_of(one.to_rows()[0], attributes.row_bytes(0) if attributes else b"")
            hi = lo
        return None

    def _readable(self, stream_id: LogId, lo: int, hi: int) -> list[Batch]:
        """The batches of [lo, hi) without the positions in holes, which cannot be read."""
        disk, found = self.regions.disk, []
        # The empty range at `hi` stands for a last hole, so that the part before it is read.
        for hole_lo, hole_hi in [*disk.holes(stream_id), (hi, hi)]:
            if lo < min(hole_lo, hi):
                found += disk.read(stream_id, lo, min(hole_lo, hi), 1 << 62)
            lo = max(lo, hole_hi)
        return found

    # ------------------------------------------------------------ removing a history

    def on_compared(self, node: Peer, message: Compared) -> None:
        region = self.regions.region_of.get(node, "")
        meeting = self.meetings.get(region)
        if not self.regions.is_head or meeting is None or meeting.question is None:
            return
        if meeting.question.token != message.token:
            return
        asked, meeting.question = meeting.question.seqs, None
        for stream_id, marks in message.marks.items():
            if stream_id in asked:
                self._judge(region, stream_id, marks)
        self.regions.compared(region)

    def _judge(self, region: str, stream_id: LogId, marks: tuple[Mark, ...]) -> None:
        """Compare another region's marks with our history. If they differ, either begin (or
        continue) to remove our history, or let the other region remove its own."""
        search = self.searches.get(stream_id)
        same, differs, is_older = self._compare(stream_id, marks)
        if search is not None and search.region == region and not search.start:
            if not marks or max(marks).seq < search.differs:
                return  # these marks end below the known difference: not an answer for this search
            before = (search.same, search.differs)
            search.differs = min(search.differs, differs or search.differs)
            search.same = max(search.same, min(same, search.differs - 1))
            # If this answer has not narrowed the range, it contains no events that both sides could
            # compare. Then `start` is the lowest position that may differ.
            if (search.same, search.differs) == before or search.differs - search.same <= 1:
                search.start = search.same + 1
            self.regions.limited(stream_id)  # more of it is known to be the same
            self._go_on(stream_id)
        elif not differs:
            self.others.get(stream_id, {}).pop(region, None)
        elif is_older:  # the other region removes its history
            self.regions.counters["sprinkler.forked-elsewhere"] += 1
            if region not in self.others.setdefault(stream_id, {}):
                self._tell([region], stream_id)
            self.others[stream_id][region] = differs
        elif search is None:
            self.others.get(stream_id, {}).pop(region, None)
            self.regions.counters["sprinkler.forked"] += 1
            self.searches[stream_id] = Search(region, differs, same)
            self._hide(stream_id)
            self.regions.limited(stream_id)
            self._go_on(stream_id)

    def _compare(self, stream_id: LogId, marks: tuple[Mark, ...]) -> tuple[int, int, bool]:
        """Compare another region's marks with our events. Returns the highest position known to be
        the same, the lowest that differs (0: none), and whether our newest event is the older one.

        Times never decrease along a stream. So if an event has a later time than an event of the
        other history at a higher position, it cannot be in both histories. This detects a
        difference even if the other history is void at that position.
        """
        end = self._end(stream_id)
        own = self._marks(stream_id, [*(min(m.seq, end - 1) for m in marks), end - 1])
        same = differs = 0
        for ours in own:
            for theirs in marks:
                at = min(ours.seq, theirs.seq)
                if ours == theirs:
                    same = max(same, at)
                elif ours.seq == theirs.seq or (
                    ours.time_ns != theirs.time_ns
                    and (ours.seq < theirs.seq) == (ours.time_ns > theirs.time_ns)
                ):
                    differs = min(differs or at, at)
        if not differs:
            return same, 0, False
        newest, other = own[-1], max(marks)
        is_older = (newest.time_ns, newest.digest) < (other.time_ns, other.digest)
        return min(same, differs - 1), differs, is_older

    def ends_at(self, peer: PeerRegion, stream_id: LogId, end: int) -> None:
        """Note that a region which had to remove its history of a stream has done so: it advertises
        an end at or below the position where the histories differ."""
        others = self.others.get(stream_id)
        if others and peer.name in others and end <= others[peer.name]:
            del others[peer.name]

    def _go_on(self, stream_id: LogId) -> None:
        """Take the next step of a search: narrow the range of positions, begin to copy, copy, or
        end the search."""
        search = self.searches[stream_id]
        stream = self.regions.streams.get(stream_id)
        peer = self.regions.peers[search.region]
        if stream is None or stream.end <= search.start or stream.end <= search.same + 1:
            del self.searches[stream_id]  # our history is removed already
            self.regions.limited(stream_id)
        elif not search.start:
            self._narrow(stream_id, search, peer)
        elif search.copy is None:
            self._begin_copy(stream, search)
        else:
            self._copy(stream, search)

    def _narrow(self, stream_id: LogId, search: Search, peer: PeerRegion) -> None:
        """Compare positions between the last one known to be the same and the first one known to
        differ."""
        meeting = self.meetings.get(search.region)
        if meeting is None or not peer.tail or meeting.question is not None:
            return  # the next call of `look` sends the question
        if search.differs - search.same <= 1:
            search.start = search.same + 1
            self._go_on(stream_id)
            return
        width = search.differs - search.same
        # About equally spaced; in the next step, the range between two of them is searched.
        seqs = {search.same + 1 + (width - 1) * i // STEPS for i in range(STEPS)}
        self._ask(meeting, peer, {stream_id: tuple(sorted(s for s in seqs if s > search.same))})

    def _begin_copy(self, stream: Copy, search: Search) -> None:
        """Create the stream to which our events are copied."""
        regions = self.regions
        search.end = stream.end
        # Leave room for what is added to the name below.
        name = f"{PREFIX}.{stream.info.name}"[: NAME_LEN_MAX - 48].rstrip(".")
        name, number = f"{name}.{search.start}", 1
        if not regions.owns(stream):  # several regions may have to remove their histories
            name = f"{name}.{regions.config.region}"
        while regions.service.named(name) is not None:
            number += 1
            name = f"{name.partition('~')[0]}~{number}"
        info = StreamInfo(regions.rng.randbytes(16), name, regions.config.region, KeepAll())
        search.copy = msgspec.structs.replace(
            info, delivery=stream.info.delivery, schema=stream.state.info.schema
        )
        regions.command(Adopt(search.copy, made=True))

    def _give_up_copy(self, search: Search) -> None:
        """Let the search copy our events again, to another stream."""
        copy, search.copy = search.copy, None
        if copy is not None:
            self.regions.limited(copy.stream_id)

    def _copy(self, stream: Copy, search: Search) -> None:
        """Copy the next part of our events. When all are committed in the copy, abandon them in the
        original stream."""
        regions, copy = self.regions, search.copy
        assert copy is not None
        if copy.stream_id not in regions.streams:
            taken = regions.service.named(copy.name)
            if taken is not None and taken.stream_id != copy.stream_id:
                search.copy = None  # the name is taken by another copy: use another name
                self._begin_copy(stream, search)
            return  # when the stream exists, `grew` continues
        at = regions.service.end_of(copy.stream_id)
        if at >= search.end:
            if regions.service.committed_end(copy.stream_id) >= search.end:
                regions.command(Abandon(stream.stream_id, search.start))
            return
        batches: list[Batch] = []
        if at < search.start:  # so that events have the same positions in the copy
            batches.append(Batch.void(copy.stream_id, 1, search.start, COLLECTED))
            at = search.start
        try:
            raw = regions.disk.read(stream.stream_id, at, search.end, COPY_BYTES)
        except StorageError:  # positions that cannot be read become void in the copy
            hi = next((hi for lo, hi in regions.disk.holes(stream.stream_id) if lo <= at < hi), at)
            raw = [Batch.void(stream.stream_id, at, min(hi, search.end), COLLECTED)]
        for batch in raw:
            # COLLECT and CONFIG events are copied as DATA, so that they have no effect in the copy.
            # But changes of the schema do: the events after them have more columns.
            kind = batch.kind if batch.kind == VOID or schema_in(batch) else DATA
            batches.append(batch.relabelled(copy.stream_id, kind))
        regions.command(AppendAt(copy.stream_id, tuple(batches)))

    def grew(self, log: LogId) -> None:
        """If `log` is a stream that events are copied to, continue: it was created, or more of it
        is committed."""
        for stream_id, search in list(self.searches.items()):
            if search.copy is not None and search.copy.stream_id == log:
                self._go_on(stream_id)

    def truncated(self, stream: Copy, end: int) -> None:
        """End the search for a stream, which was truncated at `end`."""
        search = self.searches.get(stream.stream_id)
        if search is None or search.copy is None or end > search.start:
            return
        del self.searches[stream.stream_id]
        self.regions.limited(stream.stream_id)
        self.regions.limited(search.copy.stream_id)
        copy = search.copy.name
        moved = Quarantined(stream.info.name, search.start, search.end, copy, search.region)
        self.done.append(moved)
        del self.done[:-DONE_MAX]
        self.doubt(stream.stream_id)
        # Other regions may have pulled the removed events from this one.
        self._tell(self.regions.peers, stream.stream_id)
