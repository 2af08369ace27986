"""Replacements for `swarm.process.make` that build a fault into the processes of a cluster."""

from surecast.client.subscription_task import SubscriptionSpec
from surecast.protocols.streams.service import StreamService
from surecast_lab.swarm.process import ProcessSpec, make
from surecast_lab.testing.workers import Service


def make_heads_that_ask_nobody(spec: ProcessSpec) -> Service:
    """Heads that have a delivery do not check whether all replicas have it."""
    StreamService._refusal_to_deliver = (  # type: ignore[method-assign]
        lambda service, delivery: "" if delivery in service.deliveries else "no-delivery"
    )
    return make(spec)


def make_readers_that_fail(spec: ProcessSpec) -> Service:
    """Subscriptions by pattern fail at a stream whose delivery their version does not have."""
    SubscriptionSpec.has_wildcard = False  # type: ignore[assignment, method-assign]
    return make(spec)
