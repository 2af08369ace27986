"""`surecast delete` as a shell command."""

import json
from collections.abc import Iterator
from urllib.request import Request, urlopen

import pytest
from tests.server.processes import Served, surecast


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served")) as served:
        yield served


@pytest.mark.slow
def test_a_stream_is_deleted_and_its_name_used_again(served: Served) -> None:
    def call(*args: str) -> tuple[int, str, str]:
        done = surecast(*args, "--url", served.url)
        return done.returncode, done.stdout, done.stderr

    for value in ("a", "b"):
        assert call("publish", "orders", value)[0] == 0
    assert (
        call("subscribe", "orders", "--from", "earliest", "--until", "2", "--name", "app")[0] == 0
    )
    code, _, problem = call("delete", "orders")  # stdin is not a terminal
    assert (code, "--yes" in problem) == (2, True)
    assert call("delete", "orders", "--yes") == (
        0,
        "orders is deleted; its last position was 3\n",
        "",
    )
    code, _, problem = call("delete", "orders", "--yes")
    assert code != 0
    assert "orders" in problem
    assert json.loads(call("streams", "--json")[1]) == []
    (app,) = json.loads(call("subscriptions", "list", "--json")[1])
    assert (app["lag"], app["positions"]) == (0, [])
    assert call("publish", "orders", "new")[0] == 0
    code, text, _ = call("subscribe", "orders", "--from", "earliest", "--until", "latest")
    assert (code, text.splitlines()) == (0, ["orders\t1\t\tnew"])
    assert json.loads(call("delete", "orders", "--yes", "--json")[1]) == {
        "stream": "orders",
        "deleted_at": 2,
    }


@pytest.mark.slow
def test_a_stream_is_deleted_by_http_and_its_name_used_again(served: Served) -> None:
    for round in range(2):
        assert surecast("publish", "s", f"{round}", "--url", served.url).returncode == 0
        with urlopen(Request(f"http://{served.http}/v1/streams/s", method="DELETE")) as answer:
            assert json.load(answer) == {"stream": "s", "seq": 2}
