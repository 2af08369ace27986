"""Batches straight from a server's segments, where this machine can see them.

A server says which runs of which segments hold the positions that are wanted, and which of these
are void (`/v1/streams/{name}/files`). A file of that name here could be anybody's: what is read
from it is what was meant only if the run is of the same stream and its index has the same checksum,
which covers the offset and the time of every batch. Each batch has checksums of its own.

Whatever is not in a file, or not in one that can be read, is somebody else's to fetch: the server
may have it in its journal, or have put other files in this one's place.
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

_MAPS_MAX: Final = 16
_ROWS: Final = 20_000  # rows that voids are taken out of at a time


@dataclass(slots=True)
class Look:
    """What a server has said of [lo, hi)."""

    lo: int
    hi: int
    extents: list[tuple[int, int, int, int, int]]  # as server.files.FileExtent
    voids: dict[int, IntervalSet]  # by reason


def visible(servers: Sequence[Server]) -> list[Server]:
    """Those whose directory is here, it seems."""
    return [one for one in servers if one.directory and os.path.isdir(one.directory)]


def read(one: Range, server: Server, token: str, elsewhere: Elsewhere) -> Iterator[Piece]:
    """The batches of a range, in order, from files where that is possible. What is lost is in no
    file: the servers say so."""
    at = one.lo
    shelf = Shelf(Paths(server.directory), _MAPS_MAX)
    while at < one.hi:
        look = _look(one, at, server, token)
        if look is None or look.hi <= at:
            yield from elsewhere(at, one.hi)
            return
        for extent in look.extents:
            lo, hi = max(extent[2], at), min(extent[3], look.hi)
            if lo >= hi:
                continue
            if at < lo:
                yield from elsewhere(at, lo)
            at = lo
            try:
                for batch in _without_voids(_from_file(one, shelf, extent, lo, hi), look):
                    yield batch
                    at = batch.hi
            except StorageError as problem:  # gone, or damaged
                log.info("%s; the server is asked", problem)
                yield from elsewhere(at, hi)
            at = hi
        if at < look.hi:
            yield from elsewhere(at, look.hi)
        at = look.hi


def _look(one: Range, lo: int, server: Server, token: str) -> Look | None:
    path = f"/v1/streams/{quote(one.stream)}/files?lo={lo}&hi={one.hi}"
    said: Any = ask_server(server.http, path, token)
    if said is None or said["stream_id"] != one.stream_id.hex():
        return None
    if said["directory"] != server.directory:
        return None
    try:
        voids = voids_in(said)
    except PeerError:
        return None
    return Look(lo, int(said["hi"]), [tuple(row) for row in said["extents"]], voids)


def _from_file(
    one: Range, shelf: Shelf, row: tuple[int, int, int, int, int], lo: int, hi: int
) -> Iterator[Batch]:
    """The batches of [lo, hi), cut at its ends; StorageError if this is not the file that was
    meant, or not as it was."""
    number, place, _, _, index_crc = row
    mapped = shelf.mapped(number)
    run = mapped.run(place)
    if run.log != one.stream_id or run.index_crc != index_crc or not run.lo <= lo < hi <= run.hi:
        raise StorageError(f"{mapped.path} is not the segment that the server reads")
    for batch in Extent(shelf.segment(number), place, run.lo, run.hi, 0, 0).batches(lo, hi):
        if batch.stream_id != one.stream_id or not batch.lo <= lo < batch.hi:
            raise StorageError(f"{mapped.path}: {batch!r}, where {lo} is next")
        try:
            batch.validate()
            part = batch.slice(lo, hi)
        except PeerError as problem:
            raise StorageError(f"{mapped.path}: {batch!r} is damaged: {problem}") from problem
        yield part
        lo = part.hi
    if lo < hi:
        raise StorageError(f"{mapped.path}: the batches end at {lo}, and {hi} was promised")


def _without_voids(batches: Iterator[Batch], look: Look) -> Iterator[Batch]:
    """As a server shows them: without what is void, in fewer batches where that leaves little."""
    if not any(look.voids.values()):
        yield from batches
        return
    group: list[Batch] = []
    rows = 0
    for batch in batches:
        group.append(batch)
        rows += batch.rows or 1
        if rows >= _ROWS:
            yield from survivors(group, look.voids, _ROWS)
            group, rows = [], 0
    if group:
        yield from survivors(group, look.voids, _ROWS)
