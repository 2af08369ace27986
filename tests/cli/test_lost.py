"""`surecast subscribe` and `publish --delivery` with a delivery that loses events."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.client.stage import play
from tests.client.test_made_deliveries import WHY, Served, have, loses
from tests.made_protocols import MadeDelivery, ScriptedReader, made_protocols

from surecast.cli.publish import Values, _publish
from surecast.cli.subscribe import _subscribe, as_line, as_object
from surecast.client.events import Event
from surecast.errors import NotSupported


@pytest.fixture
def losing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    with made_protocols(monkeypatch, tmp_path) as made:
        have(made, MadeDelivery(make_reader=lambda: ScriptedReader(loses, [])))
        yield


def run(command: Callable[[str], Any]) -> None:
    """Publish one event to a stream with the losing delivery, then run a command with the url."""

    async def scenario() -> None:
        async with Served("made") as regions:
            url = regions.url("east")
            source = Values([(None, b"x", None)])
            assert await _publish(url, "", "s", {"delivery": "made"}, source, False) == 0
            await command(url)

    play(scenario)


def test_lost_events_are_printed_as_a_line_and_reading_continues(
    losing: None, capfd: pytest.CaptureFixture[str]
) -> None:
    run(lambda url: _subscribe("s", 1, False, None, 5, False, url, "", False))
    lines = capfd.readouterr().out.splitlines()
    assert lines == ["s: 1 (1 event)", "s\t1\t\t1", "s\t2\t\t2", f"s\t3-8\t(lost)\t{WHY}",
                     "s\t9\t\t9", "s\t10\t\t10"]  # fmt: skip


def test_lost_events_are_printed_as_a_json_object_with_their_range(
    losing: None, capfd: pytest.CaptureFixture[str]
) -> None:
    run(lambda url: _subscribe("*", 2, False, None, 3, False, url, "", True))
    lines = capfd.readouterr().out.splitlines()[1:]
    assert [json.loads(line)["seq"] for line in lines] == [2, 8, 9]
    assert json.loads(lines[1]) == {
        "stream": "s", "seq": 8, "kind": "lost", "range": [3, 9], "reason": WHY,
    }  # fmt: skip


def test_lost_events_without_positions_are_shown() -> None:
    lost = Event("s", -1, None, b"", 0, None, "lost", 0, WHY)
    assert as_line(lost) == f"s\t-\t(lost)\t{WHY}\n"
    assert json.loads(as_object(lost))["range"] == [0, 0]


def test_publish_with_an_unknown_delivery_lists_the_known_ones(losing: None) -> None:
    async def scenario() -> None:
        async with Served() as regions:
            source = Values([(None, b"x", None)])
            with pytest.raises(NotSupported, match=r"'broadcast'.*'made'"):
                await _publish(regions.url("east"), "", "s", {"delivery": "pigeon"}, source, False)

    play(scenario)
