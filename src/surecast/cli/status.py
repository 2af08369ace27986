"""`surecast status`: shows regions, chains, positions, links and alarms, as servers report them.

The command first asks a server of the region for the HTTP addresses of all its replicas, and
requests /v1/status from each. The answers contain the addresses of replicas of other regions, which
it requests next.
"""

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surecast.cli.interrupts import loads
from surecast.cli.options import DEFAULT_URL, AsJson, Token, Url, console, run_async
from surecast.errors import ConnectError

if TYPE_CHECKING:
    from urllib.error import HTTPError

    from rich.table import Table

ANSWER_S_MAX = 3.0  # a node that takes longer to answer counts as silent
HARMLESS = ("in-memory",)  # alarms that do not make the command exit with 1
SUBSCRIPTIONS_SHOWN = 20  # in the table; the JSON form has more

Facts = dict[str, Any]  # a Status (server/status.py) as plain data


@loads("surecast.client.connection")
def status(
    url: Url = DEFAULT_URL,
    token: Token = "",
    streams: Annotated[int, typer.Option(min=0, help="Maximum number of streams to show.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show the status of a deployment: regions, chains, streams, subscriptions, alarms.

    Exits with 1 if there is an alarm other than in-memory or a node does not answer, otherwise 0.
    """
    run_async(_status(url, token, streams, as_json))


async def _status(url: str, token: str, streams_max: int, as_json: bool) -> int:
    found, silent = await gather(url, token)
    # Alarms because of which the command exits with 1.
    wrong = [a for s in found.values() for a in s["alarms"] if a["code"] not in HARMLESS]
    if as_json:
        print(json.dumps({"nodes": found, "silent": silent, "ok": not (wrong or silent)}))
    else:
        tell(found, silent, streams_max)
    return 1 if wrong or silent else 0


# ---------------------------------------------------------------- requests


async def gather(url: str, token: str) -> tuple[dict[str, Facts], dict[str, str]]:
    """The status of each node that answers, and the error for each node that does not."""
    import surecast
    from surecast.endpoint.discovery import parse_url, redacted

    async with surecast.connect(url, token=token) as client:
        host = parse_url(url)[0][0]
        places = client.http  # name → HTTP address of the replicas that are still to be asked
    if not places:
        raise ConnectError(
            f"the servers at {redacted(url)} have no HTTP port: set node.http to see their status"
        )
    found: dict[str, Facts] = {}
    silent: dict[str, str] = {}
    while places:
        requests = {name: _ask(place, host, token) for name, place in places.items()}
        answers = await asyncio.gather(*requests.values(), return_exceptions=True)
        for name, answer in zip(requests, answers, strict=True):
            if isinstance(answer, BaseException):
                silent[name] = str(answer)
            else:
                found[name] = answer
        regions = [region for facts in found.values() for region in facts["regions"]]
        known = {name: place for region in regions for name, place in region["http"].items()}
        places = {n: p for n, p in known.items() if n not in found and n not in silent}
    return dict(sorted(found.items())), silent


async def _ask(place: str, host: str, token: str) -> Facts:
    """The status of the replica with the HTTP address `place`. `host` is the host of --url."""
    name, _, port = place.rpartition(":")
    if name in ("0.0.0.0", "[::]"):  # it listens on all interfaces, which is no address to ask
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return await asyncio.to_thread(_fetch, f"http://{place}/v1/status", token)


def _fetch(where: str, token: str) -> Facts:
    from urllib.error import HTTPError

    from surecast.endpoint.http_get import http_get

    try:
        facts: Facts = json.loads(http_get(where, token, patience_s=ANSWER_S_MAX))
        return facts
    except HTTPError as refused:
        raise ConnectError(f"{where} answers {refused.code}: {_said(refused)}") from None
    except (OSError, ValueError) as problem:
        why = getattr(problem, "reason", problem)
        raise ConnectError(f"{where} does not answer: {why}") from None


def _said(refused: "HTTPError") -> str:
    """The error text in the body of an answer, or the standard phrase of its status code."""
    try:
        return str(json.loads(refused.read())["error"])
    except (OSError, ValueError, KeyError, TypeError):
        return str(refused.reason)


# ---------------------------------------------------------------- output


def tell(found: dict[str, Facts], silent: dict[str, str], streams_max: int) -> None:
    """Print the status as text: tables, then alarms, each with its meaning and what to do."""
    from rich.markup import escape

    page = console()
    page.print(_chains(found, silent))
    page.print(_streams(found, streams_max))
    if any(facts.get("subscriptions") for facts in found.values()):
        page.print(_subscriptions(found))
    for name, facts in found.items():
        for role, fields in facts["roles"].items():
            values = ", ".join(f"{key} {value}" for key, value in fields.items())
            page.print(f"{role}  {escape(f'{name}: {values}')}", highlight=False)
    alarms = [(name, alarm) for name, facts in found.items() for alarm in facts["alarms"]]
    seen: dict[str, list[str]] = {}  # code → a text for each node with this alarm
    for name, alarm in alarms:
        seen.setdefault(alarm["code"], []).append(f"{name}: {alarm['what']}")
    meaning = {alarm["code"]: alarm for _, alarm in alarms}
    for code, lines in seen.items():
        colour = "yellow" if code in HARMLESS else "red"
        page.print(f"[{colour}]{code}[/{colour}]  {escape('; '.join(lines))}", highlight=False)
        page.print(f"    {escape(meaning[code]['means'])}", highlight=False)
        page.print(f"    To do: {escape(meaning[code]['todo'])}", highlight=False)
    for name, why in silent.items():
        page.print(f"[red]no answer[/red]  {escape(f'{name}: {why}')}", highlight=False)
    if not alarms and not silent:
        page.print("[green]all is well[/green]")


def regions_of(found: dict[str, Facts]) -> list[str]:
    """The names of all regions: first those of the nodes that answer, then others they know."""
    here = {facts["node"]["region"]: None for facts in found.values()}
    there = {r["name"]: None for facts in found.values() for r in facts["regions"]}
    return list(here | there)


def _chains(found: dict[str, Facts], silent: dict[str, str]) -> "Table":
    """A row per replica: its place in the chain, its epoch, and which regions it hears from."""
    from rich.table import Table

    table = Table("region", "replica", "place", "epoch", "takes publishes", "links", "HTTP")
    for name, facts in sorted(found.items(), key=lambda item: (item[1]["node"]["region"], item[0])):
        node, chain = facts["node"], facts["chain"]
        links = [
            f"{r['name']} " + ("[green]up[/green]" if r["up"] else "[red]down[/red]")
            for r in facts["regions"]
        ]
        writable = "yes" if chain["writable"] else "[red]no[/red]"
        table.add_row(
            node["region"], name, chain["place"], str(chain["epoch"]), writable,
            ", ".join(links) or "–", node["http"],
        )  # fmt: skip
    for name in silent:
        table.add_row(_region_of(name, found), name, "[red]no answer[/red]", "", "", "", "")
    return table


def _region_of(name: str, found: dict[str, Facts]) -> str:
    """The region of a replica that does not answer, as other replicas report it."""
    for facts in found.values():
        if name in facts["chain"]["configured"]:
            return str(facts["node"]["region"])
        for region in facts["regions"]:
            if name in region["replicas"]:
                return str(region["name"])
    return "?"


def _streams(found: dict[str, Facts], streams_max: int) -> "Table":
    """A row per stream: its end in each region (the highest that any replica reports), the lag of
    the region that is furthest behind, and its numbers of live and void positions."""
    from rich.table import Table

    from surecast.core.streams import DEFAULT_DELIVERY

    regions = regions_of(found)
    titles = [f"end in {region}" for region in regions]
    deliveries = {s["delivery"] for facts in found.values() for s in facts["streams"]}
    more = ["delivery"] if deliveries - {DEFAULT_DELIVERY} else []
    table = Table("stream", "owner", "keeps", *more, *titles, "lag", "live", "void")
    rows: dict[str, Facts] = {}  # stream → its values at the replica that has the most of it
    ends: dict[str, dict[str, int]] = {}  # stream → {region: end}
    for facts in found.values():
        for stream in facts["streams"]:
            name = stream["name"]
            at = ends.setdefault(name, {})
            for region, end in stream["regions"].items():
                at[region] = max(end, at.get(region, 0))
            if name not in rows or stream["committed"] > rows[name]["committed"]:
                rows[name] = stream
    for name in sorted(rows)[:streams_max]:
        stream, at = rows[name], ends[name]
        most = max(at.values())
        # The default delivery replicates to every region. Other deliveries may not, so a region
        # without the stream has no lag.
        goes_to = regions if stream["delivery"] == DEFAULT_DELIVERY else at
        lag = max(most - at.get(region, 1) for region in goes_to)  # 1: the end of an empty stream
        table.add_row(
            name, stream["owner"], stream["retention"], *(stream[key] for key in more),
            *(f"{at[region]:,}" if region in at else "–" for region in regions),
            f"[yellow]{lag:,}[/yellow]" if lag else "0",
            f"{stream['live']:,}", f"{stream['void']:,}",
        )  # fmt: skip
    hidden = max([len(rows), *(facts["streams_total"] for facts in found.values())]) - streams_max
    if hidden > 0:
        table.caption = (
            f"and {hidden:,} more: --streams N or --json shows them (a server lists at most "
            "http.streams_max streams)"
        )
    return table


def _subscriptions(found: dict[str, Facts]) -> "Table":
    """A row per named subscription, those with the largest lag first.

    The values of a region are those of its head. If the head does not answer, they are those of the
    replica that reports most subscriptions.
    """
    from rich.table import Table

    regions: dict[str, Facts] = {}
    for facts in found.values():
        region = facts["node"]["region"]
        if region not in regions or _knows_more(facts, regions[region]):
            regions[region] = facts
    rows = [
        (region, info)
        for region, facts in regions.items()
        for info in facts.get("subscriptions", ())
    ]
    rows.sort(key=lambda row: (-row[1]["lag"], row[0], row[1]["name"]))
    table = Table("region", "subscription", "streams", "lag", "saved", "connected")
    for region, info in rows[:SUBSCRIPTIONS_SHOWN]:
        table.add_row(
            region, info["name"], str(len(info["positions"])),
            f"[yellow]{info['lag']:,}[/yellow]" if info["lag"] else "0",
            (info["moved"] or "–")[:19].replace("T", " "),
            {True: "yes", False: "no", None: "–"}[info["connected"]],
        )  # fmt: skip
    hidden = sum(facts.get("subscriptions_total", 0) for facts in regions.values())
    hidden -= min(len(rows), SUBSCRIPTIONS_SHOWN)
    if hidden > 0:
        table.caption = f"and {hidden:,} more: `surecast subscriptions list` shows all"
    return table


def _knows_more(facts: Facts, other: Facts) -> bool:
    """Whether the first of two replicas has the better values for subscriptions."""

    def knows(one: Facts) -> tuple[bool, int]:
        return one["chain"]["place"] in ("head", "alone"), one.get("subscriptions_total", 0)

    return knows(facts) > knows(other)
