"""Administration of named subscriptions, with a fake region that gives scripted answers."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from surecast.columns.retention import KeepAll
from surecast.core.endpoint import DeleteCursor, ResetCursor, WhereIs, WhichCursors
from surecast.core.streams import CursorPosition, CursorState, StreamInfo
from surecast.endpoint import subscriptions
from surecast.endpoint.subscriptions import AtTime, Subscriptions
from surecast.errors import PeerError, SubscriptionInUse, UsageError


def info(number: int) -> StreamInfo:
    return StreamInfo(number.to_bytes(16, "big"), f"s.{number}", "east", KeepAll())


class Region:
    """A fake control node: answers questions and records them."""

    def __init__(self, streams: int = 3, **answers: Any) -> None:
        self.questions: list[Any] = []
        self.streams = [info(number) for number in range(streams)]
        self.answers = answers

    async def ask(self, question: Any) -> Any:
        self.questions.append(question)
        if isinstance(question, WhichCursors):
            return self.answers.get("page", self._page)(question)
        if isinstance(question, WhereIs):
            return SimpleNamespace(seq=2, why="")
        return SimpleNamespace(why=self.answers.get("why", ""))

    def _page(self, _question: WhichCursors) -> Any:
        places = tuple(CursorPosition(s.name, s.stream_id, 5, 9, 0) for s in self.streams)
        return SimpleNamespace(
            cursors=(CursorState("sub", False, False, places),), after=("", b""), complete=True
        )

    async def ends(self, _pattern: str) -> list[tuple[StreamInfo, int]]:
        return [(stream, 9) for stream in self.streams]

    @property
    def named(self) -> Subscriptions:
        control: Any = self
        return Subscriptions(control, self.ends)


def test_a_region_that_repeats_a_page_is_an_error() -> None:
    def page(_question: WhichCursors) -> Any:
        return SimpleNamespace(cursors=(), after=("a", b""), complete=False)

    region = Region(page=page)
    with pytest.raises(PeerError, match="repeats a page"):
        asyncio.run(region.named.everything())
    assert len(region.questions) == 2


def test_the_number_of_streams_in_one_reset_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "STREAMS_MAX", 3)
    few, many = Region(3), Region(4)
    assert len(asyncio.run(few.named.reset("sub", "latest", None, False))) == 3
    for streams in (None, [">"]):
        with pytest.raises(UsageError, match="4 streams in one reset; at most 3"):
            asyncio.run(many.named.reset("sub", "latest", streams, False))
    assert not any(isinstance(question, ResetCursor) for question in many.questions)


def test_a_time_is_looked_up_in_every_stream() -> None:
    region = Region(250)
    found = asyncio.run(region.named.reset("sub", AtTime(7), None, False))
    assert found == {stream.name: 2 for stream in region.streams}
    lookups = [question for question in region.questions if isinstance(question, WhereIs)]
    assert lookups == [WhereIs(stream.stream_id, 7) for stream in region.streams]
    [reset] = [question for question in region.questions if isinstance(question, ResetCursor)]
    assert reset.positions == {stream.stream_id: 2 for stream in region.streams}


def test_each_request_has_a_unique_id() -> None:
    region = Region()
    for _ in range(2):
        asyncio.run(region.named.reset("sub", 3, None, True))
        asyncio.run(region.named.delete("sub", True))
    changes = [q.change for q in region.questions if isinstance(q, ResetCursor | DeleteCursor)]
    assert len(set(changes)) == 4
    assert {len(change) for change in changes} == {16}


def test_deleting_a_name_that_is_already_gone_succeeds() -> None:
    asyncio.run(Region(why="unknown-subscription").named.delete("sub", False))
    with pytest.raises(SubscriptionInUse):
        asyncio.run(Region(why="in-use").named.delete("sub", False))
