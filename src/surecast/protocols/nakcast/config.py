"""What a nakcast group agrees on."""

from dataclasses import dataclass

from surecast.core.types import MS, Peer
from surecast.errors import ConfigError

__all__ = ["NakcastConfig"]


@dataclass(frozen=True, slots=True)
class NakcastConfig:
    """One publisher's group; the same at the publisher and at each reader."""

    readers: tuple[Peer, ...]
    beacon_ns: int = 20 * MS  # bounds how long a lost batch goes unnoticed
    window: int = 256  # batches a reader holds early; holes one Nak names; batches it is answered

    def validate(self) -> None:
        if not self.readers or len(set(self.readers)) != len(self.readers):
            raise ConfigError(f"readers must be one or more different nodes, not {self.readers!r}")
        if self.beacon_ns <= 0 or self.window <= 0:
            raise ConfigError("beacon_ns and window must be above 0")
