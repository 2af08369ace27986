"""What every released version wrote is read by this one: tests/fixtures/VERSION.

`python -m tests.release_fixtures` makes the fixtures of a new version; docs/compatibility.md says
what is promised.
"""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import surecast
from surecast.client.connection import Client
from surecast.columns.batch import COLLECTED, EXPIRED, SUPERSEDED
from surecast.core.policies import as_policy
from surecast.core.streams import DIRECTORY
from surecast.core.types import tag_of
from surecast.registry import directory
from surecast.storage import inspect
from tests import release_fixtures
from tests.golden_files import RELEASES, VERSION
from tests.release import public, samples, settings, stored_region
from tests.release.stored_region import LOCAL, NAMED_AT, PLAN, PUBLISHER, Stream

STORED = sorted(path for path in RELEASES.iterdir() if path.is_dir())
every_release = pytest.mark.parametrize("release", STORED, ids=lambda path: path.name)


def stored(path: Path) -> Any:
    return json.loads(path.read_text())


# ---------------------------------------------------------------- they stay as they are


@every_release
def test_no_file_of_a_release_has_changed(release: Path) -> None:
    lines = (release / release_fixtures.SUMS).read_text().splitlines()
    listed = {name: digest for digest, name in (line.split("  ") for line in lines)}
    found = release_fixtures.digests(release)
    assert found == listed, "fixtures of a release are never changed (docs/compatibility.md)"


def test_the_fixtures_of_all_releases_are_there() -> None:
    assert "0.2.0" in [path.name for path in STORED]
    assert VERSION in [path.name for path in STORED]
    parts = {path.name for path in (RELEASES / "0.2.0").iterdir()}
    assert parts == {
        "SHA256SUMS", "frames", "local", "log", "messages", "public", "recording", "recordings",
        "region", "settings", "spark", "storage",
    }  # fmt: skip


@every_release
def test_fixtures_are_small(release: Path) -> None:
    sizes = [path.stat().st_size for path in release.rglob("*") if path.is_file()]
    assert sum(sizes) < release_fixtures.BYTES_MAX


def test_they_are_not_written_over_by_mistake(tmp_path: Path) -> None:
    assert release_fixtures.refusal(tmp_path / "new", overwrite=False) == ""
    assert "never changed" in release_fixtures.refusal(tmp_path, overwrite=False)
    assert release_fixtures.refusal(tmp_path, overwrite=True) == ""


# ---------------------------------------------------------------- the wire


@every_release
def test_messages_of_every_type_are_read(release: Path) -> None:
    view = memoryview((release / "messages" / "frames.bin").read_bytes())
    content = stored(release / "messages" / "content.json")
    codec = samples.codec()
    for before in content:
        message, size = codec.decode(view)
        now = samples.shown(message)
        assert samples.contains(now, before), f"{before}\nis now read as\n{now}"
        view = view[size:]
    assert not view
    if release.name == VERSION:
        # Types that were added since the release get fixtures with the next one.
        now = {tag_of(kind) for kind in samples.all_types()}
        assert {one["type"] for one in content} <= now, "a type of message is gone"


@every_release
def test_batches_of_every_form_are_read(release: Path) -> None:
    content = stored(release / "messages" / "batches.json")
    found = {
        path.stem: samples.shown(batch) for path, batch in release_fixtures.batch_frames(release)
    }
    assert found == content
    assert {one["batch"][4] for one in found.values()} == {0, COLLECTED, EXPIRED, SUPERSEDED}


def test_the_comparison_of_messages_can_fail() -> None:
    (batch,) = [kind for kind in samples.all_types() if tag_of(kind) == "chain/Forward"]
    now = samples.shown(samples.sample(batch))
    assert samples.contains(now, json.loads(json.dumps(now)))
    assert not samples.contains(now, {**now, "type": "chain/Other"})
    fields = now["fields"]
    name, value = next(iter(fields.items()))
    assert samples.contains({**now, "fields": {**fields, "since": 1}}, now)
    assert not samples.contains(now, {**now, "fields": {**fields, "since": 1}})
    for other in (None, [value], f"{value}x", {**fields}):
        assert not samples.contains(now, {**now, "fields": {**fields, name: other}})


# ---------------------------------------------------------------- data folders


def reasons_on_disk(folder: Path, name: str) -> dict[int, int]:
    """By position, the reason of those that are void in the files themselves."""
    logs = directory(inspect.batches(folder, DIRECTORY)).values()
    log = [info.stream_id for info in logs if info.name == name][-1]
    found = {}
    for batch in inspect.batches(folder, log):
        live = {row.seq for row in batch.to_rows()}
        found.update({s: batch.reason for s in range(batch.lo, batch.hi) if s not in live})
    return found


