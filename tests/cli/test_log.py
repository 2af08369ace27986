"""`surecast log info` and `surecast log verify` on stores of known content."""

import json
from pathlib import Path

import pytest
from tests.storage.stores import LOG, OTHER, Driver, batch, compact, small
from typer.testing import CliRunner

import surecast
from surecast.cli import log as log_module
from surecast.cli.log import log
from surecast.core.types import Append, SaveState
from surecast.errors import StorageError
from surecast.storage import inspect
from surecast.storage.extents import Extent
from surecast.storage.manifest import read_manifest

SECOND = 1_000_000_000


def call(*args: str, code: int = 0) -> str:
    result = CliRunner().invoke(log, list(args))
    assert result.exit_code == code, result.output
    return result.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with two streams: a long one, partly compacted, and one with two positions."""
    path = tmp_path / "data" / "replica"
    driver = Driver(path, small())
    for n in range(40):
        lo = 1 + 3 * n
        driver.do(Append(LOG, (batch(lo, 3, 100, time_ns=n * SECOND),), n))
        driver.wait(1)
    driver.do(Append(OTHER, (batch(1, 2, log=OTHER),), "o"), SaveState("s", b"state", "s"))
    driver.wait(2)
    driver.do(compact(LOG, 1, 31, "c", [(2, 22)]))
    driver.wait(1)
    driver.settle()
    driver.close()
    return path


def test_info_shows_streams_positions_and_states(folder: Path) -> None:
    text = call("info", str(folder))
    assert f"(not in the directory)  {LOG.hex()}" in text
    assert "positions [1, 121): 100 live, 20 void" in text
    assert "1970-01-01T00:00:39.000+00:00" in text
    assert "positions [1, 3): 2 live, 0 void" in text
    (store,) = json.loads(call("info", "--json", str(folder)))["stores"]
    streams = {stream["log"]: stream for stream in store["streams"]}
    long = streams[LOG.hex()]
    assert (long["end"], long["live"], long["void"]) == (121, 100, 20)
    assert long["segments"] >= 1
    assert long["time_last_ns"] == 39 * SECOND
    assert store["states"] == {"s": 5}
    assert store["lives"] == 1


def test_info_shows_which_stream_of_a_name_is_deleted(tmp_path: Path) -> None:
    with surecast.sync.local(data_dir=tmp_path) as client:
        for _ in range(2):
            stream = client.stream("orders")
            stream.publish_many([b"a", b"b"])
            stream.delete()
        client.stream("orders").publish(b"new")
    lines = call("info", str(tmp_path)).splitlines()
    shown = [line.split()[2:] for line in lines if line.startswith("  orders")]
    assert sorted(shown) == [[], ["(deleted)"], ["(deleted)"]]
    stores = json.loads(call("info", "--json", str(tmp_path)))["stores"]
    assert sum(stream["deleted"] for store in stores for stream in store["streams"]) == 2
    assert call("verify", str(tmp_path)).count("all right") == 2


def test_info_accepts_a_folder_that_contains_stores(folder: Path) -> None:
    assert call("info", str(folder.parent)) == call("info", str(folder))


def test_verify_reports_an_undamaged_store(folder: Path) -> None:
    assert "all right" in call("verify", str(folder))
    found = json.loads(call("verify", "--json", str(folder)))
    assert found["ok"] is True
    (store,) = found["stores"]
    assert store["records"] > 20
    assert store["nbytes"] == sum(
        path.stat().st_size for path in folder.iterdir() if path.name[:3] in ("seg", "jou")
    )


def test_info_and_verify_change_no_file(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    call("info", str(folder))
    call("verify", str(folder))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def records_in_use(folder: Path) -> dict[Path, list[int]]:
    """Segment file → the offsets of its records that a server would read. The manifest may name
    more files: those of an older state, which records of the journal replace. And a compaction may
    have replaced the first records of a file, depending on when the store wrote it."""
    _, replay = inspect._played(folder, "none", lambda done, total: None)
    found: dict[Path, list[int]] = {}
    for piece in replay.disk.pieces(LOG, 1, replay.disk.end(LOG)):
        if isinstance(piece, Extent):
            offsets = [at for at, _ in piece.located(piece.lo, piece.hi)]
            found.setdefault(folder / f"segment-{piece.segment.number:010}", []).extend(offsets)
    return found


def test_each_damaged_record_is_named(folder: Path) -> None:
    path, offsets = max(records_in_use(folder).items(), key=lambda item: len(item[1]))
    data = bytearray(path.read_bytes())
    for at in (offsets[0], offsets[-1]):
        data[at + 8] ^= 1
    path.write_bytes(data)
    text = call("verify", str(folder), code=1)
    assert "2 problems" in text
    for at in (offsets[0], offsets[-1]):
        assert f"{path}: the record at offset {at:,} is damaged" in text
    assert "restores the rest from another replica" in " ".join(text.split())
    found = json.loads(call("verify", "--json", str(folder), code=1))
    assert found["ok"] is False
    assert len(found["stores"][0]["problems"]) == 2


def test_damage_of_journal_and_manifest_is_named(folder: Path) -> None:
    journal = sorted(folder.glob("journal-*"))[-1]
    data = journal.read_bytes()
    journal.write_bytes(b"\xff" + data[1:])
    assert str(journal) in call("verify", str(folder), code=1)
    journal.write_bytes(data + b"torn")
    assert "4 bytes at the end of the journal" in call("verify", str(folder))
    journal.write_bytes(data)
    manifest = folder / "manifest"
    manifest.write_bytes(manifest.read_bytes()[:-1])
    assert "manifest: damaged" in call("verify", str(folder), code=1)


def test_a_missing_segment_is_named(folder: Path) -> None:
    """The segment is named whether the manifest or a journal record refers to it."""
    manifest = read_manifest(folder / "manifest")
    used = {row[0] for rows in manifest.logs.values() for row in rows}
    for path in [folder / f"segment-{number:010}" for number in sorted(used)]:
        data = path.read_bytes()
        path.unlink()
        assert path.name in call("verify", str(folder), code=1)
        path.write_bytes(data)


def test_long_checks_show_a_bar(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log_module, "BAR_AFTER_S", -1.0)
    log_module._verify(folder)
    assert "verify replica" in capsys.readouterr().err


def test_a_folder_without_a_store_is_refused_with_a_hint(tmp_path: Path) -> None:
    for path, words in ((tmp_path, "node.data_dir"), (tmp_path / "none", "is not a directory")):
        result = CliRunner().invoke(log, ["info", str(path)])
        assert isinstance(result.exception, StorageError)
        assert words in str(result.exception)


@pytest.mark.slow
def test_streams_are_shown_by_name(tmp_path: Path) -> None:
    from surecast import sync

    with sync.local(tmp_path) as client:
        client.stream("orders.eu").publish(b"1")
    result = CliRunner().invoke(log, ["info", str(tmp_path)])
    assert "  orders.eu  " in result.stdout, result.output
    found = json.loads(CliRunner().invoke(log, ["info", str(tmp_path), "--json"]).stdout)
    assert "orders.eu" in [row["name"] for store in found["stores"] for row in store["streams"]]
