"""Retention policies as text, in the same form for Python, the command line, HTTP and Spark.

    keep-all    latest-per-key    keep-last:100    keep-for:1h

`-` and `_` mean the same. `--help` needs RETENTIONS and must start fast, so this module imports
`surecast.columns` and `surecast.core.config` only inside functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from surecast.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from surecast.columns.rules import Policy

__all__ = ["RETENTIONS", "as_policy", "parse_policy", "show_policy"]

RETENTIONS: Final = "keep-all, latest-per-key, keep-last:N or keep-for:1h"
_UNITS: Final = {  # unit → nanoseconds, largest first
    "d": 86_400 * 10**9,
    "h": 3_600 * 10**9,
    "min": 60 * 10**9,
    "s": 10**9,
    "ms": 10**6,
    "us": 10**3,
    "ns": 1,
}
_MOST: Final = (1 << 62) - 1  # the largest number that a policy may have


def as_policy(given: Policy | str, where: str = "retain") -> Policy:
    """The policy, parsed if it is text; UsageError if it is neither. `where` names the argument."""
    from surecast.columns.rules import Policy

    if isinstance(given, Policy):
        return given
    if isinstance(given, str):
        return parse_policy(given, where)
    raise _wrong(given, where)


def parse_policy(text: str, where: str = "retain") -> Policy:
    """ "keep-last:100" → KeepLast(100); UsageError lists what is valid."""
    from surecast.columns.rules import KeepAll, KeepFor, KeepLast, LatestPerKey

    what, colon, amount = text.partition(":")
    try:
        match what.replace("_", "-"), bool(colon):
            case "keep-all", False:
                return KeepAll()
            case "latest-per-key", False:
                return LatestPerKey()
            case "keep-last", True:
                return KeepLast(_within(int(amount)))
            case "keep-for", True:
                return KeepFor(_within(_duration_ns(amount)))
    except (ValueError, ConfigError):
        pass
    raise _wrong(text, where)


def show_policy(policy: Policy) -> str:
    """A policy as `parse_policy` reads it."""
    from surecast.columns.rules import KeepAll, KeepFor, KeepLast

    if isinstance(policy, KeepAll):
        return "keep-all"
    if isinstance(policy, KeepLast):
        return f"keep-last:{policy.n}"
    if isinstance(policy, KeepFor):
        unit, ns = next((unit, ns) for unit, ns in _UNITS.items() if policy.ns % ns == 0)
        return f"keep-for:{policy.ns // ns}{unit}"
    return "latest-per-key"


def _duration_ns(text: str) -> int:
    """Nanoseconds; a number without a unit is seconds."""
    from surecast.core.config import parse_ns

    return parse_ns(text if text[-1:].isalpha() else f"{text}s")


def _within(number: int) -> int:
    if not 1 <= number <= _MOST:
        raise ValueError(f"{number} is out of range")
    return number


def _wrong(given: object, where: str) -> UsageError:
    return UsageError(
        f"{where}: {given!r} is not a retention policy. Valid: {RETENTIONS} (units: "
        f"{', '.join(_UNITS)}; seconds without one). '-' and '_' mean the same in a name"
    )
