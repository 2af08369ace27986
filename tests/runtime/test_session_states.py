"""The state table of sessions: every row used by the runtime is reached by a script.

script_player.py lists the commands. With a delay of 5 ms a connection is made after 10 ms, its
first Hello arrives after 15, the answer after 20, and the next frame after 25.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.runtime.script_player import SessionPlayer
from tests.runtime.stage import Stage, numbers, play, until
from tests.sim.actors import Ping

from surecast.core.sessions import (
    ACCEPTED,
    ATTEMPT,
    CLOSE,
    CLOSED,
    CONNECTED,
    FAILED,
    FIRST_FRAME,
    FULL,
    HELLO,
    LOST,
    NOT_ON_SOCKETS,
    OVERFLOW,
    REFUSED,
    REPLACED,
    SESSION,
    SILENT,
    STOPPED,
    SessionState,
)
from surecast.core.types import Send
from surecast.runtime.session import DOWN, UP, Session
from surecast.runtime.sessions import Sessions

S = SessionState
LIMITS = {"high_water_bytes": 1_000, "queue_bytes_max": 2_000, "queues_bytes_max": 1 << 20}

OPENED = "node a b; send a b 1; run 60"
CALLED = "node a b; send a b 1"  # an attempt has begun
UNANSWERED = "node a b; kill b; send a b 1; run 15; node b; send a b 2; run 1"  # a is paused
OLD_LIFE = "kill a; run 10; node a; mend a b; send a b 2; run 60"  # b has not noticed the end

DRIVEN: dict[tuple[Any, str, Any], str] = {
    (S.PAUSED, ATTEMPT, S.DIALLING): OPENED,
    (S.PAUSED, ACCEPTED, S.ANSWERING): f"{UNANSWERED}; send b a 3; run 100",
    (S.PAUSED, FAILED, S.ENDED): "node a; send a nobody 1; run 10",
    (S.PAUSED, OVERFLOW, S.BREAKING): f"{UNANSWERED}; blob a b 5000; run 1",
    (S.PAUSED, STOPPED, S.ENDED): f"{UNANSWERED}; kill a",
    (S.DIALLING, CONNECTED, S.GREETING): OPENED,
    (S.DIALLING, ACCEPTED, S.ANSWERING): f"{CALLED}; run 8; send b a 2; run 60",
    (S.DIALLING, FAILED, S.ENDED): "node a b; kill b; send a b 1; run 15",
    (S.DIALLING, OVERFLOW, S.BREAKING): f"{CALLED}; run 5; blob a b 5000; run 1",
    (S.DIALLING, STOPPED, S.ENDED): f"{CALLED}; run 5; kill a",
    (S.GREETING, HELLO, S.UP): OPENED,
    (S.GREETING, HELLO, S.CLOSING): f"{CALLED}; close a b; run 60",
    (S.GREETING, ACCEPTED, S.ANSWERING): f"{CALLED}; send b a 2; run 60",
    (S.GREETING, FAILED, S.ENDED): f"{CALLED}; run 11; cut a b; run 1500",
    (S.GREETING, LOST, S.PAUSED): f"{CALLED}; run 11; kill b; run 60",
    (S.GREETING, OVERFLOW, S.BREAKING): f"{CALLED}; run 11; blob a b 5000; run 1",
    (S.GREETING, STOPPED, S.ENDED): f"{CALLED}; run 11; kill a",
    (S.ANSWERING, FIRST_FRAME, S.UP): OPENED,
    (S.ANSWERING, FIRST_FRAME, S.CLOSING): f"{CALLED}; run 16; close b a; run 60",
    (S.ANSWERING, LOST, S.PAUSED): f"{CALLED}; run 16; kill a; run 20",
    (S.ANSWERING, OVERFLOW, S.BREAKING): f"{CALLED}; run 16; blob b a 5000; run 1",
    (S.ANSWERING, STOPPED, S.ENDED): f"{CALLED}; run 16; kill b",
    (S.UP, CLOSE, S.CLOSING): f"{OPENED}; close a b; run 1",
    (S.UP, CLOSED, S.ENDED): f"{OPENED}; close a b; run 60",
    (S.UP, LOST, S.ENDED): f"{OPENED}; kill b; run 60",
    (S.UP, SILENT, S.ENDED): f"{OPENED}; cut a b; run 3000",
    (S.UP, REFUSED, S.ENDED): f"{OPENED}; garble a b; run 60",
    (S.UP, REPLACED, S.ENDED): f"{OPENED}; cut a b; {OLD_LIFE}",
    (S.UP, OVERFLOW, S.BREAKING): f"{OPENED}; stall a b; blob a b 5000; run 1",
    (S.UP, STOPPED, S.ENDED): f"{OPENED}; kill a",
    (S.CLOSING, CLOSED, S.ENDED): f"{OPENED}; close a b; run 60",
    (S.CLOSING, LOST, S.ENDED): f"{OPENED}; close a b; run 1; kill b; run 20",
    (S.CLOSING, SILENT, S.ENDED): f"{OPENED}; cut a b; close a b; run 3000",
    (S.CLOSING, REFUSED, S.ENDED): f"{OPENED}; close b a; garble a b; run 60",
    (S.CLOSING, REPLACED, S.ENDED): f"{OPENED}; cut a b; close b a; {OLD_LIFE}",
    (S.CLOSING, OVERFLOW, S.BREAKING): f"{OPENED}; close a b; blob a b 5000; run 1",
    (S.CLOSING, STOPPED, S.ENDED): f"{OPENED}; close a b; run 1; kill a",
    (S.BREAKING, FULL, S.ENDED): f"{OPENED}; stall a b; blob a b 5000; run 1",
    # Within one pass of the loop: the machine does not know of the overflow yet.
    (S.BREAKING, REPLACED, S.ENDED): f"{OPENED}; overflow a b; down a b; run 1",
    (S.BREAKING, STOPPED, S.ENDED): f"{OPENED}; overflow a b; kill a",
}


class Player(SessionPlayer):
    def do_overflow(self, src: str, dst: str) -> None:
        sessions = self.nodes[src].sessions
        sessions._overflow(sessions.by_peer[dst])

    def do_down(self, src: str, dst: str) -> None:
        """Like the arrival of the peer's next Hello (`Opening._welcome`)."""
        sessions = self.nodes[src].sessions
        sessions.down(sessions.by_peer[dst], REPLACED)


