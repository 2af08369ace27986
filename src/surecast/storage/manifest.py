"""The manifest: what a store holds apart from its journal, in one small file, replaced as a whole.

It describes the state at one place in the order of effects: the beginning of journal `journal`.
Opening a store reads the manifest and replays that journal and those after it.

    16 bytes    magic, CRC-32 of the magic and the body, length of the body
    body        MessagePack of `Manifest`

A log's pieces are its extents and its holes (positions that cannot be read), by their positions.
"""

import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

from surecast.core.types import LogId
from surecast.errors import StorageError
from surecast.storage.folder import Damaged, Folder, is_later, write_all
from surecast.storage.modes import open_file

__all__ = ["Extents", "Holes", "Manifest", "UncertainError", "read_manifest", "write_manifest"]

_HEAD: Final = struct.Struct("<4sIQ")
_MAGIC: Final = b"SCM\xf1"

# segment, run in it, lo, hi, nbytes, time_max
Extents = list[tuple[int, int, int, int, int, int]]
# lo, hi, why it cannot be read
Holes = list[tuple[int, int, str]]


class Manifest(msgspec.Struct, array_like=True):
    journal: int = 1  # the first to be replayed
    incarnation: int = 0
    segment_next: int = 1  # the number of the next segment; none is used twice
    logs: dict[LogId, Extents] = {}
    states: list[tuple[str, bytes]] = []
    holes: dict[LogId, Holes] = {}
    scopes: dict[LogId, int] = {}  # the layers that logs belong to (`core.compose`), if known


_decoder: Final = msgspec.msgpack.Decoder(Manifest)


def read_manifest(path: Path) -> Manifest:
    """The manifest; an empty one if there is no such file. Raises Damaged if its content is
    invalid, StorageError if it is of a later version or the file cannot be read."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Manifest()
    except OSError as problem:
        raise StorageError(f"cannot read {path}: {problem}") from problem
    body = data[_HEAD.size :]
    if len(data) < _HEAD.size or _HEAD.unpack_from(data)[1:] != (_crc(body), len(body)):
        if is_later(data[:4], _MAGIC):
            raise StorageError(
                f"{path} was written by a later version of Surecast: it starts with {data[:4]!r}"
            )
        raise Damaged(f"{path}: damaged: its checksum does not match")
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as problem:
        raise Damaged(f"{path}: damaged: {problem}") from problem


def _crc(body: bytes) -> int:
    return crc32(body, crc32(_MAGIC))


def write_manifest(folder: Folder, manifest: Manifest) -> None:
    """Replace the old manifest, or raise OSError.

    If only the last step, the sync of the directory, fails, it is not known which of the two a
    crash would leave: this raises `UncertainError`.
    """
    body = msgspec.msgpack.encode(manifest)
    beside = folder.path / "manifest.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    file = open_file(beside, flags, folder.file_mode)
    try:
        _, problem = write_all(file, [_HEAD.pack(_MAGIC, _crc(body), len(body)), body])
        if problem is not None:
            raise problem
        os.fsync(file)
        os.rename(beside, folder.manifest)
    except OSError:
        with suppress(OSError):
            os.unlink(beside)
        raise
    finally:
        os.close(file)
    try:
        folder.sync()
    except OSError as error:
        raise UncertainError(error.errno, str(error)) from error


class UncertainError(OSError):
    """It is not known whether a crash would leave the old manifest or the new one."""
