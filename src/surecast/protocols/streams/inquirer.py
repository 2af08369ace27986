"""A client's machine that sends questions to its region and repeats them until they are answered.

The questions are defined in `core.endpoint`: which streams exist, at which position a time begins,
and requests about named subscriptions (cursors).
"""

from typing import Any, ClassVar

from surecast.core.endpoint import (
    DeleteCursor,
    MoveCursor,
    ResetCursor,
    TakeCursor,
    WhereIs,
    WhichCursors,
    WhichStreams,
)
from surecast.errors import UsageError
from surecast.parts.requests import Request, Requests
from surecast.protocols.streams.messages import (
    Advance,
    Advanced,
    Attach,
    Attached,
    CursorChanged,
    CursorDelete,
    CursorReset,
    CursorsAre,
    Detach,
    ListCursors,
    Locate,
    Located,
    StreamsAre,
    UnwatchStreams,
    WatchStreams,
)

__all__ = ["Inquirer"]


class Inquirer(Requests):
    """Translates questions into messages; `Requests` sends and repeats them."""

    handlers: ClassVar[dict[type, str]] = {
        StreamsAre: "_on_answer",
        Located: "_on_answer",
        Attached: "_on_answer",
        Advanced: "_on_answer",
        CursorsAre: "_on_answer",
        CursorChanged: "_on_answer",
    }

    def _request(self, question: Any, token: int) -> Request:
        """The request to send for a question. `of_head`: only the head can answer it; `keep`: it
        stays open for further answers; `then`: what is sent in its place after the first answer."""
        match question:
            case WhichStreams(pattern):
                watch = WatchStreams(token, pattern)
                return Request(watch, keep=True, cancel=UnwatchStreams(token))
            case WhereIs(stream, time_ns):
                return Request(Locate(token, stream, time_ns))
            case TakeCursor(name, holder):
                # A retry after the first answer must not take the name back from another client
                # that has taken it since.
                held = Attach(token, name, holder, False)
                take = Attach(token, name, holder, True)
                leave = Detach(token, name)
                return Request(take, of_head=True, keep=True, then=held, cancel=leave)
            case MoveCursor(name, holder, positions):
                return Request(Advance(token, name, holder, positions), of_head=True)
            case WhichCursors(name, after):
                return Request(ListCursors(token, name, after), of_head=True)
            case ResetCursor(name, change, positions, force):
                return Request(CursorReset(token, name, change, positions, force), of_head=True)
            case DeleteCursor(name, change, force):
                return Request(CursorDelete(token, name, change, force), of_head=True)
        raise UsageError(f"{type(question).__name__} is not a question for a region")
