"""Covering and widening: fewer filters that together accept at least the same events.

A broker keeps for each link a *superset* of the filters behind it. An event that passes it and no
filter costs bandwidth; one that passes a filter and not the superset would be lost. So `covers`
says True only if that is certain, and `widen` only ever adds events.

`widen` leaves out conjunctions that others cover, and joins those that differ in one column only:
values become a list, ranges that meet become one range. While there are more than wanted, it goes
on at the price of further events: similar conjunctions become one, whose ranges and lists include
theirs, and columns are left out; in the end the only filter left accepts every event.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from surecast.where.binding import ALL, Bound, BoundAnd, BoundTest, Op
from surecast.where.columns import Column, Kind
from surecast.where.normal import Conjunction, conjunctions

__all__ = ["COMPARED_MAX", "LISTED_MAX", "covers", "holds", "widen"]

LISTED_MAX = 256  # values of an `in` that widening makes; more become a range
COMPARED_MAX = 50_000  # pairs of conjunctions that one call of `widen` compares for covering

_LIST_SHARE: Final = 8  # of the parts to which filters with lists are reduced, less than the others

_RANGES: Final = (Op.LESS, Op.AT_MOST, Op.MORE, Op.AT_LEAST, Op.BETWEEN)
_LISTS: Final = (Op.EQUAL, Op.IN)

# ---------------------------------------------------------------- covering


def holds(test: BoundTest, value: Any) -> bool:
    """Whether a value, which is not NaN, passes a test."""
    values = test.values
    match test.op:
        case Op.EXISTS:
            found = True
        case Op.EQUAL | Op.IN:
            found = value in values
        case Op.LESS:
            found = value < values[0]
        case Op.AT_MOST:
            found = value <= values[0]
        case Op.MORE:
            found = value > values[0]
        case Op.AT_LEAST:
            found = value >= values[0]
        case Op.BETWEEN:
            found = values[0] <= value <= values[1]
        case Op.STARTS_WITH:
            found = value.startswith(values[0])
        case Op.CONTAINS:
            found = values[0] in value
    return bool(found) is not test.negated


class _Range(NamedTuple):
    """The values from low to high; None: no bound. An open bound is not included."""

    low: Any = None
    high: Any = None
    low_open: bool = False
    high_open: bool = False


def _range(test: BoundTest) -> _Range | None:
    """The range of a test; None if its values are not within one. Negated tests have none."""
    if test.negated:
        return None
    values = test.values
    match test.op:
        case Op.EQUAL | Op.IN if values:
            return _Range(values[0], values[-1])
        case Op.LESS:
            return _Range(high=values[0], high_open=True)
        case Op.AT_MOST:
            return _Range(high=values[0])
        case Op.MORE:
            return _Range(values[0], low_open=True)
        case Op.AT_LEAST:
            return _Range(values[0])
        case Op.BETWEEN:
            return _Range(values[0], values[1])
        case Op.STARTS_WITH:
            return _Range(values[0], _after_prefix(values[0]), high_open=True)
    return None


def _after_prefix(prefix: bytes) -> bytes | None:
    """The first bytes after all that begin with `prefix`."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def _low_key(span: _Range) -> tuple[Any, bool]:
    return span.low, span.low_open


def _high_key(span: _Range) -> tuple[Any, bool]:
    return span.high, not span.high_open


def _within(inner: _Range, outer: _Range) -> bool:
    if outer.low is not None and (inner.low is None or _low_key(inner) < _low_key(outer)):
        return False
    return outer.high is None or (inner.high is not None and _high_key(inner) <= _high_key(outer))


def _intersection(spans: Sequence[_Range]) -> _Range:
    lows = [span for span in spans if span.low is not None]
    highs = [span for span in spans if span.high is not None]
    low, high = max(lows, key=_low_key, default=None), min(highs, key=_high_key, default=None)
    return _Range(
        low and low.low, high and high.high,
        low is not None and low.low_open, high is not None and high.high_open,
    )  # fmt: skip


def _hull(spans: Sequence[_Range]) -> _Range:
    low = high = None
    if all(span.low is not None for span in spans):
        low = min(spans, key=_low_key)
    if all(span.high is not None for span in spans):
        high = max(spans, key=_high_key)
    return _Range(
        low and low.low, high and high.high,
        low is not None and low.low_open, high is not None and high.high_open,
    )  # fmt: skip


