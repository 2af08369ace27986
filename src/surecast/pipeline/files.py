"""Reads batches directly from a server's segment files, if this machine can access them.

Segments are the files in which a server stores its streams (docs/storage.md); a *run* is the part
of a segment that belongs to one stream. For the wanted positions, the server lists the runs and the
void positions (`/v1/streams/{name}/files`). A local file with the same name may be a different
file. So a run is used only if it belongs to the same stream and if its index has the checksum that
the server gave. This checksum covers the offset and the time of every batch; each batch has
checksums of its own.

Positions that are not in a readable file are requested from the servers. A server may have them in
its journal, or may have replaced the file meanwhile.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from surecast.columns.batch import Batch
from surecast.columns.compaction import survivors
from surecast.columns.intervals import IntervalSet
from surecast.endpoint.ranges import Piece
from surecast.errors import PeerError, StorageError
from surecast.pipeline.plan import Range
from surecast.pipeline.region import Server, ask_server, voids_in
from surecast.storage.extents import Extent, Shelf
from surecast.storage.folder import Paths

__all__ = ["Elsewhere", "read", "visible"]

log = logging.getLogger("surecast.pipeline")

Elsewhere = Callable[[int, int], Iterator[Piece]]  # fetches [lo, hi) from the servers

_MAPS_MAX: Final = 16  # segments mapped at a time
_ROWS: Final = 20_000  # number of rows from which void ones are removed at a time


@dataclass(slots=True)
class Look:
    """A server's answer: which files have the positions [lo, hi), and which of them are void."""

    lo: int
    hi: int
    # The fields of server.files.FileExtent: segment, run, lo, hi, index_crc.
    extents: list[tuple[int, int, int, int, int]]
    voids: dict[int, IntervalSet]  # by reason


def visible(servers: Sequence[Server]) -> list[Server]:
    """The servers whose data directory seems to be accessible on this machine."""
    return [s for s in servers if s.directory and os.path.isdir(s.directory)]


def read(wanted: Range, server: Server, token: str, elsewhere: Elsewhere) -> Iterator[Piece]:
    """Yield the batches of a range, in order, from files if possible, otherwise from servers.

    Files do not say which positions are lost, so these are requested from the servers, too.
    """
    at = wanted.lo
    shelf = Shelf(Paths(server.directory), _MAPS_MAX)
    while at < wanted.hi:
        look = _look(wanted, at, server, token)
        if look is None or look.hi <= at:  # the server does not help: read the rest from servers
            yield from elsewhere(at, wanted.hi)
            return
        for extent in look.extents:
            lo, hi = max(extent[2], at), min(extent[3], look.hi)
            if lo >= hi:
                continue
            if at < lo:
                yield from elsewhere(at, lo)
            at = lo
            try:
                for batch in _without_voids(_from_file(wanted, shelf, extent, lo, hi), look):
                    yield batch
                    at = batch.hi
            except StorageError as problem:  # the file is missing or damaged
                log.info("%s; reading from the servers", problem)
                yield from elsewhere(at, hi)
            at = hi
        if at < look.hi:
            yield from elsewhere(at, look.hi)
        at = look.hi


def _look(wanted: Range, lo: int, server: Server, token: str) -> Look | None:
    """Ask the server about [lo, wanted.hi); None if it has another stream or directory now, or does
    not answer."""
    path = f"/v1/streams/{quote(wanted.stream)}/files?lo={lo}&hi={wanted.hi}"
    answer: Any = ask_server(server.http, path, token)
    if answer is None or answer["stream_id"] != wanted.stream_id.hex():
        return None
    if answer["directory"] != server.directory:
        return None
    try:
        voids = voids_in(answer)
    except PeerError:
        return None
    return Look(lo, int(answer["hi"]), [tuple(row) for row in answer["extents"]], voids)


def _from_file(
    wanted: Range, shelf: Shelf, row: tuple[int, int, int, int, int], lo: int, hi: int
) -> Iterator[Batch]:
    """Yield the batches of [lo, hi) from a file, cut at lo and hi.

    Raises StorageError if the file is not the one that the server listed, or has changed.
    """
    segment, place, _, _, index_crc = row  # `place`: index of the run in the segment
    mapped = shelf.mapped(segment)
    run = mapped.run(place)
    if run.log != wanted.stream_id or run.index_crc != index_crc or not run.lo <= lo < hi <= run.hi:
        raise StorageError(f"{mapped.path} is not the segment that the server reads")
    # The size and the latest time of the extent (0, 0) are not used here.
    for batch in Extent(shelf.segment(segment), place, run.lo, run.hi, 0, 0).batches(lo, hi):
        if batch.stream_id != wanted.stream_id or not batch.lo <= lo < batch.hi:
            raise StorageError(f"{mapped.path}: {batch!r}, but the next position is {lo}")
        try:
            batch.validate()
            part = batch.slice(lo, hi)
        except PeerError as problem:
            raise StorageError(f"{mapped.path}: {batch!r} is damaged: {problem}") from problem
        yield part
        lo = part.hi
    if lo < hi:
        raise StorageError(f"{mapped.path}: the batches end at {lo}, but the server listed {hi}")


def _without_voids(batches: Iterator[Batch], look: Look) -> Iterator[Batch]:
    """Remove void positions, as a server does; batches with few events left are merged."""
    if not any(look.voids.values()):
        yield from batches
        return
    group: list[Batch] = []
    rows = 0
    for batch in batches:
        group.append(batch)
        rows += batch.rows or 1  # also a batch without rows costs work
        if rows >= _ROWS:
            yield from survivors(group, look.voids, _ROWS)
            group, rows = [], 0
    if group:
        yield from survivors(group, look.voids, _ROWS)
