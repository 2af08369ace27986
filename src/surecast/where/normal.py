"""The disjunctive normal form of bound filters: conjunctions of tests."""

from itertools import product

from surecast.where.binding import Bound, BoundAnd, BoundOr, BoundTest

__all__ = ["CONJUNCTIONS_MAX", "Conjunction", "conjunctions"]

CONJUNCTIONS_MAX = 64  # of one filter; a larger one is evaluated as a whole

Conjunction = tuple[BoundTest, ...]


def conjunctions(bound: Bound) -> list[Conjunction] | None:
    """The disjunctive normal form of a filter; None if it has more than CONJUNCTIONS_MAX parts."""
    match bound:
        case BoundTest():
            return [(bound,)]
        case BoundOr(parts):
            found: list[Conjunction] = []
            for part in parts:
                inner = conjunctions(part)
                if inner is None or len(found) + len(inner) > CONJUNCTIONS_MAX:
                    return None
                found += inner
            return found
        case BoundAnd(parts):
            factors = [conjunctions(part) for part in parts]
            total = 1
            for factor in factors:
                if factor is None or (total := total * len(factor)) > CONJUNCTIONS_MAX:
                    return None
            return [sum(choice, ()) for choice in product(*(f for f in factors if f is not None))]
