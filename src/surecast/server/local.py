"""A region inside the caller's own event loop, on loopback, for `surecast.local()` and tests.

The region has one replica and its *witness*, the service that decides which replicas are members of
a region's chain.

    region = LocalRegion()
    await region.start()
    client = surecast.connect(region.url)
    await region.stop()

The replica and the witness run the same code as in a server process. With a data folder,
acknowledged events are available again after the next start. Without one they are lost when the
region stops.
"""

import asyncio
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

from surecast.errors import ConfigError, StorageError, UsageError
from surecast.registry import roles
from surecast.runtime.addresses import show_address
from surecast.server.config import build
from surecast.server.region import RegionServer

__all__ = ["LocalRegion"]

DIRECTORY_S = 5.0  # how long `start` waits until the directory of streams is read


class LocalRegion:
    """One replica and its witness (see the module). All methods must be called in the event loop's
    thread."""

    def __init__(
        self, data_dir: Path | str | None = None, name: str = "local", start: str = "ask"
    ) -> None:
        """`data_dir` is the data folder; with None, everything is kept in memory. `name` is the
        name of the region.

        `start` says what to do with a damaged folder. With "ask", `start()` raises StorageError.
        With "trust", the region continues with the data that can be read.
        """
        if start not in ("ask", "trust"):
            raise ConfigError(f"start is {start!r}; use 'ask' or 'trust'")
        replica = f"{name}-1"
        self.config = build(
            {
                "node": {
                    "name": replica,
                    "region": name,
                    "data_dir": "" if data_dir is None else str(data_dir),
                    "listen": "127.0.0.1:0",
                    "http": "",
                },
                "regions": {name: {"replicas": {replica: "127.0.0.1:0"}}},
                **{role: {"start": start} for role in _roles_with_start()},
            }
        )
        self.trusting = start == "trust"
        self.server: RegionServer | None = None

    async def start(self) -> None:
        """Listen for clients. Returns when the region has read which streams are in its data folder
        (until then it would answer that they do not exist), or after DIRECTORY_S."""
        if self.server is not None:
            raise UsageError("this region is running already; stop it first")
        server = RegionServer(self.config)
        await server.start()
        try:
            self._check(server)
            with suppress(TimeoutError):  # the region does not work yet; requests of clients wait
                async with asyncio.timeout(DIRECTORY_S):
                    while not server.streams.has_read_directory:
                        await asyncio.sleep(0.001)
        except BaseException:
            await server.stop()
            raise
        self.server = server

    def _check(self, server: RegionServer) -> None:
        """Raise StorageError if the disk is damaged. A server process raises an alarm instead, but
        in a local region nobody would see it."""
        if self.trusting:
            return
        if why := server.chain().damage:
            raise StorageError(
                f"{self.config.node.data_dir}: {why}. Acknowledged events may be lost. "
                "Restore the folder from a copy; `surecast log verify` lists the damage. To "
                'continue with what can be read, pass start="trust"'
            )

    async def stop(self) -> None:
        """Answer the publishes in progress, write queued data, and close. Afterwards `start` may be
        called again."""
        server, self.server = self.server, None
        if server is not None:
            await server.drain()

    @property
    def url(self) -> str:
        """The url for clients."""
        if self.server is None or self.server.replica is None:
            raise UsageError("this region is not running: `await region.start()` first")
        address = self.server.replica.address
        assert address is not None
        return f"surecast://{show_address(address)}"


def _roles_with_start() -> list[str]:
    """The names of the roles that have the setting `start`: whether to trust a damaged disk."""
    known = roles().items()
    return [name for name, role in known if "start" in {key.name for key in fields(role.config)}]
