"""The client side of the delivery `filtered`: what clients may do with its streams, its reader."""

from collections import Counter

from surecast.core.compose import Layer
from surecast.core.endpoint import Place
from surecast.core.machine import NodeContext
from surecast.core.streams import StreamSpec
from surecast.errors import UsageError
from surecast.protocols.gryphon.config import ReaderConfig
from surecast.protocols.gryphon.reader import Reader

__all__ = ["Filtered"]


class Filtered:
    """Delivery of the events that pass a filter, through brokers. (`core.endpoint.Delivery`
    explains the attributes.)"""

    name = "filtered"
    ordered = True
    needs = frozenset({"region"})
    verbs = frozenset(
        {"pattern", "name", "time", "retain", "collect", "publisher", "delete", "where"}
    )
    keeps_copies = False
    acks = ("local",)

    def check(self, spec: StreamSpec) -> None:
        if spec.options:
            raise UsageError(f"delivery={self.name!r} takes no options, not {dict(spec.options)}")

    def publisher(self, _ctx: NodeContext, _place: Place) -> Layer | None:
        return None  # the stream service keeps the log and assigns positions

    def reader(self, _ctx: NodeContext, place: Place) -> Layer | None:
        return Reader(ReaderConfig(place.servers), Counter())
