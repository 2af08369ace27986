"""A region inside the caller's own event loop: one replica and its witness, on loopback.

    region = LocalRegion()
    await region.start()
    client = surecast.connect(region.url)
    await region.stop()

It is the real server without the process around it. With a data folder, what was acknowledged is
there again at the next start; without one it lives as long as the object.
"""

from dataclasses import fields
from pathlib import Path

from surecast.errors import ConfigError, StorageError, UsageError
from surecast.registry import roles
from surecast.runtime.addresses import show_address
from surecast.server.config import build
from surecast.server.region import RegionServer

__all__ = ["LocalRegion"]


class LocalRegion:
    """See the module. Every method is for the thread of its event loop."""

    def __init__(
        self, data_dir: Path | str | None = None, name: str = "local", start: str = "ask"
    ) -> None:
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
                **{role: {"start": start} for role in _that_can_be_told()},
            }
        )
        self.trusting = start == "trust"
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
        if self.trusting:
            return
        if why := server.chain().damage:
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


def _that_can_be_told() -> list[str]:
    """The roles that can be told how far to trust their disk at a start."""
    known = roles().items()
    return [name for name, role in known if "start" in {one.name for one in fields(role.config)}]
