"""A judge of the session contract of `core.types`, and machines that produce notes for it.

A `Talker` numbers the messages it sends to each peer and notes, in the order of its steps, its
actions and inputs. `judge` reads the notes of all lives of all nodes and does not depend on the
driver. A *life* is one run of a node. Its messages carry the life, the number and the *era*: how
many sessions with that peer had ended before it sent.
"""

from random import Random
from typing import Any

from surecast.core.types import (
    Close,
    Congested,
    Input,
    Message,
    PeerDown,
    PeerUp,
    Received,
    Send,
    Writable,
)

__all__ = ["Hang", "Life", "Numbered", "SendMany", "Talker", "arrived", "judge", "nothing_was_lost"]


class Numbered(Message):
    life: int
    number: int
    era: int
    padding: bytes


class SendMany(Input):
    """Command: send `count` messages of `nbytes` bytes, then close if `then_close`."""

    peer: str
    count: int
    nbytes: int
    then_close: bool = False


class Hang(Input):
    """Command: close the session."""

    peer: str


# (kind, peer, era or life, number); kinds: sent close up down got era congested writable
Note = tuple[str, str, int, int]


class Life:
    """The notes of one life."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.notes: list[Note] = []
        self.over = False  # killed: its messages may be lost without PeerDown


class Talker:
    """Executes commands. At random it also resends on PeerDown, greets on PeerUp, and replies."""

    def __init__(self, life: Life, rng: Random) -> None:
        self.life = life
        self.rng = rng
        self.note = life.notes.append
        self.stubborn = rng.random() < 0.5
        self.greets = rng.random() < 0.5
        self.replies = rng.choice((0.0, 0.05, 0.3))
        self.sent: dict[str, int] = {}
        self.era: dict[str, int] = {}
        self.closing: dict[str, bool] = {}
        self.resends = 0

    def step(self, now_ns: int, inp: Any) -> list[Any]:
        out: list[Any] = []
        kind = type(inp)
        if kind is SendMany:
            out += [self._send(inp.peer, inp.nbytes) for _ in range(inp.count)]
            if inp.then_close:
                self._close(inp.peer, out)
        elif kind is Hang:
            self._close(inp.peer, out)
        elif kind is Received:
            message = inp.message
            self.note(("got", inp.peer, message.life, message.number))
            self.note(("era", inp.peer, message.era, message.number))
            if self.rng.random() < self.replies:
                out.append(self._send(inp.peer, 20))
        elif kind is PeerUp:
            self.note(("up", inp.peer, 0, 0))
            if self.greets:
                out.append(self._send(inp.peer, 20))
        elif kind is PeerDown:
            self.note(("down", inp.peer, 0, 0))
            self.era[inp.peer] = self.era.get(inp.peer, 0) + 1
            self.closing[inp.peer] = False
            if self.stubborn and self.resends < 200:
                self.resends += 1
                out.append(self._send(inp.peer, 20))
        elif kind is Congested:
            self.note(("congested", inp.peer, 0, 0))
        elif kind is Writable:
            self.note(("writable", inp.peer, 0, 0))
        return out

    def _send(self, peer: str, nbytes: int) -> Send:
        number = self.sent[peer] = self.sent.get(peer, 0) + 1
        # Messages sent after a Close belong to the next session.
        era = self.era.get(peer, 0) + self.closing.get(peer, False)
        self.note(("sent", peer, era, number))
        return Send(peer, Numbered(self.life.number, number, era, bytes(nbytes)))

    def _close(self, peer: str, out: list[Any]) -> None:
        self.closing[peer] = True
        self.note(("close", peer, 0, 0))
        out.append(Close(peer))


# ---------------------------------------------------------------- the judge


def judge(lives: list[Life]) -> int:
    """Assert the guarantees of sessions. Returns the number of messages received."""
    count = 0
    for life in lives:
        for peer in dict.fromkeys(note[1] for note in life.notes):
            notes = [note for note in life.notes if note[1] == peer]
            count += _judge_inputs(f"{life.name}.{life.number} of {peer}", notes)
    received = arrived(lives)
    for life in lives:
        if not life.over:
            for peer, number in _unanswered(life):
                assert (life.name, life.number, peer, number) in received, (
                    f"{life.name}.{life.number} sent {number} to {peer}: neither that nor PeerDown"
                )
    return count


def _judge_inputs(label: str, notes: list[Note]) -> int:
    """Check the inputs that one life received about one peer."""
    up = congested = False
    first = True  # the next message is the first of its session
    last, era, count = (0, 0), 0, 0
    for kind, _, one, number in notes:
        if kind == "up":
            assert not up, f"{label}: PeerUp twice"
            up = first = True
        elif kind == "down":
            up = congested = False
        elif kind == "congested":
            assert not congested, f"{label}: Congested twice"
            congested = True
        elif kind == "writable":
            assert congested, f"{label}: Writable, but never Congested"
            congested = False
        elif kind == "got":
            assert up, f"{label}: message {one}.{number} outside a session"
            assert (one, number) > last, f"{label}: {one}.{number} came after {last}"
            if not first:
                assert (one, number - 1) == last, f"{label}: {one}.{number} follows {last}"
            last = (one, number)
            count += 1
        elif kind == "era":
            assert first or one == era, f"{label}: {number} was sent in session {one}, not {era}"
            first, era = False, one
    return count


def _unanswered(life: Life) -> list[tuple[str, int]]:
    """The messages that a life sent and for which it got no PeerDown."""
    waiting: dict[str, list[int]] = {}
    for kind, peer, _, number in life.notes:
        if kind == "sent":
            waiting.setdefault(peer, []).append(number)
        elif kind == "down":
            waiting[peer] = []
    return [(peer, number) for peer, numbers in waiting.items() for number in numbers]


def arrived(lives: list[Life]) -> set[tuple[str, int, str, int]]:
    """(sender, its life, receiver, number) of all received messages."""
    return {
        (peer, sender_life, life.name, number)
        for life in lives
        for kind, peer, sender_life, number in life.notes
        if kind == "got"
    }


def nothing_was_lost(lives: list[Life]) -> bool:
    received = arrived(lives)
    return all(
        (life.name, life.number, peer, number) in received
        for life in lives
        for kind, peer, _, number in life.notes
        if kind == "sent"
    )
