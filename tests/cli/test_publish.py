"""`surecast publish`, `subscribe` and `streams`, as a user of the shell meets them."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.server.processes import COMMAND, Process, Served, clean_env, surecast, wait_for

from surecast.cli.options import parse_retention
from surecast.cli.publish import Done
from surecast.cli.subscribe import Page, as_line, as_object, parse_start
from surecast.client.events import Event

pytestmark = pytest.mark.slow
publish_module = sys.modules[Done.__module__]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served")) as served:
        yield served


def test_values_are_published_and_read(served: Served) -> None:
    done = surecast("publish", "shop.a", "one", "two", "--key", "k", "--url", served.url)
    assert (done.returncode, done.stdout) == (0, "shop.a: 1-2 (2 events)\n"), done.stderr
    done = surecast("publish", "shop.a", "three", "--json", "--url", served.url)
    assert json.loads(done.stdout) == {"stream": "shop.a", "count": 1, "seqs": [[3, 4]]}
    words = ("subscribe", "shop.a", "--from", "earliest", "--count", "3", "--url", served.url)
    read = surecast(*words)
    assert read.stdout == "shop.a\t1\tk\tone\nshop.a\t2\tk\ttwo\nshop.a\t3\t\tthree\n"
    assert read.returncode == 0
    shown = [json.loads(line) for line in surecast(*words, "--json").stdout.splitlines()]
    assert [(one["seq"], one["key"], one["value"]) for one in shown] == [
        (1, "k", "one"),
        (2, "k", "two"),
        (3, None, "three"),
    ]


def test_lines_of_stdin_and_files(served: Served, tmp_path: Path) -> None:
    lines = "".join(f"{i}\n" for i in range(50_000)) + "no newline at the end"
    done = surecast("publish", "lines", "--url", served.url, stdin=lines)
    assert done.stdout == "lines: 1-50001 (50,001 events)\n", done.stderr
    tail = surecast("subscribe", "lines", "--from", "50000", "--count", "2", "--url", served.url)
    assert tail.stdout == "lines\t50000\t\t49999\nlines\t50001\t\tno newline at the end\n"
    path = tmp_path / "some"
    path.write_text("x\n\ny\n")
    done = surecast("publish", "file", "--lines", str(path), "--url", served.url)
    assert done.stdout == "file: 1-3 (3 events)\n"  # an empty line is an empty event
    assert surecast("publish", "none", "--url", served.url).stdout == "none: no events\n"
    assert "none" not in surecast("streams", "--url", served.url).stdout, "made by nothing"


def test_waiting_is_not_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(publish_module, "WAITS_S", 0.01)
    done = Done()
    done.waits_for = 1
    asyncio.run(publish_module._say_that_it_waits("orders", done))
    said = capsys.readouterr().err
    assert "orders: waiting for an acknowledgement" in said
    assert "surecast status" in said


def test_ndjson_goes_round(served: Served) -> None:
    lines = '{"key": "k", "value": "a\\nb"}\n{"value_base64": "AP8="}\n'
    done = surecast("publish", "nd.one", "--ndjson", "-", "--url", served.url, stdin=lines)
    assert done.returncode == 0, done.stderr
    words = ("--from", "earliest", "--count", "2", "--url", served.url)
    text = surecast("subscribe", "nd.one", *words)
    assert text.stdout == "nd.one\t1\tk\ta\\nb\nnd.one\t2\t\t\\x00\\xff\n"  # a line each
    shown = surecast("subscribe", "nd.one", "--json", *words)
    again = surecast("publish", "nd.two", "--ndjson", "-", "--url", served.url, stdin=shown.stdout)
    assert again.returncode == 0, again.stderr
    second = surecast("subscribe", "nd.two", *words)
    assert second.stdout.replace("nd.two", "nd.one") == text.stdout


def test_a_wrong_line_is_named_and_what_came_before_is_told(served: Served) -> None:
    done = surecast(
        "publish", "bad", "--ndjson", "-", "--url", served.url, stdin='{"value": 1}\nx\n'
    )
    assert done.returncode == 2
    assert "line 2: not JSON" in done.stderr
    assert "Traceback" not in done.stderr


def test_retention_is_set_once(served: Served) -> None:
    words = ("publish", "kept", "--url", served.url, "--retain")
    assert surecast(*words, "keep-last:2", "a", "b", "c").returncode == 0
    other = surecast(*words, "latest-per-key", "d")
    assert other.returncode == 2
    assert "keep_last(2)" in other.stderr
    wrong = surecast(*words, "for-ever", "d")
    assert wrong.returncode == 2
    assert "keep-last:N" in wrong.stderr
    voids = surecast(
        "subscribe", "kept", "--from", "earliest", "--voids", "--count", "3", "--url", served.url
    )
    assert "c" in voids.stdout.splitlines()[-1]
    listed = json.loads(surecast("streams", "kept", "--json", "--url", served.url).stdout)
    assert [(s["name"], s["owner"], s["retention"]) for s in listed] == [
        ("kept", "east", "keep-last:2")
    ]


def test_streams_for_people(served: Served) -> None:
    nothing = surecast("streams", "nobody.>", "--url", served.url)
    assert nothing.returncode == 0
    assert "no streams that match nobody.> yet" in nothing.stdout
    surecast("publish", "listed", "x", "--url", served.url)
    assert "listed" in surecast("streams", "--url", served.url).stdout


def test_a_named_subscription_keeps_its_place(served: Served) -> None:
    surecast("publish", "named", "1", "2", "3", "4", "--url", served.url)
    words = ("subscribe", "named", "--from", "earliest", "--name", "me", "--url", served.url)
    first = surecast(*words, "--count", "2")
    assert [line.split("\t")[1] for line in first.stdout.splitlines()] == ["1", "2"]
    second = surecast(*words, "--count", "2")
    seen = [line.split("\t")[1] for line in second.stdout.splitlines()]
    assert seen in (["3", "4"], ["2", "3"])  # the last one shown may not have been dealt with


def test_lines_under_way_are_shown_when_a_subscription_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One task flushes now and then, and is cancelled when all have come."""

    async def story() -> None:
        hold = threading.Event()
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy = asyncio.create_task(asyncio.to_thread(hold.wait, 30))
        page = Page(as_line)
        page.lines = ["one\n"]
        flushing = asyncio.create_task(page.flush())
        await asyncio.sleep(0.01)
        assert page.lines == []  # taken, and not yet written
        flushing.cancel()
        await asyncio.sleep(0.01)
        flushing.cancel()  # and again, as by Ctrl-C
        page.lines.append("two\n")
        loop.call_later(0.01, hold.set)
        await page.flush()
        await busy
        assert flushing.cancelled()

    asyncio.run(story())
    assert capsys.readouterr().out == "one\ntwo\n"


