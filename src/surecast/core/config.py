"""Reads TOML into typed configuration, with errors that say what to correct.

A configuration class is a frozen dataclass or a frozen `msgspec.Struct`. Its field names are the
TOML keys, its annotations are the allowed types (ranges by `Annotated[int, msgspec.Meta(ge=1)]`),
fields with defaults are optional, and an optional `validate()` checks the rules between fields
(see `check`). Fields whose names end in one of these units also accept text with a unit:

- `*_ns`, `*_ns_max`, `*_ns_min`: an int of nanoseconds, or text such as "100ms", "1.5s", "5min";
- `*_bytes`, `*_bytes_max`, `*_bytes_min`: an int of bytes, or text such as "64KiB", "16MiB", "1MB".

Every error is a `ConfigError` with the section, the key, the value and what is allowed. This module
opens no file: the caller reads it and passes the text.
"""

import dataclasses
import difflib
import re
import tomllib
import types
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, TypeGuard, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from surecast.errors import ConfigError

__all__ = ["check", "load", "parse", "parse_bytes", "parse_ns"]

T = TypeVar("T")
Source = Mapping[str, Any] | str | bytes  # a parsed document, or TOML text

SECRET_KEYS = ("token",)  # their values are not shown in errors

_NS = {  # unit → nanoseconds
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 10**9,
    "min": 60 * 10**9,
    "h": 3_600 * 10**9,
    "d": 86_400 * 10**9,
}
# unit → bytes
_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9} | {
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}
# An amount and a unit: "100ms", "1.5 s".
_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([A-Za-z]+)", re.ASCII)
_NS_NAME = re.compile(r"(^|_)ns(_max|_min)?$")
_BYTES_NAME = re.compile(r"(^|_)bytes(_max|_min)?$")


