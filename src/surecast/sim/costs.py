"""The optional cost model of a simulation, which lets computing take simulated time."""

from typing import Any

import msgspec

__all__ = ["Costs"]


class Costs(msgspec.Struct, frozen=True):
    """How long a node computes for one input: the sum of these costs.

    A node handles one input at a time. The effects of an input are performed when its computing
    time is over. Without a cost model, computing takes no time.
    """

    per_input_ns: int = 0
    per_byte_ns: float = 0.0  # for each byte of the messages received and sent
    per_effect_ns: int = 0

    def of(self, nbytes: int, effects: list[Any]) -> int:
        """The computing time of an input with these effects; `nbytes` is the total size of the
        messages received and sent."""
        return (
            self.per_input_ns + int(self.per_byte_ns * nbytes) + self.per_effect_ns * len(effects)
        )
