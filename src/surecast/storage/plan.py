"""What a move writes: which pieces of a log become one run, and which stay where they are.

Batches in memory are always written. Extents stay, unless

- they lie in a segment that is mostly dead: the rest of it is taken along, so that its file can go;
- a log has many small ones in a row: eight of about a size, and what is smaller between them,
  become one of the next size, until they have `run_bytes_min`. So each byte is rewritten a few
  times at most, and a log of any length has few extents for what it holds.

A hole stays what it is; nothing is joined across one.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from surecast.core.types import Batch
from surecast.storage.extents import Extent
from surecast.storage.memory import Hole

__all__ = ["Group", "count", "groups_of", "worn_out"]

_FAN_IN: Final = 8  # extents of a size that become one of the next
_SIZE_MIN: Final = 1 << 10
_LIVE_SHARE_MIN: Final = 0.5  # of a segment's bytes; below, what is left moves out


class Group(NamedTuple):
    """Pieces that are, or will be, one extent."""

    pieces: tuple[Any, ...]
    extent: Any  # Extent, once it is written; or the hole that it is

    @property
    def is_new(self) -> bool:
        return self.pieces[0] is not self.extent

    @property
    def old_bytes(self) -> int:
        """Of what is in segments already and is written again."""
        if not self.is_new:
            return 0
        return sum(piece.nbytes for piece in self.pieces if type(piece) is Extent)


def groups_of(pieces: Sequence[Any], worn: Iterable[int], run_bytes_min: int) -> list[Group]:
    """The pieces of a log in groups; a group without an extent is to be written."""
    groups: list[Group] = []
    for is_hole, some in groupby(pieces, lambda piece: type(piece) is Hole):
        if is_hole:
            groups += [Group((hole,), hole) for hole in some]
        else:
            groups += _groups_of(list(some), worn, run_bytes_min)
    return groups


def _groups_of(pieces: Sequence[Any], worn: Iterable[int], run_bytes_min: int) -> list[Group]:
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
        elif groups and groups[-1].extent is None:  # what is written anyway is written as one
            groups[-1] = Group(groups[-1].pieces + item, None)
        else:
            groups.append(Group(item, None))
    return groups


def _joined(items: list[tuple[Any, ...]], run_bytes_min: int) -> list[tuple[Any, ...]]:
    """Items with eight or more of a size in a row are one, the smallest first."""
    least, size = 0, _SIZE_MIN
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
    """Add to (or take from) the bytes of each segment those of its extents among `pieces`."""
    for piece in pieces:
        if type(piece) is Extent:
            number = piece.segment.number
            live[number] = live.get(number, 0) + sign * piece.nbytes
            if not live[number]:
                del live[number]


def worn_out(sizes: Mapping[int, int], live: Mapping[int, int], budget: int) -> dict[int, None]:
    """Segments most of whose bytes no log needs, emptiest first, while `budget` bytes last."""
    worn: dict[int, None] = {}
    for number in sorted(live, key=lambda n: live[n] / max(sizes[n], 1)):
        if live[number] < _LIVE_SHARE_MIN * sizes[number] and live[number] <= budget:
            budget -= live[number]
            worn[number] = None
    return worn
