"""Acknowledgements on exit: a clean exit acknowledges the events handed out."""

import asyncio
import gc
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import surecast
from surecast import sync
from surecast.client.connection import Client
from surecast.client.stream import Stream
from surecast.client.subscription import Subscription
from tests.client.stage import Regions, play, until


class Stop(Exception):
    pass


async def filled(client: Client) -> Stream:
    """A stream of 600 events, more than one batch holds."""
    stream = await client.stream("s")
    for _ in range(3):
        await stream.publish_many([b"x"] * 200)
    return stream


async def read_two(sub: Subscription) -> None:
    async for event in sub:
        if event.seq == 2:
            return


async def next_position(regions: Regions) -> int:
    """The first position that the next subscription with this name reads."""
    async with regions.client("east") as client:
        sub = client.subscribe("s", start="earliest", name="me")
        await (await client.stream("s")).publish(b"if nothing else is left")
        return (await anext(sub)).seq


def resumes_at(exit_: Any) -> int:
    """Where the next subscription begins after one that ended with `exit_(client, stream)`."""
    found = 0

    async def scenario() -> None:
        nonlocal found
        async with Regions(east=1) as regions:
            with suppress(Stop):
                async with regions.client("east") as client:
                    await exit_(client, await filled(client))
            found = await next_position(regions)

    play(scenario)
    return found


# ------------------------------------------------------------ clean exits


def test_leaving_the_subscription_block_after_a_break_acknowledges() -> None:
    async def leave(client: Client, stream: Stream) -> None:
        async with stream.subscribe("earliest", name="me") as sub:
            async for event in sub:
                if event.seq == 2:
                    break

    assert resumes_at(leave) == 3


def test_leaving_the_client_block_after_a_break_acknowledges() -> None:
    async def leave(client: Client, stream: Stream) -> None:
        async for event in stream.subscribe("earliest", name="me"):
            if event.seq == 2:
                break

    assert resumes_at(leave) == 3


def test_leaving_the_client_block_later_acknowledges() -> None:
    async def leave(client: Client, stream: Stream) -> None:
        await read_two(client.subscribe("s", start="earliest", name="me"))
        gc.collect()  # the subscription is garbage, and closed soon
        await until(lambda: all(task.buffer.ended for task in client._subscriptions))

    assert resumes_at(leave) == 3


def test_close_after_or_inside_a_loop_acknowledges() -> None:
    async def leave(client: Client, stream: Stream) -> None:
        sub = stream.subscribe("earliest", name="me")
        await read_two(sub)
        await sub.close()

    async def within(client: Client, stream: Stream) -> None:
        sub = stream.subscribe("earliest", name="me")
        async for event in sub:
            if event.seq == 2:
                await sub.close()

    assert resumes_at(leave) == 3
    assert resumes_at(within) == 3


def test_events_taken_one_at_a_time_are_acknowledged() -> None:
    async def leave(client: Client, stream: Stream) -> None:
        async with stream.subscribe("earliest", name="me") as sub:
            assert (await anext(sub)).seq == 1
            assert (await asyncio.wait_for(anext(sub), 10)).seq == 2

    assert resumes_at(leave) == 3


def test_batches_are_acknowledged_whole() -> None:
    seqs: list[int] = []

    async def leave(client: Client, stream: Stream) -> None:
        async with stream.subscribe("earliest", name="me") as sub:
            async for batch in sub.batches():
                seqs.extend(batch.column("seq").to_pylist())
                break

    async def fail(client: Client, stream: Stream) -> None:
        async with stream.subscribe("earliest", name="me") as sub:
            async for _batch in sub.batches():
                raise Stop

    assert resumes_at(leave) == len(seqs) + 1
    assert resumes_at(fail) == 1


def test_events_received_but_not_handed_out_are_not_acknowledged() -> None:
    async def leave(client: Client, stream: Stream) -> None:
        async with stream.subscribe("earliest", name="me") as sub:
            assert await sub._buffer.next_rows()  # as if cancelled before the first event

    assert resumes_at(leave) == 1


def test_events_read_by_a_task_that_ended_normally_are_acknowledged() -> None:
    async def leave(client: Client, stream: Stream) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(read_two(stream.subscribe("earliest", name="me")))

    assert resumes_at(leave) == 3


# ------------------------------------------------------------ exits by an exception


def test_an_exception_that_leaves_the_client_block_does_not_acknowledge() -> None:
    async def fail(client: Client, stream: Stream) -> None:
        async for event in stream.subscribe("earliest", name="me"):
            if event.seq == 2:
                raise Stop

    assert resumes_at(fail) == 2


def test_an_exception_later_in_the_client_block_does_not_acknowledge() -> None:
    async def fail(client: Client, stream: Stream) -> None:
        await read_two(stream.subscribe("earliest", name="me"))
        await asyncio.sleep(0.2)
        raise Stop

    assert resumes_at(fail) == 2


def test_an_exception_that_leaves_the_subscription_block_does_not_acknowledge() -> None:
    async def fail(client: Client, stream: Stream) -> None:
        with suppress(Stop):
            async with stream.subscribe("earliest", name="me") as sub:
                await read_two(sub)
                raise Stop

    assert resumes_at(fail) == 2


def test_close_in_a_finally_block_acknowledges_only_without_exception() -> None:
    async def fail(client: Client, stream: Stream) -> None:
        sub = stream.subscribe("earliest", name="me")
        try:
            await read_two(sub)
            raise Stop
        finally:
            await sub.close()

    async def close_client(client: Client, stream: Stream) -> None:
        try:
            async for event in stream.subscribe("earliest", name="me"):
                if event.seq == 2:
                    raise Stop
        finally:
            await client.close()

    async def clean(client: Client, stream: Stream) -> None:
        sub = stream.subscribe("earliest", name="me")
        try:
            await read_two(sub)
        finally:
            await sub.close()

    assert resumes_at(fail) == 2
    assert resumes_at(close_client) == 2
    assert resumes_at(clean) == 3


