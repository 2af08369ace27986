"""`surecast publish`, `subscribe` and `streams`, run as shell commands."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import typer
from tests.server.processes import (
    COMMAND,
    Process,
    Served,
    clean_env,
    surecast,
    surecast_here,
    wait_for,
)

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
    done = surecast_here("publish", "shop.a", "three", "--json", "--url", served.url)
    assert json.loads(done.stdout) == {"stream": "shop.a", "count": 1, "seqs": [[3, 4]]}
    words = ("subscribe", "shop.a", "--from", "earliest", "--count", "3", "--url", served.url)
    read = surecast_here(*words)
    assert read.stdout == "shop.a\t1\tk\tone\nshop.a\t2\tk\ttwo\nshop.a\t3\t\tthree\n"
    assert read.returncode == 0
    shown = [json.loads(line) for line in surecast_here(*words, "--json").stdout.splitlines()]
    assert [(event["seq"], event["key"], event["value"]) for event in shown] == [
        (1, "k", "one"),
        (2, "k", "two"),
        (3, None, "three"),
    ]


def test_a_bounded_subscription_ends_by_itself(served: Served) -> None:
    surecast("publish", "shop.u", "one", "two", "three", "--url", served.url)
    words = ("subscribe", "shop.u", "--from", "earliest", "--url", served.url)
    read = surecast(*words, "--until", "latest")
    assert read.stdout == "shop.u\t1\t\tone\nshop.u\t2\t\ttwo\nshop.u\t3\t\tthree\n"
    assert (read.returncode, read.stderr) == (0, "")
    named = surecast(*words, "--until", "3", "--name", "until", "--json")
    assert [json.loads(line)["seq"] for line in named.stdout.splitlines()] == [1, 2]
    again = surecast(*words, "--until", "latest", "--name", "until")
    assert again.stdout == "shop.u\t3\t\tthree\n"  # its position was saved at the end
    assert surecast(*words, "--until", "sometime").returncode == 2


def test_rows_of_a_schema_are_published_and_printed(served: Served) -> None:
    url = ("--url", served.url)
    rows = (
        '{"sym": "IBM", "at": "2026-11-19T08:30:00.123456789Z", "blob": "AP8=", "key": "k"}\n'
        '\n{"attributes": {"sym": "A", "px": "NaN"}, "value": "hello", "tag": "t"}\n\n'
    )
    schema = "sym string not null, px float64, at timestamp(ns), blob binary"
    done = surecast_here("publish", "trades", "--ndjson", "-", "--schema", schema, *url, stdin=rows)
    assert done.stdout == "trades: 1-2 (2 events)\n", done.stderr
    words = ("subscribe", "trades", "--from", "earliest", "--until", "latest", *url)
    assert surecast_here(*words).stdout == (
        'trades\t1\tk\t\t{"sym": "IBM", "px": null, "at": "2026-11-19T08:30:00.123456789+00:00", '
        '"blob": "AP8="}\n'
        'trades\t2\t\thello\t{"sym": "A", "px": "NaN", "at": null, "blob": null}\n'
    )
    printed = surecast_here(*words, "--json").stdout
    again = surecast_here("publish", "trades", "--ndjson", "-", *url, stdin=printed)
    assert again.stdout == "trades: 3-4 (2 events)\n", again.stderr
    repeated = [json.loads(line) for line in surecast_here(*words, "--json").stdout.splitlines()]
    shown = [(row["key"], row["value"], row.get("tag"), row["attributes"]) for row in repeated]
    assert [tag for _, _, tag, _ in shown] == [None, "t", None, "t"]
    assert shown[:2] == shown[2:]
    assert schema in surecast_here("streams", "trades", "--json", *url).stdout
    for source, said in (
        ('{"sym": 3}', "stdin, line 1: column 'sym' is string, and the event has 3 (int)"),
        ('{"sym": "a"}\n{"pxx": 1}', "stdin, line 2: the schema has no column 'pxx'"),
    ):
        refused = surecast_here("publish", "trades", "--ndjson", "-", *url, stdin=source)
        assert refused.returncode != 0
        assert said in refused.stderr
    refused = surecast_here("publish", "trades", "hello", *url)
    assert "give its fields as JSON objects, one a line, with --ndjson FILE" in refused.stderr
    refused = surecast_here("publish", "other", "hello", "--schema", "a int9", *url)
    assert "'int9' where a type" in refused.stderr
    refused = surecast_here("publish", "other", "--ndjson", "-", *url, stdin='{"sym": "a"}')
    assert "unknown field 'sym'" in refused.stderr
    assert "other" not in surecast_here("streams", *url).stdout


def test_a_schema_is_changed_by_a_command(served: Served) -> None:
    def call(*words: str, stdin: str = "") -> tuple[int, str, str]:
        done = surecast_here(*words, "--url", served.url, stdin=stdin)
        return done.returncode, done.stdout, done.stderr

    publish = ("publish", "grows", "--ndjson", "-")
    assert call(*publish, "--schema", "n int64", stdin='{"n": 1}')[0] == 0
    more = "n int64, s string"
    code, _, problem = call(*publish, "--schema", more, stdin='{"n": 2}')
    assert (code, "surecast change grows --schema" in problem) == (2, True)
    changed = (0, f"grows has a new schema from position 2 on: {more}\n", "")
    assert call("change", "grows", "--schema", "n int64,s string") == changed
    assert (
        call("change", "grows", "--schema", more)[1] == f"grows has this schema already: {more}\n"
    )
    assert call(*publish, "--schema", more, stdin='{"s": "x"}')[0] == 0
    code, out, _ = call("change", "grows", "--schema", more + ", b bool", "--json")
    assert json.loads(out) == {"stream": "grows", "changed_at": 4, "schema": more + ", b bool"}
    for words, said in (
        (("grows", "--schema", "n int64"), "the field 's' is missing"),
        (("grows", "--schema", "n int6"), "where a type"),
        (("none", "--schema", more), "no stream named 'none'"),
    ):
        code, _, problem = call("change", *words)
        assert (code, said in problem) == (2, True), problem
    words = ("subscribe", "grows", "--from", "earliest", "--until", "latest", "--json")
    shown = [json.loads(line)["attributes"] for line in call(*words)[1].splitlines()]
    assert shown == [{"n": 1, "s": None, "b": None}, {"n": None, "s": "x", "b": None}]


def test_publish_reads_lines_of_stdin_and_files(served: Served, tmp_path: Path) -> None:
    lines = "".join(f"{i}\n" for i in range(50_000)) + "no newline at the end"
    done = surecast_here("publish", "lines", "--url", served.url, stdin=lines)
    assert done.stdout == "lines: 1-50001 (50,001 events)\n", done.stderr
    tail = surecast_here(
        "subscribe", "lines", "--from", "50000", "--count", "2", "--url", served.url
    )
    assert tail.stdout == "lines\t50000\t\t49999\nlines\t50001\t\tno newline at the end\n"
    path = tmp_path / "some"
    path.write_text("x\n\ny\n")
    done = surecast_here("publish", "file", "--lines", str(path), "--url", served.url)
    assert done.stdout == "file: 1-3 (3 events)\n"  # an empty line is an empty event
    assert surecast_here("publish", "none", "--url", served.url).stdout == "none: no events\n"
    assert "none" not in surecast_here("streams", "--url", served.url).stdout, "created by no event"


@pytest.mark.parametrize("lines", [b"", b"one\n"], ids=["no line", "a line"])
def test_ctrl_c_ends_a_publish_that_waits_for_input(served: Served, lines: bytes) -> None:
    name = f"typed.{len(lines)}"
    words = [*COMMAND, "publish", name, "--lines", "-", "--url", served.url]
    publish = subprocess.Popen(
        words,
        env=clean_env(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert publish.stdin is not None
        publish.stdin.write(lines)
        publish.stdin.flush()
        if lines:
            words = [name, "--from", "earliest", "--count", "1", "--url", served.url]
            assert surecast("subscribe", *words).stdout == f"{name}\t1\t\tone\n"
        wait_for(lambda: _waits_in_a_read(publish.pid), "it does not read its input")
        publish.send_signal(signal.SIGINT)
        assert publish.wait(20) == 130  # its input is still open
    finally:
        publish.kill()
        publish.wait()


def _waits_in_a_read(pid: int) -> bool:
    """Whether a thread of the process waits in a read of a pipe."""
    return any(
        "pipe" in (task / "wchan").read_text() for task in Path(f"/proc/{pid}/task").iterdir()
    )


def test_a_bounded_subscription_to_a_missing_stream_says_so(served: Served) -> None:
    done = surecast(
        "subscribe", "typo", "--from", "earliest", "--until", "latest", "--url", served.url
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "no stream matches 'typo': there is nothing to read" in done.stderr


def test_publish_reports_that_it_waits_for_an_acknowledgement(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(publish_module, "WAITS_S", 0.01)
    done = Done()
    done.waits_for = 1
    asyncio.run(publish_module._say_that_it_waits("orders", done))
    message = capsys.readouterr().err
    assert "orders: waiting for an acknowledgement" in message
    assert "surecast status" in message


def test_subscribe_json_output_can_be_published_again(served: Served) -> None:
    lines = '{"key": "k", "value": "a\\nb"}\n{"value_base64": "AP8="}\n'
    done = surecast_here("publish", "nd.one", "--ndjson", "-", "--url", served.url, stdin=lines)
    assert done.returncode == 0, done.stderr
    words = ("--from", "earliest", "--count", "2", "--url", served.url)
    text = surecast_here("subscribe", "nd.one", *words)
    assert text.stdout == "nd.one\t1\tk\ta\\nb\nnd.one\t2\t\t\\x00\\xff\n"  # a line for each
    shown = surecast_here("subscribe", "nd.one", "--json", *words)
    again = surecast_here(
        "publish", "nd.two", "--ndjson", "-", "--url", served.url, stdin=shown.stdout
    )
    assert again.returncode == 0, again.stderr
    second = surecast_here("subscribe", "nd.two", *words)
    assert second.stdout.replace("nd.two", "nd.one") == text.stdout


def test_a_malformed_line_is_reported_with_its_number(served: Served) -> None:
    done = surecast_here(
        "publish", "bad", "--ndjson", "-", "--url", served.url, stdin='{"value": 1}\nx\n'
    )
    assert done.returncode == 2
    assert "line 2: not JSON" in done.stderr
    assert "Traceback" not in done.stderr


def test_retention_is_set_once(served: Served) -> None:
    words = ("publish", "kept", "--url", served.url, "--retain")
    assert surecast_here(*words, "keep-last:2", "a", "b", "c").returncode == 0
    other = surecast_here(*words, "latest-per-key", "d")
    assert other.returncode == 2
    assert "keep-last:2" in other.stderr
    wrong = surecast_here(*words, "for-ever", "d")
    assert wrong.returncode == 2
    assert "keep-last:N" in wrong.stderr
    voids = surecast_here(
        "subscribe", "kept", "--from", "earliest", "--voids", "--count", "3", "--url", served.url
    )
    assert "c" in voids.stdout.splitlines()[-1]
    listed = json.loads(surecast_here("streams", "kept", "--json", "--url", served.url).stdout)
    assert [(s["name"], s["owner"], s["retention"]) for s in listed] == [
        ("kept", "east", "keep-last:2")
    ]


def test_streams_prints_a_table(served: Served) -> None:
    nothing = surecast("streams", "nobody.>", "--url", served.url)
    assert nothing.returncode == 0
    assert "no streams that match nobody.> yet" in nothing.stdout
    surecast_here("publish", "listed", "x", "--url", served.url)
    assert "listed" in surecast_here("streams", "--url", served.url).stdout


def test_a_named_subscription_resumes_at_its_position(served: Served) -> None:
    surecast_here("publish", "named", "1", "2", "3", "4", "--url", served.url)
    words = ("subscribe", "named", "--from", "earliest", "--name", "me", "--url", served.url)
    first = surecast_here(*words, "--count", "2")
    assert [line.split("\t")[1] for line in first.stdout.splitlines()] == ["1", "2"]
    second = surecast(*words, "--count", "1", "--json")
    assert [json.loads(line)["seq"] for line in second.stdout.splitlines()] == [3]
    third = surecast(*words, "--count", "1")
    assert [line.split("\t")[1] for line in third.stdout.splitlines()] == ["4"]


def test_a_named_subscription_saves_its_position_at_ctrl_c(served: Served, tmp_path: Path) -> None:
    surecast("publish", "stopped", "1", "2", "3", "--url", served.url)
    words = ["subscribe", "stopped", "--from", "earliest", "--name", "c", "--url", served.url]
    with Process(tmp_path, words) as reading:
        wait_for(lambda: "\t3\t" in reading.out.read_text(), "three events are shown")
        assert reading.end(signal.SIGINT) == 130
    surecast("publish", "stopped", "4", "--url", served.url)
    after = surecast(*words, "--count", "1")
    assert after.stdout == "stopped\t4\t\t4\n"


def test_events_that_could_not_be_printed_are_delivered_again(served: Served) -> None:
    surecast("publish", "unread", "1", "2", "3", "--url", served.url)
    words = ["subscribe", "unread", "--from", "earliest", "--name", "p", "--url", served.url]
    read, write = os.pipe()
    os.close(read)
    try:
        broken = subprocess.run(
            [*COMMAND, *words, "--count", "2"], stdout=write, stderr=subprocess.PIPE, text=True,
            timeout=60, env=clean_env(),
        )  # fmt: skip
    finally:
        os.close(write)
    assert (broken.returncode, broken.stderr) == (0, "")
    again = surecast(*words, "--count", "3")
    assert [line.split("\t")[1] for line in again.stdout.splitlines()] == ["1", "2", "3"]


def test_only_what_was_written_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails for a while must not be covered by the acknowledgement of a later one."""
    acked: list[int] = []
    written: list[str] = []

    class Acks:
        async def ack(self, event: Event) -> None:
            acked.append(event.seq)

    def write(text: str) -> None:
        if "\t2\t" in text:
            raise OSError(28, "no space left")
        written.append(text)

    monkeypatch.setattr("surecast.cli.subscribe._write", write)

    async def scenario() -> None:
        page, acks = Page(as_line), Acks()

        async def show(*seqs: int) -> None:
            async def some() -> AsyncIterator[Event]:
                for seq in seqs:
                    yield Event("s", seq, None, b"", 0)

            await page.fill(some(), len(seqs))

        await show(1)
        await page.acknowledge(acks)  # type: ignore[arg-type]
        assert acked == []  # not written yet
        await page.flush()
        await page.acknowledge(acks)  # type: ignore[arg-type]
        assert acked == [1]
        await show(2)
        with pytest.raises(OSError, match="space"):
            await page.flush()
        await show(3)
        await page.flush()
        await page.acknowledge(acks)  # type: ignore[arg-type]
        assert acked == [1]
        assert written == ["s\t1\t\t\n"]

    asyncio.run(scenario())


