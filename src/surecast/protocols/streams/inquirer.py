"""A client's questions to its region: which streams there are, where a time begins, cursors."""

from typing import Any, ClassVar

from surecast.core.endpoint import MoveCursor, TakeCursor, WhereIs, WhichStreams
from surecast.errors import UsageError
from surecast.parts.requests import Request, Requests
from surecast.protocols.streams.messages import (
    Advance,
    Advanced,
    Attach,
    Attached,
    Locate,
    Located,
    StreamsAre,
    UnwatchStreams,
    WatchStreams,
)

__all__ = ["Inquirer"]


class Inquirer(Requests):
    handlers: ClassVar[dict[type, str]] = {
        StreamsAre: "_on_answer",
        Located: "_on_answer",
        Attached: "_on_answer",
        Advanced: "_on_answer",
    }

    def _request(self, question: Any, token: int) -> Request:
        match question:
            case WhichStreams(pattern):
                watch = WatchStreams(token, pattern)
                return Request(watch, keep=True, cancel=UnwatchStreams(token))
            case WhereIs(stream, time_ns):
                return Request(Locate(token, stream, time_ns))
            case TakeCursor(name, holder):
                # Once it is ours, whoever takes it goes before us: we do not take it back.
                held = Attach(token, name, holder, False)
                take = Attach(token, name, holder, True)
                return Request(take, of_head=True, keep=True, then=held)
            case MoveCursor(name, holder, positions):
                return Request(Advance(token, name, holder, positions), of_head=True)
        raise UsageError(f"{type(question).__name__} is no question to a region")
