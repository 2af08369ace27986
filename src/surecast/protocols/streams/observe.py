"""The observer of the stream service: reports its status, alarms and metrics, as plain values."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, ClassVar, Final

from surecast.core.roles import Code, Layers, Metric
from surecast.core.status import subscription_infos
from surecast.core.streams import CURSORS, DIRECTORY
from surecast.core.types import LogId
from surecast.protocols.streams.cursors import Cursors
from surecast.protocols.streams.service import StreamService

__all__ = ["LISTED_MAX", "StreamsObserver"]

LAG_HELP: Final = "positions from the saved position of the named subscription to the stream's end"
OMITTED_HELP: Final = "series of streams_subscription_lag beyond streams.cursors_shown_max"
LISTED_MAX: Final = 10  # streams, and ranges of a stream, that an alarm lists; others are counted


class StreamsObserver:
    """Implements `core.roles.Observer` for the role `streams` (role.py)."""

    codes: ClassVar[Mapping[str, Code]] = {
        "directory-unread": Code(
            "This replica has started and has not read the region's directory of streams yet, so "
            "it does not know all streams. It reads the directory as soon as it is a member of the "
            "region's chain; after that this takes a moment.",
            "Nothing. If it stays: see the alarms of the chain.",
            blocks=True,
        ),
        "stream-quarantined": Code(
            "While this replica was running, it could not read or index part of a stream's log. "
            "Positions before it are served; publishes are refused. Other replicas may have all "
            "of it. (Damage that is found at the start raises stream-damaged.)",
            "Run `surecast log verify` on the data folder. If the other replicas are healthy, "
            "empty this one's data folder: it is filled again from them.",
        ),
        "stream-damaged": Code(
            "Positions of a stream cannot be read on this disk, and no other member of the region's"
            " chain has them. Positions before them are served, publishes to a stream that this "
            "region owns wait, and the positions are fetched from another region that has them.",
            "Make sure that the other regions can be reached. If none has these positions, they "
            "are lost: restore the data folder from a copy, or give up the stream's history "
            "(force-new-stream).",
        ),
        "entries-lost": Code(
            "Entries of the region's own logs (the directory of streams, the positions of named "
            "subscriptions) could not be read, and no other replica has them. Streams that are "
            "missing in the directory are added again if other regions have them; named "
            "subscriptions start from the beginning.",
            "Look for streams that are missing in `surecast streams`; check named subscriptions.",
        ),
    }

    def alarms(self, layers: Layers) -> Iterator[tuple[str, str]]:
        service: StreamService = layers["streams"]
        if not service.has_read_directory:
            read, there = service.directory_committed - 1, service.directory_at_start - 1
            yield "directory-unread", f"{read} of {there} entries are read"
        streams = service.streams.values()
        bad = [(s.info.name, s.quarantined) for s in streams if s.quarantined]
        for name, why in bad[:LISTED_MAX]:
            yield "stream-quarantined", f"{name}: {why}"
        if len(bad) > LISTED_MAX:
            yield "stream-quarantined", f"and {len(bad) - LISTED_MAX} more"
        holed = [stream for stream in streams if stream.hole]
        for stream in holed[:LISTED_MAX]:
            holes = service.disk.holes(stream.stream_id)
            ranges = " and ".join(f"{lo} to {hi - 1}" for lo, hi in holes[:LISTED_MAX])
            yield "stream-damaged", f"{stream.info.name}: positions {ranges} (ranges: {len(holes)})"
        if len(holed) > LISTED_MAX:
            yield "stream-damaged", f"and {len(holed) - LISTED_MAX} more"
        yield from _alarms_of_own_logs(service)

    def status(self, layers: Layers) -> Mapping[str, Any]:
        cursors: Cursors = layers["cursors"]
        found, _, _ = cursors.page(rows_max=cursors.config.cursors_shown_max)
        return {
            "subscriptions": subscription_infos(found),
            "subscriptions_total": len(cursors.table),
        }

    def stream(self, layers: Layers, stream: LogId) -> Mapping[str, Any]:
        service: StreamService = layers["streams"]
        state = service.streams[stream]
        pieces = (*state.pieces.closed, state.pieces.open)
        return {
            "kept_bytes": sum(piece.nbytes for piece in pieces),
            "subscribers": len(service.serving.followers.get(stream, ()))
            + len(service.filtered.followers.get(stream, ())),
            "recovering": bool(state.hole),
        }

    def metrics(self, layers: Layers) -> Iterator[Metric]:
        cursors: Cursors = layers["cursors"]
        found, _, _ = cursors.page(rows_max=cursors.config.cursors_shown_max)
        shown = 0
        for info in subscription_infos(found):
            for position in info.positions:
                shown += 1
                labels = {"subscription": info.name, "stream": position.stream}
                yield Metric("streams_subscription_lag", LAG_HELP, position.lag, labels)
        total = sum(map(cursors.positions_shown, cursors.table.values()))
        yield Metric("streams_subscriptions", "named subscriptions", len(cursors.table))
        yield Metric("streams_subscription_lag_omitted", OMITTED_HELP, total - shown)


def _alarms_of_own_logs(service: StreamService) -> Iterator[tuple[str, str]]:
    """The alarms of the region's own logs, which are not streams: its directory of streams, and the
    positions of its named subscriptions. If they are damaged, the code is `stream-damaged`, too."""
    names = {DIRECTORY: "directory", CURSORS: "named subscriptions"}
    for log, name in names.items():
        if log in service.hole_at:
            yield "stream-damaged", f"the region's {name}: from entry {service.hole_at[log]} on"
    if lost := service.entries_lost:
        ranges = (f"{names[log]}: entries {lo} to {hi - 1}" for log, lo, hi in lost)
        more = f", and {len(lost) - LISTED_MAX} more" if len(lost) > LISTED_MAX else ""
        yield "entries-lost", ", ".join(islice(ranges, LISTED_MAX)) + more