@every_release
@pytest.mark.parametrize(
    "node", ["region/east-1/log", "region/east-2/log", "region/witness/witness", "local/log",
             "local/witness"],
)  # fmt: skip
def test_data_folders_have_no_damage(release: Path, node: str) -> None:
    found = inspect.verify(release / node)
    assert (found.problems, found.torn_bytes) == ([], 0)
    assert found.records > 3


@every_release
@pytest.mark.parametrize("node", ["east-1", "east-2"])
def test_replicas_have_segments_and_void_ranges_of_every_reason(release: Path, node: str) -> None:
    folder = release / "region" / node / "log"
    assert list(folder.glob("segment-*"))
    assert list(folder.glob("journal-*"))
    assert (folder / "manifest").exists()
    names = {"collected": COLLECTED, "expired": EXPIRED, "superseded": SUPERSEDED}
    seen = set()
    for name, plan in PLAN.items():
        planned = void_of(plan)
        for seq, reason in reasons_on_disk(folder, name).items():
            assert names[planned[seq]] == reason
            seen.add(reason)
    assert seen == set(names.values())


def void_of(plan: Stream) -> dict[int, str]:
    return {
        seq: reason
        for reason, ranges in plan.void.items()
        for lo, hi in ranges
        for seq in range(lo, hi)
    }


async def check(client: Client, name: str, plan: Stream) -> None:
    """All that a stream holds, whatever the code that wrote it or reads it thinks of it."""
    stream = await client.stream(name, create=False)
    assert stream.delivery == plan.delivery
    assert stream.retain == as_policy(plan.retain)
    void = void_of(plan)
    last = plan.events + plan.named
    if plan.delivery == "broadcast":
        found = await stored_region.found_in(client, name)
        while found["void"] != void:  # retention takes a moment to look through the log
            assert found["void"].items() <= void.items()
            await asyncio.sleep(0.05)
            found = await stored_region.found_in(client, name)
        live = [seq for seq in range(1, last + 1) if seq not in void]
        assert found["events"] == {
            seq: (
                stored_region.key_of(plan, seq),
                stored_region.value_of(name, seq),
                stored_region.tag_of(plan, seq),
            )
            for seq in live
        }
        assert found["void"] == void
    ends = {info.name: end for info, end in await client.ends()}
    assert ends[name] == max([last, *void]) + 1


