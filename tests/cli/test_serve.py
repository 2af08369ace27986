"""`surecast serve` as a real process: its answers, its end, its errors at startup."""

import asyncio
import json
import os
import signal
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_ports
from tests.server.processes import (
    Process,
    Served,
    ask,
    config_text,
    get,
    surecast,
    surecast_here,
    wait_for,
)

import surecast as api


@pytest.mark.slow
def test_a_node_answers_and_ends_orderly_on_sigterm(tmp_path: Path) -> None:
    with Served(tmp_path, durable=True) as served:
        assert get(f"http://{served.http}/healthz")[0] == 200
        assert ask(f"http://{served.http}/v1/streams/a.b/events", b"x")[0] == 200
        _, found = get(f"http://{served.http}/v1/streams")
        assert [stream["name"] for stream in found["streams"]] == ["a.b"]
        assert (
            'surecast_stream_committed{owner="east",stream="a.b"} 2'
            in (get(f"http://{served.http}/metrics")[1])
        )
        wait_for(lambda: "east-1: ready" in served.said(), "it says when it is ready")
        assert served.end() == 0
        assert "east-1: stopped" in served.said()
        assert "Traceback" not in served.said()


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_by_sigterm_under_load(tmp_path: Path) -> None:
    async def load(url: str, acked: dict[int, bytes], enough: asyncio.Event) -> None:
        async with api.connect(url) as client:
            stream = await client.stream("s")
            number = 0
            while True:
                values = [b"%d" % (number + i) for i in range(100)]
                seqs = await stream.publish_many(values)
                acked.update(zip(seqs, values, strict=True))
                number += 100
                if number >= 5000:
                    enough.set()

    async def main() -> None:
        acked: dict[int, bytes] = {}
        enough = asyncio.Event()
        task = asyncio.create_task(load(served.url, acked, enough))
        await asyncio.wait_for(enough.wait(), 60)
        assert await asyncio.to_thread(served.end) == 0  # while the load goes on
        await asyncio.to_thread(served.start)
        count = len(acked)
        while len(acked) < count + 1000:  # the publisher continues without intervention
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        found: dict[int, bytes] = {}
        async with api.connect(served.url) as client:
            async for event in client.subscribe("s", start="earliest"):
                found[event.seq] = event.value
                if event.seq >= max(acked):
                    break
        assert {seq: found[seq] for seq in acked} == acked
        assert list(found.values()) == [b"%d" % i for i in range(len(found))]  # each once, in order

    with Served(tmp_path, durable=True) as served:
        asyncio.run(main())


@pytest.mark.slow
def test_a_second_signal_ends_a_draining_server_at_once(tmp_path: Path) -> None:
    # A session that never sends Bye keeps the drain waiting, long enough for the second signal.
    more = '[runtime]\ndrain_timeout_ns = "60s"\n'
    with Served(tmp_path, more=more) as served, half_open(served.url):
        served.popen.send_signal(signal.SIGTERM)
        wait_for(lambda: "draining" in served.said(), "the drain begins")
        assert served.end(signal.SIGTERM) == 128 + signal.SIGTERM


def half_open(url: str) -> socket.socket:
    """A peer that sends Hello and one heartbeat, then nothing."""
    from surecast.runtime import hello

    host, _, port = url.removeprefix("surecast://").partition(":")
    peer = socket.create_connection((host, int(port)))
    peer.sendall(hello.encode(hello.Hello(hello.VERSION, "mute", "", b"12345678", 1)))
    assert peer.recv(1 << 16)  # its Hello
    peer.sendall(hello.BEAT)
    return peer


@pytest.mark.slow
def test_a_port_in_use_is_exit_code_2(tmp_path: Path) -> None:
    with Served(tmp_path / "one") as served:
        again = surecast("serve", str(served.config))
        assert again.returncode == 2
        assert "east-1 cannot start: cannot listen on 127.0.0.1:" in again.stderr
        assert "Traceback" not in again.stderr
        checked = surecast_here("serve", str(served.config), "--check-config")
        assert checked.returncode == 2  # a node without a data folder cannot be recognised
        assert "PROBLEM: node.http: cannot listen on" in checked.stdout
        assert "it may be this node, if that is running" in checked.stdout


@pytest.mark.slow
def test_check_config_recognises_the_running_node(tmp_path: Path) -> None:
    with Served(tmp_path, durable=True) as served:
        checked = surecast_here("serve", str(served.config), "--check-config")
        assert checked.returncode == 0, checked.stdout
        by = f"in use by process {served.popen.pid}, which is a server on this data folder"
        assert f"WARNING: node.data_dir, node.listen, node.http: {by}" in checked.stdout
        as_json = surecast_here("serve", str(served.config), "--check-config", "--json")
        found: dict[str, Any] = json.loads(as_json.stdout)
        assert (found["ok"], found["problems"], len(found["warnings"])) == (True, [], 1)