def parse(source: Source) -> Mapping[str, Any]:
    """The document as a mapping: TOML text is parsed, a mapping is passed through."""
    if isinstance(source, Mapping):
        return source
    try:
        text = source.decode("utf-8") if isinstance(source, bytes) else source
        return tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise ConfigError(f"configuration is not UTF-8: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"configuration is not valid TOML: {error}") from None
    except RecursionError:  # tomllib recurses into nested arrays and inline tables
        raise ConfigError("configuration is nested too deeply") from None


def load(
    cls: type[T], source: Source, section: str = "", given: Mapping[str, Any] | None = None
) -> T:
    """Make a `cls` from one `section` ("sprinkler", "server.limits"; "" is the whole document).

    An absent section counts as empty: the defaults apply, and a key without a default is reported
    as missing. `given` has the fields that the caller sets itself; `source` must not set them.
    """
    table: Any = parse(source)
    path: list[str] = []
    for name in section.split(".") if section else []:
        path.append(name)
        table = table.get(name, {})
        if not isinstance(table, Mapping):
            raise ConfigError(f"[{'.'.join(path)}] must be a table, not {_show(table)}")
    return _build(cls, table, section, given)


def check(config: object, key: str, ok: bool, allowed: str) -> None:
    """For `validate()`: raise unless `ok`, naming the key, its value and what is `allowed`."""
    if not ok:
        raise ConfigError(f"{key} = {_show(getattr(config, key))}: {allowed}")


def parse_ns(text: str) -> int:
    """ "100ms" → 100_000_000; `ConfigError` unless it is a whole number of nanoseconds."""
    return _quantity(text, _NS, "duration", "nanoseconds", "100ms")


def parse_bytes(text: str) -> int:
    """ "64KiB" → 65_536; `ConfigError` unless it is a whole number of bytes."""
    return _quantity(text, _BYTES, "size", "bytes", "64KiB")


# ---------------------------------------------------------------- inside


def _build(
    cls: type[T], table: Mapping[str, Any], section: str, given: Mapping[str, Any] | None = None
) -> T:
    values: dict[str, Any] = dict(given or {})
    fields = {name: required for name, required in _fields(cls).items() if name not in values}
    _refuse_unknown(table, fields, section, "key")
    hints = get_type_hints(cls, include_extras=True)
    for name, required in fields.items():
        if name in table:
            values[name] = _convert(table[name], hints[name], name, section)
        elif required:
            raise ConfigError(_at(section, f"missing key {name!r}, {_type_name(hints[name])}"))
    try:
        config = cls(**values)
        validate = getattr(config, "validate", None)
        if validate is not None:
            validate()
    except ConfigError as error:
        raise ConfigError(_at(section, str(error))) from None
    return config


def _fields(cls: type[Any]) -> dict[str, bool]:
    """The settable fields of a configuration class, and whether each must be given."""
    if issubclass(cls, msgspec.Struct):
        return {f.name: f.required for f in msgspec.structs.fields(cls)}
    if not dataclasses.is_dataclass(cls):
        raise TypeError(f"{cls.__name__} is neither a dataclass nor a msgspec.Struct")
    missing = dataclasses.MISSING
    return {
        f.name: f.default is missing and f.default_factory is missing
        for f in dataclasses.fields(cls)
        if f.init
    }


def _convert(value: Any, hint: Any, key: str, section: str) -> Any:
    """`value` as the type `hint`. Handles nested configuration classes, and containers of them."""
    inner = _without_none(hint)
    origin, args = get_origin(inner), get_args(inner)
    path = f"{section}.{key}" if section else key
    if _is_config(inner):
        if not isinstance(value, Mapping):
            raise ConfigError(_at(section, f"{key} = {_show(value)}: must be a table"))
        return _build(inner, value, path)
    if origin in (tuple, list) and args and _is_config(args[0]) and isinstance(value, list | tuple):
        return origin(_convert(v, args[0], f"{key}[{i}]", section) for i, v in enumerate(value))
    if origin is dict and _is_config(args[1]) and isinstance(value, Mapping):
        return {k: _convert(v, args[1], k, path) for k, v in value.items()}
    try:
        return msgspec.convert(_units(value, inner, key), hint)
    except (ConfigError, msgspec.ValidationError) as error:
        why = str(error)[:1].lower() + str(error)[1:]
        shown = "(not shown)" if key in SECRET_KEYS else _show(value)
        raise ConfigError(_at(section, f"{key} = {shown}: {why}")) from None


def _units(value: Any, hint: Any, key: str) -> Any:
    """Convert text to a number, if the field is an int whose name ends in a unit."""
    if not isinstance(value, str):
        return value
    base = get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
    if base is int and _NS_NAME.search(key):
        return parse_ns(value)
    if base is int and _BYTES_NAME.search(key):
        return parse_bytes(value)
    return value


def _quantity(text: str, units: Mapping[str, int], what: str, base: str, example: str) -> int:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2] not in units:
        raise ConfigError(
            f'not a {what}; allowed are whole {base} as an int, or text such as "{example}" '
            f"with one of {', '.join(units)}"
        )
    amount = Fraction(match[1]) * units[match[2]]  # exact: floats would round 0.1s
    if amount.denominator != 1:
        raise ConfigError(f"not a whole number of {base}")
    return amount.numerator


def _refuse_unknown(found: Iterable[str], allowed: Iterable[str], section: str, what: str) -> None:
    names = list(allowed)
    for name in found:
        if name in names:
            continue
        near = difflib.get_close_matches(str(name), names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        known = ", ".join(names) or "none"
        raise ConfigError(_at(section, f"unknown {what} {name!r}; {hint}Allowed: {known}"))


def _without_none(hint: Any) -> Any:
    """`X | None` → X; anything else stays."""
    if get_origin(hint) in (Union, types.UnionType):
        rest = [arg for arg in get_args(hint) if arg is not types.NoneType]
        if len(rest) == 1:
            return rest[0]
    return hint


def _is_config(hint: Any) -> TypeGuard[type[Any]]:
    if not isinstance(hint, type):
        return False
    return dataclasses.is_dataclass(hint) or issubclass(hint, msgspec.Struct)


def _at(section: str, problem: str) -> str:
    return f"[{section}] {problem}" if section else problem


def _show(value: Any) -> str:
    """A value as in TOML, cut to 80 characters so that it does not hide the error message."""
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _type_name(hint: Any) -> str:
    inner = _without_none(hint)
    return inner.__name__ if get_origin(inner) is None and isinstance(inner, type) else str(inner)
