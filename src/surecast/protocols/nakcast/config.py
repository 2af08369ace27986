"""The configuration of nakcast at a server (`NakcastConfig`) and at a reader (`ReaderConfig`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from surecast.core.config import check
from surecast.core.types import MS, SECOND, Peer

__all__ = ["NakcastConfig", "ReaderConfig"]

# A third of the default of ReaderConfig.idle_ns, after which a reader leaves a silent server: two
# beacons in a row may be lost before that.
IDLE_BEACON_NS_MAX = 1 * SECOND


@dataclass(frozen=True, slots=True)
class NakcastConfig:
    """The server side, at one replica."""

    region: str
    owners: Mapping[str, str] = field(default_factory=dict)  # prefix of stream names → region
    # How many of the newest positions of a stream are sent again on request. A reader that is
    # further behind loses the older ones.
    repair_max: int = 100_000
    beacon_ns: int = 20 * MS  # time between beacons; after it, a lost last batch is noticed
    idle_beacon_ns: int = 1 * SECOND  # the longest time between beacons of an idle stream
    # A larger batch is split. A single event that is larger is sent over the session. If this does
    # not fit into runtime.datagram_bytes_max, a smaller value is used.
    datagram_bytes_max: int = 8 << 10
    answers_max: int = 128  # batches or void ranges in answer to one NAK
    answer_bytes_max: int = 64 << 10  # about how many bytes answer one NAK; a socket buffers them
    # Reads of the log for one stream in one pass (the inputs that a server processes together).
    reads_max: int = 16
    # Readers of all streams at this replica; a reader of two streams counts twice. Further readers
    # get nothing, and raise an alarm.
    followers_max: int = 100_000
    alarm_ns: int = 60 * SECOND  # alarms end this long after the last loss or refused reader

    def validate(self) -> None:
        for key in (
            "repair_max",
            "beacon_ns",
            "answers_max",
            "answer_bytes_max",
            "reads_max",
            "followers_max",
            "alarm_ns",
        ):
            check(self, key, getattr(self, key) > 0, "above 0")
        check(self, "answers_max", self.answers_max <= 256, "at most 256")
        check(self, "answer_bytes_max", self.answer_bytes_max <= 1 << 20, f"at most {1 << 20}")
        check(self, "beacon_ns", self.beacon_ns >= 1 * MS, f"at least {1 * MS}")
        least, most = 512, 60_000  # a header has to fit in, too; a UDP datagram has below 64 KiB
        fits = least <= self.datagram_bytes_max <= most
        check(self, "datagram_bytes_max", fits, f"allowed are {least} to {most} bytes")
        slower = self.beacon_ns <= self.idle_beacon_ns <= IDLE_BEACON_NS_MAX
        wanted = (
            f"beacon_ns ({self.beacon_ns}) to {IDLE_BEACON_NS_MAX}: readers leave a silent server"
        )
        check(self, "idle_beacon_ns", slower, wanted)


@dataclass(frozen=True, slots=True)
class ReaderConfig:
    """The configuration of a reader."""

    servers: tuple[Peer, ...]  # of the region; each of them can serve the reader
    # Most batches of one stream that are held because earlier positions are missing, and most
    # missing ranges in one NAK.
    window: int = 256
    held_bytes_max: int = 8 << 20  # most bytes of these batches
    asks_max: int = 2  # most streams with a NAK that is not answered yet
    nak_ns: int = 20 * MS  # the shortest time without an answer before a NAK is sent again
    nak_ns_max: int = 1 * SECOND  # the longest such time
    idle_ns: int = 3 * SECOND  # if a server is silent for this long, use the next server
    # If a server sends no new events for this long, use the next server, because this one may no
    # longer be a member of its chain, and then gets no new events.
    stale_ns: int = 10 * SECOND

    def validate(self) -> None:
        check(self, "servers", bool(self.servers), "one or more servers")
        for key in ("window", "held_bytes_max", "asks_max", "nak_ns", "idle_ns", "stale_ns"):
            check(self, key, getattr(self, key) > 0, "above 0")
        check(
            self, "nak_ns_max", self.nak_ns_max >= self.nak_ns, f"at least nak_ns ({self.nak_ns})"
        )
