"""Surecast: every event to everyone who should have it, in order, through loss and crashes.

Importing this package is cheap on purpose: it loads neither numba nor pyarrow. What exists today
is the simulator side: `surecast.sim` runs the machines of `surecast.protocols`, `surecast.swarm`
tortures them, `surecast.lab` re-runs the papers' experiments, and the `surecast` command is the
way in. The client and the server are not written yet; docs/STATUS.md says what is.
"""

from surecast.errors import ConfigError, PeerError, StorageError, SurecastError, UsageError

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "PeerError",
    "StorageError",
    "SurecastError",
    "UsageError",
    "__version__",
]
