"""The optional cost model for computing in a simulation."""

from typing import Any

import msgspec

__all__ = ["Costs"]


class Costs(msgspec.Struct, frozen=True):
    """A node serves one input at a time; each keeps it busy for the sum of these costs.

    The effects are performed at the end of that time. Without a cost model computing takes no time.
    """

    per_input_ns: int = 0
    per_byte_ns: float = 0.0  # of the messages received and sent
    per_effect_ns: int = 0

    def of(self, nbytes: int, effects: list[Any]) -> int:
        return (
            self.per_input_ns + int(self.per_byte_ns * nbytes) + self.per_effect_ns * len(effects)
        )
