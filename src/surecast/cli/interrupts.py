"""Ctrl-C while a command is still being loaded.

Half of a second may pass before a verb begins its work, and all of it is imports. An interrupt in
the middle of one would be printed as a traceback; some libraries turn it into another error, or
print it and go on. Nothing has begun yet, so the process may simply end: with exit code 130, as
for every interrupt, and without a word.

This module is imported before anything protects the process, so it imports next to nothing.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # typing takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")

__all__ = ["INTERRUPTED", "exits_at_once", "loads"]

INTERRUPTED = 130  # exit code: 128 + SIGINT


class exits_at_once:
    """`with exits_at_once():` Ctrl-C ends the process meanwhile.

    No effect where SIGINT is ignored or handled otherwise, or in another thread than the main one.
    """

    def __enter__(self) -> None:
        self.ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self.ours:
            try:
                signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(INTERRUPTED))
            except ValueError:  # not the main thread
                self.ours = False

    def __exit__(self, *problem: object) -> None:
        if self.ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def loads(*modules: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """For a verb: import these modules, which it is about to need, while Ctrl-C ends the process.

    The options are parsed by then, so `--help` and wrong options do not wait for them.
    """
    from functools import wraps
    from importlib import import_module

    def made(verb: Callable[P, R]) -> Callable[P, R]:
        @wraps(verb)
        def run(*args: P.args, **options: P.kwargs) -> R:
            with exits_at_once():
                for module in modules:
                    import_module(module)
            return verb(*args, **options)

        return run

    return made
