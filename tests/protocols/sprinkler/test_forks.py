"""Comparing histories, step by step, without a whole cluster."""

from typing import Any

import pyarrow as pa

from surecast.columns.batch import CONFIG, DATA, Batch
from surecast.columns.retention import KeepAll
from surecast.columns.rules import NewSchema, encode_policy
from surecast.columns.schema import read_schema
from surecast.columns.typed import Attributes
from surecast.core.replicated import (
    Abandon,
    AppendAt,
    Appended,
    AppendOwn,
    Committed,
    Truncated,
)
from surecast.core.streams import DIRECTORY, StreamInfo
from surecast.core.types import Received
from surecast.protocols.sprinkler.forks import DONE_MAX, Quarantined, Search, mark_of
from surecast.protocols.sprinkler.messages import (
    Advertise,
    Compare,
    Compared,
    Hide,
    PeerEvents,
    RegionSubscribe,
)
from surecast.protocols.streams.messages import Publish, PubNack
from tests.protocols.bench import INFO, STREAM, Bench, passed_down, sent

GONE = b"x" * 16  # of a stream that the directory no longer has


def test_reports_name_forgotten_streams_by_their_id() -> None:
    """A refounded chain has an empty directory while its searches and alarms still exist."""
    bench = Bench()
    bench.role(1)
    bench.add_stream()
    forks = bench.sync.forks
    forks.searches[GONE] = Search("y", 7, 3)
    forks.others[GONE] = {"z": 5}
    forks.others[INFO.stream_id] = {"z": 9}
    lines = forks.report(10)
    assert sum(GONE.hex() in line for line in lines) == 2
    assert any(line.startswith(f"{INFO.name}: z has later events") for line in lines)
    bench.sync.limited(GONE)  # does not raise


def test_the_lines_of_a_report_are_bounded() -> None:
    bench = Bench()
    forks = bench.sync.forks
    forks.done += [Quarantined(f"s{n}", 1, 2, "copy", "y") for n in range(DONE_MAX)]
    assert len(forks.report(10)) == 10


def test_a_limit_of_the_head_stays_when_the_directory_is_rebuilt() -> None:
    bench = Bench("x/1")
    bench.role(1, head=False)
    bench.add_stream()
    for seq in range(1, 9):
        one = Batch.of(STREAM, [b"v"], publisher=bytes(16), pub_no=seq)
        bench.disk.append(STREAM, (one.sequenced(seq, seq, 1),))
    bench.chain_emits(Appended(STREAM, 9))
    bench.chain_emits(Committed(STREAM, 9))
    bench.give(Received("x/0", Hide(STREAM, 5)))
    assert bench.service.shown_end(STREAM) == 5
    bench.disk.truncate(DIRECTORY, 1)
    bench.chain_emits(Truncated(DIRECTORY, 1))
    bench.add_stream(end=9)
    assert bench.service.shown_end(STREAM) == 5


def numbers(schema: str, number: int) -> Attributes | None:
    """The attributes of three events of a schema with one int64; None without a schema."""
    if not schema:
        return None
    types = read_schema(schema).types
    table = pa.RecordBatch.from_arrays([pa.array([number] * 3)], schema=types.arrow_schema())
    return Attributes(types, 3, table=table)


class Forked(Bench):
    """x is head of its region; y has other, older events of streams that x owns."""

    def __init__(
        self, names: list[str], busy: bool = False, schema: str = "", change: str = ""
    ) -> None:
        """`change`: our second event changes the schema to this one, with one more column."""
        super().__init__()
        self.busy = busy  # the chain appends no events for now
        self.role(1)
        self.pending: list[tuple[bytes, int]] = []
        self.abandoned: list[bytes] = []
        self.theirs: dict[bytes, Batch] = {}
        infos = []
        for number, name in enumerate(names):
            info = StreamInfo(bytes([65 + number]) * 16, name, "x", KeepAll(), schema=schema)
            infos.append(info)
            stream = info.stream_id
            ours = Batch.of(stream, [b"ours"] * 3, attributes=numbers(schema, 3))
            history = (ours.sequenced(1, 2000, 1),)
            if change:
                value = encode_policy(NewSchema(change))
                config = Batch.of(stream, [value], kind=CONFIG).sequenced(2, 2000, 1)
                typed = read_schema(change).types
                table = pa.RecordBatch.from_arrays([[3], ["x"]], schema=typed.arrow_schema())
                more = Batch.of(stream, [b"ours"], attributes=Attributes(typed, 1, table=table))
                history = (history[0].slice(1, 2), config, more.sequenced(3, 2000, 1))
            theirs = Batch.of(stream, [b"y"] * 3, attributes=numbers(schema, 4))
            self.theirs[stream] = theirs.sequenced(1, 1000, 1)
            self.disk.append(info.stream_id, history)
            self.list_stream(info, 1)
            self.chain_emits(Appended(info.stream_id, 4))
            self.chain_emits(Committed(info.stream_id, 4))
        self.receive({info.stream_id: 4 for info in infos}, tuple(infos))

    def receive(self, ends: dict[bytes, int], infos: tuple[StreamInfo, ...] = ()) -> None:
        ad = Advertise("y", 1, ends, infos, bool(infos), "y/0", life=b"L", disk=b"D", start=1)
        self.answer(self.give(Received("y/0", ad)))

    def answer(self, out: list[Any]) -> None:
        """Answer for the chain, which appends batches, and for y, which compares histories."""
        for command in passed_down(out, AppendOwn):
            at = self.disk.end(command.log)
            self.disk.append(command.log, (command.batch.sequenced(at, 5000, 1),))
            self.pending.append((command.log, at + 1))
        for command in [] if self.busy else passed_down(out, AppendAt):
            new = [b for b in command.batches if b.lo >= self.disk.end(command.log)]
            self.disk.append(command.log, tuple(new))
            self.pending.append((command.log, self.disk.end(command.log)))
        self.abandoned += [command.log for command in passed_down(out, Abandon)]
        for _, asked in sent(out, Compare):
            marks = {
                stream: tuple(mark_of(row) for row in self.theirs[stream].to_rows())
                for stream in asked.seqs
            }
            self.answer(self.give(Received("y/0", Compared(asked.token, marks))))
        while self.pending:
            log, end = self.pending.pop(0)
            self.answer(self.chain_emits(Appended(log, end)))
            self.answer(self.chain_emits(Committed(log, end)))

    def period(self) -> None:
        self.receive({})
        self.answer(self.timer("sprinkler", "advertise"))


