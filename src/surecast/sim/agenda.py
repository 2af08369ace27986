"""The queue of scheduled events: a time wheel in front of a heap.

The simulator's loop (loop.py) takes its events from this queue. An entry is a tuple `(at_ns, order,
kind, a, b, c)`. Entries are processed by time; those with the same time, in the order of their
creation (`order`, which is unique).

Time is divided into slots of a fifteenth of a millisecond. Most new entries are due in a later
slot. They are appended to this slot's list in `wheel`, and the list is sorted once, when its slot
becomes the current one (`today`). Only entries that are created for the current slot go through the
heap `soon`.

The loop reads `today` and `soon` directly, because a method call per entry would take a tenth of
the loop's time.
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

# Kinds of entries, and the meaning of their fields a, b and c:
MESSAGE = 0  # the sender's `End` of a session, Received or a SessionMark (session.py), size
TIMER = 1  # node, key, None; valid only while `node.timers[key]` is the entry's order
INPUT = 2  # node, the incarnation that the input is for (None: any), input
DATAGRAM = 3  # path, target node, Received
CALL = 4  # function, a tuple of its arguments (without the first, which is the time), None
ENDING = 5  # an EndOfPass: node, key, None; valid only while `node.endings[key]` is the order

Entry = tuple[int, int, int, Any, Any, Any]  # at_ns, order, kind, a, b, c

_AT_NS = itemgetter(0)

SLOT_BITS = 16  # a slot is 2**16 ns, about a fifteenth of a millisecond


class Agenda:
    """A queue of entries, ordered by time and then by creation."""

    __slots__ = ("next_order", "slot", "slots", "soon", "today", "wheel")

    def __init__(self) -> None:
        self.next_order = count(1).__next__
        self.slot = 0  # the current slot; entries due in it or before go to `soon`
        self.today: list[Entry] = []  # the current slot's entries, latest first
        self.soon: list[Entry] = []  # a heap: entries created while their slot was current
        self.wheel: dict[int, list[Entry]] = {}  # later slot → its entries, not sorted yet
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
        """Make the next slot with entries the current one. Returns False if none begins by
        `limit_ns`."""
        slots = self.slots
        if not slots or slots[0] << SLOT_BITS > limit_ns:
            return False
        assert not self.today
        self.slot = heappop(slots)
        self.today = today = self.wheel.pop(self.slot)
        # The entries are in the order of creation, which the stable sort keeps for equal times.
        today.sort(key=_AT_NS)
        today.reverse()
        return True

    def next_ns(self) -> int | None:
        """The time of the earliest entry; if no entry is in the current slot, a lower bound: the
        beginning of the next slot with entries. None: there are no entries."""
        times = [entries[i][0] for entries, i in ((self.today, -1), (self.soon, 0)) if entries]
        if times:
            return min(times)
        return self.slots[0] << SLOT_BITS if self.slots else None
