"""Sprinkler's observer: reports the status and alarms of its layers at a replica."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

from surecast.core.roles import Code, Layers, Metric
from surecast.core.status import RegionStatus
from surecast.core.types import LogId
from surecast.protocols.sprinkler.region_sync import RegionSync

__all__ = ["NAMED_MAX", "SprinklerObserver"]

NAMED_MAX: Final = 10  # streams that are listed by name; the others are only counted


class SprinklerObserver:
    codes: ClassVar[Mapping[str, Code]] = {
        "region-unreachable": Code(
            "No advertisements arrive from another region. Streams that it owns get no new events "
            "here, unless a third region forwards them; publishes to them from here fail.",
            "Repair the link, or start that region. Nothing is lost meanwhile: it catches up.",
        ),
        "owners-differ": Code(
            "Another region's [owners] table differs from ours, so the two may disagree on which "
            "region owns a stream. No streams are created while the tables differ.",
            "Give all regions the same [owners] and restart those whose table was wrong.",
            blocks=True,
        ),
        "asking-regions": Code(
            "This server has just started and waits for the other regions before it assigns "
            "positions, because its data folder may be an older copy of itself (sprinkler.start, "
            "ask_ns).",
            "Nothing: it ends when they have answered, or after sprinkler.ask_ns.",
        ),
        "stream-forked": Code(
            "Two regions have different events at the same positions of a stream, because its "
            "owner was restored from an older copy while it could reach no other region. The "
            "history whose newest event is older stays; the other one is copied to a separate "
            "stream and removed.",
            "Read the stream named here, and publish again the events that are needed.",
        ),
        "stream-recovering": Code(
            "Other regions have events of a stream that this region owns and has lost. It fetches "
            "them before it accepts publishes.",
            "Make sure that the other regions can be reached; it ends by itself.",
        ),
    }

    def alarms(self, layers: Layers) -> Iterator[tuple[str, str]]:
        regions: RegionSync = layers["sprinkler"]
        for peer in regions.peers.values():
            silent_ns = regions.now_ns - peer.heard_ns
            if peer.heard_ns < 0:
                yield "region-unreachable", f"{peer.name}, never heard"
            elif silent_ns > regions.config.dead_ns:  # less if its tail has just been replaced
                heard = f"last heard {silent_ns / 1e9:.0f} s ago"
                yield "region-unreachable", f"{peer.name}, {heard}"
            if peer.heard_ns >= 0 and peer.owners != regions.owners:
                yield "owners-differ", peer.name
        recovery = regions.recovery
        if regions.is_head and not recovery.has_asked and recovery.is_anybody_silent():
            silent = [p.name for p in regions.peers.values() if not regions.forks.has_met(p)]
            yield "asking-regions", "waiting, for " + " ".join(silent)
        for line in regions.forks.report(NAMED_MAX):
            yield "stream-forked", line
        copies = regions.streams.values()
        back = [copy.info.name for copy in copies if copy.recovering_since_ns is not None]
        if back:
            more = f" and {len(back) - NAMED_MAX} more" if len(back) > NAMED_MAX else ""
            yield "stream-recovering", ", ".join(back[:NAMED_MAX]) + more

    def status(self, layers: Layers) -> Mapping[str, Any]:
        regions: RegionSync = layers["sprinkler"]
        others = []
        for peer in regions.peers.values():
            heard = peer.heard_ns >= 0
            others.append(
                RegionStatus(
                    name=peer.name,
                    up=regions.is_live(peer),
                    heard_s=round((regions.now_ns - peer.heard_ns) / 1e9, 2) if heard else None,
                    epoch=peer.epoch,
                    head=peer.head,
                    tail=peer.tail,
                    same_owners=not heard or peer.owners == regions.owners,
                )
            )
        return {"regions": others}

    def stream(self, layers: Layers, stream: LogId) -> Mapping[str, Any]:
        regions: RegionSync = layers["sprinkler"]
        copy = regions.streams.get(stream)
        source = copy.source if copy is not None else None
        peers = regions.peers.values()
        return {
            "rate": round(copy.rate, 1) if copy is not None else 0.0,
            "source": source.region if source is not None else "",
            "regions": {peer.name: peer.ends[stream] for peer in peers if stream in peer.ends},
            "subscribers": len(regions.serving.followers.get(stream, ())),
            "recovering": copy is not None and copy.recovering_since_ns is not None,
        }

    def metrics(self, _layers: Layers) -> Iterator[Metric]:
        return iter(())
