"""Comparing histories, step by step: what does not need a whole cluster."""

from typing import Any

from surecast.columns.batch import Batch
from surecast.columns.retention import KeepAll
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


def test_streams_that_are_forgotten_meanwhile_are_told_by_their_id() -> None:
    """A chain that is founded anew forgets its directory; alarms are read at any time."""
    bench = Bench()
    bench.role(1)
    bench.knows()
    forks = bench.sync.forks
    forks.searches[GONE] = Search("y", 7, 3)
    forks.others[GONE] = {"z": 5}
    forks.others[INFO.stream_id] = {"z": 9}
    lines = forks.report(10)
    assert sum(GONE.hex() in line for line in lines) == 2
    assert any(line.startswith(f"{INFO.name}: z has later events") for line in lines)
    bench.sync.limited(GONE)  # nothing to show, nothing to raise


def test_only_so_many_lines_are_told() -> None:
    bench = Bench()
    forks = bench.sync.forks
    forks.done += [Quarantined(f"s{n}", 1, 2, "copy", "y") for n in range(DONE_MAX)]
    assert len(forks.report(10)) == 10


def test_what_the_head_hides_stays_hidden_when_the_directory_comes_anew() -> None:
    bench = Bench("x/1")
    bench.role(1, head=False)
    bench.knows()
    for seq in range(1, 9):
        one = Batch.of(STREAM, [b"v"], publisher=bytes(16), pub_no=seq)
        bench.disk.append(STREAM, (one.sequenced(seq, seq, 1),))
    bench.says(Appended(STREAM, 9))
    bench.says(Committed(STREAM, 9))
    bench.give(Received("x/0", Hide(STREAM, 5)))
    assert bench.service.shown_end(STREAM) == 5
    bench.disk.truncate(DIRECTORY, 1)
    bench.says(Truncated(DIRECTORY, 1))
    bench.knows(end=9)
    assert bench.service.shown_end(STREAM) == 5


class Forked(Bench):
    """x is head of its region; y has other, older events of streams that x owns."""

    def __init__(self, names: list[str], busy: bool = False) -> None:
        super().__init__()
        self.busy = busy  # the chain takes no events for now
        self.role(1)
        self.pending: list[tuple[bytes, int]] = []
        self.abandoned: list[bytes] = []
        self.theirs: dict[bytes, Batch] = {}
        infos = []
        for number, name in enumerate(names):
            info = StreamInfo(bytes([65 + number]) * 16, name, "x", KeepAll())
            infos.append(info)
            ours = Batch.of(info.stream_id, [b"ours"] * 3).sequenced(1, 2000, 1)
            self.theirs[info.stream_id] = Batch.of(info.stream_id, [b"y"] * 3).sequenced(1, 1000, 1)
            self.disk.append(info.stream_id, (ours,))
            self.lists(info, 1)
            self.says(Appended(info.stream_id, 4))
            self.says(Committed(info.stream_id, 4))
        self.hear({info.stream_id: 4 for info in infos}, tuple(infos))

    def hear(self, ends: dict[bytes, int], infos: tuple[StreamInfo, ...] = ()) -> None:
        ad = Advertise("y", 1, ends, infos, bool(infos), "y/0", life=b"L", disk=b"D", start=1)
        self.answer(self.give(Received("y/0", ad)))

    def answer(self, out: list[Any]) -> None:
        """Be the chain, which appends what it is given, and y, which compares."""
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
            self.answer(self.says(Appended(log, end)))
            self.answer(self.says(Committed(log, end)))

    def period(self) -> None:
        self.hear({})
        self.answer(self.timer("sprinkler", "advertise"))


def test_two_histories_whose_copies_would_have_one_name_are_both_kept() -> None:
    """A long name is cut, so two streams may ask for the same one at the same time."""
    bench = Forked(["a" * 220 + ".0", "a" * 220 + ".1"])
    for _ in range(5):
        bench.period()
    copies = [name for name in bench.service.directory.by_name if name.startswith("_quarantine")]
    assert len(copies) == 2
    assert set(bench.abandoned) == set(bench.theirs)


def test_nothing_is_published_into_a_copy_that_is_being_filled() -> None:
    bench = Forked(["s1"], busy=True)
    bench.period()
    (copy,) = [s for s in bench.service.streams.values() if s.info.name.startswith("_quarantine")]
    batch = Batch.of(copy.stream_id, [b"x"], publisher=bytes(8) + b"ann's id", pub_no=1)
    out = bench.give(Received("client", Publish(copy.stream_id, batch)))
    assert [nack.why for _, nack in sent(out, PubNack)] == ["recovering"]


def test_what_comes_after_a_history_was_taken_back_is_served() -> None:
    """It may reach no further than what was there before."""
    bench = Bench()
    bench.role(1)
    bench.disk.append(STREAM, (Batch.of(STREAM, [b"v"] * 9).sequenced(1, 1000, 1),))
    bench.lists(INFO)
    bench.says(Appended(STREAM, 10))
    bench.says(Committed(STREAM, 10))
    bench.disk.truncate(STREAM, 5)
    bench.says(Truncated(STREAM, 5))
    bench.give(Received("z/0", RegionSubscribe("z", 1, STREAM, 5)))
    bench.disk.append(STREAM, (Batch.of(STREAM, [b"w"] * 5).sequenced(5, 2000, 1),))
    bench.says(Appended(STREAM, 10))
    bench.says(Committed(STREAM, 10))
    served = sent(bench.end_of_pass("streams"), PeerEvents)
    assert [(peer, message.batches[0].lo, message.end) for peer, message in served] == [
        ("z/0", 5, 10)
    ]
