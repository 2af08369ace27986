"""Surecast: every event to everyone who should have it, in order, through loss and crashes.

    async with surecast.connect("surecast://127.0.0.1:7400") as client:
        stream = await client.stream("cache.invalidate", retain=surecast.latest_per_key())
        seq = await stream.publish(b"", key=b"user:42")
        async for event in stream.subscribe(start="earliest"):
            print(event.seq, event.key)

`surecast.local()` needs no server, `surecast.sync` no event loop; docs/client.md is the guide.
Importing this package is cheap on purpose: names are loaded when they are first used, and neither
numba nor pyarrow before they are needed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from surecast.errors import (
    Closed,
    ConfigError,
    ConnectError,
    EventsLost,
    Fenced,
    NotSupported,
    OwnerUnreachable,
    PeerError,
    PublishError,
    QueueFull,
    StorageError,
    StreamConfigMismatch,
    SurecastError,
    UsageError,
)

if TYPE_CHECKING:
    import surecast.sync as sync
    from surecast.client import connect, local
    from surecast.client.connection import Client
    from surecast.client.events import Event, Seqs
    from surecast.client.rules import (
        before_seq,
        before_time,
        keep_all,
        keep_for,
        keep_last,
        key_is,
        key_prefix,
        latest_per_key,
        tag_is,
    )
    from surecast.client.stream import Stream
    from surecast.client.subscription import Subscription
    from surecast.endpoint.options import ClientOptions

__version__ = "0.1.0"

__all__ = [
    "Client",
    "ClientOptions",
    "Closed",
    "ConfigError",
    "ConnectError",
    "Event",
    "EventsLost",
    "Fenced",
    "NotSupported",
    "OwnerUnreachable",
    "PeerError",
    "PublishError",
    "QueueFull",
    "Seqs",
    "StorageError",
    "Stream",
    "StreamConfigMismatch",
    "Subscription",
    "SurecastError",
    "UsageError",
    "__version__",
    "before_seq",
    "before_time",
    "connect",
    "keep_all",
    "keep_for",
    "keep_last",
    "key_is",
    "key_prefix",
    "latest_per_key",
    "local",
    "sync",
    "tag_is",
]

# Where each name that is loaded late is found.
_LATE = {
    "Client": "client.connection",
    "ClientOptions": "endpoint.options",
    "Event": "client.events",
    "Seqs": "client.events",
    "Stream": "client.stream",
    "Subscription": "client.subscription",
    "before_seq": "client.rules",
    "before_time": "client.rules",
    "connect": "client",
    "keep_all": "client.rules",
    "keep_for": "client.rules",
    "keep_last": "client.rules",
    "key_is": "client.rules",
    "key_prefix": "client.rules",
    "latest_per_key": "client.rules",
    "local": "client",
    "tag_is": "client.rules",
}


def __getattr__(name: str) -> Any:
    if name == "sync":
        return import_module("." + name, __name__)
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module("." + _LATE[name], __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
