"""Gryphon as a role of a region's replica: configuration, layer, alarms, status, metrics."""

from collections.abc import Iterator, Mapping
from typing import Any

from surecast.core.compose import Layer
from surecast.core.roles import Code, Deployment, Kit, Layers, Metric
from surecast.core.types import LogId
from surecast.protocols.gryphon.broker import DELIVERY, LAYER
from surecast.protocols.gryphon.config import GryphonConfig
from surecast.protocols.gryphon.pubend import Pubend

__all__ = ["GryphonRole"]

NAMED_MAX = 5  # streams that alarms list by name; the others are only counted


class GryphonObserver:
    """Reports the state of the server side (`core.roles.Observer`)."""

    codes: Mapping[str, Code] = {
        "stream-unreachable": Code(
            "Subscribers of this stream (delivery filtered) are connected here, but no server of "
            "the region that owns it, and no broker on the way, can be reached.",
            "Look at the network between the regions, and at the servers of the owner.",
        ),
    }

    def alarms(self, layers: Layers) -> Iterator[tuple[str, str]]:
        lines = _broker(layers).lines.values()
        cut_off = [line for line in lines if (line.subs or line.below) and not line.attached]
        for line in cut_off[:NAMED_MAX]:
            yield "stream-unreachable", line.info.name
        if len(cut_off) > NAMED_MAX:
            yield "stream-unreachable", f"and {len(cut_off) - NAMED_MAX} more"

    def status(self, layers: Layers) -> Mapping[str, Any]:
        broker = _broker(layers)
        if not broker.infos:
            return {}
        return {
            "streams": len(broker.infos),
            "subscribers": broker.subscriptions.count,
            "brokers_below": len({peer for line in broker.lines.values() for peer in line.below}),
            "nacks": broker.counters["gryphon.nacks"],
            "nacks_sent": broker.counters["gryphon.nacks-sent"],
        }

    def stream(self, layers: Layers, stream: LogId) -> Mapping[str, Any]:
        line = _broker(layers).lines.get(stream)
        if line is None:
            return {}
        details: dict[str, Any] = {"subscribers": len(line.subs)}
        if line.source:
            details["source_broker"] = line.source
        if line.horizon:
            details["horizon"] = line.horizon
        if line.below:
            details["brokers"] = sorted(line.below)
            details["acknowledged_below"] = line.acked
        return details

    def metrics(self, layers: Layers) -> Iterator[Metric]:
        broker = _broker(layers)
        count, counters = broker.subscriptions.count, broker.counters
        yield Metric("gryphon_subscriptions", "filtered subscriptions served here", count)
        nacks_help = "requests for missing ranges that brokers below have sent"
        yield Metric("gryphon_nacks", nacks_help, counters["gryphon.nacks"])
        sent_help = "requests for missing ranges that were sent to brokers above"
        yield Metric("gryphon_nacks_sent", sent_help, counters["gryphon.nacks-sent"])


def _broker(layers: Layers) -> Pubend:
    broker = layers[LAYER]
    assert isinstance(broker, Pubend)
    return broker


class GryphonRole:
    """Implements `core.roles.Role`, which explains the members."""

    name = LAYER
    delivery = DELIVERY
    keeps_copies = False
    config = GryphonConfig
    layer_types: Mapping[str, type[Any]] = {LAYER: Pubend}
    observer = GryphonObserver()

    def derived(self, deployment: Deployment) -> dict[str, Any]:
        return {
            "name": deployment.name,
            "region": deployment.region,
            "regions": dict(deployment.regions),
            "owners": dict(deployment.owners),
            "cells": {},  # every replica is below the owner of a stream
            "above": {},
        }

    def layers(self, config: GryphonConfig, kit: Kit) -> dict[str, Layer]:
        return {LAYER: kit.kinds[LAYER](config, kit.service, kit.rng, kit.counters)}
