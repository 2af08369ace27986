"""A configuration file with every section and every key, with other values than the defaults."""

import json
import tomllib
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from surecast.errors import ConfigError
from surecast.registry import roles
from surecast.server.config import build, derived_fields, sections
from tests.golden_files import write_json

__all__ = ["loaded", "write"]

DEPLOYMENT = {
    "node": {
        "name": "east-2", "region": "east", "role": "replica", "listen": "10.0.0.2:7401",
        "http": "10.0.0.2:7481", "data_dir": "data/east-2", "token": "s3cret", "insecure": True,
        "record": "recorded",
    },
    "regions": {
        "east": {
            "replicas": {"east-1": "10.0.0.1:7400", "east-2": "10.0.0.2:7401"},
            "http": {"east-1": "10.0.0.1:7480", "east-2": "10.0.0.2:7481"},
            "witness": "10.0.0.3:7402",
        },
        "west": {"replicas": {"west-1": "10.1.0.1:7410"}},
    },
    "owners": {"": "east", "orders.eu": "west"},
}  # fmt: skip


def write(folder: Path) -> None:
    document: dict[str, Any] = {name: dict(one) for name, one in DEPLOYMENT.items()}
    for section, cls in sections().items():
        if section != "node":
            _fill(document, section, cls)
    text = "# Every section and every key of this version, with values other than the defaults.\n"
    (folder / "node.toml").write_text(text + _toml(document))
    loaded_now = loaded(folder / "node.toml")
    write_json(folder / "node.json", loaded_now)


def loaded(path: Path) -> dict[str, Any]:
    """The configuration as it is understood, as plain values."""
    config = build(tomllib.loads(path.read_text()))
    found: dict[str, Any] = {
        name: msgspec.to_builtins(getattr(config, name))
        for name in (
            "node", "regions", "owners", "storage", "runtime", "limits", "http", "log", "roles"
        )
    }  # fmt: skip
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def _fill(document: dict[str, Any], section: str, cls: type[Any]) -> None:
    """Each key with another value than its default, where one is allowed."""
    role = roles().get(section.split(".")[0])
    derived = derived_fields(role) if role is not None and "." not in section else set()
    hints = get_type_hints(cls)
    table = document
    for word in section.split("."):
        table = table.setdefault(word, {})
    for one in fields(cls):
        if one.name in derived or not one.init or is_dataclass(hints[one.name]):
            continue
        assert one.default is not MISSING or one.default_factory is not MISSING, one.name
        default = one.default if one.default is not MISSING else one.default_factory()  # type: ignore[misc]
        for value in (*_others(hints[one.name], default), default):
            table[one.name] = list(value) if isinstance(value, tuple) else value
            try:
                build(document)
            except ConfigError:
                continue
            break
        else:
            raise AssertionError(f"[{section}] {one.name} = {default!r}: the default is refused")


def _others(hint: Any, default: Any) -> list[Any]:
    if get_origin(hint) is Literal:
        return [value for value in get_args(hint) if value != default]
    if isinstance(default, bool):
        return [not default]
    if isinstance(default, int):
        return [default + 1, default - 1, default * 2]
    if isinstance(default, float):
        return [default / 2, default + 1]
    return ["literal"] if default == "production" else []


def _toml(document: dict[str, Any], path: tuple[str, ...] = ()) -> str:
    plain = {key: value for key, value in document.items() if not isinstance(value, dict)}
    inline = path[:1] in (("regions",), ("owners",)) and path[1:]
    lines = [f"\n[{'.'.join(path)}]"] if path and path != ("regions",) else []
    lines += [f"{_key(key)} = {json.dumps(value)}" for key, value in plain.items()]
    rest = {key: value for key, value in document.items() if isinstance(value, dict)}
    if inline:
        for key, value in rest.items():
            pairs = ", ".join(f"{_key(one)} = {json.dumps(text)}" for one, text in value.items())
            lines.append(f"{key} = {{ {pairs} }}")
        rest = {}
    text = "\n".join(lines) + ("\n" if lines else "")
    return text + "".join(_toml(value, (*path, key)) for key, value in rest.items())


def _key(key: str) -> str:
    return key if key.replace("_", "").isalnum() else json.dumps(key)
