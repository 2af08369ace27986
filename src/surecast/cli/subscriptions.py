"""`surecast subscriptions`: lists, resets and deletes the named subscriptions of a region.

A *named subscription* is a read position in each stream that the region saves under a name, so that
a reader can continue after a restart.
"""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surecast.cli.options import DEFAULT_URL, AsJson, Token, Url, console, run_async
from surecast.cli.subscribe import parse_start

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

    from surecast.core.status import SubscriptionInfo

subscriptions = typer.Typer(
    no_args_is_help=True, help="List, reset and delete the named subscriptions of a region."
)

Name = Annotated[str, typer.Argument(help="The name of the subscription.")]
Force = Annotated[
    bool,
    typer.Option("--force", help="Also if a client is reading under the name; it gets Fenced."),
]


@subscriptions.command("list")
def list_all(url: Url = DEFAULT_URL, token: Token = "", as_json: AsJson = False) -> None:
    """List the named subscriptions of the region: position and lag in each stream.

    The lag is the number of positions that are not acknowledged. Exits with 0 also if there are
    none.
    """
    run_async(_list(url, token, as_json))


@subscriptions.command("reset")
def reset(
    name: Name,
    start: Annotated[
        str,
        typer.Option(
            "--from", help="earliest, latest, a position, or a time: 2026-01-31T12:00Z. Required."
        ),
    ],
    streams: Annotated[
        list[str] | None,
        typer.Option(
            "--stream",
            help="A stream or pattern; may be repeated. Default: those it has a position in.",
        ),
    ] = None,
    force: Force = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Move a named subscription: its next reader begins at --from.

    Exits with 1 if a client reads under the name and --force is not given, 2 if there is no such
    subscription or stream.
    """
    run_async(_reset(name, parse_start(start), streams or None, force, url, token, as_json))


@subscriptions.command("delete")
def delete(
    name: Name,
    force: Force = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Delete a named subscription and its positions.

    Exits with 1 if a client reads under the name and --force is not given, 2 if there is no such
    subscription.
    """
    run_async(_delete(name, force, url, token, as_json))


async def _list(url: str, token: str, as_json: bool) -> int:
    import msgspec

    import surecast

    async with surecast.connect(url, token=token) as client:
        found = await client.subscriptions()
    if as_json:
        print(msgspec.json.encode(found).decode())
    elif not found:
        print("no named subscriptions: `surecast subscribe PATTERN --name NAME` creates one")
    else:
        console().print(positions_table(found))
    return 0


def positions_table(found: "Iterable[SubscriptionInfo]") -> "Table":
    from rich.table import Table

    table = Table("subscription", "stream", "position", "end", "lag", "saved", "connected")
    for info in found:
        connected = {True: "yes", False: "no", None: "–"}[info.connected]
        if not info.positions:
            table.add_row(info.name, "–", "–", "–", "–", "–", connected)
        for one in info.positions:
            saved = "–" if one.moved is None else f"{one.moved.astimezone():%Y-%m-%d %H:%M:%S}"
            lag = f"[yellow]{one.lag:,}[/yellow]" if one.lag else "0"
            table.add_row(
                info.name, one.stream, f"{one.seq:,}", f"{one.end:,}", lag, saved, connected
            )
    return table


async def _reset(
    name: str, start: Any, streams: list[str] | None, force: bool, url: str, token: str,
    as_json: bool,
) -> int:  # fmt: skip
    import surecast

    async with surecast.connect(url, token=token) as client:
        positions = await client.reset_subscription(name, start, streams=streams, force=force)
    if as_json:
        print(json.dumps({"subscription": name, "positions": positions}))
    else:
        for stream, seq in positions.items():
            print(f"{name} begins at position {seq:,} of {stream}")
    return 0


async def _delete(name: str, force: bool, url: str, token: str, as_json: bool) -> int:
    import surecast

    async with surecast.connect(url, token=token) as client:
        await client.delete_subscription(name, force=force)
    print(json.dumps({"deleted": name}) if as_json else f"{name} is deleted")
    return 0
