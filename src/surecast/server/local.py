"""A region inside the caller's own event loop: one replica and its witness, on loopback.

    region = LocalRegion()
    await region.start()
    client = surecast.connect(region.url)
    await region.stop()

It is the real server without the process around it. With a data folder, what was acknowledged is
there again at the next start; without one it lives as long as the object.
"""

from pathlib import Path

from surecast.errors import StorageError, UsageError
from surecast.runtime.book import show_address
from surecast.server.config import build
from surecast.server.region import RegionServer

__all__ = ["LocalRegion"]


class LocalRegion:
    """See the module. Every method is for the thread of its event loop."""

    def __init__(
        self, data_dir: Path | str | None = None, name: str = "local", start: str = "ask"
    ) -> None:
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
                "sprinkler": {"start": start},
            }
        )
        self.server: RegionServer | None = None

    async def start(self) -> None:
        """Listen. Founding the chain takes a moment more; clients wait for it by themselves."""
        if self.server is not None:
            raise UsageError("this region runs already; stop it first")
        server = RegionServer(self.config)
        await server.start()
        try:
            self._check(server)
        except StorageError:
            await server.stop()
            raise
        self.server = server

    def _check(self, server: RegionServer) -> None:
        """A region inside a program shows no alarms, so damage is an error here."""
        if self.config.sprinkler.start == "trust":
            return
        why = server.chain.saved.distrust
        if not why and (holes := [hole for some in server.chain.holes.values() for hole in some]):
            why = f"{len(holes)} ranges of positions cannot be read"
        if why:
            raise StorageError(
                f"{self.config.node.data_dir}: {why}. Some of what was acknowledged may be lost. "
                "Restore the folder from a copy; `surecast log verify` names what is damaged. To "
                'go on with what can be read, pass start="trust"'
            )

    async def stop(self) -> None:
        """Let what is under way go out, write what is queued, close. May be started again."""
        server, self.server = self.server, None
        if server is not None:
            await server.drain()

    @property
    def url(self) -> str:
        """Where clients connect to."""
        if self.server is None or self.server.replica is None:
            raise UsageError("this region is not running: `await region.start()` first")
        address = self.server.replica.address
        assert address is not None
        return f"surecast://{show_address(address)}"
