"""`python -m surecast.server.reference` prints docs/configuration.md from the config classes.

The page describes each key with the comment above or beside the key's field in its class, so the
description is written once. A test fails if the page differs from the output.
"""

import ast
import dataclasses
import inspect
import io
import textwrap
import tokenize
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

from surecast.registry import roles
from surecast.server.alarms import codes
from surecast.server.config import SECTIONS, RegionConfig, derived_fields, sections

__all__ = ["page"]

TITLES = {
    "node": "this process",
    "http": "the HTTP port",
    "log": "the log on stderr",
    "storage": "the log on disk",
    "runtime": "connections",
    "limits": "what is accepted from peers",
}
BEFORE_ROLES, AFTER_ROLES = ("node",), ("storage", "http", "runtime", "limits", "log")

INTRO = """\
# Configuration of a server

<!-- Made by `python -m surecast.server.reference` from the configuration classes. Do not edit. -->

`surecast serve FILE` reads one TOML file. The quickest way to get such files is `surecast up`,
which writes them for a deployment on one machine (`out/up/config`). `surecast serve FILE
--check-config` shows what a file means, and checks that it can run on this machine: free ports, a
data folder that can be written. The exit code is 0 if there is no problem, otherwise 2. Ports that
this node itself uses because it is running are only a warning (a node without a data folder cannot
be recognised).

Later sources override earlier ones:

1. the file;
2. the environment: `SURECAST_NODE__HTTP=127.0.0.1:7480` is `http` in `[node]`, with two
   underscores between section and key, in lower case;
3. flags: `--set node.http=127.0.0.1:7480`, which may be repeated. The flag is a line of TOML whose
   quotes may be left out: `--set 'owners."orders.eu"=west'`.

Durations (`*_ns`) are whole nanoseconds or text such as `"100ms"`, `"1.5s"`, `"5min"`; sizes
(`*_bytes`) are whole bytes or text such as `"64KiB"`, `"16MiB"`. A key that is unknown, of the
wrong type or out of range is an error that names the key and the allowed values: nothing is
ignored. A relative path is relative to the directory in which the process was started.

## A whole file

Two regions; this is the file of one of east's two replicas. Everything else has a default.

```toml
[node]
name = "east-1"
region = "east"
listen = "127.0.0.1:7400"
http = "127.0.0.1:7480"
data_dir = "data/east-1"

[regions.east]
replicas = { "east-1" = "127.0.0.1:7400", "east-2" = "127.0.0.1:7401" }
http = { "east-1" = "127.0.0.1:7480", "east-2" = "127.0.0.1:7481" }
witness = "127.0.0.1:7402"

[regions.west]
replicas = { "west-1" = "127.0.0.1:7410" }

[owners]
"" = "east"
"orders.eu" = "west"
```

The *witness* of a region keeps its chain's configuration: which replicas are members, in which
order. It is a process of its own (`role = "witness"`, the same file otherwise, no name), best on a
machine of its own: on a replica's machine it would fail together with that replica. It carries no
events and needs few resources. A region of one replica needs none.
"""

REGIONS = """\
## `[regions.NAME]`: a region, as this node reaches it

One section for each region of the deployment, including this one. It is the same in every file
except for addresses: they are those at which *this* node reaches the others, through a relay or a
NAT if there is one. The addresses of this node's own region are also sent to its clients.
"""

OWNERS = """\
## `[owners]`: which region numbers the events of a stream

`"prefix" = "region"`. The longest prefix of whole words decides: with `"orders.eu" = "west"`, west
owns `orders.eu` and `orders.eu.paris`, but not `orders.europe`. `""` is the default and is required
if there is more than one region. The table must be the same in all regions: they compare it. While
it differs, they raise the alarm `owners-differ` and create no streams. Publishes to a stream that
another region owns are forwarded to it. A change of this table has no effect on existing streams.
"""

ALARMS = """\
## Alarms

`surecast status` shows alarms in red, the log has them as warnings, and the metric
`surecast_alarms{code=…}` counts them. During an alarm marked *not ready*, `/readyz` answers 503.

| alarm | means | to do |
|---|---|---|
"""

HTTP = """\
## The HTTP port

`/openapi.json` describes it for programs.

{paths}
Paths under `/v1` need `Authorization: Bearer TOKEN` if `node.token` is set, and refuse unknown
query parameters. POST and DELETE are refused to web pages.

## Exit codes of `surecast serve`

0: stopped by a signal (SIGTERM, SIGINT), and everything is written. 1: stopped by an error, or its
data folder is damaged or in use; the last lines of the log say what to do. 2: the configuration is
wrong. 130: Ctrl-C while it was loading. A second signal ends the process at once; acknowledged
events are on disk in any case.
"""


