"""The thread that moves and compacts: one job at a time, in slices that leave others their turn."""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

__all__ = ["Background", "Closing"]

# Between slices of work. A thread that only lets go of the interpreter gets it back before a
# waiting one is awake; one that sleeps does not.
_BREATH_S: Final = 0.0001

Work = Callable[[Callable[[], None]], Any]  # given `breathe`, to be called between slices


class Closing(Exception):
    """The store is closed: work under way is given up."""


class Background:
    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._work = threading.Condition()  # guards what follows
        self._jobs: deque[tuple[Any, Work]] = deque()
        self._results: list[tuple[Any, Any]] = []
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="mover", daemon=True)
        self._thread.start()

    def put(self, what: Any, work: Work) -> None:
        """Do `work`; `take` gives `what` back, with what it returned or raised."""
        with self._work:
            self._jobs.append((what, work))
            self._work.notify()

    def tell(self, what: Any, result: Any) -> None:
        """As if the work had been done, with this result."""
        with self._work:
            self._results.append((what, result))
        self._wake()

    def take(self) -> list[tuple[Any, Any]]:
        with self._work:
            results, self._results = self._results, []
            return results

    def close(self) -> None:
        with self._work:
            self._closing = True
            self._work.notify()
        self._thread.join()

    def _breathe(self) -> None:
        if self._closing:
            raise Closing
        time.sleep(_BREATH_S)

    def _run(self) -> None:
        while True:
            with self._work:
                while not self._closing and not self._jobs:
                    self._work.wait()
                if self._closing:
                    return
                what, work = self._jobs.popleft()
            try:
                result = work(self._breathe)
            except Closing:
                return
            except Exception as problem:
                problem.__cause__ = problem.__context__ = None  # they keep what they have seen
                result = problem.with_traceback(None)
            del work  # what it refers to must not outlive it here
            self.tell(what, result)
            del what, result