def test_lines_being_written_are_shown_when_a_subscription_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The task that flushes regularly is cancelled when all events have come. No line is lost."""

    async def scenario() -> None:
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

    asyncio.run(scenario())
    assert capsys.readouterr().out == "one\ntwo\n"


def test_ctrl_c_ends_a_subscription_cleanly(served: Served, tmp_path: Path) -> None:
    surecast("publish", "live.x", "before", "--url", served.url)  # so that it does not wait
    words = ["subscribe", "live.>", "--url", served.url]
    with Process(tmp_path, words) as reading:

        def shown() -> bool:
            surecast_here("publish", "live.x", "now", "--url", served.url)
            return "now" in reading.out.read_text()

        wait_for(shown, "an event is shown")
        assert reading.end(signal.SIGINT) == 130
        assert reading.err.read_text() == ""


def test_a_closed_output_pipe_is_no_error(served: Served) -> None:
    surecast_here("publish", "pipe", *map(str, range(10)), "--url", served.url)
    command = [*COMMAND, "subscribe", "pipe", "--from", "earliest", "--url", served.url]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_env()
    ) as reading:
        assert reading.stdout is not None
        assert reading.stderr is not None
        assert reading.stdout.readline() == "pipe\t1\t\t0\n"
        reading.stdout.close()  # nothing more is published: the command must notice this by itself
        try:
            assert reading.wait(60) == 0
        finally:
            reading.kill()
        assert reading.stderr.read() == ""


def test_errors_have_exit_codes_and_hints(served: Served) -> None:
    no_server = surecast("publish", "a", "x", "--url", "surecast://127.0.0.1:1")
    assert no_server.returncode == 3
    assert "`surecast up` starts a cluster" in no_server.stderr
    here = surecast_here("publish", "a", "x", "--url", "surecast://127.0.0.1:1")
    assert (here.returncode, here.stdout, here.stderr) == (3, "", no_server.stderr)
    assert surecast_here("publish", "a b", "x", "--url", served.url).returncode == 2
    assert surecast_here("publish", "a", "x", "--url", "http://x").returncode == 2
    assert surecast_here("subscribe", "a..b", "--url", served.url).returncode == 2
    assert surecast("subscribe", "a", "--from", "soon", "--url", served.url).returncode == 2
    beyond = surecast("subscribe", "a", "--from", str(10**24), "--url", served.url)
    assert beyond.returncode == 2
    both = surecast("publish", "a", "x", "--lines", "-", "--url", served.url)
    assert both.returncode == 2
    missing = surecast_here("publish", "a", "--lines", "nowhere", "--url", served.url)
    assert (missing.returncode, "cannot read nowhere" in missing.stderr) == (2, True)
    for done in (no_server, both, missing, beyond):
        assert "Traceback" not in done.stderr


def test_start_positions_are_parsed() -> None:
    assert parse_start("earliest") == "earliest"
    assert parse_start("17") == 17
    assert parse_start("2026-01-31T12:00:00Z").tzinfo is not None
    assert parse_start("2026-01-31").tzinfo is not None  # local time


@pytest.mark.parametrize(
    "text",
    [str(10**24), "9" * 5000, "0", "-1", "1.0", "nan", "true", "oldest", "", "0001-01-01",
     "0001-01-01T00:00:00Z", "1969-12-31T00:00:00Z", "9999-12-31", "9999-12-31T23:59:59-10:00"],
)  # fmt: skip
def test_invalid_start_positions_are_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_start(text)


def test_adjacent_ranges_are_joined() -> None:
    done = Done()
    for run in ((1, 3), (3, 5), (9, 10)):
        done.add(run)
    assert (done.count, done.runs) == (5, [(1, 5), (9, 10)])


def test_voids_are_shown_as_ranges() -> None:
    void = Event("s", 9, None, b"", 0, kind="void", count=5, reason="superseded")
    assert as_line(void) == "s\t5-9\t(void)\tsuperseded\n"
    shown = json.loads(as_object(void))
    assert (shown["kind"], shown["range"], shown["reason"]) == ("void", [5, 10], "superseded")
