"""Measures the time to encode and decode frames and control messages (`surecast/core/wire.py`).

`python bench/wire.py` prints a line per figure. Events have an 8-byte key and a 10-byte value, as
in the papers' workloads. Decoding is measured with the validation of the Arrow body, as when a
batch arrives from outside, and without it, as when a batch is only forwarded. `encode` writes the
header only, because an existing body is not changed; `build_and_encode` starts from Python lists.
Every figure is the best of several rounds, because other load can only slow a round down.
"""

import json
import timeit
from collections.abc import Callable
from functools import partial
from typing import Any

from surecast.columns.batch import Batch
from surecast.core.types import Message
from surecast.core.wire import Codec, decode_batch, encode_batch, frame_size

Figure = dict[str, Any]  # name, value, unit, params

EVENTS = (1, 100, 4000)
ROUNDS = 5
ROUND_S = 0.05  # a round repeats its call until it has taken about this long


class Forward(Message):
    """Like the most frequent messages of replicas and regions: a few numbers and some batches."""

    epoch: int
    log: bytes
    batches: tuple[Batch, ...]
    committed: int


class Ack(Message):
    epoch: int
    log: bytes
    upto: int


def lists_of(events: int) -> tuple[list[bytes], list[bytes]]:
    """The values and keys of `events` events, as lists."""
    keys = [b"%08d" % (i * 7919 % 100_000) for i in range(events)]
    return [b"%010d" % i for i in range(events)], keys


def batch_of(values: list[bytes], keys: list[bytes]) -> Batch:
    batch = Batch.of(bytes(range(16)), values, keys, publisher=bytes(16), pub_no=1)
    return batch.sequenced(1, 1_700_000_000_000_000_000, 1)


def frame_of(values: list[bytes], keys: list[bytes]) -> bytes:
    """What a publisher does: from lists to the bytes of a frame."""
    return b"".join(encode_batch(batch_of(values, keys)))


def columns_of(frame: bytes) -> object:
    """What a replica does: from received bytes to the columns that a compiled kernel takes."""
    batch, _ = decode_batch(frame)
    return batch.keys(), batch.values()


def seconds(call: Callable[[], object]) -> float:
    """Time of one call."""
    timer = timeit.Timer(call)
    once = max(timer.timeit(10) / 10, 1e-9)
    number = max(1, int(ROUND_S / once))
    return min(timer.repeat(ROUNDS, number)) / number


def bench_frames() -> list[Figure]:
    """Frames with a batch: encode, decode, and find the end of the frame in a stream of bytes."""
    warm()
    figures: list[Figure] = []
    for events in EVENTS:
        lists = lists_of(events)
        batch, frame = batch_of(*lists), frame_of(*lists)
        calls: dict[str, Callable[[], object]] = {
            "build_and_encode": partial(frame_of, *lists),
            "encode": partial(encode_batch, batch),
            "decode": partial(decode_batch, frame),
            "decode_to_columns": partial(columns_of, frame),
            "decode_unvalidated": partial(decode_batch, frame, validate=False),
            "frame_size": partial(frame_size, frame),
        }
        params = {"events": events, "frame_bytes": len(frame)}
        for name, call in calls.items():
            figures += figure(f"wire.{name}", seconds(call), params)
    return figures


def bench_controls() -> list[Figure]:
    """Control messages, alone and with batches: encode, join and decode."""
    warm()
    codec = Codec([Forward, Ack])

    def round_trip(message: Message) -> object:
        return codec.decode(b"".join(codec.encode(message)))

    ack = Ack(3, bytes(16), 1_000_000)
    figures = figure("wire.control_round_trip", seconds(partial(round_trip, ack)), {"events": 0})
    for events, count in ((1, 1), (100, 1), (100, 16), (4000, 1)):
        forward = Forward(3, bytes(16), (batch_of(*lists_of(events)),) * count, 1_000_000)
        params = {"events": events * count, "attachments": count}
        figures += figure("wire.control_round_trip", seconds(partial(round_trip, forward)), params)
    return figures


def figure(name: str, spent_s: float, params: dict[str, Any]) -> list[Figure]:
    found = [{"name": name, "value": round(spent_s * 1e6, 3), "unit": "us", "params": params}]
    if params["events"] and name != "wire.frame_size":  # `frame_size` does not read the events
        rate = round(params["events"] / spent_s)
        found.append({"name": name, "value": rate, "unit": "events/s", "params": params})
    return found


def warm() -> None:
    """Call everything once before measuring, because code and compiled kernels are loaded on first
    use."""
    from surecast.columns.kernels import warm as compile_kernels

    compile_kernels()
    decode_batch(b"".join(encode_batch(batch_of(*lists_of(1)))))


def run() -> list[Figure]:
    return bench_frames() + bench_controls()


if __name__ == "__main__":
    for result in run():
        print(json.dumps(result))
