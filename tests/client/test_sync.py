"""The sync client: the same API and semantics as the async client, from plain threads."""

import inspect
import threading
import time
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import pytest

import surecast
from surecast import sync
from surecast.client import sync as twin
from surecast.client.connection import Client
from surecast.client.stream import Stream
from surecast.client.subscription import Subscription
from surecast.columns.batch import Batch
from surecast.endpoint.options import ClientOptions
from surecast.endpoint.publishers import Outbox
from surecast.errors import Closed, ConnectError, QueueFull, StreamConfigMismatch, TimedOut


@pytest.mark.parametrize(
    ("plain", "awaited"),
    [(sync.Client, Client), (sync.Stream, Stream), (sync.Subscription, Subscription)],
)
def test_the_sync_client_has_the_same_api(plain: type, awaited: type) -> None:
    own = {"open"}  # a sync client is open when it is created
    for name, method in vars(awaited).items():
        if name.startswith("_") or name in own:
            continue
        assert hasattr(plain, name), f"{plain.__name__} has no {name}"
        if inspect.isfunction(method):
            ours = inspect.signature(getattr(plain, name)).parameters
            theirs = inspect.signature(method).parameters
            assert list(ours.values()) == list(theirs.values()), name
    for name in ("connect", "local"):
        ours = inspect.signature(getattr(twin, name)).parameters
        assert ours == inspect.signature(getattr(surecast, name)).parameters


def test_publish_subscribe_collect_and_close(tmp_path: Path) -> None:
    with sync.local(tmp_path / "data") as client:
        stream = client.stream("s.a", retain=surecast.keep_all())
        assert stream.publish(b"1", key=b"k") == 1
        assert stream.publish_many([b"2", b"3"]).runs == ((2, 4),)
        for n in range(4, 1001):
            stream.publish_soon(b"%d" % n)
        client.flush()
        events = list(islice(stream.subscribe(start=1), 1000))
        assert [int(e.value) for e in events] == list(range(1, 1001))
        assert [e.seq for e in events] == list(range(1, 1001))
        with client.subscribe("s.*", start=datetime.now(UTC) + timedelta(days=1)) as sub:
            stream.publish(b"later")
            assert next(iter(sub)).value == b"later"
        batches = stream.subscribe(start=1).batches()
        rows = 0
        while rows < 1001:
            rows += next(batches).num_rows
        named = stream.subscribe(start=1, name="n", ack="manual")
        for event in named:
            if event.seq == 500:
                named.ack(event)
                break
        named.close()
        assert next(iter(stream.subscribe(name="n"))).seq == 501
        assert stream.collect(surecast.before_seq(10)) == 1002
        assert [info.name for info in client.streams()] == ["s.a"]
        assert client.region == "local"
        with pytest.raises(StreamConfigMismatch):
            client.stream("s.a", retain=surecast.keep_last(3))
    with pytest.raises(Closed):
        client.stream("s.a")
    client.close()


def test_automatic_acknowledgement_follows_the_current_event() -> None:
    with sync.local(options=ClientOptions(ack_every=0.001)) as client:
        stream = client.stream("s")
        stream.publish_many([b"x"] * 100)
        sub = stream.subscribe(start=1, name="n")
        for event in sub:
            if event.seq == 42:
                break
        deadline = time.monotonic() + 30
        stored = sub._inner._buffer.cursor.stored  # type: ignore[union-attr]
        while stored.get(stream.stream_id) != 42:  # 42 is the current event: 41 is acknowledged
            assert time.monotonic() < deadline
            time.sleep(0.001)
        sub.close()
        assert next(iter(stream.subscribe(name="n"))).seq == 43


def test_next_returns_one_event() -> None:
    with sync.local() as client:
        stream = client.stream("s")
        stream.publish_many([b"1", b"2", b"3", b"4"])
        sub = stream.subscribe(start=1, stop=4)
        assert next(sub).value == b"1"
        assert sub.next(timeout=30).value == b"2"
        assert [event.value for event in sub] == [b"3"]  # a loop continues there
        assert next(sub, None) is None
        with pytest.raises(StopIteration):
            next(sub)
        with pytest.raises(StopIteration):
            sub.next(timeout=1)
        live = stream.subscribe(start=5).ready()
        with pytest.raises(TimedOut, match=r"waited 0.05 s for the next event of 's'"):
            live.next(timeout=0.05)
        stream.publish(b"5")
        assert next(live, None).value == b"5"  # type: ignore[union-attr]


def test_next_acknowledges_the_previous_event() -> None:
    with sync.local() as client:
        stream = client.stream("s")
        stream.publish_many([b"x"] * 10)
        sub = stream.subscribe(start=1, name="n")
        assert [next(sub).seq for _ in range(4)] == [1, 2, 3, 4]
        sub.close()
        first = next(stream.subscribe(name="n", stop="latest"))
        assert first.seq == 5


