"""Makes the machines of a client, for the nodes of `surecast.endpoint`."""

from collections import Counter

from surecast.core.endpoint import Place
from surecast.core.machine import NodeContext
from surecast.protocols.streams.config import InquirerConfig, PublisherConfig, SubscriberConfig
from surecast.protocols.streams.fetcher import Fetcher
from surecast.protocols.streams.inquirer import Inquirer
from surecast.protocols.streams.publisher import Publisher
from surecast.protocols.streams.subscriber import Subscriber

__all__ = ["fetcher", "inquirer", "publisher", "subscriber"]


def publisher(ctx: NodeContext, place: Place) -> Publisher:
    config = PublisherConfig(place.servers, owner_ns=place.owner_timeout_ns)
    return Publisher(config, ctx.rng, Counter())


def inquirer(_ctx: NodeContext, place: Place) -> Inquirer:
    return Inquirer(InquirerConfig(place.servers), Counter())


def subscriber(_ctx: NodeContext, place: Place) -> Subscriber:
    return Subscriber(SubscriberConfig(place.servers), {}, Counter())


def fetcher(_ctx: NodeContext, place: Place) -> Fetcher:
    return Fetcher(SubscriberConfig(place.servers), Counter())