@every_release
def test_a_region_goes_on_with_the_data_folders_of_its_servers(
    release: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(release / "region", tmp_path / "region")

    async def main() -> None:
        async with (
            asyncio.timeout(60),
            stored_region.region(folder) as (url, servers),
            surecast.connect(url) as client,
        ):
            while {info.name for info in await client.streams()} != set(PLAN):
                await asyncio.sleep(0.05)  # they have just started
            for name, plan in PLAN.items():
                await check(client, name, plan)
            await check_deleted(client)
            await check_subscriptions(client)
            await check_publishing(client)
            assert all(not server.chain().damage for server in servers)

    asyncio.run(main())


async def check_deleted(client: Client) -> None:
    with pytest.raises(surecast.UsageError, match="has no stream named"):
        await client.stream(stored_region.GONE, create=False)
    again = await client.stream(stored_region.GONE)
    assert await again.publish(b"again") == 1, "the name can be used again"


async def check_subscriptions(client: Client) -> None:
    (found,) = await client.subscriptions()
    assert found.name == "worker"
    assert [(one.stream, one.seq, one.end) for one in found.positions] == [
        ("orders.eu", NAMED_AT, 32)
    ]
    async for event in client.subscribe("orders.>", name="worker", start="earliest"):
        assert event.seq == NAMED_AT
        break


async def check_publishing(client: Client) -> None:
    reborn = await client.stream("reborn")
    line = reborn.named(PUBLISHER, 1)
    assert await line.publish(stored_region.value_of("reborn", 5)) == 5, "it was taken before"
    assert await line.publish(b"6") == 6
    assert await reborn.publish(b"7") == 7
    prices = await client.stream("prices")
    assert await prices.publish(b"new", key=b"k1") == 41
    while 37 not in (found := await stored_region.found_in(client, "prices"))["void"]:
        await asyncio.sleep(0.05)  # retention acts on committed events a moment later
    assert found["void"][37] == "superseded", "by an event of today"


@every_release
def test_a_local_region_goes_on_with_a_data_folder(release: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(release / "local", tmp_path / "data")

    async def main() -> None:
        for _ in range(2):  # what today's code writes into it does no harm
            async with asyncio.timeout(60), surecast.local(folder) as client:
                while {info.name for info in await client.streams()} != set(LOCAL):
                    await asyncio.sleep(0.05)  # it has just started
                for name, plan in LOCAL.items():
                    await check(client, name, plan)
                (reader,) = await client.subscriptions()
                assert [(one.stream, one.seq) for one in reader.positions] == [("log", 9)]

    asyncio.run(main())


# ---------------------------------------------------------------- recordings


@every_release
def test_recordings_of_servers_are_read(release: Path) -> None:
    content = stored(release / "recordings" / "content.json")
    assert content.keys() == {"local-1.1.rec", "local.witness.1.rec"}
    for name, before in content.items():
        assert release_fixtures.recorded(release / "recordings" / name) == before
        assert before["closed"]


# ---------------------------------------------------------------- Spark


@every_release
def test_checkpoints_and_staged_rows_are_read(release: Path) -> None:
    from surecast.pipeline import offsets, staging

    content = stored(release / "spark" / "content.json")
    assert offsets.places_from(content["offset"]) == {"orders": offsets.Place(samples.STREAM, 17)}
    assert staging._key_fields(content["chunk key"].encode()) == ("query", 7, "chunk", "w")
    chunk = staging.chunk_batch(bytes.fromhex(content["chunk"]), samples.STREAM)
    assert [(row.key, row.value) for row in chunk.to_rows()] == [(b"k", b"a"), (None, b"bb")]
    intent = staging._decode(bytes.fromhex(content["intent"]), staging.Intent)
    assert (intent.writer, intent.targets, intent.chunks) == ("w", ("orders",), ((5, 2, 0),))
    assert (intent.after, intent.pages, intent.digest) == (6, (), 77)
    done = staging._decode(bytes.fromhex(content["done"]), staging.Done)
    assert (done.numbers, done.after, done.digest) == ({samples.STREAM: 9}, 6, 77)


# ---------------------------------------------------------------- configuration


@every_release
def test_a_configuration_with_every_key_means_what_it_meant(release: Path) -> None:
    now = settings.loaded(release / "settings" / "node.toml")
    before = stored(release / "settings" / "node.json")
    assert samples.contains(now, before), public.missing(before, now)
    assert before["roles"]["sprinkler"]["mesh"]["fanout"] != 4, "no default is stored"
    assert (before["http"]["requests_max"], before["limits"]["versions"]) == (65, [1])


# ---------------------------------------------------------------- what users and programs see


@every_release
@pytest.mark.parametrize("part", public.PARTS)
def test_nothing_that_users_see_is_gone(release: Path, part: str) -> None:
    before = stored(release / "public" / f"{part}.json")
    assert public.missing(before, json.loads(json.dumps(public.PARTS[part]()))) == []


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ({"a": 1}, {}, "/a is gone"),
        ({"a": {"b": 1}}, {"a": {"b": 2, "c": 3}}, "/a/b: 1 is now 2"),
        (["x", "y"], ["y"], ": x is gone"),
        ([{"a": "str"}], [{"b": "str"}], "/0/a is gone"),
        ({"a": "int"}, {"a": "str"}, "/a: 'int' is now 'str'"),
    ],
)
def test_what_is_gone_is_named(before: Any, now: Any, words: str) -> None:
    assert public.missing(before, now) == [words]
    assert public.missing(before, before) == []


def parameters(text: str) -> Any:
    names: dict[str, Any] = {}
    exec(f"def made({text}): ...", names)
    return public._parameters(names["made"])


@pytest.mark.parametrize(
    ("before", "now", "is_fine"),
    [
        ("a, b=1", "a, b=1, c=2", True),
        ("a, *, b=1", "a, *, b=1, c=None", True),
        ("a", "a=1", True),
        ("", "a=1", True),
        ("a, b=1", "a", False),
        ("a, b=1", "b=1, a=2", False),
        ("a=1", "a", False),
        ("a", "a, b", False),
        ("", "a", False),
        ("a, b=1", "a, *, b=1", False),
    ],
)
def test_parameters_may_only_be_added(before: str, now: str, is_fine: bool) -> None:
    complaints = public.missing({"call": parameters(before)}, {"call": parameters(now)})
    assert (complaints == []) == is_fine, complaints
