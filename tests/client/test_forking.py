"""A forked child is told that its client is the parent's, at once, and can connect by itself."""

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
    """What `work` returned or raised in a forked child."""
    theirs, ours = os.pipe()
    child = os.fork()
    if not child:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(WAIT_S)
            try:
                said = f"returned {work()!r}"
            except Exception as problem:
                said = f"{type(problem).__name__}: {problem}"
            os.write(ours, said.encode())
        finally:
            os._exit(0)
    os.close(ours)
    with open(theirs, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return said if status == 0 else f"ended by signal {os.WTERMSIG(status)}"


def is_told(said: str) -> bool:
    return said.startswith("UsageError: ") and "Connect again in the child" in said


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
    assert is_told(in_child(lambda: USES[use](*region)))


def test_the_parent_goes_on(region: Any) -> None:
    _, stream, sub = region
    assert is_told(in_child(lambda: stream.publish(b"x")))
    assert [event.value for event in islice(sub, 2)] == [b"2", b"3"]
    last = stream.publish(b"4")
    assert next(iter(sub)).seq == last


def test_leaving_the_block_in_the_child_is_no_error(region: Any) -> None:
    """It has nothing to close, and must not hide what the child does next."""
    client, stream, sub = region

    def leave() -> str:
        sub.close()
        client.close()
        client.__exit__(None, None, None)
        return "left"

    assert in_child(leave) == "returned 'left'"
    assert stream.publish(b"the parent's is open") > 0


def test_the_child_can_connect_by_itself(region: Any) -> None:
    client, stream, _ = region
    url = client._inner._local.url

    def again() -> int:
        with sync.connect(url) as mine:
            return mine.stream("s").publish(b"from the child")

    before = stream.publish(b"from the parent")
    assert in_child(again) == f"returned {before + 1}"
    assert in_child(lambda: sync.local().stream("t").publish(b"own")) == "returned 1"


def test_buffered_events_of_publish_soon_are_the_parents(region: Any) -> None:
    """A draft that has begun takes events by a short way, which must not be open in the child."""
    client, stream, _ = region
    stream.publish_soon(b"a")
    assert is_told(in_child(lambda: stream.publish_soon(b"b")))
    client.flush()


def _publish(stream: sync.Stream) -> str:
    signal.alarm(WAIT_S)
    try:
        return str(stream.publish(b"x"))
    except UsageError as problem:
        return f"UsageError: {problem}"


_of_the_parent: list[sync.Stream] = []


def _in_worker(number: int) -> str:
    return _publish(_of_the_parent[number])


def test_workers_of_multiprocessing(region: Any) -> None:
    _of_the_parent[:] = [region[1]]
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert is_told(pool.apply_async(_in_worker, (0,)).get(WAIT_S))


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
def test_every_use_with_a_loop_of_the_childs_own_is_refused(tmp_path: Path, use: str) -> None:
    async def story() -> None:
        async with surecast.local(tmp_path) as client:
            stream = await client.stream("s")
            await stream.publish_many([b"1", b"2"])
            sub = await stream.subscribe(start="earliest", name="mine", ack="manual").ready()
            assert (await anext(sub)).value == b"1"
            stream.publish_soon(b"3")
            assert is_told(in_child(lambda: asyncio.run(AWAITED[use](client, stream, sub))))
            assert in_child(lambda: asyncio.run(sub.close())) == "returned None"
            assert in_child(lambda: asyncio.run(client.close())) == "returned None"
            await client.flush()
            assert [(await anext(sub)).value for _ in range(2)] == [b"2", b"3"]

    play(story)


def test_a_client_that_was_not_connected_yet_can_be_in_the_child() -> None:
    client = surecast.local()

    async def use() -> int:
        async with client:
            return await (await client.stream("s")).publish(b"1")

    assert in_child(lambda: asyncio.run(use())) == "returned 1"