def _implied(given: Sequence[BoundTest], test: BoundTest) -> bool:
    """Whether every event that passes the tests `given` of a column passes `test` of it. If in
    doubt, False."""
    if test in given:
        return True
    compared = [one for one in given if one.op is not Op.EXISTS]  # these need a value, not NaN
    if test.op is Op.EXISTS:
        return not test.negated and any(one.op is not Op.EXISTS or not one.negated for one in given)
    if not compared:
        return False
    for one in compared:
        if one.op in _LISTS and not one.negated:
            left = [value for value in one.values if all(holds(other, value) for other in compared)]
            return all(holds(test, value) for value in left)
    if test.negated and test.op in _LISTS:  # the given tests must exclude each value
        return all(any(not holds(one, value) for one in compared) for value in test.values)
    spans = [span for one in compared if (span := _range(one)) is not None]
    if not test.negated and test.op in _RANGES:
        span = _range(test)
        return span is not None and _within(_intersection(spans), span)
    if test.negated and test.op in (Op.BETWEEN, Op.STARTS_WITH):
        return bool(spans) and _apart(_intersection(spans), test)
    if not test.negated and test.op in (Op.STARTS_WITH, Op.CONTAINS):
        return any(_has_text(one, test) for one in compared)
    return False


def _apart(span: _Range, test: BoundTest) -> bool:
    """Whether no value of a range passes the test without its `not`."""
    other = _range(BoundTest(test.column, test.op, test.values))
    assert other is not None
    return _before(span, other) or _before(other, span)


def _before(first: _Range, second: _Range) -> bool:
    if first.high is None or second.low is None:
        return False
    is_open = first.high_open or second.low_open
    return bool(first.high < second.low or (is_open and first.high == second.low))


def _has_text(given: BoundTest, test: BoundTest) -> bool:
    if given.negated or given.op not in (Op.STARTS_WITH, Op.CONTAINS):
        return False
    if test.op is Op.STARTS_WITH:
        return given.op is Op.STARTS_WITH and given.values[0].startswith(test.values[0])
    return test.values[0] in given.values[0]


class _Part(NamedTuple):
    """A conjunction: the tests of each column."""

    tests: dict[Column, Conjunction]

    def conjunction(self) -> Conjunction:
        return tuple(test for tests in self.tests.values() for test in tests)


def _part(conjunction: Conjunction) -> _Part:
    tests: dict[Column, Conjunction] = {}
    for test in sorted(conjunction, key=lambda test: test.column.name):
        mine = tests.get(test.column, ())
        if test not in mine:
            tests[test.column] = (*mine, test)
    return _Part(tests)


def _part_covers(first: _Part, second: _Part) -> bool:
    for column, tests in first.tests.items():
        given = second.tests.get(column)
        if given is None or not all(_implied(given, test) for test in tests):
            return False
    return True


def covers(first: Bound, second: Bound) -> bool:
    """True only if `first` accepts every event that `second` accepts. Both are bound to the same
    columns. False says nothing: most coverings are found, not all."""
    if first in (second, ALL):
        return True
    mine, others = conjunctions(first), conjunctions(second)
    if mine is None or others is None:
        return False
    parts = [_part(one) for one in mine]
    return all(any(_part_covers(one, _part(other)) for one in parts) for other in others)


# ---------------------------------------------------------------- widening


def widen(bounds: Iterable[Bound], count_max: int) -> list[Bound]:
    """At most `count_max` conjunctions, of which at least one accepts each event that one of the
    filters accepts. All are bound to the same columns. No filter is needed if none can accept an
    event; ALL is the answer if a filter is too large to be divided."""
    if count_max < 1:
        raise ValueError("count_max is at least 1")
    parts: dict[frozenset[BoundTest], _Part] = {}
    for bound in bounds:
        divided = conjunctions(bound)
        if divided is None:
            return [ALL]
        for one in divided:
            parts.setdefault(frozenset(one), _part(one))
    left = _uncovered(_joined(list(parts.values())))
    if len(left) > count_max:
        left = _uncovered(_joined(_fewer(left, count_max)))
    made: list[Bound] = []
    for part in left:
        tests = part.conjunction()
        made.append(tests[0] if len(tests) == 1 else BoundAnd(tests))
    return made