PATHS = (
    (
        "`/healthz`",
        "200 while the process runs",
    ),
    (
        "`/readyz`",
        "200, or 503 with the reasons, as JSON",
    ),
    (
        "`/metrics`",
        "for Prometheus",
    ),
    (
        "`/v1/status`",
        "everything that `surecast status` shows of this node",
    ),
    (
        "`/v1/streams`, `/v1/streams/NAME`",
        "streams: owner, retention, positions here and in every region, lag, live, void, readers",
    ),
    (
        "`/v1/streams/NAME/files?lo=1&hi=1000`",
        "which runs of which segments on this server's disk hold these positions, and which of "
        "them are void: for readers with access to the same disk, such as Spark's tasks",
    ),
    (
        "`DELETE /v1/streams/NAME`",
        "delete a stream and all its events permanently, in every region; `seq` is its last "
        "position",
    ),
    (
        "`POST /v1/streams/NAME/schema?schema=…`",
        "change the schema in every region: the current one, followed by new fields that may be "
        "null; anything else is refused (409). `seq` is the position of the change; null: the "
        "stream has this schema already",
    ),
    (
        "`POST /v1/streams/NAME/events`",
        'publish: `application/x-ndjson` with a `{"key": …, "value": …}` per line, or the body '
        "as one event (`?key=`); answers with the positions once the events are acknowledged. A "
        "JSON body needs that content type, or `application/octet-stream` to be one event (else "
        '415). If the stream has a schema, a line has its fields, too: `{"key": "IBM", "sym": '
        '"IBM", "px": 81.2}` (bytes in base64, times as `2026-11-19T08:30:00Z`, decimals as text). '
        "`?retain=`, `?delivery=` and `?schema=` are for a new stream; an existing one must agree "
        "(else 409). A repeated request publishes again: use the client library for exactly once",
    ),
    (
        "`/v1/subscriptions?after=…`",
        "the region's named subscriptions, from its head: position, end and lag in each stream, "
        "and whether a client reads; in pages (`next` is the next `after`)",
    ),
    (
        "`POST /v1/subscriptions/NAME/reset?start=…`",
        "move a named subscription: `start` is earliest, latest, a position or a time; "
        "`stream=` (may be repeated) names streams or patterns, `force=true` fences a reader",
    ),
    (
        "`DELETE /v1/subscriptions/NAME`",
        "delete a named subscription; `force=true` fences a reader",
    ),
    (
        "`POST /v1/admin/refound`",
        "for an operator, from this machine only, with `?yes-i-know-what-is-lost=true`: no other "
        "member of the chain will come back; continue with this replica alone. Events that only "
        "the others have are lost: choose the replica with the longest log",
    ),
    (
        "`POST /v1/admin/force-new-stream?stream=NAME`",
        "the same for one stream whose history cannot be recovered: it begins again at "
        "position 1, with a new identity",
    ),
)


def page() -> str:
    """The text of docs/configuration.md."""
    classes = sections()
    of_roles = [section for section in classes if section not in SECTIONS]
    order = (*BEFORE_ROLES, *of_roles, *AFTER_ROLES)
    assert set(order) == set(classes), "a section has no place in the reference"
    derived = {name: derived_fields(role) for name, role in roles().items()}
    parts = [INTRO]
    for section in order:
        cls = classes[section]
        # The sections below this one, such as "mesh" of "sprinkler", have tables of their own.
        below = {name.rpartition(".")[2] for name in classes if name.rpartition(".")[0] == section}
        rows = _rows(cls, derived.get(section, set()) | below)
        title = TITLES.get(section) or _title(cls)
        parts.append(f"## `[{section}]`: {title}\n\n" + "\n".join(rows) + "\n")
        if section == "node":
            parts.append(REGIONS + "\n" + "\n".join(_rows(RegionConfig, set())) + "\n")
            parts.append(OWNERS)
    alarms = (
        f"| `{code}`{', not ready' if known.blocks else ''} | {known.means} | {known.todo} |"
        for code, known in codes().items()
    )
    paths = "\n".join(f"| {path} | {text} |" for path, text in PATHS)
    parts += [
        ALARMS + "\n".join(alarms) + "\n",
        HTTP.replace("{paths}", f"| path | |\n|---|---|\n{paths}\n"),
    ]
    return "\n".join(parts)


def _title(cls: type[Any]) -> str:
    """The title of a section: the first line of its class's docstring."""
    line = inspect.cleandoc(cls.__doc__ or cls.__name__).splitlines()[0].removesuffix(".")
    return line[:1].lower() + line[1:]


def _rows(cls: type[Any], left_out: set[str]) -> Iterator[str]:
    """A table of the keys of a section: name, default, description."""
    comments = _comments(cls)
    hints = get_type_hints(cls)
    yield "| key | default | |\n|---|---|---|"
    for field in dataclasses.fields(cls):
        if field.init and field.name not in left_out:
            default = _default(field, hints[field.name])
            yield f"| `{field.name}` | {default} | {comments[field.name]} |"


def _comments(cls: type[Any]) -> dict[str, str]:
    """The comments of each field in the source: the lines above it and the comment beside it."""
    source = textwrap.dedent(inspect.getsource(cls))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    by_line = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    by_field = {}
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            above: list[str] = []
            line = node.lineno - 1
            while line in by_line and source.splitlines()[line - 1].lstrip().startswith("#"):
                above.insert(0, by_line[line])
                line -= 1
            beside = by_line.get(node.end_lineno or node.lineno)
            by_field[node.target.id] = " ".join([*above, *([beside] if beside else [])])
    return by_field


def _default(field: "dataclasses.Field[Any]", hint: Any) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return "none"
    if field.default is dataclasses.MISSING:
        return "**required**"
    choices = ""
    if get_origin(hint) is Literal:
        choices = " of " + ", ".join(f'`"{choice}"`' for choice in get_args(hint))
    return f"`{_show(field.name, field.default)}`{choices}"


def _show(name: str, value: Any) -> str:
    """A default value as it is written in the TOML file, with readable units."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, int) and value and name.endswith(("_ns", "_ns_max", "_ns_min")):
        units = {"d": 86_400 * 10**9, "h": 3600 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3}
        return next(
            (f'"{value // ns}{u}"' for u, ns in units.items() if value % ns == 0), str(value)
        )
    if isinstance(value, int) and value and name.endswith(("_bytes", "_bytes_max", "_bytes_min")):
        sizes = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}
        return next((f'"{value // n}{u}"' for u, n in sizes.items() if value % n == 0), str(value))
    return str(list(value)) if isinstance(value, tuple) else str(value)


if __name__ == "__main__":
    print(page(), end="")
