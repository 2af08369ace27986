"""A broker in the middle of a tree, driven step by step: `p` (a replica of the owner) is above it,
`b2` beside it, `s` and `t` are brokers with subscribers below."""

from collections.abc import Sequence
from random import Random
from typing import Any

from surecast.columns.batch import Batch
from surecast.columns.retention import KeepAll
from surecast.core.streams import StreamInfo
from surecast.core.types import MS, EndOfPass, PeerDown, PeerUp, Received, Send, Start, TimerFired
from surecast.protocols.gryphon.broker import Broker
from surecast.protocols.gryphon.config import GryphonConfig
from surecast.protocols.gryphon.messages import (
    Attach,
    Attached,
    Knowledge,
    Reach,
    Stamps,
    StreamsAre,
    Table,
)

STREAM = b"s" * 16
INFO = StreamInfo(STREAM, "f", "east", KeepAll(), delivery="filtered")
TREE: dict[str, Any] = {
    "regions": {"east": ("p", "p2")},
    "cells": {"ib": ("b", "b2"), "sb": ("s",), "tb": ("t",)},
    "above": {"sb": "ib", "tb": "ib"},
}


def batch(lo: int, keys: Sequence[bytes | None]) -> Batch:
    made = Batch.of(STREAM, [b"v%d" % (lo + i) for i in range(len(keys))], keys)
    return made.sequenced(lo, 1, 1)


def table(broker: str, *texts: str, base: int = 0, version: int = 1, incarnation: int = 7) -> Table:
    return Table(broker, incarnation, base, version, tuple(enumerate(texts, 1)))


class Driven:
    """A broker, and what it has sent since `sent` was last called."""

    def __init__(self, name: str = "b", kind: type[Broker] = Broker, **options: Any) -> None:
        self.config = GryphonConfig(name, **{**TREE, **options})
        self.config.validate()
        self.broker = kind(self.config, Random(1))
        self.now_ns = 0
        self.out: list[Any] = []
        self.give(Start(0, 1))

    def give(self, inp: Any, after_ns: int = 0) -> None:
        self.now_ns += after_ns
        self.out += self.broker.step(self.now_ns, inp)
        while passes := [one for one in self.out if type(one).__name__ == "AtEndOfPass"]:
            self.out = [one for one in self.out if type(one).__name__ != "AtEndOfPass"]
            for one in passes:
                self.out += self.broker.step(self.now_ns, EndOfPass(one.key))

    def get(self, peer: str, message: Any, after_ns: int = 0) -> None:
        self.give(Received(peer, message), after_ns)

    def timer(self, key: str, after_ns: int = 0) -> None:
        self.give(TimerFired(key), after_ns)

    def up(self, peer: str, *, direct: tuple[str, ...] = ("east",)) -> None:
        self.give(PeerUp(peer))
        self.get(peer, Reach("", peer, direct, ()))

    def down(self, peer: str) -> None:
        self.give(PeerDown(peer))

    def sent(self, kind: type[Any] | None = None, to: str = "") -> list[Any]:
        """The messages sent since the last call of `clear`, of one kind, to one peer."""
        return [
            one.message
            for one in self.out
            if isinstance(one, Send)
            and (kind is None or isinstance(one.message, kind))
            and (not to or one.peer == to)
        ]

    def clear(self) -> None:
        self.out.clear()

    # ------------------------------------------------------------ the usual beginning

    def connect(self, end: int = 1, at: int = 0, **tables: Table) -> None:
        """Attach `s` and others below, with these tables, to the stream, whose end is `end`."""
        self.up("p")
        self.get("p", StreamsAre((INFO,)))
        for peer, one in tables.items():
            self.get(peer, Reach(peer, "", (), ()))
            self.get(peer, Attach(STREAM, at, (one,)))
        self.get("p", Attached(STREAM, end, ""))
        self.clear()

    def learn(
        self, lo: int, hi: int, *batches: Batch, stamps: Stamps | None = None, first: bool = True
    ) -> None:
        self.get("p", Knowledge(STREAM, first, 1, lo, hi, batches, stamps))


TICK_NS = 250 * MS
