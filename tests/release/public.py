"""What users and their programs see, as plain data: names, parameters, columns, JSON, HTTP.

`write` stores it with a release. A later version may have more of everything; `missing` says what
of it is gone or has changed.
"""

import enum
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.golden_files import write_json

__all__ = ["PARTS", "missing", "write"]

KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "positional",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "either",
    inspect.Parameter.VAR_POSITIONAL: "rest",
    inspect.Parameter.KEYWORD_ONLY: "keyword",
    inspect.Parameter.VAR_KEYWORD: "keywords",
}


def python_api() -> dict[str, Any]:
    """The names of `surecast` and `surecast.sync`; of classes their public methods."""
    import surecast
    from surecast import sync

    found = {}
    for module in (surecast, sync):
        for name in module.__all__:
            if name not in ("__version__", "sync"):
                found[f"{module.__name__}.{name}"] = _described(getattr(module, name))
    return found


def _described(thing: Any) -> Any:
    if inspect.isclass(thing):
        members = {
            name: _member(inspect.getattr_static(thing, name), getattr(thing, name, None))
            for name in sorted(dir(thing))
            if not name.startswith("_") and not issubclass(thing, enum.Enum)
        }
        bases = [base.__name__ for base in thing.__mro__[1:-1]]
        return {"class": True, "bases": bases, "members": members, "call": _parameters(thing)}
    return {"call": _parameters(thing)}


def _member(raw: Any, value: Any) -> Any:
    if isinstance(raw, staticmethod | classmethod) or inspect.isfunction(raw):
        return {"call": _parameters(value)}
    return {}


def _parameters(thing: Any) -> list[str]:
    """Each as "kind:name", with "=" behind it if it may be left out."""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return []
    return [
        f"{KINDS[one.kind]}:{one.name}{'' if _is_required(one) else '='}"
        for one in signature.parameters.values()
        if one.name != "self"
    ]


def _is_required(one: inspect.Parameter) -> bool:
    rest = (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    return one.default is one.empty and one.kind not in rest


def columns() -> dict[str, Any]:
    """Of `batches()` and `read()`, and of Spark's tables."""
    from surecast.client.arrow import SCHEMA, SCHEMA_WITH_VOIDS
    from surecast.pipeline.rows import DDL

    def of(schema: Any) -> dict[str, str]:
        return {
            field.name: f"{field.type}{'' if field.nullable else ' not null'}" for field in schema
        }

    spark = dict(
        column.split(" ", 1) for column in DDL.replace("string,binary", "string/binary").split(", ")
    )
    return {"batches": of(SCHEMA), "with voids": of(SCHEMA_WITH_VOIDS), "spark": spark}


def http() -> Any:
    """The OpenAPI document, without the texts for people."""
    from surecast.server.openapi import document

    return json.loads(json.dumps(_without_texts(document())))


def _without_texts(value: Any) -> Any:
    if isinstance(value, dict):
        texts = ("description", "title", "summary", "version", "example")
        return {
            key: _without_texts(one)
            for key, one in value.items()
            if not (key in texts and isinstance(one, str))
        }
    if isinstance(value, list):
        return [_without_texts(one) for one in value]
    return value


def command_line() -> dict[str, list[str]]:
    """The options of every verb."""
    import typer

    from surecast.cli.main import app

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, list[str]]]:
        for name, one in getattr(command, "commands", {}).items():
            yield from walk(one, (*words, name))
        flags = [flag for one in command.params for flag in (*one.opts, *one.secondary_opts)]
        yield " ".join(words), sorted(flags)

    return dict(walk(typer.main.get_command(app), ("surecast",)))


def json_output() -> dict[str, Any]:
    """The form of what verbs print with --json, about a region in which a little has happened."""
    import tempfile

    from tests.pipeline.regions import Served
    from tests.server.processes import surecast_here

    with tempfile.TemporaryDirectory() as scratch, Served(Path(scratch) / "data") as region:
        url = ("--url", region.url, "--json")
        verbs: dict[str, tuple[str, ...]] = {
            "publish": ("publish", "s", "x", "--key", "k", *url),
            "subscribe": ("subscribe", "s", "--from", "earliest", "--until", "latest",
                          "--name", "reader", *url),
            "streams": ("streams", *url),
            "status": ("status", *url),
            "subscriptions list": ("subscriptions", "list", *url),
            "log info": ("log", "info", f"{scratch}/data", "--json"),
            "log verify": ("log", "verify", f"{scratch}/data", "--json"),
            "subscriptions delete": ("subscriptions", "delete", "reader", *url),
            "delete": ("delete", "s", "--yes", *url),
        }  # fmt: skip
        found = {}
        for verb, words in verbs.items():
            done = surecast_here(*words)
            assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
            found[verb] = _form(json.loads(done.stdout.splitlines()[0]))
        return found


def _form(value: Any) -> Any:
    """Its keys, and the types of its values; of a list the first item."""
    if isinstance(value, dict):
        return {key: _form(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_form(one) for one in value[:1]]
    return "null" if value is None else type(value).__name__


PARTS: dict[str, Callable[[], Any]] = {
    "python": python_api,
    "columns": columns,
    "http": http,
    "command-line": command_line,
    "json-output": json_output,
}


def write(folder: Path) -> None:
    for name, make in PARTS.items():
        write_json(folder / f"{name}.json", make())


def missing(before: Any, now: Any, place: str = "") -> list[str]:
    """What was there before, and now is not, or is something else.

    Lists of parameters may be longer now if the others are optional; other lists hold at least what
    they held.
    """
    if before == "null" or now == "null" or before == now:
        return []
    if isinstance(before, dict) and isinstance(now, dict):
        found = []
        for key, value in before.items():
            where = f"{place}/{key}"
            found += missing(value, now[key], where) if key in now else [f"{where} is gone"]
        return found
    if isinstance(before, list) and isinstance(now, list):
        if place.endswith("/call"):
            return _missing_parameters(before, now, place)
        if before and now and isinstance(before[0], dict) and len(before) == len(now) == 1:
            return missing(before[0], now[0], f"{place}/0")
        return [f"{place}: {one} is gone" for one in before if one not in now]
    return [f"{place}: {before!r} is now {now!r}"]


def _missing_parameters(before: list[str], now: list[str], place: str) -> list[str]:
    later = {one.strip("=").partition(":")[2]: one for one in now}
    found = []
    for one in before:
        other = later.pop(one.strip("=").partition(":")[2], None)
        if other is None:
            found.append(f"{place}: {one} is gone")
        elif other != one and other != f"{one}=":  # it may have become optional
            found.append(f"{place}: {one} is now {other}")
    found += [f"{place}: {one} is required now" for one in later.values() if one[-1] != "="]
    in_order = [one.strip("=") for one in before if one.startswith("either:")]
    if in_order != [one.strip("=") for one in now][: len(in_order)]:
        found.append(f"{place}: the order of {in_order} has changed")
    return found
