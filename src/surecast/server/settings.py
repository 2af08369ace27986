"""Reads a server's configuration from a TOML file, environment variables and flags.

    SURECAST_NODE__HTTP=127.0.0.1:7480        sets [node] http, in the environment
    --set node.http=127.0.0.1:7480            sets the same key with a flag
    --set 'owners."orders.eu"=west'           a flag is a line of TOML; quotes may be left out

The environment overrides the file, and flags override both. The name of a variable has two
underscores between section and key, and is converted to lower case. Variables that begin with
SURECAST_ but have no two underscores are ignored.
"""

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from surecast.core.config import parse
from surecast.errors import ConfigError
from surecast.server.config import ServerConfig, build, sections

__all__ = ["load_config"]

PREFIX = "SURECAST_"


def load_config(
    path: Path, flags: Iterable[str] = (), environ: Mapping[str, str] | None = None
) -> ServerConfig:
    """The configuration in `path`, overridden by the environment and then by `flags`."""
    try:
        document = dict(parse(path.read_bytes()))
    except OSError as problem:
        raise ConfigError(
            f"cannot read {path}: {problem.strerror}. `surecast up` writes some to out/up/config"
        ) from None
    except ConfigError as problem:
        raise ConfigError(f"{path}: {problem}") from None
    from_flags = {f"--set {_key_of(flag)}": _flag(flag) for flag in flags}
    changes = {**_from_environment(os.environ if environ is None else environ), **from_flags}
    try:
        for change in changes.values():
            document = _merged(document, change)
        return build(document)
    except ConfigError as problem:
        also = f" (with {', '.join(changes)})" if changes else ""
        raise ConfigError(f"{path}{also}: {problem}") from None


def _from_environment(environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Name of a variable → a document with the one key that it sets, sorted by name."""
    found = {}
    for name in sorted(environ):
        if name.startswith(PREFIX) and "__" in name:
            words = [word for word in name.removeprefix(PREFIX).lower().split("__") if word]
            found[name] = _nested(words, environ[name])
    return found


def _key_of(flag: str) -> str:
    """The key of a flag. Errors show only the key, because the value may be a secret."""
    return flag.partition("=")[0]


def _flag(flag: str) -> dict[str, Any]:
    """`node.http=...` as a TOML document: {"node": {"http": ...}}."""
    key, equals, text = flag.partition("=")
    try:
        words = _path(tomllib.loads(f"{key} = 0"))
    except tomllib.TOMLDecodeError:
        words = []
    if not (equals and words):
        raise ConfigError(
            f"--set {_key_of(flag)}: write SECTION.KEY=VALUE, such as node.http=127.0.0.1:7480"
        )
    return _nested(words, text)


def _path(document: Mapping[str, Any]) -> list[str]:
    """The words of the only key in a document: {"node": {"http": 0}} → ["node", "http"]."""
    words = []
    at: Any = document
    while isinstance(at, Mapping) and len(at) == 1:
        word, at = next(iter(at.items()))
        words.append(word)
    return words


def _nested(words: list[str], text: str) -> dict[str, Any]:
    """A document with one key, which consists of `words`, and the value in `text`."""
    value = _value(words, text)
    for word in reversed(words):
        value = {word: value}
    result: dict[str, Any] = value
    return result


def _value(words: list[str], text: str) -> Any:
    """The value that `text` has in TOML, for the key that consists of `words`.

    It is `text` itself if that is not valid TOML, or if the key's type is text and `text` without
    quotes would be another type, such as a number.
    """
    cls = sections().get(".".join(words[:-1]))
    wanted = get_type_hints(cls).get(words[-1]) if cls is not None else None
    try:
        value = tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text
    return text if wanted is str and not isinstance(value, str) else value


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two documents joined key by key; where both have a value, that of `above` is used."""
    both = dict(below)
    for key, value in above.items():
        old = both.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = _merged(old, value)
        both[key] = value
    return both
