"""`surecast status`: the output for given answers of servers."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.server.processes import Served, surecast, surecast_here

from surecast.cli.status import regions_of, tell


def facts(name: str, region: str, **more: Any) -> dict[str, Any]:
    other = "west" if region == "east" else "east"
    return {
        "node": {"name": name, "region": region, "http": "127.0.0.1:1"},
        "chain": {
            "place": "head", "epoch": 3, "writable": True,
            "configured": [f"{region[0]}-1", f"{region[0]}-2"],
        },
        "regions": [
            {"name": other, "up": True, "http": {}, "replicas": {f"{other[0]}-1": "127.0.0.1:2"}}
        ],
        "streams": [],
        "streams_total": 0,
        "alarms": [],
        "roles": {},
        **more,
    }  # fmt: skip


def stream(
    name: str, committed: int, regions: dict[str, int], delivery: str = "broadcast"
) -> dict[str, Any]:
    return {
        "name": name, "owner": "east", "retention": "keep-all", "committed": committed,
        "regions": regions, "delivery": delivery, "live": committed - 1, "void": 0,
    }  # fmt: skip


def test_status_without_alarms_says_that_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"e-1": facts("e-1", "east"), "w-1": facts("w-1", "west")}
    assert regions_of(found) == ["east", "west"]
    tell(found, {}, 10)
    text = capsys.readouterr().out
    assert "all is well" in text
    assert "west up" in text


def test_the_highest_position_reported_for_a_region_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = {
        "e-1": facts("e-1", "east", streams=[stream("s", 101, {"east": 101, "west": 40})]),
        "w-1": facts("w-1", "west", streams=[stream("s", 91, {"west": 91, "east": 95})]),
    }
    tell(found, {}, 10)
    row = next(line for line in capsys.readouterr().out.splitlines() if "keep-all" in line)
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells == ["s", "east", "keep-all", "101", "91", "10", "100", "0"]


def test_a_delivery_other_than_the_default_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    streams = [
        stream("s", 101, {"east": 101, "west": 101}),
        stream("t", 11, {"east": 11}, delivery="local-only"),
    ]
    found = {"e-1": facts("e-1", "east", streams=streams), "w-1": facts("w-1", "west")}
    tell(found, {}, 10)
    rows = [line for line in capsys.readouterr().out.splitlines() if "keep-all" in line]
    cells = [[cell.strip() for cell in row.strip("│").split("│")] for row in rows]
    assert cells == [
        ["s", "east", "keep-all", "broadcast", "101", "101", "0", "100", "0"],
        ["t", "east", "keep-all", "local-only", "11", "–", "0", "10", "0"],
    ]


def test_the_status_of_each_role_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    tell({"e-1": facts("e-1", "east", roles={"made": {"count": 3, "names": ["s"]}})}, {}, 10)
    assert "made  e-1: count 3, names ['s']" in capsys.readouterr().out


def test_a_replica_that_does_not_answer_is_shown_in_its_region(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tell({"e-1": facts("e-1", "east")}, {"e-2": "dead", "w-1": "dead", "x": "dead"}, 10)
    text = capsys.readouterr().out
    rows = [line.strip("│").split("│")[:3] for line in text.splitlines() if "no answer" in line]
    shown = [[cell.strip() for cell in row] for row in rows if len(row) == 3]
    assert shown == [
        ["east", "e-2", "no answer"],
        ["west", "w-1", "no answer"],
        ["?", "x", "no answer"],
    ]


def test_alarms_are_shown_with_meaning_and_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    alarm = {"code": "owners-differ", "what": "west [x]", "means": "Means.", "todo": "Do."}
    found = {"e-1": facts("e-1", "east", alarms=[alarm])}
    tell(found, {"e-2": "http://x does not answer"}, 10)
    text = capsys.readouterr().out
    assert "owners-differ  e-1: west [x]" in text
    assert "To do: Do." in text
    assert "no answer  e-2: http://x does not answer" in text
    assert "all is well" not in text


def test_streams_beyond_the_limit_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    many = [stream(f"s{i}", 2, {"east": 2}) for i in range(5)]
    tell({"e-1": facts("e-1", "east", streams=many, streams_total=7)}, {}, 3)
    assert "and 4 more" in capsys.readouterr().out


@pytest.mark.slow
def test_status_of_a_real_node_behind_a_token(tmp_path: Path) -> None:
    with Served(tmp_path, token="secret") as served:
        refused = surecast("status", "--url", served.url)
        assert refused.returncode == 3
        assert "wrong token: none was given" in refused.stderr
        found = surecast_here("status", "--json", "--url", served.url, "--token", "secret")
        assert found.returncode == 0, found.stderr  # the only alarm is in-memory, which is harmless
        status = json.loads(found.stdout)
        assert status["nodes"]["east-1"]["chain"]["place"] == "alone"
    gone = surecast_here("status", "--url", served.url)
    assert gone.returncode == 3
    assert "surecast up" in gone.stderr


@pytest.mark.slow
def test_status_of_a_node_without_http_names_the_setting(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.end()
        text = served.config.read_text().replace(f'http = "{served.http}"', 'http = ""')
        text = text.replace(f'http = {{ "east-1" = "{served.http}" }}\n', "")
        served.config.write_text(text)
        from tests.server.processes import Process, wait_for

        with Process(tmp_path / "again", ["serve", str(served.config)]) as again:
            wait_for(lambda: "ready" in again.said(), "ready")
            found = surecast("status", "--url", served.url)
            assert found.returncode == 3
            assert "set node.http" in found.stderr
