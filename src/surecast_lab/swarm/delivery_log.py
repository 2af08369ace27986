"""The delivery log: the file in which a reader of a process swarm records its deliveries in order.

Readers write it (`process.py`, `cursor_app.py`, `pattern_reader.py`), and the judge reads it. When
a reader is killed and restarted, it continues at the end of its log. An incomplete batch at the end
of the file counts as not delivered.
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
    """The batches in the file, in order, without an incomplete one at its end."""
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
    """The file of deliveries, and the next position of each stream."""

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
        self.file.write(b"".join(frames))  # one write, so a kill comes before or after it
        self.positions[stream] = batches[-1].hi
