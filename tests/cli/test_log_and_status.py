"""`surecast log info` and HTTP status report the same numbers of live and void events."""

import json
from pathlib import Path
from typing import Any

from tests.server.opened import Open, run, until
from typer.testing import CliRunner

import surecast
from surecast.cli.log import log

NUMBERS = ("live", "void", "void_reasons")
EXPECTED = {
    # Of 2,000 events with 20 keys the newest 20 are left; one of them is collected by its key. The
    # collect is itself an entry of the stream, and live.
    "keyed": (20, {"collected": 1, "expired": 0, "superseded": 1980}),
    # The newest 50 of 1,000 are left; 20 of them are collected; with the collect and 10 events that
    # follow it 9 of those 20 are still among the newest 50.
    "last": (41, {"collected": 9, "expired": 961, "superseded": 0}),
    # What 1,000 events and a collect of 500 of them leave.
    "all": (501, {"collected": 500, "expired": 0, "superseded": 0}),
    "plain": (3, {"collected": 0, "expired": 0, "superseded": 0}),
}


async def fill(url: str) -> None:
    async with surecast.connect(url) as client:
        keyed = await client.stream("keyed", retain="latest-per-key")
        await keyed.publish_many([b"v"] * 2000, keys=[b"k%d" % (n % 20) for n in range(2000)])
        await keyed.collect(surecast.key_is(b"k7"))
        last = await client.stream("last", retain=surecast.keep_last(50))
        await last.publish_many([b"v"] * 1000)
        await last.collect(surecast.before_seq(971))
        await last.publish_many([b"v"] * 10)
        whole = await client.stream("all")
        await whole.publish_many([b"v"] * 1000)
        await whole.collect(surecast.before_seq(501))
        plain = await client.stream("plain", retain="keep_for:1d")
        await plain.publish_many([b"v"] * 3)


async def settled(region: Open, rewritten: int) -> None:
    """Wait until retention has processed all events and `rewritten` logs were compacted."""
    await until(lambda: all(s.index.end == s.end > 1 for s in region.streams()))
    await until(lambda: region.server.streams.counters["streams.rewritten"] >= rewritten)


def stored(folder: Path) -> dict[str, dict[str, Any]]:
    """The streams in the output of `surecast log info --json`, by name."""
    result = CliRunner().invoke(log, ["info", "--json", str(folder)])
    assert result.exit_code == 0, result.output
    stores = json.loads(result.stdout)["stores"]  # the replica's, and the witness's
    assert [problem for store in stores for problem in store["problems"]] == []
    return {stream["name"]: stream for store in stores for stream in store["streams"]}


def numbers(found: dict[str, Any]) -> tuple[int, int, dict[str, int]]:
    live, void, reasons = (found[name] for name in NUMBERS)
    return live, void, reasons


def test_log_info_agrees_with_status(tmp_path: Path) -> None:
    """They agree before void events are compacted away, afterwards, and after a restart."""

    async def main() -> None:
        streams = {"compact_ns": "1h"}  # no compaction in the first run
        for turn in (1, 2, 3):
            async with Open({"streams_max": 9}, streams, data_dir=str(tmp_path)) as region:
                if turn == 1:
                    address = region.server.nodes[0].address
                    assert address is not None
                    await fill(f"surecast://127.0.0.1:{address[1]}")
                await settled(region, rewritten=2 if turn == 2 else 0)
                code, answer = await region.get("/v1/streams")
                assert code == 200
                reported = {stream["name"]: stream for stream in answer["streams"]}
                kept = stored(tmp_path)
                for name, (live, reasons) in EXPECTED.items():
                    expected = (live, sum(reasons.values()), reasons)
                    assert numbers(reported[name]) == expected, (turn, name)
                    assert numbers(kept[name]) == expected, (turn, name)
                _, keyed = await region.get("/v1/streams/keyed")
                assert numbers(keyed) == numbers(reported["keyed"])
            after = stored(tmp_path)
            assert {name: numbers(after[name]) for name in EXPECTED} == {
                name: numbers(reported[name]) for name in EXPECTED
            }
            assert (after["keyed"]["rows"] == 2001) == (turn == 1), "rewritten in the second run"
            streams = {"compact_ns": "50ms"}

    run(main)


def test_log_info_shows_why_events_are_void(tmp_path: Path) -> None:
    async def main() -> None:
        streams = {"compact_ns": "1h"}  # not during this test
        async with Open({}, streams, data_dir=str(tmp_path)) as region:
            address = region.server.nodes[0].address
            assert address is not None
            await fill(f"surecast://127.0.0.1:{address[1]}")

    run(main)
    text = CliRunner().invoke(log, ["info", str(tmp_path)]).stdout
    assert "positions [1, 2,002): 20 live, 1,981 void (1 collected, 1,980 superseded)" in text
    assert "1,981 void events are not compacted away yet" in text
    assert "positions [1, 4): 3 live, 0 void;" in text
