"""The guarantees of nakcast, judged from what publisher and readers can see.

G1 in order, once: a reader delivers the published batches one after another, none twice.
G2 nothing missing: while the publisher lives and messages get through at all, each reader delivers
everything published.

A check takes a `Record`, which only the two applications write, and returns what it found wrong.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from surecast.core.types import Batch, Peer

__all__ = ["Record", "g1_in_order_once", "g2_nothing_missing"]


@dataclass(frozen=True, slots=True)
class Record:
    """What was published, in order, as given to the publisher; and what each reader delivered."""

    published: Sequence[Batch]
    delivered: Mapping[Peer, Sequence[Batch]]


def g1_in_order_once(record: Record) -> list[str]:
    wrong = []
    for reader, batches in record.delivered.items():
        lo = 1
        for number, batch in enumerate(batches):
            if number >= len(record.published):
                wrong.append(f"{reader}: delivered more than was published")
                break
            if _content(batch) != _content(record.published[number]):
                wrong.append(f"{reader}: delivery {number} is not the batch published as such")
            if batch.lo != lo:
                wrong.append(f"{reader}: delivery {number} is at {batch.lo}, due was {lo}")
            lo = batch.hi
    return wrong


def g2_nothing_missing(record: Record) -> list[str]:
    count = len(record.published)
    return [
        f"{reader}: delivered {len(batches)} batches of {count}"
        for reader, batches in record.delivered.items()
        if len(batches) < count
    ]


def _content(batch: Batch) -> tuple[object, ...]:
    """What a batch carries from end to end; its position is added on the way."""
    body = None if batch.body is None else bytes(batch.body)
    return (batch.stream_id, batch.publisher, batch.pub_no, batch.count, body)
