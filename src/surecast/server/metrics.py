"""The metrics of a server in the format of Prometheus, for `/metrics`.

A `Scrape` is constructed in the event loop, where it copies the values. Its `text` is formatted in
another thread, because that is slow.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from surecast.core.roles import Metric
from surecast.server.region import RegionServer
from surecast.server.status import Status, StreamStatus, look

__all__ = ["CONTENT_TYPE", "Scrape"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

NODE_GAUGES = {
    "ready": "1 if clients should use this node",
    "sessions": "sessions that are up, with nodes and clients",
    "queued_bytes": "bytes waiting to be sent, all sessions",
    "streams": "streams in the directory",
    "store_pending_bytes": "bytes waiting to be written to the disk",
}
CHAIN_GAUGES = {
    "epoch": "number of the chain's configuration",
    "members": "replicas in the chain",
    "pending_bytes": "bytes appended and not on disk yet",
    "unanswered": "publishes accepted and not acknowledged yet",
}
STREAM_GAUGES = {
    "end": "next position to be appended here",
    "committed": "next position to be committed; readers get positions below it",
    "live": "events that are kept",
    "void": "positions that are void",
    "kept_bytes": "approximate bytes of batches in the log",
    "lag": "positions that another region has and this one does not",
    "subscribers": "readers served by this replica",
}


class Scrape(Collector):
    """The metrics of a server at one time (see the module)."""

    def __init__(self, server: RegionServer, streams_max: int) -> None:
        self.status = look(server, streams_max)
        self.counters = list(_counters(server))
        self.of_roles: list[Metric] = []
        if server.replica is not None:
            for role in server.roles:
                self.of_roles += role.observer.metrics(server.layers)

    def text(self) -> bytes:
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(self)
        return generate_latest(registry)

    def describe(self) -> list[Family]:
        return []  # the names of the roles' metrics are known only when they are collected

    def collect(self) -> Iterator[Family]:
        status, node = self.status, self.status.node
        about = GaugeMetricFamily(
            "surecast_node", "identity of this node", labels=["name", "region", "role", "version"]
        )
        about.add_metric([node.name, node.region, node.role, node.version], 1)
        yield about
        values = {
            "ready": status.ready,
            "sessions": status.sessions,
            "queued_bytes": status.queued_bytes,
            "streams": status.streams_total,
            "store_pending_bytes": node.store_pending_bytes,
        }
        for key, help_text in NODE_GAUGES.items():
            yield GaugeMetricFamily(f"surecast_{key}", help_text, value=float(values[key]))
        yield from _chain(status)
        yield from _links(status)
        yield from _streams(status.streams)
        yield from self.counters
        yield from _of_roles(self.of_roles)
        raised = GaugeMetricFamily("surecast_alarms", "alarms raised, by code", labels=["code"])
        codes = [alarm.code for alarm in status.alarms]
        for code in sorted(set(codes)):
            raised.add_metric([code], codes.count(code))
        yield raised


def _chain(status: Status) -> Iterator[Family]:
    chain = status.chain
    if chain is None:
        return
    place = GaugeMetricFamily("surecast_chain_place", "place in the chain", labels=["place"])
    place.add_metric([chain.place], 1)
    yield place
    for key, help_text in CHAIN_GAUGES.items():
        value = len(chain.members) if key == "members" else getattr(chain, key)
        yield GaugeMetricFamily(f"surecast_chain_{key}", help_text, value=value)


def _links(status: Status) -> Iterator[Family]:
    up = GaugeMetricFamily(
        "surecast_region_up", "1 if the region's tail sends advertisements", labels=["region"]
    )
    for region in status.regions:
        up.add_metric([region.name], float(region.up))
    yield up
    links = GaugeMetricFamily(
        "surecast_link_up", "1 if the session is up", labels=["node", "region"]
    )
    for link in status.links:
        links.add_metric([link.node, link.region], float(link.up))
    yield links


def _streams(streams: list[StreamStatus]) -> Iterator[Family]:
    for key, help_text in STREAM_GAUGES.items():
        family = GaugeMetricFamily(f"surecast_stream_{key}", help_text, labels=["stream", "owner"])
        for stream in streams:
            family.add_metric([stream.name, stream.owner], getattr(stream, key))
        yield family
    ends = GaugeMetricFamily(
        "surecast_stream_region_end",
        "next position to be committed in each region, as last reported",
        labels=["stream", "region"],
    )
    for stream in streams:
        for region, end in stream.regions.items():
            ends.add_metric([stream.name, region], end)
    yield ends


def _of_roles(metrics: list[Metric]) -> Iterator[Family]:
    """The metrics of the roles' observers, grouped by name."""
    families: dict[str, GaugeMetricFamily] = {}
    for metric in metrics:
        name, labels = metric.name, list(metric.labels)
        if name not in families:
            families[name] = GaugeMetricFamily(f"surecast_{name}", metric.help, labels=labels)
        families[name].add_metric(list(metric.labels.values()), metric.value)
    yield from families.values()


def _counters(server: RegionServer) -> Iterator[Family]:
    """The counters of the nodes: messages handled by type, and other occurrences by name."""
    handled = CounterMetricFamily(
        "surecast_messages", "messages handled", labels=["protocol", "message"]
    )
    happened = CounterMetricFamily(
        "surecast_happened", "occurrences in the state machines", labels=["what"]
    )
    driver = CounterMetricFamily("surecast_runtime", "occurrences in the runtime", labels=["what"])
    unknown = CounterMetricFamily(
        "surecast_unknown_messages", "messages of unknown types, dropped", labels=["tag"]
    )
    by_tag: Counter[str] = Counter()
    for node in server.nodes:
        by_tag.update(node.unknown.by_tag)
        for what, count in sorted(node.counters.items()):
            # If there are two nodes, the first is the replica and the second is its witness.
            driver.add_metric([f"{what}" if node is server.nodes[0] else f"witness_{what}"], count)
        # A replica's state machine is composed of layers, a witness's is not.
        layers: Any = getattr(node.machine, "layers", {"": node.machine})
        counters = next(iter(layers.values())).counters  # all layers of a node share one Counter
        for what, count in sorted(counters.items()):
            if "/" in what:  # "protocol/message": the number of handled messages of this type
                handled.add_metric(what.split("/", 1), count)
            else:
                happened.add_metric([what], count)
    for tag, count in sorted(by_tag.items()):
        unknown.add_metric([tag], count)
    yield from (handled, happened, driver, unknown)
