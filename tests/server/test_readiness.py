"""A replica with a full disk is not ready and gives the reason until there is space."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from surecast import ClientOptions, connect
from surecast.server.region import RegionServer
from surecast.server.status import not_ready
from surecast.storage.memory import MemoryDisk
from tests.server.opened import Open, run, two_replicas, until
from tests.storage.stores import Room


async def readyz(region: Open, wanted: int) -> list[str]:
    """Wait until /readyz has this status; returns the reasons in the answer."""
    while True:
        status, said = await region.get("/readyz")
        assert status in (200, 503)
        if status == wanted:
            reasons: list[str] = said["reasons"]
            return reasons
        await asyncio.sleep(0.01)


def test_a_lone_replica_with_a_full_disk_is_not_ready_until_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        room = Room(monkeypatch)
        async with Open(data_dir=str(tmp_path)) as region:
            assert (await region.post("/v1/streams/s/events", b"before"))[0] == 200
            room.left = 0
            waits = asyncio.create_task(region.post("/v1/streams/s/events", b"x"))
            reasons = await readyz(region, 503)
            assert "disk-failing: writes fail" in reasons[0]
            assert (await region.get("/healthz"))[0] == 200  # restarting it would not help
            assert not waits.done()
            room.left = 1 << 60
            assert await readyz(region, 200) == []
            assert (await waits)[0] == 200

    run(main)


def test_a_replica_is_ready_again_although_the_publish_was_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The HTTP publish timed out; the replica still writes the accepted event, without a retry."""

    async def main() -> None:
        room = Room(monkeypatch)
        async with Open({"publish_timeout_ns": 50_000_000}, data_dir=str(tmp_path)) as region:
            await readyz(region, 200)
            room.left = 0
            # On a slow machine the first requests may be given up before the replica has the event.
            while (await region.get("/readyz"))[0] == 200:
                assert (await region.post("/v1/streams/s/events", b"x"))[0] == 504
            room.left = 1 << 60
            await readyz(region, 200)

    run(main)


def test_a_full_memory_disk_makes_a_replica_not_ready() -> None:
    async def main() -> None:
        async with Open({"publish_timeout_ns": 50_000_000}) as region:
            while (await region.post("/v1/streams/s/events", b"x"))[0] != 200:
                pass  # a slow machine may need more than the timeout
            disk_of(region.server).capacity_bytes = disk_of(region.server).nbytes
            while (await region.get("/readyz"))[0] == 200:
                assert (await region.post("/v1/streams/s/events", b"x"))[0] == 504
            disk_of(region.server).capacity_bytes = None
            await readyz(region, 200)

    run(main)


# ---------------------------------------------------------------- two replicas


def disk_of(server: RegionServer) -> MemoryDisk:
    assert server.replica is not None
    disk = server.replica.store.disk
    assert type(disk) is MemoryDisk
    return disk


def is_failing(server: RegionServer) -> Callable[[], bool]:
    return lambda: any(why.startswith("disk-failing") for why in not_ready(server))


async def publish(server: RegionServer) -> None:
    address = server.config.node.listen
    async with connect(f"surecast://{address}", options=ClientOptions()) as client:
        await (await client.stream("s")).publish(b"x")


@pytest.mark.parametrize("place", [0, 1], ids=["head", "tail"])
def test_a_member_with_a_full_disk_is_not_ready_until_there_is_space(place: int) -> None:
    async def main() -> None:
        async with two_replicas(store_retries_max=1_000_000) as servers:
            failing, other = servers[place], servers[1 - place]
            await publish(other)
            disk_of(failing).failing = "full"
            waits = asyncio.create_task(publish(other))
            await until(is_failing(failing))
            assert not waits.done()
            assert not not_ready(other)  # its own disk works
            disk_of(failing).failing = ""
            await waits
            await until(lambda: not not_ready(failing))

    run(main)


@pytest.mark.parametrize("place", [0, 1], ids=["head", "tail"])
def test_a_member_that_left_with_a_full_disk_rejoins_when_there_is_space(place: int) -> None:
    async def main() -> None:
        async with two_replicas(store_retries_max=2, min_replicas=1) as servers:
            failing, other = servers[place], servers[1 - place]
            await publish(other)
            disk_of(failing).failing = "full"
            await publish(other)  # the other replica goes on alone
            await until(lambda: not failing.chain().is_member)
            assert any(why.startswith("not-in-chain") for why in not_ready(failing))
            assert not not_ready(other)
            disk_of(failing).failing = ""
            await until(lambda: not not_ready(failing))  # nothing is published meanwhile
            assert failing.chain().is_member

    run(main)


def test_failed_writes_of_truncated_batches_do_not_count() -> None:
    """A replica whose suffix was truncated has nothing left to write."""

    async def main() -> None:
        async with Open() as region:
            await readyz(region, 200)
            region.server.layers["chain"].store_failures = 7  # as after chain/roles.py `_drop_fork`
            assert await readyz(region, 200) == []

    run(main)
