"""The fixtures of a release: one of every format, as this version writes it.

    python -m tests.release_fixtures               # for a new version: makes its folder
    python -m tests.release_fixtures --overwrite   # only before the release: makes it anew

They are in tests/fixtures/VERSION; the file SHA256SUMS there lists them. tests/release reads them
with the code of today. Fixtures of a version that was released are never changed
(docs/compatibility.md).
"""

import argparse
import asyncio
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import surecast
from surecast import __version__
from surecast.columns.batch import CONTROL, Batch
from surecast.core.canon import name_of
from surecast.core.record import Closed, Step
from surecast.core.recording import Recording
from surecast.core.wire import decode_batch
from surecast.registry import recorded_types
from tests.golden_files import FIXTURES, write_json
from tests.release import public, samples, settings, stored_region
from tests.storage import test_fixtures

__all__ = ["SUMS", "batch_frames", "digests", "recorded", "refusal"]

SUMS = "SHA256SUMS"
BYTES_MAX = 300_000
GOLDEN = ("tests/core/test_wire_golden.py", "tests/storage/test_golden.py")
RECORDED = "tests/sim/test_golden_recording.py"


def digests(folder: Path) -> dict[str, str]:
    """By file, relative to the folder."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != SUMS]
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def refusal(folder: Path, overwrite: bool) -> str:
    """Why these fixtures are not written; "" if they are."""
    if folder.exists() and not overwrite:
        return (
            f"{folder} is there. Fixtures of a released version are never changed; before the "
            "release, --overwrite makes them anew"
        )
    return ""


def make(folder: Path) -> None:
    """Write all of them. Golden frames that only other programs write stay as they are."""
    root = Path(__file__).parent.parent
    env = {**os.environ, "SURECAST_REWRITE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    tests = [*GOLDEN, RECORDED]
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    subprocess.run(words, cwd=root, env=env, check=True)
    for part in ("log", "messages", "region", "local", "recordings", "settings", "spark", "public"):
        shutil.rmtree(folder / part, ignore_errors=True)
        (folder / part).mkdir(parents=True)
    test_fixtures.make(folder / "log")
    _messages(folder / "messages")
    batches = {path.stem: samples.shown(batch) for path, batch in batch_frames(folder)}
    write_json(folder / "messages" / "batches.json", batches)
    with tempfile.TemporaryDirectory(prefix="surecast-fixtures-") as scratch:
        asyncio.run(_region(Path(scratch), folder / "region"))
        asyncio.run(_local(Path(scratch), folder / "local", folder / "recordings"))
    settings.write(folder / "settings")
    write_json(folder / "spark" / "content.json", spark_texts())
    public.write(folder / "public")


def spark_texts() -> dict[str, Any]:
    """What Spark keeps for us: an offset in a checkpoint, and records in a staging stream."""
    from surecast.pipeline import offsets, staging

    places = {"orders": offsets.Place(samples.STREAM, 17)}
    chunk = Batch.of(samples.STREAM, [b"a", b"bb"], [b"k", None])
    intent = staging.Intent("w", ("orders",), (staging.ChunkRef(5, 2, 0),), 6, (), 77)
    key = staging.chunk_key("query", 7, "w", 3, 0, 1)
    return {
        "offset": offsets.places_to(places),
        "chunk key": key.decode(),
        "chunk": staging.chunk_value(chunk).hex(),
        "intent": msgspec.msgpack.encode(intent).hex(),
        "done": msgspec.msgpack.encode(staging.Done({samples.STREAM: 9}, 6, 77)).hex(),
    }


def batch_frames(folder: Path) -> Iterator[tuple[Path, Batch]]:
    """The golden frames that are a batch each."""
    for path in sorted((folder / "frames").glob("*.bin")):
        data = path.read_bytes()
        if data[5] != CONTROL:
            yield path, decode_batch(data)[0]


def _messages(folder: Path) -> None:
    made = [samples.sample(kind) for kind in samples.all_types()]
    codec = samples.codec()
    frames = b"".join(b"".join(codec.encode(message)) for message in made)
    (folder / "frames.bin").write_bytes(frames)
    write_json(folder / "content.json", [samples.shown(message) for message in made])


async def _region(scratch: Path, folder: Path) -> None:
    async with stored_region.region(scratch) as (url, servers), surecast.connect(url) as client:
        await stored_region.write(client, servers)
    for node in stored_region.NODES:
        _take(scratch / node, folder / node)


async def _local(scratch: Path, folder: Path, recordings: Path) -> None:
    """A region of one, as `surecast.local(data_dir)` has it; both nodes' lives are recorded."""
    async with stored_region.recorded(scratch / "data", scratch / "recorded") as client:
        await stored_region.write_local(client)
    _take(scratch / "data", folder)
    for path in sorted((scratch / "recorded").glob("*.rec")):
        shutil.copy(path, recordings / path.name)
    content = {path.name: recorded(path) for path in sorted(recordings.glob("*.rec"))}
    write_json(recordings / "content.json", content)


def recorded(path: Path) -> dict[str, Any]:
    """What a recording holds, in short: how often each type of input, and of effect."""
    recording = Recording(path.read_bytes(), recorded_types())
    items = list(recording.items())
    steps = [item for item in items if isinstance(item, Step)]
    return {
        "node": recording.header.node,
        "build": recording.header.build,
        "messages": recording.header.messages,
        "inputs": Counter(name_of(type(step.inp)) for step in steps),
        "effects": Counter(label for step in steps for label in step.labels),
        "closed": any(isinstance(item, Closed) for item in items),
        "torn": recording.torn,
    }


def _take(data: Path, folder: Path) -> None:
    shutil.copytree(data, folder, ignore=shutil.ignore_patterns("lock"), dirs_exist_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the fixtures of this version.")
    parser.add_argument("--overwrite", action="store_true", help="only before the release")
    options = parser.parse_args()
    folder = FIXTURES
    if folder.name != __version__:
        sys.exit(f"tests/golden_files.py says {folder.name}, the version is {__version__}")
    if why := refusal(folder, options.overwrite):
        sys.exit(why)
    make(folder)
    sums = digests(folder)
    (folder / SUMS).write_text("".join(f"{sums[name]}  {name}\n" for name in sums))
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {len(sums)} files, {total:,} bytes")
    if total > BYTES_MAX:
        sys.exit(f"more than {BYTES_MAX:,} bytes: make them smaller")


if __name__ == "__main__":
    main()
