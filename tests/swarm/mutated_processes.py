"""Processes of a fleet with a fault of ours built in: what `swarm.process.run` is replaced by."""

from multiprocessing.connection import Connection

from surecast.client.subscription_task import SubscriptionSpec
from surecast.protocols.streams.service import StreamService
from surecast.swarm.process import ProcessSpec, run


def run_heads_that_ask_nobody(spec: ProcessSpec, control: Connection) -> None:
    """A head that has a delivery believes that all replicas have it."""
    StreamService._refusal_to_deliver = (  # type: ignore[method-assign]
        lambda service, delivery: "" if delivery in service.deliveries else "no-delivery"
    )
    run(spec, control)


def run_readers_that_fail(spec: ProcessSpec, control: Connection) -> None:
    """A subscription by pattern fails with a stream that its version cannot read."""
    SubscriptionSpec.has_wildcard = False  # type: ignore[assignment, method-assign]
    run(spec, control)