def test_cancellation_does_not_acknowledge() -> None:
    async def fail(client: Client, stream: Stream) -> None:
        has_two = asyncio.Event()

        async def read() -> None:
            async with stream.subscribe("earliest", name="me") as sub:
                await read_two(sub)
                has_two.set()
                await asyncio.sleep(60)

        reading = asyncio.create_task(read())
        await has_two.wait()
        reading.cancel()
        await asyncio.wait([reading])
        assert reading.cancelled()

    assert resumes_at(fail) == 2


def test_a_subscription_opened_again_reads_the_failed_event_again() -> None:
    async def again(client: Client, stream: Stream) -> None:
        with suppress(Stop):
            async for event in stream.subscribe("earliest", name="me"):
                if event.seq == 2:
                    raise Stop
        await asyncio.sleep(0.2)
        with suppress(Stop):
            async with stream.subscribe(name="me") as sub:
                assert (await anext(sub)).seq == 2
                raise Stop

    assert resumes_at(again) == 2


# ------------------------------------------------------------ tasks that read, and others


def test_an_event_that_another_task_still_processes_is_not_acknowledged() -> None:
    async def leave(client: Client, stream: Stream) -> None:
        sub, has_two = stream.subscribe("earliest", name="me"), asyncio.Event()

        async def work() -> None:
            await read_two(sub)
            has_two.set()
            await asyncio.sleep(60)

        working = asyncio.create_task(work())
        await has_two.wait()
        await sub.close()
        working.cancel()

    assert resumes_at(leave) == 2


def test_an_event_whose_task_failed_is_not_acknowledged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def leave(client: Client, stream: Stream) -> None:
        sub = stream.subscribe("earliest", name="me")

        async def work() -> None:
            await read_two(sub)
            raise Stop

        await asyncio.wait([asyncio.create_task(work())])
        await sub.close()

    assert resumes_at(leave) == 2
    assert "Stop()" in caplog.text


def test_with_manual_acknowledgement_only_ack_acknowledges() -> None:
    async def leave(client: Client, stream: Stream) -> None:
        async with stream.subscribe("earliest", name="me", ack="manual") as sub:
            await read_two(sub)

    assert resumes_at(leave) == 1


# ------------------------------------------------------------ without await


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with sync.local(tmp_path / "data") as client:
        stream = client.stream("s")
        for _ in range(3):
            stream.publish_many([b"x"] * 200)
    return tmp_path / "data"


def first_of_next_run(folder: Path) -> int:
    with sync.local(folder) as client:
        stream = client.stream("s")
        stream.publish(b"if nothing else is left")
        return next(iter(stream.subscribe("earliest", name="me"))).seq


@pytest.mark.parametrize("by_exception", [False, True])
@pytest.mark.parametrize("block", ["subscription", "client", "close", "batches"])
def test_exits_of_the_sync_client(folder: Path, block: str, by_exception: bool) -> None:
    last = 0
    with suppress(Stop), sync.local(folder) as client:
        sub = client.stream("s").subscribe("earliest", name="me")
        if block == "subscription":
            with suppress(Stop), sub:
                for event in sub:
                    if event.seq == 2:
                        break
                if by_exception:
                    raise Stop
        elif block == "close":
            with suppress(Stop):
                try:
                    for event in sub:
                        if event.seq == 2:
                            break
                    if by_exception:
                        raise Stop
                finally:
                    sub.close()
        elif block == "batches":
            last = next(sub.batches()).column("seq")[-1].as_py()
            if by_exception:
                raise Stop
        else:
            for event in sub:
                if event.seq == 2:
                    break
            del sub
            if by_exception:
                raise Stop
    clean, again = (last + 1, 1) if block == "batches" else (3, 2)
    assert first_of_next_run(folder) == (again if by_exception else clean)


def test_sync_an_event_that_another_thread_still_processes_is_not_acknowledged(
    folder: Path,
) -> None:
    with sync.local(folder) as client:
        sub, end = client.stream("s").subscribe("earliest", name="me"), threading.Event()
        has_two = threading.Event()

        def work() -> None:
            for event in sub:
                if event.seq == 2:
                    has_two.set()
                    end.wait(30)
                    return

        working = threading.Thread(target=work)
        working.start()
        assert has_two.wait(30)
        sub.close()
        end.set()
        working.join()
    assert first_of_next_run(folder) == 2


def test_sync_an_interrupted_call_hands_out_nothing(folder: Path) -> None:
    """Ctrl-C after the loop's thread has taken a batch and before the caller receives it."""
    with sync.local(folder) as client:
        sub = client.stream("s").subscribe("earliest", name="me")
        call = client._loop.call

        def interrupted(work: Any) -> Any:
            call(work)
            raise KeyboardInterrupt

        client._loop.call = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            next(sub.batches())
        client._loop.call = call  # type: ignore[method-assign]
        sub.close()
    assert first_of_next_run(folder) == 1


def test_a_client_remembers_a_bounded_number_of_dropped_subscriptions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("surecast.client.connection.DROPPED_MAX", 2)

    async def scenario() -> None:
        async with surecast.local() as client:
            stream = await filled(client)
            for name in ("a", "b", "c"):
                await anext(stream.subscribe("earliest", name=name))
                await until(lambda name=name: name in client._dropped)  # type: ignore[misc]
            assert list(client._dropped) == ["b", "c"]

    play(scenario)