@pytest.fixture
def player(monkeypatch: pytest.MonkeyPatch) -> Iterator[Player]:
    made = Player(monkeypatch, **LIMITS)
    yield made
    made.close()


def test_every_row_has_a_script_or_a_reason() -> None:
    rows = set(SESSION.rows())
    assert set(DRIVEN) | set(NOT_ON_SOCKETS) == rows
    assert not set(DRIVEN) & set(NOT_ON_SOCKETS)
    assert all(len(reason) > 20 for reason in NOT_ON_SOCKETS.values())


def drive(player: Player, commands: str) -> None:
    for command in commands.split("; "):
        player.play(command.split())


@pytest.mark.parametrize("row", DRIVEN, ids=SESSION.label)
def test_each_transition_of_a_session(row: tuple[Any, str, Any], player: Player) -> None:
    drive(player, DRIVEN[row])
    assert player.met[SESSION.label(row)]


def test_a_node_without_validate_checks_nothing() -> None:
    """In production the machine is called directly, and sessions check nothing."""

    async def scenario() -> None:
        async with Stage() as stage:
            plain = await stage.add("a", validate=False)
            assert plain._step == plain.machine.step
            assert plain.sessions.moves is None
            assert (await stage.add("b")).sessions.moves is not None
            stage.do("a", Send("b", Ping(1)))
            await until(lambda: numbers(stage.machine("b")) == [1])
            assert not plain.met

    play("asyncio", scenario)


# ---------------------------------------------------------------- violations are detected


def skips_breaking(self: Sessions, session: Session) -> None:
    """A mutant of `Sessions._overflow`: the session continues as if it had been closed."""
    session.state = DOWN
    self.opening.call_off(session)
    self.moved(session, OVERFLOW)


def test_a_transition_that_is_not_in_the_table_is_detected(
    player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sessions, "_overflow", skips_breaking)
    with pytest.raises(AssertionError, match="no such transition in the table: session: UP, over"):
        drive(player, DRIVEN[S.UP, OVERFLOW, S.BREAKING])


def test_a_stage_raises_a_violated_invariant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage raises violations found in its nodes, although asyncio would swallow them."""

    async def scenario() -> None:
        async with Stage() as stage:
            await stage.add("a")
            await stage.add("b")
            stage.do("a", Send("b", Ping(1)))
            await until(lambda: any(node.failed.done() for node in stage.all))

    def forgets(self: Session) -> None:
        assert self.state is not UP, "an invariant that does not hold"

    monkeypatch.setattr(Session, "validate", forgets)
    with pytest.raises(AssertionError, match="an invariant that does not hold"):
        play("asyncio", scenario)


BROKEN = {
    "up without a connection": ("connection", None),
    "queued bytes are miscounted": ("queued", 7),
    "there was no Close": ("after", [b""]),
    "before the peer has said": ("speaks", None),
}


@pytest.mark.parametrize("words", BROKEN)
def test_each_invariant_of_a_session_is_checked(words: str, player: Player) -> None:
    drive(player, OPENED)
    session = player.nodes["a"].sessions.by_peer["b"]
    session.validate()
    name, value = BROKEN[words]
    kept = getattr(session, name)
    setattr(session, name, value)
    with pytest.raises(AssertionError, match=words):
        session.validate()
    setattr(session, name, kept)
