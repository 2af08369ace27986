"""Surecast: replicated event streams, delivered to all subscribers in order despite failures.

    async with surecast.connect("surecast://127.0.0.1:7400") as client:
        stream = await client.stream("cache.invalidate", retain=surecast.latest_per_key())
        seq = await stream.publish(b"", key=b"user:42")
        async for event in stream.subscribe(start="earliest"):
            print(event.seq, event.key)

`surecast.local()` starts a region inside the program, without a server. `surecast.sync` is the same
API for programs without an event loop. docs/client.md is the guide. Importing this package is fast,
because each name is loaded when it is first used, and numba and pyarrow only when they are needed.
"""

from __future__ import annotations

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
    StreamDeleted,
    SubscriptionInUse,
    SurecastError,
    TimedOut,
    UnknownSubscription,
    UsageError,
    WrongToken,
)
from surecast.version import __version__

# The same as typing.TYPE_CHECKING. Importing `typing` would take longer than all imports here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import surecast.sync as sync
    from surecast.client import connect, local
    from surecast.client.connection import Client
    from surecast.client.events import Event, Seqs
    from surecast.client.rules import (
        Policy,
        Predicate,
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
    from surecast.client.stream import Stream, StreamInfo
    from surecast.client.subscription import Subscription
    from surecast.endpoint.options import ClientOptions
    from surecast.endpoint.subscriptions import SubscriptionInfo, SubscriptionPosition

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
    "Policy",
    "Predicate",
    "PublishError",
    "QueueFull",
    "Seqs",
    "StorageError",
    "Stream",
    "StreamConfigMismatch",
    "StreamDeleted",
    "StreamInfo",
    "Subscription",
    "SubscriptionInUse",
    "SubscriptionInfo",
    "SubscriptionPosition",
    "SurecastError",
    "TimedOut",
    "UnknownSubscription",
    "UsageError",
    "WrongToken",
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

# The module of each name that is loaded when it is first used.
_LATE = {
    "Client": "client.connection",
    "ClientOptions": "endpoint.options",
    "Event": "client.events",
    "Policy": "client.rules",
    "Predicate": "client.rules",
    "Seqs": "client.events",
    "Stream": "client.stream",
    "StreamInfo": "client.stream",
    "Subscription": "client.subscription",
    "SubscriptionInfo": "endpoint.subscriptions",
    "SubscriptionPosition": "endpoint.subscriptions",
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


if not TYPE_CHECKING:  # otherwise type checkers would accept misspelled names

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        if name == "sync":
            return import_module("." + name, __name__)
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module("." + _LATE[name], __name__), name)
        globals()[name] = value  # so that this function is not called for it again
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
