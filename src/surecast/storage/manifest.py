"""The manifest: a small file that lists the segments of each log and contains the states.

The manifest describes the content of a store at the moment when the journal number `journal` began.
Opening a store reads the manifest and then replays this journal and all later ones. A new manifest
replaces the old one as a whole.

    16 bytes    magic, CRC-32 of the magic and the body, length of the body
    body        MessagePack of `Manifest`

A log consists of extents (consecutive batches in a segment) and holes (positions that cannot be
read), which together cover its positions.
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

# The extents of a log: number of the segment, index of the run in the segment, lo, hi, nbytes,
# time_max (fields of `extents.Extent`)
Extents = list[tuple[int, int, int, int, int, int]]
# The holes of a log: lo, hi, the reason why these positions cannot be read
Holes = list[tuple[int, int, str]]


class Manifest(msgspec.Struct, array_like=True):
    journal: int = 1  # number of the first journal to replay
    incarnation: int = 0  # number of the node's run that wrote the manifest; 0: none did
    segment_next: int = 1  # the number of the next segment; none is used twice
    logs: dict[LogId, Extents] = {}
    states: list[tuple[str, bytes]] = []  # names and values
    holes: dict[LogId, Holes] = {}
    scopes: dict[LogId, int] = {}  # the layers that logs belong to (`core.compose`), if known


_decoder: Final = msgspec.msgpack.Decoder(Manifest)


def read_manifest(path: Path) -> Manifest:
    """Read the manifest; without a file, return an empty manifest.

    Raises Damaged if the content is invalid, StorageError if it was written by a later version or
    the file cannot be read.
    """
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

    The last step is the sync of the directory. If only this step fails, it is not known whether
    the old or the new manifest would be on disk after a crash: this raises `UncertainError`.
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
