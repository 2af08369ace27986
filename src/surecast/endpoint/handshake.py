"""The handshake with a server whose name is not known yet: HELLO, then a query for the servers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, Final, TypeVar

from surecast.core.types import tag_of
from surecast.core.wire import HEADER_SIZE, Codec, frame_size
from surecast.errors import PeerError, UnknownMessage, WrongToken
from surecast.registry import message_type
from surecast.runtime import hello

__all__ = ["HttpAnswer", "introduction"]

T = TypeVar("T")

QUESTION: Final = "streams/Introduce"
ANSWER: Final = "streams/Introduced"
WRONG_TOKEN: Final = ("wrong token", "wrong credential")  # the latter: servers of version 0.1
FRAMES_MAX: Final = 100  # frames before the answer; bounds the wait if none comes


class HttpAnswer(PeerError):
    """The answer is HTTP: the port is not a data port."""


async def introduction(host: str, port: int, codec: Codec, token: str) -> tuple[Any, str]:
    """The answer of the server at an address about its region (streams/Introduced), and our own
    host.

    Raises WrongToken if it refuses the token, PeerError for any other answer.
    """
    reader, writer = await asyncio.open_connection(host, port)
    try:
        own_host = writer.get_extra_info("sockname")[0]
        name = f"ask-{secrets.token_hex(8)}"
        writer.write(
            hello.encode(
                hello.Hello(
                    hello.VERSION, name, "", secrets.token_bytes(8), 1, role="asker",
                    credential=token,
                )
            )
        )  # fmt: skip
        answer = await _driver_frame(reader)
        if isinstance(answer, hello.Refused):
            if answer.why in WRONG_TOKEN:
                raise WrongToken(answer.why)
            raise PeerError(answer.why)
        if not isinstance(answer, hello.Hello):
            raise PeerError("no HELLO")
        writer.write(hello.BEAT + b"".join(codec.encode(message_type(QUESTION)())))
        return await _answer(reader, codec), own_host
    finally:
        with suppress(OSError):
            writer.write(hello.BYE)
        writer.close()


async def _answer(reader: asyncio.StreamReader, codec: Codec) -> Any:
    for _ in range(FRAMES_MAX):
        frame = await _frame(reader, codec)
        if len(frame) == hello.MARK_SIZE and frame in (hello.BEAT, hello.BYE):
            continue
        try:
            message, _ = codec.decode(frame)
        except UnknownMessage:  # of a protocol that this client does not know
            continue
        if tag_of(type(message)) == ANSWER:
            return message
    raise PeerError("it did not send the servers of the region")


async def _driver_frame(reader: asyncio.StreamReader) -> Any:
    return hello.CODEC.decode(await _frame(reader, hello.CODEC))[0]


async def _frame(reader: asyncio.StreamReader, codec: Codec) -> bytes:
    header = await _or_eof(reader.readexactly(HEADER_SIZE))
    if header.startswith(b"HTTP/"):
        raise HttpAnswer
    size = frame_size(header, codec.limits)
    assert size is not None
    return header + await _or_eof(reader.readexactly(size - HEADER_SIZE))


async def _or_eof(reading: Awaitable[T]) -> T:
    try:
        return await reading
    except asyncio.IncompleteReadError as short:
        if short.partial.startswith(b"HTTP/"):
            raise HttpAnswer from None
        if short.partial:
            raise PeerError("it closed the connection in the middle of a frame") from None
        raise EOFError from None
