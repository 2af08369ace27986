"""ClientOptions: the bounds and time-outs of a client. The defaults suit most programs."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from surecast.core.config import check
from surecast.core.types import SECOND
from surecast.core.wire import DEFAULT_LIMITS

__all__ = ["ClientOptions"]

DURATION_S_MAX: Final = 1_000_000_000  # 31 years: fits into 64 bits as nanoseconds
# An event must fit into a batch, together with the batch's own metadata.
_EVENT_BYTES_MAX = DEFAULT_LIMITS.batch_bytes_max - 4096


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Bounds of one client. Durations are seconds, or a timedelta.

    surecast.connect(url, options=surecast.ClientOptions(close_timeout=2.5, readers_max=10))
    """

    # Publishing, for each stream.
    # How long the first event of a publish_soon batch waits for others.
    linger: float | timedelta = 0.001
    batch_rows_max: int = 4096  # events in a batch
    # Size of keys and values in a batch; a larger event is a batch by itself.
    batch_bytes_max: int = 512 << 10
    event_bytes_max: int = 8 << 20  # size of the key and value of one event
    # Size of all events that are not acknowledged. Above it, publish waits and publish_soon raises.
    outbox_bytes_max: int = 32 << 20
    # Batches that are sent and not acknowledged; further batches wait in the client.
    outbox_batches_max: int = 64

    # Reading, for each subscription.
    # Size of events that are received and not read yet. Above it, the server stops sending.
    buffer_bytes_max: int = 8 << 20
    turn_rows_max: int = 4096  # events that are read before other tasks of the program may run
    # How long acknowledgements of a named subscription are collected before they are sent.
    ack_every: float | timedelta = 0.05
    readers_max: int = 256  # connections of this client for reading
    streams_max: int = 10_000  # streams that one pattern may match
    read_bytes_max: int = 256 << 20  # size of the table that one read() returns

    # The region.
    connect_timeout: float | timedelta = 3.0  # time for the handshake with one address
    # While no server can be reached, the interval between attempts with the url's addresses.
    rediscover_every: float | timedelta = 2.0
    close_timeout: float | timedelta = 10.0  # how long closing waits for acknowledgements
    # Publishing fails if the stream's owner region is unreachable for this time.
    owner_timeout: float | timedelta = 10.0
    # Allow readers that listen (mesh, some deliveries) beyond this computer, without encryption.
    insecure: bool = False

    def validate(self) -> None:
        for key in ("linger", "ack_every"):
            fits = _is_duration(getattr(self, key))
            check(self, key, fits, "allowed are seconds or a timedelta, 0 or more")
        for key in ("connect_timeout", "rediscover_every", "close_timeout", "owner_timeout"):
            value = getattr(self, key)
            fits = _is_duration(value) and _ns(value) > 0
            check(self, key, fits, "allowed are seconds or a timedelta, above 0")
        for key in (
            "batch_rows_max",
            "batch_bytes_max",
            "event_bytes_max",
            "outbox_bytes_max",
            "outbox_batches_max",
            "buffer_bytes_max",
            "turn_rows_max",
            "readers_max",
            "streams_max",
            "read_bytes_max",
        ):
            number = getattr(self, key)
            check(self, key, type(number) is int and number > 0, "a whole number above 0")
        most = DEFAULT_LIMITS.batch_rows_max
        check(self, "batch_rows_max", self.batch_rows_max <= most, f"at most {most}")
        event, most = self.event_bytes_max, _EVENT_BYTES_MAX
        check(self, "event_bytes_max", 0 < event <= most, f"1 to {most}, or no frame holds it")
        # Half leaves room for what the format adds to each event, which is not counted here.
        batch, most = self.batch_bytes_max, _EVENT_BYTES_MAX // 2
        check(self, "batch_bytes_max", batch <= most, f"at most {most}")
        least = event + batch
        check(
            self,
            "outbox_bytes_max",
            self.outbox_bytes_max >= least,
            f"at least {least}: a batch and the largest event",
        )

    def __post_init__(self) -> None:
        self.validate()

    def event_most(self, overhead: int) -> int:
        """The largest event, if a body has this many bytes beside its rows."""
        return min(self.event_bytes_max, _EVENT_BYTES_MAX - overhead)

    # ------------------------------------------------------------ durations in nanoseconds

    @property
    def linger_ns(self) -> int:
        return _ns(self.linger)

    @property
    def ack_every_ns(self) -> int:
        return _ns(self.ack_every)

    @property
    def connect_timeout_ns(self) -> int:
        return _ns(self.connect_timeout)

    @property
    def rediscover_every_ns(self) -> int:
        return _ns(self.rediscover_every)

    @property
    def close_timeout_ns(self) -> int:
        return _ns(self.close_timeout)

    @property
    def owner_timeout_ns(self) -> int:
        return _ns(self.owner_timeout)


def _is_duration(value: object) -> bool:
    if isinstance(value, timedelta):
        return timedelta(0) <= value <= timedelta(seconds=DURATION_S_MAX)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= DURATION_S_MAX  # False for NaN


def _ns(duration: float | timedelta) -> int:
    if isinstance(duration, timedelta):
        return duration // timedelta(microseconds=1) * 1000
    return round(duration * SECOND)
