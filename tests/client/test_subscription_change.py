"""Changing the filter of a subscription while batches are on their way, without sockets.

A fake reader delivers batches as a reader's node does: commands take effect later, and batches that
were filtered by an earlier filter may still arrive. The program's events are compared with what
the plain-Python rule gives: below the position of a change the old filter decides, from it on the
new one.
"""

import asyncio
from collections import deque
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from surecast.client.events import Event
from surecast.client.subscription_buffer import SubscriptionBuffer
from surecast.columns.batch import COLLECTED, CONFIG, FILTERED, Batch
from surecast.columns.intervals import IntervalSet
from surecast.columns.retention import KeepAll
from surecast.columns.rules import End, encode_policy
from surecast.columns.schema import read_schema
from surecast.columns.typed import Attributes
from surecast.core.endpoint import Ended, Following
from surecast.core.streams import StreamInfo
from surecast.endpoint.options import ClientOptions
from surecast.errors import UsageError
from surecast.where.batches import BatchFilter, batch_filter
from tests.client.stage import play
from tests.edits import Edit, must_fail

SID, OTHER = b"s" * 16, b"t" * 16
FILTERS = [None, "key == '0'", "key in ('1', '2')", "not exists key", "exists key", "key > '2'"]


def key_of(seq: int) -> bytes | None:
    return None if seq % 11 == 0 else b"%d" % (seq * 7919 % 5)


def passes(where: str | None, seq: int) -> bool:
    """The filters of FILTERS in plain Python."""
    key = key_of(seq)
    return {
        None: True,
        "key == '0'": key == b"0",
        "key in ('1', '2')": key in (b"1", b"2"),
        "not exists key": key is None,
        "exists key": key is not None,
        "key > '2'": key is not None and key > b"2",
    }[where]