def _uncovered(parts: list[_Part]) -> list[_Part]:
    """The conjunctions without those that another one covers. After COMPARED_MAX comparisons, the
    others stay."""
    # One conjunction covers another only if the other one tests all of its columns. If it lists
    # values of a column, they must contain those of the other one.
    places: dict[tuple[frozenset[Column], Column | None, Any], list[int]] = {}
    kinds: dict[frozenset[Column], set[Column | None]] = {}
    for number, part in enumerate(parts):
        columns = frozenset(part.tests)
        listed = next((one for one in part.tests if _is_list(part.tests[one][0])), None)
        kinds.setdefault(columns, set()).add(listed)
        for value in (None,) if listed is None else part.tests[listed][0].values:
            places.setdefault((columns, listed, value), []).append(number)
    is_kept = [True] * len(parts)
    compared = 0
    for number, part in enumerate(parts):
        for columns, listed in ((c, one) for c, several in kinds.items() for one in several):
            if compared > COMPARED_MAX or not is_kept[number] or not columns <= part.tests.keys():
                continue
            test = None if listed is None else part.tests[listed][0]
            if test is not None and not _is_list(test):
                continue
            value = test.values[0] if test is not None and test.values else None
            for other in places.get((columns, listed, value), ()):
                compared += 1
                if other != number and is_kept[other] and _part_covers(parts[other], part):
                    is_kept[number] = False
                    break
    return [part for part, kept in zip(parts, is_kept, strict=True) if kept]


def _joined(parts: list[_Part]) -> list[_Part]:
    """The conjunctions, joined where they differ only in the values or the range of one column.
    This adds no event."""
    columns = sorted({column for part in parts for column in part.tests}, key=lambda c: c.name)
    for column in columns:
        same: dict[Any, list[_Part]] = {}
        for part in parts:
            mine = part.tests.get(column)
            key: Any = None
            if mine is not None and len(mine) == 1:
                others = frozenset((c, t) for c, t in part.tests.items() if c != column)
                key = (others, _is_list(mine[0]), _is_list(mine[0]) or _range(mine[0]) is not None)
            if key is None or not key[2]:
                key = id(part)  # is not joined
            same.setdefault(key, []).append(part)
        parts = [made for group in same.values() for made in _join(group, column)]
    return parts


def _is_list(test: BoundTest) -> bool:
    return test.op in _LISTS and not test.negated


def _join(group: list[_Part], column: Column) -> list[_Part]:
    if len(group) == 1:
        return group
    tests = [part.tests[column][0] for part in group]
    if _is_list(tests[0]):
        values = sorted({value for test in tests for value in test.values})
        made = [
            _listed(column, values[lo : lo + LISTED_MAX])
            for lo in range(0, len(values), LISTED_MAX)
        ]
        if len(made) > len(group):  # one of them listed more values
            return group
    else:
        made = _met(column, tests)
    return [_Part({**group[0].tests, column: tests}) for tests in made]


def _met(column: Column, tests: list[BoundTest]) -> list[Conjunction]:
    """Ranges, joined where they overlap or touch."""
    spans = [(span, test) for test in tests if (span := _range(test)) is not None]
    first = [one for one in spans if one[0].low is None]
    rest = sorted(
        (one for one in spans if one[0].low is not None), key=lambda one: _low_key(one[0])
    )
    made: list[tuple[_Range, BoundTest | None]] = []
    for span, test in first + rest:
        if made and not _before(made[-1][0], span):
            made[-1] = _hull([made[-1][0], span]), None
        else:
            made.append((span, test))
    return [(test,) if test is not None else _ranged(column, span) for span, test in made]


def _listed(column: Column, values: list[Any]) -> Conjunction:
    if len(values) == 1:
        return (BoundTest(column, Op.EQUAL, tuple(values)),)
    return (BoundTest(column, Op.IN, tuple(values)),)


