"""The background thread of a store, which runs moves and compactions (mover.py) one at a time.

A job pauses after each slice of its work, so that the event loop's thread is not delayed.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

__all__ = ["Background", "Closing"]

# Pause between slices of work. Releasing the interpreter's lock alone is not enough: this thread
# would take it again before the waiting thread is awake. Sleeping gives the other thread time.
_PAUSE_S: Final = 0.0001

Work = Callable[[Callable[[], None]], Any]  # its argument is to be called between slices


class Closing(Exception):
    """Raised in a job when the store is closed, to end it."""


class Background:
    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._work = threading.Condition()  # guards `_jobs`, `_results` and `_closing`
        self._jobs: deque[tuple[Any, Work]] = deque()
        self._results: list[tuple[Any, Any]] = []
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="mover", daemon=True)
        self._thread.start()

    def put(self, what: Any, work: Work) -> None:
        """Run `work` in the thread; then `take` returns `what` with its result or exception."""
        with self._work:
            self._jobs.append((what, work))
            self._work.notify()

    def tell(self, what: Any, result: Any) -> None:
        """Add a result for `what` without running any work."""
        with self._work:
            self._results.append((what, result))
        self._wake()

    def take(self) -> list[tuple[Any, Any]]:
        """The results since the last call: each `what`, with what its work returned or raised."""
        with self._work:
            results, self._results = self._results, []
            return results

    def close(self) -> None:
        with self._work:
            self._closing = True
            self._work.notify()
        self._thread.join()

    def _between_slices(self) -> None:
        if self._closing:
            raise Closing
        time.sleep(_PAUSE_S)

    def _run(self) -> None:
        while True:
            with self._work:
                while not self._closing and not self._jobs:
                    self._work.wait()
                if self._closing:
                    return
                what, work = self._jobs.popleft()
            try:
                result = work(self._between_slices)
            except Closing:
                return
            except Exception as problem:
                # The traceback and the causes would keep references to pieces, and so keep
                # segments in use.
                problem.__cause__ = problem.__context__ = None
                result = problem.with_traceback(None)
            del work  # it refers to pieces, too
            self.tell(what, result)
            del what, result
