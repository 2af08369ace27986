"""Ctrl-C while a command is still being loaded.

Imports take up to half a second before a subcommand begins its work. An interrupt during an import
would be printed as a traceback; some libraries turn it into another error, or
print it and continue. Nothing has begun yet, so the process can end at once: with exit code 130, as
for every interrupt, and without output.

This module is imported before interrupts are handled, so it imports almost nothing.
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
    """`with exits_at_once():` Ctrl-C inside the block ends the process.

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
    """Decorates a subcommand: import the modules that it needs while Ctrl-C ends the process.

    The imports happen after the options are parsed, so `--help` and wrong options do not wait.
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
