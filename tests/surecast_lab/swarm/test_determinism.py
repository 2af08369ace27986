"""The same seed gives byte-identical traces in another process with another hash seed.

All swarms are tested: a new protocol needs no test of its own for this.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from surecast.sim.trace import Trace
from surecast_lab.swarm import scenarios, sprinkler
from surecast_lab.swarm.trial import run_seed

# Small seeds that have crashes, cuts, a pause and a failing disk; in a mesh, clients that join,
# leave, stall and crash. Other swarms use SEED.
SEEDS = {"sprinkler": 8, "sprinkler-mesh": 36, "nakcast": 2}
SEED = 1

SCRIPT = """
import json, sys
from pathlib import Path
from tests.surecast_lab.swarm.test_determinism import facts
from surecast_lab.swarm import scenarios

print(json.dumps({name: facts(name, Path(sys.argv[1])) for name in scenarios.names()}))
"""


def facts(swarm: str, folder: Path) -> dict[str, Any]:
    """The results of a run in this process; its trace is written to `folder`."""
    import pyarrow as pa

    trace = Trace()
    result = run_seed(scenarios.load(swarm)(), SEEDS.get(swarm, SEED), trace=trace)
    table = trace.to_table()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    trace.write_parquet(folder / f"{swarm}.parquet")
    return {
        "digest": result.trace_digest,
        "rows": len(trace),
        "arrow": hashlib.sha256(sink.getvalue()).hexdigest(),
        "hash": hash("surecast"),
        "result": [result.published, result.acked, result.delivered, result.void, result.inputs],
        "counters": [list(item) for item in result.counters.items()],
        "coverage": [list(item) for item in result.coverage.items()],
        "clients": [list(item) for item in result.clients.items()],
    }


class Elsewhere:
    """All swarms, run by another process with another hash seed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        env = {**os.environ, "PYTHONHASHSEED": "4242"}
        env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
        command = [sys.executable, "-c", SCRIPT, str(folder)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        self.found: dict[str, dict[str, Any]] = json.loads(done.stdout)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Elsewhere:
    return Elsewhere(tmp_path_factory.mktemp("elsewhere"))


@pytest.mark.slow
@pytest.mark.parametrize("swarm", scenarios.names())
def test_a_seed_gives_the_same_run_in_every_process(
    elsewhere: Elsewhere, tmp_path: Path, swarm: str
) -> None:
    here, there = facts(swarm, tmp_path), elsewhere.found[swarm]
    assert here.pop("hash") != there.pop("hash")  # str and bytes do hash differently
    assert here == there
    assert here["rows"] > 1_000
    written = [folder / f"{swarm}.parquet" for folder in (tmp_path, elsewhere.folder)]
    assert written[0].read_bytes() == written[1].read_bytes()


@pytest.mark.slow
def test_another_seed_is_another_run(elsewhere: Elsewhere) -> None:
    other = sprinkler.run_seed(SEEDS["sprinkler"] + 1, trace=Trace(keep=False))
    assert other.trace_digest != elsewhere.found["sprinkler"]["digest"]


def test_the_digest_depends_on_what_happened() -> None:
    """Otherwise equal digests would prove nothing."""
    one, two = Trace(), Trace()
    one.fault(5, "east/0", "crash")
    two.fault(6, "east/0", "crash")
    assert one.digest() != two.digest()
    assert one.digest() != hashlib.sha256(b"").hexdigest()
