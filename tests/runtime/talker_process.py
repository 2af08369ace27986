"""A talker in a separate process: `python -m tests.runtime.talker_process NAME LIFE PORT NOTES`.

It prints its port, then executes the JSON commands on its standard input. Each note is written to
the file NOTES before the step it describes has any effect, so that a kill loses none.
"""

import asyncio
import json
import os
import sys
from random import Random
from typing import Any

import uvloop
from tests.runtime.talkers import Hang, Life, Note, Numbered, SendMany, Talker

from surecast.core.types import MS
from surecast.core.wire import Codec
from surecast.runtime import AddressBook, Node, RuntimeLimits

__all__ = ["LIMITS", "read_notes"]

LIMITS = RuntimeLimits(
    connect_timeout_ns=300 * MS,
    handshake_timeout_ns=400 * MS,
    session_timeout_ns=400 * MS,
    reconnect_ns=5 * MS,
    high_water_bytes=200_000,
    queue_bytes_max=8 << 20,
)


class Notes(list[Note]):
    def __init__(self, file: int) -> None:
        super().__init__()
        self.file = file

    def append(self, note: Note) -> None:
        os.write(self.file, b"%s %s %d %d\n" % (note[0].encode(), note[1].encode(), *note[2:]))


def read_notes(path: Any) -> list[Note]:
    notes: list[Note] = []
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):  # otherwise it is incomplete
            kind, peer, era, number = line.split()
            notes.append((kind, peer, int(era), int(number)))
    return notes


async def main(name: str, number: int, port: int, path: str) -> None:
    life = Life(name, number)
    life.notes = Notes(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    book = AddressBook()
    node = Node(
        name,
        lambda ctx: Talker(life, Random(f"{name}/{number}")),
        book=book,
        codec=Codec([Numbered]),
        listen=("127.0.0.1", port),
        limits=LIMITS,
    )
    await node.start()
    assert node.address is not None
    print(node.address[1], flush=True)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        match json.loads(line):
            case ["book", entries]:
                for peer, address in entries.items():
                    book.set(peer, tuple(address))
            case ["tell", *args]:
                node.give(SendMany(*args))
            case ["hang", peer]:
                node.give(Hang(peer))


if __name__ == "__main__":
    arguments = sys.argv[1:]
    uvloop.run(main(arguments[0], int(arguments[1]), int(arguments[2]), arguments[3]))