@pytest.mark.slow
def test_a_data_folder_in_use_or_of_a_later_version_is_refused(tmp_path: Path) -> None:
    port, http = free_ports(2)
    with Served(tmp_path, durable=True) as served:
        ask(f"http://{served.http}/v1/streams/s/events", b"x" * 1000)
        other = tmp_path / "other.toml"
        other.write_text(config_text(port, http, str(tmp_path / "data")))
        second = surecast("serve", str(other))
        assert second.returncode == 1, second.stderr
        assert "east-1 cannot start" in second.stderr
        assert "Traceback" not in second.stderr
        assert served.end() == 0
    journal = max((tmp_path / "data" / "log").glob("journal*"))
    journal.write_bytes(b"SCJ\xf2" + bytes(100))
    third = surecast("serve", str(served.config))
    assert third.returncode == 1, third.stderr
    assert str(journal.name) in third.stderr
    assert "Traceback" not in third.stderr


@pytest.mark.slow
def test_a_bug_ends_the_server_with_a_message_that_explains_it(tmp_path: Path) -> None:
    port, http = free_ports(2)
    config = tmp_path / "node.toml"
    config.write_text(config_text(port, http))
    broken = tmp_path / "sitecustomize.py"
    broken.write_text(
        "from surecast.protocols.streams.service import StreamService\n"
        "def _on_create_stream(self, peer, message): raise KeyError('a bug')\n"
        "StreamService._on_create_stream = _on_create_stream\n"
    )
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    with Process(tmp_path, ["serve", str(config)], {"PYTHONPATH": path}) as served:
        wait_for(lambda: "ready" in served.said(), "ready")
        with suppress(OSError):  # the server may end before it answers
            code, _ = ask(f"http://127.0.0.1:{http}/v1/streams/s/events", b"x")
            assert code >= 500
        assert served.popen.wait(30) == 1
        said = served.said()
        assert "surecast: east-1 had to stop. KeyError: 'a bug'" in said
        assert "This is a bug of Surecast, at sitecustomize.py:2" in said
        assert "set node.record to a folder and report the recording" in said


@pytest.mark.slow
def test_check_config_explains_the_configuration(tmp_path: Path) -> None:
    port, http = free_ports(2)
    config = tmp_path / "node.toml"
    config.write_text(config_text(port, http, str(tmp_path / "data")))
    checked = surecast_here("serve", str(config), "--check-config")
    assert checked.returncode == 0, checked.stderr
    assert "east-1, replica of region east" in checked.stdout
    assert f"{config} is fine" in checked.stdout
    assert not (tmp_path / "data").exists()  # a check leaves no trace
    as_json = surecast_here("serve", str(config), "--check-config", "--json")
    found: dict[str, Any] = json.loads(as_json.stdout)
    assert found["ok"] is True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("node.htp=1", "[node] unknown key 'htp'; did you mean 'http'?"),
        ("node.listen=0.0.0.0:7400", "set insecure = true"),
        ("node.data_dir=/dev/null/data", "PROBLEM: node.data_dir: /dev/null is not a folder"),
    ],
)
def test_a_wrong_configuration_is_exit_code_2(tmp_path: Path, flag: str, words: str) -> None:
    port, http = free_ports(2)
    config = tmp_path / "node.toml"
    config.write_text(config_text(port, http))
    checked = surecast_here("serve", str(config), "--check-config", "--set", flag)
    assert checked.returncode == 2
    assert words in checked.stdout + checked.stderr


@pytest.mark.slow
def test_incomplete_and_malformed_requests_affect_neither_health_nor_log(tmp_path: Path) -> None:
    with Served(tmp_path) as served, ExitStack() as stack:
        host, _, port = served.http.partition(":")

        def send(data: bytes) -> socket.socket:
            sock = stack.enter_context(socket.create_connection((host, int(port)), 60))
            sock.sendall(data)
            return sock

        head = b"POST /v1/streams/s/events HTTP/1.1\r\nHost: x\r\n"
        for _ in range(100):
            send(head)
            send(head + b"Content-Length: 9\r\n\r\nabc")
        assert get(f"http://{served.http}/healthz")[0] == 200
        assert get(f"http://{served.http}/readyz")[0] == 200
        for _ in range(20):
            assert b" 400 " in send(b"\x16\x03\x01\r\n\r\n").recv(1 << 16)
            send(head + b"Content-Length: 9\r\n\r\nabc").close()
        assert ask(f"http://{served.http}/v1/streams/s/events?key=%ff", b"x")[0] == 400
        assert ask(f"http://{served.http}/v1/streams/s/events", b"x")[0] == 200
        assert served.end() == 0
        assert "Traceback" not in served.said()
        assert len(served.said().splitlines()) < 30
