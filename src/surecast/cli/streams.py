"""`surecast streams`: lists the streams that the region knows."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from surecast.cli.interrupts import loads
from surecast.cli.options import DEFAULT_URL, AsJson, Token, Url, console, run_async

if TYPE_CHECKING:
    from rich.table import Table

    from surecast.core.streams import StreamInfo


@loads("surecast.client.connection")
def streams(
    pattern: Annotated[str, typer.Argument(help="A name or pattern, such as 'orders.>'.")] = ">",
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """List streams: name, owning region, retention, delivery if one differs from the default, and
    schema if one has any.

    `surecast status` shows their positions in every region.
    """
    run_async(_streams(pattern, url, token, as_json))


async def _streams(pattern: str, url: str, token: str, as_json: bool) -> int:
    import surecast

    async with surecast.connect(url, token=token) as client:
        found = await client.streams(pattern)
    if as_json:
        print(json.dumps([_facts(info) for info in found]))
    elif not found:
        which = "" if pattern == ">" else f" that match {pattern}"
        print(f"no streams{which} yet: `surecast publish demo.hello 'hello, world'` creates one")
    else:
        console().print(table_of(found))
    return 0


def table_of(found: "list[StreamInfo]") -> "Table":
    from rich.table import Table

    from surecast.core.streams import DEFAULT_DELIVERY

    rows = [_facts(info) for info in found]
    keys = {"stream": "name", "owner": "owner", "keeps": "retention"}
    if any(row["delivery"] != DEFAULT_DELIVERY for row in rows):
        keys["delivery"] = "delivery"
    if any(row["schema"] for row in rows):
        keys["schema"] = "schema"
    table = Table(*keys)
    for row in rows:
        table.add_row(*(row[key] for key in keys.values()))
    return table


def _facts(info: "StreamInfo") -> dict[str, str]:
    from surecast.core.policies import show_policy

    return {
        "name": info.name,
        "owner": info.owner,
        "delivery": info.delivery,
        "retention": show_policy(info.retention),
        "schema": info.schema,
        "stream_id": info.stream_id.hex(),
    }
