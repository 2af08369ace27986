"""Machines for tests of the simulator: they perform the given effects and record all inputs."""

from typing import Any

from surecast.core.types import Batch, Input, Message

LOG = bytes(range(16))


class Do(Input):
    """Command: perform these effects."""

    effects: list[Any]


class Ping(Message):
    number: int


class Load(Message):
    number: int
    nbytes: int  # its size on the wire


class Actor:
    """Returns the effects of `Do`, and records all other inputs as (now_ns, input)."""

    def __init__(self, ctx: Any = None) -> None:
        self.ctx = ctx
        self.seen: list[tuple[int, Any]] = []

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        if type(inp) is Do:
            return inp.effects
        self.seen.append((now_ns, inp))
        return []

    def of(self, kind: type) -> list[tuple[int, Any]]:
        return [(now_ns, inp) for now_ns, inp in self.seen if type(inp) is kind]

    def kinds(self) -> list[str]:
        return [type(inp).__name__ for _, inp in self.seen]

    def numbers(self) -> list[int]:
        """The numbers of the Pings and Loads received."""
        return [inp.message.number for _, inp in self.seen if type(inp).__name__ == "Received"]


def batch(lo: int, count: int = 1, nbytes: int = 100, number: int = 0) -> Batch:
    return Batch.synthetic(LOG, count, nbytes, pub_no=number).sequenced(lo, 0, 0)
