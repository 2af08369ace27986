"""A region's streams at one replica: the layer over the chain that all other layers use.

It keeps the directory of streams, accepts publishes to streams that the region owns, feeds
committed batches to retention (the index of obsolete events), requests the compaction of logs, and
shows committed events to readers. The head of the chain accepts publishes; every replica serves
readers. The tasks of a
stream's *delivery* (transfer to other regions, meshes of clients) belong to layers above;
`core.streams` is the interface to them.

This layer contributes to these guarantees (sprinkler/checks.py). A position is *void* if its event
is obsolete: superseded, expired or collected.

G1 only published events are delivered, and void positions of published events.
G3 the order in which a publisher publishes is the order of positions.
G4 every event is delivered, or its position is void and the event that made it void is delivered.
G5 no event makes a later position void.
G6 every position that a replica has is either live or void.
G7 the newest event is never void.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from random import Random
from typing import Any, ClassVar

import msgspec

from surecast.columns import retention
from surecast.columns.batch import COLLECT, COLLECTED, CONFIG, DATA, EXPIRED, Batch
from surecast.columns.column import TYPED
from surecast.columns.compaction import encode_voids
from surecast.columns.intervals import IntervalSet
from surecast.columns.retention import (
    BeforeTime,
    Collect,
    KeepAll,
    KeepFor,
    LatestPerKey,
    RetentionIndex,
    TagIs,
)
from surecast.columns.rules import schema_after, schema_in
from surecast.columns.schema import extends, read_schema
from surecast.core.disk import read_through
from surecast.core.endpoint import Drain, filter_number
from surecast.core.machine import HandlerMachine
from surecast.core.names import is_name
from surecast.core.replicated import (
    Abandon,
    AppendAt,
    Appended,
    AppendOwn,
    AskPublishers,
    Committed,
    CompactLog,
    Counted,
    Mended,
    Overtaken,
    PublishersAre,
    Recovered,
    Refused,
    Rewritten,
    RoleChanged,
    RolledBack,
    StoreFull,
    Submit,
    Submitted,
    TakePublishers,
    Truncated,
)
from surecast.core.streams import (
    CURSORS,
    DEFAULT_DELIVERY,
    DIRECTORY,
    Adopt,
    Answer,
    Attend,
    Await,
    Create,
    Describe,
    ForceNewStream,
    Forfeit,
    Forget,
    Handed,
    Limit,
    Load,
    LogMoved,
    PieceLoaded,
    Refuse,
    Resume,
    Settle,
    StreamAdded,
    StreamDeleted,
    StreamInfo,
    StreamsMoved,
    StreamSpec,
    Suspend,
    TakenBack,
    spec_bytes,
)
from surecast.core.types import (
    SECOND,
    TYPED_BODIES,
    AtEndOfPass,
    ColdBelow,
    Congested,
    Disk,
    Emit,
    EndOfPass,
    Loaded,
    LogId,
    PassDown,
    Peer,
    PeerDown,
    PeerUp,
    SetTimer,
    Start,
    TimerFired,
    Writable,
)
from surecast.errors import PeerError, StorageError, UsageError
from surecast.parts.filtered_serving import BatchFilter, Examiner, FilteredServing, joined
from surecast.parts.serving import SERVE, MakeRange, Ranges, Serving
from surecast.protocols.streams.cold_reads import ColdReads
from surecast.protocols.streams.compaction_plan import Pieces
from surecast.protocols.streams.config import StreamsConfig
from surecast.protocols.streams.directory import Directory, info_batch
from surecast.protocols.streams.messages import (
    CreateStream,
    Events,
    FilterRefused,
    Introduce,
    PubAck,
    Publish,
    PubNack,
    RangeEvents,
    RangeLost,
    ReadRange,
    StreamOpened,
    Subscribe,
    Unsubscribe,
)
from surecast.protocols.streams.stream import Stream

__all__ = ["StreamService"]


KEPT_FOR = {CURSORS: "cursors"}  # log that is not a stream → the layer above that uses it
SPEC_BYTES_MAX = 4096  # most bytes of a stream's schema and options
# Most reads of the disk whose result is kept until the end of the pass (the inputs that the driver
# processes together). Each result has at most `serve_bytes_max` bytes.
PIECES_READ_MAX = 64
FORFEITS_MAX = 1000  # most ranges of one stream that can be declared lost
# Most positions that are not indexed, in which a new head looks for changes of the schema.
UNINDEXED_MAX = 1 << 20
WHY_MAX = 200  # characters of a reason sent to readers
FULL_NS = 10 * SECOND  # after StoreFull, a disk counts as full for this time


def _is_readable(schema: str) -> bool:
    """Whether this is the canonical text of a schema, or empty: there is none."""
    try:
        return not schema or read_schema(schema).text == schema
    except UsageError:
        return False


def _mismatch(created: StreamInfo, info: StreamInfo, spec: StreamSpec) -> str:
    """The refusal to open an existing stream with `spec`; "" if they fit. A field of `spec` that is
    None or empty fits everything, and so does every version of the schema, from that with which
    the stream was created to the current one, in `info`."""
    fits = (
        spec.retention in (None, info.retention)
        and spec.delivery in ("", info.delivery)
        and (
            spec.schema in ("", info.schema)
            or (extends(info.schema, spec.schema) and extends(spec.schema, created.schema))
        )
        and spec.options in ((), info.options)
    )
    return "" if fits else "config-mismatch"


class StreamService(HandlerMachine):
    """The stream service. The chain below handles positions, disks and replication."""

    uses = ("replicated",)
    provides = ("streams",)
    handlers: ClassVar[dict[type, str]] = {
        CreateStream: "_on_create_stream",
        StreamOpened: "_on_stream_opened",
        Publish: "_on_publish",
        PubAck: "_on_pub_ack",
        PubNack: "_on_pub_nack",
        Subscribe: "_on_subscribe",
        Unsubscribe: "_on_unsubscribe",
        ReadRange: "_on_read_range",
    }
    inputs: ClassVar[dict[type, str]] = {
        Start: "_on_start",
        TimerFired: "_on_timer",
        EndOfPass: "_on_end_of_pass",
        PeerUp: "_on_peer_up",
        PeerDown: "_on_peer_down",
        Congested: "_on_congested",
        Writable: "_on_writable",
        ColdBelow: "_on_cold_below",
        Loaded: "_on_loaded",
        Load: "_on_load",
        Drain: "_on_drain",
        ForceNewStream: "_on_force_new_stream",
        Adopt: "_on_adopt",
        Attend: "_on_attend",
        Create: "_on_create",
        Answer: "_on_answer",
        Await: "_on_await",
        Handed: "_on_question",
        Describe: "_on_describe",
        Forget: "_on_forget",
        Refuse: "_on_refuse",
        Settle: "_on_settle",
        Suspend: "_on_suspend",
        Resume: "_on_resume",
        Limit: "_on_limit",
        Forfeit: "_on_forfeit",
        AppendAt: "_on_append_at",
        AppendOwn: "_pass_down",
        AskPublishers: "_pass_down",
        TakePublishers: "_pass_down",
        Abandon: "_pass_down",
        Recovered: "_pass_down",
        RolledBack: "_pass_down",
        Overtaken: "_pass_down",
    }
    from_below: ClassVar[dict[type, str]] = {
        Appended: "_on_appended",
        Committed: "_on_committed",
        Truncated: "_on_truncated",
        Rewritten: "_on_rewritten",
        Counted: "_pass_up",
        Mended: "_on_mended",
        StoreFull: "_on_store_full",
        RoleChanged: "_on_role_changed",
        PublishersAre: "_on_publishers_are",
        Submitted: "_on_submitted",
        Refused: "_on_refused",
    }

    def __init__(
        self,
        config: StreamsConfig,
        disk: Disk,
        rng: Random,
        counters: Counter[str] | None = None,
        *,
        deliveries: Mapping[str, str],
        remote: frozenset[str] = frozenset(),
    ) -> None:
        """`deliveries`: name of a delivery → the layer that is its server side. `remote`: the
        deliveries that keep events only in the region that owns a stream."""
        super().__init__(counters)
        self.config = config
        self.disk = disk
        self.rng = rng
        self.deliveries = deliveries
        self.remote = remote
        self.directory = Directory()
        self.directory_committed = 1  # the end of what `directory` contains
        self.directory_at_start = disk.end(DIRECTORY)  # the end of that log at the start
        self.streams: dict[LogId, Stream] = {}
        # Logs kept for layers above: the latest entry of each key stays; they have no readers.
        self.kept = {log: self._kept(log) for log in KEPT_FOR}
        self.ends: dict[LogId, int] = {}  # of all logs, as the chain reports them (Appended)
        self.committed: dict[LogId, int] = {}  # the same for committed ends (Committed)
        self.limits: dict[LogId, int] = {}  # the end that a delivery allows to be shown (Limit)
        # Positions that were declared lost (Forfeit) and are in a hole now, and why they are lost.
        self.forfeited: dict[LogId, tuple[IntervalSet, str]] = {}
        self.epoch = 0  # this and the next three: as in RoleChanged
        self.members: tuple[Peer, ...] = ()
        self.is_head = self.is_tail = False
        self.is_clean = True  # false: the chain lost its logs, and layers above recover them
        self.draining = False  # about to stop: no more publishes
        self.full_until_ns = -1 << 62  # until then the disk counts as full
        # Streams that are requested and do not exist yet: name → peers that wait for it → the spec
        # that each has requested.
        self.asked: dict[str, dict[Peer, StreamSpec]] = {}
        # Deleted streams for which StreamDeleted is not emitted yet.
        self.untold: dict[LogId, StreamInfo] = {}
        self.making: dict[str, bool] = {}  # the names in `asked` that are created here
        self.made_now: dict[LogId, bool] = {}  # streams created by this replica since its start
        self.connected: dict[Peer, None] = {}  # other replicas with which we have a session
        # Protocols that each other replica listed in its last session.
        self.speaks: dict[Peer, tuple[str, ...]] = {}
        # Connected peers, also clients, that cannot read typed bodies (`core.types.TYPED_BODIES`).
        self.untyped: dict[Peer, None] = {}
        # Acknowledgements to be sent at the end of the pass:
        # (client, stream, publisher) → (pub_no, seq) of each batch.
        self.unsent_acks: dict[tuple[Peer, LogId, bytes], list[tuple[int, int]]] = {}
        self.attending: dict[str, str] = {}  # layer that gets StreamsMoved (Attend) → its delivery
        self.moved: dict[LogId, str] = {}  # stream whose shown end has changed → its delivery
        # (stream, lo, hi) → batches read for readers in this pass. Several layers read the same.
        self.pieces_read: dict[tuple[LogId, int, int], list[Batch]] = {}
        # Log → its first position that cannot be read, for logs with holes.
        self.hole_at = {log: holes[0][0] for log in disk.logs() if (holes := disk.holes(log))}
        # (log, lo, hi) of entries of the region's own logs that no node has any more, for an alarm.
        self.entries_lost: list[tuple[LogId, int, int]] = []
        self.cold = ColdReads(config.cold_reads_max, config.cold_bytes_max, config.serve_bytes_max)
        self.serving = Serving(self, Events, config.serves_per_step, self.end_event, self._load)
        self.filtered = FilteredServing(
            self.serving, Events, FilterRefused, self._bind, filter_number, self.counters,
            cost_max=config.filter_cost_max, chars_max=config.filter_chars_max,
        )  # fmt: skip
        self.telling = False  # whether the timer "tell" is set
        self.ranges = Ranges(
            self,
            RangeEvents,
            config.serves_per_step,
            lambda peer: peer in self.serving.congested,
            make_lost=RangeLost,
            end_event=self.end_event,
            load=self._load,
        )

    def _kept(self, log: LogId) -> Stream:
        """The state of a log that is kept for a layer above, with nothing committed yet."""
        info = StreamInfo(log, "", self.config.region, LatestPerKey())
        return Stream(info, RetentionIndex(info.retention), self._pieces())

    @property
    def head(self) -> Peer:
        return self.members[0] if self.members else ""

    def _owns(self, stream: Stream) -> bool:
        return stream.info.owner == self.config.region

    def is_remote(self, stream: Stream) -> bool:
        """Whether only another region has the events of the stream."""
        return stream.info.delivery in self.remote and not self._owns(stream)

    # ------------------------------------------------------------ what layers above may read
    # These methods implement `core.streams.Streams`, which explains them.

    def named(self, name: str) -> StreamInfo | None:
        info = self.directory.by_name.get(name)
        stream = None if info is None else self.streams.get(info.stream_id)
        return info if stream is None else self.current(stream)

    def current(self, stream: Stream) -> StreamInfo:
        """The stream's entry of the directory, with the schema after all events that are shown. If
        many of them are not indexed yet, the schema may be an earlier one."""
        if stream.info.schema and stream.committed - stream.index.end < self.config.feed_rows:
            with suppress(StorageError):  # the next `feed` in a step of this layer raises it again
                self.feed(stream)
        return stream.info

    def may_read(self, peer: Peer, stream: LogId) -> bool:
        if peer not in self.untyped:
            return True
        state = self.streams.get(stream)
        return state is None or not state.info.schema

    @property
    def has_read_directory(self) -> bool:
        # The log may have been truncated since the start.
        wanted = min(self.directory_at_start, self.disk.end(DIRECTORY))
        return self.directory_committed >= wanted or DIRECTORY in self.hole_at

    def is_listed(self, stream: LogId) -> bool:
        return stream in self.directory.by_id

    def is_deleted(self, stream: LogId) -> bool:
        return stream in self.directory.deleted

    def end_event(self, stream: LogId) -> list[Batch]:
        state = self.streams.get(stream)
        if state is None or not self.is_ended(state):
            return []
        end = self.visible_end(state)
        return self.readable(stream, end - 1, end) if state.committed == end else []

    def committed_end(self, log: LogId) -> int:
        return self.committed.get(log, 1)

    def end_of(self, log: LogId) -> int:
        return self.ends.get(log, 1)

    def shown_end(self, stream: LogId) -> int:
        state = self.streams.get(stream)
        return state.committed if state is not None else 0

    def readable_end(self, stream: LogId) -> int:
        state = self.streams.get(stream)
        if state is None:
            return 0
        if stream not in self.forfeited or state.quarantined or state.committed != state.hole:
            return state.committed
        holes = IntervalSet(self.disk.holes(stream)).difference(self.forfeited[stream][0])
        end = self._allowed_end(state)
        return min(end, holes.lowest() or end)

    def locate(self, stream: LogId, time_ns: int) -> tuple[int, str]:
        state = self.streams[stream]
        if self.is_ended(state):
            return 0, "stream-deleted"
        end = self.visible_end(state)
        if time_ns < 0:  # the end for readers of ranges, which may be after lost positions
            return max(end, self.readable_end(stream)), ""
        self.feed(state)
        if not state.quarantined and state.index.end < end:
            # Retention has not indexed the whole log yet (it is long, and the server was just
            # started), so not all times are known.
            return 0, "recovering"
        try:
            seq = state.first_at(time_ns, self.disk)
        except StorageError as problem:
            if not state.quarantined:
                self.damaged(state, problem, state.committed)
            return 0, "quarantined"
        # In a damaged stream, a time has no known position if it is later than the readable part.
        readable = min(state.committed, state.index.end)
        if state.quarantined and time_ns > 0 and seq >= readable:
            return 0, "quarantined"
        return seq, ""

    def lost_at(self, stream: LogId, seq: int) -> tuple[int, str] | None:
        if stream not in self.forfeited:
            return None
        forfeited, why = self.forfeited[stream]
        for lo, hi in self._in_holes(stream, forfeited):
            if lo <= seq < hi:
                return hi, why
        return None

    def _in_holes(self, stream: LogId, positions: IntervalSet) -> IntervalSet:
        return IntervalSet(self.disk.holes(stream)).intersection(positions)

    def readable(self, stream: LogId, lo: int, hi: int = 0) -> list[Batch]:
        state = self.streams[stream]
        config, recent = self.config, lo >= state.recent
        if not recent:
            self.feed(state)
        end = state.committed if lo < state.committed else self.readable_end(stream)
        hi = min(hi or end, end)
        if recent and (batches := self.pieces_read.get((stream, lo, hi))):
            return batches
        try:
            batches = state.serve(
                self.disk, lo, hi, config.serve_bytes_max, config.coalesce_rows_max
            )
        except StorageError as problem:
            self.damaged(state, problem, min(lo, state.committed))
            return []
        if recent and len(self.pieces_read) < PIECES_READ_MAX:
            self.pieces_read[stream, lo, hi] = batches
        return batches

    def at_hand(self, stream: LogId, lo: int, hi: int = 0) -> list[Batch] | None:
        cold = self.cold
        if not cold.below or not cold.is_cold(stream, lo):
            return self.readable(stream, lo, hi)
        state = self.streams[stream]
        if 1 < state.recent <= lo < state.committed:
            # Just published: if it has left the memory, it is still in the system's cache.
            return self.readable(stream, lo, hi)
        self.feed(state)
        end = state.committed if lo < state.committed else self.readable_end(stream)
        hi = min(hi or end, end)
        if lo >= hi:
            return []
        raw = cold.find(stream, lo, hi)
        return None if raw is None else state.shown(raw, lo, self.config.coalesce_rows_max)

    def voids(self, stream: LogId, lo: int, hi: int, count_max: int) -> tuple[list[Batch], int]:
        state = self.streams[stream]
        self.feed(state)
        hi = min(hi, state.index.end)
        sets = {reason: voids.clip(lo, hi) for reason, voids in state.index.voids.items()}
        rules = state.rules.clip(lo, hi)  # readers get the positions of rules as void, too
        for voids in sets.values():
            rules.difference_update(voids)
        ranges = [
            (first, last, reason)
            for reason, runs in (*sets.items(), (COLLECTED, rules))
            for first, last in islice(runs, count_max + 1)
        ]
        ranges.sort()
        if len(ranges) > count_max:  # the list is complete below the first range that is left out
            hi = ranges[count_max][0]
        return [Batch.void(stream, *run) for run in ranges[:count_max]], max(lo, hi)

    # ------------------------------------------------------------ between the layers

    def _pass_down(self, command: Any) -> None:
        self.out.append(PassDown(command))

    def _on_append_at(self, command: AppendAt) -> None:
        if stream := self.streams.get(command.log):
            # There may be changes of the schema among these batches, and the last may be the End.
            stream.looked_epoch = stream.schema_epoch = -1
            last = command.batches[-1]
            if last.kind == CONFIG and retention.is_end(last):
                stream.feed_soon = True
        self._pass_down(command)

    def _pass_up(self, event: Any) -> None:
        self.out.append(Emit(event))

    def _tell(self, info: StreamInfo, event: Any) -> None:
        """Emit an event to the server side of a stream's delivery, if this server has it."""
        if layer := self.deliveries.get(info.delivery):
            self.out.append(Emit(event, f"{layer}.*"))

    def _on_publishers_are(self, event: PublishersAre) -> None:
        if stream := self.streams.get(event.log):
            self._tell(stream.info, event)

    # ------------------------------------------------------------ time

    def _on_start(self, _inp: Start) -> None:
        config = self.config
        for key, period_ns in (
            ("settle", config.settle_ns),
            ("compact", config.compact_ns),
            ("expire", config.expire_ns),
        ):
            # At a random time of the period, so that replicas do not all work at the same time.
            self.out.append(SetTimer(key, self.now_ns + self.rng.randrange(1, period_ns + 1)))

    def _on_end_of_pass(self, inp: EndOfPass) -> None:
        if inp.key == SERVE:
            self._serve()
        else:  # "feed"; see `_advance`
            for stream in self.streams.values():
                if stream.committed < self.visible_end(stream):
                    self._advance(stream)

    def _on_timer(self, inp: TimerFired) -> None:
        config = self.config
        if inp.key == "settle":
            self.out.append(SetTimer("settle", self.now_ns + config.settle_ns))
            for stream in self.streams.values():
                self.feed(stream)
                stream.recent = stream.committed
            self.cold.drop_unused()
            if self.untold:
                self._tell_deleted()
        elif inp.key == "compact":
            self.out.append(SetTimer("compact", self.now_ns + config.compact_ns))
            for stream in (*self.streams.values(), *self.kept.values()):
                stream.pieces.tidy = True
                self._maybe_compact(stream)
        elif inp.key == "expire":
            self.out.append(SetTimer("expire", self.now_ns + config.expire_ns))
            if self.is_head:
                for stream in self.streams.values():
                    self._expire(stream)
        elif inp.key == "tell":
            self.telling = False
            self.filtered.tell(self.out)
            self._tell_later()

    # ------------------------------------------------------------ events of the chain

    def _on_role_changed(self, event: RoleChanged) -> None:
        self.epoch, self.members = event.epoch, event.members
        self.is_head, self.is_tail, self.is_clean = event.head, event.tail, event.clean
        if self.is_head and self.is_tail and len(self.config.replicas) == 1:
            self._fill_own_logs()
        if self.is_head:
            for replica in self.config.replicas:
                if replica != self.config.name and replica not in self.speaks:
                    self._send(replica, Introduce())  # opens a session; PeerUp lists its protocols
        else:
            for name in self.asked:
                self._answer_creators(name, None, "not-head")
            self.asked.clear()
            self.making.clear()
        self._pass_up(event)

    def _on_appended(self, event: Appended) -> None:
        self.ends[event.log] = event.end
        if stream := self.streams.get(event.log):
            stream.end = event.end

    def _on_truncated(self, event: Truncated) -> None:
        log = event.log
        self._recall_forfeits(log, event.end)
        if log in self.hole_at and event.end <= self.hole_at[log]:  # the hole was truncated
            del self.hole_at[log]
            if stream := self.streams.get(log):
                stream.hole = 0
        self._on_appended(Appended(log, event.end))
        if stream := self.streams.get(log):
            # The End event, or a change of the schema, may have been truncated.
            stream.looked_epoch = stream.schema_epoch = -1
        self.pieces_read.clear()
        if self.committed.get(log, 1) <= event.end:
            return
        # Committed positions were given up: build all state again from the truncated log.
        self.committed[log] = event.end
        if log == DIRECTORY:
            self.directory_committed = event.end
            self.directory = Directory()
            for stream_id in self.streams:
                self.serving.remove_stream(stream_id)
                self.filtered.remove_stream(stream_id)
            self.streams.clear()
            self.forfeited.clear()
            for stream_id in list(self.ranges.waiting):
                self.ranges.taken_back(stream_id, self.out)
            self._pass_up(TakenBack(log, event.end))
        elif log in self.kept:
            self.kept[log] = self._kept(log)
            self.out.append(Emit(TakenBack(log, event.end), KEPT_FOR[log]))
        elif stream := self.streams.get(log):
            stream.hole = self.hole_at.get(log, 0)
            stream.index = RetentionIndex(stream.info.retention)
            stream.info = stream.created
            self.directory.undelete(stream.info)
            stream.rules = IntervalSet()
            stream.pieces = self._pieces()
            stream.committed = stream.recent = event.end
            self.serving.remove_stream(log)
            self.filtered.remove_stream(log)
            self.cold.truncated(log, event.end)
            self.ranges.taken_back(log, self.out)
            self._tell(stream.info, TakenBack(log, event.end))

    def _on_mended(self, event: Mended) -> None:
        self._look_for_holes(event.log)
        self._on_committed(Committed(event.log, self.committed.get(event.log, 1)))

    def _look_for_holes(self, log: LogId) -> None:
        """Update what is known of a log's holes, because some were filled."""
        self._recall_forfeits(log)
        holes = self.disk.holes(log)
        if holes:
            self.hole_at[log] = holes[0][0]
        else:
            self.hole_at.pop(log, None)
        if stream := self.streams.get(log):
            stream.hole = self.hole_at.get(log, 0)

    def _fill_own_logs(self) -> None:
        """Fill holes in the region's own logs (directory and cursors) with void ranges, because no
        other node has these entries. Streams that are missing in the directory are added again if
        other regions have them; cursors (named subscriptions) start from the beginning."""
        for log in (DIRECTORY, *self.kept):
            for lo, hi in self.disk.holes(log):
                self.counters["streams.entries-lost"] += hi - lo
                self.entries_lost.append((log, lo, hi))
                void = Batch.void(log, lo, hi, COLLECTED)
                self.out.append(PassDown(AppendAt(log, (void,))))

    def _on_committed(self, event: Committed) -> None:
        log = event.log
        self.committed[log] = event.end
        if stream := self.streams.get(log):
            self._advance(stream)
            return
        end = min(event.end, self.hole_at.get(log, event.end))
        if log == DIRECTORY:
            self._read_directory(end)
        elif log in self.kept:
            kept = self.kept[log]
            kept.committed, kept.end = end, self.end_of(log)
            self.out.append(Emit(LogMoved(log, end), KEPT_FOR[log]))

    def visible_end(self, stream: Stream) -> int:
        """R5: the end of what readers and retention may see. It is the committed end, or the first
        position that cannot be read, or the limit of the delivery, whichever is lowest."""
        end = self._allowed_end(stream)
        return min(end, stream.hole) if stream.hole else end

    def _allowed_end(self, stream: Stream) -> int:
        """The committed end, or the limit of the stream's delivery if that is lower."""
        end = self.committed.get(stream.stream_id, 1)
        if self.limits and stream.stream_id in self.limits:
            end = min(end, self.limits[stream.stream_id])
        return end

    def _advance(self, stream: Stream) -> None:
        """Show readers more of the stream, after more of it was committed or indexed."""
        config, shown = self.config, stream.committed
        end = self.visible_end(stream)
        if not stream.quarantined:
            stream.committed = end
            if stream.feed_soon and end >= stream.end:
                stream.feed_soon = False
                self.feed(stream, config.feed_bytes)
            elif end - stream.index.end >= config.feed_rows:
                self.feed(stream, config.feed_bytes)
            if end - stream.index.end >= config.feed_rows:
                # Much of the log is not indexed yet, for example after a start. It is indexed in
                # several passes, so that other work is not delayed. Until then readers are shown
                # only the indexed part, but never less than they were shown before.
                stream.committed = max(stream.index.end, shown)
                self.out.append(AtEndOfPass("feed"))
        if self.untold:
            self._tell_deleted()
        stream_id, serving = stream.info.stream_id, self.serving
        if self.attending:
            self.moved[stream_id] = stream.info.delivery
            serving.soon(self.out)
        if stream_id in serving.followers:
            serving.news[stream_id] = None
            serving.soon(self.out)
        if stream_id in self.filtered.followers:
            self.filtered.news[stream_id] = None
            serving.soon(self.out)

    def feed(self, stream: Stream, budget_bytes: int = 1 << 62) -> None:
        """Feed all committed batches to retention (or about `budget_bytes`). This is called before
        anything that depends on which positions are void."""
        if stream.quarantined or stream.index.end >= stream.committed:
            return
        try:
            stream.feed(self.disk, self.config.serve_bytes_max, budget_bytes)
        except (PeerError, ValueError) as problem:
            self._quarantine(stream, str(problem), stream.index.end)
        except StorageError as problem:
            self.damaged(stream, problem, stream.index.end)
        if stream.index.ended and not self.is_deleted(stream.stream_id):
            self.directory.delete(stream.info)
            self.untold[stream.stream_id] = stream.info

    def _tell_deleted(self) -> None:
        """Emit StreamDeleted. This is not done in `feed`, because layers above call `feed` in their
        own steps, and what this layer emits during the step of another layer would be lost."""
        untold, self.untold = self.untold, {}
        for info in untold.values():
            if self.is_deleted(info.stream_id):
                self._pass_up(StreamDeleted(info))

    def is_ended(self, stream: Stream) -> bool:
        """Whether the End event is committed, even if retention has not indexed it yet."""
        end = self.visible_end(stream)
        if stream.index.ended or stream.quarantined or end <= max(1, stream.index.end):
            return stream.index.ended > 0
        try:
            last = self.disk.read(stream.stream_id, end - 1, end, 1)
        except StorageError:
            return False  # the error is reported when a reader reads the stream
        return bool(last) and retention.is_end(last[-1])

    def _refusal_behind_end(self, stream: Stream) -> str:
        """Why no position may be assigned: the last event is the End event, or it is not known
        whether it is. "" if positions may be assigned.

        A head reads the last event from its log once per epoch, because its predecessor may have
        appended an End event.
        """
        if stream.index.ended:
            return "deleted"
        if stream.looked_epoch != self.epoch:
            end = stream.end
            try:
                last = self.disk.read(stream.stream_id, end - 1, end, 1) if end > 1 else []
            except StorageError as problem:
                self.damaged(stream, problem, min(end - 1, stream.committed))
                return "quarantined"
            if end > 1 and not last:
                return "busy"  # the disk has failed to write it so far
            stream.ending = bool(last) and retention.is_end(last[-1])
            stream.looked_epoch = self.epoch
        return "deleted" if stream.ending else ""

    def _knows_schema(self, stream: Stream) -> bool:
        """Whether the head knows the schema after all events that are appended (`Stream.schema`).

        It looks for it once per epoch, because its predecessor may have appended a change that is
        not committed yet. After a start, when much of the log is not indexed, it waits until
        `_advance` has indexed it.
        """
        if stream.schema_epoch == self.epoch:
            return True
        at, end, schema = stream.index.end, stream.end, stream.info.schema
        if end - at > UNINDEXED_MAX:
            return False
        nbytes_max = self.config.serve_bytes_max
        try:
            for batch in read_through(self.disk, stream.stream_id, at, end, nbytes_max):
                schema, at = schema_after(schema, batch), batch.hi
        except StorageError as problem:
            self.damaged(stream, problem, min(at, stream.committed))
            return False
        if at < end:
            return False  # the disk has failed to write the rest so far
        stream.take_schema(schema, self.epoch)
        return True

    def damaged(self, stream: Stream, problem: StorageError, end: int) -> None:
        """Handle a failed read. If the chain has other members, which may have the whole stream,
        raise the error: this replica stops, and the others continue. Else quarantine the stream."""
        if len(self.members) > 1:
            raise problem
        self._quarantine(stream, str(problem), end)

    def _quarantine(self, stream: Stream, why: str, end: int) -> None:
        """From now on show the stream only up to `end`, because it cannot be read or indexed from
        there on. This raises an alarm; other streams are not affected."""
        self.counters["streams.quarantined"] += 1
        stream.quarantined = why
        stream.committed = end

    def _pieces(self) -> Pieces:
        return Pieces(self.config.piece_rows_max, self.config.piece_bytes_max)

    # ------------------------------------------------------------ commands of the delivery

    def _on_suspend(self, inp: Suspend) -> None:
        if stream := self.streams.get(inp.stream):
            stream.suspended = inp.why

    def _on_resume(self, inp: Resume) -> None:
        if stream := self.streams.get(inp.stream):
            stream.suspended = ""

    def _on_question(self, question: Handed) -> None:
        """A question of a client, which the layer above this one that got it cannot answer: pass it
        to the layer of the stream's delivery."""
        if stream := self.streams.get(question.message.stream):
            self._tell(stream.info, question)

    def _on_answer(self, answer: Answer) -> None:
        self.out.append(Emit(answer, "queries"))

    def _on_describe(self, inp: Describe) -> None:
        stream = self.streams.get(inp.stream)
        if stream is not None and not self._owns(stream) and stream.end == 1:
            before = stream.info.schema
            if inp.schema != before and _is_readable(inp.schema) and extends(inp.schema, before):
                stream.info = msgspec.structs.replace(stream.info, schema=inp.schema)

    def _on_forget(self, inp: Forget) -> None:
        stream = self.streams.get(inp.stream)
        if stream is not None and self.is_remote(stream) and not self.is_deleted(inp.stream):
            self.directory.delete(stream.info)
            self._pass_up(StreamDeleted(stream.info))

    def _on_limit(self, inp: Limit) -> None:
        before = self.limits.pop(inp.stream, None)
        if inp.end is not None:
            self.limits[inp.stream] = inp.end
        if before != inp.end and (stream := self.streams.get(inp.stream)):
            self._advance(stream)

    def _on_forfeit(self, inp: Forfeit) -> None:
        """Declare those of the given positions lost that are in a hole now. The others are not
        declared lost: if they get into a hole later, other nodes may be able to fill it."""
        stream = inp.stream
        if stream not in self.streams:
            return
        lost = self._in_holes(stream, IntervalSet([(inp.lo, inp.hi)] if inp.lo < inp.hi else []))
        known, _ = self.forfeited.get(stream, (IntervalSet(), ""))
        both = known.union(lost)
        if not lost or both.runs > FORFEITS_MAX:
            self.counters["streams.forfeit-refused"] += 1
            return
        if both != known:
            self.counters["streams.forfeited"] += both.total() - known.total()
        self.forfeited[stream] = both, inp.why[:WHY_MAX]

    def _recall_forfeits(self, log: LogId, end: int = 1 << 62) -> None:
        """No longer declare positions lost that can be read again. The same for all positions from
        `end` on, where the log is truncated."""
        if log in self.forfeited:
            forfeited, why = self.forfeited.pop(log)
            if left := self._in_holes(log, forfeited.clip(1, end)):
                self.forfeited[log] = left, why

    # ------------------------------------------------------------ the directory

    def _read_directory(self, end: int) -> None:
        """Apply the entries of the directory that are committed up to `end`."""
        start, self.directory_committed = self.directory_committed, max(end, 1)
        for batch in read_through(self.disk, DIRECTORY, start, end, self.config.serve_bytes_max):
            for info in self.directory.apply(batch):
                self._open(info)

    def _open(self, info: StreamInfo) -> None:
        """Begin to serve a stream that was added to the directory."""
        stream = Stream(info, RetentionIndex(info.retention), self._pieces())
        self.streams[info.stream_id] = stream
        stream.end = self.ends.get(info.stream_id, 1)
        stream.hole = self.hole_at.get(info.stream_id, 0)
        for peer in self.untyped if info.schema else ():
            self.serving.remove(info.stream_id, peer)
            self.filtered.remove(info.stream_id, peer)
        self._answer_creators(info.name, info, "")
        self.asked.pop(info.name, None)
        self.making.pop(info.name, None)
        made_epoch = self.directory.made.get(info.stream_id, 0)
        self._pass_up(StreamAdded(info, made_epoch, info.stream_id in self.made_now))
        self._advance(stream)

    def _on_create_stream(self, peer: Peer, message: CreateStream) -> None:
        name = message.name
        if not self.is_head:
            self._send(peer, StreamOpened(name, None, "not-head", self.head))
        elif self._is_being_deleted(name):
            self._send(peer, StreamOpened(name, None, "recovering"))  # ask again soon
        elif info := self.named(name):
            created = self.directory.by_name[name]
            self._send(peer, StreamOpened(name, info, _mismatch(created, info, message.spec)))
        elif why := self._refusal_to_create(message):
            self._send(peer, StreamOpened(name, None, why))
        else:
            self._hand("create", peer, message, message.spec.delivery or DEFAULT_DELIVERY)

    def _is_being_deleted(self, name: str) -> bool:
        """Whether the End event of the stream is appended, but not committed yet."""
        info = self.directory.by_name.get(name)
        stream = None if info is None else self.streams.get(info.stream_id)
        if stream is None or stream.hole:
            return False
        if self._refusal_behind_end(stream) not in ("deleted", "busy"):
            return False
        self.feed(stream)
        return not stream.index.ended

    def _refusal_to_create(self, message: CreateStream) -> str:
        name = message.name
        if not self.is_clean:
            return "recovering"
        if not is_name(name):
            return "bad-name"
        if spec_bytes(message.spec) > SPEC_BYTES_MAX or not _is_readable(message.spec.schema):
            return "bad-spec"
        if why := self._refusal_to_deliver(message.spec.delivery or DEFAULT_DELIVERY):
            return why
        if message.spec.schema and (why := self._lacking(TYPED_BODIES, "no-schemas")):
            return why
        coming = 0 if name in self.asked else len(self.asked)  # streams that are being created
        count = len(self.streams) - len(self.directory.deleted)
        return "too-many-streams" if count + coming >= self.config.streams_max else ""

    def _refusal_to_deliver(self, delivery: str) -> str:
        """Why no stream of a delivery can be created: all replicas of the region must have the
        delivery."""
        layer = self.deliveries.get(delivery, "")
        return self._lacking(layer.partition(".")[0], "no-delivery") if layer else "no-delivery"

    def _lacking(self, what: str, why: str) -> str:
        """`why`, if a replica of the region does not list `what` (a protocol, or TYPED_BODIES); ""
        if all do.

        If a replica did not list it in the last session and has no session now, it may be about to
        be replaced by a version that does. Then a session is opened, and the client must retry.
        """
        lacking = [peer for peer, listed in self.speaks.items() if what not in listed]
        away = [peer for peer in lacking if peer not in self.connected]
        for peer in away:
            self._send(peer, Introduce())  # opens a session; PeerUp lists its protocols
        if len(away) < len(lacking):
            return why
        return "recovering" if away else ""

    def _hand(self, what: Any, peer: Peer, message: Any, delivery: str) -> None:
        """Pass a message to the server side of a delivery (`Handed`)."""
        if layer := self.deliveries.get(delivery):
            self.out.append(Emit(Handed(what, peer, message), layer))

    def _on_create(self, inp: Create) -> None:
        """Create the stream; waiting peers are answered when it is in the directory."""
        message: CreateStream = inp.message
        name, spec = message.name, message.spec
        self.asked.setdefault(name, {})[inp.peer] = spec
        if name not in self.making:
            self.making[name] = True
            self._record(self._new_info(name, spec), self.epoch)

    def _on_await(self, inp: Await) -> None:
        self.asked.setdefault(inp.message.name, {})[inp.peer] = inp.message.spec

    def _on_refuse(self, inp: Refuse) -> None:
        message = inp.message
        if isinstance(message, Publish):
            batch = message.batch
            nack = PubNack(message.stream, batch.publisher, batch.pub_no, inp.why)
            self._send(inp.peer, nack)
        else:
            self._send(inp.peer, StreamOpened(message.name, None, inp.why))

    def _on_settle(self, inp: Settle) -> None:
        self._answer_creators(inp.name, None, inp.why)
        self.asked.pop(inp.name, None)

    def _on_stream_opened(self, peer: Peer, message: StreamOpened) -> None:
        """Pass the answer of the region that owns the name to the stream's delivery. The delivery
        adopts the stream (Adopt), or refuses (Settle)."""
        waiting = self.asked.get(message.name, {})
        if self.is_head and waiting:
            spec = next(iter(waiting.values()))
            self._hand("opened", peer, message, spec.delivery or DEFAULT_DELIVERY)

    def _new_info(self, name: str, spec: StreamSpec) -> StreamInfo:
        policy = KeepAll() if spec.retention is None else spec.retention
        delivery = spec.delivery or DEFAULT_DELIVERY
        return StreamInfo(
            self.rng.randbytes(16), name, self.config.region, policy,
            self.directory.latest.get(name, b""), delivery, spec.schema, spec.options,
        )  # fmt: skip

    def _on_adopt(self, inp: Adopt) -> None:
        self._record(inp.info, self.epoch if inp.made else 0)

    def _record(self, info: StreamInfo, made_epoch: int) -> None:
        """Append the stream to the directory. `made_epoch`: the epoch in which it was created here;
        0 if another region created it."""
        if made_epoch:
            self.made_now[info.stream_id] = True
        follows = self.directory.follows(info.name)
        entry = info_batch(info, self.config.chain, made_epoch, follows)
        self.out.append(PassDown(AppendOwn(DIRECTORY, entry)))

    def _answer_creators(self, name: str, info: StreamInfo | None, why: str) -> None:
        for peer, spec in self.asked.get(name, {}).items():
            answer = why if info is None else _mismatch(info, info, spec)
            self._send(peer, StreamOpened(name, info, answer, self.head))

    def _on_drain(self, _inp: Drain) -> None:
        self.draining = True

    def _on_force_new_stream(self, inp: ForceNewStream) -> None:
        info = self.directory.by_name.get(inp.name)
        if self.is_head and info is not None and info.owner == self.config.region:
            new_id = self.rng.randbytes(16)
            self._record(
                msgspec.structs.replace(info, stream_id=new_id, replaces=info.stream_id), self.epoch
            )

    # ------------------------------------------------------------ publishing

    def _on_pub_ack(self, peer: Peer, message: PubAck) -> None:
        if stream := self.streams.get(message.stream):
            self._hand("ack", peer, message, stream.info.delivery)

    def _on_pub_nack(self, peer: Peer, message: PubNack) -> None:
        if stream := self.streams.get(message.stream):
            self._hand("nack", peer, message, stream.info.delivery)

    def _on_publish(self, peer: Peer, message: Publish) -> None:
        batch, stream = message.batch, self.streams.get(message.stream)
        if stream is not None and not self._owns(stream):
            if stream.info.delivery in self.deliveries:
                self._hand("publish", peer, message, stream.info.delivery)
            else:
                self._on_refuse(Refuse(peer, message, "owner-unreachable"))
            return
        why = self._refusal(message)
        if why:
            head = self.head if why == "not-head" else ""
            nack = PubNack(message.stream, batch.publisher, batch.pub_no, why, 0, head)
            self._send(peer, nack)
            return
        token = (peer, message.stream, batch.publisher, batch.pub_no)
        own = self.streams[message.stream]
        bad = self._refusal_of_event(own, batch)
        if batch.kind == CONFIG:
            own.looked_epoch = own.schema_epoch = -1  # this may be the End, or change the schema
            own.feed_soon = own.feed_soon or retention.is_end(batch)
        self.out.append(PassDown(Submit(message.stream, batch, token, bad)))

    def _refusal(self, message: Publish) -> str:
        """Why publishes to this stream are refused, for now or for ever; empty if they are not."""
        if not self.is_head:
            return "not-head"
        if self.draining:
            return "busy"
        stream = self.streams.get(message.stream)
        if stream is None:
            return "unknown-stream" if self.is_clean else "recovering"
        if stream.quarantined:
            return "quarantined"
        if stream.info.delivery not in self.deliveries:
            return "recovering"  # only the delivery knows whether positions may be assigned
        if stream.hole or stream.suspended:
            return stream.suspended or "recovering"
        if message.batch.kind == DATA:
            return ""
        self.feed(stream)  # whether a rule is allowed depends on all earlier events
        return "busy" if stream.index.end < self.visible_end(stream) else ""

    def _refusal_of_event(self, stream: Stream, batch: Batch) -> str:
        if batch.stream_id != stream.stream_id:
            return "bad-event"  # readers would take the batch for one of another stream
        if (stream.ending or stream.looked_epoch != self.epoch or stream.index.ended) and (
            why := self._refusal_behind_end(stream)
        ):
            return why  # retries of earlier batches are still acknowledged (Submit.refuse)
        if batch.kind == DATA:
            # The head assigns positions and times: the batch must not have any.
            # It must also have a publisher's number, and no void positions (rows == count).
            fine = batch.rows == batch.count > 0 and batch.pub_no > 0 and not batch.explicit
            if not fine or batch.lo:
                return "bad-event"
            if batch.schema_id & TYPED or stream.info.schema:
                return self._refusal_of_columns(stream, batch)
            return ""
        return self._refusal_of_rule(stream, batch)

    def _refusal_of_columns(self, stream: Stream, batch: Batch) -> str:
        """Why a batch does not have the columns of the stream's schema, or of an earlier version;
        "" if it has."""
        if not stream.info.schema:
            return "bad-event"
        return stream.refusal_of_columns(batch) if self._knows_schema(stream) else "busy"

    def _refusal_of_change(self, stream: Stream, schema: str) -> str:
        """Why the schema cannot be changed to this one; "" if it can. While an earlier change is
        not committed, it may still be undone, so the client must retry."""
        if not stream.info.schema:
            return "bad-event"
        if spec_bytes(msgspec.structs.replace(stream.info, schema=schema)) > SPEC_BYTES_MAX:
            return "bad-spec"
        if not _is_readable(schema):
            return "bad-event"
        if not self._knows_schema(stream):
            return "busy"
        is_committed = stream.schema == stream.info.schema
        if schema == stream.schema:
            return "unchanged" if is_committed else "busy"
        if not extends(schema, stream.schema):
            return "schema-differs" if is_committed else "busy"
        return self._lacking(TYPED_BODIES, "no-schemas")

    def _refusal_of_rule(self, stream: Stream, batch: Batch) -> str:
        """R10: why a COLLECT or CONFIG event is refused; "" if it is not. It is refused if it is
        not valid, or could make an event void that is itself the reason why others are void."""
        if batch.kind not in (COLLECT, CONFIG) or batch.count != 1 or batch.pub_no <= 0:
            return "bad-event"
        row = batch.to_rows()[0]
        if row.key is not None or row.tag is not None:
            return "bad-event"
        try:
            retention.check_event(batch, stream.index.policy)
            if retention.is_end(batch):
                full = len(self.directory.deleted) >= self.config.deleted_max
                return "too-many-deleted" if full else ""
            if batch.kind == COLLECT:
                tagged = isinstance(retention.decode_collect(row.value).predicate, TagIs)
                if tagged and stream.reconfigured:
                    # An event with that tag may have collected others under an earlier policy.
                    return "bad-event"
        except (PeerError, UsageError):
            return "bad-event"
        schema = schema_in(batch)
        return self._refusal_of_change(stream, schema) if schema else ""

    def _on_submitted(self, event: Submitted) -> None:
        peer, stream, publisher, pub_no = event.token
        self.serving.soon(self.out)
        self.unsent_acks.setdefault((peer, stream, publisher), []).append((pub_no, event.seq))

    def _on_refused(self, event: Refused) -> None:
        peer, stream, publisher, pub_no = event.token
        head = self.head if event.why == "not-head" else ""
        self._send(peer, PubNack(stream, publisher, pub_no, event.why, event.expected, head))

    # ------------------------------------------------------------ readers

    def _on_subscribe(self, peer: Peer, message: Subscribe) -> None:
        serving, filtered, stream = self.serving, self.filtered, message.stream
        most = self.config.subscriptions_max
        others, chosen = (serving, filtered) if message.where else (filtered, serving)
        if message.start < 1 or not chosen.has_room(stream, peer, most - others.count):
            self.counters["streams.subscription-refused"] += 1
            return
        if not self.may_read(peer, stream):
            self.counters["streams.reader-too-old"] += 1
            return
        others.remove(stream, peer)
        if message.where:
            filtered.follow(stream, peer, message.start, message.where, self.out)
            self._tell_later()
        else:
            serving.follow(stream, peer, message.start, self.out)

    def _on_unsubscribe(self, peer: Peer, message: Unsubscribe) -> None:
        self.serving.remove(message.stream, peer)
        self.filtered.remove(message.stream, peer)

    def _bind(self, stream: LogId, where: str) -> BatchFilter:
        """A filter of a reader of the stream. Raises UsageError if it is not valid."""
        from surecast.where.batches import batch_filter  # loads pyarrow

        return batch_filter(where, self.current(self.streams[stream]).schema)

    def _tell_later(self) -> None:
        """If positions are held back from readers with filters, set the time to send them."""
        if self.filtered.untold and not self.telling:
            self.telling = True
            self.out.append(SetTimer("tell", self.now_ns + self.config.tell_ns))

    def _on_read_range(self, peer: Peer, message: ReadRange) -> None:
        if not self.may_read(peer, message.stream):
            self.counters["streams.reader-too-old"] += 1
            return
        stream, lo, hi = message.stream, message.lo, message.hi
        if not message.where or stream not in self.streams:
            self.ranges.answer(peer, stream, lo, hi, self.out)
            return
        number = filter_number(message.where)
        try:
            chosen = self._bind(stream, message.where)
        except UsageError as problem:
            self.counters["streams.filter-refused"] += 1
            self._send(peer, FilterRefused(stream, number, str(problem)))
            return
        examiner = Examiner(self.config.filter_cost_max, self.counters)
        make: MakeRange = partial(RangeEvents, filter=number)
        self.ranges.answer(
            peer, stream, lo, hi, self.out, number=number, make=make,
            passing=partial(self._passing, examiner, chosen), is_spent=lambda: examiner.left <= 0,
        )  # fmt: skip

    def _passing(
        self, examiner: Examiner, chosen: BatchFilter, batches: Sequence[Batch]
    ) -> list[Batch]:
        return joined(examiner.passing(chosen, batches), self.config.coalesce_rows_max)

    def _serve(self) -> None:
        """At the end of a pass: send acknowledgements to publishers and new events to readers."""
        self.pieces_read.clear()
        acks, self.unsent_acks = self.unsent_acks, {}
        for (peer, stream_id, publisher), pairs in acks.items():
            (pub_no, seq), *more = pairs
            self._send(peer, PubAck(stream_id, publisher, pub_no, seq, tuple(more)))
        self.serving.serve(self.out)
        if self.filtered.news:
            self.filtered.serve(self.out)
            self._tell_later()
        if self.moved:
            self._tell_moved()

    def _tell_moved(self) -> None:
        """Emit StreamsMoved, so that deliveries serve their readers in the same pass, after the
        readers of this layer."""
        moved, self.moved = self.moved, {}
        for layer, delivery in self.attending.items():
            streams = tuple([stream for stream, its in moved.items() if its == delivery])
            if streams:
                self.out.append(Emit(StreamsMoved(streams), layer))

    def _on_attend(self, inp: Attend) -> None:
        family = inp.layer.partition(".")[0]  # the role to which the layer belongs
        self.attending.pop(inp.layer, None)
        if inp.on:
            names = (name for name, layer in self.deliveries.items() if layer == family)
            self.attending[inp.layer] = next(names)

    # ------------------------------------------------------------ sessions

    def _on_peer_up(self, inp: PeerUp) -> None:
        self.serving.congested.pop(inp.peer, None)
        if inp.speaks and TYPED_BODIES not in inp.speaks:
            self.untyped[inp.peer] = None
        if inp.peer in self.config.replicas:
            self.connected[inp.peer] = None
            if inp.speaks:
                self.speaks[inp.peer] = inp.speaks
            else:  # the replica sent no list
                self.speaks.pop(inp.peer, None)

    def _on_peer_down(self, inp: PeerDown) -> None:
        peer = inp.peer
        self.connected.pop(peer, None)
        self.untyped.pop(peer, None)
        self.serving.remove_peer(peer)
        if self.filtered.count:
            self.filtered.remove_peer(peer)
        self.ranges.remove_peer(peer)
        for name in [name for name, creators in self.asked.items() if peer in creators]:
            del self.asked[name][peer]
            if not self.asked[name] and name not in self.making:
                del self.asked[name]

    def _on_congested(self, inp: Congested) -> None:
        self.serving.congested[inp.peer] = None

    def _on_writable(self, inp: Writable) -> None:
        self.serving.writable(inp.peer, self.out)
        if self.filtered.count:
            self.filtered.writable(inp.peer, self.out)

    # ------------------------------------------------------------ cold reads

    def _on_cold_below(self, inp: ColdBelow) -> None:
        self.cold.cooled(inp.ends)

    def _load(self, stream: LogId, lo: int, hi: int, out: list[Any]) -> None:
        self.cold.want(stream, lo, hi)
        out += self.cold.begin()

    def _on_load(self, inp: Load) -> None:
        self._load(inp.stream, inp.lo, inp.hi, self.out)

    def _on_loaded(self, inp: Loaded) -> None:
        """Serve the readers that wait for the piece, also those of layers above."""
        self.counters["streams.cold-reads"] += 1
        piece = self.cold.loaded(inp)
        if piece is None:
            self.counters["streams.cold-reads-dropped"] += 1
        if piece is not None:
            stream, lo = piece
            problem = inp.problem
            if not inp.batches and not problem:
                problem = f"the log does not hold position {lo}"
            if problem and (state := self.streams.get(stream)):
                self.damaged(state, StorageError(problem), min(lo, state.committed))
            self.serving.loaded(stream, lo, self.out)
            if self.filtered.count:
                self.filtered.loaded(stream, lo, self.out)
                self._tell_later()
            self.ranges.loaded(stream, lo, self.out)
            self.out.append(Emit(PieceLoaded(stream, lo)))
        self.out += self.cold.begin()

    # ------------------------------------------------------------ retention

    def _expire(self, stream: Stream) -> None:
        """R10: for keep_for, append a COLLECT event that collects old events. Only the head of the
        owning region decides this by its clock; all other replicas follow the appended event."""
        self.feed(stream)
        policy = stream.index.policy
        if not isinstance(policy, KeepFor) or not self._owns(stream):
            return
        if stream.suspended or stream.hole or stream.quarantined:
            return
        if self._refusal_behind_end(stream):
            return
        if stream.committed < stream.expiring:
            return
        cutoff_ns = self.wall_ns - policy.ns
        if self._holds_older(stream, cutoff_ns):
            rule = retention.encode_collect(Collect(BeforeTime(cutoff_ns), EXPIRED))
            batch = Batch.of(stream.stream_id, [rule], kind=COLLECT)
            # The end after that event, or less if other events are appended before it.
            stream.expiring = stream.end + 1
            self.out.append(PassDown(AppendOwn(stream.stream_id, batch)))

    def _holds_older(self, stream: Stream, cutoff_ns: int) -> bool:
        """Whether a live DATA event is older than `cutoff_ns`. COLLECT events do not count: each
        expiry appends one, which would then expire, too, and so on."""
        for lo, hi in stream.index.live(1, stream.index.end):
            for batch in read_through(self.disk, stream.stream_id, lo, hi, 1):
                if int(batch.times()[0]) >= cutoff_ns:
                    return False
                if batch.kind == DATA:
                    return True
        return False

    def _maybe_compact(self, stream: Stream) -> None:
        """Rewrite a part of the log if enough of it has become void."""
        self.feed(stream)
        if stream.quarantined:
            return
        voids, is_deleted = stream.index.voids, stream.index.ended > 0
        if is_deleted:
            stream.pieces.finish()
        # In a deleted stream, and on a full disk, any part with void events is worth rewriting.
        any_part = is_deleted or self.now_ns < self.full_until_ns
        share = 0.0 if any_part else self.config.compact_share
        if worth := stream.pieces.begin(list(voids.values()), share):
            lo, hi = worth
            clipped = {reason: positions.clip(lo, hi) for reason, positions in voids.items()}
            stream.rewriting_rows = hi - lo - sum(part.total() for part in clipped.values())
            rows_max = self.config.coalesce_rows_max
            command = CompactLog(stream.stream_id, lo, hi, encode_voids(clipped), rows_max)
            self.out.append(PassDown(command))

    def _on_store_full(self, _event: StoreFull) -> None:
        first = self.now_ns >= self.full_until_ns
        self.full_until_ns = self.now_ns + FULL_NS
        if first:  # look at all parts again, because now smaller gains are worth a rewrite
            for stream in (*self.streams.values(), *self.kept.values()):
                stream.pieces.looked = -1

    def _on_rewritten(self, event: Rewritten) -> None:
        stream = self.kept.get(event.log) or self.streams.get(event.log)
        if stream is None or stream.pieces.under_way != (event.lo, event.hi):
            return  # the stream was truncated meanwhile
        if event.done:
            self.counters["streams.rewritten"] += 1
            stream.pieces.done(event.lo, event.hi, stream.rewriting_rows)
            self._maybe_compact(stream)  # the next part, if one is worth it
        else:
            stream.pieces.failed()
