"""`surecast change`: adds fields to the schema of a stream."""

import json
from typing import Annotated

import typer

from surecast.cli.interrupts import loads
from surecast.cli.options import DEFAULT_URL, AsJson, Token, Url, run_async
from surecast.errors import UsageError


@loads("surecast.columns.schema")
def change(
    name: Annotated[str, typer.Argument(help="The name of the stream; not a pattern.")],
    schema: Annotated[
        str,
        typer.Option(
            help="The whole new schema: the current one, followed by new fields that may be null, "
            "such as 'sym string not null, px float64, venue string'."
        ),
    ],
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Add fields to the schema of a stream, in every region.

    Earlier events have null in them. Programs that do not know the new fields go on publishing and
    reading. `surecast streams` shows the current schema.
    """
    from surecast.columns.schema import read_schema

    run_async(_change(name, read_schema(schema).text, url, token, as_json))


async def _change(name: str, schema: str, url: str, token: str, as_json: bool) -> int:
    import surecast

    async with surecast.connect(url, token=token) as client:
        if not await client.streams(name):
            raise UsageError(
                f"this region has no stream named {name!r}: `surecast streams` lists its streams"
            )
        seq = await (await client.stream(name, create=False)).change(schema=schema)
    if as_json:
        print(json.dumps({"stream": name, "changed_at": seq, "schema": schema}))
    elif seq is None:
        print(f"{name} has this schema already: {schema}")
    else:
        print(f"{name} has a new schema from position {seq} on: {schema}")
    return 0