def _ranged(column: Column, span: _Range) -> Conjunction:
    """The tests of a range."""
    if span.low is not None and not span.low_open and span.high is not None and not span.high_open:
        return (BoundTest(column, Op.BETWEEN, (span.low, span.high)),)
    tests: list[BoundTest] = []
    if span.low is not None:
        tests.append(BoundTest(column, Op.MORE if span.low_open else Op.AT_LEAST, (span.low,)))
    if span.high is not None:
        tests.append(BoundTest(column, Op.LESS if span.high_open else Op.AT_MOST, (span.high,)))
    if not tests:  # every value that is not NaN
        tests.append(_any_value(column))
    return tuple(tests)


def _any_value(column: Column) -> BoundTest:
    if column.kind is Kind.FLOAT:
        return BoundTest(column, Op.IN, (), negated=True)
    return BoundTest(column, Op.EXISTS)


def _fewer(parts: list[_Part], count_max: int) -> list[_Part]:
    """At most `count_max` conjunctions that accept at least what these accept."""
    by_columns = _by_columns(parts)
    while len(by_columns) > count_max:
        # Without the column that the fewest conjunctions test, more of them test the same columns.
        uses = Counter(column for part in parts for column in part.tests)
        rarest = min(uses, key=lambda column: (uses[column], column.name))
        parts = [_Part({c: t for c, t in part.tests.items() if c != rarest}) for part in parts]
        by_columns = _by_columns(parts)
    # Lists grow by the values that are added, ranges also by what is between: they need more parts.
    shares = [
        (sum(map(_listed_count, group)) / _LIST_SHARE or len(group), group)
        for group in by_columns.values()
    ]
    shares.sort(key=lambda one: (len(one[1]) / one[0], len(one[1])))
    spare, total = count_max - len(by_columns), sum(share for share, _ in shares)
    made: list[_Part] = []
    for share, group in shares:
        count = min(len(group), 1 + int(spare * share / total + 1e-9))
        spare, total = spare - (count - 1), total - share
        _sort_by_values(group)
        made += (
            _widened(group[len(group) * n // count : len(group) * (n + 1) // count])
            for n in range(count)
        )
    return made


def _listed_count(part: _Part) -> int:
    """The number of values of the shortest list."""
    return min((len(test.values) for test in part.conjunction() if _is_list(test)), default=0)


def _by_columns(parts: list[_Part]) -> dict[frozenset[Column], list[_Part]]:
    found: dict[frozenset[Column], list[_Part]] = {}
    for part in parts:
        found.setdefault(frozenset(part.tests), []).append(part)
    return found


def _sort_by_values(group: list[_Part]) -> None:
    """Put conjunctions with similar values next to each other: first by the columns of which they
    list values, because a list grows with each value that is added."""
    lists = Counter(c for part in group for c, tests in part.tests.items() if _is_list(tests[0]))
    columns = sorted(group[0].tests, key=lambda column: (-lists[column], column.name))
    group.sort(key=lambda part: [_lowest(part.tests[column]) for column in columns])


def _lowest(tests: Conjunction) -> tuple[int, Any]:
    low = _intersection([span for test in tests if (span := _range(test)) is not None]).low
    return (0, 0) if low is None else (1, low)


def _widened(group: list[_Part]) -> _Part:
    """One conjunction that accepts what each one of the group, which test the same columns,
    accepts."""
    if len(group) == 1:
        return group[0]
    made: dict[Column, Conjunction] = {}
    for column in group[0].tests:
        tests = _widened_tests(column, [part.tests[column] for part in group])
        if tests:
            made[column] = tests
    return _Part(made)


def _widened_tests(column: Column, several: list[Conjunction]) -> Conjunction:
    common = set(several[0]).intersection(*several[1:])
    lists = [next((test for test in tests if _is_list(test)), None) for tests in several]
    values = {value for test in lists if test is not None for value in test.values}
    if None not in lists and len(values) <= LISTED_MAX:
        return _listed(column, sorted(values))
    spans = [
        _intersection([span for test in tests if (span := _range(test)) is not None])
        for tests in several
    ]
    hull = _hull(spans)
    if hull.low is not None or hull.high is not None:
        return _ranged(column, hull)
    if common:
        return tuple(test for test in several[0] if test in common)
    if all(any(test.op is not Op.EXISTS for test in tests) for tests in several):
        return (_any_value(column),)
    if all(any(_implied((test,), BoundTest(column, Op.EXISTS)) for test in t) for t in several):
        return (BoundTest(column, Op.EXISTS),)
    return ()
