"""The scope of a log is stored in journals, segments and the manifest; each one is sufficient."""

from collections.abc import Callable

import pytest
from tests.storage.stores import LOG, OTHER, Driver, batch, small

from surecast.core.compose import NO_SCOPE, scope_tag
from surecast.core.types import Append, Stored

CHAIN, ABOVE = scope_tag("chain"), scope_tag("above")

Opened = Callable[..., Driver]


def write(driver: Driver, batches: int) -> None:
    """Append `batches` batches to each of two logs of two layers."""
    for _ in range(batches):
        for log, scope in ((LOG, CHAIN), (OTHER, ABOVE)):
            made = batch(driver.disk.end(log), log=log)
            driver.do(Append(log, (made,), log, scope))
            assert driver.wait(1) == [Stored(log)]
    driver.settle()


def scopes(driver: Driver) -> list[int]:
    return [driver.disk.scope_of(log) for log in (LOG, OTHER)]


def test_a_scope_is_read_from_the_journal(opened: Opened) -> None:
    driver = opened()
    write(driver, 2)
    driver.close()
    again = opened()
    assert not list(again.folder.glob("segment-*"))
    assert scopes(again) == [CHAIN, ABOVE]


def moved(opened: Opened) -> Driver:
    driver = opened(small())
    while not driver.store.moves:
        write(driver, 5)
    write(driver, 1)
    driver.close()
    return driver


def test_a_scope_is_read_from_the_manifest(opened: Opened) -> None:
    driver = moved(opened)
    for journal in sorted(driver.folder.glob("journal-*")):
        journal.write_bytes(b"")
    again = opened(small())
    assert scopes(again) == [CHAIN, ABOVE]


def test_a_scope_is_read_from_segments(opened: Opened) -> None:
    driver = moved(opened)
    for path in [driver.folder / "manifest", *driver.folder.glob("journal-*")]:
        path.unlink()
    again = opened(small())
    assert again.disk.end(LOG) > 1
    assert scopes(again) == [CHAIN, ABOVE]
    again.close()
    assert scopes(opened(small())) == [CHAIN, ABOVE]  # the found scopes are stored


def test_a_log_recovered_from_frames_alone_has_no_scope(opened: Opened) -> None:
    driver = moved(opened)
    for path in [driver.folder / "manifest", *driver.folder.glob("journal-*")]:
        path.unlink()
    for segment in driver.folder.glob("segment-*"):
        data = bytearray(segment.read_bytes())
        data[-1] ^= 1  # the footer: the directory is lost
        segment.write_bytes(data)
    again = opened(small())
    assert again.disk.end(LOG) > 1
    assert scopes(again) == [NO_SCOPE, NO_SCOPE]


@pytest.mark.parametrize("scope", [NO_SCOPE, CHAIN])
def test_a_journal_record_keeps_its_scope(opened: Opened, scope: int) -> None:
    driver = opened()
    driver.do(Append(LOG, (batch(1),), "t", scope))
    assert driver.wait(1) == [Stored("t")]
    driver.close()
    assert opened().disk.scope_of(LOG) == scope
