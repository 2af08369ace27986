"""What this version does when it meets files of a later one: a clear error, and nothing is changed.

Over connections: tests/runtime/test_hello.py and test_tcp.py. Recordings: tests/core.
"""

import asyncio
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest

from surecast.client import local
from surecast.errors import StorageError
from surecast.storage import inspect
from surecast.storage.config import StorageConfig
from surecast.storage.folder import Folder
from surecast.storage.journal_file import FORMAT, MarkFile, read_mark
from surecast.storage.records import Record
from surecast.storage.segments import SegmentStore
from tests.golden_files import RELEASES
from tests.ports import free_ports
from tests.server.processes import config_text, surecast, surecast_here

STORED = RELEASES / "0.2.0"
SLOTS = (0, 4096)
SLOT = struct.Struct("<4sIQQQQ")


def slot(data: bytes, at: int, form: int, magic: bytes = b"SCE\xf1") -> bytes:
    """The file `ends` with another format in one slot, its checksum right."""
    _, _, *fields = SLOT.unpack_from(data, at)
    made = SLOT.pack(magic, form, *fields)
    made += struct.pack("<I4x", crc32(made))
    return data[:at] + made + data[at + len(made) :]


def both_marks(data: bytes) -> bytes:
    return slot(slot(data, 0, 1), 4096, 1)


def newer_mark(data: bytes) -> bytes:
    return slot(data, max(SLOTS, key=lambda at: SLOT.unpack_from(data, at)[2]), 1)


def older_mark(data: bytes) -> bytes:
    return slot(data, min(SLOTS, key=lambda at: SLOT.unpack_from(data, at)[2]), 7)


def other_marks(data: bytes) -> bytes:
    return slot(slot(data, 0, 0, b"SCE\xf2"), 4096, 0, b"SCE\xf2")


def manifest(data: bytes) -> bytes:
    """A later magic, which its checksum begins with."""
    return struct.pack("<4sI", b"SCM\xf2", crc32(data[16:], crc32(b"SCM\xf2"))) + data[8:]


def segment(data: bytes) -> bytes:
    head = b"SCS\xf2" + data[4:28]
    return head + struct.pack("<I", crc32(head)) + data[32:]


def journal(data: bytes) -> bytes:
    """Every record has a later magic, which the checksum of its head covers."""
    made = bytearray(data)
    at = 0
    while at < len(data):
        made[at : at + 4] = b"SCJ\xf2"
        made[at + 56 : at + 60] = struct.pack("<I", crc32(made[at : at + 56], NUMBER))
        (size,) = struct.unpack_from("<Q", data, at + 16)
        at += 64 + size + -size % 8
    assert at == len(data)
    return bytes(made)


def record(data: bytes) -> bytes:
    """One more record, of an unknown kind."""
    at = len(data)
    return data + b"".join(Record(99, bytes(16), [b"anything"], 0, 0).encode(NUMBER, at, at))


CHANGES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "format": ("ends", both_marks),
    "format in the newer mark": ("ends", newer_mark),
    "format in the older mark": ("ends", older_mark),
    "mark": ("ends", other_marks),
    "manifest": ("manifest", manifest),
    "segment": ("segment-*", segment),
    "journal": ("journal-*", journal),
    "record": ("journal-*", record),
}
NUMBER = 0  # of the last journal


def changed(folder: Path, change: str) -> dict[str, bytes]:
    """Do it to a copy of a stored folder; what is in it then."""
    global NUMBER
    NUMBER = max(int(path.name[8:]) for path in folder.glob("journal-*"))
    pattern, work = CHANGES[change]
    path = sorted(folder.glob(pattern))[-1]
    path.write_bytes(work(path.read_bytes()))
    return content(folder)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(STORED / "region" / "east-1" / "log", tmp_path / "log")


def test_the_folder_opens_as_it_is(folder: Path) -> None:
    SegmentStore(folder).close()


@pytest.mark.parametrize(
    ("change", "check"),
    [(change, check) for change in CHANGES for check in ("all", "none")
     if (change, check) != ("segment", "none")],
)  # fmt: skip
def test_a_folder_of_a_later_version_is_refused_and_left_as_it_is(
    folder: Path, change: str, check: str
) -> None:
    before = changed(folder, change)
    for _ in range(2):
        with pytest.raises(StorageError, match="later version"):
            SegmentStore(folder, StorageConfig(check=check))  # type: ignore[arg-type]
        assert content(folder) == before
    for look in (inspect.info, inspect.verify):
        with pytest.raises(StorageError, match="later version"):
            look(folder)
    assert content(folder) == before


def test_a_segment_that_was_not_checked_is_refused_when_it_is_read(folder: Path) -> None:
    changed(folder, "segment")
    path = sorted(folder.glob("segment-*"))[-1]
    data = path.read_bytes()
    store = SegmentStore(folder, StorageConfig(check="none"))
    disk = store.disk
    with pytest.raises(StorageError, match="written by a later version"):
        sum(len(disk.read(log, 1, disk.end(log), 1 << 30)) for log in disk.logs())
    store.close()
    assert path.read_bytes() == data


@pytest.mark.parametrize("change", CHANGES)
def test_a_local_region_says_so(tmp_path: Path, change: str) -> None:
    data = shutil.copytree(STORED / "local", tmp_path / "data")
    if CHANGES[change][0] not in ("ends", "journal-*"):
        data = shutil.copytree(STORED / "region" / "east-1", tmp_path / "other")
        shutil.copytree(STORED / "local" / "witness", data / "witness")
    before = changed(data / "log", change)

    async def main() -> None:
        async with local(data):
            pass

    with pytest.raises(StorageError, match="later version"):
        asyncio.run(main())
    assert content(data / "log") == before


def test_commands_say_so(folder: Path) -> None:
    changed(folder, "format")
    for verb in ("info", "verify"):
        done = surecast_here("log", verb, str(folder))
        assert done.returncode == 1
        assert "later version of Surecast: its format is 1, this version reads 0" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_server_does_not_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(STORED / "region" / "east-1" / "log", data / "log")
    before = changed(data / "log", "format")
    config = tmp_path / "node.toml"
    config.write_text(config_text(*free_ports(2), str(data)))
    done = surecast("serve", str(config))
    assert done.returncode == 1
    assert "east-1 cannot start" in done.stderr
    assert "was written by a later version of Surecast" in done.stderr
    assert "Traceback" not in done.stderr
    assert content(data / "log") == before


def test_a_damaged_format_is_damage(folder: Path) -> None:
    """Flipped bits do not keep a folder from being opened."""
    path = folder / "ends"
    data = bytearray(path.read_bytes())
    for at in SLOTS:
        data[at + 4] ^= 1
    path.write_bytes(data)
    store = SegmentStore(folder)
    assert any("no checksum in it matches" in line for line in store.damage)
    store.close()


def test_the_format_is_written_with_every_mark(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "disk")
    marks = MarkFile(folder, None)
    marks.write(3, 64)
    marks.write(3, 128)
    data = folder.ends.read_bytes()
    assert [SLOT.unpack_from(data, at)[1] for at in SLOTS] == [FORMAT, FORMAT] == [0, 0]
    mark = read_mark(folder.ends)
    assert mark is not None
    assert (mark.journal, mark.size) == (3, 128)
    marks.abandon()
    folder.close()
