"""Simulated clients of a swarm that send queries to a region, and the judge of the answers.

The queries are about named subscriptions, patterns of stream names, and times.

For a *named subscription* the region stores a position in each stream, the *cursor*. The client
that reads under the name is its *holder*. A new holder takes the name over, and the former one is
*fenced*: it may no longer move the cursor. In this test each holder attaches, reads from the
position in the answer, and reports its progress at intervals (Advance). The holders of a name start
one after the other; some crash, and some ignore the message that they were replaced.

The judge uses only the requests, the answers, and their times. It requires:

- A holder that attaches gets at least the positions that were acknowledged before its request, and
  never a lower position than earlier holders got.
- A holder that was replaced cannot move the cursor with a request that it sends after its successor
  got an answer.
- A reset or deletion of the subscription by an operator fences the holder in the same way. The next
  holder begins at the position of the reset; positions acknowledged before the reset are not used.
- Together, the holders of a name read every position.
- A client that watches a pattern is notified of every stream that matches, and of no other.
- If the answer to a time query is a position, no event before this position has that time or a
  later one. After publishing has ended, all regions give the same answer.

Other clients read ranges (`range_readers.py`).
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import msgspec

from surecast.columns.intervals import IntervalSet
from surecast.columns.retention import KeepFor
from surecast.core.compose import Composition, compose
from surecast.core.endpoint import (
    Answered,
    DeleteCursor,
    Drop,
    Follow,
    Inquire,
    MoveCursor,
    ResetCursor,
    TakeCursor,
    WhereIs,
    WhichStreams,
)
from surecast.core.machine import NodeContext
from surecast.core.types import MS, SECOND, Command, LogId, Received
from surecast.protocols.streams.config import InquirerConfig, SubscriberConfig
from surecast.protocols.streams.inquirer import Inquirer
from surecast.protocols.streams.messages import (
    Advance,
    Attach,
    Attached,
    Introduce,
    Locate,
    Located,
    PubAck,
    PubNack,
    ReadRange,
    StreamOpened,
    StreamsAre,
    UnwatchStreams,
    WatchStreams,
)
from surecast.protocols.streams.subscriber import Subscriber
from surecast.sim.world import World
from surecast_lab.swarm.cluster import Cluster
from surecast_lab.swarm.range_readers import RangeRead, RangeReaders

__all__ = [
    "ONLY_HERE",
    "Change",
    "Hold",
    "QueryClients",
    "QueryClientsPlan",
    "draw_changes",
    "draw_query_clients",
]

# Messages that servers receive only if there are query clients or publishers from other regions.
ONLY_HERE = (
    Advance,
    Attach,
    Introduce,
    Locate,
    PubAck,
    PubNack,
    ReadRange,
    StreamOpened,
    UnwatchStreams,
    WatchStreams,
)

ATTACH = 1  # the token of every holder's first request
ADVANCE_NS = 250 * MS  # how often a holder reports its progress
UNANSWERED_MAX = 3
NEVER = 1 << 62
FINISH_NS = 30 * SECOND  # simulated time in which the last holders must read everything


class Hold(msgspec.Struct):
    """One holder of a named subscription, from its start to its crash."""

    node: str
    name: str
    comes_ns: int
    crashes_ns: int  # 0: it does not crash
    deaf: bool  # it ignores the message that it was replaced


class Change(msgspec.Struct):
    """A reset or a deletion of a named subscription by an operator."""

    at_ns: int
    node: str
    name: str
    is_reset: bool
    force: bool


class QueryClientsPlan(msgspec.Struct):
    holds: list[Hold]
    watches: list[tuple[str, str]]  # (node, pattern)
    locates: list[tuple[int, str, str, int]]  # (time of request, node, stream, age of the time)
    ranges: list[RangeRead] = []
    changes: list[Change] = []


def draw_query_clients(
    rng: Random, regions: list[str], streams: list[str], start_ns: int, duration_ns: int
) -> QueryClientsPlan:
    holds = []
    for n in range(rng.randint(1, 2)):
        region, at_ns = rng.choice(regions), start_ns - SECOND
        for i in range(rng.randint(2, 4)):
            at_ns += int(rng.expovariate(3 / duration_ns))
            crashes_ns = at_ns + rng.randint(300 * MS, 4 * SECOND) if rng.random() < 0.4 else 0
            node = f"{region}/hold{n}.{i}"
            holds.append(Hold(node, f"sub.{n}", at_ns, crashes_ns, rng.random() < 0.6))
    watchers = [f"{region}/ask" for region in rng.sample(regions, 2)]
    patterns = rng.sample((">", "late.>", "late.*", "s*", "*", "s1", "late.b.c", "none.>"), 3)
    watches = [(rng.choice(watchers), pattern) for pattern in patterns if pattern != "s*"]
    locates = [
        (
            start_ns + rng.randrange(duration_ns),
            node,
            rng.choice(streams),
            rng.randrange(5 * SECOND),
        )
        for node in watchers
        for _ in range(3)
    ]
    return QueryClientsPlan(holds, watches, locates)


def draw_changes(rng: Random, holds: list[Hold], start_ns: int, duration_ns: int) -> list[Change]:
    """Resets and deletions of the subscriptions of these holders."""
    homes = {hold.name: hold.node.split("/")[0] for hold in holds}
    return [
        Change(
            start_ns + rng.randrange(duration_ns),
            f"{region}/operator.{name}",
            name,
            rng.random() < 0.6,
            rng.random() < 0.8,
        )
        for name, region in homes.items()
        for _ in range(rng.randint(1, 4))
    ]


@dataclass(slots=True)
class Asked:
    """An Advance request and its answer."""

    at_ns: int
    positions: dict[LogId, int]
    answered_ns: int = NEVER
    why: str = ""


@dataclass(slots=True)
class Holder:
    """The requests of one holder, their answers, and its deliveries."""

    hold: Hold
    me: bytes
    asked_ns: int
    answered_ns: int = NEVER  # the first answer to its Attach
    start: dict[LogId, int] = field(default_factory=dict)
    fenced: bool = False
    gone: bool = False
    read: dict[LogId, int] = field(default_factory=dict)  # stream → position
    advances: dict[int, Asked] = field(default_factory=dict)  # by token

    @property
    def unanswered(self) -> int:
        return sum(asked.answered_ns == NEVER for asked in self.advances.values())


@dataclass(slots=True)
class Changed:
    """A reset or a deletion, and its answer. `positions` is None for a deletion."""

    name: str
    asked_ns: int
    positions: dict[LogId, int] | None
    answered_ns: int = NEVER
    why: str = ""

    @property
    def may_count(self) -> bool:
        return not self.why

    def sets(self, stream: LogId) -> bool:
        return self.positions is None or stream in self.positions


class QueryClients:
    """The query clients of a plan in a cluster."""

    def __init__(self, cluster: Cluster, plan: QueryClientsPlan, rng: Random) -> None:
        self.cluster, self.plan, self.rng = cluster, plan, rng
        self.holders: list[Holder] = []
        self.covered: dict[tuple[str, LogId], IntervalSet] = {}  # (subscription, stream) → read
        self.heard: dict[tuple[str, int], dict[str, bool]] = {}  # (node, token) → names
        self.patterns: dict[tuple[str, int], str] = {}
        self.sought: dict[tuple[str, int], tuple[LogId, int]] = {}  # (node, token) → stream, time
        self.found: list[tuple[str, LogId, int, int]] = []  # node, stream, time, position
        self.violations: list[str] = []
        self.changed: dict[int, Changed] = {}  # by token
        self.ended_ns: dict[LogId, int] = {}  # deleted streams → when the deletion was requested
        self.tokens = ATTACH
        self.ranges = RangeReaders(cluster, plan.ranges)
        world = cluster.world
        for hold in plan.holds:
            world.call(hold.comes_ns, partial(self._start_holder, hold))
        for node in dict.fromkeys(change.node for change in plan.changes):
            world.call(0, partial(self._add_operator, node))
        for change in plan.changes:
            world.call(change.at_ns, partial(self._change, change))
        for number, node in enumerate(dict.fromkeys(node for node, _ in plan.watches)):
            world.call(number * MS, partial(self._watch, node))
        for at_ns, node, stream, ago_ns in plan.locates:
            world.call(at_ns, partial(self._locate, node, stream, ago_ns))

    def _token(self) -> int:
        self.tokens += 1
        return self.tokens

    def _ask(self, node: str, command: Inquire | Drop) -> None:
        world = self.cluster.world
        world.at(world.now_ns, node, Command("inquirer", command))

    def _add(self, node: str) -> None:
        replicas = self.cluster.regions[node.split("/")[0]]
        counters = self.cluster.counters[node] = Counter()

        def factory(_ctx: NodeContext) -> Composition:
            asks = Inquirer(InquirerConfig(replicas), counters)
            reads = Subscriber(SubscriberConfig(replicas), {}, counters)
            return compose({"inquirer": asks, "subscriber": reads})

        self.cluster.callers.append(node)
        self.cluster.world.add(node, factory)

    # ------------------------------------------------------------ named subscriptions

    def _start_holder(self, hold: Hold, world: World) -> None:
        holder = Holder(hold, self.rng.randbytes(16), world.now_ns)
        self.holders.append(holder)
        world.on_emit(hold.node, partial(self._on_answer_to_holder, holder))
        world.on_deliver(hold.node, partial(self._on_read, holder))
        self._add(hold.node)
        self._ask(hold.node, Inquire(TakeCursor(hold.name, holder.me), ATTACH))
        world.call(world.now_ns + ADVANCE_NS, partial(self._advance, holder))
        if hold.crashes_ns:
            world.call(hold.crashes_ns, partial(self._crash, holder))

    def _crash(self, holder: Holder, world: World) -> None:
        holder.gone = True
        world.crash(holder.hold.node)
        self.cluster.gone.append(holder.hold.node)

    def _on_answer_to_holder(self, holder: Holder, now_ns: int, _node: str, event: Any) -> None:
        if not isinstance(event, Answered):
            return  # an event of the subscriber layer in the same node
        answer = event.answer
        if isinstance(answer, Attached):
            if answer.why:
                holder.fenced = True
                if answer.why not in ("fenced", *self._fence_reasons(holder.hold.name)):
                    self.violations.append(f"{holder.hold.node} cannot attach: {answer.why}")
            elif holder.answered_ns == NEVER:
                holder.answered_ns, holder.start = now_ns, answer.positions
                for stream in self.cluster.streams.values():
                    self._follow(holder, stream)
            else:
                self._check_repeated_answer(holder, answer.positions)
        else:
            asked = holder.advances[event.token]
            asked.answered_ns, asked.why = now_ns, answer.why

    def _check_repeated_answer(self, holder: Holder, positions: dict[LogId, int]) -> None:
        """Check that a repeated answer to Attach, perhaps from another head, has no lower
        positions."""
        for stream, seq in holder.start.items():
            if positions.get(stream, 1) < seq and stream not in self.ended_ns:
                self.violations.append(
                    f"{holder.hold.node} got a lower position than {seq}, which it had before"
                )

    def _follow(self, holder: Holder, stream: LogId) -> None:
        start = holder.start.get(stream, 1)
        holder.read[stream] = start
        world = self.cluster.world
        world.at(world.now_ns, holder.hold.node, Command("subscriber", Follow(stream, start)))

    def _on_read(
        self, holder: Holder, _now_ns: int, _node: str, stream: LogId, batches: tuple[Any, ...]
    ) -> None:
        lo, hi = batches[0].lo, batches[-1].hi
        if lo != holder.read[stream]:
            self.violations.append(f"{holder.hold.node} was at {holder.read[stream]}, got {lo}")
        holder.read[stream] = hi
        self.covered.setdefault((holder.hold.name, stream), IntervalSet()).add(lo, hi)

    def _advance(self, holder: Holder, world: World) -> None:
        hold = holder.hold
        if holder.gone or (holder.fenced and not hold.deaf):
            return
        world.call(world.now_ns + ADVANCE_NS, partial(self._advance, holder))
        if holder.answered_ns == NEVER or holder.unanswered >= UNANSWERED_MAX:
            return
        for stream in self.cluster.streams.values():
            if stream not in holder.read:  # created later
                self._follow(holder, stream)
        before: dict[LogId, int] = dict(holder.start)
        for asked in holder.advances.values():
            before |= asked.positions
        further = {s: at for s, at in holder.read.items() if at > before.get(s, 1)}
        if further:
            token = self._token()
            # Report less than was read: then a successor that starts at a higher position must have
            # got this position from the holder that it replaced.
            picked = {s: self.rng.randint(before.get(s, 1) + 1, at) for s, at in further.items()}
            holder.advances[token] = Asked(world.now_ns, picked)
            self._ask(hold.node, Inquire(MoveCursor(hold.name, holder.me, picked), token))

    # ------------------------------------------------------------ operators

    def _add_operator(self, node: str, world: World) -> None:
        self._add(node)
        world.on_emit(node, self._on_changed)

    def _fence_reasons(self, name: str) -> Iterator[str]:
        """The reasons that fenced holders of a name may get after a change by an operator."""
        for changed in self.changed.values():
            if changed.name == name and changed.may_count:
                yield "deleted" if changed.positions is None else "reset"

    def _change(self, change: Change, world: World) -> None:
        """Request a change, unless another change of the same name is not answered yet."""
        mine = [changed for changed in self.changed.values() if changed.name == change.name]
        if any(changed.answered_ns == NEVER for changed in mine):
            world.call(world.now_ns + ADVANCE_NS, partial(self._change, change))
            return
        name, me, token = change.name, self.rng.randbytes(16), self._token()
        if not change.is_reset:
            self.changed[token] = Changed(name, world.now_ns, None)
            self._ask(change.node, Inquire(DeleteCursor(name, me, change.force), token))
            return
        read: dict[LogId, int] = {}
        for holder in self.holders:
            if holder.hold.name == name:
                read |= {s: max(seq, read.get(s, 1)) for s, seq in holder.read.items()}
        positions = {
            s: self.rng.randint(1, seq) for s, seq in read.items() if self.rng.random() < 0.7
        }
        self.changed[token] = Changed(name, world.now_ns, positions)
        self._ask(change.node, Inquire(ResetCursor(name, me, positions, change.force), token))

    def _on_changed(self, now_ns: int, node: str, event: Any) -> None:
        if not isinstance(event, Answered):
            return
        changed = self.changed[event.token]
        changed.answered_ns, changed.why = now_ns, event.answer.why
        if changed.why not in ("", "in-use", "unknown-subscription"):
            self.violations.append(f"{node}: a change was refused: {changed.why}")
        elif changed.why == "in-use" and not self._may_be_attached(changed):
            self.violations.append(f"{node}: refused as in use, but no client is attached")

    def _may_be_attached(self, changed: Changed) -> bool:
        return any(
            holder.hold.name == changed.name and holder.asked_ns <= changed.answered_ns
            for holder in self.holders
        )

    # ------------------------------------------------------------ requests to any replica

    def _watch(self, node: str, world: World) -> None:
        self._add(node)
        world.on_emit(node, self._on_answer)
        replica = self.cluster.regions[node.split("/")[0]][0]
        world.at(world.now_ns, replica, Received(node, Introduce()))
        for pattern in [pattern for at, pattern in self.plan.watches if at == node]:
            token = self._token()
            self.patterns[node, token] = pattern
            self.heard[node, token] = {}
            self._ask(node, Inquire(WhichStreams(pattern), token))

    def _locate(self, node: str, stream: str, ago_ns: int, world: World) -> None:
        stream_id = self.cluster.streams.get(stream)
        if stream_id is None or node not in self.cluster.callers:
            return
        self._ask_position(node, stream_id, world.wall_ns(node) - ago_ns)

    def _ask_position(self, node: str, stream: LogId, time_ns: int) -> None:
        token = self._token()
        self.sought[node, token] = stream, time_ns
        self._ask(node, Inquire(WhereIs(stream, time_ns), token))

    def _on_answer(self, _now_ns: int, node: str, event: Any) -> None:
        answer = event.answer
        if isinstance(answer, StreamsAre):
            names = self.heard[node, event.token]
            names |= {info.name: True for info in answer.infos}
        elif isinstance(answer, Located) and not answer.why:
            stream, time_ns = self.sought.pop((node, event.token))
            self.found.append((node, stream, time_ns, answer.seq))

    # ------------------------------------------------------------ the end

    def finish(self) -> None:
        """After healing and the end of publishing: start a last holder of each name, send the same
        time queries to every region, and judge."""
        cluster, world = self.cluster, self.cluster.world
        last = []
        for name, region in {h.name: h.node.split("/")[0] for h in self.plan.holds}.items():
            self._start_holder(Hold(f"{region}/last.{name}", name, world.now_ns, 0, False), world)
            last.append(self.holders[-1])
        ends = {s: cluster.position(cluster.subscribers[0], n) for n, s in cluster.streams.items()}

        def all_read() -> bool:
            return all(h.read.get(s, 0) >= end for h in last for s, end in ends.items())

        if not world.run(world.now_ns + FINISH_NS, until=lambda _: all_read()):
            reads = {h.hold.node: [h.answered_ns < NEVER, *h.read.values()] for h in last}
            self.violations.append(f"the last holders got {reads}, streams end at {ends.values()}")
        self._same_everywhere()
        if self.plan.changes:
            self.violations += [*self._starts_with_changes(), *self._places()]
        else:
            self.violations += self._starts()
        self.violations += [*self._fences(), *self._gaps(ends)]
        self.violations += [*self._wrong_notifications(), *self._wrong_positions()]
        self.ranges.finish(ends)
        self.violations += self.ranges.violations
        for node, token in self.heard:
            self._ask(node, Drop(token))
        world.run(world.now_ns + 100 * MS)

    def counts(self) -> dict[str, int]:
        """How often each kind of request was answered."""
        asked = [asked for holder in self.holders for asked in holder.advances.values()]
        return {
            "attached": sum(holder.answered_ns < NEVER for holder in self.holders),
            "fenced": sum(holder.fenced for holder in self.holders),
            "crashed": sum(holder.gone for holder in self.holders),
            "advanced": sum(one.answered_ns < NEVER and not one.why for one in asked),
            "refused": sum(one.answered_ns < NEVER and bool(one.why) for one in asked),
            "heard of": sum(len(names) for names in self.heard.values()),
            "located": len(self.found),
            **self._counts_of_changes(),
            **self.ranges.counts(),
        }

    def _counts_of_changes(self) -> dict[str, int]:
        done = [c for c in self.changed.values() if c.answered_ns < NEVER]
        counts = {
            "reset": sum(c.positions is not None and not c.why for c in done),
            "deleted": sum(c.positions is None and not c.why for c in done),
            "change refused": sum(bool(c.why) for c in done),
        }
        return counts if self.plan.changes else {}

    def _same_everywhere(self) -> None:
        """Every region must name the same position for a time (except in streams that expire)."""
        cluster = self.cluster
        watchers = list(dict.fromkeys(node for node, _ in self.plan.watches))
        asked = {(s, t) for _, s, t, _ in self.found if not self._expires(s)}
        count = len(self.found)
        for stream, time_ns in sorted(asked):
            for node in watchers:
                self._ask_position(node, stream, time_ns)
        want = count + len(asked) * len(watchers)
        limit_ns = cluster.world.now_ns + FINISH_NS
        if not cluster.world.run(limit_ns, until=lambda _: len(self.found) >= want):
            self.violations.append("a query for the position of a time was not answered")
        places: dict[tuple[LogId, int], dict[int, str]] = {}
        for node, stream, time_ns, seq in self.found[count:]:
            places.setdefault((stream, time_ns), {})[seq] = node
        for (stream, time_ns), found in places.items():
            if len(found) > 1:
                name = cluster.names[stream]
                self.violations.append(
                    f"{name}: regions name different positions for the time {time_ns}: {found}"
                )

    def _expires(self, stream: LogId) -> bool:
        return isinstance(self.cluster.records[self.cluster.names[stream]].policy, KeepFor)

    # ------------------------------------------------------------ judging

    def _of_each_name(self) -> list[list[Holder]]:
        names = dict.fromkeys(holder.hold.name for holder in self.holders)
        return [[h for h in self.holders if h.hold.name == name] for name in names]

    def _starts(self) -> list[str]:
        """A holder that attaches gets all positions acknowledged or reported before its request."""
        found = []
        for holders in self._of_each_name():
            for h in holders:
                if h.answered_ns == NEVER:
                    continue
                known = [o.start for o in holders if o.answered_ns <= h.asked_ns]
                known += [
                    asked.positions
                    for o in holders
                    for asked in o.advances.values()
                    if asked.answered_ns <= h.asked_ns and not asked.why
                ]
                for stream, seq in (item for positions in known for item in positions.items()):
                    if h.start.get(stream, 1) < seq:
                        found.append(
                            f"{h.hold.name}: {h.hold.node} got {h.start.get(stream, 1)}, "
                            f"but {seq} was acknowledged before"
                        )
        return found[:5]

    def _fences(self) -> list[str]:
        """A holder cannot move the cursor after its successor was answered."""
        found = []
        for holders in self._of_each_name():
            allowed: dict[LogId, int] = {}
            for h in holders:
                # When the first holder that attached after the answer to `h` got its own answer.
                fenced_ns = min(
                    (o.answered_ns for o in holders if o.asked_ns >= h.answered_ns and o is not h),
                    default=NEVER,
                )
                for changed in self._changes_of(h.hold.name):
                    if changed.asked_ns >= h.answered_ns:
                        fenced_ns = min(fenced_ns, changed.answered_ns)
                for asked in h.advances.values():
                    if asked.at_ns <= fenced_ns:
                        for stream, seq in asked.positions.items():
                            allowed[stream] = max(allowed.get(stream, 1), seq)
                    elif asked.answered_ns < NEVER and not asked.why:
                        found.append(
                            f"{h.hold.name}: {h.hold.node} moved the cursor after it was fenced"
                        )
            for h in holders if not self.plan.changes else ():
                for stream, seq in h.start.items():
                    if seq > allowed.get(stream, 1):
                        found.append(
                            f"{h.hold.name}: {h.hold.node} got {seq}, which no holder reported"
                        )
        return found[:5]

    def _changes_of(self, name: str) -> list[Changed]:
        """The changes that were carried out, or may have been."""
        return [c for c in self.changed.values() if c.name == name and c.may_count]

    def _starts_with_changes(self) -> list[str]:
        """Like `_starts`, but only for positions that no later reset or deletion may have replaced.
        The positions of a reset count like acknowledged ones."""
        found = []
        for holders in self._of_each_name():
            changes = self._changes_of(holders[0].hold.name)
            for h in holders:
                if h.answered_ns == NEVER:
                    continue
                known = [(o.asked_ns, o.start) for o in holders if o.answered_ns <= h.asked_ns]
                known += [
                    (asked.at_ns, asked.positions)
                    for o in holders
                    for asked in o.advances.values()
                    if asked.answered_ns <= h.asked_ns and not asked.why
                ]
                known += [
                    (c.asked_ns, c.positions or {}) for c in changes if c.answered_ns <= h.asked_ns
                ]
                for since_ns, positions in known:
                    later = [
                        c
                        for c in changes
                        if c.answered_ns > since_ns
                        and c.asked_ns <= h.answered_ns
                        and c.positions is not positions
                    ]
                    for stream, seq in positions.items():
                        if self.ended_ns.get(stream, NEVER) <= h.answered_ns:
                            continue  # positions in deleted streams are removed
                        if h.start.get(stream, 1) < seq and not any(c.sets(stream) for c in later):
                            found.append(
                                f"{h.hold.name}: {h.hold.node} got {h.start.get(stream, 1)}, but "
                                f"{seq} was stored before"
                            )
        return found[:5]

    def _places(self) -> list[str]:
        """Each position that a holder got must have been set by a reset or by a holder's report,
        and must not have been replaced by a later reset or deletion."""
        found = []
        for holders in self._of_each_name():
            changes = self._changes_of(holders[0].hold.name)
            for h in holders:
                if h.answered_ns == NEVER:
                    continue
                replaced = [c for c in changes if c.answered_ns <= h.asked_ns]
                for stream, seq in h.start.items():
                    # For each possible source of the position: the earliest time it may have
                    # applied.
                    sources = [
                        o.answered_ns
                        for o in holders
                        for asked in o.advances.values()
                        if asked.positions.get(stream) == seq and asked.at_ns <= h.answered_ns
                    ]
                    sources += [
                        c.answered_ns
                        for c in changes
                        if c.asked_ns <= h.answered_ns and (c.positions or {}).get(stream) == seq
                    ]
                    last = max((c.asked_ns for c in replaced if c.sets(stream)), default=0)
                    if not any(source_ns > last for source_ns in sources):
                        found.append(
                            f"{h.hold.name}: {h.hold.node} got {seq} of "
                            f"{self.cluster.names[stream]}, which was replaced"
                        )
        return found[:5]

    def _gaps(self, ends: dict[LogId, int]) -> list[str]:
        """The holders of a name must together read every position, except what resets skipped."""
        for changed in self.changed.values():
            for stream, seq in (changed.positions or {}).items() if changed.may_count else ():
                if seq > 1:
                    self.covered.setdefault((changed.name, stream), IntervalSet()).add(1, seq)
        nothing = IntervalSet()
        return [
            f"{name}: no holder read all of {self.cluster.names[stream]}"
            for name in dict.fromkeys(h.hold.name for h in self.holders)
            for stream, end in ends.items()
            if not self.covered.get((name, stream), nothing).contains_range(1, end)
        ]

    def _wrong_notifications(self) -> list[str]:
        found = []
        for (node, token), names in self.heard.items():
            pattern = self.patterns[node, token]
            wanted = [name for name in self.cluster.streams if _matches(pattern, name)]
            if sorted(names) != sorted(wanted):
                found.append(f"{node} watches {pattern}: got {sorted(names)}, not {wanted}")
        return found

    def _wrong_positions(self) -> list[str]:
        """For each answer to a time query: no live event before the position may have this time or
        a later one."""
        found = []
        for node, stream, time_ns, seq in self.found:
            record = self.cluster.records[self.cluster.names[stream]]
            for reading in record.audits:
                for event in reading.events:
                    if event.seq < seq and event.time_ns >= time_ns:
                        found.append(
                            f"{node} got {seq} for {time_ns}, but {event.seq} is not earlier"
                        )
        return found[:5]


def _matches(pattern: str, name: str) -> bool:
    """Whether a pattern matches a name. It does not use `names.matches`, which this test checks."""
    spelled = re.escape(pattern).replace(r"\*", r"[^.]+").replace(">", ".+")
    return re.fullmatch(spelled, name) is not None
