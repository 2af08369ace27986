"""The manifest: what a store holds apart from its journal, in one small file, replaced as a whole.

It describes the state at one place in the order of effects: the beginning of journal `journal`.
Opening a store is reading the manifest and playing that journal, and those after it, on top.

    16 bytes    magic, CRC-32 of the body, length of the body
    body        MessagePack of `Manifest`
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
from surecast.storage.folder import Folder, write_all
from surecast.storage.modes import open_file

__all__ = ["Extents", "Manifest", "UncertainError", "read_manifest", "write_manifest"]

_HEAD: Final = struct.Struct("<4sIQ")
_MAGIC: Final = b"SCM\xf1"

# segment, run in it, lo, hi, nbytes, time_max
Extents = list[tuple[int, int, int, int, int, int]]


class Manifest(msgspec.Struct, array_like=True):
    journal: int = 1  # the first to be played
    incarnation: int = 0
    segment_next: int = 1  # the number of the next segment; none is used twice
    logs: dict[LogId, Extents] = {}
    states: list[tuple[str, bytes]] = []


_decoder: Final = msgspec.msgpack.Decoder(Manifest)


def read_manifest(path: Path) -> Manifest:
    """An empty one if there is none: the store is new."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Manifest()
    except OSError as problem:
        raise StorageError(f"cannot read {path}: {problem}") from problem
    if data[:4] != _MAGIC:
        raise StorageError(
            f"{path}: not a manifest, or one of a later version: it starts with {data[:4]!r}"
        )
    body = data[_HEAD.size :]
    if len(data) < _HEAD.size or _HEAD.unpack_from(data)[1:] != (crc32(body), len(body)):
        raise StorageError(f"{path}: damaged: its checksum does not match")
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as problem:
        raise StorageError(f"{path}: damaged: {problem}") from problem


def write_manifest(folder: Folder, manifest: Manifest) -> None:
    """Put it in the place of the old one, or raise OSError.

    If only the last step, the sync of the directory, fails, nobody knows which of the two a crash
    would leave: that is an `UncertainError`.
    """
    body = msgspec.msgpack.encode(manifest)
    beside = folder.path / "manifest.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    file = open_file(beside, flags, folder.file_mode)
    try:
        _, problem = write_all(file, [_HEAD.pack(_MAGIC, crc32(body), len(body)), body])
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
    """The old manifest or the new one is there after a crash."""
