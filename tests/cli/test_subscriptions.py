"""`surecast subscriptions` as a shell command, and subscriptions in `surecast status`."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_status import facts
from tests.server.processes import Served, surecast

from surecast.cli.options import console
from surecast.cli.status import SUBSCRIPTIONS_SHOWN, tell
from surecast.cli.subscriptions import positions_table
from surecast.core.status import SubscriptionInfo, SubscriptionPosition

SAVED = datetime(2026, 1, 31, 12, tzinfo=UTC)


def rows(text: str, word: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if word in line]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_the_table_has_a_row_for_each_position(capsys: pytest.CaptureFixture[str]) -> None:
    places = (
        SubscriptionPosition("a", 1_001, 3_001, 2_000, SAVED),
        SubscriptionPosition("b", 4, 4, 0, None),
    )
    full = SubscriptionInfo("sub.full", True, False, 2_000, SAVED, places)
    empty = SubscriptionInfo("sub.new", None, True, 0, None, ())
    console().print(positions_table([full, empty]))
    saved = f"{SAVED.astimezone():%Y-%m-%d %H:%M:%S}"
    assert rows(capsys.readouterr().out, "sub.") == [
        ["sub.full", "a", "1,001", "3,001", "2,000", saved, "yes"],
        ["sub.full", "b", "4", "4", "0", "–", "yes"],
        ["sub.new", "–", "–", "–", "–", "–", "–"],
    ]


def subscription(name: str, lag: int, connected: bool | None) -> dict[str, Any]:
    moved = "2026-01-31T12:00:00.123456Z"
    places = [{"stream": "s", "seq": 1, "end": 1 + lag, "lag": lag, "moved": moved}]
    return {"name": name, "connected": connected, "lag": lag, "moved": moved, "positions": places}


def test_status_shows_the_heads_subscriptions_with_the_largest_lag_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    many = [subscription(f"sub{n}", n, True) for n in range(SUBSCRIPTIONS_SHOWN + 5)]
    tail = facts("e-1", "east", subscriptions=[subscription("sub1", 9, None)])
    tail["chain"]["place"] = "tail"
    tail["subscriptions_total"] = 1
    head = facts("e-2", "east", subscriptions=many, subscriptions_total=40)
    tell({"e-1": tail, "e-2": head}, {}, 10)
    said = capsys.readouterr().out
    shown = rows(said, "sub")
    last = f"sub{SUBSCRIPTIONS_SHOWN + 4}"
    assert shown[1] == ["east", last, "1", "24", "2026-01-31 12:00:00", "yes"]
    assert len([row for row in shown if row[0] == "east"]) == SUBSCRIPTIONS_SHOWN
    assert "and 20 more" in said


def test_status_without_subscriptions_has_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    tell({"e-1": facts("e-1", "east")}, {}, 10)  # as an older server answers
    assert "subscription" not in capsys.readouterr().out


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served")) as served:
        yield served


@pytest.mark.slow
def test_subscriptions_are_listed_reset_and_deleted(served: Served, tmp_path: Path) -> None:
    def verb(*words: str) -> tuple[int, str, str]:
        done = surecast("subscriptions", *words, "--url", served.url)
        return done.returncode, done.stdout, done.stderr

    assert verb("list")[:2] == (
        0, "no named subscriptions: `surecast subscribe PATTERN --name NAME` creates one\n",
    )  # fmt: skip
    assert surecast("publish", "shop", "a", "b", "c", "--url", served.url).returncode == 0
    words = ("subscribe", "shop", "--from", "2", "--name", "billing", "--count", "1")
    assert surecast(*words, "--url", served.url).returncode == 0
    code, said, _ = verb("list", "--json")
    [info] = json.loads(said)
    assert (code, info["name"], info["connected"]) == (0, "billing", False)
    assert verb("reset", "billing", "--from", "earliest")[:2] == (
        0, "billing begins at position 1 of shop\n",
    )  # fmt: skip
    code, said, _ = verb("reset", "billing", "--from", "3", "--stream", "shop", "--json")
    assert json.loads(said) == {"subscription": "billing", "positions": {"shop": 3}}
    read = surecast("subscribe", "shop", "--name", "billing", "--count", "1", "--url", served.url)
    assert read.stdout == "shop\t3\t\tc\n"
    status = json.loads(surecast("status", "--json", "--url", served.url).stdout)
    [node] = status["nodes"].values()
    assert [entry["name"] for entry in node["subscriptions"]] == ["billing"]
    code, _, problem = verb("reset", "billing", "--from", "99")
    assert code == 2
    assert "from 1 to 4" in problem
    assert verb("reset", "billing", "--from", "oldest")[0] == 2
    assert verb("delete", "billing")[:2] == (0, "billing is deleted\n")
    code, _, problem = verb("delete", "billing", "--json")
    assert code == 2
    assert "'billing'" in problem
    assert "Traceback" not in problem


@pytest.mark.slow
def test_deleting_a_subscription_in_use_requires_force(served: Served, tmp_path: Path) -> None:
    from tests.server.processes import Process, wait_for

    assert surecast("publish", "busy", "a", "--url", served.url).returncode == 0
    reader = ["subscribe", "busy", "--from", "earliest", "--name", "reader", "--url", served.url]
    with Process(tmp_path / "reader", reader) as process:
        wait_for(lambda: "busy" in process.out.read_text(), "the reader reads")
        done = surecast("subscriptions", "delete", "reader", "--url", served.url)
        assert done.returncode == 1
        assert "a client reads" in done.stderr
        done = surecast("subscriptions", "delete", "reader", "--force", "--url", served.url)
        assert done.returncode == 0, done.stderr
        assert process.popen.wait(30) == 1
        assert "was deleted" in process.err.read_text()
