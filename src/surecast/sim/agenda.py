"""The queue of scheduled events: a time wheel in front of a heap.

Entries are tuples `(at_ns, order, kind, a, b, c)`; `order` is unique, so the fields after it are
never compared, and entries with the same time are processed in the order of their creation. Most
entries are due after the current slot (a fifteenth of a millisecond) and cost one list append; a
slot is sorted once, when it becomes current. Only entries due within the current slot go through
the heap `soon`.

The world's loop reads `today` and `soon` directly: a method call per entry would take a tenth of
its time.
"""

from heapq import heappop, heappush
from itertools import count
from operator import itemgetter
from typing import Any

__all__ = [
    "CALL",
    "DATAGRAM",
    "ENDING",
    "INPUT",
    "MESSAGE",
    "SLOT_BITS",
    "TIMER",
    "Agenda",
    "Entry",
]

# Kinds of entries, and what a, b and c are:
MESSAGE = 0  # of a session: the sender's end, Received, size
TIMER = 1  # node, key, None; valid while `node.timers[key]` is the entry's order
INPUT = 2  # node, incarnation it is for (None: any), input
DATAGRAM = 3  # path, target node, Received
CALL = 4  # function, arguments after the time, None
ENDING = 5  # of a pass: node, key, None; valid while `node.endings[key]` is the entry's order

Entry = tuple[int, int, int, Any, Any, Any]

_AT_NS = itemgetter(0)

SLOT_BITS = 16  # a slot is 2**16 ns, about a fifteenth of a millisecond


class Agenda:
    """Entries in order of time, then of creation."""

    __slots__ = ("next_order", "slot", "slots", "soon", "today", "wheel")

    def __init__(self) -> None:
        self.next_order = count(1).__next__
        self.slot = 0  # the current slot; entries due in it or before go to `soon`
        self.today: list[Entry] = []  # the current slot's entries, latest first
        self.soon: list[Entry] = []  # a heap: entries created while their slot was current
        self.wheel: dict[int, list[Entry]] = {}
        self.slots: list[int] = []  # a heap of the wheel's keys

    def push(self, at_ns: int, kind: int, a: Any = None, b: Any = None, c: Any = None) -> int:
        """Add an entry; return its order, which identifies it."""
        order = self.next_order()
        self.put((at_ns, order, kind, a, b, c))
        return order

    def put(self, entry: Entry) -> None:
        slot = entry[0] >> SLOT_BITS
        if slot <= self.slot:
            heappush(self.soon, entry)
            return
        later = self.wheel.get(slot)
        if later is None:
            self.wheel[slot] = [entry]
            heappush(self.slots, slot)
        else:
            later.append(entry)

    def advance(self, limit_ns: int) -> bool:
        """Go to the next slot that begins by `limit_ns`; False if there is none."""
        slots = self.slots
        if not slots or slots[0] << SLOT_BITS > limit_ns:
            return False
        assert not self.today
        self.slot = heappop(slots)
        self.today = today = self.wheel.pop(self.slot)
        # They are in the order of creation, and the sort is stable.
        today.sort(key=_AT_NS)
        today.reverse()
        return True

    def next_ns(self) -> int | None:
        """When the earliest entry is due; for a wheel slot, when the slot begins."""
        times = [entries[i][0] for entries, i in ((self.today, -1), (self.soon, 0)) if entries]
        if times:
            return min(times)
        return self.slots[0] << SLOT_BITS if self.slots else None
