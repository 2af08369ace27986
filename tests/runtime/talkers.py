"""The session contract of `core.types` as a judge, and machines that give it something to judge.

A `Talker` numbers what it sends to each peer and writes down, in the order of its steps, all that
it did and was told. `judge` reads the notes of all lives of all nodes and knows nothing of drivers.
A *life* is one run of a node; its messages carry the life, the number and the *era*: how many
sessions with that peer the sender had seen end when it sent.
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

__all__ = ["Hang", "Life", "Say", "Talker", "Tell", "arrived", "judge", "nothing_was_lost"]


class Say(Message):
    life: int
    number: int
    era: int
    padding: bytes


class Tell(Input):
    """Command: send so many messages of so many bytes, then, if so asked, close."""

    peer: str
    count: int
    nbytes: int
    then_close: bool = False


class Hang(Input):
    """Command: close."""

    peer: str


# (what, peer, era or life, number); what: sent close up down got congested writable
Note = tuple[str, str, int, int]


class Life:
    """The notes of one life."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.notes: list[Note] = []
        self.over = False  # killed: what it sent may be lost without a word


class Talker:
    """Does as it is told, and by temper more: resends on PeerDown, greets on PeerUp, replies."""

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
        if kind is Tell:
            out += [self._say(inp.peer, inp.nbytes) for _ in range(inp.count)]
            if inp.then_close:
                self._close(inp.peer, out)
        elif kind is Hang:
            self._close(inp.peer, out)
        elif kind is Received:
            said = inp.message
            self.note(("got", inp.peer, said.life, said.number))
            self.note(("era", inp.peer, said.era, said.number))
            if self.rng.random() < self.replies:
                out.append(self._say(inp.peer, 20))
        elif kind is PeerUp:
            self.note(("up", inp.peer, 0, 0))
            if self.greets:
                out.append(self._say(inp.peer, 20))
        elif kind is PeerDown:
            self.note(("down", inp.peer, 0, 0))
            self.era[inp.peer] = self.era.get(inp.peer, 0) + 1
            self.closing[inp.peer] = False
            if self.stubborn and self.resends < 200:
                self.resends += 1
                out.append(self._say(inp.peer, 20))
        elif kind is Congested:
            self.note(("congested", inp.peer, 0, 0))
        elif kind is Writable:
            self.note(("writable", inp.peer, 0, 0))
        return out

    def _say(self, peer: str, nbytes: int) -> Send:
        number = self.sent[peer] = self.sent.get(peer, 0) + 1
        # What follows a Close is for the session after the one that is being closed.
        era = self.era.get(peer, 0) + self.closing.get(peer, False)
        self.note(("sent", peer, era, number))
        return Send(peer, Say(self.life.number, number, era, bytes(nbytes)))

    def _close(self, peer: str, out: list[Any]) -> None:
        self.closing[peer] = True
        self.note(("close", peer, 0, 0))
        out.append(Close(peer))


# ---------------------------------------------------------------- the judge


def judge(lives: list[Life]) -> int:
    """Assert what a machine may rely on. Returns how many messages came."""
    count = 0
    for life in lives:
        for peer in dict.fromkeys(note[1] for note in life.notes):
            notes = [note for note in life.notes if note[1] == peer]
            count += _judge_inputs(f"{life.name}.{life.number} of {peer}", notes)
    came = arrived(lives)
    for life in lives:
        if not life.over:
            for peer, number in _unanswered(life):
                assert (life.name, life.number, peer, number) in came, (
                    f"{life.name}.{life.number} sent {number} to {peer}: neither that nor PeerDown"
                )
    return count


def _judge_inputs(where: str, notes: list[Note]) -> int:
    """What one life was told about one peer."""
    up = congested = False
    first = True  # the next message is the first of its session
    last, era, count = (0, 0), 0, 0
    for what, _, one, number in notes:
        if what == "up":
            assert not up, f"{where}: PeerUp twice"
            up = first = True
        elif what == "down":
            up = congested = False
        elif what == "congested":
            assert not congested, f"{where}: Congested twice"
            congested = True
        elif what == "writable":
            assert congested, f"{where}: Writable, but never Congested"
            congested = False
        elif what == "got":
            assert up, f"{where}: message {one}.{number} outside a session"
            assert (one, number) > last, f"{where}: {one}.{number} came after {last}"
            if not first:
                assert (one, number - 1) == last, f"{where}: {one}.{number} follows {last}"
            last = (one, number)
            count += 1
        elif what == "era":
            assert first or one == era, f"{where}: {number} was sent in session {one}, not {era}"
            first, era = False, one
    return count


def _unanswered(life: Life) -> list[tuple[str, int]]:
    """What a life sent and got no PeerDown for."""
    waiting: dict[str, list[int]] = {}
    for what, peer, _, number in life.notes:
        if what == "sent":
            waiting.setdefault(peer, []).append(number)
        elif what == "down":
            waiting[peer] = []
    return [(peer, number) for peer, numbers in waiting.items() for number in numbers]


def arrived(lives: list[Life]) -> set[tuple[str, int, str, int]]:
    """(sender, its life, receiver, number) of all that came."""
    return {
        (peer, one, life.name, number)
        for life in lives
        for what, peer, one, number in life.notes
        if what == "got"
    }


def nothing_was_lost(lives: list[Life]) -> bool:
    came = arrived(lives)
    return all(
        (life.name, life.number, peer, number) in came
        for life in lives
        for what, peer, _, number in life.notes
        if what == "sent"
    )
