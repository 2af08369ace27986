"""Endpoints that could not be opened, and publishes that were sent only in part."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from surecast.columns.batch import Batch
from surecast.endpoint.endpoint import send_all
from surecast.endpoint.prepared import PreparedBatch
from surecast.errors import NotSupported, PublishError
from tests.client.stage import Regions, play, until

PREPARED = PreparedBatch(Batch.of(b"s" * 16, [b"v"]), 17)


def test_a_client_that_cannot_be_opened_leaves_nothing_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> None:
        raise NotSupported("not here")

    async def scenario() -> None:
        async with Regions(east=1) as regions:
            before = asyncio.all_tasks()
            with pytest.raises(NotSupported):
                await regions.client("east").open()
            await until(lambda: asyncio.all_tasks() <= before)

    monkeypatch.setattr("surecast.client.connection.Readers", refuse)
    play(scenario)


class Outbox:
    """A fake outbox: each batch ends with the next of `ends` (positions, an error, or None for
    never). When `ends` is used up, batches are refused."""

    def __init__(self, ends: list[Any]) -> None:
        self.ends = ends

    def publish_batch(self, _batch: Batch, _size: int) -> tuple[Any, Any]:
        loop = asyncio.get_running_loop()
        placed, positions = loop.create_future(), loop.create_future()
        if not self.ends:
            placed.set_exception(PublishError("not sent", maybe_taken=False))
            return SimpleNamespace(positions=positions), placed
        placed.set_result(0)
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            positions.set_exception(end)
        elif end is not None:
            positions.set_result(end)
        return SimpleNamespace(positions=positions), placed


@pytest.mark.parametrize(
    ("ends", "acknowledged", "maybe_taken"),
    [
        ([], (), False),
        ([(1, 2), (2, 3)], ((1, 3),), False),
        ([(1, 2), None], ((1, 2),), True),
        ([PublishError("gone", maybe_taken=True)], (), True),
        ([PublishError("refused", maybe_taken=False)], (), False),
    ],
)
def test_an_error_of_publish_many_says_whether_an_earlier_batch_may_have_been_taken(
    ends: list[Any], acknowledged: tuple[tuple[int, int], ...], maybe_taken: bool
) -> None:
    async def scenario() -> None:
        outbox: Any = Outbox(list(ends))
        with pytest.raises(PublishError) as caught:
            await send_all(outbox, [PREPARED] * (len(ends) + 1))
        assert caught.value.acknowledged == acknowledged
        assert caught.value.maybe_taken is maybe_taken

    play(scenario)