def test_ctrl_c_ends_a_subscription_cleanly(served: Served, tmp_path: Path) -> None:
    words = ["subscribe", "live.>", "--url", served.url]
    with Process(tmp_path, words) as reading:

        def shown() -> bool:
            surecast("publish", "live.x", "now", "--url", served.url)
            return "now" in reading.out.read_text()

        wait_for(shown, "an event is shown")
        assert reading.end(signal.SIGINT) == 130
        assert reading.err.read_text() == ""


def test_a_reader_that_goes_away_is_no_error(served: Served) -> None:
    surecast("publish", "pipe", *map(str, range(10)), "--url", served.url)
    command = [*COMMAND, "subscribe", "pipe", "--from", "earliest", "--url", served.url]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_env()
    ) as reading:
        assert reading.stdout is not None
        assert reading.stderr is not None
        assert reading.stdout.readline() == "pipe\t1\t\t0\n"
        reading.stdout.close()  # nothing more is published: it must notice by itself
        try:
            assert reading.wait(60) == 0
        finally:
            reading.kill()
        assert reading.stderr.read() == ""


def test_errors_have_codes_and_say_what_to_do(served: Served) -> None:
    nobody = surecast("publish", "a", "x", "--url", "surecast://127.0.0.1:1")
    assert nobody.returncode == 3
    assert "`surecast up` starts a cluster" in nobody.stderr
    assert surecast("publish", "a b", "x", "--url", served.url).returncode == 2
    assert surecast("publish", "a", "x", "--url", "http://x").returncode == 2
    assert surecast("subscribe", "a..b", "--url", served.url).returncode == 2
    assert surecast("subscribe", "a", "--from", "soon", "--url", served.url).returncode == 2
    both = surecast("publish", "a", "x", "--lines", "-", "--url", served.url)
    assert both.returncode == 2
    missing = surecast("publish", "a", "--lines", "nowhere", "--url", served.url)
    assert (missing.returncode, "cannot read nowhere" in missing.stderr) == (2, True)
    for one in (nobody, both, missing):
        assert "Traceback" not in one.stderr


@pytest.mark.parametrize("text", ["keep-all", "latest-per-key", "keep-last:7", "keep-for:90min"])
def test_retention_is_read_as_it_is_shown(text: str) -> None:
    from surecast.server.status import show_policy

    policy = parse_retention(text)
    assert policy is not None
    assert show_policy(policy) == text


def test_starts() -> None:
    assert parse_start("earliest") == "earliest"
    assert parse_start("17") == 17
    assert parse_start("2026-01-31T12:00:00Z").tzinfo is not None
    assert parse_start("2026-01-31").tzinfo is not None  # local time


def test_runs_are_joined() -> None:
    done = Done()
    for run in ((1, 3), (3, 5), (9, 10)):
        done.add(run)
    assert (done.count, done.runs) == (5, [(1, 5), (9, 10)])


def test_voids_are_shown_as_ranges() -> None:
    void = Event("s", 9, None, b"", 0, kind="void", count=5, reason="collected")
    assert as_line(void) == "s\t5-9\t(void)\tcollected\n"
    shown = json.loads(as_object(void))
    assert (shown["kind"], shown["range"], shown["reason"]) == ("void", [5, 10], "collected")