class FakeReader:
    """A reader whose node handles commands later, and whose server filters. It serves a stream of
    events at positions from 1 up to `end`; positions that are multiples of 13 are void."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.takers: dict[bytes, Any] = {}
        self.token = 0
        self.filtered = False  # whether the last command had a filter
        self.commands: deque[tuple[int, str, int]] = deque()  # start (0: stop), filter, token
        self.position = 0  # of the node; 0: does not follow
        self.where = ""
        self.end = 1
        self.on_the_way: deque[Any] = deque()  # from the node to the taker
        self.filters_itself = rng.random() < 0.7

    def claim(self, stream: bytes, taker: Any) -> None:
        self.takers[stream] = taker

    def follow(self, stream: bytes, start: int, where: str = "") -> int:
        if not where and not self.filtered:
            self.commands.append((start, where, 0))
            return 0
        self.filtered = bool(where)
        self.token += 1
        self.commands.append((start, where, self.token))
        return self.token

    def unfollow(self, stream: bytes) -> None:
        self.commands.append((0, "", 0))

    def release(self, stream: bytes) -> None:
        if self.takers.pop(stream, None) is not None:
            self.unfollow(stream)

    def step(self) -> None:
        """Something happens: the node handles a command or delivers a batch, or the taker gets
        what the node has delivered."""
        match self.rng.randrange(4):
            case 0 if self.commands:
                self.position, self.where, token = self.commands.popleft()
                if token:
                    self.on_the_way.append(Following(SID, self.position, token))
            case 1 if 0 < self.position < self.end:
                self.on_the_way.append(self._batch())
            case 2:
                self.end += self.rng.randrange(40)
            case _ if self.on_the_way:
                item = self.on_the_way.popleft()
                taker = self.takers.get(SID)
                if taker is None:
                    return
                if isinstance(item, Following):
                    taker.take_following(item)
                else:
                    taker.take_in(SID, (item,))

    def _batch(self) -> Batch:
        lo = self.position
        hi = self.position = min(self.end, lo + self.rng.randint(1, 30))
        batch = Batch.of(
            SID, [b"%d" % seq for seq in range(lo, hi)], list(map(key_of, range(lo, hi)))
        )
        batch = batch.sequenced(lo, 5, 1)
        gone = [(seq, seq + 1) for seq in range(lo, hi) if seq % 13 == 0]
        batch = batch.without(IntervalSet(gone), COLLECTED)
        chosen = batch_filter(self.where, "") if self.where and self.filters_itself else None
        return batch if chosen is None else chosen.apply(batch)


def filter_of(where: str | None) -> BatchFilter | None:
    return batch_filter(where, "") if where else None


async def run(seed: int, voids: bool) -> int:
    """A random run. Returns the number of changes after which events were read."""
    rng = Random(seed)
    options = ClientOptions(buffer_bytes_max=rng.choice([800, 4000, 1 << 20]))
    buffer = SubscriptionBuffer(options, voids, False, False)
    reader: Any = FakeReader(rng)
    where = rng.choice(FILTERS)
    start = rng.randint(1, 5)
    info = StreamInfo(SID, "s", "east", KeepAll())
    buffer.add(info, reader, start, chosen=filter_of(where))
    rules = [(start, where)]  # the filter from each position on
    got: list[Event] = []
    for _ in range(250):
        for _ in range(rng.randrange(8)):
            reader.step()
        if rng.random() < 0.08:
            where = rng.choice(FILTERS)
            begins = buffer.change({SID: filter_of(where)}, {})
            begin = begins["s"]
            assert begin >= rules[-1][0]
            rules.append((begin, where))
        for _ in range(rng.randrange(6)):
            event = next(buffer.rows, None)
            if event is None:
                waits = asyncio.ensure_future(buffer.next_rows())
                await asyncio.sleep(0)
                if not waits.done():
                    waits.cancel()
                    await asyncio.wait([waits])
                    break
                continue
            got.append(event)
    reached = got[-1].seq + 1 if got else start
    wanted = []
    for seq in range(start, reached):
        rule = [chosen for begin, chosen in rules if begin <= seq][-1]
        if seq % 13 and passes(rule, seq):
            wanted.append(seq)
    assert [event.seq for event in got if event.kind == "event"] == wanted, seed
    assert all(event.value == b"%d" % event.seq for event in got if event.kind == "event")
    if voids:
        covered = [seq for event in got for seq in event.range]
        assert covered == list(range(start, reached))
        for event in got:
            if event.kind == "void":
                multiples = {seq % 13 == 0 for seq in event.range}
                assert multiples == {event.reason == "collected"}, (seed, event)
    if len(rules) == 1 and where:
        assert buffer.matched == len([event for event in got if event.kind == "event"])
    return sum(begin < reached for begin, _ in rules) - 1


def changes() -> None:
    total = 0

    async def scenario() -> None:
        nonlocal total
        for seed in range(6):
            total += await run(seed, voids=seed % 2 == 0)

    play(scenario)
    assert total > 40, total


def test_no_event_is_delivered_twice_or_left_out_when_the_filter_changes() -> None:
    changes()


BUFFER = "surecast.client.subscription_buffer:SubscriptionBuffer."
PROGRESS = "surecast.client.stream_progress:StreamProgress."
MUTANTS: dict[str, Edit] = {
    "batches of the old filter are accepted": Edit(
        PROGRESS + "admit", "self.awaited and batch.is_filtered", "False"
    ),
    "batches are not filtered by the client": Edit(
        BUFFER + "take_in", "progress.filter is not None", "False"
    ),
    "unread events of the old filter stay": Edit(
        BUFFER + "change", "self._inbox.clear()", "pass"
    ),
    "the rest of the current batch is skipped": Edit(
        BUFFER + "change", "elif taken:", "elif taken and False:"
    ),
    "the position is that of the batch": Edit(
        BUFFER + "change", "self.current = progress, begin", "pass"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_an_error_in_changing_filters_is_noticed(name: str) -> None:
    must_fail(changes, MUTANTS[name])


def batch(lo: int, hi: int, stream: bytes = SID) -> Batch:
    keys = [key_of(seq) for seq in range(lo, hi)]
    return Batch.of(stream, [b"%d" % n for n in range(lo, hi)], keys).sequenced(lo, 1, 1)


def made(where: str | None, **more: Any) -> tuple[SubscriptionBuffer, Any]:
    buffer = SubscriptionBuffer(ClientOptions(), more.pop("voids", False), True, True)
    reader: Any = FakeReader(Random(0))
    info = StreamInfo(SID, "s", "east", KeepAll())
    buffer.add(info, reader, 1, chosen=filter_of(where), **more)
    return buffer, reader


def test_the_end_of_a_deleted_stream_that_an_earlier_delivery_reached_is_ignored() -> None:
    async def scenario() -> None:
        buffer, _ = made("key == '0'")
        buffer.take_following(Following(SID, 1, 1))
        buffer.take_in(SID, (batch(1, 30),))
        assert await buffer.next_rows()
        first = next(buffer.rows)
        buffer.change({SID: filter_of("key == '1'")}, {})
        buffer.take_ended(Ended(SID, 30))  # at the position of the earlier delivery
        assert not buffer.streams[SID].finished
        buffer.take_following(Following(SID, 6, 2))
        end = Batch.of(SID, [encode_policy(End())], kind=CONFIG).sequenced(30, 1, 1)
        buffer.take_in(SID, (batch(first.seq + 1, 30), end))
        found = []
        while "s" not in buffer.deleted:
            waits = asyncio.ensure_future(buffer.next_rows())
            await asyncio.sleep(0.01)
            waits.cancel()
            found += [event.seq for event in buffer.rows]
        assert found == [seq for seq in range(first.seq + 1, 30) if key_of(seq) == b"1"]

    play(scenario)


def test_a_stream_that_was_received_to_its_stop_is_received_again_from_the_change_on() -> None:
    async def scenario() -> None:
        buffer, reader = made("key == '0'", stop=30)
        buffer.set_complete()
        buffer.take_following(Following(SID, 1, 1))
        buffer.take_in(SID, (batch(1, 40),))
        assert buffer.streams[SID].finished
        assert await buffer.next_rows()
        first = next(buffer.rows)
        assert SID not in reader.takers
        assert buffer.change({SID: filter_of("key == '1'")}, {}) == {"s": first.seq + 1}
        assert SID in reader.takers
        buffer.take_following(Following(SID, first.seq + 1, 2))
        buffer.take_in(SID, (batch(first.seq + 1, 40),))
        assert await buffer.next_rows()
        found = [event.seq for event in buffer.rows]
        assert found == [seq for seq in range(first.seq + 1, 30) if key_of(seq) == b"1"]
        assert buffer.streams[SID].finished
        list(buffer.rows)
        assert not await buffer.next_rows()
        assert buffer.change({SID: None}, {}) == {"s": 30}  # nothing is left to be received
        assert buffer.streams[SID].finished

    play(scenario)


def test_a_batch_without_the_types_of_the_schema_ends_the_subscription_with_an_error() -> None:
    async def scenario() -> None:
        buffer, _ = made(None)
        buffer.streams[SID].filter = batch_filter("qty > 3", "qty int64")
        types = read_schema("qty string").types
        table = pa.RecordBatch.from_arrays([pa.array(["5"])], schema=types.arrow_schema())
        other = Batch.of(SID, [b""], attributes=Attributes(types, 1, table=table))
        buffer.take_in(SID, (other.sequenced(1, 1, 1),))
        with pytest.raises(UsageError, match="the filter of stream 's'"):
            await buffer.next_rows()

    play(scenario)


def test_manual_acknowledgements_cover_what_the_filter_drops_after_the_last_event() -> None:
    async def scenario() -> None:
        buffer, _ = made("key == '0'")
        buffer.take_following(Following(SID, 1, 1))
        progress = buffer.streams[SID]
        buffer.take_in(SID, (batch(1, 6), Batch.void(SID, 6, 90, FILTERED), batch(90, 120)))
        assert await buffer.next_rows()
        events = list(buffer.rows)
        waits = asyncio.ensure_future(buffer.next_rows())
        await asyncio.sleep(0)
        waits.cancel()
        assert buffer.positions() == {SID: 1}
        buffer.acknowledge(progress, events[0].seq + 1)
        assert buffer.positions() == {SID: events[0].seq + 1}
        buffer.acknowledge(progress, events[-1].seq + 1)
        assert buffer.positions() == {SID: 120}
        buffer.take_in(SID, (Batch.void(SID, 120, 500, FILTERED),))
        for _ in range(2):
            waits = asyncio.ensure_future(buffer.next_rows())
            await asyncio.sleep(0)
            waits.cancel()
        assert buffer.positions() == {SID: 500}

    play(scenario)
