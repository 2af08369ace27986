"""What a reader was given, written down as it came: the file is the application.

A reader that is killed and started again goes on where its file ends; an unfinished batch at the
end of the file was never delivered.
"""

from pathlib import Path

from surecast.columns.batch import Batch
from surecast.core.types import LogId
from surecast.core.wire import HEADER_SIZE, decode_batch, encode_batch, frame_size

__all__ = ["DeliveryLog", "delivered_path", "file_name", "read_delivered"]


def file_name(node: str) -> str:
    return node.partition("@")[0].replace("/", ".")


def delivered_path(folder: str, node: str) -> Path:
    return Path(folder) / f"{file_name(node)}.delivered"


def read_delivered(path: Path) -> list[Batch]:
    """The batches in the file, in order; an unfinished one at its end is not there."""
    data = memoryview(path.read_bytes() if path.exists() else b"")
    found = []
    while len(data) >= HEADER_SIZE:
        size = frame_size(data)
        if size is None or size > len(data):
            break
        found.append(decode_batch(data)[0])
        data = data[size:]
    return found


class DeliveryLog:
    """The file of what was delivered, and how far each stream has come in it."""

    def __init__(self, path: Path) -> None:
        self.positions: dict[LogId, int] = {}
        kept = 0
        for batch in read_delivered(path):
            self.positions[batch.stream_id] = batch.hi
            kept += batch.nbytes
        self.file = path.open("ab", buffering=0)
        self.file.truncate(kept)

    def take(self, stream: LogId, batches: tuple[Batch, ...]) -> None:
        frames = [part for batch in batches for part in encode_batch(batch)]
        self.file.write(b"".join(frames))  # in one piece: a kill comes before it or after it
        self.positions[stream] = batches[-1].hi
