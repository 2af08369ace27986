"""The events that a benchmark publishes: created in advance from a seed, and published repeatedly.

Creating events during a run would take more time than publishing them. So a pool of batches is
created once, and its batches are published repeatedly, each time with new publisher's numbers.
Every published event gets its own position, although the values repeat. The seed determines the
event at each position, and the events that `latest_per_key` must keep. Readers are checked against
these.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from surecast.columns.batch import Batch
from surecast.errors import UsageError
from surecast.parts.workload import Zipf

__all__ = ["KEY_BYTES", "VALUE_BYTES", "Pool", "PoolSpec"]

KEY_BYTES, VALUE_BYTES = 8, 10


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """The parameters of a pool; plain data, so that it can be sent to a worker."""

    seed: int
    events: int  # rounded down to whole batches
    batch: int  # events in a batch
    keys: int = 100_000  # 0: events without keys
    skew: float = 1.1  # Zipf; 0: uniform

    def __post_init__(self) -> None:
        if not 0 < self.batch <= self.events:
            raise UsageError(f"a pool of {self.events} events has no batch of {self.batch}")


class Pool:
    """The batches of a pool, in the order of publishing."""

    def __init__(self, spec: PoolSpec) -> None:
        self.spec = spec
        rng = np.random.default_rng(spec.seed)
        self.size = spec.events // spec.batch * spec.batch
        self._values = rng.bytes(VALUE_BYTES * self.size)
        self.ids: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        if spec.keys:
            ranks = Zipf(spec.keys, spec.skew).sample(rng, self.size)
            # Ids are permuted, so that frequent keys are distributed over all keys.
            self.ids = rng.permutation(spec.keys).astype(np.int64)[ranks - 1]
        self._keys = self.ids.astype(f">u{KEY_BYTES}").tobytes()

    @cached_property
    def batches(self) -> list[Batch]:
        """The batches, without numbers and stream ids."""
        step = self.spec.batch
        return [self._batch(first, first + step) for first in range(0, self.size, step)]

    def _batch(self, lo: int, hi: int) -> Batch:
        keys = [self.key(i) for i in range(lo, hi)] if self.spec.keys else None
        return Batch.of(bytes(16), [self.value(i) for i in range(lo, hi)], keys)

    def key(self, number: int) -> bytes | None:
        """The key of the event published as `number`, counted from 0."""
        at = number % self.size * KEY_BYTES
        return self._keys[at : at + KEY_BYTES] if self.spec.keys else None

    def value(self, number: int) -> bytes:
        at = number % self.size * VALUE_BYTES
        return self._values[at : at + VALUE_BYTES]

    def live(self, published: int) -> dict[bytes, int]:
        """The number of the newest event of each key after `published` events, computed without the
        product's compiled code (kernels)."""
        if not self.spec.keys:
            raise UsageError("a pool without keys has no newest event of a key")
        found: dict[bytes, int] = {}
        for number in range(max(0, published - self.size), published):
            key = self.key(number)
            assert key is not None
            found[key] = number
        return found
