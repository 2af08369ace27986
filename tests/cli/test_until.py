"""`surecast subscribe --until` prints the events before a position and ends with exit code 0."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import typer
from tests.client.stage import Regions, play

import surecast
from surecast.cli.subscribe import _subscribe, parse_until


def lines(
    capfd: pytest.CaptureFixture[str],
    pattern: str,
    stop: Any,
    *,
    start: Any = "earliest",
    count: int = 0,
    voids: bool = False,
    as_json: bool = False,
    collected: bool = False,
    where: str | None = None,
) -> list[str]:
    """The lines printed for a stream `s.a` with five events and `s.b` with two."""

    async def scenario() -> None:
        async with Regions(east=1) as regions, regions.client("east") as client:
            for name, events in (("s.a", 5), ("s.b", 2)):
                stream = await client.stream(name)
                await stream.publish_many([b"%d" % n for n in range(1, events + 1)])
                if collected:
                    await stream.collect(surecast.before_seq(1))
            url = regions.url("east")
            code = await _subscribe(
                pattern, start, voids, None, count, False, url, "", as_json, stop, where
            )
            assert code == 0

    play(scenario)
    return capfd.readouterr().out.splitlines()


def test_it_ends_at_the_latest_event(capfd: pytest.CaptureFixture[str]) -> None:
    found = lines(capfd, "s.>", "latest")
    assert [line for line in found if line.startswith("s.a")] == [
        f"s.a\t{n}\t\t{n}" for n in range(1, 6)
    ]
    assert [line for line in found if line.startswith("s.b")] == ["s.b\t1\t\t1", "s.b\t2\t\t2"]
    assert len(found) == 7


def test_it_prints_only_events_that_pass_the_filter(capfd: pytest.CaptureFixture[str]) -> None:
    since = "time > '2020-01-01T00:00:00Z'"
    assert lines(capfd, "s.b", "latest", where=since) == ["s.b\t1\t\t1", "s.b\t2\t\t2"]
    assert lines(capfd, "s.b", "latest", where="exists key") == []
    found = lines(capfd, "s.b", "latest", where="exists key", voids=True)
    assert found == ["s.b\t1-2\t(void)\tfiltered"]


def test_it_ends_before_a_position_or_a_time(capfd: pytest.CaptureFixture[str]) -> None:
    assert lines(capfd, "s.a", 3) == ["s.a\t1\t\t1", "s.a\t2\t\t2"]
    now = datetime.now(UTC)
    assert lines(capfd, "s.>", now - timedelta(hours=1)) == []
    assert lines(capfd, "s.b", 3, start=2) == ["s.b\t2\t\t2"]


def test_nothing_to_print_is_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert lines(capfd, "nobody.>", "latest") == []
    assert lines(capfd, "s.a", "latest", start="latest") == []


def test_the_first_of_count_and_until_ends_it(capfd: pytest.CaptureFixture[str]) -> None:
    assert len(lines(capfd, "s.a", "latest", count=2)) == 2
    assert len(lines(capfd, "s.a", "latest", count=20)) == 5


def test_until_counts_voids_and_works_with_json(capfd: pytest.CaptureFixture[str]) -> None:
    found = lines(capfd, "s.b", "latest", voids=True, as_json=True, collected=True)
    shown = [json.loads(line) for line in found]
    assert [(event["seq"], event["kind"]) for event in shown] == [
        (1, "event"), (2, "event"), (3, "void"),
    ]  # fmt: skip


def test_values_of_until_are_parsed() -> None:
    assert parse_until("latest") == "latest"
    assert parse_until("17") == 17
    assert parse_until("2026-01-31T12:00:00Z") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    for wrong in ("earliest", "0", "-3", "soon"):
        with pytest.raises(typer.BadParameter, match="is not latest, a position from 1 on"):
            parse_until(wrong)
