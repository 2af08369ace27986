"""Processes of a cluster with a built-in fault: replacements of `swarm.process.make`."""

from surecast.client.subscription_task import SubscriptionSpec
from surecast.protocols.streams.service import StreamService
from surecast_lab.swarm.process import ProcessSpec, make
from surecast_lab.testing.workers import Service


def make_heads_that_ask_nobody(spec: ProcessSpec) -> Service:
    """A head that has a delivery believes that all replicas have it."""
    StreamService._refusal_to_deliver = (  # type: ignore[method-assign]
        lambda service, delivery: "" if delivery in service.deliveries else "no-delivery"
    )
    return make(spec)


def make_readers_that_fail(spec: ProcessSpec) -> Service:
    """A subscription by pattern fails with a stream that its version cannot read."""
    SubscriptionSpec.has_wildcard = False  # type: ignore[assignment, method-assign]
    return make(spec)
