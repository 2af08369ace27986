"""Digests of what leaves each node in a seed of a swarm. A pure refactoring keeps them equal.

    python -m tests.goldens                    compare 200 seeds of each swarm with what is stored
    python -m tests.goldens --record           store them anew
    python -m tests.goldens --dump sprinkler 7 print what leaves each node in one seed, to compare

A digest covers messages (time, peer, name, fields, in the order of each node), deliveries, and
appends, truncations and repairs of logs; a batch is represented by its header fields and the CRC of
its body. It does not cover the inside of a node: timers, tokens, steps, states. Messages have the
names they had when the digests were first stored; `OLD_NAMES` translates.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from surecast.core.types import Append, Batch, Deliver, Repair, Send, Truncate, tag_of
from surecast.sim.trace import Trace
from surecast_lab.lab.torture import load_swarm

STORED = Path(__file__).parent / "fixtures" / "goldens.json"
SWARMS = ("sprinkler", "sprinkler-mesh")
SEEDS = 200
DIGITS = 16
OLD_NAMES: dict[str, str] = {}  # a message's name → what it was called at first


# How many last fields messages have got since the goldens were recorded. They are left out of the
# digests if they have their default, which is false.
ADDED = {
    "streams/Events": 1, "streams/RangeEvents": 1, "streams/ReadRange": 1, "streams/Subscribe": 1,
}  # fmt: skip


class Outputs(Trace):
    """A trace that keeps a hash of what each node sends, delivers and writes, and nothing else."""

    def __init__(self, lines: bool = False) -> None:
        super().__init__(keep=False)
        self._nodes: dict[str, Any] = {}  # node → hash so far
        self._lines: list[str] | None = [] if lines else None

    def pack(self) -> None:
        for at_ns, node, _, effects in self._steps:
            for effect in effects:
                output = _output(effect)
                if output is not None:
                    hashed = self._nodes.get(node)
                    if hashed is None:
                        hashed = self._nodes[node] = hashlib.sha256()
                    hashed.update(_ENCODER.encode((at_ns, output)))
                    if self._lines is not None:
                        self._lines.append(f"{node} {at_ns} {output!r}")
        self._steps.clear()

    def digest(self) -> str:
        self.pack()
        whole = hashlib.sha256()
        for node in sorted(self._nodes):
            whole.update(node.encode() + b"\0" + self._nodes[node].digest())
        return whole.hexdigest()[:DIGITS]

    def lines(self) -> list[str]:
        """Node by node, each in its own order."""
        self.pack()
        return sorted(self._lines or [], key=lambda line: line.split(" ", 1)[0])


def _output(effect: Any) -> tuple[Any, ...] | None:
    """The part of an effect that is visible outside its node; None if there is none."""
    kind = type(effect)
    if kind is Send:
        message = effect.message
        name = type(message).__name__
        fields = msgspec.structs.astuple(message)
        added = ADDED.get(tag_of(type(message)), 0)
        if added and not any(fields[-added:]):
            fields = fields[:-added]
        return (OLD_NAMES.get(name, name), effect.peer, effect.reliable, fields)
    if kind is Deliver:
        return ("Deliver", effect.stream, effect.batches)
    if kind is Append or kind is Repair:
        return (kind.__name__, effect.log, effect.batches)
    if kind is Truncate:
        return ("Truncate", effect.log, effect.end)
    return None


def _plain(value: Any) -> Any:
    if isinstance(value, Batch):
        return (
            value.kind, value.stream_id, value.schema_id, value.publisher, value.pub_no, value.lo,
            value.count, value.rows, value.time_ns, value.epoch, value.reason, value.body_crc,
            value.nbytes,
        )  # fmt: skip
    raise TypeError(f"{type(value).__name__} has no form")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)


def digest_of(swarm: str, seed: int) -> str:
    """The digest of a seed. Raises AssertionError if the seed violates a guarantee."""
    outputs = Outputs()
    result = load_swarm(swarm)(seed, trace=outputs)
    assert result.ok, f"{swarm} seed {seed}: {result.violations}"
    return outputs.digest()


def stored() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(STORED.read_text())
    return found


def _measure(task: tuple[str, int]) -> tuple[str, int, str]:
    return (*task, digest_of(*task))


def measured(seeds: int) -> Iterator[tuple[str, int, str]]:
    tasks = [(swarm, seed) for swarm in SWARMS for seed in range(seeds)]
    with ProcessPoolExecutor() as pool:
        yield from pool.map(_measure, tasks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help=f"write {STORED.name}")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--dump", nargs=2, metavar=("SWARM", "SEED"))
    args = parser.parse_args()
    if args.dump:
        outputs = Outputs(lines=True)
        load_swarm(args.dump[0])(int(args.dump[1]), trace=outputs)
        print("\n".join(outputs.lines()))
        return 0
    known: dict[str, dict[str, str]] = {swarm: {} for swarm in SWARMS}
    if not args.record:
        known = stored()
    found: dict[str, dict[str, str]] = {swarm: {} for swarm in SWARMS}
    different = 0
    for done, (swarm, seed, digest) in enumerate(measured(args.seeds), 1):
        found[swarm][str(seed)] = digest
        if not args.record and known[swarm].get(str(seed)) != digest:
            different += 1
            print(f"{swarm} seed {seed}: {digest}, stored is {known[swarm].get(str(seed))}")
        if done % 50 == 0:
            print(f"{done} of {args.seeds * len(SWARMS)} seeds", file=sys.stderr, flush=True)
    if args.record:
        STORED.write_text(json.dumps(found, indent=0) + "\n")
    print(f"{args.seeds * len(SWARMS)} seeds, {different} differ from what is stored")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
