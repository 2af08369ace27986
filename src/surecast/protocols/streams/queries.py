"""Answers clients' questions about a region: its replicas, its streams, the position of a time.

Any replica answers them immediately, from what is committed there. The questions change nothing.
"""

from collections import Counter
from typing import ClassVar

from surecast.core.machine import HandlerMachine
from surecast.core.names import is_name, is_pattern, matches
from surecast.core.streams import Answer, Handed, StreamAdded, StreamInfo, spec_bytes
from surecast.core.types import LogId, PassDown, Peer, PeerDown
from surecast.protocols.streams.config import StreamsConfig
from surecast.protocols.streams.messages import (
    Introduce,
    Introduced,
    Locate,
    Located,
    StreamsAre,
    UnwatchStreams,
    WatchStreams,
)
from surecast.protocols.streams.service import StreamService

__all__ = ["Queries"]

INFOS_MAX = 1000  # most streams in one message
INFOS_BYTES_MAX = 640 << 10  # most bytes of their schemas and options
WATCHES_MAX = 1000  # most patterns that one client watches


class Queries(HandlerMachine):
    """A layer over the stream service, which it only reads."""

    uses = ("streams",)
    handlers: ClassVar[dict[type, str]] = {
        Introduce: "_on_introduce",
        WatchStreams: "_on_watch_streams",
        UnwatchStreams: "_on_unwatch_streams",
        Locate: "_on_locate",
    }
    inputs: ClassVar[dict[type, str]] = {PeerDown: "_on_peer_down"}
    from_below: ClassVar[dict[type, str]] = {StreamAdded: "_on_added", Answer: "_on_answer"}

    def __init__(
        self, config: StreamsConfig, service: StreamService, counters: Counter[str] | None = None
    ) -> None:
        super().__init__(counters)
        self.config = config
        self.service = service
        self.watches: dict[Peer, dict[int, str]] = {}  # client → token → pattern

    def _on_introduce(self, peer: Peer, _message: Introduce) -> None:
        config = self.config
        addresses = {name: config.addresses.get(name, "") for name in config.replicas}
        http = {name: config.http[name] for name in config.replicas if name in config.http}
        self._send(peer, Introduced(config.region, config.name, addresses, http))

    # ------------------------------------------------------------ which streams exist

    def _on_watch_streams(self, peer: Peer, message: WatchStreams) -> None:
        watches = self.watches.setdefault(peer, {})
        full = len(watches) >= WATCHES_MAX and message.token not in watches
        if full or not is_pattern(message.pattern):
            why = "too-many" if full else "bad-name"
            self._send(peer, StreamsAre(message.token, (), (), True, why))
            return
        watches[message.token] = message.pattern
        part: list[StreamInfo] = []
        nbytes = 0
        for info in self._matching(message.pattern):
            size = spec_bytes(info)
            if part and (len(part) >= INFOS_MAX or nbytes + size > INFOS_BYTES_MAX):
                self._tell(peer, message.token, part, False)
                part, nbytes = [], 0
            part.append(info)
            nbytes += size
        self._tell(peer, message.token, part, True)

    def _matching(self, pattern: str) -> list[StreamInfo]:
        if is_name(pattern):  # fast path: a client of thousands of streams asks for each name
            info = self.service.named(pattern)
            found = None if info is None else self.service.streams.get(info.stream_id)
            ended = found is None or self.service.is_ended(found)
            return [] if info is None or ended else [info]
        service = self.service
        return [
            service.current(stream)
            for stream in service.streams.values()
            if matches(pattern, stream.info.name) and not service.is_ended(stream)
        ]

    def _on_unwatch_streams(self, peer: Peer, message: UnwatchStreams) -> None:
        self.watches.get(peer, {}).pop(message.token, None)

    def _on_added(self, event: StreamAdded) -> None:
        info = event.info
        for peer, watches in self.watches.items():
            for token, pattern in watches.items():
                if matches(pattern, info.name):
                    self._tell(peer, token, [info], True)

    def _tell(self, peer: Peer, token: int, infos: list[StreamInfo], complete: bool) -> None:
        # These ends may be higher than what readers are shown, because a part is damaged or not
        # indexed by retention yet. A client must not assume that the stream is shorter.
        ends = tuple(self._end(info.stream_id) for info in infos)
        self._send(peer, StreamsAre(token, tuple(infos), ends, complete))

    def _end(self, stream: LogId) -> int:
        """The end for readers of ranges, which may be after lost positions (RangeLost)."""
        service = self.service
        return max(service.visible_end(service.streams[stream]), service.readable_end(stream))

    def _on_peer_down(self, inp: PeerDown) -> None:
        self.watches.pop(inp.peer, None)

    # ------------------------------------------------------------ the position of a time

    def _on_locate(self, peer: Peer, message: Locate) -> None:
        service = self.service
        stream = service.streams.get(message.stream)
        if stream is None:
            self._send(peer, Located(message.token, 0, "unknown-stream"))
        elif service.is_remote(stream):
            self.out.append(PassDown(Handed("locate", peer, message)))
        else:
            self._send(
                peer, Located(message.token, *service.locate(message.stream, message.time_ns))
            )

    def _on_answer(self, event: Answer) -> None:
        self._send(event.peer, Located(event.message.token, event.seq, event.why))
