"""The sizes of messages on a simulated wire."""

from typing import Any

import msgspec
import pytest
from actors import LOG, Load, Ping, batch

from surecast.core.types import Batch, Enclosed, LogId, Message
from surecast.sim.sizes import BASE_BYTES, Sizes


class Part(msgspec.Struct):
    lo: int
    data: bytes


class Full(Message):
    stream: LogId
    batches: tuple[Batch, ...]
    holes: tuple[tuple[int, int], ...] = ()
    part: Part | None = None
    table: dict[str, int] | None = None
    other: Any = None


class Cover(Message):
    first: Enclosed | None
    rest: tuple[Enclosed, ...] = ()


class Unresolved(Message):
    data: "NoSuchType"  # type: ignore[name-defined]  # noqa: F821


class Plain:
    """Not a struct: the sizes of its slots count."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


@pytest.mark.parametrize(
    ("message", "extra"),
    [
        (Ping(1), 0),
        (Full(LOG, ()), 16),
        (Full(LOG, (batch(1, nbytes=100), batch(2, nbytes=50))), 16 + 150),
        (Full(LOG, (), holes=((1, 2), (3, 4))), 16 + 32),
        (Full(LOG, (), part=Part(1, b"12345")), 16 + 8 + 5),
        (Full(LOG, (), table={"a": 1}), 16 + 16),
        (Full(LOG, (), other=batch(1, nbytes=7)), 16 + 7),
        (Cover(Enclosed(Ping(1))), 64),
        (Cover(Enclosed(Load(1, 12345))), 12345),
        (Cover(Enclosed(Full(LOG, (batch(1, nbytes=100),)))), 64 + 16 + 100),
        (Cover(None, (Enclosed(Ping(1)), Enclosed(Ping(2)))), 128),
        (Unresolved(b"123"), 3),
        (Plain(b"1234"), 4),
    ],
    ids=lambda value: str(value)[:40],
)
def test_the_size_of_a_message_is_the_base_plus_its_contents(message: Any, extra: int) -> None:
    sizes = Sizes()
    assert sizes.of(message) == sizes.of(message) == BASE_BYTES + extra


def test_a_message_may_define_its_own_size() -> None:
    assert Sizes().of(Load(1, 12345)) == 12345


def test_each_type_gets_one_sizer() -> None:
    sizes = Sizes()
    for message in (Ping(1), Full(LOG, ()), Ping(2), Load(1, 5)):
        sizes.of(message)
    assert list(sizes.sizers) == [Ping, Full, Load]
