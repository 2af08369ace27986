"""Market data for many: ten subscribers with different filters, and a server that is killed while
they watch.

    python examples/market_data.py [BASE_PORT]

Starts two regions of two servers each on this machine. Trades are published in the region "east".
The subscribers are in "west", which stores nothing: its servers are brokers, and get only events
that pass a filter. One of them is killed half-way. At the end the program checks, with plain
Python, that each subscriber has got exactly the trades that it wants, once and in order.
"""

import asyncio
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import surecast
from surecast.server.cluster import Cluster
from surecast.server.layout import plan

SCHEMA = pa.schema([("sym", pa.string()), ("price", pa.float64()), ("qty", pa.int64())])
SYMBOLS = ("IBM", "SAP", "AAPL", "MSFT", "NVDA")
TRADES, BATCH = 2_000, 40

Trade = dict[str, Any]
# A filter for the servers, and the same in Python, to check what arrives.
WANTED: dict[str, Callable[[Trade], bool]] = {
    "sym == 'IBM'": lambda t: t["sym"] == "IBM",
    "sym == 'SAP' and qty > 500": lambda t: t["sym"] == "SAP" and t["qty"] > 500,
    "sym in ('AAPL', 'MSFT') and price < 20": lambda t: (
        t["sym"] in ("AAPL", "MSFT") and t["price"] < 20
    ),
    "price between 99 and 100": lambda t: 99 <= t["price"] <= 100,
    "qty >= 990": lambda t: t["qty"] >= 990,
    "not sym == 'IBM' and qty < 10": lambda t: t["sym"] != "IBM" and t["qty"] < 10,
    "sym startswith 'N'": lambda t: t["sym"].startswith("N"),
    "sym == 'NVDA' or price > 95": lambda t: t["sym"] == "NVDA" or t["price"] > 95,
    "qty == 500": lambda t: t["qty"] == 500,
    "sym == 'ACME'": lambda _: False,
}


def draw(count: int) -> list[Trade]:
    rng = random.Random(7)
    return [
        {
            "sym": rng.choice(SYMBOLS),
            "price": round(rng.uniform(1, 100), 2),
            "qty": rng.randint(1, 1000),
        }
        for _ in range(count)
    ]


async def watch(trades: surecast.Stream, where: str, end: int) -> list[int]:
    """The positions of the events that this subscriber gets, up to `end`."""
    return [event.seq async for event in trades.subscribe(start=1, stop=end, where=where)]


async def run(cluster: Cluster, east_url: str, west_url: str) -> bool:
    async with surecast.connect(east_url) as east, surecast.connect(west_url) as west:
        here = await east.stream("trades", delivery="filtered", schema=SCHEMA)
        there = await west.stream("trades", delivery="filtered", schema=SCHEMA)
        rows = draw(TRADES)
        watching = {where: asyncio.create_task(watch(there, where, TRADES + 1)) for where in WANTED}
        for at in range(0, TRADES, BATCH):
            await here.publish_many(rows[at : at + BATCH])
            if at == TRADES // 2:
                print("killing west-1, a server that the subscribers may use")
                cluster.kill("west-1")
            await asyncio.sleep(0.01)
        got = {where: await task for where, task in watching.items()}
    good = True
    print(f"{'filter':42} {'events':>7}")
    for where, wants in WANTED.items():
        exact = got[where] == [n + 1 for n, row in enumerate(rows) if wants(row)]
        good = good and exact
        print(f"{where:42} {len(got[where]):7,} {'exact' if exact else 'WRONG'}")
    return good


def main() -> int:
    base_port = int(sys.argv[1]) if len(sys.argv) > 1 else random.randrange(20_000, 30_000)
    with tempfile.TemporaryDirectory(prefix="market-data-") as folder:
        layout = plan(Path(folder), regions=2, replicas=2, base_port=base_port)
        with Cluster(layout, print) as cluster:
            cluster.wait_ready(60)
            urls = [cluster.nodes[f"{region}-2"].listen for region in ("east", "west")]
            good = asyncio.run(run(cluster, *(f"surecast://{url}" for url in urls)))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
