"""Plans which batches of a log a move writes to a new segment; used by mover.py.

A *move* writes the batches of the journal, which are still in memory, to a segment. A log consists
of *pieces*: batches in memory, *extents* (consecutive batches in a segment) and *holes* (positions
that cannot be read). The plan divides the pieces of a log into groups. Each group becomes, or
already is, one extent.

Batches in memory are always written. An extent stays where it is, with two exceptions:

- Most bytes of its segment are not needed by any log. Then the extents that are still needed are
  written again, so that the segment's file can be removed.
- The log has many small extents in a row. Size classes differ by a factor of eight: below 1 KiB,
  below 8 KiB, and so on up to `run_bytes_min`. Eight adjacent extents of one class, and smaller
  ones between them, are joined to one extent, which belongs to the next class. So each byte is
  rewritten only a few times, and a log has few extents compared with its size.

Holes stay as they are; nothing is joined across a hole.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from surecast.core.types import Batch
from surecast.storage.extents import Extent
from surecast.storage.memory import Hole

__all__ = ["Group", "count", "groups_of", "worn_out"]

_FAN_IN: Final = 8  # extents of one size class that are joined to an extent of the next class
_SIZE_MIN: Final = 1 << 10  # extents below this size are the smallest class
_LIVE_SHARE_MIN: Final = 0.5  # if logs need a smaller share of a segment, it is rewritten


class Group(NamedTuple):
    """Pieces that are, or will be, one extent."""

    pieces: tuple[Any, ...]
    extent: Any  # the extent; None until it is written. For a hole, the hole itself

    @property
    def is_new(self) -> bool:
        return self.pieces[0] is not self.extent

    @property
    def old_bytes(self) -> int:
        """Bytes that are already in segments and are written again."""
        if not self.is_new:
            return 0
        return sum(piece.nbytes for piece in self.pieces if type(piece) is Extent)


def groups_of(pieces: Sequence[Any], worn: Iterable[int], run_bytes_min: int) -> list[Group]:
    """Divide the pieces of a log into groups; groups without an extent have to be written.

    The extents of the segments `worn` are rewritten. With `run_bytes_min` 0, none are joined.
    """
    groups: list[Group] = []
    for is_hole, some in groupby(pieces, lambda piece: type(piece) is Hole):
        if is_hole:
            groups += [Group((hole,), hole) for hole in some]
        else:
            groups += _groups_of(list(some), worn, run_bytes_min)
    return groups


def _groups_of(pieces: Sequence[Any], worn: Iterable[int], run_bytes_min: int) -> list[Group]:
    # An item is a tuple of pieces that stay together: adjacent batches in memory, or one extent.
    items: list[tuple[Any, ...]] = []
    for in_memory, some in groupby(pieces, lambda piece: type(piece) is Batch):
        run = tuple(some)
        items += [run] if in_memory else [(piece,) for piece in run]
    joined = _joined(items, run_bytes_min)
    worn = frozenset(worn)
    groups: list[Group] = []
    for item in joined:
        stays = len(item) == 1 and type(item[0]) is Extent and item[0].segment.number not in worn
        if stays:
            groups.append(Group(item, item[0]))
        elif groups and groups[-1].extent is None:  # neighbours that are written become one extent
            groups[-1] = Group(groups[-1].pieces + item, None)
        else:
            groups.append(Group(item, None))
    return groups


def _joined(items: list[tuple[Any, ...]], run_bytes_min: int) -> list[tuple[Any, ...]]:
    """Join eight or more items in a row of one size class, beginning with the smallest class."""
    least, size = 0, _SIZE_MIN  # the bounds of the class: least <= bytes < size
    while size <= run_bytes_min:
        out: list[tuple[Any, ...]] = []
        for small, some in groupby(items, lambda item: _nbytes(item) < size):  # noqa: B023
            run = list(some)
            if small and sum(_nbytes(item) >= least for item in run) >= _FAN_IN:
                run = [tuple(piece for item in run for piece in item)]
            out += run
        items, least, size = out, size, size * _FAN_IN
    return items


def _nbytes(item: tuple[Any, ...]) -> int:
    return sum(piece.nbytes for piece in item)


def count(live: dict[int, int], pieces: Sequence[Any], sign: int) -> None:
    """Add (`sign` 1) or subtract (-1) the bytes of the extents among `pieces` in `live`, which has
    the bytes of each segment that logs refer to."""
    for piece in pieces:
        if type(piece) is Extent:
            number = piece.segment.number
            live[number] = live.get(number, 0) + sign * piece.nbytes
            if not live[number]:
                del live[number]


def worn_out(sizes: Mapping[int, int], live: Mapping[int, int], budget: int) -> dict[int, None]:
    """Segments most of whose bytes no log needs, emptiest first.

    `sizes` and `live` are the bytes of each segment's file and the part that logs refer to. The
    live bytes of the result, which have to be rewritten, are at most `budget` in total.
    """
    worn: dict[int, None] = {}
    for number in sorted(live, key=lambda n: live[n] / max(sizes[n], 1)):
        if live[number] < _LIVE_SHARE_MIN * sizes[number] and live[number] <= budget:
            budget -= live[number]
            worn[number] = None
    return worn