def test_two_histories_whose_copies_would_have_one_name_are_both_kept() -> None:
    """Long names are cut, so that the copies of two streams may have the same name."""
    bench = Forked(["a" * 220 + ".0", "a" * 220 + ".1"])
    for _ in range(5):
        bench.period()
    copies = [name for name in bench.service.directory.by_name if name.startswith("_quarantine")]
    assert len(copies) == 2
    assert set(bench.abandoned) == set(bench.theirs)


def test_events_that_differ_only_in_attributes_are_told_apart() -> None:
    marks = []
    for number in (3, 3, 4):
        batch = Batch.of(STREAM, [b""] * 3, attributes=numbers("n int64", number))
        batch = batch.sequenced(1, 5, 1)
        attributes = batch.attributes()
        assert attributes is not None
        marks.append(mark_of(batch.to_rows()[2], attributes.row_bytes(2)))
    assert marks[0] == marks[1] != marks[2]


def test_the_copy_of_a_stream_with_a_schema_has_the_schema() -> None:
    bench = Forked(["s"], schema="n int64")
    bench.period()
    (copy,) = [s for s in bench.service.streams.values() if s.info.name.startswith("_quarantine")]
    assert copy.info.schema == "n int64"
    (batch,) = bench.disk.read(copy.stream_id, 1, 4, 1 << 20)
    attributes = batch.attributes()
    assert attributes is not None
    assert attributes.table().column(0).to_pylist() == [3, 3, 3]


def test_the_copy_has_the_schema_of_events_after_a_change() -> None:
    """The change may not be indexed when the copy is made. It is copied, and has effect there."""
    bench = Forked(["s"], schema="n int64", change="n int64, s string")
    bench.period()
    (copy,) = [s for s in bench.service.streams.values() if s.info.name.startswith("_quarantine")]
    info = bench.service.named(copy.info.name)
    assert info is not None
    assert info.schema == "n int64, s string"
    first, config, last = bench.disk.read(copy.stream_id, 1, 4, 1 << 20)
    assert [batch.kind for batch in (first, config, last)] == [DATA, CONFIG, DATA]
    attributes = last.attributes()
    assert attributes is not None
    assert [column.to_pylist() for column in attributes.table().columns] == [[3], ["x"]]


def test_nothing_is_published_into_a_copy_that_is_being_filled() -> None:
    bench = Forked(["s1"], busy=True)
    bench.period()
    (copy,) = [s for s in bench.service.streams.values() if s.info.name.startswith("_quarantine")]
    batch = Batch.of(copy.stream_id, [b"x"], publisher=bytes(8) + b"ann's id", pub_no=1)
    out = bench.give(Received("client", Publish(copy.stream_id, batch)))
    assert [nack.why for _, nack in sent(out, PubNack)] == ["recovering"]


def test_events_after_a_truncated_history_are_served() -> None:
    """The new history may end where the old one ended."""
    bench = Bench()
    bench.role(1)
    bench.disk.append(STREAM, (Batch.of(STREAM, [b"v"] * 9).sequenced(1, 1000, 1),))
    bench.list_stream(INFO)
    bench.chain_emits(Appended(STREAM, 10))
    bench.chain_emits(Committed(STREAM, 10))
    bench.disk.truncate(STREAM, 5)
    bench.chain_emits(Truncated(STREAM, 5))
    bench.give(Received("z/0", RegionSubscribe("z", 1, STREAM, 5)))
    bench.disk.append(STREAM, (Batch.of(STREAM, [b"w"] * 5).sequenced(5, 2000, 1),))
    bench.chain_emits(Appended(STREAM, 10))
    bench.chain_emits(Committed(STREAM, 10))
    served = sent(bench.end_of_pass("streams"), PeerEvents)
    assert [(peer, message.batches[0].lo, message.end) for peer, message in served] == [
        ("z/0", 5, 10)
    ]
