"""The same seed gives byte-identical traces in other processes, whatever their hash seed."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from surecast.sim.trace import Trace
from surecast.swarm import sprinkler

SEED = 8  # small, yet with crashes, cuts, a pause and a failing disk
MESH_SEED = 36  # small, yet with clients that come, go, stall and crash

SCRIPT = """
import hashlib, json, sys
import pyarrow as pa
from surecast.sim.trace import Trace
from surecast.swarm import scenarios
from surecast.swarm.trial import run_seed

trace = Trace()
result = run_seed(scenarios.load(sys.argv[2])(), int(sys.argv[3]), trace=trace)
table = trace.to_table()
sink = pa.BufferOutputStream()
with pa.ipc.new_stream(sink, table.schema) as writer:
    writer.write_table(table)
trace.write_parquet(sys.argv[1])
print(json.dumps({
    "digest": result.trace_digest,
    "rows": len(trace),
    "arrow": hashlib.sha256(sink.getvalue()).hexdigest(),
    "parquet": hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest(),
    "hash": hash("surecast"),
    "result": [result.published, result.acked, result.delivered, result.void, result.inputs],
    "counters": list(result.counters.items()),
    "coverage": list(result.coverage.items()),
    "clients": list(result.clients.items()),
}))
"""


def run_elsewhere(hash_seed: str, path: Path, swarm: str, seed: int) -> dict[str, object]:
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    command = [sys.executable, "-c", SCRIPT, str(path), swarm, str(seed)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("swarm", "seed"), [("sprinkler", SEED), ("sprinkler-mesh", MESH_SEED)])
def test_a_seed_is_the_same_run_in_every_process(tmp_path: Path, swarm: str, seed: int) -> None:
    first = run_elsewhere("1", tmp_path / "one.parquet", swarm, seed)
    second = run_elsewhere("4242", tmp_path / "two.parquet", swarm, seed)
    assert first.pop("hash") != second.pop("hash")  # str and bytes do hash differently
    assert first == second
    assert int(str(first["rows"])) > 10_000
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()


@pytest.mark.slow
def test_another_seed_is_another_run() -> None:
    digests = set()
    for seed in (SEED, 9):
        trace = Trace(keep=False)
        digests.add(sprinkler.run_seed(seed, trace=trace).trace_digest)
    assert len(digests) == 2


def test_the_digest_depends_on_what_happened() -> None:
    """Or equal digests would say nothing."""
    one, two = Trace(), Trace()
    one.fault(5, "east/0", "crash")
    two.fault(6, "east/0", "crash")
    assert one.digest() != two.digest()
    assert one.digest() != hashlib.sha256(b"").hexdigest()
