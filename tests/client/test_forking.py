"""In a forked child, calls on the parent's client fail at once, and a new connection works."""

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Callable, Coroutine
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import surecast
from surecast import sync
from surecast.client.connection import Client
from surecast.errors import UsageError
from tests.client.stage import play

WAIT_S = 20  # a child that hangs is killed by a signal


def in_child(work: Callable[[], Any]) -> str:
    """The result or exception of `work` in a forked child, as text."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(WAIT_S)
            try:
                result = f"returned {work()!r}"
            except Exception as problem:
                result = f"{type(problem).__name__}: {problem}"
            os.write(writing, result.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        result = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return result if status == 0 else f"ended by signal {os.WTERMSIG(status)}"


def is_refused(result: str) -> bool:
    return result.startswith("UsageError: ") and "Connect again in the child" in result


USES: dict[str, Callable[[sync.Client, sync.Stream, sync.Subscription], Any]] = {
    "publish": lambda client, stream, sub: stream.publish(b"x"),
    "publish_soon": lambda client, stream, sub: stream.publish_soon(b"x"),
    "publish_many": lambda client, stream, sub: stream.publish_many([b"x"]),
    "named": lambda client, stream, sub: stream.named("me", 1),
    "collect": lambda client, stream, sub: stream.collect(surecast.before_seq(1)),
    "stream": lambda client, stream, sub: client.stream("t"),
    "streams": lambda client, stream, sub: client.streams(),
    "flush": lambda client, stream, sub: client.flush(),
    "region": lambda client, stream, sub: client.region,
    "subscribe": lambda client, stream, sub: stream.subscribe(),
    "pattern": lambda client, stream, sub: client.subscribe(">"),
    "iterate": lambda client, stream, sub: next(iter(sub)),
    "next": lambda client, stream, sub: next(sub),
    "read": lambda client, stream, sub: stream.read(),
    "batches": lambda client, stream, sub: next(sub.batches()),
    "ready": lambda client, stream, sub: sub.ready(),
}


@pytest.fixture(scope="module")
def region() -> Any:
    """A client, a stream of three events, and a subscription that has read the first of them."""
    with sync.local() as client:
        stream = client.stream("s")
        stream.publish_many([b"1", b"2", b"3"])
        sub = stream.subscribe(start="earliest")
        assert next(iter(sub)).value == b"1"
        yield client, stream, sub


@pytest.mark.parametrize("use", USES)
def test_every_use_in_the_child_is_refused(region: Any, use: str) -> None:
    assert is_refused(in_child(lambda: USES[use](*region)))


def test_the_parent_is_not_affected(region: Any) -> None:
    _, stream, sub = region
    assert is_refused(in_child(lambda: stream.publish(b"x")))
    assert [event.value for event in islice(sub, 2)] == [b"2", b"3"]
    last = stream.publish(b"4")
    assert next(iter(sub)).seq == last


def test_leaving_the_block_in_the_child_is_no_error(region: Any) -> None:
    """The child has nothing to close, and the exit must not raise an error."""
    client, stream, sub = region

    def leave() -> str:
        sub.close()
        client.close()
        client.__exit__(None, None, None)
        return "left"

    assert in_child(leave) == "returned 'left'"
    assert stream.publish(b"the parent is still connected") > 0


def test_the_child_can_connect_by_itself(region: Any) -> None:
    client, stream, _ = region
    url = client._inner._local.url

    def again() -> int:
        with sync.connect(url) as mine:
            return mine.stream("s").publish(b"from the child")

    before = stream.publish(b"from the parent")
    assert in_child(again) == f"returned {before + 1}"
    assert in_child(lambda: sync.local().stream("t").publish(b"own")) == "returned 1"


def test_buffered_events_of_publish_soon_belong_to_the_parent(region: Any) -> None:
    """`publish_soon` adds to a started draft by a shortcut that the child must not use."""
    client, stream, _ = region
    stream.publish_soon(b"a")
    assert is_refused(in_child(lambda: stream.publish_soon(b"b")))
    client.flush()


def _publish(stream: sync.Stream) -> str:
    signal.alarm(WAIT_S)
    try:
        return str(stream.publish(b"x"))
    except UsageError as problem:
        return f"UsageError: {problem}"


_streams_of_the_parent: list[sync.Stream] = []


def _in_worker(number: int) -> str:
    return _publish(_streams_of_the_parent[number])


def test_workers_of_multiprocessing_are_refused(region: Any) -> None:
    _streams_of_the_parent[:] = [region[1]]
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert is_refused(pool.apply_async(_in_worker, (0,)).get(WAIT_S))


# ------------------------------------------------------------ with an event loop

Use = Callable[[Client, surecast.Stream, surecast.Subscription], Coroutine[Any, Any, Any]]


async def _publish_soon(
    _client: Client, stream: surecast.Stream, _sub: surecast.Subscription
) -> None:
    stream.publish_soon(b"x")


async def _subscribe(client: Client, _stream: surecast.Stream, _sub: surecast.Subscription) -> None:
    client.subscribe(">")


AWAITED: dict[str, Use] = {
    "publish": lambda client, stream, sub: stream.publish(b"x"),
    "publish_soon": _publish_soon,
    "publish_many": lambda client, stream, sub: stream.publish_many([b"x"]),
    "stream": lambda client, stream, sub: client.stream("t"),
    "flush": lambda client, stream, sub: client.flush(),
    "open": lambda client, stream, sub: client.open(),
    "subscribe": _subscribe,
    "iterate": lambda client, stream, sub: sub.__anext__(),
    "ready": lambda client, stream, sub: sub.ready(),
    "ack": lambda client, stream, sub: sub.ack(surecast.Event("s", 1, None, b"", 0)),
}


@pytest.mark.parametrize("use", AWAITED)
def test_every_use_with_a_new_event_loop_in_the_child_is_refused(tmp_path: Path, use: str) -> None:
    async def scenario() -> None:
        async with surecast.local(tmp_path) as client:
            stream = await client.stream("s")
            await stream.publish_many([b"1", b"2"])
            sub = await stream.subscribe(start="earliest", name="mine", ack="manual").ready()
            assert (await anext(sub)).value == b"1"
            stream.publish_soon(b"3")
            assert is_refused(in_child(lambda: asyncio.run(AWAITED[use](client, stream, sub))))
            assert in_child(lambda: asyncio.run(sub.close())) == "returned None"
            assert in_child(lambda: asyncio.run(client.close())) == "returned None"
            await client.flush()
            assert [(await anext(sub)).value for _ in range(2)] == [b"2", b"3"]

    play(scenario)


def test_a_client_not_yet_connected_can_be_used_in_the_child() -> None:
    client = surecast.local()

    async def use() -> int:
        async with client:
            return await (await client.stream("s")).publish(b"1")

    assert in_child(lambda: asyncio.run(use())) == "returned 1"
