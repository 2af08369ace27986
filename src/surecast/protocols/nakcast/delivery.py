"""The client side of the delivery `nakcast`: what clients may do with its streams, its reader."""

from collections import Counter

from surecast.core.compose import Layer
from surecast.core.endpoint import Place
from surecast.core.machine import NodeContext
from surecast.core.streams import StreamSpec
from surecast.errors import UsageError
from surecast.protocols.nakcast.config import ReaderConfig
from surecast.protocols.nakcast.reader import Reader

__all__ = ["Nakcast"]


class Nakcast:
    """Delivery by datagrams to the readers of one region. A reader that falls far behind loses
    positions, and reports which. (`core.endpoint.Delivery` explains the attributes.)"""

    name = "nakcast"
    ordered = True
    needs = frozenset({"region", "listen"})
    verbs = frozenset({"pattern", "name", "time", "where", "retain", "delete"})
    keeps_copies = True
    acks = ("local",)

    def check(self, spec: StreamSpec) -> None:
        if spec.options:
            raise UsageError(f"delivery={self.name!r} takes no options, not {dict(spec.options)}")

    def publisher(self, _ctx: NodeContext, _place: Place) -> Layer | None:
        return None  # the stream service keeps the log and assigns positions

    def reader(self, _ctx: NodeContext, place: Place) -> Layer | None:
        return Reader(ReaderConfig(place.servers), Counter())
