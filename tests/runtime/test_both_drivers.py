"""The promises of `core.types` about sessions, tested with the simulator and with sockets."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.runtime.stage import Ping, SimStage, Stage, numbers, play

from surecast.core.types import Close, PeerDown, PeerUp, Received, Send

drivers = pytest.mark.parametrize(
    ("loop", "make"),
    [("asyncio", SimStage), ("asyncio", Stage), ("uvloop", Stage)],
    ids=["simulator", "asyncio", "uvloop"],
)


def on_both_drivers(scenario: Callable[[Any], Any]) -> Any:
    """A test that runs a coroutine with a stage that has nodes a and b, on each driver."""

    @drivers
    def test(loop: str, make: Any) -> None:
        async def run() -> None:
            async with make() as stage:
                await stage.add("a")
                await stage.add("b")
                await scenario(stage)

        play(loop, run)

    return test


async def _opens(stage: Any) -> None:
    stage.do("a", Send("b", Ping(1)), Send("b", Ping(2)))
    await stage.until(lambda: len(stage.machine("b").seen) == 4)
    assert [inp for _, inp in stage.machine("a").seen[1:]] == [PeerUp("b")]
    assert [inp for _, inp in stage.machine("b").seen[1:]] == [
        PeerUp("a"),
        Received("a", Ping(1)),
        Received("a", Ping(2)),
    ]


test_both_ends_get_peer_up_before_messages = on_both_drivers(_opens)


async def _crosses(stage: Any) -> None:
    stage.do("a", Send("b", Ping(1)))
    stage.do("b", Send("a", Ping(2)), Send("a", Ping(3)))
    a, b = stage.machine("a"), stage.machine("b")
    await stage.until(lambda: numbers(a) == [2, 3] and numbers(b) == [1])
    stage.do("a", Send("b", Ping(4)))
    await stage.until(lambda: numbers(b) == [1, 4])
    assert stage.kinds("a") == ["Start", "PeerUp", "Received", "Received"]
    assert stage.kinds("b") == ["Start", "PeerUp", "Received", "Received"]


test_peers_that_open_at_once_share_one_session = on_both_drivers(_crosses)


async def _refuses(stage: Any) -> None:
    await stage.crash("b")
    stage.do("a", Send("b", Ping(1)), Send("b", Ping(2)))
    await stage.until(lambda: stage.machine("a").of(PeerDown))
    assert stage.kinds("a") == ["Start", "PeerDown"]
    await stage.restart("b")
    stage.do("a", Send("b", Ping(3)))
    await stage.until(lambda: numbers(stage.machine("b")) == [3])
    assert stage.kinds("a") == ["Start", "PeerDown", "PeerUp"]


test_a_crashed_peer_is_reported_once_and_reachable_after_a_restart = on_both_drivers(_refuses)


async def _crashes(stage: Any) -> None:
    stage.do("a", Send("b", Ping(1)))
    await stage.until(lambda: numbers(stage.machine("b")) == [1])
    await stage.crash("b")
    await stage.until(lambda: stage.machine("a").of(PeerDown))
    await stage.restart("b")
    stage.do("b", Send("a", Ping(2)))
    await stage.until(lambda: numbers(stage.machine("a")) == [2])
    assert stage.kinds("a") == ["Start", "PeerUp", "PeerDown", "PeerUp", "Received"]
    assert stage.kinds("b") == ["Start", "PeerUp"]


test_a_crash_is_reported_and_the_restarted_peer_may_connect = on_both_drivers(_crashes)


async def _closes(stage: Any) -> None:
    stage.do("a", Send("b", Ping(0)))
    await stage.until(lambda: numbers(stage.machine("b")) == [0])
    stage.do("a", *(Send("b", Ping(number)) for number in range(1, 500)), Close("b"))
    stage.do("b", *(Send("a", Ping(number)) for number in range(700)))
    both = ("a", "b")
    await stage.until(lambda: all(stage.machine(name).of(PeerDown) for name in both))
    assert numbers(stage.machine("b")) == list(range(500))
    assert numbers(stage.machine("a")) == list(range(700))
    assert stage.kinds("a")[-1] == stage.kinds("b")[-1] == "PeerDown"


test_close_delivers_everything_both_ways_and_both_ends_get_peer_down = on_both_drivers(_closes)


async def _sends_after_close(stage: Any) -> None:
    stage.do("a", Send("b", Ping(1)), Close("b"), Send("b", Ping(2)))
    await stage.until(lambda: numbers(stage.machine("b")) == [1, 2])
    kinds = ["Start", "PeerUp", "Received", "PeerDown", "PeerUp", "Received"]
    assert stage.kinds("b") == kinds
    assert stage.kinds("a") == ["Start", "PeerUp", "PeerDown", "PeerUp"]


test_messages_sent_after_close_go_into_a_new_session = on_both_drivers(_sends_after_close)


async def _both_close(stage: Any) -> None:
    stage.do("a", Send("b", Ping(1)))
    await stage.until(lambda: numbers(stage.machine("b")) == [1])
    stage.do("a", Close("b"))
    stage.do("b", Close("a"))
    await stage.until(lambda: all(stage.machine(name).of(PeerDown) for name in ("a", "b")))
    stage.do("b", Send("a", Ping(2)))
    await stage.until(lambda: numbers(stage.machine("a")) == [2])
    assert stage.kinds("a") == ["Start", "PeerUp", "PeerDown", "PeerUp", "Received"]
    assert stage.kinds("b") == ["Start", "PeerUp", "Received", "PeerDown", "PeerUp"]


test_both_peers_may_close_at_once = on_both_drivers(_both_close)
