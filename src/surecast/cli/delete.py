"""`surecast delete`: deletes a stream and all its events, in every region."""

import json
import sys
from typing import Annotated

import typer

from surecast.cli.options import DEFAULT_URL, AsJson, Token, Url, run_async
from surecast.errors import UsageError


def delete(
    name: Annotated[str, typer.Argument(help="The name of the stream; not a pattern.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Delete a stream in every region. This cannot be undone.

    Publishers and readers of the stream get the error StreamDeleted. The name can be used again:
    publishing to it creates a new stream.
    """
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"deleting {name!r} cannot be undone: add --yes if you are sure")
        typer.confirm(f"Delete {name!r} and all its events, in every region?", abort=True)
    run_async(_delete(name, url, token, as_json))


async def _delete(name: str, url: str, token: str, as_json: bool) -> int:
    import surecast

    async with surecast.connect(url, token=token) as client:
        if not await client.streams(name):
            raise UsageError(
                f"this region has no stream named {name!r}: `surecast streams` lists its streams"
            )
        seq = await (await client.stream(name, create=False)).delete()
    if as_json:
        print(json.dumps({"stream": name, "deleted_at": seq}))
    else:
        print(f"{name} is deleted; its last position was {seq}")
    return 0