def test_bounded_reads_end() -> None:
    with sync.local() as client:
        stream = client.stream("s")
        assert stream.read().num_rows == 0
        stream.publish_many([b"%d" % n for n in range(1, 11)])
        stream.collect(surecast.before_seq(1))
        assert [e.seq for e in stream.subscribe(start=3, stop=6)] == [3, 4, 5]
        assert [e.seq for e in client.subscribe("*", start=9, stop="latest")] == [9, 10]
        found = [b.num_rows for b in stream.subscribe(start=1, stop="latest").batches()]
        assert sum(found) == 10
        rows = [b.num_rows for b in stream.subscribe(1, stop="latest", voids=True).batches()]
        assert sum(rows) == 11
        assert stream.read(start=2, stop=4).column("value").to_pylist() == [b"2", b"3"]
        assert stream.read(voids=True).column("kind").to_pylist() == ["event"] * 10 + ["void"]
        slow = stream.subscribe(start=1, timeout=0.05)
        seen: list[int] = []

        def read_on() -> None:
            for event in slow:
                seen.append(event.seq)

        while len(seen) < 10:
            with pytest.raises(TimedOut):
                read_on()
        assert seen == list(range(1, 11))
        with pytest.raises(TimedOut):
            next(slow.batches())
        with pytest.raises(TimedOut):
            stream.read(stop=100, timeout=0.05)


def test_sync_calls_time_out() -> None:
    client = sync.local()
    stream = client.stream("s", timeout=30)
    assert stream.publish(b"x", timeout=30) == 1
    assert stream.publish_batch(Batch.of(stream.stream_id, [b"x"]), timeout=30) == (2, 3)
    control = client._inner._endpoint.control
    control.offer = lambda *offered: None  # type: ignore[method-assign,assignment]
    with pytest.raises(TimedOut, match="the event may still be published"):
        stream.publish(b"x", timeout=0.05)
    with pytest.raises(TimedOut, match="acknowledgement of a batch of 's'"):
        stream.publish_batch(Batch.of(stream.stream_id, [b"x"]), timeout=0.05)
    with pytest.raises(TimedOut):
        client.flush(timeout=0.05)
    with pytest.raises(TimedOut, match="The client is closed"):
        client.close(timeout=0.05)
    client.close()
    with pytest.raises(Closed):
        stream.publish(b"x")


def test_publish_soon_is_bounded() -> None:
    options = ClientOptions(outbox_bytes_max=30_000, event_bytes_max=10_000, batch_bytes_max=10_000)
    with sync.local(options=options) as client:
        stream = client.stream("s")
        taken = full = 0
        while not full:
            try:
                stream.publish_soon(bytes(5000))
                taken += 1
            except QueueFull:
                full += 1
        client.flush()
        assert next(iter(stream.subscribe(start=taken))).seq == taken


def _soon_behind_one_that_waits() -> None:
    """A thread waits for room; an event of another thread would fit, but must not overtake it."""
    options = ClientOptions(outbox_bytes_max=10_000, event_bytes_max=8_000, batch_bytes_max=2_000)
    with sync.local(options=options) as client:
        stream = client.stream("s")
        control, outbox = client._inner._endpoint.control, stream._inner._outbox
        offer, held = control.offer, []
        control.offer = lambda *offered: held.append(offered)  # type: ignore[assignment]
        threads = [
            threading.Thread(target=stream.publish, args=(bytes(size),)) for size in (6_000, 7_000)
        ]
        for count, thread in enumerate(threads, 1):
            thread.start()
            while outbox.unacknowledged < count:
                time.sleep(0.001)
        refused = False
        try:
            stream.publish_soon(b"small")
        except QueueFull:
            refused = True

        async def let_go() -> None:
            control.offer = offer  # type: ignore[method-assign]
            for offered in held:
                offer(*offered)

        client._loop.call(let_go())
        for thread in threads:
            thread.join()
        client.flush()
        assert refused


def test_publish_soon_does_not_overtake_a_thread_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _soon_behind_one_that_waits()
    monkeypatch.setattr(Outbox, "is_blocked", False)
    with pytest.raises(AssertionError):
        _soon_behind_one_that_waits()


def test_many_threads_share_a_client() -> None:
    with sync.local() as client:
        stream = client.stream("s")
        positions: list[int] = []

        def work(name: str) -> None:
            for n in range(50):
                positions.append(stream.publish(f"{name}.{n}".encode()))
                stream.publish_soon(f"{name}.{n}+".encode())

        threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client.flush()
        assert len(set(positions)) == 200
        values = [e.value for e in islice(stream.subscribe(start=1), 400)]
        assert len(set(values)) == 400
        for name in "abcd":
            own = [v for v in values if v.startswith(name.encode()) and not v.endswith(b"+")]
            assert own == [f"{name}.{n}".encode() for n in range(50)]


def test_closing_ends_an_iteration_in_another_thread() -> None:
    with sync.local() as client:
        stream = client.stream("s")
        sub = stream.subscribe(start=1)
        seen: list[int] = []
        begun = threading.Event()

        def read() -> None:
            for event in sub:
                seen.append(event.seq)
                begun.set()

        thread = threading.Thread(target=read)
        thread.start()
        stream.publish(b"x")
        assert begun.wait(10)
        sub.close()
        thread.join(10)
        assert not thread.is_alive()
        assert seen == [1]


def test_connecting_without_a_server_raises_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())  # clients of other tests may still be closing
    with pytest.raises(ConnectError, match="surecast up"):
        sync.connect("surecast://127.0.0.1:1")
    assert not [t for t in threading.enumerate() if t.name == "surecast" and t not in before]
