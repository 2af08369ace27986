"""`python -m surecast.server.reference`: docs/configuration.md, from the configuration classes.

What a key means is the comment beside its field, so that it is written once. A test fails when the
page is not what this makes.
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
    "log": "what is said on stderr",
    "storage": "the log on disk",
    "runtime": "connections",
    "limits": "what is accepted from peers",
}
BEFORE_ROLES, AFTER_ROLES = ("node",), ("storage", "http", "runtime", "limits", "log")

INTRO = """\
# Configuration of a server

<!-- Made by `python -m surecast.server.reference` from the configuration classes. Do not edit. -->

`surecast serve FILE` reads one TOML file. `surecast up` writes such files for a deployment on one
machine (`out/up/config`): the quickest way to have some. `surecast serve FILE --check-config` says
what a file means, and whether this machine lets it run: ports that are free, a data folder that
can be written. Exit code 0 or 2.

What is given later wins:

1. the file;
2. the environment: `SURECAST_NODE__HTTP=127.0.0.1:7480` is `http` in `[node]`, with two
   underscores between section and key, in lower case;
3. flags: `--set node.http=127.0.0.1:7480`, as often as needed. It is a line of TOML whose quotes
   may be left out: `--set 'owners."orders.eu"=west'`.

Durations (`*_ns`) are whole nanoseconds or text such as `"100ms"`, `"1.5s"`, `"5min"`; sizes
(`*_bytes`) are whole bytes or text such as `"64KiB"`, `"16MiB"`. A key that is unknown, of the
wrong type or out of range is an error that names it and says what is allowed: nothing is ignored.
A relative path is relative to where the process was started.

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
machine of its own: inside a replica it would be gone together with it. It carries no events and
needs next to nothing. A region of one replica needs none.
"""

REGIONS = """\
## `[regions.NAME]`: a region, as this node reaches it

One for each region of the deployment, this one included, and the same in every file but for
addresses: they are as *this* node reaches the others, through a relay or a NAT if there is one.
What stands here for this region is also what its clients are told.
"""

OWNERS = """\
## `[owners]`: who numbers the events of a stream

`"prefix" = "region"`. The longest prefix of whole words decides: with `"orders.eu" = "west"`, west
owns `orders.eu` and `orders.eu.paris`, and not `orders.europe`. `""` is the default and must be
there if there is more than one region. The table must be the same in all regions: they compare it,
raise `owners-differ` and create no streams until it is. Publishes to a stream that another region
owns are passed on to it. Changing who owns an existing stream has no effect on that stream.
"""

ALARMS = """\
## Alarms

What `surecast status` shows in red, logs say as warnings and `surecast_alarms{code=…}` counts.
While one that is marked *not ready* lasts, `/readyz` answers 503.

| alarm | means | to do |
|---|---|---|
"""

HTTP = """\
## The HTTP port

`/openapi.json` describes it for programs.

{paths}
Paths under `/v1` need `Authorization: Bearer TOKEN` if `node.token` is set, and refuse query
parameters that they do not know. POST is refused to web pages.

## Exit codes of `surecast serve`

0: told to stop (SIGTERM, SIGINT) and everything is written. 1: it had to stop, or its data folder
is damaged or in use; the last lines say what to do. 2: the configuration is wrong. 130: Ctrl-C
while it was being loaded. A second signal ends it at once; what was acknowledged is on disk either
way.
"""


PATHS = (
    (
        "`/healthz`",
        "200 while the process lives",
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
        "everything `surecast status` shows of this node",
    ),
    (
        "`/v1/streams`, `/v1/streams/NAME`",
        "streams: owner, retention, positions here and in every region, lag, live, void, readers",
    ),
    (
        "`/v1/streams/NAME/files?lo=1&hi=1000`",
        "which runs of which segments on this server's disk hold these positions, and which of "
        "them are void: for readers that see the same disk, such as Spark's tasks",
    ),
    (
        "`DELETE /v1/streams/NAME`",
        "delete a stream and all its events, in every region, for good; `seq` is its last position",
    ),
    (
        "`POST /v1/streams/NAME/events`",
        'publish: `application/x-ndjson` with a `{"key": …, "value": …}` a line, or the body '
        "as one event (`?key=`); answers with positions once they are safe. A JSON body needs "
        "that content type, or `application/octet-stream` if it is to be one event (else 415). "
        "`?retain=` and `?delivery=` say what a new stream is like; one that exists must agree "
        "(else 409). Sent again, it is published again: whoever needs exactly once uses the client",
    ),
    (
        "`/v1/subscriptions?after=…`",
        "the region's named subscriptions, as its head knows them: position, end and lag in each "
        "stream, whether a client reads; a page at a time (`next` is the next `after`)",
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
        "an operator's last word, from this machine only, with "
        "`?yes-i-know-what-is-lost=true`: no other member of the chain will come back; go on "
        "from this replica. "
        "What only the others had is lost: choose the replica with the longest log",
    ),
    (
        "`POST /v1/admin/force-new-stream?stream=NAME`",
        "the same for one stream whose history cannot be recovered: it begins again at "
        "position 1, with a new identity",
    ),
)


def page() -> str:
    """The whole of docs/configuration.md."""
    classes = sections()
    of_roles = [section for section in classes if section not in SECTIONS]
    order = (*BEFORE_ROLES, *of_roles, *AFTER_ROLES)
    assert set(order) == set(classes), "a section has no place in the reference"
    derived = {name: derived_fields(role) for name, role in roles().items()}
    parts = [INTRO]
    for section in order:
        cls = classes[section]
        below = {one.rpartition(".")[2] for one in classes if one.rpartition(".")[0] == section}
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
    """The first line of its docstring."""
    line = inspect.cleandoc(cls.__doc__ or cls.__name__).splitlines()[0].removesuffix(".")
    return line[:1].lower() + line[1:]


def _rows(cls: type[Any], left_out: set[str]) -> Iterator[str]:
    words = _comments(cls)
    hints = get_type_hints(cls)
    yield "| key | default | |\n|---|---|---|"
    for field in dataclasses.fields(cls):
        if field.init and field.name not in left_out:
            default = _default(field, hints[field.name])
            yield f"| `{field.name}` | {default} | {words[field.name]} |"


def _comments(cls: type[Any]) -> dict[str, str]:
    """What the comments in the source say of each field: those above it, and the one beside it."""
    source = textwrap.dedent(inspect.getsource(cls))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    said = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            above: list[str] = []
            line = node.lineno - 1
            while line in said and source.splitlines()[line - 1].lstrip().startswith("#"):
                above.insert(0, said[line])
                line -= 1
            beside = said.get(node.end_lineno or node.lineno)
            found[node.target.id] = " ".join([*above, *([beside] if beside else [])])
    return found


def _default(field: "dataclasses.Field[Any]", hint: Any) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return "none"
    if field.default is dataclasses.MISSING:
        return "**required**"
    choices = ""
    if get_origin(hint) is Literal:
        choices = " of " + ", ".join(f'`"{one}"`' for one in get_args(hint))
    return f"`{_show(field.name, field.default)}`{choices}"


def _show(name: str, value: Any) -> str:
    """A default as it may stand in the file, in units a person reads."""
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
